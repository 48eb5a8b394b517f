/* The gradient rule of every op that has one, in fp64: the nodes a rule adds are computed by the references of test_ops
 * (which hold the kernels to the same references) and compared with central differences of the op itself. */
#include "graph/op.h"
#include "ops/build.h"
#include "ops/gradient.h"
#include "regression/ops/ops.h"
#include "regression/tap.h"

enum { MAX_TENSORS = 48 };

/* A graph of one op with the values of its tensors: floats in fp64, whatever the graph says. */
typedef struct gradient_case {
  ts_graph *graph;
  run_tensor value[MAX_TENSORS]; /* owned */
  int n_dy;                      /* outputs through which a gradient comes */
  int last;                      /* the op's node; those before it make its inputs */
} gradient_case;

static void destroy(gradient_case *c) {
  for (int t = 0; t < MAX_TENSORS; ++t) {
    ts_free(c->value[t].data);
  }
  ts_graph_destroy(&c->graph);
}

static ts_tid add_leaf(gradient_case *c, const char *name, ts_dtype dtype, ts_shape shape, run_tensor value) {
  ts_tid t = ts_graph_leaf(c->graph, name, dtype == TS_F32 ? TS_ROLE_PARAM : TS_ROLE_INPUT, dtype, shape, -1);
  TS_CHECK(t < MAX_TENSORS, "too many tensors");
  c->value[t] = value;
  return t;
}

static ts_tid numbers(gradient_case *c, const char *name, ts_shape shape) {
  return add_leaf(c, name, TS_F32, shape, run_random(TS_F64, shape, ts_hash_name(name), 1.0));
}

/* 0, 1, ... modulo n, each three times as large. */
static ts_tid integers(gradient_case *c, const char *name, ts_dtype dtype, ts_shape shape, int64_t n) {
  run_tensor value = run_new(dtype, shape);
  for (int64_t i = 0; i < run_count(&value); ++i) {
    run_set(&value, i, (double) (3 * i % n));
  }
  return add_leaf(c, name, dtype, shape, value);
}

static ts_shape activations(void) {
  return TS_SHAPE(2, 3, 8);
}

static void build_view(gradient_case *c, int variant) {
  (void) variant;
  ts_build_view(ts_graph_site(c->graph), "node", numbers(c, "x", activations()), 0, TS_SHAPE(6, 8));
}

/* ---- on a group of one rank; what more of them do is shown by training (engine/test_golden) ---- */

static void build_pack(gradient_case *c, int variant) {
  static const int64_t offset[] = {0, 50};
  const ts_tid x[] = {numbers(c, "a", activations()), numbers(c, "b", TS_SHAPE(3, 2))};
  (void) variant;
  ts_build_pack(ts_graph_site(c->graph), "node", 2, x, offset, 60);
}

static const int64_t cuts_of_one[] = {0, 48};
static const ts_piece all_of_it = {.cuts = cuts_of_one, .end = 48};

static void build_all_gather(gradient_case *c, int variant) {
  ts_tid x = numbers(c, "x", activations());
  (void) variant;
  ts_build_all_gather(ts_graph_site(c->graph), "node", 1, 1, 1, &x, NULL, 1, &all_of_it);
}

static void build_reduce_scatter(gradient_case *c, int variant) {
  ts_tid x = numbers(c, "x", activations());
  (void) variant;
  ts_build_reduce_scatter(ts_graph_site(c->graph), "node", 1, 1, TS_F32, 1, 1, &x, NULL, TS_NONE, 1, &all_of_it);
}

static void build_all_reduce(gradient_case *c, int variant) {
  (void) variant;
  ts_build_all_reduce(ts_graph_site(c->graph), "node", 1, 1, numbers(c, "x", activations()));
}

/* One rank's: all columns of x, and some of them once more; of a second tensor the rows turn.  Its gradient adds. */
static void build_all_to_all(gradient_case *c, int variant) {
  static const ts_block block[] = {{.rows = {0, 3}, .columns = {0, 12}},
                                   {.rows = {0, 4}, .columns = {0, 5}},
                                   {0, 0, {0, 3}, {0, 8}},
                                   {0, 1, {1, 3}, {0, 5}},
                                   {0, 0, {0, 3}, {4, 4}},
                                   {0, 1, {0, 1}, {0, 5}},
                                   {0, 0, {0, 3}, {4, 8}},
                                   {0, 1, {0, 3}, {0, 5}},
                                   {0, 0, {0, 3}, {0, 4}},
                                   {0, 1, {3, 1}, {0, 5}}};
  ts_tid x[] = {numbers(c, "x", activations()), numbers(c, "z", TS_SHAPE(4, 5))};
  (void) variant;
  ts_build_all_to_all(ts_graph_site(c->graph), "node", 1, 1, 2, x, block, 4, 4);
  c->n_dy = 2;
}

static void build_share(gradient_case *c, int variant) {
  (void) variant;
  ts_build_share(ts_graph_site(c->graph), "node", 1, 1, numbers(c, "x", activations()));
}

static void build_add(gradient_case *c, int variant) {
  ts_tid a = numbers(c, "a", activations());
  ts_build_add(ts_graph_site(c->graph), "node", a, variant == 0 ? numbers(c, "b", activations()) : a);
}

