/* Tensor parallelism: on any grid and at any stage the losses and norms of one rank, whatever the model, its settings
 * and the marks; on one grid the bits do not depend on the stage.
 *
 * A sample of the product of models, settings, grids and stages; all of it where TEST_TP_ALL is set.  TEST_ONLY takes
 * names of models, settings, and "stages", "marks"; TEST_MARKS the number of one of the marks. */
#include "regression/tap.h"
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 4 };

/* 170 tokens a step, or 85: rows that neither 2, 3 nor 4 ranks divide evenly in all of the grids. */
#define MODEL(type, more) TRAIN_RUN_MODEL(type, "32", "17", "10", more)
#define HEADS(q, kv) "num_attention_heads = " #q "; num_key_value_heads = " #kv "; "
#define SIZES(width, mlp, layers) \
  "hidden_size = " #width "; intermediate_size = " #mlp "; num_hidden_layers = " #layers "; "
#define UNTIED "tie_word_embeddings = false; "
#define TIED "tie_word_embeddings = true; "
#define NO_DROPOUT "attn_pdrop = 0.0; embd_pdrop = 0.0; resid_pdrop = 0.0; "

typedef struct model_row {
  const char *name, *deck;
  int heads;
  bool drops; /* knows all three dropouts, not that of attention alone */
} model_row;

/* Sizes that divide by nothing; key heads that divide, that do not, and of which there are fewer than ranks. */
static const model_row models[] = {
    {"llama", MODEL("llama", SIZES(36, 41, 2) HEADS(6, 2) UNTIED), 6, false},
    {"gpt2", MODEL("gpt2", "n_embd = 32; n_layer = 2; n_head = 4; " NO_DROPOUT), 4, true},
    {"llama-9/3", MODEL("llama", SIZES(36, 41, 2) HEADS(9, 3) TIED "attention_bias = true; mlp_bias = true; "), 9,
     false},
    {"llama-14/2", MODEL("llama", SIZES(28, 30, 1) HEADS(14, 2) UNTIED), 14, false},
    {"llama-4/1", MODEL("llama", SIZES(32, 29, 2) HEADS(4, 1) UNTIED), 4, false},
    {"llama-6/6", MODEL("llama", SIZES(36, 41, 1) HEADS(6, 6) TIED), 6, false},
    {"qwen2", MODEL("qwen2", SIZES(36, 41, 2) HEADS(6, 2) TIED), 6, false},
    {"qwen3", MODEL("qwen3", SIZES(36, 41, 2) HEADS(6, 3) "head_dim = 8; " TIED), 6, false},
    {"qwen3-4/1", MODEL("qwen3", SIZES(36, 41, 1) HEADS(4, 1) "head_dim = 8; " UNTIED), 4, false},
    {"gemma", MODEL("gemma", SIZES(36, 29, 2) HEADS(4, 1) "head_dim = 8; "), 4, false},
    {"gemma2",
     MODEL("gemma2", SIZES(36, 29, 2) HEADS(
                         4, 2) "head_dim = 8; query_pre_attn_scalar = 12; "
                               "sliding_window = 5; attn_logit_softcapping = 5.0; final_logit_softcapping = 3.0; "),
     4, false},
    {"gemma3",
     MODEL("gemma3_text",
           SIZES(36, 29, 3) HEADS(4, 2) "head_dim = 8; query_pre_attn_scalar = 12; "
                                        "sliding_window = 6; layer_types = [\"sliding_attention\", \"full_attention\", "
                                        "\"sliding_attention\"]; "),
     4, false},
    {"olmo2", MODEL("olmo2", SIZES(36, 41, 2) HEADS(6, 2) UNTIED), 6, false},
    {"olmo2-9/3", MODEL("olmo2", SIZES(36, 41, 1) HEADS(9, 3) TIED), 9, false},
    {"olmo3",
     MODEL("olmo3", SIZES(36, 41, 2) HEADS(6, 2) "sliding_window = 5; layer_types = [\"sliding_attention\", "
                                                 "\"full_attention\"]; " UNTIED),
     6, false},
    {"phi3", MODEL("phi3", SIZES(36, 41, 2) HEADS(6, 2) "sliding_window = 7; partial_rotary_factor = 0.67; " UNTIED), 6,
     false},
    {"phi3-4/1", MODEL("phi3", SIZES(32, 29, 1) HEADS(4, 1) UNTIED), 4, false},
    {"gpt_neox",
     MODEL("gpt_neox", SIZES(36, 50, 2) "num_attention_heads = 6; use_parallel_residual = true; "
                                        "partial_rotary_factor = 0.67; "),
     6, false},
    {"gpt_neox-serial",
     MODEL("gpt_neox",
           SIZES(36, 50, 1) "num_attention_heads = 6; use_parallel_residual = false; partial_rotary_factor = 1.0; "),
     6, false},
    {"smollm3", MODEL("smollm3", SIZES(36, 29, 2) HEADS(6, 2) "no_rope_layers = [1, 0]; " TIED), 6, false},
    {"granite",
     MODEL("granite", SIZES(36, 41, 1) HEADS(6, 2) "embedding_multiplier = 2.0; residual_multiplier = 0.5; "
                                                   "logits_scaling = 3.0; attention_multiplier = 0.3; "),
     6, false},
    {"starcoder2", MODEL("starcoder2", SIZES(36, 41, 1) HEADS(6, 2) "sliding_window = 5; "), 6, false},
    {"mistral", MODEL("mistral", SIZES(36, 41, 1) HEADS(9, 3) "sliding_window = 5; " UNTIED), 9, false},
};
enum { N_MODELS = sizeof models / sizeof *models };

