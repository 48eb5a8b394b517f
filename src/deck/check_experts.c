/* What a deck says of experts: enough of them for every token, and nothing where the family has none. */
#include "deck/reader.h"

#include "base/memory.h"
#include "family/family.h"

#include <string.h>

/* A model with experts, said to be of a family without: its weights would have no place. */
static void check_no_experts(ts_reader *reader) {
  const char *path = "model.num_experts";
  const ts_setting *setting = ts_reader_find(reader, path);
  if (setting != NULL && setting->value.integer > 0) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, path, "%lld: a %s has no experts", (long long) setting->value.integer,
                     reader->deck->model.model_type);
  }
}

static void check_expert_groups(ts_reader *reader) {
  const ts_deck_model *m = &reader->deck->model;
  int64_t of_groups = m->num_experts / m->n_group * m->topk_group;
  if (m->num_experts % m->n_group != 0 || m->topk_group > m->n_group) {
    ts_reader_report(
        reader, TS_CHECK_EXPERTS, m->topk_group > m->n_group ? "model.topk_group" : "model.n_group",
        "topk_group %lld of n_group %lld groups of %lld experts; accepted: groups that divide them, and no "
        "more than there are",
        (long long) m->topk_group, (long long) m->n_group, (long long) m->num_experts);
  } else if (m->num_experts_per_tok > of_groups) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, "model.topk_group", "%lld groups have %lld experts for %lld of a token",
                     (long long) m->topk_group, (long long) of_groups, (long long) m->num_experts_per_tok);
  }
}

/* No rank is without experts. */
static void check_expert_ranks(ts_reader *reader, int64_t experts) {
  int64_t ranks = reader->deck->expert_parallel.autoep_size;
  if (ranks > 1 && ranks > experts) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, "expert_parallel.autoep_size",
                     "%lld ranks for the %lld experts of a layer; accepted: no more than these, or 1",
                     (long long) ranks, (long long) experts);
  }
}

/* An expert is whole, or cut as the rest of the model is. */
static void check_cut_experts(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  int64_t ranks = d->expert_parallel.expert_tensor_parallel_size, all = d->tensor_parallel.autotp_size;
  if (ranks != 1 && ranks != all) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, "expert_parallel.expert_tensor_parallel_size",
                     all > 1 ? "%lld; accepted: 1, or tensor_parallel.autotp_size (%lld)"
                             : "%lld; accepted: 1, as tensor_parallel.autotp_size is %lld",
                     (long long) ranks, (long long) all);
  } else if (ranks > 1 && strcmp(d->optimizer.type, "Muon") == 0) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, "expert_parallel.expert_tensor_parallel_size",
                     "%lld: Muon wants the matrices of experts whole; accepted: 1", (long long) ranks);
  } else if (ranks > 1 && ts_deck_experts_of_token(d) == 0) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, "expert_parallel.expert_tensor_parallel_size", "a %s has no experts",
                     d->model.model_type);
  }
}

/* Does the deck say something else than the key's default?  A complete deck has all keys. */
static bool says_otherwise(const ts_reader *reader, const char *path) {
  const ts_setting *setting = ts_reader_find(reader, path);
  ts_value initial = ts_key_initial(ts_key_at(ts_key_find(path)));
  bool otherwise = setting != NULL && !ts_value_equal(&setting->value, &initial);
  ts_value_clear(&initial);
  return otherwise;
}

/* What is said of experts where there are none. */
static void check_idle_experts(ts_reader *reader) {
  static const char *const paths[] = {"moe.z_loss_coef", "moe.balance_over", "moe.router_dtype", "moe.aux_loss_coef",
                                      "moe.save",        "moe.token_chunks", "moe.dispatch"};
  const ts_deck *deck = reader->deck;
  const bool said[] = {deck->moe.z_loss_coef != 0,
                       strcmp(deck->moe.balance_over, "global") != 0,
                       strcmp(deck->moe.router_dtype, "fp32") != 0,
                       deck->moe.aux_loss_coef != 0,
                       strcmp(deck->moe.save, "auto") != 0,
                       deck->moe.token_chunks != 1,
                       strcmp(deck->moe.dispatch, "auto") != 0};
  for (size_t i = 0; i < sizeof said / sizeof *said; ++i) {
    if (said[i]) {
      ts_reader_report(reader, TS_CHECK_EXPERTS, paths[i], "a %s has no experts", deck->model.model_type);
    }
  }
}

/* ---- DeepSpeed's layers ---- */

/* Keys of a layer that the model has not: nothing would follow from them. */
static void check_no_layer(ts_reader *reader, const ts_family *family) {
  static const char *const paths[] = {"moe.layers",
                                      "moe.k",
                                      "moe.capacity_factor",
                                      "moe.drop_tokens",
                                      "moe.use_rts",
                                      "moe.eval_capacity_factor",
                                      "moe.min_capacity",
                                      "moe.drop_policy",
                                      "moe.noisy_gate_policy",
                                      "moe.use_residual",
                                      "moe.capacity_over",
                                      "moe.router_bias",
                                      "moe.top2_2nd_expert_sampling"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; ++i) {
    if (says_otherwise(reader, paths[i])) {
      ts_reader_report(reader, TS_CHECK_EXPERTS, paths[i],
                       family->router != NULL ? "a %s has a router of its own, that drops nothing"
                                              : "there is no MoE layer in this %s; accepted: with moe.num_experts",
                       family->model_type);
    }
  }
}

