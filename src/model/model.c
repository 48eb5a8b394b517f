#include "model/model.h"

#include "base/memory.h"
#include "model/parts.h"

#include <math.h>
#include <string.h>

ts_graph *ts_model_build(const ts_deck *deck, ts_model_use use, ts_model_size size) {
  ts_graph *graph = ts_graph_create();
  ts_model_decoder(deck, use, size, graph);
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
  const ts_family *f = ts_family_find(deck->model.model_type);
  double std = deck->model.initializer_range;
  if (ts_model_ends_in(parameter, ".bias")) {
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
