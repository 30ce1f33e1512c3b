// Paged attention. A query's result is the same to the last bit however it is computed: alone or
// in a tile with others, by one thread or several.
//
//     tokens of a sequence   |---- split 0 ----|---- split 1 ----|-- split 2 --|
//                             256 tokens         256 tokens
//
// Splits begin at multiples of SPLIT, whatever the batch; they are merged from the first to the
// last. Within a split the sums of floats are in the order of dimensions and of tokens, and those of
// int8 exact. Tokens that a query does not see weigh exactly 0 in a tile that computes them for
// others. Floats beyond the last token of a sequence are never read.
#pragma once
#include <algorithm>

#include "abi.h"
#include "vector.h"
#include "wide.h"

namespace OCTAVO_ISA {

constexpr int BLOCK = 16;
constexpr int SPLIT = 256;
constexpr int SPLIT_BLOCKS = SPLIT / BLOCK;
constexpr int MOST_TILE_ROWS = 48;
constexpr int MOST_HEAD_DIM = 256;
constexpr int MOST_UNIT = 16;

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

  const typename KV::Element* block_keys(int index) const {
    return keys + table[index] * block_stride;
  }
  const typename KV::Element* block_values(int index) const {
    return values + table[index] * block_stride;
  }
  f32x16 block_key_scales(int index) const {
    return load<f32x16>(key_scales + table[index] * scale_stride);
  }
  f32x16 block_value_scales(int index) const {
    return load<f32x16>(value_scales + table[index] * scale_stride);
  }
};

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

// A few queries of one sequence, for one KV head: rows, each a query and a head; and memory for
// their sums with one split. They are computed a unit of rows at a time.
struct Tile {
  int lo[MOST_TILE_ROWS];  // the tokens that the row sees, from lo up to hi
  int hi[MOST_TILE_ROWS];
  alignas(64) float q[MOST_TILE_ROWS * MOST_HEAD_DIM];
  alignas(64) float values[MOST_TILE_ROWS * MOST_HEAD_DIM];
  alignas(64) float scores[MOST_UNIT * SPLIT];
  // For int8: queries as numbers times their scales, weights too.
  Numbers queries[(MOST_TILE_ROWS + UNIT - 1) / UNIT];
  float query_scales[MOST_TILE_ROWS];
  Numbers weights;
  // For AMX: a split's blocks of values one after the other, and blocks of keys, padded.
  alignas(64) int8_t gathered[(SPLIT + 64) * MOST_HEAD_DIM];
  alignas(64) int8_t gathered_keys[4 * BLOCK * MOST_HEAD_DIM];
};

// What some rows of a tile see of a split. A window may begin inside it: blocks before are left
// alone.
struct Span {
  int begin;    // the first token of the first block
  int block;    // index of that block in the sequence's table
  int blocks;
  int from;     // tokens that any of the rows sees, counted from `begin`
  int tokens;

  Span(const Tile& t, int row, int rows, int split) {
    const int start = split * SPLIT;
    int first = SPLIT, last = 0;
    for (int r = row; r < row + rows; ++r) {
      first = std::min(first, std::max(t.lo[r] - start, 0));
      last = std::max(last, std::min(t.hi[r] - start, SPLIT));
    }
    const int skipped = last > first ? first / BLOCK : 0;
    begin = start + skipped * BLOCK;
    block = begin / BLOCK;
    blocks = last > first ? (last + BLOCK - 1) / BLOCK - skipped : 0;
    from = first - skipped * BLOCK;
    tokens = last - skipped * BLOCK;
  }
  int lo(const Tile& t, int row) const { return std::max(t.lo[row] - begin, 0); }
  int hi(const Tile& t, int row) const { return std::min(t.hi[row] - begin, blocks * BLOCK); }
};

// One split of a tile. partials[r].most is NOTHING for rows that see none of it.
template <class KV>
static inline void attend_split(const Pages<KV>& pages, Tile& t, int rows, int split,
                                Partial* partials) {
  gather_split(pages, t, Span(t, 0, rows, split), split);
  for (int top = 0; top < rows; top += KV::unit) {
    const int some = std::min(KV::unit, rows - top);
    const Span span(t, top, some, split);
    if (span.blocks) attend_unit(pages, t, top, some, span, partials);
    else for (int r = top; r < top + some; ++r) partials[r].most = NOTHING;
  }
}

}  // namespace OCTAVO_ISA
