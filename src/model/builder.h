/** \file
 * Writing a model: the forward step of one micro-batch on one device, from inputs to a loss or to outputs that a
 * program reads.  Nothing here knows of ranks, precision or ZeRO: passes make every rank's program of it.
 *
 *   static void build (ts_builder *b, void *user) {
 *     ts_tid tokens = ts_builder_input (b, "tokens", TS_I32, 1, (int64_t[]){T}, 1);      // [batch][T]
 *     ts_builder_unit (b, "embed");
 *     ts_tid x = ts_builder_embedding (b, "tokens", tokens, V, C);                        // [batch][T][C]
 *     ts_builder_unit (b, "block");
 *     x = ts_builder_add (b, "add", x, ts_builder_linear (b, "mix", x, C, false));
 *     ts_builder_output (b, "vectors", x);
 *   }
 *
 * A model is written for every use of an engine (training, evaluation), each time by the same calls; dropout is left
 * out where it is not trained.  Every function takes the builder of the call it is in.  Names of parameters and values
 * are "UNIT.name", stable from run to run: checkpoints, first values and dropout's numbers go by them.
 *
 * Values are fp32 here, and of the deck's types when they run.  A call that breaks a rule (shapes that do not fit, the
 * name of another parameter, input or output, a number out of its range) is told when the model is used, with all
 * others, and gives TS_NONE, which later calls take silently.  A parameter that is asked for again by its name and
 * shape is the same one: layers called alike in a unit share their weights.  Names have no "/" and
 * no control characters, as checkpoints are files by them.
 * None of these functions is collective; all ranks write the same model.
 */
#ifndef TS_MODEL_BUILDER_H
#define TS_MODEL_BUILDER_H

#include "graph/value.h"

#include <stdbool.h>

typedef struct ts_builder ts_builder;

/** What a graph is for. */
typedef enum ts_model_use {
  TS_MODEL_TRAIN, /**< With dropout; to be differentiated. */
  TS_MODEL_LOSS,  /**< Evaluation: without dropout. */
  TS_MODEL_LOGITS /**< Generation, of families alone: the logits [B][1][V] fp32 at input "index" [B] int32.  Keys and
                   * values are kept. */
} ts_model_use;

/** Write the model; \a user is the one of ts_own_model. */
typedef void ts_model_writer(ts_builder *b, void *user);

/** A model of a program's own; the struct is copied, what it points to is borrowed by the engine. */
typedef struct ts_own_model {
  const char *name; /**< For messages and checkpoints. */
  ts_model_writer *write;
  void *user;
} ts_own_model;

/** What the graph is for; the samples of a micro-batch, first dimension of every input. Not collective. */
ts_model_use ts_builder_use(const ts_builder *b);
int64_t ts_builder_batch(const ts_builder *b);

/** The shape of a value: writes at most TS_MAX_DIMS extents. Not collective. \return how many it has; 0 for TS_NONE. */
int ts_builder_shape(const ts_builder *b, ts_tid x, int64_t *extent);

/** An input [batch][extents], written by the host for every micro-batch. Not collective.
 * \param [in] name      None of a step's own, as "lr", "flags" or "seed", which is told.
 * \param [in] dtype     TS_F32, TS_I32 or TS_I64.
 * \param [in] n         Extents without the batch's, at most TS_MAX_DIMS - 1.
 * \param [in] sequence  Which of them, from 1, is the tokens that ranks along sp share; 0: every rank has it whole. */
ts_tid ts_builder_input(ts_builder *b, const char *name, ts_dtype dtype, int n, const int64_t *extent, int sequence);

/** Begin the unit \a name, or go on with it: what is made from now on is called UNIT.name, and its parameters are
 * gathered together where ranks have parts of them (ZeRO stage 3), and computed again together (activation
 * checkpointing).  A transformer block is one, and a large matrix.  A name is a path: "encoder.0.mlp" lies in the
 * modules "encoder.0" and "encoder"; units in one that zero_optimization.leaf_module names are one unit.
 * Not collective. */
void ts_builder_unit(ts_builder *b, const char *name);

/** The module \a path is of a class, by which leaf_module.classes may name it; before its units. Not collective. */
void ts_builder_module(ts_builder *b, const char *path, const char *class_name);

