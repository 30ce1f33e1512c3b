"""Answers that are held to a schema, a regular expression, a choice or a grammar."""

import asyncio
import json

import openai
import pydantic
import pytest
from openai import AsyncOpenAI
from support.serving import CHAT, COMPLETIONS, HELLO, MODEL, chunks, saying, serving

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def schema_format(schema, **fields):
    return {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": schema, "strict": True, **fields},
    }


@pytest.fixture
async def house():
    """Says something else than what it is asked for, unless it must."""
    async with serving(script=saying('{"name": "Zoë", "age": 12}, they say. {}')) as house:
        yield house


async def answer(house, path=CHAT, **fields):
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "x"}
    reply = await house.post(path, {**prompt, "max_tokens": 100, **fields})
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    return choice


async def test_an_answer_follows_its_schema_and_ends_with_it(house):
    choice = await answer(house, response_format=schema_format(PERSON))
    assert choice["message"]["content"] == '{"name": "Zoë", "age": 12}'
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


async def test_what_the_model_would_not_say_is_forced_on_it(house):
    schema = {"type": "object", "properties": {"a": {"const": "🦙 crème"}}, "required": ["a"]}
    choice = await answer(house, response_format=schema_format(schema))
    assert json.loads(choice["message"]["content"])["a"] == "🦙 crème"


async def test_any_object(house):
    choice = await answer(house, response_format={"type": "json_object"})
    assert json.loads(choice["message"]["content"]) == {"name": "Zoë", "age": 12}


async def test_text_is_no_format(house):
    choice = await answer(house, response_format={"type": "text"})
    assert choice["message"]["content"].endswith("they say. {}")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"structured_outputs": {"json": PERSON}}, '{"name": "Zoë", "age": 12}'),
        ({"structured_outputs": {"json": json.dumps(PERSON)}}, '{"name": "Zoë", "age": 12}'),
        ({"structured_outputs": {"json_object": True}}, '{"name": "Zoë", "age": 12}'),
        ({"structured_outputs": {"regex": "[a-c]{3}", "json": None}}, "aaa"),
        ({"structured_outputs": {"choice": ['{"name', "no"]}}, '{"name'),
        ({"structured_outputs": {"grammar": 'start: "{" /[a-z"]+/ ":"'}}, '{"name":'),
        ({"structured_outputs": {"grammar": 'root ::= "{" [a-z"]+ ":"'}}, '{"name":'),
        ({"guided_json": PERSON}, '{"name": "Zoë", "age": 12}'),
        ({"guided_regex": '\\{"[a-z]+'}, '{"name'),
        ({"guided_choice": ["ja", "nein"]}, "ja"),
        ({"guided_grammar": 'start: "q"'}, "q"),
    ],
)
async def test_the_forms_of_vllm(house, path, fields, text):
    choice = await answer(house, path, **fields, stop=["\n"], ignore_eos=False)
    said = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
    if "+" in json.dumps(fields) and "_grammar" not in json.dumps(fields) and text != said:
        assert said.startswith(text)  # a run of letters may go on
    else:
        assert said == text


async def test_streams_and_several_answers_follow_too(house):
    body = {"messages": HELLO, "n": 2, "stream": True, "response_format": schema_format(PERSON)}
    reply = await house.post(CHAT, {**body, "max_tokens": 100})
    texts = ["", ""]
    ends = []
    for chunk in chunks(reply.content):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
            ends += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert [json.loads(text) for text in texts] == [{"name": "Zoë", "age": 12}] * 2
    assert ends == ["stop", "stop"]


async def test_it_goes_with_logprobs_seeds_and_stop_strings(house):
    choice = await answer(
        house, response_format=schema_format(PERSON), logprobs=True, seed=1, stop=["Zo"]
    )
    assert choice["message"]["content"] == '{"name": "'
    assert choice["stop_reason"] == "Zo"
    assert len(choice["logprobs"]["content"]) == len('{"name": "Zo')


async def test_an_answer_that_is_cut_says_so(house):
    choice = await answer(house, response_format=schema_format(PERSON), max_tokens=5)
    assert (choice["message"]["content"], choice["finish_reason"]) == ('{"nam', "length")


