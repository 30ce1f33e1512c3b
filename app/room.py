"""How many requests are open and wait, and whether there is room for one more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.bounds import Bounds
from app.errors import larger_than_budget
from app.pace import Pace
from app.quota import TOKENS, Charge, TooLarge, duration
from app.tenancy import Tenant, Terms
from engine.clock import Clock, MonotonicClock
from engine.inbox import Submission
from engine.outputs import Counters

ANYBODY = Tenant()
ANY_TERMS = Terms()

RETRY_AFTER_S: Final = 1.0
"""Where nobody can tell when there will be room."""

OUTPUT_PRICE: Final = 2
"""Work of a token of an answer, where one of a prompt is 1."""


class Refusal(Exception):
    """Nothing crossed to the engine. limit: the key of the configuration that is to blame."""

    def __init__(self, message: str, retry_after: float, limit: str = "") -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.limit = limit


class Overloaded(Refusal):
    """The house, or the class, is full."""


class QuotaExceeded(Refusal):
    """The tenant has as much as it may."""


class Account:
    """What is open and waits of the house, of a class, or of a tenant."""

    __slots__ = ("open", "pace", "tokens", "waiting")

    def __init__(self) -> None:
        self.open = 0
        self.waiting = 0
        self.tokens = 0
        self.pace = Pace()


@dataclass(frozen=True, slots=True)
class Wait:
    """A request without a first token, as it was counted in."""

    sequences: int
    tokens: int
    work: float
    accounts: tuple[Account, Account, Account]


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose account it is, with its bounds; `who` and `keys` as messages and metrics call it."""

    account: Account
    bounds: Bounds
    who: str
    keys: str
    refusal: type[Refusal]


class Room:
    """Counts what is open. Who enters asks `require` first, with nothing awaited in between.

    Everything takes the same time however much is open. bounds: of all together.
    """

    def __init__(self, bounds: Bounds, clock: Clock | None = None) -> None:
        self._bounds = bounds
        self._clock = clock or MonotonicClock()
        self._house = Account()
        self._of_class: defaultdict[str, Account] = defaultdict(Account)
        self._of_tenant: defaultdict[str, Account] = defaultdict(Account)
        self._waiting: dict[int, Wait] = {}

    def require(
        self,
        tenant: Tenant = ANYBODY,
        terms: Terms | None = None,
        sequences: int = 1,
        tokens: int = 1,
        work: float = 1.0,
        charged: int = 0,
    ) -> None:
        """Raise Overloaded or QuotaExceeded if there is no room, ApiError if there never will be.

        terms: of its class; None where that is not known yet, which is then not asked.
        tokens: of the prompts. If nobody waits there may be any number of them, and they may take
        any time: else nobody would find out that they do not. charged: tokens of the tenant's
        budget; 0 if that is not known yet.
        """
        now = self._clock.now()
        for holder in self._holders(tenant, terms):
            _check(holder, sequences, tokens, work, now)
        if terms is not None:
            self._check_wait(terms, work, now)
        _check_budget(tenant, charged)

    def enter(
        self,
        tenant: Tenant,
        terms: Terms,
        submissions: Sequence[Submission],
        counters: Counters | None = None,
        charged: int = 0,
    ) -> Charge | None:
        """Count these in, all of them or none. Raises what `require` raises.

        counters: the engine's, which tell how long answers are. The tenant's charge is returned, if
        it has a budget; it is to be settled.
        """
        answer = _mean_answer(counters or Counters())
        works = [_work(each, answer) for each in submissions]
        sequences = sum(each.sequences for each in submissions)
        tokens = sum(len(each.prompt) for each in submissions)
        self.require(tenant, terms, sequences, tokens, sum(works), charged)
        now = self._clock.now()
        accounts = self._accounts(tenant, terms)
        for submission, work in zip(submissions, works, strict=True):
            wait = Wait(submission.sequences, len(submission.prompt), work, accounts)
            self._waiting[submission.id] = wait
            for account in accounts:
                account.open += wait.sequences
                account.waiting += wait.sequences
                account.tokens += wait.tokens
                account.pace.enter(work, now)
        return None if tenant.budget is None else tenant.budget.charge(charged)

    def answered(self, request: int, started: bool) -> None:
        """The request waits no more: it `started` to say something, or has ended without a word.

        Told as often as one likes.
        """
        wait = self._waiting.pop(request, None) if self._waiting else None
        if wait is None:
            return
        now = self._clock.now()
        for account in wait.accounts:
            account.waiting -= wait.sequences
            account.tokens -= wait.tokens
            if started:
                account.pace.start(wait.work, now)
            else:
                account.pace.leave(wait.work, now)

    def leave(self, tenant: Tenant, terms: Terms, submissions: Sequence[Submission]) -> None:
        """Count these out."""
        for submission in submissions:
            self.answered(submission.id, started=False)
            for account in self._accounts(tenant, terms):
                account.open -= submission.sequences

    def expected_waits(self) -> dict[str, float]:
        """By class: seconds until a small request that came now would have its first token."""
        now = self._clock.now()
        return {
            name: account.pace.seconds(1.0, now) if account.waiting else 0.0
            for name, account in self._of_class.items()
        }

    def _accounts(self, tenant: Tenant, terms: Terms) -> tuple[Account, Account, Account]:
        return self._house, self._of_class[terms.slo_class], self._of_tenant[tenant.name]

    def _holders(self, tenant: Tenant, terms: Terms | None) -> Iterator[Holder]:
        yield Holder(self._house, self._bounds, "the server", "limits", Overloaded)
        if terms is not None:
            name = terms.slo_class
            account = self._of_class[name]
            yield Holder(account, terms.bounds, f"class {name}", "classes", Overloaded)
        name = tenant.name
        account = self._of_tenant[name]
        yield Holder(account, tenant.bounds, f"tenant {name}", "tenants", QuotaExceeded)

    def _check_wait(self, terms: Terms, work: float, now: float) -> None:
        """Refuse who would wait for too long behind others of its class."""
        of_class = terms.bounds.wait
        most = min(of_class, self._bounds.wait)
        account = self._of_class[terms.slo_class]
        if not account.waiting or account.pace.seconds(work, now) <= most:
            return
        seconds = account.pace.seconds(work, now)
        raise Overloaded(
            f"the first token would take about {seconds:.3g} s and may take {most:g} s; "
            "try again later",
            seconds - most,
            "classes.max_wait_s" if of_class <= self._bounds.wait else "limits.max_wait_s",
        )


