"""A house with the tokenizer of the default model: what breaks text breaks it over real tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
import pytest_asyncio
from support.float_parity import MODEL
from support.serving import House, serving

from app.text.gguf_tokenizer import GGUFTokenizer
from engine.controls import SampleRow


@pytest.fixture(scope="session")
def smollm2() -> GGUFTokenizer:
    """Byte-level BPE of 49152 tokens, without BOS."""
    if not MODEL.exists():
        pytest.skip(f"{MODEL.name} is not in models/ (`make model` fetches it)")
    return GGUFTokenizer.from_file(MODEL)


class Speaker:
    """A script that says `ids`, the last one over and over."""

    def __init__(self) -> None:
        self.ids: Sequence[int] = [65]

    def __call__(self, row: SampleRow) -> int:
        return self.ids[min(row.position - row.prompt_length, len(self.ids) - 1)]


@pytest.fixture(scope="module")
def speaker() -> Speaker:
    """What the backend of `house` says; tests change it."""
    return Speaker()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(smollm2: GGUFTokenizer, speaker: Speaker) -> AsyncIterator[House]:
    """One for all tests of a module that do not need their own."""
    async with serving(tokenizer=smollm2, script=speaker, model_len=512) as house:
        yield house
        await house.idle()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads of torch that wait for each other cost more than rows this short take."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
