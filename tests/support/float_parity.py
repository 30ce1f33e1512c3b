"""Texts of the real model, and where two runs of them may differ.

In float32 the sums of a batch depend a little on what else is in it. So greedy tokens may differ
where the two best logits are closer than CLEAR, and a draw where it falls that close to the border
between two tokens: differences are counted, and what comes after the first is not compared.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.controls import RowControls, TokenLogprobs
from engine.outputs import Finish
from support.engines import Harness

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
FIXTURE = ROOT / "tests" / "fixtures" / "smollm2_greedy_f32.jsonl"

CLEAR = 1e-3
"""A gap between the two best logits above which float32 may not change the choice."""


@dataclass(frozen=True)
class Ask:
    prompt: list[int]
    max_tokens: int
    controls: RowControls

    @property
    def greedy(self) -> bool:
        return self.controls.temperature == 0


@dataclass(frozen=True)
class Said:
    tokens: list[int]
    logprobs: list[TokenLogprobs]
    finish: Finish | None


def controls(number: int) -> RowControls:
    """In turn: greedy, sampled, and sampled under every penalty; logprobs always.

    Without top_k many draws end among thousands of tokens so unlikely that rounding tells them
    apart.
    """
    if number % 3 == 0:
        return RowControls(temperature=0.0, logprobs=2)
    penalties = {"presence_penalty": 0.6, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
    return RowControls(seed=number, top_k=20, logprobs=2, **penalties if number % 3 == 1 else {})


def asks(count: int, max_tokens: int, longest: int) -> list[Ask]:
    """The prompts of the fixture, over and over, with lengths and controls that differ."""
    rows = [json.loads(line)["prompt_ids"] for line in FIXTURE.read_text().splitlines()]
    prompts = [row for row in rows if len(row) <= longest]
    return [
        Ask(prompts[number % len(prompts)], max_tokens + number % 7, controls(number))
        for number in range(count)
    ]


def said(harness: Harness, request: int) -> Said:
    """What a request that has ended was answered."""
    outputs = harness.outputs[request, 0]
    logprobs = [each for output in outputs for each in output.logprobs]
    return Said(harness.tokens(request), logprobs, harness.end(request))


def differences(wanted: list[Ask], expected: list[Said], found: list[Said]) -> dict[str, int]:
    """How many greedy and drawn texts part, each where it may; all else must be equal."""
    parted = {"greedy": 0, "drawn": 0}
    for ask, ours, theirs in zip(wanted, found, expected, strict=True):
        pairs = zip(ours.tokens, theirs.tokens, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if at is None:
            assert (ours.tokens, ours.finish) == (theirs.tokens, theirs.finish)
        elif ask.greedy:
            (_, best), (_, second) = theirs.logprobs[at].top
            assert best - second < CLEAR, (ask, at)
            parted["greedy"] += 1
        else:
            parted["drawn"] += 1
        for a, b in zip(ours.logprobs[:at], theirs.logprobs[:at], strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=CLEAR)
    return parted
