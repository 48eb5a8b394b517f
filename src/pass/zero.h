/** \file
 * What the files of the zero pass share.  Private to zero*.c.
 */
#ifndef TS_PASS_ZERO_H
#define TS_PASS_ZERO_H

#include "graph/rewrite.h"
#include "ops/build.h"
#include "pass/offload.h"
#include "pass/pass.h"
#include "pass/state.h"
#include "pass/step.h"

/* What the pass knows about a part while it walks the graph: always the newest version of each value. */
typedef struct ts_part_state {
  ts_tid param;    /* storage of the working values: whole or shard */
  ts_tid whole;    /* the whole working values to take windows from: param itself, or the last gather's result */
  ts_tid gradient; /* whole (ts_zero_sums_whole) or shard */
  ts_tid sum;      /* of a gradient, or shard, that lives elsewhere: a copy of it, to which a micro-batch's are added */
  ts_tid shard;    /* this rank's reduced gradient */
  ts_tid squares;  /* the sum of its squares, where it lives elsewhere: made before it goes there */
  ts_tid updated;  /* this rank's new values, where the others need them too */
  ts_tid fresh;    /* this rank's new values */
  /* By micro-batch of those that are together: the gradient of each parameter, or where it sums them the sum with it;
   * and how many are still to come, of sums of the last one. */
  ts_tid *produced;
  int *missing;
  /* By parameter: where two units, or chunks, read a table, the sum with the gradients that one has first. */
  ts_tid *earlier;
} ts_part_state;

/* What one collective will carry: columns of the shards of several parts, all spread over the same axes. */
typedef struct ts_bucket {
  unsigned axes;
  ts_dtype wire; /* that they travel in */
  int group;
  ts_tid *x;
  int *part;
  ts_piece *piece;
  int n, capacity;
  int64_t columns; /* of one shard, in all pieces */
} ts_bucket;

/* The open buckets, one for each set of axes and type. */
typedef struct ts_buckets {
  ts_bucket *item; /* owned */
  int n, capacity;
} ts_buckets;

typedef struct ts_zero {
  ts_rewrite rewrite;
  ts_pass_context *context;
  ts_layout *layout;
  ts_part_state *part;
  ts_tid *window; /* per parameter: its window on part.whole, TS_NONE when there is none yet */
  ts_tid *low;    /* per parameter: that in the lower type, cast last; TS_NONE when there is none */
  int *low_phase; /* per parameter: the phase of the micro-batch in which it was, */
  int *low_chunk; /* and the chunk */
  int last_unit;  /* of the last node of the forward: its parameters are read again at once */
  int stage;      /* the deck's */
  ts_dtype work, accumulate;
  ts_tid beta;           /* 0 in the first micro-batch of a step, 1 afterwards */
  ts_tid beta_local;     /* likewise since gradients were reduced last; beta where they are reduced once a step */
  ts_tid beta_reduced;   /* 0 in the first reduction of a step; TS_NONE where there is one */
  ts_tid beta_of_bucket; /* of what is reduced every micro-batch: beta, or 1 */
  int64_t reduced;       /* and which one that is of those that are together */
  bool keeps;            /* units that are gathered stay so for all micro-batches of a step */
  ts_buckets reduce;     /* gradients waiting to be reduced */
} ts_zero;

/** True when a part is for several ranks.  One of a rank that shares it with nobody, where others do, is too: all have
 * the same messages then. Not collective. */
static inline bool ts_zero_is_spread(const ts_part *part) {
  return part->group > 1 || (part->axes & TS_AXES_SHARERS) != 0;
}

/** The stage as it is for a part: 0 where there is nobody to share with. Not collective. */
static inline int ts_zero_stage(const ts_zero *z, const ts_part *part) {
  return ts_zero_is_spread(part) ? z->stage : 0;
}

