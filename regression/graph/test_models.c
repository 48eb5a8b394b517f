/* The model families: parameters as in their Hugging Face checkpoints, units, results, first values, FLOPs. */
#include "regression/deck_fixture.h"

#include "graph/op.h"
#include "model/model.h"

#include <math.h>

#define TINY_GPT2                                                                                                 \
  "model = { model_type = \"gpt2\"; vocab_size = 11; n_embd = 8; n_layer = 1; n_head = 2; n_positions = 16; };\n" \
  "train_micro_batch_size_per_gpu = 2;\n"
#define TINY_LLAMA                                                                                             \
  "model = { model_type = \"llama\"; vocab_size = 11; hidden_size = 8; intermediate_size = 12;\n"              \
  "  num_hidden_layers = 1; num_attention_heads = 4; num_key_value_heads = 2; max_position_embeddings = 16;\n" \
  "  tie_word_embeddings = false; };\ntrain_micro_batch_size_per_gpu = 2;\n"
#define GPT2_124M                                                                                   \
  "model = { model_type = \"gpt2\"; vocab_size = 50257; n_embd = 768; n_layer = 12; n_head = 12;\n" \
  "  n_positions = 1024; };\ntrain_micro_batch_size_per_gpu = 1;\n"
#define LLAMA2_7B                                                                                                   \
  "model = { model_type = \"llama\"; vocab_size = 32000; hidden_size = 4096; intermediate_size = 11008;\n"          \
  "  num_hidden_layers = 32; num_attention_heads = 32; num_key_value_heads = 32; max_position_embeddings = 4096;\n" \
  "  tie_word_embeddings = false; };\ntrain_micro_batch_size_per_gpu = 1;\n"
#define LLAMA32_1B                                                                                                 \
  "model = { model_type = \"llama\"; vocab_size = 128256; hidden_size = 2048; intermediate_size = 8192;\n"         \
  "  num_hidden_layers = 16; num_attention_heads = 32; num_key_value_heads = 8; max_position_embeddings = 4096;\n" \
  "  tie_word_embeddings = true; };\ntrain_micro_batch_size_per_gpu = 1;\n"

enum { B = 2, T = 4 };

static int count_op(const ts_graph *g, ts_op op) {
  int n = 0;
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    n += g->node[i].op == op;
  }
  return n;
}

static int64_t count_parameters(const ts_graph *g) {
  int64_t count = 0;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    count += g->tensor[t].role == TS_ROLE_PARAM ? ts_tensor_count(g, t) : 0;
  }
  return count;
}

/* "name shape unit" of every parameter, in order. */
static void list_parameters(const ts_graph *g, ts_text *to) {
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_tensor *p = &g->tensor[t];
    if (p->role == TS_ROLE_PARAM) {
      ts_text_add(to, "%s %lld", p->name, (long long) p->shape.d[0]);
      for (int i = 1; i < p->shape.n; ++i) {
        ts_text_add(to, "x%lld", (long long) p->shape.d[i]);
      }
      ts_text_add(to, " %s\n", p->unit >= 0 ? g->unit[p->unit] : "-");
    }
  }
}

static void expect_parameters(const char *what, const ts_graph *g, const char *expected) {
  ts_text text = {0};
  list_parameters(g, &text);
  if (!tap_ok(strcmp(text.text, expected) == 0, "%s: names, shapes and units of the parameters", what)) {
    tap_note("got:\n%s", text.text);
  }
  ts_text_free(&text);
}

