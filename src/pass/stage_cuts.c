/* Where a model's units are cut: by a list, evenly by number or weight, or so that the slowest piece is as fast as can
 * be.  A table that two units read weighs in each. */
#include "base/memory.h"
#include "graph/op.h"
#include "pass/partition.h"
#include "pass/rates.h"
#include "pass/recompute.h"
#include "pass/stage.h"

#include <math.h>
#include <string.h>
#include <strings.h>

/* ---- weights of units ---- */

/* The elements of the parameters that its nodes read. */
static void weigh_parameters(const ts_graph *g, double *weight) {
  int *last = ts_ids_none(g->n_tensors);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    for (int i = 0; i < node->n_in; ++i) {
      ts_tid t = node->in[i];
      if (t != TS_NONE && g->tensor[t].role == TS_ROLE_PARAM && node->unit >= 0 && last[t] != node->unit) {
        last[t] = node->unit;
        weight[node->unit] += (double) ts_tensor_count(g, t);
      }
    }
  }
  ts_free(last);
}

static bool has_weight(const ts_graph *g, const ts_node *node) {
  bool has = false;
  for (int i = 0; i < node->n_in && (ts_op_get(node->op)->flags & TS_OP_PRODUCT) != 0; ++i) {
    has = has || (node->in[i] != TS_NONE && g->tensor[node->in[i]].role == TS_ROLE_PARAM);
  }
  return has;
}

/* Units that are computed again: of those with attention. */
static bool *find_repeated(const ts_graph *g, const ts_deck *deck) {
  bool *repeated = ts_calloc((size_t) g->n_units + 1, sizeof *repeated);
  for (ts_nid n = 0; n < g->n_nodes && deck->activation_checkpointing.enabled; ++n) {
    int unit = g->node[n].op == TS_OP_ATTENTION ? g->node[n].unit : -1;
    if (unit >= 0) {
      repeated[unit] = ts_recompute_takes(deck, g->unit[unit]);
    }
  }
  return repeated;
}

void ts_stage_seconds(const ts_graph *g, const ts_deck *deck, const ts_backend *backend, ts_pipeline_seconds *unit) {
  const ts_rates rates = ts_rates_of(deck, backend);
  bool *repeated = find_repeated(g, deck);
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    if (node->unit >= 0) {
      double once = ts_node_seconds(g, node, &rates);
      bool head = node->op == TS_OP_HEAD_LOSS, weight = !head && has_weight(g, node);
      ts_pipeline_seconds *of = &unit[node->unit];
      of->forward += head ? 0 : once;
      of->input += (head ? 3 : weight ? 1 : 2) * once + (repeated[node->unit] ? once : 0);
      of->weight += weight ? once : 0;
    }
  }
  ts_free(repeated);
}

/* 1 of those whose name or class the expression matches, case ignored. */
static void weigh_type(const ts_graph *g, const ts_deck *deck, double *weight) {
  char *pattern = ts_format("(?i)%s", deck->pipeline.partition + strlen(TS_PARTITION_TYPE));
  for (int u = 0; u < g->n_units; ++u) {
    char *class = ts_unit_class(deck, g->unit[u]);
    weight[u] = ts_matches(pattern, g->unit[u]) == 1 || ts_matches(pattern, class) == 1;
    ts_free(class);
  }
  ts_free(pattern);
}

static bool is_by_type(const ts_deck *deck) {
  return strncasecmp(deck->pipeline.partition, TS_PARTITION_TYPE, strlen(TS_PARTITION_TYPE)) == 0;
}

static bool is_by(const ts_deck *deck, const char *name) {
  return strcasecmp(deck->pipeline.partition, name) == 0;
}

static void weigh_time(const ts_graph *g, const ts_deck *deck, const ts_backend *backend, double *weight) {
  ts_pipeline_seconds *unit = ts_calloc((size_t) g->n_units + 1, sizeof *unit);
  ts_stage_seconds(g, deck, backend, unit);
  for (int u = 0; u < g->n_units; ++u) {
    weight[u] = unit[u].forward + unit[u].input + unit[u].weight;
  }
  ts_free(unit);
}

/* ---- cuts ---- */

static void cut_by_list(const ts_deck *deck, int *cuts) {
  cuts[0] = 0;
  for (int k = 0; k < deck->pipeline.units.n; ++k) {
    cuts[k + 1] = cuts[k] + (int) deck->pipeline.units.items[k];
  }
}

bool ts_stage_cuts_are_decided(const ts_deck *deck) {
  return is_by(deck, "best") || is_by(deck, "time") || is_by(deck, "memory");
}

