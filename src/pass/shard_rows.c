/* Rows: tokens of samples, one after the other.  With sequence_parallel each rank has its own between products
 * (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022). */
#include "base/memory.h"
#include "pass/sequence.h"
#include "pass/shard_cut.h"

/* Of all ranks along sp, so that they decide alike. */
static int64_t least_tokens(const ts_sharding *s) {
  const ts_sequence *sequence = s->context->sequence;
  return sequence != NULL && s->context->mesh->size[TS_AXIS_SP] > 1 ? ts_sequence_least(sequence) : s->length;
}

/* The record counts the loss of each rank's rows or that of one rank: not where a loss has parts of which some are of
 * no rows. */
static bool has_parts(const ts_sharding *s) {
  const ts_node *loss = ts_graph_producer(s->graph, ts_graph_marked(s->graph, "loss"));
  return loss != NULL && loss->op != TS_OP_HEAD_LOSS;
}

/* Of generation there are too few. */
static bool deals_rows(const ts_sharding *s) {
  return !has_parts(s) && s->context->deck->tensor_parallel.sequence_parallel && s->context->use != TS_MODEL_LOGITS &&
         s->batch * least_tokens(s) >= s->context->mesh->size[TS_AXIS_TP];
}

/* Tokens that are dispatched among several experts. */
static bool is_dispatch(const ts_node *node) {
  return node->op == TS_OP_DISPATCH && node->attr.experts.n > 1;
}

static bool dispatches_tokens(const ts_sharding *s) {
  bool any = false;
  for (ts_nid n = 0; n < s->graph->n_nodes; ++n) {
    any = any || is_dispatch(&s->graph->node[n]);
  }
  return any && s->context->use != TS_MODEL_LOGITS && s->batch * least_tokens(s) >= s->context->mesh->size[TS_AXIS_TP];
}

void ts_sharding_deal_rows(ts_sharding *s) {
  s->experts_only = !deals_rows(s) && !s->cuts_experts && dispatches_tokens(s);
  if (deals_rows(s) || s->experts_only) {
    s->rows = (ts_run_of){ts_dealing_add(s->dealing, s->batch * s->length, 1), 1};
  }
}

static bool begins_with_tokens(const ts_sharding *s, ts_tid t) {
  const ts_shape *shape = &ts_sharding_tensor(s, t)->shape;
  return shape->n >= 2 && shape->d[0] == s->batch && shape->d[1] == s->length;
}

/* Can the node do rows by themselves?  What has rows begins with samples and tokens. */
static bool can_cut_rows(const ts_sharding *s, const ts_node *node, ts_cut *cut) {
  if (s->rows.size == 0 || s->experts_only || !ts_node_cut(s->graph, node, '*', cut) ||
      cut->units != s->batch * s->length) {
    return false;
  }
  bool can = true;
  for (int i = 0; i < node->n_in && can; ++i) {
    ts_tid t = node->in[i];
    can = t == TS_NONE || (!s->spread[t].dealt && (cut->in[i].dim < 0 ? !s->spread[t].rows : begins_with_tokens(s, t)));
  }
  for (int i = 0; i < node->n_out && can && node->op != TS_OP_HEAD_LOSS; ++i) {
    can = cut->out[i].dim == 0 && begins_with_tokens(s, node->out[i]);
  }
  return can;
}

bool ts_sharding_cut_by_rows(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  if (!can_cut_rows(s, node, &how->cut)) {
    return false;
  }
  for (int i = 0; i < node->n_in; ++i) {
    ts_tid t = node->in[i];
    if (t == TS_NONE || s->spread[t].rows) {
      continue;
    }
    if (how->cut.in[i].dim >= 0) {
      how->take |= 1u << i;
    }
    how->share |= ts_sharding_is_differentiable(s, t) ? 1u << i : 0;
    s->partial[t] = s->partial[t] || ts_sharding_is_parameter(s, t);
  }
  s->loss_by_rows = s->loss_by_rows || node->op == TS_OP_HEAD_LOSS; /* each rank's, which the record adds up */
  for (int i = 0; i < node->n_out && node->op != TS_OP_HEAD_LOSS; ++i) {
    s->spread[node->out[i]] = (ts_spread){.rows = true};
  }
  how->index = '*';
  how->run = s->rows;
  how->size = 1;
  return true;
}

/* Does the node bring together by expert the tokens that each rank has, or work on what was?  Where rows are for
 * experts alone routers, their room and loads are those of all tokens, on every rank. */
static bool is_routed(const ts_sharding *s, const ts_node *node) {
  bool takes = node->op == TS_OP_DISPATCH || node->op == TS_OP_ROUTE_LOADS || node->op == TS_OP_ROUTE_LIMIT;
  bool routed = s->experts_only ? is_dispatch(node) : takes && s->spread[node->in[0]].rows;
  for (int i = 0; i < node->n_in; ++i) {
    routed = routed || (node->in[i] != TS_NONE && s->spread[node->in[i]].routed);
  }
  const ts_shape *out = &ts_sharding_tensor(s, node->out[0])->shape;
  bool flat = out->n == 2 && out->d[0] == s->batch * s->length && !begins_with_tokens(s, node->out[0]);
  return routed || (node->op == TS_OP_VIEW && s->spread[node->in[0]].rows && flat);
}

bool ts_sharding_follow_routed(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  enum { PLACE = 1 };
  if (!is_routed(s, node)) {
    return false;
  }
  for (int i = 0; i < node->n_in; ++i) {
    ts_tid t = node->in[i];
    if (ts_sharding_is_parameter(s, t)) {
      s->partial[t] = true;
    } else if (t != TS_NONE && !s->spread[t].rows && !s->spread[t].routed) { /* labels; what all ranks have */
      how->take |= 1u << i;
      how->share |= s->experts_only && ts_sharding_is_differentiable(s, t) ? 1u << i : 0;
    }
  }
  for (int i = 0; i < node->n_out; ++i) {
    bool of_tokens =
        node->op == TS_OP_COMBINE || node->op == TS_OP_ROUTE_LIMIT || (node->op == TS_OP_DISPATCH && i == PLACE);
    s->spread[node->out[i]] = (ts_spread){.rows = of_tokens, .routed = !of_tokens};
  }
  if (node->op == TS_OP_COMBINE && s->experts_only) {
    how->gathered = ts_malloc(sizeof *how->gathered);
    *how->gathered = s->spread[node->out[0]];
    s->spread[node->out[0]] = (ts_spread){0};
  }
  how->index = '*';
  how->run = s->rows;
  how->size = 1;
  return true;
}

bool ts_sharding_begins_rows(const ts_sharding *s, const ts_node *node) {
  bool lookup = node->op == TS_OP_EMBEDDING && !s->spread[node->in[0]].dealt;
  return s->rows.size > 0 && !s->experts_only && (lookup || node->op == TS_OP_HEAD_LOSS);
}

void ts_sharding_scatter_sums(ts_sharding *s, const ts_node *node, ts_node_share *how) {
  how->scatter =
      how->sums && s->rows.size > 0 && !s->experts_only && node->n_out == 1 && begins_with_tokens(s, node->out[0]);
  if (how->scatter) {
    s->spread[node->out[0]].rows = true;
    for (int i = 2; node->op == TS_OP_MATMUL && i < node->n_in; ++i) {
      s->partial[node->in[i]] = true; /* a bias of own rows */
    }
  }
}
