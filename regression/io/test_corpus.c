/* Texts and JSONL files in windows, on threads and in shares, against encoding all at once; and the files of tokens
 * that are made of them.  TEST_ONLY takes names of tokenizers. */
#include "base/memory.h"
#include "io/corpus.h"
#include "io/hdf5.h"
#include "io/token_parts.h"
#include "io/tokens.h"
#include "regression/io/token_files.h"
#include "regression/tap.h"
#include "tokenizer/unicode.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { END = 1 };

/* ---- what is handed on ---- */

typedef struct gathered {
  ts_record_ids ids;
  int64_t bytes;
} gathered;

static ts_status gather(void *user, const ts_corpus_part *part, ts_error *err) {
  (void) err;
  gathered *g = user;
  ts_record_ids *to = &g->ids;
  const ts_record_ids *from = part->ids;
  int64_t before = to->ids.n;
  for (int64_t i = 0; i < from->n_documents; ++i) {
    TS_GROW(to->first, to->n_documents, to->documents_capacity);
    to->first[to->n_documents++] = before + from->first[i];
  }
  ts_ids_add(&to->ids, from->ids.id, from->ids.n);
  ts_record_mark(to, before, false);
  memcpy(to->learned + before, from->learned, (size_t) from->ids.n);
  to->replaced += from->replaced;
  g->bytes += part->bytes;
  return TS_OK;
}

static bool same_tokens(const ts_record_ids *a, const ts_ids *b) {
  return a->ids.n == b->n && (b->n == 0 || memcmp(a->ids.id, b->id, (size_t) b->n * sizeof *b->id) == 0);
}

/* All shares after one another.  \return whether they fit together. */
static bool encode_file(const ts_tokenizer *tokenizer, const char *path, const ts_corpus_options *options,
                        gathered *out) {
  bool fit = true;
  ts_record_ids_reset(&out->ids);
  out->bytes = 0;
  for (int share = 0; share < options->n_shares; ++share) {
    ts_corpus_options o = *options;
    ts_error err = {0};
    bool parts = true;
    o.share = share;
    if (ts_corpus_encode(tokenizer, path, &o, gather, out, &parts, &err) != TS_OK) {
      tap_note("%s", err.text);
      fit = false;
    }
    fit &= parts;
    ts_error_clear(&err);
  }
  return fit;
}

static ts_tokenizer *open_golden(const char *name) {
  char *path = ts_format("%s/%s", tap_path("regression/tokenizer/golden"), name);
  ts_tokenizer *tokenizer = NULL;
  TS_CHECK(ts_tokenizer_open(path, &tokenizer, NULL) == TS_OK, "%s is not read", path);
  ts_free(path);
  return tokenizer;
}

/* ---- a text ---- */

static ts_text join_texts(void) {
  char *path = ts_format("%s/texts.json", tap_path("regression/tokenizer/golden"));
  json_t *texts = json_load_file(path, JSON_ALLOW_NUL, NULL);
  ts_text all = {0};
  for (size_t i = 0; i < 4 * json_array_size(texts); ++i) {
    const json_t *text = json_array_get(texts, i * 5 % json_array_size(texts));
    ts_text_append(&all, json_string_value(text), json_string_length(text));
    ts_text_append(&all, i % 3 == 0 ? "\n" : " ", i % 5 > 0);
  }
  json_decref(texts);
  ts_free(path);
  return all;
}

/* The ids of the whole text, as one document. */
static void encode_whole(const ts_tokenizer *tokenizer, const ts_text *text, int32_t end, ts_ids *to) {
  ts_encoder *encoder = ts_encoder_create(tokenizer);
  ts_text valid = {0};
  to->n = 0;
  ts_utf8_repair(text->text, text->length, &valid);
  TS_CHECK(ts_encode(encoder, valid.text, valid.length, true, to, NULL) == TS_OK, "a text is not encoded");
  if (end >= 0 && (to->n == 0 || to->id[to->n - 1] != end)) {
    ts_ids_add(to, &end, 1);
  }
  ts_text_free(&valid);
  ts_encoder_destroy(&encoder);
}

