"""How many answers a request gets, and from how many sequences they are chosen."""

from __future__ import annotations

from dataclasses import dataclass

from app.errors import invalid
from app.schemas.sampling import Generate
from engine.beam_search import BeamSearch

MAX_BEAMS = 32
"""Most beams of a request: a step looks at twice as many continuations of each of them."""


@dataclass(frozen=True, slots=True)
class Answers:
    """count: choices of the reply. chosen_from: sequences that are computed at once.

    beams: the search that finds the answers. ranked: the answers are those of all sequences whose
    tokens were the likeliest on average, the likeliest first.
    """

    count: int
    chosen_from: int
    beams: BeamSearch | None = None
    ranked: bool = False

    @property
    def sequences(self) -> int:
        """Rows of a step that each prompt takes."""
        return self.chosen_from if self.beams is None else self.beams.width


def answers_of(request: Generate, most: int) -> Answers:
    """What a request asks for. most: sequences that the server takes.

    Raises ApiError (400) for what does not go together.
    """
    count = request.n or 1
    chosen_from = request.best_from or count
    param = "n" if request.best_from is None else "best_of"
    if chosen_from < count:
        raise invalid(f"best_of must be at least n, which is {count}.", "best_of")
    if chosen_from > most:
        raise invalid(f"At most {most} sequences are possible here.", param)
    if request.use_beam_search:
        if chosen_from > MAX_BEAMS:
            raise invalid(f"A beam search has at most {MAX_BEAMS} beams.", param)
        return Answers(count, chosen_from, _beams(request, chosen_from))
    if request.length_penalty not in (None, 1):
        raise invalid("length_penalty needs use_beam_search: true.", "length_penalty")
    if request.early_stopping:
        raise invalid("early_stopping needs use_beam_search: true.", "early_stopping")
    ranked = param == "best_of" and chosen_from > 1
    if ranked and request.stream:
        raise invalid("The best of several cannot be streamed.", "best_of")
    return Answers(count, chosen_from, ranked=ranked)


def _beams(request: Generate, width: int) -> BeamSearch:
    if request.stream:
        raise invalid("A beam search is answered at once; it cannot be streamed.", "stream")
    if request.temperature:
        raise invalid("A beam search does not sample: temperature must be 0.", "temperature")
    if request.stop:
        raise invalid(
            "A beam search cannot end at stop strings; stop_token_ids are possible.", "stop"
        )
    penalty = 1.0 if request.length_penalty is None else request.length_penalty
    return BeamSearch(width, penalty, request.early_stopping or False)
