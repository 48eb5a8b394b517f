/* Tokenizers of every kind against those of Hugging Face (golden/, make_tokenizers.py): ids with and without special
 * tokens, and texts whole and token by token.  TEST_ONLY takes names of tokenizers. */
#include "base/memory.h"
#include "regression/tap.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

#include <dirent.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static json_t *read_json(const char *path) {
  json_error_t err;
  json_t *read = json_load_file(path, JSON_ALLOW_NUL, &err);
  TS_CHECK(read != NULL, "%s: %s", path, err.text);
  return read;
}

static bool same_ids(const ts_ids *ids, const json_t *expected) {
  bool same = ids->n == (int64_t) json_array_size(expected);
  for (int64_t i = 0; same && i < ids->n; ++i) {
    same = ids->id[i] == json_integer_value(json_array_get(expected, (size_t) i));
  }
  return same;
}

static bool same_text(const ts_text *text, const json_t *expected) {
  size_t n = json_string_length(expected);
  return text->length == n && (n == 0 || memcmp(text->text, json_string_value(expected), n) == 0);
}

/* The member's entry, or what it is when the member has null. */
static const json_t *entry_or(const json_t *expected, const char *member, size_t i, const json_t *otherwise) {
  const json_t *entry = json_array_get(json_object_get(expected, member), i);
  return json_is_null(entry) ? otherwise : entry;
}

typedef struct result {
  int ids, plain, decoded, hidden, streamed; /* texts that are otherwise */
} result;

static bool ids_differ(ts_encoder *encoder, const json_t *text, bool special, const json_t *expected, ts_ids *ids) {
  ids->n = 0;
  ts_error err = {0};
  ts_status status = ts_encode(encoder, json_string_value(text), json_string_length(text), special, ids, &err);
  ts_error_clear(&err);
  return status != TS_OK || !same_ids(ids, expected);
}

static bool text_differs(ts_encoder *encoder, const ts_ids *ids, bool show_special, const json_t *expected) {
  ts_text text = {0};
  ts_decode(encoder, ids->id, ids->n, show_special, &text);
  bool differs = !same_text(&text, expected);
  ts_text_free(&text);
  return differs;
}

static bool stream_differs(ts_encoder *encoder, const ts_ids *ids, const json_t *expected) {
  ts_text text = {0};
  ts_decode_stream stream = {0};
  for (int64_t i = 0; i < ids->n; ++i) {
    ts_decode_next(&stream, encoder, ids->id[i], true, &text);
  }
  bool differs = !same_text(&text, expected);
  ts_decode_stream_clear(&stream);
  ts_text_free(&text);
  return differs;
}

static result compare(ts_encoder *encoder, const json_t *texts, const json_t *expected) {
  result r = {0};
  ts_ids ids = {0};
  for (size_t i = 0; i < json_array_size(texts); ++i) {
    const json_t *text = json_array_get(texts, i), *special = json_array_get(json_object_get(expected, "special"), i);
    r.plain += ids_differ(encoder, text, false, entry_or(expected, "plain", i, special), &ids);
    r.ids += ids_differ(encoder, text, true, special, &ids);
    const json_t *decoded = entry_or(expected, "decoded", i, text);
    r.decoded += text_differs(encoder, &ids, true, decoded);
    r.hidden += text_differs(encoder, &ids, false, entry_or(expected, "hidden", i, decoded));
    r.streamed += stream_differs(encoder, &ids, entry_or(expected, "streamed", i, decoded));
  }
  ts_free(ids.id);
  return r;
}

/* ---- in parts ---- */

static ts_text join_texts_of(const json_t *texts) {
  ts_text all = {0};
  for (size_t i = 0; i < 3 * json_array_size(texts); ++i) {
    const json_t *text = json_array_get(texts, i * 7 % json_array_size(texts));
    ts_text_append(&all, json_string_value(text), json_string_length(text));
    ts_text_append(&all, i % 3 == 0 ? "\n" : " ", i % 5 > 0);
  }
  return all;
}

static size_t next_character(const ts_text *text, size_t at) {
  ts_utf8_next(text->text, &at);
  return at;
}

/* As ts_encode, in parts of at least \a least bytes that end at the first place where the text may be cut. */
static int encode_in_parts(ts_encoder *encoder, const ts_text *text, size_t least, int *tried, ts_ids *to) {
  enum { AHEAD = 300 };
  int cuts = 0;
  ts_joint begins = TS_JOINT_BEGIN;
  for (size_t done = 0, end; done < text->length; done = end) {
    bool parts = false;
    ts_joint cut = TS_JOINT_NONE;
    for (end = done; end < text->length && end < done + least; end = next_character(text, end)) {
    }
    for (int64_t before = to->n; !parts; to->n = parts ? to->n : before) {
      size_t ahead = end;
      while (ahead < text->length && ahead < end + AHEAD) {
        ahead = next_character(text, ahead);
      }
      ts_status status = ts_encode_part(encoder, text->text + done, end - done, ahead - end, begins, &cut, to, NULL);
      parts = cut != TS_JOINT_NONE;
      TS_CHECK(status == TS_OK && (parts || end < text->length), "the end of a text is no place to cut it");
      ++*tried;
      cuts += parts && end < text->length;
      end = parts ? end : next_character(text, end);
    }
    begins = cut;
  }
  return cuts;
}

