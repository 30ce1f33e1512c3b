"""Lets a stretch of traffic run under a policy in virtual time, and reads its window.

                  start                 opens                closes
    live          ├─ the window before ─┤├───── window ──────┤
    simulated  ╌╌╌├─ finds its way in ──┤├───── is read ─────┤
            warm-up

Who was being answered at the start has what it had: a request of the same content came before it,
as long ago as it takes, so that its blocks are found cached and it goes on with its last token.
What else was found cached, and by nobody's doing of late, is put there in the same way.
Whoever had not ended when the window closed is thought to go on for as long as others did.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.shadow.measures import Score, Window
from app.shadow.prefixes import Keys, answers_of, keys_of, there_before
from app.shadow.traffic import Course, Stretch
from app.shadow.weather import CALM, Weather
from engine.backends.simulated import Noise
from engine.batch import BLOCK, StepShape
from engine.clock import VirtualClock
from engine.inbox import Submission
from engine.outputs import Look, Output
from engine.outside import Outside
from engine.prefix import KEY_BYTES, KeyChain
from engine.replay import replay
from engine.request import Sequence as Sequenced
from engine.simulation import Machine, PolicyMaker
from engine.simulation.answers import NamedChain
from engine.simulation.arrival import MOST_NAME
from engine.simulation.engine import collecting_seldom, virtual_engine
from engine.simulation.requests import ENDING, GREEDY, AnswersThatEnd, numbered_prompt
from policies.base import Services

WARM_UP: Final = "warm-up"
"""The tenant of what comes before the start, which never comes again."""


@dataclass(frozen=True, slots=True)
class Played:
    """A window under a policy. faults: what the policy did wrong, of any kind."""

    score: Score
    faults: int


def play(
    stretch: Stretch, policy: PolicyMaker, machine: Machine, seed: int, weather: Weather = CALM
) -> Played:
    """Let everybody of a stretch come as they came. seed: of the policy's numbers and the noise's.
    weather: how slow the machine was meanwhile, beside which its steps scatter.

    Raises what making the policy raises, and ValueError for a machine without room for a block.
    """
    roles = _roles(stretch)
    clock = VirtualClock()
    stage = Stage(roles, Window(stretch.opens), stretch)
    engine = virtual_engine(
        policy(services=Services(machine.cost, random.Random(seed))),
        machine,
        clock,
        stage.emitted,
        answers=AnswersThatEnd([role.length for role in roles]),
        noise=stage.noise(weather, machine.noise_of(seed)),
        outside=Names(roles),
    )
    with collecting_seldom():
        if machine.prefix_cache:
            replay(engine, clock, _warm_up(stretch, roles))
        stage.begin(clock.now() - stretch.start)
        closes = stretch.closes + stage.shift
        replay(engine, clock, stage.submissions(), closes)
    faults = sum(engine.scheduler.guard.saves.values())
    return Played(stage.window.score(stretch.closes), faults)


@dataclass(frozen=True, slots=True)
class Role:
    """A request of a stretch, as it is played. number: its place.

    known: tokens of each sequence that there are at the start, those of the prompt among them;
    begun: whether that is more than the prompt. length, asked: tokens that come after these, and
    that may. keys: of the full blocks of what is known; named: those that have names, of the prompt
    and of the answer.
    """

    number: int
    course: Course
    known: int
    begun: bool
    length: int
    asked: int
    keys: Keys
    named: Keys


def _roles(stretch: Stretch) -> list[Role]:
    lengths = sorted(each.length for each in stretch.courses if each.length is not None)
    sums = _from_behind(lengths)
    answers = answers_of(stretch.courses)
    return [
        _role(number, each, [*keys_of(each), *answers.get(number, ())], lengths, sums)
        for number, each in enumerate(stretch.courses)
    ]


def _from_behind(lengths: Sequence[int]) -> list[int]:
    """Of each place, the sum of what is there and behind it."""
    sums = [0]
    for each in reversed(lengths):
        sums.append(sums[-1] + each)
    return sums[::-1]


def _role(
    number: int, course: Course, named: Keys, lengths: Sequence[int], sums: Sequence[int]
) -> Role:
    request = course.request
    had, got = course.had // request.sequences, course.got // request.sequences
    length = course.length
    if length is None:  # as long as those are on average that are longer than it is by now
        place = bisect_right(lengths, got)
        longer = len(lengths) - place
        length = round(sums[place] / longer) if longer else request.asked
    known, length = request.prompt_tokens + had, min(length, request.asked)
    return Role(
        number,
        course,
        known,
        begun=course.had > 0,
        length=max(1, length - had),
        asked=max(1, request.asked - had),
        keys=_keys(number, named, known),
        named=named,
    )


def _keys(number: int, named: Keys, tokens: int) -> Keys:
    """Names of so many tokens' full blocks; those that have none are like no others."""
    first, full = MOST_NAME + (number << 32), tokens // BLOCK
    own = [(first + place).to_bytes(KEY_BYTES, "big") for place in range(len(named), full)]
    return [*named[:full], *own]


