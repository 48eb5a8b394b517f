/* A training run's beginning and end. */
#include "train/training.h"

#include "base/heartbeat.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/peak.h"
#include "io/companions.h"
#include "io/csv.h"
#include "io/publication.h"
#include "train/job_files.h"
#include "train/outputs.h"
#include "train/tell.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* ---- the run directory ---- */

/* The directory of debug.dump, made before anything else so that a wrong one costs nothing. */
static ts_status check_dump(const ts_training *r, ts_error *err) {
  ts_error why = {0};
  const char *path = r->deck->debug.dump;
  ts_status status = r->rank == 0 && path[0] != 0 ? ts_make_directory(path, &why) : TS_OK;
  if (status == TS_OK && r->rank == 0 && path[0] != 0 && access(path, W_OK) != 0) {
    status = ts_error_add(&why, "%s: cannot be written: %s", path, strerror(errno));
  }
  if (status != TS_OK) {
    ts_deck_error(r->deck, "debug.dump", err, "%s", why.text);
  }
  ts_error_clear(&why);
  return status;
}

static ts_monitors_begin monitors_begin(const ts_training *r) {
  const ts_checkpoint *c = r->resume.checkpoint;
  return (ts_monitors_begin){.again = r->resume.same_run || r->resume.over, .samples = c != NULL ? c->samples : 0};
}

static ts_status check_monitors(const ts_training *r, ts_error *err) {
  const ts_monitors_begin begin = monitors_begin(r);
  return r->rank == 0 ? ts_monitors_check(r->deck, &begin, err) : TS_OK;
}

static ts_status write_deck(const ts_deck *deck, ts_error *err) {
  ts_text text = {0};
  ts_deck_print(deck, &text);
  char *path = ts_format("%s/deck.cfg", deck->run.directory);
  ts_status status = ts_write_file(path, text.text, text.length, err);
  ts_free(path);
  ts_text_free(&text);
  return status;
}

/* What a checkpoint's run kept belongs to its weights, and may be all that is left; else the directory of the deck. */
static char *find_companions(const ts_training *r) {
  const char *from = r->deck->model.from;
  char *kept = r->resume.directory != NULL ? ts_format("%s/../" TS_RUN_FROM, r->resume.directory) : ts_strdup(from);
  if (!ts_companions_are_in(kept)) {
    ts_free(kept);
    kept = ts_strdup(from);
  }
  return kept;
}

/* With this the run goes on, and becomes a Hugging Face directory again, when the one it began from is gone.  Another
 * run than the one that left it there has its own; where model.from is gone, the deck was read from what is there. */
static void keep_companions(const ts_training *r) {
  char *to = ts_format("%s/" TS_RUN_FROM, r->deck->run.directory), *from = find_companions(r);
  ts_error err = {0};
  bool old = !r->resume.same_run && (from[0] == 0 || ts_companions_are_in(from));
  ts_status status = old ? ts_companions_remove(to, &err) : TS_OK;
  status = status == TS_OK && from[0] != 0 ? ts_companions_keep(from, to, &err) : status;
  if (status != TS_OK) {
    ts_log(TS_LOG_WARNING, "config.json and tokenizer are not kept: %s", err.text);
  }
  ts_error_clear(&err);
  ts_free(from);
  ts_free(to);
}

/* A run that goes on with another tokenizer than it began with. */
static void warn_of_another(const char *from, const char *kept, bool goes_on) {
  ts_file_sum now, before;
  ts_error err = {0};
  if (goes_on && ts_has_file(kept, "tokenizer.json") && ts_file_sum_make(from, "tokenizer.json", &now, &err) == TS_OK &&
      ts_file_sum_make(kept, "tokenizer.json", &before, &err) == TS_OK &&
      memcmp(now.hash, before.hash, sizeof now.hash) != 0) {
    ts_log(TS_LOG_WARNING, "data.tokenizer: %s/tokenizer.json is not the one that the run began with", from);
  }
  ts_error_clear(&err);
}

