"""The predicted seconds of a step while its work is handed out, for policies that bound them."""

from __future__ import annotations

from policies.base import StepCost, StepView

TURN = 16
"""Tokens that prompts get at a turn of theirs, whatever the time (a block)."""


class StepTime:
    """What a step costs by the cost model: its decodes first, then chunk by chunk.

    A chunk of one token counts as a decode, as it does for the cost model. Tokens that were forced
    on decodes are computed with them; each of these rows is taken to be as long as all on average.
    """

    def __init__(self, cost: StepCost, step: StepView, decodes: int) -> None:
        """Begin with `decodes` of the step's running decodes; their KV is taken as all of it."""
        forced = min(step.forced_tokens, max(0, step.budget - decodes)) if decodes else 0
        self._cost = cost
        self._prefill = forced
        self._decodes = decodes
        self._kv_read = step.decode_kv_tokens + forced if decodes else 0
        self._chunk_context = forced * self._kv_read // max(1, decodes)

    @property
    def seconds(self) -> float:
        """What has been handed out so far."""
        return self._cost.seconds(self._prefill, self._decodes, self._kv_read, self._chunk_context)

    def spare_decode(self, kv: int) -> None:
        """A decode that reads `kv` KV tokens skips the step."""
        self._decodes -= 1
        self._kv_read -= kv

    def with_chunk(self, start: int, count: int) -> float:
        """Seconds if `count` >= 1 tokens from position `start` are added."""
        end = start + count
        kv_read = self._kv_read + end
        if count == 1:
            return self._cost.seconds(
                self._prefill, self._decodes + 1, kv_read, self._chunk_context
            )
        context = self._chunk_context + count * end
        return self._cost.seconds(self._prefill + count, self._decodes, kv_read, context)

    def largest(self, start: int, most: int, limit_s: float) -> int:
        """The largest chunk, of at most `most` tokens, that keeps the step within `limit_s`."""
        if self.with_chunk(start, most) <= limit_s:
            return most
        fits, fails = 1, most  # of chunks of two and more the cost grows with their length
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if self.with_chunk(start, middle) <= limit_s:
                fits = middle
            else:
                fails = middle
        return fits if fits > 1 or self.with_chunk(start, 1) <= limit_s else 0

    def add(self, start: int, count: int) -> None:
        """`count` tokens from position `start` are computed in the step."""
        self._kv_read += start + count
        if count == 1:
            self._decodes += 1
        elif count:
            self._prefill += count
            self._chunk_context += count * (start + count)


class PromptTurns:
    """Turns for prompts where decodes alone would take the whole of every step.

    Decodes go first, and may need all the time there is. Prompts that have got nothing for `window`
    steps have a turn: TURN tokens, off the decodes' tokens if need be. Two turns are further apart
    than the steps in which all decodes are served once, so that a decode loses one step to them at
    most.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._last: int | None = None

    def begin(self, step: StepView) -> int:
        """Tokens that prompts get in this step whatever it takes; 0 unless it is their turn."""
        if self._last is None or not (step.prefilling or step.waiting):
            self._last = step.index
        rotation = -(-step.decoding // step.budget)
        if step.index - self._last < max(self._window, rotation + 1):
            return 0
        self._last = step.index
        most = step.budget - 1 if step.decoding else step.budget  # prompts may lack blocks
        return min(TURN, max(1, most))

    def served(self, step: StepView) -> None:
        """Prompts got tokens in this step."""
        self._last = step.index
