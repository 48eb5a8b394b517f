/* Training steps of a deck, in units of the GEMM peak of the same run.
 *
 *     mpiexec -n RANKS benchmarks/step DECK STEPS [key=value ...]
 *
 * First the peak: the best of five square products up to 4096^3 in the deck's working dtype, through the same kernels with
 * the same threads, on all ranks at once.  Then steps on made-up tokens; the median counts.  Model FLOPs are the causal half,
 * 6 N + 6 L C T a token (run/program.h).  The table says where the median step's time went, by op, on rank 0. */
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/peak.h"
#include "engine/tessera.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 100 };

static int by_value(const void *a, const void *b) {
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

/* ---- the peak ---- */

static double find_peak(ts_dtype dtype, int threads) {
  static const int64_t sizes[] = {512, 1024, 2048, 3072, 4096};
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    double rate = ts_product_flops(sizes[i], dtype, threads, 0.5);
    best = rate > best ? rate : best;
  }
  return best;
}

/* ---- time by op ---- */

typedef struct profile {
  double seconds[TS_N_OPS];
  int calls[TS_N_OPS];
} profile;

static void observe(void *user, const ts_node *node, bool collective, double start, double seconds) {
  (void) collective;
  (void) start;
  profile *p = user;
  p->seconds[node->op] += seconds;
  ++p->calls[node->op];
}

static void print_profile(const profile *p, int steps, double step_seconds) {
  printf("  %-18s %10s %8s %8s\n", "op", "calls/step", "ms/step", "% step");
  for (int left = TS_N_OPS, done = 0; done < left; ++done) {
    int best = -1;
    static bool shown[TS_N_OPS];
    for (int op = 0; op < TS_N_OPS; ++op) {
      best = !shown[op] && p->calls[op] > 0 && (best < 0 || p->seconds[op] > p->seconds[best]) ? op : best;
    }
    if (best < 0) {
      return;
    }
    shown[best] = true;
    printf("  %-18s %10.1f %8.2f %7.1f%%\n", ts_op_get((ts_op) best)->name, (double) p->calls[best] / steps,
           1e3 * p->seconds[best] / steps, 100 * p->seconds[best] / steps / step_seconds);
  }
}

/* ---- steps ---- */

static double one_step(ts_engine *engine, const ts_deck *deck, const int32_t *tokens, const int64_t *samples) {
  double start = ts_seconds();
  for (int64_t m = 0; m < deck->gradient_accumulation_steps; ++m) {
    ts_engine_micro_batch(engine, tokens, samples);
  }
  ts_engine_step(engine, (const double[2]){0, 0});
  return ts_seconds() - start;
}

static double run_steps(ts_engine *engine, ts_world *world, const ts_deck *deck, int steps, profile *p) {
  int64_t batch = deck->train_micro_batch_size_per_gpu, n = batch * (deck->data.sequence_length + 1);
  int32_t *tokens = ts_malloc((size_t) n * sizeof *tokens);
  int64_t *samples = ts_calloc((size_t) batch, sizeof *samples);
  for (int64_t i = 0; i < n; ++i) {
    tokens[i] = (int32_t) (ts_mix((uint64_t) ts_world_rank(world), (uint64_t) i) % (uint64_t) deck->model.vocab_size);
  }
  double seconds[MOST_STEPS];
  one_step(engine, deck, tokens, samples);
  *p = (profile){0};
  for (int s = 0; s < steps; ++s) {
    ts_comm *all = ts_world_all(world);
    all->ops->barrier(all);
    seconds[s] = one_step(engine, deck, tokens, samples);
  }
  ts_free(tokens);
  ts_free(samples);
  qsort(seconds, (size_t) steps, sizeof *seconds, by_value);
  return seconds[steps / 2];
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  ts_error err = {0};
  ts_deck *deck = NULL;
  ts_engine *engine = NULL;
  TS_CHECK(argc >= 3, "usage: %s DECK STEPS [key=value ...]", argv[0]);
  int steps = atoi(argv[2]) > 0 && atoi(argv[2]) < MOST_STEPS ? atoi(argv[2]) : 5;
  TS_CHECK(ts_deck_read(argv[1], argv + 3, argc - 3, &deck, &err) == TS_OK &&
               ts_deck_resolve_batch(deck, ts_world_size(world), &err) == TS_OK, "%s", err.text);
  int threads = ts_engine_threads(deck, ts_world_local_size(world));
  double peak = find_peak(deck->bf16.enabled ? TS_BF16 : TS_F32, threads) * ts_world_size(world);
  profile p;
  const ts_engine_options options = {.world = world, .deck = deck, .abilities = TS_CAN_TRAIN, .observer = observe, .observer_user = &p};
  TS_CHECK(ts_engine_create(&options, &engine, &err) == TS_OK, "%s", err.text);
  double seconds = run_steps(engine, world, deck, steps, &p);
  if (ts_world_rank(world) == 0) {
    double flops = ts_program_model_flops(ts_engine_program(engine), NULL) * (double) (deck->gradient_accumulation_steps * ts_world_size(world));
    double tokens = (double) (deck->train_batch_size * deck->data.sequence_length);
    printf("%d ranks x %d threads, %s, stage %lld: peak %.1f GFLOP/s, step %.1f ms, %.0f tokens/s, %.1f GFLOP/s = %.1f %% of peak\n",
           ts_world_size(world), threads, deck->bf16.enabled ? "bf16" : "fp32", (long long) deck->zero_optimization.stage,
           1e-9 * peak, 1e3 * seconds, tokens / seconds, 1e-9 * flops / seconds, 100 * flops / seconds / peak);
    print_profile(&p, steps, seconds);
  }
  ts_engine_destroy(&engine);
  ts_deck_destroy(&deck);
  ts_world_destroy(&world);
  return 0;
}
