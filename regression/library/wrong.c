/* A program that does not do what the library wants, in the way its argument names: each time a status and a message
 * come back, the same on every rank, and the program goes on to its own end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera.h>

enum { LENGTH = 16, WIDTH = 8 };

static void write_model(ts_builder *b, void *user) {
  const int64_t extent[] = {WIDTH};
  ts_tid x = ts_builder_input(b, "x", TS_F32, 1, extent, 0);
  ts_builder_unit(b, "only");
  if (strcmp(user, "shapes") == 0) {
    const int64_t other[] = {1, 2};
    ts_builder_add(b, "sum", x, ts_builder_parameter(b, "bias", 2, other, (ts_init){TS_INIT_ZERO, 0}));
  }
  if (strcmp(user, "input") == 0) {
    const int64_t length = LENGTH;
    ts_tid ids = ts_builder_input(b, "ids", TS_I32, 1, &length, 1);
    ts_tid e = ts_builder_embedding(b, "table", ids, 4, WIDTH);
    const int64_t table[] = {4, WIDTH};
    ts_builder_head_loss(b, "loss", e, ts_builder_parameter(b, "table.weight", 2, table, (ts_init){TS_INIT_ZERO, 0}),
                         ids, 1);
  }
  ts_builder_output(b, "y", ts_builder_linear(b, "linear", x, WIDTH, false));
}

static void feed_wrongly(ts_engine *engine, int64_t micro_batch, void *user) {
  (void) micro_batch;
  (void) user;
  ts_set_input(engine, "z", NULL, NULL);
}

static ts_status do_wrong(const char *what, ts_world *world, ts_error *err) {
  char *own[] = {"model.model_type=own", "train_micro_batch_size_per_gpu=2", "run.seed=1"}, *bad[] = {"no.such_key=1"};
  const ts_own_model model = {"wrong", write_model, (void *) what};
  const ts_feed feed = {feed_wrongly, NULL, NULL};
  ts_deck *deck = NULL;
  ts_engine *engine = NULL;
  bool is_key = strcmp(what, "key") == 0, is_ability = strcmp(what, "ability") == 0;
  ts_status status = ts_deck_read_shared(world, NULL, is_key ? bad : own, is_key ? 1 : 3, &deck, err);
  if (status == TS_OK && strcmp(what, "batch") == 0) {
    ts_deck_destroy(&deck);
    char *sets[] = {own[0], "train_batch_size=7", "train_micro_batch_size_per_gpu=2"};
    status = ts_deck_read_shared(world, NULL, sets, 3, &deck, err);
  }
  if (status == TS_OK && strcmp(what, "leaf") == 0) {
    ts_deck_destroy(&deck);
    char *sets[] = {own[0], own[1], "zero_optimization.leaf_module.classes=Block"};
    status = ts_deck_read_shared(world, NULL, sets, 3, &deck, err);
  }
  unsigned abilities = is_ability ? TS_CAN_DEFER : TS_CAN_TRAIN | TS_CAN_STEP | TS_CAN_SEED;
  if (status == TS_OK) {
    status = ts_initialize(strcmp(what, "model") == 0 ? NULL : &model, deck, world, abilities, &engine, err);
  }
  if (status == TS_OK && (strcmp(what, "loss") == 0 || strcmp(what, "input") == 0)) {
    status = ts_train_batch(engine, &feed, NULL, err);
  } else if (status == TS_OK) {
    status = ts_backward(engine, 1, err);
  }
  ts_engine_destroy(&engine);
  ts_deck_destroy(&deck);
  return status;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  int provided, rank;
  ts_world *world = NULL;
  ts_error err = {0, NULL};
  ts_status status = TS_OK;
  if (strcmp(what, "early") == 0) {
    status = ts_world_join(MPI_COMM_WORLD, &world, &err);
  }
  MPI_Init_thread(&argc, &argv, strcmp(what, "threads") == 0 ? MPI_THREAD_FUNNELED : MPI_THREAD_SERIALIZED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  status = status == TS_OK ? ts_world_join(MPI_COMM_WORLD, &world, &err) : status;
  status = status == TS_OK ? do_wrong(what, world, &err) : status;
  for (int r = 0; r < 2; ++r) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (r == rank) {
      printf("%d: %s\n", (int) status, err.count > 0 ? err.text : "nothing is wrong");
      fflush(stdout);
    }
  }
  ts_error_clear(&err);
  ts_world_destroy(&world);
  MPI_Finalize();
  return 0;
}
