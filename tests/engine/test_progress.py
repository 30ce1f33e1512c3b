"""The progress window: what is owed suffices for E13, and can always be paid."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.progress import NOTHING, Owed, ProgressWindow

WINDOW = 16


def test_nothing_is_owed_while_there_is_time() -> None:
    window = ProgressWindow(WINDOW, budget=4)
    assert window.owed(10, [10, 9, 8], lacking=0) == NOTHING


def test_a_decode_is_owed_a_token_in_the_last_step_of_its_window() -> None:
    window = ProgressWindow(WINDOW, budget=4)
    assert window.owed(15, [0], lacking=0) == NOTHING
    assert window.owed(16, [0], lacking=0) == Owed(decodes=1)


def test_what_could_not_be_done_later_is_owed_now() -> None:
    window = ProgressWindow(WINDOW, budget=2)
    # Six decodes are due by step 16, and two a step can be served: steps 14, 15 and 16.
    assert window.owed(13, [0] * 6, lacking=0) == NOTHING
    assert window.owed(14, [0] * 6, lacking=0) == Owed(decodes=2)


def test_prompts_are_owed_a_window_of_tokens_or_all_they_lack() -> None:
    window = ProgressWindow(WINDOW, budget=32)
    assert window.owed(1, [], lacking=100) == NOTHING
    assert window.owed(16, [], lacking=100) == Owed(prompt_tokens=16)
    assert window.owed(16, [], lacking=3) == Owed(prompt_tokens=3)
    window.granted(16, 16)
    assert window.owed(17, [], lacking=84) == NOTHING


@settings(max_examples=150)
@given(
    budget=st.integers(2, 8),
    fill=st.floats(0.1, 1.0),
    seed=st.integers(0, 10**6),
    generous=st.floats(0.0, 1.0),
)
def test_whoever_pays_what_is_owed_keeps_the_promise_and_can_always_pay(
    budget: int, fill: float, seed: int, generous: float
) -> None:
    rng = random.Random(seed)
    window = ProgressWindow(WINDOW, budget)
    most = max(1, int(fill * (WINDOW * budget - WINDOW)))
    served: dict[int, int] = dict.fromkeys(range(rng.randrange(most + 1)), 0)
    prompts: list[int] = []
    for step in range(1, 200):
        lacking = 1000
        owed = window.owed(step, served.values(), lacking)
        assert owed.decodes + owed.prompt_tokens <= budget
        extra = budget - owed.decodes - owed.prompt_tokens if rng.random() < generous else 0
        decodes = owed.decodes + (rng.randrange(extra + 1) if extra else 0)
        oldest_first = sorted(served, key=lambda number: served[number])
        for number in oldest_first[:decodes]:
            assert step - served[number] <= WINDOW
            served[number] = step
        window.granted(step, owed.prompt_tokens)
        prompts.append(owed.prompt_tokens)
        assert all(step - last < WINDOW for last in served.values())
        if step >= WINDOW:
            assert sum(prompts[-WINDOW:]) >= WINDOW
        if rng.random() < 0.1 and served:
            served.pop(rng.choice(list(served)))
        elif rng.random() < 0.1 and len(served) < most:
            served[1000 + step] = step  # its first token came with the last of its prompt
