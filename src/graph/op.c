/* The op table, expanded from ops.def. */
#include "graph/op.h"

#define OP(ENUM, name, in, out, flags, attribute, cut, gradient, flops) \
  extern const ts_attribute ts_attribute_##attribute;                   \
  extern ts_shape_rule ts_shape_##name;                                 \
  extern ts_index_rule ts_index_##name;                                 \
  extern ts_cut_rule ts_cut_##cut;                                      \
  extern ts_gradient_rule ts_gradient_##gradient;                       \
  extern ts_flops_rule ts_flops_##flops;
#include "graph/ops.def"
#undef OP

/* The words of ops.def. */
enum {
  ALIAS = TS_OP_ALIAS,
  COMM = TS_OP_COMM,
  UPDATE = TS_OP_IS_UPDATE,
  PRODUCT = TS_OP_PRODUCT,
  LSE = TS_OP_LSE,
  TARGET = TS_OP_HAS_TARGET,
  MESSAGE = TS_OP_MESSAGE,
  COPY = TS_OP_COPY,
};
#define BIT(i) (1u << (i))
#define ALL (~0u)
#define IN(min, max, mask) .min_in = min, .max_in = max, .optional = mask
#define OUT(min, max, inplace, mask) .min_out = min, .max_out = max, .n_inplace = inplace, .adds = mask

static const ts_op_info table[TS_N_OPS] = {
#define OP(ENUM, name_, in, out, flags_, attribute_, cut_, gradient_, flops_) \
  {.name = #name_,                                                            \
   in,                                                                        \
   out,                                                                       \
   .flags = flags_,                                                           \
   .attribute = &ts_attribute_##attribute_,                                   \
   .shape = ts_shape_##name_,                                                 \
   .index = ts_index_##name_,                                                 \
   .cut = ts_cut_##cut_,                                                      \
   .gradient = ts_gradient_##gradient_,                                       \
   .flops = ts_flops_##flops_},
#include "graph/ops.def"
#undef OP
};

const ts_op_info *ts_op_get(ts_op op) {
  TS_ASSERT((unsigned) op < TS_N_OPS);
  return &table[op];
}

double ts_orthogonalize_flops(double rows, double columns, bool gram) {
  double s = rows < columns ? rows : columns, l = rows < columns ? columns : rows;
  return gram && rows != columns ? 2 * s * s * (4 * l + 14 * s) : 2 * s * s * (10 * l + 5 * s);
}

const ts_optimizer_info *ts_optimizer_get(ts_optimizer optimizer) {
  static const ts_optimizer_info rows[TS_N_OPTIMIZERS] = {
#define OPTIMIZER(ENUM, name, granularity, first, second) \
  {#name,                                                 \
   TS_GRANULARITY_##granularity,                          \
   {TS_STATE_##first, TS_STATE_##second},                 \
   (TS_STATE_##first != TS_STATE_NONE) + (TS_STATE_##second != TS_STATE_NONE)},
#include "graph/optimizers.def"
#undef OPTIMIZER
  };
  TS_ASSERT((unsigned) optimizer < TS_N_OPTIMIZERS);
  return &rows[optimizer];
}

ts_update_slots ts_update_slots_of(const ts_graph *graph, const ts_node *node) {
  ts_update_slots slots = {-1, {-1, -1}, {-1, -1}};
  int at = 1;
  if (node->attr.update.copy) {
    slots.copy = at++;
  }
  for (int i = 0; i < ts_optimizer_get(node->attr.update.rule)->n_states && at < node->n_out; ++i) {
    slots.state[i] = at++;
    if (graph->tensor[node->in[slots.state[i]]].dtype == TS_U8) {
      slots.scales[i] = at++;
    }
  }
  return slots;
}

ts_dtype ts_node_reads(const ts_graph *g, const ts_node *node, int input) {
  const ts_tensor *x = &g->tensor[node->in[0]], *t = &g->tensor[node->in[input]];
  bool factor = input == 1 && (ts_op_get(node->op)->flags & TS_OP_PRODUCT) != 0;
  bool wider = t->role == TS_ROLE_PARAM && t->dtype == TS_F32 && (x->dtype == TS_BF16 || x->dtype == TS_F16);
  return factor && wider ? x->dtype : t->dtype;
}

bool ts_op_adds(ts_op op, int output) {
  return (ts_op_get(op)->adds >> output & 1) != 0;
}

double ts_node_flops(const ts_graph *graph, const ts_node *node) {
  return ts_op_get(node->op)->flops(graph, node);
}

/* Whether input \a i is there and none before it is the same tensor. */
static bool is_first(const ts_node *node, int i) {
  bool first = node->in[i] != TS_NONE;
  for (int j = 0; j < i; ++j) {
    first = first && node->in[j] != node->in[i];
  }
  return first;
}

double ts_node_bytes(const ts_graph *graph, const ts_node *node) {
  double bytes = 0;
  if ((ts_op_get(node->op)->flags & TS_OP_ALIAS) != 0) {
    return 0;
  }
  for (int i = 0; i < node->n_in; ++i) {
    bytes += is_first(node, i) ? (double) ts_tensor_bytes(graph, node->in[i]) : 0;
  }
  for (int i = 0; i < node->n_out; ++i) {
    bytes += (double) ts_tensor_bytes(graph, node->out[i]);
  }
  return bytes;
}

void ts_gradient_none(ts_gradients *gradients, const ts_node *node) {
  (void) gradients;
  ts_die(__FILE__, __LINE__, "%s: %s has no gradient", node->name, ts_op_get(node->op)->name);
}

double ts_flops_none(const ts_graph *graph, const ts_node *node) {
  (void) graph;
  (void) node;
  return 0;
}

const char *ts_extent_wrong(const int32_t *first, int64_t n, int64_t rows) {
  bool ascend = true;
  for (int64_t i = 0; i < n; ++i) {
    ascend = ascend && first[i] <= first[i + 1];
  }
  return first[0] != 0     ? "the first range of rows does not begin at 0"
         : !ascend         ? "a range of rows ends before it begins"
         : first[n] > rows ? "there are more rows than there is room for"
                           : NULL;
}