static void build_multiply(gradient_case *c, int variant) {
  ts_tid a = numbers(c, "a", activations());
  ts_build_multiply(ts_graph_site(c->graph), "node", a, variant == 0 ? numbers(c, "b", activations()) : a);
}

/* Rows longer than eps, then rows that are not. */
static void build_normalize(gradient_case *c, int variant) {
  ts_build_normalize(ts_graph_site(c->graph), "node", numbers(c, "x", activations()), variant == 0 ? 0.01f : 50.0f);
}

/* Bits: a mask, which is that of one row more than x has; x has two stretches of samples. */
static void build_pick(gradient_case *c, int variant) {
  bool mask = variant & 1, some = variant & 2;
  ts_tid in[] = {numbers(c, "x", activations()),
                 integers(c, "which", TS_I32, mask ? TS_SHAPE(2, some ? 7 : 3) : TS_SHAPE(2), some ? 7 : 3)};
  ts_attr attr = {.pick = {.tokens = some ? (ts_tokens){2, {{0, 1}, {3, 2}}} : (ts_tokens){0}}};
  ts_graph_add(ts_graph_site(c->graph),
               &(ts_node){.op = TS_OP_PICK, .name = "node", .n_in = 2, .in = in, .attr = attr, .beta = TS_NONE});
}

/* Bits: sigmoid; normalized; groups; a bias, which has no gradient. */
static void build_route(gradient_case *c, int variant) {
  ts_tid in[] = {numbers(c, "logits", TS_SHAPE(2, 3, 8)), TS_NONE};
  if (variant & 8) {
    in[1] = add_leaf(c, "bias_of_choice", TS_F32, TS_SHAPE(8), run_random(TS_F64, TS_SHAPE(8), 19, 0.2));
  }
  ts_attr attr = {.route = {.k = 3,
                            .groups = variant & 4 ? 4 : 0,
                            .top_groups = variant & 4 ? 2 : 0,
                            .sigmoid = variant & 1,
                            .normalize = variant & 2,
                            .scale = variant & 1 ? 2.5f : 1}};
  ts_graph_add(ts_graph_site(c->graph),
               &(ts_node){.op = TS_OP_ROUTE, .name = "node", .n_in = 2, .in = in, .attr = attr, .beta = TS_NONE});
  c->n_dy = 1; /* a choice has none */
}

/* Bits: weights that are left sum to 1; first choices of all tokens come first. */
static void build_route_limit(gradient_case *c, int variant) {
  ts_tid in[] = {numbers(c, "weight", TS_SHAPE(2, 5, 3)), integers(c, "chosen", TS_I32, TS_SHAPE(2, 5, 3), 4)};
  for (int64_t i = 0; i < run_count(&c->value[in[0]]); ++i) {
    run_set(&c->value[in[0]], i, 0.2 + fabs(run_get(&c->value[in[0]], i)));
  }
  ts_attr attr = {.limit = {.experts = 4, .least = 1, .factor = 2, .by_choice = variant & 2, .normalize = variant & 1}};
  ts_graph_add(ts_graph_site(c->graph),
               &(ts_node){.op = TS_OP_ROUTE_LIMIT, .name = "node", .n_in = 2, .in = in, .attr = attr, .beta = TS_NONE});
  c->n_dy = 1;
}

/* Bits: sigmoid; groups of a sample and a half. */
static ts_tid loads_of_experts(gradient_case *c, const char *name, int variant) {
  ts_tid in[] = {numbers(c, "logits", TS_SHAPE(2, 3, 8)), integers(c, "chosen", TS_I32, TS_SHAPE(2, 3, 2), 8),
                 integers(c, "labels", TS_I32, TS_SHAPE(2, 3), 8)};
  run_set(&c->value[in[2]], 1, -100);
  ts_attr attr = {.loads = {.groups = variant & 2 ? 2 : 1, .length = variant & 2 ? 4 : 9, .sigmoid = variant & 1}};
  attr.loads.first = variant & 2 ? 2 : 0;
  return ts_graph_add(
      ts_graph_site(c->graph),
      &(ts_node){.op = TS_OP_ROUTE_LOADS, .name = name, .n_in = 3, .in = in, .attr = attr, .beta = TS_NONE});
}

static void build_route_loads(gradient_case *c, int variant) {
  loads_of_experts(c, "node", variant);
}

/* This rank's loads are all.  What was chosen, and how often, is given: of shares that are 0 it does
 * not matter. */
static void build_balance_loss(gradient_case *c, int variant) {
  ts_tid loads = numbers(c, "loads", TS_SHAPE(2, 19));
  for (int64_t i = 0; i < run_count(&c->value[loads]); ++i) {
    int64_t place = i % 19;
    run_set(&c->value[loads], i, place < 8 ? (double) (i % 5) : place < 16 ? 0 : place == 16 ? 31 : 7);
  }
  numbers(c, "gradient_seed", TS_SHAPE(1));
  const ts_tid in[] = {loads, loads};
  const ts_attr attr = {.balance = {.layers = 1 + variant, .aux = 0.7f, .z = variant == 1 ? 0.1f : 0.0f}};
  ts_graph_add(
      ts_graph_site(c->graph),
      &(ts_node){.op = TS_OP_BALANCE_LOSS, .name = "node", .n_in = 2, .in = in, .attr = attr, .beta = TS_NONE});
  c->n_dy = 0;
}

