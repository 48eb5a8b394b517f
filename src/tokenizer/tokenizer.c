#include "base/memory.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/tokenizer_parts.h"

#include <string.h>

/* A tokenizer.json of a model with 256k tokens has 30 MB. */
#define LARGEST_FILE ((size_t) 1 << 30)

/* ---- reading: added tokens ---- */

static bool flag_of(const json_t *value, const char *name) {
  return json_is_true(json_object_get(value, name));
}

static ts_status read_added_token(ts_tokenizer *t, const json_t *value, size_t place, ts_error *err) {
  const json_t *content = json_object_get(value, "content");
  if (!json_is_string(content)) {
    return ts_error_add(err, "added_tokens: entry %zu has no content", place);
  }
  size_t n = json_string_length(content);
  if (n == 0) {
    return TS_OK;
  }
  TS_GROW(t->added, t->n_added, t->added_capacity);
  ts_added_token *token = &t->added[t->n_added++];
  *token = (ts_added_token){.content = ts_malloc(n + 1),
                            .n = n,
                            .single_word = flag_of(value, "single_word"),
                            .lstrip = flag_of(value, "lstrip"),
                            .rstrip = flag_of(value, "rstrip"),
                            .normalized = flag_of(value, "normalized"),
                            .special = flag_of(value, "special")};
  memcpy(token->content, json_string_value(content), n + 1);
  return TS_OK;
}

/* As tokenizers does: a token that the model has too has the model's id, others are numbered from the size of the
 * vocabulary on, whatever the file says. */
static void number_added(ts_tokenizer *t) {
  t->last_id = ts_bpe_last_id(t->bpe);
  int32_t next = (int32_t) ts_bpe_size(t->bpe);
  ts_string_table places = {0};
  for (int64_t i = 0; i < t->n_added; ++i) {
    ts_added_token *token = &t->added[i];
    int32_t before = ts_string_id(&places, token->content, token->n);
    int32_t known = before >= 0 ? t->added[before].id : ts_bpe_id(t->bpe, token->content, token->n);
    token->special |= before >= 0 && t->added[before].special; /* the last one of equals counts, but for this */
    token->id = known >= 0 ? known : next++;
    t->last_id = token->id > t->last_id ? token->id : t->last_id;
    ts_string_add(&places, token->content, token->n, (int32_t) i);
    ts_string_add(&t->added_id, token->content, token->n, token->id);
  }
  ts_string_table_clear(&places);
  t->added_of = ts_malloc(((size_t) t->last_id + 2) * sizeof *t->added_of);
  for (int32_t id = 0; id <= t->last_id; ++id) {
    t->added_of[id] = -1;
  }
  for (int64_t i = 0; i < t->n_added; ++i) {
    t->added_of[t->added[i].id] = (int32_t) i;
    t->single_words |= t->added[i].single_word;
  }
}

static ts_added_set *make_set(const ts_tokenizer *t, bool normalized) {
  const ts_added_token **token = ts_calloc((size_t) t->n_added + 1, sizeof *token);
  ts_text *text = ts_calloc((size_t) t->n_added + 1, sizeof *text);
  int64_t n = 0;
  for (int64_t i = 0; i < t->n_added; ++i) {
    const ts_added_token *a = &t->added[i];
    if (a->normalized == normalized && t->added_of[a->id] == i) {
      text[n] = normalized ? t->added_normal[i] : (ts_text){.text = a->content, .length = a->n};
      token[n++] = a;
    }
  }
  ts_added_set *set = n > 0 ? ts_added_set_create(token, text, n) : NULL;
  ts_free(text);
  ts_free(token);
  return set;
}

