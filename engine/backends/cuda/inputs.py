"""The tokens of a step on the device, those in flight too.

token id     5   9  -1  -3        as the batch says
newest          [7, 2, 8]         what the step before sampled, on the device
resolved     5   9   7   8        nobody on the host knows the last two yet
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.backends.cuda.device import Device
from engine.batch import Batch
from engine.models.config import ModelConfig
from engine.models.decoder import Inputs


def check(batch: Batch, config: ModelConfig, sampled: int) -> None:
    """Raise IndexError for a token or a position that is not there, ValueError for tokens in flight
    where no step sampled any.

    sampled: how many the step before did. A GPU that looks behind the end of a table computes
    nothing more in this process, so it is not left to find out.
    """
    if not len(batch.token_ids):
        return
    least, most = int(batch.token_ids.min()), int(batch.token_ids.max())
    if most >= config.vocab:
        raise IndexError(f"token {most} is not within the vocabulary of {config.vocab}")
    if least < 0 and not sampled:
        raise ValueError("tokens in flight, and no step before that sampled any")
    if -least > sampled:
        raise IndexError(f"sample row {-1 - least} is in flight, of {sampled}")
    last = int(batch.positions.max())
    if last >= config.context_length:
        raise IndexError(f"position {last} is not within the context of {config.context_length}")


def inputs_of(batch: Batch, device: Device, newest: Tensor | None) -> Inputs:
    """The inputs of a step, in one copy to the device.

    newest: the tokens [rows] that the step before sampled, on the device; None for none.
    """
    packed = np.concatenate(
        [batch.token_ids, batch.positions, batch.slots, batch.logit_rows], dtype=np.int64
    )
    count = len(batch.token_ids)
    ids, positions, slots, logit_rows = device.upload(packed).split(
        [count, count, count, len(batch.logit_rows)]
    )
    return Inputs(resolved(ids, batch, newest), positions, slots, logit_rows)


def resolved(ids: Tensor, batch: Batch, newest: Tensor | None) -> Tensor:
    """The token ids of a batch [n, or more], with -1 - j replaced by number j of `newest`."""
    if not (batch.token_ids < 0).any():
        return ids
    assert newest is not None, "`check` has seen it"
    sampled = newest.index_select(0, (-1 - ids).clamp_(min=0))
    return torch.where(ids < 0, sampled, ids)