/* Rows of four experts; every fifth choice is of none.  Variant 1: with weights. */
static void build_rows(gradient_case *c, int variant, ts_op op, ts_shape x) {
  ts_tid in[5] = {numbers(c, "x", x)}, chosen = integers(c, "chosen", TS_I32, TS_SHAPE(2, 3, 2), 5);
  in[4] = variant == 1 ? numbers(c, "weight", TS_SHAPE(2, 3, 2)) : TS_NONE;
  in[1] = ts_graph_add(ts_graph_site(c->graph), &(ts_node){.op = TS_OP_DISPATCH,
                                                           .name = "dispatch",
                                                           .n_in = 1,
                                                           .in = &chosen,
                                                           .attr = {.experts = {4}},
                                                           .beta = TS_NONE});
  in[2] = in[1] + 1;
  in[3] = in[1] + 2;
  ts_graph_add(ts_graph_site(c->graph),
               &(ts_node){.op = op, .name = "node", .n_in = variant == 1 ? 5 : 4, .in = in, .beta = TS_NONE});
}
static void build_take_rows(gradient_case *c, int variant) {
  build_rows(c, variant, TS_OP_TAKE_ROWS, activations());
}
static void build_combine(gradient_case *c, int variant) {
  build_rows(c, variant, TS_OP_COMBINE, TS_SHAPE(12, 8));
}

/* Four experts with rows 0 to 1, none, 1 to 4, 4 to `last` of nine. */
static ts_tid first_of_experts(gradient_case *c, int32_t last) {
  const int32_t begin[] = {0, 1, 1, 4, last};
  run_tensor first = run_new(TS_I32, TS_SHAPE(5));
  memcpy(first.data, begin, sizeof begin);
  return add_leaf(c, "first", TS_I32, TS_SHAPE(5), first);
}

/* Of all rows: what flows to those of none is what flows from there, and nobody reads it. */
static void build_grouped_bias(gradient_case *c, int variant) {
  (void) variant;
  const ts_tid in[] = {numbers(c, "x", TS_SHAPE(9, 6)), numbers(c, "b", TS_SHAPE(4, 6)), first_of_experts(c, 9)};
  ts_graph_add(ts_graph_site(c->graph),
               &(ts_node){.op = TS_OP_GROUPED_BIAS, .name = "node", .n_in = 3, .in = in, .beta = TS_NONE});
}

/* Variant 1: matrices turned. */
static void build_grouped(gradient_case *c, int variant) {
  const ts_tid in[] = {numbers(c, "x", TS_SHAPE(9, 6)),
                       numbers(c, "w", variant == 1 ? TS_SHAPE(4, 5, 6) : TS_SHAPE(4, 6, 5)), first_of_experts(c, 7)};
  ts_graph_add(ts_graph_site(c->graph), &(ts_node){.op = TS_OP_GROUPED,
                                                   .name = "node",
                                                   .n_in = 3,
                                                   .in = in,
                                                   .attr = {.matmul = {.transpose_b = variant == 1, .dtype = TS_F32}},
                                                   .beta = TS_NONE});
}

static void build_blend(gradient_case *c, int variant) {
  (void) variant;
  const ts_tid in[] = {numbers(c, "a", activations()), numbers(c, "b", activations()),
                       numbers(c, "logits", TS_SHAPE(2, 3, 2))};
  ts_graph_add(ts_graph_site(c->graph),
               &(ts_node){.op = TS_OP_BLEND, .name = "node", .n_in = 3, .in = in, .beta = TS_NONE});
}

static ts_tid labels_of_rows(gradient_case *c) {
  return add_leaf(c, "labels", TS_F32, activations(), run_random(TS_F64, activations(), 17, 1.0));
}

static void build_soft_loss(gradient_case *c, int variant) {
  ts_tid z = numbers(c, "z", activations());
  ts_build_soft_loss(ts_graph_site(c->graph), "node", z, labels_of_rows(c), variant == 0 ? 1.0f : 2.5f);
}

/* The loss is a root, as head_loss is. */
static void build_loss(gradient_case *c, int variant) {
  ts_tid x = numbers(c, "x", activations());
  numbers(c, "gradient_seed", TS_SHAPE(1));
  ts_build_loss(ts_graph_site(c->graph), "node", x,
                variant == 0 ? TS_NONE : integers(c, "mask", TS_I32, activations(), 3));
  c->n_dy = 0;
}

static void build_bias(gradient_case *c, int variant) {
  (void) variant;
  ts_tid in[] = {numbers(c, "x", activations()), numbers(c, "b", TS_SHAPE(8))};
  ts_build(ts_graph_site(c->graph), TS_OP_BIAS, "node", 2, in);
}

static void build_cast(gradient_case *c, int variant) {
  (void) variant;
  ts_build_cast(ts_graph_site(c->graph), "node", numbers(c, "x", activations()), TS_BF16);
}

static void build_scale(gradient_case *c, int variant) {
  (void) variant;
  ts_build_scale(ts_graph_site(c->graph), "node", numbers(c, "x", activations()), 0.7f, 0);
}

static void build_activation(gradient_case *c, int variant) {
  ts_build_activation(ts_graph_site(c->graph), "node", numbers(c, "x", activations()), (ts_activation) variant);
}

static void build_glu(gradient_case *c, int variant) {
  ts_tid gate = numbers(c, "gate", activations());
  ts_build_glu(ts_graph_site(c->graph), "node", gate, numbers(c, "up", activations()), (ts_activation) variant);
}

