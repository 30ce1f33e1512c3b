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
