#include "train/resume.h"

#include "base/log.h"
#include "base/memory.h"
#include "io/publication.h"
#include "train/run_log.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the run directory ---- */

/* With NULL: any.  What cannot be read may have some. */
static bool has_files(const char *path, bool (*are_meant)(const char *name)) {
  DIR *dir = opendir(path);
  bool found = dir == NULL && errno != ENOENT;
  for (struct dirent *entry; dir != NULL && !found && (entry = readdir(dir)) != NULL;) {
    const char *name = entry->d_name;
    found = strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && (are_meant == NULL || are_meant(name));
  }
  if (dir != NULL) {
    closedir(dir);
  }
  return found;
}

static ts_status check_is_directory(const ts_deck *deck, ts_error *err) {
  const char *path = deck->run.directory;
  struct stat info;
  if (path[0] == 0) {
    return ts_deck_error(deck, "run.directory", err,
                         "not set: where shall the metrics go? (--set run.directory=runs/NAME)");
  }
  bool good = stat(path, &info) != 0 || S_ISDIR(info.st_mode);
  return good ? TS_OK : ts_deck_error(deck, "run.directory", err, "%s is a file", path);
}

static ts_status check_empty(const ts_deck *deck, ts_error *err) {
  const char *path = deck->run.directory;
  if (!has_files(path, NULL)) {
    return TS_OK;
  }
  return ts_deck_error(deck, "run.directory", err,
                       "%s is not empty; a run never writes over another: choose a new one "
                       "(--set run.directory=runs/NAME), go on with what is there (--resume auto), or remove it",
                       path);
}

/* ---- auto ---- */

/* The published steps as rank 0 sees them: file systems may show other nodes an older state. */
static int list_steps(ts_world *world, const char *run, int64_t **steps) {
  ts_comm *all = ts_world_all(world);
  int64_t n = all->rank == 0 ? ts_published_steps(run, steps) : 0;
  all->ops->broadcast(all, &n, sizeof n, 0);
  if (all->rank != 0) {
    *steps = ts_malloc((size_t) n * sizeof **steps);
  }
  all->ops->broadcast(all, *steps, (size_t) n * sizeof **steps, 0);
  return (int) n;
}

/* What rank 0 sees is what counts. */
static bool agree_on_rank_0(ts_world *world, bool mine) {
  ts_comm *all = ts_world_all(world);
  all->ops->broadcast(all, &mine, sizeof mine, 0);
  return mine;
}

/* Is it none of what a run writes before its first table? */
static bool is_foreign(const char *name) {
  static const char *const first[] = {TS_RUN_LOCK, "deck.cfg",  "deck.cfg.tmp",
                                      TS_RUN_LOG,  TS_RUN_FROM, TS_RUN_TOKENIZER};
  bool known = strncmp(name, ".nfs", 4) == 0; /* of files that were removed while open */
  for (size_t i = 0; i < sizeof first / sizeof *first; ++i) {
    known = known || strcmp(name, first[i]) == 0;
  }
  return !known;
}

/* Did a run write there?  One that died while it began has a lock and perhaps no more. */
static bool was_begun(const char *run) {
  return (ts_has_file(run, "deck.cfg") && ts_has_file(run, "metrics.csv")) ||
         (ts_has_file(run, TS_RUN_LOCK) && !has_files(run, is_foreign));
}

/* A run that had a checkpoint once is not begun again over what it left. */
static bool died_early(const char *run) {
  int64_t *aside;
  int n = ts_steps_with_suffix(run, ".aside", &aside);
  ts_free(aside);
  return n == 0 && !ts_has_file(run, "latest") && was_begun(run);
}

/* What the run that died had for a deck, as rank 0 reads it; NULL without one.  Requeued onto other nodes a job has the
 * batch that it was submitted with. */
