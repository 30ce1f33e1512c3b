"""A recording is a trace as well: arrivals, lengths, tenants, and what later prompts go on from."""

from __future__ import annotations

import json

from click.testing import CliRunner
from support.engines import Harness
from support.scripts import hashed

from app.cli import main
from app.recording.files import RotatedFiles
from app.recording.header import describe
from app.recording.names import Names
from app.recording.writer import RecordingWriter
from engine.controls import RowControls
from engine.cost import LinearCost
from engine.inbox import PolicyName
from engine.recorder import Recorder
from engine.simulation import Machine, simulate
from engine.simulation.arrival import Prefix
from loadtest.ab.prefixes import Prefixes
from loadtest.recordings.files import find_recording
from loadtest.traces import Arrival, read_arrivals
from policies.fcfs import FCFS


class Recorded:
    """A harness whose turns go to a directory."""

    def __init__(self, directory) -> None:
        self.names = Names()
        self.harness = Harness(
            recorder=Recorder(lambda turn: self.writer.take(turn)), script=hashed, blocks=200
        )
        header = {
            "recording": "0123abcd",
            "format": 1,
            "octavo": "x",
            "began": "then",
            "engine": describe(self.harness.engine, PolicyName("fcfs"), self.names),
        }
        files = RotatedFiles(directory, "20261130T000000Z-0123abcd", header, 2**20, 9)
        self.writer = RecordingWriter(files, self.names, lambda: [0.0] * 5, pause_s=0.0)
        self.writer.start()

    def close(self) -> None:
        self.harness.run()
        self.writer.close()


def test_lengths_times_tenants_and_ends_are_those_of_the_requests(tmp_path) -> None:
    house = Recorded(tmp_path)
    harness = house.harness
    first = harness.submit(20, max_tokens=7, tenant="acme", slo_class="gold", priority=2)
    harness.step()
    stopped = harness.submit(33, max_tokens=90, n=2)
    for _ in range(5):
        harness.step()
    harness.finish(stopped, tokens=3, index=1)
    left = harness.submit(5, max_tokens=90)
    for _ in range(4):
        harness.step()
    harness.abort(left)
    house.close()
    arrivals = read_arrivals(tmp_path)
    assert [each.prompt_tokens for each in arrivals] == [20, 33, 33, 5]
    assert arrivals[0].at == 0.0
    assert arrivals[1].at == 0.001
    assert arrivals[0].tenant == house.names.name("acme")
    assert (arrivals[0].slo_class, arrivals[0].priority) == (house.names.name("gold"), 2)
    assert [each.output_tokens for each in arrivals[:3]] == [7, 90, 3]
    assert arrivals[3].output_tokens == len(harness.tokens(left))
    assert arrivals[3].max_tokens == 90
    assert first


def test_what_goes_on_from_an_answer_shares_its_blocks(tmp_path) -> None:
    house = Recorded(tmp_path)
    harness = house.harness
    first = harness.submit(40, max_tokens=60)
    harness.run()
    prompt = [first * 1000 + i for i in range(40)] + harness.tokens(first) + [1, 2, 3]
    harness.submit(prompt, max_tokens=5)
    house.close()
    [begun, follows] = read_arrivals(tmp_path)
    assert len(begun.prefix.names) == 3
    shared = 96 // 16
    assert follows.prefix.names[:2] == begun.prefix.names[:2]
    assert follows.prefix.names[2:shared] == begun.prefix.answer[: shared - 2]
    machine = Machine(LinearCost(base=0.01), pool_tokens=4096)
    later = Arrival(9.0, follows.prompt_tokens, 5, prefix=follows.prefix)
    run = simulate(FCFS, [begun, later], machine)
    assert run.records[1].cached_tokens == 96


def test_answers_keep_their_meaning_where_a_trace_is_drawn_anew() -> None:
    begun = Arrival(0.0, 16, 32, prefix=Prefix((1,), answer=(2, 3)))
    follows = Arrival(1.0, 48, 4, prefix=Prefix((1, 2, 3)))
    prefixes = Prefixes([begun, follows], block=5)
    number = prefixes.next_block() + 1
    drawn = prefixes.of(begun, number)
    assert (*drawn.names, *drawn.answer) == prefixes.of(follows, number).names
    assert drawn.names != begun.prefix.names


def test_a_recording_can_be_simulated_under_another_policy(tmp_path) -> None:
    house = Recorded(tmp_path)
    for number in range(9):
        house.harness.submit(10 + number, max_tokens=5 + number, tenant="ab"[number % 2])
        house.harness.step()
    house.close()
    arguments = ["sim", "--trace", str(tmp_path), "--policy", "fair-share", "--json"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert (answer["requests"], answer["completed"]) == (9, 9)
    assert len(answer["by_tenant"]) == 2


def test_controls_of_clients_are_in_no_row(tmp_path) -> None:
    house = Recorded(tmp_path)
    controls = RowControls(temperature=0.7, seed=123456789, logit_bias={987654321: 1.0})
    house.harness.submit([555_444_333, 777_888_999], max_tokens=2, controls=controls)
    house.close()
    content = json.dumps(list(find_recording(tmp_path).rows()))
    assert "now" in content
    for secret in ("123456789", "987654321", "555444333", "777888999"):
        assert secret not in content
