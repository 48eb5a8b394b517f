/* The loss scale: what flows into the loss is the host's seed times the scale, which lives on the device, so the host
 * waits for nobody between steps.  pass/record divides by it again, and gives the next step its scale. */
#include "graph/rewrite.h"
#include "ops/build.h"
#include "pass/pass.h"
#include "pass/record.h"

static void scale_seed(ts_rewrite *r, const ts_node *node, ts_tid seed) {
  const ts_tid in[] = {ts_rewrite_tensor(r, seed), ts_record_loss_scale(r->to)};
  r->map[seed] = ts_build((ts_site){r->to, node->segment, -1}, TS_OP_SCALE_LOSS, "gradient_seed.scaled", 2, in);
}

void ts_pass_loss_scale(ts_graph **graph, ts_pass_context *context) {
  ts_tid seed = ts_graph_find(*graph, "gradient_seed"); /* without a loss whoever gives gradients scales them */
  if (ts_deck_loss_scaler(context->deck).rule == TS_LOSS_SCALE_NONE || seed == TS_NONE) {
    return;
  }
  ts_rewrite r = ts_rewrite_begin(*graph);
  for (ts_nid n = 0; n < r.from->n_nodes; ++n) {
    const ts_node *node = &r.from->node[n];
    for (int i = 0; i < node->n_in; ++i) {
      if (node->in[i] == seed && r.map[seed] == TS_NONE) {
        scale_seed(&r, node, seed);
      }
    }
    ts_rewrite_copy(&r, n);
  }
  ts_rewrite_marks(&r);
  ts_rewrite_end(&r, graph);
}
