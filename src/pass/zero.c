/* ZeRO: parameters become windows on flat storage; gathers, reductions and the update are added.
 *
 * (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC20.)  The stage only
 * decides which of {optimizer state, gradient, parameter} keeps this rank's shard:
 *
 *   stage   parameter          gradient                     reduced              after the update
 *   0       whole              whole, sums micro-batches    once, scatter+gather -
 *   1       whole              whole, sums micro-batches    once, scatter        all_gather of parameters
 *   2       whole              shard, sums reduced shards   every micro-batch    all_gather of parameters
 *   3       shard (persistent  shard                        every micro-batch    all_gather of persistent parts
 *           parts whole)
 *
 * Per shard element the arithmetic is the same in every stage: sum over ranks in rank order, then AdamW.  Updates that
 * wait for the next forward (ts_offload_waits) have their gathers there.
 *
 * With context->defers gradients are whole at every stage and sum what was not reduced yet; a shard beside them sums
 * what was.  So any micro-batches may be reduced together, also several times a step, with the bits of stage 1. */
#include "pass/zero.h"

#include "base/memory.h"
#include "graph/op.h"
#include "pass/optimizer.h"
#include "pass/record.h"

#include <string.h>

bool ts_part_sums_whole(const ts_pass_context *context, const ts_part *part) {
  return !ts_zero_is_spread(part) || context->deck->zero_optimization.stage < 2 || context->defers;
}

/* ---- storage ---- */

static ts_dtype dtype_of(const ts_zero *z, const ts_part *part, const ts_state_info *info) {
  return info->dtype == TS_WORKING   ? part->work
         : info->dtype == TS_SUMS    ? ts_optimizer_sums(z->context->deck, part->optimizer)
         : info->dtype == TS_MOMENTS ? part->moments
                                     : (ts_dtype) info->dtype;
}

ts_tid ts_zero_state(ts_zero *z, int index, ts_state state, bool whole) {
  const ts_part *part = &z->layout->part[index];
  const ts_state_info *info = ts_state_get(state);
  TS_CHECK(info->block > 0 && ts_part_align(part) % info->block == 0, "state %s: its blocks do not fit in shards",
           info->name);
  int64_t count = ts_state_elements(info->block, whole ? ts_zero_whole(part) : part->shard);
  char *name = ts_format("%s.%s", part->name, whole ? info->name : info->shard);
  const ts_tensor leaf = {.name = name,
                          .role = TS_ROLE_STATE,
                          .space = ts_offload_space(z->context, part, state),
                          .dtype = dtype_of(z, part, info),
                          .shape = TS_SHAPE(count),
                          .held = {state, index, whole},
                          .producer = TS_NONE,
                          .unit = part->unit};
  ts_tid t = ts_graph_add_leaf(z->rewrite.to, &leaf);
  ts_free(name);
  return t;
}

bool ts_zero_is_elsewhere(const ts_zero *z, ts_tid t) {
  return t != TS_NONE && ts_space_is_away(z->rewrite.to->tensor[t].space);
}

/* Files are beside the host's memory: beside a device there are two copies either way. */
static ts_space beside_files(const ts_zero *z) {
  return z->context->target.backend->device != NULL ? TS_SPACE_PINNED : TS_SPACE_BACKEND;
}

static ts_tid copy_of(ts_site at, ts_op op, const char *of, const char *what, int n_in, const ts_tid *in) {
  char *name = ts_format("%s.%s", of, what);
  ts_tid y = ts_build(at, op, name, n_in, in);
  ts_free(name);
  return y;
}

ts_tid ts_zero_bring(const ts_zero *z, ts_site at, ts_tid t) {
  const ts_tensor *tensor = z->rewrite.to->tensor;
  if (t != TS_NONE && tensor[t].space == TS_SPACE_FILE) {
    char *name = ts_format("%s.load", tensor[t].name);
    t = ts_build_load(at, name, t, beside_files(z));
    ts_free(name);
  }
  return ts_zero_is_elsewhere(z, t) ? copy_of(at, TS_OP_COPY_IN, z->rewrite.to->tensor[t].name, "in", 1, &t) : t;
}

ts_tid ts_zero_put_back(const ts_zero *z, ts_site at, ts_tid home, ts_tid x) {
  if (!ts_zero_is_elsewhere(z, home)) {
    return x;
  }
  const char *name = z->rewrite.to->tensor[home].name;
  bool stored = z->rewrite.to->tensor[home].space == TS_SPACE_FILE;
  if (!stored || beside_files(z) == TS_SPACE_PINNED) {
    x = copy_of(at, TS_OP_COPY_OUT, name, "out", 2, (ts_tid[]){stored ? TS_NONE : home, x});
  }
  return stored ? copy_of(at, TS_OP_STORE, name, "store", 2, (ts_tid[]){home, x}) : x;
}

