#include "regression/ops/ops.h"

ts_shape ops_shape(int variant) {
  static const int64_t d[OPS_SHAPES][3] = {{1, 1, 1}, {2, 3, 17}, {3, 50, 67}, {2, 67, 1100}, {0, 3, 8}, {2, 0, 8}};
  return TS_SHAPE(d[variant][0], d[variant][1], d[variant][2]);
}

void ops_input(run_case *c, int i, ts_dtype dtype, ts_shape shape, double std) {
  c->in[i] = run_random(dtype, shape, (uint64_t) (c->op * 100 + i), std);
  c->n_in = i + 1;
}

void ops_output(run_case *c, ts_dtype dtype, ts_shape shape) {
  c->out[c->n_out++] = run_new(dtype, shape);
}

uint32_t ops_word(int64_t seed, uint64_t name, int64_t sample, int64_t element) {
  uint32_t word[4];
  ts_philox(ts_mix((uint64_t) seed, name), (uint64_t) sample, (uint64_t) element / 4, word);
  return word[element % 4];
}

bool ops_keep(int64_t seed, uint64_t name, int64_t sample, int64_t element, double p) {
  return ops_word(seed, name, sample, element) * 0x1p-32 >= p;
}

const op_row *ops_find(ts_op op) {
  static const op_row *const families[] = {ops_pointwise, ops_lookup, ops_norm,      ops_loss,     ops_sum,
                                           ops_rope,      ops_update, ops_optimizer, ops_matrices, ops_products,
                                           ops_attention, ops_mlp,    ops_limit,     ops_route,    ops_experts};
  for (size_t f = 0; f < sizeof families / sizeof *families; ++f) {
    for (const op_row *row = families[f]; row->reference != NULL; ++row) {
      if (row->op == op) {
        return row;
      }
    }
  }
  return NULL;
}
