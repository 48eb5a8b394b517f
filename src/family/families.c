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
                                      KEY(head_dim),
                                      KEY(max_position_embeddings),
                                      NAMED_IS(attn_pdrop, "attention_dropout", "0.0"),
                                      KEY_IS(hidden_act, "silu"),
                                      KEY(rope_theta),
                                      KEY(rope_scaling),
                                      END};

static const ts_family_key rms[] = {KEY(rms_norm_eps), END};

/* The names that Llama's descendants kept. */
#define LIKE_LLAMA                                                                                                   \
  .embedding = "model.embed_tokens", .layers = "model.layers", .final_norm = "model.norm", .head = "lm_head",        \
  .attention = "self_attn", .mlp = "mlp", .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", \
  .o = "self_attn.o_proj", .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj",                    \
  .prefixes = model_prefixes, .buffers = rotary_buffers

#define PRE_NORMS .norm = {[TS_NORM_ATTENTION_IN] = "input_layernorm", [TS_NORM_MLP_IN] = "post_attention_layernorm"}
#define POST_NORMS \
  .norm = {[TS_NORM_ATTENTION_OUT] = "post_attention_layernorm", [TS_NORM_MLP_OUT] = "post_feedforward_layernorm"}
#define ALL_NORMS                                                \
  .norm = {[TS_NORM_ATTENTION_IN] = "input_layernorm",           \
           [TS_NORM_ATTENTION_OUT] = "post_attention_layernorm", \
           [TS_NORM_MLP_IN] = "pre_feedforward_layernorm",       \
           [TS_NORM_MLP_OUT] = "post_feedforward_layernorm"}

/* language_model.: the text part of a model that sees more */
static const char *const model_prefixes[] = {"model.", "module.", "language_model.", NULL};
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

#define LIKE_GPT2                                                                                                 \
  .model_type = "gpt2", .linear_class = "Conv1D", .architecture = "GPT2LMHeadModel", .keys = {gpt2_keys, common}, \
  .embedding = "transformer.wte", .positions = "transformer.wpe", .layers = "transformer.h",                      \
  .final_norm = "transformer.ln_f", .head = "lm_head",                                                            \
  .norm = {[TS_NORM_ATTENTION_IN] = "ln_1", [TS_NORM_MLP_IN] = "ln_2"}, .attention = "attn", .mlp = "mlp",        \
  .qkv = "attn.c_attn", .o = "attn.c_proj", .up = "mlp.c_fc", .down = "mlp.c_proj", .norm_kind = TS_NORM_LAYER,   \
  .qkv_bias = TS_BIAS_ALL, .o_bias = TS_BIAS_ALL, .mlp_bias = TS_BIAS_ALL, .in_first = true, .mlp_ratio = 4,      \
  .narrow = ".c_proj.weight", .prefixes = gpt2_prefixes, .buffers = causal_masks

/* Modules of deepspeed.moe.layer.MoE in place of a block's MLP. */
#define DEEPSPEED_EXPERTS                                                                          \
  .router = "mlp.deepspeed_moe.gate.wg", .experts = "mlp.deepspeed_moe.experts.deepspeed_experts", \
  .residual = "mlp.mlp", .residual_gate = "mlp.coefficient",                                       \
  .router_bias = "mlp.deepspeed_moe.gate.e_score_correction_bias"

static const ts_family gpt2_experts = {LIKE_GPT2, DEEPSPEED_EXPERTS, .expert_up = "c_fc", .expert_down = "c_proj"};

static const ts_family gpt2 = {LIKE_GPT2, .with_experts = &gpt2_experts};

/* ---- Llama (Touvron et al. 2023) ---- */

static const ts_family_key llama_keys[] = {KEY(attention_bias), KEY(mlp_bias), END};

#define THE_LLAMA                                                                                                  \
  LIKE_LLAMA, .model_type = "llama", .norm_class = "LlamaRMSNorm", .architecture = "LlamaForCausalLM",             \
              .keys = {llama_keys, rms, sizes, common},                                                            \
              .norm = {[TS_NORM_ATTENTION_IN] = "input_layernorm", [TS_NORM_MLP_IN] = "post_attention_layernorm"}, \
              .qkv_bias = TS_BIAS_ATTENTION, .o_bias = TS_BIAS_ATTENTION, .mlp_bias = TS_BIAS_MLP

static const ts_family llama_experts = {THE_LLAMA, DEEPSPEED_EXPERTS, .expert_gate = "gate_proj",
                                        .expert_up = "up_proj", .expert_down = "down_proj"};

