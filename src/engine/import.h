/** \file
 * Parameters from a Hugging Face directory (model.from): which tensor is which parameter, and what of the directory the
 * model does not read.
 */
#ifndef TS_ENGINE_IMPORT_H
#define TS_ENGINE_IMPORT_H

#include "engine/workings.h"
#include "io/safetensors.h"

/** Read every parameter from the deck's model.from, each rank what it holds.  What the directory has beside them is
 * named (ts_import_check_unread), and so is the first tensor with a value that is not finite, with how many there are
 * on all ranks.  Collective over the world; the status is not agreed: that is the caller's.
 * \return TS_BAD_INPUT: it cannot be read, a tensor is missing or of another shape or type, the head is another matrix
 *         than the embedding it is tied to. */
ts_status ts_engine_import(ts_engine *engine, ts_error *err);

/** The tensor of parameter \a name of this engine's model, NULL for none: checkpoints of one family differ in whether
 * names carry a prefix.  Not collective. */
const ts_safetensor *ts_import_find(const ts_engine *engine, const ts_safetensors *st, const char *name);

/** The parameter that a tensor of this name is one of, or is a part of, NULL for none.  Not collective. */
const ts_parameter *ts_import_parameter(const ts_engine *engine, const char *tensor);

/** Read a stack (family/stack.h): from a tensor for each expert, or from one that has all of them, as transformers 5
 * has them in memory; where a directory has both, from the former.  Not collective.
 * \param [in,out] nonfinite  Counts values that this rank owns and that are not finite.
 * \return TS_BAD_INPUT: an expert is missing, or something has another shape or type. */
ts_status ts_import_read_stack(ts_engine *engine, const ts_safetensors *st, const ts_parameter *p, uint64_t *nonfinite,
                               ts_error *err);

/** The name of the stack that a tensor of this name has one or all matrices of, owned by the caller (ts_free); NULL for
 * none.  Not collective. */
char *ts_import_stack_of(const ts_engine *engine, const char *tensor);

/** Does parameter \a p get values from tensor \a t?  Not collective. */
bool ts_import_reads(const ts_engine *engine, const ts_safetensors *st, const ts_parameter *p, const ts_safetensor *t);

/** Is \a t a floating-point tensor of this shape?  Not collective.
 * \return TS_BAD_INPUT when it is not. */
ts_status ts_import_check_shape(const ts_engine *engine, const ts_safetensor *t, const int64_t *shape, int n_dims,
                                ts_error *err);

/** Warn of every tensor of \a st that is no parameter and no known buffer, by kind, with how many there are, the first
 * names and what that means; and of files that nobody reads.  A head that a tied model does not read must be the
 * embedding.  Rank 0 looks and speaks.  Not collective.
 * \return TS_BAD_INPUT on rank 0: the head differs. */
ts_status ts_import_check_unread(const ts_engine *engine, const ts_safetensors *st, ts_error *err);

#endif
