/* The list of passes, and their runner. */
#include "base/log.h"
#include "pass/pass.h"
#include "pass/plan.h"

#include <string.h>

const ts_pass ts_passes[] = {
    {"rehearse", ts_pass_rehearse, TS_FACT_MODEL, TS_FACT_MODEL, TS_FACT_PRECISION, false,
     "attention in the last block alone, for a rehearsal of memory and copies"},
    {"precision", ts_pass_precision, TS_FACT_MODEL, TS_FACT_PRECISION, TS_FACT_GRADIENTS, false,
     "working dtypes of parameters and activations"},
    {"autocast", ts_pass_autocast, TS_FACT_PRECISION, TS_FACT_PRECISION, TS_FACT_SHARDED, false,
     "what torch.autocast computes in a lower type"},
    {"shard", ts_pass_shard, TS_FACT_PRECISION, TS_FACT_SHARDED, TS_FACT_GRADIENTS, false,
     "each rank's part of tokens, heads, columns and vocabulary, and the messages between"},
    {"experts", ts_pass_experts, TS_FACT_SHARDED, TS_FACT_SHARDED, TS_FACT_GRADIENTS, false,
     "each rank's part of the experts, and the messages between"},
    {"heads", ts_pass_head_groups, TS_FACT_SHARDED, TS_FACT_SHARDED, TS_FACT_GRADIENTS, false,
     "attention by groups of heads"},
    {"tile", ts_pass_tile, TS_FACT_SHARDED, TS_FACT_SHARDED, TS_FACT_GRADIENTS, false, "MLPs in tiles of rows"},
    {"balance", ts_pass_balance, TS_FACT_SHARDED, TS_FACT_SHARDED, TS_FACT_GRADIENTS, true,
     "loads of experts on all ranks, where their balance is that of all"},
    {"stage", ts_pass_stage, TS_FACT_SHARDED, TS_FACT_SHARDED, TS_FACT_GRADIENTS, false,
     "this rank's pieces of the model, and the messages between them; the layout of all"},
    {"autodiff", ts_pass_autodiff, TS_FACT_SHARDED, TS_FACT_GRADIENTS, TS_FACT_LAYOUT, true, "the backward step"},
    {"loss_scale", ts_pass_loss_scale, TS_FACT_GRADIENTS, TS_FACT_GRADIENTS, TS_FACT_LAYOUT, true,
     "the loss times a scale, for gradients in fp16"},
    {"recompute", ts_pass_recompute, TS_FACT_GRADIENTS, TS_FACT_RECOMPUTE, TS_FACT_LAYOUT, true,
     "activation checkpointing by unit"},
    {"exchange", ts_pass_exchange, TS_FACT_SHARDED, TS_FACT_EXCHANGED, TS_FACT_LAYOUT, false,
     "attention on the tokens of all ranks, and the messages around it"},
    {"crossing", ts_pass_crossing, TS_FACT_EXCHANGED, TS_FACT_EXCHANGED, TS_FACT_LAYOUT, false,
     "of what crosses alike on all ranks along tp, a part each"},
    {"placed", ts_pass_placed, TS_FACT_EXCHANGED, TS_FACT_EXCHANGED, TS_FACT_LAYOUT, false,
     "what each rank along tp has a place of its own in is gathered, not summed"},
    {"partition", ts_pass_partition, TS_FACT_EXCHANGED, TS_FACT_EXCHANGED, TS_FACT_LAYOUT, true,
     "of what blocks keep alike on all ranks along tp, a part each"},
    {"offload", ts_pass_offload, TS_FACT_EXCHANGED, TS_FACT_EXCHANGED, TS_FACT_LAYOUT, true,
     "what is kept for the backward waits in the host's memory"},
    {"unroll", ts_pass_unroll, TS_FACT_EXCHANGED, TS_FACT_EXCHANGED, TS_FACT_LAYOUT, true,
     "all micro-batches of one unit before the next one's"},
    {"zero", ts_pass_zero, TS_FACT_EXCHANGED, TS_FACT_LAYOUT, TS_FACT_FUSED, false,
     "flat storage, gathers, reductions, the optimizer"},
    {"fuse", ts_pass_fuse, TS_FACT_LAYOUT, TS_FACT_FUSED, TS_FACT_SCHEDULE, false,
     "nodes that others can do on the way"},
    {"epilogue", ts_pass_epilogue, TS_FACT_FUSED, TS_FACT_FUSED, TS_FACT_SCHEDULE, false,
     "products that do what follows them, where the backend can"},
    {"qkv", ts_pass_fused_qkv, TS_FACT_FUSED, TS_FACT_FUSED, TS_FACT_SCHEDULE, false,
     "attention on q, k and v where one product left them"},
    {"schedule", ts_pass_schedule, TS_FACT_LAYOUT, TS_FACT_SCHEDULE, TS_FACT_MEMORY, false,
     "order, prefetch, places of completion"},
    {"memory", ts_pass_memory, TS_FACT_SCHEDULE, TS_FACT_MEMORY, 0, false, "addresses"},
    {NULL, NULL, 0, 0, 0, false, NULL}};

static void verify(const ts_graph *graph, const char *pass) {
  ts_text why = {0};
  int violations = ts_graph_verify(graph, &why);
  TS_CHECK(violations == 0, "after pass %s the graph breaks %d rules:\n%s", pass, violations, why.text);
  ts_text_free(&why);
}

/* Where assertions are, nobody is trusted to have counted what was changed. */
#ifdef NDEBUG
enum { VERIFIES_ALWAYS = 0 };
#else
enum { VERIFIES_ALWAYS = 1 };
#endif

void ts_pass_apply(const ts_pass *pass, ts_graph **graph, ts_pass_context *context, unsigned *facts) {
  TS_CHECK((pass->requires & ~*facts) == 0, "pass %s runs before what it requires", pass->name);
  TS_CHECK((pass->conflicts & *facts) == 0, "pass %s runs after what it conflicts with", pass->name);
  int nodes = (*graph)->n_nodes;
  int64_t changes = (*graph)->changes;
  double start = ts_seconds();
  pass->run(graph, context);
  *facts |= pass->provides;
  ts_log(TS_LOG_DEBUG, "pass %-9s nodes %d -> %d, %.1f ms", pass->name, nodes, (*graph)->n_nodes,
         1e3 * (ts_seconds() - start));
  if (VERIFIES_ALWAYS || (*graph)->changes != changes) { /* most passes have nothing to do */
    verify(*graph, pass->name);
  }
}

void ts_passes_run(ts_graph **graph, ts_pass_context *context, const char *last, ts_pass_observer *observer,
                   void *user) {
  unsigned facts = TS_FACT_MODEL;
  verify(*graph, "model");
  for (const ts_pass *pass = ts_passes; pass->name != NULL; ++pass) {
    if (!pass->gradients_only || context->use == TS_MODEL_TRAIN) {
      ts_pass_apply(pass, graph, context, &facts);
      if (observer != NULL) {
        observer(pass->name, *graph, user);
      }
    }
    if (last != NULL && strcmp(last, pass->name) == 0) {
      return;
    }
  }
}
