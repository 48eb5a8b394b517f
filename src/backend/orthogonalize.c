/* ORTHOGONALIZE of every backend: the products of five steps, by the backend's own kernels, on one matrix after the
 * other.  There is a plan for each shape; matrices that lie side by side are put together first.
 *
 * With s the shorter side and l the longer one a step of the standard way takes 4 s^2 l + 2 s^3 operations.  The gram
 * way iterates on A = x x^T [s][s] and on the product q of the polynomials so far, x' = q x, at 2 s^3 a product, up to
 * three a step, and takes A anew after two steps: the polynomials of five would lose digits. */
#include "backend/nested.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

enum { STEPS = 5, RESTART = 2, ALIGNMENT = 256, MOST_PIECES = 256 };

static const float by_x = 3.4445f, by_a = -4.7750f, by_a2 = 2.0315f, eps = 1e-7f;

/* Matrices of one shape. */
typedef struct plan {
  ts_nested nested;
  int64_t rows, columns, pieces, width[MOST_PIECES];
} plan;

typedef struct orthogonalize {
  const ts_backend *backend;
  plan *plan; /* owned */
  int n_plans, capacity;
  int *of; /* owned: the plan of each matrix that joins no other */
  size_t scratch_offset, scratch_bytes;
} orthogonalize;

/* A plan while it is made.  Tensors in the workspace follow one another. */
typedef struct maker {
  ts_nested *nested;
  const plan *p;
  ts_dtype dtype, own; /* of products; of the tensor */
  bool wide;           /* the shorter side is the left one */
  int64_t side;
  size_t end; /* of the workspace so far */
} maker;

/* ---- places ---- */

