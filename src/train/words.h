/** \file
 * Texts as tokens of a model and back: by the model's tokenizer or, where there is none, a token for each byte.
 */
#ifndef TS_TRAIN_WORDS_H
#define TS_TRAIN_WORDS_H

#include "chat/chat.h"
#include "comm/comm.h"
#include "deck/deck.h"
#include "tokenizer/tokenizer.h"

typedef struct ts_words ts_words;

/** Where the tokenizer of a model lies: ts_find_tokenizer, of the run of a checkpoint.
 * \param [in]  checkpoint  Its directory; NULL for none.
 * \param [out] directory   The caller's (ts_free); NULL where there is none.
 * \return TS_BAD_INPUT as ts_find_tokenizer. Not collective. */
ts_status ts_words_find(const ts_deck *deck, const char *checkpoint, char **directory, ts_error *err);

/** \param [in]  directory  Of the tokenizer; NULL: tokens are bytes.
 * \param [out] out        The caller's, end with ts_words_close; NULL on error.
 * \return TS_BAD_INPUT: the tokenizer cannot be read, or the model has fewer tokens than it; without a tokenizer, the
 *         model has more than there are bytes. Not collective. */
ts_status ts_words_open(const ts_deck *deck, const char *directory, ts_words **out, ts_error *err);

/** From now on a text is what a user says in a chat, which the assistant is to answer.
 * \param [in] directory  Of the tokenizer, with its chat template; NULL for none.
 * \param [in] name       Of the template instead; NULL or "": the directory's.
 * \return TS_BAD_INPUT as ts_chat_open. Not collective. */
ts_status ts_words_chat(ts_words *words, const char *directory, const char *name, ts_error *err);

/** Are texts what is said in chats? Not collective. */
bool ts_words_are_chats(const ts_words *words);

/** The token that ends an answer; -1: it is not one token, or there is no chat. Not collective. */
int32_t ts_words_end(const ts_words *words);

/** NULL is allowed; sets the handle to NULL. Not collective. */
void ts_words_close(ts_words **words);

/** Append the tokens of what a model is to continue, with those that its tokenizer puts around a text.  For a tokenizer
 * what is no UTF-8 becomes U+FFFD, with a warning.
 * \param [in] text   \a n bytes.
 * \param [in] where  What messages begin with: the option or the line that the text stands in.
 * \return TS_BAD_INPUT: there is none, a byte is no token of the model, or the tokenizer gives up. Not collective. */
ts_status ts_words_encode(ts_words *words, const char *text, size_t n, const char *where, ts_ids *to, ts_error *err);

/** The same of a chat, as a list of json (chat/turns.h), which the assistant is to go on with. Not collective. */
ts_status ts_words_encode_chat(ts_words *words, const json_t *messages, const char *where, ts_ids *to, ts_error *err);

/** What a model says, token by token. Zero-initialise. */
typedef ts_decode_stream ts_words_stream;

/** The model has been given these tokens: what it says is to follow them.  Before the first ts_words_next.
 * Not collective. */
void ts_words_follow(ts_words_stream *stream, ts_words *words, const int32_t *id, int64_t n);

/** Append what the next token adds: whole characters, none where one is not yet complete, nor for special tokens; or
 * the token's byte.  End with ts_decode_stream_clear. Not collective. */
void ts_words_next(ts_words_stream *stream, ts_words *words, int32_t id, ts_text *to);

/** Give rank 0's tokens to every rank. Collective over the world. */
void ts_words_share(ts_world *world, ts_ids *ids);

#endif
