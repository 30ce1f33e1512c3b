"""Logits of small random models equal transformers', however a prompt is cut and batched.

Every kind of model is read twice: from a Hugging Face folder and from a GGUF file.
"""

import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.backends.attention import PagedAttention
from engine.backends.kv_cache import KVCache
from engine.batch import Batch
from engine.models.config import ModelConfig
from engine.models.decoder import Inputs, forward
from engine.models.files import load_weights, read_config
from engine.models.rope import rope_table
from engine.models.weights import Weights
from tests.engine.backends.batches import Work, make_batch
from tests.engine.backends.caches import poison
from tests.engine.models.tiny_models import KINDS, VOCAB, logits_of, random_model, write_twin

BLOCKS = 24
PROMPT = np.random.default_rng(0).integers(0, VOCAB, 70).tolist()
OTHERS = [np.random.default_rng(i).integers(0, VOCAB, n).tolist() for i, n in ((1, 5), (2, 33))]

NO_GGUF = {"qwen3 mixed windows"}
"""Kinds that GGUF files have no keys for."""

FORMS = [
    (kind, form)
    for kind in KINDS
    for form in ("folder", "gguf")
    if (kind, form) not in {(name, "gguf") for name in NO_GGUF}
]


class Engine:
    """The decoder over a poisoned cache whose blocks are handed out in random order."""

    def __init__(self, config: ModelConfig, weights: Weights, kv_dtype: str) -> None:
        self._config, self._weights = config, weights
        self._cache = KVCache(config, BLOCKS, kv_dtype)
        poison(self._cache.parts)
        self._blocks = random.Random(0).sample(range(BLOCKS), BLOCKS)

    def table(self, tokens: int) -> list[int]:
        return [self._blocks.pop() for _ in range(-(-tokens // 16))]

    def logits(self, batch: Batch) -> np.ndarray:
        """Logits of every token of the batch, [tokens, vocab]."""
        inputs = Inputs(
            tokens=torch.from_numpy(batch.token_ids).long(),
            positions=torch.from_numpy(batch.positions).long(),
            slots=torch.from_numpy(batch.slots).long(),
            logit_rows=torch.arange(batch.tokens),
        )
        rope = rope_table(self._config)
        layers, attention = self._cache.layers, PagedAttention(batch)
        return forward(self._weights, self._config, rope, layers, inputs, attention).numpy()

    def whole(self, prompt: list[int]) -> np.ndarray:
        return self.logits(make_batch([Work(self.table(len(prompt)), 0, prompt)]))


@dataclass(frozen=True)
class Saved:
    """A model on disk in both forms, and transformers' logits of PROMPT."""

    folder: Path
    gguf: Path
    expected: np.ndarray

    def engine(self, form: str, kv_dtype: str = "float32") -> Engine:
        path = self.folder if form == "folder" else self.gguf
        config = read_config(path)
        return Engine(config, load_weights(path, config), kv_dtype)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads of torch that wait for each other cost more than models this small take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory):
    """Makes and saves the model of a kind, once."""

    @lru_cache
    def save(kind: str) -> Saved:
        directory = tmp_path_factory.mktemp("parity")
        model = random_model(kind)
        folder, gguf = directory / "folder", directory / "twin.gguf"
        model.save_pretrained(folder)
        if kind not in NO_GGUF:
            write_twin(gguf, model)
        return Saved(folder, gguf, logits_of(model, PROMPT))

    return save


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_a_whole_prompt(saved, kind: str, form: str):
    model = saved(kind)
    assert_close(model.engine(form).whole(PROMPT), model.expected)


@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_a_prompt_in_chunks(saved, kind: str, form: str, chunk: int):
    model = saved(kind)
    engine = model.engine(form)
    table = engine.table(70)
    found = [
        engine.logits(make_batch([Work(table, start, PROMPT[start : start + chunk])]))
        for start in range(0, 70, chunk)
    ]
    assert_close(np.concatenate(found), model.expected)


@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_a_prompt_in_chunks_beside_other_rows(saved, kind: str, form: str, chunk: int):
    model = saved(kind)
    engine = model.engine(form)
    table, *tables = (engine.table(length) for length in (70, 128, 128))
    found = []
    for step, start in enumerate(range(0, 70, chunk)):
        mine = Work(table, start, PROMPT[start : start + chunk])
        before, after = (  # a whole prompt, then one token a step
            Work(t, len(other) + step - 1, [step]) if step else Work(t, 0, other)
            for t, other in zip(tables, OTHERS, strict=True)
        )
        logits = engine.logits(make_batch([before, mine, after]))
        found.append(logits[len(before.tokens) :][: len(mine.tokens)])
    assert_close(np.concatenate(found), model.expected)


@pytest.mark.parametrize(("kv_dtype", "tolerance"), [("bfloat16", 0.05), ("int8", 0.1)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_in_chunks_over_a_smaller_cache(saved, kind: str, kv_dtype: str, tolerance: float):
    """In norm over each token's logits; these random models attend more sharply than real ones."""
    model = saved(kind)
    engine = model.engine("folder", kv_dtype)
    table = engine.table(70)
    found = np.concatenate(
        [
            engine.logits(make_batch([Work(table, start, PROMPT[start : start + 33])]))
            for start in range(0, 70, 33)
        ]
    )
    off = np.linalg.norm(found - model.expected, axis=1)
    assert (off < tolerance * np.linalg.norm(model.expected, axis=1)).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NO_GGUF])
def test_a_folder_and_its_gguf_twin_are_one_model(saved, kind: str):
    model = saved(kind)
    found = model.engine("gguf").whole(PROMPT)
    # Llama 3's rope is a table in GGUF and a rule in a folder, which rounds otherwise.
    tolerance = 1e-5 if kind == "llama3 rope" else 0
    np.testing.assert_allclose(
        found, model.engine("folder").whole(PROMPT), rtol=tolerance, atol=tolerance
    )
