// Sixteen floats or integers at once. The compiler splits them where registers are narrower.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Before loops over registers: one that stays a loop keeps what it indexes in memory.
#define OCTAVO_UNROLL _Pragma("GCC unroll 16")

// For functions with many registers in use, and those that have to round in one way.
#define OCTAVO_APART __attribute__((noinline))

namespace OCTAVO_ISA {

constexpr int LANES = 16;

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));

template <class T>
static inline T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
static inline void store(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

static inline f32x16 splat(float x) { return f32x16{} + x; }

static inline f32x16 as_float(i32x16 bits) { return load<f32x16>(&bits); }
static inline i32x16 as_bits(f32x16 x) { return load<i32x16>(&x); }

// The larger of each two; b where one is not a number.
static inline f32x16 largest(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  float lanes[LANES];
  for (int i = 0; i < 2; ++i)
    _mm256_storeu_ps(lanes + 8 * i, _mm256_max_ps(load<__m256>((const float*)&a + 8 * i),
                                                  load<__m256>((const float*)&b + 8 * i)));
  return load<f32x16>(lanes);
#else
  return a > b ? a : b;
#endif
}

// x, and the compiler must not fuse what made it with what is made of it.
static inline f32x16 rounded(f32x16 x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x));
#endif
  return x;
}

// Sum and maximum over the lanes, always in the same order.
#if defined(__AVX512F__)
static inline float sum(f32x16 x) { return _mm512_reduce_add_ps((__m512)x); }
static inline float maximum(f32x16 x) { return _mm512_reduce_max_ps((__m512)x); }
static inline int32_t sum(i32x16 x) { return _mm512_reduce_add_epi32((__m512i)x); }
static inline int32_t maximum(i32x16 x) { return _mm512_reduce_max_epi32((__m512i)x); }
#else
static inline float sum(f32x16 x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)x);  // halves, then halves of them
#else
  float lanes[LANES];
  store(lanes, x);
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
#endif
}

static inline float maximum(f32x16 x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)x);
#else
  float lanes[LANES];
  store(lanes, x);
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
#endif
}

static inline int32_t sum(i32x16 x) {
  int32_t all = 0;
  for (int i = 0; i < LANES; ++i) all += x[i];
  return all;
}

static inline int32_t maximum(i32x16 x) {
  int32_t most = x[0];
  for (int i = 1; i < LANES; ++i) most = x[i] > most ? x[i] : most;
  return most;
}
#endif

// The largest magnitude of what it is shown; NaN if one was.
class Magnitude {
 public:
  void show(f32x16 x) {
    const i32x16 bits = as_bits(x) & 0x7fffffff;  // ordered as the floats are, NaN above all
    most_ = bits > most_ ? bits : most_;
  }
  float most() const {
    const int32_t bits = maximum(most_);
    return load<float>(&bits);
  }

 private:
  i32x16 most_ = {};
};

// The nearest integer, ties to even, of |x| < 2^22: adding 1.5 * 2^23 leaves it in the low bits.
static inline i32x16 nearest(f32x16 x) { return as_bits(x + 12582912.0f) - 0x4b400000; }

// 2^x as a polynomial of what x has beyond a whole number, the highest coefficient first. 0 below
// -127 (and for -inf).
template <int N>
static inline f32x16 power_of_two(f32x16 x, const float (&coefficients)[N]) {
  constexpr float WHOLE = 12582912.0f;  // 1.5 * 2^23: whole numbers are the low bits of the sum
  x = largest(splat(-127.0f), x);
  const f32x16 shifted = x + WHOLE;
  const f32x16 f = x - (shifted - WHOLE);
  f32x16 p = splat(coefficients[0]);
  OCTAVO_UNROLL for (int i = 1; i < N; ++i) p = p * f + coefficients[i];
  return p * as_float((as_bits(shifted) << 23) + 0x3f800000);
}

// 2^x, relative error below 2e-7.
static inline f32x16 exp2(f32x16 x) {
  return power_of_two(x, {1.535336188319500e-4f, 1.339887440266574e-3f, 9.618437357674640e-3f,
                          5.550332471162809e-2f, 2.402264791363012e-1f, 6.931472028550421e-1f,
                          1.0f});
}

// 2^x, relative error below 3e-6.
static inline f32x16 rough_exp2(f32x16 x) {
  return power_of_two(x, {9.5701e-3f, 5.591786e-2f, 2.4024745e-1f, 6.9312181e-1f, 9.9999926e-1f});
}

static inline f32x16 exponential(f32x16 x) { return exp2(x * 1.44269504088896341f); }

// 1 / x of a normal x whose inverse is normal, relative error below 1e-6.
static inline f32x16 inverse(f32x16 x) {
#if defined(__AVX512F__)
  f32x16 guess = (f32x16)_mm512_rcp14_ps((__m512)x);
  return guess * (2.0f - x * guess);
#else
  return 1.0f / x;
#endif
}

// x / (1 + e^-x). Below -80, where it is 0 but for 1e-33, the power would leave the range.
static inline f32x16 silu(f32x16 x) {
  f32x16 power = exponential(-x < 80.0f ? -x : splat(80.0f));
  return x * inverse(1.0f + power);
}

// Loads of the first `count` of sixteen floats, the others 0.
static inline f32x16 load_some(const float* from, int count) {
  float lanes[LANES] = {};
  std::memcpy(lanes, from, sizeof(float) * count);
  return load<f32x16>(lanes);
}

// Formats of the KV cache whose elements are floats, how they are read, and how many rows of a tile
// are computed together.
struct Float32 {
  typedef float Element;
  static constexpr bool scaled = false;
  static constexpr int unit = 12;
  static inline f32x16 read(const Element* from) { return load<f32x16>(from); }
};

struct BFloat16 {
  typedef uint16_t Element;
  static constexpr bool scaled = false;
  static constexpr int unit = 12;
  static inline f32x16 read(const Element* from) {
    u32x16 bits = __builtin_convertvector(load<u16x16>(from), u32x16) << 16;
    return load<f32x16>(&bits);
  }
};

// A float as bfloat16, to the nearest, ties to even.
static inline uint16_t bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace OCTAVO_ISA