static void text_in_windows(const char *name, const ts_text *text, const char *path, int64_t replaced) {
  static const struct {
    int64_t window;
    int threads, shares;
  } rows[] = {{1 << 20, 1, 1}, {64, 1, 1}, {301, 2, 1}, {301, 3, 2}, {1000, 2, 5}};
  ts_tokenizer *tokenizer = open_golden(name);
  ts_ids whole = {0};
  gathered g = {0};
  encode_whole(tokenizer, text, END, &whole);
  int wrong = 0, fits = 0;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    const ts_corpus_options o = {.format = "text",
                                 .record = {.end_token = END},
                                 .threads = rows[i].threads,
                                 .window = rows[i].window,
                                 .n_shares = rows[i].shares};
    bool fit = encode_file(tokenizer, path, &o, &g);
    bool same = same_tokens(&g.ids, &whole) && g.ids.n_documents == 1 && g.ids.first[0] == 0 &&
                g.bytes == (int64_t) text->length && (replaced < 0 || g.ids.replaced == replaced);
    wrong += fit && !same;
    fits += fit;
    if (fit && !same) {
      tap_note("%s: window %lld, %d shares: %lld ids, not %lld; %lld replaced", name, (long long) rows[i].window,
               rows[i].shares, (long long) g.ids.ids.n, (long long) whole.n, (long long) g.ids.replaced);
    }
  }
  tap_ok(wrong == 0 && fits >= 3, "%s: a text in windows has the ids of the whole (%d of 5 ways to share it fit)", name,
         fits);
  ts_record_ids_clear(&g.ids);
  ts_free(whole.id);
  ts_tokenizer_close(&tokenizer);
}

static int is_tokenizer(const struct dirent *entry) {
  return entry->d_name[0] != '.' && strchr(entry->d_name, '.') == NULL && tap_wanted(entry->d_name);
}

static void test_texts(void) {
  ts_text text = join_texts();
  char *path = token_file_bytes("all.txt", text.text, text.length);
  struct dirent **found;
  int n = scandir(tap_path("regression/tokenizer/golden"), &found, is_tokenizer, alphasort);
  for (int i = 0; i < n; ++i) {
    text_in_windows(found[i]->d_name, &text, path, 0);
    free(found[i]);
  }
  free(found);
  ts_free(path);
  ts_text_free(&text);
}

/* Bytes that are no UTF-8, of every kind, all over the text: cut and repaired as the whole. */
static void test_broken_text(void) {
  static const char *const bad[] = {"\xff",         "\xc3",    "\xe2\x82", "\xf0\x9f\x98", "\x80\x80\x80\x80\x80",
                                    "\xed\xa0\x80", "\xc0\xaf"};
  ts_text text = {0}, valid = {0};
  for (int i = 0; i < 400; ++i) {
    ts_text_add(&text, "word%d %s\xc3\xa9%s", i, bad[i % 7], i % 4 ? " and more" : "\n");
  }
  int64_t replaced = ts_utf8_repair(text.text, text.length, &valid);
  char *path = token_file_bytes("bad.txt", text.text, text.length);
  text_in_windows("llama3", &text, path, replaced);
  text_in_windows("llama2", &text, path, replaced);
  tap_ok(replaced > 400, "%lld places of it are no UTF-8", (long long) replaced);
  ts_free(path);
  ts_text_free(&valid);
  ts_text_free(&text);
}

/* One word that may be cut nowhere becomes one window; the shares of it do not fit. */
static void test_one_word(void) {
  ts_text text = {0};
  for (int i = 0; i < 500; ++i) {
    ts_text_append(&text, "ab", 2);
  }
  char *path = token_file_bytes("word.txt", text.text, text.length);
  ts_tokenizer *tokenizer = open_golden("gpt2");
  ts_ids whole = {0};
  gathered g = {0};
  encode_whole(tokenizer, &text, -1, &whole);
  ts_corpus_options o = {.format = "text", .record = {.end_token = -1}, .threads = 2, .window = 100, .n_shares = 1};
  tap_ok(encode_file(tokenizer, path, &o, &g) && same_tokens(&g.ids, &whole), "a word of ten windows is one");
  o.n_shares = 2;
  tap_ok(!encode_file(tokenizer, path, &o, &g), "and has no two shares");
  ts_record_ids_clear(&g.ids);
  ts_free(whole.id);
  ts_tokenizer_close(&tokenizer);
  ts_free(path);
  ts_text_free(&text);
}

