"""`engine.speculation` makes who guesses, or says what is wrong with the draft model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import Qwen2Config, Qwen2ForCausalLM

from app.compose import Core, compose_engine
from app.config import load_config
from app.text.files import load_tokenizer
from app.text.vocabulary import difference
from engine.controls import RowControls
from engine.drafting.model import DraftModel
from engine.errors import ConfigurationError
from engine.inbox import Submission
from engine.outputs import Look, Output
from engine.speculation import PromptLookup
from loadtest.speculation_bench import Bench, method_of
from tests.app.text.tiny_tokenizers import train, write_folder

VOCAB = 400


def write_model(path: Path, seed: int, kind: str = "byte-level", layers: int = 2) -> Path:
    """A random Qwen2 with the tokenizer of this kind."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)
    saved = json.loads((path / "config.json").read_bytes())
    return write_folder(path, train(kind), config=saved)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("served") / "model", 0)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("other") / "model", 1, layers=1)


def settings(served: Path, draft: Path | None, *more: str) -> list[str]:
    speculation = [] if draft is None else ["method=draft", f"model={draft}", "dtype=float32"]
    return [
        f"model.path={served}",
        "model.dtype=float32",
        "engine.kv_memory=16MiB",
        "engine.speculation.kv_memory=4MiB",
        *(f"engine.speculation.{each}" for each in speculation),
        *more,
    ]


def composed(served: Path, draft: Path | None, outputs: list[Output], *more: str) -> Core:
    def emit(news: Sequence[Output], look: Look) -> None:
        outputs.extend(news)

    config = load_config(None, {}, settings(served, draft, *more))
    return compose_engine(config, Console(stderr=True), emit)


def answers(core: Core, outputs: list[Output]) -> list[list[int]]:
    """What three requests are answered, greedy and drawn."""
    outputs.clear()
    for number in range(3):
        prompt = list(range(10 + number, 30 + number))
        controls = RowControls(temperature=0.7 * (number > 0), seed=number, ignore_eos=True)
        core.engine.scheduler.submit(Submission(number, prompt, 16, controls, 0.0), 0.0)
    while core.engine.scheduler.live:
        core.engine.step(())
        core.engine.scheduler.check()
    texts: list[list[int]] = [[], [], []]
    for output in outputs:
        texts[output.request] += output.tokens
    return texts


@pytest.mark.parametrize("depth", [0, 1])
def test_a_draft_model_guesses_and_changes_nothing(served, other, depth) -> None:
    texts = {}
    for name, draft in (("none", None), ("itself", served), ("other", other)):
        outputs: list[Output] = []
        core = composed(served, draft, outputs, f"engine.depth={depth}")
        assert (core.guessing.model is None) == (draft is None)
        if draft is not None:
            drafter = core.guessing.drafter
            assert isinstance(drafter, DraftModel)
            assert drafter._steps._cost.observations > 10, "what a step takes was measured"
        texts[name] = answers(core, outputs)
        counters = core.engine.scheduler.counters
        assert counters.draft_faults == 0
        core.close()
    assert [len(text) for text in texts["none"]] == [16, 16, 16]
    assert texts["itself"] == texts["none"]
    assert texts["other"] == texts["none"]


def test_guesses_from_the_text_need_no_model(served) -> None:
    core = composed(served, None, [], "engine.speculation.method=ngram")
    assert isinstance(core.guessing.drafter, PromptLookup)
    assert core.guessing.model is None
    core.close()


def refused(served: Path, draft: Path, *more: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        composed(served, draft, [], *more)
    return str(caught.value)


def test_another_vocabulary_is_refused_and_what_differs_is_said(served, tmp_path) -> None:
    alien = write_model(tmp_path / "alien", 2, kind="metaspace first")
    message = refused(served, alien)
    assert message.startswith("engine.speculation.model: ")
    assert "has another vocabulary" in message
    ours, theirs = load_tokenizer(served), load_tokenizer(alien)
    assert difference(ours, ours) is None
    assert (difference(ours, theirs) or "?") in message


def test_tokens_of_the_same_number_are_told_apart(served, tmp_path) -> None:
    twin = load_tokenizer(served)
    pieces = [*twin._pieces]
    pieces[7], pieces[8] = pieces[8], pieces[7]
    twin._pieces = pieces
    assert "its token 7 is" in str(difference(load_tokenizer(served), twin))


def test_a_draft_model_that_is_not_there_is_named_by_its_key(served, tmp_path) -> None:
    message = refused(served, tmp_path / "nothing.gguf")
    assert message.startswith("engine.speculation.model: ")


def test_memory_that_holds_no_block_is_named_by_its_key(served, other) -> None:
    message = refused(served, other, "engine.speculation.kv_memory=100")
    assert message.startswith("engine.speculation.kv_memory: 100 bytes do not hold one block")


def test_the_bench_measures_the_method_that_is_configured(served, other) -> None:
    config = load_config(None, {}, settings(served, other))
    assert method_of(config) == "draft"
    bench = Bench(config, Console(stderr=True))
    prompt = list(range(10, 40))
    guessed = bench.answer(prompt, 0.0, guessing=True)
    assert bench.answer(prompt, 0.0, guessing=False).tokens == guessed.tokens
    assert isinstance(bench.core.guessing.drafter, DraftModel)
    bench.close()
