/* Training steps of a deck, in units of the GEMM peak of the same run.
 *
 *     mpiexec -n RANKS benchmarks/step [-v] [-t] DECK STEPS [key=value ...]
 *
 * -v: what is measured to choose algorithms is printed.
 * -t: every step waits for a line of standard input and says its milliseconds, so that another program's steps can be
 *     in between (benchmarks/peer.py).
 * First the peak: the best of five square products up to 4096^3 (on a GPU: one of 8192^3) in the deck's working dtype,
 * through the same kernels with the same threads, on all ranks at once.  Then steps on made-up tokens; the median
 * counts.  A processor that others share has no one speed: so there a few such products stand beside each step, and the
 * median of the steps' parts of those before and behind them is the other figure; a third one is that of the fastest
 * quarter of the steps and the fastest of all products, as nothing makes these faster.  Model FLOPs are the causal
 * half, 6 N + 6 L C T a token, and on a GPU also 6 N + 12 L C T, each as a part of the datasheet's rate
 * (run/program.h).  The table says where the time of a few more steps went that were observed, by op and by what its
 * nodes work on, on rank 0, and how much of it nothing goes below: the operations at that peak or, on a GPU, the bytes
 * that must move at the rate of a copy, whichever takes longer. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "engine/measure.h"
#include "engine/peak.h"
#include "engine/workings.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 100 };

typedef struct step_times {
  double seconds, communication, exposed;
  double bubble; /* of a pipeline */
  double forward, backward, update;
} step_times;

static int by_seconds(const void *a, const void *b) {
  double x = ((const step_times *) a)->seconds, y = ((const step_times *) b)->seconds;
  return (x > y) - (x < y);
}

/* ---- the peak ---- */

typedef struct yardstick {
  const ts_backend *backend;
  ts_dtype dtype;
  int threads;
  int64_t size; /* of the square product whose rate is the peak */
  double peak;  /* of a rank */
} yardstick;

static double rate_of_square(const yardstick *y, int64_t size, bool typical) {
  return ts_product_flops(y->backend, &(ts_product_shape){size, size, size, false, false}, y->dtype, y->threads, 0.5,
                          typical);
}

static void find_peak(yardstick *y) {
  static const int64_t sizes[] = {512, 1024, 2048, 3072, 4096, 8192};
  bool device = y->backend->device != NULL;
  for (int i = device ? 5 : 0; i < (device ? 6 : 5); ++i) {
    double rate = rate_of_square(y, sizes[i], false);
    y->size = rate > y->peak ? sizes[i] : y->size;
    y->peak = rate > y->peak ? rate : y->peak;
  }
}

/* ---- time by op ---- */

enum { MOST_KINDS = 512 };

/* Nodes of one op that do the same work: FLOPs, bytes and the extents of two inputs. */
typedef struct kind {
  const ts_node *node; /* one of them */
  double flops, bytes, seconds;
  int calls;
} kind;

typedef struct profile {
  const ts_graph *graph;
  kind kind[MOST_KINDS];
  int n;
  pthread_mutex_t lock;
} profile;

static bool same_extents(const ts_graph *graph, const ts_node *a, const ts_node *b) {
  bool same = a->n_in == b->n_in && (a->op != TS_OP_MATMUL || ts_attributes_equal(a, b));
  for (int i = 0; i < 2 && i < a->n_in && same; ++i) {
    same = a->in[i] == TS_NONE || b->in[i] == TS_NONE
               ? a->in[i] == b->in[i]
               : ts_shape_equal(&graph->tensor[a->in[i]].shape, &graph->tensor[b->in[i]].shape);
  }
  return same;
}

/* On processors collectives are observed by a thread of their own. */
static void observe(void *user, const ts_node *node, bool collective, double start, double seconds) {
  (void) collective;
  (void) start;
  profile *p = user;
  pthread_mutex_lock(&p->lock);
  double flops = ts_node_flops(p->graph, node), bytes = ts_node_bytes(p->graph, node);
  int i = 0;
  while (i < p->n && (p->kind[i].node->op != node->op || p->kind[i].flops != flops || p->kind[i].bytes != bytes ||
                      !same_extents(p->graph, p->kind[i].node, node))) {
    ++i;
  }
  if (i == p->n) {
    TS_CHECK(p->n < MOST_KINDS, "more than %d kinds of nodes", MOST_KINDS);
    p->kind[p->n++] = (kind){.node = node, .flops = flops, .bytes = bytes};
  }
  p->kind[i].seconds += seconds;
  ++p->kind[i].calls;
  pthread_mutex_unlock(&p->lock);
}

