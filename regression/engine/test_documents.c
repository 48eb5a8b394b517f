/* Documents in one sample are as documents in samples of their own: the same loss and the same gradients, on every
 * grid. */
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "io/data.h"

#include <math.h>
#include <string.h>

enum { LENGTH = 23, END = 66 };

/* Sums of the same numbers in fp32, in another order and beside other zeros. */
static const double tolerance = 1e-6;

/* Document `number` of this rank: `n` tokens, the last of which ends it. */
static void make_document(int rank, int number, int n, int32_t *tokens) {
  for (int i = 0; i < n - 1; ++i) {
    uint32_t words[4];
    ts_philox(5, (uint64_t) (rank * 10 + number), (uint64_t) i, words);
    tokens[i] = (int32_t) (words[0] % END);
  }
  tokens[n - 1] = END;
}

static const int lengths[] = {7, 1, 12}; /* one of an end token alone */
enum { DOCUMENTS = sizeof lengths / sizeof *lengths };

static void fill(int32_t *tokens) {
  for (int i = 0; i <= LENGTH; ++i) {
    tokens[i] = TS_IGNORED;
  }
}

/* Each document in a sample of its own, cut from a stream in which nothing follows it. */
static ts_batch *make_single(int rank) {
  ts_batch *batch = ts_batch_create(DOCUMENTS, LENGTH, TS_INPUTS_ALL);
  int32_t tokens[LENGTH + 1];
  for (int i = 0; i < DOCUMENTS; ++i) {
    fill(tokens);
    make_document(rank, i, lengths[i], tokens);
    ts_batch_set(batch, i, i, tokens, END);
  }
  return batch;
}

/* The same documents from a file, as the packing makes samples of them; the others are padding. */
static ts_batch *make_packed(int rank, const char *packing) {
  ts_batch *batch = ts_batch_create(DOCUMENTS, LENGTH, TS_INPUTS_ALL);
  int32_t tokens[LENGTH];
  uint8_t bytes[LENGTH + 1] = {0}; /* what is behind the documents is one more, of tokens that count nothing */
  int at = 0;
  for (int i = 0; i < DOCUMENTS; ++i) {
    make_document(rank, i, lengths[i], tokens);
    for (int t = 0; t < lengths[i]; ++t) {
      bytes[at++] = (uint8_t) tokens[t];
    }
  }
  bool stream = strcmp(packing, "documents") == 0;
  for (int t = at; t <= LENGTH && stream; ++t) {
    bytes[t] = END;
  }
  char *path = ts_format("%s/documents.%d", tap_directory_all(MPI_COMM_WORLD), rank);
  TS_CHECK(ts_write_file(path, (const char *) bytes, (size_t) (stream ? LENGTH + 1 : at), NULL) == TS_OK, "%s", path);
  const ts_data_options options = {.path = path,
                                   .format = "text",
                                   .sequence_length = LENGTH,
                                   .packing = ts_packing_find(packing),
                                   .end_token = END,
                                   .vocab_size = END + 1};
  ts_error err = {0};
  ts_data *data;
  TS_CHECK(ts_data_open(&options, &data, &err) == TS_OK, "%s", err.text);
  for (int64_t s = 0; s < DOCUMENTS; ++s) {
    bool there = s < ts_data_samples(data, TS_SPLIT_TRAINING);
    if (!there) {
      ts_batch_begin(batch, s, s);
    } else {
      TS_CHECK(ts_data_read(data, TS_SPLIT_TRAINING, s, batch, s, &err) == TS_OK, "%s", err.text);
    }
  }
  ts_data_close(&data);
  ts_free(path);
  return batch;
}

typedef struct outcome {
  double sum, valid; /* of the evaluation */
  double loss, norm; /* of a training step */
} outcome;

/* \param [in] packing  NULL: each document in a sample cut from a stream. */
static outcome run(ts_world *world, const char *text, const char *sets, const char *packing) {
  char *all = ts_format("data.packing=%s model.eos_token_id=%d data.sequence_length=%d train_batch_size=%d %s",
                        packing != NULL ? packing : "documents", END, LENGTH, DOCUMENTS * ts_world_size(world), sets);
  ts_deck *deck = train_run_deck(world, text, all);
  ts_engine *engine;
  const ts_engine_options options = {.world = world, .deck = deck, .abilities = TS_CAN_TRAIN | TS_CAN_EVALUATE};
  TS_CHECK(ts_engine_create(&options, &engine, NULL) == TS_OK, "the deck is good");
  int rank = ts_world_rank(world);
  ts_batch *batch = packing == NULL ? make_single(rank) : make_packed(rank, packing);
  outcome o;
  ts_engine_evaluate(engine, batch, &o.sum, &o.valid);
  ts_step_result step = ts_engine_train_step(engine, &(ts_step_input){.batch = batch});
  o.loss = step.loss;
  o.norm = step.grad_norm;
  ts_batch_destroy(&batch);
  ts_engine_destroy(&engine);
  ts_deck_destroy(&deck);
  ts_free(all);
  return o;
}

static bool near(double a, double b) {
  return fabs(a - b) <= tolerance * fabs(b);
}

static void test(ts_world *world, const char *name, const char *text, const char *sets) {
  static const char *const packings[] = {"documents", "best_fit", "none"};
  outcome each = run(world, text, sets, NULL);
  int tokens = 0;
  for (int i = 0; i < DOCUMENTS; ++i) {
    tokens += lengths[i] - 1; /* the first is no label */
  }
  for (size_t i = 0; i < sizeof packings / sizeof *packings; ++i) {
    outcome one = run(world, text, sets, packings[i]);
    char *label = ts_format("%s, %s, %s", packings[i], name, sets);
    tap_ok_all(MPI_COMM_WORLD, one.valid == tokens * ts_world_size(world) && each.valid == one.valid,
               "%s: %g tokens count", label, one.valid);
    tap_ok_all(MPI_COMM_WORLD, near(one.sum, each.sum), "%s: the loss of documents together, to %.1e", label,
               fabs(one.sum / each.sum - 1));
    tap_ok_all(MPI_COMM_WORLD, near(one.loss, each.loss) && near(one.norm, each.norm),
               "%s: a step with them, the norm to %.1e", label, fabs(one.norm / each.norm - 1));
    ts_free(label);
  }
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  const char *still = "model.attn_pdrop=0.0 model.embd_pdrop=0.0 model.resid_pdrop=0.0"; /* samples drop otherwise */
  test(world, "gpt2", train_run_gpt2, still);
  test(world, "llama", train_run_llama, "zero_optimization.stage=2");
  test(world, "mistral", train_run_llama, "model.model_type=mistral model.sliding_window=5 zero_optimization.stage=3");
  test(world, "llama", train_run_llama, "activation_checkpointing.enabled=true");
  int code = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return code;
}