bool ts_stage_cuts_are_listed(const ts_deck *deck, int pieces) {
  static const char *const by = "pipeline.partition", *const units = "pipeline.units", *const word = "--set";
  bool kept = ts_deck_is_set(deck, by) && ts_stage_cuts_are_decided(deck); /* beside it a list is what it came to */
  bool anew = kept && strcmp(ts_deck_origin(deck, by), word) == 0 && strcmp(ts_deck_origin(deck, units), word) != 0;
  return deck->pipeline.decided || (deck->pipeline.units.n > 0 && !anew && (deck->pipeline.units.n == pieces || !kept));
}

void ts_stage_cuts(const ts_graph *g, const ts_deck *deck, const ts_backend *backend, int pieces, int *cuts) {
  if (ts_stage_cuts_are_listed(deck, pieces)) {
    cut_by_list(deck, cuts);
    return;
  }
  if (is_by(deck, "uniform")) {
    ts_partition_uniform(g->n_units, pieces, cuts);
    return;
  }
  double *weight = ts_calloc((size_t) g->n_units + 1, sizeof *weight);
  if (is_by_type(deck)) {
    weigh_type(g, deck, weight);
  } else if (is_by(deck, "parameters")) {
    weigh_parameters(g, weight);
  } else {
    weigh_time(g, deck, backend, weight);
  }
  bool balanced = is_by_type(deck) || is_by(deck, "parameters");
  (balanced ? ts_partition_balanced : ts_partition_least_most)(g->n_units, weight, pieces, cuts);
  ts_free(weight);
}

/* ---- what can be wrong ---- */

/* "A, B, C". */
static void add_units(const ts_graph *g, ts_text *to) {
  for (int u = 0; u < g->n_units; ++u) {
    ts_text_add(to, "%s%s", u > 0 ? ", " : "", g->unit[u]);
  }
}

static ts_status refuse_cuts(const ts_graph *g, const ts_deck *deck, const char *key, const char *problem,
                             ts_error *err) {
  ts_text units = {0};
  add_units(g, &units);
  ts_deck_error(deck, key, err, "%s; the model has %d units: %s", problem, g->n_units, units.text);
  ts_text_free(&units);
  return TS_BAD_INPUT;
}

static ts_status check_list(const ts_graph *g, const ts_deck *deck, int pieces, ts_error *err) {
  int64_t sum = 0;
  for (int k = 0; k < deck->pipeline.units.n; ++k) {
    sum += deck->pipeline.units.items[k];
  }
  if (deck->pipeline.units.n == pieces && sum == g->n_units) {
    return TS_OK;
  }
  char *problem = ts_format("%d numbers that add up to %lld; accepted: %d, one for each piece, that add up to %d",
                            deck->pipeline.units.n, (long long) sum, pieces, g->n_units);
  ts_status status = refuse_cuts(g, deck, "pipeline.units", problem, err);
  ts_free(problem);
  return status;
}

static ts_status check_type(const ts_graph *g, const ts_deck *deck, ts_error *err) {
  if (!is_by_type(deck)) {
    return TS_OK;
  }
  double *weight = ts_calloc((size_t) g->n_units + 1, sizeof *weight), sum = 0;
  weigh_type(g, deck, weight);
  for (int u = 0; u < g->n_units; ++u) {
    sum += weight[u];
  }
  ts_free(weight);
  return sum > 0 ? TS_OK
                 : refuse_cuts(g, deck, "pipeline.partition",
                               "the expression matches no unit, by its name or its class in Hugging Face", err);
}

static ts_status check_no_empty(const ts_graph *g, const ts_deck *deck, const ts_backend *backend, int pieces,
                                ts_error *err) {
  int *cuts = ts_calloc((size_t) pieces + 1, sizeof *cuts);
  ts_status status = TS_OK;
  ts_stage_cuts(g, deck, backend, pieces, cuts);
  for (int k = 0; k < pieces && status == TS_OK; ++k) {
    if (cuts[k] == cuts[k + 1]) {
      char *problem = ts_format("\"%s\" leaves piece %d of %d empty; accepted: fewer stages, or another cut "
                                "(pipeline.units lists one)",
                                deck->pipeline.partition, k, pieces);
      status = refuse_cuts(g, deck, "pipeline.partition", problem, err);
      ts_free(problem);
    }
  }
  ts_free(cuts);
  return status;
}

ts_status ts_stage_cuts_check(const ts_graph *g, const ts_deck *deck, const ts_backend *backend, int pieces,
                              ts_error *err) {
  if (pieces > g->n_units) {
    char *problem = ts_format("%d pieces, and each has a unit at least; accepted: up to as many", pieces);
    ts_status status = refuse_cuts(g, deck, "pipeline.stages", problem, err);
    ts_free(problem);
    return status;
  }
  bool listed = ts_stage_cuts_are_listed(deck, pieces);
  ts_status status = listed ? check_list(g, deck, pieces, err) : check_type(g, deck, err);
  return status == TS_OK ? check_no_empty(g, deck, backend, pieces, err) : status;
}