static const char gpt2_parameters[] = "transformer.wte.weight 11x8 transformer.wte\n"
                                      "transformer.wpe.weight 16x8 transformer.wpe\n"
                                      "transformer.h.0.ln_1.weight 8 transformer.h.0\n"
                                      "transformer.h.0.ln_1.bias 8 transformer.h.0\n"
                                      "transformer.h.0.attn.c_attn.weight 8x24 transformer.h.0\n"
                                      "transformer.h.0.attn.c_attn.bias 24 transformer.h.0\n"
                                      "transformer.h.0.attn.c_proj.weight 8x8 transformer.h.0\n"
                                      "transformer.h.0.attn.c_proj.bias 8 transformer.h.0\n"
                                      "transformer.h.0.ln_2.weight 8 transformer.h.0\n"
                                      "transformer.h.0.ln_2.bias 8 transformer.h.0\n"
                                      "transformer.h.0.mlp.c_fc.weight 8x32 transformer.h.0\n"
                                      "transformer.h.0.mlp.c_fc.bias 32 transformer.h.0\n"
                                      "transformer.h.0.mlp.c_proj.weight 32x8 transformer.h.0\n"
                                      "transformer.h.0.mlp.c_proj.bias 8 transformer.h.0\n"
                                      "transformer.ln_f.weight 8 transformer.ln_f\n"
                                      "transformer.ln_f.bias 8 transformer.ln_f\n";

static const char llama_parameters[] = "model.embed_tokens.weight 11x8 model.embed_tokens\n"
                                       "model.layers.0.input_layernorm.weight 8 model.layers.0\n"
                                       "model.layers.0.self_attn.q_proj.weight 8x8 model.layers.0\n"
                                       "model.layers.0.self_attn.k_proj.weight 4x8 model.layers.0\n"
                                       "model.layers.0.self_attn.v_proj.weight 4x8 model.layers.0\n"
                                       "model.layers.0.self_attn.o_proj.weight 8x8 model.layers.0\n"
                                       "model.layers.0.post_attention_layernorm.weight 8 model.layers.0\n"
                                       "model.layers.0.mlp.gate_proj.weight 12x8 model.layers.0\n"
                                       "model.layers.0.mlp.up_proj.weight 12x8 model.layers.0\n"
                                       "model.layers.0.mlp.down_proj.weight 8x12 model.layers.0\n"
                                       "model.norm.weight 8 model.norm\n"
                                       "lm_head.weight 11x8 lm_head\n";

static void check_graph(const char *what, const ts_graph *g) {
  ts_text why = {0};
  tap_ok(ts_graph_verify(g, &why) == 0, "%s: verifies%s", what, why.text != NULL ? why.text : "");
  ts_text_free(&why);
}

/* What a graph for each use has and has not. */
static void test_uses(const char *what, const char *text) {
  ts_deck *deck = fixture_read(what, text, NULL);
  ts_graph *train = ts_model_build(deck, TS_MODEL_TRAIN, (ts_model_size){B, T, T}),
           *loss = ts_model_build(deck, TS_MODEL_LOSS, (ts_model_size){B, T, T}),
           *logits = ts_model_build(deck, TS_MODEL_LOGITS, (ts_model_size){B, T, T});
  check_graph(what, train);
  check_graph(what, loss);
  check_graph(what, logits);
  ts_tid l = ts_graph_marked(loss, "loss"), v = ts_graph_marked(loss, "valid"), y = ts_graph_marked(logits, "logits");
  tap_ok(l != TS_NONE && v == l + 1 && strcmp(ts_graph_producer(loss, l)->name, "loss") == 0 &&
             loss->tensor[l].dtype == TS_F64,
         "%s: loss and valid tokens are marked", what);
  tap_ok(y != TS_NONE && logits->tensor[y].dtype == TS_F32 &&
             ts_shape_equal(&logits->tensor[y].shape, &TS_SHAPE(B, 1, deck->model.vocab_size)),
         "%s: logits are fp32 [B][1][V]", what);
  tap_ok(ts_graph_find(logits, "labels") == TS_NONE && ts_graph_find(loss, "index") == TS_NONE,
         "%s: labels are for the loss, index for the logits", what);
  tap_ok(ts_graph_find(loss, "seed") == TS_NONE && ts_graph_find(logits, "sample") == TS_NONE &&
             count_op(loss, TS_OP_DROPOUT) == 0,
         "%s: nothing is random outside training", what);
  ts_graph_destroy(&train);
  ts_graph_destroy(&loss);
  ts_graph_destroy(&logits);
  ts_deck_destroy(&deck);
}