static const ts_family llama = {THE_LLAMA, .with_experts = &llama_experts};

/* ---- Mistral (Jiang et al. 2023) ---- */

static const ts_family_key mistral_keys[] = {KEY_IS(num_key_value_heads, "8"), KEY_IS(sliding_window, "4096"), END};

static const ts_family mistral = {LIKE_LLAMA,
                                  PRE_NORMS,
                                  .model_type = "mistral",
                                  .norm_class = "MistralRMSNorm",
                                  .architecture = "MistralForCausalLM",
                                  .keys = {mistral_keys, rms, sizes, common},
                                  .windows = TS_WINDOW_ALL};

/* ---- Qwen2 (Yang et al. 2024), Qwen3 (2025) ---- */

static const ts_family_key qwen2_keys[] = {KEY_IS(num_key_value_heads, "32"),
                                           KEY_IS(sliding_window, "4096"),
                                           KEY(use_sliding_window),
                                           KEY_IS(max_window_layers, "28"),
                                           KEY(layer_types),
                                           END};

static const ts_family qwen2 = {LIKE_LLAMA,
                                PRE_NORMS,
                                .model_type = "qwen2",
                                .norm_class = "Qwen2RMSNorm",
                                .architecture = "Qwen2ForCausalLM",
                                .keys = {qwen2_keys, rms, sizes, common},
                                .qkv_bias = TS_BIAS_ALL,
                                .windows = TS_WINDOW_UPPER};

static const ts_family_key qwen3_keys[] = {KEY_IS(head_dim, "128"),
                                           KEY(attention_bias),
                                           KEY_IS(num_key_value_heads, "32"),
                                           KEY_IS(sliding_window, "4096"),
                                           KEY(use_sliding_window),
                                           KEY_IS(max_window_layers, "28"),
                                           KEY(layer_types),
                                           END};

static const ts_family qwen3 = {LIKE_LLAMA,
                                PRE_NORMS,
                                .model_type = "qwen3",
                                .norm_class = "Qwen3RMSNorm",
                                .architecture = "Qwen3ForCausalLM",
                                .keys = {qwen3_keys, rms, sizes, common},
                                .q_norm = "self_attn.q_norm",
                                .k_norm = "self_attn.k_norm",
                                .qk_norm = TS_QK_NORM_HEAD,
                                .qkv_bias = TS_BIAS_ATTENTION,
                                .o_bias = TS_BIAS_ATTENTION,
                                .windows = TS_WINDOW_UPPER};

/* ---- Gemma (Mesnard et al. 2024), Gemma 2 (Riviere et al. 2024), Gemma 3's text part (Kamath et al. 2025) ---- */

#define LIKE_GEMMA                                                                                                     \
  .norm_kind = TS_NORM_RMS_PLUS, .qkv_bias = TS_BIAS_ATTENTION, .o_bias = TS_BIAS_ATTENTION, .scaled_embedding = true, \
  .norm_keeps_type = true

static const ts_family_key gemma_keys[] = {KEY_IS(head_dim, "256"),
                                           KEY(attention_bias),
                                           KEY_IS(num_key_value_heads, "16"),
                                           KEY_IS(hidden_act, "gelu_pytorch_tanh"),
                                           KEY_IS(tie_word_embeddings, "true"),
                                           END};

static const ts_family gemma = {LIKE_LLAMA,
                                LIKE_GEMMA,
                                PRE_NORMS,
                                .model_type = "gemma",
                                .norm_class = "GemmaRMSNorm",
                                .architecture = "GemmaForCausalLM",
                                .keys = {gemma_keys, rms, sizes, common},
                                .gelu_is_tanh = true};

static const ts_family_key gemma2_keys[] = {KEY_IS(head_dim, "256"),
                                            KEY(attention_bias),
                                            KEY_IS(num_key_value_heads, "4"),
                                            NAMED_IS(hidden_act, "hidden_activation", "gelu_pytorch_tanh"),
                                            KEY_IS(tie_word_embeddings, "true"),
                                            KEY_IS(query_pre_attn_scalar, "256"),
                                            KEY_IS(sliding_window, "4096"),
                                            KEY_IS(sliding_window_pattern, "2"),
                                            KEY(layer_types),
                                            KEY_IS(attn_logit_softcapping, "50.0"),
                                            KEY_IS(final_logit_softcapping, "30.0"),
                                            END};

