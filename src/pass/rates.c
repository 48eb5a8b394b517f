#include "pass/rates.h"

#include "graph/op.h"

#include <math.h>

/* A core of the last ten years with its share of memory; a GPU of today's. */
static const ts_rates nominal[2] = {
    {.product = 1e11, .memory = 2e10, .link = 4e9, .copy = 2e10, .core = 1e10, .file = 2e9},
    {.product = 4e14, .memory = 2e12, .link = 2e11, .copy = 5e10, .core = 1e10, .file = 2e9}};

/* At least 1 a second, so that times are finite. */
static double rate_of(double rate, double otherwise) {
  return rate > 0 ? fmax(rate, 1) : otherwise;
}

ts_rates ts_rates_of(const ts_deck *deck, const ts_backend *backend) {
  const ts_rates *n = &nominal[backend->device != NULL];
  return (ts_rates){.product = rate_of(deck->machine.product_flops, n->product),
                    .memory = rate_of(deck->machine.memory_bandwidth, n->memory),
                    .link = rate_of(deck->machine.link_bandwidth, n->link),
                    .copy = rate_of(deck->machine.copy_bandwidth, n->copy),
                    .core = rate_of(deck->machine.core_bandwidth, n->core),
                    .file = rate_of(deck->machine.file_bandwidth, n->file)};
}

double ts_node_seconds(const ts_graph *g, const ts_node *node, const ts_rates *rates) {
  double bytes = 0, products = ts_node_flops(g, node) / rates->product;
  for (int i = 0; i < node->n_in + node->n_out; ++i) {
    ts_tid t = i < node->n_in ? node->in[i] : node->out[i - node->n_in];
    bool table = i == 0 && node->op == TS_OP_EMBEDDING; /* of which some rows are read */
    bytes += t != TS_NONE && !table ? (double) ts_tensor_bytes(g, t) : 0;
  }
  return (ts_op_get(node->op)->flags & TS_OP_ALIAS) != 0 ? 0 : fmax(products, bytes / rates->memory);
}
