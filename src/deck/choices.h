/** \file
 * Decks that have lists where one value belongs, for who tries each.
 */
#ifndef TS_DECK_CHOICES_H
#define TS_DECK_CHOICES_H

#include "deck/deck.h"

/** A key that has a list where one value belongs: values to be tried, as DeepSpeed's autotuning has them. */
typedef struct ts_deck_choice {
  char *path; /**< Owned; canonical. */
  int n;
  char **values; /**< Owned; as deck text, each accepted by itself. */
} ts_deck_choice;

/** All of a deck.  Zero-initialise, end with ts_deck_choices_clear. */
typedef struct ts_deck_choices {
  ts_deck_choice *items;
  int n, capacity;
} ts_deck_choices;

/** As ts_deck_read, where any key that works and is one number or word may have a list of them: the deck has the first
 * of each, or, where that is refused, what of some hundred ways to take one of each comes first and is not; those lists
 * begin with what was taken.  zero_optimization.stage = "all" is all stages.  Not collective.
 * \param [in,out] choices  Gets them; to be cleared by the caller also on error. */
ts_status ts_deck_read_choices(const char *path, char *const *sets, int n_sets, ts_deck_choices *choices, ts_deck **out,
                               ts_error *err);

/** Free and empty.  Not collective. */
void ts_deck_choices_clear(ts_deck_choices *choices);

#endif
