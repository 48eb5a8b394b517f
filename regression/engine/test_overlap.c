/* Overlap: with every collective held back by a delay that uses no processor, the step grows by less than a fifth of
 * the sum of the delays, and communication is counted as what it is, total and exposed.
 *
 * These assertions are about time.  So that a busy machine does not decide them, the kernels sleep instead of
 * computing: the schedule, the executor, the stream and the collectives are the real ones.  The shorter of two
 * interleaved steps counts, and there are five attempts. */
#include "regression/tap.h"
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include "base/log.h"
#include "base/memory.h"

#include <math.h>
#include <time.h>

enum { STEPS = 2, ATTEMPTS = 5 };
#define DELAY 0.010
/* A block has 7 products forward and 14 backward: 28 ms, more than its gather and its reduction are held back. */
#define PRODUCT_NANOSECONDS 2000000

/* A bucket a block (49,000 elements).  Of the collectives of a step three cannot be hidden: the last reduction, the
 * agreed record, the last gather of new values. */
static const char deck_text[] =
    "model = { model_type = \"llama\"; vocab_size = 256; hidden_size = 64; intermediate_size = 172;\n"
    "  num_hidden_layers = 24; num_attention_heads = 4; num_key_value_heads = 4; max_position_embeddings = 8; };\n"
    "data = { path = \"none\"; format = \"text\"; sequence_length = 8; };\n"
    "run = { directory = \"none\"; steps = 1; threads = 1; };\n"
    "train_micro_batch_size_per_gpu = 1; gradient_accumulation_steps = 1;\n"
    "zero_optimization = { reduce_bucket_size = 48000; stage3_param_persistence_threshold = 1000;\n"
    "  stage3_prefetch_bucket_size = 150000; };\n";

/* ---- kernels that take time, but nothing else ---- */

static void run_product(const ts_kernel_call *call) {
  (void) call;
  nanosleep(&(struct timespec){.tv_nsec = PRODUCT_NANOSECONDS}, NULL);
}

static void run_nothing(const ts_kernel_call *call) {
  (void) call;
}

static const ts_kernel *sleeping_kernel(ts_op op) {
  static const ts_kernel product = {NULL, run_product, NULL}, nothing = {NULL, run_nothing, NULL};
  return op == TS_OP_MATMUL ? &product : &nothing;
}

static const char *describe(void) {
  return "sleeping";
}

static const ts_backend sleeping = {
    .name = "sleeping", .kernel = sleeping_kernel, .allocate = ts_map, .release = ts_unmap, .describe = describe};

/* ---- a step ---- */

typedef struct subject {
  ts_deck *deck;
  ts_program *program;
  ts_executor *executor;
  int collectives; /* of a step */
} subject;

static subject begin(ts_world *world, const char *sets) {
  subject s = {.deck = train_run_deck(world, deck_text, sets)};
  ts_mesh mesh;
  TS_CHECK(ts_deck_mesh(s.deck, ts_world_size(world), ts_world_rank(world), &mesh, NULL) == TS_OK, "the grid is dp");
  const ts_program_options options = {.deck = s.deck,
                                      .mesh = &mesh,
                                      .target = {&sleeping, 1, TS_CUDNN_NEVER},
                                      .use = TS_MODEL_TRAIN,
                                      .batch = 1,
                                      .length = s.deck->data.sequence_length};
  s.program = ts_program_create(&options);
  const ts_program *const programs[] = {s.program};
  const ts_executor_options execution = {.world = world};
  s.executor = ts_executor_create(programs, 1, &execution);
  for (int i = 0; i < s.program->schedule->n; ++i) {
    s.collectives += s.program->schedule->instruction[i].kind == TS_ISSUE;
  }
  return s;
}

static void end(subject *s) {
  ts_executor_destroy(&s->executor);
  ts_program_destroy(&s->program);
  ts_deck_destroy(&s->deck);
}

/* \return seconds of a step whose collectives are held back by `delay` seconds each. */
static double run_step(const subject *s, double delay, ts_executor_times *times) {
  ts_comm_set_test_delay(delay);
  tap_barrier(MPI_COMM_WORLD);
  double start = ts_seconds();
  for (int i = 0; i < s->program->step.n; ++i) {
    ts_executor_run(s->executor, 0, i);
  }
  double seconds = ts_seconds() - start;
  *times = ts_executor_take_times(s->executor);
  ts_comm_set_test_delay(0);
  return seconds;
}

