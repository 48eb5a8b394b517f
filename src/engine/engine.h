/** \file
 * The engine's insides, shared by the files of this room.
 */
#ifndef TS_ENGINE_ENGINE_H
#define TS_ENGINE_ENGINE_H

#include "engine/lr_schedule.h"
#include "engine/workings.h"

/** What an engine has a program for.  Those of generation differ in how many tokens they take, the first one, and share
 * what is kept; where the context is short the longer ones are missing. */
enum {
  TS_PROGRAM_TRAIN,
  TS_PROGRAM_EVALUATE,
  TS_PROGRAM_GENERATE,
  TS_N_GENERATION = 3,
  TS_N_PROGRAMS = TS_PROGRAM_GENERATE + TS_N_GENERATION
};

/** The tokens of which the programs' state has keys and values, of each text. */
typedef struct ts_kept {
  int32_t *token; /**< Owned; [texts][context]. */
  int64_t *n;     /**< Owned; [texts] how many. */
  int64_t texts, context;
} ts_kept;

/** Where a program is that goes through steps by itself (by_hand.c). */
typedef struct ts_hand_steps {
  bool evaluating;       /**< Forwards are the evaluation program's. */
  bool forwarded;        /**< The values of a forward are there, */
  bool was_evaluated;    /**< the evaluation program's. */
  bool seeded;           /**< Gradients of outputs were given since the last forward. */
  bool scaled;           /**< ts_scale was asked since the last backward. */
  int64_t backwards;     /**< Since the last update. */
  bool local, reduced;   /**< There are gradients of this rank alone; and sums over ranks. */
  int block;             /**< ts_block_kind. */
  int64_t in_block;      /**< Backwards in it. */
  int64_t micro_steps;   /**< Calls of ts_step. */
  int64_t accumulation;  /**< Micro-steps of a step. */
  int boundary;          /**< The caller's word on whether this micro-step is the last; -1: it is counted. */
  bool applied;          /**< The last ts_step updated. */
  ts_step_result result; /**< Of the last update. */
} ts_hand_steps;

/** A feed is asked for samples: whose inputs ts_set_input writes. */
typedef struct ts_feeding {
  bool is_on, failed;
  int which, slot;
  int64_t member; /**< Which one of the micro-batches that are together. */
  ts_error *err;  /**< Of the call that asks. */
} ts_feeding;

/* What a rank may take of its host. */
typedef struct ts_memory_share {
  int64_t bytes; /* INT64_MAX: nobody knows */
  char *why;     /* owned: what limits it, for people */
} ts_memory_share;

struct ts_engine {
  ts_world *world; /* borrowed */
  ts_deck *deck;   /* borrowed; its batch follows ts_set_train_batch_size */
  ts_mesh mesh;
  const ts_backend *backend; /* what run.device chose */
  ts_program *program[TS_N_PROGRAMS];
  int index[TS_N_PROGRAMS]; /* in the executor; -1 where there is none */
  int n_programs;
  ts_memory_share memory; /* of the host, as it was before anything was taken */
  int64_t resident;       /* bytes of the process that had most, at that time */
  int64_t budget;         /* where ts_deck_fits_offload: bytes that a rank may take, */
  int64_t host_budget;    /* of the host's memory beside a device; 0: any number */
  ts_offload_stay stay;   /* and what stays so */
  ts_timeouts timeouts;
  ts_store *store;       /* NULL: all state is in memory */
  ts_store_counts moved; /* until somebody asked last */
  ts_executor *executor;
  ts_lr_schedule schedule;
  ts_loss_scaler scaler;
  bool has_own_rate; /* of ts_set_learning_rate, instead of the schedule's */
  double own_rate;
  int64_t updates; /* steps that were not skipped: a skipped one does not advance the schedule, as in DeepSpeed */
  int64_t steps, skipped; /* all, and those that were; of the whole run where it was loaded from a checkpoint */
  ts_kept kept;
  ts_own_model own; /* its write is NULL where the model is the deck's */
  unsigned abilities;
  ts_hand_steps hand;
  float *loads; /* owned: ts_engine_loads; NULL without experts */
  ts_feeding feeding;
  ts_instance_observer *instance_observer; /* NULL: nobody asks */
  void *instance_user;
};

/** The backend that run.device asks for, opened for this process; auto takes GPUs where every rank sees one.
 * Collective over the world.
 * \return TS_BAD_INPUT, agreed by all ranks: no GPU where cuda is asked for, an option that the device does not
 *         have. */
