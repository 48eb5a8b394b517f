/* Stacks from a Hugging Face directory: a tensor for each expert, or one for all. */
#include "base/memory.h"
#include "engine/engine.h"
#include "engine/import.h"
#include "family/stack.h"

#include <math.h>
#include <string.h>

/* Where the matrices are, each of `count` elements: that of expert e begins `first + e step` into its tensor. */
typedef struct stack {
  const ts_safetensor **expert; /* [E], owned: of each, or NULL; the same E times where one has all, or is copied */
  float scale;
  int64_t experts, count, first, step;
  uint64_t nonfinite; /* of the elements that this rank owns */
} stack;

/* ---- all in one ---- */

/* The name of the tensor that has all experts of a parameter, newly allocated; \a half: 0 or 1 where it has the gate
 * and up of each, else -1. */
static char *fused_name(const ts_engine *e, const ts_parameter *p, int *half) {
  const ts_family *f = ts_deck_family(e->deck);
  const char *const names[] = {f->expert_gate, f->expert_up};
  const char *at = strstr(p->name, f->experts), *name = at + strlen(f->experts) + 1;
  *half = -1;
  for (int i = 0; i < 2; ++i) {
    size_t n = strlen(names[i]);
    *half = strncmp(name, names[i], n) == 0 && name[n] == '.' ? i : *half;
  }
  return ts_format("%.*s%s.%s", (int) (at - p->name), p->name, f->fused_experts,
                   *half >= 0 ? "gate_up_proj" : "down_proj");
}

char *ts_import_stack_of(const ts_engine *e, const char *tensor) {
  const ts_family *f = ts_deck_family(e->deck);
  const char *const rows[][2] = {{"gate_up_proj", f->expert_gate}, {"down_proj", f->expert_down}};
  int64_t expert;
  char *found = ts_stack_of(tensor, &expert);
  for (int i = 0; i < 2 && f->fused_experts != NULL && found == NULL; ++i) {
    char *end = ts_format(".%s.%s", f->fused_experts, rows[i][0]);
    if (ts_ends_in(tensor, end)) {
      found = ts_format("%.*s.%s.%s.weight", (int) (strlen(tensor) - strlen(end)), tensor, f->experts, rows[i][1]);
    }
    ts_free(end);
  }
  return found;
}

static const ts_safetensor *find_fused(const ts_import *im, const ts_parameter *p, int *half) {
  if (ts_deck_family(im->engine->deck)->fused_experts == NULL) {
    return NULL;
  }
  char *name = fused_name(im->engine, p, half);
  const ts_safetensor *t = ts_import_find(im, name);
  ts_free(name);
  return t;
}

/* ---- each ---- */

static const ts_safetensor *find_expert(const ts_import *im, const ts_parameter *p, int64_t expert) {
  char *name = ts_stack_name(p->name, expert);
  const ts_safetensor *t = ts_import_find(im, name);
  ts_free(name);
  return t;
}

static bool has_some(const ts_import *im, const ts_parameter *p) {
  bool some = false;
  for (int64_t i = 0; i < p->shape.d[0] && !some; ++i) {
    some = find_expert(im, p, i) != NULL;
  }
  return some;
}

/* ---- either ---- */

static ts_status find_each(const ts_import *im, const ts_parameter *p, stack *s, ts_error *err) {
  ts_status status = TS_OK;
  for (int64_t i = 0; i < s->experts && status == TS_OK; ++i) {
    s->expert[i] = find_expert(im, p, i);
    if (s->expert[i] == NULL) {
      char *name = ts_stack_name(p->name, i);
      status = ts_import_wrong(im, err, ts_format("%s: there is no tensor %s", im->from, name));
      ts_free(name);
    } else {
      status = ts_import_check_shape(im, s->expert[i], p->shape.d + 1, p->shape.n - 1, err);
    }
  }
  return status;
}

static ts_status find_all(const ts_import *im, const ts_parameter *p, stack *s, ts_error *err) {
  int half;
  const ts_safetensor *t = find_fused(im, p, &half);
  if (t == NULL) {
    bool fused = ts_deck_family(im->engine->deck)->fused_experts != NULL;
    char *one = ts_stack_name(p->name, 0), *all = fused ? fused_name(im->engine, p, &half) : NULL;
    ts_status status = ts_import_wrong(
        im, err, ts_format("%s: there is no tensor %s%s%s", im->from, one, fused ? ", nor " : "", fused ? all : ""));
    ts_free(all);
    ts_free(one);
    return status;
  }
  ts_shape shape = p->shape;
  shape.d[1] *= half >= 0 ? 2 : 1;
  s->step = shape.d[1] * shape.d[2];
  s->first = half > 0 ? s->count : 0;
  for (int64_t i = 0; i < s->experts; ++i) {
    s->expert[i] = t;
  }
  ts_error said = {0}; /* of a gate, whose tensor has up as well */
  ts_status status = ts_import_check_shape(im, t, shape.d, shape.n, half > 0 ? &said : err);
  ts_error_clear(&said);
  return status;
}

/* One matrix, which each expert begins with. */
static ts_status find_dense(const ts_import *im, const ts_parameter *p, const ts_origin *origin, stack *s,
                            ts_error *err) {
  const ts_safetensor *t = ts_import_find(im, origin->copied);
  for (int64_t i = 0; i < s->experts; ++i) {
    s->expert[i] = t;
  }
  s->scale = origin->scale;
  return t == NULL ? ts_import_wrong(im, err, ts_format("%s: there is no tensor %s", im->from, origin->copied))
                   : ts_import_check_shape(im, t, p->shape.d + 1, p->shape.n - 1, err);
}

static void give_matrices(void *user, int64_t first, int64_t count, bool owned, float *value) {
  stack *s = user;
  for (int64_t n; count > 0; first += n, count -= n, value += n) {
    int64_t expert = first / s->count, inside = first % s->count;
    n = s->count - inside < count ? s->count - inside : count;
    ts_safetensors_read_f32(s->expert[expert], s->first + expert * s->step + inside, n, value);
    for (int64_t i = 0; i < n; ++i) {
      value[i] *= s->scale;
      s->nonfinite += owned && !isfinite(value[i]);
    }
  }
}

ts_status ts_import_read_stack(const ts_import *im, const ts_parameter *p, const ts_origin *origin, uint64_t *nonfinite,
                               ts_error *err) {
  stack s = {.experts = p->shape.d[0], .count = ts_shape_count(&p->shape) / p->shape.d[0], .scale = 1};
  s.expert = ts_calloc((size_t) s.experts, sizeof *s.expert);
  ts_status status = origin != NULL    ? find_dense(im, p, origin, &s, err)
                     : has_some(im, p) ? find_each(im, p, &s, err)
                                       : find_all(im, p, &s, err);
  if (status == TS_OK) {
    ts_engine_write_parameter(im->engine, p, give_matrices, &s);
    *nonfinite = s.nonfinite;
  }
  ts_free(s.expert);
  return status;
}

bool ts_import_reads(const ts_import *im, const ts_parameter *p, const ts_safetensor *t) {
  int64_t expert;
  int half;
  char *stack = ts_stack_of(t->name, &expert);
  bool stacked = ts_stack_is(p->name, p->shape.n), one = stack != NULL;
  ts_free(stack);
  return !stacked ? ts_import_find(im, p->name) == t
         : one    ? expert < p->shape.d[0] && find_expert(im, p, expert) == t
                  : !has_some(im, p) && find_fused(im, p, &half) == t;
}
