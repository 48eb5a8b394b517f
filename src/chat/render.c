#include "chat/chat.h"

#include "base/memory.h"
#include "chat/think.h"

#include <string.h>

static void write_date(const ts_chat_writer *w) {
  char date[64] = "";
  time_t now = time(NULL);
  struct tm here;
  strftime(date, sizeof date, w->row->date, w->today != NULL ? w->today : localtime_r(&now, &here));
  ts_text_append(w->to, date, strlen(date));
}

void ts_chat_write(const ts_chat_writer *w, const char *text) {
  for (; text != NULL && *text != 0; ++text) {
    if (*text == TS_CHAT_DATE[0]) {
      write_date(w);
    } else if (*text == TS_CHAT_BOS[0] || *text == TS_CHAT_EOS[0]) {
      const char *token = *text == TS_CHAT_BOS[0] ? w->bos : w->eos;
      ts_text_append(w->to, token, strlen(token));
    } else {
      ts_text_append(w->to, text, 1);
    }
  }
}

static void write_content(const ts_chat_writer *w, const ts_chat_turn *turn) {
  const char *text = turn->content;
  size_t n = turn->length;
  bool trim = (w->row->trimmed & TS_CHAT_TRIM(turn->role)) != 0;
  ts_chat_strip(&text, &n, trim, trim);
  ts_text_append(w->to, text, n);
}

/* What the system says, or is made to say. */
static void write_system(const ts_chat_writer *w) {
  const ts_chat_template *row = w->row;
  if (w->system == NULL && row->default_system == NULL) {
    return;
  }
  ts_chat_write(w, row->system.before);
  if (row->say_system != NULL) {
    row->say_system(w);
  } else if (w->system != NULL) {
    write_content(w, w->system);
  } else {
    ts_chat_write(w, row->default_system);
  }
  ts_chat_write(w, row->system.after);
}

static void write_user(const ts_chat_writer *w, int64_t i) {
  ts_chat_write(w, w->row->user.before);
  if (w->system != NULL && ((w->row->place == TS_CHAT_SYSTEM_IN_FIRST && i == 0) ||
                            (w->row->place == TS_CHAT_SYSTEM_IN_LAST && i == w->n - 1))) {
    write_system(w);
  }
  write_content(w, &w->turn[i]);
  ts_chat_write(w, w->row->user.after);
}

/* Up to where the assistant speaks. */
static void open_answer(const ts_chat_writer *w) {
  ts_chat_write(w, w->row->assistant.before);
  if (w->row->open_answer != NULL) {
    w->row->open_answer(w);
  }
}

static ts_chat_span write_answer(const ts_chat_writer *w, int64_t i) {
  const ts_chat_template *row = w->row;
  open_answer(w);
  ts_chat_span span = {.begin = w->to->length};
  ts_chat_write(w, row->assistant.lead);
  if (row->say_answer != NULL) {
    row->say_answer(w, i);
  } else {
    write_content(w, &w->turn[i]);
  }
  ts_chat_write(w, row->assistant.end);
  span.end = w->to->length;
  if (!row->bare_at_end || i < w->n - 1) {
    ts_chat_write(w, row->assistant.after);
  }
  return span;
}

static ts_status check_turns(const ts_chat_template *row, const ts_chat_turn *turn, int64_t n, const char *where,
                             ts_error *err) {
  int64_t system = n > 0 && turn[0].role == TS_CHAT_SYSTEM;
  if (n <= system) {
    return ts_error_add(err, "%s: no turn of user or assistant", where);
  }
  if (system > 0 && row->place == TS_CHAT_SYSTEM_REFUSED) {
    return ts_error_add(err, "%s[0]: \"system\": template %s has no system; accepted are user and assistant", where,
                        row->name);
  }
  for (int64_t i = system; i < n; ++i) {
    const char *role = ts_chat_role_name(turn[i].role);
    if (turn[i].role == TS_CHAT_SYSTEM) {
      return ts_error_add(err, "%s[%lld]: \"system\": only the first turn may be the system's", where, (long long) i);
    }
    ts_chat_role due = (i - system) % 2 == 0 ? TS_CHAT_USER : TS_CHAT_ASSISTANT;
    if (row->alternates && turn[i].role != due) {
      return ts_error_add(err,
                          "%s[%lld]: \"%s\": template %s takes user and assistant by turns, user first; here "
                          "it is \"%s\"'s",
                          where, (long long) i, role, row->name, ts_chat_role_name(due));
    }
  }
  return TS_OK;
}

ts_status ts_chat_render(const ts_chat *chat, const ts_chat_turn *turn, int64_t n, ts_chat_options options, ts_text *to,
                         ts_chat_spans *spans, ts_error *err) {
  const ts_chat_template *row = chat->row;
  ts_status status = check_turns(row, turn, n, options.where != NULL ? options.where : "messages", err);
  if (status != TS_OK) {
    return status;
  }
  bool speaks = turn[0].role == TS_CHAT_SYSTEM, silent = speaks && row->empty_is_silent && turn[0].length == 0;
  ts_chat_writer w = {.row = row,
                      .bos = chat->bos,
                      .eos = chat->eos,
                      .turn = turn + speaks,
                      .n = n - speaks,
                      .system = speaks && !silent ? turn : NULL,
                      .today = options.today,
                      .to = to};
  ts_chat_write(&w, row->start);
  if (row->place == TS_CHAT_SYSTEM_SPEAKS) {
    write_system(&w);
  }
  for (int64_t i = 0; i < w.n; ++i) {
    if (w.turn[i].role == TS_CHAT_USER) {
      write_user(&w, i);
      continue;
    }
    ts_chat_span span = write_answer(&w, i);
    if (spans != NULL) {
      TS_GROW(spans->span, spans->n, spans->capacity);
      spans->span[spans->n++] = span;
    }
  }
  if (options.prompt || row->always_prompts) {
    open_answer(&w);
    ts_chat_write(&w, row->prompt);
  } else {
    ts_chat_write(&w, row->finish);
  }
  return TS_OK;
}

void ts_chat_end(const ts_chat *chat, ts_text *to) {
  const ts_chat_writer w = {.row = chat->row, .bos = chat->bos, .eos = chat->eos, .to = to};
  ts_chat_write(&w, chat->row->assistant.end);
}

void ts_chat_spans_clear(ts_chat_spans *spans) {
  ts_free(spans->span);
  *spans = (ts_chat_spans){0};
}
