"""One sequence's way from token ids to the text deltas that a client sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.text.detokenizer import Detokenizer
from app.text.stops import StopMatcher
from app.text.tokenizer import Tokenizer
from engine.outputs import Finish, FinishReason


@dataclass(slots=True)
class Delta:
    """What one token adds. Made for each token, hence not frozen.

    text: may be "" (half a character, or perhaps the beginning of a stop string).
    tokens: completion tokens up to and including this one, those without text counted as well.
    finish_reason: "stop" or "length" on the last delta, else None. stop_reason: the stop string or
    the stop token id that ended the sequence; None for the model's own end and for "length".
    """

    token: int
    text: str
    tokens: int
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class SequenceText:
    """Detokenises one sequence, finds its stop strings and counts its tokens.

    Each token gives exactly one delta, so the caller can attach that token's logprobs to it. When
    `done` with a stop string in `stop_reason`, the engine still has to be told to end the sequence
    at the delta's `tokens`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        include_stop: bool = False,
        skip_special: bool = True,
    ) -> None:
        """include_stop: what ends the sequence, a stop string or a token, is shown.

        Raises ValueError for an empty stop string.
        """
        self._include_stop = include_stop
        self._eos_ids = tokenizer.eos_ids
        self._detokenizer = Detokenizer(tokenizer, skip_special)
        self._matcher = StopMatcher(stops, include_stop) if stops else None
        self._tokens = 0
        self._done = False

    @property
    def done(self) -> bool:
        """Whether the last delta has been made."""
        return self._done

    @property
    def tokens(self) -> int:
        """Completion tokens so far; once done, those of the finished sequence."""
        return self._tokens

    def push(self, token: int, finish: Finish | None = None) -> Delta:
        """Add the next token; `finish` comes with the last one the engine made.

        A token that itself ends the sequence counts, but is shown only if that is asked for.
        Tokens after the end are ignored: their deltas are empty.
        """
        if self._done:
            return Delta(token, "", self._tokens)
        self._tokens += 1
        hidden = finish is not None and finish.stop_token is not None and not self._include_stop
        text = "" if hidden else self._detokenizer.feed(token)
        stop = None
        if self._matcher is not None:
            text, stop = self._matcher.feed(text)
        if finish is not None and stop is None:
            rest, stop = self._rest()
            text += rest
        if stop is not None:
            return self._end(token, text, FinishReason.STOP, stop)
        if finish is not None:
            return self._end(token, text, finish.reason, self._stop_id(finish))
        return Delta(token, text, self._tokens)

    def _rest(self) -> tuple[str, str | None]:
        """The text that the end lets go, and the stop string that it completes."""
        rest = self._detokenizer.flush()
        if self._matcher is None:
            return rest, None
        rest, stop = self._matcher.feed(rest)
        return rest + self._matcher.flush(), stop

    def _stop_id(self, finish: Finish) -> int | None:
        return None if finish.stop_token in self._eos_ids else finish.stop_token

    def _end(
        self, token: int, text: str, reason: FinishReason, stop_reason: str | int | None
    ) -> Delta:
        self._done = True
        return Delta(token, text, self._tokens, reason.value, stop_reason)
