/* The graph: building, marks, rewriting, dumps, and the verifier, each rule with a graph that only it rejects. */
#include "base/memory.h"
#include "graph/attribute.h"
#include "graph/op.h"
#include "graph/rewrite.h"
#include "graph/verify.h"
#include "ops/build.h"
#include "regression/tap.h"

#include <jansson.h>
#include <string.h>

enum { B = 2, T = 3, C = 8 };

/* x -> norm -> product -> gelu -> + x, in two units: leaves x, norm.weight, w; nodes 0 .. 3. */
static ts_graph *make(void) {
  ts_graph *g = ts_graph_create();
  ts_site at = {g, TS_SEGMENT_FORWARD, ts_graph_unit(g, "first")};
  ts_tid x = ts_graph_leaf(g, "x", TS_ROLE_INPUT, TS_F32, TS_SHAPE(B, T, C), -1);
  ts_tid norm = ts_graph_leaf(g, "norm.weight", TS_ROLE_PARAM, TS_F32, TS_SHAPE(C), at.unit);
  ts_tid y = ts_build_rmsnorm(at, "norm", x, norm, 1e-5f, 0);
  at.unit = ts_graph_unit(g, "second");
  ts_tid w = ts_graph_leaf(g, "w", TS_ROLE_PARAM, TS_F32, TS_SHAPE(C, C), at.unit);
  y = ts_build_matmul(at, "product", y, w, TS_NONE, false, true, TS_F32);
  y = ts_build_activation(at, "gelu", y, TS_ACTIVATION_GELU);
  y = ts_build_add(at, "sum", x, y);
  ts_graph_mark(g, "result", y);
  return g;
}

static char *dump(const ts_graph *g, ts_graph_format format) {
  ts_text text = {0};
  ts_graph_dump(g, format, &text);
  return text.text;
}

/* ---- building ---- */

static void test_building(void) {
  ts_graph *g = make();
  ts_tid x = ts_graph_find(g, "x"), w = ts_graph_find(g, "w"), y = ts_graph_marked(g, "result");
  tap_ok(x != TS_NONE && w != TS_NONE && ts_graph_find(g, "norm") == TS_NONE, "leaves are found, outputs are not");
  tap_ok(g->tensor[w].unit == 1 && g->n_units == 2 && strcmp(g->unit[1], "second") == 0, "a leaf belongs to its unit");
  tap_ok(ts_graph_unit(g, "first") == 0 && g->n_units == 2, "one returns to a unit by its name");
  tap_ok(ts_graph_producer(g, x) == NULL && strcmp(ts_graph_producer(g, y)->name, "sum") == 0, "producers");
  tap_ok(strcmp(g->tensor[g->node[0].out[1]].name, "norm:1") == 0, "the second output has a name of its own");
  tap_ok(ts_tensor_count(g, x) == B * T * C && ts_tensor_bytes(g, x) == 4 * B * T * C &&
             ts_shape_rows(&g->tensor[x].shape) == B * T,
         "elements, bytes, rows");
  int *uses = ts_graph_use_counts(g);
  tap_ok(uses[x] == 2 && uses[w] == 1 && uses[y] == 0, "uses are counted");
  ts_free(uses);
  ts_graph_mark(g, "result", w);
  tap_ok(ts_graph_marked(g, "result") == w && g->n_marks == 1, "a mark moves");
  ts_graph_mark_gradient(g, "w", y);
  tap_ok(ts_graph_gradient_of(g, w, 0) == y && ts_graph_gradient_of(g, x, 0) == TS_NONE,
         "gradients are marked by parameter");
  ts_graph_destroy(&g);
  tap_ok(g == NULL, "the pointer of a destroyed graph is NULL");
}

/* Arrays of attributes belong to the node. */
static void test_ownership(void) {
  ts_graph *g = ts_graph_create();
  int64_t size[] = {3, 5};
  ts_tid x = ts_graph_leaf(g, "x", TS_ROLE_INPUT, TS_F32, TS_SHAPE(B, C), -1);
  ts_build_split(ts_graph_site(g), "split", x, 1, 2, size);
  size[0] = 5;
  tap_ok(g->node[0].attr.split.size[0] == 3, "attributes are copied");
  ts_graph_destroy(&g);
}

