"""A batch as decodes and chunks, each with block tables of its own; and padding to a bucket.

    rows of the batch        1 1 1 | 7 1 16         tokens of each
                            decodes  chunks

Decodes are the rows of one token that come before the first row of more. A row of one token behind
that is computed with the chunks: queries are the last positions of any row, so that changes nothing
but speed, and tokens stay where they are. The planner grants decodes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.batch import BLOCK, Batch, Int32


@dataclass(frozen=True, slots=True, eq=False)
class PagedRows:
    """Rows whose K and V lie in blocks, as FlashInfer's wrappers are planned. All arrays are int32
    and contiguous.

    qo_indptr [rows + 1]: each row's tokens, from 0. kv_indptr [rows + 1], from 0, and kv_indices:
    each row's blocks. last_page_len [rows]: tokens in its last block, 1 to 16.
    """

    qo_indptr: Int32
    kv_indptr: Int32
    kv_indices: Int32
    last_page_len: Int32

    @property
    def rows(self) -> int:
        return len(self.last_page_len)

    @property
    def tokens(self) -> int:
        return int(self.qo_indptr[-1])

    @property
    def kv_lens(self) -> Int32:
        """KV length of each row, its own tokens included."""
        blocks = np.diff(self.kv_indptr)
        return ((blocks - 1) * BLOCK + self.last_page_len).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The two parts of a batch; None for one without rows.

    decode_tokens: how many of the batch's tokens, the first ones, are those of `decodes`.
    """

    decodes: PagedRows | None
    chunks: PagedRows | None
    decode_tokens: int

    @property
    def tokens(self) -> int:
        """Of both parts."""
        return self.decode_tokens + (0 if self.chunks is None else self.chunks.tokens)


def split(batch: Batch) -> Split:
    """The decodes at the beginning of a batch, and the rest."""
    longer = np.flatnonzero(np.diff(batch.qo_indptr) != 1)
    decodes = int(longer[0]) if len(longer) else len(batch.last_page_len)
    return Split(
        _rows(batch, slice(0, decodes)),
        _rows(batch, slice(decodes, len(batch.last_page_len))),
        decode_tokens=decodes,
    )


def joined(parts: Split) -> PagedRows | None:
    """Both parts as one, in the order of the batch; None if there are no rows."""
    decodes, chunks = parts.decodes, parts.chunks
    if decodes is None or chunks is None:
        return chunks if decodes is None else decodes
    return PagedRows(
        qo_indptr=np.append(decodes.qo_indptr, chunks.qo_indptr[1:] + decodes.qo_indptr[-1]),
        kv_indptr=np.append(decodes.kv_indptr, chunks.kv_indptr[1:] + decodes.kv_indptr[-1]),
        kv_indices=np.append(decodes.kv_indices, chunks.kv_indices),
        last_page_len=np.append(decodes.last_page_len, chunks.last_page_len),
    )


def padded(decodes: PagedRows, bucket: int, dummy_block: int) -> PagedRows:
    """The decodes and as many rows of one token in the dummy block as make them `bucket`.

    A graph has a number of rows for good. Its padding rows read the first slot of a block that is
    nobody's, and their result is dropped. Raises ValueError for more rows than the bucket has.
    """
    padding = bucket - decodes.rows
    if padding < 0:
        raise ValueError(f"{decodes.rows} decodes do not fit into a bucket of {bucket}")
    more = np.arange(1, padding + 1, dtype=np.int32)
    return PagedRows(
        qo_indptr=np.append(decodes.qo_indptr, decodes.qo_indptr[-1] + more),
        kv_indptr=np.append(decodes.kv_indptr, decodes.kv_indptr[-1] + more),
        kv_indices=np.append(decodes.kv_indices, np.full(padding, dummy_block, np.int32)),
        last_page_len=np.append(decodes.last_page_len, np.ones(padding, np.int32)),
    )


def _rows(batch: Batch, part: slice) -> PagedRows | None:
    """These rows of a batch, with offsets that begin at 0 again."""
    if part.start == part.stop:
        return None
    offsets = slice(part.start, part.stop + 1)
    qo_indptr, kv_indptr = batch.qo_indptr[offsets], batch.kv_indptr[offsets]
    return PagedRows(
        qo_indptr=qo_indptr - qo_indptr[0],
        kv_indptr=kv_indptr - kv_indptr[0],
        kv_indices=batch.kv_indices[kv_indptr[0] : kv_indptr[-1]],
        last_page_len=batch.last_page_len[part],
    )
