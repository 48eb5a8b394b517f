#include "engine/upcycle.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "family/family.h"
#include "family/stack.h"

#include <string.h>

static const ts_family *family_of(const ts_engine *e) {
  const ts_family *family = ts_deck_family(e->deck); /* NULL: a program's own */
  return family != NULL && family->router != NULL ? family : NULL;
}

/* What a module's parameters are called, matrices and biases. */
static const char *const parameters[] = {"weight", "bias"};
enum { N_PARAMETERS = sizeof parameters / sizeof *parameters };

/* "PREFIX.MODULE.PARAMETER": PREFIX with its dot; NULL: another one.  Owned by the caller. */
static char *before_module(const char *name, const char *module, const char *parameter) {
  char *end = ts_format(".%s.%s", module, parameter);
  bool is = ts_ends_in(name, end);
  char *prefix = is ? ts_format("%.*s", (int) (strlen(name) - strlen(end) + 1), name) : NULL;
  ts_free(end);
  return prefix;
}

/* The same parameter in module `dense` when \a name is one of `module`; else NULL.  Owned by the caller. */
static char *in_dense(const char *name, const char *module, const char *dense) {
  char *found = NULL;
  for (int i = 0; i < N_PARAMETERS && found == NULL; ++i) {
    char *prefix = before_module(name, module, parameters[i]);
    found = prefix != NULL ? ts_format("%s%s.%s", prefix, dense, parameters[i]) : NULL;
    ts_free(prefix);
  }
  return found;
}

/* What experts of a stack, or the MLP beside them, are copies of, by name; NULL: of nothing.  Owned by the caller. */
static char *dense_name(const ts_family *f, const ts_parameter *p) {
  const char *const rows[][2] = {{f->expert_gate, f->gate}, {f->expert_up, f->up}, {f->expert_down, f->down}};
  bool stack = ts_stack_is(p->name, p->shape.n);
  char *dense = NULL;
  for (size_t i = 0; i < sizeof rows / sizeof *rows && dense == NULL; ++i) {
    const char *within = stack ? f->experts : f->residual;
    if (rows[i][0] != NULL && within != NULL) {
      char *module = ts_format("%s.%s", within, rows[i][0]);
      dense = in_dense(p->name, module, rows[i][1]);
      ts_free(module);
    }
  }
  return dense;
}

static bool is_output_of_experts(const ts_family *f, const ts_parameter *p) {
  char *module = ts_format("%s.%s", f->experts, f->expert_down), *dense = in_dense(p->name, module, f->down);
  bool is = dense != NULL;
  ts_free(module);
  ts_free(dense);
  return is;
}

/* Is \a name, up to where it begins, in a module? */
static bool is_in_module(const char *name, const char *module) {
  char *part = module != NULL ? ts_format(".%s.", module) : NULL;
  bool is = part != NULL && strstr(name, part) != NULL;
  ts_free(part);
  return is;
}

/* Routers' own parameters. */
static bool routes(const ts_family *f, const char *name) {
  return is_in_module(name, f->router) || ts_family_is_router_bias(name);
}

bool ts_upcycle_is_dense(const ts_engine *e, const ts_named *tensor, int n) {
  const ts_family *f = family_of(e);
  bool dense = f != NULL && f->gate_up == NULL;
  for (int i = 0; dense && i < n; ++i) {
    dense = !routes(f, tensor[i].name) && !ts_stack_is(tensor[i].name, tensor[i].n_dims);
  }
  return dense;
}

/* The sum of the weights of a token's experts where their scores are equal. */
static double sum_of_weights(const ts_deck *deck, const ts_family *f, int64_t experts) {
  const ts_deck_model *m = &deck->model;
  double each = f->router_sigmoid ? 0.5 : 1.0 / (double) experts;
  bool own = deck->moe.num_experts.n > 0,
       normalizes = own ? deck->moe.k > 1 : f->router_normalizes || m->norm_topk_prob;
  double scale = own ? 1 : m->routed_scaling_factor;
  return scale * (normalizes ? 1.0 : (double) ts_deck_experts_of_token(deck) * each);
}

ts_origin ts_upcycle_origin(const ts_engine *e, const ts_parameter *p) {
  const ts_family *f = family_of(e);
  char *dense = dense_name(f, p);
  if (dense != NULL) {
    bool scaled = is_output_of_experts(f, p);
    return (ts_origin){.copied = dense, .scale = scaled ? (float) (1 / sum_of_weights(e->deck, f, p->shape.d[0])) : 1};
  }
  char *down = f->shared_expert != NULL ? ts_format("%s.%s", f->shared_expert, strrchr(f->down, '.') + 1) : NULL;
  bool of_all = is_in_module(p->name, f->shared_expert) || is_in_module(p->name, f->shared_expert_gate) ||
                is_in_module(p->name, f->residual_gate);
  bool silent = is_in_module(p->name, down);
  ts_free(down);
  return (ts_origin){.seeded = of_all || routes(f, p->name), .scale = silent ? 0 : 1};
}

bool ts_upcycle_copies(const ts_engine *e, const char *name) {
  const ts_layout *layout = ts_engine_layout(e);
  bool copies = false;
  for (int i = 0; i < layout->n_parameters && !copies; ++i) {
    char *dense = dense_name(family_of(e), &layout->parameter[i]);
    copies = dense != NULL && strcmp(dense, name) == 0;
    ts_free(dense);
  }
  return copies;
}

void ts_upcycle_seed(ts_engine *e, const ts_parameter *p, const ts_origin *origin) {
  ts_engine_seed_parameter(e, p, origin->scale == 0 ? (ts_init){.kind = TS_INIT_ZERO} : p->init);
}

void ts_upcycle_say(const char *directory, int seeded) {
  ts_log(TS_LOG_INFO, "%s is of a dense model: experts begin as copies of its MLPs, %d other tensors from run.seed",
         directory, seeded);
}