/* Samples, rows of them, and other tokens of them; the last as jitter. */
static void build_dropout(gradient_case *c, int variant) {
  ts_node args = {.op = TS_OP_DROPOUT, .name = "node", .n_in = 3, .attr = {.dropout = {.p = 0.25f, .name = 5}}};
  args.in = (ts_tid[]){numbers(c, "x", variant == 0 ? activations() : TS_SHAPE(5, 8)),
                       integers(c, "seed", TS_I64, TS_SHAPE(1), 9), integers(c, "sample", TS_I64, TS_SHAPE(2), 9)};
  args.attr.dropout.length = variant == 0 ? 0 : 4;
  args.attr.dropout.first = variant == 0 ? 0 : 2;
  args.attr.dropout.kind = variant == 3 ? TS_NOISE_JITTER : TS_NOISE_DROP;
  args.attr.dropout.tokens = variant >= 2 ? (ts_tokens){2, {{1, 1}, {7, 3}}} : (ts_tokens){0};
  ts_graph_add(ts_graph_site(c->graph), &args);
}

/* One group, or two. */
static void build_split(gradient_case *c, int variant) {
  int64_t groups = 1 + variant;
  ts_tid x = numbers(c, "x", TS_SHAPE(2, 3, groups * 8));
  ts_build_split(ts_graph_site(c->graph), "node", x, groups, 3, (int64_t[]){5, 1, 2});
  c->n_dy = 3;
}

static void build_concat(gradient_case *c, int variant) {
  int64_t groups = 1 + variant;
  ts_tid in[] = {numbers(c, "a", TS_SHAPE(2, groups * 3)), numbers(c, "b", TS_SHAPE(2, groups)),
                 numbers(c, "c", TS_SHAPE(2, groups * 4))};
  ts_build_concat(ts_graph_site(c->graph), "node", groups, 3, in);
}

/* Along the first dimension and the last, and back. */
static const ts_interval intervals[] = {{4, 2}, {0, 3}};

static void build_take(gradient_case *c, int variant) {
  ts_tid x = numbers(c, "x", variant == 0 ? TS_SHAPE(7, 4) : TS_SHAPE(2, 3, 7));
  ts_build_take(ts_graph_site(c->graph), "node", x, variant == 0 ? 0 : 2, 2, intervals, NULL);
}

static void build_place(gradient_case *c, int variant) {
  ts_tid x = numbers(c, "x", variant == 0 ? TS_SHAPE(5, 4) : TS_SHAPE(2, 3, 5));
  ts_build_place(ts_graph_site(c->graph), "node", x, variant == 0 ? 0 : 2, 7, 2, intervals, NULL);
}

/* Bits: transposed b, a bias, more leading dimensions.  (Products with a transposed a are made by gradients only.) */
static void build_matmul(gradient_case *c, int variant) {
  bool turned = variant & 1, biased = variant & 2;
  ts_tid a = numbers(c, "a", variant & 4 ? TS_SHAPE(2, 3, 4) : TS_SHAPE(6, 4));
  ts_tid b = numbers(c, "b", turned ? TS_SHAPE(7, 4) : TS_SHAPE(4, 7));
  ts_build_matmul(ts_graph_site(c->graph), "node", a, b, biased ? numbers(c, "bias", TS_SHAPE(7)) : TS_NONE, false,
                  turned, TS_F32);
}

/* Without a gate, with one, with one in the same weight; bits above: weights are [out][in], as they are in the last;
 * biases of up and gate; and of down. */
static void build_mlp(gradient_case *c, int variant) {
  enum { C = 8, F = 5, D = 4 };
  int gate = variant % 3, biases = variant / 6;
  bool turned = variant / 3 % 2 != 0 || gate == 2;
  int64_t made = gate == 2 ? 2 * F : F;
  ts_shape up = turned ? TS_SHAPE(made, C) : TS_SHAPE(C, made);
  ts_tid in[TS_MLP_INPUTS] = {numbers(c, "x", activations()),
                              gate == 1 ? numbers(c, "gate", up) : TS_NONE,
                              biases > 0 && gate == 1 ? numbers(c, "gate.bias", TS_SHAPE(F)) : TS_NONE,
                              numbers(c, "up", up),
                              biases > 0 ? numbers(c, "up.bias", TS_SHAPE(made)) : TS_NONE,
                              numbers(c, "down", turned ? TS_SHAPE(D, F) : TS_SHAPE(F, D)),
                              biases > 1 ? numbers(c, "down.bias", TS_SHAPE(D)) : TS_NONE};
  ts_attr attr = {.mlp = {variant % 2 ? TS_ACTIVATION_GELU : TS_ACTIVATION_SILU, turned, gate == 2, 4, TS_F32}};
  ts_graph_add(
      ts_graph_site(c->graph),
      &(ts_node){.op = TS_OP_MLP, .name = "node", .n_in = TS_MLP_INPUTS, .in = in, .attr = attr, .beta = TS_NONE});
}

/* All rows, and some of a table. */
static void build_embedding(gradient_case *c, int variant) {
  ts_node args = {.op = TS_OP_EMBEDDING, .name = "node", .n_in = 2, .attr = {.embedding = {.first = variant}}};
  args.in =
      (ts_tid[]){numbers(c, "table", TS_SHAPE(variant == 0 ? 5 : 2, 8)), integers(c, "ids", TS_I32, TS_SHAPE(2, 3), 4)};
  ts_graph_add(ts_graph_site(c->graph), &args);
}

