// Draw a token from a row of logits: temperature, top-k, top-p, min-p, one uniform number.
//
//     weight = exp((logit - best) / temperature)      the best token's is 1
//     top_k    keeps the k best tokens, and those that tie with the last of them
//     top_p    of what top_k left, the best tokens that together reach this share; ties are kept
//     min_p    keeps what has this share of the best token's weight
//
// and of the rest, in the order of token ids, the first whose cumulative weight is above uniform *
// total. A token that the row's mask forbids weighs nothing from the start. Nothing is sorted but
// the few tokens around a threshold. All sums have an order that depends on the row alone.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "abi.h"
#include "vector.h"

namespace OCTAVO_ISA {

typedef double f64x8 __attribute__((vector_size(64)));
typedef int64_t i64x8 __attribute__((vector_size(64)));
typedef float f32x8 __attribute__((vector_size(32)));

constexpr int STRETCH = 512;  // tokens whose weights are summed before they are looked through

// Memory that one thread draws in.
struct DrawSpace {
  std::vector<float> values, peaks, masked;
  std::vector<int32_t> ids;
  std::vector<double> weights, sums, around;
};

// Which tokens of a row may be sampled.
struct Mask {
  const uint32_t* words;  // null if all may
  int count;

  explicit Mask(const OctavoControls& c) : words(c.mask), count(c.mask_words) {}

  // A bit for each of the 32 tokens from 32 * i on.
  uint32_t of_32(int i) const { return i < count ? words[i] : 0; }

  // A bit for each of the 8 tokens from 8 * i on.
  int of_8(int i) const { return words ? of_32(i / 4) >> (8 * (i % 4)) & 0xff : 0xff; }
};

static inline f64x8 keep(f64x8 x, int bits) {
  const i64x8 place = {1, 2, 4, 8, 16, 32, 64, 128};
  const i64x8 kept = (place & (i64x8{} + bits)) != 0;
  return kept ? x : f64x8{};
}

static inline bool any(i32x16 lanes) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)lanes, (__m512i)lanes) != 0;
#else
  int32_t all = 0;
  for (int i = 0; i < LANES; ++i) all |= lanes[i];
  return all != 0;
#endif
}

// Sums the lanes, always in the same order.
static inline double total(f64x8 x) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

// e^x for x <= 0, relative error below 1e-14; 0 where it is below 1e-300.
static inline f64x8 exponential(f64x8 x) {
  const i64x8 gone = x < -690.0;
  x = gone ? f64x8{} : x;
  const double magic = 6755399441055744.0;  // 1.5 * 2^52: what is added lands in the low bits
  const f64x8 shifted = x * 1.4426950408889634 + magic;
  const f64x8 whole = shifted - magic;
  const f64x8 r = x - whole * 0.693147180369123816490 - whole * 1.90821492927058770002e-10;
  // Taylor's series, in two halves that do not wait for each other; |r| < 0.3466.
  const f64x8 q = r * r;
  f64x8 even = q * (1.0 / 479001600) + 1.0 / 3628800;
  f64x8 odd = q * (1.0 / 39916800) + 1.0 / 362880;
  even = even * q + 1.0 / 40320;
  odd = odd * q + 1.0 / 5040;
  even = even * q + 1.0 / 720;
  odd = odd * q + 1.0 / 120;
  even = even * q + 1.0 / 24;
  odd = odd * q + 1.0 / 6;
  even = even * q + 0.5;
  odd = odd * q + 1.0;
  even = even * q + 1.0;
  const f64x8 p = odd * r + even;
  i64x8 bits = load<i64x8>(&shifted);
  bits = (bits << 52) + ((int64_t)1023 << 52);
  return gone ? f64x8{} : p * load<f64x8>(&bits);
}

// The tokens at least as good as the k-th best, in order: into values and ids; how many.
static inline int keep_best(const float* logits, int n, int k, DrawSpace& space) {
  std::vector<float>& peaks = space.peaks;
  // The k-th largest of the largest of disjoint groups is no larger than the k-th largest of all.
  const int vectors = n / LANES;
  const int run = std::max(1, vectors * LANES / std::max(4 * k, 32 * LANES));
  peaks.clear();
  for (int v = 0; v < vectors; v += run) {
    f32x16 most = load<f32x16>(logits + v * LANES);
    for (int i = v + 1; i < std::min(v + run, vectors); ++i)
      most = largest(load<f32x16>(logits + i * LANES), most);
    peaks.resize(peaks.size() + LANES);
    store(&peaks[peaks.size() - LANES], most);
  }
  float bound = -INFINITY;
  if ((int)peaks.size() >= k) {
    std::nth_element(peaks.begin(), peaks.begin() + (k - 1), peaks.end(), std::greater<float>());
    bound = peaks[k - 1];
  }
  space.values.clear();
  space.ids.clear();
  auto look = [&](int i) {
    if (logits[i] >= bound) space.values.push_back(logits[i]), space.ids.push_back(i);
  };
  for (int v = 0; v < vectors; ++v)
    if (any(load<f32x16>(logits + v * LANES) >= splat(bound)))
      for (int i = v * LANES; i < (v + 1) * LANES; ++i) look(i);
  for (int i = vectors * LANES; i < n; ++i) look(i);
  peaks.assign(space.values.begin(), space.values.end());
  std::nth_element(peaks.begin(), peaks.begin() + (k - 1), peaks.end(), std::greater<float>());
  const float last = peaks[k - 1];
  int kept = 0;
  for (size_t i = 0; i < space.values.size(); ++i)
    if (space.values[i] >= last) {
      space.values[kept] = space.values[i];
      space.ids[kept++] = space.ids[i];
    }
  return kept;
}

