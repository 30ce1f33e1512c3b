"""Beam search over the sequences of a request: who goes on in whose blocks.

    beam 0  a b c │ d e          0  a b c │ d e f      goes on in its own place
    beam 1  a b c │ x y    ──▶   2  a b c │ d e g      shares all blocks of beam 0
    beam 2  a b c │ x z          1  a b c │ x y h

A step computes a row for each beam. When all have landed the group is resolved, before the next
step is planned: so at depth 1 a group computes in every second step. A beam nobody goes on from
gives its blocks back; its place, and the row that goes with it, is the next one's.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.beam_search import Beam, Hypothesis, Search
from engine.controls import Sampled
from engine.decisions import DecisionSink
from engine.memory import KVMemory
from engine.request import Request, Sequence


def take(sequence: Sequence, sampled: Sampled, place: int) -> None:
    """Remember how a beam whose row has landed may go on. place: of its row among the sampled."""
    assert sequence.beam is not None
    sequence.beam.candidates = sampled.candidates[place]
    sequence.beam.report = sampled.logprobs[place]


def complete(request: Request) -> bool:
    """Whether the rows of all beams have landed."""
    return all(s.beam is not None and s.beam.candidates is not None for s in request.sequences)


def resolve(
    request: Request, search: Search, memory: KVMemory, log: DecisionSink
) -> tuple[list[int], list[Hypothesis]]:
    """Let the best continuations be the request's sequences; what it found, if that was the end.

    Before that, the indices of the sequences that they continue.

    All KV of all beams must be in their blocks, and no row of them in flight.
    """
    beams = request.sequences
    assert all(s.computed == len(s.tokens) for s in beams), "a beam without its KV has candidates"
    scores = [_beam(sequence) for sequence in beams]
    generated = [sequence.tokens[request.prompt_length :] for sequence in beams]
    chosen = search.advance(scores, generated)
    if not chosen:
        return [], search.best(request.submission.n)
    going_on = {beams[one.parent] for one in chosen}
    for sequence in beams:
        if sequence not in going_on:
            memory.release(sequence)
    places = _free_places(request, going_on)
    parents = [beams[one.parent] for one in chosen]
    indices = [parent.index for parent in parents]
    children = []
    for one, parent in zip(chosen, parents, strict=True):
        if parent in going_on:
            going_on.remove(parent)
            child = parent
        else:
            child = Sequence(request, next(places))
            memory.branch(child, parent)
            log("fork", request.id, child.index, parent.index)
        children.append(child)
        beam = scores[one.parent]
        child.beam = Beam(one.score, beam.reported(one.candidate))
    for one, child in zip(chosen, children, strict=True):  # siblings were made from the parent's
        child.tokens.append(one.candidate.token)
    request.sequences = children
    return indices, []


def _beam(sequence: Sequence) -> Beam:
    assert sequence.beam is not None
    return sequence.beam


def _free_places(request: Request, going_on: set[Sequence]) -> Iterator[int]:
    """Indices of the request's rows that no beam holds on to."""
    taken = {sequence.index for sequence in going_on}
    return (index for index in range(request.submission.sequences) if index not in taken)
