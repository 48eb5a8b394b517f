/* Element-wise optimizers: their formulas in fp64.  (Their bits: optimizer_bits.c.) */
#include "graph/op.h"
#include "regression/ops/ops.h"

/* ---- cases ---- */

/* Types: NONE, no working copy. */
static const struct {
  ts_optimizer rule;
  ts_dtype p, w, state;
  ts_optimizer_numbers numbers;
  bool skip, many;
} cases[] = {
#define NONE TS_N_DTYPES
    {TS_OPTIMIZER_ADAMW, TS_F32, NONE, TS_F32, {.eps = 0.01f}, false, false},
    {TS_OPTIMIZER_ADAMW, TS_F32, NONE, TS_F32, {.eps = 0.01f, .decoupled = true}, false, false},
    {TS_OPTIMIZER_ADAMW, TS_F32, NONE, TS_F32, {.eps = 0.01f, .bias_correction = true}, false, false},
    {TS_OPTIMIZER_ADAMW, TS_F32, TS_BF16, TS_F32, {.eps = 0.01f, .decoupled = true, .bias_correction = true}, 0, 0},
    {TS_OPTIMIZER_ADAMW, TS_F32, NONE, TS_F32, {.eps = 0.01f, .decoupled = true, .bias_correction = true}, 1, 0},
    {TS_OPTIMIZER_ADAMW, TS_F32, NONE, TS_F32, {.eps = 0.01f, .decoupled = true, .bias_correction = true}, 0, 1},
    {TS_OPTIMIZER_ADAMW, TS_F32, NONE, TS_BF16, {.eps = 0.01f, .decoupled = true, .bias_correction = true}, 0, 0},
    {TS_OPTIMIZER_ADAMW, TS_BF16, NONE, TS_BF16, {.eps = 0.01f, .decoupled = true, .bias_correction = true}, 0, 0},
    {TS_OPTIMIZER_ADAMW, TS_F32, TS_F16, TS_F32, {.eps = 0.01f, .decoupled = true, .bias_correction = true}, 0, 0},
    {TS_OPTIMIZER_ADAMW, TS_F16, NONE, TS_F16, {.eps = 0.01f, .decoupled = true, .bias_correction = true}, 0, 0},
    {TS_OPTIMIZER_LION, TS_F32, TS_BF16, TS_F32, {.decoupled = true}, 0, 0},
    {TS_OPTIMIZER_LION, TS_F32, NONE, TS_BF16, {.decoupled = true}, 0, 1},
    {TS_OPTIMIZER_ADAGRAD, TS_F32, NONE, TS_F32, {.eps = 0.01f}, 0, 0},
    {TS_OPTIMIZER_ADAGRAD, TS_F32, TS_BF16, TS_BF16, {.eps = 0.01f, .lr_decay = 0.05f}, 0, 0},
    {TS_OPTIMIZER_SGD, TS_F32, NONE, TS_F32, {.eps = 0}, 0, 1},
    {TS_OPTIMIZER_SGD, TS_BF16, NONE, TS_F32, {.eps = 0}, 0, 0},
    {TS_OPTIMIZER_BALANCE, TS_F32, NONE, TS_F32, {.rate = 0.01f}, 0, 1},
    {TS_OPTIMIZER_BALANCE, TS_F32, NONE, TS_F32, {.rate = 0.01f}, 1, 0},
    {TS_OPTIMIZER_MOMENTUM, TS_F32, NONE, TS_F32, {.momentum = 0.9f, .dampening = 0.25f}, 0, 0},
    {TS_OPTIMIZER_MOMENTUM, TS_F32, TS_BF16, TS_F32, {.momentum = 0.9f, .nesterov = true}, 0, 0},
    {TS_OPTIMIZER_SGD, TS_F32, TS_BF16, TS_F32, {.decoupled = true}, 0, 0},
    {TS_OPTIMIZER_LAMB, TS_F32, NONE, TS_F32, {.eps = 0.01f}, 0, 1},
    {TS_OPTIMIZER_LAMB, TS_BF16, NONE, TS_BF16, {.eps = 0.01f, .eps_inside = true}, 0, 0},
    {TS_OPTIMIZER_MUON, TS_F32, NONE, TS_F32, {.momentum = 0.9f}, 0, 1},
    {TS_OPTIMIZER_MUON, TS_F16, NONE, TS_F32, {.momentum = 0.9f}, 1, 0},
#undef NONE
};

enum { STEP_NUMBER = 3, MANY_RANGES = 207 };

/* Ranges of 12 elements and gaps of one, then one of many blocks; all their factors differ. */
static ts_range *many_ranges(void) {
  static ts_range ranges[MANY_RANGES];
  for (int r = 0; r < MANY_RANGES; ++r) {
    ranges[r] = (ts_range){13 * r, 12, 1e-3f * (float) r, 1.0f + 0.01f * (float) r, 0};
  }
  ranges[MANY_RANGES - 1].offset = 2700;
  ranges[MANY_RANGES - 1].count = 20001;
  return ranges;
}