ts_tid ts_zero_bring_to_host(ts_site at, ts_tid t) {
  const ts_tensor *tensor = at.graph->tensor;
  if (t == TS_NONE || tensor[t].space == TS_SPACE_PINNED) {
    return t;
  }
  if (tensor[t].space != TS_SPACE_FILE) {
    return copy_of(at, TS_OP_COPY_OUT, tensor[t].name, "out", 2, (ts_tid[]){TS_NONE, t});
  }
  char *name = ts_format("%s.load", tensor[t].name);
  ts_tid y = ts_build_load(at, name, t, TS_SPACE_PINNED);
  ts_free(name);
  return y;
}

ts_tid ts_zero_put_back_from_host(ts_site at, ts_tid home, ts_tid x) {
  const ts_tensor *tensor = &at.graph->tensor[home];
  if (tensor->space == TS_SPACE_PINNED) {
    return x;
  }
  bool stored = tensor->space == TS_SPACE_FILE;
  return copy_of(at, stored ? TS_OP_STORE : TS_OP_COPY_INTO, tensor->name, stored ? "store" : "into", 2,
                 (ts_tid[]){home, x});
}

int64_t ts_zero_whole(const ts_part *part) {
  return part->group * part->shard;
}

ts_tid ts_zero_my_window(ts_site at, const ts_part *part, ts_tid whole) {
  char *name = ts_format("%s.mine", part->name);
  ts_tid t = ts_build_view(at, name, whole, part->rank * part->shard, TS_SHAPE(part->shard));
  ts_free(name);
  return t;
}

static void make_storage(ts_zero *z) {
  for (int i = 0; i < z->layout->n_parts; ++i) {
    const ts_part *part = &z->layout->part[i];
    ts_part_state *s = &z->part[i];
    s->param = s->whole = s->gradient = s->shard = s->updated = s->fresh = s->sum = s->squares = TS_NONE;
    if (!part->here) {
      continue;
    }
    s->param = ts_zero_state(z, i, TS_STATE_PARAMETER, !ts_zero_parameter_is_sharded(z, part));
    s->whole = ts_zero_parameter_is_fetched(z, part) ? TS_NONE : s->param;
    if (part->trainable && ts_zero_is_training(z)) {
      bool whole = ts_zero_sums_whole(z, part), beside = z->context->defers && ts_zero_is_spread(part);
      s->gradient = ts_zero_state(z, i, TS_STATE_GRADIENT, whole);
      s->shard = beside ? ts_zero_state(z, i, TS_STATE_GRADIENT, false) : whole ? TS_NONE : s->gradient;
      const size_t together = (size_t) ts_zero_together(z);
      s->produced = ts_malloc(together * (size_t) part->n_parameters * sizeof *s->produced);
      s->earlier = ts_ids_none(part->n_parameters);
      s->missing = ts_malloc(together * sizeof *s->missing);
      for (size_t m = 0; m < together; ++m) {
        s->missing[m] = part->n_parameters;
      }
    }
  }
}

/* ---- windows, and fetching what they are on ---- */

/* The whole of a part is made anew: its parameters are windows on that from now on. */
static void take_whole(ts_zero *z, int index, ts_tid whole) {
  const ts_part *part = &z->layout->part[index];
  z->part[index].whole = whole;
  for (int p = part->first; p < part->first + part->n_parameters; ++p) {
    z->window[p] = z->low[p] = TS_NONE;
  }
}

/* A unit has a gather for each set of axes: the first is called as the unit, others as their first part. */
static void emit_gather(ts_zero *z, ts_site at, ts_bucket *b) {
  const ts_part *first = &z->layout->part[b->part[0]];
  bool leads = true;
  for (const ts_part *part = z->layout->part; part < first; ++part) {
    leads = leads && (part->unit != first->unit || !ts_zero_parameter_is_sharded(z, part));
  }
  char *name = ts_format("%s.gather", leads ? at.graph->unit[first->unit] : first->name);
  ts_tid y = ts_build_all_gather(at, name, b->axes, b->group, b->n, b->x, NULL, b->n, b->piece);
  for (int k = 0; k < b->n; ++k) {
    take_whole(z, b->part[k], y + k);
  }
  ts_free(name);
}