static void build_layernorm(gradient_case *c, int variant) {
  (void) variant;
  ts_tid x = numbers(c, "x", activations()), w = numbers(c, "w", TS_SHAPE(8));
  ts_build_layernorm(ts_graph_site(c->graph), "node", x, w, numbers(c, "b", TS_SHAPE(8)), 1e-5f);
}

/* Without an offset and with one; then a norm per head; then with squares, which one rank has of all columns. */
static void build_rmsnorm(gradient_case *c, int variant) {
  ts_tid x = numbers(c, "x", variant < 2 ? activations() : TS_SHAPE(2, 3, 2, 4));
  ts_tid w = numbers(c, "w", TS_SHAPE(variant < 2 ? 8 : 4));
  ts_site at = ts_graph_site(c->graph);
  if (variant < 4) {
    ts_build_rmsnorm(at, "node", x, w, 1e-5f, (float) (variant % 2));
    return;
  }
  ts_tid in[] = {x, w, ts_build(at, TS_OP_ROW_SQUARES, "squares", 1, &x)};
  ts_attr attr = {.norm = {1e-5f, TS_F32, (float) (variant % 2), 4}};
  ts_graph_add(at, &(ts_node){.op = TS_OP_RMSNORM, .name = "node", .n_in = 3, .in = in, .attr = attr, .beta = TS_NONE});
}

/* Bits: inverse; two of four elements turn, and are stretched. */
static void build_rope(gradient_case *c, int variant) {
  ts_node args = {.op = TS_OP_ROPE, .name = "node", .n_in = 2};
  args.in = (ts_tid[]){numbers(c, "x", activations()), integers(c, "positions", TS_I32, TS_SHAPE(2, 3), 50)};
  args.attr.rope.head_dim = 4;
  args.attr.rope.rotated = variant & 2 ? 2 : 4;
  args.attr.rope.inverse = variant & 1;
  args.attr.rope.frequency = (const double[]){1, 0.1};
  args.attr.rope.factor = variant & 2 ? 1.25 : 1;
  ts_graph_add(ts_graph_site(c->graph), &args);
}

/* Bits: causal, grouped heads, documents, dropout, softcap, a window where causal, and 5 tokens of 9 on others. */
static void build_attention(gradient_case *c, int variant) {
  enum { B = 2, T = 5, D = 3, LENGTH = 9 };
  int kv = variant & 2 ? 2 : 4;
  ts_tid in[6] = {numbers(c, "q", TS_SHAPE(B, T, 4 * D)),
                  numbers(c, "k", TS_SHAPE(B, T, kv * D)),
                  numbers(c, "v", TS_SHAPE(B, T, kv * D)),
                  TS_NONE,
                  TS_NONE,
                  TS_NONE};
  ts_node args = {.op = TS_OP_ATTENTION, .name = "node", .n_in = 6, .in = in};
  args.attr.attention.heads = 4;
  args.attr.attention.kv_heads = kv;
  args.attr.attention.head_dim = D;
  args.attr.attention.scale = 0.6f;
  args.attr.attention.causal = variant & 1;
  if (variant & 4) {
    in[3] = integers(c, "documents", TS_I32, TS_SHAPE(B, variant & 64 ? LENGTH : T), 2);
  }
  if (variant & 8) {
    in[4] = integers(c, "seed", TS_I64, TS_SHAPE(1), 7);
    in[5] = integers(c, "sample", TS_I64, TS_SHAPE(B), 7);
    args.attr.attention.dropout = 0.25f;
    args.attr.attention.name = 3;
  }
  args.attr.attention.softcap = variant & 16 ? 0.8f : 0;
  args.attr.attention.window = variant & 32 && variant & 1 ? 3 : 0;
  if (variant & 64) { /* heads 1 to 4 of threes, or of one each */
    args.attr.attention.first_head = 1;
    args.attr.attention.group = variant & 2 ? 3 : 1;
    args.attr.attention.length = LENGTH;
    args.attr.attention.queries = (ts_tokens){2, {{1, 2}, {5, 3}}};
    args.attr.attention.keys = (ts_tokens){2, {{0, 3}, {6, 2}}};
  }
  ts_graph_add(ts_graph_site(c->graph), &args);
}

/* The loss is the root: its gradient is the scalar "gradient_seed", which is there for the rule to find. */
static void build_head_loss(gradient_case *c, int variant) {
  static const float shape[][2] = {{1, 0}, {0.4f, 0}, {1, 2}, {1.5f, 3}}; /* scale, softcap */
  ts_site at = ts_graph_site(c->graph);
  ts_attr attr = {.head = {TS_F32, shape[variant % 4][0], shape[variant % 4][1], 0}};
  ts_tid x = numbers(c, "x", activations()), w = numbers(c, "w", TS_SHAPE(9, 8));
  ts_tid labels = integers(c, "labels", TS_I32, TS_SHAPE(2, 3), 8);
  run_set(&c->value[labels], 1, -100);
  numbers(c, "gradient_seed", TS_SHAPE(1));
  ts_tid in[] = {x, w, labels, TS_NONE};
  if (variant >= 4) { /* what one rank measured, of all of the vocabulary */
    ts_node measure = {.op = TS_OP_HEAD_STATS, .name = "stats", .n_in = 3, .in = in, .attr = attr};
    in[3] = ts_build_view(at, "shares", ts_graph_add(at, &measure), 0, TS_SHAPE(1, 2, 3, 2));
  }
  ts_graph_add(
      at,
      &(ts_node){
          .op = TS_OP_HEAD_LOSS, .name = "node", .n_in = variant < 4 ? 3 : 4, .in = in, .attr = attr, .beta = TS_NONE});
  c->n_dy = 0;
}

