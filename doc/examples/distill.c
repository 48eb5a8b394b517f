/* Distillation: a small model learns from labels, and from what a larger one, trained before, says of each token
 * (Hinton et al., "Distilling the Knowledge in a Neural Network", 2015).  Two engines share one world; each has a deck.
 *
 *   mpicc distill.c -o distill $(pkg-config --cflags --libs tessera) -lm
 *   mpiexec -n 2 ./distill teacher.cfg student.cfg [key.path=value ...]        # keys of both decks
 *
 * The teacher is trained, then only asked; its logits are an input of the student, whose loss is
 *   (labels + T^2 cross entropy (teacher / T, student / T)) / 2.
 * Printed: losses of both, the same on any number of ranks but for rounding. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera.h>

enum { VOCABULARY = 24, LENGTH = 16, BATCH = 16, HEADS = 2, TEACHER_STEPS = 60, STUDENT_STEPS = 60 };
static const double temperature = 2;

/* ---- the models: one block each ---- */

typedef struct size {
  int64_t width;
  bool learns; /* from a teacher */
} size;

static void write_model(ts_builder *b, void *user) {
  const size *s = user;
  const int64_t length = LENGTH, rows[] = {LENGTH, VOCABULARY}, table[] = {VOCABULARY, s->width};
  const ts_init narrow = {TS_INIT_NORMAL, 0.02};
  const ts_heads heads = {.heads = HEADS, .kv_heads = HEADS, .head_dim = (int) s->width / HEADS, .causal = true};
  ts_tid tokens = ts_builder_input(b, "tokens", TS_I32, 1, &length, 1);
  ts_tid labels = ts_builder_input(b, "labels", TS_I32, 1, &length, 1);
  ts_builder_unit(b, "embed");
  ts_tid x = ts_builder_embedding(b, "tokens", tokens, VOCABULARY, s->width), qkv[3];
  ts_builder_unit(b, "block");
  ts_tid y = ts_builder_rmsnorm(b, "norm1", x, 1e-5);
  for (int i = 0; i < 3; ++i) {
    qkv[i] = ts_builder_linear(b, i == 0 ? "q" : i == 1 ? "k" : "v", y, s->width, false);
  }
  y = ts_builder_attention(b, "attention", qkv[0], qkv[1], qkv[2], TS_NONE, &heads);
  x = ts_builder_add(b, "add1", x, ts_builder_linear(b, "o", y, s->width, false));
  y = ts_builder_rmsnorm(b, "norm2", x, 1e-5);
  y = ts_builder_glu(b, "glu", ts_builder_linear(b, "gate", y, 2 * s->width, false),
                     ts_builder_linear(b, "up", y, 2 * s->width, false), TS_ACTIVATION_SILU);
  x = ts_builder_add(b, "add2", x, ts_builder_linear(b, "down", y, s->width, false));
  ts_builder_unit(b, "head");
  x = ts_builder_rmsnorm(b, "norm", x, 1e-5);
  ts_tid w = ts_builder_parameter(b, "weight", 2, table, narrow);
  ts_builder_head_loss(b, "loss", x, w, labels, s->learns ? 0.5 : 1);
  ts_tid logits = ts_builder_float(b, "logits", ts_builder_product(b, "product", x, w));
  if (s->learns) {
    ts_tid teacher = ts_builder_float(b, "soft_labels", ts_builder_input(b, "teacher", TS_F32, 2, rows, 1));
    ts_builder_loss(b, "soft", ts_builder_soft_cross_entropy(b, "distance", logits, teacher, temperature), TS_NONE,
                    0.5);
  } else {
    ts_builder_output(b, "logits", logits);
  }
}

/* In [-1/2, 1/2), as good as drawn. */
static double drawn(uint32_t key, uint32_t i) {
  uint32_t n = key * 2654435761u + i * 2246822519u;
  n = (n ^ n >> 15) * 2246822519u;
  n = (n ^ n >> 13) * 3266489917u;
  return (n ^ n >> 16) / 4294967296.0 - 0.5;
}

/* First values by a formula, so that another program can begin with the same. */
static ts_status set_first_values(ts_engine *engine, ts_error *err) {
  ts_status status = TS_OK;
  for (int i = 0; i < ts_parameter_count(engine) && status == TS_OK; ++i) {
    int64_t extent[TS_MAX_DIMS], n = 1;
    int dims = ts_parameter_shape(engine, i, extent);
    uint32_t key = 0;
    const char *name = ts_parameter_name(engine, i);
    for (const char *c = name; *c != 0; ++c) {
      key = 31 * key + (uint32_t) *c;
    }
    for (int d = 0; d < dims; ++d) {
      n *= extent[d];
    }
    bool one = strstr(name, "norm") != NULL;
    float *value = malloc((size_t) n * sizeof *value);
    for (int64_t k = 0; k < n; ++k) {
      value[k] = one ? 1 : (float) (3 * drawn(key, (uint32_t) k) / sqrt((double) extent[dims - 1]));
    }
    status = ts_set_full_fp32_parameter(engine, name, value, err);
    free(value);
  }
  return status;
}

