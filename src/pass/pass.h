/** \file
 * Passes: each takes the graph and gives back a new one, or fills in what it computes about it in the context.
 *
 * passes.c holds the ordered list.  A row states what a pass requires and provides (facts, as bits); the runner checks
 * the table, times each pass, verifies the graph after it (graph/graph.h, plus the pass's own check), and dumps it on
 * request.  None of these functions is collective.
 */
#ifndef TS_PASS_PASS_H
#define TS_PASS_PASS_H

#include "backend/backend.h"
#include "comm/mesh.h"
#include "deck/deck.h"
#include "graph/graph.h"
#include "model/model.h"
#include "pass/layout.h"

/** Facts about a graph that passes establish. */
typedef enum ts_fact {
  TS_FACT_MODEL = 1,       /**< The forward step of one device. */
  TS_FACT_PRECISION = 2,   /**< Working dtypes are decided. */
  TS_FACT_SHARDED = 4,     /**< Tensors are this rank's part along tp. */
  TS_FACT_GRADIENTS = 8,   /**< Backward nodes exist. */
  TS_FACT_RECOMPUTE = 16,  /**< What is saved and what is computed again is decided. */
  TS_FACT_EXCHANGED = 512, /**< Attention sees the tokens of all ranks. */
  TS_FACT_LAYOUT = 32,     /**< Parameters are windows on flat storage; gathers, reductions and the update exist. */
  TS_FACT_FUSED = 64,
  TS_FACT_SCHEDULE = 128, /**< The order is final; collectives have their places of issue and completion. */
  TS_FACT_MEMORY = 256    /**< Every tensor has an address. */
} ts_fact;

/** Who makes the updates of what has left a device (run.offload_update). */
typedef enum ts_offload_updater { TS_UPDATES_OPEN, TS_UPDATES_BY_DEVICE, TS_UPDATES_BY_HOST } ts_offload_updater;

/** What of the state that may leave stays, where the deck leaves it to what fits (run/budget.h). */
typedef struct ts_offload_stay {
  bool decided;     /**< Else the deck says it (pass/offload.h). */
  int64_t live;     /**< Elements gathered at a time, at most, and no more than stage3_max_live_parameters. */
  int64_t together; /**< Micro-batches that go through the model unit by unit, at most; 0 as 1. */
  bool at_once;     /**< No update waits for the next forward: what is computed there leaves no room for its pieces, on
                     * this rank or another. */
  bool all;         /**< Where of_part is NULL: all of it, else nothing. */
  int kept;         /**< One more than the tensors that stay where they are computed, of activations that leave: those
                     * that the backward reads first; whether the rest is decided or not.  0: the deck says it. */
  int kept_stored;  /**< Of the others, beside a device, those that go to a file: that it reads last.  Of processors
                     * all others do. */
  ts_offload_updater updater; /**< Where the deck says "auto", whether the rest is decided or not; OPEN: as DEVICE. */
  unsigned char *of_part;     /**< By part of the layout, TS_STATES_STAY, ... (pass/offload.h). */
} ts_offload_stay;

struct ts_sequence;
struct ts_shards;
struct ts_stages;
struct ts_schedule;
struct ts_step_runs;
struct ts_plan;

typedef struct ts_pass_context {
  const ts_deck *deck;
  const ts_mesh *mesh;
  ts_target target;
  ts_model_use use;                   /**< TRAIN runs every pass; LOSS and LOGITS skip those about gradients. */
  bool by_hand;                       /**< A program reads the loss of each forward. */
  bool seeded;                        /**< The host may give gradients of outputs. */
  ts_offload_stay stay;               /**< What leaves no memory; of_part is borrowed. */
  bool defers;                        /**< Gradients may stay on their rank for some micro-batches (pass/zero.c). */
  const struct ts_step_runs *step;    /**< The runs of one step; borrowed. */
  const struct ts_sequence *sequence; /**< How ranks along sp share samples; borrowed. */
  struct ts_shards *shards;           /**< Made by shard, NULL without tensor parallelism; owned by the program. */
  const struct ts_stages *stages;     /**< Who has which units; NULL where the model is one piece; borrowed. */
  struct ts_layout *layout;     /**< That of the engine's first program, or NULL: made by stage, then the caller's. */
  struct ts_schedule *schedule; /**< Made by schedule; owned by the program. */
  struct ts_plan *plan;         /**< Made by memory; owned by the program. */
} ts_pass_context;

/** A pass: replaces *graph (destroying the old one) or leaves it. */
typedef void ts_pass_run(ts_graph **graph, ts_pass_context *context);

typedef struct ts_pass {
  const char *name;
  ts_pass_run *run;
  unsigned requires, provides, conflicts; /**< Masks of ts_fact. */
  bool gradients_only;                    /**< Skipped unless use is TRAIN. */
  const char *help;
} ts_pass;

/** The list, in order, ended by a row with name NULL. */
extern const ts_pass ts_passes[];

/** Called with the graph after each pass; for dumps. */
typedef void ts_pass_observer(const char *pass, const ts_graph *graph, void *user);

/** Run one pass: what it requires must be among the facts and what it conflicts with not, then those that it provides
 * are.  The graph is verified behind it where it has changed (ts_graph.changes), and in a build with assertions always.
 * A violation is a programmer's mistake and ends the program, naming pass, node and rule. Not collective. */
void ts_pass_apply(const ts_pass *pass, ts_graph **graph, ts_pass_context *context, unsigned *facts);

/** Run all passes of the list that apply, up to and including \a last (NULL: all), by ts_pass_apply. Not
 * collective. */
void ts_passes_run(ts_graph **graph, ts_pass_context *context, const char *last, ts_pass_observer *observer,
                   void *user);

/** True for what is fp32 in every precision: the product that makes the logits of generation, with what scales them,
 * and that which makes a router's. Not collective. */
bool ts_makes_fp32(const ts_graph *graph, const ts_node *node);

/** True for an input that is fp32 in every precision, while the others of the node, and what it makes, are not for
 * that: what a router reads, and the weights of chosen experts. Not collective. */
bool ts_reads_fp32(const ts_node *node, int input);

/** True when a rank sums the whole gradients of a part over its own micro-batches, to be reduced at once, as at stages
 * 0 and 1 and of one rank; else they are reduced each time (pass/zero.c). Not collective. */
bool ts_part_sums_whole(const ts_pass_context *context, const ts_part *part);

/** The passes. Not collective. */
ts_pass_run ts_pass_precision, ts_pass_autocast, ts_pass_shard, ts_pass_experts, ts_pass_tile, ts_pass_balance,
    ts_pass_stage, ts_pass_crossing, ts_pass_autodiff, ts_pass_loss_scale, ts_pass_recompute, ts_pass_head_groups,
    ts_pass_exchange, ts_pass_placed, ts_pass_partition, ts_pass_offload, ts_pass_unroll, ts_pass_zero, ts_pass_fuse,
    ts_pass_epilogue, ts_pass_fused_qkv, ts_pass_schedule, ts_pass_memory, ts_pass_rehearse;

#endif
