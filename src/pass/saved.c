#include "pass/saved.h"

#include "base/memory.h"
#include "base/text.h"
#include "pass/plan.h"

#include <string.h>

/* "exp_avg" of "PART.exp_avg"; NULL for what belongs to another part or is not saved under its own name. */
static const char *state_name(const char *leaf, const char *part) {
  static const char *const others[] = {"param", "gradient", "master"};
  size_t n = strlen(part);
  if (strncmp(leaf, part, n) != 0 || leaf[n] != '.' || strchr(leaf + n + 1, '.') != NULL) {
    return NULL;
  }
  for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
    if (strcmp(leaf + n + 1, others[i]) == 0) {
      return NULL;
    }
  }
  return leaf + n + 1;
}

static ts_saved_leaf describe(const ts_graph *graph, const ts_layout *layout, const ts_part *part, ts_tid leaf,
                              const char *state, bool whole) {
  int64_t first = part->cuts[layout->my_shard];
  return (ts_saved_leaf){.state = state,
                         .leaf = leaf,
                         .dtype = graph->tensor[leaf].dtype,
                         .whole = whole,
                         .first = whole ? first : 0,
                         .count = part->cuts[layout->my_shard + 1] - first};
}

bool ts_saved_leaf_find(const ts_graph *graph, const ts_layout *layout, int index, const char *name,
                        ts_saved_leaf *out) {
  const ts_part *part = &layout->part[index];
  char *full = ts_format("%s.%s", part->name, name);
  ts_tid leaf = ts_graph_find(graph, full);
  ts_free(full);
  if (leaf == TS_NONE) {
    return false;
  }
  bool shard = strcmp(name, "param") != 0 && layout->n_shards > 1 && ts_tensor_count(graph, leaf) == part->shard;
  *out = describe(graph, layout, part, leaf, name, !shard);
  return true;
}

int ts_saved_leaves(const ts_graph *graph, const ts_layout *layout, int index, ts_saved_leaf out[TS_MOST_SAVED]) {
  const ts_part *part = &layout->part[index];
  bool found = ts_saved_leaf_find(graph, layout, index, "master", &out[0]) ||
               ts_saved_leaf_find(graph, layout, index, "param", &out[0]) ||
               ts_saved_leaf_find(graph, layout, index, "param.shard", &out[0]);
  TS_CHECK(found, "part %s has no parameters", part->name);
  out[0].state = "parameter";
  int n = 1;
  for (ts_tid t = 0; t < graph->n_tensors; ++t) {
    const char *state = graph->tensor[t].role == TS_ROLE_STATE ? state_name(graph->tensor[t].name, part->name) : NULL;
    if (state != NULL) {
      TS_CHECK(n < TS_MOST_SAVED, "part %s has more than %d states", part->name, TS_MOST_SAVED);
      ts_saved_leaf_find(graph, layout, index, state, &out[n++]);
    }
  }
  return n;
}

int64_t ts_saved_bytes(const ts_graph *graph, const ts_layout *layout) {
  int64_t bytes = 0;
  for (int i = 0; i < layout->n_parts; ++i) {
    ts_saved_leaf leaf[TS_MOST_SAVED];
    int n = ts_saved_leaves(graph, layout, i, leaf);
    for (int k = 0; k < n; ++k) {
      int64_t size = layout->part[i].shard * (int64_t) ts_dtype_size(leaf[k].dtype);
      bytes += (size + TS_PLAN_ALIGN - 1) / TS_PLAN_ALIGN * TS_PLAN_ALIGN;
    }
  }
  return bytes;
}
