"""`octavo bench --accuracy` scores tokens by what the model says of them, format against format."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from app.cli import main
from engine.backends.cpu import create
from loadtest import accuracy
from loadtest.accuracy import DOMAINS, FORMATS, Score
from loadtest.commands import bench as command
from tests.engine.models.tiny_models import CONTEXT, VOCAB, logits_of, random_model

TOKENS = np.random.default_rng(0).integers(0, VOCAB, 70).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    random_model("llama").save_pretrained(path)
    return path


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "--accuracy", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("chunk", [1, 17, 32, 70, 512])
def test_a_token_scores_the_log_probability_that_transformers_gives_it(folder: Path, chunk: int):
    logits = torch.from_numpy(logits_of(random_model("llama"), TOKENS)).double()
    expected = logits.log_softmax(-1)[range(69), TOKENS[1:]].numpy()
    backend = create(folder, kv_memory_bytes=1 << 20)
    np.testing.assert_allclose(accuracy.score(backend, TOKENS, chunk), expected, atol=1e-4)


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_every_format_is_scored_through_its_own_cache(folder: Path, kv_dtype: str):
    exact = accuracy.score(create(folder, kv_memory_bytes=1 << 20), TOKENS, 32)
    found = accuracy.score(create(folder, kv_memory_bytes=1 << 20, kv_dtype=kv_dtype), TOKENS, 32)
    assert (found == exact).all() == (kv_dtype == "float32")


def test_formats_are_compared_token_by_token():
    base = np.log([0.5, 0.25, 0.125, 0.5])
    found = accuracy.compare({"a": base, "b": base - [0.1, 0.3, 0.1, 0.3]})
    assert found["a"] == Score(math.exp(-base.mean()), 0.0, 0.0)
    assert found["b"].perplexity == pytest.approx(found["a"].perplexity * math.exp(0.2))
    assert found["b"].increase == pytest.approx(math.exp(0.2) - 1)
    spread = math.sqrt(4 * 0.1**2 / 3)
    assert found["b"].error == pytest.approx(math.exp(0.2) * spread / math.sqrt(4))


def test_a_text_is_cut_into_windows_and_the_rest_left_out():
    first, *_, last = accuracy.windows(range(5000))
    assert (first[0], len(first), last[-1]) == (0, 1024, 4095)
    with pytest.raises(ValueError, match="4095 tokens"):
        accuracy.windows(range(4095))


@pytest.mark.parametrize("domain", DOMAINS)
def test_texts_are_shipped_and_their_source_is_named(domain: str):
    assert len(accuracy.read_text(domain)) > 10_000
    saved = json.loads((Path(accuracy.__file__).parent / f"texts/{domain}.json").read_text())
    assert saved["source"]
    assert saved["licence"]


def test_the_report_has_every_domain_and_format(folder: Path, monkeypatch: pytest.MonkeyPatch):
    scores = {d: {f: Score(20.0, 0.01, 0.002) for f in FORMATS} for d in DOMAINS}
    monkeypatch.setattr(command, "measure_accuracy", lambda model, tick: scores)
    report = json.loads(bench("--json", "--model", str(folder)).stdout)
    assert (report["model"], report["tokens"], report["context"]) == (folder.name, 4096, 1024)
    score = {"perplexity": 20.0, "increase": 0.01, "error": 0.002}
    assert report["kv_dtypes"] == {d: dict.fromkeys(FORMATS, score) for d in DOMAINS}
    assert set(report) >= {"chunk", "versions", "cpu"}
    table = bench("--model", str(folder)).stdout
    for words in (*DOMAINS, *FORMATS, "+1.00%", "20.000"):
        assert words in table


def test_a_model_of_too_short_a_context_is_refused(folder: Path):
    result = bench("--model", str(folder))
    assert result.exit_code == 2
    assert f"its context of {CONTEXT} tokens is less than 1024" in " ".join(result.stderr.split())
