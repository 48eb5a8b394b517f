/** \file
 * ATTENTION and ATTENTION_DX by cuDNN: bf16, heads of 64, 96 or 128, causal or not, whole groups of query heads that
 * share one of keys, all tokens; no documents, no window shorter than the sequence, no softcap, no dropout (cuDNN's is
 * not the Philox stream of ops.def), no results in fp32, no priors, no row sums for o.  The alternative to the kernels
 * of attention.cu, with the same inputs and outputs (cuDNN's statistics are our lse), so that the one's forward goes
 * with the other's backward.  The same bits every time unless it is asked for in any order, in which the
 * backward pass sums dq as blocks finish, which is faster: see attention_cudnn.c.  Built without cuDNN nothing is
 * supported.  Private to cuda/.  C.  Nothing here is collective.
 */
#ifndef TS_CUDA_ATTENTION_CUDNN_H
#define TS_CUDA_ATTENTION_CUDNN_H

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend.h"

typedef struct ts_cudnn_plan ts_cudnn_plan;

/** Whether \a node is of the kind above; false for other ops.  Whether cuDNN takes it on a device only a plan can tell.
 * Not collective. */
bool ts_cudnn_supports(const ts_graph *graph, const ts_node *node, bool any_order);

/** Bytes of workspace to plan for a node that is supported, without a device: a bound that plans keep.  Forward 512;
 * backward about 2 T^2 for each of as many query heads as fit 1 GiB (all of them, if they do), at least those that
 * share one head of keys, in any order 4 T D and, where heads share keys, twice that; never above 2 GiB. Not
 * collective. */
size_t ts_cudnn_workspace(const ts_graph *graph, const ts_node *node, bool any_order);

/** Let the backward pass run in slices that want at most \a bytes where that is possible, instead of 1 GiB; for
 * tests, before any node is planned; 0: 1 GiB again. Not collective. */
void ts_cudnn_slice(int64_t bytes);

/** Whether cuDNN accepts the operations of a node that is supported: the part of a plan that needs neither device nor
 * driver.
 * \param [in] device  As for ts_cudnn_plan_create. Not collective. */
bool ts_cudnn_accepts(const ts_graph *graph, const ts_node *node, bool any_order, const char *device, ts_error *err);

/** Make the plan of a node that is supported.  Nodes that differ in their tensors only share what cuDNN made, so that
 * only the first may take seconds.  End with ts_cudnn_plan_destroy.
 * \param [in] device  NULL: this process's, which must be open.  Otherwise cuDNN's description of one in JSON: the
 *                     answer is the one that it would give there, without a device (but with a driver's library); such
 *                     a plan cannot run.
 * \return NULL with the reason in \a err when cuDNN has no plan for it, or only with more workspace than planned.
 * Not collective. */
ts_cudnn_plan *ts_cudnn_plan_create(const ts_graph *graph, const ts_node *node, bool any_order, const char *device,
                                    ts_error *err);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_cudnn_plan_destroy(ts_cudnn_plan **plan);

/** Bytes that cuDNN asked for, out of ts_cudnn_workspace; its number of the engine. Not collective. */
size_t ts_cudnn_plan_workspace(const ts_cudnn_plan *plan);
int64_t ts_cudnn_plan_engine(const ts_cudnn_plan *plan);

/** Run: asynchronous on the call's stream, may be captured (after one run that was not).  Pointers must be aligned to
 * 16 bytes. A failure ends the job. Not collective. */
void ts_cudnn_plan_run(ts_cudnn_plan *plan, const ts_kernel_call *call);

/** "cuDNN 9.19.0", part of the target's identity; "no cuDNN" where it was built without. Not collective. */
const char *ts_cudnn_describe(void);

#ifdef __cplusplus
}
#endif
#endif
