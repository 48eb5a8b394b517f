/* Checkpoints of programs: the saver and the loader of `tessera train`, at a place and under a name of the caller's. */
#include "engine/checkpoints.h"

#include "base/log.h"
#include "base/memory.h"
#include "engine/checkpoint.h"
#include "engine/engine.h"
#include "engine/save.h"
#include "io/publication.h"
#include "pass/saved.h"

#include <string.h>

#define ZEROS ((int64_t) 1 << 16)

/* ---- whose turn it is ---- */

static bool is_trained(const ts_engine *e) {
  return (e->abilities & (TS_CAN_TRAIN | TS_CAN_STEP)) != 0;
}

static ts_status check_between_steps(const ts_engine *e, const char *call, bool saves, ts_error *err) {
  if (ts_engine_check_no_feed(e, call, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  if (e->hand.block != 0) {
    return ts_error_add(err, "%s: not inside of ts_no_sync or ts_coalesce_grad_reduction: end it before", call);
  }
  if (saves && !is_trained(e)) {
    return ts_error_add(err,
                        "%s: the engine was made without TS_CAN_TRAIN and TS_CAN_STEP: it has nothing that training "
                        "goes on from",
                        call);
  }
  if (saves && e->hand.backwards > 0) {
    return ts_error_add(err,
                        "%s: the step has gradients, which are not saved: call it after the last ts_step of a step "
                        "(ts_is_gradient_accumulation_boundary), or ts_zero_grad before",
                        call);
  }
  return TS_OK;
}

/* ---- saving ---- */

/* One that says a step says this one, or nobody could tell which it is. */
static ts_status check_tag_of(const ts_engine *e, const char *tag, ts_error *err) {
  char *own = ts_step_tag(e->steps);
  ts_status status = tag != NULL ? ts_tag_check(tag, err) : TS_OK;
  if (status == TS_OK && tag != NULL && strncmp(tag, "step_", 5) == 0 && strcmp(tag, own) != 0) {
    status = ts_error_add(err, "the tag \"%s\" is that of another step, or like one; this one's is %s", tag, own);
  }
  ts_free(own);
  return status;
}

static ts_status check_save(const ts_engine *e, const char *directory, const char *tag, ts_error *err) {
  ts_status status = check_between_steps(e, "ts_save_checkpoint", true, err);
  if (status == TS_OK && directory[0] == 0) {
    status = ts_error_add(err, "ts_save_checkpoint: the directory has no name");
  }
  return status == TS_OK ? check_tag_of(e, tag, err) : status;
}

/* Rank 0. */
static ts_status take_directory(const ts_engine *e, const char *directory, int *lock, ts_error *err) {
  *lock = -1;
  if (ts_world_rank(e->world) != 0) {
    return TS_OK;
  }
  ts_status status = ts_make_directory(directory, err);
  return status == TS_OK ? ts_run_lock(directory, lock, err) : status;
}

/* On rank 0 `latest` may be what failed. */
static ts_status tell_saved(const ts_engine *e, const ts_saver *saver, bool saved, ts_error *err) {
  const char *unnamed = ts_saver_unnamed(saver);
  if (!saved) { /* why is the same on all ranks */
    return ts_error_add(err, "%s", ts_saver_failures(saver).why);
  }
  ts_status status = unnamed != NULL
                         ? ts_error_add(err, "%s: the checkpoint is saved, but `latest` does not name it", unnamed)
                         : TS_OK;
  return ts_world_agree(e->world, status, err);
}

static ts_status save_here(ts_engine *e, const ts_save_target *target, ts_error *err) {
  ts_saver *saver = ts_saver_create_for(e, target);
  ts_saver_begin(
      saver, &(ts_position){.step = e->steps, .samples = e->steps * e->deck->train_batch_size, .skipped = e->skipped});
  ts_status status = tell_saved(e, saver, ts_saver_finish(saver), err);
  ts_saver_destroy(&saver);
  return status;
}

ts_status ts_save_checkpoint(ts_engine *e, const char *directory, const char *tag, const void *client,
                             size_t client_bytes, ts_error *err) {
  const ts_save_target target = {.directory = directory,
                                 .tag = tag,
                                 .client = ts_world_rank(e->world) == 0 ? client : NULL,
                                 .client_bytes = client_bytes};
  int lock;
  ts_status status = ts_world_agree(e->world, check_save(e, directory, tag, err), err);
  if (status != TS_OK) {
    return status;
  }
  status = ts_world_agree(e->world, take_directory(e, directory, &lock, err), err);
  status = status == TS_OK ? save_here(e, &target, err) : status;
  ts_run_unlock(lock);
  return status;
}

/* ---- which one is loaded ---- */

/* Rank 0: directories to try, a line each: what `latest` names, then the others of most steps first. */
static void add_candidates(const char *directory, ts_text *to) {
  if (ts_is_checkpoint(directory)) {
    ts_text_add(to, "%s\n", directory);
    return;
  }
  ts_published *list;
  int n = ts_published_list(directory, &list);
  char *latest = ts_latest_tag(directory);
  for (int first = 1; first >= 0; --first) {
    for (int i = 0; i < n; ++i) {
      bool named = latest != NULL && strcmp(list[i].tag, latest) == 0;
      if (named == (first == 1)) {
        ts_text_add(to, "%s/%s\n", directory, list[i].tag);
      }
    }
  }
  ts_free(latest);
  ts_free(list);
}

/* Rank 0. */
static ts_status find_tagged(const char *directory, const char *tag, ts_text *to, ts_error *err) {
  char *found;
  ts_status status = ts_checkpoint_locate(directory, tag, &found, err);
  if (status == TS_OK) {
    ts_text_add(to, "%s\n", found);
  }
  ts_free(found);
  return status;
}

/* What rank 0 finds; the caller's (ts_free), NULL for nothing. */
static ts_status list_checkpoints(const ts_engine *e, const char *directory, const char *tag, char **list,
                                  ts_error *err) {
  ts_text found = {0};
  ts_status status = TS_OK;
  if (ts_world_rank(e->world) == 0 && tag != NULL) {
    status = find_tagged(directory, tag, &found, err);
  } else if (ts_world_rank(e->world) == 0) {
    add_candidates(directory, &found);
    status = found.length == 0 ? ts_deepspeed_refuse(directory, err) : TS_OK;
  }
  *list = NULL;
  status = ts_world_agree(e->world, status, err);
  if (status == TS_OK) {
    *list = ts_world_share_text(e->world, found.text, 0);
  }
  ts_text_free(&found);
  return status;
}

/* The first that is intact; damage is told of those before it, and is the error where there is none. */
static ts_status choose(const ts_engine *e, char *list, bool tagged, char **chosen, ts_checkpoint **checkpoint,
                        ts_error *err) {
  ts_error damage = {0};
  *checkpoint = NULL;
  for (char *line; *checkpoint == NULL && (line = strsep(&list, "\n")) != NULL && line[0] != 0;) {
    ts_error why = {0};
    if (ts_checkpoint_check(e->world, line, checkpoint, &why) == TS_OK) {
      *chosen = ts_strdup(line);
    } else {
      ts_log(tagged ? TS_LOG_DEBUG : TS_LOG_WARNING, "%s is damaged and passed over: %s", line, why.text);
      ts_error_add(&damage, "%s", why.text);
    }
    ts_error_clear(&why);
  }
  ts_status status = *checkpoint != NULL ? TS_OK : ts_error_add(err, "%s", damage.text);
  ts_error_clear(&damage);
  return status;
}

/* ---- what a program gave along ---- */

/* Rank 0; -1 bytes where there is none. */
static ts_status read_client(const char *directory, char **client, int64_t *bytes, ts_error *err) {
  ts_manifest manifest = {0};
  ts_status status = ts_manifest_read(directory, &manifest, err);
  int file = ts_manifest_find(&manifest, TS_CLIENT_FILE);
  *bytes = -1;
  if (status == TS_OK && file >= 0) {
    char *path = ts_format("%s/" TS_CLIENT_FILE, directory);
    size_t length;
    status = ts_read_file(path, (size_t) manifest.file[file].bytes, client, &length, err);
    *bytes = (int64_t) length;
    ts_free(path);
  }
  ts_manifest_clear(&manifest);
  return status;
}

static ts_status share_client(const ts_engine *e, const char *directory, char **client, size_t *client_bytes,
                              ts_error *err) {
  ts_comm *all = ts_world_all(e->world);
  int64_t bytes = -1;
  ts_status status = all->rank == 0 ? read_client(directory, client, &bytes, err) : TS_OK;
  status = ts_world_agree(e->world, status, err);
  if (status != TS_OK) {
    return status;
  }
  all->ops->broadcast(all, &bytes, sizeof bytes, 0);
  if (bytes >= 0) {
    *client = all->rank == 0 ? *client : ts_calloc((size_t) bytes + 1, 1);
    *client_bytes = (size_t) bytes;
    all->ops->broadcast(all, *client, *client_bytes, 0);
  }
  return TS_OK;
}

/* ---- loading ---- */

static ts_load choose_states(const ts_engine *e, const ts_load_options *o) {
  ts_load optimizer = o->no_optimizer_states ? TS_LOAD_WEIGHTS : TS_LOAD_OPTIMIZER;
  ts_load schedule = o->no_lr_schedule ? TS_LOAD_WEIGHTS : TS_LOAD_SCHEDULE;
  return o->module_only || !is_trained(e) ? TS_LOAD_WEIGHTS : optimizer | schedule | TS_LOAD_COUNTS;
}

static void set_to_zero(ts_engine *e, ts_tid leaf) {
  const ts_graph *g = ts_engine_program(e)->graph;
  void *zeros = ts_calloc((size_t) ZEROS, ts_dtype_size(g->tensor[leaf].dtype));
  int64_t count = ts_tensor_count(g, leaf);
  for (int64_t at = 0; at < count; at += ZEROS) {
    ts_executor_write_state(e->executor, leaf, at, count - at < ZEROS ? count - at : ZEROS, zeros);
  }
  ts_free(zeros);
}

/* As a new engine has it. */
static void begin_optimizer(ts_engine *e) {
  const ts_program *p = ts_engine_program(e);
  for (int i = 0; i < p->layout->n_parts; ++i) {
    ts_saved_leaf leaf[TS_MOST_SAVED];
    int n = ts_saved_leaves(p->graph, p->layout, i, leaf);
    for (int k = 1; k < n; ++k) { /* the first are the parameters */
      set_to_zero(e, leaf[k].leaf);
    }
  }
  set_to_zero(e, ts_graph_find_state(p->graph, TS_STATE_UPDATES, -1));
  ts_engine_begin_scale(e);
}

/* Micro-steps of another accumulation say nothing of this one's. */
static void begin_steps_by_hand(ts_engine *e, const ts_checkpoint *c, ts_load what) {
  int64_t before = (what & TS_LOAD_COUNTS) != 0 ? c->micro_steps : 0, accumulation = e->hand.accumulation;
  e->hand = (ts_hand_steps){.boundary = -1,
                            .accumulation = accumulation,
                            .evaluating = e->hand.evaluating,
                            .micro_steps = before > 0 && before < accumulation ? before : 0};
}

static ts_status load_here(ts_engine *e, const char *directory, const ts_checkpoint *c, const ts_load_options *options,
                           ts_error *err) {
  ts_load what = choose_states(e, options);
  ts_status status = ts_engine_load(e, directory, c, what, err);
  if (status == TS_OK && what != TS_LOAD_WEIGHTS && options->no_optimizer_states) {
    begin_optimizer(e);
  }
  if (status == TS_OK) {
    begin_steps_by_hand(e, c, what);
  }
  return status;
}

static ts_status check_load(const ts_engine *e, const char *directory, const char *tag, ts_error *err) {
  ts_status status = check_between_steps(e, "ts_load_checkpoint", false, err);
  if (status == TS_OK && directory[0] == 0) {
    status = ts_error_add(err, "ts_load_checkpoint: the directory has no name");
  }
  return status == TS_OK && tag != NULL ? ts_tag_check(tag, err) : status;
}

/* What a load gives its caller, as far as it wants it. */
typedef struct answer {
  char *directory, *client; /* owned */
  size_t client_bytes;
} answer;

static ts_status load_candidate(ts_engine *e, char *list, bool tagged, const ts_load_options *options, answer *a,
                                ts_error *err) {
  static const ts_load_options everything = {false, false, false};
  ts_checkpoint *c = NULL;
  ts_status status = choose(e, list, tagged, &a->directory, &c, err);
  status = status == TS_OK ? share_client(e, a->directory, &a->client, &a->client_bytes, err) : status;
  status = status == TS_OK ? load_here(e, a->directory, c, options != NULL ? options : &everything, err) : status;
  ts_checkpoint_destroy(&c);
  return status;
}

/* To whoever wants it and something was loaded, else freed. */
static void give_or_free(char *mine, bool given, char **to) {
  if (to != NULL) {
    *to = given ? mine : NULL;
  }
  if (to == NULL || !given) {
    ts_free(mine);
  }
}

ts_status ts_load_checkpoint(ts_engine *e, const char *directory, const char *tag, const ts_load_options *options,
                             char **loaded, char **client, size_t *client_bytes, ts_error *err) {
  char *list = NULL;
  answer a = {0};
  ts_status status = ts_world_agree(e->world, check_load(e, directory, tag, err), err);
  status = status == TS_OK ? list_checkpoints(e, directory, tag, &list, err) : status;
  if (status == TS_OK && list == NULL) {
    ts_log(TS_LOG_WARNING, "%s has no checkpoint: nothing is loaded", directory);
  } else if (status == TS_OK) {
    status = load_candidate(e, list, tag != NULL, options, &a, err);
  }
  if (client_bytes != NULL) {
    *client_bytes = status == TS_OK ? a.client_bytes : 0;
  }
  give_or_free(a.directory, status == TS_OK, loaded);
  give_or_free(a.client, status == TS_OK, client);
  ts_free(list);
  return status;
}
