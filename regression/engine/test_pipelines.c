/* A pipeline changes neither model nor results: on any number of stages, under any schedule, at each ZeRO stage losses,
 * norms and parameters of an untied model are those of one rank with the same micro-batches, bit for bit. */
#include "regression/subject.h"
#include "regression/tap_mpi.h"

#include "base/memory.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef STAND_IN
enum { STEPS = 2 };
#define SIZES "train_micro_batch_size_per_gpu=1 gradient_accumulation_steps=4 train_batch_size=4 "
#define LLAMA_LAYERS "model.num_hidden_layers=4"
#define GPT2_LAYERS "model.n_layer=4"
#else
enum { STEPS = 3 };
#define SIZES "train_micro_batch_size_per_gpu=2 gradient_accumulation_steps=8 train_batch_size=16 "
#define LLAMA_LAYERS "model.num_hidden_layers=8"
#define GPT2_LAYERS "model.n_layer=8"
#endif

typedef struct worlds {
  ts_world *all, *alone;
} worlds;

static train_run run_with(ts_world *world, const char *text, const char *sets, const char *more) {
  char *all = ts_format("%s %s", sets, more);
  train_run run = train_run_do(world, text, all, STEPS);
  ts_free(all);
  return run;
}

/* All ranks share the samples. */
#define BATCH DEVICE SIZES

static void expect_bits(const worlds *w, const train_run *one, const char *name, const char *text, const char *sets,
                        const char *more) {
  train_run run = run_with(w->all, text, sets, more);
  tap_ok_all(MPI_COMM_WORLD, train_run_equal(one, &run), "%s, %s: %s: the bits of one rank", name, sets, more);
  train_run_free(&run);
}

/* Stage 3 where not all that a stage has may be gathered at once: each run has gathers of its own. */
static void test_few_gathered(const worlds *w, const train_run *one, const char *name, const char *text,
                              const char *sets) {
  static const char *const schedule[] = {"1f1b", "zb_h1", "zb_v"};
  for (int i = is_stand_in ? 2 : 0; i < 3; ++i) {
    char *grid = ts_format("pipeline.stages=%d pipeline.schedule=%s zero_optimization.stage=3 "
                           "zero_optimization.stage3_max_live_parameters=20000",
                           ts_world_size(w->all), schedule[i]);
    expect_bits(w, one, name, text, sets, grid);
    ts_free(grid);
  }
}

/* All schedules, the stages of ZeRO and the partitions by turns. */
static void test_schedules(const worlds *w, const char *name, const char *text, const char *more) {
  static const char *const schedule[] = {"1f1b", "gpipe", "zb_h1", "interleaved", "zb_v", "dualpipe_v"};
  static int turn;
  const bool whole = getenv("TEST_PIPELINES_ALL") != NULL, first = turn == 0;
  char *sets = ts_format(BATCH "%s", more);
  train_run one = train_run_alone(w->all, w->alone, text, sets, STEPS);
  tap_ok_all(MPI_COMM_WORLD, one.loss[1] > 0 && one.loss[1] != one.loss[0], "%s, %s: one rank learns", name, more);
  for (size_t i = 0; i < sizeof schedule / sizeof *schedule; ++i) {
    for (int stage = 0; stage <= 3; ++stage) {
      if (whole || (turn++ & 3) == 0) {
        char *grid =
            ts_format("pipeline.stages=%d pipeline.schedule=%s zero_optimization.stage=%d pipeline.partition=%s",
                      ts_world_size(w->all), schedule[i], stage, i % 2 == 0 ? "parameters" : "uniform");
        expect_bits(w, &one, name, text, sets, grid);
        ts_free(grid);
      }
    }
    ++turn;
  }
  if (whole || first) {
    test_few_gathered(w, &one, name, text, sets);
  }
  train_run_free(&one);
  ts_free(sets);
}

static bool is_dp(const char *axis) {
  return strstr(axis, "parallel") == NULL;
}

/* Stages of ranks that share samples or have some of their own: as one rank to rounding, and the same bits under all
 * schedules.  fp32: the losses of other grids differ by 1e-6 at most. */
