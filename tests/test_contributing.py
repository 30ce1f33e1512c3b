"""The policy that CONTRIBUTING.md shows does what the page says of it."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.engines import Harness, services

from loadtest.conformance.judge import judge
from policies.base import Policy

PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCK = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture
def shown() -> type[Policy]:
    names = {}
    exec(BLOCK, names)
    return names["ShortestFirst"]


def first_tokens(house: Harness, requests: list[int]) -> list[int]:
    """The requests in the order in which they were served."""
    return sorted(requests, key=lambda request: house.outputs[request, 0][0].at)


def test_it_is_twenty_lines_long() -> None:
    assert len(BLOCK.splitlines()) == 20


def test_it_conforms(shown) -> None:
    verdict = judge(shown, "ShortestFirst", workloads=4)
    assert verdict.passed, verdict.as_json()


def test_shorter_prompts_are_served_first_and_equals_as_they_came(shown) -> None:
    house = Harness(rows=1, policy=shown)
    long, short, middle, second_short = (house.submit(n, 2) for n in (40, 3, 20, 3))
    house.run()
    order = first_tokens(house, [long, short, middle, second_short])
    assert order == [short, second_short, middle, long]


def test_it_explains_why_a_request_waits(shown) -> None:
    request = SimpleNamespace(prompt=40)
    assert "before this one of 40 tokens" in shown(services=services()).explain(request, None)
