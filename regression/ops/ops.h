/** \file
 * One row per op: how to make calls of its kernel, and what it computes, in fp64 and as plainly as possible.
 *
 * A reference works on a run_case whose float tensors are all fp64 (integers keep their type); it fills the outputs
 * as if there were no priors.  Nothing here is collective.
 */
#ifndef REGRESSION_OPS_OPS_H
#define REGRESSION_OPS_OPS_H

#include "regression/kernel_run.h"

typedef struct op_row {
  ts_op op;
  /** Calls of different shapes. */
  int variants;
  /** Fill in op (done), attr, inputs with values and outputs with types and shapes.  Activations are \a dtype. */
  void (*build)(run_case *c, int variant, ts_dtype dtype);
  void (*reference)(run_case *c);
  /** Allowed error beyond one rounding to the output's type, in units of 2^-24 of the largest element of that output
   * and of the first input (a gradient may cancel to nothing). */
  double tolerance;
} op_row;

/** Rows of a file, ended by one without a reference; most of ops_products have a reference only. */
extern const op_row ops_pointwise[], ops_lookup[], ops_norm[], ops_loss[], ops_sum[], ops_rope[], ops_update[],
    ops_optimizer[], ops_matrices[], ops_products[], ops_attention[], ops_mlp[], ops_limit[], ops_route[],
    ops_experts[];

/** The row of an op, or NULL. Not collective. */
const op_row *ops_find(ts_op op);

/** The shapes most ops are tried at: one element; odd sizes; more rows than a block and columns than a tile; no
 * samples; no tokens, as where a rank has none of them. */
enum { OPS_SHAPES = 6 };
ts_shape ops_shape(int variant);

/** An input of normal numbers, another for each (variant, number). Not collective. */
void ops_input(run_case *c, int i, ts_dtype dtype, ts_shape shape, double std);

/** The next output. Not collective. */
void ops_output(run_case *c, ts_dtype dtype, ts_shape shape);

/** The bits of optimizers on a set of kernels. Not collective. */
void ops_check_optimizers(const ts_backend *set);

/** What ORTHOGONALIZE loses with products in half types, on a backend that has them. Not collective. */
void ops_check_half_products(const ts_backend *backend);

/** States in 8 bits on a set of kernels, against bitsandbytes' arithmetic. Not collective. */
void ops_check_states(const ts_backend *set);

/** The random word of an element of a sample. Not collective. */
uint32_t ops_word(int64_t seed, uint64_t name, int64_t sample, int64_t element);

/** Whether dropout keeps an element, by the definition. Not collective. */
bool ops_keep(int64_t seed, uint64_t name, int64_t sample, int64_t element, double p);

/** Values of an fp64 input or output. Not collective. */
static inline const double *ops_in(const run_case *c, int i) {
  return c->in[i].data;
}
static inline double *ops_out(run_case *c, int i) {
  return c->out[i].data;
}

/** Elements of input \a i; its rows; its columns. Not collective. */
static inline int64_t ops_count(const run_case *c, int i) {
  return run_count(&c->in[i]);
}
static inline int64_t ops_columns(const run_case *c, int i) {
  return c->in[i].shape.d[c->in[i].shape.n - 1];
}
static inline int64_t ops_rows(const run_case *c, int i) {
  return ops_columns(c, i) == 0 ? 0 : ops_count(c, i) / ops_columns(c, i);
}

#endif
