#include "model/config_json.h"

#include "base/memory.h"
#include "family/family.h"
#include "model/parts.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static json_t *rope_scaling(const ts_deck_rope *r) {
  if (strcmp(r->rope_type, "default") == 0) {
    return json_null();
  }
  json_t *scaling = json_pack("{s:s, s:f}", "rope_type", r->rope_type, "factor", r->factor);
  if (strcmp(r->rope_type, "llama3") == 0) {
    json_object_set_new(scaling, "low_freq_factor", json_real(r->low_freq_factor));
    json_object_set_new(scaling, "high_freq_factor", json_real(r->high_freq_factor));
    json_object_set_new(scaling, "original_max_position_embeddings", json_integer(r->original_max_position_embeddings));
  }
  return scaling;
}

/* A token that is none is -1 in a deck. */
static bool is_no_token(const char *path, const char *text) {
  return ts_model_ends_in(path, "_token_id") && strcmp(text, "-1") == 0;
}

/* A value of the deck; its text is json's but for a suffix of large integers. */
static json_t *json_of(const ts_deck *deck, const char *key) {
  char *path = ts_format("model.%s", key), *text = ts_deck_value(deck, path);
  TS_CHECK(text != NULL, "the deck has no %s", path);
  size_t length = strlen(text);
  json_t *value = is_no_token(path, text) ? json_null()
                                          : json_loadb(text, length - (text[length - 1] == 'L'), JSON_DECODE_ANY, NULL);
  TS_CHECK(value != NULL, "%s = %s is no json", path, text);
  ts_free(text);
  ts_free(path);
  return value;
}

static void print(json_t *config, const char *torch_dtype, ts_text *to) {
  json_object_set_new(config, "torch_dtype", json_string(torch_dtype));
  /* As people write them where that is exact: 1e-6, not 9.9999999999999995e-7. */
  char *text = json_dumps(config, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
  json_t *again = json_loads(text, 0, NULL);
  if (!json_equal(config, again)) {
    free(text);
    text = json_dumps(config, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
  }
  json_decref(again);
  ts_text_add(to, "%s\n", text);
  free(text);
  json_decref(config);
}

static json_t *config_of(const ts_deck *deck) {
  const ts_family *family = ts_family_find(deck->model.model_type);
  const ts_family_key *key;
  json_t *config =
      json_pack("{s:[s], s:s}", "architectures", family->architecture, "model_type", deck->model.model_type);
  for (int i = 0; (key = ts_family_key_at(family, i)) != NULL; ++i) {
    bool section = strcmp(key->path, "rope_scaling") == 0;
    json_object_set_new(config, ts_family_key_name(key),
                        section ? rope_scaling(&deck->model.rope_scaling) : json_of(deck, key->path));
  }
  return config;
}

void ts_model_config_json(const ts_deck *deck, const char *torch_dtype, ts_text *to) {
  print(config_of(deck), torch_dtype, to);
}

/* What we would write for the directory; empty when it is no model of ours (any more). */
static json_t *config_of_directory(const char *directory) {
  ts_text text = {0};
  ts_text_add(&text, "model = { from = ");
  ts_text_add_json(&text, directory);
  ts_text_add(&text, "; };\n");
  ts_deck *deck;
  ts_error unheard = {0};
  json_t *config =
      ts_deck_read_text("config.json", text.text, NULL, 0, &deck, &unheard) == TS_OK ? config_of(deck) : json_object();
  ts_deck_destroy(&deck);
  ts_error_clear(&unheard);
  ts_text_free(&text);
  return config;
}

/* Only what differs in meaning is touched: defaults that the file leaves out stay out. */
static void put_differences(json_t *config, const char *directory, const ts_deck *deck) {
  json_t *ours = config_of(deck), *theirs = config_of_directory(directory), *value;
  const char *key;
  json_object_foreach(ours, key, value) {
    if (!json_equal(value, json_object_get(theirs, key))) {
      json_object_set(config, key, value);
      if (strncmp(key, "rope_", 5) == 0 && json_object_del(config, "rope_parameters") == 0) {
        json_object_set(config, "rope_theta", json_object_get(ours, "rope_theta")); /* both were in it */
        json_object_set(config, "rope_scaling", json_object_get(ours, "rope_scaling"));
      }
    }
  }
  json_decref(ours);
  json_decref(theirs);
}

ts_status ts_model_config_copy(const char *directory, const ts_deck *deck, const char *torch_dtype, ts_text *to,
                               ts_error *err) {
  json_error_t why;
  char *path = ts_format("%s/config.json", directory);
  json_t *config = json_load_file(path, 0, &why);
  ts_status status = json_is_object(config) ? TS_OK : ts_error_add(err, "%s: is not a JSON object: %s", path, why.text);
  ts_free(path);
  if (status != TS_OK) {
    json_decref(config);
    return status;
  }
  put_differences(config, directory, deck);
  if (json_object_get(config, "dtype") != NULL) {
    json_object_set_new(config, "dtype", json_string(torch_dtype));
  }
  print(config, torch_dtype, to);
  return TS_OK;
}