typedef struct growth {
  double step;          /* growth of the step over the sum of the delays; the same on all ranks */
  double communication; /* of the held-back step, over the sum of the delays */
  double exposed;       /* likewise */
} growth;

static growth measure(const subject *s) {
  double plain = INFINITY, held = INFINITY, sum = s->collectives * DELAY;
  growth g = {0};
  for (int i = 0; i < STEPS; ++i) {
    ts_executor_times times;
    plain = fmin(plain, run_step(s, 0, &times));
    double seconds = run_step(s, DELAY, &times);
    if (seconds < held) {
      held = seconds;
      g = (growth){.communication = times.communication / sum, .exposed = times.exposed / sum};
    }
  }
  g.step = (held - plain) / sum;
  MPI_Allreduce(MPI_IN_PLACE, &g, 3, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return g;
}

static void test_overlap(ts_world *world, const char *sets) {
  subject s = begin(world, sets);
  growth g = measure(&s);
  for (int attempt = 1; attempt < ATTEMPTS && g.step >= 0.2; ++attempt) {
    tap_note("attempt %d: the step grew by %.2f of the delays", attempt, g.step);
    g = measure(&s);
  }
  tap_ok_all(MPI_COMM_WORLD, g.step < 0.2, "%s: the step grows by %.0f %% of %d delays", sets, 100 * g.step,
             s.collectives);
  tap_ok_all(MPI_COMM_WORLD, g.communication >= 0.99, "%s: communication is %.2f of the delays", sets, g.communication);
  tap_ok_all(MPI_COMM_WORLD, g.exposed > 0 && g.exposed < g.communication / 2, "%s: %.2f of the delays are exposed",
             sets, g.exposed);
  end(&s);
}

/* The measure measures: without overlap the step grows by all delays, of which half may drown in noise. */
static void test_no_overlap(ts_world *world, const char *sets) {
  subject s = begin(world, sets);
  growth g = measure(&s);
  tap_ok_all(MPI_COMM_WORLD, g.step > 0.5, "%s: the step grows by %.0f %% of %d delays", sets, 100 * g.step,
             s.collectives);
  tap_ok_all(MPI_COMM_WORLD, g.exposed > 0.99, "%s: %.2f of the delays are exposed", sets, g.exposed);
  end(&s);
}

/* Of tensor parallelism the sums of outputs, half of all, cannot be hidden; those of inputs' gradients run beside three
 * or four gradients of weights, 6 or 8 ms of the 10: a third of the delays in all. */
static void test_late_weights(ts_world *world) {
  static const char *const text = "tensor_parallel.autotp_size=2 tensor_parallel.sequence_parallel=false "
                                  "tensor_parallel.vocab_parallel_lm_head=false "
                                  "zero_optimization.overlap_comm=false tensor_parallel.tp_overlap_comm=%s";
  growth g[2];
  for (int late = 0; late < 2; ++late) {
    char *sets = ts_format(text, late != 0 ? "true" : "false");
    subject s = begin(world, sets);
    g[late] = measure(&s);
    for (int attempt = 1; attempt < ATTEMPTS && late != 0 && g[1].exposed >= 0.8 * g[0].exposed; ++attempt) {
      tap_note("attempt %d: %.2f of the delays are exposed", attempt, g[late].exposed);
      g[late] = measure(&s);
    }
    tap_ok_all(MPI_COMM_WORLD, late != 0 ? g[1].exposed < 0.8 * g[0].exposed : g[0].exposed > 0.9,
               "%s: %.2f of %d delays are exposed", sets, g[late].exposed, s.collectives);
    end(&s);
    ts_free(sets);
  }
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  test_overlap(world, "zero_optimization.overlap_comm=true zero_optimization.stage=0");
  test_overlap(world, "zero_optimization.overlap_comm=true zero_optimization.stage=1");
  test_overlap(world, "zero_optimization.overlap_comm=true zero_optimization.stage=2");
  test_overlap(world, "zero_optimization.overlap_comm=true zero_optimization.stage=3");
  test_no_overlap(world, "zero_optimization.overlap_comm=false zero_optimization.stage=2");
  test_late_weights(world);
  int code = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return code;
}