static ts_status read_added(ts_tokenizer *t, const json_t *root, ts_error *err) {
  const json_t *list = json_object_get(root, "added_tokens");
  if (list != NULL && !json_is_null(list) && !json_is_array(list)) {
    return ts_error_add(err, "added_tokens: not a list");
  }
  for (size_t i = 0; i < json_array_size(list); ++i) {
    if (read_added_token(t, json_array_get(list, i), i, err) != TS_OK) {
      return TS_BAD_INPUT;
    }
  }
  number_added(t);
  t->added_normal = ts_calloc((size_t) t->n_added + 1, sizeof *t->added_normal);
  ts_matcher *matcher = ts_matcher_create();
  ts_text work = {0};
  int64_t nothing = -1;
  for (int64_t i = 0; i < t->n_added; ++i) {
    if (t->added[i].normalized) {
      ts_text_append(&t->added_normal[i], t->added[i].content, t->added[i].n);
      ts_normalize(&t->normalizer, matcher, true, true, &t->added_normal[i], &work);
      nothing = t->added_normal[i].length == 0 ? i : nothing;
    }
  }
  ts_text_free(&work);
  ts_matcher_destroy(&matcher);
  if (nothing >= 0) { /* tokenizers would then cut everywhere */
    return ts_error_add(err, "added_tokens: the normalizer leaves nothing of \"%s\"", t->added[nothing].content);
  }
  t->raw = make_set(t, false);
  t->normalized = make_set(t, true);
  return TS_OK;
}

/* ---- reading: the template ---- */

static ts_status add_template_token(const ts_tokenizer *t, const json_t *token, const char *name, ts_ids *to,
                                    ts_error *err) {
  const json_t *ids = json_object_get(token, "ids");
  if (!json_is_array(ids)) {
    return ts_error_add(err, "%s is not among special_tokens", name);
  }
  for (size_t i = 0; i < json_array_size(ids); ++i) {
    json_int_t id = json_integer_value(json_array_get(ids, i));
    if (!json_is_integer(json_array_get(ids, i)) || id < 0 || id > t->last_id) {
      return ts_error_add(err, "an id of %s is no integer from 0 to %lld", name, (long long) t->last_id);
    }
    ts_ids_add(to, &(int32_t){(int32_t) id}, 1);
  }
  return TS_OK;
}

/* What is put before the text and after it; a text that is there twice, or not at all, has no such two halves. */
static ts_status read_template(const json_t *value, ts_tokenizer *t, ts_error *err) {
  const json_t *single = json_object_get(value, "single"), *tokens = json_object_get(value, "special_tokens");
  int sequences = 0;
  if (!json_is_array(single) || t->before.n + t->after.n > 0) {
    return ts_error_add(err, "no list single, or a second template");
  }
  for (size_t i = 0; i < json_array_size(single); ++i) {
    const json_t *piece = json_array_get(single, i), *special = json_object_get(piece, "SpecialToken");
    const char *name = json_string_value(json_object_get(special, "id"));
    const char *sequence = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
    bool is_text = sequence != NULL && strcmp(sequence, "A") == 0;
    sequences += is_text;
    if (!is_text && name == NULL) {
      return ts_error_add(err, "single: entry %zu is neither the text nor a special token", i);
    }
    ts_ids *side = sequences > 0 ? &t->after : &t->before;
    if (!is_text && add_template_token(t, json_object_get(tokens, name), name, side, err) != TS_OK) {
      return TS_BAD_INPUT;
    }
  }
  return sequences == 1 ? TS_OK : ts_error_add(err, "single: the text is there %d times, not once", sequences);
}

static const char *const processors[] = {"TemplateProcessing", "ByteLevel"};

/* ByteLevel trims offsets, which are not kept here. */
static ts_status read_processor(const json_t *value, int kind, void *to, ts_error *err) {
  return kind == 0 ? read_template(value, to, err) : TS_OK;
}

static const ts_step_table processor_table = {"post_processor", "processors", processors, 2, read_processor};

/* ---- reading: the file ---- */

