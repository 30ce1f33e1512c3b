// What happens to one row between products: norms, quantising, rotary embedding, KV writes.
#pragma once
#include <cmath>

#include "abi.h"
#include "product.h"
#include "vector.h"
#include "wide.h"

namespace OCTAVO_ISA {

// The root-mean-square of x, inverted.
static inline float inverse_rms(const float* x, int n, float eps) {
  f32x16 squares = {};
  int i = 0;
  for (; i + LANES <= n; i += LANES) {
    f32x16 v = load<f32x16>(x + i);
    squares += v * v;
  }
  if (i < n) {
    f32x16 v = load_some(x + i, n - i);
    squares += v * v;
  }
  return 1.0f / std::sqrt(sum(squares) / (float)n + eps);
}

// Quantise row `row` of `to`: n floats from `at(i)`, sixteen at a time, 0 beyond n. scratch [n]
// padded to 16. NaN makes the row's scale, and so all that is made of the row, NaN.
template <class At>
static inline void quantise(const Quantised& to, int row, int n, float* scratch, const At& at) {
  Magnitude magnitude;
  for (int i = 0; i < n; i += LANES) {
    f32x16 v = at(i);
    store(scratch + i, v);
    magnitude.show(v);
  }
  const float amax = magnitude.most();
  const float scale = amax / 127.0f;
  const float inverse = amax > 0 ? 127.0f / amax : 0.0f;
  int8_t* out = to.values + row * to.stride;
  i32x16 total = {};
  for (int i = 0; i < n; i += LANES) {
    i32x16 q = nearest(load<f32x16>(scratch + i) * inverse);
    total += q;
    i8x16 bytes = __builtin_convertvector(q, i8x16);
    store(out + i, bytes);
  }
  to.scales[row] = scale;
  to.sums[row] = sum(total);
}

// x times weight over its root-mean-square, quantised.
static inline void norm_quantise(const Quantised& to, int row, const float* x, const float* weight,
                                 int n, float eps, float* scratch) {
  const float inverse = inverse_rms(x, n, eps);
  quantise(to, row, n, scratch, [&](int i) {
    if (i + LANES <= n) return load<f32x16>(x + i) * inverse * load<f32x16>(weight + i);
    return load_some(x + i, n - i) * inverse * load_some(weight + i, n - i);
  });
}

// One head, normalised (if weight is not null) and rotated in place: i turns with i + n / 2.
static inline void norm_rotate(float* head, int n, const float* weight, float eps,
                               const float* cos, const float* sin) {
  if (weight) {
    const float inverse = inverse_rms(head, n, eps);
    for (int i = 0; i < n; i += LANES)
      store(head + i, load<f32x16>(head + i) * inverse * load<f32x16>(weight + i));
  }
  const int half = n / 2;
  int i = 0;
  for (; i + LANES <= half; i += LANES) {
    const f32x16 a = load<f32x16>(head + i), b = load<f32x16>(head + i + half);
    const f32x16 c = load<f32x16>(cos + i), s = load<f32x16>(sin + i);
    store(head + i, a * c - b * s);
    store(head + i + half, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

// Write one head's key (transposed) and value into a block. block: of one KV head; offset: the
// token's place in it.
static inline void write_kv(Float32, float* keys, float* values, float*, float*, int offset,
                            const float* k, const float* v, int n) {
  for (int d = 0; d < n; ++d) keys[d * LANES + offset] = k[d];
  std::memcpy(values + (int64_t)offset * n, v, sizeof(float) * n);
}

static inline void write_kv(BFloat16, uint16_t* keys, uint16_t* values, float*, float*, int offset,
                            const float* k, const float* v, int n) {
  for (int d = 0; d < n; ++d) keys[d * LANES + offset] = bfloat16(k[d]);
  for (int d = 0; d < n; ++d) values[(int64_t)offset * n + d] = bfloat16(v[d]);
}

// A head as int8, to [n]: returns its scale, 0 if all of it is 0.
static inline float int8_head(const float* x, int n, int8_t* to) {
  Magnitude magnitude;
  for (int i = 0; i < n; i += LANES) magnitude.show(load<f32x16>(x + i));
  const float amax = magnitude.most();
  const float inverse = amax > 0 ? 127.0f / amax : 0.0f;
  for (int i = 0; i < n; i += LANES) {
    const i32x16 q = nearest(load<f32x16>(x + i) * inverse);
    const i8x16 bytes = __builtin_convertvector(q, i8x16);
    store(to + i, bytes);
  }
  return amax / 127.0f;
}

// Both with four numbers of a sum side by side: of keys four dimensions, of values four tokens.
static inline void write_kv(Int8, int8_t* keys, int8_t* values, float* key_scales,
                            float* value_scales, int offset, const float* k, const float* v, int n) {
  int8_t head[256];
  key_scales[offset] = int8_head(k, n, head);
  for (int d = 0; d < n; d += 4) std::memcpy(keys + d * LANES + offset * 4, head + d, 4);
  value_scales[offset] = int8_head(v, n, head);
  int8_t* to = values + offset / 4 * n * 4 + offset % 4;
  for (int d = 0; d < n; ++d) to[d * 4] = head[d];
}

// Row `id` of an embedding that is laid out like a matrix.
static inline void embed(const OctavoMatrix& m, const float* unsmooth, int id, float* x) {
  const uint8_t* panel = m.weights + (int64_t)(id / LANES) * m.inputs * LANES + (id % LANES) * 4;
  const float scale = m.scales[id];
  for (int k = 0; k < m.inputs; k += 4)
    for (int i = 0; i < 4; ++i)
      x[k + i] = (float)((int)panel[(int64_t)k * LANES + i] - 128) * scale * unsmooth[k + i];
}

}  // namespace OCTAVO_ISA
