/* Chats as text against Hugging Face's apply_chat_template (golden/, make_chats.py): each template is found by its hash
 * and by its name, its texts are the same, and what is learned is the assistant's words and the mark of their end.
 * TEST_ONLY takes names of templates. */
#include "base/memory.h"
#include "chat/chat.h"
#include "regression/tap.h"

#include <stdlib.h>
#include <string.h>

static json_t *read_golden(const char *name) {
  char *path = ts_format("regression/chat/golden/%s", name);
  json_error_t err;
  json_t *read = json_load_file(tap_path(path), JSON_ALLOW_NUL, &err);
  TS_CHECK(read != NULL, "%s: %s", path, err.text);
  ts_free(path);
  return read;
}

static void write_file(const char *name, const char *text, size_t length) {
  char *path = ts_format("%s/%s", tap_directory(), name);
  ts_error err = {0};
  TS_CHECK(ts_write_file(path, text, length, &err) == TS_OK, "%s", err.text);
  ts_free(path);
}

static void remove_file(const char *name) {
  char *path = ts_format("%s/%s", tap_directory(), name);
  remove(path);
  ts_free(path);
}

static void write_config(json_t *config) {
  char *text = json_dumps(config, 0);
  write_file("tokenizer_config.json", text, strlen(text));
  free(text);
  json_decref(config);
}

/* ---- against Hugging Face's ---- */

/* A template lies in a directory in one of three ways. */
static void write_template(const json_t *template, size_t way) {
  const json_t *text = json_object_get(template, "template");
  json_t *config = json_pack("{s:O, s:{s:O}}", "bos_token", json_object_get(template, "bos"), "eos_token", "content",
                             json_object_get(template, "eos"));
  remove_file("chat_template.jinja");
  if (way == 0) {
    json_object_set_new(config, "chat_template", json_string("not this one"));
    char *file = ts_format("%s\n\n", json_string_value(text));
    write_file("chat_template.jinja", file, strlen(file));
    ts_free(file);
  } else if (way == 1) {
    json_object_set(config, "chat_template", (json_t *) text);
  } else {
    json_object_set_new(config, "chat_template",
                        json_pack("[{s:s, s:s}, {s:s, s:O}]", "name", "tool_use", "template", "not this one", "name",
                                  "default", "template", text));
  }
  write_config(config);
}

static bool is_text(const ts_text *text, const json_t *expected) {
  return text->length == json_string_length(expected) &&
         (text->length == 0 || memcmp(text->text, json_string_value(expected), text->length) == 0);
}

/* The i-th span is the i-th answer's: what it says last, then the mark; the spans are all in order. */
static bool are_answers(const ts_chat_spans *spans, const ts_chat_turns *turns, const char *text, const char *mark) {
  int64_t n = 0;
  size_t at = 0;
  for (int64_t i = 0; i < turns->n; ++i) {
    if (turns->turn[i].role != TS_CHAT_ASSISTANT) {
      continue;
    }
    if (n >= spans->n || spans->span[n].begin < at || spans->span[n].end < spans->span[n].begin + strlen(mark)) {
      return false;
    }
    at = spans->span[n++].end;
    if (memcmp(text + at - strlen(mark), mark, strlen(mark)) != 0) {
      return false;
    }
  }
  return n == spans->n;
}

/* Chats that are otherwise than expected. */
static int count_wrong(const ts_chat *chat, const char *mark, const json_t *chats, const json_t *expected,
                       const struct tm *day) {
  int wrong = 0;
  for (size_t i = 0; i < 2 * json_array_size(chats); ++i) {
    ts_chat_turns turns = {0};
    ts_text text = {0};
    ts_chat_spans spans = {0};
    ts_error err = {0};
    const json_t *then = json_array_get(json_array_get(expected, i / 2), i % 2);
    TS_CHECK(ts_chat_read_turns(json_array_get(chats, i / 2), "messages", &turns, &err) == TS_OK, "%s", err.text);
    ts_chat_options options = {.prompt = i % 2 == 1, .today = day};
    bool same = ts_chat_render(chat, turns.turn, turns.n, options, &text, &spans, &err) == TS_OK
                    ? is_text(&text, then) && are_answers(&spans, &turns, text.text, mark)
                    : json_is_null(then) && text.length == 0 && strncmp(err.text, "messages", 8) == 0;
    if (!same) {
      tap_note("chat %zu, prompt %zu: %s", i / 2, i % 2, err.count > 0 ? err.text : text.text);
      ++wrong;
    }
    ts_chat_turns_clear(&turns);
    ts_text_free(&text);
    ts_chat_spans_clear(&spans);
    ts_error_clear(&err);
  }
  return wrong;
}

/* The mark of an answer's end is the text behind the words "Hi there", up to a white space, in the second chat. */
static char *mark_of(const json_t *expected) {
  const char *text = json_string_value(json_array_get(json_array_get(expected, 1), 0));
  const char *said = strstr(text, "Hi there");
  TS_CHECK(said != NULL, "no answer in %s", text);
  said += strlen("Hi there");
  const char *close = strchr(said, '>');
  return ts_format("%.*s", (int) (close - said + 1), said);
}

