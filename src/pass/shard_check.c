/* What a deck says of tensor parallelism, against the model. */
#include "base/memory.h"
#include "pass/shard_cut.h"

#include <string.h>

/* ---- weights and their names ---- */

static bool is_weight(const ts_graph *g, ts_tid t) {
  static const char end[] = ".weight";
  size_t n = strlen(g->tensor[t].name);
  return g->tensor[t].role == TS_ROLE_PARAM && n >= sizeof end - 1 &&
         strcmp(g->tensor[t].name + n - (sizeof end - 1), end) == 0;
}

static ts_status check_marks(const ts_graph *g, const ts_deck *deck, ts_error *err) {
  ts_tp_weight *weight = ts_calloc((size_t) g->n_tensors + 1, sizeof *weight);
  int n = 0, *of = ts_ids_none(g->n_tensors);
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    if (is_weight(g, t)) {
      of[t] = n;
      weight[n++].name = g->tensor[t].name;
    }
  }
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    int64_t out, in;
    ts_tid w = ts_sharding_weight(g, &g->node[i], &out, &in);
    if (w != TS_NONE && of[w] != TS_NONE) {
      weight[of[w]].rows_out = out;
      weight[of[w]].columns_in = in;
    }
  }
  ts_status status = ts_tp_marks_check(deck, weight, n, err);
  ts_free(weight);
  ts_free(of);
  return status;
}

/* ---- shapes that cut what stays together ---- */

/* Does somebody need the whole output of a product whose columns are dealt? */
static bool is_completed(const ts_sharding *s, const ts_node *product) {
  bool completed = false;
  for (int i = s->first_reader[product->out[0]]; i < s->first_reader[product->out[0] + 1]; ++i) {
    const ts_node *reader = &s->graph->node[s->reader[i]];
    for (int k = 0; k < reader->n_in; ++k) {
      completed = completed || (reader->in[k] == product->out[0] && (s->node[s->reader[i]].complete >> k & 1) != 0);
    }
  }
  return completed;
}

/* What gave the mark its blocks: a shape, a style, a preset. */
static char *key_of(const ts_tp_mark *mark) {
  bool spec = strncmp(mark->rule, "partition_config", strlen("partition_config")) == 0;
  bool plan = strncmp(mark->rule, "tp_plan", strlen("tp_plan")) == 0;
  int word = (int) strcspn(mark->rule, " ");
  return ts_format("tensor_parallel.%.*s%s", word, mark->rule, spec ? ".shape" : plan ? ".style" : "");
}

/* A product whose shape does not fit, and how its columns are dealt without one. */
typedef struct misfit {
  const ts_sharding *s;
  const ts_node *product;
  const ts_tp_mark *mark;
  int64_t out, in;
  int64_t together; /* Outputs, of a head. */
} misfit;

static misfit misfit_of(const ts_sharding *as_marked, const ts_sharding *free, const ts_node *product) {
  misfit m = {.s = as_marked, .product = product, .together = 1};
  ts_tid w = ts_sharding_weight(as_marked->graph, product, &m.out, &m.in);
  m.mark = &as_marked->mark[w];
  if (free->spread[w].dealt && free->spread[w].dim != ts_sharding_inner_dim(product)) {
    m.together = ts_dealing_together(free->dealing, free->spread[w].of.run[0]);
  }
  return m;
}

static bool cuts_inside(const misfit *m) {
  bool inside = m->mark->unit % m->together != 0 && m->together % m->mark->unit != 0;
  for (int i = 0; i < m->mark->n_sizes; ++i) {
    inside = inside || m->mark->size[i] % m->together != 0;
  }
  return inside;
}

static void print_problem(const misfit *m, ts_text *to) {
  const char *name = ts_sharding_tensor(m->s, m->product->in[1])->name;
  int64_t unit = m->mark->unit;
  if (cuts_inside(m)) {
    ts_text_add(to, "cuts %s inside of heads of %lld outputs", name, (long long) m->together);
  } else if (m->mark->n_sizes == 0) {
    ts_text_add(to, "keeps %lld of the %lld outputs of %s together, and %d ranks cannot share them so",
                (long long) unit, (long long) m->out, name, m->s->context->mesh->size[TS_AXIS_TP]);
  } else {
    ts_text_add(to, "cuts %s in blocks of its own: what its outputs meet (queries and keys, gate and up) has others",
                name);
  }
}

