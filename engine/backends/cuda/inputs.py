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
from engine.models.decoder import Inputs


def inputs_of(batch: Batch, device: Device, newest: Tensor | None) -> Inputs:
    """The inputs of a step, in one copy to the device.

    newest: the tokens [rows] that the step before sampled, on the device. Raises ValueError if the
    batch has tokens in flight and there are none.
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
    if newest is None or not len(newest):
        raise ValueError("tokens in flight, and no step before that sampled any")
    sampled = newest.index_select(0, (-1 - ids).clamp_(min=0))
    return torch.where(ids < 0, sampled, ids)
