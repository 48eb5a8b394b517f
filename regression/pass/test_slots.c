/* Micro-batches alive at a time change memory and order, never bits: with two, three and all of four the losses, norms
 * and parameters are those of one after another. */
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

/* The stand-in of a GPU takes a hundred times as long: one of the numbers, by turns. */
static bool wants(int slots) {
#ifdef STAND_IN
  static int turn;
  return slots == 2 + turn++ / 3 % 3 || getenv("TEST_SLOTS_ALL") != NULL;
#else
  (void) slots;
  return true;
#endif
}

static train_run train(ts_world *world, const char *text, const char *sets, int slots) {
  char *all =
      ts_format(DEVICE "train_batch_size=24 train_micro_batch_size_per_gpu=%d %s", 6 / ts_world_size(world), sets);
  train_run_set_slots(slots);
  train_run run = train_run_do(world, text, all, STEPS);
  ts_free(all);
  return run;
}

static void test(ts_world *world, const char *name, const char *text, const char *sets) {
  train_run one = train(world, text, sets, 1);
  tap_ok_all(MPI_COMM_WORLD, one.loss[STEPS - 1] < one.loss[0], "%s, %s: the loss falls", name, sets);
  for (int slots = 2; slots <= 4; ++slots) {
    if (!wants(slots)) {
      continue;
    }
    train_run run = train(world, text, sets, slots);
    tap_ok_all(MPI_COMM_WORLD, train_run_equal(&one, &run), "%s, %s: %d alive give the same bits", name, sets, slots);
    tap_ok_all(MPI_COMM_WORLD, run.work_bytes < one.work_bytes, "%s, %s: what they keep lies elsewhere", name, sets);
    train_run_free(&run);
  }
  train_run_free(&one);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  test(world, "gpt2", train_run_gpt2, "zero_optimization.stage=1"); /* makes communicators, which the world keeps */
  int64_t live = ts_memory_live();
  test(world, "llama", train_run_llama, "zero_optimization.stage=0");
  test(world, "llama", train_run_llama, "zero_optimization.stage=2 zero_optimization.overlap_comm=true");
  test(world, "gpt2", train_run_gpt2, "zero_optimization.stage=3 bf16.enabled=true");
  test(world, "llama", train_run_llama, "zero_optimization.stage=3 activation_checkpointing.enabled=true");
  test(world, "gpt2", train_run_gpt2,
       "zero_optimization.stage=1 activation_checkpointing={enabled=true;policy=\"sac\";interval=2;}");
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