/* ---- lines ---- */

/* The documents are these texts, each encoded alone. */
static bool are_documents(const ts_tokenizer *tokenizer, const gathered *g, const char *const *texts, int n) {
  ts_ids ids = {0};
  int64_t at = 0;
  bool same = g->ids.n_documents == n;
  for (int i = 0; i < n && same; ++i) {
    encode_whole(tokenizer, &(ts_text){.text = (char *) texts[i], .length = strlen(texts[i])}, END, &ids);
    same = g->ids.first[i] == at && at + ids.n <= g->ids.ids.n &&
           memcmp(g->ids.ids.id + at, ids.id, (size_t) ids.n * sizeof *ids.id) == 0;
    at += ids.n;
  }
  ts_free(ids.id);
  return same && at == g->ids.ids.n;
}

static void test_lines(void) {
  enum { LINES = 300 };
  ts_text text = {0};
  char *texts[LINES];
  ts_text_append(&text, "\xef\xbb\xbf", 3);
  for (int i = 0; i < LINES; ++i) {
    texts[i] = ts_format("line %d%s\n\xe2\x82\xac%.*s", i, i % 7 ? "" : " \"quoted\"", i % 50 == 7 ? 90 : i % 9,
                         "xyzxyz xyz xyzxyz xyz xyzxyz xyz xyzxyz xyz xyzxyz xyz xyzxyz xyz xyzxyz xyz xyzxyz xyz xyz");
    ts_text_add(&text, "{\"id\": %d, \"text\": ", i);
    ts_text_add_json(&text, texts[i]);
    ts_text_add(&text, "}%s%s", i % 3 ? "\n" : "\r\n", i % 20 ? "" : i % 40 ? "\n" : " \t\n");
  }
  char *path = token_file_bytes("lines.jsonl", text.text, text.length - 1);
  ts_tokenizer *tokenizer = open_golden("llama2");
  gathered g = {0};
  for (int64_t window = 16; window <= 1 << 20; window *= 7) {
    for (int shares = 1; shares <= 4; shares += 3) {
      const ts_corpus_options o = {.format = "jsonl",
                                   .record = {.field = "text", .end_token = END},
                                   .threads = shares == 1 ? 3 : 1,
                                   .window = window,
                                   .n_shares = shares};
      bool fit = encode_file(tokenizer, path, &o, &g);
      tap_ok(fit && are_documents(tokenizer, &g, (const char *const *) texts, LINES),
             "%d lines in windows of %lld bytes, %d shares", LINES, (long long) window, shares);
    }
  }
  tap_ok(memchr(g.ids.learned, 0, (size_t) g.ids.ids.n) == NULL, "all of a text is learned");
  for (int i = 0; i < LINES; ++i) {
    ts_free(texts[i]);
  }
  ts_record_ids_clear(&g.ids);
  ts_tokenizer_close(&tokenizer);
  ts_free(path);
  ts_text_free(&text);
}

static ts_status encode_line(const char *tokenizer_name, const char *line, const ts_record_options *o, gathered *g,
                             ts_ids *whole, const char *text, ts_error *err) {
  ts_tokenizer *tokenizer = open_golden(tokenizer_name);
  ts_encoder *encoder = ts_encoder_create(tokenizer);
  ts_record_room room = {0};
  ts_record_ids_reset(&g->ids);
  ts_status status = ts_record_encode(encoder, line, strlen(line), o, &room, &g->ids, err);
  if (whole != NULL) {
    encode_whole(tokenizer, &(ts_text){.text = (char *) text, .length = strlen(text)}, o->end_token, whole);
  }
  ts_record_room_clear(&room);
  ts_encoder_destroy(&encoder);
  ts_tokenizer_close(&tokenizer);
  return status;
}

