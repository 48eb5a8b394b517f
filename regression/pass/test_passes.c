/* The passes that change the mathematics' form: precision, gradients, recomputation, fusion.  What they compute is
 * shown by training tests; here it is the form that is checked, on the smallest models that have it. */
#include "regression/deck_fixture.h"

#include "graph/op.h"
#include "ops/build.h"
#include "pass/pass.h"
#include "pass/plan.h"
#include "pass/saved.h"
#include "pass/schedule.h"
#include "pass/sequence.h"
#include "pass/step.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TINY_LLAMA                                                                                                \
  "model = { model_type = \"llama\"; vocab_size = 11; hidden_size = 8; intermediate_size = 12;\n"                 \
  "  num_hidden_layers = 2; num_attention_heads = 4; num_key_value_heads = 2; max_position_embeddings = 16; };\n" \
  "train_micro_batch_size_per_gpu = 2;\n"
#define TINY_GPT2                                                                                                 \
  "model = { model_type = \"gpt2\"; vocab_size = 11; n_embd = 8; n_layer = 2; n_head = 2; n_positions = 16; };\n" \
  "train_micro_batch_size_per_gpu = 2;\n"
#define UNTIED "model.tie_word_embeddings=false"
#define TIED "model.tie_word_embeddings=true"

enum { B = 2, T = 4, L = 2 };

/* A graph after a pass, with what made it. */
typedef struct passed {
  ts_deck *deck;
  ts_pass_context context;
  ts_mesh mesh;
  ts_step_runs step;
  ts_graph *graph;
  ts_text seen; /* names of the passes that ran */
} passed;

static const ts_backend *backend; /* the programs are for */
static const ts_sequence whole_samples = {.length = T, .ulysses = 1, .ring = 1};
static int64_t together = 1; /* micro-batches, unit by unit */

static void observe(const char *pass, const ts_graph *graph, void *user) {
  (void) graph;
  ts_text_add(user, "%s ", pass);
}

static passed run(const char *text, const char *set, const char *more, ts_model_use use, const char *last) {
  char *sets[] = {(char *) set, (char *) more};
  ts_error err = {0};
  passed p = {0};
  int n_sets = (set != NULL) + (more != NULL);
  TS_CHECK(ts_deck_read_text("test", text, sets, n_sets, &p.deck, &err) == TS_OK, "%s", err.text);
  TS_CHECK(ts_mesh_init(&p.mesh, (const int[]){1, 1, 1, 1, 1}, 1, 0, &err) == TS_OK, "%s", err.text);
  p.graph = ts_model_build(p.deck, use, (ts_model_size){B, T, T});
  p.step = ts_step_of(use, 1, NULL);
  p.step.together = together;
  p.context = (ts_pass_context){
      .deck = p.deck, .mesh = &p.mesh, .target = {backend, 0, TS_CUDNN_NEVER}, .use = use, .step = &p.step};
  p.context.sequence = &whole_samples;
  ts_passes_run(&p.graph, &p.context, last, observe, &p.seen);
  return p;
}

static void end(passed *p) {
  ts_graph_destroy(&p->graph);
  ts_layout_destroy(&p->context.layout);
  ts_schedule_destroy(&p->context.schedule);
  ts_step_clear(&p->step);
  ts_plan_destroy(&p->context.plan);
  ts_deck_destroy(&p->deck);
  ts_text_free(&p->seen);
}

static int count_op(const ts_graph *g, ts_op op) {
  int n = 0;
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    n += g->node[i].op == op;
  }
  return n;
}

static const ts_node *find_node(const ts_graph *g, const char *name) {
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    if (strcmp(g->node[i].name, name) == 0) {
      return &g->node[i];
    }
  }
  return NULL;
}

static bool is_forward(const ts_node *node) {
  return node->segment == TS_SEGMENT_FORWARD;
}

/* ---- the list ---- */

static void test_list(void) {
  passed p = run(TINY_LLAMA, NULL, NULL, TS_MODEL_TRAIN, NULL);
  tap_ok(strcmp(p.seen.text,
                "rehearse precision autocast shard experts heads tile balance stage autodiff loss_scale recompute "
                "exchange crossing placed partition offload unroll zero "
                "fuse epilogue qkv schedule "
                "memory ") == 0,
         "training runs every pass");
  end(&p);
  p = run(TINY_LLAMA, NULL, NULL, TS_MODEL_LOSS, NULL);
  tap_ok(
      strcmp(p.seen.text,
             "rehearse precision autocast shard experts heads tile stage exchange crossing placed zero fuse epilogue "
             "qkv schedule memory ") == 0,
      "a loss runs those without gradients");
  end(&p);
  p = run(TINY_LLAMA, NULL, NULL, TS_MODEL_TRAIN, "autodiff");
  tap_ok(strcmp(p.seen.text, "rehearse precision autocast shard experts heads tile balance stage autodiff ") == 0,
         "the list ends after the pass that was named");
  end(&p);
  unsigned facts = TS_FACT_MODEL;
  for (const ts_pass *pass = ts_passes; pass->name != NULL; ++pass) {
    tap_ok((pass->requires & ~facts) == 0 && (pass->conflicts & facts) == 0 && pass->help != NULL && pass->run != NULL,
           "%s: what it requires is there", pass->name);
    facts |= pass->provides;
  }
}

/* ---- passes that break the graph ---- */

/* A shape in place, which it counts, and does not. */
static void widen(ts_graph **graph, ts_pass_context *context) {
  (void) context;
  ++(*graph)->tensor[ts_graph_producer(*graph, ts_graph_marked(*graph, "logits"))->out[0]].shape.d[0];
}

static void widen_and_count(ts_graph **graph, ts_pass_context *context) {
  widen(graph, context);
  ++(*graph)->changes;
}

static void change_nothing(ts_graph **graph, ts_pass_context *context) {
  (void) graph;
  (void) context;
}

static void leave(int code, const char *reason) {
  (void) reason;
  _exit(code);
}

/* What a child process says on stderr that applies the pass to a model; the caller's. */
static char *apply_in_child(const ts_pass *pass, int *code) {
  char *path = ts_format("%s/child.stderr", tap_directory()), *said;
  size_t length;
  pid_t child = fork();
  if (child == 0) {
    unsigned facts = TS_FACT_MODEL;
    passed p = run(TINY_LLAMA, NULL, NULL, TS_MODEL_LOGITS, "rehearse");
    dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    ts_set_failure_context(-1, NULL, leave);
    ts_pass_apply(pass, &p.graph, &p.context, &facts);
    _exit(facts == (TS_FACT_MODEL | TS_FACT_PRECISION) ? 0 : 3);
  }
  int status = -1;
  waitpid(child, &status, 0);
  *code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
  TS_CHECK(ts_read_file(path, 1 << 20, &said, &length, NULL) == TS_OK, "%s", path);
  ts_free(path);
  return said;
}

