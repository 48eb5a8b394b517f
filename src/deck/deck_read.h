/** \file
 * Reading a deck.
 */
#ifndef TS_DECK_DECK_READ_H
#define TS_DECK_DECK_READ_H

#include "base/error.h"

typedef struct ts_deck ts_deck;

/** Bytes of a deck with its includes, and of what is printed of it: libconfig compares each name with all before it,
 * time grows with the square. */
#define TS_DECK_LIMIT (128u << 10)

/** Read, merge and check a deck of at most TS_DECK_LIMIT bytes.  Errors of the input are reported all at once (the
 * first hundred), each "FILE:LINE: key: problem; accepted: ...".  Not collective.
 * \param [in]  path    libconfig file, or NULL for an empty deck (everything from \a sets).
 * \param [in]  sets    \a n_sets strings "key.path=value", applied over the file; not owned.  A value that is not a
 *                      libconfig value is taken as a string, so `--set run.device=cpu` needs no quotes.
 * \param [out] out     The caller's, end with ts_deck_destroy; NULL on error.
 * \return TS_BAD_INPUT with the list in \a err. */
ts_status ts_deck_read(const char *path, char *const *sets, int n_sets, ts_deck **out, ts_error *err);

/** As ts_deck_read, from \a text instead of a file; \a name stands for the file in messages, and relative
 * `deepspeed_config`, `model.from` and includes start from the directory part of \a name.  Not collective. */
ts_status ts_deck_read_text(const char *name, const char *text, char *const *sets, int n_sets, ts_deck **out,
                            ts_error *err);

/** Free everything; accepts a NULL deck; sets the handle to NULL.  Not collective. */
void ts_deck_destroy(ts_deck **deck);

#endif
