// Paged attention. A query's result is the same to the last bit however it is computed: alone or
// in a tile with others, by one thread or several.
//
//     tokens of a sequence   |---- split 0 ----|---- split 1 ----|-- split 2 --|
//                             256 tokens         256 tokens
//
// Splits begin at multiples of SPLIT, whatever the batch. Within a split scores are summed over the
// dimensions in order, weights over the tokens in order; splits are merged from the first to the
// last. Tokens that a query does not see weigh exactly 0 in a tile that computes them for others.
// What lies beyond the last token of a sequence is never read.
#pragma once
#include <algorithm>

#include "abi.h"
#include "vector.h"

namespace OCTAVO_ISA {

constexpr int BLOCK = 16;
constexpr int SPLIT = 256;
constexpr int SPLIT_BLOCKS = SPLIT / BLOCK;
constexpr int MOST_TILE_ROWS = 24;

#if defined(__AVX512F__)
constexpr int SCORE_ROWS = 12, VALUE_ROWS = 6;
#else
constexpr int SCORE_ROWS = 2, VALUE_ROWS = 1;
#endif

constexpr float NOTHING = -3.0e38f;

// One layer's pool of one KV head, seen through a sequence's block table.
template <class KV>
struct Pages {
  const typename KV::Element* keys;    // of this layer and head; block b at b * block_stride
  const typename KV::Element* values;
  const float* key_scales;             // block b at b * scale_stride
  const float* value_scales;
  int64_t block_stride;
  int64_t scale_stride;
  const int32_t* table;
  int head_dim;
};

// scores[r][0 .. 16 * B) of R rows with B blocks; rows of q are head_dim apart.
template <class KV, int R, int B>
static inline void score_tile(const Pages<KV>& pages, const float* q, int first_block,
                              float* scores) {
  const typename KV::Element* keys[B];
  OCTAVO_UNROLL for (int b = 0; b < B; ++b)
    keys[b] = pages.keys + pages.table[first_block + b] * pages.block_stride;
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
  OCTAVO_UNROLL for (int b = 0; b < B; ++b) {
    f32x16 scale = {};
    if (KV::scaled)
      scale = load<f32x16>(pages.key_scales + pages.table[first_block + b] * pages.scale_stride);
    OCTAVO_UNROLL for (int r = 0; r < R; ++r) {
      f32x16 s = KV::scaled ? acc[r][b] * scale : acc[r][b];
      store(scores + r * SPLIT + b * BLOCK, s);
    }
  }
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
    const int block = pages.table[first_block + start / BLOCK];
    const typename KV::Element* values = pages.values + block * pages.block_stride + dim;
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

// What a row has seen so far: the largest score, the sum of weights, and for each dimension the
// weighted sum of values.
struct Partial {
  float most;
  float total;
};

// Take split number two of a row into number one.
static inline void merge(Partial* a, float* values_a, const Partial& b, const float* values_b,
                         int n) {
  const float most = std::max(a->most, b.most);
  f32x16 shift = {};
  shift[0] = a->most - most;
  shift[1] = b.most - most;
  const f32x16 factors = exp2(shift);
  const float x = factors[0], y = factors[1];
  for (int d = 0; d < n; d += LANES)
    store(values_a + d, load<f32x16>(values_a + d) * x + load<f32x16>(values_b + d) * y);
  a->total = a->total * x + b.total * y;
  a->most = most;
}

// A few queries of one sequence, for one KV head: `rows` rows, each a query and a head.
struct Tile {
  float q[MOST_TILE_ROWS * 256];
  float scores[MOST_TILE_ROWS * SPLIT];
  float values[MOST_TILE_ROWS * 256];
  int lo[MOST_TILE_ROWS];  // the tokens that the row sees, from lo up to hi
  int hi[MOST_TILE_ROWS];
};

template <class KV, int R>
static inline int some_scores(const Pages<KV>& pages, Tile& t, int row, int rows, int block,
                              int blocks) {
  for (; rows - row >= R; row += R)
    score_rows<KV, R>(pages, t.q + row * pages.head_dim, block, blocks, t.scores + row * SPLIT);
  return row;
}

template <class KV, int R>
static inline int some_values(const Pages<KV>& pages, Tile& t, int row, int rows, int block,
                              int from, int tokens) {
  for (; rows - row >= R; row += R)
    value_rows<KV, R>(pages, t.scores + row * SPLIT, block, from, tokens,
                      t.values + row * pages.head_dim);
  return row;
}

// One split of a tile. partials[r].most is NOTHING for rows that see none of it.
template <class KV>
static inline void attend_split(const Pages<KV>& pages, Tile& t, int rows, int split,
                                Partial* partials) {
  const int begin = split * SPLIT;
  int first = SPLIT, last = 0;
  for (int r = 0; r < rows; ++r) {
    first = std::min(first, std::max(t.lo[r] - begin, 0));
    last = std::max(last, std::min(t.hi[r] - begin, SPLIT));
  }
  // A tile whose window begins inside the split leaves the blocks before it alone.
  const int skipped = first / BLOCK;
  const int block = begin / BLOCK + skipped;
  const int blocks = (last + BLOCK - 1) / BLOCK - skipped;
  const int offset = skipped * BLOCK;
  int row = 0;
  row = some_scores<KV, SCORE_ROWS>(pages, t, row, rows, block, blocks);
  if constexpr (SCORE_ROWS > 6) row = some_scores<KV, 6>(pages, t, row, rows, block, blocks);
  if constexpr (SCORE_ROWS > 3) row = some_scores<KV, 3>(pages, t, row, rows, block, blocks);
  if constexpr (SCORE_ROWS > 2) row = some_scores<KV, 2>(pages, t, row, rows, block, blocks);
  some_scores<KV, 1>(pages, t, row, rows, block, blocks);
  for (int r = 0; r < rows; ++r) {
    const int lo = std::max(t.lo[r] - begin - offset, 0);
    const int hi = std::min(t.hi[r] - begin - offset, SPLIT - offset);
    float* scores = t.scores + r * SPLIT;
    if (hi <= lo) {
      partials[r].most = NOTHING;
      for (int b = 0; b < blocks; ++b) store(scores + b * BLOCK, f32x16{});
      continue;
    }
    partials[r].most = soften(scores, lo, hi, blocks, &partials[r].total);
    if (KV::scaled)
      for (int b = 0; b < blocks; ++b) {
        const float* scale = pages.value_scales + pages.table[block + b] * pages.scale_stride;
        f32x16 weighted = load<f32x16>(scores + b * BLOCK) * load<f32x16>(scale);
        // Scales beyond the last token are not there; their weights are 0 and stay so.
        f32x16 weight = load<f32x16>(scores + b * BLOCK);
        store(scores + b * BLOCK, weight > 0.0f ? weighted : splat(0.0f));
      }
  }
  const int from = first - offset, tokens = last - offset;
  row = 0;
  row = some_values<KV, VALUE_ROWS>(pages, t, row, rows, block, from, tokens);
  if constexpr (VALUE_ROWS > 3) row = some_values<KV, 3>(pages, t, row, rows, block, from, tokens);
  if constexpr (VALUE_ROWS > 2) row = some_values<KV, 2>(pages, t, row, rows, block, from, tokens);
  some_values<KV, 1>(pages, t, row, rows, block, from, tokens);
}

}  // namespace OCTAVO_ISA
