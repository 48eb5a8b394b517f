#include "train/words.h"

#include "base/log.h"
#include "base/memory.h"
#include "tokenizer/unicode.h"
#include "train/texts.h"

#include <stdlib.h>

#define FILE_NAME "tokenizer.json"

struct ts_words {
  ts_tokenizer *tokenizer; /* NULL: bytes */
  ts_encoder *encoder;
  ts_chat *chat; /* NULL: texts are continued as they are */
  int64_t vocabulary;
};

ts_status ts_words_find(const ts_deck *deck, const char *checkpoint, char **directory, ts_error *err) {
  const char *slash = checkpoint != NULL ? strrchr(checkpoint, '/') : NULL;
  char *run = checkpoint == NULL ? NULL
              : slash != NULL    ? ts_format("%.*s", (int) (slash - checkpoint), checkpoint)
                                 : ts_strdup(".");
  ts_status status = ts_find_tokenizer(deck, run, true, directory, err);
  ts_free(run);
  return status;
}

static ts_status check_vocabulary_of_words(const ts_words *words, const char *directory, ts_error *err) {
  int64_t size = words->tokenizer != NULL ? ts_tokenizer_size(words->tokenizer) : 0;
  if (words->tokenizer == NULL && words->vocabulary > 256) {
    return ts_error_add(
        err, "tokens are bytes here, but the model has a vocabulary of %lld; accepted: a directory with a " FILE_NAME,
        (long long) words->vocabulary);
  }
  return size <= words->vocabulary
             ? TS_OK
             : ts_error_add(err, "%s/" FILE_NAME ": it has %lld tokens, but the model has a vocabulary of %lld",
                            directory, (long long) size, (long long) words->vocabulary);
}

ts_status ts_words_open(const ts_deck *deck, const char *directory, ts_words **out, ts_error *err) {
  ts_words *words = ts_calloc(1, sizeof *words);
  words->vocabulary = deck->model.vocab_size;
  ts_status status = directory != NULL ? ts_tokenizer_open(directory, &words->tokenizer, err) : TS_OK;
  status = status == TS_OK ? check_vocabulary_of_words(words, directory, err) : status;
  if (status == TS_OK && words->tokenizer != NULL) {
    words->encoder = ts_encoder_create(words->tokenizer);
  }
  if (status != TS_OK) {
    ts_words_close(&words);
  }
  *out = words;
  return status;
}

ts_status ts_words_chat(ts_words *words, const char *directory, const char *name, ts_error *err) {
  return ts_chat_open(directory, name, &words->chat, err);
}

bool ts_words_are_chats(const ts_words *words) {
  return words->chat != NULL;
}

int32_t ts_words_end(const ts_words *words) {
  ts_text mark = {0};
  int32_t id = -1;
  if (words->chat != NULL && words->tokenizer != NULL) {
    ts_chat_end(words->chat, &mark);
    id = mark.length > 0 ? ts_tokenizer_id(words->tokenizer, mark.text) : -1;
  }
  ts_text_free(&mark);
  return id;
}

void ts_words_close(ts_words **handle) {
  ts_words *words = *handle;
  if (words != NULL) {
    ts_chat_close(&words->chat);
    ts_encoder_destroy(&words->encoder);
    ts_tokenizer_close(&words->tokenizer);
    ts_free(words);
  }
  *handle = NULL;
}

static ts_status encode_bytes(const ts_words *words, const char *text, size_t n, const char *where, ts_ids *to,
                              ts_error *err) {
  for (size_t i = 0; i < n; ++i) {
    int32_t byte = (unsigned char) text[i];
    if (byte >= words->vocabulary) {
      return ts_error_add(err, "%s: byte %d is outside the model's vocabulary of %lld", where, byte,
                          (long long) words->vocabulary);
    }
    ts_ids_add(to, &byte, 1);
  }
  return TS_OK;
}

static ts_status encode_by_tokenizer(const ts_words *words, const char *text, size_t n, const char *where, ts_ids *to,
                                     ts_error *err) {
  bool special = words->chat == NULL; /* whose text has them already */
  ts_text valid = {0};
  ts_error why = {0};
  int64_t replaced = ts_utf8_repair(text, n, &valid);
  if (replaced > 0) {
    ts_log(TS_LOG_WARNING, "%s: %lld places that were not UTF-8 became U+FFFD", where, (long long) replaced);
  }
  ts_status status = ts_encode(words->encoder, valid.text != NULL ? valid.text : "", valid.length, special, to, &why);
  if (status != TS_OK) {
    ts_error_add(err, "%s: %s", where, why.text);
  }
  ts_error_clear(&why);
  ts_text_free(&valid);
  return status;
}

static ts_status encode_any(ts_words *words, const char *text, size_t n, const char *where, ts_ids *to, ts_error *err) {
  int64_t before = to->n;
  ts_status status = (words->encoder != NULL ? encode_by_tokenizer : encode_bytes)(words, text, n, where, to, err);
  return status != TS_OK || to->n > before
             ? status
             : ts_error_add(err, "%s: the text is empty; the model needs something to continue", where);
}

static ts_status encode_turns(ts_words *words, const ts_chat_turn *turn, int64_t n, const char *where, ts_ids *to,
                              ts_error *err) {
  ts_text text = {0};
  ts_error why = {0};
  ts_status status = ts_chat_render(words->chat, turn, n, (ts_chat_options){.prompt = true}, &text, NULL, &why);
  status = status == TS_OK ? encode_any(words, text.text, text.length, where, to, err)
                           : ts_error_add(err, "%s: %s", where, why.text);
  ts_error_clear(&why);
  ts_text_free(&text);
  return status;
}

ts_status ts_words_encode(ts_words *words, const char *text, size_t n, const char *where, ts_ids *to, ts_error *err) {
  const ts_chat_turn question = {TS_CHAT_USER, text, n};
  return words->chat != NULL ? encode_turns(words, &question, 1, where, to, err)
                             : encode_any(words, text, n, where, to, err);
}

ts_status ts_words_encode_chat(ts_words *words, const json_t *messages, const char *where, ts_ids *to, ts_error *err) {
  ts_chat_turns turns = {0};
  ts_status status = ts_chat_read_turns(messages, where, &turns, err);
  status = status == TS_OK ? encode_turns(words, turns.turn, turns.n, where, to, err) : status;
  ts_chat_turns_clear(&turns);
  return status;
}

void ts_words_follow(ts_words_stream *stream, ts_words *words, const int32_t *id, int64_t n) {
  if (words->encoder != NULL) {
    ts_text text = {0};
    ts_decode(words->encoder, id, n, false, &text);
    ts_ids_add(&stream->ids, id, n);
    stream->before = n;
    stream->shown = text.length;
    ts_text_free(&text);
  }
}

void ts_words_next(ts_words_stream *stream, ts_words *words, int32_t id, ts_text *to) {
  const char byte = (char) id;
  if (words->encoder != NULL) {
    ts_decode_next(stream, words->encoder, id, false, to);
  } else {
    ts_text_append(to, &byte, 1);
  }
}

void ts_words_share(ts_world *world, ts_ids *ids) {
  ts_comm *all = ts_world_all(world);
  ts_ids shared = {.n = ids->n};
  all->ops->broadcast(all, &shared.n, sizeof shared.n, 0);
  if (all->rank != 0) {
    ts_free(ids->id);
    *ids = (ts_ids){.id = ts_malloc((size_t) (shared.n + 1) * sizeof *ids->id), .n = shared.n, .capacity = shared.n};
  }
  all->ops->broadcast(all, ids->id, (size_t) ids->n * sizeof *ids->id, 0);
}
