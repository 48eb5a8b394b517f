#include "model/config_json.h"

#include "base/memory.h"
#include "family/family.h"
#include "model/layer.h"
#include "model/parts.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static json_t *json_of_reals(const ts_reals *list) {
  json_t *array = json_array();
  for (int i = 0; i < list->n; ++i) {
    json_array_append_new(array, json_real(list->items[i]));
  }
  return array;
}

static bool is_longrope(const ts_deck_rope *r) {
  return strcmp(r->rope_type, "longrope") == 0 || strcmp(r->rope_type, "su") == 0;
}

/* Numbers that a kind has; those with a meaning of "not given" only when they are. */
static void add_rope_numbers(json_t *to, const ts_deck_rope *r) {
  bool llama3 = strcmp(r->rope_type, "llama3") == 0, yarn = strcmp(r->rope_type, "yarn") == 0;
  bool longrope = is_longrope(r);
  const struct {
    bool there;
    const char *name;
    double value;
  } rows[] = {{r->factor != 1 || !longrope, "factor", r->factor},
              {llama3, "low_freq_factor", r->low_freq_factor},
              {llama3, "high_freq_factor", r->high_freq_factor},
              {yarn, "beta_fast", r->beta_fast},
              {yarn, "beta_slow", r->beta_slow},
              {r->attention_factor > 0, "attention_factor", r->attention_factor},
              {r->mscale > 0, "mscale", r->mscale},
              {r->mscale_all_dim > 0, "mscale_all_dim", r->mscale_all_dim}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (rows[i].there) {
      json_object_set_new(to, rows[i].name, json_real(rows[i].value));
    }
  }
  if (yarn && !r->truncate) {
    json_object_set_new(to, "truncate", json_false());
  }
  if (r->original_max_position_embeddings > 0) {
    json_object_set_new(to, "original_max_position_embeddings", json_integer(r->original_max_position_embeddings));
  }
  if (longrope) {
    json_object_set_new(to, "short_factor", json_of_reals(&r->short_factor));
    json_object_set_new(to, "long_factor", json_of_reals(&r->long_factor));
  }
}

static json_t *rope_scaling(const ts_deck_rope *r) {
  if (strcmp(r->rope_type, "default") == 0) {
    return json_null();
  }
  json_t *scaling = json_pack("{s:s}", "rope_type", is_longrope(r) ? "longrope" : r->rope_type);
  add_rope_numbers(scaling, r);
  return scaling;
}

/* Of one type of layers. */
static json_t *rope_of_layers(const ts_deck_rope *r, double theta) {
  json_t *scaling = rope_scaling(r);
  if (json_is_null(scaling)) {
    scaling = json_pack("{s:s}", "rope_type", "default");
  }
  json_object_set_new(scaling, "rope_theta", json_real(theta));
  return scaling;
}

static json_t *rope_by_layers(const ts_deck_model *m) {
  return json_pack("{s:o, s:o}", "full_attention", rope_of_layers(&m->rope_scaling, m->rope_theta), "sliding_attention",
                   rope_of_layers(&m->rope_local, m->rope_local_base_freq));
}

/* As the rules give them: the class may know no rule. */
static json_t *layer_types(const ts_deck *deck) {
  json_t *array = json_array();
  for (int64_t i = 0; i < deck->model.num_hidden_layers; ++i) {
    bool window = ts_model_layer(deck, i).window > 0;
    json_array_append_new(array, json_string(window ? "sliding_attention" : "full_attention"));
  }
  return array;
}

/* What a deck says with a number and a config.json with null: no token, no window, no softcap. */
static bool is_nothing(const char *key, const char *text) {
  static const char *const keys[] = {"sliding_window", "attn_logit_softcapping", "final_logit_softcapping"};
  bool token = ts_model_ends_in(key, "_token_id") && strcmp(text, "-1") == 0;
  for (size_t i = 0; i < sizeof keys / sizeof *keys && !token; ++i) {
    token = strcmp(key, keys[i]) == 0 && strtod(text, NULL) == 0;
  }
  return token || strcmp(text, "[]") == 0;
}

