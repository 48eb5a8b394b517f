/** \file
 * Typed builders: one call per op.  Each adds a node called \a name at a place and gives its first output (the others
 * follow). Dtypes left to the op are those of the inputs.  A wrong shape is a programmer's mistake and ends the
 * program. None of these functions is collective; the collectives' builders only write nodes.
 */
#ifndef TS_OPS_BUILD_H
#define TS_OPS_BUILD_H

#include "base/deal.h"
#include "graph/op.h"

/** Any op with fixed inputs and no attributes. Not collective. */
ts_tid ts_build(ts_site at, ts_op op, const char *name, int n_in, const ts_tid *in);

/** What is in a file, to a space beside it (LOAD in graph/ops.def). Not collective. */
ts_tid ts_build_load(ts_site at, const char *name, ts_tid x, ts_space to);

/** Windows. Not collective. */
ts_tid ts_build_view(ts_site at, const char *name, ts_tid x, int64_t offset, ts_shape shape);
ts_tid ts_build_pack(ts_site at, const char *name, int n, const ts_tid *x, const int64_t *offset, int64_t count);

/** A pack of nothing: room for \a count elements that collectives write piece by piece, undefined until then.
 * Not collective. */
ts_tid ts_build_room(ts_site at, const char *name, ts_dtype dtype, int64_t count);

/** Element by element, and the last dimension in \a groups groups (1: as a whole), each of n parts: SPLIT and CONCAT
 * in graph/ops.def. Not collective. */
ts_tid ts_build_add(ts_site at, const char *name, ts_tid a, ts_tid b);
ts_tid ts_build_multiply(ts_site at, const char *name, ts_tid a, ts_tid b);
ts_tid ts_build_cast(ts_site at, const char *name, ts_tid x, ts_dtype dtype);
ts_tid ts_build_scale(ts_site at, const char *name, ts_tid x, float by, float softcap);
ts_tid ts_build_activation(ts_site at, const char *name, ts_tid x, ts_activation kind);
ts_tid ts_build_glu(ts_site at, const char *name, ts_tid gate, ts_tid up, ts_activation kind);
ts_tid ts_build_accumulate(ts_site at, const char *name, ts_tid prior, ts_tid x, ts_tid beta);
ts_tid ts_build_dropout(ts_site at, const char *name, ts_tid x, ts_tid seed, ts_tid sample, float p, uint64_t key);
ts_tid ts_build_split(ts_site at, const char *name, ts_tid x, int64_t groups, int n, const int64_t *size);
ts_tid ts_build_concat(ts_site at, const char *name, int64_t groups, int n, const ts_tid *x);

/** Some indices along a dimension, and back into \a extent of them, zeros elsewhere: TAKE and PLACE.  Intervals are
 * copied; cuts are borrowed, NULL where nothing is said of other ranks (ts_attr.take). Not collective. */
ts_tid ts_build_take(ts_site at, const char *name, ts_tid x, int dim, int n, const ts_interval *interval,
                     const int64_t *cuts);
ts_tid ts_build_place(ts_site at, const char *name, ts_tid x, int dim, int64_t extent, int n,
                      const ts_interval *interval, const int64_t *cuts);

/** Products; \a bias may be TS_NONE. Not collective. */
ts_tid ts_build_matmul(ts_site at, const char *name, ts_tid a, ts_tid b, ts_tid bias, bool transpose_a,
                       bool transpose_b, ts_dtype dtype);
ts_tid ts_build_sum_rows(ts_site at, const char *name, ts_tid x, ts_dtype dtype);

/** Lookups; \a first as in attr.embedding. Not collective. */
ts_tid ts_build_embedding(ts_site at, const char *name, ts_tid table, ts_tid ids);
ts_tid ts_build_embedding_dw(ts_site at, const char *name, ts_tid dy, ts_tid ids, int64_t rows, ts_dtype dtype,
                             int64_t first);

/** Norms. Not collective. */
ts_tid ts_build_layernorm(ts_site at, const char *name, ts_tid x, ts_tid w, ts_tid b, float eps);
ts_tid ts_build_rmsnorm(ts_site at, const char *name, ts_tid x, ts_tid w, float eps, float offset);
ts_tid ts_build_normalize(ts_site at, const char *name, ts_tid x, float eps);

/** The head and its loss: outputs loss, valid.  \a scale 1 and \a softcap 0 leave the logits as they are.
 * Not collective. */
