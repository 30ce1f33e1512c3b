"""What other engines' programs print, and the rates that follow from it."""

from __future__ import annotations

import sys

import pytest

from loadtest.peers import llama_bench, servers
from loadtest.peers.environments import LLAMA, LLAMA_SOURCE, OPENVINO, VLLM
from loadtest.peers.llama_build import _STEP
from loadtest.peers.processes import complaint, run
from loadtest.peers.roster import ENGINES
from loadtest.peers.servers import Mix, Served
from loadtest.peers.work import WORKS, PeerFailed, Rates, Times, Work, rates

WORK = Work(128, 64, 8)
LLAMA_LINE = (
    '{"n_kv_max": 4096, "n_batch": 2048, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 0,'
    ' "n_gpu_layers": -1, "n_threads": 2, "n_threads_batch": 2, "pp": 128, "tg": 64, "pl": 8,'
    ' "n_kv": 1536, "t_pp": 2.0, "speed_pp": 512.0, "t_tg": 3.0, "speed_tg": 170.67, "t": 5.0,'
    ' "speed": 307.2}'
)


def test_rates_come_from_a_run_of_one_token_and_a_run_of_all() -> None:
    samples = [Times(2.0, 5.0), Times(1.0, 9.0), Times(7.0, 4.0)]
    found = rates(WORK, samples)  # of the medians of each time
    assert found == Rates(prefill=8 * 128 / 2, decode=8 * 63 / 3, output=8 * 64 / 5)


def test_nothing_is_decoded_in_a_whole_run_that_was_the_shorter_one() -> None:
    assert rates(WORK, [Times(2.0, 2.0)]).decode == 0


def test_prompts_repeat_with_their_seed_only() -> None:
    prompts = WORK.prompts(1000, seed=3)
    assert prompts == WORK.prompts(1000, seed=3)
    assert prompts != WORK.prompts(1000, seed=4)
    assert (len(prompts), {len(prompt) for prompt in prompts}) == (8, {128})
    assert all(1000 // 16 <= token < 1000 for prompt in prompts for token in prompt)
    assert len({work.name for work in WORKS}) == len(WORKS)


def test_llama_cpp_says_its_rates_in_a_line_of_json() -> None:
    found = llama_bench.parse(f"warming up\n{{broken\n{LLAMA_LINE}\n\n", WORK)
    assert found == Times(2.0, 2.0 + 3.0 * 63 / 64)


@pytest.mark.parametrize("output", ["", LLAMA_LINE.replace('"pl": 8', '"pl": 1')])
def test_silence_about_this_work_is_a_failure(output: str) -> None:
    with pytest.raises(PeerFailed, match="nothing for 128x8"):
        llama_bench.parse(output, WORK)


def served(**changes: float) -> dict[str, float]:
    return {
        "completed": 4,
        "total_output_tokens": 4 * 64,
        "output_throughput": 250.5,
        "median_ttft_ms": 80.0,
        "median_tpot_ms": 20.0,
        **changes,
    }


def test_the_client_saves_throughput_and_latencies() -> None:
    assert servers.parse(served(), Mix(requests=4)) == Served(250.5, 80.0, 20.0)


def test_a_few_requests_may_fail_and_are_counted() -> None:
    found = servers.parse(served(completed=9, total_output_tokens=9 * 64), Mix(requests=10))
    assert found.failed == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"completed": 3}, "1 of 4 requests failed"),
        ({"total_output_tokens": 200}, "200 tokens came, 256 were asked for"),
    ],
)
def test_a_run_in_which_tokens_are_missing_does_not_count(
    changes: dict[str, float], why: str
) -> None:
    with pytest.raises(PeerFailed, match=why):
        servers.parse(served(**changes), Mix(requests=4))


def test_a_complaint_is_the_last_line_that_names_an_error_or_the_last_one() -> None:
    assert complaint("x\nERROR: no such wheel\n\n[notice] a new pip\n") == "ERROR: no such wheel"
    assert complaint("first\nlast\n") == "last"
    assert complaint("\n") == "it gave no reason"


def test_a_command_that_fails_hangs_or_is_not_there_is_told_in_a_line() -> None:
    assert run([sys.executable, "-c", "print(1)"], timeout=60) == "1\n"
    with pytest.raises(PeerFailed, match=r"failed: ValueError: out of ink"):
        run([sys.executable, "-c", "raise ValueError('out of ink')"], timeout=60)
    with pytest.raises(PeerFailed, match="was ended by signal 9"):
        run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], timeout=60)
    with pytest.raises(PeerFailed, match="took more than 0 s"):
        run([sys.executable, "-c", "input()"], timeout=0)
    with pytest.raises(PeerFailed, match="nowhere: No such file"):
        run(["/nowhere"], timeout=60)


def test_the_steps_of_a_compilation_are_counted() -> None:
    step = _STEP.match("[12/216] Building CXX object src/llama.cpp.o\n")
    assert step is not None
    assert step.groups() == ("12", "216")


def test_every_package_is_pinned() -> None:
    environments = (OPENVINO, VLLM, LLAMA)
    pins = [pin for environment in environments for pin in environment.requirements]
    assert all(pin.count("==") == 1 for pin in [*pins, LLAMA_SOURCE])
    assert OPENVINO.version("openvino-genai").startswith("2026.")
    assert len(set(ENGINES)) == len(ENGINES)
