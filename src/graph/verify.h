/** \file
 * The verifier's rules by name, so that a test can show which rule catches which mistake.  Not for programs.
 */
#ifndef TS_GRAPH_VERIFY_H
#define TS_GRAPH_VERIFY_H

#include "graph/graph.h"

/** Name of rule \a i, NULL past the last. Not collective. */
const char *ts_graph_rule_name(int i);

/** Leave rules out, for tests only; the program's verifier has them all.
 * \param [in] names  Separated by blanks; borrowed until the next call; NULL for none. Not collective. */
void ts_graph_verify_disable(const char *names);

#endif