/* What nothing goes below: the operations at the peak, the bytes at the copy's rate (0: not known). */
typedef struct ceilings {
  double peak, copy;
} ceilings;

static double limit_of(const kind *k, const ceilings *c) {
  double operations = k->flops / c->peak, bytes = c->copy > 0 ? k->bytes / c->copy : 0;
  return operations > bytes ? operations : bytes;
}

static int by_time(const void *a, const void *b) {
  double x = ((const kind *) a)->seconds, y = ((const kind *) b)->seconds;
  return (x < y) - (x > y);
}

static void print_shapes(const ts_graph *graph, const ts_node *node) {
  for (int i = 0; i < 2 && i < node->n_in && node->in[i] != TS_NONE; ++i) {
    const ts_shape *shape = &graph->tensor[node->in[i]].shape;
    printf(" ");
    for (int d = 0; d < shape->n; ++d) {
      printf("%s%lld", d > 0 ? "x" : "", (long long) shape->d[d]);
    }
  }
}

static void print_row(const char *name, const kind *k, const ceilings *c, int steps, double step_seconds) {
  double seconds = k->seconds / steps, limit = limit_of(k, c) * k->calls / steps;
  printf("  %-24s %8.1f %8.2f %6.1f%% %8.1f%%", name, (double) k->calls / steps, 1e3 * seconds,
         100 * seconds / step_seconds, seconds > 0 ? 100 * limit / seconds : 0);
}

/* Ops by their time; of those that come in several kinds, these behind them as far as they matter. */
static void print_profile(profile *p, const ceilings *c, int steps, double step_seconds) {
  printf("  %-24s %8s %8s %7s %9s\n", "op", "calls", "ms", "step", "of limit");
  kind op[TS_N_OPS] = {0};
  double limit[TS_N_OPS] = {0};
  qsort(p->kind, (size_t) p->n, sizeof *p->kind, by_time);
  for (int i = 0; i < p->n; ++i) {
    kind *sum = &op[p->kind[i].node->op];
    sum->node = p->kind[i].node;
    sum->seconds += p->kind[i].seconds;
    sum->calls += p->kind[i].calls;
    limit[sum->node->op] += limit_of(&p->kind[i], c) * p->kind[i].calls;
  }
  qsort(op, TS_N_OPS, sizeof *op, by_time);
  for (int o = 0; o < TS_N_OPS; ++o) {
    if (op[o].calls == 0) {
      continue;
    }
    op[o].flops = limit[op[o].node->op] / op[o].calls * c->peak;
    print_row(ts_op_get(op[o].node->op)->name, &op[o], c, steps, step_seconds);
    printf("\n");
    for (int i = 0; i < p->n; ++i) {
      const kind *k = &p->kind[i];
      if (k->node->op == op[o].node->op && k->seconds > 0.002 * step_seconds * steps) {
        print_row("", k, c, steps, step_seconds);
        print_shapes(p->graph, k->node);
        printf("\n");
      }
    }
  }
}

/* ---- steps ---- */

static double one_step(ts_engine *engine, const ts_batch *batch, ts_step_result *result) {
  double start = ts_seconds();
  *result = ts_engine_train_step(engine, &(ts_step_input){.batch = batch});
  return ts_seconds() - start;
}

typedef struct measured {
  step_times median;
  double flops, flops_full; /* of all ranks */
  double sp_bytes;          /* rank 0 sends them along sp in a step */
  double beside; /* the median of rates as parts of the products before and behind a step; 0: there are none */
  double square; /* FLOP/s of the fastest of these products */
  double quiet;  /* seconds: of the fastest quarter of the steps */
  ts_step_result last;
} measured;

/* In turns with another program: a step for each line of standard input, and its milliseconds. */
static bool in_turns;

