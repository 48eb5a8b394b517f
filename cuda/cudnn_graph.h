/** \file
 * Operation graphs of cuDNN's backend API, and plans for them.  A graph is built tensor by tensor and operation by
 * operation; the first step that cuDNN refuses is written to the graph's error with descriptor, attribute and the
 * library's own words, and all later steps do nothing, so that only the end needs a check.  Private to cuda/.  Nothing
 * here is collective.
 *
 * All tensors have the four dimensions {batch, heads, rows, columns}, whatever their order in memory: strides say that.
 */
#ifndef TS_CUDA_CUDNN_GRAPH_H
#define TS_CUDA_CUDNN_GRAPH_H

#include <cudnn.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"

#include <stdint.h>

enum { TS_CUDNN_DIMS = 4, TS_CUDNN_ALIGN = 16 /**< Bytes: what tensors in memory are promised to be aligned to. */ };

typedef struct ts_cudnn_graph ts_cudnn_graph;

/** A tensor of a graph; valid as long as the graph; NULL after a failure. */
typedef cudnnBackendDescriptor_t ts_cudnn_tensor;

typedef struct ts_cudnn_shape {
  int64_t dim[TS_CUDNN_DIMS], stride[TS_CUDNN_DIMS]; /**< Strides in elements. */
} ts_cudnn_shape;

/** Start a graph.  End with ts_cudnn_graph_destroy.
 * \param [in] device  NULL: the device of this process, which is open.  Otherwise cuDNN's description of one in JSON:
 *                     needs no device; plans for it state their workspace or are refused as they would be there, and
 *                     cannot run.
 * \param [out] err    Gets the first failure, in this and all later calls; must outlive the building.  May be NULL.
 * \return never NULL. Not collective. */
ts_cudnn_graph *ts_cudnn_graph_create(const char *device, ts_error *err);

/** Free the graph, its tensors and its plan; set to NULL; NULL is allowed. Not collective. */
void ts_cudnn_graph_destroy(ts_cudnn_graph **graph);

/** A tensor in memory under the number \a uid (1 to 99); a scalar that is passed by value from the host. Not
 * collective. */
ts_cudnn_tensor ts_cudnn_memory(ts_cudnn_graph *graph, int64_t uid, cudnnDataType_t type, ts_cudnn_shape shape);
ts_cudnn_tensor ts_cudnn_scalar(ts_cudnn_graph *graph, int64_t uid, cudnnDataType_t type);

/** A tensor that exists inside the graph only. Not collective. */
ts_cudnn_tensor ts_cudnn_virtual(ts_cudnn_graph *graph, cudnnDataType_t type, ts_cudnn_shape shape);

/** y = mode (x), y = mode (x, b), y = t ? x : b.  Each operation returns its \a y. Computed in fp32, comparisons as
 * booleans. Not collective. */
ts_cudnn_tensor ts_cudnn_unary(ts_cudnn_graph *graph, cudnnPointwiseMode_t mode, ts_cudnn_tensor x, ts_cudnn_tensor y);
ts_cudnn_tensor ts_cudnn_binary(ts_cudnn_graph *graph, cudnnPointwiseMode_t mode, ts_cudnn_tensor x, ts_cudnn_tensor b,
                                ts_cudnn_tensor y);
ts_cudnn_tensor ts_cudnn_select(ts_cudnn_graph *graph, ts_cudnn_tensor x, ts_cudnn_tensor b, ts_cudnn_tensor t,
                                ts_cudnn_tensor y);

/** y = index along \a axis of each element of x. Not collective. */
ts_cudnn_tensor ts_cudnn_index(ts_cudnn_graph *graph, int64_t axis, ts_cudnn_tensor x, ts_cudnn_tensor y);

/** c = a b of the last two dimensions, in fp32; heads of b may be fewer than those of a by a whole factor. Not
 * collective. */
ts_cudnn_tensor ts_cudnn_matmul(ts_cudnn_graph *graph, ts_cudnn_tensor a, ts_cudnn_tensor b, ts_cudnn_tensor c);

/** y = x reduced, in fp32 and a fixed order, along the dimensions in which y is shorter. Not collective. */
ts_cudnn_tensor ts_cudnn_reduce(ts_cudnn_graph *graph, cudnnReduceTensorOp_t op, ts_cudnn_tensor x, ts_cudnn_tensor y);

/** y = x seen with other dimensions and strides (a transpose). Not collective. */
ts_cudnn_tensor ts_cudnn_reshape(ts_cudnn_graph *graph, ts_cudnn_tensor x, ts_cudnn_tensor y);

/** What a plan turned out to be. */
typedef struct ts_cudnn_choice {
  int64_t engine;   /**< cuDNN's number of it. */
  size_t workspace; /**< Bytes. */
  int refused;      /**< Candidates before it that are not deterministic, want more workspace or cannot be built. */
} ts_cudnn_choice;

/** Close the graph; no operation may follow.
 * \return false, with the reason in the graph's error, when this or any step before was refused. Not collective. */
bool ts_cudnn_graph_close(ts_cudnn_graph *graph);

/** Make a plan for a closed graph: the first candidate of cuDNN's heuristic (mode A) that wants at most
 * \a most_workspace bytes, can be built, and, unless any order will do, does not say that its bits may change.
 * May compile kernels (seconds).
 * \return false, with the reason in the graph's error. Not collective. */
bool ts_cudnn_graph_plan(ts_cudnn_graph *graph, bool any_order, size_t most_workspace, ts_cudnn_choice *choice);

/** What a run of the plan reads and writes: \a n pointers (of the device; of the host for scalars, which are read when
 * it is queued) by uid, and the workspace.  End with ts_cudnn_pack_destroy; must not outlive the graph. Not collective.
 */
typedef cudnnBackendDescriptor_t ts_cudnn_pack;
ts_cudnn_pack ts_cudnn_pack_create(const int64_t *uid, void *const *pointer, int n, void *workspace);
void ts_cudnn_pack_destroy(ts_cudnn_pack *pack);

/** Run a plan made for the device of this process; asynchronous on \a stream.  A failure ends the job. Not collective.
 */
void ts_cudnn_graph_run(const ts_cudnn_graph *graph, ts_cudnn_pack pack, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
