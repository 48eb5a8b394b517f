/** \file
 * A line of a JSONL file into tokens.
 *
 *     field is a string                         a text, all of it learned
 *     field and completion_field are strings    a prompt, which is not learned, and what is to be said to it
 *     field is a list of {role, content}        a chat (chat/chat.h), of which what the assistant says is learned;
 *                                               with completion_field, the assistant's words or further turns, only
 *                                               what it says there
 *
 * Of a prompt and of a chat nothing else is a label, unless the prompt is to be learned too.  Texts have what the
 * tokenizer's template puts around them, and end with the end token; chats have what the chat template writes and
 * nothing else.  Nothing here is collective.
 */
#ifndef IO_RECORDS_H
#define IO_RECORDS_H

#include "chat/chat.h"
#include "tokenizer/tokenizer.h"

typedef struct ts_record_options {
  const char *field;            /**< Of the text, the chat or the prompt. */
  const char *completion_field; /**< NULL or "": there is none. */
  bool train_on_prompt;         /**< All tokens are learned. */
  int32_t end_token;            /**< Closes a document; -1: none. */
  const ts_chat *chat;          /**< NULL: chats are refused, */
  const char *no_chat;          /**< for this reason. */
  const struct tm *today;       /**< For templates that tell the date. */
} ts_record_options;

/** Tokens of documents one after the other.  Zero-initialise. */
typedef struct ts_record_ids {
  ts_ids ids;
  uint8_t *learned; /**< Owned: [ids.n], 1 or 0. */
  int64_t learned_capacity;
  int64_t *first; /**< Owned: [n_documents], the first token of each. */
  int64_t n_documents, documents_capacity;
  int64_t replaced; /**< Bytes or parts of characters that were no UTF-8. */
} ts_record_ids;

/** Forget what is there and keep the room, unless it is large; free. Not collective. */
void ts_record_ids_reset(ts_record_ids *to);
void ts_record_ids_clear(ts_record_ids *to);

/** What was added to the ids since there were \a before of them is learned, or is not. Not collective. */
void ts_record_mark(ts_record_ids *to, int64_t before, bool learned);

/** A document begins here; and ends, with the end token unless it is there.  One without tokens is none.
 * Not collective. */
void ts_record_begin(ts_record_ids *to);
void ts_record_end(ts_record_ids *to, int32_t end_token);

/** Room for reading, a thread's own.  Zero-initialise. */
typedef struct ts_record_room {
  ts_text line, text;
  ts_chat_turns turns;
  ts_chat_spans spans;
  size_t *place; /* owned: [places] */
  int64_t places;
} ts_record_room;

/** Free. Not collective. */
void ts_record_room_clear(ts_record_room *room);

/** Is a line of \a n bytes nothing but blanks, and so no record? Not collective. */
bool ts_record_is_blank(const char *line, size_t n);

/** Append the document of a line.
 * \param [in] line  \a n bytes, without the newline; any bytes.
 * \return TS_BAD_INPUT with the field that is wrong: no object, no such member (those there are named), another type.
 *         Not collective. */
ts_status ts_record_encode(ts_encoder *encoder, const char *line, size_t n, const ts_record_options *options,
                           ts_record_room *room, ts_record_ids *to, ts_error *err);

#endif
