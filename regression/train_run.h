/** \file
 * A short training run for tests: a tiny deck given as text, made-up tokens, results kept for comparison.
 */
#ifndef REGRESSION_TRAIN_RUN_H
#define REGRESSION_TRAIN_RUN_H

#include "engine/workings.h"
#include "train/train.h"

typedef struct train_run {
  int steps;
  double *loss, *norm; /**< Owned: one per step. */
  double *evaluation;  /**< Owned: one per step, 0 unless asked for. */
  float *parameter;    /**< Owned: all parameters after the last step, in order of their names. */
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

/** What the first rank of \a all computes in \a alone, a world of its own; the others learn losses, norms and
 * evaluations, not the parameters. Collective over \a all, the whole world. */
train_run train_run_alone(ts_world *all, ts_world *alone, const char *text, const char *sets, int steps);

/** Of runs from now on the micro-batches of a step go in this order. Not collective. */
void train_run_set_order(ts_step_order order);

/** Runs from now on evaluate after each step, and of four samples count one. Not collective. */
void train_run_set_evaluating(bool on);

/** In runs from now on a sample's labels are those before its middle alone, an eighth of all, at least one: ranks that
 * share samples have some without. Not collective. */
void train_run_set_few_labels(bool on);

/** The deck \a text changed by \a sets, its batch resolved; end with ts_deck_destroy. Not collective. */
ts_deck *train_run_deck(ts_world *world, const char *text, const char *sets);

/** The micro-batches and the update of step number \a step; sums of the step before are spoiled with NaN first, as
 * nothing may read them. Collective over the engine's world. */
ts_step_result train_run_step(ts_engine *engine, const ts_deck *deck, int64_t step);

/** This rank's samples of step number \a step, made up as in all runs here; end with ts_batch_destroy.
 * Not collective. */
ts_batch *train_run_batch(const ts_engine *engine, const ts_deck *deck, int64_t step);

/** The data and weights that \a deck names: an engine that trains, and what else \a abilities say (engine/tessera.h).
 * Both are the caller's (ts_engine_destroy, ts_data_close); what is wrong ends the program.
 * Collective over \a world. */
void train_run_open(ts_world *world, ts_deck *deck, unsigned abilities, ts_engine **engine, ts_data **data);

/** Step number \a step on its own samples of \a data, in their order. Collective over the engine's world. */
ts_step_result train_run_step_of(ts_engine *engine, const ts_deck *deck, ts_data *data, int64_t step);

/** Of all parameters, by name: in whatever order the grid has them. Collective over the engine's world. */
uint64_t train_run_digest(ts_engine *engine);

/** Free. Not collective. */
void train_run_free(train_run *run);

/** The same losses, norms and parameters, bit for bit. Not collective. */
bool train_run_equal(const train_run *a, const train_run *b);

/** Largest relative differences of the steps' numbers. */
typedef struct train_difference {
  double loss, norm, evaluation;
} train_difference;

/** How far \a a is from \a b. Not collective. */
train_difference train_run_difference(const train_run *a, const train_run *b);

/** Largest difference of the parameters, in units of the largest of them; of the same model. Not collective. */
double train_run_parameters_apart(const train_run *a, const train_run *b);

/** Do the steps of two stages have the same bits?  On processors they do.  A GPU's library of products may sum one
 * that is added to a gradient, at stages 0 and 1, in another order than one that is not; the stand-in's does.
 * Not collective. */
static inline bool train_run_stages_alike(int a, int b) {
#ifdef STAND_IN
  return a / 2 == b / 2;
#else
  return a >= 0 && b >= 0;
#endif
}

/** Tiny decks: a Llama with grouped heads, untied, whose sizes divide by nothing, and a tied GPT-2. */
extern const char train_run_llama[];
extern const char train_run_gpt2[];

/** The deck of a model of a family, large weights in it, with what \a more says of it; numbers as text.  Adam's eps is
 * far above the rounding of gradients, or an element whose gradient is nearly 0 would make steps of it. */
#define TRAIN_RUN_MODEL(type, positions, length, batch, more)                                                      \
  "model = { model_type = \"" type "\"; vocab_size = 67; max_position_embeddings = " positions                     \
  "; initializer_range = 0.15; " more " };\n"                                                                      \
  "data = { path = \"none\"; format = \"text\"; sequence_length = " length "; };\n"                                \
  "run = { directory = \"none\"; steps = 4; seed = 3; threads = 1; };\n"                                           \
  "train_batch_size = " batch ";\n"                                                                                \
  "optimizer = { type = \"AdamW\"; params = { lr = 1e-2; betas = [0.9, 0.95]; eps = 1e-5; weight_decay = 0.1; }; " \
  "no_decay = [\"norm\", \"ln_\", \"bias\"]; };\n"                                                                 \
  "gradient_clipping = 1.0;\n"

#endif