static void test_broken(void) {
  const struct {
    ts_pass pass;
    int code;
    const char *says;
  } rows[] = {
      {{"still", change_nothing, TS_FACT_MODEL, TS_FACT_PRECISION, 0, false, ""}, 0, ""},
      {{"counts", widen_and_count, 0, 0, 0, false, ""}, 1, "after pass counts the graph breaks "},
#ifndef NDEBUG /* else it is the count that says whether to look */
      {{"hides", widen, 0, 0, 0, false, ""}, 1, "after pass hides the graph breaks "},
#endif
      {{"early", change_nothing, TS_FACT_LAYOUT, 0, 0, false, ""}, 1, "pass early runs before what it requires"},
      {{"late", change_nothing, 0, 0, TS_FACT_MODEL, false, ""}, 1, "pass late runs after what it conflicts with"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    int code;
    char *said = apply_in_child(&rows[i].pass, &code);
    tap_ok(code == rows[i].code && strstr(said, rows[i].says) != NULL, "pass \"%s\": %.70s", rows[i].pass.name, said);
    ts_free(said);
  }
}

/* ---- precision ---- */

static void test_precision(void) {
  passed p = run(TINY_LLAMA, "bf16.enabled=true", UNTIED, TS_MODEL_TRAIN, "autodiff");
  const ts_graph *g = p.graph;
  int wrong = 0;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_tensor *x = &g->tensor[t];
    const ts_node *node = ts_graph_producer(g, t);
    bool activation = node != NULL && node->segment != TS_SEGMENT_BACKWARD_WEIGHT && x->shape.n == 3 &&
                      node->op != TS_OP_HEAD_LOSS && !(node->op == TS_OP_ATTENTION && t != node->out[0]);
    if (x->role == TS_ROLE_PARAM || activation) {
      wrong += x->dtype != TS_BF16;
    }
  }
  tap_ok(wrong == 0, "bf16: parameters and activations are narrow");
  const ts_node *norm = find_node(g, "model.norm"), *loss = find_node(g, "loss");
  const ts_node *attention = find_node(g, "model.layers.0.self_attn");
  tap_ok(g->tensor[norm->out[1]].dtype == TS_F32 && g->tensor[attention->out[1]].dtype == TS_F32 &&
             g->tensor[loss->out[0]].dtype == TS_F64,
         "bf16: statistics and the loss stay wide");
  tap_ok(g->tensor[ts_graph_gradient_of(g, ts_graph_find(g, "lm_head.weight"), 0)].dtype == TS_F32,
         "bf16: parameter gradients are in the accumulation type");
  end(&p);
  p = run(TINY_LLAMA, "bf16.enabled=true", "data_types.grad_accum_dtype=bf16", TS_MODEL_TRAIN, "autodiff");
  tap_ok(p.graph->tensor[ts_graph_gradient_of(p.graph, ts_graph_find(p.graph, "model.norm.weight"), 0)].dtype ==
             TS_BF16,
         "grad_accum_dtype bf16: they are narrow");
  end(&p);
  p = run(TINY_LLAMA, "bf16.enabled=true", NULL, TS_MODEL_LOGITS, "precision");
  tap_ok(p.graph->tensor[ts_graph_marked(p.graph, "logits")].dtype == TS_F32, "bf16: logits stay fp32");
  end(&p);
  p = run(TINY_LLAMA, "bf16.enabled=true", "model.model_type=gemma2", TS_MODEL_LOGITS, "precision");
  tap_ok(p.graph->tensor[ts_graph_marked(p.graph, "logits")].dtype == TS_F32, "bf16: so do those with a softcap");
  end(&p);
}

/* ---- gradients ---- */

static void expect_counts(const char *what, const ts_graph *g, const int (*rows)[2], int n) {
  for (int i = 0; i < n; ++i) {
    int count = count_op(g, (ts_op) rows[i][0]);
    tap_ok(count == rows[i][1], "%s: %d of %s", what, count, ts_op_get((ts_op) rows[i][0])->name);
  }
}

/* Every parameter has a gradient of its shape, apart from those of activations (but for the head, which makes both at
 * once); each product of the forward has two in the backward. */
static void test_gradients(const char *what, const char *text, const char *set) {
  passed p = run(text, set, NULL, TS_MODEL_TRAIN, "autodiff");
  const ts_graph *g = p.graph;
  int missing = 0, forward = 0, products = 0;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    if (g->tensor[t].role == TS_ROLE_PARAM) {
      ts_tid gradient = ts_graph_gradient_of(g, t, 0);
      const ts_node *node = ts_graph_producer(g, gradient);
      bool apart = node != NULL && (node->segment == TS_SEGMENT_BACKWARD_WEIGHT || node->op == TS_OP_HEAD_LOSS_DX);
      missing += !apart || !ts_shape_equal(&g->tensor[gradient].shape, &g->tensor[t].shape);
    }
  }
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    products += g->node[n].op == TS_OP_MATMUL;
    forward += g->node[n].op == TS_OP_MATMUL && is_forward(&g->node[n]);
  }
  tap_ok(missing == 0, "%s: every parameter has a gradient", what);
  tap_ok(products == 3 * forward, "%s: %d products forward, %d in all", what, forward, products);
  end(&p);
}

static void test_backward_order(void) {
  passed p = run(TINY_LLAMA, UNTIED, NULL, TS_MODEL_TRAIN, "autodiff");
  const ts_graph *g = p.graph;
  int unit = g->n_units, reversed = 0, backward = 0, first_backward = g->n_nodes;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    if (!is_forward(&g->node[n])) {
      reversed += g->node[n].unit > unit;
      unit = g->node[n].unit;
      first_backward = n < first_backward ? n : first_backward;
      ++backward;
    }
  }
  tap_ok(reversed == 0 && backward > 0 && unit == 0, "backward: unit by unit, in reverse");
  tap_ok(first_backward + backward == g->n_nodes, "backward: after all of the forward");
  static const int rows[][2] = {{TS_OP_ATTENTION_DX, L},
                                {TS_OP_GLU_DX, L},
                                {TS_OP_RMSNORM_DX, 2 * L + 1},
                                {TS_OP_RMSNORM_DW, 2 * L + 1},
                                {TS_OP_HEAD_LOSS_DX, 1},
                                {TS_OP_EMBEDDING_DW, 1},
                                {TS_OP_ROPE, 4 * L}};
  expect_counts("llama", g, rows, sizeof rows / sizeof *rows);
  const ts_node *rope = find_node(g, "model.layers.0.self_attn.q_rope.dx");
  tap_ok(rope != NULL && rope->op == TS_OP_ROPE && rope->attr.rope.inverse, "the gradient of a rotation turns back");
  end(&p);
}

