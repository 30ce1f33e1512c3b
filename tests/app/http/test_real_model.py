"""The real model over HTTP: an answer is the same streamed and not."""

import json

import pytest
from support.float_parity import MODEL
from support.serving import COMPLETIONS, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL.name} is not in models/"),
]

PROMPTS = ["The capital of France is", "def merge(left, right):", "Once upon a time"]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
async def test_an_answer_is_the_same_streamed_and_not(dtype: str) -> None:
    from app.text.gguf_tokenizer import GGUFTokenizer
    from engine.backends.cpu import create

    backend = create(MODEL, dtype=dtype, kv_memory_bytes=64 * 2**20)
    async with serving(
        backend=backend, tokenizer=GGUFTokenizer.from_file(MODEL), blocks=backend.total_blocks
    ) as house:
        for prompt in PROMPTS:
            body = {"prompt": prompt, "max_tokens": 24, "temperature": 0}
            whole = (await house.post(COMPLETIONS, body)).json()["choices"][0]["text"]
            text = ""
            async with house.client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as s:
                async for line in s.aiter_lines():
                    if line.startswith("data: {"):
                        text += json.loads(line[6:])["choices"][0]["text"]
            assert text == whole
            assert len(whole) > 20
        await house.idle()


async def test_a_prompt_is_as_likely_as_it_was_as_an_answer() -> None:
    from app.text.gguf_tokenizer import GGUFTokenizer
    from engine.backends.cpu import create

    backend = create(MODEL, dtype="int8", kv_memory_bytes=64 * 2**20)
    async with serving(
        backend=backend, tokenizer=GGUFTokenizer.from_file(MODEL), blocks=backend.total_blocks
    ) as house:
        for prompt in PROMPTS:
            body = {"max_tokens": 16, "temperature": 0, "logprobs": 2, "return_token_ids": True}
            reply = (await house.post(COMPLETIONS, {"prompt": prompt, **body})).json()
            (answer,) = reply["choices"]
            ids = answer["prompt_token_ids"] + answer["token_ids"]
            again = {**body, "prompt": ids, "echo": True, "max_tokens": 1}
            (scored,) = (await house.post(COMPLETIONS, again)).json()["choices"]
            assert scored["text"].startswith(prompt + answer["text"])
            first = len(answer["prompt_token_ids"])
            told, known = scored["logprobs"], answer["logprobs"]
            assert told["tokens"][first:-1] == known["tokens"]
            expected = pytest.approx(known["token_logprobs"], abs=1e-3)
            assert told["token_logprobs"][first:-1] == expected
        await house.idle()