static void wait_for_turn(const ts_world *world) {
  if (in_turns && ts_world_rank(world) == 0) {
    for (int c = 0; c != '\n' && c != EOF; c = getchar()) {
    }
  }
}

static void say_turn(const ts_world *world, double seconds) {
  if (in_turns && ts_world_rank(world) == 0) {
    printf("%.3f\n", 1e3 * seconds);
    fflush(stdout);
  }
}

/* With products beside them where there is a yardstick. */
static measured run_steps(ts_engine *engine, ts_world *world, const ts_batch *batch, int steps, const yardstick *y) {
  step_times times[MOST_STEPS];
  double part[MOST_STEPS], seconds[MOST_STEPS], before = y != NULL ? rate_of_square(y, y->size, true) : 0;
  measured m = {0};
  for (int s = 0; s < steps; ++s) {
    ts_comm *all = ts_world_all(world);
    wait_for_turn(world);
    all->ops->barrier(all);
    times[s].seconds = one_step(engine, batch, &m.last);
    say_turn(world, times[s].seconds);
    double behind = y != NULL ? rate_of_square(y, y->size, true) : 0;
    part[s] = 2 / (before + behind) / times[s].seconds;
    seconds[s] = times[s].seconds;
    m.square = fmax(m.square, fmax(before, behind));
    before = behind;
    times[s].communication = m.last.communication_seconds;
    times[s].exposed = m.last.exposed_seconds;
    times[s].bubble = m.last.bubble;
    times[s].forward = m.last.forward_seconds;
    times[s].backward = m.last.backward_seconds;
    times[s].update = m.last.update_seconds;
  }
  qsort(times, (size_t) steps, sizeof *times, by_seconds);
  const ts_program *program = ts_engine_program(engine);
  m.median = times[steps / 2];
  m.quiet = ts_least_quarter(seconds, steps);
  m.flops = ts_program_step_flops(program);
  m.beside = y != NULL ? ts_median(part, steps) * m.flops / ts_world_size(world) : 0;
  m.flops_full = m.flops * program->flops_full_attention / program->flops;
  m.sp_bytes = ts_program_sent(program, TS_AXIS_SP).step;
  return m;
}

/* Steps that count, then those of which every node is observed. */
static void measure(ts_engine *engine, ts_world *world, const ts_deck *deck, int steps, int observed,
                    const yardstick *y, measured *m, measured *of_observed, profile *p) {
  const ts_program *program = ts_engine_program(engine);
  ts_batch *batch = ts_measure_batch(engine, deck);
  bool device = program->target.backend->device != NULL; /* there the second step is recorded */
  int warm = device || deck->data.sequence_length < 16384 ? 3 : 1;
  (void) run_steps(engine, world, batch, warm, NULL);
  *m = run_steps(engine, world, batch, steps, device || in_turns ? NULL : y);
  p->graph = program->graph;
  ts_executor_set_observer(ts_engine_executor(engine), observe, p);
  *of_observed = run_steps(engine, world, batch, observed, NULL);
  ts_executor_set_observer(ts_engine_executor(engine), NULL, NULL);
  ts_batch_destroy(&batch);
}

