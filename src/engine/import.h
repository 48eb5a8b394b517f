/** \file
 * Parameters from a Hugging Face directory (model.from, --weights): which tensor is which parameter, and what of the
 * directory the model does not read.
 */
#ifndef TS_ENGINE_IMPORT_H
#define TS_ENGINE_IMPORT_H

#include "engine/upcycle.h"
#include "engine/workings.h"
#include "io/safetensors.h"

/** A directory that is being read. */
typedef struct ts_import {
  ts_engine *engine; /**< Borrowed, as are both paths. */
  const char *from;  /**< The directory. */
  const ts_safetensors *st;
  bool copies; /**< It is of a dense model, whose MLPs experts begin as copies of (engine/upcycle.h). */
} ts_import;

/** Read every parameter from a Hugging Face directory, each rank what it holds; experts from those of a dense model,
 * too.  What the directory has beside them is named (ts_import_check_unread), and so is the first tensor with a value
 * that is not finite, with how many there are on all ranks.  Collective over the world; the status is not agreed: that
 * is the caller's.
 * \param [in] from  The deck's model.from, or another path, which messages then name.
 * \return TS_BAD_INPUT: it cannot be read, a tensor is missing or of another shape or type, the head is another matrix
 *         than the embedding it is tied to. */
ts_status ts_engine_import(ts_engine *engine, const char *from, ts_error *err);

/** Add what is wrong with the directory, after the deck's line that names it.  Not collective.
 * \param [in] problem  Freed.
 * \return TS_BAD_INPUT. */
ts_status ts_import_wrong(const ts_import *import, ts_error *err, char *problem);

/** The tensor of parameter \a name of this engine's model, NULL for none: checkpoints of one family differ in whether
 * names carry a prefix.  Not collective. */
const ts_safetensor *ts_import_find(const ts_import *import, const char *name);

/** The parameter that a tensor of this name is one of, or is a part of, NULL for none.  Not collective. */
const ts_parameter *ts_import_parameter(const ts_engine *engine, const char *tensor);

/** Read a stack (family/stack.h): from a tensor for each expert, or from one that has all of them, as transformers 5
 * has them in memory; where a directory has both, from the former.  Or from one that all begin as.  Not collective.
 * \param [in] origin  Of a dense model's directory, else NULL.
 * \param [in,out] nonfinite  Counts values that this rank owns and that are not finite.
 * \return TS_BAD_INPUT: an expert is missing, or something has another shape or type. */
ts_status ts_import_read_stack(const ts_import *import, const ts_parameter *p, const ts_origin *origin,
                               uint64_t *nonfinite, ts_error *err);

/** The name of the stack that a tensor of this name has one or all matrices of, owned by the caller (ts_free); NULL for
 * none.  Not collective. */
char *ts_import_stack_of(const ts_engine *engine, const char *tensor);

/** Does parameter \a p get values from tensor \a t?  Not collective. */
bool ts_import_reads(const ts_import *import, const ts_parameter *p, const ts_safetensor *t);

/** Do experts, or an MLP beside them, begin as copies of tensor \a t?  Not collective. */
bool ts_import_copies(const ts_import *import, const ts_safetensor *t);

/** Is \a t a floating-point tensor of this shape?  Not collective.
 * \return TS_BAD_INPUT when it is not. */
ts_status ts_import_check_shape(const ts_import *import, const ts_safetensor *t, const int64_t *shape, int n_dims,
                                ts_error *err);

/** Warn of every tensor that is no parameter and no known buffer, by kind, with how many there are, the first names and
 * what that means; and of files that nobody reads.  A head that a tied model does not read must be the embedding.
 * Rank 0 looks and speaks.  Not collective.
 * \return TS_BAD_INPUT on rank 0: the head differs. */
ts_status ts_import_check_unread(const ts_import *import, ts_error *err);

#endif
