/** \file
 * Which tensors share memory.  Every tensor lies at a byte offset in the storage of a root tensor; the ops' rows
 * decide: a window lies in its input, the inputs of a pack lie in the pack, a new version lies in the old one, and an
 * output with a prior lies in the prior when that is state or is not needed any more.  Nothing here is collective.
 */
#ifndef TS_PASS_STORAGE_H
#define TS_PASS_STORAGE_H

#include "graph/graph.h"

typedef struct ts_place {
  ts_tid root;
  int64_t offset; /**< Bytes from the root's first. */
} ts_place;

/** The place of every tensor.
 * \return n_tensors entries, owned by the caller (ts_free).  A graph whose windows contradict each other (an input of
 * two packs, a packed leaf) is a programmer's mistake and ends the program. Not collective. */
ts_place *ts_storage_find(const ts_graph *graph);

/** True for ops that move no data and are never executed. Not collective. */
bool ts_node_is_window(const ts_node *node);

#endif