static void test_grids(const worlds *w, const char *axis) {
  static const char *const more[] = {"pipeline.schedule=1f1b zero_optimization.stage=2",
                                     "pipeline.schedule=zb_h1 zero_optimization.stage=3",
                                     "pipeline.schedule=interleaved zero_optimization.stage=2",
                                     "pipeline.schedule=dualpipe_v zero_optimization.stage=3"};
  const int samples = is_stand_in ? 1 : 2, micro_batches = is_stand_in ? 4 : 8, alone = (is_dp(axis) ? 2 : 1) * samples;
  char *sets = ts_format(DEVICE "gradient_accumulation_steps=%d train_batch_size=%d model.num_hidden_layers=%d",
                         micro_batches, alone * micro_batches, is_stand_in ? 4 : 6);
  char *one_sets = ts_format("%s train_micro_batch_size_per_gpu=%d %s", sets, alone, strstr(axis, "tie") ? axis : "");
  char *grid = ts_format("%s train_micro_batch_size_per_gpu=%d pipeline.stages=2 %s", sets, samples, axis);
  train_run one = train_run_alone(w->all, w->alone, train_run_llama, one_sets, STEPS);
  train_run first = run_with(w->all, train_run_llama, grid, more[0]);
  double difference = train_run_difference(&first, &one).loss;
  tap_ok_all(MPI_COMM_WORLD, difference < 2e-6, "%s: 2 stages against one rank: %.1e", axis, difference);
  for (int i = 1; i < 4; ++i) {
    train_run run = run_with(w->all, train_run_llama, grid, more[i]);
    bool alike =
        strstr(axis, "tie") == NULL || i < 3; /* but for V, which adds up a tied table's gradients as they come */
    double other = train_run_difference(&run, &first).loss;
    tap_ok_all(MPI_COMM_WORLD, alike ? train_run_equal(&first, &run) : other < 2e-6, "%s: %s: the bits of 1f1b (%.1e)",
               axis, more[i], other);
    train_run_free(&run);
  }
  train_run_free(&first);
  train_run_free(&one);
  ts_free(one_sets);
  ts_free(grid);
  ts_free(sets);
}

/* Whether each rank along tp sends a part of what they have alike, or all of it, is the same bits. */
static void test_partitioned(const worlds *w) {
  const char *sets = BATCH LLAMA_LAYERS " pipeline.stages=2 tensor_parallel.autotp_size=2 "
                                        "tensor_parallel.sequence_parallel=false";
  static const char *const more[] = {
      "pipeline.schedule=1f1b",
      "pipeline.schedule=zb_v activation_checkpointing.enabled=true zero_optimization.stage=2",
      "activation_checkpointing.enabled=true activation_checkpointing.partition_activations=true"};
  for (int i = 0; i < (int) (sizeof more / sizeof *more); ++i) {
    train_run parts = run_with(w->all, train_run_llama, sets, more[i]);
    char *whole_sets = ts_format("pipeline.pipe_partitioned=false pipeline.grad_partitioned=false %s", sets);
    train_run whole = run_with(w->all, train_run_llama, whole_sets, more[i]);
    tap_ok_all(MPI_COMM_WORLD, parts.loss[1] != parts.loss[0] && train_run_equal(&parts, &whole),
               "%s: sent in parts: the bits of sent whole", more[i]);
    train_run_free(&parts);
    train_run_free(&whole);
    ts_free(whole_sets);
  }
}

/* A table that two stages read: its gradients are added in another order than on one rank, so it is as that to
 * rounding, and the same bits under all schedules that are no V, at all stages of ZeRO. */
