/* What a program has in a file: an extent for each leaf, in blocks that no copy cuts. */
#include "base/deal.h"
#include "base/memory.h"
#include "graph/op.h"
#include "pass/offload.h"
#include "pass/storage.h"
#include "run/executor.h"

#include <string.h>

_Static_assert(TS_PLAN_PAGE == TS_STORE_ALIGN, "what a plan places by pages a store moves");

ts_store_options ts_store_options_of(const ts_deck *deck) {
  const ts_deck_aio *aio = &deck->aio;
  return (ts_store_options){.directory = ts_deck_files(deck),
                            .block_size = aio->block_size / TS_STORE_ALIGN * TS_STORE_ALIGN,
                            .queue_depth = (int) aio->queue_depth,
                            .threads = (int) aio->intra_op_parallelism};
}

/* The largest block of at most `most` bytes at whose multiples all copies of a leaf begin and end, or where it does. */
static int64_t block_of(const ts_graph *g, const ts_place *place, ts_tid leaf, int64_t most) {
  int64_t block = most;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    if (ts_node_copies(node) == TS_SPACE_FILE && place[node->in[0]].root == leaf) {
      int64_t begin = place[node->in[0]].offset, end = begin + ts_tensor_bytes(g, node->in[0]);
      block = ts_common_divisor(block, begin);
      block = end < ts_tensor_bytes(g, leaf) ? ts_common_divisor(block, end) : block;
    }
  }
  TS_CHECK(block % TS_STORE_ALIGN == 0, "%s is copied in pieces that a file cannot be read in",
           g->tensor[leaf].name); /* ts_offload_piece */
  return block;
}

ts_store_extent *ts_program_extents(const ts_program *program, int *n) {
  const int64_t request = ts_store_options_of(program->deck).block_size;
  const int64_t most = request < TS_OFFLOAD_BLOCK ? request : TS_OFFLOAD_BLOCK;
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

int64_t ts_program_store_bytes(const ts_program *program) {
  ts_store_options options = ts_store_options_of(program->deck);
  int n;
  ts_store_extent *extent = ts_program_extents(program, &n);
  int64_t bytes = n > 0 ? ts_store_memory(&options, extent, n) : 0;
  ts_free(extent);
  return bytes;
}
