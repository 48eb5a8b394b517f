/* The experts of a layer: a router chooses some for each token, rows are brought together by expert, three products
 * with a matrix for each expert make an MLP, and each token gets the weighted sum of its rows (Shazeer et al. 2017,
 * Fedus et al. 2021; without capacities, Gale et al. 2022). */
#include "model/parts.h"

#include "ops/build.h"

#include <string.h>

_Static_assert((int) TS_DECK_MOST_EXPERTS == (int) TS_MOST_EXPERTS, "what decks may have, ops take");
_Static_assert((int) TS_DECK_MOST_CHOSEN == (int) TS_MOST_CHOSEN, "what decks may have, ops take");

/* Where the rows of tokens are. */
typedef struct routed {
  ts_tid weight;              /* [...][k] */
  ts_tid order, place, first; /* of DISPATCH */
} routed;

/* A node UNIT.part.base. */
static ts_tid add_node(ts_model_builder *b, ts_op op, const char *part, const char *base, int n_in, const ts_tid *in,
                       ts_attr attr) {
  return ts_graph_add(b->base.at, &(ts_node){.op = op,
                                             .name = ts_model_name_of(b, ts_model_inside(part, base).text).text,
                                             .n_in = n_in,
                                             .in = in,
                                             .attr = attr,
                                             .beta = TS_NONE});
}

/* ---- how much each expert gets ---- */

static double aux_coef(const ts_model_builder *b) {
  return b->model->output_router_logits ? b->model->router_aux_loss_coef : 0;
}

static bool is_balanced(const ts_model_builder *b) {
  return aux_coef(b) != 0 || b->deck->moe.z_loss_coef != 0;
}

/* Of each layer, to be looked at; and added to those of the layers before, where there is a loss of them. */
static void measure_loads(ts_model_builder *b, ts_tid logits, ts_tid chosen) {
  const ts_family *f = b->family;
  const ts_model_size *size = &b->base.size;
  bool each = strcmp(b->deck->moe.balance_over, "sequence") == 0;
  const ts_tid in[] = {logits, chosen, b->labels};
  const ts_attr attr = {.loads = {.groups = each ? (int) size->batch : 1,
                                  .length = each ? size->length : size->batch * size->length,
                                  .sigmoid = f->router_sigmoid}};
  ts_tid loads = add_node(b, TS_OP_ROUTE_LOADS, f->router, "loads", 3, in, attr);
  if (!is_balanced(b)) {
    return;
  }
  b->loads =
      b->loads == TS_NONE ? loads : ts_model_add(b, ts_model_inside(f->router, "loads.sum").text, b->loads, loads);
  ++b->n_loads;
}

void ts_model_balance(ts_model_builder *b) {
  const ts_tid in[] = {b->loads, b->loads};
  const ts_attr attr = {
      .balance = {.layers = b->n_loads, .aux = (float) aux_coef(b), .z = (float) b->deck->moe.z_loss_coef}};
  ts_tid loss = ts_graph_add(
      b->base.at,
      &(ts_node){.op = TS_OP_BALANCE_LOSS, .name = "balance", .n_in = 2, .in = in, .attr = attr, .beta = TS_NONE});
  ts_graph_mark(b->base.at.graph, "balance", loss);
}

/* ---- where a token's rows are ---- */

/* Weights and places from logits of E experts, and a bias or TS_NONE. */
static routed dispatch(ts_model_builder *b, const char *part, ts_tid logits, ts_tid bias, ts_attr how,
                       int64_t experts) {
  bool follows = bias != TS_NONE && b->base.use == TS_MODEL_TRAIN && b->deck->expert_parallel.load_balance_coeff > 0;
  const ts_tid in[] = {logits, bias, b->labels};
  ts_tid weight = add_node(b, TS_OP_ROUTE, part, "route", follows ? 3 : bias != TS_NONE ? 2 : 1, in, how);
  ts_tid chosen = weight + 1;
  ts_tid order = add_node(b, TS_OP_DISPATCH, part, "dispatch", 1, &chosen, (ts_attr){.experts = {.n = (int) experts}});
  return (routed){weight, order, order + 1, order + 2};
}

static ts_tid combine_tokens(ts_model_builder *b, const char *part, ts_tid y, const routed *to) {
  const ts_tid in[] = {y, to->order, to->place, to->first, to->weight};
  return add_node(b, TS_OP_COMBINE, part, "combine", 5, in, (ts_attr){0});
}

