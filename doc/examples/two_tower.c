/* A contrastive two-tower model, trained on a batch that need not fit: backward is replayed chunk by chunk (Gao et al.,
 * "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021).
 *
 *   mpicc two_tower.c -o two_tower $(pkg-config --cflags --libs tessera) -lm
 *   mpiexec -n 2 ./two_tower two_tower.cfg [key.path=value ...]
 *
 * A step: (1) each chunk forward, and its vectors kept; (2) the vectors of all ranks, the symmetric InfoNCE loss of the
 * whole batch and its gradients, by this program; (3) each chunk forward again, and backward from these gradients.  The
 * chunks' gradients stay on their rank until the last (ts_coalesce_grad_reduction), so they are reduced once.  Where a
 * model drops, it draws by the numbers of the samples (ts_builder_samples): a chunk has the same values again.
 * Printed: the loss of the first three steps and of every tenth, the same on any number of ranks but for rounding. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera.h>

enum { VOCABULARY = 64, LENGTH = 12, WIDTH = 32, HEADS = 2, VECTOR = 16, PAIRS = 16, KNOWN = 32, STEPS = 60 };
static const double temperature = 0.1;
static const char *const tower_name[] = {"query", "text"};

/* ---- the model ---- */

static void write_tower(ts_builder *b, const char *tower) {
  const int64_t length = LENGTH;
  const ts_heads heads = {.heads = HEADS, .kv_heads = HEADS, .head_dim = WIDTH / HEADS};
  char name[64];
  snprintf(name, sizeof name, "%s_tokens", tower);
  ts_tid tokens = ts_builder_input(b, name, TS_I32, 1, &length, 0);
  snprintf(name, sizeof name, "%s_mask", tower);
  ts_tid mask = ts_builder_input(b, name, TS_I32, 1, &length, 0);
  snprintf(name, sizeof name, "%s.embed", tower);
  ts_builder_unit(b, name);
  ts_tid x = ts_builder_embedding(b, "tokens", tokens, VOCABULARY, WIDTH);
  snprintf(name, sizeof name, "%s.block", tower);
  ts_builder_unit(b, name);
  ts_tid y = ts_builder_layernorm(b, "norm1", x, 1e-5), qkv[3];
  for (int i = 0; i < 3; ++i) {
    qkv[i] = ts_builder_linear(b, i == 0 ? "q" : i == 1 ? "k" : "v", y, WIDTH, false);
  }
  y = ts_builder_attention(b, "attention", qkv[0], qkv[1], qkv[2], mask, &heads); /* padding sees padding alone */
  x = ts_builder_add(b, "add1", x, ts_builder_linear(b, "o", y, WIDTH, false));
  y = ts_builder_activation(b, "act",
                            ts_builder_linear(b, "up", ts_builder_layernorm(b, "norm2", x, 1e-5), 2 * WIDTH, true),
                            TS_ACTIVATION_GELU);
  x = ts_builder_add(b, "add2", x, ts_builder_linear(b, "down", y, WIDTH, true));
  y = ts_builder_linear(b, "vector", ts_builder_mean_pool(b, "pool", x, mask), VECTOR, false);
  ts_builder_output(b, tower, ts_builder_normalize(b, "unit", y, 1e-12));
}

static void write_model(ts_builder *b, void *user) {
  (void) user;
  write_tower(b, tower_name[0]);
  write_tower(b, tower_name[1]);
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
    const char *name = ts_parameter_name(engine, i);
    uint32_t key = 0;
    for (const char *c = name; *c != 0; ++c) {
      key = 31 * key + (uint32_t) *c;
    }
    for (int d = 0; d < dims; ++d) {
      n *= extent[d];
    }
    bool one = strstr(name, "norm") != NULL && strstr(name, "weight") != NULL, zero = strstr(name, "bias") != NULL;
    float *value = malloc((size_t) n * sizeof *value);
    for (int64_t k = 0; k < n; ++k) {
      value[k] = one ? 1 : zero ? 0 : (float) (3 * drawn(key, (uint32_t) k) / sqrt((double) extent[dims - 1]));
    }
    status = ts_set_full_fp32_parameter(engine, name, value, err);
    free(value);
  }
  return status;
}

