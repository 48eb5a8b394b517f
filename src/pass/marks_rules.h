/** \file
 * What the files of the marks share.  Nothing here is collective.
 */
#ifndef TS_PASS_MARKS_RULES_H
#define TS_PASS_MARKS_RULES_H

#include "pass/marks.h"

/** A weight whose mark is looked for. */
typedef struct ts_tp_query {
  const ts_deck *deck;
  const char *name;
  int64_t out, in;
  ts_error *err;
} ts_tp_query;

/** Make the mark one of \a n blocks; the sizes are to be filled in. Not collective. */
void ts_tp_mark_blocks(ts_tp_mark *mark, int n);

/** Does an entry of layer_specs match a weight's full name? Not collective. */
bool ts_tp_spec_matches(const ts_deck_tp_spec *spec, const char *name);

/** Fill in blocks and unit of the mark, whose style is set, from the shape of layer_specs[\a spec].
 * \return TS_BAD_INPUT where the weight cannot be seen so. Not collective. */
ts_status ts_tp_view_fit(const ts_tp_query *q, int spec, ts_tp_mark *mark);

/** The mark of preset_model, and of tp_plan; without an entry that matches the mark stays as it is.
 * \return TS_BAD_INPUT where the weight is not what the entry is for. Not collective. */
ts_status ts_tp_preset_find(const ts_tp_query *q, ts_tp_mark *mark);
ts_status ts_tp_plan_find(const ts_tp_query *q, ts_tp_mark *mark);

/** Log a warning of each entry that does nothing; the marks are right. Not collective. */
void ts_tp_marks_tell(const ts_deck *deck, const ts_tp_weight *weights, int n);

/** Is it the weight of that unit, which may be NULL? Not collective. */
bool ts_tp_is_weight_of(const char *name, const char *unit);

/** Does a pattern of tp_plan match a weight's full name?  \return as ts_matches. Not collective. */
int ts_tp_plan_matches(const char *pattern, const char *name);

#endif
