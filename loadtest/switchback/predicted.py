"""What a switchback would find, by simulation: both arms on the whole trace, read in turns.

Each arm is simulated alone from beginning to end, and of each of its periods only that window is
read, by the rules of the live experiment (`app.experiment.periods`). What one arm leaves to another
is not in it: in a live one that is what the washout is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from app.config.experiment_schema import ExperimentConfig
from app.experiment.comparison import Block, Result
from app.experiment.periods import Period
from app.experiment.schedule import Turn, turns
from engine.controls import RowControls
from engine.inbox import Submission
from engine.simulation import Record
from loadtest.houses import House
from loadtest.traces import Arrival

_CONTROLS: Final = RowControls()


def simulated_blocks(
    houses: Sequence[House],
    arrivals: Sequence[Arrival],
    experiment: ExperimentConfig,
    blocks: int,
    seed: int,
) -> Sequence[Block]:
    """The blocks of an experiment. houses: of the arms, in their order. seed: of the noise."""
    runs = [house.simulate(arrivals, seed=seed).records for house in houses]
    taken = takewhile(lambda turn: turn.block < blocks, turns(len(houses), experiment.seed))
    found: list[dict[int, Result]] = [{} for _ in range(blocks)]
    for place, turn in enumerate(taken):
        begins = place * experiment.period_s
        opens, closes = begins + experiment.washout_s, begins + experiment.period_s
        found[turn.block][turn.arm] = _period(runs[turn.arm], turn, opens, closes)
    return found


def _period(records: Sequence[Record], turn: Turn, opens: float, closes: float) -> Result:
    period = Period(turn, opens)
    period.closes = closes
    for number, record in enumerate(records):
        submission = _submission(number, record.arrival)
        if opens <= record.arrival.at < closes:
            period.arrive(submission)
        _tokens(period, submission, record)
        last = record.token_times[-1] if record.token_times else closes
        period.end(submission, failed=record.shed is not None, met=None, at=last)
    return Result.of(period)


def _tokens(period: Period, submission: Submission, record: Record) -> None:
    """Book the tokens that come while the period is measured, and a first one whenever it comes."""
    before: float | None = None
    for at in record.token_times:
        if before is None:
            period.begin(submission, record.ttft)
        if period.measures(at):
            period.take(submission, 1, None if before is None else at - before)
        before = at


def _submission(number: int, arrival: Arrival) -> Submission:
    return Submission(
        id=number,
        prompt=(0,),
        max_tokens=1,
        controls=_CONTROLS,
        arrival=arrival.at,
        tenant=arrival.tenant,
        slo_class=arrival.slo_class,
    )
