"""What can go wrong inside the engine, as types."""

from __future__ import annotations

from collections.abc import Iterable


class RowFault(Exception):
    """A backend fault that concerns some rows of the batch only.

    The loop fails the requests of these rows and computes the others again; a backend must leave
    the other rows' KV as it was or as the batch says.
    """

    def __init__(self, rows: Iterable[int], reason: str) -> None:
        super().__init__(reason)
        self.rows = tuple(rows)
        self.reason = reason


class ConfigurationError(Exception):
    """Start-up cannot go on: a message for the person who runs the server, no traceback."""


class UnfitBackend(ConfigurationError):
    """A backend that was asked for and cannot compute here.

    knob: the one of `engine` that asked. reason: a clause that says what is missing.
    """

    def __init__(self, knob: str, reason: str, remedy: str) -> None:
        super().__init__(f"cuda cannot be had: {reason}; {remedy}")
        self.knob = knob
        self.reason = reason


class UnfitMemory(ConfigurationError):
    """A size that the memory of blocks cannot have. knob: the one of `engine` that gives it."""

    def __init__(self, knob: str, message: str) -> None:
        super().__init__(message)
        self.knob = knob


class TooLittleMemory(UnfitMemory):
    """Memory that does not hold one block of KV."""

    def __init__(self, knob: str, size: int, block_bytes: int, kv_dtype: str) -> None:
        super().__init__(
            knob,
            f"{size} bytes do not hold one block of this model, {block_bytes} bytes in {kv_dtype}",
        )


class TooMuchMemory(UnfitMemory):
    """More than there is. usable: bytes that this process may use."""

    def __init__(self, knob: str, size: int, usable: int) -> None:
        super().__init__(knob, f"{size} bytes are more than the {usable} this process may use")


class TooLittleDeviceMemory(UnfitMemory):
    """A device that is too small for something. what: the thing; left: what is left, and what took
    the rest."""

    def __init__(self, knob: str, what: str, left: str) -> None:
        super().__init__(knob, f"{what} does not fit: {left}")


class ModelError(ConfigurationError):
    """A model file that cannot be served; the message names what is missing or wrong."""


class UnfitShards(ConfigurationError):
    """A model that cannot be dealt to as many ranks as there are."""


class GroupLost(Exception):
    """The processes that compute one model cannot go on together; `rank` is why.

    Raised in every step from then on: nobody can take the place of a rank.
    """

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} {reason}")
        self.rank = rank
        self.reason = reason


class BackendLost(Exception):
    """A backend that computes no more in this process, whatever it is asked: the engine ends."""


class CollectiveFailed(Exception):
    """Something that ranks do together did not come about: one of the others is gone or late."""
