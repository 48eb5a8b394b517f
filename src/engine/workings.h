/** \file
 * What this tree's own programs know of an engine beside the functions of the library (engine/tessera.h).
 */
#ifndef TS_ENGINE_WORKINGS_H
#define TS_ENGINE_WORKINGS_H

#include "comm/comm.h"
#include "deck/deck.h"
#include "engine/checkpoints.h"
#include "engine/tessera.h"
#include "engine/timeouts.h"
#include "engine/values.h"
#include "graph/record.h"
#include "io/batch.h"
#include "run/executor.h"
#include "run/program.h"

typedef struct ts_engine_options {
  ts_world *world;                /**< Borrowed for the engine's life. */
  ts_deck *deck;                  /**< Borrowed; its batch triple is resolved (ts_deck_resolve_batch), its
                        * precision decided (ts_engine_decide_precision). */
  const ts_mesh *mesh;            /**< Copied; NULL: what the deck asks for (ts_deck_mesh). */
  const ts_own_model *model;      /**< A program's own (model/builder.h), copied; NULL: the deck's family. */
  unsigned abilities;             /**< Mask of TS_CAN_...; memory is planned for these. */
  ts_step_order order;            /**< Of the runs of a training step (pass/step.h). */
  int64_t context;                /**< Of generation: tokens that are looked back on, at most; 0: as sequence_length. */
  int64_t steps;                  /**< Of the whole run, for a schedule whose deck has no total (run.epochs); else 0. */
  int64_t texts;                  /**< Of generation: how many a rank continues at a time; 0 stands for 1. */
  bool loads;                     /**< The caller loads a checkpoint next: parameters get no first values. */
  ts_executor_observer *observer; /**< For timelines; NULL for none. */
  void *observer_user;
} ts_engine_options;

/** Told of what a stage of a pipeline did, "stage1:2F3", on the host's clock. */
typedef void ts_instance_observer(void *user, const char *instance, double start, double seconds);

/** Tell an observer of the instances of the steps from now on, NULL for none. Not collective. */
void ts_engine_observe_instances(ts_engine *engine, ts_instance_observer *observer, void *user);

/** The deck of rank 0 on every rank, with the places of its keys: who finds something wrong says where the user wrote
 * it. Collective over the world.
 * \param [in]     name  Of the file, for messages; relative paths start from its directory.
 * \param [in,out] deck  Read on rank 0, written on the others; the caller's. */
ts_status ts_engine_share_deck(ts_world *world, const char *name, ts_deck **deck, ts_error *err);

/** Decide a bf16.enabled that the deck leaves to the machine ("auto"): true where the device of every rank has
 * instructions for it that outrun fp32's.  To be called before ts_engine_create, which takes a deck that is decided.
 * Collective over the world.
 * \param [out] said  The line of ts_deck_decide_precision, the same on all ranks.
 * \return TS_BAD_INPUT, agreed: run.device is auto and only some ranks see a GPU. */
ts_status ts_engine_decide_precision(ts_world *world, ts_deck *deck, ts_text *said, ts_error *err);

/** The backend that a plan or graph is for: cpu, cuda, or with auto what run.device says, as this machine would
 * understand it.  A bf16.enabled that the deck leaves open is decided for it.  No device is needed. Not collective.
 * \return TS_BAD_INPUT: another target, or a GPU's for a program without CUDA. */
ts_status ts_engine_choose_target(const char *target, ts_deck *deck, const ts_backend **backend, ts_error *err);

/** What ts_initialize makes of an engine's options: plan, allocate, first values. Collective over the world.
 * \return TS_BAD_INPUT, agreed. */
ts_status ts_engine_create(const ts_engine_options *options, ts_engine **out, ts_error *err);

/** What a step works on. */
typedef struct ts_step_input {
  /** This rank's samples of all micro-batches, one after another; borrowed during the call. */
  const ts_batch *batch;
  void (*flags)(void *user, double flags[TS_N_FLAGS]); /**< As a feed's. */
  void *user;
} ts_step_input;

/** ts_train_batch, of samples that are there; what it refuses is a mistake here. Collective over the world. */
ts_step_result ts_engine_train_step(ts_engine *engine, const ts_step_input *input);

/** ts_eval_batch, of the micro-batches that are there. Collective over the world. */
void ts_engine_evaluate(ts_engine *engine, const ts_batch *batch, double *loss_sum, double *valid_tokens);

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

/** What experts got in the last step, by ts_layout.loads: sums over its micro-batches and all ranks, and each bias that
 * follows the balance as often as there were micro-batches.  The engine's, until the next step; NULL before the first,
 * and without experts. Not collective. */
const float *ts_engine_loads(const ts_engine *engine);

/** The first program (training, else evaluation, else generation): its plan and graph.  Borrowed. Not collective. */
const ts_program *ts_engine_program(const ts_engine *engine);

/** The inputs that its programs have: what a batch is made with (ts_batch_create). Not collective. */
unsigned ts_engine_inputs(const ts_engine *engine);

/** The grid, seen from this rank.  Borrowed. Not collective. */
const ts_mesh *ts_engine_mesh(const ts_engine *engine);

/** The time limits of its runs.  Borrowed. Not collective. */
const ts_timeouts *ts_engine_timeouts(const ts_engine *engine);

/** Write them to the run directory, which exists. Not collective. */
void ts_engine_keep_choices(const ts_engine *engine);

/** What state it has in a file, where and how, and of how many units what the backward reads leaves: a line.
 * \return NULL: all is in memory, as the deck wants it; the caller's (ts_free). Collective over the world. */
char *ts_engine_describe_offload(const ts_engine *engine);

/** What was moved since the last call, and how long that held up the computation.
 * \return NULL: nothing can be; the caller's (ts_free). Not collective. */
char *ts_engine_take_moved(ts_engine *engine);

/** The executor, for tests and metrics.  Borrowed. Not collective. */
ts_executor *ts_engine_executor(ts_engine *engine);

/** What a plan for this backend keeps room for (ts_target.cudnn). Not collective. */
ts_cudnn_use ts_engine_cudnn_use(const ts_deck *deck, const ts_backend *backend);

/** Threads a rank should use: the deck's run.threads, else OMP_NUM_THREADS, else this process's share of the cores it
 * may run on. Not collective. */
int ts_engine_threads(const ts_deck *deck, int local_ranks);

#endif