/* This rank's shard as it travels. */
static ts_tid shard_to_gather(const ts_zero *z, ts_site at, int index) {
  const ts_part *part = &z->layout->part[index];
  ts_tid shard = ts_zero_bring(z, at, z->part[index].param);
  if (part->gathered == part->work) {
    return shard;
  }
  char *name = ts_format("%s.shard.%s", part->name, ts_dtype_name(part->gathered));
  ts_tid y = ts_build_cast(at, name, shard, part->gathered);
  ts_free(name);
  return y;
}

/* What is needed of: a copy from where it lives, a gather of the shards of all. */
static void fetch_unit(ts_zero *z, ts_site at, int unit) {
  ts_buckets buckets = {0};
  for (int i = 0; i < z->layout->n_parts; ++i) {
    const ts_part *part = &z->layout->part[i];
    if (part->unit != unit || !part->here || !ts_zero_parameter_is_fetched(z, part)) {
      continue;
    }
    if (!ts_zero_parameter_is_sharded(z, part)) {
      take_whole(z, i, ts_zero_bring(z, at, z->part[i].param));
    } else {
      ts_bucket_add(z, at, &buckets, i, shard_to_gather(z, at, i), part->gathered, INT64_MAX, INT64_MAX, emit_gather);
    }
  }
  ts_bucket_flush(z, at, &buckets, emit_gather);
  ts_bucket_free(&buckets);
}

/* Blocks that are computed again cast their weights again, so that none of these is there between; the unit in which
 * the forward ends does not. */
static bool is_stale(const ts_zero *z, ts_site at, int p) {
  bool again = z->context->deck->activation_checkpointing.enabled && at.unit != z->last_unit;
  int chunk = ts_node_chunk(at.graph, &(ts_node){.unit = at.unit});
  return z->low[p] == TS_NONE || z->low_chunk[p] != chunk || (again && z->low_phase[p] != ts_segment_phase(at.segment));
}

/* On a pipeline micro-batches overlap, and what the forward makes for the backward would be kept for each: what is
 * there all the step is cast once for all of them. */
static bool casts_once(const ts_zero *z, ts_site at, const ts_parameter *p) {
  bool stays = z->keeps || !ts_zero_parameter_is_fetched(z, &z->layout->part[p->part]);
  bool again = z->context->deck->activation_checkpointing.enabled && at.unit != z->last_unit;
  return ts_zero_is_training(z) && z->context->stages != NULL && z->context->step->accumulates && stays && !again &&
         at.segment == TS_SEGMENT_FORWARD;
}

/* A parameter as a node reads it: a window on the whole of its part, or that in the lower type. */
static ts_tid read_parameter(ts_zero *z, ts_site at, int index, ts_dtype dtype) {
  const ts_parameter *p = &z->layout->parameter[index];
  if (z->window[index] == TS_NONE) {
    z->window[index] = ts_build_view(at, p->name, z->part[p->part].whole, p->offset, p->held);
  }
  if (at.graph->tensor[z->window[index]].dtype == dtype) {
    return z->window[index];
  }
  if (is_stale(z, at, index)) {
    char *name = ts_format("%s.%s", p->name, ts_dtype_name(dtype));
    ts_site where = at;
    where.segment = casts_once(z, at, p) ? TS_SEGMENT_PREPARE : at.segment;
    z->low[index] = ts_build_cast(where, name, z->window[index], dtype);
    z->low_phase[index] = ts_segment_phase(at.segment);
    z->low_chunk[index] = ts_node_chunk(at.graph, &(ts_node){.unit = at.unit});
    ts_free(name);
  }
  return z->low[index];
}

/* Parameters that a node reads stand for themselves while it is copied. */
static void map_inputs(ts_zero *z, ts_site at, const ts_node *node) {
  const ts_graph *from = z->rewrite.from;
  for (int i = 0; i < node->n_in; ++i) {
    ts_tid t = node->in[i];
    if (t == TS_NONE || from->tensor[t].role != TS_ROLE_PARAM) {
      continue;
    }
    const ts_parameter *p = ts_layout_find(z->layout, from->tensor[t].name);
    TS_CHECK(p != NULL && ts_shape_equal(&p->held, &from->tensor[t].shape),
             "%s: a program has it otherwise than the one that made the layout", from->tensor[t].name);
    int index = (int) (p - z->layout->parameter);
    z->rewrite.map[t] = read_parameter(z, at, index, ts_node_reads(from, node, i));
  }
}

/* What a tensor of the old graph is the gradient of. */
typedef struct gradient_of {
  int parameter; /* -1: of nothing */
  bool earlier;  /* to which another one is added */
  int64_t m;     /* the micro-batch of those that are together */
} gradient_of;