/* Equal is what has equal members and arrays, not equal addresses. */
static void test_attributes(void) {
  int64_t cuts[] = {0, 5, 8};
  ts_matrix matrix[] = {{0, 2, 3, 1, 0}}, other_matrix[] = {{0, 2, 3, 2, 0}};
  ts_range range[] = {{0, 5, 0, 1, 0}}, other_range[] = {{0, 5, 0.5f, 1, 0}};
  double turns[] = {1, 0.5}, other_turns[] = {1, 0.25};
  ts_piece piece[] = {{0, cuts, 0, 5}}, other_piece[] = {{0, cuts, 0, 4}};
  const struct {
    ts_op op;
    ts_attr a, b;
  } rows[] = {
      {TS_OP_VIEW, {.view = {0, TS_SHAPE(2, 4)}}, {.view = {0, TS_SHAPE(4, 2)}}},
      {TS_OP_MATMUL, {.matmul = {false, true, TS_F32}}, {.matmul = {false, true, TS_BF16}}},
      {TS_OP_ROPE, {.rope = {4, 4, false, turns, 1}}, {.rope = {4, 4, false, other_turns, 1}}},
      {TS_OP_ROPE, {.rope = {4, 2, false, turns, 1}}, {.rope = {4, 2, false, turns, 1.25}}},
      {TS_OP_ROPE, {.rope = {4, 2, false, turns, 1}}, {.rope = {4, 4, false, turns, 1}}},
      {TS_OP_SPLIT, {.split = {1, cuts}}, {.split = {2, cuts}}},
      {TS_OP_CONCAT, {.concat = {1}}, {.concat = {2}}},
      {TS_OP_DROPOUT, {.dropout = {0.5f, 1}}, {.dropout = {0.5f, 2}}},
      {TS_OP_DROPOUT, {.dropout = {0.5f, 1}}, {.dropout = {0.5f, 1, .kind = TS_NOISE_JITTER}}},
      {TS_OP_PICK, {.pick = {{1, {{0, 3}}}, 3}}, {.pick = {{1, {{1, 3}}}, 3}}},
      {TS_OP_ROUTE, {.route = {.k = 2}}, {.route = {.k = 3}}},
      {TS_OP_ROUTE, {.route = {.k = 2}}, {.route = {.k = 2, .sure = 1}}},
      {TS_OP_ROUTE_LIMIT, {.limit = {8, 4, 1}}, {.limit = {8, 4, 2}}},
      {TS_OP_ROUTE_LIMIT, {.limit = {8, 4, 1}}, {.limit = {8, 4, 1, .by_choice = true}}},
      {TS_OP_ROUTE_LOADS, {.loads = {1, 8}}, {.loads = {1, 8, .counted = 1}}},
      {TS_OP_DISPATCH, {.experts = {8}}, {.experts = {9}}},
      {TS_OP_DISPATCH, {.experts = {8}}, {.experts = {8, 4}}},
      {TS_OP_ROUTE, {.route = {.k = 2}}, {.route = {.k = 2, .normalize = true}}},
      {TS_OP_ROUTE_LOADS, {.loads = {1, 8}}, {.loads = {1, 8, 2}}},
      {TS_OP_BALANCE_LOSS, {.balance = {2, 0.1f, 0}}, {.balance = {2, 0.1f, 0.2f}}},
      {TS_OP_SOFT_LOSS, {.soft = {1}}, {.soft = {2}}},
      {TS_OP_LOSS_DX, {.loss = {TS_SHAPE(2, 3), TS_F32}}, {.loss = {TS_SHAPE(3, 2), TS_F32}}},
      {TS_OP_SUM_SQUARES, {.segments = {range, 1}}, {.segments = {other_range, 1}}},
      {TS_OP_SUM_SQUARES, {.segments = {range, 1}}, {.segments = {range, 1, true}}},
      {TS_OP_TRUST_RATIOS, {.ratios = {1, 2, true}}, {.ratios = {1, 3, true}}},
      {TS_OP_OVER_NORM, {.over_norm = {1, TS_F32}}, {.over_norm = {2, TS_F32}}},
      {TS_OP_ADD_DIAGONAL, {.diagonal = {1}}, {.diagonal = {2}}},
      {TS_OP_ORTHOGONALIZE, {.orthogonalize = {matrix, 1, TS_F32}}, {.orthogonalize = {other_matrix, 1, TS_F32}}},
      {TS_OP_UPDATE_ELEMENTS,
       {.update = {.range = range, .n = 1}},
       {.update = {.range = range, .n = 1, .rounding.key = 1}}},
      {TS_OP_ALL_GATHER, {.comm = {.piece = piece, .n_pieces = 1}}, {.comm = {.piece = other_piece, .n_pieces = 1}}}};
  bool equal = true, different = true;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_node a = {.op = rows[i].op, .n_out = 1, .attr = rows[i].a}, copy = a;
    ts_node b = {.op = rows[i].op, .n_out = 1, .attr = rows[i].b};
    ts_attributes_own(&copy);
    equal = ts_attributes_equal(&a, &copy) && equal;
    different = !ts_attributes_equal(&a, &b) && different;
    ts_attributes_free(&copy);
  }
  tap_ok(equal, "a copy has equal attributes");
  tap_ok(different, "attributes that differ in one member do");
}

