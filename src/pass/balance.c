/* Which tokens the balance of experts is that of: a rank's own, or those of several ranks, whose loads are then added
 * up.  The sum's gradient is complete on every rank (BALANCE_LOSS_DX is that of all ranks' losses), as all_reduce has
 * it. */
#include "base/memory.h"
#include "graph/rewrite.h"
#include "ops/build.h"
#include "pass/pass.h"
#include "pass/shard.h"

#include <string.h>

typedef struct adder {
  ts_rewrite rewrite;
  const ts_mesh *mesh;
} adder;

static ts_tid add_up(adder *a, const ts_node *loss, const char *suffix, ts_tid loads, unsigned axes) {
  int group = ts_mesh_group_size(a->mesh, axes);
  if (group == 1) {
    return loads;
  }
  char *name = ts_format("%s.%s", loss->name, suffix);
  ts_tid sum = ts_build_all_reduce((ts_site){a->rewrite.to, loss->segment, loss->unit}, name, axes, group, loads);
  ts_free(name);
  return sum;
}

/* Ranks along tp have loads of their own tokens or all the same; along sp a sample's tokens are dealt. */
static unsigned axes_of_balance(const ts_pass_context *context) {
  bool all = strcmp(context->deck->moe.balance_over, "global") == 0;
  bool by_rows = context->shards != NULL && context->shards->loads_by_rows;
  return (all ? TS_AXES_DENSE : TS_AXES(TS_AXIS_SP)) | (by_rows ? TS_AXES(TS_AXIS_TP) : 0);
}

static void write_loss(adder *a, ts_nid n, const ts_pass_context *context) {
  const ts_node *old = &a->rewrite.from->node[n];
  const ts_shards *shards = context->shards;
  bool by_rows = shards != NULL && shards->loads_by_rows, split = shards != NULL && shards->loss_by_rows;
  TS_CHECK(by_rows || !split, "%s: the loss is of each rank's rows, and loads are not", old->name);
  ts_tid own = ts_rewrite_tensor(&a->rewrite, old->in[0]);
  ts_tid in[] = {add_up(a, old, "loads", own, axes_of_balance(context)),
                 by_rows && !split ? add_up(a, old, "own", own, TS_AXES(TS_AXIS_TP)) : own};
  ts_node node = *old;
  node.in = in;
  ts_rewrite_add(&a->rewrite, n, &node);
}

void ts_pass_balance(ts_graph **graph, ts_pass_context *context) {
  if (ts_graph_marked(*graph, "balance") == TS_NONE) {
    return;
  }
  adder a = {.rewrite = ts_rewrite_begin(*graph), .mesh = context->mesh};
  for (ts_nid n = 0; n < (*graph)->n_nodes; ++n) {
    if ((*graph)->node[n].op == TS_OP_BALANCE_LOSS) {
      write_loss(&a, n, context);
    } else {
      ts_rewrite_copy(&a.rewrite, n);
    }
  }
  ts_rewrite_marks(&a.rewrite);
  ts_rewrite_end(&a.rewrite, graph);
}