@pytest.mark.parametrize("blank", [ord(" "), ord("\n"), ord("\t")])
@pytest.mark.parametrize(
    "form",
    [
        schema_format(
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "additionalProperties": False,
            }
        ),
        schema_format({"type": "array", "items": {"type": "integer"}, "maxItems": 2}),
    ],
)
async def test_white_space_is_bounded(house, form, blank):
    choice = await answer(house, response_format=form, logit_bias={str(blank): 100}, max_tokens=90)
    content = choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    json.loads(content)
    assert content == content.strip()


async def test_blanks_in_a_string_are_the_models_own(house):
    """A client can tell that the answer was cut."""
    form = {"type": "json_object"}
    choice = await answer(house, response_format=form, logit_bias={"32": 100}, max_tokens=90)
    assert choice["message"]["content"] == '{ "' + 87 * " "
    assert choice["finish_reason"] == "length"


ENDLESS = saying('{"name": "' + "x" * 500)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_json_can_be_closed_before_it_is_cut(path):
    async with serving(script=ENDLESS) as house:
        asked = {"structured_outputs": {"json": PERSON}}
        cut = await answer(house, path, **asked)
        closed = await answer(house, path, **asked, close_within_limit=True)
    assert (cut["finish_reason"], closed["finish_reason"]) == ("length", "stop")
    text = closed["text"] if path == COMPLETIONS else closed["message"]["content"]
    assert set(json.loads(text)["name"]) == {"x"}


async def test_the_configuration_says_whether_json_is_closed_where_a_request_does_not():
    async with serving(
        script=ENDLESS, config={"structured": {"close_within_limit": True}}
    ) as house:
        closed = await answer(house, response_format=schema_format(PERSON))
        cut = await answer(house, response_format=schema_format(PERSON), close_within_limit=False)
        regex = await answer(house, guided_regex='\\{"[a-z]+": "x+"\\}')
    assert json.loads(closed["message"]["content"]).keys() == {"name", "age"}
    assert (cut["finish_reason"], regex["finish_reason"]) == ("length", "length")


async def test_responses_have_a_format_of_their_own(house):
    form = {"type": "json_schema", "name": "x", "schema": PERSON}
    reply = await house.post("/v1/responses", {"input": "x", "text": {"format": form}})
    assert reply.status_code == 200, reply.text
    said = reply.json()
    assert said["output"][0]["content"][0]["text"] == '{"name": "Zoë", "age": 12}'
    assert said["text"]["format"]["type"] == "json_schema"


