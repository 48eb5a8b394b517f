#include "engine/import.h"

#include "base/log.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "family/stack.h"

#include <math.h>
#include <string.h>

#define MOST_MESSAGES 10

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

const ts_safetensor *ts_import_find(const ts_import *im, const char *name) {
  return find_any(im->engine, find_tensor, im->st, name, true);
}

const ts_parameter *ts_import_parameter(const ts_engine *e, const char *tensor) {
  char *stack = ts_import_stack_of(e, tensor);
  const ts_parameter *p = find_any(e, find_in_layout, ts_engine_layout(e), stack != NULL ? stack : tensor, false);
  ts_free(stack);
  return p;
}

static const void *find_copied(const void *where, const char *name) {
  const ts_import *im = where;
  return ts_upcycle_copies(im->engine, name) ? where : NULL;
}

bool ts_import_copies(const ts_import *im, const ts_safetensor *t) {
  return im->copies && find_any(im->engine, find_copied, im, t->name, false) != NULL;
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

static void say_nonfinite(const ts_import *im, const uint64_t *count) {
  const ts_layout *layout = ts_engine_layout(im->engine);
  int first = -1, others = -1;
  for (int i = 0; i < layout->n_parameters; ++i) {
    first = first < 0 && count[i] > 0 ? i : first;
    others += count[i] > 0;
  }
  const ts_parameter *p = first >= 0 ? &layout->parameter[first] : NULL;
  const ts_safetensor *t = p != NULL ? ts_import_find(im, p->name) : NULL;
  bool stack =
      p != NULL && t == NULL && ts_stack_is(p->name, p->shape.n); /* of tensors of each expert, or of several */
  if (t != NULL || stack) {                                       /* a rank whose files lack it says so instead */
    char *more =
        others > 0 ? ts_format(", and values of %d more tensor%s too", others, others > 1 ? "s" : "") : ts_strdup("");
    ts_log(TS_LOG_WARNING, "%s: %llu of %lld values of %s%s are not finite (NaN or infinite)%s: no loss will be either",
           stack ? im->from : t->file, (unsigned long long) count[first], (long long) ts_shape_count(&p->shape),
           stack ? "all experts' " : "", stack ? p->name : t->name, more);
    ts_free(more);
  }
}

ts_status ts_import_wrong(const ts_import *im, ts_error *err, char *problem) {
  const ts_deck *deck = im->engine->deck;
  ts_status status = im->from == deck->model.from ? ts_deck_error(deck, "model.from", err, "%s", problem)
                                                  : ts_error_add(err, "%s", problem);
  ts_free(problem);
  return status;
}

ts_status ts_import_check_shape(const ts_import *im, const ts_safetensor *t, const int64_t *shape, int n_dims,
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
  return ts_import_wrong(im, err, text.text);
}

static ts_status read_one(const ts_import *im, const ts_parameter *p, const char *name, uint64_t *nonfinite,
                          ts_error *err) {
  const ts_safetensor *t = ts_import_find(im, name);
  if (t == NULL) {
    return ts_import_wrong(im, err, ts_format("%s: there is no tensor %s", im->from, name));
  }
  ts_status status = ts_import_check_shape(im, t, p->shape.d, p->shape.n, err);
  if (status == TS_OK) {
    reading r = {.tensor = t};
    ts_engine_write_parameter(im->engine, p, give_values, &r);
    *nonfinite = r.nonfinite;
  }
  return status;
}

/* \return TS_BAD_INPUT: it is missing, or another one. */
static ts_status read_tensor(const ts_import *im, const ts_parameter *p, uint64_t *nonfinite, int *seeded,
                             ts_error *err) {
  bool stack = ts_stack_is(p->name, p->shape.n), other = im->copies && ts_import_find(im, p->name) == NULL;
  ts_origin origin = other ? ts_upcycle_origin(im->engine, p) : (ts_origin){0};
  ts_status status = TS_OK;
  if (origin.seeded) {
    ts_upcycle_seed(im->engine, p, &origin);
    ++*seeded;
  } else if (stack) {
    status = ts_import_read_stack(im, p, origin.copied != NULL ? &origin : NULL, nonfinite, err);
  } else {
    status = read_one(im, p, origin.copied != NULL ? origin.copied : p->name, nonfinite, err);
  }
  ts_free(origin.copied);
  return status;
}

static ts_status open_import(const ts_import *im, ts_safetensors **st, ts_error *err) {
  ts_error why = {0};
  ts_status status = ts_safetensors_open(im->from, st, &why);
  if (status != TS_OK) {
    ts_import_wrong(im, err, ts_strdup(why.text));
  }
  ts_error_clear(&why);
  return status;
}

/* By the names that the engine has for them; what is none of its parameters has its own. */
static bool begins_as_copies(const ts_import *im) {
  int n = ts_safetensors_count(im->st);
  ts_named *named = ts_calloc((size_t) n + 1, sizeof *named);
  for (int i = 0; i < n; ++i) {
    const ts_safetensor *t = ts_safetensors_at(im->st, i);
    const ts_parameter *p = ts_import_parameter(im->engine, t->name);
    named[i] = p != NULL ? (ts_named){p->name, p->shape.n} : (ts_named){t->name, t->n_dims};
  }
  bool copies = ts_upcycle_is_dense(im->engine, named, n);
  ts_free(named);
  return copies;
}

static ts_status import_parameters(const ts_import *im, uint64_t *nonfinite, ts_error *err) {
  const ts_layout *layout = ts_engine_layout(im->engine);
  int wrong = 0, seeded = 0;
  for (int i = 0; i < layout->n_parameters && wrong < MOST_MESSAGES; ++i) {
    wrong += read_tensor(im, &layout->parameter[i], &nonfinite[i], &seeded, err) != TS_OK;
  }
  if (wrong == 0 && im->copies) {
    ts_upcycle_say(im->from, seeded);
  }
  return wrong == 0 ? TS_OK
         : wrong < MOST_MESSAGES
             ? TS_BAD_INPUT
             : ts_import_wrong(im, err, ts_format("%s: perhaps more; is it another model?", im->from));
}

ts_status ts_engine_import(ts_engine *e, const char *from, ts_error *err) {
  ts_safetensors *st;
  ts_import im = {.engine = e, .from = from};
  ts_status status = open_import(&im, &st, err);
  const ts_layout *layout = ts_engine_layout(e);
  uint64_t *nonfinite = ts_calloc((size_t) layout->n_parameters, sizeof *nonfinite);
  im.st = st;
  if (st != NULL) {
    im.copies = begins_as_copies(&im);
    status = import_parameters(&im, nonfinite, err);
  }
  if (st != NULL && ts_import_check_unread(&im, err) != TS_OK) {
    status = TS_BAD_INPUT;
  }
  ts_engine_sum(e, nonfinite, layout->n_parameters);
  if (st != NULL) {
    say_nonfinite(&im, nonfinite);
  }
  ts_free(nonfinite);
  ts_safetensors_close(&st);
  ts_engine_say_overflow(e);
  return status;
}
