"""Masks are computed beside the step: one that takes long holds up neither the step nor others."""

import ctypes
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from support.engines import GREEDY, Harness
from support.grammars import masks_in_the_end

from app.structured.masks import MOST_LATE, MaskCrew
from app.structured.matching import TOO_COMPLEX, CompiledGrammar
from app.text.tokenizer import ByteTokenizer
from engine.grammar import LATE
from engine.outputs import FailureKind, FinishReason


class Matching:
    """Stands in for a matcher of the library that allows what it is made with, for some tokens.

    go: is waited for before each mask.
    """

    def __init__(self, allowed=(7,), tokens=40, go=None):
        self.allowed = allowed
        self.left = tokens
        self.go = go

    def deep_copy(self):
        return Matching(self.allowed, self.left, self.go)

    def unsafe_compute_mask_ptr(self, pointer, size):
        if self.go is not None:
            assert self.go.wait(60)
        bits = np.zeros(8 * size, np.uint8)
        bits[list(self.allowed)] = 1
        packed = np.packbits(bits, bitorder="little").tobytes()
        ctypes.memmove(pointer, packed, size)

    def consume_token(self, token):
        self.left -= 1
        return token in self.allowed

    def compute_ff_tokens(self):
        return []

    def is_error(self):
        return False

    def get_error(self):
        return ""

    def is_stopped(self):
        return not self.left

    is_accepting = is_stopped


class Broken(Matching):
    """Does what the library never should."""

    def deep_copy(self):
        return self

    def unsafe_compute_mask_ptr(self, pointer, size):
        raise RuntimeError("of the library")


@pytest.fixture
def crew():
    crew = MaskCrew(-(-ByteTokenizer().vocab_size // 32))
    yield crew
    crew.close()


@pytest.fixture
def go():
    go = threading.Event()
    yield go
    go.set()


@pytest.fixture
def grammar(crew):
    def make(matching):
        return CompiledGrammar(matching, ByteTokenizer(), crew, lambda: None)

    return make


def allowed(mask):
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def test_each_row_has_its_own_mask(grammar):
    made = [grammar(Matching((token,))) for token in (3, 200, 77)]
    masks = masks_in_the_end(made[0], [each.matcher() for each in made])
    assert [allowed(mask) for mask in masks] == [[3], [200], [77]]


def test_the_mask_that_holds_the_others_up_is_late_and_they_are_not(grammar, go):
    held, other = grammar(Matching(go=go)), grammar(Matching())
    stuck = held.matcher()
    for _ in range(3):  # also where it has been stuck for some steps
        others = [other.matcher() for _ in range(5)]
        end = time.monotonic() + 60
        while any(each.row is not None or each._inner.left == 40 for each in others):
            assert time.monotonic() < end
            late, *masks = other.prepare([stuck, *others])()
            assert late is LATE
            for matcher, mask in zip(others, masks, strict=True):
                if mask is not LATE:
                    assert allowed(mask) == [7]
                    matcher.accept(7)
    go.set()
    (mask,) = masks_in_the_end(held, [stuck])
    assert allowed(mask) == [7]
    assert not stuck.fault


def test_a_mask_that_never_comes_is_given_up(grammar, go):
    held = grammar(Matching(go=go))
    stuck = held.matcher()
    for _ in range(MOST_LATE):
        assert held.prepare([stuck])() == [LATE]
        assert not stuck.fault
    assert held.prepare([stuck])() == [None]
    assert stuck.fault == TOO_COMPLEX
    stuck.accept(7)  # says nothing to the library, which is still at it
    assert stuck._inner.left == 40


def test_an_error_nobody_knows_is_a_fault_of_its_matcher_alone(grammar, caplog):
    broken, fine = grammar(Broken()).matcher(), grammar(Matching()).matcher()
    none, mask = masks_in_the_end(grammar(Matching()), [broken, fine])
    assert none is None
    assert broken.fault == TOO_COMPLEX
    assert allowed(mask) == [7]
    assert not fine.fault
    assert "of the library" in caplog.text


@pytest.mark.parametrize("depth", [0, 1])
def test_no_neighbour_gets_a_token_later_for_a_mask_that_does_not_come(grammar, go, depth):
    """Counted in steps: each of them brings a token to whoever is not under that grammar."""
    house = Harness(depth=depth, script=lambda row: 7)
    held = house.submit([1], 60, replace(GREEDY, grammar=grammar(Matching(go=go))))
    free = [house.submit([1, 2], 40) for _ in range(3)]
    landed = [0] * len(free)
    steps = 0
    while landed != [40] * len(free):
        house.step()
        steps += 1
        landed = [len(house.tokens(each)) for each in free]
        assert landed == [max(0, min(steps - depth, 40))] * len(free)
    assert house.tokens(held) == []
    go.set()
    house.run(limit=100_000)
    assert house.tokens(held) == [7] * 40
    assert house.end(held).reason is FinishReason.STOP


def test_who_never_gets_a_mask_is_told_and_leaves_nothing(grammar, go):
    house = Harness(script=lambda row: 7)
    held = house.submit([1], 60, replace(GREEDY, grammar=grammar(Matching(go=go))))
    free = house.submit([1, 2], MOST_LATE + 40)
    house.run()
    failure = house.end(held).failure
    assert (failure.kind, failure.message) == (FailureKind.GRAMMAR, TOO_COMPLEX)
    assert house.tokens(free) == [7] * (MOST_LATE + 40)
    assert house.pool.free == house.pool.total
