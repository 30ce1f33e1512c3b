"""Knobs that must fit together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.config import Config, check_pool, load_config
from app.config.schema import EngineConfig, ModelConfig
from engine.errors import ConfigurationError


def test_rows_that_cannot_all_progress_within_sixteen_steps_are_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_config(overrides=["engine.max_step_tokens=4", "engine.max_rows=49"])
    message = str(caught.value)
    assert message.startswith("--set: engine.max_rows: 49 + 16 is more than the 64")
    assert "engine.max_step_tokens = 4" in message


def test_the_window_of_the_guard_counts() -> None:
    rows = ["engine.max_step_tokens=4", "engine.max_rows=49"]
    assert load_config(overrides=[*rows, "guard.window=17"]).engine.max_rows == 49
    with pytest.raises(
        ConfigurationError, match=r"49 \+ 8 is more than the 32 .* guard.window = 8"
    ):
        load_config(overrides=[*rows, "guard.window=8"])


def test_without_the_guard_nobody_is_promised_progress() -> None:
    overrides = ["engine.max_step_tokens=1", "engine.max_rows=64", "guard.enabled=false"]
    assert load_config(overrides=overrides).engine.max_rows == 64


def test_rows_that_just_fit_are_accepted() -> None:
    config = load_config(overrides=["engine.max_step_tokens=4", "engine.max_rows=48"])
    assert config.engine.max_rows == 48


def test_whatever_was_said_last_is_blamed_for_a_combination() -> None:
    Path("config.yaml").write_text("engine: {max_rows: 64}", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"^OCTAVO_ENGINE__MAX_STEP_TOKENS: "):
        load_config(None, {"OCTAVO_ENGINE__MAX_STEP_TOKENS": "1"})


def test_reserved_blocks_are_not_cached_and_asking_for_both_is_refused() -> None:
    reserve = ["engine.allocation=reserve"]
    assert load_config(overrides=[]).engine.caches_prefixes
    assert not load_config(overrides=reserve).engine.caches_prefixes
    assert not load_config(overrides=[*reserve, "engine.prefix_cache=false"]).engine.caches_prefixes
    with pytest.raises(ConfigurationError) as caught:
        load_config(overrides=[*reserve, "engine.prefix_cache=true"])
    message = str(caught.value)
    assert message.startswith("--set: engine.prefix_cache: true cannot be had with")
    assert "engine.allocation = reserve" in message


def test_a_pool_smaller_than_one_full_request_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_pool(Config(), total_blocks=512, block_size=16, max_model_len=8193)
    message = str(caught.value)
    assert message.startswith("engine.kv_memory: 512 blocks of 16 tokens are fewer than the 513")
    assert "model.max_model_len = 8193" in message


def test_a_simulated_pool_is_refused_under_the_knob_that_sizes_it() -> None:
    config = Config(engine=EngineConfig(backend="simulated"))
    with pytest.raises(ConfigurationError, match=r"^engine\.simulated\.total_blocks: "):
        check_pool(config, total_blocks=1, block_size=16, max_model_len=17)


def test_a_pool_of_exactly_one_full_request_is_accepted() -> None:
    assert check_pool(Config(), total_blocks=512, block_size=16, max_model_len=8192) is None


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (ModelConfig(), "smollm2-135m-instruct"),
        (ModelConfig(path="weights/My-Model.Q8_0.gguf"), "My-Model.Q8_0"),
        (ModelConfig(path="weights/Qwen2.5-0.5B"), "Qwen2.5-0.5B"),
        (ModelConfig(path="weights/Qwen2.5-0.5B/"), "Qwen2.5-0.5B"),
        (ModelConfig(path="a.gguf", name="house-model"), "house-model"),
    ],
)
def test_the_served_name_is_given_or_derived(model: ModelConfig, name: str) -> None:
    assert model.served_name == name


def test_a_folder_that_is_named_by_a_dot_has_its_own_name() -> None:
    assert ModelConfig(path=".").served_name == Path.cwd().name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.relief=[recompute]"], "evict cannot be left out while .* [evict, recompute]"),
        (
            ["engine.relief=[evict, offload]"],
            "recompute cannot be left out unless engine.allocation is reserve;"
            " write [evict, offload, recompute]",
        ),
        (["engine.relief=[]"], "recompute cannot be left out .* write [evict, recompute]"),
        (
            ["engine.relief=[evict, recompute, offload]"],
            "offload after recompute would never be reached; write [evict, offload, recompute]",
        ),
        (
            ["engine.relief=[offload, evict, recompute]"],
            "evict comes first: it costs nobody who runs anything; write",
        ),
        (["engine.relief=[evict, evict, recompute]"], "each step is written once; write"),
        (["engine.relief=[evict, swap, recompute]"], "expected evict, offload or recompute"),
    ],
)
def test_relief_that_could_not_work_is_refused_with_what_to_write(overrides, message) -> None:
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(ConfigurationError, match=r"^--set: engine\.relief.*" + pattern):
        load_config(overrides=overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["engine.relief=[evict, recompute]"],
        ["engine.relief=[offload, recompute]", "engine.prefix_cache=false"],
        ["engine.relief=[recompute]", "engine.allocation=reserve"],
        ["engine.relief=[offload]", "engine.allocation=reserve"],
        ["engine.relief=[]", "engine.allocation=reserve"],
    ],
)
def test_relief_that_can_work_is_accepted(overrides: list[str]) -> None:
    assert load_config(overrides=overrides).engine.relief is not None


def test_a_draft_model_has_to_be_named() -> None:
    draft = "engine.speculation.method=draft"
    with pytest.raises(ConfigurationError, match=r"^--set: engine\.speculation\.model: .*needs"):
        load_config(overrides=[draft])
    named = load_config(overrides=[draft, "engine.speculation.model=small.gguf"])
    assert named.engine.speculation.model == "small.gguf"


def test_nothing_is_drafted_for_a_simulated_model() -> None:
    overrides = ["engine.speculation.method=draft", "engine.backend=simulated"]
    with pytest.raises(ConfigurationError, match=r"engine\.speculation\.method: .*is simulated"):
        load_config(overrides=[*overrides, "engine.speculation.model=small.gguf"])
