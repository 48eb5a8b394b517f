#include "io/records.h"

#include "base/memory.h"
#include "tokenizer/unicode.h"

#include <jansson.h>
#include <string.h>

enum {
  AHEAD = 1024,  /* bytes behind a cut that are looked at */
  TRIES = 64,    /* characters that a cut moves, at most */
  MUCH = 1 << 20 /* tokens, of which the room is not kept */
};

void ts_record_room_clear(ts_record_room *room) {
  ts_text_free(&room->line);
  ts_text_free(&room->text);
  ts_chat_turns_clear(&room->turns);
  ts_chat_spans_clear(&room->spans);
  ts_free(room->place);
  *room = (ts_record_room){0};
}

/* ---- what documents are made of ---- */

void ts_record_ids_reset(ts_record_ids *to) {
  if (to->ids.capacity > MUCH) {
    ts_record_ids_clear(to);
  }
  to->ids.n = to->n_documents = to->replaced = 0;
}

void ts_record_ids_clear(ts_record_ids *to) {
  ts_free(to->ids.id);
  ts_free(to->learned);
  ts_free(to->first);
  *to = (ts_record_ids){0};
}

void ts_record_mark(ts_record_ids *to, int64_t before, bool learned) {
  if (to->ids.n == before) {
    return;
  }
  if (to->learned_capacity < to->ids.capacity) {
    to->learned_capacity = to->ids.capacity;
    to->learned = ts_realloc(to->learned, (size_t) to->learned_capacity, sizeof *to->learned);
  }
  memset(to->learned + before, learned, (size_t) (to->ids.n - before));
}

static void add_ids(ts_record_ids *to, const ts_ids *ids, bool learned) {
  int64_t before = to->ids.n;
  ts_ids_add(&to->ids, ids->id, ids->n);
  ts_record_mark(to, before, learned);
}

void ts_record_begin(ts_record_ids *to) {
  TS_GROW(to->first, to->n_documents, to->documents_capacity);
  to->first[to->n_documents++] = to->ids.n;
}

/* The document may have begun in another part. */
void ts_record_end(ts_record_ids *to, int32_t end_token) {
  int64_t first = to->n_documents > 0 ? to->first[to->n_documents - 1] : 0, n = to->ids.n;
  bool empty = to->n_documents > 0 && first == n;
  if (empty) {
    --to->n_documents;
  } else if (end_token >= 0 && (n == first || to->ids.id[n - 1] != end_token)) {
    add_ids(to, &(ts_ids){.id = &end_token, .n = 1}, true);
  }
}

/* ---- texts of which some is learned ---- */

/* A text, and where in it what is learned begins and ends: in turns, from what is not. */
typedef struct marked {
  const char *text;
  size_t n;
  const size_t *place; /* [n_places], ascending */
  int64_t n_places;
} marked;

/* The cut at \a end, or the one nearest to it from which on no token has anything of both sides: before it where what
 * follows is learned, else behind it.  So a token that has both is learned. */
static size_t move_cut(const marked *m, size_t at, size_t end, bool back) {
  if (back) {
    return end > at ? ts_utf8_before(m->text, end) : at;
  }
  size_t next = end;
  ts_utf8_next(m->text, &next);
  return next;
}

static size_t count_ahead(const marked *m, size_t end) {
  size_t ahead = m->n - end;
  if (ahead > AHEAD) {
    ahead = AHEAD;
    ahead -= end + ahead - ts_utf8_before(m->text, end + ahead + 1);
  }
  return ahead;
}

/* Append the ids of text[at, *end), whose end moves to where tokens part, at most to the end of the text.
 * \param [in,out] cut  Of what kind its beginning is, and then its end. */
static ts_status encode_up_to(ts_encoder *encoder, const marked *m, size_t at, size_t *end, bool back, ts_joint *cut,
                              ts_record_ids *to, ts_error *err) {
  int64_t before = to->ids.n;
  bool parts = false;
  ts_joint ends = *cut;
  ts_status status = TS_OK;
  for (int tries = 0; status == TS_OK && !parts && *end > at; ++tries) {
    to->ids.n = before;
    *end = tries > TRIES && !back ? m->n : *end;
    status = ts_encode_part(encoder, m->text + at, *end - at, count_ahead(m, *end), *cut, &ends, &to->ids, err);
    parts = ends != TS_JOINT_NONE || *end == m->n;
    if (!parts) {
      *end = tries > TRIES && back ? at : move_cut(m, at, *end, back);
    }
  }
  to->ids.n = parts ? to->ids.n : before;
  *cut = parts ? ends : *cut;
  return status;
}

