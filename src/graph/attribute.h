/** \file
 * What an op's attributes are: a row of a table for each kind, named by the op's row in graph/ops.def.  Whoever copies,
 * frees, compares or prints a node's attributes does it here.  None of these functions is collective.
 */
#ifndef TS_GRAPH_ATTRIBUTE_H
#define TS_GRAPH_ATTRIBUTE_H

#include "graph/graph.h"

typedef struct ts_attribute ts_attribute; /**< A row of the table. */

/** Give the node its own copy of the array that its attributes point to, if there is one; and free it. Not collective.
 */
void ts_attributes_own(ts_node *node);
void ts_attributes_free(ts_node *node);

/** True when two nodes of one op have the same attributes; with as many inputs and outputs. Not collective. */
bool ts_attributes_equal(const ts_node *a, const ts_node *b);

/** Append " {...}", or nothing where there is nothing to say. Not collective. */
void ts_attributes_print(const ts_node *node, ts_text *to);

/** The attribute that gives the node's computed outputs their type; NULL where it follows from the inputs.
 * Not collective. */
ts_dtype *ts_attributes_dtype(ts_node *node);

#endif