ts_status ts_engine_backend(const ts_deck *deck, ts_world *world, const ts_backend **out, ts_error *err);

/** What the engine's programs are made for: its backend and threads. Not collective. */
ts_target ts_engine_target(const ts_engine *engine);

/** Make the programs of what the options say the engine can do; with device = "auto" so that they fit, as far as that
 * can be (ts_engine_check_limits says whether they do).  The engine owns them and what stays of their state.
 * Collective over the world with "auto". */
void ts_engine_add_programs(ts_engine *engine, const ts_engine_options *options);

/** Free them, and the tokens that are kept for generation. Not collective. */
void ts_engine_drop_programs(ts_engine *engine);

/** Find what the ranks of each node may take of its memory: equal shares of what is free, and of what a group of
 * processes with a limit may still have (base/cgroup.h), among those in it. Collective over the world. */
void ts_engine_find_memory(ts_engine *engine);

/** Where this rank computes, bytes: what all its programs take, what a process had before them (the largest of all
 * ranks; 0 on a device), and what the deck's limits leave to programs beside that; 0: any number. Not collective. */
int64_t ts_engine_peak(const ts_engine *engine);
int64_t ts_engine_taken(const ts_engine *engine);
int64_t ts_engine_limit(const ts_engine *engine);

/** What they take of the host's memory beside a device, with a copy of the state where one is made for checkpoints,
 * bytes. Not collective. */
int64_t ts_engine_host_bytes(const ts_engine *engine);

/** Do the programs of all ranks stay within the deck's limits?  Collective over the world.
 * \return TS_BAD_INPUT, on all ranks, with what the rank needs that needs most. */
ts_status ts_engine_check_limits(const ts_engine *engine, ts_error *err);

/** Fit the programs into the memory of this rank's device and, all ranks of a node together, of its host?  Not
 * collective.
 * \return TS_BAD_INPUT with what is needed, what is free, and what other settings would need. */
ts_status ts_engine_check_memory(const ts_engine *engine, ts_error *err);

/** What the rank that has least may take, bytes: its GPU's free memory, or its share of what its node has available; 0
 * where that is not known. Collective over the world. */
int64_t ts_engine_memory_of_rank(const ts_engine *engine);

/** What is planned to fit where something may leave, bytes: within the deck's limit, else of what that rank may take
 * all but a sixteenth. Collective over the world. */
int64_t ts_engine_budget(const ts_engine *engine);

/** Make the file of the state that programs have in one, with its space; nothing where they have none. Collective over
 * the world.
 * \return TS_BAD_INPUT, agreed, with the directory: it cannot be written, there is no room. */
ts_status ts_engine_open_store(ts_engine *engine, ts_error *err);

/** Choose the algorithms of the programs' products on a device, once for all ranks; nothing on the host. Collective
 * over the world.
 * \return TS_BAD_INPUT, agreed, when the file of run.algorithms cannot be used. */
ts_status ts_engine_choose(ts_engine *engine, ts_error *err);

/** The limits of a run of the engine's programs; says which of them are longer than the deck says.  Measures the rate
 * of products where that may matter, which takes 0.3 s and, on a device, memory that is given back. Collective over the
 * world; the same on all ranks. */
ts_timeouts ts_engine_find_timeouts(const ts_engine *engine);

/** Sums along the network and waits for the device and for peers are from now on as the deck and the engine's limits
 * say; before the first communicator of devices is made. Not collective. */
void ts_engine_set_communication(const ts_engine *engine);

/** Give every parameter its first value. Collective over the world (errors are agreed). */
ts_status ts_engine_initialise(ts_engine *engine, ts_error *err);

/** Write a scalar of a program, in fp32, where it has one of that name. Not collective. */
void ts_engine_set_scalar(ts_engine *engine, int which, int slot, const char *name, double value);

/** Make the gradients of outputs 0 that a program may have given to a slot of the training program. Not collective. */
void ts_engine_forget_seeds(ts_engine *engine, int slot);

/** What the loss of a program is divided by before its backward; the record's factor makes up for it. Not
 * collective. */
double ts_engine_static_tokens(const ts_engine *engine, int which);

/** The INPUT leaf \a name of a program for micro-batch \a m of those that are together; TS_NONE: nothing reads it, or
 * the program is NULL. Not collective. */
