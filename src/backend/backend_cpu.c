#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/onednn.h"
#include "backend/cpu/processor.h"
#include "base/memory.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __clang__
#define COMPILER __VERSION__ /* which has its name */
#else
#define COMPILER "gcc " __VERSION__
#endif

typedef struct isa_row {
  const char *name;
  bool (*supported)(void);
  const ts_kernel *(*kernels)(ts_op op);
  const ts_cpu_loops *(*loops)(void);
} isa_row;

static bool always(void) {
  return true;
}

#ifdef __x86_64__
static bool has_v3(void) {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}

static bool has_v4(void) {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

/* In rising order. */
static const isa_row rows[] = {
    {"generic", always, ts_cpu_kernels_generic, ts_cpu_loops_generic},
#ifdef __x86_64__
    {"v3", has_v3, ts_cpu_kernels_v3, ts_cpu_loops_v3},
    {"v4", has_v4, ts_cpu_kernels_v4, ts_cpu_loops_v4},
#endif
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static const isa_row *chosen;

/* The best there is, or what TESSERA_ISA asks for: never more than the processor has. */
static void choose_isa(void) {
  const char *wanted = getenv("TESSERA_ISA");
  const isa_row *best = &rows[0];
  bool known = wanted == NULL;
  for (int i = 0; i < N_ROWS; ++i) {
    bool named = wanted != NULL && strcmp(wanted, rows[i].name) == 0;
    TS_CHECK(!named || rows[i].supported(), "TESSERA_ISA=%s: this processor does not have it", wanted);
    best = rows[i].supported() && !(known && wanted != NULL) ? &rows[i] : best;
    known = known || named;
  }
  TS_CHECK(known, "TESSERA_ISA=%s is unknown; accepted: generic, v3, v4", wanted);
  if (wanted != NULL) {
    ts_onednn_limit(wanted);
  }
  chosen = best;
}

static const isa_row *isa(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, choose_isa);
  return chosen;
}

const ts_cpu_loops *ts_cpu_loops_best(void) {
  return isa()->loops();
}

static const ts_kernel *cpu_kernel(ts_op op) {
  const ts_kernel *row = ts_cpu_matmul(op);
  row = row->run != NULL ? row : ts_cpu_head(op);
  row = row->run != NULL ? row : ts_backend_nested(op);
  return row->run != NULL ? row : isa()->kernels(op);
}

static const char *describe_cpu(void) {
  static char text[128];
  bool last = isa() == &rows[N_ROWS - 1]; /* those below have no bf16 to leave unused */
  bool widened = last && ts_processor_has_bf16() && !ts_processor_has_fast_bf16();
  snprintf(text, sizeof text, "oneDNN %s, %s kernels%s, %s", ts_onednn_describe(), isa()->name,
           widened ? ", bf16 widened" : "", COMPILER);
  return text;
}

/* What a process grows by beside the arenas, from before the engine is made to its end: the largest of runs on 1 to 4
 * ranks, stages 0 to 3, fp32 and bf16, 1 and 2 threads (9 layers, oneDNN 2.6, MPICH 4.0 in one node), by
 * /proc/self/smaps, rounded up:
 *   pages of code and constants first used   5.6 MB (oneDNN 4.9)
 *   code that oneDNN generates, stacks       4.2 MB
 *   graphs, schedules, primitives on heap    4.7 MB, some 0.4 MB a layer
 *   MPI                                      0.7 MB with one other rank, 0.1 MB for each further one */
const ts_reserve ts_cpu_reserves[] = {
    {"code and constants", 6 << 20, 0, 0, 0},
    {"oneDNN (generated code), stacks", 5 << 20, 0, 0, 0},
    {"tables of programs, C library", 6 << 20, 0, 0, 0},
    {"MPI", 1 << 20, 0, 256 << 10, 0},
    {NULL, 0, 0, 0, 0},
};

const ts_backend *ts_backend_cpu(void) {
  static const ts_backend backend = {.name = "cpu",
                                     .kernel = cpu_kernel,
                                     .allocate = ts_map,
                                     .release = ts_unmap,
                                     .describe = describe_cpu,
                                     .has_bf16 = ts_onednn_has_bf16,
                                     .reserves = ts_cpu_reserves};
  isa(); /* an unknown TESSERA_ISA is reported before any work */
  return &backend;
}