static run_tensor *add_input(run_case *c, ts_dtype dtype, ts_shape shape) {
  c->in[c->n_in] = run_new(dtype, shape);
  return &c->in[c->n_in++];
}

static void add_numbers(run_case *c, ts_dtype g, ts_shape shape, int64_t step, bool skip) {
  static const double betas[] = {0.9, 0.95};
  ops_input(c, c->n_in, g, shape, 1.0);
  run_set(add_input(c, TS_I64, TS_SHAPE(1)), 0, (double) step);
  run_tensor *corrections = add_input(c, TS_F64, TS_SHAPE(2)), *lr = add_input(c, TS_F32, TS_SHAPE(1));
  run_tensor *beta = add_input(c, TS_F32, TS_SHAPE(2));
  for (int i = 0; i < 2; ++i) {
    run_set(beta, i, betas[i]);
    run_set(corrections, i, 1 - pow(run_get(beta, i), (double) step));
  }
  run_set(lr, 0, 1e-3);
  run_set(add_input(c, TS_F32, TS_SHAPE(1)), 0, 0.7);
  run_set(add_input(c, TS_F32, TS_SHAPE(1)), 0, skip);
  for (int i = 0; i < 3 && c->attr.update.has_ratios; ++i) {
    run_set(i == 0 ? add_input(c, TS_F32, TS_SHAPE(3)) : &c->in[c->n_in - 1], i, 0.5 + i);
  }
}

/* A state of small numbers, positive where it is a sum of squares. */
static void add_state(run_case *c, ts_state state, ts_dtype dtype, ts_shape shape) {
  int i = c->n_in;
  ops_input(c, i, dtype, shape, 0.1);
  for (int64_t k = 0; k < shape.d[0] && !ts_state_has_sign(state); ++k) {
    run_set(&c->in[i], k, run_get(&c->in[i], k) * run_get(&c->in[i], k));
  }
}

static void build_case(run_case *c, int variant, ts_dtype g) {
  static ts_range ranges[] = {{0, 7, 0.0f, 1.0f, 0}, {64, 2100, 0.1f, 1.0f, 0}, {2176, 500, 0.1f, 0.25f, 2}};
  ts_shape shape = TS_SHAPE(cases[variant].many ? 22704 : 2700);
  const ts_optimizer_info *info = ts_optimizer_get(cases[variant].rule);
  ops_input(c, 0, cases[variant].p, shape, 1.0);
  if (cases[variant].w != TS_N_DTYPES) {
    add_input(c, cases[variant].w, shape);
  }
  c->attr.update = (typeof(c->attr.update)){.range = cases[variant].many ? many_ranges() : ranges,
                                            .n = cases[variant].many ? MANY_RANGES : 3,
                                            .rule = cases[variant].rule,
                                            .numbers = cases[variant].numbers,
                                            .copy = cases[variant].w != TS_N_DTYPES,
                                            .has_ratios = cases[variant].rule == TS_OPTIMIZER_SGD &&
                                                          cases[variant].numbers.decoupled};
  for (int i = 0; i < info->n_states; ++i) {
    add_state(c, info->state[i], cases[variant].state, shape);
  }
  for (int i = 0, n = c->n_in; i < n; ++i) {
    ops_output(c, c->in[i].dtype, shape);
  }
  add_numbers(c, g, shape, STEP_NUMBER, cases[variant].skip);
}

/* ---- formulas ---- */

/* What a reference knows of an element: its values are changed.  Of a rule that makes a direction p is the parameter,
 * which stays, and g becomes the direction. */
typedef struct element {
  double *p, *first, *second; /* NULL: the rule has no such state */
  double g, lr, decay, beta1, beta2, step;
  const ts_optimizer_numbers *n;
} element;

/* torch.optim.AdamW (decoupled) and Adam, the single-tensor loop. */
static void adamw_element(element *e) {
  double correction1 = e->n->bias_correction ? 1 - pow(e->beta1, e->step) : 1;
  double correction2 = e->n->bias_correction ? 1 - pow(e->beta2, e->step) : 1;
  *e->first = e->beta1 * *e->first + (1 - e->beta1) * e->g;
  *e->second = e->beta2 * *e->second + (1 - e->beta2) * e->g * e->g;
  *e->p -= e->lr / correction1 * *e->first / (sqrt(*e->second) / sqrt(correction2) + (double) e->n->eps);
}

/* Chen et al., algorithm 2. */
static void lion_element(element *e) {
  double c = e->beta1 * *e->first + (1 - e->beta1) * e->g;
  *e->p -= e->lr * (double) ((c > 0) - (c < 0));
  *e->first = e->beta2 * *e->first + (1 - e->beta2) * e->g;
}