/* A value of the deck; its text is json's but for a suffix of large integers. */
static json_t *plain_value(const ts_deck *deck, const char *section, const char *key) {
  char *path = ts_format("%s.%s", section, key), *text = ts_deck_value(deck, path);
  json_t *value = json_null();
  if (text != NULL && !is_nothing(key, text)) {
    size_t length = strlen(text);
    value = json_loadb(text, length - (text[length - 1] == 'L'), JSON_DECODE_ANY, NULL);
    TS_CHECK(value != NULL, "%s = %s is no json", path, text);
  }
  ts_free(text);
  ts_free(path);
  return value;
}

static json_t *json_of(const ts_deck *deck, const char *key) {
  const ts_deck_model *m = &deck->model;
  return strcmp(key, "rope_scaling") == 0  ? rope_scaling(&m->rope_scaling)
         : strcmp(key, "rope_local") == 0  ? rope_by_layers(m)
         : strcmp(key, "layer_types") == 0 ? layer_types(deck)
                                           : plain_value(deck, "model", key);
}

/* What makes DeepSpeed's layers other parameters: transformers does not read it, `model.from` does.  Behind these, what
 * a bias excludes. */
static json_t *moe_of(const ts_deck *deck) {
  static const char *const keys[] = {"num_experts",  "layers",      "k",
                                     "use_residual", "router_bias", "top2_2nd_expert_sampling"};
  json_t *moe = json_object();
  for (size_t i = 0; i < sizeof keys / sizeof *keys - !deck->moe.router_bias; ++i) {
    json_t *value = plain_value(deck, "moe", keys[i]);
    if (json_is_null(value)) {
      json_decref(value);
    } else {
      json_object_set_new(moe, keys[i], value);
    }
  }
  return moe;
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
  const ts_family *family = ts_deck_family(deck);
  const ts_family_key *key;
  json_t *config =
      json_pack("{s:[s], s:s}", "architectures", family->architecture, "model_type", deck->model.model_type);
  json_object_set_new(config, "pad_token_id", json_null()); /* some classes have one that few vocabularies have */
  for (int i = 0; (key = ts_family_key_at(family, i)) != NULL; ++i) {
    json_object_set_new(config, ts_family_key_name(key), json_of(deck, key->path));
  }
  if (deck->moe.num_experts.n > 0) {
    json_object_set_new(config, "moe", moe_of(deck));
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

/* Keys about rotary positions stand for one another: they are written together. */
static const char *const rope_keys[] = {
    "rope_theta",           "rotary_emb_base",       "rotary_pct",      "rope_scaling",
    "rope_local_base_freq", "partial_rotary_factor", "rope_parameters", "original_max_position_embeddings"};
enum { N_ROPE_KEYS = sizeof rope_keys / sizeof *rope_keys };

static bool is_rope_key(const char *key) {
  int i = 0;
  while (i < N_ROPE_KEYS && strcmp(rope_keys[i], key) != 0) {
    ++i;
  }
  return i < N_ROPE_KEYS;
}

static void put_rope(json_t *config, json_t *ours) {
  for (int i = 0; i < N_ROPE_KEYS; ++i) {
    json_t *value = json_object_get(ours, rope_keys[i]);
    if (value != NULL) {
      json_object_set(config, rope_keys[i], value);
    } else {
      json_object_del(config, rope_keys[i]);
    }
  }
}

/* Only what differs in meaning is touched: defaults that the file leaves out stay out. */
static void put_differences(json_t *config, const char *directory, const ts_deck *deck) {
  json_t *ours = config_of(deck), *theirs = config_of_directory(directory), *value;
  const char *key;
  bool turns = false;
  json_object_foreach(ours, key, value) {
    if (!json_equal(value, json_object_get(theirs, key))) {
      turns = turns || is_rope_key(key);
      json_object_set(config, key, value);
    }
  }
  if (turns) {
    put_rope(config, ours);
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
  if (json_object_get(config, "text_config") != NULL) { /* of a model that sees more, it has the text part */
    json_decref(config);
    print(config_of(deck), torch_dtype, to);
    return TS_OK;
  }
  put_differences(config, directory, deck);
  if (json_object_get(config, "dtype") != NULL) {
    json_object_set_new(config, "dtype", json_string(torch_dtype));
  }
  print(config, torch_dtype, to);
  return TS_OK;
}
