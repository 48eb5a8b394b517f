/** \file
 * A short training run for tests: a tiny deck given as text, made-up tokens, results kept for comparison.
 */
#ifndef REGRESSION_TRAIN_RUN_H
#define REGRESSION_TRAIN_RUN_H

#include "engine/tessera.h"

typedef struct train_run {
  int steps;
  double *loss, *norm; /**< Owned: one per step. */
  double *evaluation;  /**< Owned: one per step, 0 unless asked for. */
  float *parameter;    /**< Owned: all parameters after the last step, in the layout's order. */
  int64_t n_parameters;
  uint64_t bits; /**< Of all parameters after the last step, by name and position. */
  int64_t work_bytes, live_bytes;
} train_run;

/** Train \a steps steps with the deck \a text changed by \a sets ("key=value" words separated by spaces; NULL for
 * none).  Tokens are a function of the global sample number alone, so runs on different grids see the same data.
 * Collective over \a world.  A deck that is refused ends the program: its text is part of the test. */
train_run train_run_do(ts_world *world, const char *text, const char *sets, int steps);

/** The same with a deck that reads well, but that the engine may refuse.
 * \return NULL, or why it is refused (ts_free); then there is no \a run. Collective over \a world. */
char *train_run_try(ts_world *world, const char *text, const char *sets, int steps, train_run *run);

/** Decks read from now on are for a grid with these extents along tp (1: what the deck says) and pp, over which nothing
 * is cut: replicas.  Default 1 and 1. Not collective. */
void train_run_set_replicas(int tp, int pp);

/** Of runs from now on so many micro-batches are alive at a time, at most. Not collective. */
void train_run_set_slots(int n);

/** Runs from now on evaluate after each step, and of four samples count one. Not collective. */
void train_run_set_evaluating(bool on);

/** The deck \a text changed by \a sets, its batch resolved; end with ts_deck_destroy. Not collective. */
ts_deck *train_run_deck(ts_world *world, const char *text, const char *sets);

/** The micro-batches and the update of step number \a step; sums of the step before are spoiled with NaN first, as
 * nothing may read them. Collective over the engine's world. */
ts_step_result train_run_step(ts_engine *engine, const ts_deck *deck, int64_t step);

/** Free. Not collective. */
void train_run_free(train_run *run);

/** The same losses, norms and parameters, bit for bit. Not collective. */
bool train_run_equal(const train_run *a, const train_run *b);

/** Largest relative difference of the losses. Not collective. */
double train_run_difference(const train_run *a, const train_run *b);

/** Largest difference of the parameters, in units of the largest of them; the same grid and model. Not collective. */
double train_run_parameters_apart(const train_run *a, const train_run *b);

/** Tiny decks: a Llama with grouped heads, untied, whose sizes divide by nothing, and a tied GPT-2. */
extern const char train_run_llama[];
extern const char train_run_gpt2[];

#endif
