#include "pass/optimizer.h"

#include "base/text.h"
#include "family/family.h"
#include "family/stack.h"

#include <string.h>

/* What is in embeddings and heads of neither kind of model is told by their names. */
static bool is_not_for_muon(const char *name) {
  return strcasestr(name, "embed") != NULL || strcasestr(name, "lm_head") != NULL;
}

bool ts_optimizer_is_router_bias(const ts_deck *deck, const char *name) {
  const ts_family *family = ts_deck_family(deck); /* NULL: a program's own */
  return family != NULL && family->router_bias != NULL && ts_ends_in(name, family->router_bias);
}

ts_optimizer ts_optimizer_of(const ts_deck *deck, const char *name, const ts_shape *shape) {
  static const struct {
    const char *type;
    ts_optimizer optimizer;
  } rows[] = {{"AdamW", TS_OPTIMIZER_ADAMW},     {"Adam", TS_OPTIMIZER_ADAMW}, {"Lion", TS_OPTIMIZER_LION},
              {"Adagrad", TS_OPTIMIZER_ADAGRAD}, {"SGD", TS_OPTIMIZER_SGD},    {"Lamb", TS_OPTIMIZER_LAMB},
              {"Muon", TS_OPTIMIZER_MUON}};
  int dimensions = shape->n - ts_stack_is(name, shape->n); /* of one expert's */
  if (ts_optimizer_is_router_bias(deck, name)) {
    return TS_OPTIMIZER_BALANCE;
  }
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (strcmp(deck->optimizer.type, rows[i].type) == 0) {
      ts_optimizer optimizer = rows[i].optimizer;
      return optimizer == TS_OPTIMIZER_SGD && deck->optimizer.params.momentum > 0          ? TS_OPTIMIZER_MOMENTUM
             : optimizer == TS_OPTIMIZER_MUON && (dimensions < 2 || is_not_for_muon(name)) ? TS_OPTIMIZER_ADAMW
                                                                                           : optimizer;
    }
  }
  ts_die(__FILE__, __LINE__, "optimizer.type = \"%s\" has no row", deck->optimizer.type);
}

ts_optimizer_numbers ts_optimizer_numbers_of(const ts_deck *deck, ts_optimizer optimizer) {
  const ts_deck_optimizer_params *p = &deck->optimizer.params;
  bool adam = optimizer == TS_OPTIMIZER_ADAMW;
  return (ts_optimizer_numbers){.eps = (float) p->eps,
                                .momentum = (float) p->momentum,
                                .dampening = (float) p->dampening,
                                .decoupled = optimizer == TS_OPTIMIZER_LION || (adam && p->adam_w_mode),
                                .bias_correction = adam && p->bias_correction,
                                .nesterov = p->nesterov,
                                .lr_decay = (float) p->lr_decay,
                                .initial = (float) p->initial_accumulator_value,
                                .rate = (float) deck->expert_parallel.load_balance_coeff,
                                .eps_inside = optimizer == TS_OPTIMIZER_LAMB && p->eps_inside_sqrt};
}

int64_t ts_optimizer_head(const ts_deck *deck, const char *name, const ts_shape *shape) {
  static const struct {
    const char *name;
    bool query;
  } rows[] = {{".q_proj.", true}, {".k_proj.", false}, {".v_proj.", false},
              {".query.", true},  {".key.", false},    {".value.", false}};
  const ts_deck_model *model = &deck->model;
  for (size_t i = 0; deck->optimizer.params.per_head_muon && i < sizeof rows / sizeof *rows; ++i) {
    int64_t heads = rows[i].query ? model->num_attention_heads : model->num_key_value_heads;
    if (strstr(name, rows[i].name) != NULL && shape->n == 2 && shape->d[0] == heads * model->head_dim) {
      return model->head_dim;
    }
  }
  return 0;
}

double ts_optimizer_rate(const ts_deck *deck, ts_optimizer optimizer) {
  const ts_deck_optimizer_params *p = &deck->optimizer.params;
  double lr = optimizer == TS_OPTIMIZER_MUON ? p->muon_lr : p->adam_lr;
  bool of_rate = optimizer != TS_OPTIMIZER_BALANCE;
  return of_rate && strcmp(deck->optimizer.type, "Muon") == 0 && p->lr > 0 ? lr / p->lr : 1;
}

ts_dtype ts_optimizer_sums(const ts_deck *deck, ts_optimizer optimizer) {
  return optimizer == TS_OPTIMIZER_BALANCE ? TS_F32 : deck->data_types.grad_accum_dtype;
}

ts_dtype ts_optimizer_moments(const ts_deck *deck, int64_t elements) {
  const char *type = deck->optimizer.state_dtype;
  return strcmp(type, "bf16") == 0                                  ? TS_BF16
         : strcmp(type, "8bit") == 0 && elements >= TS_FEW_ELEMENTS ? TS_U8
                                                                    : TS_F32;
}
