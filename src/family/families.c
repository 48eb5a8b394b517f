/* The rows. */
#include "family/family.h"

#include <stddef.h>

#define KEY(path) \
  { #path, NULL, NULL }
#define KEY_IS(path, initial) \
  { #path, NULL, initial }
#define NAMED(path, name) \
  { #path, name, NULL }
#define NAMED_IS(path, name, initial) \
  { #path, name, initial }
#define END \
  { NULL, NULL, NULL }

/* ---- what all have, and what most rotary ones have ---- */

static const ts_family_key common[] = {KEY(vocab_size),   KEY(tie_word_embeddings), KEY(initializer_range),
                                       KEY(bos_token_id), KEY(eos_token_id),        END};

static const ts_family_key sizes[] = {KEY(hidden_size),
                                      KEY(intermediate_size),
                                      KEY(num_hidden_layers),
                                      KEY(num_attention_heads),
                                      KEY(num_key_value_heads),
                                      KEY(max_position_embeddings),
                                      NAMED_IS(attn_pdrop, "attention_dropout", "0.0"),
                                      KEY_IS(hidden_act, "silu"),
                                      KEY(rms_norm_eps),
                                      KEY(rope_theta),
                                      KEY(rope_scaling),
                                      END};

/* The names that Llama's descendants kept. */
#define LIKE_LLAMA                                                                                                   \
  .embedding = "model.embed_tokens", .layers = "model.layers", .final_norm = "model.norm", .head = "lm_head",        \
  .attention = "self_attn", .mlp = "mlp", .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", \
  .o = "self_attn.o_proj", .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj",                    \
  .prefixes = model_prefixes, .buffers = rotary_buffers

static const char *const model_prefixes[] = {"model.", "module.", NULL};
static const char *const rotary_buffers[] = {".rotary_emb.inv_freq", NULL};

/* ---- GPT-2 (Radford et al. 2019) ---- */

static const ts_family_key gpt2_keys[] = {NAMED(hidden_size, "n_embd"),
                                          NAMED(intermediate_size, "n_inner"),
                                          NAMED(num_hidden_layers, "n_layer"),
                                          NAMED(num_attention_heads, "n_head"),
                                          NAMED(max_position_embeddings, "n_positions"),
                                          NAMED_IS(hidden_act, "activation_function", "gelu_new"),
                                          KEY(layer_norm_epsilon),
                                          KEY_IS(attn_pdrop, "0.1"),
                                          KEY_IS(embd_pdrop, "0.1"),
                                          KEY_IS(resid_pdrop, "0.1"),
                                          KEY_IS(tie_word_embeddings, "true"),
                                          END};
static const char *const gpt2_prefixes[] = {"transformer.", "module.", NULL};
static const char *const causal_masks[] = {".attn.bias", ".attn.masked_bias", NULL};

static const ts_family gpt2 = {.model_type = "gpt2",
                               .architecture = "GPT2LMHeadModel",
                               .keys = {gpt2_keys, common},
                               .embedding = "transformer.wte",
                               .positions = "transformer.wpe",
                               .layers = "transformer.h",
                               .final_norm = "transformer.ln_f",
                               .head = "lm_head",
                               .norm = {[TS_NORM_ATTENTION_IN] = "ln_1", [TS_NORM_MLP_IN] = "ln_2"},
                               .attention = "attn",
                               .mlp = "mlp",
                               .qkv = "attn.c_attn",
                               .o = "attn.c_proj",
                               .up = "mlp.c_fc",
                               .down = "mlp.c_proj",
                               .norm_kind = TS_NORM_LAYER,
                               .qkv_bias = TS_BIAS_ALL,
                               .o_bias = TS_BIAS_ALL,
                               .mlp_bias = TS_BIAS_ALL,
                               .in_first = true,
                               .mlp_ratio = 4,
                               .narrow = ".c_proj.weight",
                               .prefixes = gpt2_prefixes,
                               .buffers = causal_masks};

/* ---- Llama (Touvron et al. 2023) ---- */

static const ts_family_key llama_keys[] = {KEY(head_dim), KEY(attention_bias), KEY(mlp_bias), END};

static const ts_family llama = {
    LIKE_LLAMA,
    .model_type = "llama",
    .architecture = "LlamaForCausalLM",
    .keys = {llama_keys, sizes, common},
    .norm = {[TS_NORM_ATTENTION_IN] = "input_layernorm", [TS_NORM_MLP_IN] = "post_attention_layernorm"},
    .qkv_bias = TS_BIAS_ATTENTION,
    .o_bias = TS_BIAS_ATTENTION,
    .mlp_bias = TS_BIAS_MLP};

const ts_family *const ts_families[] = {
#define X(name) &name,
    TS_FAMILIES(X)
#undef X
        NULL};
