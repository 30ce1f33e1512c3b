// The products of int8 attention in tile registers (AMX).
//
// High and low bytes of numbers are two products. Few rows have both in one tile: high bytes of all
// rows, then low ones.
#pragma once
#include "attention.h"
#include "tiles.h"

namespace OCTAVO_ISA {

constexpr int KEY_TILE = TILE * TILE_BYTES;

// What was written is in memory before tiles are loaded: the intrinsics do not say that they read.
static inline void before_tiles() { asm volatile("" ::: "memory"); }

// Sums of tiles, as they come.
struct TileSums {
  alignas(64) int32_t of[4][UNIT * LANES];

  // A row's sum in a tile of both bytes, or in two tiles.
  i32x16 both(int tile, int row, int rows) const {
    return (load<i32x16>(of[tile] + row * LANES) << 8) + load<i32x16>(of[tile] + (rows + row) * LANES);
  }
  i32x16 pair(int tile, int row) const {
    return (load<i32x16>(of[tile] + row * LANES) << 8) + load<i32x16>(of[tile + 1] + row * LANES);
  }
  void take() {
    _tile_stored(0, of[0], TILE_BYTES);
    _tile_stored(1, of[1], TILE_BYTES);
    _tile_stored(2, of[2], TILE_BYTES);
    _tile_stored(3, of[3], TILE_BYTES);
  }
};

static inline void clear_tiles() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// The keys of a block, `deep` tiles one after the other.
static inline const int8_t* key_tiles(const Pages<Int8>& pages, int index, int deep, int8_t* room) {
  const int8_t* keys = pages.block_keys(index);
  const int bytes = pages.head_dim * BLOCK;
  if (bytes == deep * KEY_TILE) return keys;
  std::memcpy(room, keys, bytes);
  return room;
}

static inline void unit_scores(const Pages<Int8>& pages, Tile& t, const Numbers& q, int rows,
                               const Span& span) {
  const int deep = (pages.head_dim + DEPTH - 1) / DEPTH;
  const bool together = 2 * rows <= UNIT;
  const int wide = together ? 4 : 2;  // blocks at once
  TileSums sums;
  before_tiles();
  for (int b = 0; b < span.blocks; b += wide) {
    const int8_t* keys[4];
    for (int i = 0; i < wide; ++i)
      keys[i] = key_tiles(pages, span.block + std::min(b + i, span.blocks - 1), deep,
                          t.gathered_keys + i * deep * KEY_TILE);
    before_tiles();
    clear_tiles();
    for (int d = 0; d < deep; ++d) {
      const uint8_t* from = q.bytes + d * DEPTH;
      if (d > 0 || deep > 1 || b == 0) {
        _tile_loadd(4, from, WIDE_LENGTH);
        if (!together) _tile_loadd(5, from + q.low, WIDE_LENGTH);
      }
      _tile_loadd(6, keys[0] + d * KEY_TILE, TILE_BYTES);
      _tile_loadd(7, keys[1] + d * KEY_TILE, TILE_BYTES);
      if (together) {
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(6, keys[2] + d * KEY_TILE, TILE_BYTES);
        _tile_dpbssd(1, 4, 7);
        _tile_loadd(7, keys[3] + d * KEY_TILE, TILE_BYTES);
        _tile_dpbssd(2, 4, 6);
        _tile_dpbssd(3, 4, 7);
      } else {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 5, 6);
        _tile_dpbssd(2, 4, 7);
        _tile_dpbssd(3, 5, 7);
      }
    }
    sums.take();
    for (int i = 0; i < wide && b + i < span.blocks; ++i) {
      const f32x16 scale = pages.block_key_scales(span.block + b + i);
      for (int r = 0; r < rows; ++r) {
        const i32x16 sum = together ? sums.both(i, r, rows) : sums.pair(2 * i, r);
        store(t.scores + r * SPLIT + (b + i) * BLOCK,
              __builtin_convertvector(sum, f32x16) * scale);
      }
    }
  }
}

// The values of a split: tiles are 64 tokens deep, so blocks have to lie one after the other.
static inline void gather_split(const Pages<Int8>& pages, Tile& t, const Span& span, int split) {
  const int n = pages.head_dim;
  for (int b = span.block; b < span.block + span.blocks; ++b)
    std::memcpy(t.gathered + (b - split * SPLIT_BLOCKS) * BLOCK * n, pages.block_values(b),
                BLOCK * n);
}

static inline void unit_values(const Pages<Int8>& pages, Tile& t, int rows, const float* scales,
                               const Span& span, float* out) {
  const int n = pages.head_dim;
  const bool together = 2 * rows <= UNIT;
  const int wide = together ? 4 : 2;  // sixteen dimensions each
  const int8_t* values = t.gathered + span.block % SPLIT_BLOCKS * BLOCK * n;
  TileSums sums;
  before_tiles();
  const int stride = 4 * n, most = n / LANES - 1;
  for (int c = 0; c <= most; c += wide) {
    clear_tiles();
    for (int token = 0; token < span.blocks * BLOCK; token += DEPTH) {
      const uint8_t* from = t.weights.bytes + token;
      const int8_t* tile = values + token * n;
      _tile_loadd(4, from, WIDE_LENGTH);
      _tile_loadd(6, tile + c * FOUR, stride);
      _tile_loadd(7, tile + std::min(c + 1, most) * FOUR, stride);
      if (together) {
        _tile_dpbusd(0, 4, 6);
        _tile_loadd(6, tile + std::min(c + 2, most) * FOUR, stride);
        _tile_dpbusd(1, 4, 7);
        _tile_loadd(7, tile + std::min(c + 3, most) * FOUR, stride);
        _tile_dpbusd(2, 4, 6);
        _tile_dpbusd(3, 4, 7);
      } else {
        _tile_loadd(5, from + t.weights.low, WIDE_LENGTH);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 5, 6);
        _tile_dpbusd(2, 4, 7);
        _tile_dpbusd(3, 5, 7);
      }
    }
    sums.take();
    for (int i = 0; i < wide && c + i <= most; ++i)
      for (int r = 0; r < rows; ++r) {
        const i32x16 sum = together ? sums.both(i, r, rows) : sums.pair(2 * i, r);
        store(out + r * n + (c + i) * LANES,
              __builtin_convertvector(sum, f32x16) * scales[r]);
      }
  }
}

}  // namespace OCTAVO_ISA
