/* Documents in one sample are as documents in samples of their own: the same loss and the same gradients, on every
 * grid. */
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"

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

/* All documents in one sample, or each in one; other samples count nothing. */
static ts_batch *make_batch(int rank, bool together) {
  ts_batch *batch = ts_batch_create(DOCUMENTS, LENGTH, TS_INPUTS_ALL);
  int32_t tokens[LENGTH + 1];
  int at = 0;
  fill(tokens);
  for (int i = 0; i < DOCUMENTS; ++i) {
    if (!together) {
      fill(tokens);
      at = 0;
    }
    make_document(rank, i, lengths[i], tokens + at);
    at += lengths[i];
    ts_batch_set(batch, together ? 0 : i, i, tokens, END);
  }
  for (int i = 1; together && i < DOCUMENTS; ++i) {
    fill(tokens);
    ts_batch_set(batch, i, i, tokens, END);
  }
  return batch;
}

typedef struct outcome {
  double sum, valid; /* of the evaluation */
  double loss, norm; /* of a training step */
} outcome;

static outcome run(ts_world *world, const char *text, const char *sets, bool together) {
  char *all = ts_format("data.packing=documents model.eos_token_id=%d data.sequence_length=%d train_batch_size=%d %s",
                        END, LENGTH, DOCUMENTS * ts_world_size(world), sets);
  ts_deck *deck = train_run_deck(world, text, all);
  ts_engine *engine;
  const ts_engine_options options = {.world = world, .deck = deck, .abilities = TS_CAN_TRAIN | TS_CAN_EVALUATE};
  TS_CHECK(ts_engine_create(&options, &engine, NULL) == TS_OK, "the deck is good");
  ts_batch *batch = make_batch(ts_world_rank(world), together);
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
  outcome one = run(world, text, sets, true), each = run(world, text, sets, false);
  int tokens = 0;
  for (int i = 0; i < DOCUMENTS; ++i) {
    tokens += lengths[i] - 1; /* the first is no label */
  }
  tap_ok_all(MPI_COMM_WORLD, one.valid == tokens * ts_world_size(world) && each.valid == one.valid,
             "%s, %s: %g tokens count", name, sets, one.valid);
  tap_ok_all(MPI_COMM_WORLD, near(one.sum, each.sum), "%s, %s: the loss of documents together, to %.1e", name, sets,
             fabs(one.sum / each.sum - 1));
  tap_ok_all(MPI_COMM_WORLD, near(one.loss, each.loss) && near(one.norm, each.norm),
             "%s, %s: a step with them, the norm to %.1e", name, sets, fabs(one.norm / each.norm - 1));
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