/* ---- the data ---- */

/* Texts in which a token follows from the one before it, but for every seventh, which is as good as drawn. */
static void write_text(int64_t sample, int32_t token[LENGTH + 1]) {
  token[0] = (int32_t) (sample % VOCABULARY);
  for (int t = 1; t <= LENGTH; ++t) {
    uint32_t number = (uint32_t) sample * 2654435761u + (uint32_t) t * 40503u;
    token[t] = number % 7 == 0 ? (int32_t) ((number >> 8) % VOCABULARY) : (5 * token[t - 1] + 3) % VOCABULARY;
  }
}

static ts_status set_samples(ts_engine *engine, int64_t step, ts_error *err) {
  int64_t each = ts_train_micro_batch_size(engine), first = step * BATCH + ts_data_parallel_rank(engine) * each;
  int32_t *tokens = malloc((size_t) (each * LENGTH) * sizeof *tokens),
          *labels = malloc((size_t) (each * LENGTH) * sizeof *labels);
  for (int64_t i = 0; i < each; ++i) {
    int32_t text[LENGTH + 1];
    write_text(first + i, text);
    memcpy(tokens + i * LENGTH, text, LENGTH * sizeof *text);
    memcpy(labels + i * LENGTH, text + 1, LENGTH * sizeof *text);
  }
  ts_status status = ts_set_input(engine, "tokens", tokens, err);
  status = status == TS_OK ? ts_set_input(engine, "labels", labels, err) : status;
  free(tokens);
  free(labels);
  return status;
}

/* ---- steps ---- */

/* What the teacher says of the student's samples. */
static ts_status ask_teacher(ts_engine *teacher, ts_engine *student, int64_t step, ts_error *err) {
  float *logits = malloc((size_t) (ts_train_micro_batch_size(student) * LENGTH * VOCABULARY) * sizeof *logits);
  ts_status status = set_samples(teacher, step, err);
  status = status == TS_OK ? ts_forward(teacher, err) : status;
  status = status == TS_OK ? ts_get_output(teacher, "logits", logits, err) : status;
  status = status == TS_OK ? ts_set_input(student, "teacher", logits, err) : status;
  free(logits);
  return status;
}

static ts_status train(ts_engine *engine, ts_engine *teacher, int64_t steps, int rank, ts_error *err) {
  const char *name = teacher != NULL ? "student" : "teacher";
  ts_step_result result = {0};
  ts_status status = set_first_values(engine, err);
  for (int64_t step = 0; step < steps && status == TS_OK; ++step) {
    status = teacher != NULL ? ask_teacher(teacher, engine, step, err) : TS_OK;
    status = status == TS_OK ? set_samples(engine, step, err) : status;
    status = status == TS_OK ? ts_forward(engine, err) : status;
    status = status == TS_OK ? ts_backward(engine, 1, err) : status;
    status = status == TS_OK ? ts_step(engine, &result, err) : status;
    if (status == TS_OK && rank == 0 && ((step + 1) % 10 == 0 || step < 3)) {
      printf("%s step %lld  loss %.6f\n", name, (long long) step + 1, result.loss);
    }
  }
  return status;
}

int main(int argc, char **argv) {
  static size sizes[] = {{32, false}, {12, true}};
  const ts_own_model model[] = {{"teacher", write_model, &sizes[0]}, {"student", write_model, &sizes[1]}};
  int provided, rank;
  ts_world *world;
  ts_deck *deck[2] = {NULL, NULL};
  ts_engine *engine[2] = {NULL, NULL};
  ts_error err = {0, NULL};
  ts_mpi_prepare();
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  ts_status status = ts_world_join(MPI_COMM_WORLD, &world, &err);
  if (status == TS_OK && argc < 3) {
    status = ts_error_add(&err, "usage: %s TEACHER.cfg STUDENT.cfg [key.path=value ...]", argv[0]);
  }
  for (int i = 0; i < 2 && status == TS_OK; ++i) {
    status = ts_deck_read_shared(world, argv[1 + i], argv + 3, argc - 3, &deck[i], &err);
    if (status == TS_OK) {
      status = ts_initialize(&model[i], deck[i], world, TS_CAN_STEP | (i == 0 ? TS_CAN_EVALUATE : 0), &engine[i], &err);
    }
  }
  status = status == TS_OK ? train(engine[0], NULL, TEACHER_STEPS, rank, &err) : status;
  status = status == TS_OK ? ts_set_training(engine[0], false, &err) : status;
  status = status == TS_OK ? train(engine[1], engine[0], STUDENT_STEPS, rank, &err) : status;
  if (status != TS_OK && rank == 0) {
    fprintf(stderr, "%s\n", err.text);
  }
  ts_error_clear(&err);
  for (int i = 0; i < 2; ++i) {
    ts_engine_destroy(&engine[i]);
    ts_deck_destroy(&deck[i]);
  }
  ts_world_destroy(&world);
  MPI_Finalize();
  ts_mpi_conclude();
  return status;
}
