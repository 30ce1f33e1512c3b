"""Policies with parameters, for tests of the loader."""

from __future__ import annotations

import math
import threading
from typing import Any, Literal

from policies.base import Policy, Services


class Sample(Policy):
    """One parameter of each kind that a configuration can give."""

    def __init__(
        self,
        *,
        services: Services,
        window: int = 8,
        factor: float = 1.0,
        classes: tuple[str, ...] = (),
        weights: dict[str, float] | None = None,
        order: Literal["oldest", "newest"] = "oldest",
    ) -> None:
        super().__init__(services=services)
        if window < 0:
            raise ValueError(f"window must not be negative, got {window}")
        self.given = (window, factor, classes, weights, order)


class Needy(Policy):
    """A parameter without a default."""

    def __init__(self, *, services: Services, quota: int) -> None:
        super().__init__(services=services)
        self.quota = quota


class Inheriting(Sample):
    """Hands unknown parameters on to its parent."""

    def __init__(self, *, services: Services, extra: bool = False, **params: Any) -> None:
        super().__init__(services=services, **params)
        self.extra = extra


class Open(Sample):
    """A policy that hands on whatever it is given, by place as well."""

    def __init__(self, *args: Any, **params: Any) -> None:
        super().__init__(*args, **params)


class Unwritable(Policy):
    """A parameter that no configuration can give."""

    def __init__(self, *, services: Services, other: Policy | None = None) -> None:
        super().__init__(services=services)


class Unmakeable(Policy):
    """Hands its services on as no policy takes them."""

    def __init__(self, *, services: Services) -> None:
        super().__init__(services)  # type: ignore[misc]


class Unannotated(Policy):
    """An annotation that fails when it is read."""

    def __init__(self, *, services: Services, other: 1 / 0 = 0) -> None:
        super().__init__(services=services)


class Vast(Policy):
    """A default that is no JSON, and one that is beyond 64 bits."""

    def __init__(self, *, services: Services, wait_s: float = math.inf, most: int = 2**70) -> None:
        super().__init__(services=services)


class Held(Policy):
    """Is not made before somebody opens the gate."""

    gate = threading.Event()
    making = threading.Event()

    def __init__(self, *, services: Services) -> None:
        super().__init__(services=services)
        self.making.set()
        assert self.gate.wait(60), "nobody opened the gate"


class Exiting(Policy):
    """Wants to end the process."""

    def __init__(self, *, services: Services) -> None:
        raise SystemExit(3)


class Unspeakable(Policy):
    """Fails with an exception that cannot say why."""

    def __init__(self, *, services: Services) -> None:
        raise _Mute


class _Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("planted")


class Impostor(Policy):
    """Makes something else."""

    def __new__(cls, **_: object) -> Any:
        return 7


class NotAPolicy:
    """Only looks like one."""
