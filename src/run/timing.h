/** \file
 * By whose times a step is planned: a machine's that was measured, or the two ends of what a datasheet lets hope for;
 * and the clock's walk by them.  None of these functions is collective.
 */
#ifndef TS_RUN_TIMING_H
#define TS_RUN_TIMING_H

#include "run/clock.h"
#include "run/datasheet.h"

/** By whose times a step is planned. */
typedef struct ts_timing {
  ts_machine machine[TS_N_ENDS];    /**< Owned. */
  const ts_measured *by[TS_N_ENDS]; /**< Of these, of this job's ranks a node and threads, or the nearest. */
  int ends;                         /**< 1: measured; 2: the ends of a range, by a datasheet. */
  const ts_datasheet *sheet;        /**< NULL: measured. */
  int node;                         /**< Ranks of a node. */
} ts_timing;

/** Read a machine's file, or take a datasheet's row of that name.
 * \param [in]  node     Ranks of a node; 0 for as many as were measured and are there at most, or as the datasheet has.
 * \param [in]  threads  Of a rank; 0 for as many as were measured.
 * \param [out] timing   The caller's (ts_timing_clear), also on error.
 * \return TS_BAD_INPUT: ts_machine_read's, or no file and no such row. Not collective. */
ts_status ts_timing_open(const char *machine, int ranks, int node, int threads, ts_timing *timing, ts_error *err);

/** Free what it owns. Not collective. */
void ts_timing_clear(ts_timing *timing);

/** A rank's program of each stage of a pipeline; one program where there is none. */
typedef struct ts_stage_programs {
  ts_program **program; /**< Owned, as each is; NULL for one that was not made. */
  int n;
} ts_stage_programs;

/** The program of the first rank of a stage; end with ts_program_destroy. Not collective.
 * \param [in] options  Of mesh rank 0. */
ts_program *ts_stage_program_create(const ts_program_options *options, int stage);

/** Make all; end with ts_stage_programs_clear. Not collective. */
ts_stage_programs ts_stage_programs_create(const ts_program_options *options);

/** Free what it owns. Not collective. */
void ts_stage_programs_clear(ts_stage_programs *stages);

/** What the clock says of a step; end with ts_clock_clear. Not collective. */
ts_clock ts_timing_walk(const ts_stage_programs *stages, const ts_timing *timing, ts_end end,
                        ts_clock_observer *observer, void *user);

#endif
