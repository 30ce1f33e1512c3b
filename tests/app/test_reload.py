"""SIGHUP: what can change does, all at once; what cannot be used changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from starlette.datastructures import Headers
from support.serving import serving

from app.config import load_with_sources
from app.config.load import DEFAULT_FILE
from app.reload import Reload

BEFORE = """
scheduler: {policy: fcfs}
classes: {batch: {max_running: 2}}
tenants: {acme: {keys: [key-1]}}
"""


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def server():
    """A served engine with the configuration BEFORE, and how it is reloaded."""
    DEFAULT_FILE.write_text(BEFORE, encoding="utf-8")
    loaded = load_with_sources()
    async with serving(config=loaded.config.model_dump()) as house:
        service = house.service
        house.reload = Reload(loaded, service.policies, service.tenancy, house.bridge)
        yield house


async def reload(house, text: str) -> list[dict]:
    """Edit the file and reload; what the audit says."""
    DEFAULT_FILE.write_text(text, encoding="utf-8")
    with structlog.testing.capture_logs() as lines:
        await house.reload()
    return lines


def policy(house) -> str:
    return type(house.scheduler.guard.policy).__name__


def tenant(house, key: str) -> str:
    headers = Headers({"authorization": f"Bearer {key}"})
    return house.service.tenancy.caller(headers).tenant.name


async def test_policy_classes_and_tenants_change_together(server) -> None:
    lines = await reload(
        server,
        """
scheduler: {policy: slo, params: {late: reject}, allowed: [fcfs]}
classes: {batch: {max_running: 3}, interactive: {}}
tenants: {acme: {keys: [key-2]}, globex: {keys: [key-1]}}
""",
    )
    assert policy(server) == "SLO"
    current = server.service.policies.current
    assert (current.policy, current.params, current.allowed) == (
        "slo",
        {"late": "reject"},
        ["fcfs"],
    )
    assert server.scheduler.limits.of("batch").max_running == 3
    assert server.scheduler.roster.limits is server.scheduler.planner.limits
    assert (tenant(server, "key-1"), tenant(server, "key-2")) == ("globex", "acme")
    assert [line["event"] for line in lines] == ["policy swapped", "configuration reloaded"]
    assert lines[0]["by"] == lines[1]["by"] == "SIGHUP"
    assert lines[1]["changed"] == [
        "classes.batch.max_running",
        "classes.interactive",
        "scheduler.allowed",
        "scheduler.params.late",
        "scheduler.policy",
        "tenants.acme.keys",
        "tenants.globex",
    ]
    assert "key-" not in repr(lines)
    await server.probe()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("scheduler: {policy: sloo}", "config.yaml:1: scheduler.policy: unknown policy sloo"),
        ("scheduler: {params: {backfill: -1}}", "scheduler.params: policy fcfs refuses them"),
        ("classes: {a: {ttft: 1}}", "config.yaml:1: classes.a.ttft: unknown key"),
        ("scheduler: [", "config.yaml:2: not YAML"),
    ],
)
async def test_a_configuration_that_cannot_be_used_changes_nothing_and_is_told(
    server, text, why
) -> None:
    before = server.scheduler.guard.policy
    lines = await reload(server, f"{text}\n")
    failed = lines[-1]
    assert (failed["event"], failed["log_level"]) == ("configuration not reloaded", "error")
    assert any(told.startswith(why) for told in failed["why"]), failed
    assert server.scheduler.guard.policy is before
    assert server.scheduler.limits.of("batch").max_running == 2
    assert tenant(server, "key-1") == "acme"


async def test_what_needs_a_restart_is_named_and_left_as_it_is(server) -> None:
    lines = await reload(server, BEFORE + "engine: {max_rows: 7}\nserver: {port: 1}\n")
    assert lines[0]["keys"] == ["engine.max_rows", "server.port"]
    assert lines[1]["changed"] == []
    again = await reload(server, BEFORE)
    assert [line["event"] for line in again] == ["configuration reloaded"]


async def test_a_policy_that_was_put_in_charge_over_http_stays_until_the_file_says_another(
    server,
) -> None:
    await server.service.policies.ask_for("priority", {}, "a test")
    await reload(server, BEFORE + "identity: {require_key: true}\n")
    assert policy(server) == "Priority"
    await reload(server, BEFORE.replace("fcfs", "slo"))
    assert policy(server) == "SLO"


async def test_a_file_that_is_gone_changes_nothing() -> None:
    loaded = load_with_sources(written("mine.yaml"))
    async with serving(config=loaded.config.model_dump()) as house:
        service = house.service
        remove("mine.yaml")
        with structlog.testing.capture_logs() as lines:
            await Reload(loaded, service.policies, service.tenancy, house.bridge)()
        assert lines[0]["why"] == ["mine.yaml: cannot be read: No such file or directory"]
        assert tenant(house, "key-1") == "acme"


def written(name: str) -> Path:
    Path(name).write_text(BEFORE, encoding="utf-8")
    return Path(name)


def remove(name: str) -> None:
    Path(name).unlink()


async def test_an_engine_that_has_ended_is_told(server) -> None:
    await server.bridge.stop(grace=0)
    lines = await reload(server, BEFORE.replace("fcfs", "slo"))
    assert lines[-1]["event"] == "configuration not reloaded"