static void test_golden(void) {
  json_t *templates = read_golden("templates.json"), *golden = read_golden("chats.json");
  const json_t *chats = json_object_get(golden, "chats"), *template;
  const struct tm day = {.tm_year = 125, .tm_mon = 6, .tm_mday = 4};
  size_t i;
  json_array_foreach(templates, i, template) {
    const char *row = json_string_value(json_object_get(template, "row"));
    const json_t *expected = json_array_get(json_object_get(golden, "expected"), i);
    if (!tap_wanted(row)) {
      continue;
    }
    write_template(template, i % 3);
    ts_chat *chat = NULL;
    ts_error err = {0};
    ts_status status = ts_chat_open(tap_directory(), NULL, &chat, &err);
    char *mark = mark_of(expected);
    tap_ok(status == TS_OK && strcmp(ts_chat_name(chat), row) == 0 &&
               count_wrong(chat, mark, chats, expected, &day) == 0,
           "%s: %s%s", row, json_string_value(json_object_get(template, "model")), err.count > 0 ? err.text : "");
    ts_free(mark);
    ts_chat_close(&chat);
    tap_ok(ts_chat_open(tap_directory(), row, &chat, NULL) == TS_OK && strcmp(ts_chat_name(chat), row) == 0,
           "%s: by its name", row);
    ts_chat_close(&chat);
    ts_error_clear(&err);
  }
  json_decref(templates);
  json_decref(golden);
}

/* ---- what is learned ---- */

static const struct {
  const char *name, *messages, *learned; /* spans joined by "|" */
} learns[] = {
    {"chatml", "[{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}]", "b<|im_end|>|"},
    {"llama3", "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"bot\", \"content\": \" b \"}]", "b<|eot_id|>|"},
    {"qwen3",
     "[{\"role\": \"assistant\", \"content\": \"<think>x</think>y\"}, {\"role\": \"user\", \"content\": \"a\"}, "
     "{\"role\": \"model\", \"content\": \"b\"}]",
     "y<|im_end|>|<think>\n\n</think>\n\nb<|im_end|>|"},
    {"smollm3",
     "[{\"role\": \"system\", \"content\": \"/no_think\"}, {\"role\": \"user\", \"content\": \"a\"}, "
     "{\"role\": \"assistant\", \"content\": \"b\"}]",
     "b<|im_end|>|"},
    {"gemma3", "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"\"}]",
     "<end_of_turn>|"},
};

static void test_learned(void) {
  for (size_t i = 0; i < sizeof learns / sizeof learns[0]; ++i) {
    json_t *messages = json_loads(learns[i].messages, 0, NULL);
    ts_chat *chat = NULL;
    ts_chat_turns turns = {0};
    ts_chat_spans spans = {0};
    ts_text text = {0}, learned = {0};
    ts_text_add(&text, "before");
    ts_error err = {0};
    bool good = ts_chat_open("", learns[i].name, &chat, &err) == TS_OK &&
                ts_chat_read_turns(messages, "messages", &turns, &err) == TS_OK &&
                ts_chat_render(chat, turns.turn, turns.n, (ts_chat_options){0}, &text, &spans, &err) == TS_OK;
    for (int64_t k = 0; k < spans.n; ++k) {
      ts_text_append(&learned, text.text + spans.span[k].begin, spans.span[k].end - spans.span[k].begin);
      ts_text_add(&learned, "|");
    }
    tap_ok(good && learned.length > 0 && strcmp(learned.text, learns[i].learned) == 0, "%s: learned is %s",
           learns[i].name, learns[i].learned[0] == '<' ? "a mark" : "an answer");
    ts_chat_close(&chat);
    ts_chat_turns_clear(&turns);
    ts_chat_spans_clear(&spans);
    ts_text_free(&text);
    ts_text_free(&learned);
    ts_error_clear(&err);
    json_decref(messages);
  }
}

/* ---- wrong input ---- */

static const struct {
  const char *name, *messages, *message;
} bad_turns[] = {
    {"chatml", "{}", "here: no list of"},
    {"chatml", "[]", "messages: no turn of user or assistant"},
    {"chatml", "[7]", "here[0]: no object"},
    {"chatml", "[{}]", "here[0].role: no text; accepted are system; user, human; assistant"},
    {"chatml", "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"tool\", \"content\": \"a\"}]",
     "here[1].role: \"tool\": accepted are system"},
    {"chatml", "[{\"from\": \"function_call\", \"value\": \"a\"}]", "here[0].from: \"function_call\": accepted are"},
    {"chatml", "[{\"role\": \"user\"}]", "here[0].content: no text: it is missing"},
    {"chatml", "[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]", "here[0].content: no text: lists of"},
    {"chatml", "[{\"from\": \"human\", \"value\": null}]", "here[0].value: no text"},
    {"chatml", "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{}]}]", "here[0].tool_calls: calls"},
    {"chatml", "[{\"role\": \"system\", \"content\": \"a\"}]", "messages: no turn of user or assistant"},
    {"chatml", "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"system\", \"content\": \"a\"}]",
     "messages[1]: \"system\": only the first"},
    {"gemma", "[{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": \"a\"}]",
     "messages[0]: \"system\": template gemma has no system"},
    {"gemma3", "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": \"a\"}]",
     "messages[1]: \"user\": template gemma3 takes user and assistant by turns"},
    {"gemma3", "[{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"a\"}]",
     "messages[1]: \"assistant\": template gemma3"},
};