/* Nothing is computed for what is frozen, nor for what only leads to it. */
static void test_frozen(void) {
  passed p = run(TINY_LLAMA, UNTIED, "frozen=[\"embed_tokens\"]", TS_MODEL_TRAIN, "autodiff");
  const ts_graph *g = p.graph;
  static const int rows[][2] = {{TS_OP_EMBEDDING_DW, 0}, {TS_OP_RMSNORM_DX, 2 * L}, {TS_OP_RMSNORM_DW, 2 * L + 1}};
  expect_counts("frozen embedding", g, rows, sizeof rows / sizeof *rows);
  tap_ok(ts_graph_gradient_of(g, ts_graph_find(g, "model.embed_tokens.weight"), 0) == TS_NONE, "it has no gradient");
  end(&p);
  p = run(TINY_LLAMA, UNTIED, "frozen=[\"^model\"]", TS_MODEL_TRAIN, "autodiff");
  int backward = 0;
  for (ts_nid n = 0; n < p.graph->n_nodes; ++n) {
    backward += !is_forward(&p.graph->node[n]);
  }
  tap_ok(backward == 1 && count_op(p.graph, TS_OP_HEAD_LOSS_DX) == 1, "all frozen but the head: its gradient alone");
  end(&p);
}

static void test_tied(void) {
  passed p = run(TINY_LLAMA, TIED, NULL, TS_MODEL_TRAIN, "autodiff");
  const ts_graph *g = p.graph;
  const ts_node *sum = ts_graph_producer(g, ts_graph_gradient_of(g, ts_graph_find(g, "model.embed_tokens.weight"), 0));
  tap_ok(sum->op == TS_OP_ADD && ts_graph_producer(g, sum->in[0])->op == TS_OP_HEAD_LOSS_DX &&
             ts_graph_producer(g, sum->in[1])->op == TS_OP_EMBEDDING_DW,
         "tied: the gradient is the head's plus the embedding's");
  end(&p);
}

/* ---- recomputation ---- */

/* Bytes that the backward reads of what the forward made. */
static double saved_bytes(const ts_graph *g) {
  double bytes = 0;
  bool *saved = ts_calloc((size_t) g->n_tensors, sizeof *saved);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    for (int i = 0; i < node->n_in && !is_forward(node); ++i) {
      const ts_node *p = node->in[i] == TS_NONE ? NULL : ts_graph_producer(g, node->in[i]);
      if (p != NULL && is_forward(p) && !saved[node->in[i]]) {
        saved[node->in[i]] = true;
        bytes += (double) ts_tensor_bytes(g, node->in[i]);
      }
    }
  }
  ts_free(saved);
  return bytes;
}

static int count_suffix(const ts_graph *g, const char *suffix) {
  int n = 0;
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    size_t length = strlen(g->node[i].name);
    n += length > strlen(suffix) && strcmp(g->node[i].name + length - strlen(suffix), suffix) == 0;
  }
  return n;
}

static void test_recompute(const char *what, const char *text, int copies, double blocks_keep) {
  passed plain = run(text, NULL, NULL, TS_MODEL_TRAIN, "recompute");
  passed again = run(text, "activation_checkpointing.enabled=true", NULL, TS_MODEL_TRAIN, "recompute");
  tap_ok(count_suffix(plain.graph, ".again") == 0, "%s: nothing is computed again unless asked for", what);
  int n = count_suffix(again.graph, ".again");
  tap_ok(n == copies && again.graph->n_nodes == plain.graph->n_nodes + n, "%s: %d nodes are computed again", what, n);
  double saved = saved_bytes(again.graph);
  tap_ok(saved == blocks_keep && saved < saved_bytes(plain.graph), "%s: %g bytes are saved instead of %g", what, saved,
         saved_bytes(plain.graph));
  end(&plain);
  end(&again);
}

static bool reads(const ts_node *node, ts_tid first, int n) {
  bool found = false;
  for (int i = 0; i < node->n_in; ++i) {
    found = found || (node->in[i] >= first && node->in[i] < first + n);
  }
  return found;
}

static bool is_copy(const ts_node *node) {
  return strstr(node->name, ".again") != NULL || strstr(node->name, ".ahead") != NULL;
}

/* Between a copy and the first node that reads it there are copies alone. */
static void test_recompute_order(const char *keys) {
  passed p = run(TINY_LLAMA, "activation_checkpointing.enabled=true", keys, TS_MODEL_TRAIN, "recompute");
  const ts_graph *g = p.graph;
  bool good = true;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    bool found = !is_copy(node);
    for (ts_nid m = n + 1; m < g->n_nodes && !found; ++m) {
      found = reads(&g->node[m], node->out[0], node->n_out);
      good = good && (found || is_copy(&g->node[m]));
    }
    good = good && found && (!is_copy(node) || node->segment == TS_SEGMENT_BACKWARD_INPUT);
  }
  tap_ok(good, "%s: copies come right before the first node that reads them", keys);
  end(&p);
}

/* What each choice keeps of DEEP blocks in bf16, and how often it does attention and the products of a block again; by
 * h elements of a token and H heads, blocks of which the input is kept, and those of which it is made ahead. */
static void test_policy(const char *policy, int interval, bool sac) {
  enum { DEEP = 5, HIDDEN = 8, HEADS = 4, TOKENS = B * T };
  char *keys = ts_format("activation_checkpointing={enabled=true; policy=\"%s\"; interval=%d;}", policy, interval);
  passed p =
      run(TINY_LLAMA "bf16 = { enabled = true; };\n", "model.num_hidden_layers=5", keys, TS_MODEL_TRAIN, "recompute");
  int each = interval > 0 ? interval : 1, inputs = (DEEP + each - 1) / each, ahead = DEEP - inputs, attention = 0,
      products = 0;
  for (ts_nid n = 0; n < p.graph->n_nodes; ++n) {
    attention += p.graph->node[n].op == TS_OP_ATTENTION && is_copy(&p.graph->node[n]);
    products += p.graph->node[n].op == TS_OP_MATMUL && is_copy(&p.graph->node[n]);
  }
  double blocks = TOKENS * (2.0 * HIDDEN * inputs + (sac ? (2.0 * HIDDEN + 4.0 * HEADS) * DEEP : 0));
  double end_of_model = TOKENS * (2 * 2.0 * HIDDEN + 4); /* input, result and statistics of the last norm */
  double saved = saved_bytes(p.graph);
  tap_ok(saved == blocks + end_of_model, "%s, inputs of every %d: %g bytes are kept", policy, interval, saved);
  tap_ok(attention == (sac ? 0 : DEEP + ahead), "%s, inputs of every %d: %d times attention again", policy, interval,
         attention);
  /* for gradients all but the down projection, for an input all but queries, keys and values where attention is kept */
  tap_ok(products == 6 * DEEP + (sac ? 4 : 7) * ahead, "%s, inputs of every %d: %d products again", policy, interval,
         products);
  ts_free(keys);
  end(&p);
}

static void test_policies(void) {
  static const int intervals[] = {0, 1, 2, 3, 5, 256};
  for (size_t i = 0; i < sizeof intervals / sizeof *intervals; ++i) {
    test_policy("block", intervals[i], false);
    test_policy("sac", intervals[i], true);
  }
  test_policy("auto", 1, false);
}

/* Only the blocks that a deck names are computed again, by their class or their names; DeepSpeed's key is another name.
 */
