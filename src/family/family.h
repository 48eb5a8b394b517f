/** \file
 * Model families: a row per Hugging Face `model_type`, from which all that is particular about it follows: the keys of
 * its config.json with their defaults (deck), the graph and the first values of its parameters (model), the names of
 * its tensors in files (engine).  A family of known features is a row and its goldens.  Rows say what transformers
 * computes for that model_type (models/X/modeling_X.py and configuration_X.py of version 5).  Nothing here is
 * collective.
 */
#ifndef TS_FAMILY_FAMILY_H
#define TS_FAMILY_FAMILY_H

#include <stdbool.h>

/** X (model_type, which is also the name of its row) */
/* clang-format off */
#define TS_FAMILIES(X) \
  X(gpt2) \
  X(llama) \
  X(mistral) \
  X(qwen2) \
  X(qwen3) \
  X(gemma) \
  X(gemma2) \
  X(gemma3_text) \
  X(phi3) \
  X(olmo2) \
  X(olmo3) \
  X(smollm3) \
  X(granite) \
  X(gpt_neox) \
  X(starcoder2) \
  X(mixtral) \
  X(qwen2_moe) \
  X(qwen3_moe) \
  X(olmoe) \
  X(dots1)
/* clang-format on */

/** A key of a family's config.json. */
typedef struct ts_family_key {
  const char *path;    /**< Below `model` in a deck: "rms_norm_eps". */
  const char *name;    /**< In config.json; NULL: as path. */
  const char *initial; /**< What its absence means, as deck text; NULL: as the deck's table of keys says. */
} ts_family_key;

typedef enum ts_norm_kind {
  TS_NORM_RMS,      /**< RMSNorm. */
  TS_NORM_RMS_PLUS, /**< RMSNorm with 1 + w for w: weights begin at 0. */
  TS_NORM_LAYER     /**< LayerNorm with a bias. */
} ts_norm_kind;

/** The norms of a block, by what they are applied to. */
enum { TS_NORM_ATTENTION_IN, TS_NORM_ATTENTION_OUT, TS_NORM_MLP_IN, TS_NORM_MLP_OUT, TS_N_BLOCK_NORMS };

/** Which projections have biases. */
typedef enum ts_bias_rule {
  TS_BIAS_NONE,
  TS_BIAS_ALL,       /**< Always. */
  TS_BIAS_ATTENTION, /**< As attention_bias says. */
  TS_BIAS_MLP        /**< As mlp_bias says. */
} ts_bias_rule;

/** q/k norms: over each head, or over all heads together. */
typedef enum ts_qk_norm { TS_QK_NORM_NONE, TS_QK_NORM_HEAD, TS_QK_NORM_WIDTH } ts_qk_norm;

/** Layers whose attention sees `sliding_window` tokens back, where layer_types does not say. */
typedef enum ts_window_rule {
  TS_WINDOW_NONE,
  TS_WINDOW_ALL,     /**< All, whatever layer_types says; where there is use_sliding_window, with it. */
  TS_WINDOW_UPPER,   /**< With use_sliding_window those from max_window_layers on. */
  TS_WINDOW_EVEN,    /**< With use_sliding_window every other one from the first on, below max_window_layers. */
  TS_WINDOW_PATTERN, /**< All but every sliding_window_pattern-th. */
  TS_WINDOW_NO_ROPE  /**< With use_sliding_window those without rotary positions. */
} ts_window_rule;

