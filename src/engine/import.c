#include "engine/import.h"

#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"

#include <math.h>
#include <string.h>

#define MOST_MESSAGES 10
#define FROM "model.from"

/* ---- names ---- */

static const char *const *prefixes_of(const ts_engine *e) {
  return ts_family_find(e->deck->model.model_type)->prefixes;
}

/* \a name without the prefix, or with it where it had none; newly allocated. */
static char *with_or_without(const char *prefix, const char *name) {
  size_t n = strlen(prefix);
  return strncmp(name, prefix, n) == 0 ? ts_strdup(name + n) : ts_format("%s%s", prefix, name);
}

const ts_safetensor *ts_import_find(const ts_engine *e, const ts_safetensors *st, const char *name) {
  const ts_safetensor *found = ts_safetensors_find(st, name);
  for (const char *const *prefix = prefixes_of(e); found == NULL && *prefix != NULL; ++prefix) {
    char *other = with_or_without(*prefix, name);
    found = ts_safetensors_find(st, other);
    ts_free(other);
  }
  return found;
}

const ts_parameter *ts_import_parameter(const ts_engine *e, const char *tensor) {
  const ts_layout *layout = ts_engine_layout(e);
  const ts_parameter *found = ts_layout_find(layout, tensor);
  for (const char *const *prefix = prefixes_of(e); found == NULL && *prefix != NULL; ++prefix) {
    char *other = with_or_without(*prefix, tensor);
    found = ts_layout_find(layout, other);
    ts_free(other);
  }
  return found;
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
  const ts_safetensor *t = first >= 0 ? ts_import_find(e, st, layout->parameter[first].name) : NULL;
  if (t != NULL) { /* a rank whose files lack it says so instead */
    char *more =
        others > 0 ? ts_format(", and values of %d more tensor%s too", others, others > 1 ? "s" : "") : ts_strdup("");
    ts_log(TS_LOG_WARNING, "%s: %llu of %lld values of %s are not finite (NaN or infinite)%s: no loss will be either",
           t->file, (unsigned long long) count[first], (long long) t->count, t->name, more);
    ts_free(more);
  }
}

static ts_status check_shape(const ts_deck *deck, const ts_safetensor *t, const ts_parameter *p, ts_error *err) {
  bool same = t->n_dims == p->shape.n && memcmp(t->shape, p->shape.d, (size_t) p->shape.n * sizeof *t->shape) == 0;
  if (same && ts_dtype_is_float(t->dtype)) {
    return TS_OK;
  }
  ts_text text = {0};
  ts_text_add(&text, "%s: tensor %s is %s ", t->file, t->name, t->dtype_name);
  ts_text_add_shape(&text, t->shape, t->n_dims);
  ts_text_add(&text, "; the model wants a floating-point ");
  ts_text_add_shape(&text, p->shape.d, p->shape.n);
  ts_status status = ts_deck_error(deck, FROM, err, "%s", text.text);
  ts_text_free(&text);
  return status;
}

static ts_status read_tensor(ts_engine *e, const ts_safetensors *st, const ts_parameter *p, uint64_t *nonfinite,
                             ts_error *err) {
  const ts_safetensor *t = ts_import_find(e, st, p->name);
  if (t == NULL) {
    return ts_deck_error(e->deck, FROM, err, "%s: there is no tensor %s", e->deck->model.from, p->name);
  }
  ts_status status = check_shape(e->deck, t, p, err);
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
