/** \file
 * What this process is doing: a small record that its threads keep up to date and that others read while it runs, in
 * memory shared by the ranks of a node (engine/watchdog.h puts it there) so that somebody can tell of a rank that
 * hangs.
 *
 * Writing is a few plain stores, without locks or system calls but for the clock: about 60 ns a collective.  A world
 * has a record (ts_world_heartbeat), at first one that nobody reads; where there is no world it is NULL, and nothing is
 * written: no caller needs to ask.
 *
 * Collectives are counted, and counted for each group of ranks on its own: members of a group enter its collectives in
 * one order (comm/comm.h), so their numbers in that group can be compared, and no others: stages of a pipeline enter
 * different numbers.  A group is a number that its members share and no other group has (ts_mesh_group_id); the record
 * lists those that this rank is in, from ts_heartbeat_join on.
 *
 * On a device a collective is queued with its run.  There the runs queued are counted, in the group of the ranks that
 * run the same program.  A wait for the device is no collective: each rank reads as often as it has something to read.
 * It counts in no group, but as long as it lasts the rank waits for those of its program that have queued fewer runs.
 *
 * Each field is read and written as a whole; two fields of one reading may be a few nanoseconds apart.
 */
#ifndef TS_BASE_HEARTBEAT_H
#define TS_BASE_HEARTBEAT_H

#include <stdbool.h>
#include <stdint.h>

/** Phases: name in the code, name for the user. */
#define TS_PHASES(X)               \
  X(STARTING, "starting")          \
  X(LOADING, "loading")            \
  X(COMPUTING, "forward/backward") \
  X(UPDATING, "update")            \
  X(SAVING, "saving")              \
  X(VALIDATING, "validating")      \
  X(PREPARING, "preparing")        \
  X(ENDING, "ending")

typedef enum ts_phase {
#define X(name, text) TS_PHASE_##name,
  TS_PHASES(X)
#undef X
      TS_N_PHASES
} ts_phase;

/** "forward/backward", ...: constant, and without blanks; "?" for a number that is none. Not collective. */
const char *ts_phase_name(int phase);

enum {
  TS_HEARTBEAT_NAME = 64,     /**< Longest name of a collective, with its terminator; a longer one is cut. */
  TS_HEARTBEAT_INSTANCE = 24, /**< Longest text of an instance, likewise. */
  TS_HEARTBEAT_GROUPS = 16,   /**< That a rank is in, at most. */
  TS_HEARTBEAT_ALL = 0        /**< The group of all ranks. */
};

/** The record.  All zero is a rank that has not begun. */
typedef struct ts_heartbeat ts_heartbeat;

/** Bytes of a record: whole cache lines. Not collective. */
uint64_t ts_heartbeat_bytes(void);

/** A group that a rank is in. */
typedef struct ts_beat_group {
  uint64_t group;   /**< Its number. */
  uint64_t entered; /**< Collectives of it entered. */
} ts_beat_group;

/** What a record says, for those who look. */
typedef struct ts_beat {
  int64_t rank, pid;            /**< pid is 0 in a record that nobody uses yet. */
  int64_t step;                 /**< The step under way, from 1; 0 before the first. */
  int64_t micro_batch;          /**< Of the step, from 0. */
  int phase;                    /**< ts_phase. */
  uint64_t entered;             /**< Collectives and waits entered. */
  uint64_t finished;            /**< And finished; the rank is inside of one while it is less than entered. */
  double since_change;          /**< Seconds since anything of the above changed. */
  double since_step;            /**< Seconds since the step began; before the first, since the record was taken. */
  double since_alive;           /**< Seconds since ts_heartbeat_live. */
  char name[TS_HEARTBEAT_NAME]; /**< Of the collective entered last; printable, without blanks; "-" for none. */
  /** Of a pipeline the stage and what it does, "stage1:2F3"; printable, without blanks; "-" for none. */
  char instance[TS_HEARTBEAT_INSTANCE];
  int64_t awaited; /**< 1 + the rank that a message from or to is waited for; 0: what was entered last is none. */
  /** The first is the group of the collective entered last.  None: all that was entered is of the group of all. */
  int n_groups;
  ts_beat_group group[TS_HEARTBEAT_GROUPS];
} ts_beat;

/** Begin a record that others will read: rank \a rank starts now.  No other thread speaks meanwhile.  Of one that was
 * not begun more groups than there is room for are counted in the last. Not collective. */
void ts_heartbeat_begin(ts_heartbeat *record, int rank);

/** The phase changes. Not collective. */
void ts_heartbeat_phase(ts_heartbeat *record, ts_phase phase);

/** Step \a step begins, in phase COMPUTING; micro-batch \a micro_batch begins. Not collective. */
void ts_heartbeat_step(ts_heartbeat *record, int64_t step);
void ts_heartbeat_micro_batch(ts_heartbeat *record, int64_t micro_batch);

/** What a stage of a pipeline does begins: "stage1:2F3"; "" for nothing of the kind. Not collective. */
void ts_heartbeat_instance(ts_heartbeat *record, const char *instance);

/** This rank is in \a group, of which it may not have entered anything: a program tells its groups before it runs.
 * More than TS_HEARTBEAT_GROUPS end the job. Not collective. */
void ts_heartbeat_join(ts_heartbeat *record, uint64_t group);

/** A collective of \a group is entered, and finished; by one thread at a time.  One inside of another counts as two, of
 * which the first counts as finished with the second. Not collective. */
void ts_heartbeat_enter(ts_heartbeat *record, const char *name, uint64_t group);
void ts_heartbeat_leave(ts_heartbeat *record);

/** A wait begins that is no collective, but may last as long as others of \a group keep this rank waiting; it ends with
 * ts_heartbeat_leave. Not collective. */
void ts_heartbeat_wait(ts_heartbeat *record, const char *name, uint64_t group);

/** The same for a message from or to rank \a rank. Not collective. */
void ts_heartbeat_wait_for(ts_heartbeat *record, const char *name, uint64_t group, int rank);

/** This process gets to run: called every second or so by a thread that never waits for anything. Not collective. */
void ts_heartbeat_live(ts_heartbeat *record);

/** Read a record of any process of this node. Not collective. */
void ts_heartbeat_read(const ts_heartbeat *record, ts_beat *out);

#endif
