"""B54: whatever clients send, the series are the same, and nothing of it stands on the page."""

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.serving import CHAT, COMPLETIONS, HELLO, House, saying, serving, until

from engine.controls import RowControls
from engine.inbox import Submission

CONFIG: dict[str, Any] = {
    "classes": {"interactive": {"ttft_s": 60.0, "tpot_s": 60.0}, "batch": {}},
    "tenants": {"acme": {"keys": ["k1"]}, "small": {"keys": ["k2"]}},
    "identity": {"trust_proxy_headers": True},
}
K1 = {"authorization": "Bearer k1"}
METHODS = ("PROPFIND", "LOCK", "REPORT", "MKCOL")

Sample = tuple[str, tuple[tuple[str, str], ...]]


async def samples(house: House) -> dict[Sample, float]:
    text = (await house.client.get("/metrics")).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: dict[Sample, float], name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


async def odd_requests(house: House, numbers: Iterable[int]) -> None:
    """Five requests for each number, each with something in it that no label may show."""

    async def five(number: int) -> None:
        head = {
            "x-request-id": f"id-{number}",
            "x-gateway-inference-fairness-id": f"tenant-{number}",
            "x-gateway-inference-objective": f"objective-{number}",
            "x-openwebui-user-id": f"person-{number}",
            "authorization": f"Bearer key-{number}",
        }
        body = {
            "messages": [{"role": "user", "content": f"text-{number}"}],
            "max_tokens": 1,
            "user": f"user-{number}",
            "service_tier": f"tier-{number}",
            "metadata": {"who": f"meta-{number}"},
        }
        assert (await house.post(CHAT, body, headers=head)).status_code == 200
        named = {**body, "model": f"model-{number}"}
        assert (await house.post(CHAT, named, headers=head)).status_code == 404
        await house.client.get(f"/scan/{number}", headers=head)
        await house.client.get(f"/v1/models/typo-{number}")
        await house.client.request(METHODS[number % len(METHODS)], f"/health?q=query-{number}")

    await asyncio.gather(*(five(number) for number in numbers))


async def test_b54_a_thousand_odd_requests_make_no_series() -> None:
    async with serving(config=CONFIG, script=saying("Hi")) as house:
        await odd_requests(house, range(4))
        await samples(house)  # /metrics itself has its series from now on
        await house.idle()
        before = await samples(house)
        for start in range(1000, 1200, 20):
            await odd_requests(house, range(start, start + 20))
        await house.idle()
        after = await samples(house)
        assert after.keys() == before.keys()
        told = " ".join(f"{key}={value}" for _, labels in after for key, value in labels)
        for leak in ("tenant-", "objective-", "person-", "key-", "text-", "user-", "tier-"):
            assert leak not in told
        for leak in ("meta-", "model-", "scan", "typo", "id-", "query", *METHODS):
            assert leak not in told
        served = value(after, "octavo_tenant_requests_total", tenant="default", outcome="served")
        assert served == 204


async def test_no_counter_ever_falls() -> None:
    async with serving(config=CONFIG) as house:
        before: dict[Sample, float] = {}
        for number in range(5):
            await odd_requests(house, [number])
            await house.post(CHAT, {"messages": HELLO, "max_tokens": 4}, headers=K1)
            after = await samples(house)
            assert before.keys() <= after.keys()
            for key, old in before.items():
                if key[0].endswith(("_total", "_bucket", "_count", "_sum")):
                    assert after[key] >= old, key
            before = after


async def test_a_request_counts_for_its_tenant_and_for_its_class() -> None:
    async with serving(config=CONFIG, script=saying("Hello")) as house:
        body = {"messages": HELLO, "service_tier": "interactive"}
        reply = (await house.post(CHAT, body, headers=K1)).json()
        await house.idle()
        found = await samples(house)
        tokens = reply["usage"]["completion_tokens"]
        assert value(found, "octavo_tenant_generated_tokens_total", tenant="acme") == tokens
        labels = {"tenant": "acme", "outcome": "served"}
        assert value(found, "octavo_tenant_requests_total", **labels) == 1
        for slo in ("ttft", "tpot", "all"):
            labels = {"class": "interactive", "slo": slo, "met": "true"}
            assert value(found, "octavo_request_slo_total", **labels) == 1
        assert value(found, "octavo_requests_waiting_by_class", **{"class": "batch"}) == 0
        alias = {"model_name": "bytes", "engine": "0"}
        ended = value(found, "vllm:request_success_total", finished_reason="stop", **alias)
        assert ended == 1
        assert value(found, "vllm:request_generation_tokens_sum", **alias) == tokens
        prompt = reply["usage"]["prompt_tokens"]
        assert value(found, "vllm:prompt_tokens_total", **alias) == prompt
        assert value(found, "vllm:request_prompt_tokens_sum", **alias) == prompt


@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_refused_is_counted_by_reason(stream) -> None:
    body = {"prompt": "x", "max_tokens": 4, "stream": stream}
    async with serving(model_len=64, max_open=1) as house:
        guest = Submission(house.bridge.next_id(), [1], 1, RowControls(), house.clock.now())
        with house.bridge.open(guest):
            assert (await house.post(COMPLETIONS, body)).status_code == 429
            assert (await house.client.get("/health/ready")).status_code == 503  # asks for nothing
        assert (await house.post(COMPLETIONS, {**body, "prompt": "x" * 90})).status_code == 400
        assert (await house.post(COMPLETIONS, {**body, "top_p": 7})).status_code == 400
        assert (await house.post(COMPLETIONS, {**body, "model": "no"})).status_code == 404
        await house.idle()
        rejected = {
            dict(labels)["reason"]: count
            for (name, labels), count in (await samples(house)).items()
            if name == "octavo_requests_rejected_total" and count
        }
        assert rejected == {
            "queue_full": 1,
            "context_length_exceeded": 1,
            "invalid_request": 1,
            "model_not_found": 1,
        }


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_an_abort_and_no_error(stream) -> None:
    body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": stream}
    begun, opened = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def first(batch: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        opened.wait(60)

    async with serving(hooks={0: first}) as house:
        talk = asyncio.ensure_future(house.post(COMPLETIONS, body))
        await begun.wait()
        talk.cancel()
        await asyncio.wait({talk})
        await until(lambda: house.bridge.open_requests == 0)
        opened.set()
        await house.idle()
        found = await samples(house)
        assert value(found, "octavo_client_disconnects_total") == 1
        assert value(found, "octavo_sequences_ended_total", reason="abort") == 1
        assert value(found, "octavo_sequences_ended_total", reason="error") == 0
        labels = {"tenant": "default", "outcome": "abort"}
        assert value(found, "octavo_tenant_requests_total", **labels) == 1


async def test_the_policy_in_charge_is_told_by_name() -> None:
    async with serving() as house:
        found = await samples(house)
        assert value(found, "octavo_policy_info", policy="fcfs") == 1
