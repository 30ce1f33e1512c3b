// The library's functions, each passed on to the code for this processor's instruction set.
//
// OCTAVO_WITH_… is defined for each instruction set that the compiler knew (engine/native/build.py).
#include <cstring>
#include <new>

#if defined(OCTAVO_WITH_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

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
  void draw(const OctavoDraw&);                                                              \
  void best(const OctavoDraw&);                                                              \
  }

OCTAVO_DECLARE(portable)
#if defined(OCTAVO_WITH_AVX2)
OCTAVO_DECLARE(avx2)
#endif
#if defined(OCTAVO_WITH_AVX512)
OCTAVO_DECLARE(avx512)
#endif
#if defined(OCTAVO_WITH_AMX)
OCTAVO_DECLARE(amx)
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
  void (*draw)(const OctavoDraw&);
  void (*best)(const OctavoDraw&);
};

#define OCTAVO_ENGINE(isa)                                                                    \
  new OctavoEngine {                                                                          \
    #isa, isa::workspace_new(), isa::workspace_free, isa::workspace_times, isa::step, isa::dots, \
    isa::attention, isa::draw, isa::best                                                                 \
  }

#if defined(OCTAVO_WITH_AVX2)
static bool can_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

#if defined(OCTAVO_WITH_AVX512)
static bool can_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}
#endif

#if defined(OCTAVO_WITH_AMX)
// Linux lets a process use tile data only after it has asked to, once for all of its threads:
// https://docs.kernel.org/arch/x86/xstate.html
static bool allowed_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
  return false;
#endif
}

static bool can_amx() {
  static const bool can = can_avx512() && __builtin_cpu_supports("avx512bf16") &&
                          __builtin_cpu_supports("amx-tile") &&
                          __builtin_cpu_supports("amx-int8") &&
                          __builtin_cpu_supports("amx-bf16") && allowed_tiles();
  return can;
}
#endif

struct InstructionSet {
  const char* name;
  bool (*here)();
  OctavoEngine* (*make)();
};

// The best one first.
static const InstructionSet SETS[] = {
#if defined(OCTAVO_WITH_AMX)
    {"amx", can_amx, [] { return OCTAVO_ENGINE(amx); }},
#endif
#if defined(OCTAVO_WITH_AVX512)
    {"avx512", can_avx512, [] { return OCTAVO_ENGINE(avx512); }},
#endif
#if defined(OCTAVO_WITH_AVX2)
    {"avx2", can_avx2, [] { return OCTAVO_ENGINE(avx2); }},
#endif
    {"portable", [] { return true; }, [] { return OCTAVO_ENGINE(portable); }},
};

extern "C" {

// An engine for the instruction set of this name, or for the best one here if it is null or empty;
// null if it cannot be used here. Not to be used by two threads at once.
OctavoEngine* octavo_engine_new(const char* name) {
  const bool any = !name || !*name;
  for (const InstructionSet& set : SETS)
    if ((any || !std::strcmp(name, set.name)) && set.here()) return set.make();
  return nullptr;
}

// Whether the processor, its operating system and the compiler have the instruction set of this
// name.
int32_t octavo_has(const char* name) {
  for (const InstructionSet& set : SETS)
    if (!std::strcmp(name, set.name)) return set.here();
  return 0;
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

// A token for each row. 0, or 1 if memory ran out.
int32_t octavo_draw(const OctavoEngine* engine, const OctavoDraw* draw) {
  try {
    engine->draw(*draw);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// The best token that the mask of each row allows; -1 if there is none with a finite logit.
void octavo_best(const OctavoEngine* engine, const OctavoDraw* draw) { engine->best(*draw); }
}