// A copy of the row in which what is forbidden is minus infinity.
static inline const float* masked(const float* logits, const Mask& mask, int vocab,
                                  DrawSpace& space) {
  std::vector<float>& to = space.masked;
  to.resize(vocab);
  for (int i = 0; i < vocab; ++i)
    to[i] = mask.of_32(i / 32) >> (i % 32) & 1 ? logits[i] : -INFINITY;
  return to.data();
}

// The sixteen logits from `from` on; minus infinity where bits have no 1.
static inline f32x16 keep_sixteen(const float* from, uint32_t bits) {
  const i32x16 place = {1,   2,   4,   8,    16,   32,   64,   128,
                        256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  const i32x16 kept = (place & (i32x16{} + (int32_t)bits)) != 0;
  return kept ? load<f32x16>(from) : splat(-INFINITY);
}

// The first of the best tokens that a mask allows; -1 if none has more than minus infinity.
static inline int best_allowed(const float* logits, const Mask& mask, int vocab) {
  const int whole = std::min(mask.count, vocab / 32);
  f32x16 peaks = splat(-INFINITY);
  for (int w = 0; w < whole; ++w) {
    const uint32_t bits = mask.words[w];
    if (!bits) continue;
    peaks = largest(keep_sixteen(logits + 32 * w, bits & 0xffff), peaks);
    peaks = largest(keep_sixteen(logits + 32 * w + 16, bits >> 16), peaks);
  }
  float best = -INFINITY;
  for (int i = 0; i < LANES; ++i) best = std::max(best, peaks[i]);
  auto allowed = [&](int i) { return mask.of_32(i / 32) >> (i % 32) & 1; };
  for (int i = 32 * whole; i < vocab; ++i)
    if (allowed(i)) best = std::max(best, logits[i]);
  if (best == -INFINITY) return -1;
  for (int w = 0; w < whole; ++w) {
    const uint32_t bits = mask.words[w];
    if (!bits || !(any(keep_sixteen(logits + 32 * w, bits & 0xffff) == splat(best)) ||
                   any(keep_sixteen(logits + 32 * w + 16, bits >> 16) == splat(best))))
      continue;
    for (int i = 32 * w; i < 32 * w + 32; ++i)
      if (allowed(i) && logits[i] == best) return i;
  }
  for (int i = 32 * whole; i < vocab; ++i)
    if (allowed(i) && logits[i] == best) return i;
  return -1;  // not reached: best is one of them
}

struct Mass {
  double sum;
  int64_t count;
};

constexpr int PADDED = 16;  // weights are filled up with zeros to a multiple of this

static inline size_t padded(size_t n) { return (n + PADDED - 1) / PADDED * PADDED; }

// What weighs at least `least`, of n weights, padded.
static inline Mass mass_of(const double* weights, size_t n, double least) {
  f64x8 sum = {}, other = {};
  i64x8 count = {};
  for (size_t i = 0; i < n; i += 16) {
    const f64x8 w = load<f64x8>(weights + i), v = load<f64x8>(weights + i + 8);
    const i64x8 heavy = w >= least, heavier = v >= least;
    sum += heavy ? w : f64x8{};
    other += heavier ? v : f64x8{};
    count -= heavy + heavier;
  }
  int64_t all = 0;
  for (int i = 0; i < 8; ++i) all += count[i];
  return {total(sum + other), all};
}

// The weights in [lo, hi), in order, padded; how many with the padding. `to` may be `from`.
static inline size_t keep_between(const double* from, size_t n, double lo, double hi, double* to) {
  size_t kept = 0;
  for (size_t i = 0; i < n; i += 8) {
#if defined(__AVX512F__)
    const __m512d w = _mm512_loadu_pd(from + i);
    const __mmask8 in = _mm512_cmp_pd_mask(w, _mm512_set1_pd(lo), _CMP_GE_OQ) &
                        _mm512_cmp_pd_mask(w, _mm512_set1_pd(hi), _CMP_LT_OQ);
    _mm512_mask_compressstoreu_pd(to + kept, in, w);
    kept += __builtin_popcount(in);
#else
    for (size_t j = i; j < i + 8; ++j) {
      const double w = from[j];
      to[kept] = w;
      kept += lo <= w && w < hi;
    }
#endif
  }
  const size_t end = padded(kept);
  std::fill(to + kept, to + end, 0.0);
  return end;
}

// The smallest of the largest weights that together reach `mass`, which all of them do.
static inline double last_of_mass(const std::vector<double>& weights, double mass,
                                  std::vector<double>& space) {
  constexpr int64_t FEW = 64;
  const double* from = weights.data();
  size_t n = weights.size();
  int64_t count = (int64_t)n;  // from lo on
  double lo = 0, hi = 2;       // those from lo on reach it, those from hi on do not
  Mass above = {0, 0};         // from hi on
  Mass gone = {0, 0};          // the part of it that is no longer looked at
  space.resize(n);
  for (double at = 0.25; count - above.count > FEW && lo < at && at < hi;
       at = lo > 0 ? std::sqrt(lo * hi) : at * at) {
    Mass found = mass_of(from, n, at);
    found.sum += gone.sum;
    found.count += gone.count;
    if (found.sum < mass) {
      hi = at, above = found;
    } else {
      lo = at, count = found.count;
    }
    if (lo > 0 && count - above.count < (int64_t)n / 4) {
      n = keep_between(from, n, lo, hi, space.data());
      from = space.data();
      gone = above;
    }
  }
  n = keep_between(from, n, lo, hi, space.data());
  std::sort(space.begin(), space.begin() + n, std::greater<double>());
  double sum = above.sum, last = hi;
  for (size_t i = 0; i < n && space[i] > 0; ++i) {
    last = space[i];
    if ((sum += last) >= mass) break;
  }
  return last;
}

static inline int draw_row(const float* logits, const OctavoControls& c, int vocab,
                           DrawSpace& space) {
  const float* values = logits;
  int n = vocab;
  Mask mask(c);
  const bool limited = 0 < c.top_k && c.top_k < vocab;
  if (limited) {
    if (mask.words) logits = masked(logits, mask, vocab, space);
    mask.words = nullptr;
    n = keep_best(logits, vocab, c.top_k, space);
    values = space.values.data();
  }
  std::vector<double>& weights = space.weights;
  weights.resize(padded(n));
  std::fill(weights.begin() + n, weights.end(), 0.0);
  const double inverse = std::min(1.0 / c.temperature, 1.7e308);
  for (int i = 0; i < n; i += 8) {
    const int bits = mask.of_8(i / 8);
    if (!bits) {
      store(&weights[i], f64x8{});
      continue;
    }
    float lanes[8];
    const float* from = values + i;
    if (n - i < 8) {
      for (int j = 0; j < 8; ++j) lanes[j] = j < n - i ? values[i + j] : -INFINITY;
      from = lanes;
    }
    const f64x8 x = __builtin_convertvector(load<f32x8>(from), f64x8) - (double)c.best;
    const f64x8 weight = exponential(x * inverse);
    store(&weights[i], bits == 0xff ? weight : keep(weight, bits));
  }
  double least = c.min_p;
  if (c.top_p < 1) {
    const double mass = c.top_p * mass_of(weights.data(), weights.size(), 0).sum;
    least = std::max(least, last_of_mass(weights, mass, space.around));
  }
  std::vector<double>& sums = space.sums;
  sums.clear();
  double all = 0;
  for (size_t from = 0; from < weights.size(); from += STRETCH) {
    f64x8 sum = {};
    for (size_t i = from; i < std::min(from + STRETCH, weights.size()); i += 8) {
      const f64x8 w = load<f64x8>(&weights[i]);
      sum += w >= least ? w : f64x8{};
    }
    sums.push_back(total(sum));
    all += sums.back();
  }
  // Rounding must not reach the total, which no token lies beyond.
  const double target = std::min(c.uniform * all, std::nextafter(all, 0.0));
  double before = 0;
  size_t stretch = 0, last = 0;
  while (stretch + 1 < sums.size() && before + sums[stretch] <= target) before += sums[stretch++];
  // The last token that weighs anything, if rounding keeps the sum below the target.
  for (size_t i = stretch * STRETCH; i < std::min((stretch + 1) * STRETCH, weights.size()); ++i) {
    if (weights[i] < least || weights[i] == 0) continue;
    last = i;
    if ((before += weights[i]) > target) break;
  }
  return limited ? space.ids[last] : (int)last;
}

}  // namespace OCTAVO_ISA
