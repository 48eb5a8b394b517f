/* debug.skip_attention: of all blocks but the last the queries see no key (attr.attention.blind).  Everything has its
 * place in memory, its messages and its copies, and a step with long samples takes the time of its products alone. */
#include "deck/deck.h"
#include "pass/pass.h"

static int last_unit_with_attention(const ts_graph *g) {
  int unit = -1;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    unit = g->node[n].op == TS_OP_ATTENTION && g->node[n].unit > unit ? g->node[n].unit : unit;
  }
  return unit;
}

void ts_pass_rehearse(ts_graph **graph, ts_pass_context *context) {
  ts_graph *g = *graph;
  const int last = last_unit_with_attention(g);
  for (ts_nid n = 0; n < g->n_nodes && context->deck->debug.skip_attention; ++n) {
    if (g->node[n].op == TS_OP_ATTENTION && g->node[n].unit != last) {
      g->node[n].attr.attention.blind = true;
      ++g->changes;
    }
  }
}
