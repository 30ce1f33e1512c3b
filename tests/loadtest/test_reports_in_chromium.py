"""A report in a browser, from a file: it draws every chart, in both themes, and prints.

`OCTAVO_SCREENSHOTS=FOLDER make test-all ARGS="-k reports_in_chromium"` keeps the pictures.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.browser import READY, browsing
from support.reports import EVIL, sample_report

from loadtest.reports import write

PICTURES = os.environ.get("OCTAVO_SCREENSHOTS")
WIDE = {"width": 1240, "height": 1000}
INKED = """() => {
  const probe = document.createElement('i');
  probe.style.color = 'var(--series-1)';
  document.body.append(probe);
  const wanted = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  return [...document.querySelectorAll('.plot canvas')].map((canvas) => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let found = 0;
    for (let at = 0; at < data.length; at += 4) {
      if (data[at + 3] && wanted.every((value, part) => value === data[at + part])) found++;
    }
    return found;
  });
}"""
"""Of each chart, how many pixels have the colour of its first series."""

pytestmark = [pytest.mark.slow, READY]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return write(sample_report(), tmp_path / "report.html").as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_chart_is_drawn_and_nothing_is_asked_for(url: str, theme: str) -> None:
    async with browsing(url, viewport=WIDE, color_scheme=theme) as tab:
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        await tab.reload()
        inked = await tab.evaluate(INKED)
        assert len(inked) == len(await tab.query_selector_all("figure"))
        assert min(inked) > 20, inked
        assert asked == [url]
        if PICTURES:
            await tab.screenshot(path=f"{PICTURES}/report-{theme}.png", full_page=True)


async def test_the_other_theme_is_a_button_away(url: str) -> None:
    async with browsing(url, viewport=WIDE, color_scheme="light") as tab:
        paper = "getComputedStyle(document.body).backgroundColor"
        ink = "document.querySelector('.plot canvas').toDataURL()"
        before = await tab.evaluate(paper), await tab.evaluate(ink)
        await tab.get_by_role("button", name="light / dark").click()
        after = await tab.evaluate(paper), await tab.evaluate(ink)
        assert before[0] != after[0]
        assert before[1] != after[1]


async def test_the_values_under_the_pointer_are_told(url: str) -> None:
    async with browsing(url, viewport=WIDE) as tab:
        figure = tab.locator("figure", has_text="TTFT over load")
        await figure.locator(".u-over").hover()
        legend = await figure.locator(".legend").inner_text()
        assert "p50 120 ms" in legend or "p50 200 ms" in legend
        assert "at " in legend


async def test_it_fits_a_phone(url: str) -> None:
    async with browsing(url, viewport={"width": 390, "height": 800}) as tab:
        assert await tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


async def test_it_prints_light_and_within_the_paper(url: str, tmp_path: Path) -> None:
    async with browsing(url, viewport=WIDE, color_scheme="dark") as tab:
        await tab.evaluate("""() => addEventListener('beforeprint', () => {
          const charts = [...document.querySelectorAll('.plot canvas')];
          window.wide = charts.map((each) => each.clientWidth);
          window.theme = document.documentElement.dataset.theme;
        })""")
        await tab.pdf(path=str(tmp_path / "report.pdf"), format="A4")
        assert await tab.evaluate("window.theme") == "light"
        assert max(await tab.evaluate("window.wide")) < 700
        assert await tab.evaluate("'theme' in document.documentElement.dataset") is False


async def test_names_that_look_like_markup_are_shown_as_they_are(url: str) -> None:
    async with browsing(url, viewport=WIDE) as tab:
        assert await tab.locator("img").count() == 0
        assert EVIL[:20] in await tab.locator("main").inner_text()
