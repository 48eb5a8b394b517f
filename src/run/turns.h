/** \file
 * What a step of a program copies between memories and files, and by the rates of a deck (pass/rates.h) how long that
 * takes beside what it computes.  None of these functions is collective.
 */
#ifndef TS_RUN_TURNS_H
#define TS_RUN_TURNS_H

#include "run/program.h"

/** Does a node happen once for all micro-batches of a step? Not collective. */
bool ts_node_happens_once(const ts_node *node);

/** Bytes that a rank copies in a step from a space to the backend's memory, and back. */
typedef struct ts_moved {
  double read[TS_N_SPACES], written[TS_N_SPACES];
} ts_moved;

/** Parts of a step between which nothing is copied ahead: its first forward, with the updates that the step before has
 * left; what comes until all gradients are there; the norm, and the updates that need it.  None takes less than its
 * copies, or than what it computes. */
typedef enum ts_turn { TS_TURN_FORWARD, TS_TURN_GRADIENTS, TS_TURN_UPDATE, TS_N_TURNS } ts_turn;

/** Bytes that a node copies in a step between a space and the backend's memory; 0 of one that is no such copy. Not
 * collective. */
double ts_program_copied(const ts_program *program, const ts_node *node);

/** What a step of the program copies, and one of its turns. Not collective. */
ts_moved ts_program_moved(const ts_program *program);
ts_moved ts_program_moved_in(const ts_program *program, ts_turn turn);

/** Seconds of a turn's work, each as if nothing else went on: kernels; what the host computes; copies between a device
 * and the host's memory, of which both directions go on at a time; files, whose do not.  Messages are left out. */
typedef struct ts_turn_seconds {
  double computing, host, copies, files;
} ts_turn_seconds;

/** Of a step: all turns' together; what each takes at least, the longest of its four; and of that what is not hidden
 * behind what is computed. */
typedef struct ts_step_seconds {
  ts_turn_seconds sum;
  double step, exposed;
} ts_step_seconds;

/** By the rates that the deck says or that are nominal; of a pipeline without its bubble. Not collective. */
ts_turn_seconds ts_program_turn_seconds(const ts_program *program, ts_turn turn);
ts_step_seconds ts_program_step_seconds(const ts_program *program);

#endif
