/** \file
 * Leaf modules: units of a model that are one, because zero_optimization.leaf_module names a module they lie in
 * (DeepSpeed's set_z3_leaf_modules).  Private to src/model.  Nothing here is collective.
 */
#ifndef TS_MODEL_LEAF_MODULES_H
#define TS_MODEL_LEAF_MODULES_H

#include "deck/deck.h"

typedef struct ts_leaves ts_leaves;

/** For the writing of one graph; \a deck is borrowed.  End with ts_leaves_end. Not collective. */
ts_leaves *ts_leaves_begin(const ts_deck *deck);

/** The module \a path is of a class. Not collective. */
void ts_leaves_note_class(ts_leaves *leaves, const char *path, const char *class_name);

/** How many letters of a name, of a unit or a parameter, are the unit it belongs to: the outermost leaf module's, or
 * all. Entries that name a module it lies in count as used. \a leaves may be NULL. Not collective. */
size_t ts_leaves_unit(ts_leaves *leaves, const char *name);

/** Free, whatever is left unused. Not collective. */
void ts_leaves_drop(ts_leaves **leaves);

/** Free. Not collective.
 * \return TS_BAD_INPUT: an entry of the deck has named nothing. */
ts_status ts_leaves_end(ts_leaves **leaves, ts_error *err);

#endif