/* ---- the data ---- */

/* Token t of the pair's query, or of its text, which is the query in other words; -1 behind its end. */
static int32_t token_of(int64_t pair, int tower, int t) {
  int length = tower == 0 ? LENGTH - (int) (pair % 4) : LENGTH - (int) (pair / 2 % 3);
  uint32_t number = (uint32_t) pair * 2654435761u + (uint32_t) t * 40503u;
  int32_t token = (int32_t) ((number >> 8) % VOCABULARY);
  return t >= length ? -1 : tower == 0 ? token : VOCABULARY - 1 - token;
}

static ts_status set_chunk(ts_engine *engine, int64_t step, int64_t first, int64_t each, ts_error *err) {
  int32_t *tokens = malloc((size_t) (each * LENGTH) * sizeof *tokens),
          *mask = malloc((size_t) (each * LENGTH) * sizeof *mask);
  ts_status status = TS_OK;
  for (int tower = 0; tower < 2 && status == TS_OK; ++tower) {
    char name[2][64];
    for (int64_t i = 0; i < each * LENGTH; ++i) {
      int32_t token = token_of((step * PAIRS + first + i / LENGTH) % KNOWN, tower, (int) (i % LENGTH));
      tokens[i] = token < 0 ? 0 : token;
      mask[i] = token >= 0;
    }
    snprintf(name[0], sizeof name[0], "%s_tokens", tower_name[tower]);
    snprintf(name[1], sizeof name[1], "%s_mask", tower_name[tower]);
    status = ts_set_input(engine, name[0], tokens, err);
    status = status == TS_OK ? ts_set_input(engine, name[1], mask, err) : status;
  }
  free(tokens);
  free(mask);
  return status;
}

/* ---- the loss ---- */

typedef struct vectors {
  float of[2][PAIRS][VECTOR]; /* of both towers */
} vectors;

/* Symmetric InfoNCE: each query among all texts, each text among all queries. */
static double find_loss(const vectors *v, vectors *gradient) {
  static double logit[PAIRS][PAIRS], share[2][PAIRS][PAIRS]; /* softmax by rows, by columns */
  double loss = 0;
  for (int i = 0; i < PAIRS; ++i) {
    for (int j = 0; j < PAIRS; ++j) {
      logit[i][j] = 0;
      for (int k = 0; k < VECTOR; ++k) {
        logit[i][j] += (double) v->of[0][i][k] * v->of[1][j][k] / temperature;
      }
    }
  }
  for (int side = 0; side < 2; ++side) {
    for (int i = 0; i < PAIRS; ++i) {
      double sum = 0; /* logits are at most 1 / temperature */
      for (int j = 0; j < PAIRS; ++j) {
        sum += exp(side == 0 ? logit[i][j] : logit[j][i]);
      }
      for (int j = 0; j < PAIRS; ++j) {
        double p = exp(side == 0 ? logit[i][j] : logit[j][i]) / sum;
        *(side == 0 ? &share[0][i][j] : &share[1][j][i]) = p;
      }
      loss += (log(sum) - logit[i][i]) / (2 * PAIRS);
    }
  }
  memset(gradient, 0, sizeof *gradient);
  for (int i = 0; i < PAIRS; ++i) {
    for (int j = 0; j < PAIRS; ++j) {
      double d = (share[0][i][j] + share[1][i][j] - 2 * (i == j)) / (2 * PAIRS * temperature);
      for (int k = 0; k < VECTOR; ++k) {
        gradient->of[0][i][k] += (float) (d * v->of[1][j][k]);
        gradient->of[1][j][k] += (float) (d * v->of[0][i][k]);
      }
    }
  }
  return loss;
}

/* ---- a step ---- */

/* The chunk's vectors in, or its gradients out. */
static ts_status forward_chunk(ts_engine *engine, int64_t step, int64_t first, int64_t each, ts_error *err) {
  ts_status status = set_chunk(engine, step, first, each, err);
  return status == TS_OK ? ts_forward(engine, err) : status;
}