static void test_layers(void) {
  static const struct {
    const char *layers;
    int attention;
  } rows[] = {{"[]", 5},
              {"[\"LlamaDecoderLayer\"]", 5},
              {"[\"model.layers.1\", \"model.layers.4\"]", 2},
              {"\"model.layers.0\"", 1}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char *keys = ts_format("%s=%s", i % 2 == 0 ? "activation_checkpointing.layers" : "pipeline.checkpointable_layers",
                           rows[i].layers);
    passed p = run(TINY_LLAMA "activation_checkpointing = { enabled = true; };\n", "model.num_hidden_layers=5", keys,
                   TS_MODEL_TRAIN, "recompute");
    int attention = 0;
    for (ts_nid n = 0; n < p.graph->n_nodes; ++n) {
      attention += p.graph->node[n].op == TS_OP_ATTENTION && is_copy(&p.graph->node[n]);
    }
    tap_ok(attention == rows[i].attention, "%s: %d of 5 blocks are computed again", keys, attention);
    ts_free(keys);
    end(&p);
  }
}

/* The longest sample of which attention is done again, and one token more. */
static void test_policy_auto(void) {
  for (int more = 0; more < 2; ++more) {
    passed p = run(TINY_LLAMA, "activation_checkpointing.enabled=true", NULL, TS_MODEL_TRAIN, "precision");
    ts_graph_destroy(&p.graph);
    const ts_sequence long_samples = {.length = 4095 + more, .ulysses = 1, .ring = 1};
    p.graph = ts_model_build(p.deck, TS_MODEL_TRAIN, (ts_model_size){1, 4095 + more, 4095 + more});
    p.context.sequence = &long_samples;
    ts_pass_autodiff(&p.graph, &p.context);
    ts_pass_recompute(&p.graph, &p.context);
    tap_ok(count_op(p.graph, TS_OP_ATTENTION) == (more == 0 ? 2 * L : L), "auto, %d tokens: attention is %s",
           4095 + more, more == 0 ? "done again" : "kept");
    end(&p);
  }
}

static ts_graph *make_shared(void) {
  ts_graph *g = ts_graph_create();
  ts_tid ids = ts_graph_leaf(g, "input_ids", TS_ROLE_INPUT, TS_I32, TS_SHAPE(B, T), -1);
  ts_site at = {g, TS_SEGMENT_FORWARD, ts_graph_unit(g, "table")};
  ts_tid w = ts_graph_leaf(g, "w", TS_ROLE_PARAM, TS_F32, TS_SHAPE(11, 8), at.unit);
  ts_tid x = ts_build_embedding(at, "lookup", w, ids);
  at.unit = ts_graph_unit(g, "block");
  ts_tid a = ts_graph_add(at, &(ts_node){.op = TS_OP_ATTENTION,
                                         .name = "a",
                                         .n_in = 3,
                                         .in = (ts_tid[]){x, x, x},
                                         .attr = {.attention = {.heads = 1, .kv_heads = 1, .head_dim = 8}}});
  ts_tid y = ts_build_activation(at, "y", a, TS_ACTIVATION_RELU),
         z = ts_build_activation(at, "z", y, TS_ACTIVATION_RELU);
  at.unit = ts_graph_unit(g, "end");
  ts_tid sum = ts_build_glu(at, "sum", y, z, TS_ACTIVATION_SILU);
  ts_graph_mark(g, "loss", ts_build_head_loss(at, "loss", sum, w, ids, 1, 0));
  return g;
}

/* y is saved for the unit behind the block, so the block's backward need not make it again. */
static void test_recompute_shared(void) {
  passed p = run(TINY_LLAMA, "activation_checkpointing.enabled=true", NULL, TS_MODEL_TRAIN, "precision");
  ts_graph_destroy(&p.graph);
  p.graph = make_shared();
  ts_pass_autodiff(&p.graph, &p.context);
  ts_pass_recompute(&p.graph, &p.context);
  const ts_node *dz = find_node(p.graph, "z.dx"), *dy = find_node(p.graph, "y.dx");
  tap_ok(find_node(p.graph, "a.again") != NULL && dy->in[1] == find_node(p.graph, "a.again")->out[0],
         "what only the block reads is computed again");
  tap_ok(find_node(p.graph, "y.again") == NULL && dz->in[1] == find_node(p.graph, "y")->out[0],
         "what another unit reads is saved once");
  end(&p);
}

/* ---- MLPs in tiles ---- */

#define TILED "tiled_mlp_compute=true"
#define TINY_PHI3                                                                                                 \
  "model = { model_type = \"phi3\"; vocab_size = 11; hidden_size = 8; intermediate_size = 12;\n"                  \
  "  num_hidden_layers = 2; num_attention_heads = 4; num_key_value_heads = 2; max_position_embeddings = 16; };\n" \
  "train_micro_batch_size_per_gpu = 2;\n"

/* Tensors of activations with so many columns. */
static int count_wide(const ts_graph *g, int64_t columns) {
  int n = 0;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_shape *shape = &g->tensor[t].shape;
    n += shape->n == 3 && shape->d[2] == columns;
  }
  return n;
}

/* An op for each MLP and one for its gradient; nothing inner is left, so the backward keeps that much less.
 * \param [in] inner  Columns of the inner values, \a kept: of all that the backward would read. */
static void test_tiles(const char *what, const char *text, int64_t inner, int64_t kept) {
  static const int rows[][2] = {{TS_OP_MLP, L},        {TS_OP_MLP_DX, L}, {TS_OP_GLU, 0},
                                {TS_OP_ACTIVATION, 0}, {TS_OP_GLU_DX, 0}, {TS_OP_ACTIVATION_DX, 0}};
  passed plain = run(text, NULL, NULL, TS_MODEL_TRAIN, "recompute");
  passed tiled = run(text, TILED, NULL, TS_MODEL_TRAIN, "recompute");
  expect_counts(what, tiled.graph, rows, sizeof rows / sizeof *rows);
  tap_ok(count_wide(plain.graph, inner) > 0 && count_wide(tiled.graph, inner) == 0, "%s: nothing inner is a tensor",
         what);
  tap_ok(saved_bytes(plain.graph) - saved_bytes(tiled.graph) == 4.0 * L * B * T * (double) kept,
         "%s: %g bytes are saved instead of %g", what, saved_bytes(tiled.graph), saved_bytes(plain.graph));
  end(&plain);
  end(&tiled);
}

/* The tile is as long as x is wide; its gradient and a block's recomputation need the input alone; an evaluation has
 * tiles too, generation has none. */
