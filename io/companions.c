#include "io/companions.h"

#include "base/memory.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#define CONFIG "config.json"
#define LARGEST ((size_t) 1 << 30)

typedef enum belonging { OF_TOKENIZER = 1, OF_WEIGHTS = 2, OF_BOTH = 3 } belonging;

/* What transformers saves with a model and its tokenizer, what its tokenizers of these families may be read from, and
 * Mistral's own.  The template that tokenizer_config.json may have is in it. */
static const struct {
  belonging of;
  const char *directory; /* "" or below it */
  const char *pattern;   /* of fnmatch */
} files[] = {{OF_TOKENIZER, "", "tokenizer.json"},
             {OF_TOKENIZER, "", "tokenizer_config.json"},
             {OF_TOKENIZER, "", "vocab.json"},
             {OF_TOKENIZER, "", "merges.txt"},
             {OF_TOKENIZER, "", "special_tokens_map.json"},
             {OF_TOKENIZER, "", "added_tokens.json"},
             {OF_TOKENIZER, "", "tokenizer.model"},
             {OF_TOKENIZER, "", "tokenizer.model.v[0-9]*"},
             {OF_TOKENIZER, "", "tokenizer.[0-9]*.json"}, /* fast_tokenizer_files, by version */
             {OF_TOKENIZER, "", "tekken.json"},
             {OF_TOKENIZER, "", "chat_template.jinja"},
             {OF_WEIGHTS, "", "generation_config.json"},
             {OF_TOKENIZER, TS_COMPANIONS_BELOW, "*.jinja"}};

typedef ts_status file_action(const char *from, const char *to, const char *name, ts_error *err);

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

static ts_status copy_below(const char *from, const char *to, const char *name, ts_error *err) {
  char *below = ts_format("%s/" TS_COMPANIONS_BELOW, to);
  ts_status status = strchr(name, '/') != NULL ? ts_make_directory(below, err) : TS_OK;
  ts_free(below);
  return status == TS_OK ? copy_file(from, to, name, err) : status;
}

static ts_status remove_file(const char *directory, const char *to, const char *name, ts_error *err) {
  (void) to;
  char *path = ts_format("%s/%s", directory, name);
  bool gone = unlink(path) == 0 || errno == ENOENT || errno == ENOTDIR;
  ts_status status = gone ? TS_OK : ts_error_add(err, "%s: cannot be removed: %s", path, strerror(errno));
  ts_free(path);
  return status;
}

static bool is_companion(const char *directory, const char *name, belonging what) {
  bool is = false;
  for (size_t i = 0; !is && i < sizeof files / sizeof files[0]; ++i) {
    is = strcmp(files[i].directory, directory) == 0 && fnmatch(files[i].pattern, name, FNM_PERIOD) == 0 &&
         (what & files[i].of) != 0;
  }
  return is;
}

/* Each of the companions in a directory of \a from, which need not be there. */
static ts_status for_each_in(const char *directory, belonging what, const char *from, const char *to, file_action *act,
                             ts_error *err) {
  char *path = ts_format("%s/%s", from, directory);
  DIR *entries = opendir(path);
  bool readable = entries != NULL || errno == ENOENT || errno == ENOTDIR;
  ts_status status = readable ? TS_OK : ts_error_add(err, "%s: cannot be read: %s", path, strerror(errno));
  for (struct dirent *entry; status == TS_OK && entries != NULL && (entry = readdir(entries)) != NULL;) {
    if (is_companion(directory, entry->d_name, what)) {
      char *name = ts_format("%s%s%s", directory, directory[0] != 0 ? "/" : "", entry->d_name);
      status = act(from, to, name, err);
      ts_free(name);
    }
  }
  if (entries != NULL) {
    closedir(entries);
  }
  ts_free(path);
  return status;
}

static ts_status for_each(belonging what, const char *from, const char *to, file_action *act, ts_error *err) {
  ts_status status = for_each_in("", what, from, to, act, err);
  return status == TS_OK ? for_each_in(TS_COMPANIONS_BELOW, what, from, to, act, err) : status;
}

ts_status ts_companions_copy(const char *from, const char *tokenizer, const char *to, ts_error *err) {
  bool apart = tokenizer != NULL;
  ts_status status = from != NULL ? for_each(apart ? OF_WEIGHTS : OF_BOTH, from, to, copy_below, err) : TS_OK;
  return status == TS_OK && apart ? for_each(OF_TOKENIZER, tokenizer, to, copy_below, err) : status;
}

ts_status ts_companions_keep(const char *from, const char *to, ts_error *err) {
  if (ts_has_file(to, CONFIG) || !ts_has_file(from, CONFIG)) {
    return TS_OK;
  }
  ts_status status = ts_make_directory(to, err);
  status = status == TS_OK ? ts_companions_copy(from, NULL, to, err) : status;
  return status == TS_OK ? copy_file(from, to, CONFIG, err) : status;
}

/* config.json first: while it is there, so are all. */
ts_status ts_companions_remove(const char *from, ts_error *err) {
  char *below = ts_format("%s/" TS_COMPANIONS_BELOW, from);
  ts_status status = remove_file(from, NULL, CONFIG, err);
  status = status == TS_OK ? for_each(OF_BOTH, from, NULL, remove_file, err) : status;
  rmdir(below); /* which fails where something else is in it */
  ts_free(below);
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