static ts_place room(maker *k, ts_dtype dtype, int64_t elements) {
  ts_place p = {TS_PLACE_WORK, 0, k->end, 0};
  k->end += ((size_t) elements * ts_dtype_size(dtype) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return p;
}

/* Columns of the matrix in the tensor; a stack's matrices one after another. */
static ts_place columns_at(const maker *k, int piece, bool out) {
  size_t offset = 0, size = ts_dtype_size(k->own);
  for (int i = 0; i < piece; ++i) {
    offset += (size_t) (k->p->rows * k->p->width[i]) * size;
  }
  return (ts_place){out ? TS_PLACE_OUT : TS_PLACE_IN, 0, offset, (size_t) (k->p->rows * k->p->columns) * size};
}

/* ---- nodes ---- */

static ts_tid add_multiply(maker *k, ts_tid a, ts_tid b, bool turn_a, bool turn_b, ts_nested_output to) {
  ts_attr attr = {.matmul = {turn_a, turn_b, k->dtype}};
  return ts_nested_add(k->nested, TS_OP_MATMUL, attr, 2, (ts_tid[]){a, b}, to);
}

static ts_tid scaled_by(maker *k, ts_tid x, float by, ts_place to) {
  return ts_nested_add(k->nested, TS_OP_SCALE, (ts_attr){.scale = {by, 0}}, 1, &x, ts_nested_at(to));
}

/* by x + a b, where it does not lie over one of the three. */
static ts_tid combine(maker *k, float by, ts_tid x, ts_tid a, ts_tid b, ts_place to) {
  ts_nested_output sum = {.at = to, .prior = scaled_by(k, x, by, to)};
  return add_multiply(k, a, b, false, false, sum);
}

/* A = x x^T, or x^T x where that is smaller. */
static ts_tid square(maker *k, ts_tid x, ts_place to) {
  return add_multiply(k, x, x, !k->wide, k->wide, ts_nested_at(to));
}

/* z = b A + c A A, with c A in `spare`. */
static ts_tid polynomial(maker *k, ts_tid a, ts_place spare, ts_place to) {
  return combine(k, by_a, a, scaled_by(k, a, by_a2, spare), a, to);
}

static ts_tid joined(maker *k) {
  ts_tid piece[MOST_PIECES];
  for (int i = 0; i < k->p->pieces; ++i) {
    piece[i] = ts_nested_leaf(k->nested, k->own, TS_SHAPE(k->p->rows, k->p->width[i]), columns_at(k, i, false));
  }
  return k->p->pieces == 1 ? piece[0]
                           : ts_nested_add(k->nested, TS_OP_CONCAT, (ts_attr){.concat = {1}}, (int) k->p->pieces, piece,
                                           ts_nested_at(room(k, k->own, k->p->rows * k->p->columns)));
}

/* x over its norm, in the products' type. */
static ts_tid normalized(maker *k, ts_place to) {
  ts_range all = {.count = k->p->rows * k->p->columns};
  ts_tid x = joined(k), flat = ts_nested_leaf(k->nested, k->own, TS_SHAPE(all.count), k->nested->place[x]);
  ts_tid squares = ts_nested_add(k->nested, TS_OP_SUM_SQUARES, (ts_attr){.segments = {&all, 1, false}}, 1, &flat,
                                 ts_nested_at(room(k, TS_F64, 1)));
  return ts_nested_add(k->nested, TS_OP_OVER_NORM, (ts_attr){.over_norm = {eps, k->dtype}}, 2, (ts_tid[]){x, squares},
                       ts_nested_at(to));
}

/* The result to where x came from. */
static void write_back(maker *k, ts_tid x, ts_place spare) {
  double ratio = (double) k->p->rows / (double) k->p->columns;
  float by = ratio > 1 ? (float) sqrt(ratio) : 1;
  bool same = k->own == k->dtype, single = k->p->pieces == 1;
  ts_tid y = scaled_by(k, x, by, same && single ? columns_at(k, 0, true) : spare);
  if (!same) {
    ts_place to = single ? columns_at(k, 0, true) : room(k, k->own, k->p->rows * k->p->columns);
    y = ts_nested_add(k->nested, TS_OP_CAST, (ts_attr){.cast = {k->own}}, 1, &y, ts_nested_at(to));
  }
  if (!single) {
    ts_nested_output to = ts_nested_at(columns_at(k, 0, true));
    to.n = (int) k->p->pieces;
    ts_tid piece = ts_nested_add(k->nested, TS_OP_SPLIT, (ts_attr){.split = {1, k->p->width}}, 1, &y, to);
    for (int i = 1; i < k->p->pieces; ++i) {
      ts_nested_put(k->nested, piece + i, columns_at(k, i, true));
    }
  }
}

/* ---- the two ways ---- */

static void swap(ts_place *a, ts_place *b) {
  ts_place c = *a;
  *a = *b;
  *b = c;
}

/* What is [s][s] lies on the left of x, or on its right. */
static ts_tid on_side(const maker *k, ts_tid small, ts_tid x, bool left) {
  return k->wide == left ? small : x;
}

static void make_standard(maker *k) {
  int64_t all = k->p->rows * k->p->columns, small = k->side * k->side;
  ts_place here = room(k, k->dtype, all), there = room(k, k->dtype, all);
  ts_place a_at = room(k, k->dtype, small), z_at = room(k, k->dtype, small), spare = room(k, k->dtype, small);
  ts_tid x = normalized(k, here);
  for (int i = 0; i < STEPS; ++i) {
    ts_tid z = polynomial(k, square(k, x, a_at), spare, z_at);
    x = combine(k, by_x, x, on_side(k, z, x, true), on_side(k, z, x, false), there);
    swap(&here, &there);
  }
  write_back(k, x, there);
}

static void make_gram(maker *k) {
  int64_t all = k->p->rows * k->p->columns, small = k->side * k->side;
  ts_place here = room(k, k->dtype, all), there = room(k, k->dtype, all);
  ts_place a_at = room(k, k->dtype, small), z_at = room(k, k->dtype, small), spare = room(k, k->dtype, small);
  ts_place q_at = room(k, k->dtype, small), next_at = room(k, k->dtype, small);
  ts_tid x = normalized(k, here), a = square(k, x, a_at), q = TS_NONE;
  for (int i = 0; i < STEPS; ++i) {
    if (i == RESTART) {
      x = add_multiply(k, on_side(k, q, x, true), on_side(k, q, x, false), false, false, ts_nested_at(there));
      swap(&here, &there);
      a = square(k, x, a_at);
      q = TS_NONE;
    }
    ts_tid z = polynomial(k, a, spare, z_at);
    q = q == TS_NONE
            ? ts_nested_add(k->nested, TS_OP_ADD_DIAGONAL, (ts_attr){.diagonal = {by_x}}, 1, &z, ts_nested_at(next_at))
            : combine(k, by_x, q, z, q, next_at);
    swap(&q_at, &next_at);
    if (i + 1 < STEPS && i + 1 != RESTART) { /* A' = (aI + z) A (aI + z) */
      ts_tid t = combine(k, by_x, a, z, a, spare);
      a = combine(k, by_x, t, z, t, a_at);
    }
  }
  x = add_multiply(k, on_side(k, q, x, true), on_side(k, q, x, false), false, false, ts_nested_at(there));
  write_back(k, x, here);
}

/* ---- plans ---- */

/* Matrix i and those that join it. */
static plan matrix_plan(const ts_attr *attr, int i) {
  const ts_matrix *m = &attr->orthogonalize.matrix[i];
  plan p = {.rows = m->rows, .columns = m->columns, .pieces = 1, .width = {m->columns}};
  for (++i; i < attr->orthogonalize.n && attr->orthogonalize.matrix[i].joins; ++i) {
    TS_CHECK(p.pieces < MOST_PIECES, "a matrix lies in more than %d pieces", MOST_PIECES);
    p.width[p.pieces++] = attr->orthogonalize.matrix[i].columns;
    p.columns += attr->orthogonalize.matrix[i].columns;
  }
  return p;
}

static bool is_same_shape(const plan *a, const plan *b) {
  return a->rows == b->rows && a->pieces == b->pieces &&
         memcmp(a->width, b->width, (size_t) a->pieces * sizeof *a->width) == 0;
}

static void make_plan(orthogonalize *o, const ts_target *target, const ts_graph *graph, const ts_node *node, plan p,
                      bool keep) {
  TS_GROW(o->plan, o->n_plans, o->capacity);
  o->plan[o->n_plans] = p;
  plan *made = &o->plan[o->n_plans++];
  ts_nested_begin(&made->nested);
  bool wide = p.rows <= p.columns;
  maker k = {.nested = &made->nested,
             .p = made,
             .dtype = node->attr.orthogonalize.dtype,
             .own = graph->tensor[node->in[0]].dtype,
             .wide = wide,
             .side = wide ? p.rows : p.columns};
  (node->attr.orthogonalize.gram && p.rows != p.columns ? make_gram : make_standard)(&k);
  size_t bytes = ts_nested_prepare(&made->nested, target, keep);
  o->scratch_offset = k.end > o->scratch_offset ? k.end : o->scratch_offset;
  o->scratch_bytes = bytes > o->scratch_bytes ? bytes : o->scratch_bytes;
}

static void release_orthogonalize(void *prepared) {
  orthogonalize *o = prepared;
  for (int i = 0; i < o->n_plans; ++i) {
    ts_nested_release(&o->plan[i].nested, o->backend);
  }
  ts_free(o->plan);
  ts_free(o->of);
  ts_free(o);
}

static size_t prepare_orthogonalize(const ts_target *target, const ts_graph *graph, const ts_node *node,
                                    void **prepared) {
  orthogonalize *o = ts_calloc(1, sizeof *o);
  o->backend = target->backend;
  o->of = ts_calloc((size_t) node->attr.orthogonalize.n + 1, sizeof *o->of);
  for (int i = 0; i < node->attr.orthogonalize.n; ++i) {
    plan p = matrix_plan(&node->attr, i);
    int k = 0;
    while (k < o->n_plans && !is_same_shape(&o->plan[k], &p)) {
      ++k;
    }
    if (!node->attr.orthogonalize.matrix[i].joins && k == o->n_plans) {
      make_plan(o, target, graph, node, p, prepared != NULL);
    }
    o->of[i] = k;
  }
  size_t workspace = o->scratch_offset + o->scratch_bytes;
  if (prepared != NULL) {
    *prepared = o;
  } else {
    release_orthogonalize(o);
  }
  return workspace;
}

static void run_orthogonalize(const ts_kernel_call *call) {
  const orthogonalize *o = call->prepared;
  const ts_attr *attr = &call->node->attr;
  size_t size = ts_dtype_size(call->graph->tensor[call->node->in[0]].dtype);
  char *scratch = (char *) call->workspace + o->scratch_offset;
  for (int i = 0; i < attr->orthogonalize.n; ++i) {
    const ts_matrix *m = &attr->orthogonalize.matrix[i];
    const void *in = (const char *) call->in[0] + (size_t) m->offset * size;
    void *out = (char *) call->out[0] + (size_t) m->offset * size;
    ts_kernel_call matrix = *call;
    matrix.in = &in;
    matrix.out = &out;
    for (int64_t c = 0; !m->joins && c < m->count; ++c) {
      ts_nested_run(&o->plan[o->of[i]].nested, o->backend, &matrix, c, scratch, o->scratch_bytes);
    }
  }
}

const ts_kernel *ts_backend_orthogonalize(void) {
  static const ts_kernel row = {prepare_orthogonalize, run_orthogonalize, release_orthogonalize};
  return &row;
}