/* Every float tensor between the embedding and the head is [B][T][...], however many heads there are. */
static void test_activations(const char *what, const char *text) {
  ts_deck *deck = fixture_read(what, text, NULL);
  ts_graph *g = ts_model_build(deck, TS_MODEL_TRAIN, (ts_model_size){B, T, T});
  bool good = true;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_tensor *y = &g->tensor[g->node[n].out[0]];
    good = good && (g->node[n].op == TS_OP_HEAD_LOSS ||
                    (y->shape.n == 3 && y->shape.d[0] == B && y->shape.d[1] == T && y->dtype == TS_F32));
  }
  tap_ok(good, "%s: activations are fp32 [B][T][C]", what);
  ts_graph_destroy(&g);
  ts_deck_destroy(&deck);
}

/* GPT-2 drops in three places; each can be switched off alone. */
static void test_dropout(void) {
  static const struct {
    const char *set;
    int dropouts;
    bool attention, seed;
  } rows[] = {{"model.n_head=2", 3, true, true}, /* the defaults: 0.1 everywhere; embd once, resid twice a block */
              {"model.embd_pdrop=0.0", 2, true, true},
              {"model.resid_pdrop=0.0", 1, true, true},
              {"model.attn_pdrop=0.0", 3, false, true}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_deck *deck = fixture_read("dropout", TINY_GPT2, (char *) rows[i].set);
    ts_graph *g = ts_model_build(deck, TS_MODEL_TRAIN, (ts_model_size){B, T, T});
    bool attention = false;
    for (ts_nid n = 0; n < g->n_nodes; ++n) {
      attention = attention || (g->node[n].op == TS_OP_ATTENTION && g->node[n].attr.attention.dropout > 0);
    }
    tap_ok(count_op(g, TS_OP_DROPOUT) == rows[i].dropouts && attention == rows[i].attention &&
               (ts_graph_find(g, "seed") != TS_NONE) == rows[i].seed,
           "gpt2 with %s: %d dropouts", rows[i].set, rows[i].dropouts);
    ts_graph_destroy(&g);
    ts_deck_destroy(&deck);
  }
}

#define TINY_EXPERTS                                                                     \
  TINY_GPT2 "moe = { num_experts = 4; layers = [0, 2]; noisy_gate_policy = \"RSample\";" \
            " capacity_factor = 1.5; eval_capacity_factor = 2.0; };\n"

/* Masks, and noise, differ because every random op has its own name: once and three a block, two a router. */
static void test_random_names(const char *text, int expected) {
  ts_deck *deck = fixture_read("random names", text, (char *) "model.n_layer=3");
  ts_graph *g = ts_model_build(deck, TS_MODEL_TRAIN, (ts_model_size){B, T, T});
  uint64_t key[64];
  int n_keys = 0;
  bool distinct = true;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    if (node->op == TS_OP_DROPOUT || node->op == TS_OP_ATTENTION) {
      key[n_keys] = node->op == TS_OP_DROPOUT ? node->attr.dropout.name : node->attr.attention.name;
      for (int i = 0; i < n_keys; ++i) {
        distinct = distinct && key[i] != key[n_keys];
      }
      ++n_keys;
    }
  }
  tap_ok(n_keys == expected && distinct, "gpt2: %d random ops with different keys", n_keys);
  ts_graph_destroy(&g);
  ts_deck_destroy(&deck);
}