static void test_parts(ts_encoder *encoder, const char *name, const ts_text *all) {
  ts_ids whole = {0}, parts = {0};
  ts_encode(encoder, all->text, all->length, false, &whole, NULL);
  bool same = true;
  int cuts = 0, tried = 0;
  for (size_t least = 1; least <= 400; least += least < 8 ? 1 : 131) {
    parts.n = 0;
    cuts += encode_in_parts(encoder, all, least, &tried, &parts);
    same &= parts.n == whole.n && memcmp(parts.id, whole.id, (size_t) whole.n * sizeof *whole.id) == 0;
  }
  tap_ok(same && cuts > 50, "%s: in parts, %d cuts at %d places that were tried", name, cuts, tried);
  ts_free(whole.id);
  ts_free(parts.id);
}

static void test_one(const char *directory, const char *name, const json_t *texts, const ts_text *all) {
  char *path = ts_format("%s/%s", directory, name), *file = ts_format("%s/ids.json", path);
  json_t *expected = read_json(file);
  ts_tokenizer *tokenizer = NULL;
  ts_error err = {0};
  if (tap_ok(ts_tokenizer_open(path, &tokenizer, &err) == TS_OK, "%s is read%s%s", name, err.count > 0 ? ": " : "",
             err.count > 0 ? err.text : "")) {
    ts_encoder *encoder = ts_encoder_create(tokenizer);
    result r = compare(encoder, texts, expected);
    size_t n = json_array_size(texts);
    tap_ok(r.ids + r.plain == 0, "%s: the ids of %zu texts (%d and, without special tokens, %d differ)", name, n, r.ids,
           r.plain);
    tap_ok(r.decoded + r.hidden == 0, "%s: their texts (%d and, without special tokens, %d differ)", name, r.decoded,
           r.hidden);
    tap_ok(r.streamed == 0, "%s: token by token (%d differ)", name, r.streamed);
    r = compare(encoder, texts, expected);
    tap_ok(r.ids + r.plain == 0, "%s: again, of words that were seen", name);
    test_parts(encoder, name, all);
    ts_encoder_destroy(&encoder);
  }
  ts_tokenizer_close(&tokenizer);
  ts_error_clear(&err);
  json_decref(expected);
  ts_free(file);
  ts_free(path);
}

static int is_tokenizer(const struct dirent *entry) {
  return entry->d_name[0] != '.' && strchr(entry->d_name, '.') == NULL && tap_wanted(entry->d_name);
}

static void test_names(const char *directory) {
  char *path = ts_format("%s/llama2", directory);
  ts_tokenizer *tokenizer = NULL;
  TS_CHECK(ts_tokenizer_open(path, &tokenizer, NULL) == TS_OK, "%s is not read", path);
  tap_ok(ts_tokenizer_id(tokenizer, "<s>") == 1 && ts_tokenizer_id(tokenizer, "<0x41>") == 3 + 0x41,
         "ids of a special token and of one of the model");
  tap_ok(ts_tokenizer_id(tokenizer, "no such token") == -1, "and of none");
  tap_ok(ts_tokenizer_is_special(tokenizer, 2) && !ts_tokenizer_is_special(tokenizer, 3) &&
             !ts_tokenizer_is_special(tokenizer, -1) && !ts_tokenizer_is_special(tokenizer, 1 << 30),
         "which are special");
  tap_ok(ts_tokenizer_size(tokenizer) == 520, "how many there are");
  ts_tokenizer_close(&tokenizer);
  ts_free(path);
}

int main(void) {
  const char *directory = tap_path("regression/tokenizer/golden");
  char *path = ts_format("%s/texts.json", directory);
  json_t *texts = read_json(path);
  ts_text all = join_texts_of(texts);
  struct dirent **found;
  int n = scandir(directory, &found, is_tokenizer, alphasort);
  for (int i = 0; i < n; ++i) {
    test_one(directory, found[i]->d_name, texts, &all);
    free(found[i]);
  }
  free(found);
  test_names(directory);
  ts_text_free(&all);
  json_decref(texts);
  ts_free(path);
  tap_ok(n > 0 && ts_memory_live() == 0, "%d tokenizers, all memory freed", n);
  return tap_done();
}
