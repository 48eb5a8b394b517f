/* Checks of the optimizer and of the schedules of its rates, and what is said of keys that they do not read. */
#include "base/memory.h"
#include "deck/reader.h"
#include "family/family.h"

#include <string.h>

/* What DeepSpeed and torch refuse too. */
static void check_muon(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  const ts_deck_optimizer_params *p = &d->optimizer.params;
  if (strcmp(d->optimizer.type, "Muon") != 0) {
    return;
  }
  if (p->muon_lr == 0 && p->adam_lr > 0) {
    ts_reader_report(reader, TS_CHECK_OPTIMIZER, "optimizer.params.muon_lr",
                     "0, and adam_lr %g; accepted: more than 0 (`frozen` parameters stay where they are)", p->adam_lr);
  }
  const ts_deck_tensor_parallel *tp = &d->tensor_parallel;
  bool specs = tp->partition_config.layer_specs.n > 0, plan = tp->tp_plan.n > 0;
  if (p->per_head_muon && tp->autotp_size > 1 && (specs || plan)) {
    ts_reader_report(reader, TS_CHECK_OPTIMIZER, "optimizer.params.per_head_muon",
                     "true, and %s may cut inside heads; accepted: one of the two",
                     specs ? TS_LAYER_SPECS : "tensor_parallel.tp_plan");
  }
  const ts_family *family = ts_family_find(d->model.model_type);
  if (p->per_head_muon && family != NULL && family->qkv != NULL) {
    ts_reader_note(reader, "optimizer.params.per_head_muon: no effect: a %s has q, k and v in one matrix",
                   d->model.model_type);
  }
}

/* Keys that an optimizer does not read. */
static void note_optimizer(ts_reader *reader) {
  static const struct {
    const char *key, *readers, *why;
  } rows[] = {
      {"betas", "|AdamW|Adam|Lion|Lamb|Muon|", "it has none"},
      {"eps", "|AdamW|Adam|Adagrad|Lamb|Muon|", "it divides by nothing"},
      {"bias_correction", "|AdamW|Adam|Lamb|Muon|", "it corrects nothing"},
      {"adam_w_mode", "|AdamW|Adam|Muon|", "it is no Adam"},
      {"momentum", "|SGD|Muon|", "SGD and Muon have one"},
      {"dampening", "|SGD|", "SGD has it"},
      {"nesterov", "|SGD|", "SGD has it"},
  };
  const ts_deck_optimizer *o = &reader->deck->optimizer;
  char *mine = ts_format("|%s|", o->type);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (strstr(rows[i].readers, mine) == NULL) {
      char *path = ts_format("optimizer.params.%s", rows[i].key);
      bool ahead = strcmp(rows[i].key, "nesterov") == 0 && strcmp(o->type, "Muon") == 0;
      ts_reader_note_idle(reader, path, ahead ? "Muon always looks ahead" : rows[i].why);
      ts_free(path);
    }
  }
  if (strcmp(o->type, "SGD") == 0 && o->params.momentum == 0) {
    ts_reader_note_idle(reader, "optimizer.params.dampening", "momentum is 0");
    ts_reader_note_idle(reader, "optimizer.state_dtype", "SGD without momentum has no states");
  }
  if (o->params.eps == 0 && strstr("|AdamW|Adam|Adagrad|Lamb|Muon|", mine) != NULL) {
    ts_reader_note(reader, "optimizer.params.eps: 0: an element whose gradient was always 0 becomes NaN, as in torch");
  }
  ts_free(mine);
}

