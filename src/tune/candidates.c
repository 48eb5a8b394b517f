#include "tune/candidates.h"

#include "base/memory.h"
#include "pass/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[TS_N_TUNED] = {[TS_TUNED_TP] = "tp",
                                              [TS_TUNED_SP] = "sp",
                                              [TS_TUNED_EP] = "ep",
                                              [TS_TUNED_PP] = "pp",
                                              [TS_TUNED_SCHEDULE] = "schedule",
                                              [TS_TUNED_STAGE] = "stage",
                                              [TS_TUNED_MICRO] = "micro",
                                              [TS_TUNED_RECOMPUTE] = "recompute",
                                              [TS_TUNED_OFFLOAD] = "offload",
                                              [TS_TUNED_OVERLAP] = "overlap",
                                              [TS_TUNED_BUCKET] = "bucket"};

/* Keys with the values of a setting as they are, but for a schedule's number of chunks. */
static const char *const keys[TS_N_TUNED] = {[TS_TUNED_TP] = "tensor_parallel.autotp_size",
                                             [TS_TUNED_SP] = "sequence_parallel_size",
                                             [TS_TUNED_EP] = "expert_parallel.autoep_size",
                                             [TS_TUNED_PP] = "pipeline.stages",
                                             [TS_TUNED_SCHEDULE] = "pipeline.schedule",
                                             [TS_TUNED_STAGE] = "zero_optimization.stage",
                                             [TS_TUNED_MICRO] = "train_micro_batch_size_per_gpu",
                                             [TS_TUNED_RECOMPUTE] = "activation_checkpointing.policy",
                                             [TS_TUNED_OVERLAP] = "zero_optimization.overlap_comm",
                                             [TS_TUNED_BUCKET] = "zero_optimization.reduce_bucket_size"};
#define RECOMPUTE_SWITCH "activation_checkpointing.enabled"

const char *ts_tuned_name(ts_tuned what) {
  return names[what];
}

ts_tuned ts_tuned_find(const char *name) {
  ts_tuned what = 0;
  while (what < TS_N_TUNED && strcmp(names[what], name) != 0) {
    ++what;
  }
  return what;
}

/* ---- values ---- */

static void add_text_value(ts_tune_space *s, ts_tuned what, const char *text, double number) {
  for (int i = 0; i < s->n[what]; ++i) {
    if (strcmp(s->value[what][i].text, text) == 0) {
      return;
    }
  }
  if (s->n[what] < TS_TUNED_MOST) {
    ts_tuned_value *v = &s->value[what][s->n[what]++];
    snprintf(v->text, sizeof v->text, "%s", text);
    v->number = number;
  }
}

static void add_number(ts_tune_space *s, ts_tuned what, double number) {
  char text[24];
  snprintf(text, sizeof text, "%.0f", number);
  add_text_value(s, what, text, number);
}

/* By how much a schedule divides the bubble of 1f1b, about; and its chunks. */
static const struct schedule {
  const char *text;
  double divides;
  int chunks;
} schedules[] = {{"1f1b", 1, 1}, {"interleaved x2", 2, 2}, {"zb_h1", 3, 1},
                 {"zb_v", 6, 2}, {"dualpipe_v", 6, 2},     {"gpipe", 1, 1}};

static void add_schedule_value(ts_tune_space *s, const char *text) {
  double divides = 1;
  int chunks;
  if (sscanf(text, "interleaved x%d", &chunks) == 1) {
    divides = chunks;
  }
  for (size_t i = 0; i < sizeof schedules / sizeof *schedules; ++i) {
    divides = strcmp(schedules[i].text, text) == 0 ? schedules[i].divides : divides;
  }
  add_text_value(s, TS_TUNED_SCHEDULE, text, divides);
}

/* With the deck's number of chunks. */
static void add_named_schedule(ts_tune_space *s, const ts_deck *deck, const char *name) {
  char text[24];
  bool interleaved = strcmp(name, "interleaved") == 0;
  snprintf(text, sizeof text, interleaved ? "%s x%lld" : "%s", name, (long long) deck->pipeline.virtual_stages);
  add_schedule_value(s, text);
}

