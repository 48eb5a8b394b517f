/* References of an MLP in one op: the ops it stands for, by their own references. */
#include "regression/ops/ops.h"

/* Of the batch, tokens, C, F, D; 0: F columns of gate, 1: a gate of its own, 2: fused; 0: no biases, 1: of up and gate,
 * 2: and of down; rows of a tile: one tile, several, the last shorter; no rows. */
static const struct {
  int64_t batch, length, columns, inner, width;
  enum { UNGATED, GATED, FUSED_GATE } gate;
  int biases;
  bool turned;
  int64_t rows;
  bool alone, narrow; /* dx alone; gradients of weights are of x's type */
} mlps[] = {{1, 1, 1, 1, 1, UNGATED, 0, true, 1, false, false},
            {2, 3, 17, 11, 9, UNGATED, 2, false, 64, false, false},
            {3, 50, 33, 40, 33, GATED, 0, true, 33, false, false},
            {3, 50, 33, 40, 17, GATED, 2, false, 100, false, true},
            {2, 67, 24, 30, 24, FUSED_GATE, 2, true, 24, false, true},
            {2, 40, 16, 24, 16, FUSED_GATE, 0, true, 79, true, false},
            {1, 130, 20, 12, 8, UNGATED, 1, true, 128, true, false},
            {3, 64, 16, 20, 24, UNGATED, 2, true, 64, false, true},
            {2, 0, 8, 12, 8, GATED, 2, false, 8, false, true}};
enum { N_MLPS = sizeof mlps / sizeof *mlps };

static void mlp_input(run_case *c, bool there, ts_dtype dtype, ts_shape shape) {
  int i = c->n_in;
  if (there) {
    ops_input(c, i, dtype, shape, 0.5);
  }
  c->n_in = i + 1;
}

static void build_mlp(run_case *c, int variant, ts_dtype dtype) {
  const typeof(*mlps) *v = &mlps[variant];
  int64_t made = v->gate == FUSED_GATE ? 2 * v->inner : v->inner;
  ts_shape up = v->turned ? TS_SHAPE(made, v->columns) : TS_SHAPE(v->columns, made);
  bool dx = c->op == TS_OP_MLP_DX;
  if (dx) {
    mlp_input(c, true, dtype, TS_SHAPE(v->batch, v->length, v->width));
  }
  mlp_input(c, true, dtype, TS_SHAPE(v->batch, v->length, v->columns));
  mlp_input(c, v->gate == GATED, dtype, up);
  mlp_input(c, v->biases > 0 && v->gate == GATED, dtype, TS_SHAPE(made));
  mlp_input(c, true, dtype, up);
  mlp_input(c, v->biases > 0, dtype, TS_SHAPE(made));
  mlp_input(c, true, dtype, v->turned ? TS_SHAPE(v->width, v->inner) : TS_SHAPE(v->inner, v->width));
  mlp_input(c, v->biases > 1, dtype, TS_SHAPE(v->width));
  ts_dtype sums = v->narrow ? dtype : TS_F32;
  c->attr.mlp = (typeof(c->attr.mlp)){(ts_activation) (variant % TS_N_ACTIVATIONS), v->turned, v->gate == FUSED_GATE,
                                      v->rows, sums};
  if (!dx) {
    ops_output(c, dtype, TS_SHAPE(v->batch, v->length, v->width));
  }
  for (int i = 1; dx && i < (v->alone ? 2 : c->n_in); ++i) {
    if (c->in[i].data != NULL) {
      ops_output(c, i == 1 ? dtype : sums, c->in[i].shape);
    }
  }
}

/* y [...][columns] of an op with a reference of its own; the caller's. */
static run_tensor compute(ts_op op, ts_attr attr, ts_shape shape, int n, const run_tensor *in) {
  run_case c = {.op = op, .attr = attr, .n_in = n, .n_out = 1, .out = {run_new(TS_F64, shape)}};
  memcpy(c.in, in, (size_t) n * sizeof *in);
  ops_find(op)->reference(&c);
  return c.out[0];
}

static run_tensor product(run_tensor a, run_tensor b, run_tensor bias, bool ta, bool tb, int64_t m, int64_t n) {
  return compute(TS_OP_MATMUL, (ts_attr){.matmul = {ta, tb, TS_F32}}, TS_SHAPE(m, n), 3, (run_tensor[]){a, b, bias});
}

/* What both directions have: x flat, the factors and what they are made of. */
typedef struct mlp_values {
  run_tensor x, up, gate, w_up, w_gate, b_up, b_gate; /* gate.data NULL: there is none */
  int64_t rows, columns, inner, width;
} mlp_values;

static run_tensor part_of(run_tensor x, int64_t at, ts_shape shape) {
  return (run_tensor){x.dtype, shape, x.data == NULL ? NULL : (double *) x.data + at};
}

static mlp_values mlp_of(const run_case *c, const run_tensor *in) {
  bool turned = c->attr.mlp.transpose_b, fused = c->attr.mlp.fused;
  mlp_values v = {.x = in[0]};
  v.columns = in[0].shape.d[in[0].shape.n - 1];
  v.rows = run_count(&in[0]) / v.columns;
  v.inner = in[TS_MLP_DOWN].shape.d[turned ? 1 : 0];
  v.width = in[TS_MLP_DOWN].shape.d[turned ? 0 : 1];
  v.x.shape = TS_SHAPE(v.rows, v.columns);
  ts_shape weight = turned ? TS_SHAPE(v.inner, v.columns) : TS_SHAPE(v.columns, v.inner);
  v.w_up = part_of(in[TS_MLP_UP], fused ? v.inner * v.columns : 0, weight);
  v.b_up = part_of(in[TS_MLP_UP_BIAS], fused ? v.inner : 0, TS_SHAPE(v.inner));
  v.w_gate = part_of(in[fused ? TS_MLP_UP : TS_MLP_GATE], 0, weight);
  v.b_gate = part_of(in[fused ? TS_MLP_UP_BIAS : TS_MLP_GATE_BIAS], 0, TS_SHAPE(v.inner));
  v.up = product(v.x, v.w_up, v.b_up, false, turned, v.rows, v.inner);
  if (v.w_gate.data != NULL) {
    v.gate = product(v.x, v.w_gate, v.b_gate, false, turned, v.rows, v.inner);
  }
  return v;
}