static ts_status replay(ts_engine *engine, int64_t step, int64_t begin, int64_t end, int64_t each,
                        const vectors *gradient, ts_error *err) {
  ts_status status = ts_coalesce_grad_reduction_begin(engine, err);
  for (int64_t first = begin; first < end && status == TS_OK; first += each) {
    status = forward_chunk(engine, step, first, each, err);
    for (int tower = 0; tower < 2 && status == TS_OK; ++tower) {
      status = ts_set_output_gradient(engine, tower_name[tower], gradient->of[tower][first], err);
    }
    status = status == TS_OK ? ts_backward(engine, 0, err) : status;
  }
  return status == TS_OK ? ts_coalesce_grad_reduction_end(engine, err) : status;
}

static ts_status train_step(ts_engine *engine, int64_t step, double *loss, ts_error *err) {
  int64_t each = ts_train_micro_batch_size(engine), mine = PAIRS / ts_data_parallel_size(engine);
  int64_t begin = ts_data_parallel_rank(engine) * mine, end = begin + mine;
  static vectors v, gradient;
  ts_status status = TS_OK;
  memset(&v, 0, sizeof v);
  for (int64_t first = begin; first < end && status == TS_OK; first += each) {
    status = forward_chunk(engine, step, first, each, err);
    for (int tower = 0; tower < 2 && status == TS_OK; ++tower) {
      status = ts_get_output(engine, tower_name[tower], v.of[tower][first], err);
    }
  }
  if (status == TS_OK) { /* what other ranks have is 0 here; those that share samples (tp, sp) have the same */
    int ranks;
    float *all = v.of[0][0];
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Allreduce(MPI_IN_PLACE, all, sizeof v / sizeof *all, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (size_t i = 0; i < sizeof v / sizeof *all; ++i) {
      all[i] /= (float) (ranks / ts_data_parallel_size(engine));
    }
    *loss = find_loss(&v, &gradient);
    status = replay(engine, step, begin, end, each, &gradient, err);
  }
  status = status == TS_OK ? ts_set_gradient_accumulation_boundary(engine, true, err) : status;
  return status == TS_OK ? ts_step(engine, NULL, err) : status;
}

static ts_status train(ts_engine *engine, int rank, ts_error *err) {
  double loss = 0;
  ts_status status = set_first_values(engine, err);
  if (PAIRS % (ts_train_micro_batch_size(engine) * ts_data_parallel_size(engine)) != 0) {
    return ts_error_add(err, "%d pairs cannot be chunks of train_micro_batch_size_per_gpu on each rank", PAIRS);
  }
  for (int64_t step = 0; step < STEPS && status == TS_OK; ++step) {
    status = train_step(engine, step, &loss, err);
    if (status == TS_OK && rank == 0 && ((step + 1) % 10 == 0 || step < 3)) {
      printf("step %lld  loss %.6f\n", (long long) step + 1, loss);
    }
  }
  return status;
}

int main(int argc, char **argv) {
  int provided, rank;
  ts_world *world;
  ts_deck *deck = NULL;
  ts_engine *engine = NULL;
  ts_error err = {0, NULL};
  const ts_own_model model = {"two_tower", write_model, NULL};
  const unsigned abilities = TS_CAN_STEP | TS_CAN_SEED | TS_CAN_DEFER;
  ts_mpi_prepare();
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const char *path = argc > 1 ? argv[1] : "two_tower.cfg";
  ts_status status = ts_world_join(MPI_COMM_WORLD, &world, &err);
  status = status == TS_OK ? ts_deck_read_shared(world, path, argv + 2, argc > 2 ? argc - 2 : 0, &deck, &err) : status;
  status = status == TS_OK ? ts_initialize(&model, deck, world, abilities, &engine, &err) : status;
  status = status == TS_OK ? train(engine, rank, &err) : status;
  if (status != TS_OK && rank == 0) {
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