/* By the part of the FLOPs that come again. */
static void add_recompute_value(ts_tune_space *s, const char *text) {
  add_text_value(s, TS_TUNED_RECOMPUTE, text,
                 strcmp(text, "none") == 0  ? 0
                 : strcmp(text, "sac") == 0 ? 0.25
                                            : 1.0 / 3);
}

static void add_own_offload(ts_tune_space *s, const ts_deck_zero *zero) {
  bool all = strcmp(zero->offload_param.device, "none") != 0,
       optimizer = strcmp(zero->offload_optimizer.device, "none") != 0;
  add_text_value(s, TS_TUNED_OFFLOAD, all || optimizer ? "deck" : "none", all ? 2 : optimizer ? 1 : 0);
}

/* What the deck has. */
static void add_own_value(ts_tune_space *s, const ts_deck *deck, ts_tuned what) {
  switch (what) {
    case TS_TUNED_TP: add_number(s, what, (double) deck->tensor_parallel.autotp_size); break;
    case TS_TUNED_SP: add_number(s, what, (double) deck->sequence_parallel_size); break;
    case TS_TUNED_EP: add_number(s, what, (double) deck->expert_parallel.autoep_size); break;
    case TS_TUNED_PP: add_number(s, what, (double) deck->pipeline.stages); break;
    case TS_TUNED_SCHEDULE: add_named_schedule(s, deck, deck->pipeline.schedule); break;
    case TS_TUNED_STAGE: add_number(s, what, (double) deck->zero_optimization.stage); break;
    case TS_TUNED_MICRO: add_number(s, what, (double) deck->train_micro_batch_size_per_gpu); break;
    case TS_TUNED_RECOMPUTE:
      add_recompute_value(s, deck->activation_checkpointing.enabled ? deck->activation_checkpointing.policy : "none");
      break;
    case TS_TUNED_OFFLOAD: add_own_offload(s, &deck->zero_optimization); break;
    case TS_TUNED_OVERLAP: add_text_value(s, what, "deck", 0); break;
    case TS_TUNED_BUCKET: add_number(s, what, (double) deck->zero_optimization.reduce_bucket_size); break;
    default: break;
  }
}

/* The divisors of a number within bounds; of many those that are larger than the one before by a factor. */
static void add_divisors(ts_tune_space *s, ts_tuned what, int64_t of, int64_t least, int64_t most) {
  enum { ALL = 1 << 16 };
  int64_t *found = ts_malloc(ALL * sizeof *found), n = 0;
  for (int64_t i = least > 0 ? least : 1; i <= of && i <= most && n < ALL; ++i) {
    if (of % i == 0) {
      found[n++] = i;
    }
  }
  for (double factor = 1;; factor *= 1.05) {
    int64_t kept[TS_TUNED_MOST], last = 0;
    int count = 0;
    for (int64_t i = 0; i < n && count <= TS_TUNED_MOST; ++i) {
      if (last == 0 || (double) found[i] >= factor * (double) last) {
        last = found[i];
        if (count < TS_TUNED_MOST) {
          kept[count] = last;
        }
        ++count;
      }
    }
    if (count <= TS_TUNED_MOST) {
      for (int i = 0; i < count; ++i) {
        add_number(s, what, (double) kept[i]);
      }
      break;
    }
  }
  ts_free(found);
}

/* No rank is without experts. */
static int64_t most_expert_ranks(const ts_deck *deck, int64_t most) {
  const int64_t experts = deck->expert_parallel.enabled ? ts_deck_fewest_experts(deck) : 0;
  return experts > most ? most : experts > 0 ? experts : 1;
}

