/** \file
 * A program bound to memory: what the executor's files share.  Private to this room.  Nothing here is collective unless
 * it says so.
 */
#ifndef TS_RUN_BOUND_H
#define TS_RUN_BOUND_H

#include "base/heartbeat.h"
#include "pass/blocks.h"
#include "pass/lower.h"
#include "run/executor.h"
#include "run/memcheck.h"
#include "run/stream.h"

/** A node with every address resolved, in the places of one view. */
typedef struct ts_bound_node {
  ts_kernel_call call;
  const ts_kernel *kernel;
  const void **in, **prior;
  void **out;
  ts_comm *comm;
  uint64_t group;                 /**< Of a collective or message, for the heartbeat. */
  int peer;                       /**< Of a message: the rank of the world at the other end. */
  ts_transfer *transfer;          /**< Of a gather or a reduction. */
  ts_exchange_lists exchange;     /**< Of an all_to_all, */
  ts_exchange_tensors *exchanged; /**< and its tensors; owned. */
  ts_message_line *line;          /**< Of a send or receive; owned. */
  int64_t stored;                 /**< Of a copy: where in the file, bytes. */
  bool comes;                     /**< Of a receive, under memcheck: it was under way before this instruction. */
  bool untold;                    /**< Of a message on the host: started, and the observer has not been told. */
  uint64_t ticket;                /**< Of the store, or the host's stream; 0: not issued since the last wait. */
  void *begin, *end;              /**< Device: timed events, made when an observer first asks. */
  struct ts_executor *executor;
} ts_bound_node;

/** Device: the commands of a kind of runs in the places of one view, and their recording. */
typedef struct ts_bound_run {
  bool bound;           /**< Also on the host: the nodes of the view that it has. */
  ts_lowered *commands; /**< Owned; NULL before its first time. */
  void **event;         /**< Owned; commands->n_events. */
  void **graph;         /**< Owned; commands->n_ranges, NULL until captured. */
  int times;            /**< It ran. */
} ts_bound_run;

/** The program as runs with these places see it: where a micro-batch keeps what it keeps. */
typedef struct ts_bound_view {
  ts_run at;           /**< Of it the places are read. */
  ts_bound_node *node; /**< Owned; per node of the graph. */
  ts_bound_run *run;   /**< Owned; per chunk and kind of runs of the step. */
} ts_bound_view;

typedef struct ts_bound_program {
  const ts_program *program;
  /** Owned: first one of each slot, where messages are, of which only slots matter; the others when a run first wants
   * them.  Kernels and communicators are the first one's. */
  ts_bound_view *view;
  int n_views, view_capacity;
  int64_t *state; /**< Per tensor in STATE: bytes from its own plan's place (ts_programs_share_state). */
  int64_t inputs; /**< Bytes from the beginning of INPUT to its own part of it. */
  ts_memcheck *memcheck;
  int n_chunks;
  uint64_t group;  /**< Of the ranks that run the same program, for the heartbeat: those of one stage of a pipeline. */
  bool hosted;     /**< Device: the host reads files or computes in its runs (ts_lowered_is_hosted). */
  unsigned *left;  /**< Owned, by chunk: what waits for the next step's first forward (TS_LEFT_...). */
  bool ahead;      /**< Since a step has left it this rank has made updates by itself; */
  bool asks;       /**< before the next run ranks tell each other. */
  ts_nid *message; /**< Owned: the sends and receives. */
  int n_messages;
} ts_bound_program;

/** Device: memory that the inputs of one run are copied from. */
typedef struct ts_image {
  unsigned char *memory; /**< Owned: the host's, known to the device. */
  void *copied;          /**< Event: they have been. */
  bool queued;           /**< Since they were last known to be. */
  int spans;             /**< Used before it was queued: waits among them come first. */
} ts_image;

/** Runs whose inputs may wait to be copied before the host waits: it stays ahead of the device by two micro-batches. */
enum { TS_BOUND_IMAGES = 4 };

/** Device: when a run began and ended, until somebody asks. */
typedef struct ts_span {
  void *begin, *end;
  ts_run_phase phase;
  const ts_bound_node *message;         /**< It is a wait for it within such a run; NULL: the run itself. */
  char instance[TS_HEARTBEAT_INSTANCE]; /**< Of a wait: what the stage did then. */
} ts_span;

struct ts_executor {
  ts_executor_options options;
  ts_bound_program *program;
  int n_programs;
  const ts_bound_program *last; /**< Whose run was queued last; NULL: nobody's. */
  const ts_backend *backend;
  ts_device *device; /**< Borrowed; NULL: memory is the host's. */
  unsigned char *arena[TS_N_ARENAS];
  size_t arena_bytes[TS_N_ARENAS];
  /** Where the host writes an arena of its space: the arena itself, or beside a device memory of its own, which is
   * copied to an image when a run is queued; else NULL. */
  unsigned char *host[TS_N_ARENAS];
  ts_executor_times times;
  char *nonfinite;
  /* host */
  ts_stream *stream;
  double busy_seen, began; /* began: the first run since times were taken; 0: none */
  /* device */
  unsigned char *staging; /**< Host memory that state is copied through. */
  void *staged;           /**< Event: it has been copied. */
  ts_image image[TS_BOUND_IMAGES];
  int next_image; /**< The one queued longest ago. */
  ts_span *span;
  int n_spans, capacity_spans, used_spans, followed_spans; /**< followed: the host knows that they have ended. */
  void *first; /**< Event: the begin of the first run since times were taken, */
  bool counts; /**< and whether there was one. */
};

