/* Fields that other keys decide when the user did not. */
#include "base/memory.h"
#include "deck/reader.h"
#include "family/family.h"

#include <string.h>
#include <strings.h>

#define DEFAULT_LOG_EVERY 10

/* Set to a value: "auto" leaves a key as if it were not there. */
static bool given(const ts_reader *reader, const char *path) {
  const ts_setting *setting = ts_reader_find(reader, path);
  return setting != NULL && !ts_setting_is_auto(setting);
}

static void default_int(int64_t *field, int64_t value) {
  *field = *field == 0 ? value : *field;
}

/* What Hugging Face's configuration classes assume about absent keys. */
static void resolve_family(ts_reader *reader, const ts_family *family) {
  const ts_family_key *key;
  for (int i = 0; (key = ts_family_key_at(family, i)) != NULL; ++i) {
    char *path = ts_format("model.%s", key->path);
    if (key->initial != NULL && !given(reader, path)) {
      ts_reader_store_text(reader, ts_key_at(ts_key_find(path)), key->initial);
    }
    ts_free(path);
  }
}

static void resolve_model(ts_reader *reader) {
  ts_deck_model *m = &reader->deck->model;
  const ts_family *family = ts_family_find(m->model_type);
  if (family != NULL) {
    resolve_family(reader, family);
    default_int(&m->intermediate_size, family->mlp_ratio * m->hidden_size);
  }
  default_int(&m->moe_intermediate_size, m->intermediate_size);
  default_int(&m->num_key_value_heads, m->num_attention_heads);
  default_int(&m->head_dim, m->num_attention_heads > 0 ? m->hidden_size / m->num_attention_heads : 0);
  m->from_config = false;
}

static void resolve_experts(ts_reader *reader) {
  int64_t *ranks = &reader->deck->expert_parallel.autoep_size;
  if (!reader->deck->expert_parallel.enabled) {
    if (*ranks > 1) {
      ts_reader_note(reader, "expert_parallel.autoep_size: no effect: expert_parallel.enabled is false");
    }
    *ranks = 1;
  }
}

static void resolve_precision(ts_reader *reader) {
  const ts_setting *setting = ts_reader_find(reader, "bf16.enabled");
  if (setting != NULL && ts_setting_is_auto(setting)) { /* fp16 and autocast leave nothing to decide */
    bool decided = reader->deck->fp16.enabled || reader->deck->torch_autocast.enabled;
    reader->deck->bf16.enabled = decided ? TS_SWITCH_OFF : TS_SWITCH_AUTO;
  }
}

/* torch's defaults, where they depend on the optimizer. */
static void default_of_type(ts_reader *reader, const char *type, const char *path, double *field, double value) {
  if (strcmp(reader->deck->optimizer.type, type) == 0 && !given(reader, path)) {
    *field = value;
  }
}

/* DeepSpeed's defaults of Muon. */
static void resolve_muon(ts_reader *reader) {
  ts_deck_optimizer *o = &reader->deck->optimizer;
  if (strcmp(o->type, "Muon") != 0) {
    return;
  }
  bool has_lr = given(reader, "optimizer.params.lr");
  if (!given(reader, "optimizer.params.muon_lr")) {
    o->params.muon_lr = has_lr ? o->params.lr : 0.02;
  }
  if (!given(reader, "optimizer.params.adam_lr")) {
    o->params.adam_lr = has_lr ? o->params.lr : 3e-4;
  }
  o->params.lr = o->params.muon_lr;
  default_of_type(reader, "Muon", "optimizer.params.eps", &o->params.eps, 1e-10);
  default_of_type(reader, "Muon", "optimizer.params.momentum", &o->params.momentum, 0.95);
  if (!given(reader, "optimizer.params.betas")) {
    o->params.betas[1] = 0.95;
  }
}