def _check(holder: Holder, sequences: int, tokens: int, work: float, now: float) -> None:
    """Raise the holder's refusal if one of its bounds would be exceeded."""
    account, bounds = holder.account, holder.bounds

    def refuse(message: str, key: str, retry_after: float = RETRY_AFTER_S) -> Refusal:
        return holder.refusal(f"{message}; try again later", retry_after, f"{holder.keys}.{key}")

    if account.open + sequences > bounds.open:
        has = f"{holder.who} holds {account.open} sequences and takes {bounds.open:.0f} at most"
        raise refuse(has, "max_open_requests")
    if account.waiting + sequences > bounds.waiting:
        has = (
            f"{account.waiting} sequences of {holder.who} wait to be answered and "
            f"{bounds.waiting:.0f} may at most"
        )
        part = (account.waiting + sequences - bounds.waiting) / (account.waiting + sequences)
        raise refuse(has, "max_waiting", part * account.pace.seconds(work, now))
    if account.waiting and account.tokens + tokens > bounds.tokens:
        has = (
            f"prompts of {account.tokens} tokens of {holder.who} wait to be answered and "
            f"{bounds.tokens:.0f} may at most"
        )
        part = (account.tokens + tokens - bounds.tokens) / (account.tokens + tokens)
        raise refuse(has, "max_waiting_tokens", part * account.pace.seconds(work, now))


def _check_budget(tenant: Tenant, charged: int) -> None:
    """Raise QuotaExceeded if the tenant has used up what it may in a minute."""
    if tenant.budget is None:
        return
    try:
        short = tenant.budget.shortage(charged)
    except TooLarge as error:
        raise larger_than_budget(tenant.name, error.tokens, error.size) from None
    if short is not None:
        message = (
            f"tenant {tenant.name} has {max(0.0, short.left):.0f} {short.what} left of "
            f"{short.size:.0f} and this needs {charged if short.what == TOKENS else 1}; "
            f"try again in {duration(short.seconds)}"
        )
        raise QuotaExceeded(message, short.seconds, f"tenants.{short.what}_per_minute")


def _work(submission: Submission, answer: float) -> float:
    """What a request takes, where an answer has so many tokens if it may."""
    output = submission.sequences * min(submission.max_tokens, answer)
    return len(submission.prompt) + OUTPUT_PRICE * output


def _mean_answer(counters: Counters) -> float:
    """Tokens that a request generated on average since the start."""
    return counters.generated_tokens / counters.admitted if counters.admitted else 0.0
