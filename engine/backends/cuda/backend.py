"""The CUDA backend: steps are enqueued on the device, and waited for when they are collected.

    submit(1) sample(1) submit(2) sample(2) collect(1) submit(3) sample(3) collect(2)       host
        └──▶ moves, forward, draw │ moves, forward, draw │ moves, forward, draw           device

At depth 1 step 2 is enqueued before the tokens of step 1 are known to the host: those in flight are
looked up on the device. Two things wait, and neither for the step before as a whole: planning
attention, for the copy of its last plan; and rows whose controls look back on their text, for the
tokens of the step before, since what they forbid or penalise is worked out on the host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from engine.backends.cuda.attention import Attention
from engine.backends.cuda.device import Device
from engine.backends.cuda.graphs import DecodeGraphs
from engine.backends.cuda.inputs import check, inputs_of
from engine.backends.cuda.model import Decoder
from engine.backends.cuda.pool import KVPool
from engine.backends.cuda.sampler import PendingSample
from engine.backends.cuda.split import split
from engine.batch import Batch
from engine.controls import RowControls, Sampled, SampleRow, ScoredRow
from engine.errors import BackendLost, RowFault


class Sampler(Protocol):
    """Samples on the device: `DeviceSampler`."""

    def sample(
        self,
        logits: Tensor,
        rows: Sequence[SampleRow],
        scored: Sequence[ScoredRow] = (),
        sample_rows: Sequence[int] | None = None,
    ) -> PendingSample:
        """A token for each of `rows`, by their logits; behind these are those of the targets of
        the scored rows. Does not wait. sample_rows: what faults call the rows; None for 0, 1, …"""
        ...


@dataclass(frozen=True, slots=True)
class Computing:
    """A model that is ready to compute: what a step goes through.

    graphs: None to launch every operation of every step.
    """

    device: Device
    decoder: Decoder
    pool: KVPool
    attention: Attention
    sampler: Sampler
    graphs: DecodeGraphs | None = None


class CUDABackend:
    """The Backend protocol on one GPU, at depth 0 and 1.

    The samples of a step must be asked for before the next step is submitted, as the engine does:
    its logits are void then. An exception from a step leaves those before and behind it as they
    are.
    """

    reads_arrays = True

    def __init__(self, parts: Computing) -> None:
        self._parts: Computing | None = parts
        self._device = parts.device
        self._tickets = 0
        self._computed: dict[int, tuple[Batch, Tensor]] = {}
        self._sampled: dict[int, PendingSample] = {}
        self._newest: _Newest | None = None

    @property
    def total_blocks(self) -> int:
        return 0 if self._parts is None else self._parts.pool.blocks

    @property
    def host_blocks(self) -> int:
        return 0 if self._parts is None else self._parts.pool.host_blocks

    @property
    def move_seconds(self) -> float:
        return 0.0 if self._parts is None else self._parts.pool.move_seconds

    def submit(self, batch: Batch) -> int:
        parts = self._open()
        self.check(batch)
        with self._computing():
            parts.pool.move(batch)
            logits = parts.decoder.logits(self._hidden(parts, batch))
        self._tickets += 1
        self._computed[self._tickets] = batch, logits
        return self._tickets

    def check(self, batch: Batch) -> None:
        """Raise what `submit` would for a batch that must not be computed (`inputs.check`)."""
        newest = self._newest
        check(batch, self._open().decoder.config, 0 if newest is None else len(newest.tokens))

    def sample(self, ticket: int, rows: Collection[SampleRow]) -> None:
        batch, logits = self._computed.pop(ticket)
        if len(rows) != len(batch.sample_rows):
            raise ValueError(f"{len(rows)} rows of controls for {len(batch.sample_rows)} rows")
        with self._computing():
            known = self._caught_up(batch, list(rows))
            names = batch.sample_rows.tolist()
            pending = self._open().sampler.sample(logits, known, batch.scored, names)
            wanted = any(looks_back(row.controls) for row in known)
            self._newest = _Newest(self._device, pending.tokens, wanted=wanted)
        self._sampled[ticket] = pending

    def collect(self, ticket: int) -> Sampled:
        with self._computing():
            return self._sampled.pop(ticket).collect()

    @property
    def newest(self) -> Tensor | None:
        """What the step that was sampled last gave, int64 [rows], on the device."""
        return None if self._newest is None else self._newest.tokens

    def assume(self, tokens: Tensor) -> None:
        """Take `tokens` [rows], on the device, as what the last step gave: it was sampled by
        somebody else, who computes the same steps."""
        with self._device.active(), torch.inference_mode():
            self._newest = _Newest(self._device, tokens, wanted=False)

    def forget(self, ticket: int) -> None:
        """Drop the logits of a step that nobody samples here."""
        del self._computed[ticket]

    def close(self) -> None:
        with self._device.active(), suppress(RuntimeError):  # of a device that is lost
            self._device.synchronize()
        with self._device.active():
            self._parts = self._newest = None
            self._computed.clear()
            self._sampled.clear()
            self._device.release_cached()

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Raises BackendLost for what the device does not recover from: after an access to memory
        that is not there, say, CUDA answers every call of the process with that error."""
        with self._device.active(), torch.inference_mode():
            try:
                yield
            except RowFault:
                raise
            except Exception as error:
                try:
                    self._device.synchronize()
                except RuntimeError as lost:
                    raise BackendLost(f"the device computes no more: {lost}") from error
                raise

    def _open(self) -> Computing:
        if self._parts is None:
            raise ValueError("the backend is closed")
        return self._parts

    def _hidden(self, parts: Computing, batch: Batch) -> Tensor:
        """What the head takes, of the batch's `logit_rows`."""
        rows = split(batch)
        newest = self.newest
        if parts.graphs is not None and rows.decodes is not None:
            bucket = parts.graphs.bucket_of(batch, rows.decodes)
            if bucket is not None:
                return parts.graphs.hidden(batch, rows.decodes, bucket, newest)
        inputs = inputs_of(batch, self._device, newest)
        parts.attention.plan(rows)
        return parts.decoder.hidden(inputs, parts.pool, parts.attention)

    def _caught_up(self, batch: Batch, rows: list[SampleRow]) -> list[SampleRow]:
        """The rows, with the newest token for those that look back and had it in flight when they
        were made. Waits for the step before, if there are any."""
        newest = batch.token_ids[batch.logit_rows[: len(rows)]].tolist()
        for i, (row, token) in enumerate(zip(rows, newest, strict=True)):
            if token < 0 and looks_back(row.controls):
                assert self._newest is not None, "a token in flight was looked up in it"
                sampled = self._newest.on_host()
                rows[i] = replace(row, tokens=[*row.tokens, sampled[-1 - token]])
        return rows


def looks_back(controls: RowControls) -> bool:
    """Whether what a row may sample depends on what it sampled before, grammars aside: a sequence
    with a grammar is not planned while a token of it is in flight."""
    return bool(
        controls.bad_words
        or controls.min_tokens
        or controls.beams
        or controls.repetition_penalty != 1
        or controls.frequency_penalty != 0
        or controls.presence_penalty != 0
    )


class _Newest:
    """The tokens [rows] of the step that was sampled last, for the step behind it.

    wanted: whether that step may want them on the host; then they set out at once, before it is
    enqueued, and need not wait for it.
    """

    def __init__(self, device: Device, tokens: Tensor, *, wanted: bool) -> None:
        self.tokens = tokens
        self._device = device
        self._download = device.download(tokens) if wanted else None
        self._known: Sequence[int] | None = None

    def on_host(self) -> Sequence[int]:
        """The tokens as numbers. Waits."""
        if self._known is None:
            download = self._download or self._device.download(self.tokens)
            self._known = download.wait().tolist()
        return self._known
