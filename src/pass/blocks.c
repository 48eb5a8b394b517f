#include "pass/blocks.h"

static ts_exchange_tensor tensor_of(const ts_graph *g, ts_tid t) {
  const ts_tensor *tensor = &g->tensor[t];
  ts_exchange_tensor of = {.dtype = tensor->dtype,
                           .batches = 1,
                           .rows = tensor->shape.d[tensor->shape.n - 2],
                           .columns = tensor->shape.d[tensor->shape.n - 1]};
  for (int i = 0; i < tensor->shape.n - 2; ++i) {
    of.batches *= tensor->shape.d[i];
  }
  return of;
}

ts_exchange_lists ts_node_exchange(const ts_graph *g, const ts_node *node, ts_exchange_tensors *tensors) {
  for (int i = 0; i < node->n_in; ++i) {
    tensors->x[i] = tensor_of(g, node->in[i]);
    tensors->y[i] = tensor_of(g, node->out[i]);
  }
  const ts_block *sent = node->attr.comm.block + node->n_out;
  return (ts_exchange_lists){.n = node->n_in,
                             .x = tensors->x,
                             .y = tensors->y,
                             .sent = sent,
                             .received = sent + node->attr.comm.n_sent,
                             .n_sent = node->attr.comm.n_sent,
                             .n_received = node->attr.comm.n_received};
}

int64_t ts_exchange_sent(const ts_exchange_lists *lists, int rank) {
  int64_t bytes = 0;
  for (int i = 0; i < lists->n_sent; ++i) {
    const ts_block *b = &lists->sent[i];
    const ts_exchange_tensor *x = &lists->x[b->tensor];
    int64_t elements = x->batches * b->rows.length * b->columns.length;
    bytes += b->rank == rank ? 0 : elements * (int64_t) ts_dtype_size(x->dtype);
  }
  return bytes;
}