static const ts_family gemma2 = {LIKE_LLAMA,
                                 LIKE_GEMMA,
                                 ALL_NORMS,
                                 .model_type = "gemma2",
                                 .norm_class = "Gemma2RMSNorm",
                                 .architecture = "Gemma2ForCausalLM",
                                 .keys = {gemma2_keys, rms, sizes, common},
                                 .windows = TS_WINDOW_PATTERN};

/* Directories of the larger ones say only what differs from their class. */
static const ts_family_key gemma3_keys[] = {KEY_IS(vocab_size, "262208"),
                                            KEY_IS(hidden_size, "2304"),
                                            KEY_IS(intermediate_size, "9216"),
                                            KEY_IS(num_hidden_layers, "26"),
                                            KEY_IS(num_attention_heads, "8"),
                                            KEY_IS(max_position_embeddings, "131072"),
                                            KEY_IS(head_dim, "256"),
                                            KEY(attention_bias),
                                            KEY_IS(num_key_value_heads, "4"),
                                            NAMED_IS(hidden_act, "hidden_activation", "gelu_pytorch_tanh"),
                                            KEY_IS(tie_word_embeddings, "true"),
                                            KEY_IS(query_pre_attn_scalar, "256"),
                                            KEY_IS(rope_theta, "1000000.0"),
                                            KEY(rope_local_base_freq),
                                            NAMED(rope_local, "rope_parameters"),
                                            KEY_IS(sliding_window, "4096"),
                                            KEY_IS(sliding_window_pattern, "6"),
                                            KEY(layer_types),
                                            KEY(attn_logit_softcapping),
                                            KEY(final_logit_softcapping),
                                            END};

static const ts_family gemma3_text = {LIKE_LLAMA,
                                      LIKE_GEMMA,
                                      ALL_NORMS,
                                      .model_type = "gemma3_text",
                                      .norm_class = "Gemma3RMSNorm",
                                      .embedding_class = "Gemma3TextScaledWordEmbedding",
                                      .architecture = "Gemma3ForCausalLM",
                                      .keys = {gemma3_keys, rms, sizes, common},
                                      .q_norm = "self_attn.q_norm",
                                      .k_norm = "self_attn.k_norm",
                                      .qk_norm = TS_QK_NORM_HEAD,
                                      .windows = TS_WINDOW_PATTERN};

/* ---- Phi-3 and Phi-4 (Abdin et al. 2024) ---- */

static const ts_family_key phi3_keys[] = {
    KEY_IS(rms_norm_eps, "1e-5"),
    KEY(resid_pdrop),
    KEY(partial_rotary_factor),
    KEY(sliding_window),
    NAMED_IS(rope_scaling.original_max_position_embeddings, "original_max_position_embeddings", "4096"),
    END};

static const ts_family phi3 = {.model_type = "phi3",
                               .norm_class = "Phi3RMSNorm",
                               .architecture = "Phi3ForCausalLM",
                               .keys = {phi3_keys, rms, sizes, common},
                               .embedding = "model.embed_tokens",
                               .layers = "model.layers",
                               .final_norm = "model.norm",
                               .head = "lm_head",
                               PRE_NORMS,
                               .attention = "self_attn",
                               .mlp = "mlp",
                               .qkv = "self_attn.qkv_proj",
                               .o = "self_attn.o_proj",
                               .gate_up = "mlp.gate_up_proj",
                               .down = "mlp.down_proj",
                               .windows = TS_WINDOW_ALL,
                               .prefixes = model_prefixes,
                               .buffers = rotary_buffers};

/* ---- OLMo 2 (Walsh et al. 2025), OLMo 3 ---- */

#define LIKE_OLMO2                                                                                     \
  POST_NORMS, .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm", .qk_norm = TS_QK_NORM_WIDTH, \
              .qkv_bias = TS_BIAS_ATTENTION, .o_bias = TS_BIAS_ATTENTION, .norm_keeps_type = true

static const ts_family_key olmo2_keys[] = {KEY(attention_bias), KEY_IS(rms_norm_eps, "1e-5"), END};

static const ts_family olmo2 = {LIKE_LLAMA,
                                LIKE_OLMO2,
                                .model_type = "olmo2",
                                .norm_class = "Olmo2RMSNorm",
                                .architecture = "Olmo2ForCausalLM",
                                .keys = {olmo2_keys, rms, sizes, common}};

static const ts_family_key olmo3_keys[] = {KEY_IS(rope_theta, "500000.0"),
                                           KEY_IS(rope_local_base_freq, "500000.0"),
                                           NAMED(rope_local, "rope_parameters"),
                                           KEY_IS(sliding_window, "4096"),
                                           KEY_IS(sliding_window_pattern, "4"),
                                           KEY(layer_types),
                                           END};

