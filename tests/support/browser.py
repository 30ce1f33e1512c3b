"""A browser that tests look at the page with: Debian's Chromium, without a head."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 60_000

READY = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not here")
"""For tests that need it."""


@contextlib.asynccontextmanager
async def browsing(url: str, refused: int | None = None, **options: Any) -> AsyncIterator[Any]:
    """A tab in which the page at `url` is open; it fails if anything was wrong on its console.

    refused: a status that is no wrong: the browser notes there whatever it is refused.
    options: of the tab, as playwright has them (viewport, color_scheme).
    """
    playwright = pytest.importorskip("playwright.async_api")
    playwright.expect.set_options(timeout=PATIENCE_MS)
    complaints: list[str] = []
    async with playwright.async_playwright() as drivers:
        browser = await drivers.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        try:
            tab = await browser.new_page(**options)
            tab.set_default_timeout(PATIENCE_MS)
            tab.on("pageerror", lambda error: complaints.append(str(error)))
            tab.on(
                "console",
                lambda said: (
                    complaints.append(said.text) if said.type in ("error", "warning") else None
                ),
            )
            await tab.goto(url)
            yield tab
        finally:
            await browser.close()
    wrong = [said for said in complaints if f"status of {refused} " not in said]
    assert wrong == [], wrong
