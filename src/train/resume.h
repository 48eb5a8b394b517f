/** \file
 * Where a run begins: anew, or at a checkpoint.
 */
#ifndef TS_TRAIN_RESUME_H
#define TS_TRAIN_RESUME_H

#include "engine/checkpoint.h"

/** The answer; zero is a new run.  End with ts_resume_clear. */
typedef struct ts_resume {
  char *directory;           /**< Owned: the checkpoint; NULL for a new run. */
  ts_checkpoint *checkpoint; /**< Owned: its index. */
  bool same_run;             /**< It lies in the deck's run directory, which goes on. */
  bool over;                 /**< A new run in a directory where one died before its first checkpoint. */
  char *dead;                /**< Owned: the deck that it left there; NULL unless `over`, and where it left none. */
} ts_resume;

/** Find and check what \a request asks for.  Collective over the world; the same answer on all ranks.
 * \param [in] request  "never": a new run, whose directory must be empty or absent.  "auto": the newest intact
 *                      checkpoint of the run directory (damaged newer ones are named and passed over), or a new run
 *                      when there is none.  Else a run or checkpoint directory; one outside of the run directory begins
 *                      a new one there.
 * \return TS_BAD_INPUT, agreed: the directory is in use, every checkpoint is damaged, no such checkpoint, one that a
 *         program has saved (ts_save_checkpoint), which has no place in the data. */
ts_status ts_resume_find(ts_world *world, const ts_deck *deck, const char *request, ts_resume *resume, ts_error *err);

/** Add \a problem of the checkpoint that \a request asks for to \a err, with the place of run.resume where the deck is
 * who asks.  Not collective.
 * \return TS_BAD_INPUT. */
ts_status ts_resume_refuse(const ts_deck *deck, const char *request, const char *problem, ts_error *err);

/** Fill the deck's batch triple: a run that goes on keeps the batch it had (ts_deck_keep_batch), also from before its
 * first checkpoint; a new one has the deck's.
 * What changes is logged.  Not collective; the same on every rank.
 * \param [in] replicas  Ranks that read different samples.
 * \return TS_BAD_INPUT: the batch is not one for these ranks. */
ts_status ts_resume_batch(const ts_resume *resume, ts_deck *deck, int64_t replicas, ts_error *err);

/** Decide a bf16.enabled that the deck leaves to the machine as the run did that goes on, also before its first
 * checkpoint; one of a new run stays open.  Not collective; the same on every rank.
 * \param [out] said  As for ts_deck_decide_precision. */
void ts_resume_precision(const ts_resume *resume, ts_deck *deck, ts_text *said);

/** Free and zero.  Not collective. */
void ts_resume_clear(ts_resume *resume);

#endif