/* The tokenizer of data.tokenizer likewise, unless the deck names what was kept. */
static void keep_tokenizer(const ts_training *r) {
  const char *from = r->deck->data.tokenizer;
  char *to = ts_format("%s/" TS_RUN_TOKENIZER, r->deck->run.directory);
  if (ts_is_same_file(from, to)) {
    ts_free(to);
    return;
  }
  ts_error err = {0};
  bool named = from[0] != 0 && ts_has_file(from, "tokenizer.json");
  warn_of_another(from, to, r->resume.same_run && named);
  ts_status status = named || (!r->resume.same_run && from[0] == 0) ? ts_companions_remove(to, &err) : TS_OK;
  status = status == TS_OK && named ? ts_make_directory(to, &err) : status;
  status = status == TS_OK && named ? ts_companions_copy(NULL, from, to, &err) : status;
  if (status != TS_OK) {
    ts_log(TS_LOG_WARNING, "the tokenizer is not kept: %s", err.text);
  }
  ts_error_clear(&err);
  ts_free(to);
}

/* debug.digest_every: those up to the step where the run begins stay. */
static ts_status open_digests(ts_training *r, ts_error *err) {
  bool again = r->resume.same_run || r->resume.over;
  const char *names = "step,tensor,digest\n";
  char *path = ts_format("%s/digests.csv", r->deck->run.directory);
  ts_status status = again ? ts_csv_continue(path, names, r->at.step, err) : TS_OK;
  if (status == TS_OK && r->deck->debug.digest_every > 0) {
    status = ts_rows_open(path, !again, names, &r->digests, err);
  }
  ts_free(path);
  return status;
}

/* Rank 0: nothing of the user's is touched before this. */
static ts_status open_run_directory(ts_training *r, ts_error *err) {
  const char *directory = r->deck->run.directory;
  if (r->rank != 0) {
    return TS_OK;
  }
  ts_error why = {0};
  ts_status status = TS_OK;
  if (ts_make_directory(directory, &why) != TS_OK) {
    status = ts_deck_error(r->deck, "run.directory", err, "%s", why.text);
  }
  ts_error_clear(&why);
  status = status == TS_OK ? ts_run_lock(directory, &r->lock, err) : status;
  status = status == TS_OK && r->resume.same_run ? ts_publication_set_aside(directory, r->at.step, err) : status;
  status = status == TS_OK ? write_deck(r->deck, err) : status;
  if (status == TS_OK) {
    ts_run_log_open(r->log, directory, !r->resume.same_run && !r->resume.over);
    keep_companions(r);
    keep_tokenizer(r);
    bool experts = ts_engine_layout(r->engine)->n_loads > 0;
    status = r->resume.same_run ? ts_metrics_continue(directory, experts, r->at.step, &r->metrics, err)
                                : ts_metrics_open(directory, experts, &r->metrics, err);
    ts_expert_watch_begin(&r->experts, ts_engine_layout(r->engine));
    const ts_monitors_begin begin = monitors_begin(r);
    status = status == TS_OK ? ts_monitors_open(r->deck, &begin, &r->monitors, err) : status;
  }
  return status == TS_OK ? open_digests(r, err) : status;
}

/* ---- beginning ---- */

static void describe_types(const ts_training *r, ts_text *to) {
  bool slow = ts_deck_products(r->deck) == TS_BF16 && !ts_engine_program(r->engine)->target.backend->has_bf16();
  ts_deck_add_types(r->deck, to);
  ts_text_add(to, "%s", slow ? " (widened here: no faster than fp32)" : "");
}

static void describe_data(const ts_data *data) {
  ts_text text = {0};
  ts_data_describe(data, &text);
  if (text.length > 0) {
    ts_log(TS_LOG_INFO, "%s", text.text);
  }
  ts_text_free(&text);
}

/* Programs differ where ranks share a model unevenly: that of the rank that needs most.  Collective over the world.
 * \return that rank, and what it needs. */
