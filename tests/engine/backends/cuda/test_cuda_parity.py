"""Through the whole engine, the CUDA backend says what the CPU backend says in float32.

Whatever the policy, the depth, the pool and its moves, and whether decodes go through graphs. Texts
may part where rounding may choose (`support.float_parity`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.built_in import BUILT_IN
from support.cpu_device import CPUDevice
from support.cuda_parts import on_stand_in
from support.drafts import Guesser, repeating
from support.engines import Harness
from support.float_parity import Ask, Said, differences, said

from engine.allocation import PAGED, RESERVE
from engine.backends.cpu import on_torch
from engine.beam_search import BeamSearch
from engine.controls import RowControls
from tests.engine.models.tiny_llama import CONFIG

BLOCKS = 40
HOST_BLOCKS = 40
BUCKETS = [1, 2, 4, 8]
GREEDY = RowControls(temperature=0.0, logprobs=2)


@dataclass(frozen=True)
class Case:
    """How some requests are served.

    lengths: of the prompts, which share beginnings. answer: tokens of the shortest answer.
    """

    lengths: tuple[int, ...]
    controls: tuple[RowControls, ...]
    answer: int = 8
    policy: str = "fcfs"
    depth: int = 1
    blocks: int = BLOCKS
    offload: bool = False
    graphs: bool = True
    budget: int = 32
    prefix_cache: bool = True

    @property
    def asks(self) -> list[Ask]:
        shared = np.random.default_rng(7).integers(0, CONFIG.vocab, 20).tolist()
        asks = []
        for number, length in enumerate(self.lengths):
            own = np.random.default_rng(number).integers(0, CONFIG.vocab, length).tolist()
            prompt = [*shared[: length if number % 2 else 0], *own][:length]
            asks.append(
                Ask(prompt, self.answer + number % 9, self.controls[number % len(self.controls)])
            )
        return asks


@pytest.fixture(scope="module")
def backends(tiny: tuple) -> dict[tuple[bool, bool], tuple]:
    """Backends and their devices, by whether they have host memory and graphs: used again and
    again, so that each pool is full of what others left."""
    made = {}
    for offload in (False, True):
        for graphs in (False, True):
            device = CPUDevice()
            backend = on_stand_in(
                *tiny,
                BLOCKS,
                device=device,
                host_blocks=HOST_BLOCKS if offload else 0,
                graphs=BUCKETS if graphs else False,
            )
            made[offload, graphs] = backend, device
    return made


def serve(case: Case, backend, **options) -> tuple[list[Said], Harness]:
    harness = Harness(
        backend=backend,
        blocks=case.blocks,
        budget=case.budget,
        rows=8,
        model_len=CONFIG.context_length,
        policy=BUILT_IN[case.policy],
        depth=case.depth,
        prefix_cache=case.prefix_cache,
        **options,
    )
    requests = [harness.submit(ask.prompt, ask.max_tokens, ask.controls) for ask in case.asks]
    harness.run()
    return [said(harness, request) for request in requests], harness


def compared(tiny: tuple, case: Case, backend) -> Harness:
    """Serve a case on both; texts part only where they may. Returns the CUDA backend's harness."""
    plain = replace(case, depth=0, blocks=200, offload=False)
    expected, _ = serve(plain, on_torch(*tiny, 200))
    found, harness = serve(case, backend)
    parted = differences(case.asks, expected, found)
    assert sum(parted.values()) <= 1, parted
    return harness


CONTROLS = st.sampled_from(
    [
        GREEDY,
        RowControls(temperature=0.0, repetition_penalty=1.5, logprobs=2),
        RowControls(seed=1, temperature=0.8, top_k=20, logprobs=2),
        RowControls(seed=2, temperature=0.7, frequency_penalty=1.0, top_p=0.9, logprobs=2),
        RowControls(temperature=0.0, bad_words=tuple((a, a) for a in range(160)), logprobs=2),
        RowControls(seed=3, temperature=1.0, top_k=9, min_tokens=5, eos_ids=frozenset({3, 9, 80})),
    ]
)
CASES = st.builds(
    Case,
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=7).map(tuple),
    controls=st.lists(CONTROLS, min_size=1, max_size=3).map(tuple),
    answer=st.sampled_from([1, 8, 30]),
    policy=st.sampled_from(sorted(BUILT_IN)),
    depth=st.sampled_from([0, 1]),
    blocks=st.sampled_from([9, 12, BLOCKS]),
    offload=st.booleans(),
    graphs=st.booleans(),
    budget=st.sampled_from([9, 32, 64]),
    prefix_cache=st.booleans(),
)