/* Evaluation has a capacity of its own and no noise; generation no limit. */
static void test_room(void) {
  static const struct {
    ts_model_use use;
    int limits;
    float factor;
    bool noise;
  } rows[] = {{TS_MODEL_TRAIN, 2, 1.5f, true}, {TS_MODEL_LOSS, 2, 2.0f, false}, {TS_MODEL_LOGITS, 0, 0, false}};
  ts_deck *deck = fixture_read("room", TINY_EXPERTS, (char *) "model.n_layer=3");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_graph *g = ts_model_build(deck, rows[i].use, (ts_model_size){B, T, T});
    bool right = count_op(g, TS_OP_ROUTE_LIMIT) == rows[i].limits && (count_op(g, TS_OP_DROPOUT) > 0) == rows[i].noise;
    for (ts_nid n = 0; n < g->n_nodes; ++n) {
      const ts_node *node = &g->node[n];
      right = right && (node->op != TS_OP_ROUTE_LIMIT || node->attr.limit.factor == rows[i].factor);
    }
    tap_ok(right, "gpt2 with experts, use %d: %d limits, of %g shares", (int) rows[i].use, rows[i].limits,
           (double) rows[i].factor);
    ts_graph_destroy(&g);
  }
  ts_deck_destroy(&deck);
}

static void test_tied(void) {
  ts_deck *deck = fixture_read("tied llama", TINY_LLAMA, (char *) "model.tie_word_embeddings=true");
  ts_graph *g = ts_model_build(deck, TS_MODEL_TRAIN, (ts_model_size){B, T, T});
  ts_tid table = ts_graph_find(g, "model.embed_tokens.weight");
  const ts_node *loss = ts_graph_producer(g, ts_graph_marked(g, "loss"));
  tap_ok(table != TS_NONE && loss->in[1] == table && ts_graph_find(g, "lm_head.weight") == TS_NONE,
         "llama: a tied head reads the embedding");
  ts_graph_destroy(&g);
  ts_deck_destroy(&deck);
}

/* Published parameter counts. */
static void test_counts(void) {
  static const struct {
    const char *name, *text;
    int64_t parameters;
  } rows[] = {{"GPT-2 124M", GPT2_124M, 124439808},
              {"Llama 2 7B", LLAMA2_7B, 6738415616},
              {"Llama 3.2 1B", LLAMA32_1B, 1235814400}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_deck *deck = fixture_read(rows[i].name, rows[i].text, NULL);
    ts_graph *g = ts_model_build(deck, TS_MODEL_TRAIN, (ts_model_size){1, 128, 128});
    int64_t count = count_parameters(g);
    tap_ok(count == rows[i].parameters, "%s has %lld parameters", rows[i].name, (long long) count);
    ts_graph_destroy(&g);
    ts_deck_destroy(&deck);
  }
}

/* FLOPs of the products and attention of GPT-2 124M: 2 N per token, N without positions, biases and norms but with the
 * head; attention 2 L C T with the causal mask. */
static void test_flops(void) {
  ts_deck *deck = fixture_read("FLOPs", GPT2_124M, NULL);
  int64_t b = 2, t = 256;
  ts_graph *g = ts_model_build(deck, TS_MODEL_LOSS, (ts_model_size){b, t, t});
  double flops = 0;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    ts_op op = g->node[n].op;
    flops += op == TS_OP_MATMUL || op == TS_OP_ATTENTION || op == TS_OP_HEAD_LOSS ? ts_node_flops(g, &g->node[n]) : 0;
  }
  double n = 12.0 * 12 * 768 * 768 + 768.0 * 50257, expected = (double) (b * t) * (2 * n + 2.0 * 12 * 768 * (double) t);
  tap_ok(fabs(flops / expected - 1) < 1e-12, "GPT-2 124M: %.6g FLOPs forward", flops);
  ts_graph_destroy(&g);
  ts_deck_destroy(&deck);
}

static bool same_init(ts_init init, ts_init_kind kind, double std) {
  return init.kind == kind && fabs(init.std - std) < 1e-15;
}

