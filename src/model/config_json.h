/** \file
 * A deck's model as the config.json of a Hugging Face directory.  Nothing here is collective.
 */
#ifndef TS_MODEL_CONFIG_JSON_H
#define TS_MODEL_CONFIG_JSON_H

#include "base/text.h"
#include "deck/deck.h"

/** Append the config.json with which transformers' AutoModelForCausalLM computes the function of this deck's model.
 * Reading it back as `model.from` gives an equal model.  Not collective.
 * \param [in] torch_dtype  Of the tensors beside it: "float32", "bfloat16" or "float16". */
void ts_model_config_json(const ts_deck *deck, const char *torch_dtype, ts_text *to);

/** The text of DIRECTORY/config.json with its torch_dtype replaced and what the deck's model has otherwise (another
 * dropout, `from_config = false`, a file that was changed meanwhile); the rest as it is.  Not collective.
 * \param [out] to  Appended to.
 * \return TS_BAD_INPUT when the file is not a JSON object. */
ts_status ts_model_config_copy(const char *directory, const ts_deck *deck, const char *torch_dtype, ts_text *to,
                               ts_error *err);

#endif
