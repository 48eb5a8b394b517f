/* The experts of a layer: a router chooses some for each token, rows are brought together by expert, products with a
 * matrix for each expert make an MLP, and each token gets the weighted sum of its rows (Shazeer et al. 2017, Fedus et
 * al. 2021; without capacities, Gale et al. 2022). */
#include "model/routing.h"
#include "ops/build.h"

/* ---- those that are chosen ---- */

static ts_tid combine_tokens(ts_model_builder *b, const char *part, ts_tid y, const ts_routed *to) {
  const ts_tid in[] = {y, to->order, to->place, to->first, to->weight};
  return ts_routing_add(b, TS_OP_COMBINE, part, "combine", 5, in, (ts_attr){0});
}

/* Rows times the matrices of a stack, [E][out][in] or [E][in][out], and the biases [E][out] that the family has. */
static ts_tid multiply_rows(ts_model_builder *b, const char *name, ts_tid rows, int64_t out, const ts_routed *to) {
  const ts_family *f = b->family;
  const ts_graph *g = b->base.at.graph;
  int64_t experts = g->tensor[to->first].shape.d[0] - 1, in_width = ts_builder_width(&b->base, rows);
  ts_model_name stack = ts_model_inside(f->experts, name);
  ts_shape shape = f->in_first ? TS_SHAPE(experts, in_width, out) : TS_SHAPE(experts, out, in_width);
  const ts_tid in[] = {rows, ts_model_stack(b, stack.text, ".weight", shape), to->first};
  ts_tid y = ts_routing_add(b, TS_OP_GROUPED, f->experts, name, 3, in,
                            (ts_attr){.matmul = {.transpose_b = !f->in_first, .dtype = TS_F32}});
  if (!ts_routing_is_deepspeed(b) || !ts_model_is_biased(b, f->mlp_bias)) {
    return y;
  }
  const ts_tid with[] = {y, ts_model_stack(b, stack.text, ".bias", TS_SHAPE(experts, out)), to->first};
  return ts_routing_add(b, TS_OP_GROUPED_BIAS, f->experts, ts_model_inside(name, "add").text, 3, with, (ts_attr){0});
}

static ts_tid think(ts_model_builder *b, ts_tid x, int64_t experts) {
  const ts_family *f = b->family;
  int64_t inner = b->model->moe_intermediate_size;
  ts_routed to = ts_routing_choose(b, x, experts);
  const ts_tid in[] = {x, to.order, to.place, to.first};
  const ts_attr act = {.activation = {ts_model_activation(b)}};
  ts_tid rows = ts_routing_add(b, TS_OP_TAKE_ROWS, f->experts, "rows", 4, in, (ts_attr){0}), y;
  if (f->expert_gate != NULL) {
    ts_tid gate = multiply_rows(b, f->expert_gate, rows, inner, &to);
    const ts_tid both[] = {gate, multiply_rows(b, f->expert_up, rows, inner, &to), to.first};
    y = ts_routing_add(b, TS_OP_GLU, f->experts, "act", 3, both, act);
  } else {
    const ts_tid one[] = {multiply_rows(b, f->expert_up, rows, inner, &to), to.first};
    y = ts_routing_add(b, TS_OP_ACTIVATION, f->experts, "act", 2, one, act);
  }
  return combine_tokens(b, f->experts, multiply_rows(b, f->expert_down, y, b->model->hidden_size, &to), &to);
}

/* ---- the one that all tokens go through ---- */

/* Times the sigmoid of a logit: as the rows of one expert, which all tokens choose with this weight. */
static ts_tid scale_shared(ts_model_builder *b, ts_tid x, ts_tid y) {
  const char *part = b->family->shared_expert_gate;
  ts_routed to = ts_routing_of_all(b, part, x);
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

/* Residual MoE (Rajbhandari et al. 2022; deepspeed/moe/layer.py). */
static ts_tid add_residual(ts_model_builder *b, ts_tid x, ts_tid y) {
  const ts_family *f = b->family;
  if (!ts_routing_is_deepspeed(b) || !b->deck->moe.use_residual) {
    return y;
  }
  ts_tid mlp = ts_model_mlp(b, f->residual, x, b->model->intermediate_size);
  const ts_tid in[] = {y, mlp, ts_model_linear(b, f->residual_gate, x, 2, true, true)};
  return ts_routing_add(b, TS_OP_BLEND, f->residual, "blend", 3, in, (ts_attr){0});
}

ts_tid ts_model_experts(ts_model_builder *b, ts_tid x, int64_t experts) {
  return add_residual(b, x, add_shared(b, x, think(b, x, experts)));
}