static void resolve_optimizer(ts_reader *reader) {
  ts_deck_optimizer *o = &reader->deck->optimizer;
  bool adamw = strcmp(o->type, "AdamW") == 0;
  if (adamw && !o->params.adam_w_mode) {
    ts_reader_note(reader, "optimizer.params.adam_w_mode: no effect: AdamW always decouples the weight decay");
  }
  o->params.adam_w_mode = adamw || o->params.adam_w_mode;
  default_of_type(reader, "Adagrad", "optimizer.params.lr", &o->params.lr, 1e-2);
  default_of_type(reader, "Adagrad", "optimizer.params.eps", &o->params.eps, 1e-10);
  resolve_muon(reader);
}

/* States in bf16 may be asked for in two ways; gradients of masters in a half type are of it unless the deck says
 * otherwise. */
static void resolve_states(ts_reader *reader) {
  ts_deck *d = reader->deck;
  if (d->bf16.bf16_optimizer_states && !given(reader, "optimizer.state_dtype")) {
    ts_free(d->optimizer.state_dtype);
    d->optimizer.state_dtype = ts_strdup("bf16");
  }
  bool bf16 = d->bf16.bf16_master_weights_and_grads && d->bf16.enabled != TS_SWITCH_OFF;
  bool fp16 = d->fp16.fp16_master_weights_and_grads && d->fp16.enabled;
  if ((bf16 || fp16) && !given(reader, "data_types.grad_accum_dtype")) {
    d->data_types.grad_accum_dtype = bf16 ? TS_BF16 : TS_F16;
  }
}

static void resolve_scheduler(ts_reader *reader) {
  ts_deck *d = reader->deck;
  ts_deck_scheduler *s = &d->scheduler;
  if (ts_reader_find(reader, "scheduler.params.warmup_max_lr") == NULL) {
    s->params.warmup_max_lr = strcmp(s->type, "WarmupDecayLR") == 0 ? 1e-3 : d->optimizer.params.lr;
  }
  if (!given(reader, "scheduler.params.cycle_second_step_size")) {
    s->params.cycle_second_step_size = s->params.cycle_first_step_size;
  }
  if (!given(reader, "scheduler.params.cycle_second_stair_count")) {
    s->params.cycle_second_stair_count = s->params.cycle_first_stair_count;
  }
}

/* A schedule with rates of its own sets those of all parameters; one without keeps the two of Muon apart. */
static void resolve_rates(ts_reader *reader) {
  ts_deck_optimizer_params *p = &reader->deck->optimizer.params;
  const ts_deck_scheduler *s = &reader->deck->scheduler;
  bool scales = strcmp(s->type, "none") == 0 || strcmp(s->type, "WarmupCosineLR") == 0 ||
                (strncmp(s->type, "Warmup", 6) == 0 && s->params.warmup_max_lr == p->lr);
  if (strcmp(reader->deck->optimizer.type, "Muon") == 0 && !scales && p->adam_lr != p->muon_lr) {
    ts_reader_note(reader, "optimizer.params.adam_lr: no effect: %s sets the rates of all parameters", s->type);
    p->adam_lr = p->muon_lr;
  }
}

static void default_string(char **field, const char *value) {
  if (**field == '\0') {
    ts_free(*field);
    *field = ts_strdup(value);
  }
}

static void resolve_sources(ts_deck_data *data) {
  for (int i = 0; i < data->sources.n; ++i) {
    default_string(&data->sources.items[i].format, data->format);
    default_string(&data->sources.items[i].dataset, data->dataset);
    default_string(&data->sources.items[i].field, data->field);
    default_string(&data->sources.items[i].completion_field, data->completion_field);
  }
}

bool ts_deck_spec_applies(const ts_deck *deck, const ts_deck_tp_spec *spec) {
  bool applies = spec->model_types.n == 0;
  for (int i = 0; i < spec->model_types.n; ++i) {
    applies = applies || strcasecmp(spec->model_types.items[i], deck->model.model_type) == 0;
  }
  return applies;
}