static const ts_family olmo3 = {LIKE_LLAMA,
                                LIKE_OLMO2,
                                .model_type = "olmo3",
                                .norm_class = "Olmo3RMSNorm",
                                .architecture = "Olmo3ForCausalLM",
                                .keys = {olmo3_keys, olmo2_keys, rms, sizes, common},
                                .windows = TS_WINDOW_PATTERN};

/* ---- SmolLM3 (Bakouch et al. 2025) ---- */

static const ts_family_key smollm3_keys[] = {KEY(attention_bias),
                                             KEY(mlp_bias),
                                             KEY_IS(num_key_value_heads, "4"),
                                             KEY_IS(rope_theta, "2000000.0"),
                                             KEY(sliding_window),
                                             KEY(use_sliding_window),
                                             KEY(no_rope_layers),
                                             KEY_IS(no_rope_layer_interval, "4"),
                                             KEY(layer_types),
                                             KEY_IS(tie_word_embeddings, "true"),
                                             END};

static const ts_family smollm3 = {LIKE_LLAMA,
                                  PRE_NORMS,
                                  .model_type = "smollm3",
                                  .norm_class = "SmolLM3RMSNorm",
                                  .architecture = "SmolLM3ForCausalLM",
                                  .keys = {smollm3_keys, rms, sizes, common},
                                  .qkv_bias = TS_BIAS_ATTENTION,
                                  .o_bias = TS_BIAS_ATTENTION,
                                  .mlp_bias = TS_BIAS_MLP,
                                  .windows = TS_WINDOW_NO_ROPE};

/* ---- Granite (Granite team 2024) ---- */

static const ts_family_key granite_keys[] = {KEY(attention_bias),
                                             KEY(mlp_bias),
                                             KEY(embedding_multiplier),
                                             KEY(residual_multiplier),
                                             KEY_IS(attention_multiplier, "1.0"),
                                             KEY(logits_scaling),
                                             END};

static const ts_family granite = {LIKE_LLAMA,
                                  PRE_NORMS,
                                  .model_type = "granite",
                                  .norm_class = "GraniteRMSNorm",
                                  .architecture = "GraniteForCausalLM",
                                  .keys = {granite_keys, rms, sizes, common},
                                  .qkv_bias = TS_BIAS_ATTENTION,
                                  .o_bias = TS_BIAS_ATTENTION,
                                  .mlp_bias = TS_BIAS_MLP};

/* ---- GPT-NeoX (Black et al. 2022), Pythia ---- */

static const ts_family_key gpt_neox_keys[] = {KEY(hidden_size),
                                              KEY(intermediate_size),
                                              KEY(num_hidden_layers),
                                              KEY(num_attention_heads),
                                              KEY(max_position_embeddings),
                                              KEY_IS(hidden_act, "gelu"),
                                              NAMED(layer_norm_epsilon, "layer_norm_eps"),
                                              KEY_IS(attention_bias, "true"),
                                              NAMED_IS(attn_pdrop, "attention_dropout", "0.0"),
                                              NAMED(resid_pdrop, "hidden_dropout"),
                                              NAMED(embd_pdrop, "hidden_dropout"),
                                              KEY_IS(use_parallel_residual, "true"),
                                              NAMED_IS(partial_rotary_factor, "rotary_pct", "0.25"),
                                              NAMED(rope_theta, "rotary_emb_base"),
                                              KEY(rope_scaling),
                                              END};
static const char *const gpt_neox_prefixes[] = {"gpt_neox.", "module.", NULL};
static const char *const gpt_neox_buffers[] = {".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq",
                                               NULL};

static const ts_family gpt_neox = {.model_type = "gpt_neox",
                                   .architecture = "GPTNeoXForCausalLM",
                                   .keys = {gpt_neox_keys, common},
                                   .embedding = "gpt_neox.embed_in",
                                   .layers = "gpt_neox.layers",
                                   .final_norm = "gpt_neox.final_layer_norm",
                                   .head = "embed_out",
                                   PRE_NORMS,
                                   .attention = "attention",
                                   .mlp = "mlp",
                                   .qkv = "attention.query_key_value",
                                   .o = "attention.dense",
                                   .up = "mlp.dense_h_to_4h",
                                   .down = "mlp.dense_4h_to_h",
                                   .norm_kind = TS_NORM_LAYER,
                                   .qkv_bias = TS_BIAS_ATTENTION,
                                   .o_bias = TS_BIAS_ATTENTION,
                                   .mlp_bias = TS_BIAS_ALL,
                                   .qkv_by_heads = true,
                                   .prefixes = gpt_neox_prefixes,
                                   .buffers = gpt_neox_buffers};

