/* What a program has in a file: an extent for each leaf, in blocks that no copy cuts. */
#include "base/memory.h"
#include "graph/op.h"
#include "pass/storage.h"
#include "run/executor.h"

#include <string.h>

static int64_t greatest_common(int64_t a, int64_t b) {
  while (b != 0) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* The largest block of at most `most` bytes at whose multiples all copies of a leaf begin and end, or where it does. */
static int64_t block_of(const ts_graph *g, const ts_place *place, ts_tid leaf, int64_t most) {
  int64_t block = most;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    if (ts_node_is_copy(node) && place[node->in[0]].root == leaf) {
      int64_t begin = place[node->in[0]].offset, end = begin + ts_tensor_bytes(g, node->in[0]);
      block = greatest_common(block, begin);
      block = end < ts_tensor_bytes(g, leaf) ? greatest_common(block, end) : block;
    }
  }
  TS_CHECK(block % TS_STORE_ALIGN == 0, "%s is copied in pieces that a file cannot be read in", g->tensor[leaf].name);
  return block;
}

ts_store_extent *ts_program_extents(const ts_program *program, int64_t most, int *n) {
  const ts_graph *g = program->graph;
  ts_place *place = ts_storage_find(g);
  ts_store_extent *extent = NULL;
  int capacity = 0;
  *n = 0;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    if (g->tensor[t].role == TS_ROLE_STATE && g->tensor[t].space == TS_SPACE_FILE) {
      TS_GROW(extent, *n, capacity);
      extent[(*n)++] = (ts_store_extent){.offset = program->plan->address[t].offset,
                                         .bytes = ts_tensor_bytes(g, t),
                                         .block = block_of(g, place, t, most)};
    }
  }
  ts_free(place);
  return extent;
}