static int describe_size(const ts_training *r, int64_t *planned) {
  const ts_plan *plan = ts_engine_program(r->engine)->plan;
  const int64_t mine[] = {plan->peak_bytes, plan->arena_bytes[TS_ARENA_STATE]};
  int64_t(*all)[2] = ts_world_gather(r->world, mine, sizeof mine);
  int most = 0;
  bool alike = true;
  for (int rank = 1; rank < ts_world_size(r->world); ++rank) {
    alike = alike && all[rank][0] == all[0][0];
    most = all[rank][0] > all[most][0] ? rank : most;
  }
  char peak[32], state[32];
  char *whose = alike ? ts_strdup("a rank") : ts_format("rank %d, which needs most", most);
  ts_log(TS_LOG_INFO, "%lld steps of %lld sequences x %lld tokens; planned memory of %s: %s, of which %s are state",
         (long long) r->steps, (long long) r->deck->train_batch_size, (long long) r->length, whose,
         ts_human_bytes((double) all[most][0], peak), ts_human_bytes((double) all[most][1], state));
  const int64_t together = ts_engine_program(r->engine)->step.together;
  if (together > 1) {
    ts_log(TS_LOG_INFO, "%lld micro-batches at a time go through the model unit by unit", (long long) together);
  }
  *planned = all[most][0];
  ts_free(whose);
  ts_free(all);
  return most;
}

static void describe_offload(const ts_training *r) {
  char *files = ts_engine_describe_offload(r->engine);
  if (files != NULL) {
    ts_log(TS_LOG_INFO, "%s", files);
  }
  ts_free(files);
  ts_free(ts_engine_take_moved(r->engine)); /* to begin with */
}

static void describe_run(const ts_training *r) {
  char a[32];
  char *where = ts_world_describe(r->world);
  ts_log(ts_world_n_nodes(r->world) > 1 ? TS_LOG_INFO : TS_LOG_DEBUG, "%s", where);
  ts_free(where);
  const ts_program *p = ts_engine_program(r->engine);
  ts_text types = {0};
  describe_types(r, &types);
  ts_log(TS_LOG_INFO, "%s: %s parameters, %s, %lld rank%s x %d thread%s, ZeRO stage %lld, %s",
         r->deck->model.model_type, ts_human_count((double) ts_layout_parameter_count(p->layout, false), a), types.text,
         (long long) r->ranks, r->ranks > 1 ? "s" : "", p->target.threads, p->target.threads > 1 ? "s" : "",
         (long long) r->deck->zero_optimization.stage, p->target.backend->describe());
  ts_text_free(&types);
  int64_t planned;
  int most = describe_size(r, &planned);
  ts_job_files_write(r, most, planned);
  describe_offload(r);
  describe_data(r->data);
}

/* What differs from the job that saved: settings change the run, the rest at most its rounding. */
static void say_resumed(const ts_training *r) {
  static const char *const ignored[] = {"run.directory",
                                        "run.steps",
                                        "run.epochs",
                                        "run.save",
                                        "run.keep",
                                        "run.resume",
                                        "run.log_every",
                                        "run.evaluate",
                                        "run.threads",
                                        "run.bind",
                                        "debug.",
                                        "profile.",
                                        "tensorboard.",
                                        "csv_monitor.",
                                        "wandb.",
                                        "comms_logger.",
                                        "flops_profiler.",
                                        "memory_breakdown",
                                        "dump_state",
                                        "wall_clock",
                                        "steps_per_print",
                                        "run.time_",
                                        "run.step_timeout",
                                        "run.first_step_timeout",
                                        "train_micro_batch",
                                        "gradient_accumulation_steps",
                                        "zero_optimization.",
                                        "model.from",
                                        "elasticity.ignore",
                                        "model.stop_token_ids",
                                        NULL};
  const ts_checkpoint *c = r->resume.checkpoint;
  ts_log(TS_LOG_INFO, "resumed at step %lld of %lld from %s%s", (long long) c->step, (long long) r->steps,
         r->resume.directory, c->step >= r->steps ? ": nothing is left to do" : "");
  ts_text text = {0};
  if (!ts_checkpoint_differences(c, r->engine, &text)) {
    ts_log(TS_LOG_INFO, "another job than the one that saved; losses may differ by rounding:\n%s", text.text);
  }
  ts_text_free(&text);
  ts_deck *before;
  if (r->rank == 0 && ts_deck_read_text(r->resume.directory, c->deck, NULL, 0, &before, NULL) == TS_OK) {
    if (ts_deck_differences(before, r->deck, "", ignored, &text) > 0) {
      ts_log(TS_LOG_WARNING, "settings differ from those the checkpoint was made with:\n%s", text.text);
    }
    ts_deck_destroy(&before);
    ts_text_free(&text);
  }
}

