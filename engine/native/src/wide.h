// Products of 16-bit numbers with int8 values, exact in int32.
//
//     numbers [rows, 256]                         at most MOST_SIGNED in size, or 0 to MOST_UNSIGNED
//     values  [length / 4][columns][4] int8       four numbers deep
//
// Where products of bytes are what the processor has, a number is two bytes, 256 high + low.
#pragma once
#include <algorithm>

#include "vector.h"

namespace OCTAVO_ISA {

constexpr int WIDE_LENGTH = 256;
constexpr int FOUR = 4 * LANES;  // bytes of four values in each of sixteen columns

// 127 * 256 + 127: both bytes of a signed number fit.
constexpr int MOST_SIGNED = 32639;
#if defined(__AVX512VNNI__)
constexpr int MOST_UNSIGNED = 65535;
#else
constexpr int MOST_UNSIGNED = 32767;
#endif
static_assert((int64_t)MOST_UNSIGNED * 127 * WIDE_LENGTH < INT32_MAX, "sums fit");

#if defined(__AMX_INT8__)
constexpr int UNIT = 16;
#else
constexpr int UNIT = 12;
#endif

// Rows are padded to a multiple of it with zeros.
constexpr int DEPTH = 64;

// The format of the KV cache whose vectors are int8 with a scale.
struct Int8 {
  typedef int8_t Element;
  static constexpr bool scaled = true;
  static constexpr int unit = UNIT;
};

// Up to UNIT rows of numbers. low: where low bytes begin, right after the high ones of all rows.
struct Numbers {
#if defined(__AVX512VNNI__)
  alignas(64) uint8_t bytes[2 * UNIT * WIDE_LENGTH];
  int low;
#else
  alignas(64) int16_t numbers[UNIT * WIDE_LENGTH];
#endif
  int32_t sums[UNIT];  // of signed numbers, for those that need it

  void begin(int rows) {
#if defined(__AVX512VNNI__)
    low = rows * WIDE_LENGTH;
#else
    (void)rows;
#endif
  }

  // DEPTH numbers of a row, from place `at`: floats times a factor, rounded. Returns sums of them.
  template <bool SIGNED>
  inline i32x16 put(int row, int at, const float* from, float factor) {
    i32x16 x[DEPTH / LANES], all = {};
    OCTAVO_UNROLL for (int i = 0; i < DEPTH / LANES; ++i) {
      x[i] = nearest(load<f32x16>(from + i * LANES) * factor);
      if (SIGNED) all += x[i];
    }
#if defined(__AVX512VNNI__)
    // Packing takes four numbers of each vector in turns, the last step puts them in order.
    const auto pack = [](__m512i a, __m512i b) {
      return SIGNED ? _mm512_packs_epi32(a, b) : _mm512_packus_epi32(a, b);
    };
    const __m512i a = pack((__m512i)x[0], (__m512i)x[1]), b = pack((__m512i)x[2], (__m512i)x[3]);
    const auto high = [](__m512i x) {
      return SIGNED ? _mm512_srai_epi16(_mm512_add_epi16(x, _mm512_set1_epi16(128)), 8)
                    : _mm512_srli_epi16(x, 8);
    };
    const __m512i byte = _mm512_set1_epi16(255);
    const __m512i top = SIGNED ? _mm512_packs_epi16(high(a), high(b))
                               : _mm512_packus_epi16(high(a), high(b));
    const __m512i bottom = _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    uint8_t* to = bytes + row * WIDE_LENGTH + at;
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, top));
    _mm512_storeu_si512(to + low, _mm512_permutexvar_epi32(order, bottom));
#elif defined(__AVX2__)
    // Of each four the first with the third, then the second with the fourth.
    int16_t* to = numbers + row * WIDE_LENGTH + at;
    OCTAVO_UNROLL for (int i = 0; i < DEPTH / LANES; ++i) {
      const __m256i a = load<__m256i>(&x[i]), b = load<__m256i>((const int32_t*)&x[i] + 8);
      const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
      const __m256i turned = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(both, 0xd8), 0xd8);
      _mm256_storeu_si256((__m256i*)(to + i * LANES), turned);
    }
