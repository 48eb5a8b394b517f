#include "main/prompts.h"

#include "base/log.h"
#include "base/memory.h"
#include "io/records.h"
#include "tokenizer/unicode.h"

#include <string.h>

enum { MOST_ERRORS = 10, MOST_BYTES = 1 << 30 };

static ts_status refuse_prompt_row(const json_t *text, const char *field, bool chat, const char *where, ts_error *err) {
  return ts_error_add(err, "%s: %s \"%s\"; accepted: an object whose member \"%s\" is a string%s (--field NAME)", where,
                      text == NULL ? "it has no member" : "no string is the member", field, field,
                      chat ? ", or a chat, or \"messages\" is" : "");
}

/* What of a line is continued, and its tokens: the one place that knows what a line may be. */
static ts_status encode_prompt_row(const json_t *row, const char *field, const char *where, ts_words *words,
                                   ts_prompts *out, ts_error *err) {
  bool chat = ts_words_are_chats(words);
  json_t *named = json_object_get(row, field), *text = named == NULL && chat ? json_object_get(row, "messages") : named;
  int64_t before = out->ids.n;
  ts_status status;
  if (json_is_string(text)) {
    status = ts_words_encode(words, json_string_value(text), json_string_length(text), where, &out->ids, err);
  } else if (json_is_array(text) && chat) {
    char *list = ts_format("%s: %s", where, named != NULL ? field : "messages");
    status = ts_words_encode_chat(words, text, list, &out->ids, err);
    ts_free(list);
  } else {
    return refuse_prompt_row(text, field, chat, where, err);
  }
  int32_t n = (int32_t) (out->ids.n - before);
  ts_ids_add(&out->n, &n, 1);
  json_array_append(out->text, text);
  return status;
}

static ts_status read_prompt_row(const char *line, size_t n, const char *field, const char *where, ts_words *words,
                                 ts_prompts *out, ts_error *err) {
  json_error_t why;
  json_t *row = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
  ts_status status = TS_OK;
  if (!json_is_object(row)) {
    status = row == NULL ? ts_error_add(err, "%s: no json object: %s", where, why.text)
                         : ts_error_add(err, "%s: json, but no object", where);
  } else {
    status = encode_prompt_row(row, field, where, words, out, err);
  }
  json_decref(row);
  return status;
}

static ts_status read_prompt_rows(const char *path, const ts_text *file, const char *field, ts_words *words,
                                  ts_prompts *out, ts_error *err) {
  ts_status status = TS_OK;
  int errors = 0;
  size_t at = file->length >= 3 && memcmp(file->text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; /* as Windows begins a file */
  for (int64_t number = 1; at < file->length && errors < MOST_ERRORS; ++number) {
    const char *line = file->text + at, *end = memchr(line, '\n', file->length - at);
    size_t n = end != NULL ? (size_t) (end - line) : file->length - at;
    char *where = ts_format("%s:%lld", path, (long long) number);
    if (!ts_record_is_blank(line, n) && read_prompt_row(line, n, field, where, words, out, err) != TS_OK) {
      status = TS_BAD_INPUT;
      ++errors;
    }
    ts_free(where);
    at += n + 1;
  }
  return status;
}

ts_status ts_prompts_read(const char *path, const char *field, ts_words *words, ts_prompts *out, ts_error *err) {
  char *bytes = NULL;
  size_t n = 0;
  ts_text valid = {0};
  *out = (ts_prompts){.text = json_array()};
  ts_status status = ts_read_file(path, MOST_BYTES, &bytes, &n, err);
  if (status != TS_OK) {
    return status;
  }
  int64_t replaced = ts_utf8_repair(bytes, n, &valid);
  if (replaced > 0) {
    ts_log(TS_LOG_WARNING, "%s: %lld places that were not UTF-8 became U+FFFD", path, (long long) replaced);
  }
  status = read_prompt_rows(path, &valid, field, words, out, err);
  if (status == TS_OK && out->n.n == 0) {
    status = ts_error_add(err, "%s: no line has a text to continue", path);
  }
  ts_text_free(&valid);
  ts_free(bytes);
  return status;
}

int64_t ts_prompts_longest(const ts_prompts *prompts) {
  int64_t longest = 0;
  for (int64_t i = 0; i < prompts->n.n; ++i) {
    longest = prompts->n.id[i] > longest ? prompts->n.id[i] : longest;
  }
  return longest;
}

void ts_prompts_share(ts_world *world, ts_prompts *prompts) {
  ts_words_share(world, &prompts->ids);
  ts_words_share(world, &prompts->n);
}

void ts_prompts_clear(ts_prompts *prompts) {
  json_decref(prompts->text);
  ts_free(prompts->ids.id);
  ts_free(prompts->n.id);
  *prompts = (ts_prompts){0};
}
