/** \file
 * The library: an engine trains one model over all processes of a world.
 *
 *   ts_engine *engine;
 *   if (ts_engine_create (&options, &engine, &err) != TS_OK) ...          // the same answer on every rank
 *   for (step ...) {
 *     for (sample ...) ts_batch_set (batch, ...);                           // this rank's samples of the whole step
 *     ts_engine_train_step (engine, &input);                                // forward, backward, reduce, clip, update
 *   }
 *   ts_engine_destroy (&engine);
 *
 * One thread per process calls these functions.  Functions marked collective are called by every process of the world
 * in the same order.
 */
#ifndef TS_ENGINE_TESSERA_H
#define TS_ENGINE_TESSERA_H

#include "comm/comm.h"
#include "deck/deck.h"
#include "engine/timeouts.h"
#include "engine/values.h"
#include "graph/record.h"
#include "io/batch.h"
#include "run/executor.h"
#include "run/program.h"

typedef struct ts_engine ts_engine;

/** What an engine can be asked for; a mask.  Memory is planned for what is asked, and for nothing else. */
enum {
  TS_CAN_TRAIN = 1,    /**< Whole steps, ts_engine_train_step. */
  TS_CAN_EVALUATE = 2, /**< ts_engine_evaluate, and forwards that are not trained. */
  TS_CAN_GENERATE = 4, /**< ts_engine_logits; not of models of a program's own. */
  TS_CAN_STEP = 8,     /**< ts_forward, ts_backward, ts_step.  The loss is known after the forward, for which
                        * a head makes its logits twice. */
  TS_CAN_SEED = 16,    /**< With STEP: gradients of outputs, ts_set_output_gradient. */
  TS_CAN_DEFER = 32    /**< With STEP: gradients of some micro-batches stay on their rank and are reduced together,
                        * ts_no_sync_begin and ts_coalesce_grad_reduction_begin; at ZeRO stages 2 and 3 this keeps the
                        * gradients of the whole model on every rank, at 0 and 1 a shard more. */
};

typedef struct ts_engine_options {
  ts_world *world;                /**< Borrowed for the engine's life. */
  const ts_deck *deck;            /**< Borrowed; its batch triple is resolved (ts_deck_resolve_batch), its
                        * precision decided (ts_engine_decide_precision). */
  const ts_mesh *mesh;            /**< Copied; NULL: what the deck asks for (ts_deck_mesh). */
  const ts_own_model *model;      /**< A program's own (model/builder.h), copied; NULL: the deck's family. */
  unsigned abilities;             /**< Mask of TS_CAN_...; memory is planned for these. */
  int n_slots;                    /**< Micro-batches alive at a time, at most; 0 stands for 1. */
  int64_t context;                /**< Of generation: tokens that are looked back on, at most; 0: as sequence_length. */
  int64_t steps;                  /**< Of the whole run, for a schedule whose deck has no total (run.epochs); else 0. */
  int64_t texts;                  /**< Of generation: how many a rank continues at a time; 0 stands for 1. */
  bool loads;                     /**< The caller loads a checkpoint next: parameters get no first values. */
  ts_executor_observer *observer; /**< For timelines; NULL for none. */
  void *observer_user;
} ts_engine_options;

/** Decide a bf16.enabled that the deck leaves to the machine ("auto"): true where the device of every rank has
 * instructions for it.  To be called before ts_engine_create, which takes a deck that is decided.  Collective over the
 * world.
 * \param [out] said  The line of ts_deck_decide_precision, the same on all ranks.
 * \return TS_BAD_INPUT, agreed: run.device is auto and only some ranks see a GPU. */
ts_status ts_engine_decide_precision(ts_world *world, ts_deck *deck, ts_text *said, ts_error *err);

/** Plan, allocate and initialise the parameters from the deck's seed or from `model.from`.
 * Collective over the world.
 * \return TS_BAD_INPUT, agreed by all ranks, when the Hugging Face directory cannot be read or does not fit. */
ts_status ts_engine_create(const ts_engine_options *options, ts_engine **out, ts_error *err);

/** Free and set to NULL; NULL is allowed. Collective over the world. */
void ts_engine_destroy(ts_engine **engine);