/** The parameter UNIT.name of \a n positive extents, 1 to TS_MAX_DIMS of them, made at the first call; another one of
 * this name must have its shape. Not collective. */
ts_tid ts_builder_parameter(ts_builder *b, const char *name, int n, const int64_t *extent, ts_init init);

/** y [...][out] = x w^T (+ bias) with parameters UNIT.name.weight [out][in], normal with a deviation of 1 / sqrt (in),
 * and .bias, 0. Not collective. */
ts_tid ts_builder_linear(ts_builder *b, const char *name, ts_tid x, int64_t out, bool bias);

/** x w^T with a matrix that is a parameter already, [out][in]: a tied head. Not collective. */
ts_tid ts_builder_product(ts_builder *b, const char *name, ts_tid x, ts_tid w);

/** y [batch][T][width] = rows of the parameter UNIT.name.weight [rows][width], normal with a deviation of 0.02, at ids
 * [batch][T] int32; with an input of positions in place of ids a learned table of positions.  An id that is
 * no row gives 0. Not collective. */
ts_tid ts_builder_embedding(ts_builder *b, const char *name, ts_tid ids, int64_t rows, int64_t width);

/** Normalisation over the last dimension: LayerNorm with parameters UNIT.name.weight, 1, and .bias, 0; RMSNorm with
 * .weight. Not collective. */
ts_tid ts_builder_layernorm(ts_builder *b, const char *name, ts_tid x, double eps);
ts_tid ts_builder_rmsnorm(ts_builder *b, const char *name, ts_tid x, double eps);

/** act (x), and act (gate) * up. Not collective. */
ts_tid ts_builder_activation(ts_builder *b, const char *name, ts_tid x, ts_activation kind);
ts_tid ts_builder_glu(ts_builder *b, const char *name, ts_tid gate, ts_tid up, ts_activation kind);

/** x / max (|x|, eps), |x| the root of the sum of squares over the last dimension: torch's F.normalize.  \a eps is
 * positive, 1e-12 there. Not collective. */
ts_tid ts_builder_normalize(ts_builder *b, const char *name, ts_tid x, double eps);

/** x + y and x y, element by element, of one shape; by x. Not collective. */
ts_tid ts_builder_add(ts_builder *b, const char *name, ts_tid x, ts_tid y);
ts_tid ts_builder_multiply(ts_builder *b, const char *name, ts_tid x, ts_tid y);
ts_tid ts_builder_scale(ts_builder *b, const char *name, ts_tid x, double by);

/** x with a probability of \a p for each element to be 0, and the others over 1 - p; which, follows from run.seed, the
 * value's name (so no two in a model have the same), the sample's number (ts_builder_samples) and the element: the same
 * on any grid, and when it is computed again.  x [batch][T][C]; x itself where the graph is not trained.
 * Not collective. */
ts_tid ts_builder_dropout(ts_builder *b, const char *name, ts_tid x, double p);

/** The input "sample" [batch] int64: numbers of the samples, by which dropout draws; there where a model drops. Not
 * collective. */
ts_tid ts_builder_samples(ts_builder *b);

/** The same elements in another shape, of \a n positive extents, 1 to TS_MAX_DIMS of them. Not collective. */
ts_tid ts_builder_reshape(ts_builder *b, const char *name, ts_tid x, int n, const int64_t *extent);

/** x in fp32, in which what is made of it goes on, whatever the deck's types, and as which what it meets is taken: for
 * losses put together from pieces.  An input of numbers keeps all its bits so. Not collective. */
ts_tid ts_builder_float(ts_builder *b, const char *name, ts_tid x);

/** The token of each sample that index [batch] int32 says, [batch][C] of x [batch][T][C]: the first, or the last one
 * that is no padding.  0 where it is none of them. Not collective. */
ts_tid ts_builder_pick(ts_builder *b, const char *name, ts_tid x, ts_tid index);

/** The mean of a sample's tokens whose mask [batch][T] int32 is not 0, [batch][C] of x [batch][T][C]; 0 of none.  The
 * same input may be attention's documents, by which a token of padding then sees padding alone.  Declare it with
 * sequence 0, as documents are: every rank has all of it. Not collective. */
