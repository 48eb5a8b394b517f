/** \file
 * The checks of a deck.  Every error message of this room goes through ts_deck_report and names the check that found
 * it, so that a test can turn one check off and see the bad deck pass: proof that this check is what catches it.
 * Nothing here is collective.
 */
#ifndef TS_DECK_CHECK_H
#define TS_DECK_CHECK_H

#include "base/status.h"

#include <stdbool.h>

#define TS_DECK_CHECKS(X)                                                     \
  X(UNKNOWN_KEY)   /* no row of that path */                                  \
  X(TWICE)         /* one key under two names */                              \
  X(CONFLICT)      /* the deck against a json or a config.json */             \
  X(TYPE)          /* a string where a number belongs */                      \
  X(WHOLE)         /* 5.5 where an integer belongs */                         \
  X(BIG)           /* an integer beyond 64 bits */                            \
  X(FINITE)        /* too large for a double, or too small for a float */     \
  X(RANGE)         /* below or above what the row accepts */                  \
  X(WORD)          /* a word that is not one of the accepted */               \
  X(WORD_LATER)    /* a word that is known but not there yet, or no more */   \
  X(REFUSED)       /* a key that is not there yet, or no more */              \
  X(REGEX)         /* not a valid expression */                               \
  X(ONLY)          /* a parameter of another family, optimizer or schedule */ \
  X(REQUIRED)      /* a missing key */                                        \
  X(REQUIRED_BY)   /* a key that another key's value asks for */              \
  X(SET)           /* a --set that is not key=value */                        \
  X(GROUPS)        /* too many entries of a list */                           \
  X(HEADS)         /* heads divide hidden_size */                             \
  X(KV_HEADS)      /* key and value heads divide the query heads */           \
  X(ROTARY)        /* an even head_dim for rotary positions */                \
  X(SEQUENCE)      /* sequence_length within the learned positions */         \
  X(LAYERS)        /* lists with an entry a layer */                          \
  X(EXPERTS)       /* enough experts for every token */                       \
  X(ROPE)          /* what a kind of rotary positions needs */                \
  X(TOKEN_IDS)     /* bos and eos within the vocabulary */                    \
  X(SIZE)          /* products of sizes within 64 bits */                     \
  X(VALIDATION)    /* a fraction or a path, not both */                       \
  X(SOURCES)       /* one file, or a list of files */                         \
  X(STEPS)         /* steps or epochs, not both */                            \
  X(CYCLE)         /* OneCycle's lower ends below the upper */                \
  X(FLAGS)         /* flags of a type that is off */                          \
  X(OPTIMIZER)     /* settings of the optimizer that exclude each other */    \
  X(PRECISION)     /* one type to compute in */                               \
  X(AUTOCAST)      /* autocast of what is fp32 */                             \
  X(ELASTICITY)    /* what elasticity chooses from */                         \
  X(ELASTIC_BATCH) /* elasticity, or the batch triple */                      \
  X(BATCH)         /* the batch triple without ranks */                       \
  X(BATCH_RANKS)   /* the batch triple with ranks */                          \
  X(TRAINING)      /* what training needs */                                  \
  X(RANKS)         /* no more ranks than heads, and one number of them */     \
  X(PARTITION)     /* shapes of layer_specs */                                \
  X(OFFLOAD)       /* what is kept in files */

typedef enum ts_deck_check {
#define X(name) TS_CHECK_##name,
  TS_DECK_CHECKS(X)
#undef X
      TS_N_DECK_CHECKS
} ts_deck_check;

/** Add "where: key: problem" to \a err unless \a check is turned off; empty \a where or \a key are left out.
 * After a hundred messages the rest is only said to exist.  Not collective.
 * \return TS_BAD_INPUT, or TS_OK when the check is off. */
ts_status ts_deck_report(ts_error *err, ts_deck_check check, const char *where, const char *key, const char *format,
                         ...) __attribute__((format(printf, 5, 6)));

/** For tests only: turn one check off until the next call; TS_N_DECK_CHECKS turns all on. Not collective. */
void ts_deck_test_disable(ts_deck_check check);

/** "HEADS", ...: a constant string. Not collective. */
const char *ts_deck_check_name(ts_deck_check check);

#endif