/* The deck that the weights of a path were made with, as far as it says how they compute: that of a checkpoint, or one
 * whose model is a directory's config.json.  Owned; NULL where nothing tells. */
static ts_deck *deck_of_weights(const char *path, const char *saved) {
  static const char any[] = "train_micro_batch_size_per_gpu = 1; data = { path = \"none\"; format = \"text\"; };";
  ts_deck *deck = NULL;
  ts_text set = {0};
  ts_text_add(&set, "model.from=");
  ts_text_add_json(&set, path); /* a directory may be called 2024 */
  ts_deck_read_text("weights", saved != NULL ? saved : any, &set.text, saved != NULL ? 0 : 1, &deck, NULL);
  ts_text_free(&set);
  return deck;
}

/* Of a program's own model, or of one whose MLPs become experts, other settings are no news. */
static bool is_comparable(const ts_deck *before, const ts_deck *now) {
  return !ts_deck_model_is_own(before) && !ts_deck_model_is_own(now) &&
         (before->model.num_experts > 0) == (now->model.num_experts > 0);
}

/* Shapes that agree do not say that the model is the same: another base of rotary frequencies is another model.  Words
 * are compared, not what they mean: synonyms of an activation differ. */
static void say_weights(const ts_training *r, const char *path, const char *saved) {
  static const char *const ignored[] = {"model.from", /* and model.from_config; then what training alone reads */
                                        "model.attn_pdrop",
                                        "model.embd_pdrop",
                                        "model.resid_pdrop",
                                        "model.initializer_range",
                                        "model.output_router_logits",
                                        "model.router_aux_loss_coef",
                                        "model.max_position_embeddings", /* a shape, or what is said of lengths */
                                        "model.bos_token_id",
                                        "model.eos_token_id",
                                        "model.stop_token_ids",
                                        NULL};
  ts_deck *before = r->rank == 0 ? deck_of_weights(path, saved) : NULL;
  ts_text text = {0};
  if (before == NULL && r->rank == 0) {
    ts_log(TS_LOG_INFO, "%s does not say what its weights' model is like: only shapes were compared", path);
  } else if (before != NULL && is_comparable(before, r->deck) &&
             ts_deck_differences(before, r->deck, "model.", ignored, &text) > 0) {
    ts_log(TS_LOG_WARNING, "%s: the weights are of a model with other settings:\n%s", path, text.text);
  }
  ts_text_free(&text);
  ts_deck_destroy(&before);
}

static ts_status load_weights(ts_training *r, const char *path, ts_error *err) {
  char *saved;
  ts_status status = ts_engine_load_weights(r->engine, path, &saved, err);
  if (status == TS_OK) {
    say_weights(r, path, saved);
  }
  ts_free(saved);
  return status;
}