static int64_t count_layers(const ts_deck *d) {
  return d->moe.layers.n > 0 ? d->moe.layers.n : d->model.num_hidden_layers / 2;
}

static void check_moe_layers(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  const ts_ints *layers = &d->moe.layers;
  int64_t n = count_layers(d);
  for (int i = 0; i < layers->n; ++i) {
    if (layers->items[i] >= d->model.num_hidden_layers || (i > 0 && layers->items[i] <= layers->items[i - 1])) {
      ts_reader_report(reader, TS_CHECK_EXPERTS, "moe.layers",
                       "%lld; accepted: layers of 0 to %lld, in ascending order", (long long) layers->items[i],
                       (long long) d->model.num_hidden_layers - 1);
      return;
    }
  }
  if (n == 0) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, "moe.layers",
                     "every second of one layer is none; accepted: [0], or a model of more layers");
  } else if (d->moe.num_experts.n != 1 && d->moe.num_experts.n != n) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, "moe.num_experts",
                     "%d numbers for %lld MoE layers; accepted: one for all, or one for each", d->moe.num_experts.n,
                     (long long) n);
  }
}

static void check_gate(ts_reader *reader, int64_t least) {
  const ts_deck_moe *moe = &reader->deck->moe;
  if (moe->k > least) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, "moe.k", "%lld of %lld experts", (long long) moe->k, (long long) least);
  }
  if (strcmp(moe->noisy_gate_policy, "RSample") == 0 && moe->k != 1) {
    ts_reader_report(
        reader, TS_CHECK_EXPERTS, "moe.noisy_gate_policy",
        "\"RSample\" with moe.k = %lld: it samples the choice of one expert; accepted: with k = 1, or with "
        "k = 2 top2_2nd_expert_sampling",
        (long long) moe->k);
  }
  if (strcmp(moe->drop_policy, "position") == 0 && moe->k <= 2) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, "moe.drop_policy",
                     "\"position\" with moe.k = %lld: it is for more than 2; with 1 use_rts = false drops the last "
                     "tokens, and with 2 they are",
                     (long long) moe->k);
  }
}

/* Experts are sampled by noise in logits, a bias is one of probabilities. */
static void check_bias_of_layers(ts_reader *reader) {
  const ts_deck_moe *moe = &reader->deck->moe;
  bool first = moe->k == 1 && strcmp(moe->noisy_gate_policy, "RSample") == 0,
       second = moe->k == 2 && moe->top2_2nd_expert_sampling;
  if (moe->router_bias && (first || second)) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, "moe.router_bias", "true: experts are sampled (%s); accepted: with %s",
                     first ? "moe.noisy_gate_policy" : "moe.top2_2nd_expert_sampling",
                     first ? "\"None\" or \"Jitter\"" : "false");
  }
}

/* A sample's capacity needs all of its tokens on one rank. */
static void check_capacity(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  bool rows = d->tensor_parallel.autotp_size > 1 && d->tensor_parallel.sequence_parallel;
  bool sequence = strcmp(d->moe.capacity_over, "sequence") == 0 && d->moe.drop_tokens;
  if (sequence && (rows || d->sequence_parallel_size > 1)) {
    ts_reader_report(
        reader, TS_CHECK_EXPERTS, "moe.capacity_over",
        "\"sequence\": ranks share the tokens of a sample (%s); accepted: \"micro_batch\", each rank's tokens",
        rows ? "tensor_parallel.sequence_parallel" : "sequence_parallel_size");
  }
}

/* What nothing reads. */
static void note_idle_keys(ts_reader *reader) {
  static const char *const of_room[] = {"moe.capacity_factor", "moe.eval_capacity_factor", "moe.min_capacity",
                                        "moe.capacity_over",   "moe.drop_policy",          "moe.use_rts"};
  const ts_deck_moe *moe = &reader->deck->moe;
  for (size_t i = 0; i < sizeof of_room / sizeof *of_room && !moe->drop_tokens; ++i) {
    ts_reader_note_idle(reader, of_room[i], "moe.drop_tokens is false");
  }
  if (moe->k != 1 && moe->drop_tokens) {
    ts_reader_note_idle(reader, "moe.use_rts", "it is for moe.k = 1");
  }
  if (moe->k != 2) {
    ts_reader_note_idle(reader, "moe.top2_2nd_expert_sampling", "it is for moe.k = 2");
  }
}

