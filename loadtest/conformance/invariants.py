"""What a policy is held to: the engine's invariants, and the cost of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GROWTH: Final = "O(log n)"

INVARIANTS: Final[Mapping[str, str]] = {
    "E1": "blocks add up, and each has its owners",
    "E2": "a step keeps to its tokens and rows",
    "E3": "block tables are as long as they should be",
    "E4": "the same happens again, to the byte",
    "E5": "the oldest that runs goes on; holds end",
    "E6": "no request is lost",
    "E7": "events are in order",
    "E8": "no step is empty while somebody could run",
    "E9": "answers do not depend on the policy",
    "E10": "the oldest is let in now and then",
    "E11": "it does not raise, overrun, or talk nonsense",
    "E12": "nothing is left of a request that ended",
    "E13": "everybody that runs makes progress",
    GROWTH: "a step costs no more the more wait",
}
"""Short names (ARCHITECTURE.md has the words), in the order of a report."""

SAVED: Final[Mapping[str, str]] = {
    "cut hold": "E5",
    "class": "E5",
    "veto": "E5",
    "refusal": "E8",
    "idle": "E8",
}
"""The invariant that the engine kept, by kind of save; any other kind is E11."""


def saved(kind: str) -> str:
    """The invariant that a save of this kind (`engine.guard.Save`) kept."""
    return SAVED.get(kind, "E11")