static void test_tiled_uses(void) {
  passed p = run(TINY_LLAMA, TILED, "activation_checkpointing.enabled=true", TS_MODEL_TRAIN, NULL);
  const ts_node *mlp = find_node(p.graph, "model.layers.0.mlp.down_proj");
  tap_ok(mlp != NULL && mlp->op == TS_OP_MLP && mlp->attr.mlp.rows == 8 && mlp->prior != NULL,
         "a tile has hidden_size rows, and the residual is its prior");
  tap_ok(count_op(p.graph, TS_OP_MLP) == L && find_node(p.graph, "model.layers.0.mlp.down_proj.again") == NULL,
         "recomputation does not repeat it");
  const ts_node *dx = find_node(p.graph, "model.layers.0.mlp.down_proj.dx");
  tap_ok(dx != NULL && dx->n_out == 4 && dx->prior != NULL && dx->prior[0] == TS_NONE && dx->prior[1] != TS_NONE &&
             dx->prior[2] != TS_NONE && dx->prior[3] != TS_NONE && dx->beta != TS_NONE,
         "gradients of weights add to the sums over micro-batches");
  end(&p);
  p = run(TINY_LLAMA, TILED, "frozen=[\"mlp\"]", TS_MODEL_TRAIN, NULL);
  dx = find_node(p.graph, "model.layers.0.mlp.down_proj.dx");
  tap_ok(dx != NULL && dx->n_out == 1, "of frozen weights there are no gradients");
  end(&p);
  p = run(TINY_LLAMA, TILED, NULL, TS_MODEL_LOSS, NULL);
  tap_ok(count_op(p.graph, TS_OP_MLP) == L, "a loss is computed in tiles too");
  end(&p);
  p = run(TINY_LLAMA, TILED, NULL, TS_MODEL_LOGITS, NULL);
  tap_ok(count_op(p.graph, TS_OP_MLP) == 0 && count_op(p.graph, TS_OP_GLU) == L, "generation is not");
  end(&p);
}

/* Whoever else reads what is inner keeps it. */
static void test_not_tiled(void) {
  static const char *const inner[] = {"model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj",
                                      "model.layers.0.mlp.act"};
  for (int i = 0; i < 3; ++i) {
    passed p = run(TINY_LLAMA, TILED, NULL, TS_MODEL_TRAIN, "shard");
    p.context.mesh = &p.mesh; /* it has moved */
    ts_graph_mark(p.graph, "kept", find_node(p.graph, inner[i])->out[0]);
    ts_pass_tile(&p.graph, &p.context);
    tap_ok(count_op(p.graph, TS_OP_MLP) == L - 1 && find_node(p.graph, inner[i]) != NULL,
           "%s is wanted: its MLP stays as it is", inner[i]);
    end(&p);
  }
}

/* ---- fusion ---- */

static void test_fusion(void) {
  passed p = run(TINY_LLAMA, TIED, NULL, TS_MODEL_TRAIN, "fuse");
  const ts_graph *g = p.graph;
  static const int rows[][2] = {
      {TS_OP_ADD, 0}, {TS_OP_ACCUMULATE, 2}, {TS_OP_HEAD_LOSS, 0}, {TS_OP_HEAD_LOSS_DX, 0}, {TS_OP_HEAD_LOSS_TRAIN, 1}};
  expect_counts("llama fused", g, rows, sizeof rows / sizeof *rows); /* the sums of loss and tokens remain */
  const ts_node *o = find_node(g, "model.layers.0.self_attn.o_proj"), *loss = find_node(g, "loss.dx");
  const ts_node *table = find_node(g, "model.embed_tokens.dw");
  ts_tid beta = ts_graph_find(g, "accumulate");
  tap_ok(o->prior != NULL && o->prior[0] == find_node(g, "model.embed_tokens")->out[0] && o->beta == TS_NONE,
         "a residual sum is the projection's prior");
  tap_ok(loss->prior != NULL && loss->prior[3] != TS_NONE && loss->prior[2] == TS_NONE && loss->beta == beta &&
             ts_graph_producer(g, loss->prior[3])->op == TS_OP_VIEW,
         "tied: the head's gradient is added to the sum over micro-batches");
  tap_ok(table->prior != NULL && table->prior[0] == loss->out[3] && table->beta == TS_NONE,
         "tied: the embedding's gradient is added to the head's");
  end(&p);
  p = run(TINY_GPT2, NULL, NULL, TS_MODEL_TRAIN, "fuse");
  /* the embeddings' sum, and a dropout stands in front of each residual sum */
  tap_ok(count_op(p.graph, TS_OP_ADD) == 1 + 2 * L, "gpt2: a sum of dropped values stays");
  end(&p);
  p = run(TINY_LLAMA, NULL, NULL, TS_MODEL_LOSS, "fuse");
  tap_ok(count_op(p.graph, TS_OP_HEAD_LOSS) == 1 && count_op(p.graph, TS_OP_ADD) == 0, "a loss alone keeps its head");
  end(&p);
}

/* The head of a rank that has rows 3, 4, ... of the vocabulary. */
static ts_graph *make_shared_head(void) {
  ts_graph *g = ts_graph_create();
  ts_tid ids = ts_graph_leaf(g, "ids", TS_ROLE_INPUT, TS_I32, TS_SHAPE(B, T), -1);
  ts_site at = {g, TS_SEGMENT_FORWARD, ts_graph_unit(g, "head")};
  ts_tid w = ts_graph_leaf(g, "w", TS_ROLE_PARAM, TS_F32, TS_SHAPE(11, 8), at.unit);
  ts_tid in[] = {ts_build_embedding(at, "lookup", w, ids), w, ids, TS_NONE};
  ts_node node = {.op = TS_OP_HEAD_STATS, .name = "stats", .n_in = 3, .in = in, .attr = {.head = {TS_F32, 1, 0, 3}}};
  in[3] = ts_build_view(at, "shares", ts_graph_add(at, &node), 0, TS_SHAPE(1, B, T, 2));
  node.op = TS_OP_HEAD_LOSS;
  node.name = "loss";
  node.n_in = 4;
  ts_graph_mark(g, "loss", ts_graph_add(at, &node));
  return g;
}

/* Its loss does not have the logits, so the gradients have a sweep of their own, by what all ranks measured. */
static void test_shared_head(void) {
  passed p = run(TINY_LLAMA, NULL, NULL, TS_MODEL_TRAIN, "precision");
  ts_graph_destroy(&p.graph);
  p.graph = make_shared_head();
  ts_pass_autodiff(&p.graph, &p.context);
  ts_pass_fuse(&p.graph, &p.context);
  static const int rows[][2] = {
      {TS_OP_HEAD_STATS, 1}, {TS_OP_HEAD_LOSS, 1}, {TS_OP_HEAD_LOSS_DX, 1}, {TS_OP_HEAD_LOSS_TRAIN, 0}};
  expect_counts("a shared head fused", p.graph, rows, sizeof rows / sizeof *rows);
  const ts_node *dx = find_node(p.graph, "loss.dx");
  tap_ok(dx->n_in == 5 && dx->in[4] == find_node(p.graph, "shares")->out[0] && dx->attr.head.first == 3,
         "its gradients have the stats and the first row");
  end(&p);
}

