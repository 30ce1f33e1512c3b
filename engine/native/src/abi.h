// What crosses from Python: plain structs, filled with ctypes (engine/native/library.py).
//
// All pointers stay the caller's; the library keeps none longer than a call.
#pragma once
#include <cstdint>

extern "C" {

// Weights of a linear map, int8 with one scale per output, as
//
//     weights[outputs / 16][inputs / 4][16][4]     w + 128, so 0..255; zero (128) where padded
//
// scales [outputs]; bias [outputs] or null. `outputs` is a multiple of 16, `inputs` of 4.
struct OctavoMatrix {
  const uint8_t* weights;
  const float* scales;
  const float* bias;
  int32_t outputs;
  int32_t inputs;
};

// One decoder layer. Smoothing vectors divide activations before they are quantised; those of the
// norms are part of the norm's weights. Panels of 16 outputs of gate_up alternate: gate, up.
// window: tokens that a query sees, itself included; 0 for all. q_norm, k_norm: null if absent.
struct OctavoLayer {
  const float* attn_norm;
  const float* out_smooth;
  const float* ffn_norm;
  const float* down_smooth;
  const float* q_norm;
  const float* k_norm;
  OctavoMatrix qkv;
  OctavoMatrix out;
  OctavoMatrix gate_up;
  OctavoMatrix down;
  int32_t window;
};

// A model. embedding is laid out like a matrix of `vocab` outputs, and its row is multiplied by
// embedding_unsmooth [hidden]; a tied head shares the weights. cos, sin [context, head_dim / 2].
struct OctavoModel {
  const OctavoLayer* layers;
  OctavoMatrix embedding;
  const float* embedding_unsmooth;
  OctavoMatrix head;
  const float* final_norm;
  const float* cos;
  const float* sin;
  float norm_eps;
  int32_t layer_count;
  int32_t hidden;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t ffn;  // padded to a multiple of 16
  int32_t vocab;
};

enum OctavoKV : int32_t { OCTAVO_F32 = 0, OCTAVO_BF16 = 1, OCTAVO_I8 = 2 };

// The KV pools. K blocks are transposed, so that sixteen tokens are one vector; int8 has the four
// numbers that products sum at once side by side:
//
//     keys   [layers][blocks][kv_heads][head_dim][16]           OCTAVO_I8: [head_dim / 4][16][4]
//     values [layers][blocks][kv_heads][16][head_dim]           OCTAVO_I8: [4][head_dim][4]
//     scales [layers][blocks][kv_heads][16]                     for OCTAVO_I8, else null
struct OctavoCache {
  void* keys;
  void* values;
  float* key_scales;
  float* value_scales;
  int64_t blocks;
  int32_t dtype;
};

// One step: the arrays of engine/batch.py, and where results go.
// logits [logit_count, vocab]; greedy [logit_count]: the index of each row's largest logit.
struct OctavoStep {
  const int32_t* token_ids;
  const int32_t* positions;
  const int32_t* slots;
  const int32_t* qo_indptr;
  const int32_t* kv_indptr;
  const int32_t* kv_indices;
  const int32_t* last_page_len;
  const int32_t* logit_rows;
  float* logits;
  int32_t* greedy;
  int32_t tokens;
  int32_t rows;
  int32_t logit_count;
  int32_t threads;
};

// How one row is drawn (engine/controls.py). mask: a bit for each token that may be, the lowest of
// a word first; none beyond its words; null for all. best: the largest logit of these.
// temperature > 0; top_k: 0 for all; uniform: in [0, 1).
struct OctavoControls {
  const uint32_t* mask;
  double temperature;
  double top_p;
  double min_p;
  double uniform;
  float best;
  int32_t top_k;
  int32_t mask_words;
};

// Rows to draw a token for: logits: where the `vocab` logits of each are.
struct OctavoDraw {
  const float* const* logits;
  const OctavoControls* controls;
  int32_t* tokens;
  int32_t rows;
  int32_t vocab;
  int32_t threads;
};

// Nanoseconds that the first thread spent in each part of the last step, waiting included.
struct OctavoTimes {
  int64_t products;
  int64_t attention;
  int64_t glue;
};
}
