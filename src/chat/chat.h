/** \file
 * Chats as text: what apply_chat_template of Hugging Face's tokenizers makes of turns of system, user and assistant.
 *
 * Templates are programs of Jinja, and there is none here: each one that models ship is a row (chat/template), known by
 * the hash of its text or called by its name.  What a row makes of a chat is what the template makes of it, to the
 * byte: trimming, words that stand there when no system speaks, thoughts that are taken out of earlier answers.  (So
 * mistral-v3 gives the system's words to the last turn where it is the user's and drops them where it is not.)
 * A chat that the template refuses is refused, and so are chats without a turn of user or assistant, a system that is
 * not first, and tools.  Contents are not looked into: special tokens that they spell stay.
 *
 * The text has the tokens that the template writes, such as <s>: encode it without those of the tokenizer.
 * A chat is not changed after it was opened and may be used by all threads.  Nothing here is collective.
 */
#ifndef TS_CHAT_CHAT_H
#define TS_CHAT_CHAT_H

#include "base/text.h"
#include "chat/turns.h"

#include <time.h>

typedef struct ts_chat ts_chat;

/** Find a template.
 * \param [in]  directory  A model's, for the template (chat_template.jinja, else chat_template of
 *                         tokenizer_config.json: a text, or the one called "default") and for what bos_token and
 *                         eos_token of tokenizer_config.json are.  Untrusted.  NULL or "": none.
 * \param [in]  name       A row's name, whatever the directory's template; NULL or "": by the hash of that.
 * \param [out] out        The caller's, end with ts_chat_close; NULL on error.
 * \return TS_BAD_INPUT: a file that is broken, no template or one that is not known, each with what is accepted.
 * Not collective. */
ts_status ts_chat_open(const char *directory, const char *name, ts_chat **out, ts_error *err);

/** NULL is allowed; sets the handle to NULL. Not collective. */
void ts_chat_close(ts_chat **chat);

/** The row's name; borrowed. Not collective. */
const char *ts_chat_name(const ts_chat *chat);

/** Append the mark that ends an answer, "<|im_end|>" or the like. Not collective. */
void ts_chat_end(const ts_chat *chat, ts_text *to);

/** Bytes from \a begin on and before \a end. */
typedef struct ts_chat_span {
  size_t begin, end;
} ts_chat_span;

/** Zero-initialise, end with ts_chat_spans_clear. */
typedef struct ts_chat_spans {
  ts_chat_span *span; /**< Owned; in order, apart. */
  int64_t n, capacity;
} ts_chat_spans;

/** Free. Not collective. */
void ts_chat_spans_clear(ts_chat_spans *spans);

typedef struct ts_chat_options {
  bool prompt;            /**< Up to where the assistant is to speak (add_generation_prompt). */
  const char *where;      /**< What messages call the list of turns; NULL: "messages". */
  const struct tm *today; /**< For templates that tell the date; NULL: the day it is here, which ranks may see turn. */
} ts_chat_options;

/** Append the text of a chat.
 * \param [in,out] spans  What is learned is appended, in bytes of \a to: of each turn of the assistant what a model
 *                        would write there, its thoughts and the mark of its end included ("<|im_end|>" without the
 *                        line's end behind it).  NULL: not wanted.
 * \return TS_BAD_INPUT: the template refuses the chat; the message names the turn as WHERE[i].  Nothing was
 *         appended. Not collective. */
ts_status ts_chat_render(const ts_chat *chat, const ts_chat_turn *turn, int64_t n, ts_chat_options options, ts_text *to,
                         ts_chat_spans *spans, ts_error *err);

#endif
