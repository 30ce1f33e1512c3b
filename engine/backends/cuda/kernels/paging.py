"""Where the KV of rows lies: block tables on the device, and how a kernel reads them.

position p of a row    kv_indices[kv_indptr[row] + p // 16], place p % 16 in it
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from engine.batch import BLOCK

PAGE = tl.constexpr(BLOCK)

TABLES = ["kv_indptr", "kv_indices", "last_page_len"]
"""Arguments that begin anywhere in an upload: a kernel for each way would be compiled otherwise."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Block tables of some rows in CSR form, int32, on the device.

    kv_indptr [rows + 1]; last_page_len [rows]; kv_indices: blocks, of which those that no row has
    are not read.
    """

    kv_indptr: Tensor
    last_page_len: Tensor
    kv_indices: Tensor


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV of a layer, [blocks, 16, kv_heads, head_dim] each in any floating-point type.

    k_scale, v_scale: what the kept numbers are multiplied by. Blocks and slots may have any stride.
    """

    keys: Tensor
    values: Tensor
    k_scale: float = 1.0
    v_scale: float = 1.0

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """From block to block and from slot to slot, of keys and then of values."""
        keys, values = self.keys, self.values
        return keys.stride(0), keys.stride(1), values.stride(0), values.stride(1)


@triton.jit
def extent(kv_indptr, last_page_len, row):
    """Where the blocks of a row begin in kv_indices, and its KV length."""
    first = tl.load(kv_indptr + row)
    pages = tl.load(kv_indptr + row + 1) - first
    length = tl.maximum(pages - 1, 0) * PAGE + tl.load(last_page_len + row)
    return first, tl.where(pages > 0, length, 0)


@triton.jit
def places(blocks, position, inside, block_stride, slot_stride):
    """Offsets of these positions in a pool, of the row whose blocks are there; 64-bit."""
    block = tl.load(blocks + position // PAGE, mask=inside, other=0).to(tl.int64)
    return block * block_stride + (position % PAGE) * slot_stride
