/** \file
 * What the models of families are made of: a builder that knows the deck, the family and its inputs beside what every
 * builder knows (model/builder.h), and the pieces.  Private to src/model.  Nothing here is collective.
 */
#ifndef TS_MODEL_PARTS_H
#define TS_MODEL_PARTS_H

#include "model/model.h"

/** What a model is written with. */
struct ts_builder {
  ts_site at; /**< The graph, and the current unit. */
  ts_model_use use;
  ts_model_size size;
  char prefix[96];          /**< In front of every name, with its dot: "transformer.h.0." */
  struct ts_leaves *leaves; /**< Owned; model/leaf_modules.c. */
};

/** A name with the unit's in front. */
typedef struct ts_model_name {
  char text[160];
} ts_model_name;

/** UNIT.base suffix; UNIT suffix when \a base is empty. Not collective. */
ts_model_name ts_builder_name(const ts_builder *b, const char *base, const char *suffix);

/** Something is wrong with what the model's writer wants: a program's own is told of it, in the code here it ends the
 * program. Not collective. */
void ts_builder_refuse(const ts_builder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** An input of any shape; the scalar "seed" [1] int64 of dropout. Not collective. */
ts_tid ts_builder_leaf(ts_builder *b, const char *name, ts_dtype dtype, ts_shape shape, int sequence);
ts_tid ts_builder_seed(ts_builder *b);

/** Extent of the last dimension. Not collective. */
int64_t ts_builder_width(const ts_builder *b, ts_tid x);

/** Attention by \a attr, whose name is set here, and whose dropout where the graph is not trained. Not collective. */
ts_tid ts_builder_attend(ts_builder *b, const char *name, const ts_tid qkv[3], ts_tid documents, ts_attr attr);

/** The builder of the deck's family. */
typedef struct ts_model_builder {
  ts_builder base;
  const ts_deck_model *model; /**< Borrowed. */
  const ts_deck *deck;        /**< Likewise. */
  const ts_family *family;
  int64_t rope_length; /**< What rotary positions that depend on the length are computed for. */
  ts_tid input_ids, positions, labels;
  ts_tid index, past; /**< LOGITS; else TS_NONE. */
  ts_tid documents;   /**< TS_NONE unless samples hold several. */
  ts_tid loads;       /**< Of the experts of all layers so far (ROUTE_LOADS); TS_NONE: nobody asks. */
  int n_loads;        /**< How many these layers are. */
  ts_tid balance;     /**< The sum of losses of single layers so far; TS_NONE: there are none. */
} ts_model_builder;

/** Create the graph's inputs. Not collective. */
ts_model_builder ts_model_begin(const ts_deck *deck, ts_model_use use, ts_model_size size, ts_graph *graph);

/** Begin the unit called by the formatted text; names of parameters and nodes get it and a dot in front.
 * Not collective. */
void ts_model_unit(ts_model_builder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** UNIT.base; UNIT itself when \a base is empty. Not collective. */
ts_model_name ts_model_name_of(const ts_model_builder *b, const char *base);

/** The parameter UNIT.weight [rows][hidden_size], made at the first call. Not collective. */
ts_tid ts_model_matrix(ts_model_builder *b, int64_t rows);

/** The parameter UNIT.name suffix with a matrix, or biases, for each expert. Not collective. */
ts_tid ts_model_stack(ts_model_builder *b, const char *name, const char *suffix, ts_shape shape);

/** Are there biases where the row says \a rule? Not collective. */
bool ts_model_is_biased(const ts_model_builder *b, ts_bias_rule rule);

/** The parameter that is added to a router's scores where experts are chosen. Not collective. */
ts_tid ts_model_router_bias(ts_model_builder *b, int64_t experts);

/** Rows of \a table at \a ids. Not collective. */
ts_tid ts_model_embedding(ts_model_builder *b, ts_tid table, ts_tid ids);

/** y = x w (+ bias) with parameters \a name .weight and \a name .bias.
 * \param [in] out_first  The weight is [out][in] (a torch Linear), not [in][out] (GPT-2's Conv1D). Not collective. */
ts_tid ts_model_linear(ts_model_builder *b, const char *name, ts_tid x, int64_t out, bool bias, bool out_first);

/** The same as the family's row says: biases by \a rule, the weight's orientation. Not collective. */
ts_tid ts_model_project(ts_model_builder *b, const char *name, ts_tid x, int64_t out, ts_bias_rule rule);

/** \a name in the part of the block that begins with \a part: "PART.NAME". Not collective. */
ts_model_name ts_model_inside(const char *part, const char *name);

/** The activation that hidden_act is the name of. Not collective. */
ts_activation ts_model_activation(const ts_model_builder *b);

/** The family's MLP, of width \a inner, with names that begin with \a part in place of the family's `mlp`.
 * Not collective. */
ts_tid ts_model_mlp(ts_model_builder *b, const char *part, ts_tid x, int64_t inner);

/** A layer's experts, those that its router chooses for a token of so many and those that all tokens go through.
 * Stacks of weights are called EXPERTS.gate_proj.weight [E][inner][hidden] and so on. Not collective. */
ts_tid ts_model_experts(ts_model_builder *b, ts_tid x, int64_t experts);

/** A layer's loads (ROUTE_LOADS) count in the loss of all layers together. Not collective. */
void ts_model_balance_add(ts_model_builder *b, ts_tid loads);

/** They make a loss of this layer, UNIT.ROUTER.balance: a token has aux E sum_e f_e p_e + z times the mean of logsumexp
 * (logits)^2. Not collective. */
void ts_model_balance_each(ts_model_builder *b, ts_tid loads, double aux, double z);

/** The sum of both kinds of losses, marked "balance", where there are any. Not collective. */
void ts_model_balance(ts_model_builder *b);

/** Normalisation over the last dimension with parameters \a name .weight (and .bias). An empty \a name means those of
 * the unit itself. Not collective. */
ts_tid ts_model_layernorm(ts_model_builder *b, const char *name, ts_tid x);
ts_tid ts_model_rmsnorm(ts_model_builder *b, const char *name, ts_tid x);

/** x + y. Not collective. */
ts_tid ts_model_add(ts_model_builder *b, const char *name, ts_tid x, ts_tid y);

/** Dropout, or \a x itself when \a p is 0 or the graph is not for training. Not collective. */
ts_tid ts_model_dropout(ts_model_builder *b, const char *name, ts_tid x, double p);

/** Causal attention of q [B][T][H D] on k and v [B][T][G D] with the deck's softcap and attn_pdrop; for logits on all
 * that is kept of the text, and k and v are kept.
 * \param [in] window  Tokens that are seen back; 0: all. Not collective. */
ts_tid ts_model_attention(ts_model_builder *b, const char *name, const ts_tid qkv[3], double scale, int64_t window);

/** The end of every model, from the final norm's input \a x: for logits only the rows "index" are kept.  The head's
 * weight is \a tied, or when that is TS_NONE "lm_head.weight" in a unit of its own.  Marks loss and valid, or logits.
 * \param [in] norm  Applies the final norm, in the current unit. Not collective. */
void ts_model_head(ts_model_builder *b, ts_tid x, ts_tid tied,
                   ts_tid (*norm)(ts_model_builder *b, const char *name, ts_tid x));

/** True when \a text ends in \a end. Not collective. */
bool ts_model_ends_in(const char *text, const char *end);

/** Add the model of the deck's family to an empty graph; see ts_model_build. Not collective. */
void ts_model_decoder(const ts_deck *deck, ts_model_use use, ts_model_size size, ts_graph *graph);

#endif