/* What a node says of its attributes: those that are not neutral. */
static void test_printing(void) {
  double turns[] = {1, 0.5};
  const struct {
    ts_op op;
    ts_attr attr;
    const char *text;
  } rows[] = {{TS_OP_SPLIT, {.split = {1, NULL}}, ""},
              {TS_OP_SPLIT, {.split = {3, NULL}}, " {groups 3}"},
              {TS_OP_CONCAT, {.concat = {1}}, ""},
              {TS_OP_CONCAT, {.concat = {3}}, " {groups 3}"},
              {TS_OP_ROPE, {.rope = {4, 4, false, turns, 1}}, " {head_dim 4}"},
              {TS_OP_ROPE, {.rope = {4, 2, true, turns, 1.25}}, " {head_dim 4, rotated 2, factor 1.25, inverse}"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_text text = {0};
    ts_attributes_print(&(ts_node){.op = rows[i].op, .attr = rows[i].attr}, &text);
    const char *got = text.text == NULL ? "" : text.text;
    tap_ok(strcmp(got, rows[i].text) == 0, "%s is printed%s", ts_op_get(rows[i].op)->name, got);
    ts_text_free(&text);
  }
}

/* ---- rewriting ---- */

static bool same_dumps(const ts_graph *g, const ts_graph *h, ts_graph_format format) {
  char *a = dump(g, format), *b = dump(h, format);
  bool same = strcmp(a, b) == 0;
  ts_free(a);
  ts_free(b);
  return same;
}

static void test_rewriting(void) {
  ts_graph *g = make(), *expected = make();
  ts_graph_leaf(g, "nobody reads it", TS_ROLE_INPUT, TS_I32, TS_SHAPE(1), -1);
  ts_rewrite r = ts_rewrite_begin(g);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    ts_rewrite_copy(&r, n);
  }
  ts_rewrite_marks(&r);
  ts_rewrite_end(&r, &g);
  tap_ok(same_dumps(g, expected, TS_GRAPH_TEXT), "a copy is equal but for the leaf that nobody reads");
  tap_ok(same_dumps(g, expected, TS_GRAPH_JSON), "in segments, units and work, too");
  ts_graph_destroy(&g);
  ts_graph_destroy(&expected);
}

/* again = beta * sum + product's factors, in another segment and unit, read by a node that is to read another one. */
static ts_graph *make_prior(void) {
  ts_graph *g = make();
  ts_site at = {g, TS_SEGMENT_BACKWARD_WEIGHT, 0};
  ts_tid prior = g->node[3].out[0], beta = ts_graph_leaf(g, "beta", TS_ROLE_INPUT, TS_F32, TS_SHAPE(1), -1);
  ts_tid again = ts_graph_add(at, &(ts_node){.op = TS_OP_MATMUL,
                                             .name = "again",
                                             .n_in = 2,
                                             .in = g->node[1].in,
                                             .prior = &prior,
                                             .beta = beta,
                                             .attr = g->node[1].attr});
  ts_graph_mark(g, "result", ts_build_activation(at, "late", again, TS_ACTIVATION_GELU));
  return g;
}

static void test_rewriting_priors(void) {
  ts_graph *g = make_prior(), *expected = make_prior();
  ts_rewrite r = ts_rewrite_begin(g);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    ts_rewrite_copy(&r, n);
  }
  ts_rewrite_marks(&r);
  ts_rewrite_end(&r, &g);
  tap_ok(same_dumps(g, expected, TS_GRAPH_TEXT) && same_dumps(g, expected, TS_GRAPH_JSON), "priors and betas, too");
  ts_graph_destroy(&g);
  ts_graph_destroy(&expected);
}

/* What a pass changes, is changed; who reads a node that is gone reads what takes its place. */
static void test_rewriting_changes(void) {
  ts_graph *g = make_prior();
  ts_rewrite r = ts_rewrite_begin(g);
  r.instead[g->node[4].out[0]] = g->node[1].out[0]; /* again: product */
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    ts_node node = n == 4 ? (ts_node){0} : ts_rewrite_node(&r, n);
    if (n == 1) {
      node.name = "renamed";
      node.segment = TS_SEGMENT_REDUCE;
      node.unit = -1;
      r.in[0] = ts_rewrite_tensor(&r, ts_graph_find(g, "x"));
    }
    if (n != 4) {
      ts_rewrite_add(&r, n, &node);
    }
  }
  ts_rewrite_marks(&r);
  ts_rewrite_end(&r, &g);
  const ts_node *product = &g->node[1], *late = &g->node[4];
  tap_ok(strcmp(product->name, "renamed") == 0 && product->segment == TS_SEGMENT_REDUCE && product->unit == -1 &&
             product->in[0] == ts_graph_find(g, "x") && product->attr.matmul.transpose_b,
         "a copy may be changed before it is added");
  tap_ok(g->n_nodes == 5 && late->in[0] == product->out[0] && ts_graph_find(g, "beta") == TS_NONE,
         "a node that is gone is replaced where it is read, and its leaves are gone");
  tap_ok(ts_graph_marked(g, "result") == late->out[0], "marks follow");
  ts_graph_destroy(&g);
}

