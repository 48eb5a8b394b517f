/** \file
 * The exchanges of exchange_cases.h as nodes of a graph.  Nothing here is collective.
 */
#ifndef REGRESSION_EXCHANGE_GRAPH_H
#define REGRESSION_EXCHANGE_GRAPH_H

#include "base/text.h"
#include "ops/build.h"
#include "regression/exchange_cases.h"

/** Leaves "x0", "x1", ... for the inputs of rank \a rank. Not collective. */
static inline void exchange_leaves(const exchange_case *c, int rank, ts_graph *g, ts_role role, ts_tid *x) {
  for (int i = 0; i < c->n; ++i) {
    const ts_exchange_tensor *t = &c->x[rank][i];
    char *name = ts_format("x%d", i);
    x[i] = ts_graph_leaf(g, name, role, t->dtype, TS_SHAPE(t->batches, t->rows, t->columns), -1);
    ts_free(name);
  }
}

/** Rank \a rank's all_to_all of \a x.
 * \return its first output. Not collective. */
static inline ts_tid exchange_node(const exchange_case *c, int rank, ts_site at, const char *name, unsigned axes,
                                   const ts_tid *x) {
  int sent = c->n_sent[rank], received = c->n_received[rank];
  ts_block block[TS_MOST_EXCHANGED + 2 * MOST_BLOCKS];
  for (int i = 0; i < c->n; ++i) {
    block[i] = (ts_block){.rows.length = c->y[rank][i].rows, .columns.length = c->y[rank][i].columns};
  }
  memcpy(block + c->n, c->sent[rank], (size_t) sent * sizeof *block);
  memcpy(block + c->n + sent, c->received[rank], (size_t) received * sizeof *block);
  return ts_build_all_to_all(at, name, axes, c->size, c->n, x, block, sent, received);
}

#endif