/* Prompt and completion have the ids of both together; the mask begins with the first token that has anything of the
 * completion. */
static void test_completions(void) {
  static const struct {
    const char *tokenizer, *prompt, *completion;
    int learned;                               /* tokens, of which the end token is one */
  } rows[] = {{"gpt2", "Q: two? A:", " 2", 2}, /* " 2" and the end */
              {"gpt2", "Q: two? A: ", "2", 2}, /* the same: the space goes with the word */
              {"gpt2", "to", "tal", 5},        /* one word, cut nowhere */
              {"llama2", "Say it.", " it", 3}, /* "_it", and the template's end */
              {"llama2", "", "all", 3},        {"llama2", "none", "", 2}};
  gathered g = {0};
  ts_ids whole = {0};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    ts_error err = {0};
    ts_text line = {0}, text = {0};
    ts_text_add(&text, "%s%s", rows[i].prompt, rows[i].completion);
    ts_text_add(&line, "{\"prompt\": ");
    ts_text_add_json(&line, rows[i].prompt);
    ts_text_add(&line, ", \"completion\": ");
    ts_text_add_json(&line, rows[i].completion);
    ts_text_add(&line, "}");
    ts_record_options o = {.field = "prompt", .completion_field = "completion", .end_token = END};
    ts_status status = encode_line(rows[i].tokenizer, line.text, &o, &g, &whole, text.text, &err);
    int64_t learned = 0;
    bool contiguous = true;
    for (int64_t k = 0; k < g.ids.ids.n; ++k) {
      learned += g.ids.learned[k];
      contiguous &= k == 0 || g.ids.learned[k] >= g.ids.learned[k - 1];
    }
    bool same = status == TS_OK && same_tokens(&g.ids, &whole);
    tap_ok(same && contiguous && learned == rows[i].learned, "%s: \"%s\" + \"%s\": %lld of %lld tokens are learned",
           rows[i].tokenizer, rows[i].prompt, rows[i].completion, (long long) learned, (long long) g.ids.ids.n);
    o.train_on_prompt = true;
    status = encode_line(rows[i].tokenizer, line.text, &o, &g, NULL, NULL, &err);
    tap_ok(status == TS_OK && same_tokens(&g.ids, &whole) && memchr(g.ids.learned, 0, (size_t) whole.n) == NULL,
           "and all, where the prompt is learned");
    ts_error_clear(&err);
    ts_text_free(&line);
    ts_text_free(&text);
  }
  ts_free(whole.id);
  ts_record_ids_clear(&g.ids);
}

