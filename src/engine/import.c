#include "engine/import.h"

#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "family/stack.h"

#include <math.h>
#include <string.h>

#define MOST_MESSAGES 10
#define FROM "model.from"

/* ---- names ---- */

static const char *const *prefixes_of(const ts_engine *e) {
  return ts_deck_family(e->deck)->prefixes;
}

/* \a name without the prefix, or with it where it had none; newly allocated. */
static char *with_or_without(const char *prefix, const char *name) {
  size_t n = strlen(prefix);
  return strncmp(name, prefix, n) == 0 ? ts_strdup(name + n) : ts_format("%s%s", prefix, name);
}

/* \a name with one of its parts called as files may call it, newly allocated; NULL when it has none such. */
static char *called_otherwise(const ts_family *f, const char *from, const char *to, const char *name) {
  const char *at = f->also[0] != NULL ? strstr(name, from) : NULL;
  size_t n = at != NULL ? strlen(from) : 0;
  bool whole = at != NULL && at > name && at[-1] == '.' && at[n] == '.';
  return whole ? ts_format("%.*s%s%s", (int) (at - name), name, to, at + n) : NULL;
}

typedef const void *finder(const void *where, const char *name);

/* By a name, with or without each prefix. */
static const void *find_prefixed(const ts_engine *e, finder *find, const void *where, const char *name) {
  const void *found = find(where, name);
  for (const char *const *prefix = prefixes_of(e); found == NULL && *prefix != NULL; ++prefix) {
    char *other = with_or_without(*prefix, name);
    found = find(where, other);
    ts_free(other);
  }
  return found;
}

/* By all that something of this name may be called. */
static const void *find_any(const ts_engine *e, finder *find, const void *where, const char *name, bool in_file) {
  const ts_family *f = ts_deck_family(e->deck);
  const void *found = find_prefixed(e, find, where, name);
  char *other = called_otherwise(f, f->also[!in_file], f->also[in_file], name);
  if (found == NULL && other != NULL) {
    found = find_prefixed(e, find, where, other);
  }
  ts_free(other);
  return found;
}

static const void *find_tensor(const void *where, const char *name) {
  return ts_safetensors_find(where, name);
}

static const void *find_in_layout(const void *where, const char *name) {
  return ts_layout_find(where, name);
}

const ts_safetensor *ts_import_find(const ts_engine *e, const ts_safetensors *st, const char *name) {
  return find_any(e, find_tensor, st, name, true);
}

const ts_parameter *ts_import_parameter(const ts_engine *e, const char *tensor) {
  char *stack = ts_import_stack_of(e, tensor);
  const ts_parameter *p = find_any(e, find_in_layout, ts_engine_layout(e), stack != NULL ? stack : tensor, false);
  ts_free(stack);
  return p;
}

/* ---- values ---- */

/* A tensor on its way to its parameter.  The file is mapped: what is not asked for is not read. */
typedef struct reading {
  const ts_safetensor *tensor;
  uint64_t nonfinite; /* of the elements that this rank owns */
} reading;

static void give_values(void *user, int64_t first, int64_t count, bool owned, float *value) {
  reading *r = user;
  ts_safetensors_read_f32(r->tensor, first, count, value);
  for (int64_t i = 0; owned && i < count; ++i) {
    r->nonfinite += !isfinite(value[i]);
  }
}