static void test_tied(const worlds *w, const char *name, const char *text, const char *more) {
  static const char *const grid[] = {"pipeline.schedule=1f1b zero_optimization.stage=0",
                                     "pipeline.schedule=gpipe zero_optimization.stage=1",
                                     "pipeline.schedule=zb_h1 zero_optimization.stage=2",
                                     "pipeline.schedule=interleaved zero_optimization.stage=3",
                                     "pipeline.schedule=zb_v zero_optimization.stage=0",
                                     "pipeline.schedule=zb_v zero_optimization.stage=2",
                                     "pipeline.schedule=dualpipe_v zero_optimization.stage=1",
                                     "pipeline.schedule=dualpipe_v zero_optimization.stage=3",
                                     "pipeline.schedule=1f1b zero_optimization.stage=3 "
                                     "zero_optimization.stage3_param_persistence_threshold=0"};
  char *sets = ts_format(BATCH "model.tie_word_embeddings=true %s", more);
  char *stages = ts_format("%s pipeline.stages=%d", sets, ts_world_size(w->all));
  train_run one = train_run_alone(w->all, w->alone, text, sets, STEPS), first = run_with(w->all, text, stages, grid[0]);
  train_difference d = train_run_difference(&first, &one);
  tap_ok_all(MPI_COMM_WORLD, d.loss < 2e-6 && d.norm < 2e-6, "%s, %s, tied: as one rank: losses to %.1e, norms to %.1e",
             name, more, d.loss, d.norm);
  for (size_t i = 1; i < sizeof grid / sizeof *grid; ++i) {
    train_run run = run_with(w->all, text, stages, grid[i]);
    /* the last has other parts, by which the norm's sums go; in V the two uses are added on one rank, as they come */
    bool alike = i < 4;
    double other = train_run_difference(&run, &first).loss;
    tap_ok_all(MPI_COMM_WORLD, alike ? train_run_equal(&first, &run) : other < 2e-6, "%s, %s, tied: %s: %.1e", name,
               more, grid[i], other);
    train_run_free(&run);
  }
  train_run_free(&first);
  train_run_free(&one);
  ts_free(sets);
  ts_free(stages);
}

