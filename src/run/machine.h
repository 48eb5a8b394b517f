/** \file
 * What a machine was measured to take for the nodes of programs and for messages, as `tessera bench` writes it to a
 * file, and what others take by that.  None of these functions is collective.
 *
 * Times are kept for so many ranks with so many threads at work on a node at a time, as these share its memory.  A
 * sample says what some work took: its kind, which is op, form and types, and the extents that nodes of a kind differ
 * in.  What has no sample of its own is rated by those next to it: but for the few microseconds that any node takes,
 * seconds in units of what nothing goes below (operations at the best product's rate or bytes at a copy's, whichever
 * takes longer) change slowly with the extents.
 */
#ifndef TS_RUN_MACHINE_H
#define TS_RUN_MACHINE_H

#include "run/program.h"

enum { TS_WORK_TEXT = 128, TS_WORK_EXTENTS = 3 };

/** What there is to do. */
typedef struct ts_work {
  /** "matmul.nt fp32>fp32+", + : added to a prior; "host.adamw fp32>fp32"; "all_gather bf16 x4",
   * "all_gather bf16 x8 across nodes of 4". */
  char kind[TS_WORK_TEXT];
  double extent[TS_WORK_EXTENTS]; /**< Of a product m, n, k; of others operations and bytes. */
  double flops, bytes;
} ts_work;

typedef struct ts_sample {
  ts_work work;
  double seconds;
} ts_sample;

/** The types whose products have a rate. */
enum { TS_RATED_FP32, TS_RATED_LOW, TS_N_RATED };

/** Ways between two ranks. */
typedef enum ts_link { TS_LINK_INSIDE, TS_LINK_ACROSS, TS_N_LINKS } ts_link;

/** Of \a ranks ranks a node, of \a threads threads each, all at work. */
typedef struct ts_measured {
  int ranks, threads;
  double product[TS_N_RATED]; /**< FLOP/s of the best product of a rank: in fp32, in bf16. */
  double copy;                /**< Bytes/s read and written by a copy of a rank. */
  double host;                /**< Bytes/s that the processors of a rank with a device read and write; 0: not known. */
  double link[TS_N_LINKS];    /**< Bytes/s that a rank sends inside a node, and to another; 0: not known, as a copy. */
  double in, out;             /**< Bytes/s of a copy from the host's memory to a device's, and back; 0: not known. */
  double both;                /**< Of either of these where the other one is under way. */
  double read, write;         /**< Bytes/s of a rank's file; 0: not known. */
  double start;               /**< Seconds until a message between two arrives that has nothing in it. */
  double slowdown;            /**< What is computed takes so many times as long while messages are under way. */
  double instruction;         /**< Seconds between two nodes, */
  double step;                /**< and of a step beside all of its nodes. */
  ts_sample *sample;          /**< Owned. */
  int n, capacity;
} ts_measured;

typedef struct ts_machine {
  char *backend;         /**< Owned, as the next ones: "cpu", "cuda"; */
  char *device;          /**< what computes: instruction set and libraries, or the GPU's name; */
  char *libraries;       /**< what communicates; */
  char *date;            /**< of the last measure, "2026-11-28". */
  ts_measured *measured; /**< Owned; by ranks and threads, ascending. */
  int n;
} ts_machine;

/** How well the seconds of some work are known. */
typedef enum ts_known {
  TS_KNOWN_MEASURED, /**< It was measured itself. */
  TS_KNOWN_BETWEEN,  /**< By others of its kind, smaller and larger ones. */
  TS_KNOWN_BEYOND,   /**< By others of its kind that are all smaller, or larger, by more than four times. */
  TS_KNOWN_ALIKE,    /**< By nodes of its op with other types or forms, or by messages among other numbers of ranks. */
  TS_KNOWN_NOTHING,  /**< By what nothing goes below, as nobody has measured its op. */
  TS_N_KNOWN
} ts_known;

/** "measured", "between measured sizes", ... Not collective. */
const char *ts_known_text(ts_known known);

/** What a node computes, or sends (a collective, a message of a pipeline), as a sample says it. Not collective.
 * \param [in] ranks_per_node  Ranks are numbered node by node: which groups leave a node. */
ts_work ts_node_work(const ts_program *program, const ts_node *node, int ranks_per_node);

/** What so many bytes, sent by each of \a ranks ranks in collectives of an op, or by one rank to another (SEND), are as
 * work. Not collective.
 * \param [in] together  So many of these are on one node; all of them: nothing leaves it. */
ts_work ts_message_work(ts_op op, ts_dtype wire, int ranks, int together, double bytes);

/** Order by kind and extents, as of strcmp; 0: the same work, whose extents differ by no more than a file rounds.
 * Not collective. */
int ts_work_order(const ts_work *a, const ts_work *b);

/** Add a sample; of the same work the least is kept, as others on the machine make it slower and nobody faster. Not
 * collective. */
void ts_measured_add(ts_measured *measured, const ts_work *work, double seconds);

/** Add a sample, or put it in the place of that of the same work: of nodes as they are in steps. Not collective. */
void ts_measured_replace(ts_measured *measured, const ts_work *work, double seconds);

/** Seconds that some work takes.
 * \param [out] known  How well; may be NULL. Not collective. */
double ts_measured_seconds(const ts_measured *measured, const ts_work *work, ts_known *known);

/** The times for so many ranks a node with so many threads each, or of those there are the nearest: with as many
 * threads, else with as many at work in all.
 * \return borrowed; NULL: there are none. Not collective. */
const ts_measured *ts_machine_find(const ts_machine *machine, int ranks, int threads);

/** The times for exactly these, empty ones added where there are none. Not collective. */
ts_measured *ts_machine_of(ts_machine *machine, int ranks, int threads);

/** Read a file of ts_machine_write.
 * \param [out] machine  The caller's (ts_machine_clear), also on error.
 * \return TS_BAD_INPUT with file and line: no such file, not one of these, cut off, a number that cannot be. Not
 * collective. */
ts_status ts_machine_read(const char *path, ts_machine *machine, ts_error *err);

/** Write it for ts_machine_read, and for people: libconfig, a sample a line.
 * \return TS_BAD_INPUT with the reason. Not collective. */
ts_status ts_machine_write(const ts_machine *machine, const char *path, ts_error *err);

/** Free what it owns and empty it. Not collective. */
void ts_machine_clear(ts_machine *machine);

#endif