static ts_status encode_marked(ts_encoder *encoder, const marked *m, bool all, ts_record_ids *to, ts_error *err) {
  size_t at = 0;
  ts_joint cut = TS_JOINT_BEGIN;
  bool learned = false;
  ts_status status = TS_OK;
  for (int64_t i = 0; status == TS_OK && i <= m->n_places; ++i, learned = !learned) {
    size_t end = i < m->n_places ? m->place[i] : m->n;
    if (end > at) {
      int64_t before = to->ids.n;
      status = encode_up_to(encoder, m, at, &end, !learned, &cut, to, err);
      ts_record_mark(to, before, learned || all);
      at = end;
    }
  }
  return status;
}

/* ---- a line ---- */

/* Valid UTF-8; \a room has it where it had to be made. */
static const char *valid_line(const char *line, size_t *n, ts_text *room, int64_t *replaced) {
  if (ts_utf8_valid(line, *n) == *n) {
    return line;
  }
  room->length = 0;
  *replaced += ts_utf8_repair(line, *n, room);
  *n = room->length;
  return room->text;
}

static const char *type_name(const json_t *value) {
  static const char *const names[] = {"an object", "a list",        "a string",      "a number",
                                      "a number",  "a truth value", "a truth value", "null"};
  return names[json_typeof(value)];
}

static ts_status refuse_missing(const json_t *object, const char *field, ts_error *err) {
  ts_text there = {0};
  const char *key;
  json_t *value;
  json_object_foreach((json_t *) object, key, value) {
    ts_text_add(&there, "%s\"%s\"", there.length > 0 ? ", " : "", key);
    if (there.length > 200) {
      ts_text_add(&there, ", ...");
      break;
    }
  }
  ts_status status =
      ts_error_add(err, "no member \"%s\"; there are: %s", field, there.length > 0 ? there.text : "none");
  ts_text_free(&there);
  return status;
}

static ts_status find_member(const json_t *object, const char *field, const json_t **out, ts_error *err) {
  *out = json_object_get(object, field);
  return *out != NULL ? TS_OK : refuse_missing(object, field, err);
}

static ts_status encode_text(ts_encoder *encoder, const json_t *text, const ts_record_options *o, ts_record_ids *to,
                             ts_error *err) {
  int64_t before = to->ids.n;
  ts_record_begin(to);
  ts_status status = ts_encode(encoder, json_string_value(text), json_string_length(text), true, &to->ids, err);
  ts_record_mark(to, before, true);
  ts_record_end(to, o->end_token);
  return status;
}

/* The turns of the completion, behind those of the prompt. */
static ts_status read_completion_turns(const json_t *completion, const ts_record_options *o, ts_chat_turns *turns,
                                       ts_error *err) {
  if (json_is_string(completion)) {
    TS_GROW(turns->turn, turns->n, turns->capacity);
    turns->turn[turns->n++] =
        (ts_chat_turn){TS_CHAT_ASSISTANT, json_string_value(completion), json_string_length(completion)};
    return TS_OK;
  }
  ts_chat_turns more = {0};
  ts_status status = ts_chat_read_turns(completion, o->completion_field, &more, err);
  for (int64_t i = 0; i < more.n; ++i) {
    TS_GROW(turns->turn, turns->n, turns->capacity);
    turns->turn[turns->n++] = more.turn[i];
  }
  ts_chat_turns_clear(&more);
  return status;
}

/* Where what is learned begins and ends, from the span \a first on. */
static marked mark_spans(ts_record_room *room, int64_t first) {
  const ts_chat_spans *spans = &room->spans;
  int64_t n = spans->n > first ? 2 * (spans->n - first) : 0;
  if (room->places < n) {
    room->places = n;
    room->place = ts_realloc(room->place, (size_t) n, sizeof *room->place);
  }
  for (int64_t i = 0; i < n; ++i) {
    const ts_chat_span *span = &spans->span[first + i / 2];
    room->place[i] = i % 2 == 0 ? span->begin : span->end;
  }
  return (marked){.text = room->text.text, .n = room->text.length, .place = room->place, .n_places = n};
}

