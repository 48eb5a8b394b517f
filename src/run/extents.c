/* What a program has in a file: an extent for each place of each leaf, in blocks that no copy cuts. */
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

typedef struct extents {
  ts_store_extent *list;
  int n, capacity;
} extents;

/* Of the leaves of one place of an arena, which begins there in the file. */
static void add_leaves(extents *to, const ts_program *program, const ts_place *place, ts_arena arena, int64_t begin,
                       int64_t most) {
  const ts_graph *g = program->graph;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_address at = program->plan->address[t];
    if (g->tensor[t].role == TS_ROLE_STATE && at.arena == arena) {
      TS_GROW(to->list, to->n, to->capacity);
      to->list[to->n++] = (ts_store_extent){
          .offset = begin + at.offset, .bytes = ts_tensor_bytes(g, t), .block = block_of(g, place, t, most)};
    }
  }
}

ts_store_extent *ts_program_extents(const ts_program *program, int *n) {
  const int64_t request = ts_store_options_of(program->deck).block_size;
  const int64_t most = request < TS_OFFLOAD_BLOCK ? request : TS_OFFLOAD_BLOCK;
  ts_place *place = ts_storage_find(program->graph);
  extents all = {0};
  for (ts_arena a = TS_ARENA_FILE; a < TS_ARENA_PINNED; ++a) {
    for (int i = 0; i < program->step.n_places[ts_arenas[a].lifetime]; ++i) {
      add_leaves(&all, program, place, a, ts_plan_file_begin(program->plan, a) + i * program->plan->slot_bytes[a],
                 most);
    }
  }
  ts_free(place);
  *n = all.n;
  return all.list;
}

int64_t ts_program_store_bytes(const ts_program *program) {
  ts_store_options options = ts_store_options_of(program->deck);
  int n;
  ts_store_extent *extent = ts_program_extents(program, &n);
  int64_t bytes = n > 0 ? ts_store_memory(&options, extent, n) : 0;
  ts_free(extent);
  return bytes;
}
