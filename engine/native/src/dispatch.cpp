// The library's functions, each passed on to the code for this processor's instruction set.
#include <cstring>
#include <new>

#include "abi.h"

#define OCTAVO_DECLARE(isa)                                                                  \
  namespace isa {                                                                            \
  void* workspace_new();                                                                     \
  void workspace_free(void*);                                                                \
  OctavoTimes workspace_times(void*);                                                        \
  void step(void*, const OctavoModel&, const OctavoCache&, const OctavoStep&);               \
  void dots(const OctavoMatrix&, const int8_t*, int, int32_t*);                              \
  void attention(void*, const OctavoModel&, const OctavoCache&, const OctavoStep&, int,      \
                 const float*, float*);                                                      \
  }


OCTAVO_DECLARE(portable)
#if defined(__x86_64__)
OCTAVO_DECLARE(avx2)
OCTAVO_DECLARE(avx512)
#endif

struct OctavoEngine {
  const char* name;
  void* workspace;
  void (*workspace_free)(void*);
  OctavoTimes (*times)(void*);
  void (*step)(void*, const OctavoModel&, const OctavoCache&, const OctavoStep&);
  void (*dots)(const OctavoMatrix&, const int8_t*, int, int32_t*);
  void (*attention)(void*, const OctavoModel&, const OctavoCache&, const OctavoStep&, int,
                    const float*, float*);
};

#define OCTAVO_ENGINE(isa)                                                                    \
  new OctavoEngine {                                                                          \
    #isa, isa::workspace_new(), isa::workspace_free, isa::workspace_times, isa::step, isa::dots, \
    isa::attention                                                                            \
  }

static bool can_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

static bool can_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

extern "C" {

// An engine for the instruction set of this name, or for the best one here if it is null or empty;
// null if the processor lacks it. Not to be used by two threads at once.
OctavoEngine* octavo_engine_new(const char* name) {
  const bool any = !name || !*name;
#if defined(__x86_64__)
  if ((any || !std::strcmp(name, "avx512")) && can_avx512()) return OCTAVO_ENGINE(avx512);
  if ((any || !std::strcmp(name, "avx2")) && can_avx2()) return OCTAVO_ENGINE(avx2);
#endif
  if (any || !std::strcmp(name, "portable")) return OCTAVO_ENGINE(portable);
  return nullptr;
}

// Whether the processor has the instruction set of this name.
int32_t octavo_has(const char* name) {
  if (!std::strcmp(name, "avx512")) return can_avx512();
  if (!std::strcmp(name, "avx2")) return can_avx2();
  return !std::strcmp(name, "portable");
}

void octavo_engine_free(OctavoEngine* engine) {
  engine->workspace_free(engine->workspace);
  delete engine;
}

const char* octavo_engine_name(const OctavoEngine* engine) { return engine->name; }

// 0, or 1 if memory ran out.
int32_t octavo_step(OctavoEngine* engine, const OctavoModel* model, const OctavoCache* cache,
                    const OctavoStep* step) {
  try {
    engine->step(engine->workspace, *model, *cache, *step);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

void octavo_times(const OctavoEngine* engine, OctavoTimes* times) {
  *times = engine->times(engine->workspace);
}

void octavo_dots(const OctavoEngine* engine, const OctavoMatrix* matrix, const int8_t* x,
                 int32_t rows, int32_t* out) {
  engine->dots(*matrix, x, rows, out);
}

// Attention of one layer over KV that is there; queries, out [tokens, heads * head_dim].
void octavo_attention(const OctavoEngine* engine, const OctavoModel* model,
                      const OctavoCache* cache, const OctavoStep* step, int32_t layer,
                      const float* queries, float* out) {
  engine->attention(engine->workspace, *model, *cache, *step, layer, queries, out);
}
}