/* One rank's own rows of two experts, which stay where they are, there or home. */
static void build_exchange_rows(gradient_case *c, int variant) {
  static const int64_t cuts[] = {0, 2};
  static const ts_piece piece = {.cuts = cuts, .end = 2};
  ts_tid in[] = {numbers(c, "x", TS_SHAPE(5, 3)), integers(c, "firsts", TS_I32, TS_SHAPE(1, 3), 1),
                 integers(c, "here", TS_I32, TS_SHAPE(3), 1), integers(c, "home", TS_I32, TS_SHAPE(3), 1)};
  ts_node args = {.op = TS_OP_EXCHANGE_ROWS, .name = "node", .n_in = 4, .in = in, .beta = TS_NONE};
  args.attr.comm.axes = 1;
  args.attr.comm.group = 1;
  args.attr.comm.piece = &piece;
  args.attr.comm.n_pieces = 1;
  args.attr.comm.rows = 5;
  args.attr.comm.home = variant == 1;
  ts_graph_add(ts_graph_site(c->graph), &args);
}

static const struct gradient_row {
  ts_op op;
  int variants;
  void (*build)(gradient_case *c, int variant);
} rows[] = {
    {TS_OP_VIEW, 1, build_view},
    {TS_OP_ADD, 2, build_add},
    {TS_OP_MULTIPLY, 2, build_multiply},
    {TS_OP_NORMALIZE, 2, build_normalize},
    {TS_OP_PICK, 4, build_pick},
    {TS_OP_ROUTE, 16, build_route},
    {TS_OP_ROUTE_LIMIT, 4, build_route_limit},
    {TS_OP_ROUTE_LOADS, 4, build_route_loads},
    {TS_OP_BALANCE_LOSS, 2, build_balance_loss},
    {TS_OP_TAKE_ROWS, 2, build_take_rows},
    {TS_OP_COMBINE, 2, build_combine},
    {TS_OP_GROUPED_BIAS, 1, build_grouped_bias},
    {TS_OP_BLEND, 1, build_blend},
    {TS_OP_GROUPED, 2, build_grouped},
    {TS_OP_SOFT_LOSS, 2, build_soft_loss},
    {TS_OP_LOSS, 2, build_loss},
    {TS_OP_BIAS, 1, build_bias},
    {TS_OP_CAST, 1, build_cast},
    {TS_OP_SCALE, 1, build_scale},
    {TS_OP_ACTIVATION, TS_N_ACTIVATIONS, build_activation},
    {TS_OP_GLU, TS_N_ACTIVATIONS, build_glu},
    {TS_OP_DROPOUT, 4, build_dropout},
    {TS_OP_SPLIT, 2, build_split},
    {TS_OP_CONCAT, 2, build_concat},
    {TS_OP_TAKE, 2, build_take},
    {TS_OP_PLACE, 2, build_place},
    {TS_OP_MATMUL, 8, build_matmul},
    {TS_OP_MLP, 18, build_mlp},
    {TS_OP_EMBEDDING, 2, build_embedding},
    {TS_OP_LAYERNORM, 1, build_layernorm},
    {TS_OP_RMSNORM, 6, build_rmsnorm},
    {TS_OP_ROPE, 4, build_rope},
    {TS_OP_ATTENTION, 128, build_attention},
    {TS_OP_HEAD_LOSS, 8, build_head_loss},
    {TS_OP_PACK, 1, build_pack},
    {TS_OP_ALL_GATHER, 1, build_all_gather},
    {TS_OP_REDUCE_SCATTER, 1, build_reduce_scatter},
    {TS_OP_ALL_REDUCE, 1, build_all_reduce},
    {TS_OP_SHARE, 1, build_share},
    {TS_OP_ALL_TO_ALL, 1, build_all_to_all},
    {TS_OP_EXCHANGE_ROWS, 2, build_exchange_rows},
};

/* Block k that leaves is block k that arrives. */
static void add_block(const run_tensor *x, const ts_block *from, run_tensor *y, const ts_block *to) {
  int n = x->shape.n;
  int64_t rows = to->rows.length, columns = to->columns.length, batches = 1;
  for (int i = 0; i < n - 2; ++i) {
    batches *= x->shape.d[i];
  }
  for (int64_t i = 0; i < batches * rows * columns; ++i) {
    int64_t batch = i / columns / rows, row = i / columns % rows, column = i % columns;
    int64_t at = (batch * y->shape.d[n - 2] + to->rows.begin + row) * y->shape.d[n - 1] + to->columns.begin + column;
    int64_t of =
        (batch * x->shape.d[n - 2] + from->rows.begin + row) * x->shape.d[n - 1] + from->columns.begin + column;
    run_set(y, at, run_get(y, at) + run_get(x, of));
  }
}

