/** \file
 * The values of an engine's parameters, and what training keeps beside them, gradients and states of the optimizer:
 * read and written by name, on any grid, at any ZeRO stage and in any precision.  What DeepSpeed has as
 * safe_get_full_..., safe_set_full_..., safe_get_local_..., safe_set_local_... and zero.GatheredParameters.
 *
 *   float *g = malloc (elements * sizeof *g);
 *   ts_backward (engine, 1, &err);                                        // the last of a step: gradients are reduced
 *   ts_get_full_fp32_gradient (engine, "model.norm.weight", g, &err);     // on every rank
 *   ...
 *   ts_set_full_fp32_gradient (engine, "model.norm.weight", g, &err);
 *   ts_step (engine, NULL, &err);                                         // updates with what was set
 *
 * Values are fp32 here, whatever they are kept in; all of a parameter is its elements in row-major order of the whole
 * tensor.  Between two updates what was read and is set again changes no bit of what follows, but for copies that
 * bf16.stochastic_rounding has made.  Where nothing else is said functions wait for a device and are done when they
 * return; memory is the caller's and borrowed during the call.
 *
 * What a caller can get wrong is TS_BAD_INPUT with the rule in the message, found by every rank for itself, as all make
 * the same calls: a name that there is not, with the nearest one; gradients and states of a frozen parameter, or of an
 * engine that does not train.  Nothing is changed then.
 */
#ifndef TS_ENGINE_VALUES_H
#define TS_ENGINE_VALUES_H

#include "base/error.h"
#include "engine/tessera.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- which there are ---- */

/** Parameters are numbered from 0, unit by unit, the same on all ranks; another grid or stage may have another order.
 * Their number, and the name of one: borrowed, the engine's. Not collective. */
int ts_parameter_count(const ts_engine *engine);
const char *ts_parameter_name(const ts_engine *engine, int i);

/** The shape of the whole tensor.
 * \param [out] extent  May be NULL.
 * \return the number of extents. Not collective. */
int ts_parameter_shape(const ts_engine *engine, int i, int64_t extent[TS_MAX_DIMS]);

/** False of what the deck has frozen. Not collective. */
bool ts_parameter_is_trainable(const ts_engine *engine, int i);

/** The states that the optimizer keeps of parameter \a i, by their names in torch and in checkpoints: "exp_avg",
 * "exp_avg_sq" (Adam, Lamb; Lion has the first), "sum" (Adagrad), "momentum_buffer" (SGD with momentum, Muon).  None
 * of a frozen parameter, or where the engine does not train.  Names are constants. Not collective. */
int ts_optimizer_state_count(const ts_engine *engine, int i);
const char *ts_optimizer_state_name(const ts_engine *engine, int i, int state);

/* ---- all of a parameter, on every rank ---- */

/** Read a parameter (the master where there is one).
 * \param [out] value  All of it. Collective over the world. */
ts_status ts_get_full_fp32_parameter(ts_engine *engine, const char *parameter, float *value, ts_error *err);

/** Write a parameter: masters, and working values rounded to nearest; forwards from the next one on have it (DeepSpeed
 * changes working values at stages 1 and 2 with the next update).  Every rank gives the same values and takes what it
 * keeps of them. Not collective, but values differ between ranks unless all call it. */
ts_status ts_set_full_fp32_parameter(ts_engine *engine, const char *parameter, const float *value, ts_error *err);

/** The gradient of the step that is under way, as the optimizer would see it before clipping: averaged over the labels
 * that count of all micro-batches and ranks (gradients of outputs: summed), without the loss scale.  There from the
 * ts_backward on that reduces (the step's last, or the end of a block of coalesce) until ts_step, ts_zero_grad or
 * another backward, so of an engine with TS_CAN_STEP; in whole steps (ts_train_batch) the update follows at
 * once and may use the gradient's memory.  What is set is what ts_step measures, clips and updates with; it is kept in
 * the type of gradients (data_types.grad_accum_dtype), times the loss scale, so in fp16 it may overflow as a gradient
 * may.  Where not every label counts there is a factor between both that is no power of two: what is set is then read
 * back to a rounding.  Collective over the world: the labels that count are added up, by the setter too.
 * \return TS_BAD_INPUT: there is none, it is not reduced yet, or no label of the step counts. */
ts_status ts_get_full_fp32_gradient(ts_engine *engine, const char *parameter, float *value, ts_error *err);
ts_status ts_set_full_fp32_gradient(ts_engine *engine, const char *parameter, const float *value, ts_error *err);

