"""Rounds of two servers: the same requests to both, by turns."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner
from support.serving import serving

from app.cli import main
from loadtest.ab.experiment import Experiment
from loadtest.ab.groups import parse_row
from loadtest.ab.live import LiveArm, order, run_live
from loadtest.live import Settings
from loadtest.traces import Arrival

SEEDS = 5
QUIET = Settings(look_s=0)


def arrivals(count: int = 12) -> list[Arrival]:
    return [Arrival(0.01 * n, 20 + n, 3 + n % 4) for n in range(count)]


def test_which_server_is_first_is_drawn_for_each_round() -> None:
    orders = [order(seed, 2) for seed in range(20)]
    assert orders == [order(seed, 2) for seed in range(20)]
    assert 5 < sum(each == [0, 1] for each in orders) < 15
    assert all(sorted(each) == [0, 1] for each in orders)


async def test_both_servers_get_the_requests_of_every_seed() -> None:
    ticks: list[int] = []
    async with serving() as one, serving() as other:
        arms = [LiveArm("one", one.url, QUIET), LiveArm("other", other.url, QUIET)]
        result = await asyncio.to_thread(
            run_live,
            Experiment(arms, arrivals()),
            SEEDS,
            lambda: ticks.append(1),
            lambda: None,
        )
        await one.idle()
        await other.idle()
    assert len(ticks) == 2 * (1 + SEEDS)
    assert result.blocks.busy_s > 0
    compared = result.comparison(1, [parse_row("ttft_s.mean"), parse_row("output_tok_s")])
    assert [each.estimate.seeds for each in compared.primary] == [SEEDS, SEEDS]
    assert compared.requests["e2e_s"].pairs == SEEDS * len(arrivals())
    shed = {str(each.row): each for each in compared.differences}["shed"]
    assert (shed.first, shed.second) == (0, 0)


@pytest.mark.slow  # servers are left alone for two seconds after each run
async def test_the_command_compares_two_servers(tmp_path) -> None:
    rows = [f"{each.at},t,{each.prompt_tokens},{each.output_tokens}" for each in arrivals()]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["arrival_s,tenant,prompt_tokens,output_tokens", *rows]))
    async with serving() as one, serving() as other:
        arguments = ["--live", one.url, other.url, "--trace", str(trace), "--seeds", "5", "--json"]
        result = await asyncio.to_thread(CliRunner().invoke, main, ["ab", *arguments])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout[result.stdout.index("{\n") :])  # behind what servers log
    assert answer["arms"] == {one.url: one.url, other.url: other.url}
    (comparison,) = answer["comparisons"]
    assert comparison["differences"][0]["metric"] == "ttft_s.mean"
    assert comparison["requests"]["ttft_s"]["pairs"] == 5 * len(rows)