/* ---- StarCoder2 (Lozhkov et al. 2024) ---- */

static const ts_family_key starcoder2_keys[] = {
    NAMED(layer_norm_epsilon, "norm_epsilon"), NAMED_IS(attention_bias, "use_bias", "true"),
    KEY_IS(num_key_value_heads, "2"),          KEY_IS(hidden_act, "gelu_pytorch_tanh"),
    NAMED(resid_pdrop, "residual_dropout"),    NAMED(embd_pdrop, "embedding_dropout"),
    KEY_IS(initializer_range, "0.018042"),     KEY(sliding_window),
    KEY_IS(tie_word_embeddings, "true"),       END};

static const ts_family starcoder2 = {.model_type = "starcoder2",
                                     .architecture = "Starcoder2ForCausalLM",
                                     .keys = {starcoder2_keys, sizes, common},
                                     .embedding = "model.embed_tokens",
                                     .layers = "model.layers",
                                     .final_norm = "model.norm",
                                     .head = "lm_head",
                                     PRE_NORMS,
                                     .attention = "self_attn",
                                     .mlp = "mlp",
                                     .q = "self_attn.q_proj",
                                     .k = "self_attn.k_proj",
                                     .v = "self_attn.v_proj",
                                     .o = "self_attn.o_proj",
                                     .up = "mlp.c_fc",
                                     .down = "mlp.c_proj",
                                     .norm_kind = TS_NORM_LAYER,
                                     .qkv_bias = TS_BIAS_ATTENTION,
                                     .o_bias = TS_BIAS_ATTENTION,
                                     .mlp_bias = TS_BIAS_ATTENTION,
                                     .windows = TS_WINDOW_ALL,
                                     .prefixes = model_prefixes,
                                     .buffers = rotary_buffers};

/* ---- mixtures of experts: Mixtral (Jiang et al. 2024), Qwen1.5-MoE and Qwen2 (Yang et al. 2024), Qwen3 (2025), OLMoE
 * (Muennighoff et al. 2024), dots.llm1 (Huo et al. 2025) with the router of DeepSeek-V3 (DeepSeek-AI 2024) ---- */

#define EXPERTS                                                                                       \
  .router = "mlp.gate", .experts = "mlp.experts", .expert_gate = "gate_proj", .expert_up = "up_proj", \
  .expert_down = "down_proj", .fused_experts = "mlp.experts"

#define HEAD_NORMS .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"

static const ts_family_key balance[] = {KEY(output_router_logits), KEY(router_aux_loss_coef), END};

static const ts_family_key mixtral_keys[] = {NAMED_IS(num_experts, "num_local_experts", "8"),
                                             KEY_IS(num_experts_per_tok, "2"),
                                             KEY_IS(num_key_value_heads, "8"),
                                             KEY_IS(rms_norm_eps, "1e-5"),
                                             KEY_IS(rope_theta, "1000000.0"),
                                             KEY(sliding_window),
                                             END};

static const ts_family mixtral = {LIKE_LLAMA,
                                  PRE_NORMS,
                                  .model_type = "mixtral",
                                  .norm_class = "MixtralRMSNorm",
                                  .architecture = "MixtralForCausalLM",
                                  .keys = {mixtral_keys, balance, rms, sizes, common},
                                  .router = "block_sparse_moe.gate",
                                  .experts = "block_sparse_moe.experts",
                                  .expert_gate = "w1",
                                  .expert_up = "w3",
                                  .expert_down = "w2",
                                  .fused_experts = "mlp.experts",
                                  .also = {"block_sparse_moe", "mlp"},
                                  .router_normalizes = true,
                                  .windows = TS_WINDOW_ALL};

static const ts_family_key qwen_moe[] = {KEY(norm_topk_prob),     KEY(decoder_sparse_step),
                                         KEY(mlp_only_layers),    KEY_IS(sliding_window, "4096"),
                                         KEY(use_sliding_window), END};

