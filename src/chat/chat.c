#include "chat/chat.h"

#include "base/memory.h"
#include "chat/template.h"

#include <string.h>

/* A tokenizer_config.json lists each added token; the largest that models ship have some MB. */
enum { LIMIT = 64 << 20 };

/* Read DIRECTORY/NAME; NULL without an error when there is none. */
static char *read_member_of(const char *directory, const char *name, size_t *length, ts_error *err) {
  char *text = NULL;
  if (ts_has_file(directory, name)) {
    char *path = ts_format("%s/%s", directory, name);
    ts_read_file(path, LIMIT, &text, length, err);
    ts_free(path);
  }
  return text;
}

/* \a config: NULL where there is no file. */
static ts_status read_tokenizer_config(const char *directory, json_t **config, ts_error *err) {
  int before = err->count;
  size_t length = 0;
  char *text = read_member_of(directory, "tokenizer_config.json", &length, err);
  if (text == NULL) {
    return err->count > before ? TS_BAD_INPUT : TS_OK;
  }
  json_error_t where;
  *config = json_loadb(text, length, JSON_ALLOW_NUL, &where);
  ts_free(text);
  if (*config == NULL) {
    return ts_error_add(err, "%s/tokenizer_config.json: line %d: %s", directory, where.line, where.text);
  }
  return json_is_object(*config) ? TS_OK : ts_error_add(err, "%s/tokenizer_config.json: no object", directory);
}

/* A token is a text, or an object with its content; an empty text where there is none. */
static ts_status read_token(const char *directory, const json_t *config, const char *member, char **token,
                            ts_error *err) {
  const json_t *value = json_object_get(config, member);
  if (json_is_object(value)) {
    value = json_object_get(value, "content");
  } else if (value == NULL || json_is_null(value)) {
    *token = ts_strdup("");
    return TS_OK;
  }
  if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value)) {
    return ts_error_add(err, "%s/tokenizer_config.json: %s: neither a text nor {\"content\": a text}", directory,
                        member);
  }
  *token = ts_strdup(json_string_value(value));
  return TS_OK;
}

/* The template in tokenizer_config.json; NULL without an error when there is none. */
static const json_t *template_in(const char *directory, const json_t *config, ts_error *err) {
  const json_t *value = json_object_get(config, "chat_template");
  if (json_is_array(value)) {
    const json_t *list = value, *name;
    value = NULL;
    for (size_t i = 0; i < json_array_size(list); ++i) {
      name = json_object_get(json_array_get(list, i), "name");
      if (json_is_string(name) && strcmp(json_string_value(name), "default") == 0) {
        value = json_object_get(json_array_get(list, i), "template");
      }
    }
    if (!json_is_string(value)) {
      ts_error_add(err, "%s/tokenizer_config.json: chat_template: none is called \"default\"", directory);
    }
  } else if (value != NULL && !json_is_null(value) && !json_is_string(value)) {
    ts_error_add(err, "%s/tokenizer_config.json: chat_template: neither a text nor a list", directory);
  }
  return json_is_string(value) ? value : NULL;
}

/* Say that there is no template, or none that is known. */
static void refuse_template(const char *directory, const char *hash, ts_error *err) {
  ts_text names = {0};
  ts_chat_template_names(&names);
  if (hash != NULL) {
    ts_error_add(
        err, "%s: its chat template is not known (XXH3 %s); name one like it (data.chat_template, --chat-template): %s",
        directory, hash, names.text);
  } else {
    ts_error_add(err,
                 "%s: no chat template (chat_template.jinja, or chat_template of tokenizer_config.json); name one "
                 "(data.chat_template, --chat-template): %s",
                 directory, names.text);
  }
  ts_text_free(&names);
}

static const ts_chat_template *row_of_directory(const char *directory, const json_t *config, ts_error *err) {
  int before = err->count;
  size_t length = 0;
  char hash[33], *text = read_member_of(directory, "chat_template.jinja", &length, err);
  const ts_chat_template *row = NULL;
  bool found = text != NULL;
  if (found) {
    row = ts_chat_template_of(text, length, hash);
    ts_free(text);
  } else if (err->count == before) {
    const json_t *value = template_in(directory, config, err);
    found = value != NULL;
    row = found ? ts_chat_template_of(json_string_value(value), json_string_length(value), hash) : NULL;
  }
  if (row == NULL && err->count == before) {
    refuse_template(directory, found ? hash : NULL, err);
  }
  return row;
}

static bool needs(const char *text, const char *token) {
  return text != NULL && strstr(text, token) != NULL;
}

/* An answer without the mark of its end would never end. */
static ts_status check_eos(const char *directory, const ts_chat *chat, ts_error *err) {
  const ts_chat_template *row = chat->row;
  if (chat->eos[0] == 0 && (needs(row->assistant.end, TS_CHAT_EOS) || needs(row->finish, TS_CHAT_EOS))) {
    return ts_error_add(err, "%s%stemplate %s writes eos_token, which is in no tokenizer_config.json", directory,
                        directory[0] != 0 ? ": " : "", row->name);
  }
  return TS_OK;
}

ts_status ts_chat_open(const char *directory, const char *name, ts_chat **out, ts_error *err) {
  *out = NULL;
  ts_error own = {0};
  directory = directory != NULL ? directory : "";
  ts_chat *chat = ts_calloc(1, sizeof *chat);
  json_t *config = NULL;
  ts_status status = directory[0] != 0 ? read_tokenizer_config(directory, &config, &own) : TS_OK;
  if (status == TS_OK) {
    chat->row =
        name != NULL && name[0] != 0 ? ts_chat_template_named(name, &own) : row_of_directory(directory, config, &own);
    status = chat->row != NULL ? TS_OK : TS_BAD_INPUT;
  }
  status = status == TS_OK ? read_token(directory, config, "bos_token", &chat->bos, &own) : status;
  status = status == TS_OK ? read_token(directory, config, "eos_token", &chat->eos, &own) : status;
  status = status == TS_OK ? check_eos(directory, chat, &own) : status;
  json_decref(config);
  if (status == TS_OK) {
    *out = chat;
  } else {
    ts_error_add(err, "%s", own.text);
    ts_chat_close(&chat);
  }
  ts_error_clear(&own);
  return status;
}

void ts_chat_close(ts_chat **chat) {
  if (*chat != NULL) {
    ts_free((*chat)->bos);
    ts_free((*chat)->eos);
    ts_free(*chat);
    *chat = NULL;
  }
}

const char *ts_chat_name(const ts_chat *chat) {
  return chat->row->name;
}