/* Graphs in which a fold would be wrong. */
static ts_graph *make_sum(ts_tid *x, ts_tid *product) {
  ts_graph *g = ts_graph_create();
  *x = ts_graph_leaf(g, "x", TS_ROLE_INPUT, TS_F32, TS_SHAPE(2, 8), -1);
  ts_tid w = ts_graph_leaf(g, "w", TS_ROLE_INPUT, TS_F32, TS_SHAPE(8, 8), -1);
  *product = ts_build_matmul(ts_graph_site(g), "product", *x, w, TS_NONE, false, false, TS_F32);
  return g;
}

static void expect_adds(ts_graph *g, int adds, const char *what) {
  ts_pass_fuse(&g, &(ts_pass_context){.use = TS_MODEL_LOSS});
  ts_text why = {0};
  tap_ok(count_op(g, TS_OP_ADD) == adds && ts_graph_verify(g, &why) == 0, "%s: %d sums stay", what, adds);
  ts_text_free(&why);
  ts_graph_destroy(&g);
}

static void test_not_fused(void) {
  ts_tid x, y;
  ts_graph *g = make_sum(&x, &y);
  ts_graph_mark(g, "sum", ts_build_add(ts_graph_site(g), "add", x, y));
  expect_adds(g, 0, "a product added to what was there before");
  g = make_sum(&x, &y);
  ts_graph_mark(g, "sum", ts_build_add(ts_graph_site(g), "add", x, ts_build_scale(ts_graph_site(g), "s", y, 0.5f, 0)));
  expect_adds(g, 0, "a scaled product added to what was there before");
  g = make_sum(&x, &y);
  ts_tid b = ts_graph_leaf(g, "b", TS_ROLE_INPUT, TS_F32, TS_SHAPE(8), -1);
  y = ts_build(ts_graph_site(g), TS_OP_BIAS, "bias", 2, (ts_tid[]){y, b});
  ts_graph_mark(g, "sum", ts_build_add(ts_graph_site(g), "add", x, y));
  expect_adds(g, 0, "a product and a bias added to what was there before");
  g = make_sum(&x, &y);
  ts_tid late = ts_build_activation(ts_graph_site(g), "late", x, TS_ACTIVATION_RELU);
  ts_graph_mark(g, "sum", ts_build_add(ts_graph_site(g), "add", late, y));
  expect_adds(g, 1, "a term that is made after the product");
  g = make_sum(&x, &y);
  ts_graph_mark(g, "other", ts_build_activation(ts_graph_site(g), "other", y, TS_ACTIVATION_RELU));
  ts_graph_mark(g, "sum", ts_build_add(ts_graph_site(g), "add", x, y));
  expect_adds(g, 1, "a product that somebody else reads");
  g = make_sum(&x, &y);
  ts_graph_mark(g, "product", y);
  ts_graph_mark(g, "sum", ts_build_add(ts_graph_site(g), "add", x, y));
  expect_adds(g, 1, "a product that is a result");
  g = make_sum(&x, &y);
  ts_graph_mark(g, "sum", ts_build_add(ts_graph_site(g), "add", y, y));
  expect_adds(g, 1, "a product added to itself");
  g = make_sum(&x, &y);
  y = ts_build_activation(ts_graph_site(g), "act", y, TS_ACTIVATION_RELU);
  ts_graph_mark(g, "sum", ts_build_add(ts_graph_site(g), "add", x, y));
  expect_adds(g, 1, "an op that cannot add");
  g = make_sum(&x, &y);
  y = ts_build_add(ts_graph_site(g), "add", x, y);
  ts_tid again = ts_build_matmul(ts_graph_site(g), "again", y, ts_graph_find(g, "w"), TS_NONE, false, false, TS_F32);
  ts_graph_mark(g, "sum", ts_build_add(ts_graph_site(g), "add2", y, again));
  expect_adds(g, 0, "a chain of sums");
}

/* ---- products with what follows them ---- */

static const ts_kernel *any_kernel(ts_op op) {
  (void) op;
  return ts_backend_null()->kernel(TS_OP_ADD);
}

/* Of GPT-2's products one a block is followed by a GELU and one, in the backward step, by its gradient; in bf16 and
 * where the backend has them these become one op, and with recomputation the forward one is there twice. */
static void test_epilogue(void) {
  const ts_backend all = {.name = "all", .kernel = any_kernel};
  static const int fused[][2] = {
      {TS_OP_MATMUL_GELU, L}, {TS_OP_MATMUL_DGELU, L}, {TS_OP_ACTIVATION, 0}, {TS_OP_ACTIVATION_DX, 0}};
  static const int twice[][2] = {
      {TS_OP_MATMUL_GELU, 2 * L}, {TS_OP_MATMUL_DGELU, L}, {TS_OP_ACTIVATION, 0}, {TS_OP_ACTIVATION_DX, 0}};
  static const int apart[][2] = {
      {TS_OP_MATMUL_GELU, 0}, {TS_OP_MATMUL_DGELU, 0}, {TS_OP_ACTIVATION, L}, {TS_OP_ACTIVATION_DX, L}};
  passed p = run(TINY_GPT2, "bf16.enabled=true", NULL, TS_MODEL_TRAIN, NULL);
  expect_counts("a backend without fused products", p.graph, apart, 4);
  int nodes = p.graph->n_nodes;
  end(&p);
  backend = &all;
  p = run(TINY_GPT2, "bf16.enabled=true", NULL, TS_MODEL_TRAIN, NULL);
  expect_counts("bf16", p.graph, fused, 4);
  tap_ok(p.graph->n_nodes == nodes - 2 * L, "bf16: two nodes a block less");
  end(&p);
  p = run(TINY_GPT2, "bf16.enabled=true", "activation_checkpointing.enabled=true", TS_MODEL_TRAIN, NULL);
  expect_counts("bf16, recomputed", p.graph, twice, 4);
  end(&p);
  p = run(TINY_GPT2, NULL, NULL, TS_MODEL_TRAIN, NULL);
  expect_counts("fp32", p.graph, apart, 4);
  end(&p);
  backend = ts_backend_null();
}

/* The products know the tanh form alone: the other kinds stay nodes of their own, forward and backward. */
static void test_epilogue_kinds(void) {
  const ts_backend all = {.name = "all", .kernel = any_kernel};
  for (int kind = 0; kind < TS_N_ACTIVATIONS; ++kind) {
    ts_graph *g = ts_graph_create();
    ts_site at = ts_graph_site(g);
    ts_tid x = ts_graph_leaf(g, "x", TS_ROLE_INPUT, TS_BF16, TS_SHAPE(2, 8), -1);
    ts_tid w = ts_graph_leaf(g, "w", TS_ROLE_INPUT, TS_BF16, TS_SHAPE(8, 8), -1);
    ts_tid bias = ts_graph_leaf(g, "bias", TS_ROLE_INPUT, TS_BF16, TS_SHAPE(8), -1);
    ts_tid y = ts_build_matmul(at, "product", x, w, bias, false, false, TS_BF16);
    y = ts_build_activation(at, "y", y, (ts_activation) kind);
    const ts_tid in[] = {ts_build_matmul(at, "dy", y, w, TS_NONE, false, true, TS_BF16), x};
    ts_node dx = {.op = TS_OP_ACTIVATION_DX, .name = "dx", .n_in = 2, .in = in};
    dx.attr.activation.kind = (ts_activation) kind;
    ts_graph_mark(g, "dx", ts_graph_add(at, &dx));
    ts_pass_epilogue(&g, &(ts_pass_context){.target = {.backend = &all}});
    int fused = kind == TS_ACTIVATION_GELU_TANH;
    tap_ok(count_op(g, TS_OP_MATMUL_GELU) == fused && count_op(g, TS_OP_MATMUL_DGELU) == fused &&
               count_op(g, TS_OP_ACTIVATION) == !fused && count_op(g, TS_OP_ACTIVATION_DX) == !fused,
           "activation %d: %s", kind, fused ? "in the products" : "after the products");
    ts_graph_destroy(&g);
  }
}