static ts_status check_model_type(const json_t *model, ts_error *err) {
  const json_t *type = json_object_get(model, "type");
  if (!json_is_object(model)) {
    return ts_error_add(err, "no object model");
  }
  const char *name = json_is_string(type) ? json_string_value(type) : json_object_get(model, "merges") ? "BPE" : "none";
  return strcmp(name, "BPE") == 0 ? TS_OK : ts_error_add(err, "model: %s is not known here; known is BPE", name);
}

static ts_status read_members(ts_tokenizer *t, const json_t *root, ts_error *err) {
  const json_t *model = json_object_get(root, "model");
  if (check_model_type(model, err) != TS_OK ||
      ts_read_steps(&ts_normalizer_table, json_object_get(root, "normalizer"), &t->normalizer, err) != TS_OK ||
      ts_splitter_read(json_object_get(root, "pre_tokenizer"), &t->splitter, err) != TS_OK ||
      ts_bpe_read(model, ts_splitter_makes_bytes(t->splitter), &t->bpe, err) != TS_OK ||
      ts_read_steps(&ts_decoder_table, json_object_get(root, "decoder"), &t->decoder, err) != TS_OK ||
      read_added(t, root, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  return ts_read_steps(&processor_table, json_object_get(root, "post_processor"), t, err);
}

static ts_status read_tokenizer(ts_tokenizer *t, const char *path, ts_error *err) {
  char *text = NULL;
  size_t n = 0;
  if (ts_read_file(path, LARGEST_FILE, &text, &n, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  json_error_t at;
  json_t *root = json_loadb(text, n, JSON_ALLOW_NUL, &at);
  ts_free(text);
  ts_error why = {0};
  ts_status status = root != NULL ? read_members(t, root, &why) : ts_error_add(&why, "line %d: %s", at.line, at.text);
  if (status != TS_OK) {
    ts_error_add(err, "%s: %s", path, why.text);
  }
  ts_error_clear(&why);
  json_decref(root);
  return status;
}

ts_status ts_tokenizer_open(const char *directory, ts_tokenizer **out, ts_error *err) {
  ts_tokenizer *t = ts_calloc(1, sizeof *t);
  char *path = ts_format("%s/tokenizer.json", directory);
  ts_status status = read_tokenizer(t, path, err);
  ts_free(path);
  if (status != TS_OK) {
    ts_tokenizer_close(&t);
  }
  *out = t;
  return status;
}

void ts_tokenizer_close(ts_tokenizer **tokenizer) {
  ts_tokenizer *t = *tokenizer;
  if (t == NULL) {
    return;
  }
  for (int64_t i = 0; i < t->n_added; ++i) {
    ts_free(t->added[i].content);
    if (t->added_normal != NULL) {
      ts_text_free(&t->added_normal[i]);
    }
  }
  ts_free(t->added);
  ts_free(t->added_normal);
  ts_free(t->added_of);
  ts_string_table_clear(&t->added_id);
  ts_added_set_destroy(&t->raw);
  ts_added_set_destroy(&t->normalized);
  ts_steps_clear(&t->normalizer);
  ts_splitter_destroy(&t->splitter);
  ts_bpe_destroy(&t->bpe);
  ts_steps_clear(&t->decoder);
  ts_free(t->before.id);
  ts_free(t->after.id);
  ts_free(t);
  *tokenizer = NULL;
}

/* ---- what it has ---- */

int64_t ts_tokenizer_size(const ts_tokenizer *t) {
  return (int64_t) t->last_id + 1;
}

int32_t ts_tokenizer_id(const ts_tokenizer *t, const char *token) {
  int32_t id = ts_string_id(&t->added_id, token, strlen(token));
  return id >= 0 ? id : ts_bpe_id(t->bpe, token, strlen(token));
}

const ts_ids *ts_tokenizer_before(const ts_tokenizer *t) {
  return &t->before;
}

const ts_ids *ts_tokenizer_after(const ts_tokenizer *t) {
  return &t->after;
}

bool ts_tokenizer_is_special(const ts_tokenizer *t, int32_t id) {
  const ts_added_token *added = ts_tokenizer_added(t, id);
  return added != NULL && added->special;
}
