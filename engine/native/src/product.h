// Products of int8 rows with int8 weights, exact in int32.
//
//     x [rows, inputs] int8, one scale a row      w [outputs, inputs] as w + 128, one scale an output
//     sum (w + 128) x = sum w x + 128 sum x        the last term is known from quantising
//
// A tile of rows times V panels of 16 outputs stays in registers over all inputs, or, where there
// are more rows and the processor has them, in tile registers (tiles.h). Integer sums do not depend
// on the tile, so neither do results.
#pragma once
#include "abi.h"
#include "tiles.h"
#include <algorithm>
#include "vector.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace OCTAVO_ISA {

#if defined(__AVX512VNNI__)
constexpr int TILE_ROWS = 6;
constexpr int TILE_PANELS = 4;
#elif defined(__AVX2__)
constexpr int TILE_ROWS = 2;
constexpr int TILE_PANELS = 2;
#else
constexpr int TILE_ROWS = 2;
constexpr int TILE_PANELS = 2;
#endif

#if defined(__AVX512VNNI__)
// sum += four products of each lane, in place: the intrinsic makes GCC 12 copy its registers.
static inline void accumulate(__m512i& sum, __m512i w, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}
#endif

// What a tile asks memory for while it computes, a part a tile: the panels after its own. Hardware
// does not look that far, and a step reads each weight once.
struct Ahead {
  const uint8_t* from;
  int64_t step = 0;  // bytes for each four inputs
  int64_t fours;

  Ahead(const OctavoMatrix& m, int panel, int panels, int tiles) : fours(m.inputs / 4) {
    const int64_t bytes = (int64_t)panels * m.inputs * LANES, steps = tiles * fours;
    from = m.weights + (int64_t)panel * m.inputs * LANES;
    if (steps == 0 || panel + 2 * panels > m.outputs / LANES) return;
    from += bytes;
    step = std::min<int64_t>(64, (bytes + steps - 1) / steps);
  }
  void next() { from += fours * step; }
};

// acc[r][v] = sum over inputs of panel v's weights (plus 128) with row r. fours: inputs / 4.
template <int R, int V>
static inline void dot_tile(const uint8_t* weights, int64_t panel, const int8_t* x, int64_t stride,
                            int fours, const Ahead& ahead, i32x16 (&acc)[R][V]) {
#if defined(__AVX512VNNI__)
  __m512i sums[R][V] = {};
  for (int k = 0; k < fours; ++k) {
    __m512i w[V];
    OCTAVO_UNROLL for (int v = 0; v < V; ++v) {
      w[v] = _mm512_loadu_si512(weights + v * panel + k * 64);
      if (R == 1) _mm_prefetch((const char*)(weights + v * panel + k * 64 + 1024), _MM_HINT_T0);
    }
    if (R > 3) _mm_prefetch((const char*)(ahead.from + k * ahead.step), _MM_HINT_T1);
    OCTAVO_UNROLL for (int r = 0; r < R; ++r) {
      __m512i four = _mm512_set1_epi32(load<int32_t>(x + r * stride + 4 * k));
      OCTAVO_UNROLL for (int v = 0; v < V; ++v) accumulate(sums[r][v], w[v], four);
    }
  }
  OCTAVO_UNROLL for (int r = 0; r < R; ++r)
    OCTAVO_UNROLL for (int v = 0; v < V; ++v) acc[r][v] = (i32x16)sums[r][v];
#elif defined(__AVX2__)
  (void)ahead;
  // 16-bit products: vpmaddubsw would saturate.
  OCTAVO_UNROLL for (int v = 0; v < V; ++v) {
    __m256i sums[R][4] = {};  // each: four outputs, two partial sums an output
    for (int k = 0; k < fours; ++k) {
      const __m128i* from = (const __m128i*)(weights + v * panel + k * 64);
      __m256i w[4];
      for (int i = 0; i < 4; ++i) w[i] = _mm256_cvtepu8_epi16(_mm_loadu_si128(from + i));
      OCTAVO_UNROLL for (int r = 0; r < R; ++r) {
        __m128i four = _mm_cvtepi8_epi16(_mm_cvtsi32_si128(load<int32_t>(x + r * stride + 4 * k)));
        __m256i wide = _mm256_broadcastq_epi64(four);
        for (int i = 0; i < 4; ++i)
          sums[r][i] = _mm256_add_epi32(sums[r][i], _mm256_madd_epi16(w[i], wide));
      }
    }
    OCTAVO_UNROLL for (int r = 0; r < R; ++r) {
      int32_t pairs[32], lanes[16];
      for (int i = 0; i < 4; ++i) _mm256_storeu_si256((__m256i*)(pairs + 8 * i), sums[r][i]);
      for (int i = 0; i < 16; ++i) lanes[i] = pairs[2 * i] + pairs[2 * i + 1];
      acc[r][v] = load<i32x16>(lanes);
    }
  }
#else
  (void)ahead;
  OCTAVO_UNROLL for (int v = 0; v < V; ++v)
    OCTAVO_UNROLL for (int r = 0; r < R; ++r) {
      int32_t lanes[16] = {};
      for (int k = 0; k < fours; ++k)
        for (int lane = 0; lane < 16; ++lane)
          for (int i = 0; i < 4; ++i)
            lanes[lane] += weights[v * panel + k * 64 + lane * 4 + i] * x[r * stride + 4 * k + i];
      acc[r][v] = load<i32x16>(lanes);
    }
#endif
}