static void note_gradient(const ts_zero *z, gradient_of *list, int index, int64_t m) {
  const ts_graph *from = z->rewrite.from;
  ts_tid leaf = ts_graph_find(from, z->layout->parameter[index].name);
  ts_tid gradient = ts_graph_gradient_of(from, leaf, m), earlier = ts_graph_earlier_of(from, leaf, m);
  TS_CHECK(gradient != TS_NONE, "parameter %s has no gradient: nothing of the loss depends on it",
           z->layout->parameter[index].name);
  list[gradient] = (gradient_of){.parameter = index, .m = m};
  if (earlier != TS_NONE) {
    list[earlier] = (gradient_of){.parameter = index, .m = m, .earlier = true};
  }
}

/* By tensor of the old graph. */
static gradient_of *find_gradients(const ts_zero *z) {
  const ts_graph *from = z->rewrite.from;
  gradient_of *of = ts_malloc(((size_t) from->n_tensors + 1) * sizeof *of);
  for (ts_tid t = 0; t < from->n_tensors; ++t) {
    of[t].parameter = -1;
  }
  for (int i = 0; ts_zero_is_training(z) && i < z->layout->n_parameters; ++i) {
    const ts_part *part = &z->layout->part[z->layout->parameter[i].part];
    for (int64_t m = 0; m < ts_zero_together(z) && part->trainable && part->here; ++m) {
      note_gradient(z, of, i, m);
    }
  }
  return of;
}

static void walk_graph(ts_zero *z) {
  gradient_of *gradients = find_gradients(z);
  int *units = NULL, *gathers = z->stage == 3 ? ts_zero_plan_gathers(z, &units, &z->keeps) : NULL;
  int next = 0;
  ts_site at = ts_graph_site(z->rewrite.to);
  for (ts_nid n = 0; n < z->rewrite.from->n_nodes; ++n) {
    const ts_node *node = &z->rewrite.from->node[n];
    if (node->segment != TS_SEGMENT_FORWARD && at.unit >= 0 &&
        ts_node_chunk(z->rewrite.from, node) != ts_node_chunk(z->rewrite.from, &(ts_node){.unit = at.unit})) {
      ts_zero_flush(z, at); /* what is reduced together is of one piece of the model */
    }
    at.segment = node->segment;
    at.unit = node->unit;
    for (int k = 0; gathers != NULL && k < gathers[n]; ++k) {
      ts_site once = at;
      once.segment = z->keeps && at.segment == TS_SEGMENT_FORWARD ? TS_SEGMENT_PREPARE : at.segment;
      fetch_unit(z, once, units[next++]);
    }
    map_inputs(z, at, node);
    ts_rewrite_copy(&z->rewrite, n);
    for (int i = 0; i < node->n_out; ++i) {
      gradient_of of = gradients[node->out[i]];
      ts_tid gradient = z->rewrite.map[node->out[i]];
      if (of.parameter >= 0 && of.earlier) {
        ts_zero_add_earlier(z, at, of.parameter, gradient);
      } else if (of.parameter >= 0) {
        ts_zero_add_gradient(z, at, of.parameter, of.m, gradient);
      }
    }
  }
  ts_zero_flush(z, at);
  ts_free(gradients);
  ts_free(gathers);
  ts_free(units);
}

/* This rank's sum over micro-batches of one of the results named at the model's loss.  Programs of one engine share
 * states by name, and an evaluation may come between the backwards of a step: it has sums of its own. */
static ts_tid sum_result(ts_zero *z, ts_site at, const char *result) {
  char *name = ts_format("%s%s_sum", ts_zero_is_training(z) ? "" : "evaluated_", result);
  ts_tid sum = ts_graph_state(at.graph, name, (ts_held){TS_STATE_SUM, -1, true},
                              (ts_dtype) ts_state_get(TS_STATE_SUM)->dtype, TS_SHAPE(1), -1);
  for (int64_t m = 0; m < ts_zero_together(z); ++m) {
    char *mark = ts_together_name(result, m);
    ts_tid value = ts_rewrite_tensor(&z->rewrite, ts_graph_marked(z->rewrite.from, mark));
    sum = ts_build_accumulate(at, name, sum, value, m == 0 ? z->beta : ts_zero_one(z));
    ts_free(mark);
  }
  ts_free(name);
  return sum;
}

