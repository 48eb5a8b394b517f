#include "model/config_json.h"

#include "base/memory.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static json_t *token(int64_t id) {
  return id >= 0 ? json_integer(id) : json_null();
}

static json_t *gpt2(const ts_deck_model *m) {
  return json_pack("{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "architectures",
                   "GPT2LMHeadModel", "model_type", "gpt2", "activation_function", m->hidden_act, "vocab_size",
                   (json_int_t) m->vocab_size, "n_embd", (json_int_t) m->hidden_size, "n_inner",
                   (json_int_t) m->intermediate_size, "n_layer", (json_int_t) m->num_hidden_layers, "n_head",
                   (json_int_t) m->num_attention_heads, "n_positions", (json_int_t) m->max_position_embeddings,
                   "layer_norm_epsilon", m->layer_norm_epsilon, "attn_pdrop", m->attn_pdrop, "embd_pdrop",
                   m->embd_pdrop, "resid_pdrop", m->resid_pdrop);
}

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

static json_t *llama(const ts_deck_model *m) {
  return json_pack("{s:[s], s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:f, s:f, s:o, s:f}",
                   "architectures", "LlamaForCausalLM", "model_type", "llama", "hidden_act", m->hidden_act,
                   "vocab_size", (json_int_t) m->vocab_size, "hidden_size", (json_int_t) m->hidden_size,
                   "intermediate_size", (json_int_t) m->intermediate_size, "num_hidden_layers",
                   (json_int_t) m->num_hidden_layers, "num_attention_heads", (json_int_t) m->num_attention_heads,
                   "num_key_value_heads", (json_int_t) m->num_key_value_heads, "head_dim", (json_int_t) m->head_dim,
                   "max_position_embeddings", (json_int_t) m->max_position_embeddings, "attention_bias",
                   m->attention_bias, "mlp_bias", m->mlp_bias, "rms_norm_eps", m->rms_norm_eps, "rope_theta",
                   m->rope_theta, "rope_scaling", rope_scaling(&m->rope_scaling), "attention_dropout", m->attn_pdrop);
}

static const struct {
  const char *model_type;
  json_t *(*config)(const ts_deck_model *model);
} rows[] = {{"gpt2", gpt2}, {"llama", llama}};

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

static json_t *config_of(const ts_deck_model *m) {
  json_t *config = NULL;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    config = strcmp(rows[i].model_type, m->model_type) == 0 ? rows[i].config(m) : config;
  }
  TS_CHECK(config != NULL, "no config.json for %s", m->model_type);
  json_object_set_new(config, "tie_word_embeddings", json_boolean(m->tie_word_embeddings));
  json_object_set_new(config, "initializer_range", json_real(m->initializer_range));
  json_object_set_new(config, "bos_token_id", token(m->bos_token_id));
  json_object_set_new(config, "eos_token_id", token(m->eos_token_id));
  return config;
}

void ts_model_config_json(const ts_deck *deck, const char *torch_dtype, ts_text *to) {
  print(config_of(&deck->model), torch_dtype, to);
}

/* What we would write for the directory; empty when it is no model of ours (any more). */
static json_t *config_of_directory(const char *directory) {
  ts_text text = {0};
  ts_text_add(&text, "model = { from = ");
  ts_text_add_json(&text, directory);
  ts_text_add(&text, "; };\n");
  ts_deck *deck;
  ts_error unheard = {0};
  json_t *config = ts_deck_read_text("config.json", text.text, NULL, 0, &deck, &unheard) == TS_OK
                       ? config_of(&deck->model)
                       : json_object();
  ts_deck_destroy(&deck);
  ts_error_clear(&unheard);
  ts_text_free(&text);
  return config;
}

/* Only what differs in meaning is touched: defaults that the file leaves out stay out. */
static void put_differences(json_t *config, const char *directory, const ts_deck *deck) {
  json_t *ours = config_of(&deck->model), *theirs = config_of_directory(directory), *value;
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