/* The state the run begins with, if not that of the seed. */
static ts_status load_state(ts_training *r, ts_error *err) {
  const ts_resume *resume = &r->resume;
  if (resume->checkpoint != NULL && r->options->weights != NULL) {
    ts_log(TS_LOG_INFO, "--weights is for the beginning of a run; the checkpoint has its own");
  }
  if (resume->checkpoint == NULL) {
    return r->options->weights != NULL ? load_weights(r, r->options->weights, err) : TS_OK;
  }
  const ts_checkpoint *c = resume->checkpoint;
  ts_error why = {0};
  ts_status status = ts_engine_load(r->engine, resume->directory, c, TS_LOAD_ALL, &why);
  if (status != TS_OK) {
    ts_resume_refuse(r->deck, r->options->resume, why.text, err);
  }
  ts_error_clear(&why);
  r->at = (ts_position){
      .step = c->step, .samples = c->samples, .skipped = c->skipped, .skipped_in_a_row = c->skipped_in_a_row};
  if (status == TS_OK) {
    say_resumed(r);
  }
  return status;
}

/* As the run began, else as the machine can. */
static ts_status decide_precision(ts_training *r, ts_error *err) {
  ts_text said = {0};
  ts_resume_precision(&r->resume, r->deck, &said);
  ts_status status = ts_engine_decide_precision(r->world, r->deck, &said, err);
  if (said.length > 0) {
    ts_log(TS_LOG_INFO, "%s", said.text);
  }
  ts_text_free(&said);
  return status;
}

/* Where the run begins decides precision and batch; what a rank reads at a time follows. */
static ts_status find_batch(ts_training *r, ts_error *err) {
  ts_deck *deck = r->deck;
  ts_status status = ts_deck_mesh(deck, ts_world_size(r->world), ts_world_rank(r->world), &r->mesh, err);
  status = status == TS_OK ? ts_resume_find(r->world, deck, r->options->resume, &r->resume, err) : status;
  if (status == TS_OK) {
    status = decide_precision(r, err);
  }
  status =
      status == TS_OK ? ts_resume_batch(&r->resume, deck, ts_mesh_group_size(&r->mesh, TS_AXES_BATCH), err) : status;
  if (status == TS_OK) {
    r->micro_batch = deck->train_micro_batch_size_per_gpu;
    r->length = deck->data.sequence_length;
  }
  return status;
}

/* run.epochs is a number of steps once data and batch are known, and those that are left where a run goes on: its batch
 * may have been another one.  The deck keeps what the user said, so whoever goes on with the run's own counts again. */
static void find_steps(ts_training *r) {
  const ts_checkpoint *c = r->resume.checkpoint;
  int64_t samples = ts_data_samples(r->data, TS_SPLIT_TRAINING);
  r->steps = r->deck->run.steps;
  if (r->deck->run.epochs > 0) {
    r->steps = (c != NULL ? c->step : 0) + ts_deck_steps_left(r->deck, samples, c != NULL ? c->samples : 0);
    ts_log(TS_LOG_INFO, "%lld steps: %g epoch%s of %lld samples", (long long) r->steps, r->deck->run.epochs,
           r->deck->run.epochs == 1 ? "" : "s", (long long) samples);
  }
}

/* Rank 0 has the tokenizer of what is said at the end. */
static ts_status read_prompt(ts_training *r, ts_error *err) {
  const char *prompt = r->options->prompt;
  ts_status status = TS_OK;
  if (r->rank == 0 && prompt != NULL) {
    char *directory;
    status = ts_words_find(r->deck, r->resume.directory, &directory, err);
    status = status == TS_OK ? ts_words_open(r->deck, directory, &r->words, err) : status;
    status = status == TS_OK ? ts_words_encode(r->words, prompt, strlen(prompt), "--prompt", &r->prompt, err) : status;
    ts_free(directory);
  }
  status = ts_world_agree(r->world, status, err);
  if (status == TS_OK && prompt != NULL) {
    ts_words_share(r->world, &r->prompt);
  }
  return status;
}

