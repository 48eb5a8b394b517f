/* Autocast: what torch.autocast computes in a lower type is done in it, each op as in the same place of transformers'
 * model; parameters, and what flows beside the lower ops, stay fp32.
 *
 * A parameter that is read in the lower type alone becomes a leaf of it: the zero pass, which knows where the fp32
 * values are, casts them once.  All else is CAST nodes, which have gradients, so tensor parallelism, differentiation
 * and recomputation see ordinary nodes. */
#include "base/memory.h"
#include "family/family.h"
#include "graph/attribute.h"
#include "graph/rewrite.h"
#include "ops/build.h"
#include "pass/pass.h"

typedef enum policy {
  NONE,   /* not an op of models */
  LOWER,  /* inputs and results in the lower type */
  FULL,   /* in fp32 */
  WIDEST, /* in the widest type of the inputs; of one input: as it is */
  INSIDE  /* in fp32 inside; the result as the family writes it, in the input's type or the widest of it and w's */
} policy;

/* at::autocast's lists (torch 2.15, aten/src/ATen/autocast_mode.h) for each device, through transformers' code.
 * linear, matmul, addmm and scaled_dot_product_attention are in both devices' lower lists, losses in both fp32 lists
 * (head_loss has a product in the lower type and its loss in fp32, as it always has).  What no list has promotes: the
 * residual stream is fp32, as lookups are.  RMSNorms are written out there, in fp32.  layer_norm, softmax and pow are
 * in CUDA's fp32 list alone; softmax is inside of attention here, pow inside of gelu_new, whose kernels compute in
 * fp32.  linalg_vector_norm is too, by which what is normalized comes out in fp32.  Losses (kl_div, mse_loss and others
 * in both fp32 lists) compute in fp32 of any type, and round nothing that comes from one row; so does the sum of picked
 * tokens, which CUDA's `sum` would leave in fp32.  A CAST is the model's own.  Rows are what products
 * of experts read; a router's logits are fp32 here, and what experts make is added up in the type of the residual
 * stream. */
static const struct {
  policy cpu, cuda;
} rows[TS_N_OPS] = {
    [TS_OP_VIEW] = {WIDEST, WIDEST},       [TS_OP_SPLIT] = {WIDEST, WIDEST},
    [TS_OP_CONCAT] = {WIDEST, WIDEST},     [TS_OP_PICK] = {WIDEST, WIDEST},
    [TS_OP_ADD] = {WIDEST, WIDEST},        [TS_OP_SCALE] = {WIDEST, WIDEST},
    [TS_OP_ACTIVATION] = {WIDEST, WIDEST}, [TS_OP_GLU] = {WIDEST, WIDEST},
    [TS_OP_DROPOUT] = {WIDEST, WIDEST},    [TS_OP_EMBEDDING] = {WIDEST, WIDEST},
    [TS_OP_ROPE] = {WIDEST, WIDEST},       [TS_OP_LAYERNORM] = {INSIDE, FULL},
    [TS_OP_RMSNORM] = {INSIDE, INSIDE},    [TS_OP_MATMUL] = {LOWER, LOWER},
    [TS_OP_ATTENTION] = {LOWER, LOWER},    [TS_OP_ATTENTION_CACHED] = {LOWER, LOWER},
    [TS_OP_HEAD_LOSS] = {LOWER, LOWER},    [TS_OP_MULTIPLY] = {WIDEST, WIDEST},
    [TS_OP_NORMALIZE] = {WIDEST, FULL},    [TS_OP_SOFT_LOSS] = {WIDEST, WIDEST},
    [TS_OP_LOSS] = {WIDEST, WIDEST},       [TS_OP_CAST] = {FULL, FULL},
    [TS_OP_ROUTE] = {FULL, FULL},          [TS_OP_DISPATCH] = {WIDEST, WIDEST},
    [TS_OP_TAKE_ROWS] = {LOWER, LOWER},    [TS_OP_GROUPED] = {LOWER, LOWER},
    [TS_OP_COMBINE] = {WIDEST, WIDEST},    [TS_OP_ROUTE_LOADS] = {FULL, FULL},
    [TS_OP_BALANCE_LOSS] = {FULL, FULL},   [TS_OP_ROUTE_LIMIT] = {FULL, FULL},
    [TS_OP_GROUPED_BIAS] = {LOWER, LOWER}, [TS_OP_BLEND] = {WIDEST, WIDEST},
};

typedef struct caster {
  ts_rewrite rewrite;
  const ts_graph *from;
  bool device;          /* CUDA's column */
  bool norm_keeps_type; /* of the family */
  ts_dtype lower;
  bool *wide;     /* owned; per tensor of the old graph, of parameters: somebody reads it in fp32 */
  ts_tid *cast;   /* owned; per tensor of the old graph: it in the other type, as cast last */
  int32_t *where; /* owned; likewise the unit that this is in */
} caster;

static policy policy_of(const caster *c, const ts_node *node) {
  policy p = c->device ? rows[node->op].cuda : rows[node->op].cpu;
  TS_CHECK(p != NONE, "%s: autocast has no row for %s", node->name, ts_op_get(node->op)->name);
  return p;
}

static bool is_floating(const ts_tensor *t) {
  return t->dtype == TS_F32 || t->dtype == TS_BF16 || t->dtype == TS_F16;
}

