// One step: from the arrays of a batch to logits, all layers, all threads.
//
//     norm + quantise | qkv | rotate + write KV | attention | merge + quantise | out, residual
//     norm + quantise | gate, up, silu | quantise | down, residual
//
// Each part is a stage; a barrier stands between two of them. Products and attention are taken
// piece by piece, the rest is split evenly.
#pragma once
#include <chrono>
#include <cmath>
#include <vector>

#include "abi.h"
#include "attention.h"
#include "attention_float.h"
#include "attention_int8.h"
#include "product.h"
#include "rows.h"
#include "team.h"
#include "vector.h"

namespace OCTAVO_ISA {

#if defined(__AMX_INT8__)
constexpr int PRODUCT_ROWS = 256;  // of one piece of work
#else
constexpr int PRODUCT_ROWS = 96;
#endif

// Memory that steps work in; it grows to what the largest step needed.
struct Workspace {
  std::vector<float> x, qkv, seen, inner, partial_values;
  std::vector<Partial> partials;
  std::vector<int8_t> bytes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  std::vector<Tile> tiles;
  std::vector<float> lines;
  octavo::Team team;
  OctavoTimes times;
};

template <class T>
static inline void reserve(std::vector<T>& memory, size_t n) {
  if (memory.size() < n) memory.resize(n);
}

// A piece of attention, for each KV head: one split of a single query, or a few queries of a chunk.
struct Piece {
  int32_t row;
  int32_t query;  // the first one, of the row
  int32_t queries;
  int32_t split;    // of a single query; -1 for a chunk's tile, which goes through all
  int32_t partial;  // where a single query's splits are, in units of heads
};
template <class KV>
class Step {
 public:
  Step(const OctavoModel& m, const OctavoCache& c, const OctavoStep& s, Workspace& w)
      : m_(m), c_(c), s_(s), w_(w) {
    group_ = m.heads / m.kv_heads;
    width_ = m.heads * m.head_dim;
    qkv_width_ = m.layers[0].qkv.outputs;
    const size_t n = s.tokens;
    stride_ = std::max({m.hidden, width_, m.ffn}) + 64;
    stride_ -= stride_ % 64;
    reserve(w.x, n * m.hidden);
    reserve(w.qkv, n * qkv_width_);
    reserve(w.seen, n * width_);
    reserve(w.inner, n * m.ffn);
    reserve(w.bytes, (n + TILE) * stride_);  // the last tile of rows is read as a whole
    reserve(w.scales, n);
    reserve(w.sums, n);
    reserve(w.tiles, s.threads);
    reserve(w.lines, (size_t)s.threads * stride_);
    scale_ = 1.44269504088896341f / std::sqrt((float)m.head_dim);
    quantised_ = {w.bytes.data(), w.scales.data(), w.sums.data(), stride_};
    w.times = {};
  }

  // How many threads really came, which may be fewer than were asked for: before any of them runs.
  void gather(int threads) {
    threads_ = threads;
    w_.team.gather(threads, m_.layer_count * 5 + 1);
  }

  void run(int me) {
    const TileRegisters registers;
    Clock clock(me == 0 ? &w_.times : nullptr);
    for (int t = begin(me, s_.tokens); t < begin(me + 1, s_.tokens); ++t) {
      const int id = s_.token_ids[t];
      embed(m_.embedding, m_.embedding_unsmooth, id, &w_.x[(size_t)t * m_.hidden]);
    }
    // Each thread norms the rows it embedded, so no barrier is needed here.
    for (int l = 0; l < m_.layer_count; ++l) layer(l, me, clock);
    logits(me, clock);
  }

 private:
  // Adds up the time of parts on the first thread.
  class Clock {
   public:
    explicit Clock(OctavoTimes* times) : times_(times), last_(now()) {}
    void lap(int64_t OctavoTimes::*part) {
      if (!times_) return;
      const int64_t at = now();
      times_->*part += at - last_;
      last_ = at;
    }

