/* A first program: a small model of its own learns to count in steps of three.
 *
 *   mpicc first.c -o first $(pkg-config --cflags --libs tessera)
 *   mpiexec -n 2 ./first first.cfg
 */
#include <stdio.h>
#include <stdlib.h>
#include <tessera.h>

enum { VOCABULARY = 32, LENGTH = 16, WIDTH = 32, STEPS = 60 };

/* The forward step of one micro-batch on one device: passes make every rank's program of it. */
static void write_model(ts_builder *b, void *user) {
  (void) user;
  const int64_t length = LENGTH, table[] = {VOCABULARY, WIDTH};
  ts_tid tokens = ts_builder_input(b, "tokens", TS_I32, 1, &length, 1);
  ts_tid labels = ts_builder_input(b, "labels", TS_I32, 1, &length, 1);
  ts_builder_unit(b, "embed");
  ts_tid x = ts_builder_embedding(b, "tokens", tokens, VOCABULARY, WIDTH);
  ts_builder_unit(b, "block");
  ts_tid y = ts_builder_layernorm(b, "norm", x, 1e-5);
  y = ts_builder_activation(b, "act", ts_builder_linear(b, "up", y, 4 * WIDTH, true), TS_ACTIVATION_GELU);
  x = ts_builder_add(b, "add", x, ts_builder_linear(b, "down", y, WIDTH, true));
  ts_builder_unit(b, "head");
  const ts_init normal = {TS_INIT_NORMAL, 0.02};
  ts_builder_head_loss(b, "loss", x, ts_builder_parameter(b, "weight", 2, table, normal), labels, 1);
}

/* This rank's samples of a micro-batch: token t + 1 is token t + 3. */
typedef struct source {
  int64_t step;
  int32_t *tokens, *labels;
} source;

static void feed(ts_engine *engine, int64_t micro_batch, void *user) {
  source *s = user;
  int64_t each = ts_train_micro_batch_size(engine);
  int64_t micro_batches = s->step * ts_gradient_accumulation_steps(engine) + micro_batch;
  int64_t first = (micro_batches * ts_data_parallel_size(engine) + ts_data_parallel_rank(engine)) * each;
  for (int64_t i = 0; i < each * LENGTH; ++i) {
    int64_t sample = first + i / LENGTH, t = i % LENGTH;
    s->tokens[i] = (int32_t) ((sample * 7 + 3 * t) % VOCABULARY);
    s->labels[i] = (s->tokens[i] + 3) % VOCABULARY;
  }
  ts_set_input(engine, "tokens", s->tokens, NULL);
  ts_set_input(engine, "labels", s->labels, NULL);
}

static ts_status train(ts_engine *engine, int rank, ts_error *err) {
  size_t bytes = (size_t) (ts_train_micro_batch_size(engine) * LENGTH) * sizeof(int32_t);
  source s = {0, malloc(bytes), malloc(bytes)};
  const ts_feed from = {feed, NULL, &s};
  ts_step_result result = {0};
  ts_status status = TS_OK;
  for (s.step = 0; s.step < STEPS && status == TS_OK; ++s.step) {
    status = ts_train_batch(engine, &from, &result, err);
    if (status == TS_OK && rank == 0 && (s.step + 1) % 10 == 0) {
      printf("step %lld  loss %.6f\n", (long long) s.step + 1, result.loss);
    }
  }
  free(s.tokens);
  free(s.labels);
  return status;
}

int main(int argc, char **argv) {
  int provided, rank;
  ts_world *world;
  ts_deck *deck = NULL;
  ts_engine *engine = NULL;
  ts_error err = {0, NULL};
  const ts_own_model model = {"counter", write_model, NULL};
  ts_mpi_prepare();
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  ts_status status = ts_world_join(MPI_COMM_WORLD, &world, &err);
  if (status == TS_OK) {
    status =
        ts_deck_read_shared(world, argc > 1 ? argv[1] : "first.cfg", argv + 2, argc > 2 ? argc - 2 : 0, &deck, &err);
  }
  if (status == TS_OK) {
    status = ts_initialize(&model, deck, world, TS_CAN_TRAIN, &engine, &err);
  }
  if (status == TS_OK) {
    status = train(engine, rank, &err);
  }
  if (status != TS_OK && rank == 0) { /* the same on every rank */
    fprintf(stderr, "%s\n", err.text);
  }
  ts_error_clear(&err);
  ts_engine_destroy(&engine);
  ts_deck_destroy(&deck);
  ts_world_destroy(&world);
  MPI_Finalize();
  ts_mpi_conclude();
  return status;
}