/* What programs read after each forward. */
static void mark_outputs(ts_zero *z) {
  const ts_graph *from = z->rewrite.from;
  for (int m = 0; m < from->n_marks; ++m) {
    const char *name = from->mark[m].name;
    bool loss = strcmp(name, "loss") == 0 || strcmp(name, "valid") == 0 || strcmp(name, "balance") == 0;
    if (strncmp(name, TS_OUTPUT_MARK, strlen(TS_OUTPUT_MARK)) == 0 || (loss && z->context->by_hand)) {
      ts_graph_mark(z->rewrite.to, name, ts_rewrite_tensor(&z->rewrite, from->mark[m].tensor));
    }
  }
}

static void add_results(ts_zero *z) {
  ts_graph *to = z->rewrite.to;
  ts_zero_count_loads(z);
  bool elsewhere = ts_stages_end(z->context->stages) != z->context->mesh->coord[TS_AXIS_PP];
  if (z->context->use != TS_MODEL_LOGITS && elsewhere) { /* the loss is where the pipeline ends */
    ts_zero_add_update(z, TS_NONE, TS_NONE, TS_NONE);
    return;
  }
  if (elsewhere) {
    return;
  }
  if (z->context->use == TS_MODEL_LOGITS) {
    ts_graph_mark(to, "logits", ts_rewrite_tensor(&z->rewrite, ts_graph_marked(z->rewrite.from, "logits")));
    return;
  }
  mark_outputs(z);
  if (ts_graph_marked(z->rewrite.from, "loss") == TS_NONE) {
    if (ts_zero_is_training(z)) { /* the host has the loss: it gives gradients of outputs */
      ts_site update = {to, TS_SEGMENT_UPDATE, -1};
      ts_zero_add_update(z, ts_record_scalar(update, "no_loss", TS_F64, 1),
                         ts_record_scalar(update, "counted", TS_F64, 1), TS_NONE);
    }
    return;
  }
  /* after the last node of the micro-batch: a fused loss is made among the gradients */
  ts_site at = {to, ts_zero_is_training(z) ? TS_SEGMENT_BACKWARD_WEIGHT : TS_SEGMENT_FORWARD, -1};
  ts_tid loss = sum_result(z, at, "loss"), valid = sum_result(z, at, "valid");
  bool balances = ts_graph_marked(z->rewrite.from, "balance") != TS_NONE;
  ts_zero_add_update(z, loss, valid, balances ? sum_result(z, at, "balance") : TS_NONE);
}

static int last_unit_of(const ts_graph *g) {
  ts_nid n = g->n_nodes - 1;
  while (n > 0 && g->node[n].segment != TS_SEGMENT_FORWARD) {
    --n;
  }
  return g->node[n].unit;
}

static ts_tid beta_leaf(ts_zero *z, const char *name) {
  return ts_graph_leaf(z->rewrite.to, name, TS_ROLE_INPUT, TS_F32, TS_SHAPE(1), -1);
}

void ts_pass_zero(ts_graph **graph, ts_pass_context *context) {
  const ts_deck *deck = context->deck;
  ts_zero z = {.rewrite = ts_rewrite_begin(*graph),
               .context = context,
               .layout = context->layout,
               .stage = (int) deck->zero_optimization.stage,
               .work = ts_deck_dtype(deck),
               .accumulate = deck->data_types.grad_accum_dtype};
  z.part = ts_calloc((size_t) z.layout->n_parts, sizeof *z.part);
  z.window = ts_malloc((size_t) z.layout->n_parameters * sizeof *z.window);
  for (int i = 0; i < z.layout->n_parameters; ++i) {
    z.window[i] = TS_NONE;
  }
  z.low = ts_ids_none(z.layout->n_parameters);
  z.low_phase = ts_calloc((size_t) z.layout->n_parameters + 1, sizeof *z.low_phase);
  z.low_chunk = ts_calloc((size_t) z.layout->n_parameters + 1, sizeof *z.low_chunk);
  z.last_unit = last_unit_of(*graph);
  z.beta = beta_leaf(&z, "accumulate");
  z.beta_of_bucket = z.beta;
  z.beta_local = context->defers ? beta_leaf(&z, "accumulate_local") : z.beta;
  z.beta_reduced = context->defers ? beta_leaf(&z, "accumulate_reduced") : TS_NONE;
  make_storage(&z);
  ts_zero_update_late(&z);
  walk_graph(&z);
  add_results(&z);
  for (int i = 0; i < z.layout->n_parts; ++i) {
    ts_free(z.part[i].produced);
    ts_free(z.part[i].missing);
    ts_free(z.part[i].earlier);
  }
  ts_free(z.part);
  ts_free(z.window);
  ts_free(z.low);
  ts_free(z.low_phase);
  ts_free(z.low_chunk);
  ts_bucket_free(&z.reduce);
  ts_rewrite_end(&z.rewrite, graph);
}