/* Rates that another key sets. */
static void note_rates(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  const ts_deck_optimizer_params *p = &d->optimizer.params;
  const ts_setting *lr = ts_reader_find(reader, "optimizer.params.lr");
  bool given = lr != NULL && !ts_setting_is_auto(lr);
  double rate = given ? lr->value.real : 0;
  if (given && strcmp(d->optimizer.type, "Muon") == 0 && rate != p->muon_lr && rate != p->adam_lr) {
    ts_reader_note(reader, "optimizer.params.lr: no effect: muon_lr %g and adam_lr %g are given", p->muon_lr,
                   p->adam_lr);
  }
  bool warms = strcmp(d->scheduler.type, "WarmupLR") == 0 || strcmp(d->scheduler.type, "WarmupDecayLR") == 0;
  if (given && warms && rate != d->scheduler.params.warmup_max_lr && p->lr == rate) {
    ts_reader_note(reader, "optimizer.params.lr: no effect: %s goes to warmup_max_lr, %g", d->scheduler.type,
                   d->scheduler.params.warmup_max_lr);
  }
  bool betas = strcmp(d->optimizer.type, "SGD") != 0 && strcmp(d->optimizer.type, "Adagrad") != 0;
  if (!betas && strcmp(d->scheduler.type, "OneCycle") == 0 && d->scheduler.params.cycle_momentum) {
    ts_reader_note(reader, "scheduler.params.cycle_momentum: no effect: it changes the first of betas, and %s has none",
                   d->optimizer.type);
  }
}

static void check_group_decay(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  for (int i = 0; i < d->optimizer.groups.n; ++i) {
    double decay = d->optimizer.groups.items[i].weight_decay;
    if (decay < 0 && decay != -1) {
      char *path = ts_format("optimizer.groups[%d].weight_decay", i);
      ts_reader_report(reader, TS_CHECK_OPTIMIZER, path, "%g; accepted: at least 0, or -1 for that of optimizer.params",
                       decay);
      ts_free(path);
    }
  }
}

static void check_optimizer(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  if (d->bf16.bf16_optimizer_states && !d->bf16.bf16_master_weights_and_grads) {
    ts_reader_report(reader, TS_CHECK_OPTIMIZER, "bf16.bf16_optimizer_states",
                     "needs bf16.bf16_master_weights_and_grads = true; accepted beside fp32 masters: "
                     "optimizer.state_dtype = \"bf16\"");
  }
  if (d->bf16.bf16_optimizer_states && strcmp(d->optimizer.state_dtype, "bf16") != 0) {
    ts_reader_report(reader, TS_CHECK_OPTIMIZER, "optimizer.state_dtype",
                     "\"%s\", and bf16.bf16_optimizer_states is true; accepted: one of the two",
                     d->optimizer.state_dtype);
  }
  if (d->optimizer.params.min_coeff > d->optimizer.params.max_coeff) {
    ts_reader_report(reader, TS_CHECK_OPTIMIZER, "optimizer.params.min_coeff", "%g; accepted: at most max_coeff, %g",
                     d->optimizer.params.min_coeff, d->optimizer.params.max_coeff);
  }
  if (strcmp(d->optimizer.type, "SGD") == 0 && d->optimizer.params.nesterov &&
      (d->optimizer.params.momentum == 0 || d->optimizer.params.dampening != 0)) {
    ts_reader_report(reader, TS_CHECK_OPTIMIZER, "optimizer.params.nesterov",
                     "momentum is %g and dampening %g; accepted: a positive momentum without dampening",
                     d->optimizer.params.momentum, d->optimizer.params.dampening);
  }
}

static void check_cycle(ts_reader *reader) {
  const ts_deck_scheduler *s = &reader->deck->scheduler;
  if (strcmp(s->type, "OneCycle") != 0) {
    return;
  }
  if (s->params.cycle_min_lr > s->params.cycle_max_lr) {
    ts_reader_report(reader, TS_CHECK_CYCLE, "scheduler.params.cycle_min_lr", "%g is above cycle_max_lr %g",
                     s->params.cycle_min_lr, s->params.cycle_max_lr);
  }
  if (s->params.cycle_min_mom > s->params.cycle_max_mom) {
    ts_reader_report(reader, TS_CHECK_CYCLE, "scheduler.params.cycle_min_mom", "%g is above cycle_max_mom %g",
                     s->params.cycle_min_mom, s->params.cycle_max_mom);
  }
}

void ts_reader_check_optimizer(ts_reader *reader) {
  check_optimizer(reader);
  check_group_decay(reader);
  check_muon(reader);
  check_cycle(reader);
  note_optimizer(reader);
  note_rates(reader);
}
