/* What a Hugging Face directory has and the model does not read. */
#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "engine/import.h"
#include "family/stack.h"

#include <ctype.h>
#include <string.h>

#define SHOWN 3 /* names of a message */
#define BLOCK ((int64_t) 1 << 16)

/* ---- kinds of tensors ---- */

/* The name of the same tensor in layer 0, newly allocated: the first number between dots is the layer's. */
static char *in_first_layer(const char *name) {
  for (const char *dot = strchr(name, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
    size_t digits = strspn(dot + 1, "0123456789");
    if (digits > 0 && dot[1 + digits] == '.') {
      return ts_format("%.*s.0%s", (int) (dot - name), name, dot + 1 + digits);
    }
  }
  return ts_strdup(name);
}

static bool is_lora(const ts_engine *e, const char *name) {
  (void) e;
  return strstr(name, "lora_") != NULL;
}

static bool is_expert_beyond(const ts_engine *e, const char *name) {
  const ts_parameter *p = ts_import_parameter(e, name);
  int64_t expert = 0;
  char *stack = ts_stack_of(name, &expert);
  ts_free(stack);
  return p != NULL && ts_stack_is(p->name, p->shape.n) && expert >= p->shape.d[0];
}

static bool is_copy(const ts_engine *e, const char *name) {
  return ts_import_parameter(e, name) != NULL;
}

static bool is_layer_beyond(const ts_engine *e, const char *name) {
  char *first = in_first_layer(name);
  bool found = ts_import_parameter(e, first) != NULL;
  ts_free(first);
  return found;
}

static bool is_bias(const ts_engine *e, const char *name) {
  char *first = in_first_layer(name), *weight = NULL;
  if (ts_ends_in(first, ".bias")) {
    weight = ts_format("%.*s.weight", (int) (strlen(first) - strlen(".bias")), first);
  }
  bool found = weight != NULL && ts_import_parameter(e, weight) != NULL;
  ts_free(weight);
  ts_free(first);
  return found;
}

static bool is_other(const ts_engine *e, const char *name) {
  (void) e;
  (void) name;
  return true;
}

/* The first that fits. */
static const struct {
  bool (*is)(const ts_engine *e, const char *name);
  const char *meaning;
} kinds[] = {
    {is_lora, "LoRA weights, which change nothing here; merge them into the model first (peft: merge_and_unload)"},
    {is_expert_beyond, "experts beyond those of the model (model.num_experts, moe.num_experts)"},
    {is_copy, "parameters that are there under another name too"},
    {is_layer_beyond, "layers beyond model.num_hidden_layers"},
    {is_bias,
     "biases that this model does not have (some families have them with model.attention_bias, model.mlp_bias)"},
    {is_other, "the model has nothing of that name; is it another one?"},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* ---- the head of a tied model ---- */

/* The first element that differs, -1 for none; the shapes are equal.  A block at a time: heads are large. */
static int64_t find_difference(const ts_safetensor *a, const ts_safetensor *b) {
  int64_t found = -1;
  if (a->dtype == b->dtype && memcmp(a->data, b->data, a->bytes) == 0) {
    return found;
  }
  float *x = ts_malloc((size_t) BLOCK * sizeof *x), *y = ts_malloc((size_t) BLOCK * sizeof *y);
  for (int64_t first = 0; found < 0 && first < a->count; first += BLOCK) {
    int64_t n = a->count - first < BLOCK ? a->count - first : BLOCK;
    ts_safetensors_read_f32(a, first, n, x);
    ts_safetensors_read_f32(b, first, n, y);
    for (int64_t i = 0; found < 0 && i < n; ++i) {
      found = memcmp(&x[i], &y[i], sizeof *x) == 0 ? -1 : first + i;
    }
  }
  ts_free(x);
  ts_free(y);
  return found;
}

static bool same_shape(const ts_safetensor *a, const ts_safetensor *b) {
  return a->n_dims == b->n_dims && memcmp(a->shape, b->shape, (size_t) a->n_dims * sizeof *a->shape) == 0;
}

/* An embedding that is not there, or not of floats, has its own message. */
static ts_status check_head(const ts_import *im, const ts_safetensor *head, ts_error *err) {
  char *name = ts_format("%s.weight", ts_deck_family(im->engine->deck)->embedding);
  const ts_safetensor *embedding = ts_import_find(im, name);
  ts_free(name);
  if (embedding == NULL || !ts_dtype_is_float(embedding->dtype)) {
    return TS_OK;
  }
  bool comparable = same_shape(head, embedding) && ts_dtype_is_float(head->dtype);
  if (comparable && find_difference(head, embedding) < 0) {
    return TS_OK;
  }
  return ts_import_wrong(
      im, err,
      ts_format("%s: %s differs from %s, but model.tie_word_embeddings = true makes one matrix of the two; "
                "`--set model.tie_word_embeddings=false` keeps both",
                head->file, head->name, embedding->name));
}

/* ---- all of it ---- */

static bool is_buffer(const ts_engine *e, const char *name) {
  const char *const *buffer = ts_deck_family(e->deck)->buffers;
  while (*buffer != NULL && !ts_ends_in(name, *buffer)) {
    ++buffer;
  }
  return *buffer != NULL;
}

static bool is_read(const ts_import *im, const ts_safetensor *t) {
  const ts_parameter *p = ts_import_parameter(im->engine, t->name);
  return p != NULL ? ts_import_reads(im, p, t) : ts_import_copies(im, t);
}

static void warn(const char *directory, const char *noun, int n, const ts_text *names, const char *meaning) {
  char *more = n > SHOWN ? ts_format(" and %d more", n - SHOWN) : ts_strdup("");
  if (n > 0) {
    ts_log(TS_LOG_WARNING, "%s: %d %s%s not read (%s%s): %s", directory, n, noun, n > 1 ? "s are" : " is", names->text,
           more, meaning);
  }
  ts_free(more);
}

static void warn_of_kind(const ts_import *im, const ts_safetensor *head, int kind) {
  const ts_engine *e = im->engine;
  ts_text names = {0};
  int n = 0;
  for (int i = 0; i < ts_safetensors_count(im->st); ++i) {
    const ts_safetensor *t = ts_safetensors_at(im->st, i);
    int first = 0;
    while (!kinds[first].is(e, t->name)) {
      ++first;
    }
    if (first == kind && t != head && !is_buffer(e, t->name) && !is_read(im, t) && n++ < SHOWN) {
      ts_text_add(&names, "%s%s", n > 1 ? ", " : "", t->name);
    }
  }
  warn(im->from, "tensor", n, &names, kinds[kind].meaning);
  ts_text_free(&names);
}

static void warn_of_unlisted(const ts_import *im) {
  ts_text names = {0};
  int n = ts_safetensors_unlisted(im->st, SHOWN, &names);
  warn(im->from, "thing", n, &names, "only model.safetensors is, or else what its index lists");
  ts_text_free(&names);
}

ts_status ts_import_check_unread(const ts_import *im, ts_error *err) {
  const ts_deck *deck = im->engine->deck;
  if (ts_world_rank(im->engine->world) != 0) {
    return TS_OK;
  }
  char *name = ts_format("%s.weight", ts_deck_family(deck)->head);
  const ts_safetensor *head = deck->model.tie_word_embeddings ? ts_import_find(im, name) : NULL;
  ts_free(name);
  for (int kind = 0; kind < N_KINDS; ++kind) {
    warn_of_kind(im, head, kind);
  }
  warn_of_unlisted(im);
  return head != NULL ? check_head(im, head, err) : TS_OK;
}
