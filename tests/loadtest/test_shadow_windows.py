"""A run is as it should be if errors were within what was stated, or nothing was trusted."""

import pytest

from app.config import load_config
from loadtest.shadow import server_config
from loadtest.shadow.windows import holds, rows


def window(error: float, stated: float, trusted: bool) -> dict:
    facts = {
        "predicted": 1 + error,
        "real": 1.0,
        "error": error,
        "stated": stated,
        "within": abs(error) <= stated,
    }
    return {"ago_s": 1.0, "trusted": trusted, "measures": {"ttft_s": facts}}


GOOD, BAD = window(0.05, 0.1, True), window(0.9, 0.1, False)


@pytest.mark.parametrize(
    ("windows", "true", "falsified"),
    [
        ([GOOD, GOOD], True, False),
        ([GOOD, BAD], False, False),
        ([*9 * [GOOD], BAD], True, False),
        ([*8 * [GOOD], BAD, BAD], False, False),
        ([BAD], False, True),
    ],
)
def test_a_run_is_held_to_what_was_stated(windows, true, falsified):
    """One in ten may be beyond it."""
    document = {"errors": windows, "level": 0.9}
    assert holds(document, falsified=False) == true
    assert holds(document, falsified=True) == falsified


def test_a_run_without_windows_has_shown_nothing():
    assert not holds({"errors": [], "level": 0.9}, falsified=False)
    assert not holds({"errors": [], "level": 0.9}, falsified=True)


def test_windows_are_numbered_from_the_oldest():
    found = list(rows({"errors": [GOOD, BAD]}))
    assert [(row.window, row.within, row.trusted) for row in found] == [
        (1, True, True),
        (2, False, False),
    ]


def test_its_server_can_be_configured():
    config = load_config(server_config())
    assert [*config.shadow.policies] == ["fair", "shortest"]
    assert config.shadow.window_s * 5 <= 300
