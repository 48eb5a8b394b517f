/* Where a model's units are cut: by a list, evenly by number or weight, or so that the slowest piece is as fast as can
 * be.  A table that two units read weighs in each. */
#include "base/memory.h"
#include "family/family.h"
#include "graph/op.h"
#include "pass/partition.h"
#include "pass/stage.h"

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

/* FLOPs that products do while memory moves a byte: of a core of the last ten years 5 to 20 in fp32. */
#define FLOPS_A_BYTE 10.0

/* Forward and backward of its nodes, in bytes that memory would move meanwhile: what a product computes, and what any
 * node reads and writes; backward is twice the forward. */
void ts_stage_times(const ts_graph *g, double *weight) {
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    double bytes = 0, flops = ts_node_flops(g, node);
    for (int i = 0; i < node->n_in + node->n_out; ++i) {
      ts_tid t = i < node->n_in ? node->in[i] : node->out[i - node->n_in];
      bool table = i == 0 && node->op == TS_OP_EMBEDDING; /* of which some rows are read */
      bytes += t != TS_NONE && !table ? (double) ts_tensor_bytes(g, t) : 0;
    }
    if (node->unit >= 0 && (ts_op_get(node->op)->flags & TS_OP_ALIAS) == 0) {
      double products = flops / FLOPS_A_BYTE;
      weight[node->unit] += 3 * (products > bytes ? products : bytes);
    }
  }
}

/* What Hugging Face calls a unit's class: "LlamaDecoderLayer", "GPT2Block", "Embedding", "LlamaRMSNorm", "Linear". */
static char *class_of(const ts_deck *deck, const char *unit) {
  const ts_family *f = ts_deck_model_is_own(deck) ? NULL : ts_family_find(deck->model.model_type);
  if (f == NULL) {
    return ts_strdup("");
  }
  const char *end = strstr(f->architecture, "ForCausalLM");
  end = end != NULL ? end : strstr(f->architecture, "LMHeadModel");
  int length = end != NULL ? (int) (end - f->architecture) : (int) strlen(f->architecture);
  bool block = strncmp(unit, f->layers, strlen(f->layers)) == 0 && unit[strlen(f->layers)] == '.';
  if (block && strncmp(f->architecture, "GPTNeoX", 7) == 0) {
    return ts_strdup("GPTNeoXLayer");
  }
  if (block) {
    return ts_format("%.*s%s", length, f->architecture, strcmp(f->model_type, "gpt2") == 0 ? "Block" : "DecoderLayer");
  }
  if (strcmp(unit, f->final_norm) == 0) {
    return f->norm_kind == TS_NORM_LAYER ? ts_strdup("LayerNorm") : ts_format("%.*sRMSNorm", length, f->architecture);
  }
  return ts_strdup(strcmp(unit, f->head) == 0 ? "Linear" : "Embedding");
}

/* 1 of those whose name or class the expression matches, case ignored. */
static void weigh_type(const ts_graph *g, const ts_deck *deck, double *weight) {
  char *pattern = ts_format("(?i)%s", deck->pipeline.partition + strlen(TS_PARTITION_TYPE));
  for (int u = 0; u < g->n_units; ++u) {
    char *class = class_of(deck, g->unit[u]);
    weight[u] = ts_matches(pattern, g->unit[u]) == 1 || ts_matches(pattern, class) == 1;
    ts_free(class);
  }
  ts_free(pattern);
}

static bool is_by_type(const ts_deck *deck) {
  return strncasecmp(deck->pipeline.partition, TS_PARTITION_TYPE, strlen(TS_PARTITION_TYPE)) == 0;
}

static double *weigh_units(const ts_graph *g, const ts_deck *deck) {
  double *weight = ts_calloc((size_t) g->n_units + 1, sizeof *weight);
  if (is_by_type(deck)) {
    weigh_type(g, deck, weight);
  } else if (strcmp(deck->pipeline.partition, "time") == 0) {
    ts_stage_times(g, weight);
  } else {
    weigh_parameters(g, weight);
  }
  return weight;
}

/* ---- cuts ---- */

static void cut_by_list(const ts_deck *deck, int *cuts) {
  cuts[0] = 0;
  for (int k = 0; k < deck->pipeline.units.n; ++k) {
    cuts[k + 1] = cuts[k] + (int) deck->pipeline.units.items[k];
  }
}

void ts_stage_cuts(const ts_graph *g, const ts_deck *deck, int pieces, int *cuts) {
  if (deck->pipeline.units.n > 0) {
    cut_by_list(deck, cuts);
  } else if (strcmp(deck->pipeline.partition, "uniform") == 0) {
    ts_partition_uniform(g->n_units, pieces, cuts);
  } else {
    double *weight = weigh_units(g, deck);
    bool time = strcmp(deck->pipeline.partition, "time") == 0;
    (time ? ts_partition_least_most : ts_partition_balanced)(g->n_units, weight, pieces, cuts);
    ts_free(weight);
  }
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
  double *weight = weigh_units(g, deck), sum = 0;
  for (int u = 0; u < g->n_units; ++u) {
    sum += weight[u];
  }
  ts_free(weight);
  return sum > 0 ? TS_OK
                 : refuse_cuts(g, deck, "pipeline.partition",
                               "the expression matches no unit, by its name or its class in Hugging Face", err);
}

static ts_status check_no_empty(const ts_graph *g, const ts_deck *deck, int pieces, ts_error *err) {
  int *cuts = ts_calloc((size_t) pieces + 1, sizeof *cuts);
  ts_status status = TS_OK;
  ts_stage_cuts(g, deck, pieces, cuts);
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

ts_status ts_stage_cuts_check(const ts_graph *g, const ts_deck *deck, int pieces, ts_error *err) {
  if (pieces > g->n_units) {
    char *problem = ts_format("%d pieces, and each has a unit at least; accepted: up to as many", pieces);
    ts_status status = refuse_cuts(g, deck, "pipeline.stages", problem, err);
    ts_free(problem);
    return status;
  }
  ts_status status = deck->pipeline.units.n > 0 ? check_list(g, deck, pieces, err) : check_type(g, deck, err);
  return status == TS_OK ? check_no_empty(g, deck, pieces, err) : status;
}
