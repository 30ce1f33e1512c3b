"""What is done to a trace, and what of it cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.comparisons import short_requests

from app.problems import BadConfiguration
from loadtest.ab.workload import PLAIN, Workload, read_workload


def written(folder: Path, text: str) -> Path:
    path = folder / "workload.yaml"
    path.write_text(text)
    return path


def test_without_a_file_and_with_an_empty_one_the_trace_is_as_it_is(tmp_path: Path) -> None:
    assert read_workload(None) == PLAIN == read_workload(written(tmp_path, "# nothing\n"))
    arrivals = short_requests(10)
    assert PLAIN.joined(PLAIN.prepared(arrivals)) == arrivals


def test_classes_are_drawn_once_in_the_parts_that_are_said(tmp_path: Path) -> None:
    workload = read_workload(written(tmp_path, "classes: {fast: 3.0, slow: 1.0}\nrequests: 400\n"))
    drawn = workload.prepared(short_requests(500))
    assert len(drawn) == 400
    assert 260 < sum(each.slo_class == "fast" for each in drawn) < 340
    assert {each.slo_class for each in drawn} == {"fast", "slow"}
    assert drawn == workload.prepared(short_requests(500))


def test_clients_ask_for_as_much_as_is_said_and_get_what_they_got() -> None:
    arrivals = short_requests(30)
    for before, after in zip(arrivals, Workload(asked_tokens=20).prepared(arrivals), strict=True):
        assert after.output_tokens == before.output_tokens
        assert after.asked_tokens == max(20, before.output_tokens)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("request: 3", "request: "),
        ("requests: 0", "requests: "),
        ("classes: {a: -1.0}", "classes.a: "),
        ("beside: {every_s: 1.0}", "beside.prompt_tokens: "),
        ("a: [", "workload.yaml:1: not YAML"),
        ("- 1", "workload.yaml"),
    ],
)
def test_what_cannot_be_done_names_its_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadConfiguration) as caught:
        read_workload(written(tmp_path, text))
    assert says in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"none\.yaml: cannot be read"):
        read_workload(tmp_path / "none.yaml")