/* torch.optim.Adagrad. */
static void adagrad_element(element *e) {
  *e->first += e->g * e->g + (e->step == 1 ? (double) e->n->initial : 0);
  *e->p -= e->lr / (1 + (e->step - 1) * (double) e->n->lr_decay) * e->g / (sqrt(*e->first) + (double) e->n->eps);
}

/* torch.optim.SGD. */
static void sgd_element(element *e) {
  *e->p -= e->lr * e->g;
}

/* DeepSeek's bias of a router: by a step of one size towards equal shares, whatever the schedule. */
static void balance_element(element *e) {
  *e->p += (double) e->n->rate * (double) ((e->g < 0) - (e->g > 0));
}

static void momentum_element(element *e) {
  double mu = (double) e->n->momentum;
  *e->first = e->step == 1 ? e->g : mu * *e->first + (1 - (double) e->n->dampening) * e->g;
  *e->p -= e->lr * (e->n->nesterov ? e->g + mu * *e->first : *e->first);
}

/* DeepSpeed's fused_lamb_cuda_kernel.cu, its first half. */
static void lamb_element(element *e) {
  *e->first = e->beta1 * *e->first + (1 - e->beta1) * e->g;
  *e->second = e->beta2 * *e->second + (1 - e->beta2) * e->g * e->g;
  double eps = (double) e->n->eps, root = e->n->eps_inside ? sqrt(*e->second + eps) : sqrt(*e->second) + eps;
  e->g = *e->first / root + e->decay * *e->p;
}

/* DeepSpeed's original_muon.py, its first half. */
static void muon_element(element *e) {
  double mu = (double) e->n->momentum;
  *e->first += (1 - mu) * (e->g - *e->first);
  e->g += mu * (*e->first - e->g);
}

static void (*const formulas[TS_N_OPTIMIZERS])(element *e) = {
    [TS_OPTIMIZER_ADAMW] = adamw_element,       [TS_OPTIMIZER_LION] = lion_element,
    [TS_OPTIMIZER_ADAGRAD] = adagrad_element,   [TS_OPTIMIZER_SGD] = sgd_element,
    [TS_OPTIMIZER_MOMENTUM] = momentum_element, [TS_OPTIMIZER_LAMB] = lamb_element,
    [TS_OPTIMIZER_MUON] = muon_element,         [TS_OPTIMIZER_BALANCE] = balance_element};

static void update_element(run_case *c, int64_t i, const ts_range *range) {
  int at = c->n_out, first = 1 + c->attr.update.copy, n = c->n_out - first;
  bool direct = ts_optimizer_get(c->attr.update.rule)->granularity == TS_GRANULARITY_ELEMENT;
  double other = ops_in(c, at + TS_UPDATE_G)[i], *own = &ops_out(c, 0)[i];
  element e = {.p = direct ? own : &other,
               .first = n > 0 ? &ops_out(c, first)[i] : NULL,
               .second = n > 1 ? &ops_out(c, first + 1)[i] : NULL,
               .g = (direct ? other : *own) * ops_in(c, at + TS_UPDATE_SCALE)[0],
               .lr = ops_in(c, at + TS_UPDATE_LR)[0] * (double) range->lr_factor,
               .decay = (double) range->weight_decay,
               .beta1 = ops_in(c, at + TS_UPDATE_BETAS)[0],
               .beta2 = ops_in(c, at + TS_UPDATE_BETAS)[1],
               .step = (double) ((const int64_t *) c->in[at + TS_UPDATE_STEP].data)[0],
               .n = &c->attr.update.numbers};
  if (direct && e.n->decoupled) {
    *e.p *= 1 - e.lr * e.decay;
  } else if (direct && c->attr.update.rule != TS_OPTIMIZER_BALANCE) {
    e.g += e.decay * *e.p;
  }
  e.lr *= c->attr.update.has_ratios ? ops_in(c, at + TS_UPDATE_RATIOS)[range->ratio] : 1;
  formulas[c->attr.update.rule](&e);
  *own = direct ? *own : e.g;
  if (c->attr.update.copy) {
    ops_out(c, 1)[i] = *e.p;
  }
}

static void reference(run_case *c) {
  for (int i = 0; i < c->n_out; ++i) {
    memcpy(c->out[i].data, c->in[i].data, (size_t) ops_count(c, i) * sizeof(double));
  }
  for (int r = 0; r < c->attr.update.n && ops_in(c, c->n_out + TS_UPDATE_SKIP)[0] == 0; ++r) {
    const ts_range *range = &c->attr.update.range[r];
    for (int64_t i = range->offset; i < range->offset + range->count; ++i) {
      update_element(c, i, range);
    }
  }
}

/* A chain of about ten roundings, of terms no larger than the largest. */
const op_row ops_optimizer[] = {
    {TS_OP_UPDATE_ELEMENTS, sizeof cases / sizeof *cases, build_case, reference, 4},
    {.reference = NULL},
};
