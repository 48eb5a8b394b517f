/* Checks that need more than one key. */
#include "base/memory.h"
#include "deck/comms_words.h"
#include "deck/reader.h"
#include "family/family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sizes in bytes stay well below 2^63 when elements x 16 (master, moments, gradient) stay below this. */
#define MOST_BYTES 4.6e18

#define TOTAL_STEPS "scheduler.params.total_num_steps"

static bool divides(int64_t divisor, int64_t n) {
  return divisor > 0 && n % divisor == 0;
}

static void report_missing(ts_reader *reader, const ts_key *key, const char *path) {
  ts_text accepted = {0};
  if (key->type != TS_KEY_INT) { /* the help says which integer; all of them are positive */
    ts_text_add(&accepted, " Accepted: ");
    ts_key_describe(key, &accepted);
  }
  ts_reader_report(reader, TS_CHECK_REQUIRED, path, "missing: %s%s", key->help,
                   accepted.text != NULL ? accepted.text : "");
  ts_text_free(&accepted);
}

/* The family's class has a default for it. */
static bool family_knows(const ts_reader *reader, const char *path) {
  const ts_family *family = ts_family_find(reader->deck->model.model_type);
  bool of_model = family != NULL && strncmp(path, "model.", strlen("model.")) == 0;
  const ts_family_key *key = of_model ? ts_family_key_find(family, path + strlen("model.")) : NULL;
  return key != NULL && key->initial != NULL;
}

bool ts_deck_model_is_own(const ts_deck *deck) {
  return strcmp(deck->model.model_type, TS_MODEL_OWN) == 0;
}

const ts_family *ts_deck_family(const ts_deck *deck) {
  const ts_family *family = ts_family_find(deck->model.model_type);
  bool with = family != NULL && family->with_experts != NULL && deck->moe.num_experts.n > 0;
  return with ? family->with_experts : family;
}

bool ts_deck_has_router_bias(const ts_deck *deck) {
  const ts_family *family = ts_deck_family(deck);
  return family != NULL && family->router_bias != NULL && (deck->moe.num_experts.n == 0 || deck->moe.router_bias);
}

int64_t ts_deck_fewest_experts(const ts_deck *deck) {
  const ts_ints *of_layers = &deck->moe.num_experts;
  int64_t fewest = of_layers->n > 0                     ? of_layers->items[0]
                   : ts_deck_experts_of_token(deck) > 0 ? deck->model.num_experts
                                                        : 0;
  for (int i = 1; i < of_layers->n; ++i) {
    fewest = of_layers->items[i] < fewest ? of_layers->items[i] : fewest;
  }
  return fewest;
}

int64_t ts_deck_experts_of_token(const ts_deck *deck) {
  const ts_family *family = ts_deck_family(deck);
  return family == NULL || family->router == NULL ? 0
         : deck->moe.num_experts.n > 0            ? deck->moe.k
                                                  : deck->model.num_experts_per_tok;
}

/* A key of what a program's own model has not in its deck. */
static bool is_of_family(const char *path) {
  return strncmp(path, "model.", strlen("model.")) == 0 && strcmp(path, "model.model_type") != 0;
}

/* The number of places where the key is missing. */
static int check_required(ts_reader *reader, const ts_key *key) {
  const ts_deck_list *list = strchr(key->path, '[') != NULL ? ts_deck_list_find(key->path) : NULL;
  int n = list != NULL ? *ts_deck_list_length(reader->deck, list) : 1, missing = 0;
  for (int e = 0; e < n; ++e) {
    char *path = list == NULL ? ts_strdup(key->path) : ts_deck_list_path(key, e);
    if (ts_reader_find(reader, path) == NULL && !family_knows(reader, path)) {
      report_missing(reader, key, path);
      ++missing;
    }
    ts_free(path);
  }
  return missing;
}

