"""What recording costs: the figures add up, and a recorded engine without a model is stepped."""

from __future__ import annotations

import pytest
from rich.console import Console

from app.config import Config
from loadtest.host_bench import Repeats
from loadtest.record_bench import Steps, measure_recording, table, ticks

SIMULATED = {"backend": "simulated", "simulated": {"real_time": False}}


def test_the_writers_time_counts_as_if_the_step_had_waited_for_it() -> None:
    assert Steps(off=0.010, on=0.0101, writer=0.0001).share == pytest.approx(0.02)


@pytest.mark.slow
def test_each_number_of_rows_is_measured_and_shown() -> None:
    seen: list[None] = []
    config = Config.model_validate({"engine": SIMULATED, "model": {"max_model_len": 1024}})
    found = measure_recording(config, Console(), Repeats(1, 2), lambda: seen.append(None))
    assert set(found["model"]) == {"1", "8", "64"}
    assert all(each["off_us"] > 0 and each["writer_us"] > 0 for each in found["model"].values())
    assert len(seen) == ticks()
    assert table(found).row_count == 4
