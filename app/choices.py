"""The text side of a sequence: engine outputs in, pieces of a reply out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.logprobs import Entry
from app.text.sequence import SequenceText
from engine.controls import TokenLogprobs
from engine.outputs import Finish, Output

MERGE_ABOVE = 16
"""Tokens of one sequence that may wait before they share a frame."""


@dataclass(slots=True)
class Piece:
    """What one or more tokens add to a reply; finish_reason is set on a sequence's last one.

    Not frozen: one is made for each token, and a frozen one takes four times as long to make.
    """

    text: str
    tokens: tuple[int, ...] = ()
    entries: tuple[Entry, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Choice:
    """One sequence of a request, from its first token to its last.

    index: its place among all choices of the reply. prompt: the place of what it answers.
    tokens: how many of its tokens count. cached: prompt tokens that were found in the cache.
    prompt_logprobs: of the prompt's tokens but the first, if asked for.
    finish_reason, stop_reason: None until it has ended.
    """

    def __init__(self, index: int, text: SequenceText, prompt: int = 0) -> None:
        self.index = index
        self.prompt = prompt
        self.tokens = 0
        self.cached = 0
        self.prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._text = text

    def take(self, output: Output) -> list[Piece]:
        """One piece for each token, up to the one that ends the sequence."""
        pieces: list[Piece] = []
        self.cached = output.cached or self.cached
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        last = len(output.tokens) - 1
        for position, token in enumerate(output.tokens):
            if self.finish_reason is not None:
                break
            delta = self._text.push(token, _natural(output.finish) if position == last else None)
            entries = ((token, output.logprobs[position]),) if output.logprobs else ()
            pieces.append(
                Piece(delta.text, (token,), entries, delta.finish_reason, delta.stop_reason)
            )
            self.tokens = delta.tokens
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        return pieces


def _natural(finish: Finish | None) -> Finish | None:
    """An end that has a finish_reason; a failure has none."""
    return finish if finish is not None and finish.failure is None else None


def merge(pieces: Sequence[Piece]) -> Piece:
    """Several pieces of one sequence as one."""
    return Piece(
        "".join(piece.text for piece in pieces),
        tuple(token for piece in pieces for token in piece.tokens),
        tuple(entry for piece in pieces for entry in piece.entries),
        pieces[-1].finish_reason,
        pieces[-1].stop_reason,
    )


def likeliest(answers: Sequence[tuple[Choice, Piece]], count: int) -> list[tuple[Choice, Piece]]:
    """The `count` answers with the highest log-probability a token, highest first."""

    def mean(answer: tuple[Choice, Piece]) -> float:
        known = [entry.logprob for _, entry in answer[1].entries]
        return sum(known) / len(known)

    return sorted(answers, key=mean, reverse=True)[:count]


def coalesce(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """A frame a token, unless so many waited that the reader is plainly behind."""
    return [merge(pieces)] if len(pieces) > MERGE_ABOVE else pieces
