"""Reports: one file, whole tables, numbers that cannot break out of it."""

import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.reports import EVIL, sample_report

from loadtest.reports import (
    Axis,
    Chart,
    Column,
    Interval,
    Mark,
    Origin,
    Report,
    Section,
    Series,
    Table,
    Text,
    Verdict,
    Word,
    cdf,
    decision_table,
    here,
    histogram,
    percentiles_over,
    service,
    timeline,
    write,
)
from loadtest.reports.charts import MOST_POINTS
from loadtest.reports.data import DataBlock, as_script
from loadtest.reports.numbers import scale_of, written

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """A page taken apart; every element has to be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.blocks: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        opened, _ = self.open.pop()
        assert opened == tag

    def handle_data(self, data):
        if self.open:
            tag, attributes = self.open[-1]
            self.texts.setdefault(tag, []).append(data)
            if "id" in attributes:
                self.blocks[attributes["id"]] = data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def charts_of(page: Page) -> list[dict]:
    return json.loads(page.blocks["charts"])


def drawn(chart: Chart) -> dict:
    """What the script is told of a chart."""
    data = DataBlock()
    chart.html(data)
    [found] = json.loads(re.search(r">(.*)<", data.html())[1])
    return found


def cells(table: Table) -> list[list[str]]:
    """The text of a table, row by row."""
    rows = re.findall(r"<tr>(.*?)</tr>", table.html(DataBlock()))
    return [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in rows
    ]


def test_a_report_is_one_file_that_asks_for_no_other():
    page = Page(sample_report().html())
    for tag in ("link", "img", "iframe", "object"):
        assert page.all(tag) == []
    assert all("src" not in attributes for attributes in page.all("script"))
    assert all(link["href"].startswith("#s") for link in page.all("a"))
    [policy] = [each for each in page.all("meta") if "http-equiv" in each]
    assert policy["content"].startswith("default-src 'none'")
    assert not re.search(r"url\(|@import", "".join(page.texts["style"]))


def test_the_licence_of_what_draws_is_in_the_file():
    assert "The MIT License (MIT)" in sample_report().html()


def test_the_same_report_has_the_same_bytes():
    assert sample_report().html() == sample_report().html()


def test_title_question_answer_command_and_versions_are_there():
    page = Page(sample_report().html())
    assert page.texts["h1"] == [sample_report().title]
    text = "".join(words for texts in page.texts.values() for words in texts)
    for words in (
        sample_report().question,
        sample_report().answer,
        "octavo sim --policy 'a&b'",
        "octavo 1.2.3",
        "two cores",
    ):
        assert words in text


def test_every_figure_has_its_numbers_and_a_name_for_who_does_not_see_it():
    page = Page(sample_report().html())
    figures = page.all("figure")
    assert [int(figure["data-chart"]) for figure in figures] == list(range(len(charts_of(page))))
    spoken = [each["aria-label"] for each in page.all("div") if each.get("role") == "img"]
    assert len(spoken) == len(figures)
    assert all(spoken)


def test_names_that_look_like_markup_stay_text():
    page = Page(sample_report().html())
    assert EVIL in page.texts["th"]
    assert json.loads(page.blocks["figures"]) == {"name": EVIL}
    assert charts_of(page)[0]["series"][0]["name"] == EVIL


@given(st.recursive(st.text() | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_json_comes_out_of_the_page_as_it_went_in(value):
    page = Page(as_script("x", [value]))
    assert json.loads(page.blocks["x"]) == [value]
    assert page.all("script") == [{"type": "application/json", "id": "x"}]


def test_what_is_no_number_is_null():
    chart = Chart("t", Axis("x"), Axis("y"), [Series("a", [1, 2, 3], [math.nan, math.inf, 1.0])])
    assert drawn(chart)["series"][0]["y"] == [None, None, 1.0]


def test_numbers_of_a_column_have_one_unit_and_three_digits():
    seconds = Table([Column("tenant"), Column("TTFT", "s")], [["a", 0.0123], ["b", 0.456]])
    assert cells(seconds) == [["tenant", "TTFT ms"], ["a", "12.3"], ["b", "456"]]
    longer = Table([Column("tenant"), Column("TTFT", "s")], [["a", 0.0123], ["b", 12.34]])
    assert cells(longer) == [["tenant", "TTFT s"], ["a", "0.0123"], ["b", "12.3"]]
    shares = Table(
        [Column("x"), Column("hit", "ratio"), Column("n")], [["a", 0.5, 1234], ["b", None, 5]]
    )
    assert cells(shares)[1:] == [["a", "50.0", "1,234"], ["b", "–", "5"]]


def test_numbers_stand_on_the_right_and_words_on_the_left():
    table = Table([Column("name"), Column("n"), Column("why")], [["a", 1, "because"]])
    html = table.html(DataBlock())
    assert '<th scope="col" class="n">n</th>' in html
    assert '<td class="n">1</td><td>because</td>' in html


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0"),
        (-0.0001, "s", "−0.100"),
        (1e-9, "", "0.0000"),
        (123456.7, "", "123,457"),
        (9.999, "", "10.00"),
        (math.nan, "", "–"),
        (-math.inf, "", "−∞"),
        (None, "s", "–"),
    ],
)
def test_numbers_read_as_people_write_them(value, unit, text):
    assert written(value, scale_of(unit, [value or 0.0])) == text


def test_a_difference_has_its_sign_and_its_bounds():
    table = decision_table(
        [
            ("TTFT", "s", 0.2, 0.15, Interval(-0.05, -0.07, -0.03), Verdict.BETTER),
            ("met", "ratio", 0.9, 0.92, Interval(0.02, 0.01, 0.03), Word(Verdict.WORSE, "odd")),
            ("tokens", "tokens/s", 100, 100, None, Verdict.NO_DIFFERENCE),
        ],
        ("fcfs", "slo"),
    )
    heading, ttft, met, tokens = cells(table)
    assert heading == ["metric", "fcfs", "slo", "difference", "verdict"]
    assert ttft == ["TTFT", "200 ms", "150 ms", "−50.0 ms−70.0 … −30.0", "▲ better"]
    assert met == ["met", "90.0 %", "92.0 %", "+2.00 points+1.00 … +3.00", "▼ odd"]
    assert tokens == ["tokens", "100 tokens/s", "100 tokens/s", "–", "≈ no difference shown"]


def test_every_verdict_has_a_sign_of_its_own_sense():
    rows = [[verdict.name, verdict] for verdict in Verdict]
    signs = {row[1].split()[0] for row in cells(Table([Column("a"), Column("b")], rows))[1:]}
    assert len(signs) == len(Verdict)


def test_a_row_with_too_few_cells_is_refused():
    with pytest.raises(ValueError, match="1 cells under 2 columns"):
        Table([Column("a"), Column("b")], [["x"]])
    with pytest.raises(ValueError, match="1 units for 2 rows"):
        Table([Column("a")], [["x"], ["y"]], row_units=["s"])


def test_series_of_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="a: series of"):
        Series("a", [1, 2], [1])
    with pytest.raises(ValueError, match="a: series of"):
        Series("a", [1, 2], [1, 2], low=[0])


def test_long_series_are_thinned_and_keep_their_extremes():
    values = [0.0] * 100_000
    values[54_321], values[98_765] = 7.0, -3.0
    [series] = drawn(timeline("t", range(100_000), {"a": values}))["series"]
    assert len(series["x"]) == len(series["y"]) <= MOST_POINTS + 2
    assert dict(zip(series["x"], series["y"], strict=True))[54_321] == 7.0
    assert min(series["y"]) == -3.0
    assert series["x"] == sorted(series["x"])
    assert (series["x"][0], series["x"][-1]) == (0, 99_999)


def test_thinning_keeps_gaps():
    values = [1.0] * 5_000 + [None] * 5_000 + [1.0] * 5_000
    [series] = drawn(timeline("t", range(15_000), {"a": values}))["series"]
    assert None in series["y"]


def test_a_distribution_function_says_what_share_is_at_most_x():
    samples = np.random.default_rng(0).exponential(size=5_000)
    [series] = drawn(cdf("t", {"a": samples}))["series"]
    assert series["y"][-1] == 1.0
    assert series["x"][-1] == pytest.approx(samples.max(), rel=1e-5)
    for x, y in zip(series["x"], series["y"], strict=True):
        assert y == pytest.approx(np.mean(samples <= x * (1 + 1e-5)), abs=2e-3)


def test_a_logarithmic_distribution_leaves_out_what_has_no_logarithm():
    [series] = drawn(cdf("t", {"a": [0.0, 1.0, 2.0]}, log=True))["series"]
    assert series["x"] == [1.0, 2.0]


def test_the_shares_of_a_histogram_add_up_with_the_tail_in_the_last_bin():
    samples = np.random.default_rng(0).lognormal(size=3_000)
    chart = histogram("t", {"a": samples, "b": samples[:100]})
    for series in drawn(chart)["series"]:
        assert sum(series["y"]) == pytest.approx(1.0, abs=1e-4)
    assert "last interval" in chart.note


@pytest.mark.parametrize("samples", [[], [2.0], [0.0, 0.0]])
def test_few_samples_make_charts_too(samples):
    report = Report(
        "t",
        "q",
        Origin("c"),
        [Section("s", [histogram("h", {"a": samples}), cdf("c", {"a": samples})])],
    )
    assert len(charts_of(Page(report.html()))) == 2


def test_service_is_what_was_received_until_then():
    chart = service({"a": [1.0, 2.0, 4.0]}, {"a": [10, 20, 5]})
    [series] = drawn(chart)["series"]
    assert (series["x"], series["y"]) == ([1.0, 1.0, 2.0, 4.0], [0.0, 10.0, 30.0, 35.0])


def test_bounds_and_marks_reach_the_chart():
    chart = percentiles_over(
        "TTFT",
        Axis("load", "1/s"),
        [1, 2],
        {"p99": [0.1, 0.2]},
        bounds={"p99": ([0.05, 0.1], [0.2, 0.4])},
        marks=[Mark(0.3, "target")],
    )
    found = drawn(chart)
    assert found["series"][0]["low"] == [0.05, 0.1]
    assert found["marks"] == [["y", 0.3, "target"]]


def test_a_report_is_written_with_its_folders(tmp_path):
    report = Report("t", "q", here("octavo sim"), [Section("s", [Text("x")])])
    path = write(report, tmp_path / "a" / "b.html")
    assert path.read_text(encoding="utf-8") == report.html()
    assert "python" in report.html()
