"""vLLM's `prompt_logprobs`: how likely a prompt's tokens are, and what else could have been."""

import pytest
from support.serving import CHAT, COMPLETIONS, HELLO, saying, serving


@pytest.fixture
async def house():
    async with serving(script=saying("abcdef")) as house:
        yield house
        await house.idle()


def told(prompt):
    """What the scripted backend says of each token of a prompt of bytes."""
    places = [
        {str(token): {"logprob": -place / 10, "rank": 1, "decoded_token": chr(token)}}
        for place, token in enumerate(prompt)
    ]
    return [None, *places[1:]]


def assert_told(found, prompt):
    assert len(found) == len(prompt)
    for place, expected in zip(found, told(prompt), strict=True):
        if expected is None:
            assert place is None
            continue
        ((token, known),) = expected.items()
        assert place.keys() == {token}
        assert place[token] == {**known, "logprob": pytest.approx(known["logprob"])}


async def test_each_choice_of_a_completion_has_those_of_its_prompt(house):
    body = {"prompt": ["xyz", "pqrs"], "n": 2, "max_tokens": 2, "prompt_logprobs": 1}
    reply = (await house.post(COMPLETIONS, body)).json()
    prompts = [b"xyz", b"xyz", b"pqrs", b"pqrs"]
    for choice, prompt in zip(reply["choices"], prompts, strict=True):
        assert_told(choice["prompt_logprobs"], prompt)
        assert choice["text"] == "ab"
        assert choice["logprobs"] is None


async def test_those_of_a_chat_stand_beside_its_choices(house):
    body = {"messages": HELLO, "max_tokens": 2, "prompt_logprobs": 0, "return_token_ids": True}
    reply = (await house.post(CHAT, body)).json()
    found = reply["prompt_logprobs"]
    assert found[0] is None
    ids = [next(iter(place)) for place in found[1:]]
    assert ids == [str(token) for token in reply["prompt_token_ids"][1:]]
    assert "prompt_logprobs" not in reply["choices"][0]


async def test_a_cached_prompt_is_told_as_well(house):
    body = {"prompt": "p" * 100, "max_tokens": 1, "prompt_logprobs": 0}
    first, second = [(await house.post(COMPLETIONS, body)).json() for _ in range(2)]
    assert first["choices"][0]["prompt_logprobs"] == second["choices"][0]["prompt_logprobs"]
    assert len(second["choices"][0]["prompt_logprobs"]) == 100


async def test_an_echo_has_its_own_alternatives(house):
    body = {"prompt": "xyz", "echo": True, "logprobs": 0, "max_tokens": 1, "prompt_logprobs": 1}
    (choice,) = (await house.post(COMPLETIONS, body)).json()["choices"]
    assert_told(choice["prompt_logprobs"], b"xyz")
    assert choice["logprobs"]["token_logprobs"][1:3] == pytest.approx([-0.1, -0.2])
    assert len(choice["logprobs"]["tokens"]) == 4


async def test_a_prompt_of_one_token_is_foretold_by_nothing(house):
    body = {"prompt": "x", "max_tokens": 1, "prompt_logprobs": 3}
    (choice,) = (await house.post(COMPLETIONS, body)).json()["choices"]
    assert choice["prompt_logprobs"] == [None]


async def test_who_does_not_ask_is_not_told(house):
    assert "prompt_logprobs" not in (await house.post(CHAT, {"messages": HELLO})).text
    assert "prompt_logprobs" not in (await house.post(COMPLETIONS, {"prompt": "x"})).text


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_logprobs": -1},
        {"prompt_logprobs": 21},
        {"prompt_logprobs": True},
        {"prompt_logprobs": 1, "stream": True},
    ],
)
async def test_what_cannot_be_told_is_refused(house, path, fields):
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "x"}
    reply = await house.post(path, {**prompt, **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "prompt_logprobs"
