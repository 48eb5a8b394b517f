#include "model/routing.h"

#include "base/random.h"
#include "ops/build.h"

#include <string.h>

_Static_assert((int) TS_DECK_MOST_EXPERTS == (int) TS_MOST_EXPERTS, "what decks may have, ops take");
_Static_assert((int) TS_DECK_MOST_CHOSEN == (int) TS_MOST_CHOSEN, "what decks may have, ops take");

ts_tid ts_routing_add(ts_model_builder *b, ts_op op, const char *part, const char *base, int n_in, const ts_tid *in,
                      ts_attr attr) {
  return ts_graph_add(b->base.at, &(ts_node){.op = op,
                                             .name = ts_model_name_of(b, ts_model_inside(part, base).text).text,
                                             .n_in = n_in,
                                             .in = in,
                                             .attr = attr,
                                             .beta = TS_NONE});
}

bool ts_routing_is_deepspeed(const ts_model_builder *b) {
  return b->deck->moe.num_experts.n > 0;
}

static bool trains(const ts_model_builder *b) {
  return b->base.use == TS_MODEL_TRAIN;
}

/* Text is generated without a limit. */
static bool limits(const ts_model_builder *b) {
  return ts_routing_is_deepspeed(b) && b->deck->moe.drop_tokens && b->base.use != TS_MODEL_LOGITS;
}

static ts_attr attr_of_router(const ts_model_builder *b) {
  const ts_deck_model *m = b->model;
  const ts_family *f = b->family;
  if (ts_routing_is_deepspeed(b)) {
    const ts_deck_moe *moe = &b->deck->moe;
    bool sums_to_1 = moe->k > 1 && !limits(b);
    return (ts_attr){.route = {.k = (int) moe->k, .normalize = sums_to_1, .scale = 1, .sure = moe->k == 2 ? 1 : 0}};
  }
  return (ts_attr){.route = {.k = (int) m->num_experts_per_tok,
                             .groups = (int) m->n_group,
                             .top_groups = (int) m->topk_group,
                             .sigmoid = f->router_sigmoid,
                             .normalize = f->router_normalizes || m->norm_topk_prob,
                             .scale = (float) m->routed_scaling_factor}};
}

/* ---- noise ---- */

/* x with noise UNIT.ROUTER.base. */
static ts_tid with_noise(ts_model_builder *b, const char *base, ts_tid x, ts_noise kind, float width) {
  ts_model_name name = ts_model_name_of(b, ts_model_inside(b->family->router, base).text);
  const ts_tid in[] = {x, ts_builder_seed(&b->base), ts_builder_samples(&b->base)};
  const ts_attr attr = {.dropout = {.p = width, .name = ts_hash_name(name.text), .kind = kind}};
  return ts_routing_add(b, TS_OP_DROPOUT, b->family->router, base, 3, in, attr);
}

/* What the router reads, with factors around 1 (deepspeed/moe/sharded_moe.py, multiplicative_jitter). */
static ts_tid jitter(ts_model_builder *b, ts_tid x) {
  bool is = ts_routing_is_deepspeed(b) && trains(b) && strcmp(b->deck->moe.noisy_gate_policy, "Jitter") == 0;
  return is ? with_noise(b, "jitter", x, TS_NOISE_JITTER, 1e-2f) : x;
}

/* Logits by which experts are sampled, or TS_NONE. */
static ts_tid sampled(ts_model_builder *b, ts_tid logits) {
  const ts_deck_moe *moe = &b->deck->moe;
  bool first = moe->k == 1 && strcmp(moe->noisy_gate_policy, "RSample") == 0,
       second = moe->k == 2 && moe->top2_2nd_expert_sampling;
  bool is = ts_routing_is_deepspeed(b) && trains(b) && (first || second);
  return is ? with_noise(b, "sample", logits, TS_NOISE_GUMBEL, 0) : TS_NONE;
}

/* ---- room ---- */

/* What decides which of an expert's tokens stay: TS_NONE for their order. */
static ts_tid priority(ts_model_builder *b, ts_tid weight) {
  const ts_deck_moe *moe = &b->deck->moe;
  if (moe->k == 1 && moe->use_rts && trains(b)) {
    return with_noise(b, "rts", weight, TS_NOISE_UNIFORM, 0);
  }
  return moe->k > 2 && strcmp(moe->drop_policy, "probs") == 0 ? weight : TS_NONE;
}

