// Attention over int8 KV, in integers. Queries and weights become numbers of 16 bits, so that both
// products are exact and no bit depends on how they are put together.
//
//     score of a token    query scale * key scale * sum over dimensions of query number * key
//     weights of a split  exp2(score - largest) * value scale, rounded to MOST_UNSIGNED parts of
//                         their largest
#pragma once
#include "attention.h"
#if defined(__AMX_INT8__)
#include "attention_tiles.h"
#endif

namespace OCTAVO_ISA {

#if !defined(__AMX_INT8__)
#if defined(__AVX512VNNI__)
constexpr int WIDE_ROWS = 6;
#else
constexpr int WIDE_ROWS = 3;
#endif

// Scores of R rows (over the scale of the query) with C blocks.
template <int R, int C>
static OCTAVO_APART void wide_scores(const Pages<Int8>& pages, Tile& t, const Numbers& q, int row,
                               const Span& span, int b) {
  const int8_t* keys[C];
  OCTAVO_UNROLL for (int c = 0; c < C; ++c) keys[c] = pages.block_keys(span.block + b + c);
  Sums<true, R, C> sums;
  for (int d = 0; d < pages.head_dim; d += 4) {
    sums.add(q, row, d, keys);
    OCTAVO_UNROLL for (int c = 0; c < C; ++c) keys[c] += FOUR;
  }
  OCTAVO_UNROLL for (int c = 0; c < C; ++c) {
    const f32x16 scale = pages.block_key_scales(span.block + b + c);
    OCTAVO_UNROLL for (int r = 0; r < R; ++r)
      store(t.scores + (row + r) * SPLIT + (b + c) * BLOCK,
            __builtin_convertvector(sums.total(q, row, r, c), f32x16) * scale);
  }
}

template <int R>
static inline int some_scores(const Pages<Int8>& pages, Tile& t, const Numbers& q, int row,
                              int rows, const Span& span) {
#if defined(__AVX512VNNI__)
  constexpr int C = R > 3 ? 2 : 4;
#else
  constexpr int C = 1;
#endif
  for (; rows - row >= R; row += R) {
    int b = 0;
    for (; b + C <= span.blocks; b += C) wide_scores<R, C>(pages, t, q, row, span, b);
    for (; b < span.blocks; ++b) wide_scores<R, 1>(pages, t, q, row, span, b);
  }
  return row;
}

// Weighted values of R rows, C times sixteen dimensions from `dim`.
template <int R, int C>
static OCTAVO_APART void wide_values(const Pages<Int8>& pages, const Numbers& weights, int row,
                               const float* scales, const Span& span, int dim, float* out) {
  const int n = pages.head_dim;
  Sums<false, R, C> sums;
  for (int b = 0; b < span.blocks; ++b) {
    const int8_t* values[C];
    OCTAVO_UNROLL for (int c = 0; c < C; ++c)
      values[c] = pages.block_values(span.block + b) + (dim + c * LANES) * 4;
    for (int j = 0; j < BLOCK; j += 4) {
      sums.add(weights, row, b * BLOCK + j, values);
      OCTAVO_UNROLL for (int c = 0; c < C; ++c) values[c] += n * 4;
    }
  }
  OCTAVO_UNROLL for (int r = 0; r < R; ++r)
    OCTAVO_UNROLL for (int c = 0; c < C; ++c)
      store(out + (row + r) * n + dim + c * LANES,
            __builtin_convertvector(sums.total(weights, row, r, c), f32x16) * scales[row + r]);
}

template <int R>
static inline int some_values(const Pages<Int8>& pages, const Numbers& weights, int row, int rows,
                              const float* scales, const Span& span, float* out) {
#if defined(__AVX512VNNI__)
  constexpr int C = 4;
#else
  constexpr int C = 1;
#endif
  for (; rows - row >= R; row += R) {
    int dim = 0;
    for (; dim + C * LANES <= pages.head_dim; dim += C * LANES)
      wide_values<R, C>(pages, weights, row, scales, span, dim, out);
    for (; dim < pages.head_dim; dim += LANES)
      wide_values<R, 1>(pages, weights, row, scales, span, dim, out);
  }
  return row;
}

static inline void fetch_values(const Pages<Int8>& pages, const Span& span) {
  for (int b = 0; b < span.blocks; ++b)
    for (int i = 0; i < pages.head_dim * BLOCK; i += 64)
      __builtin_prefetch(pages.block_values(span.block + b) + i);
}

static inline void unit_scores(const Pages<Int8>& pages, Tile& t, const Numbers& q, int rows,
                               const Span& span) {
  int row = 0;
  if constexpr (WIDE_ROWS > 3) row = some_scores<WIDE_ROWS>(pages, t, q, row, rows, span);
  row = some_scores<3>(pages, t, q, row, rows, span);
  row = some_scores<2>(pages, t, q, row, rows, span);
  some_scores<1>(pages, t, q, row, rows, span);
  // A few rows wait for memory most of the time: values come while weights are computed.
  if (2 * rows <= UNIT) fetch_values(pages, span);
}

static inline void unit_values(const Pages<Int8>& pages, Tile& t, int rows, const float* scales,
                               const Span& span, float* out) {
  int row = some_values<3>(pages, t.weights, 0, rows, scales, span, out);
  row = some_values<2>(pages, t.weights, row, rows, scales, span, out);
  some_values<1>(pages, t.weights, row, rows, scales, span, out);
}

static inline void gather_split(const Pages<Int8>&, Tile&, const Span&, int) {}
#endif

// The queries of a tile as numbers. One that is not finite makes its scale so.
static inline void prepare_queries(const Pages<Int8>& pages, Tile& t, int rows) {
  const int n = pages.head_dim;
  for (int row = 0; row < rows; ++row) {
    const float* q = t.q + row * n;
    Magnitude magnitude;
    for (int d = 0; d < n; d += LANES) magnitude.show(load<f32x16>(q + d));
    const float most = magnitude.most();
    const float inverse = most > 1e-30f ? MOST_SIGNED / most : 0.0f;
    t.query_scales[row] = most / MOST_SIGNED;
    Numbers& to = t.queries[row / UNIT];
    if (row % UNIT == 0) to.begin(std::min(UNIT, rows - row));
    float padded[MOST_HEAD_DIM] = {};
    std::memcpy(padded, q, sizeof(float) * n);
    i32x16 all = {};
    for (int d = 0; d < n; d += DEPTH) all += to.put<true>(row % UNIT, d, padded + d, inverse);
    int32_t lanes[LANES], total = 0;
    store(lanes, all);
    for (int i = 0; i < LANES; ++i) total += lanes[i];
    to.sums[row % UNIT] = total;
  }
}

// Lanes of the block that begins at token `start` which lie from lo up to hi.
static inline i32x16 lanes_between(int start, int lo, int hi) {
  const i32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return (lane >= lo - start) & (lane < hi - start);
}

// x in the lanes of a mask, `other` elsewhere.
static inline f32x16 only(f32x16 x, float other, i32x16 mask) {
  return as_float((as_bits(x) & mask) | (as_bits(splat(other)) & ~mask));
}

// One row of a unit: its scores, then its weights, of the tokens that it sees, from lo up to hi.
struct WideRow {
  float* scores;
  int lo;
  int hi;
  float most;   // the largest score
  float total;  // of the weights without the scales of values
  float heavy;  // the largest weight