#else
    int16_t* to = numbers + row * WIDE_LENGTH + at;
    for (int i = 0; i < DEPTH; ++i) to[i] = (int16_t)x[i / LANES][i % LANES];
#endif
    return all;
  }
};

#if defined(__AVX512VNNI__)
// sum += four products of each lane, unsigned by signed, in place: the intrinsic makes GCC 12 copy
// its registers.
static inline void add_products(__m512i& sum, __m512i u, __m512i s) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(s));
}
#endif

// Sums of R rows of numbers with C times sixteen columns.
template <bool SIGNED, int R, int C>
struct Sums {
#if defined(__AVX512VNNI__)
  __m512i high[R][C] = {}, low[R][C] = {};
#elif defined(__AVX2__)
  __m256i sums[R][C][2] = {};
#else
  i32x16 sums[R][C] = {};
#endif

  // Four numbers of each row, from place `at`, with columns[c] [16][4].
  __attribute__((always_inline)) inline void add(const Numbers& x, int row, int at,
                                                 const int8_t* const (&columns)[C]) {
#if defined(__AVX512VNNI__)
    // One of the two has to be unsigned: weights are, else the values, by adding 128.
    __m512i v[C];
    OCTAVO_UNROLL for (int c = 0; c < C; ++c) {
      v[c] = _mm512_loadu_si512(columns[c]);
      if (SIGNED) v[c] = _mm512_xor_si512(v[c], _mm512_set1_epi8(-128));
    }
    OCTAVO_UNROLL for (int r = 0; r < R; ++r) {
      const uint8_t* from = x.bytes + (row + r) * WIDE_LENGTH + at;
      const __m512i h = _mm512_set1_epi32(load<int32_t>(from));
      const __m512i l = _mm512_set1_epi32(load<int32_t>(from + x.low));
      OCTAVO_UNROLL for (int c = 0; c < C; ++c) {
        if (SIGNED) add_products(high[r][c], v[c], h), add_products(low[r][c], v[c], l);
        else add_products(high[r][c], h, v[c]), add_products(low[r][c], l, v[c]);
      }
    }
#elif defined(__AVX2__)
    OCTAVO_UNROLL for (int c = 0; c < C; ++c)
      OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
        const __m256i v = _mm256_loadu_si256((const __m256i*)(columns[c] + 32 * i));
        const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
        const __m256i odd = _mm256_srai_epi16(v, 8);
        OCTAVO_UNROLL for (int r = 0; r < R; ++r) {
          const int16_t* from = x.numbers + (row + r) * WIDE_LENGTH + at;
          const __m256i a = _mm256_madd_epi16(even, _mm256_set1_epi32(load<int32_t>(from)));
          const __m256i b = _mm256_madd_epi16(odd, _mm256_set1_epi32(load<int32_t>(from + 2)));
          sums[r][c][i] = _mm256_add_epi32(sums[r][c][i], _mm256_add_epi32(a, b));
        }
      }
#else
    OCTAVO_UNROLL for (int c = 0; c < C; ++c) {
      const u32x16 four = load<u32x16>(columns[c]);
      for (int i = 0; i < 4; ++i) {
        const u32x16 top = four << (24 - 8 * i);
        const i32x16 v = load<i32x16>(&top) >> 24;
        OCTAVO_UNROLL for (int r = 0; r < R; ++r)
          sums[r][c] += v * (int32_t)x.numbers[(row + r) * WIDE_LENGTH + at + i];
      }
    }
#endif
  }

  inline i32x16 total(const Numbers& x, int row, int r, int c) const {
#if defined(__AVX512VNNI__)
    const i32x16 both = ((i32x16)high[r][c] << 8) + (i32x16)low[r][c];
    // Modulo 2^32, as the sums were.
    return SIGNED ? both - (int32_t)(128u * (uint32_t)x.sums[row + r]) : both;
#elif defined(__AVX2__)
    (void)x, (void)row;
    return load<i32x16>(sums[r][c]);
#else
    (void)x, (void)row;
    return sums[r][c];
#endif
  }
};

}  // namespace OCTAVO_ISA