/* A window on a leaf is there for whoever reads it first. */
static void test_rewriting_windows(void) {
  ts_graph *g = ts_graph_create();
  ts_tid state = ts_graph_leaf(g, "state", TS_ROLE_STATE, TS_F32, TS_SHAPE(B * C), -1);
  ts_tid view = ts_build_view(ts_graph_site(g), "window", state, 0, TS_SHAPE(B, C));
  ts_build_activation(ts_graph_site(g), "late", view, TS_ACTIVATION_GELU);
  ts_rewrite r = ts_rewrite_begin(g);
  ts_rewrite_copy(&r, 1);
  ts_rewrite_copy(&r, 0);
  ts_rewrite_marks(&r);
  ts_rewrite_end(&r, &g);
  tap_ok(g->n_nodes == 2 && g->node[1].in[0] == g->node[0].out[0], "a window on a leaf follows its reader, once");
  ts_graph_destroy(&g);
}

/* ---- dumps ---- */

static const char text_dump[] = "# 4 nodes, 8 tensors, 2 units\n"
                                "input  x fp32[2x3x8]\n"
                                "param  norm.weight fp32[8]\n"
                                "param  w fp32[8x8]\n"
                                "forward  norm: norm, norm:1 = rmsnorm(x, norm.weight)  fp32[2x3x8]\n"
                                "forward  product: product = matmul(norm, w) {b^T}  fp32[2x3x8]\n"
                                "forward  gelu: gelu = activation(product) {gelu}  fp32[2x3x8]\n"
                                "forward  sum: sum = add(x, gelu)  fp32[2x3x8]\n"
                                "mark   result = sum\n";