/* GPT-2's attention reads q, k and v where their product left them, forward, again and backward. */
static void test_fused_qkv(void) {
  const struct {
    const char *what, *set;
    int attention; /* calls a block */
  } row[] = {{"GPT-2", NULL, 1},
             {"recomputed", "activation_checkpointing.enabled=true", 2},
             {"attention kept", "activation_checkpointing={enabled=true;policy=\"sac\"}", 1}};
  for (size_t i = 0; i < sizeof row / sizeof *row; ++i) {
    passed before = run(TINY_GPT2, row[i].set, NULL, TS_MODEL_TRAIN, "epilogue");
    passed p = run(TINY_GPT2, row[i].set, NULL, TS_MODEL_TRAIN, NULL);
    int concats = count_op(before.graph, TS_OP_CONCAT), apart = 0;
    for (ts_nid n = 0; n < p.graph->n_nodes; ++n) {
      const ts_node *node = &p.graph->node[n];
      bool attention = node->op == TS_OP_ATTENTION || node->op == TS_OP_ATTENTION_DX;
      apart += attention && !node->attr.attention.fused_qkv;
    }
    tap_ok(count_op(before.graph, TS_OP_SPLIT) > 0 && count_op(p.graph, TS_OP_SPLIT) == 0 &&
               count_op(p.graph, TS_OP_CONCAT) == concats - L && apart == 0 &&
               count_op(p.graph, TS_OP_ATTENTION) == row[i].attention * L && count_op(p.graph, TS_OP_ATTENTION_DX) == L,
           "%s: attention on q, k and v in one tensor", row[i].what);
    end(&before);
    end(&p);
  }
}

/* A rehearsal without attention: in the last block alone a query sees keys, and all else is as it was, to the byte. */
static void test_rehearsal(void) {
  passed whole = run(TINY_GPT2, "activation_checkpointing.enabled=true", NULL, TS_MODEL_TRAIN, NULL);
  passed p = run(TINY_GPT2, "activation_checkpointing.enabled=true", "debug.skip_attention=true", TS_MODEL_TRAIN, NULL);
  int blind = 0, seeing = 0;
  for (ts_nid n = 0; n < p.graph->n_nodes; ++n) {
    const ts_node *node = &p.graph->node[n];
    if (node->op == TS_OP_ATTENTION || node->op == TS_OP_ATTENTION_DX) {
      blind += node->attr.attention.blind;
      seeing += !node->attr.attention.blind;
    }
  }
  tap_ok(blind == 3 * (L - 1) && seeing == 3, "a rehearsal: %d calls of attention see nothing, %d do", blind, seeing);
  tap_ok(p.graph->n_nodes == whole.graph->n_nodes && p.context.plan->peak_bytes == whole.context.plan->peak_bytes,
         "a rehearsal: the memory of the whole run");
  end(&whole);
  end(&p);
}

/* Where one of the three is read by something else, or the gradients do not go into one tensor, nothing changes. */
static void test_apart_qkv(void) {
  for (int other = 0; other < 3; ++other) {
    static const int64_t size[] = {8, 8, 8};
    ts_graph *g = ts_graph_create();
    ts_site at = ts_graph_site(g);
    ts_tid x = ts_graph_leaf(g, "x", TS_ROLE_INPUT, TS_F32, TS_SHAPE(2, 3, 24), -1);
    ts_tid d_out = ts_graph_leaf(g, "do", TS_ROLE_INPUT, TS_F32, TS_SHAPE(2, 3, 8), -1);
    ts_tid q = ts_build_split(at, "split", x, 1, 3, size);
    ts_attr attr = {.attention = {.heads = 2, .kv_heads = 2, .head_dim = 4, .scale = 0.5f, .causal = true}};
    const ts_tid in[] = {q, q + 1, q + 2};
    ts_tid o = ts_graph_add(at, &(ts_node){.op = TS_OP_ATTENTION, .name = "o", .n_in = 3, .in = in, .attr = attr});
    const ts_tid of[] = {d_out, q, q + 1, q + 2, o, o + 1};
    ts_tid dq = ts_graph_add(
        at, &(ts_node){.op = TS_OP_ATTENTION_DX, .name = "dq", .n_in = 6, .in = of, .n_out = 3, .attr = attr});
    const ts_tid parts[] = {dq, other == 2 ? dq + 2 : dq + 1, other == 2 ? dq + 1 : dq + 2};
    ts_graph_mark(g, "dx", ts_build_concat(at, "dx", 1, 3, parts));
    if (other == 1) {
      ts_graph_mark(g, "more", ts_build_add(at, "more", q + 2, d_out));
    }
    ts_pass_fused_qkv(&g, &(ts_pass_context){0});
    int apart = other > 0;
    tap_ok(count_op(g, TS_OP_SPLIT) == apart && count_op(g, TS_OP_CONCAT) == apart, "%s",
           other == 0   ? "q, k and v read by attention alone"
           : other == 1 ? "v read by something else: they stay apart"
                        : "gradients in another order: they stay apart");
    ts_graph_destroy(&g);
  }
}

/* A sum with beta and one without it, of two outputs of one node, which has one beta. */
static void test_one_beta(void) {
  ts_graph *g = ts_graph_create();
  ts_site at = ts_graph_site(g);
  ts_tid in[4], sum = ts_graph_leaf(g, "sum", TS_ROLE_STATE, TS_F32, TS_SHAPE(8), -1);
  for (int i = 0; i < 4; ++i) {
    in[i] = ts_graph_leaf(g, (const char *[]){"dy", "x", "mean", "rstd"}[i], TS_ROLE_INPUT, TS_F32,
                          i < 2 ? TS_SHAPE(2, 8) : TS_SHAPE(2), -1);
  }
  ts_tid more = ts_graph_leaf(g, "more", TS_ROLE_INPUT, TS_F32, TS_SHAPE(8), -1);
  ts_tid beta = ts_graph_leaf(g, "beta", TS_ROLE_INPUT, TS_F32, TS_SHAPE(1), -1);
  ts_tid dw =
      ts_graph_add(at, &(ts_node){.op = TS_OP_LAYERNORM_DW, .name = "dw", .n_in = 4, .in = in, .beta = TS_NONE});
  ts_graph_mark(g, "w", ts_build_accumulate(at, "w", sum, dw, beta));
  ts_graph_mark(g, "b", ts_build_add(at, "b", more, dw + 1));
  ts_pass_fuse(&g, &(ts_pass_context){0});
  tap_ok(count_op(g, TS_OP_ACCUMULATE) == 0 && count_op(g, TS_OP_ADD) == 1,
         "priors with another beta are not folded into one node");
  ts_graph_destroy(&g);
}

