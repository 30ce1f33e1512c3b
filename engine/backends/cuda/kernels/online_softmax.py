"""Attention of a tile of queries, one block of keys and values after the other.

What is kept of the keys so far is the best score of each query, the sum of exp(score - best), and
the sum of values times that: when a better score comes, both sums shrink by exp(old - new)
(https://arxiv.org/abs/1805.02867). All in float32; products in the type of the queries.
"""

import triton
import triton.language as tl

NOTHING = tl.constexpr(float("-inf"))


@triton.jit
def attend(
    queries,
    best,
    total,
    out,
    keys,
    values,
    inside,
    seen,
    scale,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Take in one block: returns best [M], total [M] and out [M, WIDTH].

    queries: [M, WIDTH], zero from HEAD_DIM on. keys, values: where each key begins, pointers [N];
    only those `inside` [N] are read, since what is in other slots may be NaN. seen [M or 1, N]:
    what each query sees; it may be nothing.
    """
    dim = tl.arange(0, WIDTH)
    read = inside[:, None] & (dim < HEAD_DIM)[None, :]
    k = tl.load(keys[:, None] + dim[None, :], mask=read, other=0.0).to(queries.dtype)
    scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(seen, scores, NOTHING)
    new = tl.maximum(best, tl.max(scores, axis=1))
    base = tl.where(new == NOTHING, 0.0, new)  # -inf minus -inf would be NaN
    weights = tl.exp(scores - base[:, None])
    shrunk = tl.exp(best - base)
    v = tl.load(values[:, None] + dim[None, :], mask=read, other=0.0).to(queries.dtype)
    out = tl.dot(weights.to(queries.dtype), v, acc=out * shrunk[:, None], input_precision="ieee")
    return new, total * shrunk + tl.sum(weights, axis=1), out