ts_tid ts_engine_find_input(const ts_program *program, const char *name, int64_t m);

/** Write an INPUT leaf of a program from the micro-batch's samples, whole ones: of a sequence a rank along sp takes its
 * tokens. Not collective. */
void ts_engine_write_input(ts_engine *engine, int which, int slot, ts_tid input, const void *samples);

/** Write what the record reads, and what the update of a step reads; and read what a step came to. Not collective. */
void ts_engine_set_control(ts_engine *engine, int which, int slot, const double flags[TS_N_FLAGS]);
void ts_engine_set_update(ts_engine *engine, const ts_feed *feed, int slot);
ts_step_result ts_engine_end_step(ts_engine *engine);

/** The engine was made with the ability of this name; it does not ask a feed for samples; no step by hand is under way:
 * what calls check, which names are in the message.  The first and the last ask the second too. Not collective. */
ts_status ts_engine_check_ability(const ts_engine *engine, unsigned ability, const char *call, const char *name,
                                  ts_error *err);
ts_status ts_engine_check_no_feed(const ts_engine *engine, const char *call, ts_error *err);
ts_status ts_engine_check_idle(const ts_engine *engine, const char *call, ts_error *err);

struct ts_checkpoint;

/** The loss scale of the first step, where the deck asks for one. Not collective. */
void ts_engine_begin_scale(ts_engine *engine);

/** The loss scale's state. \return false where there is none. Not collective. */
bool ts_engine_read_scale(const ts_engine *engine, double state[TS_LOSS_SCALE_SIZE]);

/** Note it in a checkpoint's numbers; take it from there.  A static one is the deck's, and one that the checkpoint has
 * not begins anew. Not collective. */
void ts_engine_save_scale(const ts_engine *engine, struct ts_checkpoint *checkpoint);
void ts_engine_load_scale(ts_engine *engine, const struct ts_checkpoint *checkpoint);

/** Parameters have changed: no keys and values are kept any more. Not collective. */
void ts_engine_forget(ts_engine *engine);

/** The layout as another rank of this engine has it, which \a mesh is seen from.  End with ts_layout_destroy.
 * Not collective. */
ts_layout *ts_engine_layout_at(const ts_engine *engine, const ts_mesh *mesh);

/** Give elements [first, first + count) of a parameter, in the row-major order of the whole tensor.
 * \param [in] owned  This rank is their owner: of all ranks that ask for an element one is. */
typedef void ts_parameter_source(void *user, int64_t first, int64_t count, bool owned, float *value);

/** Write a parameter wherever this rank keeps elements of it, working values and master.  Not collective.
 * \param [in] source  Asked once for each element that this rank keeps, for no other, and for few at a time: at most
 *                     what lies together here and in the whole. */
void ts_engine_write_parameter(ts_engine *engine, const ts_parameter *parameter, ts_parameter_source *source,
                               void *user);

/** Copies of what other stages have take the values there. Collective over the ranks along pp. */
void ts_engine_refresh_copies(ts_engine *engine);

/** What the stage that has \a part knows of it on all stages. Collective over the ranks along pp. */
void ts_engine_tell_stages(ts_engine *engine, const ts_part *part, void *data, size_t bytes);

/** Write first values, drawn from the deck's seed and the parameter's name. Not collective.
 * \param [in] init  Of the parameter, or another. */
void ts_engine_seed_parameter(ts_engine *engine, const ts_parameter *parameter, ts_init init);

/** Put parameter \a index of the layout together from what the ranks along tp hold of it.
 * \param [in]  held   This rank's elements, in its own order.
 * \param [out] value  The whole tensor, on every rank. Collective over the ranks along tp. */
void ts_engine_put_together(ts_engine *engine, int index, ts_dtype dtype, const void *held, void *value);

/** Warn of parameters in fp16 that are infinite where their masters are not; nothing in other types. Collective over
 * the world. */
void ts_engine_say_overflow(ts_engine *engine);

/** Sum \a n numbers over all ranks, in place; unsigned sums do not depend on the order. Collective over the world. */
void ts_engine_sum(const ts_engine *engine, uint64_t *number, int n);

/** The schedule the deck asks for. Not collective. */
void ts_engine_schedule_from_deck(ts_lr_schedule *schedule, const ts_deck *deck);

/** The rate of the next update: the caller's, else the schedule's. Not collective. */
double ts_engine_learning_rate(const ts_engine *engine);

#endif
