/** \file
 * The step's record: the nodes that make it, gather it and draw the conclusions (columns: graph/record.h).
 *
 * Every rank of the mesh gives a row, whatever the axes, and all compute from all rows: loss, norm, clip factor, skip
 * and flags are the same bits everywhere.  A number counts once: only the group that owns the loss, and for each part
 * only its home, enter theirs; replicas enter zeros.  None of these functions is collective.
 */
#ifndef TS_PASS_RECORD_H
#define TS_PASS_RECORD_H

#include "graph/graph.h"
#include "pass/layout.h"

/** What a rank knows before the record. */
typedef struct ts_record_row {
  ts_tid loss, valid;    /**< Sums over this rank's micro-batches, [1] fp64; TS_NONE: the loss is another stage's. */
  ts_tid balance;        /**< Likewise of the loss of experts' balance; TS_NONE: there is none. */
  bool loss_is_split;    /**< Ranks along tp have the loss of their own tokens each, else all have the same. */
  bool squares;          /**< There are gradients: the row has squares of each part that has a norm. */
  const ts_tid *shard;   /**< Per part of the layout: this rank's reduced gradient, TS_NONE of parts without; */
  const ts_tid *sum;     /**< or the sum of its squares (ts_record_squares), where that is known. */
  ts_loss_scaler scaler; /**< Of the gradients; unless its rule is NONE the record reads their scale. */
  bool keep_nonfinite;   /**< Update whatever the norm is. */
} ts_record_row;

/** What every rank knows after it. */
typedef struct ts_record_result {
  ts_tid summary; /**< [TS_SUMMARY_SIZE] fp64. */
  ts_tid scale;   /**< [1] fp32: what gradients are multiplied by. */
  ts_tid skip;    /**< [1] fp32: 1 when nothing may be updated. */
} ts_record_result;

/** Add the nodes to the segment of \a at. Not collective (it only writes nodes). */
ts_record_result ts_record_add(ts_site at, const ts_mesh *mesh, const ts_layout *layout, const ts_record_row *row);

/** The sum of squares, [1] fp64, of this rank's reduced gradient of a part; of a replica of it 0. Not collective (it
 * only writes nodes). */
ts_tid ts_record_squares(ts_site at, const ts_layout *layout, const ts_part *part, ts_tid shard);

/** The state that has the loss scale, made at the first call: whoever reads it first, since a rewrite leaves out what
 * nobody reads, as where a model has no loss. Not collective. */
ts_tid ts_record_loss_scale(ts_graph *graph);

/** A leaf that the host writes for every step, in the graph of \a at. Not collective. */
ts_tid ts_record_scalar(ts_site at, const char *name, ts_dtype dtype, int64_t count);

#endif