static const ts_family_key qwen2_moe_keys[] = {KEY_IS(num_experts, "60"),
                                               KEY_IS(num_experts_per_tok, "4"),
                                               KEY_IS(moe_intermediate_size, "1408"),
                                               KEY_IS(shared_expert_intermediate_size, "5632"),
                                               KEY_IS(num_key_value_heads, "16"),
                                               NAMED_IS(attention_bias, "qkv_bias", "true"),
                                               KEY_IS(max_window_layers, "28"),
                                               KEY(layer_types),
                                               END};

static const ts_family qwen2_moe = {LIKE_LLAMA,
                                    PRE_NORMS,
                                    EXPERTS,
                                    .model_type = "qwen2_moe",
                                    .norm_class = "Qwen2MoeRMSNorm",
                                    .architecture = "Qwen2MoeForCausalLM",
                                    .keys = {qwen2_moe_keys, qwen_moe, balance, rms, sizes, common},
                                    .shared_expert = "mlp.shared_expert",
                                    .shared_expert_gate = "mlp.shared_expert_gate",
                                    .qkv_bias = TS_BIAS_ATTENTION,
                                    .windows = TS_WINDOW_EVEN};

static const ts_family_key qwen3_moe_keys[] = {KEY_IS(num_experts, "128"),
                                               KEY_IS(num_experts_per_tok, "8"),
                                               KEY_IS(moe_intermediate_size, "768"),
                                               KEY_IS(num_key_value_heads, "4"),
                                               KEY(attention_bias),
                                               END};

static const ts_family qwen3_moe = {LIKE_LLAMA,
                                    PRE_NORMS,
                                    EXPERTS,
                                    HEAD_NORMS,
                                    .model_type = "qwen3_moe",
                                    .norm_class = "Qwen3MoeRMSNorm",
                                    .architecture = "Qwen3MoeForCausalLM",
                                    .keys = {qwen3_moe_keys, qwen_moe, balance, rms, sizes, common},
                                    .qk_norm = TS_QK_NORM_HEAD,
                                    .qkv_bias = TS_BIAS_ATTENTION,
                                    .o_bias = TS_BIAS_ATTENTION,
                                    .windows = TS_WINDOW_ALL};

static const ts_family_key olmoe_keys[] = {KEY_IS(num_experts, "64"),
                                           KEY_IS(num_experts_per_tok, "8"),
                                           KEY(norm_topk_prob),
                                           KEY(attention_bias),
                                           KEY_IS(rms_norm_eps, "1e-5"),
                                           KEY_IS(router_aux_loss_coef, "0.01"),
                                           END};

static const ts_family olmoe = {LIKE_LLAMA,
                                PRE_NORMS,
                                EXPERTS,
                                HEAD_NORMS,
                                .model_type = "olmoe",
                                .norm_class = "OlmoeRMSNorm",
                                .architecture = "OlmoeForCausalLM",
                                .keys = {olmoe_keys, balance, rms, sizes, common},
                                .qk_norm = TS_QK_NORM_WIDTH,
                                .qkv_bias = TS_BIAS_ATTENTION,
                                .o_bias = TS_BIAS_ATTENTION};

static const ts_family_key dots1_keys[] = {NAMED(num_experts, "n_routed_experts"),
                                           KEY(num_experts_per_tok),
                                           KEY_IS(moe_intermediate_size, "1408"),
                                           KEY(n_shared_experts),
                                           KEY(norm_topk_prob),
                                           KEY(routed_scaling_factor),
                                           KEY(n_group),
                                           KEY(topk_group),
                                           KEY(first_k_dense_replace),
                                           KEY_IS(num_key_value_heads, "32"),
                                           KEY(attention_bias),
                                           KEY_IS(sliding_window, "4096"),
                                           KEY_IS(max_window_layers, "62"),
                                           KEY(layer_types),
                                           END};

static const ts_family dots1 = {LIKE_LLAMA,
                                PRE_NORMS,
                                EXPERTS,
                                HEAD_NORMS,
                                .model_type = "dots1",
                                .norm_class = "Dots1RMSNorm",
                                .architecture = "Dots1ForCausalLM",
                                .keys = {dots1_keys, rms, sizes, common},
                                .router_bias = "mlp.gate.e_score_correction_bias",
                                .shared_expert = "mlp.shared_experts",
                                .router_sigmoid = true,
                                .qk_norm = TS_QK_NORM_HEAD,
                                .qkv_bias = TS_BIAS_ATTENTION,
                                .o_bias = TS_BIAS_ATTENTION,
                                .windows = TS_WINDOW_UPPER};

const ts_family *const ts_families[] = {
#define X(name) &name,
    TS_FAMILIES(X)
#undef X
        NULL};