ts_tid ts_builder_mean_pool(ts_builder *b, const char *name, ts_tid x, ts_tid mask);

/** Rotary positions, as Llama has them: in each head of x [batch][T][heads x head_dim] elements i and i + head_dim / 2
 * turn by positions[b][t] theta^(-2 i / head_dim).
 * \param [in] positions  [batch][T] int32.
 * \param [in] head_dim   Even.
 * \param [in] theta      Positive; 10000 in Llama. Not collective. */
ts_tid ts_builder_rope(ts_builder *b, const char *name, ts_tid x, ts_tid positions, int head_dim, double theta);

/** Attention of heads. */
typedef struct ts_heads {
  int heads, kv_heads, head_dim;
  double scale;   /**< 0: 1 / sqrt (head_dim). */
  bool causal;    /**< A token sees itself and those before it; else all. */
  int64_t window; /**< Causal: tokens that it sees back, itself among them; 0: all. */
  double dropout; /**< Of weights, where the graph is trained. */
} ts_heads;

/** o [batch][T][heads x head_dim] of q, and k and v [batch][T][kv_heads x head_dim].
 * \param [in] documents  [batch][T] int32: a token does not see those with another number, so padding is a document of
 *                        its own; TS_NONE: all are one. Not collective. */
ts_tid ts_builder_attention(ts_builder *b, const char *name, ts_tid q, ts_tid k, ts_tid v, ts_tid documents,
                            const ts_heads *heads);

/* ---- losses ----
 *
 * The model's loss is a sum, of weight times what each call of ts_builder_head_loss and ts_builder_loss adds to it; the
 * sum over all ranks and micro-batches is divided by one number, what the model's first of these calls counts: labels,
 * elements or its mask.  So alpha x hard + beta x soft labels of the same tokens is
 *
 *     ts_builder_head_loss (b, "hard", x, w, labels, alpha);
 *     ts_builder_loss (b, "soft", ts_builder_soft_cross_entropy (b, "kl", logits, teacher, 2), mask, beta);
 *
 * with mask 1 where labels are not -100.  Where a later call counts n times as many as the first, its mean has the
 * weight 1 / n.  Losses are computed in fp32, and added up in fp64. */

/** The sum of - log softmax (x w^T) at labels [batch][T] int32, of x [batch][T][C] and w [V][C]; it counts labels but
 * for those of -100, which add nothing; of a label that is no row of w the logit counts as 0.  w may be a value: with
 * the rows of one tower as x [1][batch][C], those of another as w [batch][C] and labels [1][batch] of 0, 1, ... it is
 * the contrastive loss of a rank's batch.  Its logits never exist as a whole, and are made twice where the loss has
 * another part or a weight that is not 1. Not collective. */
void ts_builder_head_loss(ts_builder *b, const char *name, ts_tid x, ts_tid w, ts_tid labels, double weight);

/** The sum of the elements of x, times a mask int32 of its shape, at least 0; it counts the sum of the mask.  Where the
 * mask is 0 x may be no number.  TS_NONE: all elements, each 1. Not collective. */
void ts_builder_loss(ts_builder *b, const char *name, ts_tid x, ts_tid mask, double weight);

/** Of rows of logits [...][V] against the logits of soft labels, of one shape: [...] fp32, with T the temperature,
 * - T^2 sum softmax (target / T) log softmax (logits / T).  No gradient goes to the target. Not collective. */
ts_tid ts_builder_soft_cross_entropy(ts_builder *b, const char *name, ts_tid logits, ts_tid target, double temperature);

/** (x - target)^2 of each element, in fp32; both get gradients. Not collective. */
ts_tid ts_builder_squared_error(ts_builder *b, const char *name, ts_tid x, ts_tid target);

/* ---- results ---- */

/** A value of floats, no parameter itself, that programs read by \a name after a forward, and from which they may go
 * back with a gradient of their own (ts_backward_from).  Every rank that computes it has it whole, but for tokens that
 * ranks along sp share: each its own (ts_output_tokens). Not collective. */
void ts_builder_output(ts_builder *b, const char *name, ts_tid x);

#endif
