// Products in tile registers (AMX): sixteen rows times sixteen outputs over 64 inputs at once.
//
//     rows     [16][64]       int8, as they are
//     panel    [16][16][4]    uint8: sixteen lines of a panel of weights, as they are
//     sums     [16][16]       int32
//
// Two tiles of rows times two panels stay in four of the eight tile registers over all inputs.
#pragma once
#include <algorithm>

#include "abi.h"
#include "vector.h"

#if defined(__AMX_INT8__)
#include <immintrin.h>
#endif

namespace OCTAVO_ISA {

constexpr int TILE = 16;        // rows of a tile, and sums of a row
constexpr int TILE_BYTES = 64;  // of a row of a tile

// Rows of activations, quantised: values [rows, stride], scales [rows], sums [rows] of the values.
struct Quantised {
  int8_t* values;
  float* scales;
  int32_t* sums;
  int64_t stride;
};

// While it lives, this thread's tile registers hold whole tiles; nothing where there are none.
class TileRegisters {
 public:
  TileRegisters() {
#if defined(__AMX_INT8__)
    struct alignas(64) {
      uint8_t palette = 1, start = 0, unused[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = TILE_BYTES, config.rows[tile] = TILE;
    _tile_loadconfig(&config);
#endif
  }
  ~TileRegisters() {
#if defined(__AMX_INT8__)
    _tile_release();
#endif
  }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

#if defined(__AMX_INT8__)
constexpr int LEAST_TILE_ROWS = 3;  // fewer are quicker in vector registers

// sums[r][v] of R tiles of rows from `x` with V panels (R, V: 1 or 2). ahead: the next panels
// are fetched meanwhile.
template <int R, int V>
static inline void tile_block(const uint8_t* weights, int64_t panel, const int8_t* x,
                              int64_t stride, int inputs, bool ahead,
                              int32_t (&sums)[R * TILE][V][LANES]) {
  _tile_zero(0);
  if constexpr (V > 1) _tile_zero(1);
  if constexpr (R > 1) _tile_zero(2);
  if constexpr (R > 1 && V > 1) _tile_zero(3);
  for (int k = 0; k < inputs; k += TILE_BYTES) {
    const uint8_t* w = weights + (int64_t)k * LANES;
    _tile_loadd(6, w, TILE_BYTES);
    _tile_loadd(4, x + k, stride);
    _tile_dpbsud(0, 4, 6);
    if constexpr (V > 1) {
      _tile_loadd(7, w + panel, TILE_BYTES);
      _tile_dpbsud(1, 4, 7);
    }
    if constexpr (R > 1) {
      _tile_loadd(5, x + TILE * stride + k, stride);
      _tile_dpbsud(2, 5, 6);
    }
    if constexpr (R > 1 && V > 1) _tile_dpbsud(3, 5, 7);
    if (ahead)
      for (int v = V; v < 2 * V; ++v)
        for (int i = 0; i < TILE * TILE_BYTES; i += 64)
          _mm_prefetch((const char*)w + v * panel + i, _MM_HINT_T1);
  }
  constexpr int BETWEEN = sizeof sums[0];
  _tile_stored(0, sums[0][0], BETWEEN);
  if constexpr (V > 1) _tile_stored(1, sums[0][1], BETWEEN);
  if constexpr (R > 1) _tile_stored(2, sums[TILE][0], BETWEEN);
  if constexpr (R > 1 && V > 1) _tile_stored(3, sums[TILE][1], BETWEEN);
}

// Rows `first` to `last` with V panels.
template <int V, class Take>
static inline void tile_rows(const OctavoMatrix& m, const Quantised& x, int first, int last,
                             int panel, bool ahead, const Take& take) {
  const int64_t panel_bytes = (int64_t)m.inputs * LANES;
  const auto block = [&](auto& sums, int row) {
    constexpr int R = sizeof sums / sizeof sums[0] / TILE;
    tile_block<R, V>(m.weights + panel * panel_bytes, panel_bytes, x.values + row * x.stride,
                     x.stride, m.inputs, ahead && row == first, sums);
    const int rows = std::min(R * TILE, last - row);
    for (int r = 0; r < rows; ++r) {
      i32x16 acc[V];
      OCTAVO_UNROLL for (int v = 0; v < V; ++v) acc[v] = load<i32x16>(sums[r][v]);
      take(row + r, panel, acc);
    }
  };
  int row = first;
  for (; last - row > TILE; row += 2 * TILE) {
    alignas(64) int32_t sums[2 * TILE][V][LANES];
    block(sums, row);
  }
  if (row < last) {
    alignas(64) int32_t sums[TILE][V][LANES];
    block(sums, row);
  }
}

// As `sums` in product.h, for a matrix whose inputs fill tiles.
template <class Take>
static inline void tile_sums(const OctavoMatrix& m, const Quantised& x, int first, int last,
                             int panel, int panels, const Take& take) {
  asm volatile("" ::: "memory");  // the intrinsics do not tell the compiler that they read memory
  for (; panels >= 2; panel += 2, panels -= 2)
    tile_rows<2>(m, x, first, last, panel, panel + 4 <= m.outputs / LANES, take);
  if (panels) tile_rows<1>(m, x, first, last, panel, false, take);
}
#endif

}  // namespace OCTAVO_ISA
