/** \file
 * DeepSpeed's monitors: curves of a run over samples, as event files for TensorBoard (tensorboard, wandb) and as tables
 * (csv_monitor).
 *
 *   tag                                            of a step, in
 *   Train/Samples/train_loss, lr                   nats; the rate that the step had
 *   Train/Samples/loss_scale                       with a loss scale: the step's
 *   Train/Samples/elapsed_time_ms_forward,         with wall_clock_breakdown: wall time of rank 0's phases, over all
 *     _backward, _step                             micro-batches, in ms
 *   Train/Samples/elapsed_time_ms_backward_inner,  of the backward, without and with what the step waited for
 *     _backward_allreduce                          communication, as far as it is known
 *   Train/Samples/eval_loss                        of a validation
 *   Tessera/Samples/COLUMN                         ours, by the names of metrics.csv
 *
 * Times, and what is made of them, are left out of an observed step: they are no measure.  A table is
 * DIRECTORY/TAG.csv with '_' for '/', its head is "step," and the last word of the tag.  Where a run goes on, tables
 * lose what is behind its first step, and a new event file says that the others do; so directories outside of the run
 * are marked as its own (io/run_mark.h).  Rank 0 alone has monitors; nothing here is collective.
 */
#ifndef TS_TRAIN_MONITORS_H
#define TS_TRAIN_MONITORS_H

#include "deck/deck.h"
#include "engine/tessera.h"
#include "io/metrics.h"

typedef struct ts_monitors ts_monitors;

/** How a run begins. */
typedef struct ts_monitors_begin {
  bool again;      /**< It goes on, or begins over where one died before its first checkpoint. */
  int64_t samples; /**< Trained on so far. */
} ts_monitors_begin;

/** Look whether the monitors that \a deck asks for could be opened, before long work; nothing is made.  The run's
 * deck.cfg is still that of the life before, which says whose tables are there where no mark does.  Not collective.
 * \return TS_BAD_INPUT with the key: a directory cannot be made or written, or is another run's, or a table has other
 *         columns. */
ts_status ts_monitors_check(const ts_deck *deck, const ts_monitors_begin *begin, ts_error *err);

/** Make the directories, after ts_monitors_check and that of the run, and open the files.  Not collective.
 * \param [out] out  The caller's, end with ts_monitors_close; NULL on error and where the deck asks for none.
 * \return TS_BAD_INPUT with the key: a directory cannot be made or was taken by another run since the check, a file
 *         not be written, a table has other columns. */
ts_status ts_monitors_open(const ts_deck *deck, const ts_monitors_begin *begin, ts_monitors **out, ts_error *err);

/** A step is done: its numbers are on disk (in the kernel) on return, or wait for room (io/rows.h).  Not collective.
 * \param [in] monitors  NULL is allowed.
 * \param [in] row       Of metrics.csv.
 * \param [in] samples   Trained on so far. */
void ts_monitors_step(ts_monitors *monitors, const ts_metrics_row *row, const ts_step_result *result, int64_t samples);

/** A validation is done; as ts_monitors_step.  Not collective. */
void ts_monitors_validation(ts_monitors *monitors, double loss, int64_t samples);

/** Write what is held for a while (io/rows.h), and try again what waits; NULL is allowed.  Not collective. */
void ts_monitors_flush(ts_monitors *monitors);

/** Close, say again how the event files are uploaded where wandb is enabled, free and set to NULL; NULL is allowed.
 * Not collective. */
void ts_monitors_close(ts_monitors **monitors);

#endif
