/* The order of a step's runs changes memory, never bits: as on stages of pipelines, with one to four micro-batches
 * alive and with gradients of weights in runs of their own, losses, norms and parameters are those of one after
 * another. */
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include "base/memory.h"
#include "base/text.h"

#include <stdlib.h>

enum { STEPS = 4 /* on a device the first queues commands, the second records them, the others replay */ };

#ifdef RUN_CUDA
#define DEVICE "run.device=cuda run.share_device=true run.measure_algorithms=false "
#else
#define DEVICE "run.device=cpu "
#endif

static const struct {
  const char *name;
  ts_step_order order;
} orders[] = {
    {"1f1b, 2 alive", {TS_PIPELINE_1F1B, 2, 0, 1}},
    {"1f1b, 3 alive", {TS_PIPELINE_1F1B, 4, 1, 1}},
    {"gpipe", {TS_PIPELINE_GPIPE, 2, 1, 1}},
    {"zb_h1 of one stage", {TS_PIPELINE_ZB_H1, 1, 0, 1}},
    {"zb_h1, W one later", {TS_PIPELINE_ZB_H1, 3, 1, 1}},
    {"zb_h1, W three later", {TS_PIPELINE_ZB_H1, 4, 3, 1}},
    {"zb_h1, three F before", {TS_PIPELINE_ZB_H1, 4, 0, 1}},
};
enum { N_ORDERS = sizeof orders / sizeof *orders };

/* The stand-in of a GPU takes a hundred times as long: of every third run one order, by turns. */
static bool wants(int i) {
#ifdef STAND_IN
  static int turn;
  return i == turn++ / N_ORDERS % N_ORDERS || getenv("TEST_SLOTS_ALL") != NULL;
#else
  (void) i;
  return true;
#endif
}

static bool skips(void) {
#ifdef STAND_IN
  static int runs;
  return runs++ % 3 > 0 && getenv("TEST_SLOTS_ALL") == NULL;
#else
  return false;
#endif
}

static train_run train(ts_world *world, const char *text, const char *sets, ts_step_order order) {
  char *all =
      ts_format(DEVICE "train_batch_size=24 train_micro_batch_size_per_gpu=%d %s", 6 / ts_world_size(world), sets);
  train_run_set_order(order);
  train_run run = train_run_do(world, text, all, STEPS);
  ts_free(all);
  return run;
}

static void test(ts_world *world, const char *name, const char *text, const char *sets) {
  if (skips()) {
    return;
  }
  train_run one = train(world, text, sets, (ts_step_order){0});
  tap_ok_all(MPI_COMM_WORLD, one.loss[STEPS - 1] < one.loss[0], "%s, %s: the loss falls", name, sets);
  for (int i = 0; i < N_ORDERS; ++i) {
    if (!wants(i)) {
      continue;
    }
    train_run run = train(world, text, sets, orders[i].order);
    tap_ok_all(MPI_COMM_WORLD, train_run_equal(&one, &run), "%s, %s: %s: the same bits", name, sets, orders[i].name);
    tap_ok_all(MPI_COMM_WORLD, run.work_bytes < one.work_bytes, "%s, %s: %s: what is kept lies elsewhere", name, sets,
               orders[i].name);
    train_run_free(&run);
  }
  train_run_free(&one);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  /* the first makes communicators, which the world keeps; with W later a tied table's gradients add up otherwise */
  test(world, "gpt2", train_run_gpt2, "zero_optimization.stage=1 model.tie_word_embeddings=false");
  int64_t live = ts_memory_live();
  test(world, "llama", train_run_llama, "zero_optimization.stage=0");
  test(world, "llama", train_run_llama, "zero_optimization.stage=2 zero_optimization.overlap_comm=true");
  test(world, "gpt2", train_run_gpt2, "zero_optimization.stage=3 bf16.enabled=true");
  test(world, "llama", train_run_llama, "zero_optimization.stage=3 activation_checkpointing.enabled=true");
  test(world, "gpt2", train_run_gpt2,
       "zero_optimization.stage=1 model.tie_word_embeddings=false "
       "activation_checkpointing={enabled=true;policy=\"sac\";interval=2;}");
#ifndef RUN_CUDA
  test(world, "gpt2", train_run_gpt2, "zero_optimization.stage=2 debug.memcheck=true");
#endif
  train_run_set_evaluating(true); /* another program writes to the same arenas in between */
  test(world, "gpt2", train_run_gpt2, "zero_optimization.stage=2");
  tap_ok_all(MPI_COMM_WORLD, ts_memory_live() == live, "no engine leaves memory behind");
  int code = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return code;
}
