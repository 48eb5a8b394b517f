#include "pass/saved.h"

#include "base/memory.h"
#include "pass/plan.h"
#include "pass/state.h"

#include <string.h>

/* This rank's share of a state of a part. */
static ts_saved_leaf describe_leaf(const ts_graph *graph, const ts_layout *layout, ts_tid leaf) {
  const ts_tensor *tensor = &graph->tensor[leaf];
  const ts_state_info *info = ts_state_get(tensor->held.state);
  const ts_part *part = &layout->part[tensor->held.part];
  ts_saved_leaf s = {.state = info->saved,
                     .kind = tensor->held.state,
                     .leaf = leaf,
                     .dtype = tensor->dtype,
                     .block = info->block,
                     .whole = tensor->held.whole};
  if (s.block == 0) { /* everybody has all of it */
    s.count = ts_tensor_count(graph, leaf);
    return s;
  }
  int64_t begin = ts_state_elements(s.block, ts_part_begin(part));
  s.first = s.whole ? begin : 0;
  s.count = ts_state_elements(s.block, ts_part_end(part)) - begin;
  return s;
}

bool ts_saved_leaf_find(const ts_graph *graph, const ts_layout *layout, int index, ts_state state, ts_saved_leaf *out) {
  ts_tid leaf = ts_graph_find_state(graph, state, index);
  if (leaf != TS_NONE) {
    *out = describe_leaf(graph, layout, leaf);
  }
  return leaf != TS_NONE;
}

/* Is there a state of the part with the same name in checkpoints and a row before? */
static bool is_covered(const ts_graph *graph, const ts_held *held) {
  const char *saved = ts_state_get(held->state)->saved;
  for (ts_state s = TS_STATE_NONE; s < held->state; ++s) {
    const char *other = ts_state_get(s)->saved;
    if (other != NULL && strcmp(other, saved) == 0 && ts_graph_find_state(graph, s, held->part) != TS_NONE) {
      return true;
    }
  }
  return false;
}

int ts_saved_leaves(const ts_graph *graph, const ts_layout *layout, int index, ts_saved_leaf out[TS_MOST_SAVED]) {
  const char *part = layout->part[index].name;
  if (!layout->part[index].of_stage) {
    return 0;
  }
  bool found = ts_saved_leaf_find(graph, layout, index, TS_STATE_MASTER, &out[0]) ||
               ts_saved_leaf_find(graph, layout, index, TS_STATE_PARAMETER, &out[0]);
  TS_CHECK(found, "part %s has no parameters", part);
  int n = 1;
  for (ts_tid t = 0; t < graph->n_tensors; ++t) {
    const ts_tensor *tensor = &graph->tensor[t];
    bool saved = tensor->role == TS_ROLE_STATE && tensor->held.part == index &&
                 ts_state_get(tensor->held.state)->saved != NULL && !is_covered(graph, &tensor->held);
    if (saved && t != out[0].leaf) {
      TS_CHECK(n < TS_MOST_SAVED, "part %s has more than %d states", part, TS_MOST_SAVED);
      out[n++] = describe_leaf(graph, layout, t);
    }
  }
  return n;
}

int64_t ts_saved_bytes(const ts_graph *graph, const ts_layout *layout) {
  int64_t bytes = 0;
  for (int i = 0; i < layout->n_parts; ++i) {
    ts_saved_leaf leaf[TS_MOST_SAVED];
    int n = layout->part[i].owned ? ts_saved_leaves(graph, layout, i, leaf) : 0;
    for (int k = 0; k < n; ++k) {
      int64_t most = leaf[k].block > 0 ? ts_state_elements(leaf[k].block, layout->part[i].shard) : leaf[k].count;
      int64_t size = most * (int64_t) ts_dtype_size(leaf[k].dtype);
      bytes += ts_plan_align(size);
    }
  }
  return bytes;
}