/* Weights and choices that experts have room for. */
static ts_tid limit(ts_model_builder *b, ts_tid weight, int64_t experts) {
  const ts_deck_moe *moe = &b->deck->moe;
  if (!limits(b)) {
    return weight;
  }
  const ts_tid in[] = {weight, weight + 1, priority(b, weight)};
  const ts_attr attr = {
      .limit = {.experts = (int) experts,
                .least = (int) moe->min_capacity,
                .factor = (float) ((trains(b) ? moe->capacity_factor : moe->eval_capacity_factor) * (double) moe->k),
                .length = strcmp(moe->capacity_over, "sequence") == 0 ? b->base.size.length : 0,
                .by_choice = moe->k == 2,
                .normalize = moe->k > 1}};
  return ts_routing_add(b, TS_OP_ROUTE_LIMIT, b->family->router, "limit", in[2] == TS_NONE ? 2 : 3, in, attr);
}

/* ---- how much each expert gets ---- */

/* The first `counted` choices of tokens, 0 for all; `taken`: what experts had room for. */
static ts_tid measure_loads(ts_model_builder *b, const char *base, ts_tid logits, ts_tid chosen, ts_tid taken,
                            int counted) {
  const ts_model_size *size = &b->base.size;
  bool each = strcmp(b->deck->moe.balance_over, "sequence") == 0;
  const ts_tid in[] = {logits, chosen, b->labels, taken};
  const ts_attr attr = {.loads = {.groups = each ? (int) size->batch : 1,
                                  .length = each ? size->length : size->batch * size->length,
                                  .sigmoid = b->family->router_sigmoid,
                                  .counted = counted}};
  return ts_routing_add(b, TS_OP_ROUTE_LOADS, b->family->router, base, taken != chosen ? 4 : 3, in, attr);
}

/* Loads of all choices and, where the loss is of others, of these. */
static void add_balance(ts_model_builder *b, ts_tid logits, ts_tid chosen, ts_tid taken) {
  const ts_deck_moe *moe = &b->deck->moe;
  bool of_first = ts_routing_is_deepspeed(b) && moe->k == 2, each = ts_routing_is_deepspeed(b);
  double of_all = b->model->output_router_logits ? b->model->router_aux_loss_coef : 0;
  ts_tid loads = measure_loads(b, "loads", logits, chosen, taken, 0);
  if (of_all != 0 || (moe->z_loss_coef != 0 && !each)) {
    ts_model_balance_add(b, loads);
  }
  if (moe->aux_loss_coef != 0 || (moe->z_loss_coef != 0 && each)) {
    int64_t counted = of_first ? 1 : ts_deck_experts_of_token(b->deck);
    ts_tid own = of_first ? measure_loads(b, "loads.first", logits, chosen, chosen, 1) : loads;
    ts_model_balance_each(b, own, moe->aux_loss_coef / (double) counted, each ? moe->z_loss_coef : 0);
  }
}

/* ---- choices ---- */

static ts_routed dispatch(ts_model_builder *b, const char *part, ts_tid weight, int64_t experts) {
  ts_tid chosen = weight + 1;
  const ts_attr attr = {.experts = {.n = (int) experts}};
  ts_tid order = ts_routing_add(b, TS_OP_DISPATCH, part, "dispatch", 1, &chosen, attr);
  return (ts_routed){weight, order, order + 1, order + 2};
}

ts_routed ts_routing_choose(ts_model_builder *b, ts_tid x, int64_t experts) {
  const ts_family *f = b->family;
  ts_tid logits = ts_model_linear(b, f->router, jitter(b, x), experts, false, true);
  if (strcmp(b->deck->moe.router_dtype, "model") == 0) {
    ts_model_name name = ts_model_name_of(b, ts_model_inside(f->router, "fp32").text);
    logits = ts_build_cast(b->base.at, name.text, logits, TS_F32);
  }
  ts_tid bias = ts_deck_has_router_bias(b->deck) ? ts_model_router_bias(b, experts) : TS_NONE,
         noised = sampled(b, logits);
  bool follows = bias != TS_NONE && trains(b) && b->deck->expert_parallel.load_balance_coeff > 0;
  const ts_tid in[] = {logits, bias, follows ? b->labels : TS_NONE, noised};
  int n_in = noised != TS_NONE ? 4 : follows ? 3 : bias != TS_NONE ? 2 : 1;
  ts_tid weight = ts_routing_add(b, TS_OP_ROUTE, f->router, "route", n_in, in, attr_of_router(b));
  ts_tid taken = limit(b, weight, experts);
  if (trains(b)) {
    add_balance(b, logits, weight + 1, taken + 1);
  }
  return dispatch(b, f->router, taken, experts);
}

ts_routed ts_routing_of_all(ts_model_builder *b, const char *part, ts_tid x) {
  ts_tid logits = ts_model_linear(b, part, x, 1, false, true);
  const ts_attr how = {.route = {.k = 1, .sigmoid = true, .scale = 1}};
  return dispatch(b, part, ts_routing_add(b, TS_OP_ROUTE, part, "route", 1, &logits, how), 1);
}
