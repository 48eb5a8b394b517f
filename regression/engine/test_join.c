/* Worlds of a program that has started MPI itself: what is refused, halves of the processes that train by themselves,
 * several engines in turn on one communicator, and MPI left as it was. */
#include "regression/tap.h"
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include "base/memory.h"
#include "comm/comm_join.h"

#include <string.h>

enum { STEPS = 2 };

static bool is_refused(MPI_Comm comm, const char *why) {
  ts_world *world;
  ts_error err = {0};
  bool refused = ts_world_join(comm, &world, &err) == TS_BAD_INPUT && world == NULL && err.count == 1 &&
                 strstr(err.text, why) != NULL;
  ts_error_clear(&err);
  return refused;
}

static ts_world *join(MPI_Comm comm) {
  ts_world *world;
  ts_error err = {0};
  TS_CHECK(ts_world_join(comm, &world, &err) == TS_OK, "%s", err.text);
  return world;
}

/* The same training, whoever does it on as many ranks: each half of the processes, or all. */
static train_run train(ts_world *world, const char *more) {
  char *sets = ts_format("train_batch_size=%d train_micro_batch_size_per_gpu=%d zero_optimization.stage=2 %s", 12,
                         12 / ts_world_size(world), more);
  train_run run = train_run_do(world, train_run_llama, sets, STEPS);
  ts_free(sets);
  return run;
}

static void test_halves(int rank, int size) {
  MPI_Comm half;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  ts_world *world = join(half), *all = join(MPI_COMM_WORLD);
  MPI_Comm_free(&half);
  train_run mine = train(world, ""), of_all = train(all, "");
  uint64_t *bits = ts_world_gather(all, &mine.bits, sizeof mine.bits);
  bool alike = true;
  for (int r = 0; r < size; ++r) {
    alike = alike && bits[r] == bits[0];
  }
  tap_ok_all(MPI_COMM_WORLD, alike && ts_world_size(world) == (size + 1 - rank % 2) / 2,
             "two halves of %d processes train by themselves, to the same bits", size);
  tap_ok_all(MPI_COMM_WORLD, train_run_difference(&mine, &of_all).loss < 2e-6, "and all of them as a half does");
  ts_free(bits);
  train_run_free(&mine);
  train_run_free(&of_all);
  ts_world_destroy(&world);
  ts_world_destroy(&all);
}

/* Two engines, one step of one and one of the other: what each does alone. */
static void test_engines_in_turn(void) {
  ts_world *world[2] = {join(MPI_COMM_WORLD), join(MPI_COMM_WORLD)};
  const char *const text[2] = {train_run_llama, train_run_gpt2};
  ts_deck *deck[2];
  ts_engine *engine[2];
  train_run alone[2];
  bool same = true;
  for (int i = 0; i < 2; ++i) {
    alone[i] = train_run_do(world[i], text[i], "zero_optimization.stage=3", STEPS);
    deck[i] = train_run_deck(world[i], text[i], "zero_optimization.stage=3");
    const ts_engine_options options = {.world = world[i], .deck = deck[i], .abilities = TS_CAN_TRAIN};
    ts_error err = {0};
    TS_CHECK(ts_engine_create(&options, &engine[i], &err) == TS_OK, "%s", err.text);
  }
  for (int64_t step = 0; step < STEPS; ++step) {
    for (int i = 0; i < 2; ++i) {
      same = same && train_run_step(engine[i], deck[i], step).loss == alone[i].loss[step];
    }
  }
  tap_ok_all(MPI_COMM_WORLD, same, "two engines in turn have the losses of each alone, to the bit");
  for (int i = 0; i < 2; ++i) {
    ts_engine_destroy(&engine[i]);
    ts_deck_destroy(&deck[i]);
    train_run_free(&alone[i]);
    ts_world_destroy(&world[i]);
  }
}

int main(int argc, char **argv) {
  int provided, rank, size, finalized;
  ts_mpi_prepare();
  bool early = is_refused(MPI_COMM_WORLD, "MPI does not run");
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  tap_ok_all(MPI_COMM_WORLD, early, "no world before MPI runs");
  tap_ok_all(MPI_COMM_WORLD, is_refused(MPI_COMM_NULL, "MPI_COMM_NULL"), "nor of no communicator");
  test_halves(rank, size);
  test_engines_in_turn();
  MPI_Finalized(&finalized);
  tap_ok_all(MPI_COMM_WORLD, !finalized, "MPI is left to who started it");
  int status = tap_done_all(MPI_COMM_WORLD);
  MPI_Finalize();
  ts_mpi_conclude();
  if (!is_refused(MPI_COMM_WORLD, "has been finalized")) {
    fprintf(stderr, "rank %d: a world after MPI has ended\n", rank);
    return 1;
  }
  return status;
}
