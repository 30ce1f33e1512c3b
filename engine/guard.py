"""The guard: asks the policy, and keeps its word for it where the policy breaks its own.

A faulty policy costs order, never correctness (E11): an exception or too much CPU time puts
first-come-first-served in charge for a while, and an answer that means nothing is replaced. Beside
that the guard bounds what any policy may do to a request: of `every` admissions one goes to the
oldest ticket (E10), every window of steps serves everybody who runs (E13, `engine.progress`), and
holds end.
"""

from __future__ import annotations

import itertools
import math
import reprlib
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.decisions import DecisionSink, no_log
from engine.outside import OUTSIDE, STEP, TOLD, Outside
from policies.base import (
    ACCEPT,
    OWN,
    SERVICE,
    Accept,
    Demote,
    Event,
    Heads,
    Hold,
    Policy,
    Reject,
    RequestView,
    Service,
    Share,
    StepView,
    Verdict,
)
from policies.fcfs import FCFS

Key = tuple[Any, ...]
SHOWN = 120
"""Characters of what a policy returned that a `Save` keeps."""

_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = SHOWN

Answer = TypeVar("Answer")

ASKED = (
    "admit",
    "flow",
    "key",
    "prefix_key",
    "pick",
    "rank",
    "share",
    "chunk",
    "backfill",
    "may_wait",
    "victim",
    "displaces",
    "observe",
)
"""The methods of a policy that steps call. `rank` is `key` unless it is overridden."""

LONGEST_EXPLANATION = 1000
"""Characters of a policy's explanation; what is beyond is cut off."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Bounds on any policy.

    enabled: False only for tests of a policy's own bounds; faults are survived all the same.
    every: of this many consecutive admissions one goes to the oldest ticket if it was passed over.
    window: steps in which everybody who runs makes progress. max_hold_s: longest hold, in seconds.
    max_step_cpu_s: CPU seconds that a policy may take in one step; overruns: how many of
    `overrun_window` steps may take more. fallback_steps: how long FCFS stays in charge.
    """

    enabled: bool = True
    every: int = 32
    window: int = 16
    max_hold_s: float = 1.0
    max_step_cpu_s: float = 0.005
    overruns: int = 3
    overrun_window: int = 100
    fallback_steps: int = 256


@dataclass(frozen=True, slots=True)
class Save:
    """Once that the engine kept its word for the policy.

    kind: what was wrong, as `Guard.saves` counts it, or "veto". method: of the policy; said: what
    it returned or raised, cut to a line. about: the requests that a veto is about: the one with the
    lowest ticket, and the one beside which the policy would rather have had it give way.
    """

    kind: str
    step: int
    method: str
    said: str
    about: tuple[RequestView, ...] = ()


