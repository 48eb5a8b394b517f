/** \file
 * What a job leaves in the run's directory when it begins, for `tessera report`: a line of RUN/jobs.jsonl (io/jobs.h),
 * and RUN/memory.csv, the planned bytes of the rank that needs most at the instructions of a step, by what they are for
 * ("instruction,phase,..."; phase is 0 in forwards, 1 in backwards, 2 in the update): the largest row is the plan's
 * peak. A file that cannot be written is a warning: the run goes on.
 */
#ifndef TS_TRAIN_JOB_FILES_H
#define TS_TRAIN_JOB_FILES_H

#include "train/training.h"

/** Rows of memory.csv at most: of neighbouring instructions the one with most stands for all. */
enum { TS_MEMORY_ROWS = 2000 };

/** Write both files. Not collective; to be called on every rank.
 * \param [in] most     The rank that needs most, which writes memory.csv,
 * \param [in] planned  and how many bytes of its backend's memory that is. */
void ts_job_files_write(const ts_training *training, int most, int64_t planned);

#endif
