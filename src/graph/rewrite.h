/** \file
 * Writing a new graph from an old one: what a pass does.
 *
 *   ts_rewrite r = ts_rewrite_begin (*graph);
 *   for each node n of r.from:  ts_rewrite_copy (&r, n), or something else in its place
 *   ts_rewrite_marks (&r);
 *   ts_rewrite_end (&r, graph);
 *
 * Leaves follow the nodes that read them, so a leaf that nobody reads any more disappears; windows on leaves follow too
 * where they are read before their turn.  Whatever a node or a leaf has is copied here and nowhere else: a pass that
 * wants something different takes the copy, changes that, and adds it.
 * None of these functions is collective.
 */
#ifndef TS_GRAPH_REWRITE_H
#define TS_GRAPH_REWRITE_H

#include "graph/graph.h"

typedef struct ts_rewrite {
  const ts_graph *from; /**< Borrowed; ts_rewrite_end destroys it. */
  ts_graph *to;
  ts_tid *map;     /**< Owned; per tensor of \a from what stands for it in \a to, TS_NONE until something does.  A pass
                    * may enter what it likes. */
  ts_tid *instead; /**< Owned; per tensor of \a from another one that takes its place, TS_NONE for none. */
  ts_tid *in;      /**< Owned; the inputs of the copy made last: what its `in` points to. */
  ts_tid *prior;   /**< Owned; the same of its priors. */
} ts_rewrite;

/** Start with an empty graph that has the units of \a from. Not collective. */
ts_rewrite ts_rewrite_begin(const ts_graph *from);

/** Copy the marks of tensors that the new graph has. Not collective. */
void ts_rewrite_marks(ts_rewrite *r);

/** Put the new graph in the place of *graph, which is r->from and is destroyed, and free what belongs to \a r.
 * Not collective. */
void ts_rewrite_end(ts_rewrite *r, ts_graph **graph);

/** What stands for \a tensor in the new graph: TS_NONE for TS_NONE; a leaf, room (a pack of nothing), or a window on
 * one of these is copied when it is first asked for; anything else must be there. Not collective. */
ts_tid ts_rewrite_tensor(ts_rewrite *r, ts_tid tensor);

/** The tensor of the old graph that takes the place of \a tensor there, by `instead`. Not collective. */
ts_tid ts_rewrite_newest(const ts_rewrite *r, ts_tid tensor);

/** A leaf, in another type: before anybody asked for it. Not collective. \return what stands for it from now on. */
ts_tid ts_rewrite_leaf(ts_rewrite *r, ts_tid leaf, ts_dtype dtype);

/** Node \a n with all it reads looked up in the new graph, to be changed and added.  Name and arrays of attributes are
 * borrowed from the old node; in and prior are r->in and r->prior, valid until the next copy. Not collective. */
ts_node ts_rewrite_node(ts_rewrite *r, ts_nid n);

/** Add \a node, in its segment and unit, and let its outputs, as many as it has, stand for those of the old node \a n.
 * Not collective. */
void ts_rewrite_add(ts_rewrite *r, ts_nid n, const ts_node *node);

/** Both, with nothing changed.  A node that is there already (a window) is left. Not collective. */
void ts_rewrite_copy(ts_rewrite *r, ts_nid n);

#endif
