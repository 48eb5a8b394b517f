/** \file
 * flops_profiler: what a step computed, by module, from the FLOPs of the graph's nodes and the times that were seen.
 * The figures and their order are DeepSpeed's; what differs:
 *
 * - FLOPs and times are of all micro-batches of the step, of one rank.  MACs are half the FLOPs of products and
 *   attention, of which causal attention has the half that is not masked.
 * - Those of the model are counted on the whole one: stages of a pipeline differ, so no rank's times their number are.
 * - A module is a name of the model, "model.layers.0.mlp"; its numbers are the forward's, with those of the modules in
 *   it.  Times are of what is computed: messages are in comms_logger, and what lies between two nodes is in the
 *   forward's latency alone.
 * - The loss is computed with its gradients in one node: a third of it, as of its FLOPs, counts as forward.
 * - What is repeated for the backward is in the graph: its FLOPs are counted and printed beside DeepSpeed's
 *   (2 + recompute_fwd_factor) x forward.
 * Nothing here is collective.
 */
#ifndef TS_TRAIN_FLOPS_REPORT_H
#define TS_TRAIN_FLOPS_REPORT_H

#include "run/program.h"
#include "train/observed_event.h"

/** What was seen of a step. */
typedef struct ts_flops_step {
  int64_t step; /**< From 1. */
  const ts_observed_event *event;
  int n;
  double forward, backward, update; /**< Seconds of the phases. */
} ts_flops_step;

/** Write the report, as the deck's flops_profiler wants it. Not collective. */
void ts_flops_report(const ts_deck *deck, const ts_program *program, const ts_flops_step *step, ts_text *to);

#endif
