// Attention over KV that is kept as floats: a tile of registers over queries, sums in order.
#pragma once
#include "attention.h"

namespace OCTAVO_ISA {

#if defined(__AVX512F__)
constexpr int SCORE_ROWS = 12, VALUE_ROWS = 6;
#else
constexpr int SCORE_ROWS = 2, VALUE_ROWS = 1;
#endif

// scores[r][0 .. 16 * B) of R rows with B blocks; rows of q are head_dim apart.
template <class KV, int R, int B>
static inline void score_tile(const Pages<KV>& pages, const float* q, int first_block,
                              float* scores) {
  const typename KV::Element* keys[B];
  OCTAVO_UNROLL for (int b = 0; b < B; ++b) keys[b] = pages.block_keys(first_block + b);
  const int n = pages.head_dim;
  f32x16 acc[R][B] = {};
  for (int d = 0; d < n; ++d) {
    f32x16 k[B];
    OCTAVO_UNROLL for (int b = 0; b < B; ++b) k[b] = KV::read(keys[b] + d * BLOCK);
    OCTAVO_UNROLL for (int r = 0; r < R; ++r) {
      const float x = q[r * n + d];
      OCTAVO_UNROLL for (int b = 0; b < B; ++b) acc[r][b] += x * k[b];
    }
  }
  OCTAVO_UNROLL for (int r = 0; r < R; ++r)
    OCTAVO_UNROLL for (int b = 0; b < B; ++b) store(scores + r * SPLIT + b * BLOCK, acc[r][b]);
}

template <class KV, int R>
static inline void score_rows(const Pages<KV>& pages, const float* q, int first_block, int blocks,
                              float* scores) {
  constexpr int B = R > 3 ? 2 : 4;
  int b = 0;
  for (; b + B <= blocks; b += B)
    score_tile<KV, R, B>(pages, q, first_block + b, scores + b * BLOCK);
  for (; b < blocks; ++b) score_tile<KV, R, 1>(pages, q, first_block + b, scores + b * BLOCK);
}

// out[r][0 .. 16 * V) of R rows: the sum over tokens `from` to `tokens` of weight times value.
template <class KV, int R, int V>
static inline void value_tile(const Pages<KV>& pages, const float* weights, int first_block,
                              int from, int tokens, int dim, float* out) {
  const int n = pages.head_dim;
  f32x16 acc[R][V] = {};
  for (int start = 0; start < tokens; start += BLOCK) {
    const typename KV::Element* values = pages.block_values(first_block + start / BLOCK) + dim;
    const int count = std::min(BLOCK, tokens - start);
    for (int j = std::max(from - start, 0); j < count; ++j) {
      f32x16 v[V];
      OCTAVO_UNROLL for (int i = 0; i < V; ++i) v[i] = KV::read(values + j * n + i * LANES);
      OCTAVO_UNROLL for (int r = 0; r < R; ++r) {
        const float w = weights[r * SPLIT + start + j];
        OCTAVO_UNROLL for (int i = 0; i < V; ++i) acc[r][i] += w * v[i];
      }
    }
  }
  OCTAVO_UNROLL for (int r = 0; r < R; ++r)
    OCTAVO_UNROLL for (int i = 0; i < V; ++i) store(out + r * n + dim + i * LANES, acc[r][i]);
}

template <class KV, int R>
static inline void value_rows(const Pages<KV>& pages, const float* weights, int first_block,
                              int from, int tokens, float* out) {
  int dim = 0;
  for (; dim + 4 * LANES <= pages.head_dim; dim += 4 * LANES)
    value_tile<KV, R, 4>(pages, weights, first_block, from, tokens, dim, out);
  for (; dim < pages.head_dim; dim += LANES)
    value_tile<KV, R, 1>(pages, weights, first_block, from, tokens, dim, out);
}

// Softmax of one row of scores over tokens `lo` to `hi` of the split; the others weigh 0. Returns
// the largest score; `total` is the sum of the weights. blocks: how many the tile computes.
static inline float soften(float* scores, int lo, int hi, int blocks, float* total) {
  for (int j = 0; j < lo; ++j) scores[j] = NOTHING;
  for (int j = hi; j < blocks * BLOCK; ++j) scores[j] = NOTHING;
  f32x16 peak = splat(NOTHING);
  for (int b = 0; b < blocks; ++b) peak = largest(peak, load<f32x16>(scores + b * BLOCK));
  const float most = maximum(peak);
  f32x16 all = {};
  for (int b = 0; b < blocks; ++b) {
    f32x16 e = exp2(load<f32x16>(scores + b * BLOCK) - most);
    store(scores + b * BLOCK, e);
    all += e;
  }
  *total = sum(all);
  return most;
}

template <class KV, int R>
static inline int some_scores(const Pages<KV>& pages, Tile& t, int top, int done, int rows,
                              const Span& span) {
  for (; rows - done >= R; done += R)
    score_rows<KV, R>(pages, t.q + (top + done) * pages.head_dim, span.block, span.blocks,
                      t.scores + done * SPLIT);
  return done;
}

template <class KV, int R>
static inline int some_values(const Pages<KV>& pages, Tile& t, int top, int done, int rows,
                              const Span& span) {
  for (; rows - done >= R; done += R)
    value_rows<KV, R>(pages, t.scores + done * SPLIT, span.block, span.from, span.tokens,
                      t.values + (top + done) * pages.head_dim);
  return done;
}

// Queries and blocks are used as they are.
template <class KV>
static inline void prepare_queries(const Pages<KV>&, Tile&, int) {}

template <class KV>
static inline void gather_split(const Pages<KV>&, Tile&, const Span&, int) {}

// Rows `top` to `top + rows` of a tile with one split.
template <class KV>
static void attend_unit(const Pages<KV>& pages, Tile& t, int top, int rows, const Span& span,
                        Partial* partials) {
  int done = 0;
  done = some_scores<KV, SCORE_ROWS>(pages, t, top, done, rows, span);
  if constexpr (SCORE_ROWS > 6) done = some_scores<KV, 6>(pages, t, top, done, rows, span);
  if constexpr (SCORE_ROWS > 3) done = some_scores<KV, 3>(pages, t, top, done, rows, span);
  if constexpr (SCORE_ROWS > 2) done = some_scores<KV, 2>(pages, t, top, done, rows, span);
  some_scores<KV, 1>(pages, t, top, done, rows, span);
  for (int r = 0; r < rows; ++r) {
    const int lo = span.lo(t, top + r), hi = span.hi(t, top + r);
    float* scores = t.scores + r * SPLIT;
    partials[top + r].most = NOTHING;
    if (hi > lo)
      partials[top + r].most = soften(scores, lo, hi, span.blocks, &partials[top + r].total);
    else
      for (int b = 0; b < span.blocks; ++b) store(scores + b * BLOCK, f32x16{});
  }
  done = 0;
  done = some_values<KV, VALUE_ROWS>(pages, t, top, done, rows, span);
  if constexpr (VALUE_ROWS > 3) done = some_values<KV, 3>(pages, t, top, done, rows, span);
  if constexpr (VALUE_ROWS > 2) done = some_values<KV, 2>(pages, t, top, done, rows, span);
  some_values<KV, 1>(pages, t, top, done, rows, span);
}

}  // namespace OCTAVO_ISA