async def test_a_grammar_is_compiled_once(house):
    for _ in range(3):
        await answer(house, response_format=schema_format(PERSON))
        await answer(house, guided_json=PERSON)
    assert len(house.service.grammars._known) == 1


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": schema_format({"uniqueItems": True})}, "response_format", "uniqueIt"),
        ({"response_format": schema_format({"not": {}})}, "response_format", "not"),
        (
            {"response_format": schema_format({"oneOf": [{"type": "string"}, {"minLength": 1}]})},
            "response_format",
            "oneOf",
        ),
        ({"response_format": schema_format({"type": "strin"})}, "response_format", "strin"),
        (
            {"response_format": schema_format({"type": "string", "pattern": "([a-z"})},
            "response_format",
            "regex",
        ),
        (
            {"response_format": schema_format({"type": "string", "minLength": 5, "maxLength": 2})},
            "response_format",
            "minLength",
        ),
        ({"response_format": schema_format({"$ref": "#"})}, "response_format", "nothing"),
        (
            {"response_format": schema_format({"enum": [f"v{i}" for i in range(50_000)]})},
            "response_format",
            "longer than",
        ),
        (
            {"response_format": schema_format({"type": "integer", "multipleOf": 1000003})},
            "response_format",
            "multipleOf",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format", "schema"),
        ({"response_format": schema_format([])}, "response_format", "schema"),
        ({"response_format": schema_format("x")}, "response_format", "schema"),
        ({"response_format": {"type": "yaml"}}, "response_format", "yaml"),
        ({"response_format": {"type": ["text"]}}, "response_format", "text"),
        ({"response_format": "text"}, "response_format", "object"),
        ({"structured_outputs": {}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "one of"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs", "structural_tag"),
        ({"structured_outputs": {"regex": "([a-z"}}, "structured_outputs", "regex"),
        ({"structured_outputs": {"regex": "a" * 9000}}, "structured_outputs", "8192"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "list"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs", "empty"),
        ({"guided_json": "{"}, "guided_json", "JSON"),
        ({"guided_regex": 5}, "guided_regex", "string"),
        ({"guided_grammar": "start: ("}, "guided_grammar", "grammar"),
        ({"guided_grammar": 'start: %json {"not": {}}'}, "guided_grammar", "%json"),
        (
            {"guided_grammar": ' {"grammars": [{"json_schema": {"multipleOf": 999983}}]}'},
            "guided_grammar",
            "JSON",
        ),
        ({"guided_grammar": "root ::= ["}, "guided_grammar", "grammar"),
        ({"guided_choice": [["a"]]}, "guided_choice", "strings"),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex",
            "combined",
        ),
        ({"guided_regex": "a", "bad_words": ["a"]}, "bad_words", "combined"),
        ({"guided_regex": "a", "allowed_token_ids": [1]}, "allowed_token_ids", "combined"),
        ({"guided_regex": "a", "min_tokens": 3, "max_tokens": 9}, "min_tokens", "combined"),
        (
            {"guided_regex": "a", "use_beam_search": True, "temperature": 0},
            "use_beam_search",
            "combined",
        ),
    ],
)
async def test_what_cannot_be_followed_is_refused_and_named(fields, param, words):
    async with serving(script=saying("abc")) as house:
        reply = await house.post(CHAT, {"messages": HELLO, **fields})
        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        assert error["param"] == param, error
        assert words in error["message"], error
        await house.probe()
        await house.idle()


@pytest.mark.parametrize("levels", [60, 450, 600])
async def test_deep_schemas_are_refused(house, levels):
    schema = '{"properties":{"x":' * levels + "{}" + "}}" * levels
    form = '{"type":"json_schema","json_schema":{"name":"x","schema":' + schema + "}}"
    body = f'{{"messages":[{{"role":"user","content":"x"}}],"response_format":{form}}}'
    reply = await house.post(CHAT, body.encode())
    assert reply.status_code == 400, reply.text
    if levels < 100:  # else the body itself is refused
        assert reply.json()["error"]["param"] == "response_format"
    await house.probe()


# ── openai-python ─────────────────────────────────────────────────────────────────────────────


class Person(pydantic.BaseModel):
    name: str
    age: int


@pytest.fixture
async def client(house):
    async with AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_parse(client):
    reply = await client.chat.completions.parse(
        model=MODEL, messages=HELLO, response_format=Person, max_tokens=100
    )
    assert reply.choices[0].message.parsed == Person(name="Zoë", age=12)
    reply = await client.responses.parse(model=MODEL, input="x", text_format=Person)
    assert reply.output_parsed == Person(name="Zoë", age=12)


async def test_parse_streamed(client):
    async with client.chat.completions.stream(
        model=MODEL, messages=HELLO, response_format=Person, max_tokens=100
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == Person(name="Zoë", age=12)


async def test_parse_tells_an_answer_that_was_cut(client):
    with pytest.raises(openai.LengthFinishReasonError):
        await client.chat.completions.parse(
            model=MODEL, messages=HELLO, response_format=Person, max_tokens=5
        )


# ── hostile ones beside somebody else ─────────────────────────────────────────────────────────

AMBIGUOUS = 'start: s\ns: s s s | s s | "a" | "b"'
DOUBLING = "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(22)) + 'A22: "x"'
HOSTILE = [
    {"guided_regex": "(a|aa)+b{1,20000}"},
    {"guided_regex": "(.*[ab].{50}){10}x"},
    {"guided_regex": "a?" * 4000},
    {"guided_json": {"type": "string", "pattern": "^+x"}},
    {"guided_json": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}},
    {"guided_grammar": AMBIGUOUS},
    {"guided_grammar": DOUBLING},
    {"guided_grammar": "start: start"},
]


async def test_hostile_grammars_are_answered_and_hurt_nobody(house):
    async def hostile(fields):
        body = {"messages": HELLO, "max_tokens": 60, "temperature": 1, **fields}
        return await asyncio.wait_for(house.post(CHAT, body), 60)

    neighbour = {"prompt": "x", "max_tokens": 100, "ignore_eos": True}
    alone = (await house.post(COMPLETIONS, neighbour)).json()["choices"][0]["text"]
    beside, *replies = await asyncio.gather(
        house.post(COMPLETIONS, neighbour), *map(hostile, HOSTILE)
    )
    assert beside.json()["choices"][0]["text"] == alone
    for reply in replies:
        assert reply.status_code in (200, 400), reply.text
        if reply.status_code == 400:
            assert reply.json()["error"]["code"] in ("invalid_grammar", "grammar_failed")
    await house.probe()
    await house.idle()