/* ---- those that are chosen ---- */

static routed route(ts_model_builder *b, ts_tid x) {
  const ts_deck_model *m = b->model;
  const ts_family *f = b->family;
  ts_tid logits = ts_model_linear(b, f->router, x, m->num_experts, false, true);
  if (strcmp(b->deck->moe.router_dtype, "model") == 0) {
    logits =
        ts_build_cast(b->base.at, ts_model_name_of(b, ts_model_inside(f->router, "fp32").text).text, logits, TS_F32);
  }
  const ts_attr how = {.route = {.k = (int) m->num_experts_per_tok,
                                 .groups = (int) m->n_group,
                                 .top_groups = (int) m->topk_group,
                                 .sigmoid = f->router_sigmoid,
                                 .normalize = f->router_normalizes || m->norm_topk_prob,
                                 .scale = (float) m->routed_scaling_factor}};
  ts_tid bias = f->router_bias != NULL ? ts_model_router_bias(b) : TS_NONE;
  routed to = dispatch(b, f->router, logits, bias, how, m->num_experts);
  if (b->base.use == TS_MODEL_TRAIN) {
    measure_loads(b, logits, to.weight + 1);
  }
  return to;
}

/* Rows times the matrices [E][out][in] of a stack. */
static ts_tid multiply_rows(ts_model_builder *b, const char *name, ts_tid rows, int64_t out, const routed *to) {
  ts_shape shape = TS_SHAPE(b->model->num_experts, out, ts_builder_width(&b->base, rows));
  const ts_tid in[] = {rows, ts_model_stack(b, ts_model_inside(b->family->experts, name).text, shape), to->first};
  return add_node(b, TS_OP_GROUPED, b->family->experts, name, 3, in,
                  (ts_attr){.matmul = {.transpose_b = true, .dtype = TS_F32}});
}

static ts_tid think(ts_model_builder *b, ts_tid x) {
  const ts_family *f = b->family;
  int64_t inner = b->model->moe_intermediate_size;
  routed to = route(b, x);
  const ts_tid in[] = {x, to.order, to.place, to.first};
  ts_tid rows = add_node(b, TS_OP_TAKE_ROWS, f->experts, "rows", 4, in, (ts_attr){0});
  ts_tid gate = multiply_rows(b, f->expert_gate, rows, inner, &to),
         up = multiply_rows(b, f->expert_up, rows, inner, &to);
  const ts_tid both[] = {gate, up, to.first};
  ts_tid y = add_node(b, TS_OP_GLU, f->experts, "act", 3, both, (ts_attr){.activation = {ts_model_activation(b)}});
  return combine_tokens(b, f->experts, multiply_rows(b, f->expert_down, y, b->model->hidden_size, &to), &to);
}

/* ---- the one that all tokens go through ---- */

/* Times the sigmoid of a logit: as the rows of one expert, which all tokens choose with this weight. */
static ts_tid scale_shared(ts_model_builder *b, ts_tid x, ts_tid y) {
  const char *part = b->family->shared_expert_gate;
  ts_tid logits = ts_model_linear(b, part, x, 1, false, true);
  routed to = dispatch(b, part, logits, TS_NONE, (ts_attr){.route = {.k = 1, .sigmoid = true, .scale = 1}}, 1);
  const ts_shape *shape = &b->base.at.graph->tensor[y].shape;
  ts_shape rows = TS_SHAPE(ts_shape_rows(shape), shape->d[shape->n - 1]);
  ts_model_name name = ts_model_name_of(b, ts_model_inside(part, "rows").text);
  return combine_tokens(b, part, ts_build_view(b->base.at, name.text, y, 0, rows), &to);
}

static ts_tid add_shared(ts_model_builder *b, ts_tid x, ts_tid y) {
  const ts_family *f = b->family;
  const ts_deck_model *m = b->model;
  int64_t inner = m->shared_expert_intermediate_size + m->n_shared_experts * m->moe_intermediate_size;
  if (f->shared_expert == NULL || inner == 0) {
    return y;
  }
  ts_tid shared = ts_model_mlp(b, f->shared_expert, x, inner);
  shared = f->shared_expert_gate != NULL ? scale_shared(b, x, shared) : shared;
  return ts_model_add(b, ts_model_inside(f->shared_expert, "add").text, y, shared);
}

ts_tid ts_model_experts(ts_model_builder *b, ts_tid x) {
  return add_shared(b, x, think(b, x));
}