/* As if the key had not been there. */
static void forget_value(ts_reader *reader, const ts_key *key) {
  void *field = ts_deck_field(reader->deck, key, key->path);
  if (key->initial != NULL) {
    ts_reader_store_text(reader, key, key->initial);
  } else if (key->type == TS_KEY_INT) {
    *(int64_t *) field = 0;
  } else if (key->type == TS_KEY_REAL) {
    *(double *) field = 0;
  }
}

static void check_only(ts_reader *reader, const ts_setting *setting) {
  const ts_key *key = ts_key_at(setting->key);
  const char *selector = ts_key_selector(key);
  if (ts_deck_model_is_own(reader->deck) && is_of_family(setting->path)) {
    ts_reader_report(reader, TS_CHECK_ONLY, setting->path,
                     "has no meaning with model.model_type = \"" TS_MODEL_OWN "\": the program writes its model");
    return;
  }
  if (selector == NULL) {
    return;
  }
  const char *value = *(char **) ts_deck_field(reader->deck, ts_key_at(ts_key_find(selector)), selector);
  if (*value == '\0' || ts_key_belongs(key, value)) {
    return;
  }
  if (setting->from == TS_FROM_MODEL) {
    ts_reader_note(reader, "%s: no effect: %s is \"%s\"", setting->name, selector, value);
    forget_value(reader, key);
    return;
  }
  ts_text owners = {0};
  ts_key_describe_owners(key, &owners);
  ts_reader_report(reader, TS_CHECK_ONLY, setting->path, "has no meaning with %s = \"%s\"; it belongs to %s", selector,
                   value, owners.text);
  ts_text_free(&owners);
}

void ts_reader_check_presence(ts_reader *reader) {
  int n = ts_key_count(), missing = 0;
  for (int i = 0; i < n; ++i) {
    const ts_key *key = ts_key_at(i);
    bool wanted = !(ts_deck_model_is_own(reader->deck) && is_of_family(key->path));
    if (wanted && (key->flags & TS_KEY_REQUIRED) != 0) {
      int places = check_required(reader, key);
      missing += strncmp(key->path, "model.", 6) == 0 ? places : 0;
    }
  }
  if (missing > 1 && ts_reader_find(reader, "model.from") == NULL) {
    ts_reader_report(reader, TS_CHECK_REQUIRED, "model",
                     "%d keys are missing; model.from = \"DIR\" (a Hugging Face directory) supplies them", missing);
  }
  for (int i = 0; i < reader->n_settings; ++i) {
    check_only(reader, &reader->settings[i]);
  }
}

/* With run.epochs it follows from the data, when that is open. */
static bool is_of_epochs(const ts_reader *reader, const char *path) {
  return reader->deck->run.epochs > 0 && strcmp(path, TOTAL_STEPS) == 0;
}

/* Given, or "auto" with a rule for it. */
static bool has_value(const ts_reader *reader, const char *path) {
  const ts_setting *setting = ts_reader_find(reader, path);
  return is_of_epochs(reader, path) ||
         (setting != NULL && (!ts_setting_is_auto(setting) || ts_auto_find(path) != NULL));
}