/* ---- state ---- */

/* A leaf that says what it holds is planned and saved; here moments of a part that is frozen and has none. */
static void test_state(void) {
  static const ts_held held[] = {{TS_STATE_EXP_AVG, 0, true}, {TS_STATE_GRADIENT, 0, true}};
  passed before = run(TINY_GPT2, "frozen=[\"wte\"]", "bf16.enabled=true", TS_MODEL_TRAIN, NULL);
  passed p = run(TINY_GPT2, "frozen=[\"wte\"]", "bf16.enabled=true", TS_MODEL_TRAIN, "epilogue");
  ts_saved_leaf leaf[TS_MOST_SAVED];
  int64_t count = p.context.layout->part[0].count, saved = ts_saved_bytes(p.graph, p.context.layout);
  tap_ok(ts_saved_leaves(p.graph, p.context.layout, 0, leaf) == 1 && leaf[0].dtype == TS_BF16,
         "of a frozen part its working values are saved");
  ts_tid moment = ts_graph_state(p.graph, "more", held[0], TS_F32, TS_SHAPE(count), 0);
  ts_graph_state(p.graph, "sum", held[1], TS_F32, TS_SHAPE(count), 0);
  p.context.mesh = &p.mesh;
  p.context.step = &p.step;
  ts_pass_schedule(&p.graph, &p.context);
  moment = ts_graph_find(p.graph, "more");
  tap_ok(moment == TS_NONE, "state that nobody reads is gone with the next pass");
  moment = ts_graph_state(p.graph, "more", held[0], TS_F32, TS_SHAPE(count), 0);
  ts_graph_state(p.graph, "sum", held[1], TS_F32, TS_SHAPE(count), 0);
  ts_pass_memory(&p.graph, &p.context);
  const int64_t *a = before.context.plan->bytes, *b = p.context.plan->bytes, bytes = ts_plan_align(4 * count);
  tap_ok(b[TS_PURPOSE_OPTIMIZER] - a[TS_PURPOSE_OPTIMIZER] == bytes &&
             b[TS_PURPOSE_GRADIENT] - a[TS_PURPOSE_GRADIENT] == bytes,
         "another state is planned for its purpose");
  tap_ok(ts_saved_leaves(p.graph, p.context.layout, 0, leaf) == 2 && leaf[1].leaf == moment &&
             strcmp(leaf[1].state, "exp_avg") == 0 && leaf[1].whole && leaf[1].count == count,
         "and saved, where its row says so");
  tap_ok(ts_saved_bytes(p.graph, p.context.layout) - saved == bytes, "with room in the copy");
  end(&before);
  end(&p);
}

/* Units in their order, each with all its micro-batches in theirs. */
static bool is_by_unit(const ts_graph *g, int64_t n) {
  int unit = -1;
  int64_t m = 0;
  bool ordered = true;
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    const char *at = strchr(g->node[i].name, '/');
    int64_t own = at != NULL ? atoi(at + 1) : 0;
    bool same = g->node[i].unit == unit;
    ordered = ordered && own < n && (same ? own == m || own == m + 1 || own == 0 : own == 0 && (i == 0 || m == n - 1));
    unit = g->node[i].unit;
    m = own;
  }
  return ordered && m == n - 1;
}

/* Parameters are read once for all, inputs each by its own; a tied table's gradients of two units stay apart. */
static void test_unroll(const char *deck, const char *set, const char *tied) {
  passed one = run(deck, set, NULL, TS_MODEL_TRAIN, "placed");
  together = 3;
  passed three = run(deck, set, NULL, TS_MODEL_TRAIN, "unroll");
  together = 1;
  const ts_graph *a = one.graph, *b = three.graph;
  tap_ok(count_op(b, TS_OP_MATMUL) == 3 * count_op(a, TS_OP_MATMUL) && is_by_unit(b, 3), "%d nodes, unit by unit",
         b->n_nodes);
  tap_ok(ts_graph_find(b, "labels/2") != TS_NONE && ts_graph_find(b, "labels/3") == TS_NONE &&
             b->n_tensors < 3 * a->n_tensors && ts_graph_marked(b, "loss/2") != TS_NONE,
         "each has inputs and a loss");
  ts_tid table = ts_graph_find(b, tied);
  tap_ok(ts_graph_gradient_of(b, table, 2) != TS_NONE && ts_graph_gradient_of(b, table, 3) == TS_NONE &&
             (ts_graph_earlier_of(b, table, 2) != TS_NONE) == (set == NULL),
         "and gradients");
  end(&one);
  end(&three);
}

int main(void) {
  backend = ts_backend_null();
  test_list();
  test_broken();
  test_unroll(TINY_LLAMA, UNTIED, "model.embed_tokens.weight");
  test_unroll(TINY_GPT2, NULL, "transformer.wte.weight");
  test_precision();
  test_gradients("llama", TINY_LLAMA, UNTIED);
  test_gradients("gpt2", TINY_GPT2, NULL);
  test_backward_order();
  test_frozen();
  test_tied();
  /* A block computes again all but its down projection and last sum: 13 of 15 nodes.  Saved are what enters each block
   * and the final norm (fp32 [B][T][8]), the norm's statistics, and the norm's result for the head. */
  test_recompute("llama", TINY_LLAMA, L * 13, (L + 2) * 4.0 * B * T * 8 + 4.0 * B * T);
  test_recompute_order("activation_checkpointing.policy=block");
  test_recompute_order("activation_checkpointing.policy=sac");
  test_recompute_order("activation_checkpointing.interval=2");
  test_policies();
  test_layers();
  test_policy_auto();
  test_recompute_shared();
  /* Up, gate and their product; GPT-2's of four times the width, before and after the activation; both in one, their
   * halves are windows of their own, and the product. */
  test_tiles("llama in tiles", TINY_LLAMA, 12, 3 * 12);
  test_tiles("gpt2 in tiles", TINY_GPT2, 32, 2 * 32);
  test_tiles("phi3 in tiles", TINY_PHI3, 12, 3 * 12);
  test_tiled_uses();
  test_not_tiled();
  test_fusion();
  test_shared_head();
  test_not_fused();
  test_one_beta();
  test_state();
  test_epilogue();
  test_epilogue_kinds();
  test_fused_qkv();
  test_rehearsal();
  test_apart_qkv();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
