/* MLP and MLP_DX of every backend: the ops they stand for, done by the backend's own kernels on one tile of rows after
 * the other.  A tile is a graph; its inner values lie in the workspace and are written over as soon as they are not
 * needed, by kernels that go element by element:
 *
 *   forward    [tile][F]: up, and where there is a gate one more; activation and glu lie over what they read
 *   backward   [tile][F]: one more, the inner activation, and then its gradient; those of up and gate lie over these
 *
 * Gradients of weights are products of a tile that add to those of the tiles before.  In a type narrower than fp32 they
 * would be rounded at every tile: where there are several, they are summed in fp32 in the workspace, and rounded once.
 * Operations: those of the products; the gradient makes up and gate again, half as many as forward, or two thirds. */
#include "backend/nested.h"
#include "base/memory.h"

#include <string.h>

enum { ROW_MULTIPLE = 64, ALIGNMENT = 256 };

/* What lies in the workspace, a tile's rows of F elements each. */
enum { UP, GATE, INNER };

/* Tiles with rows, and what comes before and behind them where gradients are summed in the workspace. */
enum { BEGIN, FIRST, FULL, LAST, END, N_TILES };

typedef struct mlp {
  const ts_backend *backend;
  int64_t rows, tile_rows, n_tiles; /* at least one tile, of no rows where there are none */
  int64_t columns, inner, width;    /* C, F, D */
  ts_dtype dtype, sum_dtype;        /* of activations; of the gradients that tiles add to */
  bool sums;                        /* they are in the workspace */
  size_t sum_offset[TS_MLP_INPUTS]; /* of an input's gradient there */
  size_t inner_bytes, scratch_offset, scratch_bytes;
  ts_nested tile[N_TILES];
} mlp;

/* A tile while it is made. */
typedef struct maker {
  mlp *m;
  const ts_graph *graph; /* of the node */
  const ts_node *node;
  const ts_target *target;
  ts_nested *tile;
  int64_t rows;
  bool first; /* its gradients add to the node's priors, not to what is there */
} maker;