static void find_wide(caster *c) {
  for (ts_nid n = 0; n < c->from->n_nodes; ++n) {
    const ts_node *node = &c->from->node[n];
    for (int i = 0; i < node->n_in; ++i) {
      if (node->in[i] != TS_NONE && policy_of(c, node) != LOWER) {
        c->wide[node->in[i]] = true;
      }
    }
  }
}

/* ---- inputs ---- */

/* What is read in the lower type alone: parameters, keys and values that are kept. */
static bool is_lowered_leaf(const caster *c, ts_tid t) {
  const ts_tensor *tensor = &c->from->tensor[t];
  bool lasts = tensor->role == TS_ROLE_PARAM || tensor->role == TS_ROLE_STATE;
  return lasts && is_floating(tensor) && !c->wide[t];
}

static ts_tid look_up(caster *c, ts_tid t) {
  if (c->rewrite.map[t] == TS_NONE && is_lowered_leaf(c, t)) {
    return ts_rewrite_leaf(&c->rewrite, t, c->lower);
  }
  return ts_rewrite_tensor(&c->rewrite, t);
}

static ts_dtype read_type(caster *c, ts_tid t) {
  ts_tid x = look_up(c, t);
  return c->rewrite.to->tensor[x].dtype;
}

/* The widest type of the node's inputs, as they are. */
static ts_dtype widest_of(caster *c, const ts_node *node) {
  ts_dtype widest = c->lower;
  for (int i = 0; i < node->n_in; ++i) {
    if (node->in[i] != TS_NONE && read_type(c, node->in[i]) == TS_F32) {
      widest = TS_F32;
    }
  }
  return widest;
}

static ts_tid cast_value(ts_site at, ts_tid t, ts_dtype dtype) {
  const char *of = at.graph->tensor[t].name;
  char *name = ts_format("%s.%s", of, ts_dtype_name(dtype));
  ts_tid y = ts_build_cast(at, name, t, dtype);
  ts_free(name);
  return y;
}

/* Input t in a type: once for the readers in a unit.  A parameter in fp32 is cast by the zero pass (ts_node_reads). */
static ts_tid read_as(caster *c, ts_site at, ts_tid t, ts_dtype dtype) {
  ts_tid x = look_up(c, t);
  const ts_tensor *tensor = &c->rewrite.to->tensor[x];
  if (!is_floating(tensor) || tensor->dtype == dtype || tensor->role == TS_ROLE_PARAM) {
    return x;
  }
  if (c->cast[t] == TS_NONE || c->where[t] != at.unit) {
    c->cast[t] = cast_value(at, x, dtype);
    c->where[t] = at.unit;
  }
  return c->cast[t];
}

/* ---- nodes ---- */

/* A norm in fp32 of what is lower, rounded again where the family does. */
static void write_inside(caster *c, ts_nid n, const ts_node *node, ts_dtype given) {
  const ts_node *old = &c->from->node[n];
  bool keeps = old->op == TS_OP_LAYERNORM || c->norm_keeps_type;
  ts_rewrite_add(&c->rewrite, n, node);
  if (keeps && given != TS_F32) {
    ts_tid *y = &c->rewrite.map[old->out[0]];
    *y = cast_value((ts_site){c->rewrite.to, old->segment, old->unit}, *y, given);
  }
}

static void write_cast(caster *c, ts_nid n) {
  const ts_node *old = &c->from->node[n];
  ts_site at = {c->rewrite.to, old->segment, old->unit};
  policy p = policy_of(c, old);
  if (old->op == TS_OP_CAST && c->from->tensor[old->in[0]].producer != TS_NONE) {
    c->rewrite.map[old->out[0]] = read_as(c, at, old->in[0], TS_F32);
    return;
  }
  ts_dtype dtype = p == LOWER ? c->lower : p == WIDEST ? widest_of(c, old) : TS_F32;
  ts_dtype given = read_type(c, old->in[0]);
  ts_tid in[8];
  TS_ASSERT((size_t) old->n_in <= sizeof in / sizeof *in);
  for (int i = 0; i < old->n_in; ++i) {
    in[i] = old->in[i] == TS_NONE ? TS_NONE : read_as(c, at, old->in[i], dtype);
  }
  ts_node node = *old;
  node.in = in;
  ts_dtype *made = ts_attributes_dtype(&node);
  if (made != NULL && !ts_makes_fp32(c->from, old)) {
    *made = dtype;
  }
  if (p == INSIDE) {
    write_inside(c, n, &node, given);
  } else {
    ts_rewrite_add(&c->rewrite, n, &node);
  }
}

void ts_pass_autocast(ts_graph **graph, ts_pass_context *context) {
  if (!ts_deck_autocasts(context->deck)) {
    return;
  }
  const ts_family *family = ts_deck_family(context->deck); /* NULL: a program's own */
  caster c = {.rewrite = ts_rewrite_begin(*graph),
              .from = *graph,
              .device = context->target.backend->device != NULL,
              .norm_keeps_type = family != NULL && family->norm_keeps_type,
              .lower = context->deck->torch_autocast.dtype,
              .wide = ts_calloc((size_t) (*graph)->n_tensors + 1, sizeof *c.wide),
              .cast = ts_ids_none((*graph)->n_tensors),
              .where = ts_ids_none((*graph)->n_tensors)};
  find_wide(&c);
  for (ts_nid n = 0; n < (*graph)->n_nodes; ++n) {
    write_cast(&c, n);
  }
  ts_free(c.wide);
  ts_free(c.cast);
  ts_free(c.where);
  ts_rewrite_marks(&c.rewrite);
  ts_rewrite_end(&c.rewrite, graph);
}