   private:
    static int64_t now() {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(
                 std::chrono::steady_clock::now().time_since_epoch())
          .count();
    }
    OctavoTimes* times_;
    int64_t last_;
  };

  int begin(int thread, int n) const { return (int)((int64_t)n * thread / threads_); }

  float* line(int me) { return &w_.lines[(size_t)me * stride_]; }

  void layer(int l, int me, Clock& clock) {
    const OctavoLayer& layer = m_.layers[l];
    const int stage = l * 5;
    norm_rows(layer.attn_norm, me);
    w_.team.wait();
    clock.lap(&OctavoTimes::glue);
    multiply(layer.qkv, s_.tokens, stage, [&](int row, int column, auto& values) {
      float* to = &w_.qkv[(size_t)row * qkv_width_ + column];
      for (auto& v : values) store(to, v), to += LANES;
    });
    w_.team.wait();
    clock.lap(&OctavoTimes::products);
    for (int t = begin(me, s_.tokens); t < begin(me + 1, s_.tokens); ++t) rotate_and_write(l, t);
    w_.team.wait();
    clock.lap(&OctavoTimes::glue);
    attention(l, stage + 1, me);
    w_.team.wait();
    clock.lap(&OctavoTimes::attention);
    merge_rows(me);
    for (int t = begin(me, s_.tokens); t < begin(me + 1, s_.tokens); ++t) {
      const float* seen = &w_.seen[(size_t)t * width_];
      quantise(quantised_, t, width_, line(me), [&](int i) {
        return load<f32x16>(seen + i) * load<f32x16>(layer.out_smooth + i);
      });
    }
    w_.team.wait();
    clock.lap(&OctavoTimes::glue);
    multiply(layer.out, s_.tokens, stage + 2, residual());
    w_.team.wait();
    clock.lap(&OctavoTimes::products);
    norm_rows(layer.ffn_norm, me);
    w_.team.wait();
    clock.lap(&OctavoTimes::glue);
    multiply(layer.gate_up, s_.tokens, stage + 3, [&](int row, int column, auto& values) {
      float* to = &w_.inner[(size_t)row * m_.ffn + column / 2];
      const float* smooth = layer.down_smooth + column / 2;
      constexpr int V = sizeof(values) / sizeof(values[0]);
      if constexpr (V > 1)
        for (int v = 0; v < V; v += 2, to += LANES, smooth += LANES) {
          store(to, silu(values[v]) * values[v + 1] * load<f32x16>(smooth));
        }
    });
    w_.team.wait();
    clock.lap(&OctavoTimes::products);
    for (int t = begin(me, s_.tokens); t < begin(me + 1, s_.tokens); ++t) {
      const float* inner = &w_.inner[(size_t)t * m_.ffn];
      quantise(quantised_, t, m_.ffn, line(me), [&](int i) { return load<f32x16>(inner + i); });
    }
    w_.team.wait();
    clock.lap(&OctavoTimes::glue);
    multiply(layer.down, s_.tokens, stage + 4, residual());
    w_.team.wait();
    clock.lap(&OctavoTimes::products);
  }

  void norm_rows(const float* weight, int me) {
    for (int t = begin(me, s_.tokens); t < begin(me + 1, s_.tokens); ++t)
      norm_quantise(quantised_, t, &w_.x[(size_t)t * m_.hidden], weight, m_.hidden, m_.norm_eps,
                    line(me));
  }

  auto residual() {
    return [this](int row, int column, auto& values) {
      float* to = &w_.x[(size_t)row * m_.hidden + column];
      int left = m_.hidden - column;
      for (auto& v : values) {
        if (left >= LANES) store(to, load<f32x16>(to) + v);
        else for (int i = 0; i < left; ++i) to[i] += v[i];
        to += LANES;
        left -= LANES;
      }
    };
  }

