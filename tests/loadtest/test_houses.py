"""A house is its configuration: what is written there is what the simulation does."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from app.config import Config
from app.config.load import load_config
from app.problems import BadConfiguration
from engine.cost import LinearCost
from loadtest.houses import House, house_of
from loadtest.metrics import report
from loadtest.profiles import Profile
from loadtest.traces import Arrival, Prefix

PROFILE = Profile(
    "test", "A test.", LinearCost(0.01, 1e-4, 1e-3), False, "made up", pool_tokens=1024
)
CROWD = [Arrival(0.01 * n, 20 + n % 90, 5 + n % 60, tenant=f"t{n % 3}") for n in range(80)]


def configured(*overrides: str, path: Path | None = None) -> Config:
    return load_config(path or Path("/dev/null"), overrides=overrides)


def house(*overrides: str, **options: int) -> House:
    return house_of(configured(*overrides), PROFILE, **options)


def test_the_machine_is_what_the_configuration_and_the_profile_say() -> None:
    machine = house(
        "engine.max_step_tokens=96",
        "engine.prompt_step_tokens=200",
        "engine.max_rows=12",
        "engine.depth=1",
        "engine.allocation=reserve",
        "guard.every=8",
        "model.max_model_len=300",
        "classes.chat.max_running=3",
    ).machine
    assert machine.cost == PROFILE.cost
    assert (machine.pool_tokens, machine.depth, machine.guard.every) == (1024, 1, 8)
    assert not machine.prefix_cache
    assert not machine.allocation.shares
    limits = machine.limits
    assert (limits.step_tokens, limits.prompt_step_tokens, limits.rows) == (96, 200, 12)
    assert limits.model_len == 300
    assert limits.of("chat").max_running == 3


def test_the_simulated_backend_needs_no_profile() -> None:
    own = configured(
        "engine.backend=simulated",
        "engine.simulated.base_s=0.5",
        "engine.simulated.total_blocks=10",
        "engine.simulated.host_blocks=7",
        "engine.simulated.move_s=0.25",
    )
    machine = house_of(own).machine
    assert (machine.cost.base, machine.pool_tokens) == (0.5, 160)
    assert (machine.host_blocks, machine.move_seconds) == (7, 0.25)
    with pytest.raises(BadConfiguration, match="--profile"):
        house_of(configured("engine.backend=cpu"))
    unsized = Profile("test", "A test.", PROFILE.cost, False, "made up")
    with pytest.raises(BadConfiguration, match="--pool-tokens"):
        house_of(configured("engine.backend=cpu"), unsized)
    assert house_of(own, unsized, pool_tokens=64).machine.pool_tokens == 64


def test_tenants_and_classes_are_those_that_the_front_end_would_tell() -> None:
    here = house(
        "classes.chat.ttft_s=2.0",
        "classes.chat.priority=-3",
        "classes.batch.queue_timeout_s=9.0",
        "tenants.nightly.classes=[batch]",
        "tenants.nightly.weight=0.5",
        "tenants.default.weight=2.0",
    )
    arrivals = [
        Arrival(0.0, 1, 1, "nightly", "default"),
        Arrival(0.0, 1, 1, "nightly", "chat"),
        Arrival(0.0, 1, 1, "somebody", "chat"),
        Arrival(0.0, 1, 1, "somebody", "unheard-of"),
    ]
    received = here.received(arrivals)
    assert [each.slo_class for each in received] == ["batch", "batch", "chat", "default"]
    assert [each.tenant for each in received] == [each.tenant for each in arrivals]
    assert (here.targets["chat"].ttft, here.targets["chat"].priority) == (2.0, -3)
    assert here.targets["batch"].queue == 9.0
    assert here.weights == {"nightly": 0.5, "default": 2.0}


def test_blocks_are_offloaded_only_where_the_configuration_lets_them() -> None:
    backend = (
        "engine.backend=simulated",
        "engine.simulated.total_blocks=20",
        "engine.simulated.host_blocks=40",
        "engine.simulated.move_s=0.0",
        "engine.prefix_cache=false",
    )
    with_it = house_of(configured(*backend)).simulate(CROWD)
    without = house_of(configured(*backend, "engine.relief=[recompute]")).simulate(CROWD)
    assert with_it.counters.preemptions > 0
    assert with_it.counters.offloaded_blocks > 0
    assert with_it.counters.restored_blocks > 0
    assert without.counters.offloaded_blocks == 0
    assert without.counters.recomputed_tokens > with_it.counters.recomputed_tokens


def test_reserved_blocks_wait_for_what_is_asked_and_never_preempt() -> None:
    asking = [Arrival(each.at, each.prompt_tokens, 5, max_tokens=400) for each in CROWD]
    paged = house().simulate(asking)
    reserved = house("engine.allocation=reserve").simulate(asking)
    assert all(record.completed for record in (*paged.records, *reserved.records))
    assert reserved.counters.preemptions == 0
    assert report(reserved)["duration_s"] > 1.5 * report(paged)["duration_s"]


def test_a_tenant_of_more_weight_is_served_sooner() -> None:
    arrivals = [Arrival(0.0, 64, 32, tenant="ab"[n % 2]) for n in range(60)]
    run = house(
        "scheduler.policy=fair-share", "engine.max_rows=4", "tenants.a.weight=4.0"
    ).simulate(arrivals)
    groups = report(run)["by_tenant"]
    assert groups["a"]["ttft_s"]["mean"] < 0.8 * groups["b"]["ttft_s"]["mean"]


def test_who_waits_longer_than_its_class_may_is_refused() -> None:
    run = house("engine.max_rows=1", "classes.default.queue_timeout_s=0.5").simulate(CROWD)
    sheds = {record.shed for record in run.records}
    assert sheds == {None, "deadline"}


def test_prompts_that_begin_alike_are_computed_once() -> None:
    prefix = Prefix((1, 2, 3), 64)
    arrivals = [Arrival(3.0 * n, 180, 4, prefix=prefix) for n in range(3)]
    cached = [record.cached_tokens for record in house().simulate(arrivals).records]
    assert cached == [0, 176, 176]
    off = house("engine.prefix_cache=false").simulate(arrivals)
    assert [record.cached_tokens for record in off.records] == [0, 0, 0]


def test_a_house_goes_to_another_process_and_does_the_same_there() -> None:
    here = house("scheduler.policy=fair-share", "tenants.t1.weight=3.0")
    there = pickle.loads(pickle.dumps(here))
    assert report(there.simulate(CROWD)) == report(here.simulate(CROWD))
