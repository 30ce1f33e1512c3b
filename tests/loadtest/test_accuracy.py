"""`octavo bench --accuracy` scores tokens by what the model says of them, format against format."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from app.cli import main
from app.text import calibration
from engine.backends.cpu import create
from loadtest import accuracy
from loadtest.accuracy import BOUNDS, DOMAINS, INT8, KEPT, KV_FORMATS, WEIGHTS, Score
from loadtest.commands import bench as command
from tests.engine.models.tiny_models import CONTEXT, VOCAB, logits_of, random_model

MODEL = Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
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


@pytest.mark.parametrize("kv_dtype", KV_FORMATS)
def test_every_format_is_scored_through_its_own_cache(folder: Path, kv_dtype: str):
    exact = accuracy.score(create(folder, kv_memory_bytes=1 << 20), TOKENS, 32)
    found = accuracy.score(create(folder, kv_memory_bytes=1 << 20, kv_dtype=kv_dtype), TOKENS, 32)
    assert (found == exact).all() == (kv_dtype == "float32")


def test_formats_are_compared_token_by_token():
    base = np.log([0.5, 0.25, 0.125, 0.5])
    first, other = KEPT[:2]
    found = accuracy.compare({first: base, other: base - [0.1, 0.3, 0.1, 0.3]})
    assert found[first] == Score(math.exp(-base.mean()), 0.0, 0.0)
    score = found[other]
    assert score.perplexity == pytest.approx(found[first].perplexity * math.exp(0.2))
    assert score.increase == pytest.approx(math.exp(0.2) - 1)
    spread = math.sqrt(4 * 0.1**2 / 3)
    assert score.error == pytest.approx(math.exp(0.2) * spread / math.sqrt(4))


def test_a_text_is_cut_into_windows_and_the_rest_left_out():
    first, *_, last = accuracy.windows(range(9000))
    assert (first[0], len(first), last[-1]) == (0, 1024, 8191)
    with pytest.raises(ValueError, match="8191 tokens"):
        accuracy.windows(range(8191))


@pytest.mark.parametrize("domain", DOMAINS)
def test_texts_are_shipped_and_their_source_is_named(domain: str):
    assert len(accuracy.read_text(domain)) > 10_000
    saved = json.loads((Path(accuracy.__file__).parent / f"texts/{domain}.json").read_text())
    assert saved["source"]
    assert saved["licence"]


def test_calibration_and_measured_texts_have_no_line_in_common():
    text = (Path(calibration.__file__).parent / "calibration.txt").read_text().splitlines()
    for domain in DOMAINS:
        common = set(text) & set(accuracy.read_text(domain).splitlines())
        assert not [line for line in common if len(line) > 20]


def test_the_report_has_every_domain_and_format(folder: Path, monkeypatch: pytest.MonkeyPatch):
    scores = {d: {kept: Score(20.0, 0.01, 0.002) for kept in KEPT} for d in DOMAINS}
    monkeypatch.setattr(command, "measure_accuracy", lambda model, tick, folder: scores)
    monkeypatch.setattr(command, "int8_weight_bits", lambda model: 7)
    report = json.loads(bench("--json", "--model", str(folder)).stdout)
    assert (report["model"], report["tokens"], report["context"]) == (folder.name, 8192, 1024)
    score = {"perplexity": 20.0, "increase": 0.01, "error": 0.002}
    by_weights = {weights: dict.fromkeys(KV_FORMATS, score) for weights in WEIGHTS}
    assert report["scores"] == dict.fromkeys(DOMAINS, by_weights)
    assert (report["weight_bits"], report["bounds"]) == (7, BOUNDS)
    assert set(report) >= {"chunk", "versions", "cpu"}
    table = bench("--model", str(folder)).stdout
    for words in (*DOMAINS, *WEIGHTS, *KV_FORMATS, "+1.00%", "20.000", "7 bits on this machine"):
        assert words in " ".join(table.split())


def test_every_way_to_keep_weights_and_kv_is_scored(folder: Path, monkeypatch: pytest.MonkeyPatch):
    loaded = []

    def load(model: Path, *, dtype: str, weight_bits: int | None, kv_dtype: str, **_: object):
        loaded.append((dtype, weight_bits, kv_dtype))
        return SimpleNamespace(backend=SimpleNamespace(close=lambda: None))

    monkeypatch.setattr(accuracy, "load_on_cpu", load)
    monkeypatch.setattr(accuracy, "score", lambda *_: np.full(3, -float(len(loaded))))
    monkeypatch.setattr(accuracy, "CONTEXT", 16)
    monkeypatch.setattr(accuracy, "load_tokenizer", lambda model: None)
    monkeypatch.setattr(accuracy, "encode_prompt", lambda *_: list(range(200)))
    monkeypatch.setattr(accuracy, "calibration_tokens", lambda tokenizer: [1, 2, 3])
    scores = accuracy.measure_accuracy(folder)
    assert loaded == [(*WEIGHTS[weights], kv) for weights, kv in KEPT]
    for by_format in scores.values():
        assert list(by_format) == list(KEPT)
        assert by_format[KEPT[1]].perplexity == pytest.approx(math.exp(2))
        assert by_format[KEPT[1]].increase == pytest.approx(math.e - 1)


@pytest.mark.slow
def test_int8_stays_within_its_bounds_on_both_texts(tmp_path: Path):
    kept = (KEPT[0], *((INT8, kv) for kv in BOUNDS))
    scores = accuracy.measure_accuracy(MODEL, folder=tmp_path, kept=kept)
    for by_format in scores.values():
        for kv_dtype, most in BOUNDS.items():
            assert by_format[INT8, kv_dtype].increase < most


def test_a_model_of_too_short_a_context_is_refused(folder: Path):
    result = bench("--model", str(folder))
    assert result.exit_code == 2
    assert f"its context of {CONTEXT} tokens is less than 1024" in " ".join(result.stderr.split())
