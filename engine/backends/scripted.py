"""A backend for tests: says what it is told, fails when it is told, and watches the paging.

It keeps a shadow of the KV cache that holds token ids instead of keys and values, and one of the
host memory that blocks are offloaded to. Each row that samples must find exactly its own tokens
through its block table, and what is restored must have been offloaded, and not been restored
since; anything else is an error in scheduler, block tables or batch arrays, and raises
AssertionError.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from engine.batch import BLOCK, Batch
from engine.controls import Candidate, Sampled, SampleRow, TokenLogprobs
from engine.errors import RowFault
from engine.grammar import allows, first_allowed

Script = Callable[[SampleRow], int]
"""Which token follows, given the row's tokens so far."""

Branches = Callable[[SampleRow], Sequence[tuple[int, float]]]
"""How a row of a beam search may go on: tokens with log-probabilities, best first."""

Hook = Callable[[Batch], None]
"""Called before a step is computed; may raise, block, or look."""


def echo(row: SampleRow) -> int:
    """Repeat the prompt, over and over."""
    return row.tokens[(row.position - row.prompt_length) % row.prompt_length]


def by_prompt(answers: Mapping[tuple[int, ...], Sequence[int]]) -> Script:
    """A script that answers each prompt with a list of ids; the last one repeats."""

    def script(row: SampleRow) -> int:
        answer = answers[tuple(row.tokens[: row.prompt_length])]
        return answer[min(row.position - row.prompt_length, len(answer) - 1)]

    return script


