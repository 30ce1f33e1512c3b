"""langchain-openai's ChatOpenAI: at once, streamed, in batches, over both of its endpoints."""

import openai
import pydantic
import pytest
from support.serving import MODEL, saying, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # what strangers warn of is theirs
]


@pytest.fixture
async def chat(house):
    """Makes a chat model that speaks to the house.

    Over connections of ours: those that the package keeps for all of its models it never closes.
    """
    langchain = pytest.importorskip("langchain_openai", reason="install the extra `clients`")
    async with openai.DefaultAsyncHttpxClient() as connections:

        def make(**options):
            return langchain.ChatOpenAI(
                **{"model": MODEL, "max_retries": 0, **options},
                base_url=f"{house.url}/v1",
                api_key="none",
                http_async_client=connections,
            )

        yield make


async def test_it_answers_and_counts(chat, text):
    reply = await chat().ainvoke("Hello")
    assert reply.content == text
    assert reply.usage_metadata["output_tokens"] == len(text.encode()) + 1
    assert reply.response_metadata["finish_reason"] == "stop"


async def test_it_streams(chat, text):
    pieces = [piece async for piece in chat(stream_usage=True).astream([("developer", "Hello")])]
    whole = sum(pieces[1:], pieces[0])
    assert whole.content == text
    assert len(pieces) > 2
    assert whole.usage_metadata["output_tokens"] == len(text.encode()) + 1


async def test_it_answers_a_batch(chat, text):
    replies = await chat(max_tokens=3).abatch(["a", "b", "c"])
    assert [reply.response_metadata["finish_reason"] for reply in replies] == ["length"] * 3


async def test_it_reads_logprobs(chat):
    reply = await chat(max_tokens=2, logprobs=True, top_logprobs=2).ainvoke("Hello")
    first, _ = reply.response_metadata["logprobs"]["content"]
    assert (first["token"], len(first["top_logprobs"])) == ("G", 2)


@pytest.mark.parametrize("stream", [True, False])
async def test_it_uses_responses(chat, text, stream):
    model = chat(use_responses_api=True)
    if stream:
        pieces = [piece async for piece in model.astream("Hello")]
        reply = sum(pieces[1:], pieces[0])
    else:
        reply = await model.ainvoke("Hello")
    assert reply.text == text
    assert reply.usage_metadata["output_tokens"] == len(text.encode()) + 1


async def test_a_prompt_that_is_too_long_is_told_apart(chat):
    from langchain_core.exceptions import ContextOverflowError

    with pytest.raises(ContextOverflowError):
        await chat().ainvoke("x" * 5000)


@pytest.fixture
async def schooled():
    """Answers with a person, or calls a tool if it is offered one."""

    def script(row):
        prompt = bytes(token for token in row.tokens[: row.prompt_length] if token < 256)
        person = '{"name": "Zoë", "age": 12}'
        call = f'<tool_call>\n{{"name": "Person", "arguments": {person}}}\n</tool_call>'
        return saying(call if b"<tools>" in prompt else person)(row)

    async with serving(script=script, model_len=4096, blocks=512) as house:
        yield house


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
async def test_it_has_structured_output(schooled, method):
    langchain = pytest.importorskip("langchain_openai", reason="install the extra `clients`")

    class Person(pydantic.BaseModel):
        """Somebody."""

        name: str
        age: int

    async with openai.DefaultAsyncHttpxClient() as connections:
        chat = langchain.ChatOpenAI(
            model=MODEL,
            max_retries=0,
            base_url=f"{schooled.url}/v1",
            api_key="none",
            http_async_client=connections,
        )
        person = await chat.with_structured_output(Person, method=method).ainvoke("Who?")
    assert person == Person(name="Zoë", age=12)


async def test_it_calls_tools(schooled):
    langchain = pytest.importorskip("langchain_openai", reason="install the extra `clients`")
    tool = {
        "type": "function",
        "function": {
            "name": "Person",
            "parameters": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                "required": ["name", "age"],
            },
        },
    }
    async with openai.DefaultAsyncHttpxClient() as connections:
        chat = langchain.ChatOpenAI(
            model=MODEL,
            max_retries=0,
            base_url=f"{schooled.url}/v1",
            api_key="none",
            http_async_client=connections,
        ).bind_tools([tool])
        pieces = [piece async for piece in chat.astream("Who?")]
        whole = sum(pieces[1:], pieces[0])
        (call,) = whole.tool_calls
    assert (call["name"], call["args"]) == ("Person", {"name": "Zoë", "age": 12})
