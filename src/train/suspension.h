/** \file
 * A run whose files are silent is dead or suspended: `scontrol suspend` and SIGSTOP stop every thread, those that say
 * what the run does, too.  Who knows: Slurm, for a job of its own; on a machine of the run, the kernel.
 */
#ifndef TS_TRAIN_SUSPENSION_H
#define TS_TRAIN_SUSPENSION_H

#include "train/status_file.h"

/** Ask of a run none of whose nodes speaks.  Waits up to 5 s for Slurm. Not collective.
 * \return "suspended: ...", how it goes on, owned by the caller (ts_free); NULL: it is not, or nobody here knows. */
char *ts_suspension_find(const ts_run_status *status);

#endif