static char *share_dead_deck(ts_world *world, const char *run) {
  char *path = ts_format("%s/deck.cfg", run), *mine = NULL;
  size_t bytes;
  if (ts_world_rank(world) == 0) {
    ts_read_file(path, TS_DECK_LIMIT, &mine, &bytes, NULL);
  }
  char *text = ts_world_share_text(world, mine, 0);
  ts_free(mine);
  ts_free(path);
  return text;
}

/* A run that died early is begun over. */
static void take_dead_run(ts_world *world, const char *run, ts_resume *resume) {
  resume->over = agree_on_rank_0(world, died_early(run));
  resume->dead = resume->over ? share_dead_deck(world, run) : NULL;
}

/* No checkpoint: a new run, unless the directory holds something else than a run that died early. */
static ts_status begin_anew(ts_world *world, const ts_deck *deck, ts_resume *resume, ts_error *err) {
  const char *run = deck->run.directory;
  take_dead_run(world, run, resume);
  ts_status status = TS_OK;
  if (!resume->over && ts_world_rank(world) == 0) {
    ts_error why = {0};
    if (ts_deepspeed_refuse(run, &why) != TS_OK) {
      status = ts_deck_error(deck, "run.directory", err, "%s", why.text);
    }
    ts_error_clear(&why);
    status = status == TS_OK ? check_empty(deck, err) : status;
  }
  if (resume->over) {
    ts_log(TS_LOG_INFO, "%s has no checkpoint yet: the run begins anew", run);
  }
  return ts_world_agree(world, status, err);
}

static ts_status find_newest(ts_world *world, const ts_deck *deck, ts_resume *resume, ts_error *err) {
  const char *run = deck->run.directory;
  int64_t *steps = NULL;
  int n = list_steps(world, run, &steps);
  ts_error damage = {0};
  for (int i = 0; i < n && resume->checkpoint == NULL; ++i) {
    ts_error why = {0};
    ts_free(resume->directory);
    resume->directory = ts_step_directory(run, steps[i], "");
    if (ts_checkpoint_check(world, resume->directory, &resume->checkpoint, &why) != TS_OK) {
      ts_log(TS_LOG_WARNING, "step %lld is damaged and passed over: %s", (long long) steps[i], why.text);
      ts_error_add(&damage, "%s", why.text);
    }
    ts_error_clear(&why);
  }
  ts_status status = TS_OK;
  if (n == 0) {
    status = begin_anew(world, deck, resume, err);
  } else if (resume->checkpoint == NULL) {
    status = ts_deck_error(deck, "run.directory", err, "%s: every checkpoint is damaged:\n%s", run, damage.text);
  } else {
    resume->same_run = true;
  }
  ts_error_clear(&damage);
  ts_free(steps);
  return status;
}

/* ---- a directory ---- */

/* Is the checkpoint one of this run: its parent is the run's directory. */
static bool is_of_run(const char *directory, const char *run) {
  char *inner = realpath(directory, NULL), *outer = realpath(run, NULL);
  char *slash = inner != NULL ? strrchr(inner, '/') : NULL;
  if (slash != NULL) {
    *slash = 0;
  }
  bool same = slash != NULL && outer != NULL && strcmp(inner, outer) == 0;
  free(inner);
  free(outer);
  return same;
}

ts_status ts_resume_refuse(const ts_deck *deck, const char *request, const char *problem, ts_error *err) {
  return strcmp(request, deck->run.resume) == 0 ? ts_deck_error(deck, "run.resume", err, "%s", problem)
                                                : ts_error_add(err, "%s", problem);
}

