"""GET and POST /admin/policy: another policy takes over while requests are in flight."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
import structlog
from support.policy_samples import Held
from support.serving import COMPLETIONS, serving, until

from app import bridge, policy_desk
from app.policy_desk import Overtaken
from app.service import SMALL_INPUT
from policies.base import Policy

KEY = "k"
BEARER = {"authorization": f"Bearer {KEY}"}
PATH = "/admin/policy"
SAMPLES = "support.policy_samples"


@pytest.fixture
async def house():
    async with serving(admin_key=KEY) as house:
        yield house


async def swap(house, policy, **params):
    return await house.post(PATH, {"policy": policy, "params": params}, headers=BEARER)


async def in_charge(house):
    reply = await house.client.get(PATH, headers=BEARER)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_a_policy_is_told_with_those_that_may_take_over_and_what_they_take(house) -> None:
    seen = await in_charge(house)
    assert (seen["policy"], seen["params"], seen["fallen_back"]) == ("fcfs", {}, False)
    assert (seen["last_fault"], seen["faults"], seen["forced_admissions"]) == (None, 0, 0)
    allowed = {entry["policy"]: entry["params"] for entry in seen["allowed"]}
    assert len(allowed) == 8
    assert allowed["fcfs"] == {"backfill": 0}
    assert allowed["decode-priority"] == {"tbt_s": 0.05, "decode_slack": 0, "window": 16}


async def test_the_answer_names_old_and_new_and_the_new_one_is_in_charge(house) -> None:
    reply = await swap(house, "fair-share", output_price=3)
    assert reply.status_code == 200, reply.text
    assert reply.json() == {
        "old": {"policy": "fcfs", "params": {}},
        "new": {"policy": "fair-share", "params": {"output_price": 3}},
        "step": 0,
        "fault": None,
    }
    assert type(house.scheduler.guard.policy).__name__ == "FairShare"
    assert (await in_charge(house))["params"] == {"output_price": 3}
    await house.probe()
    again = (await swap(house, "fcfs")).json()
    assert again["old"]["policy"] == "fair-share"
    assert again["step"] > 0


async def test_streams_in_flight_go_on_as_if_nothing_had_happened() -> None:
    """Every policy takes over once while eight answers stream through a small pool."""
    script = {"script": lambda row: 65 + row.position % 26}
    async with serving(admin_key=KEY, rows=3, blocks=16, **script) as house:
        body = {"prompt": "x" * 8, "max_tokens": 100, "ignore_eos": True}
        replies = [asyncio.ensure_future(house.post(COMPLETIONS, body)) for _ in range(8)]
        for name in [entry["policy"] for entry in (await in_charge(house))["allowed"]]:
            assert (await swap(house, name)).status_code == 200
        texts = {(await reply).json()["choices"][0]["text"] for reply in replies}
        assert len(texts) == 1
        assert len(texts.pop()) == 100
        await house.idle()


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"policy": "fair-shar"}, "policy", "did you mean fair-share?"),
        ({"policy": f"{SAMPLES}:Sample"}, "policy", "is not in scheduler.allowed"),
        ({"policy": "fcfs", "params": {"backfil": 1}}, "params.backfil", "did you mean backfill?"),
        ({"policy": "fcfs", "params": {"backfill": "1"}}, "params.backfill", "an integer"),
        ({"policy": "fcfs", "params": {"backfill": -1}}, "params", "refuses them"),
        ({"policy": "fcfs", "parms": {}}, "parms", "Unknown parameter"),
        ({"policy": 1}, "policy", "string"),
        ({"policy": "fcfs", "params": dict.fromkeys(map(str, range(999)))}, "params", "at most"),
        ({"policy": "fcfs", "params": []}, "params", "object"),
        ({}, "policy", "required"),
        ([], None, "object"),
    ],
)
async def test_what_cannot_be_is_a_400_that_names_the_field_and_changes_nothing(
    house, body, param, words
) -> None:
    before = house.scheduler.guard.policy
    reply = await house.post(PATH, json.dumps(body).encode(), headers=BEARER)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param), error
    assert words in error["message"]
    assert not error["message"].endswith("?.")
    assert house.scheduler.guard.policy is before
    assert (await in_charge(house))["policy"] == "fcfs"


async def test_numbers_that_json_readers_rarely_see_are_told_all_the_same() -> None:
    scheduler = {
        "policy": "static-batch",
        "params": {"size": 2**70},
        "allowed": [f"{SAMPLES}:Vast"],
    }
    async with serving(admin_key=KEY, config={"scheduler": scheduler}) as house:
        seen = await in_charge(house)
        assert seen["params"] == {"size": 2**70}
        assert seen["allowed"][0]["params"] == {"wait_s": None, "most": 2**70}
        assert (await swap(house, f"{SAMPLES}:Vast")).json()["old"]["params"] == {"size": 2**70}


async def test_plug_ins_are_looked_for_off_the_event_loop(house, monkeypatch) -> None:
    threads = set()

    def look(scheduler):
        threads.add(threading.current_thread())
        return ["fcfs"]

    monkeypatch.setattr(policy_desk, "allowed_policies", look)
    await in_charge(house)
    assert (await swap(house, "fcfs")).status_code == 200
    assert threads
    assert threading.main_thread() not in threads


async def test_while_a_plug_in_takes_its_time_to_be_made_nobody_else_waits() -> None:
    config = {"scheduler": {"allowed": [f"{SAMPLES}:Held"]}}
    Held.gate.clear()
    Held.making.clear()
    async with serving(
        admin_key=KEY, config=config, workers=1, model_len=9000, blocks=600
    ) as house:
        making = asyncio.ensure_future(swap(house, f"{SAMPLES}:Held"))
        try:
            await until(Held.making.is_set)
            body = {"prompt": "x" * 2 * SMALL_INPUT, "max_tokens": 2}
            assert (await house.post(COMPLETIONS, body)).status_code == 200
            assert (await in_charge(house))["policy"] == "fcfs"
            assert not making.done()
        finally:
            Held.gate.set()
        assert (await making).status_code == 200


async def test_a_plug_in_that_wants_to_end_the_process_ends_nothing() -> None:
    config = {"scheduler": {"allowed": [f"{SAMPLES}:Exiting"]}}
    async with serving(admin_key=KEY, config=config) as house:
        reply = await swap(house, f"{SAMPLES}:Exiting")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "policy")
        await house.probe()


async def test_only_what_the_configuration_allows_can_be_asked_for() -> None:
    config = {"scheduler": {"allowed": ["slo", f"{SAMPLES}:Sample"]}}
    async with serving(admin_key=KEY, config=config) as house:
        assert [entry["policy"] for entry in (await in_charge(house))["allowed"]] == [
            "slo",
            f"{SAMPLES}:Sample",
        ]
        refused = await swap(house, "fcfs")
        assert "known policies that are allowed: slo" in refused.json()["error"]["message"]
        assert (await swap(house, "slo")).status_code == 200


async def test_nobody_swaps_without_the_admin_key(house) -> None:
    reply = await house.post(PATH, {"policy": "slo"})
    assert reply.status_code == 401
    assert type(house.scheduler.guard.policy).__name__ == "FCFS"


async def test_the_audit_says_who_wanted_what_and_what_became_of_it(house) -> None:
    with structlog.testing.capture_logs() as lines:
        headers = {**BEARER, "x-request-id": "mine"}
        await house.post(PATH, {"policy": "slo", "params": {}}, headers=headers)
        await house.post(PATH, {"policy": "nobody"}, headers=headers)
    swapped, refused = (line for line in lines if line["event"].startswith("policy swap"))
    who = "admin key from 127.0.0.1, request mine"
    assert swapped == {
        "event": "policy swapped",
        "log_level": "info",
        "by": who,
        "old": "fcfs",
        "old_params": {},
        "new": "slo",
        "new_params": {},
        "step": 0,
        "fault": None,
    }
    assert (refused["event"], refused["log_level"]) == ("policy swap refused", "warning")
    assert (refused["by"], refused["policy"]) == (who, "nobody")
    assert KEY not in [part for line in lines for part in repr(line).split()]


class BrokenRestore(Policy):
    def restore(self, state, live, step):
        raise RuntimeError("planted")


async def test_a_policy_that_cannot_take_over_is_answered_with_what_is_wrong() -> None:
    name = f"{__name__}:BrokenRestore"
    async with serving(admin_key=KEY, config={"scheduler": {"allowed": [name]}}) as house:
        assert (await swap(house, name)).json()["fault"] == "restore raised RuntimeError"
        seen = await in_charge(house)
        assert (seen["fallen_back"], seen["last_fault"]) == (True, "restore raised RuntimeError")
        await house.probe()


async def test_an_engine_that_is_busy_swaps_when_it_gets_to_it(monkeypatch) -> None:
    monkeypatch.setattr(bridge, "INSPECTION_S", 0.05)
    gate = threading.Event()
    async with serving(admin_key=KEY, hooks={0: lambda batch: gate.wait(60)}) as house:
        reply = asyncio.ensure_future(house.post(COMPLETIONS, {"prompt": "x", "max_tokens": 2}))
        await until(lambda: len(house.backend.batches) == 1)
        busy = await swap(house, "slo")
        assert (busy.status_code, busy.json()["error"]["code"]) == (503, "not_ready")
        assert house.service.policies.current.policy == "fcfs"
        gate.set()
        await until(lambda: house.service.policies.current.policy == "slo")
        assert (await reply).status_code == 200
        await house.idle()


async def test_a_swap_that_was_overtaken_is_not_made():
    """Two that wait for their turn: the second was meant for what the first put away."""
    async with serving() as house:
        seen = house.policies.current
        slo, fair = (seen.model_copy(update={"policy": name}) for name in ("slo", "fair-share"))
        first, second = await asyncio.gather(
            house.policies.swap(slo, "hand"),
            house.policies.swap(fair, "experiment", instead_of=seen),
            return_exceptions=True,
        )
        assert isinstance(second, Overtaken)
        assert (first.new.policy, house.policies.current.policy) == ("slo", "slo")
