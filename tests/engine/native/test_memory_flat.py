"""However many steps are computed, memory stays what it was."""

from __future__ import annotations

import dataclasses
import gc
import os
from pathlib import Path

import pytest
import torch
from support.engines import Harness
from support.float_parity import MODEL, asks

from engine.admissions import AdmissionBook
from engine.backends.cpu import CPUBackend
from engine.backends.quantised_files import Calibration, quantised_weights
from engine.backends.runners import NativeRunner
from engine.controls import RowControls
from engine.models.config import ModelConfig
from engine.models.files import read_config
from engine.models.weights import Weights
from tests.engine.models.tiny_llama import CONFIG
from tests.engine.native.tiny import int8_weights, library

STATM = Path("/proc/self/statm")
TINY = dataclasses.replace(CONFIG, context_length=512)
BLOCKS = 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from /proc"),
]


@pytest.fixture(autouse=True)
def few_admissions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that they are all there before memory is looked at."""
    monkeypatch.setattr(AdmissionBook, "MOST", 64)


def resident_mib() -> float:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


class Rounds:
    """The same few requests over and over, in a pool in which some of them give way."""

    def __init__(self, weights: Weights, config: ModelConfig, prompts: list[list[int]]) -> None:
        torch.set_num_threads(1)
        runner = NativeRunner(library(), weights, config, BLOCKS, host_blocks=BLOCKS, threads=1)
        backend = CPUBackend(runner)
        self.house = Harness(backend=backend, blocks=BLOCKS, budget=64, rows=4, depth=1)
        self.prompts = prompts

    def play(self, steps: int, max_tokens: int) -> None:
        """At least so many steps, after which nothing is kept of what was said and decided."""
        house = self.house
        while steps > 0:
            for number, prompt in enumerate(self.prompts):
                drawn = number == 0
                controls = RowControls(
                    temperature=float(drawn), seed=1, logprobs=1 if drawn else None
                )
                house.submit(prompt, max_tokens, controls)
            mail, house.mail = house.mail, []
            while house.engine.step(mail) or house.scheduler.live or house.scheduler.in_flight:
                mail = []
                house.clock.advance(0.001)
                steps -= 1
            house.outputs.clear()
            house.log.entries.clear()
        house.scheduler.check()


def stays_flat(rounds: Rounds, steps: int, max_tokens: int) -> None:
    rounds.play(steps // 5, max_tokens)
    before = objects(), resident_mib()
    rounds.play(steps - steps // 5, max_tokens)
    after = objects(), resident_mib()
    assert rounds.house.scheduler.counters.preemptions > 0
    assert after[0] - before[0] < 1000, "Python objects"
    assert after[1] - before[1] < 8, "MiB"


def test_100_000_steps_of_a_tiny_model() -> None:
    prompts = [[(7 * i + j) % TINY.vocab for j in range(60 + i)] for i in range(6)]
    stays_flat(Rounds(int8_weights(TINY), TINY, prompts), 100_000, max_tokens=60)


@pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL.name} is not in models/")
def test_5_000_steps_of_the_real_model() -> None:
    config = read_config(MODEL)
    weights = quantised_weights(MODEL, config, Calibration(), native=True)
    prompts = [ask.prompt for ask in asks(6, 1, longest=90)]
    stays_flat(Rounds(weights, config, prompts), 5_000, max_tokens=60)