class Guard:
    """The only one who talks to the policy.

    saves counts, by kind, what the policy did wrong; vetoes, by method, how often the running
    request with the lowest ticket would have had to give way (E5), which is no fault: it may well
    be of the worst class. most_passed_over: the longest row of admissions past the oldest ticket.
    picked_nobody: whether `pick` said None last, rather than a hold that has lasted long enough.
    forced_progress: steps in which somebody got more than the policy wanted (E13). on_save: told of
    each save and veto. `cpu_clock` is the engine thread's CPU time (in virtual time a constant, so
    that runs repeat exactly). outside: has the last word on what was too long.
    """

    def __init__(
        self,
        policy: Policy,
        settings: GuardSettings,
        log: DecisionSink = no_log,
        cpu_clock: Callable[[], float] = time.thread_time,
        outside: Outside = OUTSIDE,
    ) -> None:
        self.policy = policy
        self.settings = settings
        self.saves: Counter[str] = Counter()
        self.vetoes: Counter[str] = Counter()
        self.forced_admissions = 0
        self.forced_progress = 0
        self.fallback_steps = 0
        self.most_passed_over = 0
        self.picked_nobody = False
        self.last_fault = ""
        self.on_save: Callable[[Save], None] | None = None
        self._asking = ""
        self._log = log
        self._cpu_clock = cpu_clock
        self._outside = outside
        self._fallback = FCFS(services=getattr(policy, "services", None))  # type: ignore[arg-type]
        self._active: Policy = policy
        self._queued_by: Policy = policy
        self._fallback_until: int | None = None
        self._step = 0
        self._cpu_s = 0.0
        self._overruns: deque[int] = deque()
        self._passed_over = 0
        self._held_since = math.inf
        self._muted = False
        self._exports: dict[type[Policy], dict[str, Any]] = {}
        self._learn_abilities()

    # ---------------------------------------------------------------- who is in charge

    @property
    def fallen_back(self) -> bool:
        """Whether FCFS decides in place of the policy."""
        return self._fallback_until is not None

    @property
    def follows_prefixes(self) -> bool:
        """Whether who is in charge orders by what the prefix cache holds."""
        return type(self._active).prefix_key is not Policy.prefix_key

    def begin_step(self, step: int) -> bool:
        """Start the books of a step. True if another policy is in charge than in the last one.

        Whoever waits must then be queued anew.
        """
        if self._cpu_s or self._overruns:
            self._judge_cpu_time(step)
        again, self._step = step == self._step, step
        if self._fallback_until is not None and step >= self._fallback_until:
            self._fallback_until = None
            self._muted = False
        self.fallback_steps += self.fallen_back and not again
        self._active = self._fallback if self.fallen_back else self.policy
        changed = self._active is not self._queued_by
        self._queued_by = self._active
        return changed

    def replace(self, policy: Policy) -> None:
        """Put another policy in charge, from the next step on."""
        self.policy = self._active = self._queued_by = policy
        self._fallback_until = None
        self._overruns.clear()
        self._muted = False
        self._learn_abilities()

    def hand_over(
        self,
        policy: Policy,
        live: Sequence[RequestView],
        step: StepView,
        service: Mapping[str, Service],
    ) -> None:
        """Replace the policy; the new one gets what the old one exports and what the engine knows.

        What a policy exports is kept until its like is in charge again.
        """
        exported: dict[str, Any] = {}
        try:
            exported = dict(self.policy.export())
        except BaseException as error:
            self.save("exception", "export", error)
        self._exports[type(self.policy)] = exported
        own = self._exports.get(type(policy), {})
        self.replace(policy)
        try:
            policy.restore({**exported, OWN: own, SERVICE: service}, live, step)
        except BaseException as error:
            self.save("exception", "restore", error)
            self.fall_back(f"restore raised {type(error).__name__}")

    def _learn_abilities(self) -> None:
        """Optional methods are only called if the policy has them."""
        kind = type(self.policy)
        own = {name for name in ASKED if getattr(kind, name) is not getattr(Policy, name)}
        self._own = own | ({"rank"} if "key" in own else set())
        self.may_skip_decodes = kind.may_wait is not Policy.may_wait
        self.sizes_chunks = kind.chunk is not Policy.chunk
        self.displaces_anybody = kind.displaces is not Policy.displaces
        self.observes = kind.observe is not Policy.observe
        self.orders_victims = kind.victim is not Policy.victim
        self.splits = kind.share is not Policy.share
        self.judges = kind.admit is not Policy.admit

    def _judge_cpu_time(self, step: int) -> None:
        settings = self.settings
        spent, self._cpu_s = self._cpu_s, 0.0
        while self._overruns and self._overruns[0] <= step - settings.overrun_window:
            self._overruns.popleft()
        if self._outside.too_long(STEP, spent, settings.max_step_cpu_s):
            self.save("overrun", self._asking, f"{1e3 * spent:.1f} ms of CPU time in a step")
            self._overruns.append(step)
            if len(self._overruns) >= settings.overruns:
                self._overruns.clear()
                self.fall_back(f"{settings.overruns} steps took too much CPU time")

    def fall_back(self, reason: str) -> None:
        """Put FCFS in charge for a while. Its order holds from the next step on."""
        if self.fallen_back:
            return
        self.last_fault = reason
        self._fallback_until = self._step + 1 + self.settings.fallback_steps
        self._active = self._fallback
        self._log("fallback", reason, self._fallback_until)

    def _ask(self, method: str, read: Callable[[Any], Answer], *arguments: Any) -> Answer:
        """Call the policy in charge and `read` its answer; if either fails, FCFS answers instead.

        An answer that means nothing is replaced; an exception, which may come while it is read
        (a generator, an odd `__hash__`), also puts FCFS in charge.

        What a policy has not overridden is ours: it is trusted, and its time is not taken (reading
        a thread's CPU clock can cost more than the whole call).
        """
        if self._active is self._fallback or method not in self._own:
            return read(getattr(self._active, method)(*arguments))
        self._asking = method
        answer: Any = None
        started = self._cpu_clock()
        try:
            answer = getattr(self._active, method)(*arguments)
            return read(answer)
        except _Nonsense as nonsense:
            self.save(nonsense.kind, method, answer)
        except BaseException as error:  # also SystemExit: a policy ends nothing but its own reign
            self.save("exception", method, error)
            self.fall_back(f"{method} raised {type(error).__name__}")
        finally:
            self._cpu_s += self._cpu_clock() - started
        return read(getattr(self._fallback, method)(*arguments))

    # ---------------------------------------------------------------- what it did wrong

    def save(self, kind: str, method: str, said: object) -> None:
        """Note that the policy did something wrong, which harmed nobody."""
        self.saves[kind] += 1
        if self.on_save is not None:
            self.on_save(Save(kind, self._step, method, _shown(said)))

    def veto(self, method: str, oldest: RequestView, other: RequestView) -> None:
        """Note that the lowest running ticket would have had to give way before, or to, `other`."""
        self.vetoes[method] += 1
        if self.on_save is not None:
            said = f"ticket {oldest.ticket}, the oldest that runs, for ticket {other.ticket}"
            self.on_save(Save("veto", self._step, method, said, (oldest, other)))

    def wrote(self, name: str) -> None:
        """Note that somebody, and it can only be the policy, tried to write to a view."""
        self.save("write", self._asking, f"wrote to {name}")

    # ---------------------------------------------------------------- what the policy is asked

    def admit(self, request: RequestView, step: StepView) -> Verdict:
        return self._ask("admit", _verdict, request, step) if self.judges else ACCEPT

    def place(self, request: RequestView) -> tuple[Hashable, Key]:
        """The flow that a request joins, and its key there."""
        return self._ask("flow", _flow, request), self._ask("key", _key, request)

    def prefix_key(self, request: RequestView, cached: int) -> Key:
        """The key of a waiting request of which `cached` tokens are cached."""
        return self._ask("prefix_key", _key, request, cached)

    def rank(self, request: RequestView) -> Key:
        return self._ask("rank", _key, request)

    def pick(self, heads: Heads, step: StepView) -> Hashable | Hold | None:
        """The flow whose head is next, a hold that may last, or None for nobody."""

        def read(choice: Any) -> Hashable | Hold | None:
            if isinstance(choice, Hold):
                return Hold(_number(choice.until, "hold"))
            if choice is not None and _flow(choice) not in heads:
                raise _Nonsense("flow")
            return choice  # type: ignore[no-any-return]

        choice = self._ask("pick", read, heads, step)
        self.picked_nobody = choice is None
        if isinstance(choice, Hold):
            return self._bound(choice, step.now)
        self._held_since = math.inf
        return choice

    def _bound(self, hold: Hold, now: float) -> Hold | None:
        """A hold lasts `max_hold_s` at most, counted from the first of a row of holds."""
        self._held_since = min(self._held_since, now)
        end = self._held_since + self.settings.max_hold_s
        until = min(hold.until, end) if self.settings.enabled else hold.until
        if until > now:
            return Hold(until)
        if hold.until > now:
            self.save("cut hold", "pick", hold)
            self._log("cut-hold", now)
        return None

    def share(self, step: StepView) -> Share:
        """The policy's split, clamped to the budget."""
        budget = step.budget
        if not self.splits:
            return Share(budget, budget, budget)

        def read(share: Any) -> Share:
            if not isinstance(share, Share):
                raise _Nonsense("share")
            return Share(
                decode=max(0, min(budget, _whole(share.decode))),
                prompt=max(0, min(budget, _whole(share.prompt))),
                chunk=max(1, min(budget, _whole(share.chunk))),
            )

        return self._ask("share", read, step)

    def chunk(self, request: RequestView, start: int, most: int, step: StepView) -> int:
        """How many of `most` >= 1 tokens of a prompt the policy lets this step compute."""

        def read(count: Any) -> int:
            return max(0, min(most, _whole(count)))

        return self._ask("chunk", read, request, start, most, step) if self.sizes_chunks else most

    def backfill(self, step: StepView) -> int:
        return self._ask("backfill", lambda passes: max(0, _whole(passes)), step)

    def may_wait(self, request: RequestView, step: StepView) -> bool:
        return self.may_skip_decodes and self._ask("may_wait", _is_true, request, step)

    def victim(self, request: RequestView, step: StepView) -> Key | None:
        if not self.orders_victims:
            return None
        return self._ask("victim", lambda o: None if o is None else _key(o), request, step)

    def displaces(self, newcomer: RequestView, running: RequestView) -> bool:
        return self.displaces_anybody and self._ask("displaces", _is_true, newcomer, running)

    def observe(self, events: Sequence[Event], most: int) -> list[int]:
        """Tell the policy what happened; returns the ids to queue anew, at most `most`.

        A policy that is not in charge is told as well, so that its books are right when it is back,
        unless it goes on failing or taking too long.
        """
        if not self.observes:
            return []

        def read(ids: Iterable[Any]) -> list[int]:
            return [_whole(number) for number in itertools.islice(ids, most)]

        if not self.fallen_back:
            return self._ask("observe", read, events)
        if not self._muted:
            self._tell(events, read)
        return []

    def _tell(self, events: Sequence[Event], read: Callable[[Iterable[Any]], list[int]]) -> None:
        """`observe` of a policy that is not in charge; the first failure mutes it."""
        started = self._cpu_clock()
        try:
            read(self.policy.observe(events))
        except BaseException as error:
            self.save("exception", "observe", error)
            self._muted = True
        spent = self._cpu_clock() - started
        if self._outside.too_long(TOLD, spent, self.settings.max_step_cpu_s):
            self.save("overrun", "observe", f"{1e3 * spent:.1f} ms of CPU time")
            self._muted = True

    def explain(self, request: RequestView, step: StepView) -> str:
        """Why a request waits, in the words of who is in charge; a failure to say it is counted.

        It costs nobody its place: who explains badly may still decide well.
        """
        words: object
        try:
            words = self._active.explain(request, step)
        except BaseException as error:
            words = error
        if type(words) is not str:
            self.save("explanation", "explain", words)
            return self._fallback.explain(request, step)
        return words[:LONGEST_EXPLANATION]

    # ---------------------------------------------------------------- E10

    @property
    def owes_the_oldest(self) -> bool:
        """Whether the next admission must go to the oldest waiting ticket."""
        return self.settings.enabled and self._passed_over >= self.settings.every - 1

    def admitted(self, *, oldest: bool, forced: bool) -> None:
        """Somebody was admitted; `oldest`: it held the lowest ticket of those who could be."""
        self._passed_over = 0 if oldest else self._passed_over + 1
        self.most_passed_over = max(self.most_passed_over, self._passed_over)
        self._held_since = math.inf
        if forced:
            self.forced_admissions += 1


