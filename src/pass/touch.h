/** \file
 * Which bytes a node touches where a plan has put its operands.
 */
#ifndef TS_PASS_TOUCH_H
#define TS_PASS_TOUCH_H

#include "pass/plan.h"

/** Bytes [begin, end) of an arena. */
typedef struct ts_touch {
  ts_arena arena;
  int64_t begin, end;
  bool writes;
} ts_touch;

/** What a node reads and writes, its workspace among it, but what is nowhere or empty; of what a gather makes not the
 * part that it is given, where that lies in it.
 * \param [out] out  Room for ts_node_most_touches. \return their number. Not collective. */
int ts_node_touches(const ts_graph *graph, const ts_plan *plan, ts_nid node, ts_touch *out);

/** The most that it can be. Not collective. */
static inline int ts_node_most_touches(const ts_node *node) {
  return node->n_in + 3 * node->n_out + 2;
}

/** Have two bytes in common, and does one of them write? Not collective. */
static inline bool ts_touches_collide(const ts_touch *a, const ts_touch *b) {
  return a->arena == b->arena && a->begin < b->end && b->begin < a->end && (a->writes || b->writes);
}

#endif
