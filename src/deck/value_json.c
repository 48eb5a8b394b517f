#include "base/memory.h"
#include "deck/value.h"

#include <jansson.h>
#include <string.h>

#define JSON_LIMIT (1u << 20)

static void convert(json_t *json, const char *file, ts_value *value);

static void convert_object(json_t *json, ts_value *value) {
  const char *name;
  json_t *item;
  value->names = ts_calloc(json_object_size(json), sizeof *value->names);
  value->items = ts_calloc(json_object_size(json), sizeof *value->items);
  json_object_foreach(json, name, item) {
    value->names[value->n] = ts_strdup(name);
    convert(item, value->file, &value->items[value->n++]);
  }
}

static void convert_array(json_t *json, ts_value *value) {
  value->n = (int) json_array_size(json);
  value->items = ts_calloc(json_array_size(json), sizeof *value->items);
  for (int i = 0; i < value->n; ++i) {
    convert(json_array_get(json, (size_t) i), value->file, &value->items[i]);
  }
}

/* The parser bounds the depth of the recursion (2048). */
static void convert(json_t *json, const char *file, ts_value *value) {
  static const ts_value_kind kinds[] = {
      [JSON_OBJECT] = TS_VALUE_SECTION, [JSON_ARRAY] = TS_VALUE_LIST, [JSON_STRING] = TS_VALUE_STRING,
      [JSON_INTEGER] = TS_VALUE_INT,    [JSON_REAL] = TS_VALUE_REAL,  [JSON_TRUE] = TS_VALUE_BOOL,
      [JSON_FALSE] = TS_VALUE_BOOL,     [JSON_NULL] = TS_VALUE_NULL,
  };
  *value = (ts_value) {.kind = kinds[json_typeof(json)],
                       .file = file,
                       .truth = json_is_true(json),
                       .integer = json_integer_value(json),
                       .real = json_number_value(json),
                       .string = ts_strdup(json_string_value(json))};
  if (value->kind == TS_VALUE_SECTION) {
    convert_object(json, value);
  } else if (value->kind == TS_VALUE_LIST) {
    convert_array(json, value);
  }
}

ts_status ts_value_from_json(ts_source *source, const char *file, ts_value *value, ts_error *err) {
  *value = (ts_value) {0};
  char *text = NULL;
  size_t length = 0;
  if (ts_read_file(file, JSON_LIMIT, &text, &length, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  json_error_t problem;
  json_t *json = json_loadb(text, length, JSON_REJECT_DUPLICATES, &problem);
  ts_free(text);
  ts_status status = TS_OK;
  if (json == NULL) {
    status = ts_error_add(err, "%s:%d: json: %s", file, problem.line, problem.text);
  } else if (!json_is_object(json)) {
    status = ts_error_add(err, "%s:1: json: the file must hold an object, { ... }", file);
  } else {
    convert(json, ts_source_name(source, file), value);
  }
  json_decref(json);
  return status;
}