static void exchange_values(gradient_case *c, const ts_node *node) {
  const ts_block *sent = node->attr.comm.block + node->n_out, *received = sent + node->attr.comm.n_sent;
  for (int i = 0; i < node->n_out; ++i) {
    run_tensor *y = &c->value[node->out[i]];
    memset(y->data, 0, (size_t) run_count(y) * sizeof(double));
  }
  for (int k = 0; k < node->attr.comm.n_received; ++k) {
    int i = received[k].tensor;
    add_block(&c->value[node->in[i]], &sent[k], &c->value[node->out[i]], &received[k]);
  }
}

/* What a group of one rank does: its values, where they go. */
static void copy_values(const gradient_case *c, const ts_node *node) {
  for (int i = 0; i < (node->op == TS_OP_EXCHANGE_ROWS ? 1 : node->n_in); ++i) {
    int64_t offset = node->op == TS_OP_PACK ? node->attr.pack.offset[i] : 0;
    for (int64_t k = 0; k < run_count(&c->value[node->in[i]]); ++k) {
      run_tensor *y = (run_tensor *) &c->value[node->out[0]];
      run_set(y, offset + k, run_get(&c->value[node->in[i]], k));
    }
  }
}

static bool only_copies(const ts_node *node) {
  return ts_node_is_collective(node) || node->op == TS_OP_PACK || node->op == TS_OP_SHARE;
}

/* Compute nodes [first, last) in fp64. */
static void evaluate(gradient_case *c, int first, int last) {
  for (int n = first; n < last; ++n) {
    const ts_node *node = &c->graph->node[n];
    run_case call = {.op = node->op, .attr = node->attr, .n_in = node->n_in, .n_out = node->n_out};
    for (int i = 0; i < node->n_in; ++i) {
      call.in[i] = node->in[i] == TS_NONE ? (run_tensor){0} : c->value[node->in[i]];
    }
    for (int i = 0; i < node->n_out; ++i) {
      TS_CHECK(node->out[i] < MAX_TENSORS && node->prior == NULL, "a node this test cannot compute");
      const ts_tensor *out = &c->graph->tensor[node->out[i]];
      if (c->value[node->out[i]].data == NULL) { /* numbers stay what they are, all else is fp64 */
        c->value[node->out[i]] = run_new(out->dtype == TS_I32 ? TS_I32 : TS_F64, out->shape);
      }
      call.out[i] = c->value[node->out[i]];
    }
    if (node->op == TS_OP_ALL_TO_ALL) {
      exchange_values(c, node);
    } else if (only_copies(node)) {
      copy_values(c, node);
    } else {
      ops_find(node->op)->reference(&call);
    }
  }
}

/* What is differentiated: the outputs times what flows into them; the loss times the seed. */
static double objective(gradient_case *c, const ts_tid *dy) {
  const ts_node *node = &c->graph->node[c->last];
  double sum = 0;
  evaluate(c, 0, c->last + 1);
  if (c->n_dy == 0) {
    return run_get(&c->value[node->out[0]], 0) * run_get(&c->value[ts_graph_find(c->graph, "gradient_seed")], 0);
  }
  for (int i = 0; i < c->n_dy; ++i) {
    for (int64_t j = 0; j < run_count(&c->value[dy[i]]); ++j) {
      sum += run_get(&c->value[dy[i]], j) * run_get(&c->value[node->out[i]], j);
    }
  }
  return sum;
}

static void move(run_tensor *x, const run_tensor *direction, double step) {
  for (int64_t i = 0; i < run_count(x); ++i) {
    run_set(x, i, run_get(x, i) + step * run_get(direction, i));
  }
}

/* Relative error of the derivative along a random direction of a leaf.  The difference errs by the square of the step,
 * 1e-10, and by 1e-16 / 1e-5 of cancellation. */
static double direction_error(gradient_case *c, const ts_tid *dy, ts_tid leaf, ts_tid gradient) {
  const double step = 1e-5;
  run_tensor direction = run_random(TS_F64, c->value[leaf].shape, 4711, 1.0);
  double slope = 0, size = 0;
  for (int64_t i = 0; i < run_count(&direction); ++i) {
    double term = run_get(&direction, i) * run_get(&c->value[gradient], i);
    slope += term;
    size += fabs(term);
  }
  move(&c->value[leaf], &direction, step);
  double above = objective(c, dy);
  move(&c->value[leaf], &direction, -2 * step);
  double difference = (above - objective(c, dy)) / (2 * step);
  move(&c->value[leaf], &direction, step);
  ts_free(direction.data);
  return size > 0 ? fabs(slope - difference) / size : fabs(difference);
}

/* The seed, labels and what a choice is made by are given. */
static bool is_variable(const gradient_case *c, ts_tid t) {
  static const char *const given[] = {"gradient_seed", "labels", "bias_of_choice"};
  bool variable = c->graph->tensor[t].dtype == TS_F32;
  for (size_t i = 0; i < sizeof given / sizeof *given; ++i) {
    variable = variable && strcmp(c->graph->tensor[t].name, given[i]) != 0;
  }
  return variable;
}

/* Build a variant and let the rule differentiate it, for one leaf or (TS_NONE) for all.
 * Returns the worst error, infinite where a gradient is missing or one nobody wants is there. */