/* The shape that fits, for an entry of layer_specs. */
static void print_way_out(const misfit *m, ts_text *to) {
  const int64_t *size;
  int n = ts_sharding_blocks(m->s, m->product, &size);
  if (strncmp(m->mark->rule, "partition_config", strlen("partition_config")) != 0) {
    ts_text_add(to, "an entry of partition_config.layer_specs for it with %s", n > 0 ? "shape " : "");
  }
  for (int i = 0; i < n; ++i) {
    ts_text_add(to, i > 0 ? ", %lld" : "((%lld", (long long) size[i]);
  }
  ts_text_add(to, n > 0 ? "), -1)" : "no shape");
  if (n == 0 && m->together > 1) {
    ts_text_add(to, ", or (-1, %lld, %lld)", (long long) m->together, (long long) m->in);
  }
}

/* The shape of a mark makes an output fit nobody, where without it it would. */
static ts_status refuse_cut(const misfit *m, ts_error *err) {
  ts_text problem = {0}, fits = {0};
  print_problem(m, &problem);
  print_way_out(m, &fits);
  char *key = key_of(m->mark);
  ts_status status = ts_deck_error(m->s->context->deck, key, err, "%s; accepted: %s", problem.text, fits.text);
  ts_free(key);
  ts_text_free(&problem);
  ts_text_free(&fits);
  return status;
}

static ts_status refuse_table(const ts_tp_mark *mark, const char *weight, const ts_deck *deck, ts_error *err) {
  char *key = key_of(mark);
  ts_status status = ts_deck_error(deck, key, err,
                                   "%s is a table, which is cut by vocabulary, row by row; accepted: no shape", weight);
  ts_free(key);
  return status;
}

static ts_status check_tables(const ts_sharding *as_marked, ts_error *err) {
  const ts_graph *g = as_marked->graph;
  ts_status status = TS_OK;
  for (ts_nid n = 0; n < g->n_nodes && status == TS_OK; ++n) {
    int64_t out, in;
    ts_tid w = ts_sharding_weight(g, &g->node[n], &out, &in);
    const ts_tp_mark *mark = w != TS_NONE && g->node[n].op != TS_OP_MATMUL ? &as_marked->mark[w] : NULL;
    if (mark != NULL && (mark->n_sizes > 0 || mark->unit > 1)) {
      status = refuse_table(mark, g->tensor[w].name, as_marked->context->deck, err);
    }
  }
  return status;
}

/* Where the same marks without their shapes would fit. */
static ts_status check_fit(ts_sharding *as_marked, ts_error *err) {
  const ts_graph *g = as_marked->graph;
  ts_sharding *free = ts_sharding_create(g, as_marked->context, false);
  ts_sharding_cut(as_marked);
  ts_sharding_cut(free);
  ts_status status = TS_OK;
  for (ts_nid n = 0; n < g->n_nodes && status == TS_OK; ++n) {
    const ts_node *node = &g->node[n];
    int64_t out, in;
    ts_tid w = node->op == TS_OP_MATMUL ? ts_sharding_weight(g, node, &out, &in) : TS_NONE;
    bool shaped = w != TS_NONE && (as_marked->mark[w].n_sizes > 0 || as_marked->mark[w].unit > 1);
    if (shaped && is_completed(as_marked, node) && !is_completed(free, node)) {
      misfit found = misfit_of(as_marked, free, node);
      status = refuse_cut(&found, err);
    }
  }
  ts_sharding_destroy(&free);
  return status;
}

/* Once it is cut. */
static ts_status check_experts(const ts_sharding *cut, ts_error *err) {
  const ts_tensor *stack = ts_sharding_unfit_stack(cut);
  const ts_deck *deck = cut->context->deck;
  return stack == NULL ? TS_OK
                       : ts_deck_error(deck, "expert_parallel.expert_tensor_parallel_size", err,
                                       "%lld: of %s some rank would get nothing; accepted: 1, or fewer ranks along tp",
                                       (long long) deck->expert_parallel.expert_tensor_parallel_size, stack->name);
}

static ts_status check_shapes(const ts_graph *g, const ts_pass_context *context, ts_error *err) {
  ts_sharding *as_marked = ts_sharding_create(g, context, true);
  ts_status status = check_tables(as_marked, err);
  status = status == TS_OK ? check_fit(as_marked, err) : status;
  status = status == TS_OK ? check_experts(as_marked, err) : status;
  ts_sharding_destroy(&as_marked);
  return status;
}

ts_status ts_shard_check(const ts_graph *model, const ts_deck *deck, const ts_mesh *mesh, ts_error *err) {
  if (mesh->size[TS_AXIS_TP] == 1) {
    return TS_OK;
  }
  const ts_pass_context context = {.deck = deck, .mesh = mesh, .use = TS_MODEL_TRAIN};
  ts_status status = check_marks(model, deck, err);
  return status == TS_OK ? check_shapes(model, &context, err) : status;
}