/** A state of the optimizer, by name (ts_optimizer_state_name); 0 before the first update.  What is set is rounded to
 * the type of states (optimizer.state_dtype); in 8 bits a block of 256 elements is coded anew where one changes.
 * To get is collective over the world.  To set is not collective, but states differ between ranks unless all call it
 * with the same values.
 * \return TS_BAD_INPUT: there is no such state; or before the first update one that begins with it ("sum", and
 *         "momentum_buffer" of SGD). */
ts_status ts_get_full_optimizer_state(ts_engine *engine, const char *parameter, const char *state, float *value,
                                      ts_error *err);
ts_status ts_set_full_optimizer_state(ts_engine *engine, const char *parameter, const char *state, const float *value,
                                      ts_error *err);

/* ---- what is this rank's ---- */

/** A rank's share of a parameter: the elements that it updates, or would at ZeRO stages 1 to 3, and that it saves in
 * checkpoints; the same at every stage.  The shares of all owners are the whole tensor, each element once. */
typedef struct ts_local_share {
  int64_t elements; /**< May be 0. */
  int64_t n_pieces; /**< Runs of elements that lie together in the whole tensor: several where tp cuts it. */
  bool is_owner;    /**< False of a copy: another rank has the same elements and is their owner. */
} ts_local_share;

/** Elements [first, first + count) of the whole tensor, in row-major order. */
typedef struct ts_local_piece {
  int64_t first, count;
} ts_local_piece;

/** This rank's share, and its pieces, one after another as their values are.
 * \param [out] piece  ts_local_share.n_pieces of them. Not collective. */
ts_status ts_get_local_share(const ts_engine *engine, const char *parameter, ts_local_share *share, ts_error *err);
ts_status ts_get_local_pieces(const ts_engine *engine, const char *parameter, ts_local_piece *piece, ts_error *err);

/** The values of this rank's share.
 * \param [out] value  ts_local_share.elements of them.
 * Not collective, but of gradients: collective over the world, because the labels that count are added up. */
ts_status ts_get_local_fp32_parameter(ts_engine *engine, const char *parameter, float *value, ts_error *err);
ts_status ts_get_local_fp32_gradient(ts_engine *engine, const char *parameter, float *value, ts_error *err);
ts_status ts_get_local_optimizer_state(ts_engine *engine, const char *parameter, const char *state, float *value,
                                       ts_error *err);

/** Write the values of every rank's share: each gives its own, ranks with copies the same ones.  Where a stage keeps
 * more than shares (working values at stages 0 to 2, all at 0) ranks complete what the others wrote; elsewhere no
 * values travel.  Otherwise as the setters of all of a parameter.
 * \param [in] value  ts_local_share.elements of them. Collective over the world. */
ts_status ts_set_local_fp32_parameter(ts_engine *engine, const char *parameter, const float *value, ts_error *err);
ts_status ts_set_local_fp32_gradient(ts_engine *engine, const char *parameter, const float *value, ts_error *err);
ts_status ts_set_local_optimizer_state(ts_engine *engine, const char *parameter, const char *state, const float *value,
                                       ts_error *err);

/* ---- several parameters ---- */

/** Read all of \a n parameters on every rank: zero.GatheredParameters (modifier_rank = None).
 * \param [out] value  [n], each for all of a parameter. Collective over the world. */
ts_status ts_gather_parameters(ts_engine *engine, const char *const *parameter, int n, float *const *value,
                               ts_error *err);

/** Write all of \a n parameters with the values of one rank: the end of zero.GatheredParameters (modifier_rank = r).
 * \param [in,out] value  [n]: read on the rank \a modifier_rank of the world; on the others each may be NULL, or has
 *                        room and gets them. Collective over the world. */
ts_status ts_scatter_parameters(ts_engine *engine, const char *const *parameter, int n, float *const *value,
                                int modifier_rank, ts_error *err);

/* ---- the learning rate ---- */

/** Updates from the next one on take this rate, whatever the schedule says, until it is set again; below 0: the
 * schedule's again, which has gone on counting updates meanwhile.  It stands for the deck's: rates of parameter groups
 * (lr_factor) and of Muon keep their ratio to it.  ts_learning_rate and ts_step_result.lr tell it.  A checkpoint does
 * not have it and loading one does not change it: who goes on from one sets it again.  Every rank sets the same.
 * \return TS_BAD_INPUT: it is not finite. Not collective. */
ts_status ts_set_learning_rate(ts_engine *engine, double lr, ts_error *err);

#endif