class ScriptedBackend:
    """Computes nothing and samples what `script` says.

    A token that the logit bias favours by 100 wins over the script, as it would with any real
    model; a token that the row's mask forbids gives way to the first that it allows.
    hooks: what to do before the k-th submitted step (the first is step 0).
    branches: what beam searches choose from; by default the script's token, then unlikely ones.
    nan_rows: step → rows whose logits come out as NaN, which a real backend reports as RowFault.
    host_blocks, move_seconds: what it says of its host memory; moving takes no time.
    batches: everything that was submitted, in order.
    """

    reads_arrays = True

    def __init__(
        self,
        total_blocks: int,
        script: Script = echo,
        hooks: Mapping[int, Hook] | None = None,
        nan_rows: Mapping[int, Sequence[int]] | None = None,
        branches: Branches | None = None,
        host_blocks: int = 0,
        move_seconds: float = 0.0,
    ) -> None:
        self._total_blocks = total_blocks
        self._host_blocks = host_blocks
        self._move_seconds = move_seconds
        self._script = script
        self._hooks = dict(hooks or {})
        self._nan_rows = dict(nan_rows or {})
        self._branches = branches or self._unlikely
        self._shadow = np.full(total_blocks * BLOCK, -1, dtype=np.int64)
        self._host: dict[int, npt.NDArray[np.int64]] = {}
        self._rows: dict[int, Sequence[SampleRow]] = {}
        self._last_tokens: Sequence[int] = []
        self.batches: list[Batch] = []

    @property
    def total_blocks(self) -> int:
        return self._total_blocks

    @property
    def host_blocks(self) -> int:
        return self._host_blocks

    @property
    def move_seconds(self) -> float:
        return self._move_seconds

    def submit(self, batch: Batch) -> int:
        ticket = len(self.batches)
        self.batches.append(batch)
        if hook := self._hooks.get(ticket):
            hook(batch)
        return ticket

    def sample(self, ticket: int, rows: Collection[SampleRow]) -> None:
        self._rows[ticket] = list(rows)

    def collect(self, ticket: int) -> Sampled:
        """Compute the step now, in the order of the steps, as a device with one queue would.

        The result of the step before is known by now, whatever the depth of the loop.
        """
        batch, rows = self.batches[ticket], self._rows.pop(ticket)
        self._move_blocks(batch)
        self._shadow[batch.slots] = self._resolve(batch)
        for number, row in zip(batch.sample_rows, rows, strict=True):
            self._look_back(batch, int(number), row)
        result = replace(self._sample(rows), prompt_logprobs=self._score(batch))
        self._last_tokens = result.tokens
        if faulty := self._nan_rows.get(ticket):
            raise RowFault(faulty, "logits are not finite")
        return result

    def _sample(self, rows: Sequence[SampleRow]) -> Sampled:
        """What the script says; a subclass may ask a real sampler instead."""
        tokens = [self._choose(row) for row in rows]
        return Sampled(
            tokens,
            [
                None if row.controls.logprobs is None else _certain(token, row.controls.logprobs)
                for row, token in zip(rows, tokens, strict=True)
            ],
            {i: self._candidates(row) for i, row in enumerate(rows) if row.controls.beams},
        )

    def _score(self, batch: Batch) -> list[list[TokenLogprobs]]:
        """Each token of a prompt is less likely than the one before it: a tenth, in logarithms.

        They are told apart by the token, so that one which is missing, or told twice, is noticed.
        """
        places = iter(batch.logit_rows[len(batch.sample_rows) :].tolist())
        return [
            [
                TokenLogprobs(-(int(batch.positions[place]) + 1) / 10, ((token, 0.0),), rank=1)
                for token, place in zip(row.targets, places, strict=False)
            ]
            for row in batch.scored
        ]

    def _candidates(self, row: SampleRow) -> list[Candidate]:
        """As many as a real backend reports: the best, and the best that do not end the row."""
        count, ending_ids = row.controls.beams, row.controls.ending_ids
        branches = [Candidate(token, score, score) for token, score in self._branches(row)]
        going_on = [candidate for candidate in branches if candidate.token not in ending_ids]
        either = {*branches[:count], *going_on[:count]}
        return [candidate for candidate in branches if candidate in either]

    def _unlikely(self, row: SampleRow) -> list[tuple[int, float]]:
        token = self._choose(row)
        others = [(other, -50.0 - other) for other in range(2 * row.controls.beams)]
        return [(token, 0.0), *(each for each in others if each[0] != token)]

    def _resolve(self, batch: Batch) -> list[int]:
        """Token ids, those still in flight at submission replaced by what was sampled."""
        return [
            token if token >= 0 else self._last_tokens[-1 - token]
            for token in batch.token_ids.tolist()
        ]

    def close(self) -> None:
        """Nothing is held."""

    def _move_blocks(self, batch: Batch) -> None:
        for block, host in batch.offloads:
            assert 0 <= host < self._host_blocks, f"there is no host block {host}"
            self._host[host] = self._block(block).copy()
        for host, block in batch.restores:
            assert host in self._host, f"step {batch.step} restores from empty host block {host}"
            self._block(block)[:] = self._host[host]
        for host, _ in batch.restores:
            self._host.pop(host, None)
        for source, target in batch.copies:
            self._block(target)[:] = self._block(source)

    def _block(self, block: int) -> npt.NDArray[np.int64]:
        return self._shadow[block * BLOCK : (block + 1) * BLOCK]

    def _choose(self, row: SampleRow) -> int:
        for token, bias in row.controls.logit_bias.items():
            if bias >= 100 and (row.mask is None or allows(row.mask, token)):
                return token
        token = self._script(row)
        if row.mask is None or allows(row.mask, token):
            return token
        return first_allowed(row.mask)

    def _look_back(self, batch: Batch, number: int, row: SampleRow) -> None:
        """Assert that the row's block table leads to the row's own tokens."""
        first, last = batch.kv_indptr[number], batch.kv_indptr[number + 1]
        seen = [int(t) for b in batch.kv_indices[first:last] for t in self._block(int(b))]
        known = list(row.tokens[: row.position])  # fewer if the sequence has ended meanwhile
        length = int(batch.kv_lens[number])
        if number in batch.rows.verified:  # what comes behind this sample is a guess
            assert row.position <= length, f"row {number}: {length} KV positions"
        else:
            assert length == row.position, f"row {number}: {length} KV positions for {row.position}"
        assert seen[: len(known)] == known, f"row {number} of step {batch.step} reads foreign KV"


def _certain(token: int, alternatives: int) -> TokenLogprobs:
    """The chosen token, and made-up alternatives that are far less likely."""
    others = tuple((other, -50.0 - other) for other in range(alternatives + 1) if other != token)
    return TokenLogprobs(0.0, ((token, 0.0), *others)[:alternatives])


def stall_until(event_wait: Callable[[], object]) -> Hook:
    """A hook that blocks until `event_wait` returns (for example `threading.Event().wait`)."""

    def hook(batch: Batch) -> None:
        event_wait()

    return hook


def raising(error: Exception) -> Hook:
    """A hook that raises."""

    def hook(batch: Batch) -> None:
        raise error

    return hook