/* fp32: sums in another order.  A loss is a mean of 170 terms of size 4; a norm is of gradients that differ by 1e-6 of
 * the largest, which the steps of Adam amplify.  Seen: 7e-7 and 6e-6. */
static const double loss_tolerance = 2e-6, norm_tolerance = 1e-5;

/* bf16: a rank's part of a sum is rounded to 2^-9 before it is sent, one rounding more than in a product of one rank;
 * some twenty of them follow one another, and a loss averages over a hundred tokens.  A norm's gradients have as many
 * again.  Seen: 2e-3 and 2e-2. */
static const double bf16_loss_tolerance = 5e-3, bf16_norm_tolerance = 5e-2;

typedef struct setting_row {
  const char *name, *sets;
  bool bf16;
  bool drops; /* only for models that know all dropouts */
} setting_row;

#define ATTENTION_WEIGHTS "q_proj|c_attn|qkv_proj|query_key_value"

static const setting_row settings[] = {
    {"plain", "", false, false},
    {"accumulation", "gradient_accumulation_steps=5", false, false},
    {"recomputation", "activation_checkpointing.enabled=true", false, false},
    {"no sequence_parallel", "tensor_parallel.sequence_parallel=false", false, false},
    {"whole vocabulary", "tensor_parallel.vocab_parallel_lm_head=false", false, false},
    {"whole vocabulary, no sequence_parallel",
     "tensor_parallel.vocab_parallel_lm_head=false tensor_parallel.sequence_parallel=false", false, false},
    {"grain", "tensor_parallel.tp.tp_grain_size=8", false, false},
    {"overlap", "tensor_parallel.tp_overlap_comm=true zero_optimization.overlap_comm=true", false, false},
    {"attention dropout", "model.attn_pdrop=0.1", false, false},
    {"all dropouts", "model.attn_pdrop=0.1 model.embd_pdrop=0.1 model.resid_pdrop=0.1", false, true},
    {"all dropouts, no sequence_parallel, recomputation",
     "model.attn_pdrop=0.1 model.embd_pdrop=0.1 model.resid_pdrop=0.1 tensor_parallel.sequence_parallel=false "
     "activation_checkpointing.enabled=true",
     false, true},
    {"frozen MLPs", "frozen=[\"mlp\"]", false, false},
    {"frozen attention and norms", "frozen=[\"" ATTENTION_WEIGHTS "\",\"norm|ln_\"]", false, false},
    {"frozen embedding", "frozen=[\"embed_|wte|wpe\"]", false, false},
    {"documents", "data.packing=documents model.eos_token_id=5", false, false},
    {"documents, no sequence_parallel",
     "data.packing=documents model.eos_token_id=5 tensor_parallel.sequence_parallel=false", false, false},
    {"nothing persists",
     "zero_optimization.stage3_param_persistence_threshold=0 "
     "zero_optimization.stage3_max_reuse_distance=0",
     false, false},
    {"small buckets", "zero_optimization.reduce_bucket_size=1600 zero_optimization.allgather_bucket_size=1600", false,
     false},
    {"memory check", "debug.memcheck=true", false, false},
    {"bf16", "bf16.enabled=true", true, false},
    {"recomputation, attention kept", "activation_checkpointing={enabled=true;policy=\"sac\";interval=2;}", false,
     false},
    {"bf16, no sequence_parallel", "bf16.enabled=true tensor_parallel.sequence_parallel=false", true, false},
    {"MLPs in tiles", "tiled_mlp_compute=true", false, false},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

typedef struct grid {
  ts_world *all, *alone;
  int tp, dp;
} grid;

static bool wants_all(void) {
  return getenv("TEST_TP_ALL") != NULL;
}

/* ---- a grid ---- */

static train_run run_on(const grid *on, const char *what, const char *deck, const char *sets, int stage) {
  char *all = ts_format("tensor_parallel.autotp_size=%d zero_optimization.stage=%d %s", on->tp, stage, sets);
  if (wants_all() && ts_world_rank(on->all) == 0) {
    tap_note("%s, tp %d x dp %d, stage %d", what, on->tp, on->dp, stage); /* of one that does not come back */
  }
  train_run run = train_run_do(on->all, deck, all, STEPS);
  ts_free(all);
  return run;
}

static void expect_as_alone(const grid *on, const char *what, const train_run *one, const train_run *run, int stage,
                            bool bf16) {
  train_difference d = train_run_difference(run, one);
  bool near = d.loss <= (bf16 ? bf16_loss_tolerance : loss_tolerance) &&
              d.norm <= (bf16 ? bf16_norm_tolerance : norm_tolerance);
  tap_ok_all(MPI_COMM_WORLD, near, "%s, tp %d x dp %d, stage %d: losses to %.1e, norms to %.1e", what, on->tp, on->dp,
             stage, d.loss, d.norm);
}

static void test_run(const grid *on, const char *what, const train_run *one, const char *deck, const char *sets,
                     int stage, bool bf16) {
  train_run run = run_on(on, what, deck, sets, stage);
  expect_as_alone(on, what, one, &run, stage, bf16);
  train_run_free(&run);
}

/* ---- models and settings ---- */

static bool fits(const grid *on, const model_row *model, const setting_row *setting) {
  return on->tp <= model->heads && (model->drops || !setting->drops);
}

/* \param [in] stage  One, or -1 for all. */
static void test_pair(const grid *on, const model_row *model, const setting_row *setting, int stage) {
  if (!fits(on, model, setting) || !(tap_wanted(model->name) || tap_wanted(setting->name))) {
    return;
  }
  char *what = ts_format("%s, %s", model->name, setting->name);
  train_run one = train_run_alone(on->all, on->alone, model->deck, setting->sets, STEPS);
  for (int s = stage < 0 ? 0 : stage; s <= (stage < 0 ? 3 : stage); ++s) {
    test_run(on, what, &one, model->deck, setting->sets, s, setting->bf16);
  }
  train_run_free(&one);
  ts_free(what);
}

/* Every model once, on a grid with dp every other; every setting with one of the models: which, and at which stage,
 * follows from the grid. */
static void test_sample(const grid *on) {
  for (int m = 0; m < N_MODELS; m += on->dp) {
    test_pair(on, &models[m], &settings[0], (m + on->tp) % 4);
  }
  for (int s = 1; s < N_SETTINGS; ++s) {
    const model_row *model = &models[settings[s].drops ? 1 : (5 * s + on->tp) % N_MODELS];
    test_pair(on, fits(on, model, &settings[s]) ? model : &models[0], &settings[s], (s + on->tp + 1) % 4);
  }
}

static void test_product(const grid *on) {
  for (int m = 0; m < N_MODELS; ++m) {
    for (int s = 0; s < N_SETTINGS; ++s) {
      test_pair(on, &models[m], &settings[s], -1);
    }
  }
}

/* ---- stages: bits ---- */

static void expect_equal(const grid *on, const char *what, const train_run *a, const train_run *b, int stage,
                         int other) {
  tap_ok_all(MPI_COMM_WORLD, train_run_equal(a, b), "%s, tp %d x dp %d: the bits of stage %d are those of stage %d",
             what, on->tp, on->dp, stage, other);
}

/* One micro-batch: all are equal.  Several: gradients are added before they are reduced or after. */
static void test_stages(const grid *on, const model_row *model, const char *sets) {
  if (on->tp > model->heads || !tap_wanted("stages")) {
    return;
  }
  bool accumulates = strstr(sets, "gradient_accumulation_steps") != NULL;
  char *what = ts_format("%s, %s", model->name, *sets != 0 ? sets : "plain");
  train_run run[4];
  for (int stage = 0; stage < 4; ++stage) {
    run[stage] = run_on(on, what, model->deck, sets, stage);
  }
  expect_equal(on, what, &run[1], &run[0], 1, 0);
  expect_equal(on, what, &run[3], &run[2], 3, 2);
  if (!accumulates) {
    expect_equal(on, what, &run[2], &run[0], 2, 0);
  }
  for (int stage = 0; stage < 4; ++stage) {
    train_run_free(&run[stage]);
  }
  ts_free(what);
}

static void test_bits(const grid *on) {
  static const char *const sets[] = {"", "gradient_accumulation_steps=5", "bf16.enabled=true",
                                     "activation_checkpointing.enabled=true "
                                     "zero_optimization.reduce_bucket_size=1600"};
  for (int m = 0; m < N_MODELS; ++m) {
    for (int i = 0; i < 4; ++i) {
      if (wants_all() || m == (i + on->tp) % 3 * 2) {
        test_stages(on, &models[m], sets[i]);
      }
    }
  }
}

/* ---- marks ---- */

typedef struct marks_row {
  int model;
  const char *keys; /* of tensor_parallel */
} marks_row;

#define SPECS(entries) "partition_config = { layer_specs = ( " entries " ); };"
#define SPEC(name, more) "{ patterns = \".*" name "\\\\.weight\"; " more " }"
#define ROW " partition_type = \"row\";"
#define SKIP " partition_type = \"skip\";"
#define GATHER " gather_output = true;"
#define ONLY(entries) "partition_config = { use_default_specs = false; layer_specs = ( " entries " ); };"
enum { LLAMA = 0, GPT2 = 1, LLAMA_BIASED = 2, PHI3 = 15 };

/* Of the llama: 6 heads of 6 with 2 key heads, 41 wide; of GPT-2: 4 heads of 8, 128 wide. */
static const marks_row marks[] = {
    {LLAMA, SPECS(SPEC("q_proj", ROW) ", " SPEC("o_proj", ""))},
    {LLAMA_BIASED, SPECS(SPEC("q_proj", ROW) ", " SPEC("o_proj", ""))},
    {LLAMA, SPECS(SPEC("v_proj", SKIP) ", " SPEC("down_proj", SKIP))},
    {LLAMA, SPECS(SPEC("k_proj", SKIP) ", " SPEC("layers.0.mlp.*", SKIP))},
    {LLAMA, SPECS(SPEC("(up_proj|q_proj|o_proj)", GATHER))},
    {LLAMA, SPECS(SPEC("embed_tokens", ROW))},
    {LLAMA_BIASED, SPECS(SPEC("embed_tokens", ROW))},
    {GPT2, SPECS(SPEC("wte", ROW))},
    {LLAMA, SPECS(SPEC("lm_head", SKIP))},
    {LLAMA, SPECS(SPEC("embed_tokens", SKIP))},
    {LLAMA, SPECS(SPEC("gate_proj", "") ", " SPEC("up_proj", SKIP))},
    {LLAMA, SPECS(SPEC("gate_proj", "shape = ((10, 31), -1);") ", " SPEC("up_proj", "shape = ((10, 31), -1);"))},
    {LLAMA, SPECS(SPEC("down_proj", ROW " shape = (-1, (7, 30, 4));"))},
    {LLAMA, SPECS(SPEC("o_proj", ROW " shape = (-1, 3);"))},
    {LLAMA, SPECS(SPEC("[qkv]_proj", "shape = (-1, 6, 36);"))},
    {GPT2, SPECS(SPEC("c_attn", "shape = (3, -1);") ", " SPEC("c_fc", "shape = (-1, 16, 32);"))},
    {GPT2, SPECS(SPEC("c_attn", SKIP) ", " SPEC("mlp\\\\.c_proj", ""))},
    {GPT2, SPECS(SPEC("c_attn", ROW) ", " SPEC("attn\\\\.c_proj", GATHER) ", " SPEC("c_fc", ROW))},
    {GPT2, SPECS(SPEC("c_attn", GATHER))},
    {PHI3, SPECS(SPEC("gate_up_proj", SKIP) ", " SPEC("qkv_proj", SKIP))},
    {PHI3, SPECS(SPEC("gate_up_proj", "shape = (2, -1);") ", " SPEC("qkv_proj", "shape = ((36, 12, 12), -1);"))},
    {LLAMA, SPECS(SPEC("", ROW))},
    {LLAMA, SPECS(SPEC("", ""))},
    {LLAMA, SPECS(SPEC("", GATHER))},
    {LLAMA_BIASED, SPECS(SPEC("", ROW))},
    {LLAMA, SPECS(SPEC("", SKIP))},
    {GPT2, SPECS(SPEC("", ROW))},
    {GPT2, SPECS(SPEC("", ""))},
    {LLAMA, ONLY(SPEC("mlp.*", ""))},
    {LLAMA, ONLY(SPEC("self_attn.*", ROW) ", " SPEC("lm_head", ""))},
    {LLAMA, "preset_model = \"llama\";"},
    {LLAMA_BIASED, "preset_model = \"qwen2\";"},
    {PHI3, "preset_model = \"phi3\";"},
    {LLAMA, "tp_plan = ( { pattern = \"layers.*.self_attn.q_proj\"; style = \"colwise\"; }, { pattern = "
            "\"layers.*.mlp.down_proj\"; style = \"rowwise\"; }, { pattern = \"layers.*.mlp.up_proj\"; style = "
            "\"colwise_gather_output\"; }, { pattern = \"layers.*.self_attn.o_proj\"; style = \"replicate\"; } );"},
    {PHI3,
     "tp_plan = ( { pattern = \"gate_up_proj\"; style = \"packed_colwise\"; }, { pattern = \"down_proj\"; style = "
     "\"rowwise\"; } );"},
    /* a tied table whose uses are of two kinds: rows of the lookup, and a head that comes out whole */
    {GPT2, SPECS(SPEC("h\\\\.1\\\\..*mlp\\\\.c_proj", "") ", " SPEC("wte", SKIP))},
    {LLAMA_BIASED, SPECS(SPEC("layers\\\\.1\\\\..*down_proj", "") ", " SPEC("(embed_tokens|lm_head)", SKIP))},
};

/* Losses and norms of one rank, or the deck is refused: a mark may cut what must stay together. \return true: not
 * refused. */
static bool test_marks(const grid *on, int model, const char *what, const char *keys, int stage) {
  char *deck = ts_format("%stensor_parallel = { %s };\n", models[model].deck, keys);
  char *all = ts_format("tensor_parallel.autotp_size=%d zero_optimization.stage=%d", on->tp, stage);
  if (wants_all() && ts_world_rank(on->all) == 0) {
    tap_note("%s: %s: %s %s", what, models[model].name, keys, all);
  }
  train_run one = train_run_alone(on->all, on->alone, models[model].deck, "", STEPS), run;
  char *refused = train_run_try(on->all, deck, all, STEPS, &run);
  char *name = ts_format("%s: %s: %s", what, models[model].name, keys);
  if (refused == NULL) {
    expect_as_alone(on, name, &one, &run, stage, false);
    train_run_free(&run);
  }
  bool accepted = refused == NULL;
  ts_free(refused);
  train_run_free(&one);
  ts_free(name);
  ts_free(all);
  ts_free(deck);
  return accepted;
}

/* A weight of a block of the two models, with its extents. */
typedef struct weight_row {
  const char *name;
  int64_t out, in;
  bool heads; /* its outputs are: a shape that cuts them is refused */
} weight_row;

static const weight_row llama_weights[] = {
    {"q_proj", 36, 36, true},   {"k_proj", 12, 36, true},     {"v_proj", 12, 36, true},    {"o_proj", 36, 36, false},
    {"up_proj", 41, 36, false}, {"gate_proj", 41, 36, false}, {"down_proj", 36, 41, false}};
static const weight_row gpt2_weights[] = {{"c_attn", 96, 32, true},
                                          {"attn\\\\.c_proj", 32, 32, false},
                                          {"c_fc", 128, 32, false},
                                          {"mlp\\\\.c_proj", 32, 128, false}};
static const weight_row llama_tables[] = {{"embed_tokens", 67, 36, false}, {"lm_head", 67, 36, false}};
static const weight_row gpt2_tables[] = {{"wte", 67, 32, false}};

/* A shape for an extent: two or three blocks, in sizes or equal; units; none. */
static char *random_shape(const uint32_t r[4], int64_t extent, bool row) {
  const char *const around[2][2] = {{"shape = (", ", -1); "}, {"shape = (-1, ", "); "}};
  int64_t first = 1 + r[2] % (extent - 2), second = 1 + r[3] % (extent - first - 1 > 0 ? extent - first - 1 : 1);
  char *inner = r[1] % 4 == 0 ? ts_format("(%lld, %lld)", (long long) first, (long long) (extent - first))
                : r[1] % 4 == 1 && first + second < extent
                    ? ts_format("(%lld, %lld, %lld)", (long long) first, (long long) second,
                                (long long) (extent - first - second))
                : r[1] % 4 == 2 && extent % 2 == 0 ? ts_strdup("2")
                                                   : NULL;
  char *shape = inner != NULL ? ts_format("%s%s%s", around[row][0], inner, around[row][1]) : ts_strdup("");
  ts_free(inner);
  return shape;
}

static void add_random(ts_text *specs, uint64_t deck, uint64_t number, const char *prefix, const weight_row *w) {
  uint32_t r[4];
  ts_philox(29, deck, number, r);
  int kind = r[0] % 5; /* column twice, row, skip, unspoken */
  if (kind == 4) {
    return;
  }
  bool row = kind == 2, table = w->out == 67;
  char *shape = kind == 3 || table || (w->heads && !row) ? ts_strdup("") : random_shape(r, row ? w->in : w->out, row);
  bool gathers = (r[0] >> 8) % 4 == 0 && kind < 2;
  ts_text_add(specs, "%s{ patterns = \".*%s%s\\\\.weight\"; %s%s%s }", specs->text != NULL ? ", " : "", prefix, w->name,
              row         ? ROW
              : kind == 3 ? SKIP
                          : "",
              shape, gathers ? GATHER : "");
  ts_free(shape);
}

static char *random_marks(bool gpt2, uint64_t deck) {
  ts_text specs = {0};
  const weight_row *weights = gpt2 ? gpt2_weights : llama_weights, *tables = gpt2 ? gpt2_tables : llama_tables;
  uint64_t n = gpt2 ? 4 : 7;
  for (uint64_t i = 0; i < 2 * n; ++i) {
    char *prefix = ts_format("%s\\\\.%d\\\\..*", gpt2 ? "h" : "layers", i >= n);
    add_random(&specs, deck, i, prefix, &weights[i % n]);
    ts_free(prefix);
  }
  for (uint64_t i = 0; i < (gpt2 ? 1 : 2); ++i) {
    add_random(&specs, deck, 100 + i, "", &tables[i]);
  }
  uint32_t r[4];
  ts_philox(29, deck, 1000, r);
  char *keys = ts_format("partition_config = { use_default_specs = %s; layer_specs = ( %s ); };%s",
                         r[0] % 4 == 0 ? "false" : "true", specs.text != NULL ? specs.text : "",
                         r[1] % 3 == 0 ? " sequence_parallel = false;" : "");
  ts_text_free(&specs);
  return keys;
}

enum { N_MARKS = sizeof marks / sizeof *marks };

/* The rows above, and after them random ones. \return as test_marks. */
static bool test_marks_of_number(const grid *on, int number) {
  char *what = ts_format("marks %d", number), *keys = NULL;
  bool accepted;
  if (number < N_MARKS) {
    accepted = test_marks(on, marks[number].model, what, marks[number].keys, number % 4);
    tap_ok_all(MPI_COMM_WORLD, accepted, "%s are accepted", what);
  } else {
    keys = random_marks(number % 2 == 1, (uint64_t) number);
    accepted = test_marks(on, number % 2 == 1 ? GPT2 : LLAMA, what, keys, number / 2 % 4);
  }
  ts_free(keys);
  ts_free(what);
  return accepted;
}

/* Rows by turns, and some random decks; or all, or one. */
static void test_all_marks(const grid *on) {
  const char *one = getenv("TEST_MARKS");
  const int all = wants_all() ? 400 : 12, first = N_MARKS + (wants_all() ? 0 : 20 * on->tp);
  int accepted = 0, n = 0;
  if (!tap_wanted("marks") || on->dp > 1 || on->tp > 3) {
    return;
  }
  for (int i = 0; i < N_MARKS && one == NULL; ++i) {
    if (wants_all() || i % 3 == on->tp % 3) {
      test_marks_of_number(on, i);
    }
  }
  for (int i = one != NULL ? atoi(one) : first; i < (one != NULL ? atoi(one) + 1 : first + all); ++i, ++n) {
    accepted += test_marks_of_number(on, i);
  }
  tap_ok_all(MPI_COMM_WORLD, accepted > n / 4 || one != NULL, "%d of %d random marks are accepted", accepted, n);
}

static void test_grid(const grid *on) {
  if (wants_all()) {
    test_product(on);
  } else {
    test_sample(on);
  }
  test_bits(on);
  test_all_marks(on);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  ts_world *alone = ts_world_alone(world);
  double start = ts_seconds();
  ts_comm_set_agreement(true);
  for (int tp = 2; tp <= ts_world_size(world); ++tp) {
    if (ts_world_size(world) % tp == 0) {
      test_grid(&(grid){world, alone, tp, ts_world_size(world) / tp});
    }
  }
  if (ts_world_rank(world) == 0) {
    tap_note("%.1f seconds", ts_seconds() - start);
  }
  ts_world_destroy(&alone);
  int status = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return status;
}
