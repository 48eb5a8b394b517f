/** \file
 * What lies beside the weights in a Hugging Face directory and belongs to the model: config.json, the files of the
 * tokenizer with its chat templates, and generation_config.json.  Nothing here is collective.
 */
#ifndef IO_COMPANIONS_H
#define IO_COMPANIONS_H

#include "base/status.h"
#include "tokenizer/tokenizer.h"

/** The directory of chat templates beyond the first. */
#define TS_COMPANIONS_BELOW "additional_chat_templates"

/** Copy those but config.json that are in \a from into \a to, which is there; TS_COMPANIONS_BELOW is made where
 * templates are in it.  Each file appears complete or not at all.  Not collective.
 * \param [in] from       NULL: nothing.
 * \param [in] tokenizer  Another directory for the tokenizer and its templates; NULL: from.
 * \return TS_BAD_INPUT with "PATH: reason": a file of more than 1 GiB, or one that cannot be read or written. */
ts_status ts_companions_copy(const char *from, const char *tokenizer, const char *to, ts_error *err);

/** Keep those and config.json in \a to, which is made; config.json comes last, so where it is all are.  Nothing is done
 * where it is already, or where \a from has none.  Not collective.  \return TS_BAD_INPUT with "PATH: reason". */
ts_status ts_companions_keep(const char *from, const char *to, ts_error *err);

/** Remove what ts_companions_keep keeps; anything else in \a from stays, and what is not there is no error.
 * Not collective.
 * \return TS_BAD_INPUT with "PATH: reason". */
ts_status ts_companions_remove(const char *from, ts_error *err);

/** The token that ends a document: eos_token_id of config.json (of several the first), else eos_token of
 * tokenizer_config.json.  Not collective.
 * \param [out] id  -1: neither file names one.
 * \return TS_BAD_INPUT: a file is no json, or names a token that the tokenizer has not. */
ts_status ts_companions_end_token(const char *directory, const ts_tokenizer *tokenizer, int32_t *id, ts_error *err);

/** Does \a directory have a config.json, which ts_companions_keep needs and leaves?  Not collective. */
bool ts_companions_are_in(const char *directory);

#endif