/** True when this rank sums the whole gradients of its own micro-batches, to be reduced at once. Not collective. */
static inline bool ts_zero_sums_whole(const ts_zero *z, const ts_part *part) {
  return ts_part_sums_whole(z->context, part);
}

/** True when this rank keeps only its shard of the part's parameters. Not collective. */
static inline bool ts_zero_parameter_is_sharded(const ts_zero *z, const ts_part *part) {
  return ts_zero_stage(z, part) == 3 && !part->persistent;
}

/** True when a use of the part's parameters makes their values first: they come from other ranks, from where they live,
 * or both. Not collective. */
static inline bool ts_zero_parameter_is_fetched(const ts_zero *z, const ts_part *part) {
  return ts_zero_parameter_is_sharded(z, part) ||
         ts_offload_space(z->context, part, TS_STATE_PARAMETER) != TS_SPACE_BACKEND;
}

/** True when the graph is differentiated. Not collective. */
static inline bool ts_zero_is_training(const ts_zero *z) {
  return z->context->use == TS_MODEL_TRAIN;
}

/** Micro-batches that are one here. Not collective. */
static inline int64_t ts_zero_together(const ts_zero *z) {
  return ts_zero_is_training(z) ? z->context->step->together : 1;
}

/** A state tensor of part \a index, for the whole of it or this rank's shard, in the space where it lives. Not
 * collective. */
ts_tid ts_zero_state(ts_zero *z, int index, ts_state state, bool whole);

/** True for what lives elsewhere than in the backend's memory; TS_NONE does not. Not collective. */
bool ts_zero_is_elsewhere(const ts_zero *z, ts_tid t);

/** \a t in the backend's memory: a copy of what lives elsewhere; and the values \a x back to where \a home lives, where
 * that is elsewhere: \return home's new version, or else \a x. TS_NONE stays TS_NONE. Not collective (they only write
 * nodes). */
ts_tid ts_zero_bring(const ts_zero *z, ts_site at, ts_tid t);
ts_tid ts_zero_put_back(const ts_zero *z, ts_site at, ts_tid home, ts_tid x);

/** The same for what the host computes beside a device: \a t in the host's memory, itself where it lives there; and the
 * values \a x from there back to where \a home lives. Not collective (they only write nodes). */
ts_tid ts_zero_bring_to_host(ts_site at, ts_tid t);
ts_tid ts_zero_put_back_from_host(ts_site at, ts_tid home, ts_tid x);

/** Elements of storage for the whole of a part: room for equal shards, so that plans are the same on all ranks. Not
 * collective. */
int64_t ts_zero_whole(const ts_part *part);

/** This rank's shard as a window on whole storage. Not collective. */
ts_tid ts_zero_my_window(ts_site at, const ts_part *part, ts_tid whole);

/** Emit the collective of a bucket with entries and empty it. Not collective (it only writes nodes). */
typedef void ts_bucket_emit(ts_zero *z, ts_site at, ts_bucket *bucket);

/** Enter all columns of a part's \a x into the bucket of its axes and of \a wire; whenever that holds \a limit elements
 * over all ranks it is emitted, at the end if it holds \a early.
 * Pieces never change bits, so limits are only a matter of time and memory. Not collective (it only writes nodes). */
void ts_bucket_add(ts_zero *z, ts_site at, ts_buckets *set, int part, ts_tid x, ts_dtype wire, int64_t limit,
                   int64_t early, ts_bucket_emit *emit);

/** Emit what they hold, if anything. Not collective (it only writes nodes). */
void ts_bucket_flush(ts_zero *z, ts_site at, ts_buckets *set, ts_bucket_emit *emit);

/** Free the arrays. Not collective. */
void ts_bucket_free(ts_buckets *set);

/** Name of a bucket's node: "PART.what.FIRST_COLUMN"; free with ts_free. Not collective. */
char *ts_bucket_name(const ts_zero *z, const ts_bucket *bucket, const char *what);