static ts_status open_all(ts_training *r, ts_error *err) {
  const ts_deck *deck = r->deck;
  ts_heartbeat_phase(ts_world_heartbeat(r->world), TS_PHASE_LOADING);
  ts_status status = find_batch(r, err);
  if (status != TS_OK) {
    return status;
  }
  status = read_prompt(r, err);
  if (status != TS_OK) {
    return status;
  }
  status = ts_outputs_check(r, err);
  status = status == TS_OK ? check_dump(r, err) : status;
  status = status == TS_OK ? check_monitors(r, err) : status;
  status = ts_world_agree(r->world, status, err);
  status = status == TS_OK ? ts_data_open_deck(r->world, deck, &r->data, err) : status;
  if (status != TS_OK) {
    return status;
  }
  find_steps(r);
  const char *prompt = r->options->prompt;
  bool validates = deck->run.evaluate_every > 0 && ts_data_samples(r->data, TS_SPLIT_VALIDATION) > 0;
  unsigned abilities = TS_CAN_TRAIN | (validates ? TS_CAN_EVALUATE : 0) | (prompt != NULL ? TS_CAN_GENERATE : 0);
  const ts_engine_options options = {
      .world = r->world,
      .deck = r->deck,
      .mesh = &r->mesh,
      .abilities = abilities,
      .context = prompt == NULL ? 0 : ts_generate_context(deck, r->prompt.n, r->options->n_generate),
      .steps = r->steps,
      .loads = r->resume.checkpoint != NULL || r->options->weights != NULL};
  status = ts_engine_create(&options, &r->engine, err);
  if (status == TS_OK) {
    ts_watch_limit(r->watch, ts_engine_timeouts(r->engine));
    status = load_state(r, err);
  }
  return status == TS_OK ? ts_world_agree(r->world, open_run_directory(r, err), err) : status;
}

void ts_training_close(ts_training *r) {
  ts_metrics_close(&r->metrics);
  ts_monitors_close(&r->monitors);
  ts_expert_watch_end(&r->experts);
  ts_rows_close(&r->digests);
  ts_observed_destroy(&r->observed);
  ts_saver_destroy(&r->saver);
  ts_engine_destroy(&r->engine);
  ts_data_close(&r->data);
  ts_resume_clear(&r->resume);
  ts_run_unlock(r->lock);
  ts_batch_destroy(&r->batch);
  ts_words_close(&r->words);
  ts_free(r->prompt.id);
}

static void prepare(ts_training *r) {
  const ts_program *program = ts_engine_program(r->engine);
  r->flops_per_step = ts_program_step_flops(program);
  r->batch =
      ts_batch_create(r->micro_batch * r->deck->gradient_accumulation_steps, r->length, ts_engine_inputs(r->engine));
  ts_device *device = ts_backend_device(program->target.backend);
  ts_dtype dtype = ts_deck_products(r->deck);
  r->scaler = ts_deck_loss_scaler(r->deck);
  r->peak = (device != NULL ? device->ops->peak_flops(device, dtype) : ts_peak_flops(program->target.threads, dtype)) *
            (double) r->ranks;
  r->saver = ts_saver_create(r->engine);
  r->saved = r->resume.same_run ? r->at.step : -1;
  r->limit =
      (ts_time_limit){.margin = r->deck->run.time_margin, .save = ts_time_limit_first_save(ts_saver_bytes(r->saver))};
  r->observed = ts_observed_create(r->world, r->deck, r->engine, r->at.step, r->steps);
  describe_run(r);
  if (r->deck->dump_state) {
    ts_tell_state(r->deck, r->engine);
  }
  if (r->deck->memory_breakdown) {
    ts_tell_memory_plan(r->engine);
  }
  ts_engine_keep_choices(r->engine);
  r->first_step = r->at.step + 1;
  ts_watch_publish(r->watch, r->first_step, r->steps);
  ts_progress_begin(&r->progress, r->at.step, r->steps, r->deck->run.log_every);
}

ts_status ts_training_open(ts_training *r, ts_error *err) {
  r->ranks = ts_world_size(r->world);
  r->rank = ts_world_rank(r->world);
  ts_status status = open_all(r, err);
  if (status == TS_OK) {
    prepare(r);
  }
  return status;
}
