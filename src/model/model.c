#include "model/model.h"

#include "model/parts.h"

#include <string.h>

static const ts_model_family *const families[] = {&ts_model_gpt2, &ts_model_llama};

const ts_model_family *ts_model_family_find(const char *name) {
  for (size_t i = 0; i < sizeof families / sizeof *families; ++i) {
    if (strcmp(families[i]->name, name) == 0) {
      return families[i];
    }
  }
  return NULL;
}

ts_graph *ts_model_build(const ts_deck *deck, ts_model_use use, int64_t batch, int64_t length) {
  const ts_model_family *family = ts_model_family_find(deck->model.model_type);
  TS_CHECK(family != NULL, "there is no model family %s", deck->model.model_type);
  ts_graph *graph = ts_graph_create();
  family->build(deck, use, batch, length, graph);
  return graph;
}