static void test_bad_turns(void) {
  for (size_t i = 0; i < sizeof bad_turns / sizeof bad_turns[0]; ++i) {
    json_t *messages = json_loads(bad_turns[i].messages, 0, NULL);
    ts_chat *chat = NULL;
    ts_chat_turns turns = {0};
    ts_text text = {0};
    ts_error err = {0};
    TS_CHECK(ts_chat_open(NULL, bad_turns[i].name, &chat, &err) == TS_OK, "%s", err.text);
    bool read = ts_chat_read_turns(messages, "here", &turns, &err) == TS_OK &&
                ts_chat_render(chat, turns.turn, turns.n, (ts_chat_options){0}, &text, NULL, &err) == TS_OK;
    tap_ok(!read && text.length == 0 && err.count == 1 && strstr(err.text, bad_turns[i].message) != NULL,
           "refused: %s (%s)", bad_turns[i].message, err.count > 0 ? err.text : "it was not");
    ts_chat_close(&chat);
    ts_chat_turns_clear(&turns);
    ts_text_free(&text);
    ts_error_clear(&err);
    json_decref(messages);
  }
}

static const struct {
  const char *name, *config, *message; /* config NULL: no file */
} bad_files[] = {
    {NULL, NULL, "no chat template (chat_template.jinja, or chat_template of"},
    {NULL, "{}", "no chat template (chat_template.jinja"},
    {NULL, "{\"chat_template\": null}", "(data.chat_template, --chat-template): chatml, qwen2"},
    {NULL, "", "tokenizer_config.json: line 1"},
    {NULL, "{\"chat_template\": ", "tokenizer_config.json: line 1"},
    {NULL, "[]", "tokenizer_config.json: no object"},
    {NULL, "{\"chat_template\": 7}", "chat_template: neither a text nor a list"},
    {NULL, "{\"chat_template\": []}", "none is called \"default\""},
    {NULL, "{\"chat_template\": [7, {\"name\": 7}, {\"name\": \"default\", \"template\": {}}]}", "none is called"},
    {NULL, "{\"chat_template\": \"{{ x }}\"}", "its chat template is not known (XXH3 "},
    {NULL, "{\"chat_template\": \"\\u0000\"}", "its chat template is not known (XXH3 "},
    {"chatmk", "{}", "no chat template is called \"chatmk\"; did you mean \"chatml\"?; there are chatml, qwen2"},
    {"zzzzzzzz", NULL, "no chat template is called \"zzzzzzzz\"; there are"},
    {"chatml", "[", "tokenizer_config.json: line 1"},
    {"chatml", "{\"bos_token\": 7}", "bos_token: neither a text nor"},
    {"chatml", "{\"eos_token\": {\"content\": []}}", "eos_token: neither a text nor"},
    {"chatml", "{\"eos_token\": \"a\\u0000b\"}", "eos_token: neither a text nor"},
    {"olmo2", "{\"eos_token\": null}", "template olmo2 writes eos_token, which is in no"},
    {"phi3", NULL, "template phi3 writes eos_token"},
};

static void expect_refused(const char *name, const char *message) {
  ts_chat *chat = NULL;
  ts_error err = {0};
  ts_status status = ts_chat_open(tap_directory(), name, &chat, &err);
  tap_ok(status == TS_BAD_INPUT && chat == NULL && err.count == 1 && strstr(err.text, message) != NULL,
         "refused: %s (%.160s)", message, err.count > 0 ? err.text : "it was not");
  ts_error_clear(&err);
}

static void test_bad_files(void) {
  remove_file("chat_template.jinja");
  for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; ++i) {
    remove_file("tokenizer_config.json");
    if (bad_files[i].config != NULL) {
      write_file("tokenizer_config.json", bad_files[i].config, strlen(bad_files[i].config));
    }
    expect_refused(bad_files[i].name, bad_files[i].message);
  }
  enum { DEEP = 1 << 20 };
  char *deep = ts_malloc(DEEP);
  memset(deep, '[', DEEP);
  write_file("tokenizer_config.json", deep, DEEP);
  expect_refused(NULL, "tokenizer_config.json: line 1: maximum parsing depth");
  remove_file("tokenizer_config.json");
  memset(deep, '{', DEEP);
  write_file("chat_template.jinja", deep, DEEP);
  expect_refused(NULL, "its chat template is not known (XXH3 ");
  ts_free(deep);
}

int main(void) {
  test_golden();
  test_learned();
  test_bad_turns();
  test_bad_files();
  tap_ok(ts_memory_live() == 0, "nothing is left");
  return tap_done();
}
