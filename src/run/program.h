/** \file
 * A program: one rank's lowered graph with its schedule and memory plan, for one use of the model.  Making one needs no
 * MPI and no memory beyond the tables, so a login node can make the program of any rank of any grid.
 * None of these functions is collective.
 */
#ifndef TS_RUN_PROGRAM_H
#define TS_RUN_PROGRAM_H

#include "pass/offload.h"
#include "pass/pass.h"
#include "pass/plan.h"
#include "pass/schedule.h"
#include "pass/sequence.h"
#include "pass/step.h"

typedef struct ts_program_options {
  const ts_deck *deck; /**< Borrowed for the program's life. */
  const ts_mesh *mesh; /**< Copied. */
  ts_target target;
  ts_model_use use;
  int64_t batch;             /**< Sequences of one micro-batch of one rank. */
  int64_t length;            /**< Tokens of a sequence. */
  int64_t context;           /**< LOGITS: tokens that are kept (model/model.h); else not read. */
  const ts_own_model *model; /**< A program's own; NULL: the deck's. */
  bool by_hand;              /**< TRAIN: runs come in any order (ts_step_run_by_hand). */
  bool seeded;               /**< TRAIN: the host may give gradients of outputs, as an input "seed:NAME" each. */
  bool defers;         /**< TRAIN: gradients of any micro-batches may be reduced together, several times a step. */
  bool evaluates;      /**< TRAIN: a program of the model's evaluation comes too: ts_program_check builds both. */
  ts_step_order order; /**< TRAIN: of its runs; zero accumulates gradients, micro-batch by micro-batch. */
  int64_t memory;      /**< Bytes that a rank may take where it computes, for device = "auto"; 0: what the deck says. */
  int64_t host_memory; /**< And of the host's memory beside a device. */
  ts_offload_stay stay;    /**< Where it is decided: what ts_budget_decide said, borrowed; else the program decides. */
  const ts_layout *layout; /**< Layout of the engine's first program, borrowed; NULL makes (and owns) one. */
  const struct ts_stages *stages; /**< Its cut, likewise, where layout is not NULL. */
  const char *last_pass;          /**< Stop after this pass; NULL for all. */
  ts_pass_observer *observer;     /**< Sees the graph after each pass; NULL for none. */
  void *observer_user;
} ts_program_options;

typedef struct ts_program {
  ts_model_use use;
  int64_t batch, length;
  const ts_deck *deck;
  ts_mesh mesh;
  ts_target target;
  ts_graph *graph;                    /**< Owned. */
  int64_t counted;                    /**< What the loss of whole samples counts where nothing is masked: labels; 0: the
                                       * model has no loss. */
  ts_strings declared;                /**< Owned: the model's inputs, also those that nothing reads. */
  double flops, flops_full_attention; /**< See ts_program_model_flops. */
  ts_step_runs step;                  /**< The runs of one step. */
  ts_offload_count offload;           /**< Elements that could leave, and that stay of these. */
  bool updates_on_host;               /**< Of what left a device, some or all. */
  int kept_away;     /**< Tensors that have left between the forward and the backward that reads them, */
  int units_away;    /**< of so many units. */
  ts_layout *layout; /**< Owned when owns_layout. */
  bool owns_layout;
  ts_attention_heads heads;       /**< Of the model. */
  ts_sequence sequence;           /**< How ranks along sp share samples; of generation each has them whole. */
  ts_tokens tokens;               /**< This rank's of a sample; n = 0 where it has whole ones. */
  struct ts_shards *shards;       /**< Owned; NULL without tensor parallelism. */
  const struct ts_stages *stages; /**< Owned where the layout is; NULL where the model is one piece. */
  ts_schedule *schedule;          /**< Owned; NULL when stopped before it. */
  ts_plan *plan;                  /**< Owned; NULL when stopped before it. */
} ts_program;

/** The mesh the deck asks for on \a ranks ranks, seen from mesh rank \a rank. Not collective.
 * \return TS_BAD_INPUT when the grid does not multiply to the ranks, with the equation. */
ts_status ts_deck_mesh(const ts_deck *deck, int ranks, int rank, ts_mesh *mesh, ts_error *err);