typedef struct ts_family {
  const char *model_type;
  const char *architecture;           /**< Class of transformers. */
  const ts_family_key *const keys[7]; /**< Lists, each ended by a row without path, the last by NULL; the first to have
                                           * a path counts. */
  /* Units: parameters and nodes are called UNIT.name, or UNIT.weight. */
  const char *embedding;         /**< "model.embed_tokens". */
  const char *positions;         /**< Learned ones; NULL: rotary. */
  const char *layers;            /**< "model.layers": its blocks are "model.layers.0", ... */
  const char *final_norm, *head; /**< "model.norm"; "lm_head". */
  /* In a block. */
  const char *norm[TS_N_BLOCK_NORMS]; /**< NULL: there is none. */
  const char *attention, *mlp;        /**< In front of nodes without parameters: "self_attn". */
  const char *q, *k, *v;              /**< NULL where fused. */
  const char *qkv;                    /**< q, k and v in one; else NULL. */
  const char *o;
  const char *q_norm, *k_norm;
  const char *gate;    /**< NULL: a plain MLP, or fused. */
  const char *gate_up; /**< Both in one, gate first; else NULL. */
  const char *up, *down;
  /* Layers with experts have these instead, each expert a gate, up and down of its own. */
  const char *router;      /**< "mlp.gate"; NULL: the family has no experts. */
  const char *router_bias; /**< Name of what is added to scores for the choice alone; NULL: nothing is. */
  const char *experts;     /**< "mlp.experts": in files expert e is "mlp.experts.e". */
  const char *expert_gate, *expert_up, *expert_down; /**< In an expert: "gate_proj". */
  const struct ts_family *with_experts; /**< The row with DeepSpeed's layers of experts (`moe`); NULL: there is none. */
  const char *residual; /**< An MLP beside experts, "mlp.mlp", and the two logits that weigh both: of `moe`. */
  const char *residual_gate;
  const char *fused_experts; /**< In files that have all experts in one: "mlp.experts.gate_up_proj", ".down_proj"; NULL:
                              * there are no such files. */
  const char *shared_expert; /**< An MLP that all tokens go through: "mlp.shared_expert" in place of "mlp"; or NULL. */
  const char *shared_expert_gate; /**< By whose sigmoid it is multiplied; NULL: by nothing. */
  bool router_sigmoid;            /**< Scores are sigmoids of the logits, not their softmax. */
  bool router_normalizes;         /**< Weights always sum to 1, without norm_topk_prob. */
  const char *also[2]; /**< In files also[0] may stand as also[1], with a dot on either side; NULL: nothing. */
  ts_norm_kind norm_kind;
  ts_qk_norm qk_norm;
  ts_bias_rule qkv_bias, o_bias, mlp_bias;
  ts_window_rule windows;
  bool qkv_by_heads;     /**< qkv has [q k v] of each head, not all q, all k, all v. */
  bool in_first;         /**< Weights are [in][out], not [out][in]. */
  int mlp_ratio;         /**< intermediate_size in hidden_sizes where nobody says; 0: it must be. */
  bool gelu_is_tanh;     /**< In its config.json "gelu" stands for the tanh form. */
  bool scaled_embedding; /**< Times sqrt (hidden_size), rounded to the weights' type. */
  bool norm_keeps_type;  /**< Its norms give their input's type back, not the widest of it and the weight's. */
  /** Classes of torch and transformers, the last word of their paths; NULL: Linear, Embedding, LayerNorm. */
  const char *linear_class, *embedding_class, *norm_class;
  const char *narrow;          /**< End of names of weights that begin narrower with depth, NULL: none. */
  const char *const *prefixes; /**< What names in files may have more or less in front; ends with NULL. */
  const char *const *buffers;  /**< Ends of names of constants in files; ends with NULL. */
} ts_family;

/** The rows, ended by NULL. */
extern const ts_family *const ts_families[];

/** The row of a model_type, whatever its case, or NULL. Not collective. */
const ts_family *ts_family_find(const char *model_type);

/** Is \a name that of the bias which some family's routers have for the choice alone?  It is no parameter of the loss:
 * kept and written in fp32 whatever the model's type is, and frozen by nobody. Not collective. */
bool ts_family_is_router_bias(const char *name);

/** What Hugging Face calls the class of a unit: "LlamaDecoderLayer", "GPT2Block", "Embedding", "LlamaRMSNorm",
 * "Linear". Not collective.
 * \return owned by the caller (ts_free). */
char *ts_family_class(const ts_family *family, const char *unit);

/** Is this what transformers calls a class of modules in the family's models, or torch: "MixtralSparseMoeBlock",
 * "LlamaMLP", "Linear"? Not collective. */
bool ts_family_has_class(const ts_family *family, const char *class_name);

/** Key \a i of a family, from 0; NULL after the last.  No two have one path. Not collective. */
const ts_family_key *ts_family_key_at(const ts_family *family, int i);

/** The key of a family with this path, or NULL. Not collective. */
const ts_family_key *ts_family_key_find(const ts_family *family, const char *path);

/** True when a family has the key \a path, or the section that it is in. Not collective. */
bool ts_family_has(const ts_family *family, const char *path);

/** Its name in config.json. Not collective. */
static inline const char *ts_family_key_name(const ts_family_key *key) {
  return key->name != 0 ? key->name : key->path;
}

#endif
