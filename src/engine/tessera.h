/** \file
 * The library: an engine trains one model over all processes of a world.
 *
 *   ts_world *world; ts_deck *deck; ts_engine *engine; ts_error err = {0};
 *   if (ts_world_join (MPI_COMM_WORLD, &world, &err) != TS_OK || ...
 *       ts_deck_read_shared (world, "my.cfg", NULL, 0, &deck, &err) != TS_OK ||
 *       ts_initialize (&model, deck, world, TS_CAN_TRAIN, &engine, &err) != TS_OK) ...  // the same on every rank
 *   for (step ...) ts_train_batch (engine, &feed, &result, &err);      // forward, backward, reduce, clip, update
 *   ts_engine_destroy (&engine); ts_deck_destroy (&deck); ts_world_destroy (&world);
 *
 * One thread per process calls these functions.  Functions marked collective are called by every process of the world
 * in the same order.  A function that may fail returns a status and adds to an error text; of wrong input and of wrong
 * order no process is ended.  Where the machine fails (MPI, memory, a device) the job is ended by MPI_Abort.
 *
 * A pointer may be NULL where that is said, and nowhere else: not a name, samples, a feed, nor the handle that a
 * ..._destroy is given the address of, though what is there may be NULL.  The library does not check that, nor that
 * memory is as large as said, nor numbers of parameters and states beyond their count.
 */
#ifndef TS_ENGINE_TESSERA_H
#define TS_ENGINE_TESSERA_H

#include "comm/world.h"
#include "deck/deck_read.h"
#include "graph/value.h"
#include "model/builder.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct ts_engine ts_engine;

/** What an engine can be asked for; a mask.  Memory is planned for what is asked, and for nothing else. */
enum {
  TS_CAN_TRAIN = 1,    /**< Whole steps, ts_train_batch. */
  TS_CAN_EVALUATE = 2, /**< ts_eval_batch, and forwards that are not trained. */
  TS_CAN_GENERATE = 4, /**< Texts, as `tessera generate` makes them; not of models of a program's own. */
  TS_CAN_STEP = 8,     /**< ts_forward, ts_backward, ts_step.  The loss is known after the forward, for which
                        * a head makes its logits twice. */
  TS_CAN_SEED = 16,    /**< With STEP: gradients of outputs, ts_set_output_gradient. */
  TS_CAN_DEFER = 32    /**< With STEP: gradients of some micro-batches stay on their rank and are reduced together,
                        * ts_no_sync_begin and ts_coalesce_grad_reduction_begin; at ZeRO stages 2 and 3 this keeps the
                        * gradients of the whole model on every rank, at 0 and 1 a shard more. */
};

/** Read a deck on rank 0 for all ranks of the world, as ts_deck_read does, and say what of it has no effect. Collective
 * over the world.
 * \param [in] path, sets, n_sets  Read on rank 0 alone.
 * \return TS_BAD_INPUT, agreed, with the list in \a err. */
ts_status ts_deck_read_shared(ts_world *world, const char *path, char *const *sets, int n_sets, ts_deck **out,
                              ts_error *err);

/** Plan, allocate, and give every parameter its share's first values, drawn from run.seed or read from `model.from`: no
 * rank ever has more of the model than the deck's ZeRO stage says.  Collective over the world.
 * \param [in]     model  A program's own, copied (its deck has model.model_type = "own"); NULL: the deck's.
 * \param [in,out] deck   Borrowed for the engine's life, and for one engine.  What it leaves open is decided: a
 *                        bf16.enabled of "auto", and the batch triple.
 * \param [in]     world  Borrowed for the engine's life; several engines may share it.
 * \param [in]     abilities  Mask of TS_CAN_...
 * \param [out]    engine  End with ts_engine_destroy; NULL where the status is not TS_OK.
 * \return TS_BAD_INPUT, agreed: what is wrong with deck, model or Hugging Face directory, or does not fit into
 *         memory. */
ts_status ts_initialize(const ts_own_model *model, ts_deck *deck, ts_world *world, unsigned abilities,
                        ts_engine **engine, ts_error *err);