@given(case=CASES)
@settings(max_examples=12)
@example(case=Case(lengths=(40, 50, 60, 33), controls=(GREEDY,), answer=30, blocks=9, offload=True))
def test_texts_are_those_of_the_cpu_backend(tiny: tuple, backends, case: Case) -> None:
    backend, device = backends[case.offload, case.graphs]
    compared(tiny, case, backend)
    device.check()


@pytest.mark.slow
@given(case=CASES)
@settings(max_examples=300)
def test_texts_of_many_more_cases_are_those_of_the_cpu_backend(tiny, backends, case) -> None:
    compared(tiny, case, backends[case.offload, case.graphs][0])


@pytest.mark.parametrize("policy", BUILT_IN)
def test_no_policy_changes_a_text_in_a_small_pool(tiny, backends, policy: str) -> None:
    lengths = (40, 50, 60, 33)
    case = Case(lengths, (GREEDY,), 20, policy, blocks=9, offload=True, budget=24)
    backend, device = backends[True, True]
    device.trace.clear()
    compared(tiny, case, backend)
    assert device.trace.count("replay") > 10


@pytest.mark.parametrize("depth", [0, 1])
def test_who_gave_way_comes_back_from_the_host_with_the_same_text(tiny, backends, depth) -> None:
    case = Case((40, 50, 60, 33), (GREEDY,), 25, depth=depth, blocks=9, offload=True, budget=24)
    counters = compared(tiny, case, backends[True, True][0]).scheduler.counters
    assert counters.restored_blocks > 0
    assert counters.recomputed_tokens == 0


def test_without_host_memory_who_gave_way_is_computed_again(tiny, backends) -> None:
    case = Case((40, 50, 60, 33), (GREEDY,), 25, blocks=9, budget=24)
    harness = compared(tiny, case, backends[False, True][0])
    counters = harness.scheduler.counters
    assert counters.preemptions > 0
    assert counters.recomputed_tokens > 0


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("allocation", [PAGED, RESERVE])
def test_siblings_whose_prompt_is_copied_say_what_they_say_on_the_cpu(
    tiny, backends, depth: int, allocation
) -> None:
    texts = []
    for backend in (on_torch(*tiny, BLOCKS), backends[False, True][0]):
        harness = Harness(
            backend=backend,
            blocks=BLOCKS,
            budget=24,
            depth=depth,
            model_len=128,
            allocation=allocation,
        )
        controls = RowControls(seed=4, temperature=0.9, top_k=20)
        requests = [harness.submit(list(range(n, n + 21 + n)), 10, controls, n=3) for n in (0, 5)]
        harness.run()
        texts.append([harness.tokens(request, i) for request in requests for i in range(3)])
    assert texts[0] == texts[1]
    assert len(set(map(tuple, texts[0]))) == 6


@pytest.mark.parametrize("depth", [0, 1])
def test_guesses_that_are_verified_change_no_text(tiny, backends, depth: int) -> None:
    case = Case((20, 33), (GREEDY,), depth=depth)
    plain, _ = serve(case, backends[False, True][0])
    found, harness = serve(case, backends[False, True][0], drafter=Guesser(repeating, most=5))
    assert harness.scheduler.counters.draft_tokens > 0
    assert sum(differences(case.asks, plain, found).values()) <= 1


def test_beams_find_what_they_find_on_the_cpu(tiny, backends) -> None:
    texts = []
    for backend in (on_torch(*tiny, BLOCKS), backends[False, True][0]):
        harness = Harness(backend=backend, blocks=BLOCKS, budget=32, depth=1, model_len=128)
        request = harness.submit(list(range(30)), 8, GREEDY, n=2, beams=BeamSearch(4))
        harness.run()
        texts.append([harness.tokens(request, i) for i in range(2)])
    assert texts[0] == texts[1]
