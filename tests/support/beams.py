"""Beam searches over made-up log-probabilities, and what they find without an engine."""

from __future__ import annotations

from collections.abc import Sequence

from engine.beam_search import Beam, BeamSearch, Hypothesis, Search
from engine.controls import Candidate, SampleRow


def branching(row: SampleRow) -> list[tuple[int, float]]:
    """Tokens of the prompt, with scores that depend on all tokens so far."""
    return branches_of(row.tokens[: row.position], row.prompt_length)


def branches_of(tokens: Sequence[int], prompt_length: int) -> list[tuple[int, float]]:
    """What `branching` says of a history. At most eight tokens, no two with the same score."""
    prompt = tokens[:prompt_length]
    seed = hash(tuple(tokens))
    places = {(seed >> 4 * k) % prompt_length for k in range(8)}
    scored = {prompt[place]: -0.1 - (seed * (place + 1) % 997) / 100 for place in places}
    return sorted(scored.items(), key=lambda each: (-each[1], each[0]))


def search_alone(
    prompt: Sequence[int],
    settings: BeamSearch,
    max_tokens: int,
    ends: frozenset[int] = frozenset(),
) -> list[Hypothesis]:
    """What a search over `branching` finds: sequences are lists here, and no row waits."""
    search = Search(settings, max_tokens, ends)
    beams, said = [Beam()], [list[int]()]
    while True:
        for beam, tokens in zip(beams, said, strict=True):
            branches = branches_of([*prompt, *tokens], len(prompt))
            beam.candidates = [Candidate(token, score, score) for token, score in branches]
        chosen = search.advance(beams, said)
        if not chosen:
            return search.best(settings.width)
        beams = [Beam(one.score) for one in chosen]
        said = [[*said[one.parent], one.candidate.token] for one in chosen]
