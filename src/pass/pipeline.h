/** \file
 * Pipeline schedules: what each rank of a pipeline does in a step, in which order.
 *
 * A model is cut into stages x chunks pieces, which run one behind the other; each of the ranks has `chunks` of them:
 * piece c stages + rank is chunk c of a rank, in the V schedules pieces rank and 2 stages - 1 - rank are its two.  A
 * schedule is a row of one table: a function that lists the instances of a rank, {work, chunk, micro-batch}.  Whatever
 * a row says, a chunk does each kind of work in the order of micro-batches, so sums of gradients have the same bits
 * under every schedule.  Gradient accumulation is 1F1B of one stage.
 *
 *     row          micro-batches          bubble, where F = I = W      pieces that a rank keeps for W at a time
 *     gpipe        any                    (p - 1) / (m + p - 1)        m
 *     1f1b         any                    (p - 1) / (m + p - 1)        min (p - r, m)
 *     interleaved  g = m / max (1, m div p) is whole
 *                                         (p - 1) / (v m + p - 1) (*)  min (v m, (v - 1) g + 2 (p - 1 - r) + 1)
 *     zb_h1        any                    (p - 1) / (3 m + p - 1) (*)  min (p, m)
 *     zb_v         m >= 2 p - 1           (p - 1) / (6 m + p - 1)      2 p, of half the size
 *     dualpipe_v   m >= 2 p               (p - 1) / (6 m + p - 1)      2 p + 1, of half the size
 *
 * with p stages, v chunks, m micro-batches, rank r; (*) from m = p on.  GPipe: Huang et al., 2019.  1F1B and its
 * interleaved form: Narayanan et al., 2021.  ZB-H1: Qi et al., "Zero Bubble Pipeline Parallelism", 2023.  ZB-V: Qi et
 * al., "Pipeline Parallelism with Controllable Memory", 2024.  DualPipeV: Liu et al., "DualPipe could be better without
 * the Dual", 2025.  None of these functions is collective.
 */
#ifndef TS_PASS_PIPELINE_H
#define TS_PASS_PIPELINE_H

#include "base/status.h"
#include "base/text.h"

#include <stdint.h>

typedef enum ts_pipeline_schedule {
  TS_PIPELINE_GPIPE,
  TS_PIPELINE_1F1B,
  TS_PIPELINE_INTERLEAVED,
  TS_PIPELINE_ZB_H1,
  TS_PIPELINE_ZB_V,
  TS_PIPELINE_DUALPIPE_V,
  TS_N_PIPELINES
} ts_pipeline_schedule;

/** Micro-batches of a step, at most: its instances are listed, in time that may grow with their square. */
#define TS_PIPELINE_MOST (1 << 14)

/** What is done with a piece for a micro-batch. */
typedef enum ts_pipeline_work {
  TS_WORK_FORWARD,  /**< F. */
  TS_WORK_INPUT,    /**< I: backward, gradients of inputs. */
  TS_WORK_WEIGHT,   /**< W: backward, gradients of weights. */
  TS_WORK_BACKWARD, /**< B: I and W. */
  TS_N_WORKS
} ts_pipeline_work;

typedef struct ts_pipeline_instance {
  ts_pipeline_work work;
  int chunk; /**< Of the rank, from 0. */
  int64_t micro_batch;
} ts_pipeline_instance;

/** A pipeline: a value that owns nothing. */
typedef struct ts_pipeline {
  ts_pipeline_schedule schedule;
  int stages;            /**< Ranks. */
  int chunks;            /**< Of each: 1, of V schedules 2, of interleaved ones any number. */
  int64_t micro_batches; /**< Of a step. */
} ts_pipeline;

/** The instances of a rank, in order. */
typedef struct ts_pipeline_list {
  ts_pipeline_instance *instance; /**< Owned (ts_free). */
  int64_t n;
} ts_pipeline_list;

/** The row's name, as in decks. Not collective. */
const char *ts_pipeline_name(ts_pipeline_schedule schedule);

/** The row called \a name, TS_N_PIPELINES for none. Not collective. */
ts_pipeline_schedule ts_pipeline_find(const char *name);

/** Can the row do it?  Not collective.
 * \return TS_BAD_INPUT: another number of chunks is wanted; or of micro-batches, with the nearest that go. */
ts_status ts_pipeline_check(const ts_pipeline *pipeline, ts_error *err);

/** The piece that is chunk \a chunk of rank \a rank. Not collective. */
int ts_pipeline_piece(const ts_pipeline *pipeline, int rank, int chunk);

/** Which rank has a piece, and as which of its chunks. Not collective. */
int ts_pipeline_rank_of(const ts_pipeline *pipeline, int piece, int *chunk);

/** What rank \a rank does, of a pipeline that ts_pipeline_check takes. Not collective. */
ts_pipeline_list ts_pipeline_list_of(const ts_pipeline *pipeline, int rank);

/** The forwards alone, of a validation: each rank has the piece nearest to the end first of those whose micro-batch has
 * come, were all of them to take as long. Not collective. */
ts_pipeline_list ts_pipeline_forwards_of(const ts_pipeline *pipeline, int rank);

/** As the table above says: pieces between their F and their W at a time, at most. Not collective. */
int64_t ts_pipeline_kept(const ts_pipeline *pipeline, int rank);

/** The list in the notation of torch.distributed.pipelining, pieces for its stages: "0F0 0F1 0B0 ...".
 * Not collective. */
void ts_pipeline_print(const ts_pipeline *pipeline, int rank, ts_text *to);

/** Seconds of each kind of work of a piece, B's being I's and W's. */
typedef struct ts_pipeline_seconds {
  double forward, input, weight;
} ts_pipeline_seconds;

/** What a step comes to. */
typedef struct ts_pipeline_times {
  double seconds; /**< Of the step, from the first instance to the last. */
  double *idle;   /**< Owned (ts_free); of each rank. */
  int64_t *kept;  /**< Owned (ts_free); of each rank: pieces between F and W at a time, at most. */
  double bubble;  /**< Mean over ranks of the share of the time that they are idle. */
} ts_pipeline_times;

/** Is told of an instance of a rank, when it begins and ends. */
typedef void ts_pipeline_observer(void *user, int rank, ts_pipeline_instance instance, double begin, double end);

/** Walk all ranks' lists by a clock: an instance begins when its rank is free and what it needs has arrived.
 * \param [in] seconds   Of each piece.
 * \param [in] send      Seconds from one rank to another.
 * \param [in] observer  Of every instance, those of a rank in order; NULL for none.
 * \return TS_BAD_INPUT: nobody can go on, which no row does; the first rank and instance that wait are named.
 * Not collective. */
ts_status ts_pipeline_clock(const ts_pipeline *pipeline, const ts_pipeline_seconds *seconds, double send,
                            ts_pipeline_observer *observer, void *user, ts_pipeline_times *times, ts_error *err);

/** Free what a clock gave. Not collective. */
void ts_pipeline_times_clear(ts_pipeline_times *times);

#endif