/* What a program asks of a tied table is its home's on all stages; what it sets comes to the copy. */
static void test_values(const worlds *w) {
  char *sets =
      ts_format(BATCH "model.tie_word_embeddings=true " LLAMA_LAYERS " pipeline.stages=%d", ts_world_size(w->all));
  static const char *const table = "model.embed_tokens.weight";
  enum { COUNT = 67 * 36 };
  float *state = ts_calloc(COUNT, sizeof *state), *value = ts_calloc(COUNT, sizeof *value);
  ts_deck *deck = train_run_deck(w->all, train_run_llama, sets);
  ts_engine *engine;
  ts_error err = {0};
  const ts_engine_options options = {.world = w->all, .deck = deck, .abilities = TS_CAN_TRAIN};
  TS_CHECK(ts_engine_create(&options, &engine, &err) == TS_OK, "%s", err.text);
  train_run_step(engine, deck, 0);
  bool got = ts_get_full_optimizer_state(engine, table, "exp_avg", state, &err) == TS_OK;
  double sum[2] = {0}, least[2], most[2];
  for (int i = 0; i < COUNT; ++i) {
    sum[0] += fabs((double) state[i]);
    value[i] = 0.01f * (float) (i % 7);
  }
  bool set = ts_set_full_fp32_parameter(engine, table, value, &err) == TS_OK;
  sum[1] = train_run_step(engine, deck, 1).loss;
  MPI_Allreduce(sum, least, 2, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(sum, most, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  tap_ok_all(MPI_COMM_WORLD, got && least[0] > 0 && least[0] == most[0],
             "a tied table's state is the same on all stages");
  tap_ok_all(MPI_COMM_WORLD, set && least[1] == most[1], "its values are set on both (loss %.3f)", sum[1]);
  ts_engine_destroy(&engine);
  ts_deck_destroy(&deck);
  ts_free(state);
  ts_free(value);
  ts_free(sets);
}

/* ---- a program's own model, with values that cross several boundaries ---- */

enum { OWN_WIDTH = 24, OWN_UNITS = 8, OWN_SAMPLES = 2 };

/* Behind the fourth unit each adds what one of the first made, as in a U: units 3 and 4, 2 and 5, ... */
static void write_u(ts_builder *b, void *user) {
  (void) user;
  ts_tid x = ts_builder_input(b, "x", TS_F32, 1, (int64_t[]){OWN_WIDTH}, 0);
  ts_tid target = ts_builder_input(b, "target", TS_F32, 1, (int64_t[]){OWN_WIDTH}, 0);
  ts_tid made[OWN_UNITS];
  for (int i = 0; i < OWN_UNITS; ++i) {
    char name[16];
    snprintf(name, sizeof name, "unit.%d", i);
    ts_builder_unit(b, name);
    x = i >= OWN_UNITS / 2 ? ts_builder_add(b, "joined", x, made[OWN_UNITS - 1 - i]) : x;
    if (i == 1) { /* what crosses on, in another shape and back, lies where it has come */
      made[0] = ts_builder_reshape(b, "folded", made[0], 3, (int64_t[]){ts_builder_batch(b), 2, OWN_WIDTH / 2});
    } else if (i == OWN_UNITS - 2) {
      made[0] = ts_builder_reshape(b, "unfolded", made[0], 2, (int64_t[]){ts_builder_batch(b), OWN_WIDTH});
    }
    x = ts_builder_activation(b, "act", ts_builder_linear(b, "linear", x, OWN_WIDTH, true), TS_ACTIVATION_GELU);
    made[i] = x;
  }
  ts_builder_output(b, "y", x);
  ts_builder_loss(b, "loss", ts_builder_squared_error(b, "error", x, target), TS_NONE, 1);
}

static void give_u(ts_engine *e, int64_t micro_batch, void *user) {
  const int64_t *step = user;
  float value[2][OWN_SAMPLES * OWN_WIDTH];
  for (int i = 0; i < OWN_SAMPLES * OWN_WIDTH; ++i) {
    value[0][i] = (float) ((i * 7 + *step * 13 + micro_batch * 29) % 17) / 17.0f - 0.5f;
    value[1][i] = (float) ((i * 5 + *step * 3 + micro_batch * 11) % 19) / 19.0f - 0.5f;
  }
  ts_error err = {0};
  TS_CHECK(ts_set_input(e, "x", value[0], &err) == TS_OK && ts_set_input(e, "target", value[1], &err) == TS_OK, "%s",
           err.text);
}

static const char own_deck[] = "model = { model_type = \"own\"; };\n"
                               "run = { directory = \"none\"; seed = 7; threads = 1; };\n"
                               "train_micro_batch_size_per_gpu = 2; gradient_accumulation_steps = 8;\n"
                               "train_batch_size = 16;\n"
                               "optimizer = { type = \"AdamW\"; params = { lr = 0.01; }; };\n";

typedef struct u_run {
  double loss[STEPS], norm[STEPS], evaluated, output;
} u_run;

/* A forward of an evaluation, by hand: the first element of the output, which the last stage has. */
static double forward_u(ts_engine *engine, ts_world *world) {
  float y[OWN_SAMPLES * OWN_WIDTH];
  int64_t step = STEPS;
  ts_error err = {0}, why = {0};
  give_u(engine, 3, &step);
  TS_CHECK(ts_set_training(engine, false, &err) == TS_OK && ts_forward(engine, &err) == TS_OK, "%s", err.text);
  double mine = ts_get_output(engine, "y", y, &why) == TS_OK ? (double) y[0] : -INFINITY, all = mine;
  ts_error_clear(&why);
  if (ts_world_size(world) > 1) {
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  }
  TS_CHECK(ts_set_training(engine, true, &err) == TS_OK, "%s", err.text);
  return all;
}

static u_run train_u(ts_world *world, const char *sets) {
  const ts_own_model model = {.name = "u", .write = write_u};
  char *all = ts_format(DEVICE "%s", sets);
  ts_deck *deck = train_run_deck(world, own_deck, all);
  ts_free(all);
  ts_engine *engine;
  ts_error err = {0};
  u_run run = {.evaluated = 0};
  TS_CHECK(ts_initialize(&model, deck, world, TS_CAN_TRAIN | TS_CAN_EVALUATE, &engine, &err) == TS_OK, "%s", err.text);
  for (int64_t step = 0; step < STEPS; ++step) {
    ts_step_result result;
    TS_CHECK(ts_train_batch(engine, &(ts_feed){give_u, NULL, &step}, &result, &err) == TS_OK, "%s", err.text);
    run.loss[step] = result.loss;
    run.norm[step] = result.grad_norm;
  }
  double labels;
  int64_t step = STEPS;
  run.output = forward_u(engine, world);
  TS_CHECK(ts_eval_batch(engine, &(ts_feed){give_u, NULL, &step}, 5, &run.evaluated, &labels, &err) == TS_OK, "%s",
           err.text);
  ts_engine_destroy(&engine);
  ts_deck_destroy(&deck);
  return run;
}

/* Relayed through the stages between, forward and back. */
static void test_skips(const worlds *w) {
  static const char *const more[] = {"pipeline.schedule=1f1b",
                                     "pipeline.schedule=gpipe zero_optimization.stage=2 "
                                     "debug.check_finite=true",
                                     "pipeline.schedule=zb_h1 bf16.enabled=true",
                                     "pipeline.schedule=interleaved zero_optimization.stage=3",
                                     "pipeline.schedule=zb_v",
                                     "pipeline.schedule=dualpipe_v zero_optimization.stage=1",
                                     "pipeline.schedule=1f1b torch_autocast.enabled=true zero_optimization.stage=3",
                                     "pipeline.schedule=zb_v torch_autocast.enabled=true"};
  for (size_t i = 0; i < sizeof more / sizeof *more; ++i) {
    char *sets = ts_format("%s pipeline.stages=%d", more[i], ts_world_size(w->all));
    const char *precision = strstr(more[i], "bf16") != NULL       ? "bf16.enabled=true"
                            : strstr(more[i], "autocast") != NULL ? "torch_autocast.enabled=true"
                                                                  : "";
    u_run one = {.evaluated = 0};
    if (ts_world_rank(w->all) == 0) {
      one = train_u(w->alone, precision);
    }
    tap_barrier(MPI_COMM_WORLD); /* yielding */
    MPI_Bcast(&one, sizeof one, MPI_BYTE, 0, MPI_COMM_WORLD);
    u_run run = train_u(w->all, sets);
    bool same = memcmp(&one, &run, sizeof run) == 0;
    tap_ok_all(MPI_COMM_WORLD, same && one.loss[STEPS - 1] < one.loss[0],
               "values over several boundaries: %s: the bits of one rank (%.6f)", sets, run.loss[STEPS - 1]);
    ts_free(sets);
  }
}

#define UNTIED "model.tie_word_embeddings=false " GPT2_LAYERS

static void test_stages(const worlds *w) {
  test_schedules(w, "llama", train_run_llama, LLAMA_LAYERS);
  if (!is_stand_in) {
    train_run_set_evaluating(true);
    test_schedules(w, "gpt2", train_run_gpt2, UNTIED " activation_checkpointing.enabled=true");
    train_run_set_evaluating(false);
    train_run_set_few_labels(true);
    test_schedules(w, "gpt2", train_run_gpt2, UNTIED " bf16.enabled=true");
    test_schedules(w, "llama", train_run_llama, LLAMA_LAYERS " fp16.enabled=true optimizer.type=Muon");
    test_tied(w, "llama", train_run_llama, LLAMA_LAYERS);
  }
  test_tied(w, "gpt2", train_run_gpt2, GPT2_LAYERS);
  test_values(w);
  test_skips(w);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  worlds w = {world, ts_world_alone(world)};
  bool grids = ts_world_size(world) == 4;
  if (!grids || !is_stand_in) {
    test_stages(&w);
  }
  if (grids) {
    test_grids(&w, "tensor_parallel.autotp_size=2");
  }
  if (grids && !is_stand_in) {
    test_grids(&w, "");
    test_grids(&w, "model.tie_word_embeddings=true");
    test_grids(&w, "model.tie_word_embeddings=true zero_optimization.stage3_param_persistence_threshold=0");
    test_grids(&w, "sequence_parallel_size=2");
    test_partitioned(&w);
  }
  int code = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&w.alone);
  ts_world_destroy(&world);
  return code;
}
