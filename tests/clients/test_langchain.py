"""langchain-openai's ChatOpenAI: at once, streamed, in batches, over both of its endpoints."""

import openai
import pytest
from support.serving import MODEL

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