static void print_mfu(const measured *m, double datasheet) {
  if (datasheet > 0) {
    printf("  MFU %.1f %% (causal half, 6N + 6LCT), %.1f %% (full, 6N + 12LCT) of the datasheet's %.1f TFLOP/s; device "
           "ms: forward %.2f, "
           "backward %.2f, update %.2f\n",
           100 * m->flops / m->median.seconds / datasheet, 100 * m->flops_full / m->median.seconds / datasheet,
           1e-12 * datasheet, 1e3 * m->median.forward, 1e3 * m->median.backward, 1e3 * m->median.update);
  }
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  ts_error err = {0};
  ts_deck *deck = NULL;
  const ts_backend *backend;
  ts_text said = {0};
  ts_mesh mesh;
  for (; argc > 1 && argv[1][0] == '-'; --argc, ++argv) {
    in_turns = in_turns || strcmp(argv[1], "-t") == 0;
    if (strcmp(argv[1], "-v") == 0) {
      ts_log_configure(TS_LOG_DEBUG, ts_world_rank(world) == 0);
    }
  }
  TS_CHECK(argc >= 3, "usage: step [-v] [-t] DECK STEPS [key=value ...]");
  int steps = atoi(argv[2]) > 0 && atoi(argv[2]) < MOST_STEPS ? atoi(argv[2]) : 5, ranks = ts_world_size(world);
  TS_CHECK(ts_deck_read(argv[1], argv + 3, argc - 3, &deck, &err) == TS_OK &&
               ts_deck_mesh(deck, ranks, ts_world_rank(world), &mesh, &err) == TS_OK &&
               ts_deck_resolve_batch(deck, ts_mesh_group_size(&mesh, TS_AXES_BATCH), &err) == TS_OK &&
               ts_engine_decide_precision(world, deck, &said, &err) == TS_OK &&
               ts_engine_backend(deck, world, &backend, &err) == TS_OK,
           "%s", err.text);
  ts_dtype dtype = ts_deck_dtype(deck);
  int threads = ts_engine_threads(deck, ts_world_local_size(world));
  yardstick y = {.backend = backend, .dtype = dtype, .threads = threads};
  find_peak(&y);
  double peak = y.peak * ranks;
  ts_device *device = ts_backend_device(backend);
  ceilings c = {peak / ranks, device != NULL ? ts_copy_rate(backend, (size_t) 1 << 30) : 0};
  const int observed = device != NULL ? 3 : 1;
  profile *p = ts_calloc(1, sizeof *p);
  pthread_mutex_init(&p->lock, NULL);
  ts_engine *engine = NULL;
  TS_CHECK(ts_engine_create(&(ts_engine_options){.world = world, .deck = deck, .abilities = TS_CAN_TRAIN}, &engine,
                            &err) == TS_OK,
           "%s", err.text);
  measured m, of_observed;
  measure(engine, world, deck, steps, observed, &y, &m, &of_observed, p);
  if (ts_world_rank(world) == 0) {
    double tokens = (double) (deck->train_batch_size * deck->data.sequence_length);
    printf(
        "%d ranks x %d threads, tp %lld, sp %lld, %s, stage %lld: peak %.1f GFLOP/s, step %.1f ms, %.0f tokens/s, %.1f "
        "GFLOP/s = %.1f %% of peak",
        ranks, threads, (long long) deck->tensor_parallel.autotp_size, (long long) deck->sequence_parallel_size,
        ts_dtype_name(dtype), (long long) deck->zero_optimization.stage, 1e-9 * peak, 1e3 * m.median.seconds,
        tokens / m.median.seconds, 1e-9 * m.flops / m.median.seconds, 100 * m.flops / m.median.seconds / peak);
    if (m.beside > 0) {
      printf(
          ", %.1f %% of the products beside the steps; by the fastest quarter, %.1f ms, %.1f %% of the fastest product",
          100 * m.beside, 1e3 * m.quiet, 100 * m.flops / m.quiet / fmax(peak, m.square * ranks));
    }
    if (ranks > 1 && device == NULL) {
      printf("; communication %.1f ms, exposed %.1f ms = %.1f %% of the step", 1e3 * m.median.communication,
             1e3 * m.median.exposed, 100 * m.median.exposed / m.median.seconds);
    }
    if (m.median.bubble > 0) {
      printf("; bubble %.1f %%", 100 * m.median.bubble);
    }
    if (m.sp_bytes > 0) {
      char bytes[32];
      printf("; %s sent along sp", ts_human_bytes(m.sp_bytes, bytes));
    }
    if (device == NULL) {
      printf("; forward %.1f ms, backward %.1f ms, update %.1f ms", 1e3 * m.median.forward, 1e3 * m.median.backward,
             1e3 * m.median.update);
    }
    printf("\n");
    print_mfu(&m, device != NULL ? device->ops->peak_flops(device, dtype) * ranks : 0);
    print_profile(p, &c, observed, of_observed.median.seconds);
  }
  ts_engine_destroy(&engine);
  pthread_mutex_destroy(&p->lock);
  ts_free(p);
  ts_text_free(&said);
  ts_deck_destroy(&deck);
  ts_world_destroy(&world);
  return 0;
}
