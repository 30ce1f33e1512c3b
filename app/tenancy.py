"""Who a request is of: its tenant by key or header, its class by header, field or tenant."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.datastructures import Headers

from app.bounds import UNBOUNDED, Bounds, limit
from app.config.schema import (
    DEFAULT,
    ClassConfig,
    Config,
    IdentityConfig,
    LimitsConfig,
    TenantConfig,
)
from app.errors import unauthorized
from app.keys import KeyRing
from app.quota import Budget, Rate
from engine.clock import Clock, MonotonicClock
from engine.limits import ClassLimits


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who shares the server with others.

    classes: of its requests, the usual one first; empty: any. bounds: of what it has here at once.
    """

    name: str = DEFAULT
    weight: float = 1.0
    classes: Sequence[str] = ()
    bounds: Bounds = UNBOUNDED
    budget: Budget | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a request of a class is promised, in seconds (inf: nothing), and its usual priority.

    bounds: of what there may be of the class at once.
    """

    slo_class: str = DEFAULT
    priority: int = 0
    ttft: float = math.inf
    tpot: float = math.inf
    queue_timeout: float = math.inf
    bounds: Bounds = UNBOUNDED


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, and the classes that there were when it came.

    objective: the class that a trusted header names.
    """

    tenant: Tenant = field(default_factory=Tenant)
    objective: str | None = None
    classes: Mapping[str, Terms] = field(default_factory=dict)

    def terms(self, service_tier: str | None) -> Terms:
        """The terms of a request that asks for this tier.

        The gateway's word holds over the client's. Names that are no class, or none of the
        tenant's, change nothing: clients send `service_tier` for servers of other kinds as well.
        """
        allowed = self._allowed
        for name in (self.objective, service_tier):
            if name is not None and name in allowed:
                return self._terms(name)
        return self._terms(allowed[0])

    @property
    def certain_terms(self) -> Terms | None:
        """The terms of whatever it sends, if they can be told without reading it."""
        allowed = self._allowed
        return self._terms(allowed[0]) if len(allowed) == 1 else None

    @property
    def _allowed(self) -> Sequence[str]:
        return self.tenant.classes or [DEFAULT, *self.classes]

    def _terms(self, name: str) -> Terms:
        return self.classes.get(name) or Terms(name)


class Tenancy:
    """The tenants and classes of a configuration; another one can be adopted at any time.

    clock: of the tenants' budgets.
    """

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._budgets: dict[str, Budget] = {}
        self.adopt(config)

    def adopt(self, config: Config) -> None:
        """From now on these are the tenants and classes. Requests that are under way keep theirs,
        and tenants what is left of their budgets.

        On the event loop, where callers are told as well.
        """
        self._identity: IdentityConfig = config.identity
        self._classes = {name: _terms(name, each) for name, each in config.classes.items()}
        rates = {name: rate for name, each in config.tenants.items() if (rate := _rate(each))}
        self._budgets = {name: self._budget(name, rate) for name, rate in rates.items()}
        self._tenants = {
            name: _tenant(name, each, self._budgets.get(name))
            for name, each in config.tenants.items()
        }
        self._default = self._tenants.get(DEFAULT, Tenant())
        self._keys = KeyRing(
            (key, self._tenants[name]) for name, each in config.tenants.items() for key in each.keys
        )

    def _budget(self, name: str, rate: Rate) -> Budget:
        """The budget of a tenant that may have had one before."""
        budget = self._budgets.get(name)
        if budget is None:
            return Budget(rate, self._clock)
        budget.adopt(rate)
        return budget

    def admit(self, headers: Headers) -> None:
        """Raises ApiError (401) for who shows no tenant's key, where one is required."""
        if self._identity.require_key:
            self._by_key(headers)

    @property
    def tenant_names(self) -> Collection[str]:
        """The tenants of the configuration."""
        return self._tenants.keys()

    @property
    def class_names(self) -> Collection[str]:
        """The classes of the configuration."""
        return self._classes.keys()

    def caller(self, headers: Headers) -> Caller:
        """Who sends a request with these headers: one of the tenants of the configuration, always.

        The key tells the tenant, unless a trusted header names another one that there is. Raises
        ApiError (401) without a tenant's key where one is required.
        """
        tenant = self._by_key(headers)
        if not self._identity.trust_proxy_headers:
            return Caller(tenant, None, self._classes)
        named = self._first(headers, self._identity.tenant_headers, self._tenants)
        classes = {**self._classes, DEFAULT: None}
        objective = self._first(headers, self._identity.class_headers, classes)
        return Caller(self._tenants[named] if named else tenant, objective, self._classes)

    def named(self, name: str) -> Caller:
        """Who sends the requests of the tenant of this name; an unknown one is the default."""
        return Caller(self._tenants.get(name, self._default), None, self._classes)

    def _by_key(self, headers: Headers) -> Tenant:
        tenant = self._keys.owner(headers)
        if tenant is None and self._identity.require_key:
            raise unauthorized("An API key is needed: Authorization: Bearer KEY.")
        return tenant or self._default

    def _first(
        self, headers: Headers, names: Sequence[str], known: Mapping[str, object]
    ) -> str | None:
        """The first value of these headers that is known."""
        values = (headers.get(name) for name in names)
        return next((value for value in values if value in known), None)


def class_limits(config: Config) -> dict[str, ClassLimits]:
    """What the engine keeps each class to."""
    return {
        name: ClassLimits(each.max_running, each.max_waiting, each.max_blocks_fraction)
        for name, each in config.classes.items()
    }


def _terms(name: str, config: ClassConfig) -> Terms:
    return Terms(
        name,
        config.priority,
        config.ttft_s or math.inf,
        config.tpot_s or math.inf,
        config.queue_timeout_s or math.inf,
        Bounds(tokens=limit(config.max_waiting_tokens), wait=limit(config.max_wait_s)),
    )


def _rate(config: TenantConfig) -> Rate | None:
    """What a tenant may use in a minute; None where that is unlimited."""
    requests, tokens = config.requests_per_minute, config.tokens_per_minute
    if requests is None and tokens is None:
        return None
    return Rate(requests, tokens, config.burst_s, config.assumed_tokens)


def _tenant(name: str, config: TenantConfig, budget: Budget | None) -> Tenant:
    bounds = Bounds(
        limit(config.max_open_requests),
        limit(config.max_waiting),
        limit(config.max_waiting_tokens),
    )
    return Tenant(name, config.weight, tuple(config.classes), bounds, budget)


def house_bounds(config: LimitsConfig) -> Bounds:
    """What all requests together are kept to."""
    return Bounds(
        config.max_open_requests,
        limit(config.max_waiting),
        limit(config.max_waiting_tokens),
        limit(config.max_wait_s),
    )