/** Memory of the rank that needs most, in bytes, as `tessera plan` prints it; where there is a GPU, of it. */
typedef struct ts_planned_memory {
  int64_t parameters, gradients, optimizer, activations, buffers;
  int64_t checkpoint; /**< Of the host: the copy that an asynchronous save writes from. */
  int64_t reserve;    /**< What libraries keep to themselves. */
  int64_t peak;       /**< Of these together, but on a GPU for \a checkpoint. */
} ts_planned_memory;

/** What ts_initialize would need on \a ranks ranks like this machine: of the training program, or of evaluation where
 * the abilities have nothing else.  Nothing is allocated, and MPI need not run: for a login node.  Not collective.
 * \param [in]     model, abilities  As ts_initialize takes them.
 * \param [in,out] deck  What it leaves open is decided, so that it is not read again for another number of ranks.
 * \return TS_BAD_INPUT: as ts_initialize, but for memory. */
ts_status ts_plan_memory(const ts_own_model *model, ts_deck *deck, int ranks, unsigned abilities,
                         ts_planned_memory *memory, ts_error *err);

/** Free *engine, which may be NULL, and set it to NULL; before its deck and its world. Collective over the world. */
void ts_engine_destroy(ts_engine **engine);

/** The agreed result of a step; the same on every rank but for the times. */
typedef struct ts_step_result {
  double loss;      /**< Mean over all valid tokens of the global batch, with */
  double balance;   /**< what the balance of experts adds to it. */
  double grad_norm; /**< Before clipping. */
  double lr;
  double valid_tokens;
  bool skipped;                       /**< Nothing was updated: no valid token, or: */
  bool overflow;                      /**< Loss or norm was not finite. */
  bool searching;                     /**< Likewise: the loss was, so it only says that the loss scale is too large. */
  bool stuck;                         /**< Likewise, and the loss scale is at its minimum. */
  double loss_scale, next_loss_scale; /**< Of this step, 1 without one; and of the next. */
  double flag[TS_N_FLAGS];            /**< Largest value any rank gave in \a flags. */
  double communication_seconds, exposed_seconds;            /**< This rank's, of this step; by hand since the last. */
  double forward_seconds, backward_seconds, update_seconds; /**< Likewise: wall time of the phases. */
  double busy_seconds; /**< Likewise: of all phases without what they waited for; on a device without what they waited
                        * for other stages of a pipeline. */
  /** Of the pipeline this rank is in, on all its ranks: the share of the time from its first instance to its last one
   * in which a stage computes nothing, mean over stages; 0 of one stage. */
  double bubble;
} ts_step_result;

/** Samples are dealt out to groups of ranks: this rank's group, and how many there are.  Ranks of a group (which differ
 * along tp, sp or pp) give the same samples, others other ones. Not collective. */
int ts_data_parallel_rank(const ts_engine *engine);
int ts_data_parallel_size(const ts_engine *engine);

/** Which tokens of each sample this rank has in outputs [batch][tokens]...: the rows of a sample there are those of the
 * first stretch, then those of the second.  Ranks that differ along sp have different tokens, each token one of them;
 * without sequence parallelism there is one stretch, of all tokens.  Inputs are given whole.
 * \param [out] begin, length  Of each stretch, in tokens of the sample, ascending.
 * \return the number of stretches, 0 to 2. Not collective. */
int ts_output_tokens(const ts_engine *engine, int64_t begin[2], int64_t length[2]);

/** The batch triple: train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x
 * data parallel size. Not collective. */
int64_t ts_train_batch_size(const ts_engine *engine);
int64_t ts_train_micro_batch_size(const ts_engine *engine);
int64_t ts_gradient_accumulation_steps(const ts_engine *engine);

/** Another number of samples from the next step on: the accumulation steps follow, a multiple of those that go together
 * by run.accumulation_order. Not collective, but the same on all
 * ranks.
 * \return TS_BAD_INPUT: it is no multiple of the others; amid a step; or the engine was made for one accumulation step
 *         and without TS_CAN_STEP. */
ts_status ts_set_train_batch_size(ts_engine *engine, int64_t size, ts_error *err);