/** Lay the state of several programs out in one arena of each space: a leaf lies where the first program that has its
 * name has it. A leaf that two programs have must be as large in both (checked). Not collective.
 * \param [in] programs  \a n of them, or NULL for none.
 * \param [out] end    Bytes of each arena whose lifetime is STATE; of others 0.
 * \param [out] moved  NULL, or for each program an array by tensor: bytes from where its own plan has what lies in
 *                     one of these to where it is; the caller's (ts_free). */
void ts_programs_share_state(const ts_program *const *programs, int n, int64_t end[TS_N_ARENAS], int64_t **moved);

/** What an arena takes that several programs have: STATE and FILE what ts_programs_share_state says, STATE a page more
 * where there is a file, so that what is read from it can begin at one; INPUT the sum, so that what the host writes for
 * one stays while another runs; the others the largest. Not collective.
 * \param [in] programs  \a n of them, or NULL for none. */
int64_t ts_programs_arena_bytes(const ts_program *const *programs, int n, ts_arena arena);

/** What can be wrong with a deck only once its model and grid are known; the programs can be made where nothing is.
 * Not collective.
 * \return TS_BAD_INPUT with the key. */
ts_status ts_program_check(const ts_program_options *options, ts_error *err);

/** What a rank sends along an axis, in bytes. */
typedef struct ts_sent {
  double micro_batch; /**< Over groups along the axis alone, forward and backward of one micro-batch. */
  int messages;       /**< So many collectives are that. */
  double with_others; /**< In a step, over groups along this axis and others too, or a part of it: gradients of what is
                       * whole or shared, and new values, each as often as the stage sends it; the step's record. */
  double step;        /**< All of them in a step. */
} ts_sent;

/** What a rank sends along \a axis.  Among r ranks reductions and gathers of n bytes move (r - 1) / r n of them, an
 * all_reduce is one of each; an all_to_all sends what its list says. Not collective.
 * \param [in] program  One that has not ended before the pass zero; else with_others lacks what comes with it. */
ts_sent ts_program_sent(const ts_program *program, ts_axis axis);

/** What a collective of the program sends from this rank, bytes; with experts that are chosen alike. Not collective. */
double ts_program_message_bytes(const ts_program *program, const ts_node *node);

/** Bytes of the tensors that a collective or message is about, whole, as they travel: of a gather or reduction over all
 * ranks of its group, of an exchange what a rank hands out, its own share included (of experts that are chosen alike).
 * With ts_bus_factor it is what nccl-tests calls the size. Not collective. */
double ts_program_whole_bytes(const ts_program *program, const ts_node *node);

/** What a rank of \a ranks sends of each byte of these: 2 (n - 1) / n of an all_reduce, (n - 1) / n of the others, 1 of
 * a message to another rank (nccl-tests, doc/PERFORMANCE.md). Not collective. */
double ts_bus_factor(ts_op op, int ranks);

/** Ranks that take part: of a message 2. Not collective. */
int ts_node_ranks(const ts_node *node);

/** May several micro-batches go through the model unit by unit (run.accumulation_order)?  In training, of a model that
 * is one piece, whose runs come in their order. Not collective. */
bool ts_program_may_go_by_unit(const ts_program_options *options);

/** The model's graph, before any pass; of one's own that ts_program_check took. Not collective.
 * \return end with ts_graph_destroy. */
ts_graph *ts_program_model(const ts_program_options *options);

/** Build the model's graph and run the passes; a model of one's own was checked by ts_program_check. Not collective.
 * \return the program, end with ts_program_destroy. */
ts_program *ts_program_create(const ts_program_options *options);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_program_destroy(ts_program **program);

/** FLOPs of the model's mathematics for one micro-batch: forward and backward of matrix products and attention with the
 * causal half (6 N + 6 L C T per token for training, 2 N + 2 L C T for evaluation) or what a window leaves of it,
 * counted on the whole model's graph, however many ranks share the work.
 * \param [out] full_attention  The same with attention counted without masks (6 N + 12 L C T); may be NULL.
 * Not collective. */
double ts_program_model_flops(const ts_program *program, double *full_attention);

/** Parameters of the whole model that a token meets: of experts those of as many as it chooses. Not collective. */
int64_t ts_program_active_parameters(const ts_program *program);

/** FLOPs of a step: all micro-batches of all ranks; of other uses one of each. Not collective. */
double ts_program_step_flops(const ts_program *program);

#endif
