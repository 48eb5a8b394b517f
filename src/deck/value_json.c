#include "base/memory.h"
#include "deck/value.h"

#include <jansson.h>
#include <string.h>

#define JSON_LIMIT (1u << 20)

/* The source beside its parsed form: the parser tells no lines, but keeps the order of keys
 * (jansson before 2.8 does not, and its lines are wrong). */
typedef struct ts_json {
  const char *file, *at; /* After the last key taken. */
  int line;
} ts_json;

const char *ts_json_skip_string(const char *p) {
  for (++p; *p != '\0' && *p != '"'; ++p) {
    p += *p == '\\' && p[1] != '\0';
  }
  return *p == '"' ? p + 1 : p;
}

/* To the line of the next key: a string that a colon follows. */
static void next_key(ts_json *source) {
  for (const char *p = source->at; *p != '\0';) {
    const char *stop = *p == '"' ? ts_json_skip_string(p) : p + 1;
    if (*p == '"' && stop[strspn(stop, " \t\r\n")] == ':') {
      source->at = stop;
      return;
    }
    source->line += *p == '\n';
    p = stop;
  }
}

static void convert_json(json_t *json, ts_json *source, ts_value *value);

static void convert_object(json_t *json, ts_json *source, ts_value *value) {
  const char *name;
  json_t *item;
  value->names = ts_calloc(json_object_size(json), sizeof *value->names);
  value->items = ts_calloc(json_object_size(json), sizeof *value->items);
  json_object_foreach(json, name, item) {
    value->names[value->n] = ts_strdup(name);
    next_key(source);
    convert_json(item, source, &value->items[value->n++]);
  }
}

static void convert_array(json_t *json, ts_json *source, ts_value *value) {
  value->n = (int) json_array_size(json);
  value->items = ts_calloc(json_array_size(json), sizeof *value->items);
  for (int i = 0; i < value->n; ++i) {
    convert_json(json_array_get(json, (size_t) i), source, &value->items[i]);
  }
}

/* The parser bounds the depth of the recursion (2048). */
static void convert_json(json_t *json, ts_json *source, ts_value *value) {
  static const ts_value_kind kinds[] = {
      [JSON_OBJECT] = TS_VALUE_SECTION, [JSON_ARRAY] = TS_VALUE_LIST, [JSON_STRING] = TS_VALUE_STRING,
      [JSON_INTEGER] = TS_VALUE_INT,    [JSON_REAL] = TS_VALUE_REAL,  [JSON_TRUE] = TS_VALUE_BOOL,
      [JSON_FALSE] = TS_VALUE_BOOL,     [JSON_NULL] = TS_VALUE_NULL,
  };
  *value = (ts_value){.kind = kinds[json_typeof(json)],
                      .file = source->file,
                      .line = source->line,
                      .truth = json_is_true(json),
                      .integer = json_integer_value(json),
                      .real = json_number_value(json),
                      .string = ts_strdup(json_string_value(json))};
  if (value->kind == TS_VALUE_SECTION) {
    convert_object(json, source, value);
  } else if (value->kind == TS_VALUE_LIST) {
    convert_array(json, source, value);
  }
}

static ts_status parse_json(ts_source *source, const char *file, const char *text, size_t length, ts_value *value,
                            ts_error *err) {
  json_error_t problem;
  json_t *json = json_loadb(text, length, JSON_REJECT_DUPLICATES, &problem);
  ts_status status = TS_OK;
  if (json == NULL) {
    bool word = strncmp(problem.text, "invalid token", strlen("invalid token")) == 0;
    status = ts_error_add(err, "%s:%d: json: %s%s", file, problem.line, problem.text,
                          word ? "; keys and strings need double quotes" : "");
  } else if (!json_is_object(json)) {
    status = ts_error_add(err, "%s:1: json: the file must hold an object, { ... }", file);
  } else {
    convert_json(json, &(ts_json){ts_source_name(source, file), text, 1}, value);
  }
  json_decref(json);
  return status;
}

ts_status ts_value_from_json(ts_source *source, const char *file, bool relaxed, ts_value *value, ts_error *err) {
  *value = (ts_value){0};
  char *text = NULL;
  size_t length = 0;
  if (ts_read_file(file, JSON_LIMIT, &text, &length, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_text plain = {0};
  if (relaxed) {
    ts_json_relax(text, length, &plain);
  } else {
    ts_text_append(&plain, text, length);
  }
  ts_status status = parse_json(source, file, plain.text != NULL ? plain.text : "", plain.length, value, err);
  ts_text_free(&plain);
  ts_free(text);
  return status;
}