/* All that may be tried. */
static void add_other_values(ts_tune_space *s, const ts_deck *deck, const ts_tune_wish *wish, ts_tuned what) {
  enum { MOST_SHARED = 64, MOST_STAGES = 64, MOST_SAMPLES = 1024 };
  switch (what) {
    case TS_TUNED_TP: add_divisors(s, what, s->ranks, 1, wish->node > 8 ? wish->node : 8); break;
    case TS_TUNED_SP: add_divisors(s, what, s->ranks, 1, MOST_SHARED); break;
    case TS_TUNED_EP: add_divisors(s, what, s->ranks, 1, most_expert_ranks(deck, MOST_SHARED)); break;
    case TS_TUNED_PP: add_divisors(s, what, s->ranks, 1, MOST_STAGES); break;
    case TS_TUNED_SCHEDULE:
      for (size_t i = 0; strcmp(schedules[i].text, "gpipe") != 0; ++i) { /* 1f1b waits as long and keeps less */
        add_schedule_value(s, schedules[i].text);
      }
      break;
    case TS_TUNED_STAGE:
      for (int i = 0; i <= 3; ++i) {
        add_number(s, what, i);
      }
      break;
    case TS_TUNED_MICRO:
      add_divisors(s, what, s->batch, wish->least_micro, wish->most_micro > 0 ? wish->most_micro : MOST_SAMPLES);
      break;
    case TS_TUNED_RECOMPUTE:
      add_recompute_value(s, "none");
      add_recompute_value(s, "sac");
      add_recompute_value(s, "block");
      break;
    case TS_TUNED_OFFLOAD:
      add_text_value(s, what, "none", 0);
      if (wish->device) {
        add_text_value(s, what, "optimizer", 1);
        add_text_value(s, what, "all", 2);
      }
      break;
    case TS_TUNED_OVERLAP:
      if (!wish->device) {
        add_text_value(s, what, "true", 1);
        add_text_value(s, what, "false", 0);
      }
      break;
    case TS_TUNED_BUCKET:
      add_number(s, what, 5e8);
      add_number(s, what, 5e7);
      add_number(s, what, 5e6);
      break;
    default: break;
  }
}

/* ---- what the deck has lists for ---- */

static const ts_deck_choice *list_of_key(const ts_deck_choices *all, const char *path) {
  for (int i = 0; all != NULL && path != NULL && i < all->n; ++i) {
    if (strcmp(all->items[i].path, path) == 0) {
      return &all->items[i];
    }
  }
  return NULL;
}

static ts_tuned setting_of_key(const char *path) {
  ts_tuned what = 0;
  while (what < TS_N_TUNED && (keys[what] == NULL || strcmp(keys[what], path) != 0)) {
    ++what;
  }
  return strcmp(path, RECOMPUTE_SWITCH) == 0 ? TS_TUNED_RECOMPUTE : what;
}

ts_status ts_tune_check_choices(const ts_deck *deck, const ts_deck_choices *choices, ts_error *err) {
  for (int i = 0; i < choices->n; ++i) {
    const ts_deck_choice *choice = &choices->items[i];
    if (choice->n > 1 && setting_of_key(choice->path) == TS_N_TUNED) {
      ts_text known = {0};
      for (ts_tuned what = 0; what < TS_N_TUNED; ++what) {
        ts_text_add(&known, keys[what] != NULL ? ", %s" : "", keys[what]);
      }
      ts_deck_error(deck, choice->path, err,
                    "no values of this are tried, give one; accepted: lists of " RECOMPUTE_SWITCH "%s", known.text);
      ts_text_free(&known);
      return TS_BAD_INPUT;
    }
    if (choice->n > TS_TUNED_MOST) {
      return ts_deck_error(deck, choice->path, err, "has %d values; accepted: at most %d", choice->n, TS_TUNED_MOST);
    }
  }
  return TS_OK;
}

/* Of ranks and samples what does not divide them goes with nothing, and is counted by nobody. */
static void add_divisor(ts_tune_space *s, ts_tuned what, double number) {
  const double of = what == TS_TUNED_MICRO ? (double) s->batch : what <= TS_TUNED_PP ? s->ranks : 0;
  if (of == 0 || fmod(of, number) == 0) {
    add_number(s, what, number);
  }
}

