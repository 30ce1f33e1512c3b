"""Policies are scored by a process that may end: what it says, and what ends it."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from support import unscorable
from support.shadowed import MACHINE, LiveHouse, traffic

from app.child.frames import write_frame
from app.config.schema import SchedulerConfig
from app.shadow.job import Job
from app.shadow.playing import play
from app.shadow.scorer import NotScored, Scorer
from policies.fcfs import FCFS


@pytest.fixture(scope="module")
def stretch():
    return LiveHouse(traffic(10.0)).window(10.0)[0]


@pytest.fixture
def scorer(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(unscorable.__file__).parents[1]))
    scorer = Scorer(timeout_s=60.0)
    yield scorer
    scorer.close()


def job(stretch, policy: str = "fcfs", **more) -> Job:
    return Job(stretch, SchedulerConfig(policy=policy), MACHINE, seeds=2, **more)


def mine(policy: type) -> str:
    return f"{policy.__module__}:{policy.__name__}"


def test_scores_are_those_of_the_simulation(scorer, stretch):
    assert scorer.child.pid is None  # it is not there before it is needed
    found = scorer.score(job(stretch))
    assert found.score.whole == pytest.approx(play(stretch, FCFS, MACHINE, 0).score.whole)
    assert found.spread["ttft_s"] == pytest.approx(0.0)
    assert found.faults == 0
    slower = scorer.score(job(stretch, slower=2.0))
    assert slower.score.whole["ttft_s"] > 1.5 * found.score.whole["ttft_s"]


def test_it_stands_back_and_stays_in_the_servers_session(scorer, stretch):
    scorer.score(job(stretch))
    pid = scorer.child.pid
    assert os.getpgid(pid) != os.getpgid(0)
    assert os.getsid(pid) == os.getsid(0)
    if sys.platform == "linux":
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE


def test_a_policy_that_does_not_come_back_is_given_up(scorer, stretch):
    scorer.score(job(stretch))
    pid = scorer.child.pid
    scorer._timeout_s = 0.5
    with pytest.raises(NotScored, match=r"took longer than 0\.5 s"):
        scorer.score(job(stretch, mine(unscorable.Endless)))
    assert not Path(f"/proc/{pid}").exists()
    scorer._timeout_s = 60.0
    assert scorer.score(job(stretch)).faults == 0


def test_one_that_ends_its_process_does_not_end_the_next_ones(scorer, stretch):
    with pytest.raises(NotScored, match="ended with -9"):
        scorer.score(job(stretch, mine(unscorable.Deadly)))
    assert scorer.score(job(stretch)).faults == 0


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux")
def test_one_that_takes_too_much_memory_is_told_so(scorer, stretch):
    with pytest.raises(NotScored, match=r"[mM]emory"):
        scorer.score(job(stretch, mine(unscorable.Greedy)))
    assert scorer.score(job(stretch)).faults == 0


def test_one_that_cannot_be_made_says_why(scorer, stretch):
    with pytest.raises(NotScored, match=r"^policy: unknown policy nobody"):
        scorer.score(job(stretch, "nobody"))


def test_what_one_prints_is_no_answer(scorer, stretch):
    assert scorer.score(job(stretch, mine(unscorable.Chatty))).score.requests > 0


def test_one_that_is_wrong_at_run_time_is_replaced_by_the_guard_and_counted(scorer, stretch):
    assert scorer.score(job(stretch, mine(unscorable.Wrong))).faults > 0


def test_it_ends_with_the_server_and_is_not_started_again(scorer, stretch):
    scorer.score(job(stretch))
    pid = scorer.child.pid
    scorer.close()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(NotScored, match="shutting down"):
        scorer.score(job(stretch))


def test_it_ends_with_a_server_that_was_killed_whatever_a_policy_waits_for(scorer, stretch):
    scorer.score(job(stretch))
    process = scorer.child.process
    write_frame(process.stdin, pickle.dumps(job(stretch, mine(unscorable.Endless))))
    process.stdin.close()
    assert process.wait(60) == 0


def test_it_imports_nothing_that_computes():
    code = (
        "import sys, app.shadow.scoring\n"
        "print(*{'torch', 'starlette', 'uvicorn', 'tokenizers'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == ""