/** Where this rank says what it does: its world's record; NULL without a world. Not collective. */
static inline ts_heartbeat *ts_bound_heartbeat(const ts_executor *executor) {
  return executor->options.world != NULL ? ts_world_heartbeat(executor->options.world) : NULL;
}

/** Queue or run a collective. Collective over its group. */
void ts_bound_collective(ts_bound_node *node);

/** Begin a copy from or to the file, and wait for it, if it was begun. Not collective. */
void ts_bound_transfer(ts_executor *executor, ts_bound_node *node);
void ts_bound_wait_transfer(ts_executor *executor, ts_bound_node *node);

/** Remember the first value of the node's outputs that is not finite. Not collective. */
void ts_bound_check_finite(ts_executor *executor, const ts_bound_node *node);

/** The communicator over \a axes that works on the backend's memory. Collective over the group at the first call. */
ts_comm *ts_bound_comm(ts_executor *executor, const ts_mesh *mesh, unsigned axes);

/** Take memory for all arenas of the programs, and give it back. Not collective. */
void ts_bound_allocate(ts_executor *executor);
void ts_bound_release(ts_executor *executor);

/** Device: wait until the next image is free; and queue the copies of what the host wrote for a slot, through that
 * image: what the host writes afterwards is the next run's. Not collective. */
void ts_bound_wait_for_image(ts_executor *executor, const ts_bound_program *program);
void ts_bound_copy_in(ts_executor *executor, const ts_bound_program *program, ts_run run);

/** Make the updates that steps have left; nothing where they have not. Not collective. */
void ts_bound_update_late(ts_executor *executor);

/** Copy bytes of the backend's memory to the host's; on a device after all that is queued. Not collective. */
void ts_bound_read(ts_executor *executor, void *to, const void *memory, size_t bytes);

/** Where a tensor lies in the places of a run, in the backend's memory; NULL for TS_NONE, what is never touched, and
 * what is in a file. Not collective. */
void *ts_bound_address(const ts_executor *executor, const ts_bound_program *program, ts_tid tensor, ts_run run);

/** Where a tensor of the file lies in it in the places of a run, bytes. Not collective. */
int64_t ts_bound_stored(const ts_executor *executor, const ts_bound_program *program, ts_tid tensor, ts_run run);

/** The program in the places of a run, whose nodes are bound; valid until another one is asked for, its nodes for good.
 * Not collective. */
ts_bound_view *ts_bound_view_of(ts_executor *executor, ts_bound_program *program, ts_run run);

/** Walk the instructions of a run on the host. Collective over the world when they contain collectives. */
void ts_walk_host(ts_executor *executor, ts_bound_program *program, ts_run run);

/** Post what pipelines' neighbours will send for the runs whose place is free when run \a run of the step begins.
 * Not collective. */
void ts_messages_post(ts_executor *executor, ts_bound_program *program, int64_t run);

/** Wait for a message: what is computed, or queued, from now on comes behind it. Not collective, but waits for the
 * peer. */
void ts_messages_wait(ts_executor *executor, ts_bound_node *message);

/** Wait until what a run will send has gone that lay there the last time; and, at the end of a step, for all. Not
 * collective, but waits for the peer. */
void ts_messages_wait_for_sends(ts_executor *executor, ts_bound_program *program, ts_run run);
void ts_messages_finish(ts_executor *executor, ts_bound_program *program);

/** Host: what is under way moves on when MPI is called. Not collective. */
void ts_messages_poll(ts_bound_program *program);

/** Host, under memcheck: note which receives are under way, before an instruction; and behind it, that what they are
 * for may have changed. Not collective. */
void ts_messages_note_coming(ts_bound_program *program);
void ts_messages_allow_coming(ts_bound_program *program);

/** Host: tell the observer, if there is one, what began at \a start and ends now. Not collective. */
void ts_bound_observe(const ts_bound_node *node, bool collective, double start);

/** Host: post a message, which the observer, if there is one, is to be told of. Not collective. */
void ts_messages_start(ts_bound_node *message);

/** Queue the commands of a run on the device. Collective over the world when they contain collectives. */
void ts_walk_device(ts_executor *executor, ts_bound_program *program, ts_run run);

/** Add what spans say to the times, and forget them; waits for the device. Not collective. */
void ts_walk_device_take_spans(ts_executor *executor);

/** Of a program with messages: call each product and attention once, before the first message, as libraries may load
 * what they need when they are first called, and wait until the device is idle, which it is not while a receive waits
 * for a neighbour. Not collective. */
void ts_walk_device_warm(ts_executor *executor, ts_bound_program *program);

/** Wait, one after another, for what the device waits for among the first \a until spans, so that the heartbeat says
 * what a stage does and whose message it has not got. Not collective, but waits for peers. */
void ts_walk_device_follow(ts_executor *executor, int until);

/** Of such a program, at the end of a step: wait for the device, which shows that a peer is dead where a call of MPI
 * would not; and record what ran and is not recorded, while no message is under way. Not collective, but waits for
 * peers. */
void ts_walk_device_end_step(ts_executor *executor, ts_bound_program *program);

/** Free what walking made. Not collective. */
void ts_walk_device_release(ts_executor *executor, ts_bound_program *program);

#endif