/* ---- whole steps ---- */

/** Where a step's samples come from. */
typedef struct ts_feed {
  /** Set every input (ts_set_input) to this rank's samples of \a micro_batch, from 0.  A stage of a pipeline that has
   * several pieces of the model asks as often for each micro-batch, for others in between: the same samples each time.
   * It has no way to fail: samples that may be bad are read before, and agreed on (ts_world_agree).  What ts_set_input
   * refuses here ends the step.  Calls of steps, values and checkpoints are refused here; ts_set_learning_rate holds
   * for this step already. */
  void (*feed)(ts_engine *engine, int64_t micro_batch, void *user);
  /** Asked once, after the last micro-batch: values of this rank of which everybody gets the largest (a stop request,
   * seconds); NULL for zeros. */
  void (*flags)(void *user, double flags[TS_N_FLAGS]);
  void *user;
} ts_feed;

/** A whole step: forward and backward of gradient_accumulation_steps micro-batches, reduce, agree on the record, clip,
 * update. Collective over the world.
 * \param [out] result  May be NULL.
 * \return TS_BAD_INPUT: without TS_CAN_TRAIN; a model without a loss; amid a step by hand; an input that is refused,
 *         and then nothing is updated. */
ts_status ts_train_batch(ts_engine *engine, const ts_feed *feed, ts_step_result *result, ts_error *err);

/** The loss without training, dropout or gradients, of \a micro_batches of every rank (0: gradient_accumulation_steps).
 * Steps are not disturbed, but for the values of a forward. Collective over the world.
 * \param [out] loss_sum, labels  Over all ranks: the sum, and what to divide it by.
 * \return TS_BAD_INPUT: without TS_CAN_EVALUATE; a model without a loss; an input that is refused. */
ts_status ts_eval_batch(ts_engine *engine, const ts_feed *feed, int64_t micro_batches, double *loss_sum, double *labels,
                        ts_error *err);

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
 * take their tokens).  Values stay until they are set again; an input that was never set is 0; one that nothing reads
 * may be set. Not collective.
 * \return TS_BAD_INPUT: the model declares no such input. */
ts_status ts_set_input(ts_engine *engine, const char *name, const void *samples, ts_error *err);

/** Forwards train from now on, with dropout and values kept for a backward, or they do not.  An engine begins with
 * training. Not collective. \return TS_BAD_INPUT: it was made without TS_CAN_EVALUATE. */
ts_status ts_set_training(ts_engine *engine, bool training, ts_error *err);

/** The model on the inputs; with dropout its numbers are the samples', so the same inputs give the same values again.
 * Collective over the world. */
ts_status ts_forward(ts_engine *engine, ts_error *err);

/** Of the last forward, until a backward, a step or an evaluation: an output in fp32, in the shape the model gave it
 * (ranks along sp: their tokens of it, ts_output_tokens); this rank's sum of the loss, in training with the part for
 * the balance of experts, and the number of labels it is of (the same on ranks along tp, or each its part of both).  On
 * a device they wait for it. Not collective. */
ts_status ts_get_output(ts_engine *engine, const char *name, float *value, ts_error *err);
ts_status ts_get_loss(ts_engine *engine, double *sum, double *labels, ts_error *err);

/** Add the gradients of weight times the loss, and of the outputs whose gradient was set since the forward, to those of
 * this step.  \a weight is 1, or what a loss of several engines says of this one's; a number that is none is refused.
 * Ends the values of the forward (there is no retain_graph: forward again).  The last micro-batch's reduces the step's
 * gradients. Collective over the world. */
ts_status ts_backward(ts_engine *engine, double weight, ts_error *err);

/** Set the gradient of an output, in fp32 and in its shape, for the next backward; those not set are 0.  In fp16 it has
 * to be that of ts_scale (engine, loss).  Beside a loss of the model, whose sum is divided by the labels that count,
 * the step multiplies it by n / these labels, with n those of ts_gradient_accumulation_steps micro-batches of all ranks
 * if none is masked: by 1 where that is so. Not collective. */
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

#endif
