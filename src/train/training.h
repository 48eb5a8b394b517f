/** \file
 * A training run, for the files that make it up: training.c opens and closes it, train.c runs it.
 */
#ifndef TS_TRAIN_TRAINING_H
#define TS_TRAIN_TRAINING_H

#include "engine/save.h"
#include "io/metrics.h"
#include "io/rows.h"
#include "train/balance.h"
#include "train/expert_watch.h"
#include "train/monitors.h"
#include "train/observed.h"
#include "train/progress.h"
#include "train/resume.h"
#include "train/run_log.h"
#include "train/time_limit.h"
#include "train/train.h"
#include "train/watchdog.h"

/* What goes along with a step's record: of each the largest of all ranks' is known. */
enum { TS_FLAG_REQUEST, TS_FLAG_SAVING, TS_FLAG_BUSY };
_Static_assert(TS_FLAG_BUSY < TS_N_FLAGS, "the record has room for the flags");

typedef struct ts_training {
  ts_world *world;
  ts_deck *deck; /* its batch is resolved once it is known where the run begins */
  const ts_train_options *options;
  ts_words *words; /* rank 0 only; NULL without a prompt */
  ts_ids prompt;   /* its tokens */
  ts_engine *engine;
  ts_data *data;
  ts_metrics *metrics;     /* rank 0 only */
  ts_monitors *monitors;   /* likewise; NULL where the deck asks for none */
  ts_run_log *log;         /* likewise: what it says */
  ts_expert_watch experts; /* likewise */
  ts_rows *digests;        /* rank 0 only; NULL without debug.digest_every */
  ts_observed *observed;
  ts_progress progress;
  ts_balance balance; /* of rings, where samples have documents */
  ts_mesh mesh;
  ts_batch *batch;             /* this rank's samples of a step */
  int64_t micro_batch, length; /* samples of a micro-batch, tokens of a sample */
  int64_t ranks, rank;
  int64_t steps; /* of the whole run: run.steps, or what run.epochs makes of the data */
  double flops_per_step;
  double peak; /* FLOP/s of large matrix products, all ranks */
  ts_resume resume;
  ts_saver *saver;
  ts_position at; /* steps and samples done */
  int64_t saved;  /* the last step whose save was begun, or that was resumed from; -1 for none */
  int lock;       /* rank 0: the run is this job's */
  int request;    /* agreed after each step: a ts_retry_answer, or TS_REQUEST_STOP */
  double busy;    /* seconds of the last step that this rank did not wait */
  bool stopping;
  bool unsaved; /* the last save before the end has failed */
  ts_loss_scaler scaler;
  bool kept_nonfinite; /* some step of this job updated by numbers that were not finite */
  bool searching;      /* the last step's overflow said that the loss scale is too large */
  double stuck;        /* the loss scale, where an overflow at its minimum has ended the run; 0: none has */
  ts_watch *watch;
  ts_time_limit limit;   /* rank 0 */
  int64_t first_step;    /* of this job, from 1 */
  double stopped_before; /* rank 0: seconds before the end of the job's time; 0: that is not why */
  const char *failure;   /* why the exit code is 1, for the status files */
} ts_training;

/** Find where the run begins, open its data, make the engine with its first state, and take the run's directory:
 * nothing of the user's is touched before all of that is well.  World, deck and options are set before, the rest is
 * zero but for \a lock (-1).  Collective over the world.
 * \return TS_BAD_INPUT, agreed; end with ts_training_close all the same. */
ts_status ts_training_open(ts_training *training, ts_error *err);

/** Free everything and give the directory back. Collective over the world. */
void ts_training_close(ts_training *training);

/** What a rank asks for beyond another save, in the step's record: the largest of all ranks' counts. */
enum { TS_REQUEST_STOP = TS_RETRY_LAST + 1 };

/** What this rank asks for now: TS_REQUEST_STOP (a signal, the file STOP, the job's time), on rank 0 also another try
 * of a save that failed. Not collective. */
double ts_training_request(ts_training *training);

/** So many steps in a row were not finite that the run ends. Not collective; the same on all ranks. */
bool ts_training_is_diverged(const ts_training *training);

/** Is a save due after this step? Not collective; the same on all ranks. */
bool ts_training_is_time_to_save(const ts_training *training);

/** Begin to save. Collective over the world. */
void ts_training_save(ts_training *training);

/** Publish the state of the last step.  Where that fails the run waits and tries again, for run.save_timeout after the
 * first failure, or as long as the job's time allows; then, or when SIGTERM comes, it ends without.  Collective over
 * the world.
 * \return 0; TS_BAD_INPUT, in \a err; 1 after SIGTERM, said. */
int ts_training_save_last(ts_training *training, ts_error *err);

/** Write RUN/hf (TS_RUN_MODEL), where zero_optimization.stage3_gather_16bit_weights_on_model_save asks for it.
 * Collective over the world.
 * \return 0; TS_BAD_INPUT, agreed, in \a err: it cannot be written. */
int ts_training_write_model(ts_training *training, ts_error *err);

#endif