/** The agreed result of a step; the same on every rank but for the times. */
typedef struct ts_step_result {
  double loss;      /**< Mean over all valid tokens of the global batch. */
  double grad_norm; /**< Before clipping. */
  double lr;
  double valid_tokens;
  bool skipped;                       /**< Nothing was updated: no valid token, or: */
  bool overflow;                      /**< Loss or norm was not finite. */
  bool searching;                     /**< Likewise: the loss was, so it only says that the loss scale is too large. */
  bool stuck;                         /**< Likewise, and the loss scale is at its minimum. */
  double loss_scale, next_loss_scale; /**< Of this step, 1 without one; and of the next. */
  double flag[TS_N_FLAGS];            /**< Largest value any rank gave in \a flags. */
  double communication_seconds, exposed_seconds;            /**< This rank's, since the last step. */
  double forward_seconds, backward_seconds, update_seconds; /**< Likewise: wall time of the phases. */
} ts_step_result;

/** What a step works on. */
typedef struct ts_step_input {
  /** This rank's samples of all micro-batches, one after another; borrowed during the call. */
  const ts_batch *batch;
  /** Asked once, after the last micro-batch: values of this rank of which everybody gets the largest (a stop request,
   * seconds); NULL for zeros. */
  void (*flags)(void *user, double flags[TS_N_FLAGS]);
  void *user;
} ts_step_input;

/** A whole step: forward and backward of gradient_accumulation_steps micro-batches, reduce, agree on the record, clip,
 * update.  A rank's samples are its share by ts_engine_mesh: ranks that differ in other axes than TS_AXES_BATCH give
 * the same ones. Collective over the world. */
ts_step_result ts_engine_train_step(ts_engine *engine, const ts_step_input *input);

/** Sum of the loss over valid tokens and their number, over all ranks, of one micro-batch a rank, without dropout.
 * Collective over the world. */
void ts_engine_evaluate(ts_engine *engine, const ts_batch *batch, double *loss_sum, double *valid_tokens);

/* ---- steps by hand ----
 *
 *   for each micro-batch:
 *     ts_set_input (engine, "tokens", tokens, &err); ...
 *     ts_forward (engine, &err);
 *     ts_backward (engine, 1, &err);
 *     ts_step (engine, &result, &err);                      // updates after gradient_accumulation_steps of them
 *
 * Every rank makes the same calls in the same order.  A call whose turn it is not returns TS_BAD_INPUT with the rule in
 * the message, on all ranks alike, and changes nothing.
 *
 * The loss of a step is sum of losses / number of labels, over its micro-batches and all ranks (DeepSpeed averages the
 * means of micro-batches and ranks); gradients of outputs are taken as they are given, and summed over micro-batches
 * and ranks: who wants a mean divides by their number. */

/** Copy this rank's samples of the next micro-batch: [batch] of them, in the input's dtype, each whole (ranks along sp
 * take their tokens).  Ranks that differ in TS_AXES_BATCH have other samples, all others the same.  Values stay until
 * they are set again. Not collective.
 * \return TS_BAD_INPUT: the model has no such input. */
ts_status ts_set_input(ts_engine *engine, const char *name, const void *samples, ts_error *err);

/** Forwards train from now on, with dropout and values kept for a backward, or they do not.  An engine begins with
 * training. Not collective. \return TS_BAD_INPUT: it was made without TS_CAN_EVALUATE. */
ts_status ts_set_training(ts_engine *engine, bool training, ts_error *err);

/** The model on the inputs; with dropout its numbers are the samples', so the same inputs give the same values again.
 * Collective over the world. */
ts_status ts_forward(ts_engine *engine, ts_error *err);

/** Of the last forward, until a backward, a step or an evaluation: an output in fp32, in the shape the model gave it
 * (ranks along sp: their tokens of it); this rank's sum of the loss and the number of labels it is of. On a device they
 * wait for it. Not collective. */
ts_status ts_get_output(ts_engine *engine, const char *name, float *value, ts_error *err);
ts_status ts_get_loss(ts_engine *engine, double *sum, double *labels, ts_error *err);

/** Add the gradients of weight times the loss, and of the outputs whose gradient was set since the forward, to those of
 * this step.  \a weight is 1, or what a loss of several engines says of this one's.  Ends the values of the forward
 * (there is no retain_graph: forward again).  The last micro-batch's reduces the step's gradients.
 * Collective over the world. */
ts_status ts_backward(ts_engine *engine, double weight, ts_error *err);

/** Set the gradient of an output, in fp32 and in its shape, for the next backward; those not set are 0.  In fp16 it has
 * to be that of ts_scale (engine, loss).  Beside a loss of the model it is multiplied by (labels of a full batch) /
 * (labels that count). Not collective. */
ts_status ts_set_output_gradient(ts_engine *engine, const char *name, const float *gradient, ts_error *err);

/** ts_set_output_gradient, and a backward of it without the loss: torch's tensor.backward (gradient). Collective over
 * the world. */
ts_status ts_backward_from(ts_engine *engine, const char *output, const float *gradient, ts_error *err);

