/** \file
 * The files of observed steps that a deck names: profile.timeline with one a rank, flops_profiler.output_file.
 */
#ifndef TS_TRAIN_OUTPUTS_H
#define TS_TRAIN_OUTPUTS_H

#include "train/training.h"

/** Could they be written, and is nothing lost by that?  A file that is there may only be one that an earlier job of
 * this run has named under the same key (RUN/jobs.jsonl), one in the run's directory may have none of the names that
 * the program itself uses there, and no two are the same.  Each rank looks at its own; nothing is made.
 * Not collective.
 * \return TS_BAD_INPUT with the key. */
ts_status ts_outputs_check(const ts_training *training, ts_error *err);

#endif