static void test_init(void) {
  ts_deck *gpt2 = fixture_read("first values", TINY_GPT2, (char *) "model.n_layer=8");
  ts_deck *llama = fixture_read("first values", TINY_LLAMA, NULL);
  const struct {
    const ts_deck *deck;
    const char *name;
    ts_init_kind kind;
    double std;
  } rows[] = {{gpt2, "transformer.wte.weight", TS_INIT_NORMAL, 0.02},
              {gpt2, "transformer.wpe.weight", TS_INIT_NORMAL, 0.02},
              {gpt2, "transformer.h.0.ln_1.weight", TS_INIT_ONE, 0},
              {gpt2, "transformer.h.0.ln_1.bias", TS_INIT_ZERO, 0},
              {gpt2, "transformer.h.0.attn.c_attn.weight", TS_INIT_NORMAL, 0.02},
              {gpt2, "transformer.h.0.attn.c_proj.weight", TS_INIT_NORMAL, 0.005}, /* 0.02 / sqrt (2 x 8) */
              {gpt2, "transformer.h.0.mlp.c_proj.weight", TS_INIT_NORMAL, 0.005},
              {gpt2, "transformer.h.0.mlp.c_proj.bias", TS_INIT_ZERO, 0},
              {gpt2, "transformer.ln_f.weight", TS_INIT_ONE, 0},
              {llama, "model.embed_tokens.weight", TS_INIT_NORMAL, 0.02},
              {llama, "model.layers.0.input_layernorm.weight", TS_INIT_ONE, 0},
              {llama, "model.layers.0.self_attn.o_proj.weight", TS_INIT_NORMAL, 0.02},
              {llama, "model.layers.0.self_attn.o_proj.bias", TS_INIT_ZERO, 0},
              {llama, "model.norm.weight", TS_INIT_ONE, 0},
              {llama, "lm_head.weight", TS_INIT_NORMAL, 0.02}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    tap_ok(same_init(ts_model_init(rows[i].deck, rows[i].name), rows[i].kind, rows[i].std), "first values of %s",
           rows[i].name);
  }
  ts_deck_destroy(&gpt2);
  ts_deck_destroy(&llama);
}

static void test_parameters(void) {
  static const struct {
    const char *name, *text, *expected;
  } rows[] = {{"gpt2", TINY_GPT2, gpt2_parameters}, {"llama", TINY_LLAMA, llama_parameters}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_deck *deck = fixture_read(rows[i].name, rows[i].text, NULL);
    ts_graph *g = ts_model_build(deck, TS_MODEL_TRAIN, (ts_model_size){B, T, T});
    expect_parameters(rows[i].name, g, rows[i].expected);
    ts_graph_destroy(&g);
    ts_deck_destroy(&deck);
  }
}

/* doc/models.md has a line for each row. */
static void test_document(void) {
  char *text = NULL;
  size_t length;
  TS_CHECK(ts_read_file(tap_path("doc/models.md"), 1 << 20, &text, &length, NULL) == TS_OK, "doc/models.md");
  for (const ts_family *const *f = ts_families; *f != NULL; ++f) {
    char *row = ts_format("\n| %s |", (*f)->model_type);
    tap_ok(strstr(text, row) != NULL, "doc/models.md knows %s", (*f)->model_type);
    ts_free(row);
  }
  ts_free(text);
}

int main(void) {
  test_document();
  test_parameters();
  test_uses("gpt2", TINY_GPT2);
  test_uses("llama", TINY_LLAMA);
  test_activations("gpt2", TINY_GPT2);
  test_activations("llama", TINY_LLAMA);
  test_dropout();
  test_random_names(TINY_GPT2, 1 + 3 * 3);
  test_random_names(TINY_EXPERTS, 1 + 3 * 3 + 2 * 2);
  test_room();
  test_tied();
  test_counts();
  test_flops();
  test_init();
  tap_ok(ts_family_find("bert") == NULL, "an unknown family is not found");
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