static double check_case(const struct gradient_row *row, int variant, ts_tid only) {
  gradient_case c = {.graph = ts_graph_create(), .n_dy = 1};
  row->build(&c, variant);
  c.last = c.graph->n_nodes - 1;
  ts_node node = c.graph->node[c.last];
  ts_tid dy[3], of[MAX_TENSORS];
  bool wanted[MAX_TENSORS] = {false};
  double worst = 0;
  evaluate(&c, 0, c.last + 1);
  ts_gradients gradients = {.graph = c.graph, .of = of, .wanted = wanted, .n = c.graph->n_tensors};
  gradients.accumulate = TS_F32;
  for (ts_tid t = 0; t < gradients.n; ++t) {
    of[t] = TS_NONE;
    bool leaf = c.graph->tensor[t].producer == TS_NONE;
    wanted[t] = leaf ? is_variable(&c, t) && (only == TS_NONE || only == t) : true;
  }
  for (int i = 0; i < c.n_dy; ++i) {
    char *name = ts_format("dy%d", i);
    dy[i] = of[node.out[i]] = add_leaf(&c, name, c.graph->tensor[node.out[i]].dtype, c.graph->tensor[node.out[i]].shape,
                                       run_random(TS_F64, c.graph->tensor[node.out[i]].shape, 99 + (uint64_t) i, 1.0));
    ts_free(name);
  }
  ts_op_get(node.op)->gradient(&gradients, &node);
  evaluate(&c, c.last + 1, c.graph->n_nodes);
  for (ts_tid t = 0; t < gradients.n; ++t) {
    bool leaf = c.graph->tensor[t].producer == TS_NONE;
    if (leaf && (of[t] != TS_NONE) != wanted[t]) {
      worst = INFINITY;
    } else if (leaf && wanted[t]) {
      worst = fmax(worst, direction_error(&c, dy, t, of[t]));
    }
  }
  destroy(&c);
  return worst;
}

/* Every variant: all gradients at once, then each alone. */
static void check_row(const struct gradient_row *row) {
  double worst = 0;
  for (int variant = 0; variant < row->variants; ++variant) {
    gradient_case c = {.graph = ts_graph_create(), .n_dy = 1};
    row->build(&c, variant);
    worst = fmax(worst, check_case(row, variant, TS_NONE));
    for (ts_tid t = 0; t < c.graph->node[0].out[0]; ++t) {
      worst = is_variable(&c, t) ? fmax(worst, check_case(row, variant, t)) : worst;
    }
    destroy(&c);
  }
  tap_ok(worst < 1e-8, "%s: gradient against differences, %d variants, error %.1e", ts_op_get(row->op)->name,
         row->variants, worst);
}

/* Of two tensors that cross, one wanted: the message that goes the other way has its gradient alone. */
static void check_messages(void) {
  gradient_case c = {.graph = ts_graph_create()};
  static const ts_crossing crossing[] = {{1, 0, TS_F32, 3, {2, 3, 8}}, {0, 0, TS_F32, 2, {3, 2}}};
  const ts_attr message = {.message = {.boundary = 4, .peer = 2, .n = 2, .crossing = crossing}};
  const ts_tid x[] = {numbers(&c, "a", activations()), numbers(&c, "b", TS_SHAPE(3, 2))};
  ts_tid dy = numbers(&c, "dy", activations()), y = ts_build_receive(ts_graph_site(c.graph), "from", &message, NULL);
  ts_build_send(ts_graph_site(c.graph), "to", x, &message);
  ts_tid of[MAX_TENSORS];
  bool wanted[MAX_TENSORS] = {false};
  ts_gradients gradients = {
      .graph = c.graph, .of = of, .wanted = wanted, .n = c.graph->n_tensors, .accumulate = TS_F32};
  memset(of, -1, sizeof of);
  wanted[x[0]] = wanted[y] = true;
  of[y] = dy;
  ts_node receive = c.graph->node[0], send = c.graph->node[1];
  ts_op_get(TS_OP_SEND)->gradient(&gradients, &send);
  ts_op_get(TS_OP_RECEIVE)->gradient(&gradients, &receive);
  const ts_node *back = &c.graph->node[2], *on = &c.graph->node[3];
  tap_ok(back->op == TS_OP_RECEIVE && back->n_out == 1 && of[x[0]] == back->out[0] && of[x[1]] == TS_NONE &&
             back->attr.message.back && back->attr.message.boundary == 4 && back->attr.message.peer == 2,
         "send: the gradient of what is wanted comes back");
  tap_ok(on->op == TS_OP_SEND && on->n_in == 1 && on->in[0] == dy && on->attr.message.back &&
             on->attr.message.boundary == 4 && on->segment == TS_SEGMENT_BACKWARD_INPUT,
         "receive: the gradient of what is wanted goes back");
  destroy(&c);
}

int main(void) {
  check_messages();
  for (int op = 0; op < TS_N_OPS; ++op) {
    if ((ts_op_get((ts_op) op)->flags & TS_OP_MESSAGE) != 0) {
      continue;
    }
    const struct gradient_row *row = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
      row = rows[i].op == (ts_op) op ? &rows[i] : row;
    }
    bool has_rule = ts_op_get((ts_op) op)->gradient != ts_gradient_none;
    if (row != NULL && has_rule) {
      check_row(row);
    } else if (row != NULL || has_rule) {
      tap_ok(false, "%s: a rule without a test, or a test without a rule", ts_op_get((ts_op) op)->name);
    }
  }
  tap_ok(ts_memory_live() == 0, "nothing leaked");
  return tap_done();
}
