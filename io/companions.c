#include "io/companions.h"

#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#define CONFIG "config.json"
#define LARGEST ((size_t) 1 << 30)

static const char *const names[] = {"tokenizer.json",  "tokenizer_config.json",   "vocab.json",
                                    "merges.txt",      "special_tokens_map.json", "added_tokens.json",
                                    "tokenizer.model", "chat_template.jinja",     "generation_config.json"};

static ts_status copy_file(const char *from, const char *to, const char *name, ts_error *err) {
  char *source = ts_format("%s/%s", from, name), *copy = ts_format("%s/%s", to, name), *text;
  size_t length;
  ts_status status = ts_read_file(source, LARGEST, &text, &length, err);
  status = status == TS_OK ? ts_write_file(copy, text, length, err) : status;
  ts_free(text);
  ts_free(copy);
  ts_free(source);
  return status;
}

static ts_status remove_file(const char *directory, const char *name, ts_error *err) {
  char *path = ts_format("%s/%s", directory, name);
  bool gone = unlink(path) == 0 || errno == ENOENT || errno == ENOTDIR;
  ts_status status = gone ? TS_OK : ts_error_add(err, "%s: cannot be removed: %s", path, strerror(errno));
  ts_free(path);
  return status;
}

ts_status ts_companions_copy(const char *from, const char *to, ts_error *err) {
  ts_status status = TS_OK;
  for (size_t i = 0; status == TS_OK && i < sizeof names / sizeof names[0]; ++i) {
    status = ts_has_file(from, names[i]) ? copy_file(from, to, names[i], err) : TS_OK;
  }
  return status;
}

ts_status ts_companions_keep(const char *from, const char *to, ts_error *err) {
  if (ts_has_file(to, CONFIG) || !ts_has_file(from, CONFIG)) {
    return TS_OK;
  }
  ts_status status = ts_make_directory(to, err);
  status = status == TS_OK ? ts_companions_copy(from, to, err) : status;
  return status == TS_OK ? copy_file(from, to, CONFIG, err) : status;
}

/* config.json first: while it is there, so are all. */
ts_status ts_companions_remove(const char *from, ts_error *err) {
  ts_status status = remove_file(from, CONFIG, err);
  for (size_t i = 0; status == TS_OK && i < sizeof names / sizeof names[0]; ++i) {
    status = remove_file(from, names[i], err);
  }
  return status;
}

bool ts_companions_are_in(const char *directory) {
  return ts_has_file(directory, CONFIG);
}

/* NULL where there is no such file. */
static ts_status load_object(const char *directory, const char *name, json_t **out, ts_error *err) {
  *out = NULL;
  if (!ts_has_file(directory, name)) {
    return TS_OK;
  }
  char *path = ts_format("%s/%s", directory, name), *text;
  size_t length;
  json_error_t why;
  ts_status status = ts_read_file(path, LARGEST, &text, &length, err);
  if (status == TS_OK && (*out = json_loadb(text, length, JSON_ALLOW_NUL, &why)) == NULL) {
    status = ts_error_add(err, "%s:%d: no json: %s", path, why.line, why.text);
  }
  ts_free(text);
  ts_free(path);
  return status;
}

static int32_t first_id(const json_t *ids, int64_t size) {
  const json_t *id = json_is_array(ids) ? json_array_get(ids, 0) : ids;
  bool known = json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < size;
  return known ? (int32_t) json_integer_value(id) : -1;
}

ts_status ts_companions_end_token(const char *directory, const ts_tokenizer *tokenizer, int32_t *id, ts_error *err) {
  json_t *config, *names_config = NULL;
  *id = -1;
  ts_status status = load_object(directory, CONFIG, &config, err);
  if (status == TS_OK) {
    *id = first_id(json_object_get(config, "eos_token_id"), ts_tokenizer_size(tokenizer));
  }
  if (status == TS_OK && *id < 0) {
    status = load_object(directory, "tokenizer_config.json", &names_config, err);
    const json_t *token = json_object_get(names_config, "eos_token"), *content = json_object_get(token, "content");
    const char *name = json_string_value(content != NULL ? content : token);
    *id = name != NULL ? ts_tokenizer_id(tokenizer, name) : -1;
    if (status == TS_OK && name != NULL && *id < 0) {
      status =
          ts_error_add(err, "%s/tokenizer_config.json: eos_token \"%s\" is not in tokenizer.json", directory, name);
    }
  }
  json_decref(config);
  json_decref(names_config);
  return status;
}
