/** \file
 * Members of a tokenizer.json that are a step, or a Sequence of steps.  Nothing here is collective.
 */
#ifndef TS_TOKENIZER_STEPS_H
#define TS_TOKENIZER_STEPS_H

#include "base/text.h"
#include "tokenizer/pattern.h"

#include <jansson.h>

/** A step, with what its kind may have. */
typedef struct ts_step_runs {
  int kind;            /**< In the names of its table. */
  ts_pattern *pattern; /**< Owned; what it looks for. */
  char *content;       /**< Owned; a text of \a n bytes. */
  size_t n;
  int64_t start, stop; /**< How much is done at the two ends. */
} ts_step_runs;

/** Zero-initialise, end with ts_steps_clear. */
typedef struct ts_steps {
  ts_step_runs *step; /**< Owned. */
  int64_t n, capacity;
} ts_steps;

/** Free and zero. Not collective. */
void ts_steps_clear(ts_steps *steps);

/** Append a step of a kind, for the caller to fill in; it stays where it is until the next one. Not collective. */
ts_step_runs *ts_add_step(ts_steps *steps, int kind);

/** A table of what a step may be. */
typedef struct ts_step_table {
  const char *member;       /**< "normalizer" */
  const char *list;         /**< What a Sequence calls its steps: "normalizers". */
  const char *const *names; /**< Of the types that are known. */
  int n;
  /** Read one of type \a kind.  \return TS_BAD_INPUT with the reason alone. */
  ts_status (*read)(const json_t *value, int kind, void *to, ts_error *err);
} ts_step_table;

/** Read the steps of \a value, which may be null or missing, in order. Not collective.
 * \return TS_BAD_INPUT naming member, type and reason, or what is known. */
ts_status ts_read_steps(const ts_step_table *table, const json_t *value, void *to, ts_error *err);

/** A text of a step.
 * \param [out] text  A copy, terminated by a 0 that is not counted in \a n; the caller's (ts_free).
 * \return TS_BAD_INPUT with the name. Not collective. */
ts_status ts_read_text(const json_t *value, const char *name, char **text, size_t *n, ts_error *err);

/** The pattern {"String": ...} or {"Regex": ...} of a step.
 * \return TS_BAD_INPUT with the reason. Not collective. */
ts_status ts_read_pattern(const json_t *value, ts_pattern **out, ts_error *err);

#endif
