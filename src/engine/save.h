/** \file
 * Saving: the state of an engine as a checkpoint (io/checkpoint.h, io/publication.h), written beside the training.
 *
 * A save is a machine of named states.  What moves it on is agreed by all ranks: either the flag that travels in the
 * step's record (ts_saver_is_working, ts_saver_advance), or waiting for everybody (ts_saver_finish).
 *
 * IDLE ─begin─▶ DIRECTORY ─▶ COPY ─▶ SHARD ─▶ INDEX ─▶ SUM ─▶ COLLECT ─▶ MANIFEST ─▶ PUBLISH ─▶ LATEST ─▶ PRUNE ─▶ IDLE
 *               rank 0       all     all     rank 0   all     all       rank 0 (until here nothing is published)
 *               └─ caller ────┘      └─── thread ───┘         caller    └────────── thread of rank 0 ─────────┘
 *
 * A failure (a full disk, EIO) on any rank abandons the save, from whatever state back to IDLE: its directory is
 * removed, what was published before stays as it was, the run goes on.  It is for the caller to begin another save when
 * that is due (ts_saver_retry, engine/retry.h), of the state that the run has then.  A process that dies in any state
 * leaves what was published before, too.
 */
#ifndef TS_ENGINE_SAVE_H
#define TS_ENGINE_SAVE_H

#include "engine/retry.h"
#include "engine/workings.h"

#define TS_SAVE_STATES(X)                                              \
  X(IDLE)                                                              \
  X(DIRECTORY) /* rank 0: RUN/step_N.tmp is made, if there is space */ \
  X(COPY)      /* each rank copies what it owns (run.save_async) */    \
  X(SHARD)     /* and writes it */                                     \
  X(INDEX)     /* rank 0: model.h5 */                                  \
  X(SUM)       /* size and hash of the files written */                \
  X(COLLECT)   /* rank 0 gets everybody's */                           \
  X(MANIFEST)  /* rank 0 */                                            \
  X(PUBLISH)   /* rank 0: the directory gets its name */               \
  X(LATEST)    /* rank 0 */                                            \
  X(PRUNE)     /* rank 0: checkpoints beyond run.keep are removed */

typedef enum ts_save_state {
#define X(name) TS_SAVE_##name,
  TS_SAVE_STATES(X)
#undef X
      TS_N_SAVE_STATES
} ts_save_state;

/** Where the training is; the rest of the numbers of a checkpoint the engine knows. */
typedef struct ts_position {
  int64_t step;    /**< Steps finished. */
  int64_t samples; /**< Sequences trained on. */
  int64_t skipped;
  int64_t skipped_in_a_row; /**< Not finite, one after another; not those that only lower a loss scale. */
} ts_position;

typedef struct ts_saver ts_saver;

/** Make a saver for the deck's run (directory, keep, save_async, save_retry, save_timeout).  With run.save_every and
 * run.save_async the planned memory of the copy is taken here; else saves are written from the engine's own state, and
 * begin waits for the files.
 * \param [in] engine  Borrowed for the saver's life; it can train. Not collective. */
ts_saver *ts_saver_create(ts_engine *engine);

/** Where a program of its own has its checkpoints. */
typedef struct ts_save_target {
  const char *directory; /**< A run's, which is there. */
  const char *tag;       /**< NULL: that of the step. */
  const void *client;    /**< Bytes that go along, of rank 0; NULL for none. */
  size_t client_bytes;
} ts_save_target;

/** A saver for \a target, borrowed with all in it for the saver's life: files are written from the engine's own state,
 * older checkpoints stay, and of failures the caller alone is told (ts_saver_failures). Not collective. */
ts_saver *ts_saver_create_for(ts_engine *engine, const ts_save_target *target);

/** Wait for the thread, abandon what is not published, free, set to NULL; NULL is allowed.  Call ts_saver_finish first.
 * Not collective. */
void ts_saver_destroy(ts_saver **saver);

/** Begin to save.  An unfinished save is finished first.  The caller may train on at once.
 * A save that cannot begin (no space) is given up; the first in a row of failures is warned about. Collective over the
 * world. */
void ts_saver_begin(ts_saver *saver, const ts_position *position);

/** True while this rank's thread is writing: to be agreed (the largest over ranks) and given to ts_saver_advance.
 * Not collective. */
bool ts_saver_is_working(const ts_saver *saver);

/** Go on with a save when no rank is working any more: collect, publish, end.  Does nothing when there is none.
 * \param [in] anyone_is_working  Agreed: the same on all ranks. Collective over the world. */
void ts_saver_advance(ts_saver *saver, bool anyone_is_working);

/** Wait until no save is under way. Collective over the world.
 * \return true when the last save that was begun is published (or none was). */
bool ts_saver_finish(ts_saver *saver);

/** Is it time to begin another save because the last one failed?  While one is under way only for the last: with
 * save_every there may always be one.
 * \param [in] end  As for ts_retry_ask.
 * Not collective: rank 0's answer counts. */
ts_retry_answer ts_saver_retry(const ts_saver *saver, double end);

/** How many saves failed since one succeeded, the seconds since the first of them (this rank's clock), and why the last
 * one did: borrowed until the next failure, NULL without one.  Not collective; but for the seconds the same on all
 * ranks. */
typedef struct ts_save_failures {
  int64_t n;
  double seconds;
  const char *why;
} ts_save_failures;
ts_save_failures ts_saver_failures(const ts_saver *saver);

/** Rank 0: why `latest` does not name the last save, which is published; NULL where it does.  Borrowed until the next
 * begin. Not collective. */
const char *ts_saver_unnamed(const ts_saver *saver);

/** Step of the newest checkpoint this saver published; -1 for none.  The same on all ranks. Not
 * collective. */
int64_t ts_saver_newest(const ts_saver *saver);

/** True from the begin of a save of \a step until it is published or given up. Not collective. */
bool ts_saver_is_begun(const ts_saver *saver, int64_t step);

/** Since the last call: seconds of saves that ended (from begin to published), and that the caller waited in any
 * function of this header; the step of the last one that ended, 0 for none. Not collective. */
typedef struct ts_save_times {
  double save, stall;
  int64_t step;
} ts_save_times;
ts_save_times ts_saver_take_times(ts_saver *saver);

/** "SHARD", ...: a constant string. Not collective. */
const char *ts_save_state_name(ts_save_state state);

/** Seconds that the last published save took, from begin to published; -1 before the first; and bytes of a checkpoint.
 * Not collective. */
double ts_saver_last_seconds(const ts_saver *saver);
int64_t ts_saver_bytes(const ts_saver *saver);

/** For tests: \a entered is called by every rank that enters a state, from the thread that does; NULL for none.
 * Set it while no save is under way. Not collective. */
void ts_saver_set_observer(void (*entered)(ts_save_state state, int rank));

#endif
