"""Decide a recording again, and see whether the same was decided."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from app.recording.decisions import DecisionHash
from engine.decisions import DecisionSink
from loadtest.recordings.files import RecordingError, RecordingFiles
from loadtest.recordings.house import RecordedHouse, build
from loadtest.recordings.outside import Diverged
from loadtest.recordings.turns import turn_of


@dataclass(slots=True)
class Verdict:
    """How far a recording was decided again.

    turns, decisions: so far; steps: those of them that computed something, requests: that came.
    verified: turns up to the last place whose hash was the recorded one. end: "closed", "lost" if
    the disk was too slow, "cut" if the process was killed. diverged: what was other than recorded;
    empty if nothing was.
    """

    turns: int = 0
    decisions: int = 0
    steps: int = 0
    requests: int = 0
    verified: int = 0
    digest: str = ""
    end: str = "cut"
    diverged: str = ""

    @property
    def exact(self) -> bool:
        """Whether all that could be compared was the same, to the byte."""
        return not self.diverged and self.verified > 0


def verify(
    recording: RecordingFiles,
    log: DecisionSink | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Verdict:
    """Let happen again what is recorded, and compare the decisions with the recorded hashes.

    log: gets the decisions, too. tick: called after each turn. Raises RecordingError for a
    recording that has lost its beginning or is damaged, and ConfigurationError for a policy that
    there is not here.
    """
    if not recording.whole:
        raise RecordingError(
            f"{recording.parts[0]}: the first file of the recording is gone, without which nothing"
            " can be decided again; octavo sim --trace still takes it"
        )
    decisions = DecisionHash()
    house = _house(recording, _both(decisions, log))
    verdict = Verdict()
    with _quiet():
        for row in recording.rows():
            _take(row, house, decisions, verdict)
            if verdict.diverged:
                break
            tick()
    counters = house.engine.scheduler.counters
    verdict.steps, verdict.requests = counters.steps, counters.arrived
    verdict.decisions, verdict.digest = decisions.entries, decisions.digest
    return verdict


def _house(recording: RecordingFiles, log: DecisionSink) -> RecordedHouse:
    try:
        return build(recording.header["engine"], log)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"{recording.parts[0]}: its header is damaged: {error!r}") from error


def _take(
    row: dict[str, Any], house: RecordedHouse, decisions: DecisionHash, verdict: Verdict
) -> None:
    """One row: a turn to play, a hash to compare, or the end."""
    if "now" in row:
        try:
            house.play(turn_of(row))
        except Diverged as error:
            verdict.diverged = f"turn {verdict.turns}: {error}"
        except (KeyError, TypeError, ValueError, IndexError) as error:
            verdict.diverged = f"turn {verdict.turns} cannot be played: {error!r}"
        verdict.turns += 1
    elif "digest" in row:
        if row["digest"] == decisions.digest and row["decisions"] == decisions.entries:
            verdict.verified = verdict.turns
        else:
            turns = f"the turns {verdict.verified} to {verdict.turns - 1}"
            verdict.diverged = f"in {turns} something else was decided"
    elif "end" in row:
        verdict.end = row["end"]


def _both(decisions: DecisionHash, log: DecisionSink | None) -> DecisionSink:
    if log is None:
        return decisions
    other = log

    def note(*entry: Any) -> None:
        decisions(*entry)
        other(*entry)

    return note


@contextmanager
def _quiet() -> Iterator[None]:
    """Faults that happened then are no news now."""
    logger = logging.getLogger("octavo.engine")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
