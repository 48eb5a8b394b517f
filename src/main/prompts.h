/** \file
 * The texts that a model is to continue, read from a file of a json object a line.
 */
#ifndef TS_MAIN_PROMPTS_H
#define TS_MAIN_PROMPTS_H

#include "train/words.h"

#include <jansson.h>

/** Zero-initialise; on ranks that did not read only ids and n are there. */
typedef struct ts_prompts {
  json_t *text; /**< Owned: an array of what was given. */
  ts_ids ids;   /**< The tokens of all, one text after another. */
  ts_ids n;     /**< Of each, how many. */
} ts_prompts;

/** \param [in] path   FILE.jsonl, which is untrusted; what is no UTF-8 in it becomes U+FFFD, with a warning.
 * \param [in] field  The member that is the text.
 * \return TS_BAD_INPUT: the file cannot be read or has no text; "FILE:LINE: ..." of each of the first lines that are
 *         wrong. Not collective. */
ts_status ts_prompts_read(const char *path, const char *field, ts_words *words, ts_prompts *out, ts_error *err);

/** The longest text's tokens. Not collective. */
int64_t ts_prompts_longest(const ts_prompts *prompts);

/** Give rank 0's tokens to every rank. Collective over the world. */
void ts_prompts_share(ts_world *world, ts_prompts *prompts);

/** Free. Not collective. */
void ts_prompts_clear(ts_prompts *prompts);

#endif