/** Enter the gradient \a gradient of parameter \a index (in the new graph) of micro-batch \a m of those that are
 * together, in their order; reduces what is complete.
 * \param [in] at  Where its node is.  Not collective (it only writes nodes). */
void ts_zero_add_gradient(ts_zero *z, ts_site at, int index, int64_t m, ts_tid gradient);

/** Enter what another chunk, or unit, has made of it before: \a gradient, of each micro-batch in their order, is added
 * before any other one is.  Not collective (it only writes nodes). */
void ts_zero_add_earlier(ts_zero *z, ts_site at, int index, ts_tid gradient);

/** Reduce what the open bucket holds. Not collective (it only writes nodes). */
void ts_zero_flush(ts_zero *z, ts_site at);

/** At the begin of the graph, the updates that the step before has left (ts_offload_waits): what follows reads their
 * new values. Not collective (it only writes nodes). */
void ts_zero_update_late(ts_zero *z);

/** Add the step's record, its control values, the optimizer and the gathers after it. Not collective (it only writes
 * nodes).
 * \param [in] loss, valid, balance  Sums over this rank's micro-batches, as in ts_record_row. */
void ts_zero_add_update(ts_zero *z, ts_tid loss, ts_tid valid, ts_tid balance);

/** Add what sums the loads of experts over a step, and mark the sums of all ranks as "loads" (ts_layout.loads).
 * Not collective (it only writes nodes). */
void ts_zero_count_loads(ts_zero *z);

/** Of tables that two stages of a pipeline read: add the copy's gradient to home's, before the record; and give the
 * copy home's new values, after the update. Not collective (they only write nodes). */
void ts_zero_collect_tied(ts_zero *z, ts_site at);
void ts_zero_spread_tied(ts_zero *z, ts_site at);

/** The scalars that are 1 and 0, made at the first call. Not collective. */
ts_tid ts_zero_one(ts_zero *z);
ts_tid ts_zero_nought(ts_zero *z);

/** Values that every sweep of the optimizer reads. */
typedef struct ts_zero_control {
  ts_tid scale, skip, step, corrections, lr, betas;
  ts_tid one;    /**< 1: of directions, which are scaled; TS_NONE: there are none. */
  ts_tid ratios; /**< Of parameters; TS_NONE: none has one. */
} ts_zero_control;

/** What this rank updates of a part: its shard, or all of it where the stage shares nothing. */
typedef struct ts_zero_share {
  int part;
  bool whole, window;  /**< window: others need the new values too. */
  int64_t begin, end;  /**< Elements of the part. */
  ts_tid p, w, g;      /**< The values, a rounded copy of them or TS_NONE, their gradient or direction. */
  int64_t first_ratio; /**< Among the ratios, of its first parameter. */
} ts_zero_share;

/** The ratios of all parameters of optimizers of tensors, in the order of the shares, whose first_ratio is set.
 * \return TS_NONE where there are none. Not collective (it only writes nodes). */
ts_tid ts_zero_trust_ratios(ts_zero *z, ts_site at, ts_zero_share *share, int n, ts_tid corrections);

/** Make the directions of optimizers of matrices orthogonal, each matrix on one rank. Not collective (it only writes
 * nodes). */
void ts_zero_orthogonalize(ts_zero *z, ts_site at, ts_zero_share *share, int n);

/** Which uses of units need a gather of their own (stage 3): between two uses a unit stays gathered when at most
 * stage3_max_reuse_distance elements of other units are used meanwhile and at most stage3_max_live_parameters elements
 * are then gathered at once.  On a pipeline, where all that a stage has may be gathered at once, it stays so for all
 * micro-batches of a step; else where they overlap for one run.
 * \param [out] keeps  The former.
 * \return for each node of the old graph the number of units to gather before it; the units follow one another in
 * *units (both owned by the caller, ts_free). Not collective. */
int *ts_zero_plan_gathers(const ts_zero *z, int **units, bool *keeps);

#endif