  int begin() const { return lo / BLOCK; }
  int end() const { return (hi + BLOCK - 1) / BLOCK; }
  bool sees_all(int block) const { return block * BLOCK >= lo && (block + 1) * BLOCK <= hi; }
  i32x16 seen(int block) const { return lanes_between(block * BLOCK, lo, hi); }

  void find_most(float query_scale) {
    f32x16 peak = splat(NOTHING);
    for (int b = begin(); b < end(); ++b) {
      f32x16 s = load<f32x16>(scores + b * BLOCK);
      if (!sees_all(b)) s = only(s, NOTHING, seen(b));
      peak = largest(s, peak);
    }
    most = maximum(peak) * query_scale;
  }

  void weigh(float query_scale, const float* value_scales) {
    f32x16 all = {}, heaviest = {};
    for (int b = begin(); b < end(); ++b) {
      f32x16 e = rough_exp2(load<f32x16>(scores + b * BLOCK) * query_scale - most);
      f32x16 w = e * load<f32x16>(value_scales + b * BLOCK);
      if (!sees_all(b)) {
        e = only(e, 0.0f, seen(b));
        w = only(w, 0.0f, seen(b));
      }
      all += e;
      heaviest = largest(w, heaviest);
      store(scores + b * BLOCK, w);
    }
    total = sum(all);
    heavy = maximum(heaviest);
  }

  // Weights as numbers over the first `blocks` blocks, 0 for tokens that are not seen. Returns their
  // scale.
  float round(Numbers& weights, int row, int blocks) {
    const float inverse = heavy > 1e-30f ? MOST_UNSIGNED / heavy : 0.0f;
    for (int b = 0; b < begin(); ++b) store(scores + b * BLOCK, f32x16{});
    for (int b = end(); b < blocks || b % (DEPTH / BLOCK); ++b)
      store(scores + b * BLOCK, f32x16{});
    for (int j = 0; j < blocks * BLOCK; j += DEPTH) weights.put<false>(row, j, scores + j, inverse);
    return heavy / MOST_UNSIGNED;
  }
};

// Softmax of a unit's rows of scores: `t.weights` and their scales. Row after row in each part, so
// that one need not wait for another; not inlined, so that there is one way of rounding.
static OCTAVO_APART void soften_unit(const Pages<Int8>& pages, Tile& t, int top,
                                                  int rows, const Span& span, Partial* partials,
                                                  float* scales) {
  alignas(64) float value_scales[SPLIT];
  for (int b = 0; b < span.blocks; ++b)
    store(value_scales + b * BLOCK, pages.block_value_scales(span.block + b));
  WideRow all[UNIT];
  for (int r = 0; r < rows; ++r) {
    const int lo = std::min(span.lo(t, top + r), span.blocks * BLOCK);
    all[r] = {t.scores + r * SPLIT, lo, std::max(span.hi(t, top + r), lo), 0, 0, 0};
    all[r].find_most(t.query_scales[top + r]);
  }
  for (int r = 0; r < rows; ++r) all[r].weigh(t.query_scales[top + r], value_scales);
  t.weights.begin(rows);
  for (int r = 0; r < rows; ++r) {
    scales[r] = all[r].round(t.weights, r, span.blocks);
    partials[top + r] = {all[r].hi > all[r].lo ? all[r].most : NOTHING, all[r].total};
  }
}

// Rows `top` to `top + rows` of a tile with one split.
static inline void attend_unit(const Pages<Int8>& pages, Tile& t, int top, int rows,
                               const Span& span, Partial* partials) {
  float scales[UNIT];
  unit_scores(pages, t, t.queries[top / UNIT], rows, span);
  soften_unit(pages, t, top, rows, span, partials, scales);
  unit_values(pages, t, rows, scales, span, t.values + top * pages.head_dim);
}

}  // namespace OCTAVO_ISA