static void say_nonfinite(const ts_engine *e, const ts_safetensors *st, const uint64_t *count) {
  const ts_layout *layout = ts_engine_layout(e);
  int first = -1, others = -1;
  for (int i = 0; i < layout->n_parameters; ++i) {
    first = first < 0 && count[i] > 0 ? i : first;
    others += count[i] > 0;
  }
  const ts_parameter *p = first >= 0 ? &layout->parameter[first] : NULL;
  const ts_safetensor *t = p != NULL ? ts_import_find(e, st, p->name) : NULL;
  bool stack =
      p != NULL && t == NULL && ts_stack_is(p->name, p->shape.n); /* of tensors of each expert, or of several */
  if (t != NULL || stack) {                                       /* a rank whose files lack it says so instead */
    char *more =
        others > 0 ? ts_format(", and values of %d more tensor%s too", others, others > 1 ? "s" : "") : ts_strdup("");
    ts_log(TS_LOG_WARNING, "%s: %llu of %lld values of %s%s are not finite (NaN or infinite)%s: no loss will be either",
           stack ? e->deck->model.from : t->file, (unsigned long long) count[first],
           (long long) ts_shape_count(&p->shape), stack ? "all experts' " : "", stack ? p->name : t->name, more);
    ts_free(more);
  }
}

ts_status ts_import_check_shape(const ts_engine *e, const ts_safetensor *t, const int64_t *shape, int n_dims,
                                ts_error *err) {
  bool same = t->n_dims == n_dims && memcmp(t->shape, shape, (size_t) n_dims * sizeof *t->shape) == 0;
  if (same && ts_dtype_is_float(t->dtype)) {
    return TS_OK;
  }
  ts_text text = {0};
  ts_text_add(&text, "%s: tensor %s is %s ", t->file, t->name, t->dtype_name);
  ts_text_add_shape(&text, t->shape, t->n_dims);
  ts_text_add(&text, "; the model wants a floating-point ");
  ts_text_add_shape(&text, shape, n_dims);
  ts_status status = ts_deck_error(e->deck, FROM, err, "%s", text.text);
  ts_text_free(&text);
  return status;
}

static ts_status read_tensor(ts_engine *e, const ts_safetensors *st, const ts_parameter *p, uint64_t *nonfinite,
                             ts_error *err) {
  if (ts_stack_is(p->name, p->shape.n)) {
    return ts_import_read_stack(e, st, p, nonfinite, err);
  }
  const ts_safetensor *t = ts_import_find(e, st, p->name);
  if (t == NULL) {
    return ts_deck_error(e->deck, FROM, err, "%s: there is no tensor %s", e->deck->model.from, p->name);
  }
  ts_status status = ts_import_check_shape(e, t, p->shape.d, p->shape.n, err);
  if (status == TS_OK) {
    reading r = {.tensor = t};
    ts_engine_write_parameter(e, p, give_values, &r);
    *nonfinite = r.nonfinite;
  }
  return status;
}

static ts_status open_import(const ts_deck *deck, ts_safetensors **st, ts_error *err) {
  ts_error why = {0};
  ts_status status = ts_safetensors_open(deck->model.from, st, &why);
  if (status != TS_OK) {
    ts_deck_error(deck, FROM, err, "%s", why.text);
  }
  ts_error_clear(&why);
  return status;
}

ts_status ts_engine_import(ts_engine *e, ts_error *err) {
  ts_safetensors *st;
  ts_status status = open_import(e->deck, &st, err);
  const ts_layout *layout = ts_engine_layout(e);
  uint64_t *nonfinite = ts_calloc((size_t) layout->n_parameters, sizeof *nonfinite);
  int wrong = 0;
  for (int i = 0; st != NULL && i < layout->n_parameters && wrong < MOST_MESSAGES; ++i) {
    wrong += read_tensor(e, st, &layout->parameter[i], &nonfinite[i], err) != TS_OK;
  }
  if (wrong > 0) {
    status = wrong < MOST_MESSAGES
                 ? TS_BAD_INPUT
                 : ts_deck_error(e->deck, FROM, err, "%s: perhaps more; is it another model?", e->deck->model.from);
  }
  if (st != NULL && ts_import_check_unread(e, st, err) != TS_OK) {
    status = TS_BAD_INPUT;
  }
  ts_engine_sum(e, nonfinite, layout->n_parameters);
  if (st != NULL) {
    say_nonfinite(e, st, nonfinite);
  }
  ts_free(nonfinite);
  ts_safetensors_close(&st);
  ts_engine_say_overflow(e);
  return status;
}