static size_t align(size_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- the node ---- */

static bool is_gradient(const maker *k) {
  return k->node->op == TS_OP_MLP_DX;
}

static ts_tid input_of(const maker *k, int i) {
  return k->node->in[is_gradient(k) + i];
}

static const ts_shape *input_shape(const maker *k, int i) {
  return &k->graph->tensor[input_of(k, i)].shape;
}

static bool has_input(const maker *k, int i) {
  return input_of(k, i) != TS_NONE;
}

static bool is_gated(const maker *k) {
  return has_input(k, TS_MLP_GATE) || k->node->attr.mlp.fused;
}

/* Which output of the gradient is that of input i. */
static int output_of(const maker *k, int i) {
  int n = 0;
  for (int j = 0; j < i; ++j) {
    n += has_input(k, j);
  }
  return n;
}

static bool has_prior(const maker *k, int output) {
  return k->node->prior != NULL && k->node->prior[output] != TS_NONE;
}

/* Of up, or of the gate: whose rows lie before up's where both are one. */
typedef struct factor {
  int weight, bias;           /* inputs */
  int64_t at_weight, at_bias; /* elements before its own */
} factor;

static factor factor_of(const maker *k, bool gate) {
  if (gate && has_input(k, TS_MLP_GATE)) {
    return (factor){TS_MLP_GATE, TS_MLP_GATE_BIAS, 0, 0};
  }
  bool behind = k->node->attr.mlp.fused && !gate;
  return (factor){TS_MLP_UP, TS_MLP_UP_BIAS, behind ? k->m->inner * k->m->columns : 0, behind ? k->m->inner : 0};
}

/* ---- tensors of a tile ---- */

/* The tile's rows of an activation. */
static ts_place rows_at(const maker *k, ts_place p, int64_t columns) {
  p.step = (size_t) columns * ts_dtype_size(k->m->dtype);
  return p;
}

static ts_tid rows_leaf(maker *k, ts_place p, int64_t columns) {
  return ts_nested_leaf(k->tile, k->m->dtype, TS_SHAPE(k->rows, columns), rows_at(k, p, columns));
}

/* A parameter from an element on. */
static ts_tid input_leaf(maker *k, int i, int64_t at, ts_shape shape) {
  size_t offset = (size_t) at * ts_dtype_size(k->m->dtype);
  return ts_nested_leaf(k->tile, k->m->dtype, shape, (ts_place){TS_PLACE_IN, is_gradient(k) + i, offset, 0});
}

static ts_shape weight_shape(const maker *k, int64_t in, int64_t out) {
  return k->node->attr.mlp.transpose_b ? TS_SHAPE(out, in) : TS_SHAPE(in, out);
}

static ts_place buffer(const maker *k, int which) {
  return (ts_place){TS_PLACE_WORK, 0, (size_t) which * k->m->inner_bytes, 0};
}

/* ---- nodes of a tile ---- */

static ts_tid add_matmul(maker *k, ts_tid a, ts_tid b, ts_tid bias, bool transpose_a, bool transpose_b, ts_dtype dtype,
                         ts_nested_output to) {
  ts_attr attr = {.matmul = {transpose_a, transpose_b, dtype}};
  return ts_nested_add(k->tile, TS_OP_MATMUL, attr, bias == TS_NONE ? 2 : 3, (ts_tid[]){a, b, bias}, to);
}

/* Where the gradient of input i goes, from an element on, and what it adds to. */
static ts_nested_output sum_of(maker *k, int i, int64_t at, ts_shape shape) {
  const mlp *m = k->m;
  int output = output_of(k, i);
  size_t offset = (size_t) at * ts_dtype_size(m->sum_dtype);
  ts_place here = m->sums ? (ts_place){TS_PLACE_WORK, 0, m->sum_offset[i] + offset, 0}
                          : (ts_place){TS_PLACE_OUT, output, offset, 0};
  ts_nested_output to = ts_nested_at(here);
  to.scaled = k->first && k->node->beta != TS_NONE;
  if (!k->first || (m->sums && has_prior(k, output))) {
    to.prior = ts_nested_leaf(k->tile, m->sum_dtype, shape, here);
  } else if (has_prior(k, output)) {
    to.prior = ts_nested_leaf(k->tile, m->sum_dtype, shape, (ts_place){TS_PLACE_PRIOR, output, offset, 0});
  }
  return to;
}

/* a^T b, or where weights are [out][in] b^T a, is the gradient of a product of a. */
static void add_weight_gradient(maker *k, int i, int64_t at, ts_tid a, ts_tid b, ts_shape shape) {
  bool turned = k->node->attr.mlp.transpose_b;
  add_matmul(k, turned ? b : a, turned ? a : b, TS_NONE, true, false, k->m->sum_dtype, sum_of(k, i, at, shape));
}

static void add_bias_gradient(maker *k, int i, int64_t at, ts_tid dy, int64_t columns) {
  if (has_input(k, i)) {
    ts_nested_add(k->tile, TS_OP_SUM_ROWS, (ts_attr){.sum_rows = {k->m->sum_dtype}}, 1, &dy,
                  sum_of(k, i, at, TS_SHAPE(columns)));
  }
}

/* ---- tiles ---- */

/* What the inner product is made of. */
typedef struct inner {
  ts_tid x, up, gate, w_up, w_gate; /* gate and w_gate TS_NONE: there is none */
} inner;

static ts_tid make_factor(maker *k, ts_tid x, bool gate, ts_tid *w) {
  factor f = factor_of(k, gate);
  const mlp *m = k->m;
  *w = input_leaf(k, f.weight, f.at_weight, weight_shape(k, m->columns, m->inner));
  ts_tid b = has_input(k, f.bias) ? input_leaf(k, f.bias, f.at_bias, TS_SHAPE(m->inner)) : TS_NONE;
  return add_matmul(k, x, *w, b, false, k->node->attr.mlp.transpose_b, m->dtype,
                    ts_nested_at(buffer(k, gate ? GATE : UP)));
}

static inner make_factors(maker *k) {
  inner n = {.gate = TS_NONE, .w_gate = TS_NONE};
  n.x = rows_leaf(k, (ts_place){TS_PLACE_IN, is_gradient(k) + TS_MLP_X, 0, 0}, k->m->columns);
  n.up = make_factor(k, n.x, false, &n.w_up);
  if (is_gated(k)) {
    n.gate = make_factor(k, n.x, true, &n.w_gate);
  }
  return n;
}

/* The inner activation, in a buffer. */
static ts_tid activate(maker *k, const inner *n, int which) {
  ts_attr attr = {.activation = {k->node->attr.mlp.kind}};
  bool gated = n->gate != TS_NONE;
  return ts_nested_add(k->tile, gated ? TS_OP_GLU : TS_OP_ACTIVATION, attr, gated ? 2 : 1,
                       (ts_tid[]){gated ? n->gate : n->up, n->up}, ts_nested_at(buffer(k, which)));
}

static void make_forward(maker *k) {
  const mlp *m = k->m;
  inner n = make_factors(k);
  ts_tid a = activate(k, &n, UP);
  ts_tid w = input_leaf(k, TS_MLP_DOWN, 0, weight_shape(k, m->inner, m->width));
  ts_tid b = has_input(k, TS_MLP_DOWN_BIAS) ? input_leaf(k, TS_MLP_DOWN_BIAS, 0, TS_SHAPE(m->width)) : TS_NONE;
  ts_nested_output y = {.at = rows_at(k, (ts_place){TS_PLACE_OUT, 0, 0, 0}, m->width),
                        .prior = TS_NONE,
                        .scaled = k->node->beta != TS_NONE};
  if (has_prior(k, 0)) {
    y.prior = rows_leaf(k, (ts_place){TS_PLACE_PRIOR, 0, 0, 0}, m->width);
  }
  add_matmul(k, a, w, b, false, k->node->attr.mlp.transpose_b, m->dtype, y);
}

/* The gradients of up and gate, over these. */
static void differentiate_factors(maker *k, inner *n, ts_tid da) {
  ts_attr attr = {.activation = {k->node->attr.mlp.kind}};
  if (n->gate == TS_NONE) {
    n->up = ts_nested_add(k->tile, TS_OP_ACTIVATION_DX, attr, 2, (ts_tid[]){da, n->up}, ts_nested_at(buffer(k, UP)));
    return;
  }
  n->gate =
      ts_nested_add(k->tile, TS_OP_GLU_DX, attr, 3, (ts_tid[]){da, n->gate, n->up}, ts_nested_at(buffer(k, GATE)));
  n->up = ts_nested_put(k->tile, n->gate + 1, buffer(k, UP));
}

/* The gradients of a factor's weight and bias. */
static void add_factor_gradients(maker *k, const inner *n, bool gate) {
  const mlp *m = k->m;
  factor f = factor_of(k, gate);
  ts_tid dy = gate ? n->gate : n->up;
  add_weight_gradient(k, f.weight, f.at_weight, n->x, dy, weight_shape(k, m->columns, m->inner));
  add_bias_gradient(k, f.bias, f.at_bias, dy, m->inner);
}

/* The gate's share of dx adds to up's. */
static void add_dx(maker *k, const inner *n) {
  const mlp *m = k->m;
  bool turned = k->node->attr.mlp.transpose_b;
  ts_nested_output to = ts_nested_at(rows_at(k, (ts_place){TS_PLACE_OUT, 0, 0, 0}, m->columns));
  ts_tid dx = add_matmul(k, n->up, n->w_up, TS_NONE, false, !turned, m->dtype, to);
  if (n->gate != TS_NONE) {
    to.prior = dx;
    add_matmul(k, n->gate, n->w_gate, TS_NONE, false, !turned, m->dtype, to);
  }
}

static void make_backward(maker *k) {
  const mlp *m = k->m;
  bool all = k->node->n_out > 1;
  ts_tid dy = rows_leaf(k, (ts_place){TS_PLACE_IN, 0, 0, 0}, m->width);
  inner n = make_factors(k);
  ts_shape down = weight_shape(k, m->inner, m->width);
  if (all) {
    add_weight_gradient(k, TS_MLP_DOWN, 0, activate(k, &n, INNER), dy, down);
    add_bias_gradient(k, TS_MLP_DOWN_BIAS, 0, dy, m->width);
  }
  ts_tid da = add_matmul(k, dy, input_leaf(k, TS_MLP_DOWN, 0, down), TS_NONE, false, !k->node->attr.mlp.transpose_b,
                         m->dtype, ts_nested_at(buffer(k, INNER)));
  differentiate_factors(k, &n, da);
  if (all) {
    add_factor_gradients(k, &n, false);
  }
  if (all && n.gate != TS_NONE) {
    add_factor_gradients(k, &n, true);
  }
  add_dx(k, &n);
}

/* Priors into the sums before the first tile, the sums into the outputs behind the last. */
static void make_copies(maker *k, bool begin) {
  const mlp *m = k->m;
  ts_dtype dtype = k->node->attr.mlp.dtype;
  for (int i = TS_MLP_X + 1; i < TS_MLP_INPUTS; ++i) {
    int output = output_of(k, i);
    if (!has_input(k, i) || (begin && !has_prior(k, output))) {
      continue;
    }
    ts_place sum = {TS_PLACE_WORK, 0, m->sum_offset[i], 0}, own = {begin ? TS_PLACE_PRIOR : TS_PLACE_OUT, output, 0, 0};
    ts_tid from = ts_nested_leaf(k->tile, begin ? dtype : m->sum_dtype, *input_shape(k, i), begin ? own : sum);
    ts_attr attr = {.cast = {begin ? m->sum_dtype : dtype}};
    ts_nested_add(k->tile, TS_OP_CAST, attr, 1, &from, ts_nested_at(begin ? sum : own));
  }
}

/* ---- plans ---- */

static void make_tile(const maker *like, int which, int64_t rows, bool keep) {
  maker k = *like;
  k.tile = &k.m->tile[which];
  ts_nested_begin(k.tile);
  k.rows = rows;
  k.first = which == FIRST;
  if (which == BEGIN || which == END) {
    make_copies(&k, which == BEGIN);
  } else {
    (is_gradient(&k) ? make_backward : make_forward)(&k);
  }
  size_t bytes = ts_nested_prepare(k.tile, k.target, keep);
  k.m->scratch_bytes = bytes > k.m->scratch_bytes ? bytes : k.m->scratch_bytes;
}

/* As even as can be, a function of the shapes. */
static void choose_tiles(mlp *m, int64_t most) {
  int64_t n = m->rows > most ? (m->rows + most - 1) / most : 1;
  int64_t even = ((m->rows + n - 1) / n + ROW_MULTIPLE - 1) / ROW_MULTIPLE * ROW_MULTIPLE;
  m->tile_rows = n == 1 ? m->rows : even < most ? even : most;
  m->n_tiles = n == 1 ? 1 : (m->rows + m->tile_rows - 1) / m->tile_rows;
}

/* The workspace: inner buffers, sums, and what the kernels need. */
static void place_buffers(const maker *k) {
  mlp *m = k->m;
  ts_dtype dtype = k->node->attr.mlp.dtype;
  m->sums = is_gradient(k) && k->node->n_out > 1 && m->n_tiles > 1 && dtype != TS_F32;
  m->sum_dtype = m->sums ? TS_F32 : dtype;
  m->inner_bytes = align((size_t) (m->tile_rows * m->inner) * ts_dtype_size(m->dtype));
  int buffers = is_gradient(k) ? INNER + 1 : is_gated(k) ? GATE + 1 : UP + 1;
  m->scratch_offset = (size_t) buffers * m->inner_bytes;
  for (int i = TS_MLP_X + 1; i < TS_MLP_INPUTS && m->sums; ++i) {
    m->sum_offset[i] = m->scratch_offset;
    m->scratch_offset += has_input(k, i) ? align((size_t) ts_shape_count(input_shape(k, i)) * sizeof(float)) : 0;
  }
}

static void plan_tiles(const maker *k, bool keep) {
  const mlp *m = k->m;
  make_tile(k, FIRST, m->tile_rows, keep);
  if (m->n_tiles > 1) {
    make_tile(k, LAST, m->rows - (m->n_tiles - 1) * m->tile_rows, keep);
  }
  if (m->n_tiles > 2) {
    make_tile(k, FULL, m->tile_rows, keep);
  }
  if (m->sums) {
    make_tile(k, BEGIN, 0, keep);
    make_tile(k, END, 0, keep);
  }
}

static void describe(const maker *k) {
  mlp *m = k->m;
  const ts_shape *x = input_shape(k, TS_MLP_X), *down = input_shape(k, TS_MLP_DOWN);
  bool turned = k->node->attr.mlp.transpose_b;
  m->backend = k->target->backend;
  m->dtype = k->graph->tensor[input_of(k, TS_MLP_X)].dtype;
  m->rows = ts_shape_rows(x);
  m->columns = x->d[x->n - 1];
  m->inner = down->d[turned ? 1 : 0];
  m->width = down->d[turned ? 0 : 1];
  choose_tiles(m, k->node->attr.mlp.rows);
  place_buffers(k);
}

static void release_mlp(void *prepared) {
  mlp *m = prepared;
  for (int i = 0; i < N_TILES; ++i) {
    ts_nested_release(&m->tile[i], m->backend);
  }
  ts_free(m);
}

static size_t prepare_mlp(const ts_target *target, const ts_graph *graph, const ts_node *node, void **prepared) {
  mlp *m = ts_calloc(1, sizeof *m);
  maker k = {.m = m, .graph = graph, .node = node, .target = target};
  describe(&k);
  plan_tiles(&k, prepared != NULL);
  size_t workspace = m->scratch_offset + m->scratch_bytes;
  if (prepared != NULL) {
    *prepared = m;
  } else {
    release_mlp(m);
  }
  return workspace;
}

/* ---- a call ---- */

static void run_one_tile(const ts_kernel_call *call, int which, int64_t row) {
  const mlp *m = call->prepared;
  ts_nested_run(&m->tile[which], m->backend, call, row, (char *) call->workspace + m->scratch_offset, m->scratch_bytes);
}

static void run_mlp(const ts_kernel_call *call) {
  const mlp *m = call->prepared;
  run_one_tile(call, BEGIN, 0);
  for (int64_t i = 0; i < m->n_tiles; ++i) {
    run_one_tile(call, i == 0 ? FIRST : i + 1 < m->n_tiles ? FULL : LAST, i * m->tile_rows);
  }
  run_one_tile(call, END, 0);
}

const ts_kernel *ts_backend_mlp(void) {
  static const ts_kernel row = {prepare_mlp, run_mlp, release_mlp};
  return &row;
}