static ts_status find_named(ts_world *world, const char *path, const ts_deck *deck, ts_resume *resume, ts_error *err) {
  ts_error why = {0};
  ts_status status = ts_world_agree(world, ts_checkpoint_locate(path, NULL, &resume->directory, &why), &why);
  if (status == TS_OK) {
    resume->same_run = agree_on_rank_0(world, is_of_run(resume->directory, deck->run.directory));
    if (!resume->same_run) { /* a life that died before its first checkpoint is no reason to refuse the next one */
      take_dead_run(world, deck->run.directory, resume);
      status = ts_world_rank(world) != 0 || resume->over ? TS_OK : check_empty(deck, err);
    }
    status = ts_world_agree(world, status, err);
    status = status == TS_OK ? ts_checkpoint_check(world, resume->directory, &resume->checkpoint, &why) : status;
  }
  if (why.count > 0) {
    ts_resume_refuse(deck, path, why.text, err);
  }
  ts_error_clear(&why);
  return status;
}

/* Nobody but that program knows which samples it has seen. */
static ts_status refuse_program(const ts_deck *deck, const char *request, ts_resume *resume, ts_error *err) {
  char *why =
      ts_format("%s: was saved by a program (ts_save_checkpoint), which alone knows where in its data it was: it "
                "cannot be resumed here; `--weights %s` begins a new run with its weights, in another "
                "run.directory",
                resume->directory, resume->directory);
  ts_resume_refuse(deck, request, why, err);
  ts_free(why);
  ts_checkpoint_destroy(&resume->checkpoint);
  return TS_BAD_INPUT;
}

ts_status ts_resume_find(ts_world *world, const ts_deck *deck, const char *request, ts_resume *resume, ts_error *err) {
  *resume = (ts_resume){0};
  ts_status status = ts_world_agree(world, check_is_directory(deck, err), err);
  if (status == TS_OK && strcmp(request, "never") == 0) {
    status = ts_world_agree(world, ts_world_rank(world) == 0 ? check_empty(deck, err) : TS_OK, err);
  } else if (status == TS_OK && strcmp(request, "auto") == 0) {
    status = find_newest(world, deck, resume, err);
  } else if (status == TS_OK) {
    status = find_named(world, request, deck, resume, err);
  }
  if (status == TS_OK && resume->checkpoint != NULL && resume->checkpoint->by_program != 0) {
    status = refuse_program(deck, request, resume, err);
  }
  if (resume->checkpoint == NULL) {
    ts_free(resume->directory);
    resume->directory = NULL;
  }
  return status;
}

/* ---- what a run keeps ---- */

/* Owned by the caller; NULL without one. */
static ts_deck *parse(const char *text) {
  ts_deck *deck = NULL;
  return text != NULL && ts_deck_read_text("the run's deck", text, NULL, 0, &deck, NULL) == TS_OK ? deck : NULL;
}

void ts_resume_precision(const ts_resume *resume, ts_deck *deck, ts_text *said) {
  ts_deck *before = parse(resume->checkpoint != NULL ? resume->checkpoint->deck : resume->dead);
  bool other = before != NULL && (before->fp16.enabled || ts_deck_autocasts(before)); /* it says nothing of bf16 */
  if (before != NULL && !other && before->bf16.enabled != TS_SWITCH_AUTO) {
    ts_deck_decide_precision(deck, before->bf16.enabled == TS_SWITCH_ON, "as the run began", said);
  }
  ts_deck_destroy(&before);
}

ts_status ts_resume_batch(const ts_resume *resume, ts_deck *deck, int64_t replicas, ts_error *err) {
  ts_deck *before = parse(resume->same_run ? resume->checkpoint->deck : resume->dead);
  if (before == NULL) {
    return ts_deck_resolve_batch(deck, replicas, err);
  }
  ts_text said = {0};
  ts_status status = ts_deck_keep_batch(deck, before, replicas, &said, err);
  if (status == TS_OK && said.length > 0) {
    ts_log(TS_LOG_INFO, "%s", said.text);
  }
  ts_text_free(&said);
  ts_deck_destroy(&before);
  return status;
}

void ts_resume_clear(ts_resume *resume) {
  ts_free(resume->directory);
  ts_free(resume->dead);
  ts_checkpoint_destroy(&resume->checkpoint);
  *resume = (ts_resume){0};
}
