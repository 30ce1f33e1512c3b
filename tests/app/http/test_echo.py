"""Prompts that are repeated in front of their answers, and how likely their tokens are."""

import pytest
from support.serving import COMPLETIONS, chunks, saying, serving

PROMPT = "Grüße, 🦙!"
LENGTH = len(PROMPT.encode())


@pytest.fixture
async def house():
    async with serving(script=saying("abcdef")) as house:
        yield house
        await house.idle()


async def choice_of(house, body, stream: bool):
    """The one choice of a reply, pieces joined; log-probabilities as one object."""
    reply = await house.post(COMPLETIONS, {"max_tokens": 3, **body, "stream": stream})
    assert reply.status_code == 200, reply.text
    if not stream:
        (choice,) = reply.json()["choices"]
        return choice["text"], choice["logprobs"]
    choices = [chunk["choices"][0] for chunk in chunks(reply.content)]
    text = "".join(choice["text"] for choice in choices)
    if choices[0]["logprobs"] is None:
        return text, None
    names = choices[0]["logprobs"]
    return text, {name: [x for c in choices for x in c["logprobs"][name]] for name in names}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT], list(PROMPT.encode())])
async def test_the_prompt_stands_in_front_of_the_answer(house, prompt, stream):
    text, logprobs = await choice_of(house, {"prompt": prompt, "echo": True}, stream)
    assert text == PROMPT + "abc"
    assert logprobs is None


async def test_no_stop_string_is_looked_for_in_it(house):
    text, _ = await choice_of(house, {"prompt": "xab", "echo": True, "stop": ["ab", "c"]}, True)
    assert text == "xab"


@pytest.mark.parametrize("stream", [True, False])
async def test_b26_each_token_of_it_but_the_first_has_a_logprob(house, stream):
    body = {"prompt": PROMPT, "echo": True, "logprobs": 1, "max_tokens": 1}
    text, logprobs = await choice_of(house, body, stream)
    assert {len(values) for values in logprobs.values()} == {LENGTH + 1}
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    # What the scripted backend says of the token at each position.
    expected = [-place / 10 for place in range(1, LENGTH)]
    assert logprobs["token_logprobs"][1:LENGTH] == pytest.approx(expected)
    assert logprobs["token_logprobs"][LENGTH] == 0
    assert logprobs["tokens"][:2] == ["G", "r"]
    assert logprobs["text_offset"][0] == 0
    assert logprobs["text_offset"][LENGTH] == len(PROMPT)
    assert text[logprobs["text_offset"][LENGTH] :] == "a"


@pytest.mark.parametrize("step_tokens", [16, 32, 256])
async def test_b26_it_is_the_same_cold_and_warm_and_in_whatever_chunks(step_tokens):
    body = {"prompt": "p" * 100, "echo": True, "logprobs": 1, "max_tokens": 1}
    async with serving(step_tokens=step_tokens, rows=4) as house:
        said = [await choice_of(house, body, stream) for stream in (False, True, False)]
        plain = await house.post(COMPLETIONS, {"prompt": "p" * 100, "max_tokens": 1})
        assert plain.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
        again = await choice_of(house, body, False)
        await house.idle()
    assert said == [again] * 3
    assert again[1]["token_logprobs"][1:100] == pytest.approx([-p / 10 for p in range(1, 100)])


async def test_every_choice_repeats_the_prompt_and_its_numbers(house):
    body = {"prompt": ["xyz", "pq"], "n": 2, "echo": True, "logprobs": 0, "max_tokens": 2}
    reply = (await house.post(COMPLETIONS, body)).json()
    assert [choice["text"] for choice in reply["choices"]] == ["xyzab"] * 2 + ["pqab"] * 2
    for choice, length in zip(reply["choices"], (3, 3, 2, 2), strict=True):
        logprobs = choice["logprobs"]["token_logprobs"]
        assert logprobs[0] is None
        assert logprobs[1:length] == pytest.approx([-p / 10 for p in range(1, length)])
        assert len(logprobs) == length + 2


async def test_a_prompt_of_one_token_foretells_nothing(house):
    _, logprobs = await choice_of(house, {"prompt": "x", "echo": True, "logprobs": 0}, False)
    assert logprobs["token_logprobs"] == [None, 0, 0, 0]


async def test_the_best_of_several_is_told_by_its_answer_alone(house):
    body = {"prompt": "xyz", "echo": True, "logprobs": 0, "best_of": 3, "max_tokens": 2}
    text, logprobs = await choice_of(house, body, False)
    assert text == "xyzab"
    assert len(logprobs["tokens"]) == 5


async def test_a_beam_search_repeats_the_prompt_as_well(house):
    body = {"prompt": "xyz", "echo": True, "logprobs": 1, "use_beam_search": True, "best_of": 2}
    text, logprobs = await choice_of(house, body, False)
    assert text.startswith("xyz")
    assert logprobs["token_logprobs"][1:3] == pytest.approx([-0.1, -0.2])


async def test_who_does_not_ask_is_not_told(house):
    body = {"prompt": "xyz", "logprobs": 1}
    _, logprobs = await choice_of(house, body, False)
    assert len(logprobs["tokens"]) == 3