/* What is not neutral is said. */
static void test_attribute_texts(void) {
  static const struct {
    ts_op op;
    ts_attr attr;
    const char *text;
  } rows[] = {
      {TS_OP_ACTIVATION, {.activation = {TS_ACTIVATION_RELU}}, " {relu}"},
      {TS_OP_GLU, {.activation = {TS_ACTIVATION_GELU_TANH}}, " {gelu_tanh}"},
      {TS_OP_PICK, {{0}}, ""},
      {TS_OP_PICK_DX, {.pick = {{2, {{1, 2}, {7, 1}}}, 3}}, " {of a sample, tokens 1 to 2, tokens 7 to 7}"},
      {TS_OP_ROUTE, {.route = {.k = 2, .scale = 1}}, " {2}"},
      {TS_OP_ROUTE, {.route = {.k = 2, .scale = 1, .sure = 1}}, " {2, 1 without noise}"},
      {TS_OP_ROUTE_LIMIT, {.limit = {8, 4, 1.5f}}, " {8, 1.5 shares, at least 4}"},
      {TS_OP_ROUTE_LIMIT,
       {.limit = {8, 4, 2, 16, true, true}},
       " {8, 2 shares, at least 4, by choice, normalized, of 16 tokens}"},
      {TS_OP_ROUTE_LOADS, {.loads = {1, 8, .counted = 2}}, " {1 of 8, of 2 choices}"},
      {TS_OP_DROPOUT, {.dropout = {0.5f, 1, .kind = TS_NOISE_JITTER}}, " {jitter 0.5}"},
      {TS_OP_DROPOUT, {.dropout = {0, 1, .kind = TS_NOISE_GUMBEL}}, " {gumbel}"},
      {TS_OP_DISPATCH, {.experts = {8}}, " {8}"},
      {TS_OP_DISPATCH, {.experts = {4, 8}}, " {4 from 8}"},
      {TS_OP_ROUTE_LOADS, {.loads = {1, 8}}, " {1 of 8}"},
      {TS_OP_ROUTE_LOADS_DX, {.loads = {2, 8, 3, true}}, " {2 of 8, sigmoid, behind 3}"},
      {TS_OP_BALANCE_LOSS, {.balance = {2, 0.5f, 0.25f}}, " {of 2 layers, 0.5, 0.25}"},
      {TS_OP_ROUTE,
       {.route = {.k = 6, .groups = 8, .top_groups = 3, .sigmoid = true, .normalize = true, .scale = 2.5f}},
       " {6, sigmoid, normalized, of 3 of 8 groups, times 2.5}"},
      {TS_OP_SOFT_LOSS, {.soft = {2}}, " {temperature 2}"},
      {TS_OP_SCALE, {.scale = {0.5f, 0}}, " {by 0.5}"},
      {TS_OP_SCALE, {.scale = {1, 30}}, " {by 1, softcap 30}"},
      {TS_OP_HEAD_LOSS, {.head = {TS_F32, 1, 0}}, ""},
      {TS_OP_HEAD_LOSS_DX, {.head = {TS_F32, 0.5f, 30}}, " {scale 0.5} {softcap 30}"},
      {TS_OP_HEAD_STATS, {.head = {TS_F32, 1, 0, 7}}, " {rows from 7}"},
      {TS_OP_RMSNORM, {.norm = {.eps = 1e-5f}}, ""},
      {TS_OP_RMSNORM_DX, {.norm = {.offset = 1}}, " {offset 1}"},
      {TS_OP_RMSNORM, {.norm = {.width = 36}}, " {width 36}"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_text text = {0};
    ts_attributes_print(&(ts_node){.op = rows[i].op, .attr = rows[i].attr}, &text);
    tap_ok(strcmp(text.text == NULL ? "" : text.text, rows[i].text) == 0, "%s:%s", ts_op_get(rows[i].op)->name,
           rows[i].text);
    ts_text_free(&text);
  }
}

static void test_dumps(void) {
  ts_graph *g = make();
  char *text = dump(g, TS_GRAPH_TEXT);
  if (!tap_ok(strcmp(text, text_dump) == 0, "text")) {
    tap_note("%s", text);
  }
  ts_free(text);
  text = dump(g, TS_GRAPH_JSON);
  json_t *json = json_loads(text, 0, NULL), *nodes = json_object_get(json, "nodes");
  tap_ok(json != NULL && json_array_size(nodes) == 4 && json_array_size(json_object_get(json, "tensors")) == 8,
         "json parses and has every node and tensor");
  tap_ok(json_number_value(json_object_get(json_array_get(nodes, 1), "flops")) == 2.0 * B * T * C * C,
         "json has the FLOPs of a node");
  json_decref(json);
  ts_free(text);
  text = dump(g, TS_GRAPH_DOT);
  tap_ok(strstr(text, "digraph") == text && strstr(text, "n1 -> n2 [label=\"fp32[2x3x8]\"]") != NULL &&
             strstr(text, "n0 -> n2") == NULL,
         "dot has the edges");
  ts_free(text);
  ts_graph_destroy(&g);
}

/* ---- the verifier ---- */

enum { NORM, PRODUCT, GELU, SUM };

/* Nodes do not change: only to break them. */
static void set_input(ts_graph *g, ts_nid n, int i, ts_tid t) {
  ((ts_tid *) g->node[n].in)[i] = t;
}

static void set_prior(ts_graph *g, ts_nid n, ts_tid t) {
  static ts_tid prior[1];
  *prior = t;
  g->node[n].prior = prior;
}

static void break_ids(ts_graph *g) {
  g->tensor[g->node[NORM].out[1]].producer = SUM; /* an output that nobody reads */
}

static void break_ids_input(ts_graph *g) {
  set_input(g, GELU, 0, g->n_tensors);
}

/* Of an op without letters, which would not match it either. */
static void break_arity(ts_graph *g) {
  static const ts_interval one[] = {{0, 1}};
  ts_tid x = ts_graph_find(g, "x");
  ts_build_take(ts_graph_site(g), "take", x, 1, 1, one, NULL);
  ts_node *take = &g->node[g->n_nodes - 1];
  static ts_tid in[2];
  in[0] = in[1] = x;
  take->in = in;
  take->n_in = 2;
}

static void break_arity_absent(ts_graph *g) {
  set_input(g, SUM, 1, TS_NONE);
}

static void break_order(ts_graph *g) {
  set_input(g, PRODUCT, 0, g->node[SUM].out[0]);
}

static void break_order_prior(ts_graph *g) {
  set_prior(g, PRODUCT, g->node[SUM].out[0]);
}

static void break_shape(ts_graph *g) {
  g->tensor[g->node[SUM].out[0]].dtype = TS_BF16;
}

static void break_shape_input(ts_graph *g) {
  set_input(g, SUM, 1, ts_graph_find(g, "w")); /* [C][C] */
}

static void break_prior(ts_graph *g) {
  set_prior(g, GELU, ts_graph_find(g, "x"));
}

static void break_prior_type(ts_graph *g) {
  ts_tid narrow = ts_graph_leaf(g, "narrow", TS_ROLE_INPUT, TS_BF16, TS_SHAPE(B, T, C), -1);
  set_prior(g, PRODUCT, narrow);
}

static void break_segment(ts_graph *g) {
  g->node[PRODUCT].segment = TS_SEGMENT_BACKWARD_INPUT;
}

/* Where the letters and the shape rule agree only the two together let it pass: see test_letters. */
static void break_letters(ts_graph *g) {
  g->tensor[g->node[SUM].out[0]].shape.d[2] = C + 1;
}

static ts_tid accumulate(ts_graph *g, const char *name, ts_tid sum, ts_tid beta) {
  return ts_build_accumulate(ts_graph_site(g), name, sum, g->node[SUM].out[0], beta);
}

static void break_version(ts_graph *g) {
  ts_tid sum = ts_graph_leaf(g, "state", TS_ROLE_STATE, TS_F32, TS_SHAPE(B, T, C), -1);
  ts_tid beta = ts_graph_leaf(g, "beta", TS_ROLE_INPUT, TS_F32, TS_SHAPE(1), -1);
  accumulate(g, "once", sum, beta);
  accumulate(g, "twice", sum, beta);
}

/* A prior in state is written over. */
static void break_version_prior(ts_graph *g) {
  ts_tid sum = ts_graph_leaf(g, "state", TS_ROLE_STATE, TS_F32, TS_SHAPE(B, T, C), -1);
  ts_tid view = ts_build_view(ts_graph_site(g), "window", sum, 0, TS_SHAPE(B, T, C));
  ts_tid in[] = {ts_graph_find(g, "x"), ts_graph_find(g, "w")};
  ts_graph_add(ts_graph_site(g), &(ts_node){.op = TS_OP_MATMUL,
                                            .name = "again",
                                            .n_in = 2,
                                            .in = in,
                                            .prior = &view,
                                            .beta = TS_NONE,
                                            .attr = {.matmul = {.dtype = TS_F32}}});
  ts_build_activation(ts_graph_site(g), "late", view, TS_ACTIVATION_GELU);
}

/* Rows of x for some choices, and where those of each expert begin. */
static ts_tid bring_rows(ts_graph *g, const char *name, const char *suffix, ts_tid *first) {
  enum { K = 2, EXPERTS = 3 };
  char *leaf = ts_format("%s.chosen%s", name, suffix), *dispatch = ts_format("%s.dispatch%s", name, suffix);
  const ts_tid chosen = ts_graph_leaf(g, leaf, TS_ROLE_INPUT, TS_I32, TS_SHAPE(B, T, K), -1);
  const ts_tid order = ts_graph_add(ts_graph_site(g), &(ts_node){.op = TS_OP_DISPATCH,
                                                                 .name = dispatch,
                                                                 .n_in = 1,
                                                                 .in = &chosen,
                                                                 .n_out = 3,
                                                                 .beta = TS_NONE,
                                                                 .attr = {.experts = {EXPERTS}}});
  *first = order + 2;
  const ts_tid in[] = {ts_graph_find(g, "x"), order, order + 1, *first};
  ts_free(leaf);
  ts_free(dispatch);
  return ts_build(ts_graph_site(g), TS_OP_TAKE_ROWS, name, 4, in);
}

static void activate_rows(ts_graph *g, ts_tid rows, ts_tid first) {
  const ts_tid in[] = {rows, first};
  ts_graph_add(ts_graph_site(g), &(ts_node){.op = TS_OP_ACTIVATION,
                                            .name = "act",
                                            .n_in = first == TS_NONE ? 1 : 2,
                                            .in = in,
                                            .beta = TS_NONE,
                                            .attr = {.activation = {TS_ACTIVATION_GELU}}});
}

static void break_rows(ts_graph *g) {
  ts_tid first, rows = bring_rows(g, "rows", "", &first);
  activate_rows(g, rows, TS_NONE);
}

static void break_rows_of_others(ts_graph *g) {
  ts_tid first, rows = bring_rows(g, "rows", "", &first);
  bring_rows(g, "others", "", &first);
  activate_rows(g, rows, first);
}

static void break_rows_cast(ts_graph *g) {
  ts_tid first, rows = bring_rows(g, "rows", "", &first);
  rows = ts_build_cast(ts_graph_site(g), "low", rows, TS_BF16);
  activate_rows(g, rows, TS_NONE);
}

/* Of others in the sum. */
static void break_rows_added(ts_graph *g) {
  ts_tid first, other, rows = bring_rows(g, "rows", "", &first), others = bring_rows(g, "others", "", &other);
  activate_rows(g, ts_build_add(ts_graph_site(g), "sum", rows, others), first);
}

/* The second of a sum alone. */
static void break_rows_second(ts_graph *g) {
  ts_tid first, rows = bring_rows(g, "rows", "", &first);
  ts_tid whole = ts_graph_leaf(g, "whole", TS_ROLE_INPUT, TS_F32, g->tensor[rows].shape, -1);
  activate_rows(g, ts_build_add(ts_graph_site(g), "sum", whole, rows), TS_NONE);
}

static void break_rows_marked(ts_graph *g) {
  ts_tid first;
  ts_graph_mark(g, "rows", bring_rows(g, "rows", "", &first));
}

/* With the extent it is good, of a copy too. */
static void test_rows(void) {
  ts_graph *g = make();
  ts_text why = {0};
  ts_tid first, again, rows = bring_rows(g, "rows", "", &first);
  activate_rows(g, rows, first);
  bring_rows(g, "rows", ".again", &again);
  activate_rows(g, rows, again);
  tap_ok(ts_graph_verify(g, &why) == 0, "rows that may not be there, read by what knows how many are%s",
         why.length > 0 ? why.text : "");
  ts_text_free(&why);
  ts_graph_destroy(&g);
}

static ts_tid add_file(ts_graph *g) {
  const ts_tensor leaf = {.name = (char *) "file",
                          .role = TS_ROLE_STATE,
                          .space = TS_SPACE_FILE,
                          .dtype = TS_F32,
                          .shape = TS_SHAPE(6),
                          .unit = -1};
  return ts_graph_add_leaf(g, &leaf);
}

static void break_space(ts_graph *g) {
  ts_build_cast(ts_graph_site(g), "low", add_file(g), TS_BF16);
}

/* A window on a file is none in memory. */
static void break_space_window(ts_graph *g) {
  ts_tid part = ts_build_view(ts_graph_site(g), "part", add_file(g), 2, TS_SHAPE(4));
  ts_build_cast(ts_graph_site(g), "low", part, TS_BF16);
}

static void break_space_load(ts_graph *g) {
  ts_tid whole = ts_graph_leaf(g, "whole", TS_ROLE_STATE, TS_F32, TS_SHAPE(6), -1);
  ts_build(ts_graph_site(g), TS_OP_LOAD, "load", 1, &whole);
}

static void break_space_store(ts_graph *g) {
  ts_tid file = add_file(g), whole = ts_graph_leaf(g, "whole", TS_ROLE_STATE, TS_F32, TS_SHAPE(6), -1);
  ts_build(ts_graph_site(g), TS_OP_STORE, "store", 2, (ts_tid[]){whole, file});
}

/* What is brought beside a device is not there yet. */
static void break_space_beside(ts_graph *g) {
  ts_tid host = ts_build_load(ts_graph_site(g), "load", add_file(g), TS_SPACE_PINNED);
  ts_build_cast(ts_graph_site(g), "low", host, TS_BF16);
}

/* From another space than its own. */
static void break_space_copy(ts_graph *g) {
  ts_tid file = add_file(g);
  ts_build(ts_graph_site(g), TS_OP_COPY_IN, "copy", 1, &file);
}

/* There and back, by a window. */
static void test_space(void) {
  ts_graph *g = make();
  ts_text why = {0};
  ts_tid part = ts_build_view(ts_graph_site(g), "part", add_file(g), 2, TS_SHAPE(4));
  ts_tid x = ts_build(ts_graph_site(g), TS_OP_LOAD, "load", 1, &part);
  ts_tid stored = ts_build(ts_graph_site(g), TS_OP_STORE, "store", 2, (ts_tid[]){part, x});
  tap_ok(ts_graph_verify(g, &why) == 0 && g->tensor[part].space == TS_SPACE_FILE &&
             g->tensor[x].space == TS_SPACE_BACKEND && g->tensor[stored].space == TS_SPACE_FILE,
         "a copy comes from a file and goes back%s", why.length > 0 ? why.text : "");
  ts_tid host = ts_build_load(ts_graph_site(g), "to_host", stored, TS_SPACE_PINNED);
  ts_tid here = ts_build(ts_graph_site(g), TS_OP_COPY_IN, "in", 1, &host);
  ts_tid out = ts_build(ts_graph_site(g), TS_OP_COPY_OUT, "out", 2, (ts_tid[]){TS_NONE, here});
  ts_build(ts_graph_site(g), TS_OP_STORE, "back", 2, (ts_tid[]){stored, out});
  tap_ok(ts_graph_verify(g, &why) == 0 && g->tensor[host].space == TS_SPACE_PINNED &&
             g->tensor[here].space == TS_SPACE_BACKEND && g->tensor[out].space == TS_SPACE_PINNED,
         "also by way of the host's memory beside a device's%s", why.length > 0 ? why.text : "");
  ts_text_free(&why);
  ts_graph_destroy(&g);
}

static void break_names(ts_graph *g) {
  ts_tensor *w = &g->tensor[ts_graph_find(g, "w")];
  w->name[0] = 'x';
}

/* A way to break a rule; `alone` when no other rule sees it, so that without the rule the graph passes. */
typedef struct breakage {
  const char *rule, *what;
  void (*make)(ts_graph *g);
  bool alone;
} breakage;

static const breakage breakages[] = {
    {"ids", "an output of another producer", break_ids, true},
    {"ids", "an input out of range", break_ids_input, false},
    {"arity", "one input too many", break_arity, true},
    {"arity", "an absent input", break_arity_absent, false},
    {"order", "an input made later", break_order, true},
    {"order", "a prior made later", break_order_prior, true},
    {"shape", "an output of another type", break_shape, true},
    {"shape", "an input of another shape", break_shape_input, false},
    {"prior", "a prior of an op that cannot add", break_prior, true},
    {"prior", "a prior of another type", break_prior_type, true},
    {"segment", "forward that reads backward", break_segment, true},
    {"version", "a version used twice", break_version, true},
    {"version", "state read after it was a prior", break_version_prior, true},
    {"rows", "rows that may not be there", break_rows, true},
    {"rows", "rows of which others say how many are there", break_rows_of_others, true},
    {"rows", "such rows in another type", break_rows_cast, true},
    {"rows", "a sum of rows of which different ones are there", break_rows_added, true},
    {"rows", "such rows added to others", break_rows_second, true},
    {"rows", "such rows that the host reads", break_rows_marked, true},
    {"space", "what is in a file computed with", break_space, true},
    {"space", "a part of it", break_space_window, true},
    {"space", "a load of what is in memory", break_space_load, true},
    {"space", "a store from a file to memory", break_space_store, true},
    {"space", "what is loaded beside a device computed with", break_space_beside, true},
    {"space", "a copy of the host's from a file", break_space_copy, true},
    {"names", "two leaves of one name", break_names, true},
};

static int verify(const ts_graph *g, const char *disabled, ts_text *why) {
  ts_graph_verify_disable(disabled);
  int violations = ts_graph_verify(g, why);
  ts_graph_verify_disable(NULL);
  return violations;
}

static void test_breakage(const breakage *b) {
  ts_graph *g = make();
  ts_text why = {0};
  b->make(g);
  char *line = ts_format("\n  %s: ", b->rule);
  int violations = verify(g, NULL, &why);
  tap_ok(violations > 0 && strstr(why.text, line) != NULL, "%s: %s is found", b->rule, b->what);
  ts_text_free(&why);
  if (b->alone) {
    tap_ok(verify(g, b->rule, &why) == 0, "%s: %s is found by this rule alone", b->rule, b->what);
  }
  ts_text_free(&why);
  ts_free(line);
  ts_graph_destroy(&g);
}

/* Letters repeat what shape rules say, for sharding to rely on: they are seen when the shape rule looks away. */
static void test_letters(void) {
  ts_graph *g = make();
  ts_text why = {0};
  break_letters(g);
  tap_ok(verify(g, "shape", &why) == 1 && strstr(why.text, "\n  letters: ") != NULL, "letters: two extents are found");
  tap_ok(verify(g, "shape letters", &why) == 0, "letters: they are found by this rule alone");
  ts_text_free(&why);
  ts_graph_destroy(&g);
}

static void test_every_rule_is_broken(void) {
  for (int i = 0; ts_graph_rule_name(i) != NULL; ++i) {
    bool broken = strcmp(ts_graph_rule_name(i), "letters") == 0;
    for (size_t k = 0; k < sizeof breakages / sizeof *breakages; ++k) {
      broken = broken || (breakages[k].alone && strcmp(breakages[k].rule, ts_graph_rule_name(i)) == 0);
    }
    tap_ok(broken, "rule %s has a graph that only it rejects", ts_graph_rule_name(i));
  }
}

static void test_verifier(void) {
  ts_graph *g = make();
  ts_text why = {0};
  tap_ok(verify(g, NULL, &why) == 0, "a good graph has no violation");
  ts_graph_destroy(&g);
  for (size_t i = 0; i < sizeof breakages / sizeof *breakages; ++i) {
    test_breakage(&breakages[i]);
  }
  test_letters();
  test_rows();
  test_space();
  test_every_rule_is_broken();
}

/* Counts that are known at run time only. */
static void test_extents(void) {
  static const struct {
    int32_t first[4];
    const char *wrong; /* NULL: nothing */
  } cases[] = {{{0, 0, 0, 0}, NULL},           {{0, 2, 2, 7}, NULL},
               {{0, 2, 5, 8}, "more rows"},    {{0, 5, 2, 7}, "ends before it begins"},
               {{0, -1, 3, 7}, "ends before"}, {{1, 2, 3, 7}, "does not begin at 0"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const char *wrong = ts_extent_wrong(cases[i].first, 3, 7);
    tap_ok((wrong == NULL) == (cases[i].wrong == NULL) && (wrong == NULL || strstr(wrong, cases[i].wrong) != NULL),
           "ranges of 7 rows, case %zu: %s", i, wrong != NULL ? wrong : "right");
  }
}

int main(void) {
  test_building();
  test_ownership();
  test_attributes();
  test_printing();
  test_rewriting();
  test_rewriting_priors();
  test_rewriting_changes();
  test_rewriting_windows();
  test_dumps();
  test_attribute_texts();
  test_verifier();
  test_extents();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
