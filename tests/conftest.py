"""How hypothesis tests here: the same examples every time, and on however slow a machine.

What is found by chance would be found in somebody else's change. To look for more, with other
examples each time: `make test ARGS="--hypothesis-profile=explore"`.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("repeatable"), derandomize=False)
settings.load_profile("repeatable")