  // A product, piece by piece: a few panels for up to PRODUCT_ROWS rows. Neighbouring pieces share
  // their panels.
  template <class Put>
  void multiply(const OctavoMatrix& matrix, int rows, int stage, const Put& put) {
    const int panels = matrix.outputs / LANES;
    // Few panels a piece where there is little to share out.
    const int wide = panels > 16 * threads_ ? 4 * TILE_PANELS : TILE_PANELS;
    const int across = (panels + wide - 1) / wide;
    const int down = (rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
    for (int piece; (piece = w_.team.take(stage)) < across * down;) {
      const int first = piece / down * wide, top = piece % down * PRODUCT_ROWS;
      const int last = std::min(first + wide, panels);
      for (int panel = first; panel < last; panel += TILE_PANELS)
        product(matrix, quantised_, top, std::min(top + PRODUCT_ROWS, rows), panel,
                std::min(TILE_PANELS, last - panel), put);
    }
  }

  int64_t layer_blocks(int l) const { return (int64_t)l * c_.blocks; }

  void rotate_and_write(int l, int t) {
    typedef typename KV::Element Element;
    const OctavoLayer& layer = m_.layers[l];
    const int n = m_.head_dim;
    float* row = &w_.qkv[(size_t)t * qkv_width_];
    const float* cos = m_.cos + (int64_t)s_.positions[t] * (n / 2);
    const float* sin = m_.sin + (int64_t)s_.positions[t] * (n / 2);
    for (int h = 0; h < m_.heads; ++h) norm_rotate(row + h * n, n, layer.q_norm, m_.norm_eps, cos, sin);
    const int block = s_.slots[t] / BLOCK, offset = s_.slots[t] % BLOCK;
    for (int h = 0; h < m_.kv_heads; ++h) {
      float* k = row + width_ + h * n;
      const float* v = row + width_ + (m_.kv_heads + h) * n;
      norm_rotate(k, n, layer.k_norm, m_.norm_eps, cos, sin);
      const int64_t place = (layer_blocks(l) + block) * m_.kv_heads + h;
      float* scales = nullptr;
      float* value_scales = nullptr;
      if (KV::scaled) {
        scales = c_.key_scales + place * BLOCK;
        value_scales = c_.value_scales + place * BLOCK;
      }
      write_kv(KV{}, (Element*)c_.keys + place * n * BLOCK, (Element*)c_.values + place * n * BLOCK,
               scales, value_scales, offset, k, v, n);
    }
  }

 public:
  // Attention of one layer alone, over KV that is there: queries and out [tokens, heads * head_dim].
  void attend(int l, const float* queries, float* out, int me) {
    const TileRegisters registers;
    for (int t = begin(me, s_.tokens); t < begin(me + 1, s_.tokens); ++t)
      std::memcpy(&w_.qkv[(size_t)t * qkv_width_], queries + (size_t)t * width_,
                  sizeof(float) * width_);
    w_.team.wait();
    attention(l, 0, me);
    w_.team.wait();
    merge_rows(me);
    w_.team.wait();
    for (int t = begin(me, s_.tokens); t < begin(me + 1, s_.tokens); ++t)
      std::memcpy(out + (size_t)t * width_, &w_.seen[(size_t)t * width_], sizeof(float) * width_);
  }

  // What attention has to do, the same for all layers of a window. Before the threads start.
  void plan() {
    plan_single_.resize(s_.rows);
    pieces_.clear();
    int partials = 0;
    const int most = std::max(1, MOST_TILE_ROWS / group_);
    for (int r = 0; r < s_.rows; ++r) {
      const int queries = s_.qo_indptr[r + 1] - s_.qo_indptr[r];
      const int kv = kv_len(r);
      if (queries == 1) {
        plan_single_[r] = partials;
        const int splits = (kv + SPLIT - 1) / SPLIT;
        for (int split = 0; split < splits; ++split)
          pieces_.push_back({r, 0, 1, split, partials + split});
        partials += splits;
      } else {
        plan_single_[r] = -1;
        // The last queries see most: begin with them.
        for (int q = queries; q > 0; q -= most) {
          const int first = std::max(0, q - most);
          pieces_.push_back({r, first, q - first, -1, 0});
        }
      }
    }
    reserve(w_.partials, (size_t)partials * m_.heads);
    reserve(w_.partial_values, (size_t)partials * width_);
  }

 private:
  int kv_len(int row) const {
    const int blocks = s_.kv_indptr[row + 1] - s_.kv_indptr[row];
    return (blocks - 1) * BLOCK + s_.last_page_len[row];
  }

  Pages<KV> pages(int l, int row, int head) const {
    typedef typename KV::Element Element;
    const int64_t first = layer_blocks(l) * m_.kv_heads + head;
    const int64_t size = (int64_t)m_.head_dim * BLOCK;
    return {(const Element*)c_.keys + first * size,
            (const Element*)c_.values + first * size,
            KV::scaled ? c_.key_scales + first * BLOCK : nullptr,
            KV::scaled ? c_.value_scales + first * BLOCK : nullptr,
            size * m_.kv_heads,
            (int64_t)BLOCK * m_.kv_heads,
            s_.kv_indices + s_.kv_indptr[row],
            m_.head_dim};
  }

  void attention(int l, int stage, int me) {
    Tile& tile = w_.tiles[me];
    const int total = (int)pieces_.size() * m_.kv_heads;
    for (int at; (at = w_.team.take(stage)) < total;) {
      const Piece& piece = pieces_[at / m_.kv_heads];
      const int head = at % m_.kv_heads;
      const Pages<KV> p = pages(l, piece.row, head);
      const int rows = piece.queries * group_;
      gather(l, piece, head, tile);
      prepare_queries(p, tile, rows);
      Partial partials[MOST_TILE_ROWS];
      if (piece.split >= 0) {
        attend_split(p, tile, rows, piece.split, partials);
        for (int g = 0; g < group_; ++g) {
          const size_t place = (size_t)piece.partial * m_.heads + head * group_ + g;
          w_.partials[place] = partials[g];
          std::memcpy(&w_.partial_values[place * m_.head_dim], tile.values + g * m_.head_dim,
                      sizeof(float) * m_.head_dim);
        }
      } else {
        attend_all(p, tile, piece, head, rows);
      }
    }
  }

  // Queries of a tile, scaled, and what each sees.
  void gather(int l, const Piece& piece, int head, Tile& tile) {
    const int n = m_.head_dim, window = m_.layers[l].window;
    const int first = s_.qo_indptr[piece.row] + piece.query;
    const int before = kv_len(piece.row) - (s_.qo_indptr[piece.row + 1] - s_.qo_indptr[piece.row]);
    for (int i = 0; i < piece.queries; ++i)
      for (int g = 0; g < group_; ++g) {
        const float* q = &w_.qkv[(size_t)(first + i) * qkv_width_ + (head * group_ + g) * n];
        float* to = tile.q + (i * group_ + g) * n;
        for (int d = 0; d < n; ++d) to[d] = q[d] * scale_;
        const int hi = before + piece.query + i + 1;
        tile.hi[i * group_ + g] = hi;
        tile.lo[i * group_ + g] = window > 0 ? std::max(0, hi - window) : 0;
      }
  }

  // A chunk's tile through all splits, merged as they come.
  void attend_all(const Pages<KV>& p, Tile& tile, const Piece& piece, int head, int rows) {
    const int n = m_.head_dim;
    alignas(64) float values[MOST_TILE_ROWS * MOST_HEAD_DIM];
    Partial all[MOST_TILE_ROWS], partials[MOST_TILE_ROWS];
    for (int r = 0; r < rows; ++r) all[r] = {NOTHING, 0};
    const int from = tile.lo[0] / SPLIT, to = (tile.hi[rows - 1] + SPLIT - 1) / SPLIT;
    for (int split = from; split < to; ++split) {
      attend_split(p, tile, rows, split, partials);
      for (int r = 0; r < rows; ++r) {
        if (partials[r].most == NOTHING) continue;
        if (all[r].most == NOTHING) {
          all[r] = partials[r];
          std::memcpy(values + r * n, tile.values + r * n, sizeof(float) * n);
        } else {
          merge(&all[r], values + r * n, partials[r], tile.values + r * n, n);
        }
      }
    }
    const int first = s_.qo_indptr[piece.row] + piece.query;
    for (int i = 0; i < piece.queries; ++i)
      for (int g = 0; g < group_; ++g)
        put_seen(first + i, head * group_ + g, values + (i * group_ + g) * n, all[i * group_ + g]);
  }

  void put_seen(int token, int head, const float* values, const Partial& all) {
    const int n = m_.head_dim;
    float* to = &w_.seen[(size_t)token * width_ + head * n];
    const float inverse = 1.0f / all.total;
    for (int d = 0; d < n; d += LANES) store(to + d, load<f32x16>(values + d) * inverse);
  }

  // Put the splits of single queries together, in the same order as a chunk does.
  void merge_rows(int me) {
    for (int r = 0; r < s_.rows; ++r) {
      const int token = s_.qo_indptr[r];
      if (plan_single_[r] < 0 || token < begin(me, s_.tokens) || token >= begin(me + 1, s_.tokens))
        continue;
      const int splits = (kv_len(r) + SPLIT - 1) / SPLIT;
      for (int h = 0; h < m_.heads; ++h) {
        Partial all = {NOTHING, 0};
        float* values = nullptr;
        for (int split = 0; split < splits; ++split) {
          const size_t place = (size_t)(plan_single_[r] + split) * m_.heads + h;
          const Partial& partial = w_.partials[place];
          if (partial.most == NOTHING) continue;
          float* part = &w_.partial_values[place * m_.head_dim];
          if (!values) all = partial, values = part;
          else merge(&all, values, partial, part, m_.head_dim);
        }
        put_seen(token, h, values, all);
      }
    }
  }

  void logits(int me, Clock& clock) {
    const int n = s_.logit_count;
    for (int i = begin(me, n); i < begin(me + 1, n); ++i)
      norm_quantise(quantised_, i, &w_.x[(size_t)s_.logit_rows[i] * m_.hidden], m_.final_norm,
                    m_.hidden, m_.norm_eps, line(me));
    w_.team.wait();
    clock.lap(&OctavoTimes::glue);
    multiply(m_.head, n, m_.layer_count * 5, [&](int row, int column, auto& values) {
      float* to = s_.logits + (int64_t)row * m_.vocab + column;
      int left = m_.vocab - column;
      for (auto& v : values) {
        if (left >= LANES) store(to, v);
        else if (left > 0) for (int i = 0; i < left; ++i) to[i] = v[i];
        to += LANES;
        left -= LANES;
      }
    });
    w_.team.wait();
    clock.lap(&OctavoTimes::products);
    for (int i = begin(me, n); i < begin(me + 1, n); ++i)
      s_.greedy[i] = best(s_.logits + (int64_t)i * m_.vocab, m_.vocab);
    w_.team.wait();
    clock.lap(&OctavoTimes::glue);
  }

  // The index of the largest logit, the first of equals; -1 if one is NaN or the largest infinite.
  static int best(const float* logits, int n) {
    f32x16 peak = splat(-INFINITY), total = {};
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
      const f32x16 v = load<f32x16>(logits + i);
      peak = largest(v, peak);
      total += v * 0.0f;  // 0, but NaN for NaN and infinity
    }
    float most = maximum(peak), unfit = sum(total);
    for (; i < n; ++i) {
      most = logits[i] > most ? logits[i] : most;
      unfit += logits[i] * 0.0f;
    }
    if (!(unfit == 0.0f)) return -1;
    int j = 0;
    while (logits[j] != most) ++j;
    return j;
  }

  const OctavoModel& m_;
  const OctavoCache& c_;
  const OctavoStep& s_;
  Workspace& w_;
  Quantised quantised_;
  std::vector<Piece> pieces_;
  std::vector<int32_t> plan_single_;
  int threads_ = 1;
  int group_, width_, qkv_width_;
  int64_t stride_;
  float scale_;
};

}  // namespace OCTAVO_ISA
