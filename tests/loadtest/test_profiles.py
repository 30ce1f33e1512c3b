"""Profiles: fitted ones equal their fit, estimates follow from the roofline, files come back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.cost import LinearCost
from engine.errors import ConfigurationError
from engine.presets import GPUS, MODELS
from engine.simulation.residuals import ALL, DECODE, PROMPT, Persistence, Residuals
from loadtest.profiles import Observed, Profile, find_profile, to_json
from loadtest.profiles.finding import KEPT
from loadtest.profiles.fit_vtc import fit

MEASURED = (
    Path(__file__).parents[3] / "shared/traces/calibration/vtc_a10g_llama2_7b_cost_profile.json"
)


def test_the_default_profile_is_measured_and_says_where_it_is_from() -> None:
    profile = find_profile("vtc_a10g")
    assert not profile.estimate
    assert "VTC-artifact" in profile.source
    assert "Apache-2.0" in profile.licence
    # a decode step of 31 requests of 192 tokens: the file says 9.31 s for 256 of them
    assert profile.cost.seconds(0, 31, 31 * 192, 0) == pytest.approx(9.31 / 256, rel=0.1)
    # the prefill of 19 prompts of 512 tokens: 2.09 s
    assert profile.cost.seconds(19 * 512, 0, 19 * 512, 0) == pytest.approx(2.09, rel=0.05)


@pytest.mark.slow
@pytest.mark.skipif(not MEASURED.exists(), reason="the measured costs are not here")
def test_the_kept_profile_is_the_fit_of_what_was_measured() -> None:
    assert to_json(fit(json.loads(MEASURED.read_text()))) == (KEPT / "vtc_a10g.json").read_text()


def test_a_fit_finds_the_coefficients_that_made_the_measurements() -> None:
    true = LinearCost(0.03, 2e-4, 1e-4, 5e-7, 1e-9)
    measured: dict[str, dict[str, list[float]]] = {}
    for n in (8, 64, 512):
        for steps in (1, 64, 256):
            batch = 10_000 // (n + steps)
            prefill = true.seconds(batch * n, 0, batch * n, batch * n * n)
            decode = sum(true.seconds(0, batch, batch * (n + k), 0) for k in range(1, steps + 1))
            measured.setdefault(str(n), {})[str(steps)] = [batch, prefill / batch, decode / batch]
    profile = fit(measured)
    assert profile.cost.base == pytest.approx(0.03, rel=1e-3)
    assert profile.cost.prompt_token == pytest.approx(2e-4, rel=1e-2)
    assert profile.cost.decode == pytest.approx(1e-4, rel=1e-3)
    assert profile.cost.kv_read == pytest.approx(5e-7, rel=1e-2)
    assert profile.cost.chunk_context == pytest.approx(1e-9, rel=0.1)
    assert profile.residuals.quantiles[ALL][0.95] == pytest.approx(0, abs=1e-3)


def test_an_estimate_reads_the_weights_once_a_step() -> None:
    profile = find_profile("h200-llama-3.1-8b")
    assert profile.estimate
    weights = 2 * MODELS["llama-3.1-8b"].params
    assert profile.cost.base == pytest.approx(1.3 * weights / GPUS["h200"].bytes_per_s)
    # 131,072 bytes of KV a token
    assert profile.cost.kv_read == pytest.approx(1.3 * 131_072 / GPUS["h200"].bytes_per_s)


@pytest.mark.parametrize("name", ["rtx-4090-qwen3-8b", "a100-40gb-llama-2-7b", "a100-llama-2-7b"])
def test_names_with_hyphens_are_told_apart(name: str) -> None:
    assert find_profile(name).name == name


def test_several_gpus_hold_what_one_does_not() -> None:
    with pytest.raises(ConfigurationError, match=r"llama-3\.1-70b in bfloat16 does not fit"):
        find_profile("h100-llama-3.1-70b")
    four, eight = (find_profile(f"h100x{count}-llama-3.1-70b") for count in (4, 8))
    assert four.estimate
    assert four.cost.base == pytest.approx(2 * eight.cost.base)
    assert four.pool_tokens is not None
    assert eight.pool_tokens is not None
    assert eight.pool_tokens > 2 * four.pool_tokens
    with pytest.raises(ConfigurationError, match="no profile"):
        find_profile("h100x3-llama-3.1-70b")


@pytest.mark.parametrize("gpu", ["h200", "h100", "a100", "l4"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen2.5-7b"])
def test_common_models_fit_common_gpus(gpu: str, model: str) -> None:
    profile = find_profile(f"{gpu}-{model}")
    assert profile.estimate
    assert "estimate" in profile.about
    assert profile.pool_tokens is not None
    assert profile.pool_tokens > 10_000
    assert profile.context_tokens == MODELS[model].context_length


def test_a_profile_in_a_file_comes_back(tmp_path: Path) -> None:
    profile = Profile(
        "mine",
        "A test.",
        LinearCost(0.01, 1e-3),
        False,
        "measured",
        residuals=Residuals(
            {DECODE: {0.0: -0.5, 0.5: 0.1}, PROMPT: {0.5: 0.0}}, Persistence(0.5, 0.25)
        ),
        pool_tokens=4096,
        context_tokens=2048,
        host_blocks=3,
        move_s=0.001,
        observed=Observed(99, 8, 256, 1000, 2000, 0.1, 0.0003),
        measured_on={"python": "3.13"},
    )
    path = tmp_path / "mine.json"
    path.write_text(to_json(profile))
    assert find_profile(str(path)) == profile


def test_a_file_of_the_first_version_is_read(tmp_path: Path) -> None:
    document = json.loads(to_json(find_profile("vtc_a10g")))
    del document["version"], document["persistence"]
    document["residuals"] = {"0.5": -0.1, "0.9": 0.3}
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    assert find_profile(str(path)).residuals == Residuals({ALL: {0.5: -0.1, 0.9: 0.3}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cost": {}}, "no 'base_s'"),
        ({"cost": None}, "is no step-cost profile"),
        ({"cost": dict.fromkeys(("base_s", "prompt_token_s"), -1)}, "no 'decode_s'"),
        ({"version": 3}, "version 3 is not known"),
        ({"pool_tokens": 1}, "pool_tokens is a number of tokens"),
        ({"residuals": {"decode": {"0.5": 0.1, "0.9": 0.0}}}, "rise"),
        ({"residuals": {"warm-up": {}}}, "not warm-up"),
        ({"persistence": {"share": 2, "seconds": 1}}, "persistence"),
    ],
)
def test_a_file_that_is_no_profile_is_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(json.loads(to_json(find_profile("vtc_a10g"))) | change))
    with pytest.raises(ConfigurationError, match=f"bad.json: .*{message}"):
        find_profile(str(path))


@pytest.mark.parametrize(("base", "message"), [(-1.0, "negative"), (0.0, "take no time")])
def test_steps_take_time(tmp_path: Path, base: float, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(to_json(Profile("bad", "A test.", LinearCost(base), False, "nowhere")))
    with pytest.raises(ConfigurationError, match=message):
        find_profile(str(path))


def test_an_unknown_name_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"no file h300-llama.*vtc_a10g.*h200.*qwen3-8b"):
        find_profile("h300-llama")