static ts_status encode_chat(ts_encoder *encoder, const json_t *chat, const json_t *completion,
                             const ts_record_options *o, ts_record_room *room, ts_record_ids *to, ts_error *err) {
  if (o->chat == NULL) {
    return ts_error_add(err, "\"%s\" is a list, a chat: %s", o->field, o->no_chat);
  }
  int64_t said = 0; /* by the assistant, in the prompt */
  ts_status status = ts_chat_read_turns(chat, o->field, &room->turns, err);
  for (int64_t i = 0; completion != NULL && i < room->turns.n; ++i) {
    said += room->turns.turn[i].role == TS_CHAT_ASSISTANT;
  }
  if (status == TS_OK && completion != NULL) {
    status = read_completion_turns(completion, o, &room->turns, err);
  }
  room->text.length = 0;
  room->spans.n = 0;
  if (status == TS_OK) {
    status = ts_chat_render(o->chat, room->turns.turn, room->turns.n,
                            (ts_chat_options){.where = o->field, .today = o->today}, &room->text, &room->spans, err);
  }
  if (status == TS_OK) {
    const marked m = mark_spans(room, said);
    ts_record_begin(to);
    status = encode_marked(encoder, &m, o->train_on_prompt, to, err);
    ts_record_end(to, -1);
  }
  return status;
}

static ts_status encode_completion(ts_encoder *encoder, const json_t *prompt, const json_t *completion,
                                   const ts_record_options *o, ts_text *room, ts_record_ids *to, ts_error *err) {
  if (!json_is_string(completion)) {
    return ts_error_add(err, "\"%s\" is %s; accepted: a string", o->completion_field, type_name(completion));
  }
  const ts_tokenizer *tokenizer = ts_encoder_tokenizer(encoder);
  size_t begins = json_string_length(prompt);
  room->length = 0;
  ts_text_append(room, json_string_value(prompt), begins);
  ts_text_append(room, json_string_value(completion), json_string_length(completion));
  const marked m = {.text = room->text, .n = room->length, .place = &begins, .n_places = 1};
  ts_record_begin(to);
  add_ids(to, ts_tokenizer_before(tokenizer), o->train_on_prompt);
  ts_status status = encode_marked(encoder, &m, o->train_on_prompt, to, err);
  add_ids(to, ts_tokenizer_after(tokenizer), true);
  ts_record_end(to, o->end_token);
  return status;
}

static ts_status encode_object(ts_encoder *encoder, const json_t *object, const ts_record_options *o,
                               ts_record_room *room, ts_record_ids *to, ts_error *err) {
  const json_t *value, *completion = NULL;
  bool completes = o->completion_field != NULL && o->completion_field[0] != 0;
  ts_status status = find_member(object, o->field, &value, err);
  status = status == TS_OK && completes ? find_member(object, o->completion_field, &completion, err) : status;
  if (status != TS_OK) {
    return status;
  }
  if (json_is_array(value)) {
    return encode_chat(encoder, value, completion, o, room, to, err);
  }
  if (!json_is_string(value)) {
    return ts_error_add(err, "\"%s\" is %s; accepted: a string, or a list of turns", o->field, type_name(value));
  }
  return completes ? encode_completion(encoder, value, completion, o, &room->text, to, err)
                   : encode_text(encoder, value, o, to, err);
}

bool ts_record_is_blank(const char *line, size_t n) {
  size_t i = 0;
  while (i < n && strchr(" \t\r", line[i]) != NULL && line[i] != 0) {
    ++i;
  }
  return i == n;
}

ts_status ts_record_encode(ts_encoder *encoder, const char *line, size_t n, const ts_record_options *options,
                           ts_record_room *room, ts_record_ids *to, ts_error *err) {
  json_error_t why;
  line = valid_line(line, &n, &room->line, &to->replaced);
  json_t *object = json_loadb(line, n, JSON_ALLOW_NUL, &why);
  ts_status status;
  if (object == NULL) {
    status = ts_error_add(err, "no json: %s, at byte %d of the line", why.text, why.position);
  } else if (!json_is_object(object)) {
    status = ts_error_add(err, "is %s; accepted: an object with a member \"%s\"", type_name(object), options->field);
  } else {
    status = encode_object(encoder, object, options, room, to, err);
  }
  json_decref(object);
  return status;
}
