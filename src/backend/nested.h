/** \file
 * A kernel that is other kernels of its backend on small graphs: a graph's tensors lie in what the call has, or in its
 * workspace.  Included by kernels that are the same on all backends.  Nothing here is collective.
 */
#ifndef TS_BACKEND_NESTED_H
#define TS_BACKEND_NESTED_H

#include "backend/backend.h"

/** Where a tensor lies: behind a pointer of the call, \a step bytes further for each count of a run. */
typedef struct ts_place {
  enum { TS_PLACE_IN, TS_PLACE_OUT, TS_PLACE_PRIOR, TS_PLACE_WORK } of;
  int i; /**< Which input, output or prior of the call. */
  size_t offset, step;
} ts_place;

typedef struct ts_nested {
  ts_graph *graph; /**< Owned; NULL: there is none. */
  ts_place *place; /**< Owned; of each tensor. */
  int capacity;
  void **prepared; /**< Owned; of each node. */
} ts_nested;

/** Begin an empty graph; end with ts_nested_release. Not collective. */
void ts_nested_begin(ts_nested *nested);

/** Say where a tensor lies. \return the tensor. Not collective. */
ts_tid ts_nested_put(ts_nested *nested, ts_tid t, ts_place place);

/** A tensor that is there already. Not collective. */
ts_tid ts_nested_leaf(ts_nested *nested, ts_dtype dtype, ts_shape shape, ts_place place);

/** Where a node's first output lies, and what it adds to: the call's beta times that, or that as it is. */
typedef struct ts_nested_output {
  ts_place at;
  ts_tid prior; /**< TS_NONE: none. */
  bool scaled;  /**< By the call's beta, which has to be there. */
  int n;        /**< Outputs; 0: the least that the op has. */
} ts_nested_output;

/** An output that adds to nothing. Not collective. */
ts_nested_output ts_nested_at(ts_place place);

/** Add a node. \return its first output; where others lie says ts_nested_put. Not collective. */
ts_tid ts_nested_add(ts_nested *nested, ts_op op, ts_attr attr, int n_in, const ts_tid *in, ts_nested_output to);

/** Prepare all kernels; or, without \a keep, find out what they need.
 * \return bytes of workspace for one of them after the other. Not collective. */
size_t ts_nested_prepare(ts_nested *nested, const ts_target *target, bool keep);

/** Run all nodes in order.
 * \param [in] backend  That it was prepared for.
 * \param [in] count    Of steps by which tensors lie further.
 * \param [in] scratch  Of the call's workspace, \a bytes that ts_nested_prepare asked for. Not collective. */
void ts_nested_run(const ts_nested *nested, const ts_backend *backend, const ts_kernel_call *call, int64_t count,
                   void *scratch, size_t bytes);

/** The rows that ts_backend_nested finds. Not collective. */
const ts_kernel *ts_backend_mlp(void);
const ts_kernel *ts_backend_orthogonalize(void);

/** Free what it has. Not collective. */
void ts_nested_release(ts_nested *nested, const ts_backend *backend);

#endif