static void check_deepspeed_layers(ts_reader *reader, const ts_family *family) {
  const ts_ints *experts = &reader->deck->moe.num_experts;
  const int64_t least = ts_deck_fewest_experts(reader->deck);
  if (experts->n > 0 && family->with_experts == NULL) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, "moe.num_experts", "%s %s; accepted: in a gpt2 or a llama",
                     family->router != NULL ? "experts beside those of a" : "DeepSpeed's layers in a",
                     family->model_type);
  } else if (experts->n > 0) {
    check_moe_layers(reader);
    check_gate(reader, least);
    check_bias_of_layers(reader);
    check_capacity(reader);
    check_expert_ranks(reader, least);
    note_idle_keys(reader);
  } else {
    check_no_layer(reader, family);
  }
}

/* What DeepSpeed has to be told of a router, and the family knows. */
static void check_router(ts_reader *reader, const ts_family *family) {
  const char *score = "expert_parallel.score_func", *shared = "expert_parallel.has_shared_experts";
  const char *own = family->router_sigmoid ? "sigmoid" : "softmax";
  const ts_setting *setting = ts_reader_find(reader, score);
  if (setting != NULL && setting->value.kind == TS_VALUE_STRING && strcmp(setting->value.string, own) != 0) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, score, "\"%s\": a %s has \"%s\"", setting->value.string,
                     family->model_type, own);
  }
  setting = ts_reader_find(reader, shared);
  if (setting != NULL && setting->value.kind == TS_VALUE_BOOL && setting->value.truth &&
      family->shared_expert == NULL) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, shared, "true: a %s has no expert of all tokens", family->model_type);
  }
}

/* A bias is written to a file that has one. */
static void check_router_bias(ts_reader *reader) {
  const ts_deck *deck = reader->deck;
  double coeff = deck->expert_parallel.load_balance_coeff;
  if (coeff > 0 && !ts_deck_has_router_bias(deck)) {
    ts_reader_report(
        reader, TS_CHECK_EXPERTS, "expert_parallel.load_balance_coeff",
        deck->moe.num_experts.n > 0
            ? "%g: routers of DeepSpeed's layers in a %s have a bias with moe.router_bias = true"
            : "%g: routers of a %s have no bias that could follow the balance; dots1's have, others "
              "balance by a loss (moe.aux_loss_coef, or model.output_router_logits of a family with experts)",
        coeff, deck->model.model_type);
  }
}

static void check_counts(ts_reader *reader) {
  const ts_deck_model *m = &reader->deck->model;
  const ts_family *family = ts_family_find(m->model_type);
  check_router_bias(reader);
  check_cut_experts(reader);
  bool layers = reader->deck->moe.num_experts.n > 0;
  if (!layers) {
    check_expert_ranks(reader, family != NULL && family->router != NULL ? m->num_experts : 0);
  }
  if (family == NULL) {
    if (layers) {
      ts_reader_report(reader, TS_CHECK_EXPERTS, "moe.num_experts",
                       "a program that writes its model writes its experts");
    }
    return;
  }
  check_deepspeed_layers(reader, family);
  if (family->router == NULL) {
    check_no_experts(reader);
    if (!layers) {
      check_idle_experts(reader);
    }
  } else if (m->num_experts == 0) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, "model.num_experts", "0: a %s has some", m->model_type);
  } else if (m->num_experts_per_tok > m->num_experts) {
    ts_reader_report(reader, TS_CHECK_EXPERTS, "model.num_experts_per_tok", "%lld of %lld experts",
                     (long long) m->num_experts_per_tok, (long long) m->num_experts);
  } else {
    check_router(reader, family);
    check_expert_groups(reader);
  }
}

/* Of what is counted in 32 bits. */
static void check_row_counts(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  const ts_deck_model *m = &d->model;
  double shared = (double) m->n_shared_experts * (double) m->moe_intermediate_size;
  double tokens = (double) d->train_micro_batch_size_per_gpu * (double) d->data.sequence_length;
  double of_token = (double) (d->moe.num_experts.n > 0 ? d->moe.k : m->num_experts_per_tok);
  double choices = tokens * of_token * (double) d->expert_parallel.autoep_size;
  if (m->num_experts > 0 && shared > INT32_MAX) {
    ts_reader_report(reader, TS_CHECK_SIZE, "model.n_shared_experts",
                     "%lld widths of %lld are more than can be counted", (long long) m->n_shared_experts,
                     (long long) m->moe_intermediate_size);
  }
  if ((m->num_experts > 0 || d->moe.num_experts.n > 0) && choices > INT32_MAX) {
    ts_reader_report(reader, TS_CHECK_SIZE, "train_micro_batch_size_per_gpu",
                     "%lld: %.3g rows for experts at a time (tokens x num_experts_per_tok x autoep_size); accepted: up "
                     "to 2147483647, a smaller micro-batch with more gradient_accumulation_steps",
                     (long long) d->train_micro_batch_size_per_gpu, choices);
  }
}

void ts_reader_check_experts(ts_reader *reader) {
  check_counts(reader);
  check_row_counts(reader);
}
