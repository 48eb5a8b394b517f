/* Losses of how unequal the loads of experts are. */
#include "model/parts.h"
#include "ops/build.h"

static ts_tid loss_of_loads(ts_model_builder *b, const char *name, ts_tid loads, int layers, double aux, double z) {
  const ts_tid in[] = {loads, loads};
  const ts_attr attr = {.balance = {.layers = layers, .aux = (float) aux, .z = (float) z}};
  return ts_graph_add(
      b->base.at,
      &(ts_node){.op = TS_OP_BALANCE_LOSS, .name = name, .n_in = 2, .in = in, .attr = attr, .beta = TS_NONE});
}

/* `name`: of the sum with the losses before. */
static void with_loss(ts_model_builder *b, const char *name, ts_tid loss) {
  b->balance = b->balance == TS_NONE ? loss : ts_build_add(b->base.at, name, b->balance, loss);
}

void ts_model_balance_add(ts_model_builder *b, ts_tid loads) {
  ts_model_name name = ts_model_inside(b->family->router, "loads.sum");
  b->loads = b->loads == TS_NONE ? loads : ts_model_add(b, name.text, b->loads, loads);
  ++b->n_loads;
}

void ts_model_balance_each(ts_model_builder *b, ts_tid loads, double aux, double z) {
  const char *router = b->family->router;
  ts_model_name name = ts_model_name_of(b, ts_model_inside(router, "balance").text);
  ts_model_name sum = ts_model_name_of(b, ts_model_inside(router, "balance.sum").text);
  with_loss(b, sum.text, loss_of_loads(b, name.text, loads, 1, aux, z));
}

void ts_model_balance(ts_model_builder *b) {
  const ts_deck_moe *moe = &b->deck->moe;
  double aux = b->model->output_router_logits ? b->model->router_aux_loss_coef : 0;
  if (b->loads != TS_NONE) {
    with_loss(b, "balance.sum", loss_of_loads(b, "balance", b->loads, b->n_loads, aux, moe->z_loss_coef));
  }
  if (b->balance != TS_NONE) {
    bool of_layers = b->loads == TS_NONE; /* the last of which may be on an earlier stage of a pipeline than the loss */
    b->balance = of_layers ? ts_build_scale(b->base.at, "balance", b->balance, 1, 0) : b->balance;
    ts_graph_mark(b->base.at.graph, "balance", b->balance);
  }
}