class _Nonsense(Exception):
    """An answer that means nothing; `kind` is what it should have been."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def _shown(said: object) -> str:
    """One line of what a policy said, however odd it is."""
    return said[:SHOWN] if type(said) is str else _SHORT.repr(said)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise _Nonsense("number")
    return value


def _number(value: Any, kind: str) -> float:
    if type(value) not in (int, float) or value != value:
        raise _Nonsense(kind)
    return float(value)


def _is_true(value: Any) -> bool:
    return value is True


def _verdict(verdict: Any) -> Verdict:
    match verdict:
        case Accept():
            return verdict
        case Reject(reason=str(), retry_after=None):
            return verdict
        case Reject(reason=str(), retry_after=after):
            return Reject(verdict.reason, _number(after, "verdict"))
        case Demote(slo_class=str()):
            return verdict
    raise _Nonsense("verdict")


def _flow(flow: Any) -> Hashable:
    """Flows are strings, numbers, or tuples of these: what can be neither changed nor tricked."""
    if comparable((flow,)) is None:
        raise _Nonsense("flow")
    return flow  # type: ignore[no-any-return]


def _key(order: Any) -> Key:
    key = comparable(order)
    if key is None:
        raise _Nonsense("key")
    return key


def comparable(order: object, depth: int = 8) -> Key | None:
    """A tuple in which any two elements can be compared: numbers before strings before tuples.

    None if `order` is no tuple, is nested deeper than `depth`, or holds anything else: a NaN, None,
    a list, an instance of a subclass, which could compare as it likes.
    """
    if type(order) is not tuple or depth == 0:
        return None
    elements: list[tuple[int, Any]] = []
    for element in order:
        kind = type(element)
        if kind is int or kind is float or kind is bool:
            if element != element:  # NaN orders nothing
                return None
            elements.append((0, element))
        elif kind is str:
            elements.append((1, element))
        else:
            inner = comparable(element, depth - 1)
            if inner is None:
                return None
            elements.append((2, inner))
    return tuple(elements)
