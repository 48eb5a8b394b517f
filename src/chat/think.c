#include "chat/think.h"

#include "base/memory.h"

#include <string.h>

/* ---- Python's str ---- */

typedef struct slice {
  const char *text;
  size_t n;
} slice;

static slice slice_of_turn(const ts_chat_turn *turn) {
  return (slice){turn->content, turn->length};
}

static bool starts_with(slice s, const char *word) {
  size_t n = strlen(word);
  return s.n >= n && memcmp(s.text, word, n) == 0;
}

static bool ends_with(slice s, const char *word) {
  size_t n = strlen(word);
  return s.n >= n && memcmp(s.text + s.n - n, word, n) == 0;
}

/* Where a word stands, first or last; s.n: nowhere. */
static size_t find_word(slice s, const char *word, bool last) {
  size_t at = s.n;
  for (size_t i = 0; i < s.n && (last || at == s.n); ++i) {
    if (starts_with((slice){s.text + i, s.n - i}, word)) {
      at = i;
    }
  }
  return at;
}

static bool has_word(slice s, const char *word) {
  return find_word(s, word, false) < s.n;
}

static slice strip_lines(slice s, bool left, bool right) {
  for (; left && s.n > 0 && s.text[0] == '\n'; --s.n) {
    ++s.text;
  }
  while (right && s.n > 0 && s.text[s.n - 1] == '\n') {
    --s.n;
  }
  return s;
}

static void put_slice(const ts_chat_writer *w, slice s) {
  ts_text_append(w->to, s.text, s.n);
}

/* str.isspace, in UTF-8. */
static const char *const spaces[] = {"\t",           "\n",           "\v",           "\f",           "\r",
                                     "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
                                     "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
                                     "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
                                     "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
                                     "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

/* Bytes of a space at one end. */
static size_t space_at(slice s, bool left) {
  for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; ++i) {
    if (left ? starts_with(s, spaces[i]) : ends_with(s, spaces[i])) {
      return strlen(spaces[i]);
    }
  }
  return 0;
}

void ts_chat_strip(const char **text, size_t *length, bool left, bool right) {
  slice s = {*text, *length};
  for (size_t n = 1; left && n > 0; s.text += n, s.n -= n) {
    n = space_at(s, true);
  }
  for (size_t n = 1; right && n > 0; s.n -= n) {
    n = space_at(s, false);
  }
  *text = s.text;
  *length = s.n;
}

/* ---- Qwen3 ---- */

/* The last turn of the user that is no answer of a tool; the last of all where there is none. */
static int64_t last_question(const ts_chat_writer *w) {
  for (int64_t i = w->n - 1; i >= 0; --i) {
    slice said = slice_of_turn(&w->turn[i]);
    if (w->turn[i].role == TS_CHAT_USER &&
        !(starts_with(said, "<tool_response>") && ends_with(said, "</tool_response>"))) {
      return i;
    }
  }
  return w->n - 1;
}

void ts_chat_qwen3_answer(const ts_chat_writer *w, int64_t i) {
  static const char open[] = "<think>", close[] = "</think>";
  slice said = slice_of_turn(&w->turn[i]), thought = {"", 0};
  if (has_word(said, close)) {
    thought = strip_lines((slice){said.text, find_word(said, close, false)}, false, true);
    size_t at = find_word(thought, open, true);
    if (at < thought.n) {
      at += strlen(open);
      thought = (slice){thought.text + at, thought.n - at};
    }
    thought = strip_lines(thought, true, true);
    size_t end = find_word(said, close, true) + strlen(close);
    said = strip_lines((slice){said.text + end, said.n - end}, true, false);
  }
  if (i > last_question(w) && (i == w->n - 1 || thought.n > 0)) {
    ts_text_add(w->to, "<think>\n");
    put_slice(w, thought);
    ts_text_add(w->to, "\n</think>\n\n");
    said = strip_lines(said, true, false);
  }
  put_slice(w, said);
}

/* ---- SmolLM3 ---- */

static const char smollm3_thinks[] =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face. Your role as an assistant involves "
    "thoroughly exploring questions through a systematic thinking process before providing the final precise and "
    "accurate solutions. This requires engaging in a comprehensive cycle of analysis, summarizing, exploration, "
    "reassessment, reflection, backtracking, and iteration to develop well-considered thinking process. Please "
    "structure your response into two main sections: Thought and Solution using the specified format: <think> Thought "
    "section </think> Solution section. In the Thought section, detail your reasoning process in steps. Each step "
    "should include detailed considerations such as analysing questions, summarizing relevant findings, brainstorming "
    "new ideas, verifying the accuracy of the current steps, refining any errors, and revisiting previous steps. In "
    "the Solution section, based on various attempts, explorations, and reflections from the Thought section, "
    "systematically present the final solution that you deem correct. The Solution section should be logical, "
    "accurate, and concise and detail necessary steps needed to reach the conclusion.";

static bool smollm3_is_to_think(const ts_chat_writer *w) {
  return w->system == NULL || !has_word(slice_of_turn(w->system), "/no_think");
}

/* Append a text without a word, and without the white space at its end. */
static void add_without(slice s, const char *word, ts_text *to) {
  while (has_word(s, word)) {
    size_t at = find_word(s, word, false), end = at + strlen(word);
    ts_text_append(to, s.text, at);
    s = (slice){s.text + end, s.n - end};
  }
  ts_text_append(to, s.text, s.n);
}

static slice slice_of_text(const ts_text *text) {
  return (slice){text->length > 0 ? text->text : "", text->length};
}

static slice strip_end(slice s) {
  ts_chat_strip(&s.text, &s.n, false, true);
  return s;
}

void ts_chat_smollm3_system(const ts_chat_writer *w) {
  ts_text some = {0}, custom = {0}, rest = {0};
  slice said = w->system != NULL ? slice_of_turn(w->system) : (slice){"", 0};
  add_without(said, "/no_think", &some);
  add_without(slice_of_text(&some), "/think", &custom);
  slice instructions = strip_end(slice_of_text(&custom));
  if (has_word(said, "/system_override")) {
    add_without(instructions, "/system_override", &rest);
    put_slice(w, strip_end(slice_of_text(&rest)));
    ts_text_add(w->to, "<|im_end|>\n");
  } else {
    bool thinks = smollm3_is_to_think(w);
    ts_chat_write(w, "## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: " TS_CHAT_DATE "\nReasoning Mode: ");
    ts_text_add(w->to, "%s\n\n## Custom Instructions\n\n", thinks ? "/think" : "/no_think");
    if (instructions.n > 0) {
      put_slice(w, instructions);
    } else {
      ts_text_add(w->to, "%s",
                  thinks ? smollm3_thinks : "You are a helpful AI assistant named SmolLM, trained by Hugging Face.");
    }
    ts_text_add(w->to, "\n\n"); /* the template's own: without tools it forgets <|im_end|> */
  }
  ts_text_free(&some);
  ts_text_free(&custom);
  ts_text_free(&rest);
}

void ts_chat_smollm3_open(const ts_chat_writer *w) {
  if (!smollm3_is_to_think(w)) {
    ts_text_add(w->to, "<think>\n\n</think>\n");
  }
}

void ts_chat_smollm3_answer(const ts_chat_writer *w, int64_t i) {
  put_slice(w, strip_lines(slice_of_turn(&w->turn[i]), true, false));
}