/* A grid axis of 0 is one of 1; a matrix is cut along the dimension of its type. */
/* A deck that was saved has both keys. */
static void resolve_cut_experts(ts_reader *reader) {
  int64_t *size = &reader->deck->expert_parallel.expert_tensor_parallel_size;
  int64_t all = reader->deck->tensor_parallel.autotp_size;
  if (reader->deck->moe.enable_expert_tensor_parallelism) {
    if (given(reader, "expert_parallel.expert_tensor_parallel_size") && *size != all) {
      ts_reader_note(
          reader,
          "expert_parallel.expert_tensor_parallel_size: no effect: it is tensor_parallel.autotp_size, %lld, by "
          "moe.enable_expert_tensor_parallelism",
          (long long) all);
    }
    *size = all;
  }
}

static void resolve_tensor_parallel(ts_reader *reader) {
  ts_deck_tensor_parallel *tp = &reader->deck->tensor_parallel;
  default_int(&tp->autotp_size, 1);
  resolve_cut_experts(reader);
  default_int(&reader->deck->pipeline.stages, 1);
  for (int i = 0; i < tp->partition_config.layer_specs.n; ++i) {
    ts_deck_tp_spec *spec = &tp->partition_config.layer_specs.items[i];
    char *path = ts_format("tensor_parallel.partition_config.layer_specs[%d].partition_dim", i);
    spec->partition_dim = given(reader, path) ? spec->partition_dim : strcmp(spec->partition_type, "column") != 0;
    if (!ts_deck_spec_applies(reader->deck, spec)) {
      ts_reader_note(reader, TS_LAYER_SPECS "[%d]: not for a %s, by its model_types: it has no effect", i,
                     reader->deck->model.model_type);
    }
    ts_free(path);
  }
}

static void resolve_sequence_parallel(ts_reader *reader) {
  ts_deck *d = reader->deck;
  default_int(&d->sequence_parallel_size, 1);
  default_int(&d->sequence_parallel.head_groups, 1);
}

void ts_reader_resolve(ts_reader *reader) {
  ts_deck *d = reader->deck;
  resolve_model(reader);
  resolve_experts(reader);
  resolve_precision(reader);
  ts_reader_fill_auto(reader);
  resolve_optimizer(reader);
  resolve_states(reader);
  resolve_scheduler(reader);
  resolve_rates(reader);
  resolve_sources(&d->data);
  resolve_tensor_parallel(reader);
  default_int(&d->data.sequence_length, d->model.max_position_embeddings);
  default_int(&d->run.log_every, d->steps_per_print > 0 ? d->steps_per_print : DEFAULT_LOG_EVERY);
  if (!given(reader, "communication_data_type")) {
    d->communication_data_type = d->data_types.grad_accum_dtype;
  }
  resolve_sequence_parallel(reader);
  if (!given(reader, "zero_optimization.overlap_comm")) {
    d->zero_optimization.overlap_comm = d->zero_optimization.stage == 3;
  }
  if (!given(reader, "tensor_parallel.tp_overlap_comm")) {
    d->tensor_parallel.tp_overlap_comm = d->zero_optimization.overlap_comm;
  }
  const bool limited = d->run.memory_limit > 0 || d->run.host_memory_limit > 0 || ts_deck_fits_offload(d);
  const bool nowhere = strcmp(d->run.device, "cuda") != 0 && (ts_deck_files(d)[0] == 0 || !limited);
  if (d->activation_checkpointing.cpu_checkpointing && nowhere) {
    ts_reader_note(reader, "activation_checkpointing.cpu_checkpointing: no effect on processors, where all is in host "
                           "memory, without a limit and files");
  }
  if (d->compile.offload_activation && nowhere) {
    ts_reader_note(reader,
                   "compile.offload_activation: no effect on processors, where all is in host memory, without a "
                   "limit and files");
  }
  ts_reader_note_auto(reader);
}