/* Of deck text. */
static void add_chosen_value(ts_tune_space *s, const ts_deck *deck, ts_tuned what, const char *text) {
  char word[24];
  bool quoted = text[0] == '"';
  snprintf(word, sizeof word, "%.*s", (int) strcspn(text + quoted, "\""), text + quoted);
  switch (what) {
    case TS_TUNED_SCHEDULE: add_named_schedule(s, deck, word); break;
    case TS_TUNED_RECOMPUTE: add_recompute_value(s, word); break;
    case TS_TUNED_OVERLAP: add_text_value(s, what, word, strcmp(word, "true") == 0); break;
    default: add_divisor(s, what, strtod(word, NULL)); break;
  }
}

static void add_chosen_values(ts_tune_space *s, const ts_deck *deck, ts_tuned what, const ts_deck_choice *choice) {
  for (int i = 0; i < choice->n; ++i) {
    add_chosen_value(s, deck, what, choice->values[i]);
  }
}

/* A policy and none are one setting of two keys. */
static void add_chosen_recompute(ts_tune_space *s, const ts_deck *deck, const ts_deck_choice *policies,
                                 const ts_deck_choice *switches) {
  const char *own[] = {deck->activation_checkpointing.enabled ? "true" : "false"};
  const int n = switches != NULL ? switches->n : 1;
  for (int i = 0; i < n; ++i) {
    if (strcmp(switches != NULL ? switches->values[i] : own[0], "false") == 0) {
      add_recompute_value(s, "none");
    } else if (policies != NULL) {
      add_chosen_values(s, deck, TS_TUNED_RECOMPUTE, policies);
    } else {
      add_recompute_value(s, deck->activation_checkpointing.policy);
    }
  }
}

/* False: the deck has no list of them. */
static bool add_listed_values(ts_tune_space *s, const ts_deck *deck, const ts_deck_choices *choices, ts_tuned what) {
  const ts_deck_choice *choice = list_of_key(choices, keys[what]),
                       *switches = what == TS_TUNED_RECOMPUTE ? list_of_key(choices, RECOMPUTE_SWITCH) : NULL;
  if (what == TS_TUNED_RECOMPUTE && (choice != NULL || switches != NULL)) {
    add_chosen_recompute(s, deck, choice, switches);
  } else if (choice != NULL) {
    add_chosen_values(s, deck, what, choice);
  }
  return choice != NULL || switches != NULL;
}

/* By ranks or samples, so that what the deck has is one of many. */
static bool is_counted(ts_tuned what) {
  return what <= TS_TUNED_PP || what == TS_TUNED_MICRO;
}

ts_tune_space ts_tune_space_of(const ts_deck *deck, int ranks, const ts_tune_wish *wish) {
  ts_tune_space s = {.ranks = ranks, .batch = deck->train_batch_size};
  for (ts_tuned what = 0; what < TS_N_TUNED; ++what) {
    if (!wish->kept[what] && add_listed_values(&s, deck, wish->choices, what)) {
      continue;
    }
    if (wish->kept[what] || !is_counted(what)) {
      add_own_value(&s, deck, what);
    }
    if (!wish->kept[what]) {
      add_other_values(&s, deck, wish, what);
    }
  }
  return s;
}

/* ---- candidates ---- */

double ts_candidate_number(const ts_tune_space *s, const ts_candidate *c, ts_tuned what) {
  return s->value[what][c->at[what]].number;
}

int ts_candidate_replicas(const ts_tune_space *s, const ts_candidate *c) {
  int64_t shared = (int64_t) (ts_candidate_number(s, c, TS_TUNED_TP) * ts_candidate_number(s, c, TS_TUNED_SP) *
                              ts_candidate_number(s, c, TS_TUNED_PP));
  int64_t replicas = shared > 0 && s->ranks % shared == 0 ? s->ranks / shared : 0;
  return replicas % (int64_t) ts_candidate_number(s, c, TS_TUNED_EP) == 0 ? (int) replicas : 0;
}

int64_t ts_candidate_accumulation(const ts_tune_space *s, const ts_candidate *c) {
  int64_t together = ts_candidate_replicas(s, c) * (int64_t) ts_candidate_number(s, c, TS_TUNED_MICRO);
  return together > 0 && s->batch % together == 0 ? s->batch / together : 0;
}