/** The loss times the loss scale of this step, 1 without one.  Waits for a device. Not collective. */
double ts_scale(ts_engine *engine, double loss);

/** The end of a micro-step.  After the last of a step: reduce what is not reduced, agree on loss and norm, clip,
 * update. Collective over the world.
 * \param [out] result  Of an update; not written by the other micro-steps; may be NULL. */
ts_status ts_step(ts_engine *engine, ts_step_result *result, ts_error *err);

/** Forget the gradients of the step, as an update does. Not collective. */
ts_status ts_zero_grad(ts_engine *engine, ts_error *err);

/** Whether this micro-step is the last of a step: the gradient_accumulation_steps-th since the last update, or what the
 * caller said, which holds until the next ts_step. Not collective. */
bool ts_is_gradient_accumulation_boundary(const ts_engine *engine);
ts_status ts_set_gradient_accumulation_boundary(ts_engine *engine, bool is_boundary, ts_error *err);

/** Inside of the block backwards leave their gradients on their rank.  The end of no_sync sends nothing: the next
 * reduction has their sum.  The end of coalesce reduces once what the backwards inside have made.  Same bits as
 * accumulation over the same micro-batches at stage 1, at every stage.  Blocks do not nest, and ts_step does not go
 * inside. ts_coalesce_grad_reduction_end is collective over the world, the others are not collective. */
ts_status ts_no_sync_begin(ts_engine *engine, ts_error *err);
ts_status ts_no_sync_end(ts_engine *engine, ts_error *err);
ts_status ts_coalesce_grad_reduction_begin(ts_engine *engine, ts_error *err);
ts_status ts_coalesce_grad_reduction_end(ts_engine *engine, ts_error *err);

/** Of the last update: the norm before clipping, and whether it was done; the rate of the next one. Not collective. */
double ts_global_grad_norm(const ts_engine *engine);
bool ts_was_step_applied(const ts_engine *engine);
double ts_learning_rate(const ts_engine *engine);

/** The tokens of a text; borrowed. */
typedef struct ts_tokens_of {
  const int32_t *token;
  int64_t n; /**< 0: there is no text in this row, and its logits mean nothing. */
} ts_tokens_of;

/** Logits of the next token of each text, as many texts as the engine was made for.  Keys and values of the tokens that
 * a row had in the last call with a text in it are kept: those that its text begins with are not computed again, so a
 * text that grows by a token costs one token.  Texts of different lengths end together: the shorter ones wait.  Where n
 * is more than the engine's context, the first tokens are left out, as few halves of a context as make the rest fit.
 * \param [in]  text    [texts]
 * \param [out] logits  [texts][vocab_size] fp32; how they are rounded depends on how many tokens and texts were
 *                      computed together.
 * Collective over the world: ranks that differ in TS_AXES_BATCH may give other texts, all others give the same. */
void ts_engine_logits(ts_engine *engine, const ts_tokens_of *text, float *logits);

/** A 64-bit digest of every parameter's values (fp32, the master where there is one), the same on any grid that has the
 * same values: the sum over elements of a mix of bits and position.
 * \param [out] digest  One per parameter of the layout, in its order; the same on all ranks. Collective over the
 *                      world. */
void ts_engine_digest(ts_engine *engine, uint64_t *digest);

/** The flat layout: names, shapes and order of all parameters.  Borrowed. Not collective. */
const ts_layout *ts_engine_layout(const ts_engine *engine);

/** The first program (training, else evaluation, else generation): its plan and graph.  Borrowed. Not collective. */
const ts_program *ts_engine_program(const ts_engine *engine);

/** The inputs that its programs have: what a batch is made with (ts_batch_create). Not collective. */
unsigned ts_engine_inputs(const ts_engine *engine);

/** The grid, seen from this rank.  Borrowed. Not collective. */
const ts_mesh *ts_engine_mesh(const ts_engine *engine);

/** The time limits of its runs.  Borrowed. Not collective. */
const ts_timeouts *ts_engine_timeouts(const ts_engine *engine);

/** The executor, for tests and metrics.  Borrowed. Not collective. */
ts_executor *ts_engine_executor(ts_engine *engine);

/** Whether a plan for this backend keeps room for cuDNN's attention (ts_target.cudnn). Not collective. */
bool ts_engine_may_use_cudnn(const ts_deck *deck, const ts_backend *backend);

/** Threads a rank should use: the deck's run.threads, else OMP_NUM_THREADS, else this process's share of the cores it
 * may run on. Not collective. */
int ts_engine_threads(const ts_deck *deck, int local_ranks);

#endif
