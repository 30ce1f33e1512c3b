"""How hypothesis and Triton run here, and how a run of the tests ended, for .ci/run.

Hypothesis tries the same examples every time, on however slow a machine: what is found by chance
would be found in somebody else's change. To look for more, with other examples each time: `make
test ARGS="--hypothesis-profile=explore"`.

Triton's kernels run in its interpreter, which is decided when it is imported: transformers does.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from support.ended import ENDED, SOME_FAILED

os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("repeatable"), derandomize=False)
settings.load_profile("repeatable")

CRASHED = pytest.StashKey[bool]()

SLOW_S = 1500
"""How long a slow test may take that does not say so itself: it only ends one that hangs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: pytest.Session, error: object) -> None:
    """Called by xdist when one of its processes has ended."""
    if error:
        node.config.stash[CRASHED] = True


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if hasattr(config, "workerinput") or not hasattr(config, "cache"):
        return
    failures = exitstatus == pytest.ExitCode.TESTS_FAILED and CRASHED not in config.stash
    config.cache.set(ENDED, SOME_FAILED if failures else f"exit status {exitstatus:d}")
