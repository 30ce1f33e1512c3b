"""Small experiments: a synthetic trace of short requests, and arms in a small house."""

from __future__ import annotations

import random

from app.config import load_config
from loadtest.ab.arms import SimulatedArm
from loadtest.houses import house_of
from loadtest.profiles import find_profile
from loadtest.traces import Arrival


def short_requests(count: int = 100, rate: float = 9.0, seed: int = 1) -> list[Arrival]:
    """Poisson arrivals, log-normal lengths, three tenants, two classes."""
    chance = random.Random(seed)
    now, arrivals = 0.0, []
    for n in range(count):
        arrivals.append(
            Arrival(
                now,
                1 + min(600, int(chance.lognormvariate(4, 0.8))),
                1 + min(60, int(chance.lognormvariate(1.6, 0.6))),
                tenant=f"t{n % 3}",
                slo_class=f"c{n % 2}",
            )
        )
        now += chance.expovariate(rate)
    return arrivals


def small_arm(
    name: str, *settings: str, noise: float = 0.1, stream: str = "common", pool: int = 10_000
) -> SimulatedArm:
    """An A10G with 16 rows. settings: `section.key=value`; stream: whose noise it has."""
    classes = ("classes.c0={}", "classes.c1={}")
    config = load_config(overrides=["engine.max_rows=16", *classes, *settings])
    house = house_of(config, find_profile("vtc_a10g"), pool_tokens=pool, noise=noise)
    return SimulatedArm(name, house, stream)