static run_tensor inner_of(const run_case *c, const mlp_values *v) {
  ts_attr attr = {.activation = {c->attr.mlp.kind}};
  bool gated = v->gate.data != NULL;
  return compute(gated ? TS_OP_GLU : TS_OP_ACTIVATION, attr, v->up.shape, 1 + gated,
                 (run_tensor[]){gated ? v->gate : v->up, v->up});
}

static void mlp(run_case *c) {
  mlp_values v = mlp_of(c, c->in);
  run_tensor inner = inner_of(c, &v);
  run_tensor y =
      product(inner, c->in[TS_MLP_DOWN], c->in[TS_MLP_DOWN_BIAS], false, c->attr.mlp.transpose_b, v.rows, v.width);
  memcpy(c->out[0].data, y.data, run_bytes(&y));
  ts_free(y.data);
  ts_free(inner.data);
  ts_free(v.up.data);
  ts_free(v.gate.data);
}

/* The gradients of up and gate in their places. */
static void differentiate_inner(const run_case *c, mlp_values *v, run_tensor da) {
  run_case d = {.op = TS_OP_GLU_DX, .n_in = 3, .n_out = 2, .in = {da, v->gate, v->up}};
  d.attr.activation.kind = c->attr.mlp.kind;
  if (v->gate.data == NULL) {
    d.op = TS_OP_ACTIVATION_DX;
    d.in[1] = v->up;
    d.n_in = 2;
    d.n_out = 1;
  }
  for (int i = 0; i < d.n_out; ++i) {
    d.out[i] = run_new(TS_F64, da.shape);
  }
  ops_find(d.op)->reference(&d);
  ts_free(v->up.data);
  ts_free(v->gate.data);
  v->gate = d.n_out > 1 ? d.out[0] : (run_tensor){0};
  v->up = d.out[d.n_out - 1];
}

/* Add x to the elements of the gradient of input i from `at` on, where the call wants it; x is freed. */
static void add_gradient(run_case *c, int i, int64_t at, run_tensor x) {
  int output = 0;
  for (int j = 1; j <= i; ++j) {
    output += c->in[j].data != NULL;
  }
  if (output < c->n_out && c->in[i + 1].data != NULL) {
    for (int64_t k = 0; k < run_count(&x); ++k) {
      ops_out(c, output)[at + k] += ((const double *) x.data)[k];
    }
  }
  ts_free(x.data);
}

static run_tensor column_sums(run_tensor x) {
  return compute(TS_OP_SUM_ROWS, (ts_attr){.sum_rows = {TS_F32}}, TS_SHAPE(x.shape.d[1]), 1, &x);
}

static run_tensor weight_gradient(const run_case *c, run_tensor a, run_tensor dy) {
  int64_t in = a.shape.d[1], out = dy.shape.d[1];
  bool turned = c->attr.mlp.transpose_b;
  return turned ? product(dy, a, (run_tensor){0}, true, false, out, in)
                : product(a, dy, (run_tensor){0}, true, false, in, out);
}

static void add_factor(run_case *c, const mlp_values *v, run_tensor d, run_tensor w, int weight, int bias, int64_t at) {
  add_gradient(c, weight, at * v->columns, weight_gradient(c, v->x, d));
  add_gradient(c, bias, at, column_sums(d));
  add_gradient(c, 0, 0, product(d, w, (run_tensor){0}, false, !c->attr.mlp.transpose_b, v->rows, v->columns));
}

static void mlp_dx(run_case *c) {
  mlp_values v = mlp_of(c, c->in + 1);
  bool turned = c->attr.mlp.transpose_b, fused = c->attr.mlp.fused;
  run_tensor inner = inner_of(c, &v), dy = c->in[0];
  dy.shape = TS_SHAPE(v.rows, v.width);
  for (int i = 0; i < c->n_out; ++i) {
    memset(ops_out(c, i), 0, (size_t) run_count(&c->out[i]) * sizeof(double));
  }
  add_gradient(c, TS_MLP_DOWN, 0, weight_gradient(c, inner, dy));
  add_gradient(c, TS_MLP_DOWN_BIAS, 0, column_sums(dy));
  run_tensor da = product(dy, c->in[1 + TS_MLP_DOWN], (run_tensor){0}, false, !turned, v.rows, v.inner);
  differentiate_inner(c, &v, da);
  add_factor(c, &v, v.up, v.w_up, TS_MLP_UP, TS_MLP_UP_BIAS, fused ? v.inner : 0);
  if (v.gate.data != NULL) {
    add_factor(c, &v, v.gate, v.w_gate, fused ? TS_MLP_UP : TS_MLP_GATE, fused ? TS_MLP_UP_BIAS : TS_MLP_GATE_BIAS, 0);
  }
  ts_free(da.data);
  ts_free(inner.data);
  ts_free(v.up.data);
  ts_free(v.gate.data);
}

const op_row ops_mlp[] = {
    {TS_OP_MLP, N_MLPS, build_mlp, mlp, 16},
    {TS_OP_MLP_DX, N_MLPS, build_mlp, mlp_dx, 16},
    {.reference = NULL},
};
