/** \file
 * The programs of all ranks of a grid in one process, for a backend that computes nothing: small models.  Nothing here
 * is collective.
 */
#ifndef REGRESSION_GRID_H
#define REGRESSION_GRID_H

#include "base/memory.h"
#include "base/text.h"
#include "run/program.h"

#include <string.h>

#define COMMON                                                             \
  "data = { path = \"none\"; format = \"text\"; sequence_length = 8; };\n" \
  "run = { directory = \"none\"; steps = 1; };\n"                          \
  "train_micro_batch_size_per_gpu = 1;\n"

/* 512 shards of the largest matrices have elements for every rank, those of the smallest for a few. */
static const char llama[] =
    "model = { model_type = \"llama\"; vocab_size = 256; hidden_size = 96; intermediate_size = 200;\n"
    "  num_hidden_layers = 2; num_attention_heads = 6; num_key_value_heads = 2; max_position_embeddings = 32;\n"
    "  tie_word_embeddings = false; };\n" COMMON;
static const char gpt2[] =
    "model = { model_type = \"gpt2\"; vocab_size = 256; n_embd = 64; n_layer = 2; n_head = 2; n_positions = 32;\n"
    "  attn_pdrop = 0.1; embd_pdrop = 0.1; resid_pdrop = 0.1; };\n" COMMON;

/* Thirteen experts divide nothing; one layer has none. */
static const char mixture[] =
    "model = { model_type = \"qwen2_moe\"; vocab_size = 256; hidden_size = 96; intermediate_size = 200;\n"
    "  num_hidden_layers = 3; num_attention_heads = 6; num_key_value_heads = 2; max_position_embeddings = 32;\n"
    "  num_experts = 13; num_experts_per_tok = 3; moe_intermediate_size = 40; shared_expert_intermediate_size = 56;\n"
    "  mlp_only_layers = [1]; output_router_logits = true; tie_word_embeddings = false; };\n" COMMON;

static inline ts_device *closed_device(void) {
  return NULL;
}

/** The null backend as a device's, which is never open: it has memory of its own. Not collective. */
static inline const ts_backend *null_device(void) {
  static ts_backend backend;
  backend = *ts_backend_null();
  backend.device = closed_device;
  return &backend;
}

/** What programs are for; NULL: the null backend. */
static const ts_backend *grid_backend;

typedef struct grid {
  ts_deck *deck;
  ts_program **program; /* per rank */
  int ranks;
} grid;

/** A deck with settings after it, separated by blanks. Not collective. */
static inline ts_deck *read_deck(const char *text, const char *sets, int ranks) {
  char *list = ts_strdup(sets), *word[16];
  int n = 0;
  for (char *w = strtok(list, " "); w != NULL && n < 16; w = strtok(NULL, " ")) {
    word[n++] = w;
  }
  ts_error err = {0};
  ts_deck *deck;
  ts_status status = ts_deck_read_text("test", text, word, n, &deck, &err);
  int64_t shared =
      status == TS_OK ? deck->sequence_parallel_size * deck->tensor_parallel.autotp_size * deck->pipeline.stages : 1;
  status = status == TS_OK ? ts_deck_resolve_batch(deck, ranks / (int) shared, &err) : status;
  TS_CHECK(status == TS_OK, "%s", err.text);
  ts_free(list);
  return deck;
}

/** The programs of all ranks, with the runs of a step in an order. Not collective. */
static inline grid make_grid_in_order(const char *text, const char *sets, int ranks, ts_model_use use,
                                      ts_step_order order) {
  grid g = {
      .deck = read_deck(text, sets, ranks), .ranks = ranks, .program = ts_malloc((size_t) ranks * sizeof *g.program)};
  for (int r = 0; r < ranks; ++r) {
    ts_mesh mesh;
    TS_CHECK(ts_deck_mesh(g.deck, ranks, r, &mesh, NULL) == TS_OK, "the grid is dp = %d", ranks);
    const ts_program_options options = {
        .deck = g.deck,
        .mesh = &mesh,
        .target = {grid_backend != NULL ? grid_backend : ts_backend_null(), 1, TS_CUDNN_NEVER},
        .use = use,
        .batch = 1,
        .length = g.deck->data.sequence_length,
        .context = g.deck->data.sequence_length,
        .order = order};
    g.program[r] = ts_program_create(&options);
    if (use == TS_MODEL_LOSS) { /* not as many as an evaluation has: what comes after three is the same again */
      ts_step_set_micro_batches(&g.program[r]->step, 3);
    }
  }
  return g;
}

/** The same, one after another. Not collective. */
static inline grid make_grid(const char *text, const char *sets, int ranks, ts_model_use use) {
  return make_grid_in_order(text, sets, ranks, use, (ts_step_order){0});
}

/** Free all of it. Not collective. */
static inline void free_grid(grid *g) {
  for (int r = 0; r < g->ranks; ++r) {
    ts_program_destroy(&g->program[r]);
  }
  ts_free(g->program);
  ts_deck_destroy(&g->deck);
}

#endif