/* Keys that a value of another key asks for. */
static void check_required_by(ts_reader *reader) {
  static const struct {
    const char *selector, *value, *path;
  } rows[] = {
      {"scheduler.type", "OneCycle", "scheduler.params.cycle_min_lr"},
      {"scheduler.type", "OneCycle", "scheduler.params.cycle_max_lr"},
      {"scheduler.type", "WarmupDecayLR", TOTAL_STEPS},
      {"scheduler.type", "WarmupCosineLR", TOTAL_STEPS},
      {"model.rope_scaling.rope_type", "linear", "model.rope_scaling.factor"},
      {"model.rope_scaling.rope_type", "dynamic", "model.rope_scaling.factor"},
      {"model.rope_scaling.rope_type", "llama3", "model.rope_scaling.factor"},
      {"model.rope_scaling.rope_type", "llama3", "model.rope_scaling.original_max_position_embeddings"},
      {"model.rope_scaling.rope_type", "yarn", "model.rope_scaling.factor"},
      {"model.rope_local.rope_type", "linear", "model.rope_local.factor"},
      {"model.rope_local.rope_type", "dynamic", "model.rope_local.factor"},
      {"model.rope_local.rope_type", "llama3", "model.rope_local.factor"},
      {"model.rope_local.rope_type", "yarn", "model.rope_local.factor"},
      {"zero_optimization.offload_optimizer.device", "nvme", "zero_optimization.offload_optimizer.nvme_path"},
      {"zero_optimization.offload_param.device", "nvme", "zero_optimization.offload_param.nvme_path"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    const ts_key *key = ts_key_at(ts_key_find(rows[i].selector));
    const char *value = *(char **) ts_deck_field(reader->deck, key, rows[i].selector);
    if (strcmp(value, rows[i].value) == 0 && !has_value(reader, rows[i].path)) {
      ts_reader_report(reader, TS_CHECK_REQUIRED_BY, rows[i].path, "missing: %s = \"%s\" needs it", rows[i].selector,
                       value);
    }
  }
}

static void check_family(ts_reader *reader) {
  const char *model_type = reader->deck->model.model_type, *path = "model.intermediate_size";
  const ts_family *family = ts_family_find(model_type);
  if (family != NULL && family->mlp_ratio == 0 && !has_value(reader, path) && !family_knows(reader, path)) {
    ts_reader_report(reader, TS_CHECK_REQUIRED_BY, path, "missing: model.model_type = \"%s\" needs it", model_type);
  }
}

static void check_total_steps(ts_reader *reader) {
  const ts_deck_scheduler *s = &reader->deck->scheduler;
  if (ts_reader_find(reader, TOTAL_STEPS) != NULL && s->params.total_num_steps == 0 &&
      !is_of_epochs(reader, TOTAL_STEPS)) {
    ts_reader_report(reader, TS_CHECK_REQUIRED_BY, TOTAL_STEPS,
                     "\"auto\" takes run.steps or run.epochs, and neither is given");
  }
}

static void check_steps(ts_reader *reader) {
  const ts_deck_run *run = &reader->deck->run;
  if (run->epochs > 0 && run->steps > 0) {
    ts_reader_report(reader, TS_CHECK_STEPS, "run.epochs",
                     "run.steps = %lld is given too; accepted: one of the two (--set run.steps=0 or --set run.epochs=0 "
                     "leaves the other one)",
                     (long long) run->steps);
  }
}

static void check_heads(ts_reader *reader) {
  const ts_deck_model *m = &reader->deck->model;
  bool given = ts_reader_find(reader, "model.head_dim") != NULL || family_knows(reader, "model.head_dim");
  bool free_width = given && ts_family_has(ts_family_find(m->model_type), "head_dim");
  if (!free_width && !divides(m->num_attention_heads, m->hidden_size)) {
    ts_reader_report(reader, TS_CHECK_HEADS, "model.num_attention_heads",
                     "hidden_size %lld is not a multiple of num_attention_heads %lld", (long long) m->hidden_size,
                     (long long) m->num_attention_heads);
  }
}

static void check_kv_heads(ts_reader *reader) {
  const ts_deck_model *m = &reader->deck->model;
  if (!divides(m->num_key_value_heads, m->num_attention_heads)) {
    ts_reader_report(reader, TS_CHECK_KV_HEADS, "model.num_key_value_heads",
                     "num_attention_heads %lld is not a multiple of num_key_value_heads %lld",
                     (long long) m->num_attention_heads, (long long) m->num_key_value_heads);
  }
}

/* Elements of a head that rotary positions turn. */
static int64_t rotated_of(const ts_deck_model *m) {
  return (int64_t) ((double) m->head_dim * m->partial_rotary_factor);
}

static void check_rotary(ts_reader *reader) {
  const ts_deck_model *m = &reader->deck->model;
  bool rotary = ts_family_find(m->model_type)->positions == NULL;
  if (rotary && m->partial_rotary_factor == 1 && m->head_dim % 2 != 0) {
    ts_reader_report(reader, TS_CHECK_ROTARY, "model.head_dim",
                     "%lld is odd; rotary positions turn pairs: hidden_size / num_attention_heads must be even",
                     (long long) m->head_dim);
  } else if (rotary && m->head_dim > 0 && (rotated_of(m) % 2 != 0 || rotated_of(m) == 0)) {
    ts_reader_report(reader, TS_CHECK_ROTARY, "model.partial_rotary_factor",
                     "%g of heads of %lld are %lld elements; rotary positions turn pairs: accepted is what gives an "
                     "even number",
                     m->partial_rotary_factor, (long long) m->head_dim, (long long) rotated_of(m));
  } else if (m->head_dim > 1024) { /* what the kernels' tiles hold */
    ts_reader_report(reader, TS_CHECK_ROTARY, "model.head_dim", "%lld is more than 1024; accepted: at most 1024",
                     (long long) m->head_dim);
  }
}

/* Rotary positions have no end; what a model makes of those it never saw is another question. */
static void check_sequence(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  if (d->data.sequence_length <= d->model.max_position_embeddings) {
    return;
  }
  if (ts_family_find(d->model.model_type)->positions == NULL) {
    ts_reader_note(reader, "data.sequence_length: %lld is more than model.max_position_embeddings %lld",
                   (long long) d->data.sequence_length, (long long) d->model.max_position_embeddings);
  } else {
    ts_reader_report(reader, TS_CHECK_SEQUENCE, "data.sequence_length",
                     "%lld is more than model.max_position_embeddings %lld, which the model learns one by one",
                     (long long) d->data.sequence_length, (long long) d->model.max_position_embeddings);
  }
}

/* Does a name stand for a block of the model: "model.layers.3", or their class? */
static bool names_block(const ts_deck *d, const char *name, char **class) {
  const ts_family *family = ts_family_find(d->model.model_type);
  char *block = ts_format("%s.0", family->layers);
  *class = ts_family_class(family, block);
  bool is = strcmp(name, *class) == 0;
  for (int64_t i = 0; i < d->model.num_hidden_layers && !is; ++i) {
    ts_free(block);
    block = ts_format("%s.%lld", family->layers, (long long) i);
    is = strcmp(name, block) == 0;
  }
  ts_free(block);
  return is;
}

static void check_repeated(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  for (int i = 0; i < d->activation_checkpointing.layers.n && !ts_deck_model_is_own(d); ++i) {
    char *class = NULL;
    if (!names_block(d, d->activation_checkpointing.layers.items[i], &class)) {
      ts_reader_report(reader, TS_CHECK_WORD, "activation_checkpointing.layers",
                       "\"%s\": no block of the model; accepted: \"%s\", \"%s.0\" to \"%s.%lld\"",
                       d->activation_checkpointing.layers.items[i], class, ts_family_find(d->model.model_type)->layers,
                       ts_family_find(d->model.model_type)->layers, (long long) d->model.num_hidden_layers - 1);
    }
    ts_free(class);
  }
}

/* Where ranks along tp have all tokens each keeps all of them. */
static void check_kept_by_tp(ts_reader *reader) {
  static const char path[] = "activation_checkpointing.partition_activations";
  const ts_deck_tensor_parallel *tp = &reader->deck->tensor_parallel;
  if (tp->autotp_size <= 1) {
    ts_reader_note_idle(reader, path, "tensor_parallel.autotp_size is 1");
  } else if (tp->sequence_parallel) {
    ts_reader_note_idle(reader, path, "by tensor_parallel.sequence_parallel each rank has rows of its own");
  } else if (!reader->deck->activation_checkpointing.enabled) {
    ts_reader_note_idle(reader, path, "activation_checkpointing.enabled is false");
  }
}

static void note_rehearsal(ts_reader *reader) {
  if (reader->deck->debug.skip_attention) {
    ts_reader_note(reader, "debug.skip_attention: only the last block has attention: losses mean nothing");
  }
}

/* Words that DeepSpeed has, of which some happen here. */
static void check_comms(ts_reader *reader) {
  static const char *const words[] = {
#define X(word, op) #word,
      TS_COMMS_WORDS(X)
#undef X
  };
  enum { WORDS = sizeof words / sizeof *words };
  const ts_strings *ops = &reader->deck->comms_logger.prof_ops;
  for (int i = 0; i < ops->n; ++i) {
    int w = 0;
    while (w < WORDS && strcmp(words[w], ops->items[i]) != 0) {
      ++w;
    }
    if (w == WORDS) {
      ts_reader_report(reader, TS_CHECK_WORD, "comms_logger.prof_ops",
                       "\"%s\" is no operation; accepted: all_reduce, all_gather_into_tensor, reduce_scatter_tensor, "
                       "all_to_all_single, all_to_all, send, recv",
                       ops->items[i]);
    }
  }
  if (reader->deck->comms_logger.enabled && !reader->deck->comms_logger.prof_all && ops->n == 0) {
    ts_reader_note(reader, "comms_logger: nothing is counted: prof_all is false, and prof_ops is empty");
  }
}

static void note_recomputation(ts_reader *reader) {
  check_repeated(reader);
  check_kept_by_tp(reader);
  if (!reader->deck->activation_checkpointing.enabled) {
    ts_reader_note_idle(reader, "activation_checkpointing.layers", "activation_checkpointing.enabled is false");
    ts_reader_note_idle(reader, "activation_checkpointing.policy", "activation_checkpointing.enabled is false");
    ts_reader_note_idle(reader, "activation_checkpointing.interval", "activation_checkpointing.enabled is false");
    ts_reader_note_idle(reader, "activation_checkpointing.cpu_checkpointing",
                        "activation_checkpointing.enabled is false");
  }
}

static void check_factors(ts_reader *reader, const char *path, const ts_reals *list) {
  int64_t pairs = rotated_of(&reader->deck->model) / 2;
  if (list->n != pairs) {
    ts_reader_report(reader, TS_CHECK_ROPE, path, "%d numbers; longrope wants one for each of %lld pairs", list->n,
                     (long long) pairs);
  }
}

/* Positions of the pretraining. */
static int64_t pretrained_length(const ts_deck_model *m, const ts_deck_rope *r) {
  return r->original_max_position_embeddings > 0 ? r->original_max_position_embeddings : m->max_position_embeddings;
}

static void check_rope_section(ts_reader *reader, const char *section, const ts_deck_rope *r, const char *base,
                               double theta) {
  char *low = ts_format("%s.low_freq_factor", section), *near = ts_format("%s.short_factor", section);
  char *far = ts_format("%s.long_factor", section);
  bool longrope = strcmp(r->rope_type, "longrope") == 0 || strcmp(r->rope_type, "su") == 0;
  if (strcmp(r->rope_type, "llama3") == 0 && r->low_freq_factor >= r->high_freq_factor) {
    ts_reader_report(reader, TS_CHECK_ROPE, low, "%g is not below high_freq_factor %g", r->low_freq_factor,
                     r->high_freq_factor);
  }
  if (strcmp(r->rope_type, "yarn") == 0 && theta <= 1) {
    ts_reader_report(reader, TS_CHECK_ROPE, base, "%g: yarn needs a base above 1", theta);
  }
  if (longrope && pretrained_length(&reader->deck->model, r) == 1) {
    ts_reader_report(reader, TS_CHECK_ROPE, near, "longrope needs more than one position of the pretraining");
  }
  if (longrope) {
    check_factors(reader, near, &r->short_factor);
    check_factors(reader, far, &r->long_factor);
  }
  ts_free(low);
  ts_free(near);
  ts_free(far);
}

static void check_rope(ts_reader *reader) {
  const ts_deck_model *m = &reader->deck->model;
  check_rope_section(reader, "model.rope_scaling", &m->rope_scaling, "model.rope_theta", m->rope_theta);
  check_rope_section(reader, "model.rope_local", &m->rope_local, "model.rope_local_base_freq", m->rope_local_base_freq);
}

/* Lists with an entry a layer. */
static void check_layers(ts_reader *reader) {
  const ts_deck_model *m = &reader->deck->model;
  const struct {
    const char *path;
    int n;
  } rows[] = {{"model.layer_types", m->layer_types.n}, {"model.no_rope_layers", m->no_rope_layers.n}};
  for (int i = 0; i < 2; ++i) {
    if (rows[i].n > 0 && rows[i].n != m->num_hidden_layers) {
      ts_reader_report(reader, TS_CHECK_LAYERS, rows[i].path, "%d entries for %lld layers; accepted: one for each",
                       rows[i].n, (long long) m->num_hidden_layers);
    }
  }
}

/* A config.json has its class's defaults, whatever its vocabulary: transformers warns, and so does this. */
static void check_token_ids(ts_reader *reader) {
  ts_deck_model *m = &reader->deck->model;
  int64_t *const ids[] = {&m->bos_token_id, &m->eos_token_id};
  static const char *const paths[] = {"model.bos_token_id", "model.eos_token_id"};
  for (int i = 0; i < m->stop_token_ids.n; ++i) {
    if (m->stop_token_ids.items[i] >= m->vocab_size) {
      ts_reader_report(reader, TS_CHECK_TOKEN_IDS, "model.stop_token_ids", "%lld is not below vocab_size %lld",
                       (long long) m->stop_token_ids.items[i], (long long) m->vocab_size);
    }
  }
  for (int i = 0; i < 2; ++i) {
    const ts_setting *setting = ts_reader_find(reader, paths[i]);
    if (*ids[i] >= m->vocab_size && setting != NULL && setting->from == TS_FROM_MODEL) {
      ts_reader_note(reader, "%s: %s: %lld is not below vocab_size %lld: taken as none", setting->value.file,
                     setting->name, (long long) *ids[i], (long long) m->vocab_size);
      *ids[i] = -1;
    } else if (*ids[i] >= m->vocab_size) {
      ts_reader_report(reader, TS_CHECK_TOKEN_IDS, paths[i], "%lld is not below vocab_size %lld", (long long) *ids[i],
                       (long long) m->vocab_size);
    }
  }
}

/* In fp64: sizes are below 2^31 each, and only the order of magnitude matters. */
static void check_size(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  const ts_deck_model *m = &d->model;
  double heads = (double) m->num_attention_heads * (double) m->head_dim;
  double inner =
      fmax((double) m->intermediate_size, (double) m->num_experts * (double) m->moe_intermediate_size +
                                              (double) m->shared_expert_intermediate_size +
                                              (double) m->n_shared_experts * (double) m->moe_intermediate_size);
  double block = (double) m->hidden_size * (4 * heads + 3 * inner);
  double tables = 2.0 * (double) m->hidden_size * ((double) m->vocab_size + (double) m->max_position_embeddings);
  double parameters = (double) m->num_hidden_layers * block + tables;
  for (int i = 0; i < d->moe.num_experts.n; ++i) { /* of one layer, or of all */
    double layers = d->moe.num_experts.n > 1 ? 1 : (double) m->num_hidden_layers;
    parameters +=
        layers * (double) d->moe.num_experts.items[i] * (double) m->hidden_size * 3 * (double) m->intermediate_size;
  }
  if (parameters * 16 > MOST_BYTES) {
    ts_reader_report(reader, TS_CHECK_SIZE, "model.hidden_size", "%.3g parameters are more than can be counted",
                     parameters);
  }
  double tokens = (double) d->train_batch_size * (double) d->data.sequence_length;
  double widest = fmax(heads, (double) (m->vocab_size > m->intermediate_size ? m->vocab_size : m->intermediate_size));
  double micro = (double) d->train_micro_batch_size_per_gpu * (double) d->data.sequence_length * widest;
  if (tokens > MOST_BYTES || micro * 16 > MOST_BYTES) {
    ts_reader_report(reader, TS_CHECK_SIZE, "data.sequence_length",
                     "a batch of %.3g tokens is more than can be counted",
                     tokens > MOST_BYTES ? tokens : micro / widest);
  }
}

static void check_validation(ts_reader *reader) {
  const ts_deck_data *data = &reader->deck->data;
  if (data->validation_fraction > 0 && *data->validation_path != '\0') {
    ts_reader_report(reader, TS_CHECK_VALIDATION, "data.validation_path",
                     "validation_fraction is given too; accepted: one of the two");
  }
}

static void check_sources(ts_reader *reader) {
  const ts_deck_data *data = &reader->deck->data;
  if (data->sources.n > 0 && *data->path != '\0') {
    ts_reader_report(
        reader, TS_CHECK_SOURCES, "data.path",
        "data.sources is given too; accepted: one of the two (--set data.path= or --set \"data.sources=()\" "
        "leaves the other one)");
  }
  for (int i = 0; i < data->sources.n; ++i) {
    char *path = ts_format("data.sources[%d].path", i);
    if (*data->sources.items[i].path == '\0' && ts_reader_find(reader, path) != NULL) {
      ts_reader_report(reader, TS_CHECK_SOURCES, path, "is empty; accepted: the path of a file");
    }
    ts_free(path);
  }
}

static const char *assumed(int64_t value) {
  return value > 0 ? "" : " (not given)";
}

/* The part of the batch equation that no number of ranks can mend. */
static void check_batch(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  int64_t micro = d->train_micro_batch_size_per_gpu > 0 ? d->train_micro_batch_size_per_gpu : 1;
  int64_t steps = d->gradient_accumulation_steps > 0 ? d->gradient_accumulation_steps : 1;
  if (!d->elasticity.enabled && d->train_batch_size > 0 && !divides(micro * steps, d->train_batch_size)) {
    ts_reader_report(reader, TS_CHECK_BATCH, "train_batch_size",
                     "%lld is not a multiple of train_micro_batch_size_per_gpu %lld%s x gradient_accumulation_steps "
                     "%lld%s; accepted: a multiple of %lld",
                     (long long) d->train_batch_size, (long long) micro, assumed(d->train_micro_batch_size_per_gpu),
                     (long long) steps, assumed(d->gradient_accumulation_steps), (long long) (micro * steps));
  }
}

void ts_reader_check_deck(ts_reader *reader) {
  static void (*const model_checks[])(ts_reader *) = {
      check_family,    check_heads,  check_kv_heads,          check_rotary,
      check_sequence,  check_layers, ts_reader_check_experts, check_rope,
      check_token_ids, check_size,
  };
  static void (*const checks[])(ts_reader *) = {
      check_required_by,
      ts_reader_check_offload,
      check_total_steps,
      check_steps,
      check_validation,
      check_sources,
      ts_reader_check_optimizer,
      ts_reader_check_precision,
      note_recomputation,
      check_batch,
      ts_reader_check_elasticity,
      ts_reader_check_autocast,
      ts_reader_check_parallel,
      note_rehearsal,
      check_comms,
  };
  for (size_t i = 0; i < sizeof model_checks / sizeof *model_checks && !ts_deck_model_is_own(reader->deck); ++i) {
    model_checks[i](reader);
  }
  for (size_t i = 0; i < sizeof checks / sizeof *checks; ++i) {
    checks[i](reader);
  }
}
