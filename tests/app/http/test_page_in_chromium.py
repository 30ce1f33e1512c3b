"""The page in a browser: it chats, shows the engine at work, and swaps the policy.

`OCTAVO_SCREENSHOTS=docs make test-all ARGS="-k chromium"` takes the pictures that README shows, of
the real model under some traffic.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from pathlib import Path

import pytest
from support.browser import READY, browsing
from support.float_parity import MODEL as FILE
from support.serving import COMPLETIONS, House, saying, serving

from app.experiment.comparison import Result
from engine.cost import FittedCost

ROOT = Path(__file__).parents[3]
PICTURES = os.environ.get("OCTAVO_SCREENSHOTS")
KEY = "the-admin-key"
WIDE = {"width": 1240, "height": 1000}
LINE = "The quick brown fox jumps over the lazy dog, and goes on. "

pytestmark = [pytest.mark.slow, READY]


def paced(seconds: float):
    """A hook for every step, which takes so long."""
    never = threading.Event()
    return dict.fromkeys(range(100_000), lambda batch: never.wait(seconds))


@contextlib.asynccontextmanager
async def slow_house():
    """A house with one row, whose answers go on for longer than a test does."""
    options = {"rows": 1, "model_len": 8192, "blocks": 520, "limits": {"max_open_requests": 32}}
    script = saying(LINE * 140)
    async with serving(admin_key=KEY, script=script, hooks=paced(0.02), **options) as house:
        yield house


async def enter(tab) -> None:
    """Show the page the admin key."""
    await tab.get_by_label("Admin key").fill(KEY)
    await tab.get_by_role("button", name="Show").click()
    await tab.locator("#live").wait_for()


async def ask(tab, text: str, tokens: int = 6000) -> None:
    """Send a message, by keyboard."""
    await tab.evaluate("tokens => (document.getElementById('max-tokens').value = tokens)", tokens)
    await tab.get_by_label("Message").fill(text)
    await tab.keyboard.press("Enter")


LAST = "([...document.querySelectorAll('.assistant .text')].at(-1)?.textContent.length ?? 0)"


async def grown(tab, beyond: int = 0) -> int:
    """The length of the last answer, once it is longer than `beyond`."""
    found = await tab.wait_for_function(f"beyond => {LAST} > beyond && {LAST}", arg=beyond)
    return await found.json_value()


async def map_of_blocks(tab) -> str:
    return await tab.evaluate("document.getElementById('blocks').toDataURL()")


async def overflow(tab) -> int:
    """Pixels by which the page is wider than the window."""
    return await tab.evaluate("document.documentElement.scrollWidth - innerWidth")


async def test_an_answer_streams_in_and_the_map_changes_with_it() -> None:
    async with slow_house() as house, browsing(house.url, viewport=WIDE) as tab:
        await enter(tab)
        await tab.get_by_text("520 free").wait_for()
        empty = await map_of_blocks(tab)
        await ask(tab, "Go on.")
        first = await grown(tab)
        second = await grown(tab, first)
        third = await grown(tab, second)
        assert first < second < third
        await tab.wait_for_function(
            "before => document.getElementById('blocks').toDataURL() !== before", arg=empty
        )
        row = tab.locator("#running tr", has_text="this chat")
        await row.get_by_text("decode").wait_for()
        facts = tab.locator(".assistant .facts")
        assert "first token" in await facts.inner_text()
        await tab.get_by_role("button", name="Stop").click()
        await facts.get_by_text("stopped").wait_for()
        await tab.get_by_role("button", name="Send").wait_for()
        assert house.service.model_id in await tab.locator("#model").inner_text()


async def test_who_waits_is_shown_with_the_reason_and_the_policy_is_swapped() -> None:
    async with slow_house() as house, browsing(house.url, viewport=WIDE) as tab:
        await enter(tab)
        await ask(tab, "Go on.")
        await grown(tab)
        waits = asyncio.ensure_future(
            house.post(
                COMPLETIONS,
                {"prompt": "x", "max_tokens": 1},
                headers={"x-request-id": "second-in-line"},
            )
        )
        row = tab.locator("#waiting tr", has_text="second-in-line")
        await row.get_by_text("a row of the step").wait_for()
        assert "1 of 1" in await row.inner_text()

        await tab.get_by_label("In charge").select_option("shortest-first")
        await tab.get_by_label("tokens_per_s").fill("50")
        await tab.get_by_role("button", name="Swap").click()
        await tab.get_by_text("shortest-first took over from fcfs").wait_for()
        current = house.service.policies.current
        assert (current.policy, current.params) == ("shortest-first", {"tokens_per_s": 50})
        await tab.get_by_text("shortest-first (tokens_per_s 50)").wait_for()

        await tab.get_by_role("button", name="Stop").click()
        assert (await waits).status_code == 200
        await tab.get_by_text("Nobody waits.").wait_for()


async def test_what_a_policy_does_not_take_is_said_where_it_was_typed() -> None:
    async with serving(admin_key=KEY) as house, browsing(house.url, refused=400) as tab:
        await enter(tab)
        await tab.get_by_label("In charge").select_option("shortest-first")
        await tab.get_by_label("tokens_per_s").fill("many")
        await tab.get_by_role("button", name="Swap").click()
        await tab.locator("#policy-news.error", has_text="tokens_per_s").wait_for()
        assert house.service.policies.current.policy == "fcfs"


async def test_a_wrong_key_is_told_and_a_right_one_can_be_forgotten() -> None:
    async with serving(admin_key=KEY) as house, browsing(house.url, refused=401) as tab:
        await tab.get_by_label("Admin key").fill("a guess")
        await tab.keyboard.press("Enter")
        await tab.get_by_text("That is not the admin key").wait_for()
        await enter(tab)
        await tab.reload()
        await tab.locator("#live").wait_for()  # the tab keeps it
        await tab.get_by_role("button", name="Forget key").click()
        await tab.locator("#live").wait_for(state="hidden")
        await tab.reload()
        assert await tab.locator("#live").is_hidden()


async def test_who_needs_a_key_to_chat_is_told_where_it_goes() -> None:
    tables = {"identity": {"require_key": True}, "tenants": {"acme": {"keys": ["k1"]}}}
    async with serving(config=tables) as house, browsing(house.url, refused=401) as tab:
        await ask(tab, "Hello", 4)
        await tab.get_by_text("under “Sampling and key”").wait_for()
        await tab.locator("#settings summary").click()
        await tab.get_by_label("API key").fill("k1")
        await ask(tab, "Hello", 4)
        await grown(tab)
        await tab.locator("#model", has_text=house.service.model_id).wait_for()


async def test_it_fits_a_phone() -> None:
    async with (
        slow_house() as house,
        browsing(house.url, viewport={"width": 360, "height": 740}) as tab,
    ):
        assert await overflow(tab) <= 0
        await enter(tab)
        await ask(tab, "A-word-without-any-end" * 20)
        await grown(tab)
        await tab.locator("#running tr", has_text="this chat").wait_for()
        await tab.locator("#settings summary").click()
        assert await overflow(tab) <= 0
        await tab.get_by_role("button", name="Stop").click()


async def test_it_is_dark_where_the_system_is_and_where_it_is_told_so() -> None:
    async with serving() as house, browsing(house.url, color_scheme="dark") as tab:

        async def brightness() -> int:
            paper = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
            return sum(int(part) for part in paper.strip("rgb()").split(","))

        assert await brightness() < 150
        switch = tab.get_by_role("button", name="Colours")
        await switch.click()
        assert "light" in await switch.inner_text()
        assert await brightness() > 600
        await tab.reload()
        assert await brightness() > 600
        await switch.click()
        assert await brightness() < 150


async def test_everything_can_be_reached_by_keyboard_and_has_a_name() -> None:
    async with serving(admin_key=KEY) as house, browsing(house.url, viewport=WIDE) as tab:
        await enter(tab)
        await tab.locator("#settings summary").click()
        nameless = await tab.evaluate(NAMELESS)
        assert nameless == []
        reached = set()
        await tab.evaluate("document.activeElement.blur()")
        for _ in range(60):
            await tab.keyboard.press("Tab")
            reached.add(await tab.evaluate("document.activeElement.id"))
        assert {"prompt", "send", "temperature", "api-key", "policy-name", "policy-swap"} <= reached
        for scheme in ("light", "dark"):
            await tab.emulate_media(color_scheme=scheme)
            assert await tab.evaluate(FAINT) == []


NAMELESS = """() => {
  const name = (node) => node.labels?.[0]?.textContent.trim() || node.getAttribute("aria-label")
    || (node.tagName === "BUTTON" && node.textContent.trim());
  return [...document.querySelectorAll("button, input, select, textarea, canvas")]
    .filter((node) => node.offsetParent && !node.closest("[aria-hidden=true]") && !name(node))
    .map((node) => node.id);
}"""
"""Controls that can be seen, and whose name a screen reader would not know."""

FAINT = """() => {
  const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = [...pen.getImageData(0, 0, 1, 1).data].map((part) => part / 255);
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return a < 1 ? null : 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  };
  const behind = (node) =>
    node ? (light(getComputedStyle(node).backgroundColor) ?? behind(node.parentElement)) : 1;
  const words = [...document.querySelectorAll("body *")].filter((node) => node.offsetParent
    && [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()));
  return words.map((node) => {
    const [a, b] = [light(getComputedStyle(node).color), behind(node)].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), node.tagName, node.textContent.trim().slice(0, 30)];
  }).filter(([contrast]) => contrast < 4.5);
}"""
"""Texts that stand out too little from what is behind them (WCAG 2.2, 1.4.3)."""


# -------------------------------------------------------------------- the real model

TABLES = {
    "classes": {
        "interactive": {"ttft_s": 1.0, "tpot_s": 0.1, "priority": -1},
        "batch": {"queue_timeout_s": 600, "max_running": 3},
    },
    "tenants": {
        "acme": {"keys": ["key-of-acme"], "weight": 2, "classes": ["interactive", "batch"]},
        "archive": {"keys": ["key-of-archive"], "classes": ["batch"]},
        "gazette": {"keys": ["key-of-gazette"], "classes": ["interactive", "batch"]},
        "default": {"classes": ["interactive", "batch"]},
    },
}
HABITS = {
    "acme": "You answer customers of a shop for bicycles. Be short, kind and exact. " * 5,
    "archive": "Summarise what follows in a few lines for the archive of a library. " * 6,
    "gazette": "You write for a small newspaper. Keep to facts, and to five lines. " * 4,
}
TOPICS = ("lighthouses", "tram lines", "glass", "salt", "bees", "old bridges", "tides", "orchards")


class Customer:
    """Somebody who asks again and again, with the habits of a tenant."""

    def __init__(self, house: House, tenant: str, slo_class: str, number: int) -> None:
        self.house = house
        self.tenant = tenant
        self.slo_class = slo_class
        self.chance = random.Random(number)

    async def ask(self) -> None:
        chance = self.chance
        body = {
            "messages": [
                {"role": "system", "content": HABITS[self.tenant]},
                {"role": "user", "content": " ".join(self.questions())},
            ],
            "service_tier": self.slo_class,
            "max_tokens": chance.randint(60, 160),
            "temperature": 0.7,
            "seed": chance.randint(1, 1000),
            "ignore_eos": True,
            "n": chance.choice([1, 1, 1, 2]),
        }
        headers = {
            "authorization": f"Bearer key-of-{self.tenant}",
            "x-request-id": f"{self.tenant}-{chance.randint(100, 999)}",
        }
        await self.house.post("/v1/chat/completions", body, headers=headers)

    def questions(self) -> list[str]:
        about = [self.chance.choice(TOPICS) for _ in range(self.chance.randint(1, 30))]
        return [f"What should I know about {each}?" for each in about]

    async def stay(self) -> None:
        while True:
            await self.ask()


CROWD = (*[("acme", "interactive")] * 3, ("acme", "batch"), *[("archive", "batch")] * 4)


@contextlib.asynccontextmanager
async def busy_house():
    """The real model, and tenants that keep it busy."""
    from app.text.gguf_tokenizer import GGUFTokenizer
    from engine.backends.cpu import create

    backend = create(FILE, dtype="int8", kv_memory_bytes=56 * 2**20)
    tokenizer = GGUFTokenizer.from_file(FILE)
    async with serving(
        backend=backend,
        tokenizer=tokenizer,
        blocks=backend.total_blocks,
        model_len=2048,
        step_tokens=128,
        rows=10,
        admin_key=KEY,
        model="smollm2-135m-instruct",
        config=TABLES,
    ) as house:
        crowd = (*CROWD, *[("gazette", "interactive")] * 2)
        customers = [Customer(house, *each, number) for number, each in enumerate(crowd)]
        staying = [asyncio.ensure_future(customer.stay()) for customer in customers]
        try:
            yield house
        finally:
            for each in staying:
                each.cancel()
            await asyncio.gather(*staying, return_exceptions=True)


@pytest.mark.skipif(not FILE.exists(), reason=f"{FILE.name} is not in models/")
async def test_the_real_model_at_work() -> None:
    async with busy_house() as house, browsing(house.url, viewport=WIDE) as tab:
        await enter(tab)
        await tab.locator("#waiting tr", has_text="row").first.wait_for()
        before = await map_of_blocks(tab)
        await ask(tab, "Why does it matter to a server how long a prompt is?", 160)
        length = await grown(tab)
        assert await grown(tab, length) > length
        assert await map_of_blocks(tab) != before
        await tab.get_by_role("button", name="Send").wait_for()
        if PICTURES:
            await take_pictures(tab)


async def take_pictures(tab) -> None:
    """Of both halves of the page, once the charts have something to show."""
    await tab.get_by_label("In charge").select_option("fair-share")
    await tab.get_by_role("button", name="Swap").click()
    await tab.wait_for_timeout(120_000)
    await tab.get_by_role("button", name="New chat").click()
    await ask(tab, "Why does it matter to a server how long a prompt is?", 300)
    await grown(tab, 450)
    await tab.evaluate("document.activeElement.blur(), scrollTo(0, 0)")
    await tab.screenshot(path=ROOT / PICTURES / "page.png")
    top = await tab.locator("#policy").evaluate("node => node.closest('.card').offsetTop")
    box = await tab.locator("#live").bounding_box()
    bottom = box["y"] + box["height"]
    clip = {
        "x": box["x"] - 12,
        "y": top - 12,
        "width": box["width"] + 24,
        "height": bottom - top + 24,
    }
    await tab.screenshot(path=ROOT / PICTURES / "page-charts.png", full_page=True, clip=clip)


async def test_an_experiment_is_shown_with_what_it_found(tmp_path: Path) -> None:
    arms = {"first": {"policy": "fcfs"}, "second": {"policy": "fair-share"}}
    config = {"experiment": {"arms": arms, "period_s": 3600.0, "washout_s": 0.0}}
    async with (
        serving(admin_key=KEY, script=saying("hi"), config=config) as house,
        browsing(house.url, viewport=WIDE) as tab,
    ):
        house.experiment.ledger.blocks += [
            {arm: found(0.5 * (1 + arm) + 0.01 * block) for arm in (0, 1)} for block in range(8)
        ]
        house.experiment.start()
        await enter(tab)
        row = tab.locator("#experiment-rows tr", has_text="time to first token")
        await row.get_by_text("worse").wait_for()
        told = await row.inner_text()
        assert "second" in told
        assert "+9" in told  # half as long again, and a little less in later blocks
        await tab.get_by_text("8 blocks complete").wait_for()
        await tab.locator("#experiment").screenshot(path=tmp_path / "experiment.png")
        assert await overflow(tab) <= 0
        house.experiment.stop("enough is known")
        await tab.get_by_text("over: enough is known").wait_for()


def found(ttft: float) -> Result:
    """A period of which one thing is known."""
    return Result({"ttft_s": ttft}, {}, {}, 60.0, 10, 0)


async def test_where_there_is_no_experiment_none_is_shown() -> None:
    async with (
        serving(admin_key=KEY, script=saying("hi")) as house,
        browsing(house.url, viewport=WIDE) as tab,
    ):
        await enter(tab)
        assert not await tab.locator("#experiment").is_visible()


async def test_shadows_are_shown_greyed_for_as_long_as_they_are_not_to_be_trusted() -> None:
    policies = {"shortest": {"policy": "shortest-first"}}
    shadow = {"policies": policies, "least_requests": 1, "seeds": 1, "cost_factor": 100.0}
    async with (
        serving(
            admin_key=KEY, script=saying("hello"), config={"shadow": shadow}, cost=FittedCost()
        ) as house,
        browsing(house.url, viewport=WIDE) as tab,
    ):
        await enter(tab)
        await tab.get_by_text("Not to be trusted: no window has been scored yet.").wait_for()
        body = {"prompt": LINE, "max_tokens": 8}
        await asyncio.gather(*(house.post(COMPLETIONS, body) for _ in range(6)))
        house.shadow.cut()
        await house.shadow.scored()
        await tab.get_by_text("1 window of 60.0 s scored").wait_for()
        row = tab.locator("#shadow-rows tr", has_text="time to first token")
        assert "shortest" in await row.inner_text()
        assert "stated error" in await tab.locator("#shadow-doubts").inner_text()
        assert "untrusted" in await tab.locator("#shadow-table").get_attribute("class")
        assert await overflow(tab) <= 0