ts_tid ts_build_head_loss(ts_site at, const char *name, ts_tid x, ts_tid w, ts_tid labels, float scale, float softcap);

/** Rows of logits against those of soft labels: outputs loss, lse_z, lse_t; and the sum of elements, \a mask may be
 * TS_NONE: outputs loss, valid. Not collective. */
ts_tid ts_build_soft_loss(ts_site at, const char *name, ts_tid z, ts_tid t, float temperature);
ts_tid ts_build_loss(ts_site at, const char *name, ts_tid x, ts_tid mask);

/** The update. Not collective. */
ts_tid ts_build_sum_squares(ts_site at, const char *name, ts_tid x, int n_ranges, const ts_range *range);
/** A sum for each range, fp32. Not collective. */
ts_tid ts_build_sum_squares_of_each(ts_site at, const char *name, ts_tid x, int n_ranges, const ts_range *range);
ts_tid ts_build_step_control(ts_site at, const char *name, ts_tid records, ts_tid static_tokens, ts_tid max_norm,
                             ts_tid loss_scale, bool keep_nonfinite);
ts_tid ts_build_update_loss_scale(ts_site at, const char *name, ts_tid loss_scale, ts_tid summary,
                                  const ts_loss_scaler *scaler);
ts_tid ts_build_advance(ts_site at, const char *name, ts_tid step, ts_tid betas, ts_tid skip);

/** LAMB's ratios; matrices made orthogonal in place. Not collective (they only write nodes). */
ts_tid ts_build_trust_ratios(ts_site at, const char *name, ts_tid squares, ts_tid corrections, float least, float most,
                             bool bias_correction);
ts_tid ts_build_orthogonalize(ts_site at, const char *name, ts_tid x, int n, const ts_matrix *matrix, ts_dtype dtype,
                              bool gram);

typedef struct ts_update_inputs {
  ts_tid p;
  ts_tid w;                   /**< TS_NONE when p is the working copy. */
  ts_tid state[2], scales[2]; /**< TS_NONE: the rule has no such state, or it is not in 8 bits. */
  ts_tid input[TS_UPDATE_INPUTS];
  ts_tid ratios; /**< Read where attr.update.has_ratios is set. */
} ts_update_inputs;

/** One step over the ranges of a shard, in place.  Not collective.
 * \param [in] attr     attr.update, but for copy, which follows from the inputs.
 * \param [in] on_host  ts_node.on_host.
 * \return the new p; the new w, if there is one, is the next tensor. */
ts_tid ts_build_update_elements(ts_site at, const char *name, const ts_update_inputs *in, const ts_attr *attr,
                                bool on_host);

/** Collectives over \a axes with \a group ranks; \a into is NULL or n tensors that are written in the pieces' columns
 * only; \a wire is what travels in a reduction, and by what it is divided there (1: nothing).
 * Not collective (they only write nodes). */
ts_tid ts_build_all_gather(ts_site at, const char *name, unsigned axes, int group, int n, const ts_tid *x,
                           const ts_tid *into, int n_pieces, const ts_piece *piece);
ts_tid ts_build_all_reduce(ts_site at, const char *name, unsigned axes, int group, ts_tid x);
ts_tid ts_build_share(ts_site at, const char *name, unsigned axes, int group, ts_tid x);
ts_tid ts_build_reduce_scatter(ts_site at, const char *name, unsigned axes, int group, ts_dtype wire, float divisor,
                               int n, const ts_tid *x, const ts_tid *into, ts_tid beta, int n_pieces,
                               const ts_piece *piece);

/** Blocks from everyone to everyone: \a block has an entry for each of the n outputs as a whole (its extents), then
 * n_sent that leave, then n_received that arrive, each by rank. Not collective. */
ts_tid ts_build_all_to_all(ts_site at, const char *name, unsigned axes, int group, int n, const ts_tid *x,
                           const ts_block *block, int n_sent, int n_received);

/** What crosses a boundary of a pipeline's pieces.
 * \param [in] message  attr.message: crossing has n entries, one for each of \a x.
 * \param [in] into     Of attr.message.into the n targets, else NULL.
 * \return receive: the first of n outputs. Not collective. */
void ts_build_send(ts_site at, const char *name, const ts_tid *x, const ts_attr *message);
ts_tid ts_build_receive(ts_site at, const char *name, const ts_attr *message, const ts_tid *into);

#endif