/* A tokenizer with tokens of its own for chatml. */
static ts_tokenizer *open_with_marks(const char *name) {
  static const char *const marks[] = {"<|im_start|>", "<|im_end|>"};
  char *path = ts_format("%s/%s/tokenizer.json", tap_path("regression/tokenizer/golden"), name);
  char *directory = ts_format("%s/%s", tap_directory(), name), *copy = ts_format("%s/tokenizer.json", directory);
  json_t *root = json_load_file(path, JSON_ALLOW_NUL, NULL);
  for (int i = 0; i < 2; ++i) {
    json_array_append_new(json_object_get(root, "added_tokens"),
                          json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", 2000 + i, "content", marks[i],
                                    "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
  }
  ts_tokenizer *tokenizer = NULL;
  TS_CHECK(ts_make_directory(directory, NULL) == TS_OK && json_dump_file(root, copy, 0) == 0, "%s", copy);
  TS_CHECK(ts_tokenizer_open(directory, &tokenizer, NULL) == TS_OK, "%s is not read", copy);
  json_decref(root);
  ts_free(copy);
  ts_free(directory);
  ts_free(path);
  return tokenizer;
}

/* Of a chat the tokens are those of its text, and learned is what the assistant says with its end mark. */
static void chat_is(const ts_tokenizer *tokenizer, const ts_chat *chat, const char *line, const char *completion_field,
                    const char *learned) {
  ts_encoder *encoder = ts_encoder_create(tokenizer);
  ts_error err = {0};
  ts_record_ids ids = {0};
  ts_record_room room = {0};
  ts_ids said = {0}, plain = {0};
  ts_text text = {0}, all = {0};
  const ts_record_options o = {.field = "chat", .completion_field = completion_field, .end_token = END, .chat = chat};
  bool same = ts_record_encode(encoder, line, strlen(line), &o, &room, &ids, &err) == TS_OK;
  for (int64_t i = 0; i < ids.ids.n; ++i) {
    ts_ids_add(&said, &ids.ids.id[i], ids.learned[i]);
  }
  ts_decode(encoder, said.id, said.n, true, &text);
  ts_text_append(&all, room.text.text, room.text.length);
  same = same && ts_encode(encoder, all.text, all.length, false, &plain, &err) == TS_OK && same_tokens(&ids, &plain);
  if (!tap_ok(same && text.text != NULL && strcmp(text.text, learned) == 0 && ids.n_documents == 1,
              "learned is what is said: %lld of %lld tokens", (long long) said.n, (long long) ids.ids.n)) {
    tap_note("%s", err.count > 0 ? err.text : text.text);
  }
  ts_text_free(&text);
  ts_text_free(&all);
  ts_free(said.id);
  ts_free(plain.id);
  ts_record_room_clear(&room);
  ts_record_ids_clear(&ids);
  ts_error_clear(&err);
  ts_encoder_destroy(&encoder);
}

#define TURN(role, content) "{\"role\": \"" role "\", \"content\": \"" content "\"}"

static void test_chats(void) {
  static const char *const tokenizers[] = {"gpt2", "qwen", "llama3", "llama2"};
  const char *two = "{\"chat\": [" TURN("user", "who is it?") ", " TURN("assistant", "a fox") ", " TURN(
      "user", "sure?") ", " TURN("assistant", "yes, \\u00e9!") "]}";
  const char *rest = "{\"chat\": [" TURN("user", "who is it?") ", " TURN("assistant", "a fox") ", " TURN(
      "user", "sure?") "], \"more\": \"yes\"}";
  const char *turns = "{\"chat\": [" TURN("user", "who is it?") "], \"more\": [" TURN("assistant", "a fox") ", " TURN(
      "user", "sure?") ", " TURN("assistant", "yes") "]}";
  for (size_t i = 0; i < sizeof tokenizers / sizeof tokenizers[0]; ++i) {
    ts_tokenizer *tokenizer = open_with_marks(tokenizers[i]);
    ts_chat *chat = NULL;
    TS_CHECK(ts_chat_open(NULL, "chatml", &chat, NULL) == TS_OK, "no chatml");
    tap_note("%s", tokenizers[i]);
    chat_is(tokenizer, chat, two, NULL, "a fox<|im_end|>yes, \xc3\xa9!<|im_end|>");
    chat_is(tokenizer, chat, rest, "more", "yes<|im_end|>");
    chat_is(tokenizer, chat, turns, "more", "a fox<|im_end|>yes<|im_end|>");
    ts_chat_close(&chat);
    ts_tokenizer_close(&tokenizer);
  }
}

static void test_bad_lines(void) {
  static const struct {
    const char *line, *completion, *message;
  } rows[] = {{"{\"text\": \"a\"", NULL, "no json: "},
              {"[1, 2]", NULL, "is a list; accepted: an object with a member \"text\""},
              {"\"text\"", NULL, "no json: "},
              {"{\"txt\": \"a\", \"id\": 1}", NULL, "no member \"text\"; there are: \"txt\", \"id\""},
              {"{}", NULL, "no member \"text\"; there are: none"},
              {"{\"text\": 5}", NULL, "\"text\" is a number; accepted: a string, or a list of turns"},
              {"{\"text\": null}", NULL, "\"text\" is null; accepted: a string, or a list of turns"},
              {"{\"text\": \"\\ud800\"}", NULL, "no json: "},
              {"{\"text\": \"a\"}", "answer", "no member \"answer\"; there are: \"text\""},
              {"{\"text\": \"a\", \"answer\": {}}", "answer", "\"answer\" is an object; accepted: a string"},
              {"{\"text\": [{\"role\": \"user\"}]}", NULL, "text[0]"},
              {"{\"text\": [{\"role\": \"tool\", \"content\": \"\"}]}", NULL, "text[0].role: "},
              {"{\"text\": []}", NULL, "no turn of user or assistant"}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    ts_text text = {0};
    for (int line = 1; line < 120; ++line) {
      ts_text_add(&text, line % 10 == 0 ? "\n" : "{\"text\": \"good\", \"answer\": \"too\"}\n");
    }
    ts_text_add(&text, "%s\n{\"text\": 1}\n", rows[i].line);
    char *path = token_file_bytes("wrong.jsonl", text.text, text.length), *begin = ts_format("%s:120: ", path);
    ts_tokenizer *tokenizer = open_golden("gpt2");
    ts_chat *chat = NULL;
    TS_CHECK(ts_chat_open(NULL, "chatml", &chat, NULL) == TS_OK, "no chatml");
    gathered g = {0};
    int told = 0;
    ts_text said = {0};
    for (int shares = 1; shares <= 3; shares += 2) {
      ts_error err = {0};
      for (int share = 0; share < shares && err.count == 0; ++share) {
        const ts_corpus_options o = {
            .format = "jsonl",
            .record = {.field = "text", .completion_field = rows[i].completion, .end_token = -1, .chat = chat},
            .threads = 2,
            .window = 100,
            .share = share,
            .n_shares = shares};
        ts_corpus_encode(tokenizer, path, &o, gather, &g, NULL, &err);
      }
      told +=
          err.count == 1 && strncmp(err.text, begin, strlen(begin)) == 0 && strstr(err.text, rows[i].message) != NULL;
      ts_text_add(&said, "%s", err.count > 0 ? err.text : "nothing");
      ts_error_clear(&err);
    }
    if (!tap_ok(told == 2, "refused with its line: %s", rows[i].line)) {
      tap_note("%s", said.text);
    }
    ts_text_free(&said);
    ts_record_ids_clear(&g.ids);
    ts_chat_close(&chat);
    ts_tokenizer_close(&tokenizer);
    ts_free(begin);
    ts_free(path);
    ts_text_free(&text);
  }
}

static void test_bad_files(void) {
  char *missing = ts_format("%s/none.txt", tap_directory());
  const char *const paths[] = {missing, tap_directory()};
  ts_tokenizer *tokenizer = open_golden("gpt2");
  gathered g = {0};
  for (int i = 0; i < 2; ++i) {
    ts_error err = {0};
    const ts_corpus_options o = {.format = "text", .record = {.end_token = -1}, .n_shares = 1};
    ts_status status = ts_corpus_encode(tokenizer, paths[i], &o, gather, &g, NULL, &err);
    tap_ok(status == TS_BAD_INPUT && strncmp(err.text, paths[i], strlen(paths[i])) == 0, "refused: %s", err.text);
    ts_error_clear(&err);
  }
  ts_tokenizer_close(&tokenizer);
  ts_free(missing);
}

/* ---- files of tokens ---- */

static ts_record_ids make_ids(const int32_t *id, const uint8_t *learned, int n, const int64_t *first, int documents) {
  ts_record_ids ids = {0};
  ts_ids_add(&ids.ids, id, n);
  ts_record_mark(&ids, 0, true);
  memcpy(ids.learned, learned, (size_t) n);
  for (int i = 0; i < documents; ++i) {
    TS_GROW(ids.first, ids.n_documents, ids.documents_capacity);
    ids.first[ids.n_documents++] = first[i];
  }
  return ids;
}

/* Two parts of two additions each; a document that goes on in the second part. */
static ts_status write_parts(const char *path, int64_t vocab_size, bool masked, ts_error *err) {
  const int32_t id[] = {7, 65000, (int32_t) vocab_size - 1};
  const uint8_t learned[] = {1, !masked, 1};
  const int64_t first[] = {0, 2};
  char *prefix[2] = {ts_format("%s.0", path), ts_format("%s.1", path)};
  ts_token_counts counts[2] = {{0}};
  ts_status status = TS_OK;
  for (int p = 0; p < 2 && status == TS_OK; ++p) {
    ts_token_part *part;
    ts_record_ids ids = make_ids(id, learned, 3, first + p, 2 - p);
    status = ts_token_part_create(prefix[p], vocab_size, &part, err);
    for (int k = 0; k < 2 && status == TS_OK; ++k) {
      status = ts_token_part_add(part, &ids, err);
    }
    if (part != NULL) {
      counts[p] = *ts_token_part_counts(part);
      ts_status closed = ts_token_part_close(&part, err);
      status = status == TS_OK ? closed : status;
    }
    ts_record_ids_clear(&ids);
  }
  status = status == TS_OK ? ts_token_parts_join(path, vocab_size, 2, prefix, counts, NULL, NULL, err) : status;
  for (int p = 0; p < 2; ++p) {
    ts_token_part_remove(prefix[p]);
    ts_free(prefix[p]);
  }
  return status;
}

static void test_parts(int64_t vocab_size, bool masked) {
  char *path = ts_format("%s/parts%lld%d.h5", tap_directory(), (long long) vocab_size, masked);
  static const int64_t first[] = {0, 2, 3, 5, 8, 11};
  ts_error err = {0};
  ts_tokens *tokens = NULL;
  bool made = write_parts(path, vocab_size, masked, &err) == TS_OK &&
              ts_tokens_open(path, "auto", "tokens", vocab_size, &tokens, &err) == TS_OK;
  int64_t n = -1, found[8];
  int32_t id[12];
  uint8_t mask[12];
  made = made && ts_tokens_count(tokens) == 12 && ts_tokens_are_masked(tokens) == masked &&
         ts_tokens_read(tokens, 0, 12, id, &err) == TS_OK && ts_tokens_find_documents(tokens, &n, &err) == TS_OK &&
         n == 6 && ts_tokens_read_documents(tokens, 0, n, found, &err) == TS_OK &&
         memcmp(found, first, sizeof first) == 0 &&
         (!masked || ts_tokens_read_mask(tokens, 0, 12, mask, &err) == TS_OK);
  for (int i = 0; i < 12 && made; ++i) {
    const int64_t expected[] = {7, 65000, vocab_size - 1};
    made = id[i] == expected[i % 3] && (!masked || mask[i] == (i % 3 != 1));
  }
  if (!tap_ok(made, "two parts of %lld tokens in a file%s", (long long) vocab_size, masked ? ", masked" : "")) {
    tap_note("%s", err.count > 0 ? err.text : "others");
  }
  ts_tokens_close(&tokens);
  ts_error_clear(&err);
  ts_free(path);
}

static void test_full_disk(void) {
  char *path = ts_format("%s/full.h5", tap_directory()), *temporary = ts_format("%s.tmp", path);
  ts_error err = {0};
  ts_hdf5_set_test_failure(2, ENOSPC);
  ts_status status = write_parts(path, 70000, true, &err);
  ts_hdf5_set_test_failure(0, 0);
  tap_ok(status == TS_BAD_INPUT && err.count == 1 && strstr(err.text, "No space left") != NULL, "a full disk: %s",
         err.count > 0 ? err.text : "no message");
  tap_ok(access(path, F_OK) != 0 && access(temporary, F_OK) != 0, "leaves nothing");
  ts_error_clear(&err);
  ts_token_part *part;
  char *nowhere = ts_format("%s/none/part", tap_directory());
  status = ts_token_part_create(nowhere, 10, &part, &err);
  tap_ok(status == TS_BAD_INPUT && part == NULL && strstr(err.text, "cannot be written") != NULL, "%s", err.text);
  ts_error_clear(&err);
  ts_free(nowhere);
  ts_free(temporary);
  ts_free(path);
}

int main(void) {
  test_texts();
  test_broken_text();
  test_one_word();
  test_lines();
  test_completions();
  test_chats();
  test_bad_lines();
  test_bad_files();
  test_parts(65536, false);
  test_parts(65536, true);
  test_parts(65537, true);
  test_full_disk();
  tap_ok(ts_memory_live() == 0, "no memory is left");
  return tap_done();
}
