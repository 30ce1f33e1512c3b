// Compiled once for each instruction set, with OCTAVO_ISA as the namespace.
#include "step.h"

#include <omp.h>

#include "sampling.h"

namespace OCTAVO_ISA {

template <class KV>
static void compute(const OctavoModel& model, const OctavoCache& cache, const OctavoStep& step,
                    Workspace& workspace) {
  Step<KV> work(model, cache, step, workspace);
  work.plan();
#pragma omp parallel num_threads(step.threads)
  {
#pragma omp single
    work.gather(omp_get_num_threads());
    work.run(omp_get_thread_num());
  }
}

void* workspace_new() { return new Workspace(); }
void workspace_free(void* workspace) { delete (Workspace*)workspace; }
OctavoTimes workspace_times(void* workspace) { return ((Workspace*)workspace)->times; }

void step(void* workspace, const OctavoModel& model, const OctavoCache& cache,
          const OctavoStep& step) {
  Workspace& w = *(Workspace*)workspace;
  switch (cache.dtype) {
    case OCTAVO_F32: compute<Float32>(model, cache, step, w); break;
    case OCTAVO_BF16: compute<BFloat16>(model, cache, step, w); break;
    default: compute<Int8>(model, cache, step, w); break;
  }
}

template <class KV>
static void attend(const OctavoModel& model, const OctavoCache& cache, const OctavoStep& step,
                   Workspace& workspace, int layer, const float* queries, float* out) {
  Step<KV> work(model, cache, step, workspace);
  work.plan();
#pragma omp parallel num_threads(step.threads)
  {
#pragma omp single
    work.gather(omp_get_num_threads());
    work.attend(layer, queries, out, omp_get_thread_num());
  }
}

void attention(void* workspace, const OctavoModel& model, const OctavoCache& cache,
               const OctavoStep& step, int layer, const float* queries, float* out) {
  Workspace& w = *(Workspace*)workspace;
  switch (cache.dtype) {
    case OCTAVO_F32: attend<Float32>(model, cache, step, w, layer, queries, out); break;
    case OCTAVO_BF16: attend<BFloat16>(model, cache, step, w, layer, queries, out); break;
    default: attend<Int8>(model, cache, step, w, layer, queries, out); break;
  }
}

void draw(const OctavoDraw& work) {
  std::vector<DrawSpace> spaces(work.threads);
#pragma omp parallel for schedule(dynamic) num_threads(work.threads)
  for (int row = 0; row < work.rows; ++row)
    work.tokens[row] = draw_row(work.logits[row], work.controls[row], work.vocab,
                                spaces[omp_get_thread_num()]);
}

void best(const OctavoDraw& work) {
#pragma omp parallel for schedule(dynamic) num_threads(work.threads)
  for (int row = 0; row < work.rows; ++row)
    work.tokens[row] = best_allowed(work.logits[row], Mask(work.controls[row]), work.vocab);
}

// x [rows, inputs] int8 times a matrix, sums as integers [rows, outputs]: to check exactness.
void dots(const OctavoMatrix& m, const int8_t* x, int rows, int32_t* out) {
  const TileRegisters registers;
  std::vector<int8_t> values((size_t)(rows + TILE) * m.inputs);
  std::copy(x, x + (size_t)rows * m.inputs, values.begin());
  const Quantised quantised{values.data(), nullptr, nullptr, m.inputs};
  sums(m, quantised, 0, rows, 0, m.outputs / LANES, [&](int row, int panel, auto& acc) {
    int32_t total = 0;
    for (int i = 0; i < m.inputs; ++i) total += x[(size_t)row * m.inputs + i];
    int32_t* to = out + (size_t)row * m.outputs + panel * LANES;
    for (auto& sixteen : acc) store(to, sixteen - 128 * total), to += LANES;
  });
}

}  // namespace OCTAVO_ISA