class Names(Outside):
    """Names blocks of answers as the prompts do that go on from them."""

    def __init__(self, roles: Sequence[Role]) -> None:
        self._roles = roles

    def chain_of(self, sequence: Sequenced) -> KeyChain:
        number = sequence.request.id
        if number >= len(self._roles):
            return super().chain_of(sequence)
        return NamedChain(self._roles[number].named, sequence.request.submission.prompt_keys)


def _warm_up(stretch: Stretch, roles: Sequence[Role]) -> Iterator[Submission]:
    """What makes blocks be there at the start: what was found, and of those who had begun."""
    answers = {role.number: role.named for role in roles}
    chains = [(len(keys) * BLOCK + 1, keys) for keys in there_before(stretch.courses, answers)]
    chains += [(role.known, role.keys) for role in roles if role.begun]
    for place, (tokens, keys) in enumerate(chains):
        yield Submission(
            id=len(roles) + place,
            prompt=numbered_prompt(0, tokens),
            max_tokens=1,
            controls=GREEDY,
            arrival=0.0,
            tenant=WARM_UP,
            prompt_keys=keys,
        )


class Stage:
    """Brings the requests of a stretch in when their time has come, and books what they get."""

    def __init__(self, roles: Sequence[Role], window: Window, stretch: Stretch) -> None:
        self.window = window
        self.shift = 0.0
        """From the engine's times to those of the simulation; known when it has been warmed up."""
        self._roles = roles
        self._stretch = stretch
        self._last: dict[tuple[int, int], float] = {}
        self._open: dict[int, int] = {}

    def begin(self, shift: float) -> None:
        """Book what comes from now on; who comes in the last step of all has come, too."""
        self.shift = shift
        for role in self._roles:
            if role.course.request.came >= self._stretch.opens:
                self.window.arrived(role.course.request.whose)

    def noise(self, weather: Weather, scatter: Noise | None) -> Noise:
        """By what factor a step takes longer that starts at a time of the simulation."""

        def factor(shape: StepShape, now: float) -> float:
            slower = weather.at(now - self.shift)
            return slower if scatter is None else slower * scatter(shape, now)

        return factor

    def submissions(self) -> Iterator[Submission]:
        """Each request at the time at which it came, in their order."""
        shift = self.shift
        for role in self._roles:
            course, request = role.course, role.course.request
            whose = request.whose
            self._open[role.number] = request.sequences
            patience = request.queue_deadline
            if course.left is not None and course.got == 0:  # it left before anything came
                patience = min(patience, course.left)
            yield Submission(
                id=role.number,
                prompt=numbered_prompt(role.number, role.known),
                max_tokens=role.asked,
                controls=GREEDY if role.length == role.asked else ENDING,
                arrival=request.came + shift,
                n=request.sequences,
                tenant=whose.tenant,
                weight=request.weight,
                slo_class=whose.slo_class,
                priority=request.priority,
                ttft_deadline=request.ttft_deadline + shift,
                queue_deadline=patience + shift,
                tpot_target=request.tpot_target,
                prompt_keys=role.keys,
            )

    def emitted(self, outputs: Sequence[Output], look: Look) -> None:
        """The engine's `Emit`."""
        for output in outputs:
            if output.request < len(self._roles):
                self._take(output)

    def _take(self, output: Output) -> None:
        stretch, window = self._stretch, self.window
        at = output.at - self.shift
        counts = stretch.opens <= at < stretch.closes
        course = self._roles[output.request].course
        whose = course.request.whose
        if output.tokens:
            key = (output.request, output.index)
            before = self._last.get(key)
            self._last[key] = at
            if counts:
                tokens = len(output.tokens)
                gap = None if before is None else (at - before) / tokens
                if output.timing is not None:
                    window.began(whose, at)
                window.came(whose, tokens, gap)
        if output.finish is None:
            return
        self._open[output.request] -= 1
        if not counts or self._open[output.request]:
            return
        if output.finish.failure is None and course.left is None:
            window.served(whose, at)
        elif course.left is not None:
            window.left(whose)
        else:
            window.shed(whose)