bool ts_candidate_goes(const ts_tune_space *s, const ts_candidate *c) {
  const int stages = (int) ts_candidate_number(s, c, TS_TUNED_PP);
  const char *text = s->value[TS_TUNED_SCHEDULE][c->at[TS_TUNED_SCHEDULE]].text;
  ts_pipeline p = {.stages = stages, .chunks = 1, .micro_batches = ts_candidate_accumulation(s, c)};
  char name[24];
  snprintf(name, sizeof name, "%.*s", (int) strcspn(text, " "), text);
  p.schedule = ts_pipeline_find(name);
  for (size_t i = 0; i < sizeof schedules / sizeof *schedules; ++i) {
    p.chunks = strcmp(schedules[i].text, text) == 0 ? schedules[i].chunks : p.chunks;
  }
  (void) sscanf(text, "interleaved x%d", &p.chunks);
  return p.micro_batches > 0 && (stages == 1 || ts_pipeline_check(&p, NULL) == TS_OK);
}

static int add_set(char **set, int n, char *text) {
  TS_ASSERT(n < TS_TUNED_SETS);
  set[n] = text;
  return n + 1;
}

static int add_schedule(const char *text, char **set, int n) {
  int chunks = 0, length = (int) strcspn(text, " ");
  n = add_set(set, n, ts_format("pipeline.schedule=%.*s", length, text));
  return sscanf(text + length, " x%d", &chunks) == 1 ? add_set(set, n, ts_format("pipeline.virtual_stages=%d", chunks))
                                                     : n;
}

static int add_recompute(const char *text, char **set, int n) {
  bool enabled = strcmp(text, "none") != 0;
  n = add_set(set, n, ts_format("activation_checkpointing.enabled=%s", enabled ? "true" : "false"));
  return enabled ? add_set(set, n, ts_format("activation_checkpointing.policy=%s", text)) : n;
}

/* What does not fit leaves. */
static int add_offload(const char *text, char **set, int n) {
  bool optimizer = strcmp(text, "none") != 0, all = strcmp(text, "all") == 0;
  n = add_set(set, n, ts_format("zero_optimization.offload_optimizer.device=%s", optimizer ? "auto" : "none"));
  return add_set(set, n, ts_format("zero_optimization.offload_param.device=%s", all ? "auto" : "none"));
}

/* The first value of what is not counted is the deck's own, and stays as it is written. */
int ts_candidate_sets(const ts_tune_space *s, const ts_candidate *c, char **set) {
  int n = 0;
  for (ts_tuned what = 0; what < TS_N_TUNED; ++what) {
    const char *text = s->value[what][c->at[what]].text;
    if (!is_counted(what) && c->at[what] == 0) {
      continue;
    }
    if (what == TS_TUNED_SCHEDULE) {
      n = ts_candidate_number(s, c, TS_TUNED_PP) > 1 ? add_schedule(text, set, n) : n;
    } else if (what == TS_TUNED_RECOMPUTE) {
      n = add_recompute(text, set, n);
    } else if (what == TS_TUNED_OFFLOAD) {
      n = add_offload(text, set, n);
    } else {
      n = add_set(set, n, ts_format("%s=%s", keys[what], text));
    }
  }
  n = add_set(set, n, ts_format("gradient_accumulation_steps=%lld", (long long) ts_candidate_accumulation(s, c)));
  return add_set(set, n, ts_format("train_batch_size=%lld", (long long) s->batch));
}

void ts_candidate_text(const ts_tune_space *s, const ts_candidate *c, ts_text *to) {
  const char *comma = "";
  for (ts_tuned what = 0; what < TS_N_TUNED; ++what) {
    bool idle = what == TS_TUNED_SCHEDULE && ts_candidate_number(s, c, TS_TUNED_PP) == 1;
    if (s->n[what] > 1 && !idle && !(what >= TS_TUNED_OVERLAP && c->at[what] == 0)) {
      ts_text_add(to, "%s%s %s", comma, names[what], s->value[what][c->at[what]].text);
      comma = ", ";
    }
  }
}
