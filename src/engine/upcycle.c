#include "engine/upcycle.h"

#include "base/memory.h"
#include "base/text.h"
#include "family/family.h"
#include "family/stack.h"

#include <string.h>

static const ts_family *family_of(const ts_engine *e) {
  const ts_family *family = ts_family_find(e->deck->model.model_type); /* NULL: a program's own */
  return family != NULL && family->router != NULL ? family : NULL;
}

/* "PREFIX.MODULE.weight": PREFIX with its dot; NULL: another parameter.  Owned by the caller. */
static char *before_module(const char *name, const char *module) {
  char *end = ts_format(".%s.weight", module);
  bool is = ts_ends_in(name, end);
  char *prefix = is ? ts_format("%.*s", (int) (strlen(name) - strlen(end) + 1), name) : NULL;
  ts_free(end);
  return prefix;
}

/* The MLP's matrix that experts of a stack are copies of, by name; NULL: it is no stack.  Owned by the caller. */
static char *dense_name(const ts_family *f, const ts_parameter *p) {
  const char *const rows[][2] = {{f->expert_gate, f->gate}, {f->expert_up, f->up}, {f->expert_down, f->down}};
  char *dense = NULL;
  for (size_t i = 0; i < sizeof rows / sizeof *rows && ts_stack_is(p->name, p->shape.n) && dense == NULL; ++i) {
    char *module = ts_format("%s.%s", f->experts, rows[i][0]), *prefix = before_module(p->name, module);
    dense = prefix != NULL ? ts_format("%s%s.weight", prefix, rows[i][1]) : NULL;
    ts_free(prefix);
    ts_free(module);
  }
  return dense;
}

static bool is_output_of_experts(const ts_family *f, const char *name) {
  char *module = ts_format("%s.%s", f->experts, f->expert_down), *prefix = before_module(name, module);
  bool is = prefix != NULL;
  ts_free(module);
  ts_free(prefix);
  return is;
}

/* Is \a name, up to where it begins, in a module? */
static bool is_in_module(const char *name, const char *module) {
  char *part = module != NULL ? ts_format(".%s.", module) : NULL;
  bool is = part != NULL && strstr(name, part) != NULL;
  ts_free(part);
  return is;
}

bool ts_upcycle_is(const ts_engine *e, const ts_checkpoint *c) {
  const ts_family *f = family_of(e);
  bool dense = f != NULL && f->gate != NULL;
  for (int i = 0; dense && i < c->n_parameters; ++i) {
    dense =
        !is_in_module(c->parameter[i].name, f->router) && !ts_stack_is(c->parameter[i].name, c->parameter[i].n_dims);
  }
  return dense;
}

/* The sum of the weights of a token's experts where their scores are equal. */
static double sum_of_weights(const ts_deck_model *m, const ts_family *f) {
  double each = f->router_sigmoid ? 0.5 : 1.0 / (double) m->num_experts;
  bool normalizes = f->router_normalizes || m->norm_topk_prob;
  return m->routed_scaling_factor * (normalizes ? 1.0 : (double) m->num_experts_per_tok * each);
}

ts_origin ts_upcycle_origin(const ts_engine *e, const ts_checkpoint *c, const ts_parameter *p) {
  const ts_family *f = family_of(e);
  int saved = ts_checkpoint_find(c, p->name);
  if (saved >= 0 || !ts_upcycle_is(e, c)) {
    return (ts_origin){.saved = saved, .scale = 1};
  }
  char *dense = dense_name(f, p);
  if (dense != NULL) {
    bool scaled = is_output_of_experts(f, p->name);
    ts_origin origin = {.saved = ts_checkpoint_find(c, dense),
                        .scale = scaled ? (float) (1 / sum_of_weights(&e->deck->model, f)) : 1};
    ts_free(dense);
    return origin;
  }
  char *down = f->shared_expert != NULL ? ts_format("%s.%s", f->shared_expert, strrchr(f->down, '.') + 1) : NULL;
  bool of_all = is_in_module(p->name, f->shared_expert) || is_in_module(p->name, f->shared_expert_gate);
  bool silent = is_in_module(p->name, down);
  ts_free(down);
  return (ts_origin){.saved = -1, .scale = silent ? 0 : 1, .seeded = of_all || is_in_module(p->name, f->router)};
}

bool ts_upcycle_copies(const ts_engine *e, const ts_checkpoint *c, const char *name) {
  const ts_layout *layout = ts_engine_layout(e);
  bool copies = false, upcycles = ts_upcycle_is(e, c);
  for (int i = 0; upcycles && i < layout->n_parameters && !copies; ++i) {
    char *dense = dense_name(family_of(e), &layout->parameter[i]);
    copies = dense != NULL && strcmp(dense, name) == 0;
    ts_free(dense);
  }
  return copies;
}
