#include "model/model.h"

#include "base/memory.h"
#include "model/leaf_modules.h"
#include "model/parts.h"

#include <math.h>
#include <string.h>

ts_graph *ts_model_build(const ts_deck *deck, ts_model_use use, ts_model_size size) {
  ts_graph *graph = ts_graph_create();
  ts_model_decoder(deck, use, size, graph);
  return graph;
}

/* Every parameter has to have a gradient. */
static void check_results(const ts_graph *g, ts_error *err) {
  bool *reaches = ts_calloc((size_t) g->n_tensors + 1, sizeof *reaches);
  for (int m = 0; m < g->n_marks; ++m) {
    reaches[g->mark[m].tensor] = true;
  }
  ts_graph_reach_back(g, false, reaches);
  int n_parameters = 0;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    bool parameter = g->tensor[t].role == TS_ROLE_PARAM;
    n_parameters += parameter;
    if (parameter && !reaches[t]) {
      ts_error_add(err, "%s: neither the loss nor an output depends on it", g->tensor[t].name);
    }
  }
  if (g->n_marks == 0 || n_parameters == 0) {
    ts_error_add(err, g->n_marks == 0 ? "it has neither a loss nor an output" : "it has no parameter");
  }
  ts_free(reaches);
}

ts_graph *ts_model_build_own(const ts_own_model *model, const ts_deck *deck, ts_model_use use, int64_t batch,
                             ts_error *err) {
  ts_graph *graph = ts_graph_create();
  ts_error refused = {0};
  ts_builder b = {.at = ts_graph_site(graph), .use = use, .size = {.batch = batch}, .leaves = ts_leaves_begin(deck)};
  graph->refused = &refused;
  model->write(&b, model->user);
  graph->refused = NULL;
  ts_leaves_end(&b.leaves, &refused);
  if (refused.count == 0) {
    check_results(graph, &refused);
  }
  if (refused.count > 0) {
    ts_error_add(err, "the model %s cannot be built: %s", model->name, refused.text);
    ts_graph_destroy(&graph);
  }
  ts_error_clear(&refused);
  return graph;
}

/* ---- first values ---- */

/* Is `base` the `name` of some block? */
static bool is_in_block(const char *base, const char *name) {
  size_t n = strlen(base), m = name != NULL ? strlen(name) : n;
  return n > m && base[n - m - 1] == '.' && strcmp(base + n - m, name) == 0;
}

static bool is_norm(const ts_family *f, const char *base) {
  bool found = strcmp(base, f->final_norm) == 0 || is_in_block(base, f->q_norm) || is_in_block(base, f->k_norm);
  for (int i = 0; i < TS_N_BLOCK_NORMS; ++i) {
    found = found || is_in_block(base, f->norm[i]);
  }
  return found;
}

ts_init ts_model_init(const ts_deck *deck, const char *parameter) {
  const ts_family *f = ts_deck_family(deck);
  double std = deck->model.initializer_range;
  if (ts_model_ends_in(parameter, ".bias") || is_in_block(parameter, f->router_bias)) {
    return (ts_init){TS_INIT_ZERO, 0};
  }
  char *base = ts_format("%.*s", (int) (strlen(parameter) - strlen(".weight")), parameter);
  bool norm = is_norm(f, base);
  ts_free(base);
  if (norm) {
    return (ts_init){f->norm_kind == TS_NORM_RMS_PLUS ? TS_INIT_ZERO : TS_INIT_ONE, 0};
  }
  if (f->narrow != NULL && ts_model_ends_in(parameter, f->narrow)) {
    std /= sqrt(2.0 * (double) deck->model.num_hidden_layers);
  }
  return (ts_init){TS_INIT_NORMAL, std};
}