// R rows times `panels` panels in vector registers, as many panels at once as fit there.
template <int R, class Take>
static inline void register_rows(const OctavoMatrix& m, const Quantised& x, int row, int panel,
                                 int panels, const Ahead& ahead, const Take& take) {
  const int64_t panel_bytes = (int64_t)m.inputs * LANES;
  const auto tile = [&](auto& acc) {
    constexpr int V = sizeof acc[0] / sizeof acc[0][0];
    dot_tile<R, V>(m.weights + panel * panel_bytes, panel_bytes, x.values + row * x.stride,
                   x.stride, m.inputs / 4, ahead, acc);
    OCTAVO_UNROLL for (int r = 0; r < R; ++r) take(row + r, panel, acc[r]);
    panel += V;
    panels -= V;
  };
  while (panels >= TILE_PANELS) {
    i32x16 acc[R][TILE_PANELS];
    tile(acc);
  }
  if constexpr (TILE_PANELS > 2) {
    if (panels >= 2) {
      i32x16 acc[R][2];
      tile(acc);
    }
  }
  if constexpr (TILE_PANELS > 1) {
    if (panels) {
      i32x16 acc[R][1];
      tile(acc);
    }
  }
}

// The sums (w + 128) x of rows `first` to `last` with panels `panel` to `panel + panels`:
// `take(row, panel, i32x16 (&sums)[V])` for each row and V neighbouring panels, V even unless one
// is left. `x` has room for whole tiles.
template <class Take>
static inline void sums(const OctavoMatrix& m, const Quantised& x, int first, int last, int panel,
                        int panels, const Take& take) {
  int row = first;
#if defined(__AMX_INT8__)
  if (m.inputs % TILE_BYTES == 0 && last - first >= LEAST_TILE_ROWS)
    return tile_sums(m, x, first, last, panel, panels, take);
#endif
  Ahead ahead(m, panel, panels, (last - first) / TILE_ROWS);
  for (; row + TILE_ROWS <= last; row += TILE_ROWS) {
    register_rows<TILE_ROWS>(m, x, row, panel, panels, ahead, take);
    ahead.next();
  }
  switch (last - row) {
    case 5: if constexpr (TILE_ROWS > 5) register_rows<5>(m, x, row, panel, panels, ahead, take); break;
    case 4: if constexpr (TILE_ROWS > 4) register_rows<4>(m, x, row, panel, panels, ahead, take); break;
    case 3: if constexpr (TILE_ROWS > 3) register_rows<3>(m, x, row, panel, panels, ahead, take); break;
    case 2: if constexpr (TILE_ROWS > 2) register_rows<2>(m, x, row, panel, panels, ahead, take); break;
    case 1: register_rows<1>(m, x, row, panel, panels, ahead, take); break;
    default: break;
  }
}

// The product itself: `put(row, column, f32x16 (&values)[V])` for each row and V panels.
template <class Put>
static inline void product(const OctavoMatrix& m, const Quantised& x, int first, int last,
                           int panel, int panels, const Put& put) {
  sums(m, x, first, last, panel, panels, [&](int row, int panel, auto& acc) {
    constexpr int V = sizeof acc / sizeof acc[0];
    const int32_t excess = 128 * x.sums[row];
    f32x16 values[V];
    OCTAVO_UNROLL for (int v = 0; v < V; ++v) {
      const int column = (panel + v) * LANES;
      f32x16 whole = __builtin_convertvector(acc[v] - excess, f32x16);
      // Rounded here, whatever is done with it, so that results do not depend on what it is
      // inlined into.
      values[v] = rounded(whole * (x.scales[row] * load<f32x16>(m.scales + column)));
      if (m.bias) values[v] = rounded(values[v] + load<f32x16>(m.bias + column));
    }
    put(row, panel * LANES, values);
  });
}

}  // namespace OCTAVO_ISA
