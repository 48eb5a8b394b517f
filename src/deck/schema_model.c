/* `model`: Hugging Face's keys, and the rest of a config.json. */
#include "deck/schema_rows.h"
#include "family/family.h"

#define OR_FAMILY(name) "|" #name
#define TS_FAMILY_NAMES &("" TS_FAMILIES(OR_FAMILY) "|" TS_MODEL_OWN)[1]

#define FAMILY TS_KEY_FAMILY /* the rows in src/family say whose */
#define MODEL_INTEGER(field, initial_, min_, flags_, help_) INTEGER(model.field, initial_, min_, SIZE, flags_, help_)
#define MODEL_NUMBER(field, initial_, max_, flags_, help_) NUMBER(model.field, initial_, 0, max_, flags_, help_)
#define NULLS TS_KEY_NULL
#define MOST_LAYERS 10000  /* numbers of nodes stay far below 2^31, and plans are made in hours at most */
#define LEAST_STRETCH 1e-3 /* angles stay where sines of doubles mean something */
#define ROPE(section, what)                                                                                       \
  WORD(model.section.rope_type, "default", "default|linear|dynamic|llama3|yarn|longrope|su", NULL, FAMILY,        \
       "How " what " are stretched beyond the pretraining."),                                                     \
      NUMBER(model.section.factor, "1.0", LEAST_STRETCH, 1e6, FAMILY, "Stretch of the " what "."),                \
      MODEL_NUMBER(section.low_freq_factor, "1.0", HUGE_REAL, OPEN_MIN | FAMILY,                                  \
                   "llama3: wavelengths above original positions / this are stretched in full."),                 \
      MODEL_NUMBER(section.high_freq_factor, "4.0", HUGE_REAL, OPEN_MIN | FAMILY,                                 \
                   "llama3: wavelengths below original positions / this are kept."),                              \
      MODEL_NUMBER(section.attention_factor, "0.0", 1e3, FAMILY,                                                  \
                   "yarn, longrope: factor of cosines and sines; 0: by the formula."),                            \
      MODEL_NUMBER(section.beta_fast, "32.0", HUGE_REAL, OPEN_MIN | FAMILY,                                       \
                   "yarn: frequencies that turn more often in the original positions are kept."),                 \
      MODEL_NUMBER(section.beta_slow, "1.0", HUGE_REAL, OPEN_MIN | FAMILY,                                        \
                   "yarn: frequencies that turn less often are stretched in full."),                              \
      MODEL_NUMBER(section.mscale, "0.0", 1e3, FAMILY, "yarn: scale of the attention factor; 0: none."),          \
      MODEL_NUMBER(section.mscale_all_dim, "0.0", 1e3, FAMILY, "yarn: its counterpart; 0: none."),                \
      FLAG(model.section.truncate, "true", FAMILY, "yarn: bounds of the blend are rounded to whole dimensions."), \
      {STORED(REALS, model.section.short_factor),                                                                 \
       .initial = "[]",                                                                                           \
       .min = LEAST_STRETCH,                                                                                      \
       .max = HUGE_REAL,                                                                                          \
       .flags = FAMILY,                                                                                           \
       .help = "longrope: divisors of the frequencies within the original positions."},                           \
      {STORED(REALS, model.section.long_factor),                                                                  \
       .initial = "[]",                                                                                           \
       .min = LEAST_STRETCH,                                                                                      \
       .max = HUGE_REAL,                                                                                          \
       .flags = FAMILY,                                                                                           \
       .help = "longrope: divisors of the frequencies beyond the original positions."},                           \
      MODEL_INTEGER(section.original_max_position_embeddings, NULL, 1, FAMILY, "Positions of the pretraining.")
#define MODEL_FLAG(field, help_) FLAG(model.field, "false", FAMILY, help_)

/* The newer spelling of the same, for the whole model or a type of layers. */
#define ROPE_PARAMETERS(section, target, theta)                                                                    \
  ALIAS(section ".type", target ".rope_type"), ALIAS(section ".rope_type", target ".rope_type"),                   \
      ALIAS(section ".rope_theta", theta), ALIAS(section ".partial_rotary_factor", "model.partial_rotary_factor"), \
      ALIAS(section ".factor", target ".factor"), ALIAS(section ".low_freq_factor", target ".low_freq_factor"),    \
      ALIAS(section ".high_freq_factor", target ".high_freq_factor"),                                              \
      ALIAS(section ".attention_factor", target ".attention_factor"),                                              \
      ALIAS(section ".beta_fast", target ".beta_fast"), ALIAS(section ".beta_slow", target ".beta_slow"),          \
      ALIAS(section ".mscale", target ".mscale"), ALIAS(section ".mscale_all_dim", target ".mscale_all_dim"),      \
      ALIAS(section ".truncate", target ".truncate"), ALIAS(section ".short_factor", target ".short_factor"),      \
      ALIAS(section ".long_factor", target ".long_factor"),                                                        \
      ALIAS(section ".original_max_position_embeddings", target ".original_max_position_embeddings")

/* What a config.json says about other programs. */
#define FOREIGN(name, reason)                                                                                    \
  {                                                                                                              \
    .path = "model." name, .type = TS_KEY_ANY, .status = TS_KEY_NO_EFFECT, .flags = TS_KEY_SILENT, .offset = -1, \
    .help = reason                                                                                               \
  }
#define GENERATION "a default of another program's text generation"
#define HEADS "describes a head that is not the language model's"
#define NEUTRAL(name, type_, initial_, reason) LATER("model." name, type_, initial_, reason)

static const ts_key rows[] = {
    {STORED(STRING, model.model_type), .accepted = TS_FAMILY_NAMES,
     .later = "gpt_oss|deepseek_v3|falcon|bloom|opt|gptj|mpt|bert|t5",
     .why =
         "gpt_oss: its attention has sinks, and its files are in MXFP4|deepseek_v3: its attention is latent, and its "
         "files are in FP8",
     .flags = REQUIRED, .help = "Model family."},
    WORD(model.from, "", NULL, NULL, 0,
         "Hugging Face directory: config.json fills this section, the safetensors are the initial weights.  Its path "
         "is relative to this file (--set: to the working directory)."),
    FLAG(model.from_config, "true", 0, "Merge config.json of `from`; false takes the weights only."),
    MODEL_INTEGER(vocab_size, NULL, 1, REQUIRED, "Size of the vocabulary; 256 for text as bytes."),
    MODEL_INTEGER(hidden_size, NULL, 1, REQUIRED, "Width of the model."),
    MODEL_INTEGER(intermediate_size, NULL, 1, 0, "Width of the MLP; gpt2's default is 4 x hidden_size."),
    INTEGER(model.num_hidden_layers, NULL, 1, MOST_LAYERS, REQUIRED, "Number of transformer blocks."),
    MODEL_INTEGER(num_attention_heads, NULL, 1, REQUIRED, "Query heads; divide hidden_size unless head_dim is given."),
    MODEL_INTEGER(num_key_value_heads, NULL, 1, FAMILY, "Key and value heads (default: the query heads)."),
    MODEL_INTEGER(head_dim, NULL, 1, FAMILY, "Width of a head (default: hidden_size / num_attention_heads)."),
    MODEL_INTEGER(max_position_embeddings, NULL, 1, REQUIRED, "Longest sequence the model knows positions for."),
    FLAG(model.tie_word_embeddings, NULL, 0, "The head is the embedding; the default is the family's."),
    MODEL_FLAG(attention_bias, "Biases in the attention projections."),
    MODEL_FLAG(mlp_bias, "Biases in the MLP projections."),
    MODEL_NUMBER(rms_norm_eps, "1e-6", 1, OPEN_MIN | FAMILY, "Added to the mean square in RMSNorm."),
    MODEL_NUMBER(layer_norm_epsilon, "1e-5", 1, OPEN_MIN | FAMILY, "Added to the variance in LayerNorm."),
    WORD(model.hidden_act, NULL, "silu|swish|gelu|gelu_new|gelu_pytorch_tanh|gelu_fast|relu", "quick_gelu|tanh|relu2",
         0, "Activation of the MLP; gelu is the exact one, gelu_new and gelu_pytorch_tanh the tanh form."),
    NUMBER(model.rope_theta, "10000.0", 1, HUGE_REAL, FAMILY, "Base of the rotary frequencies."),
    MODEL_NUMBER(partial_rotary_factor, "1.0", 1, OPEN_MIN | FAMILY,
                 "The part of each head that rotary positions turn."),
    ROPE(rope_scaling, "rotary positions"),
    NUMBER(model.rope_local_base_freq, "10000.0", 1, HUGE_REAL, FAMILY,
           "Base of the rotary frequencies of layers with a window."),
    ROPE(rope_local, "rotary positions of layers with a window"),
    MODEL_INTEGER(sliding_window, "0", 0, FAMILY | NULLS, "Tokens that attention sees back, itself included; 0: all."),
    MODEL_FLAG(use_sliding_window, "Some layers have the window."),
    MODEL_INTEGER(max_window_layers, "0", 0, FAMILY, "The first layer with a window."),
    MODEL_INTEGER(sliding_window_pattern, "1", 1, FAMILY, "Every so many layers one without a window."),
    {STORED(STRINGS, model.layer_types), .initial = "[]", .accepted = "full_attention|sliding_attention",
     .flags = FAMILY, .help = "Of each layer: with the window or without; default: by the keys above."},
    {STORED(INTS, model.no_rope_layers), .initial = "[]", .min = 0, .max = 1, .flags = FAMILY,
     .help = "Of each layer: 1 with rotary positions, 0 without."},
    MODEL_INTEGER(no_rope_layer_interval, "1", 1, FAMILY, "Every so many layers one without rotary positions."),
    MODEL_INTEGER(query_pre_attn_scalar, "0", 0, FAMILY, "Attention is scaled by 1 / sqrt (this); 0: head_dim."),
    MODEL_NUMBER(attention_multiplier, "0.0", 1e6, FAMILY, "Attention is scaled by this; 0: 1 / sqrt (head_dim)."),
    MODEL_NUMBER(attn_logit_softcapping, "0.0", 1e6, FAMILY | NULLS,
                 "Attention's scores s become c tanh (s / c); 0: they do not."),
    MODEL_NUMBER(final_logit_softcapping, "0.0", 1e6, FAMILY | NULLS,
                 "The logits x become c tanh (x / c); 0: they do not."),
    MODEL_NUMBER(embedding_multiplier, "1.0", 1e6, FAMILY, "Embeddings are multiplied by this."),
    MODEL_NUMBER(residual_multiplier, "1.0", 1e6, FAMILY, "What a block adds is multiplied by this."),
    NUMBER(model.logits_scaling, "1.0", 1e-6, 1e6, FAMILY, "The logits are divided by this."),
    MODEL_FLAG(use_parallel_residual, "Attention and the MLP of a block both read its input."),
    INTEGER(model.num_experts, "0", 0, TS_DECK_MOST_EXPERTS, FAMILY, "Experts of a layer."),
    INTEGER(model.num_experts_per_tok, "2", 1, TS_DECK_MOST_CHOSEN, FAMILY, "Experts that a token goes through."),
    MODEL_INTEGER(moe_intermediate_size, NULL, 1, FAMILY, "Width of an expert (default: intermediate_size)."),
    MODEL_INTEGER(shared_expert_intermediate_size, "0", 0, FAMILY,
                  "Width of the expert of all tokens; 0: there is none."),
    MODEL_INTEGER(n_shared_experts, "0", 0, FAMILY | NULLS, "The same, in widths of an expert."),
    MODEL_FLAG(norm_topk_prob, "The weights of a token's experts are divided by their sum."),
    MODEL_NUMBER(routed_scaling_factor, "1.0", 1e6, OPEN_MIN | FAMILY, "The weights are multiplied by this."),
    INTEGER(model.n_group, "1", 1, TS_DECK_MOST_CHOSEN, FAMILY, "Groups of experts, of neighbours."),
    INTEGER(model.topk_group, "1", 1, TS_DECK_MOST_CHOSEN, FAMILY, "Groups that a token's experts are of."),
    MODEL_INTEGER(decoder_sparse_step, "1", 1, FAMILY, "Every so many layers one has experts."),
    MODEL_INTEGER(first_k_dense_replace, "0", 0, FAMILY, "So many first layers have none."),
    {STORED(INTS, model.mlp_only_layers), .initial = "[]", .min = 0, .max = MOST_LAYERS, .flags = FAMILY | NULLS,
     .help = "Layers without experts, from 0."},
    MODEL_FLAG(output_router_logits, "The loss has a part that is least where experts have as many tokens each."),
    MODEL_NUMBER(router_aux_loss_coef, "0.001", 1e6, FAMILY, "That part is multiplied by this."),
    MODEL_NUMBER(attn_pdrop, NULL, 1, OPEN_MAX | OVERRIDE, "Dropout of attention weights; 0.1 for gpt2, else 0."),
    MODEL_NUMBER(embd_pdrop, NULL, 1, OPEN_MAX | OVERRIDE | FAMILY,
                 "Dropout after the embeddings; 0.1 for gpt2, else 0."),
    MODEL_NUMBER(resid_pdrop, NULL, 1, OPEN_MAX | OVERRIDE | FAMILY,
                 "Dropout before each residual sum; 0.1 for gpt2, else 0."),
    MODEL_NUMBER(initializer_range, "0.02", 1e3, OVERRIDE, "Standard deviation of initial weights."),
    INTEGER(model.bos_token_id, "-1", -1, SIZE, OVERRIDE, "Token that begins a text; -1 for none."),
    INTEGER(model.eos_token_id, "-1", -1, SIZE, OVERRIDE, "Token that ends a text; -1 for none."),
    {STORED(INTS, model.stop_token_ids), .initial = "[]", .min = 0, .max = SIZE, .flags = OVERRIDE,
     .help =
         "Tokens at which generation stops (default: those of generation_config.json in `from`, else eos_token_id)."},

    ALIAS("model.n_embd", "model.hidden_size"),
    ALIAS("model.n_layer", "model.num_hidden_layers"),
    ALIAS("model.n_head", "model.num_attention_heads"),
    ALIAS("model.n_positions", "model.max_position_embeddings"),
    ALIAS("model.n_inner", "model.intermediate_size"),
    ALIAS("model.activation_function", "model.hidden_act"),
    ALIAS("model.attention_dropout", "model.attn_pdrop"),
    ALIAS("model.rope_scaling.type", "model.rope_scaling.rope_type"),
    ALIAS("model.rope_scaling.rope_theta", "model.rope_theta"),
    ALIAS("model.rope_scaling.partial_rotary_factor", "model.partial_rotary_factor"),
    ALIAS("model.original_max_position_embeddings", "model.rope_scaling.original_max_position_embeddings"),
    ROPE_PARAMETERS("model.rope_parameters", "model.rope_scaling", "model.rope_theta"),
    ROPE_PARAMETERS("model.rope_parameters.full_attention", "model.rope_scaling", "model.rope_theta"),
    ROPE_PARAMETERS("model.rope_parameters.sliding_attention", "model.rope_local", "model.rope_local_base_freq"),
    ALIAS("model.num_local_experts", "model.num_experts"),
    ALIAS("model.n_routed_experts", "model.num_experts"),
    ALIAS("model.qkv_bias", "model.attention_bias"),
    ALIAS("model.rotary_pct", "model.partial_rotary_factor"),
    ALIAS("model.rotary_emb_base", "model.rope_theta"),
    ALIAS("model.hidden_activation", "model.hidden_act"),
    ALIAS("model.layer_norm_eps", "model.layer_norm_epsilon"),
    ALIAS("model.norm_epsilon", "model.layer_norm_epsilon"),
    ALIAS("model.use_bias", "model.attention_bias"),
    ALIAS("model.hidden_dropout", "model.resid_pdrop"),
    ALIAS("model.residual_dropout", "model.resid_pdrop"),
    ALIAS("model.embedding_dropout", "model.embd_pdrop"),

    NEUTRAL("use_bidirectional_attention", BOOL, "false", "attention that sees what comes later"),
    NEUTRAL("scale_attn_weights", BOOL, "true", "attention without the 1/sqrt (head_dim) scale"),
    NEUTRAL("scale_attn_by_inverse_layer_idx", BOOL, "false", "attention scaled by the layer's number"),
    NEUTRAL("add_cross_attention", BOOL, "false", "cross attention"),
    NEUTRAL("is_encoder_decoder", BOOL, "false", "encoder-decoder models"),
    NEUTRAL("quantization_config", ANY, NULL, "quantised weights"),
    NEUTRAL("router_jitter_noise", REAL, "0.0", "noise on what a router reads"),
    NEUTRAL("clip_qkv", REAL, NULL, "clipped queries, keys and values"),
    NEUTRAL("num_nextn_predict_layers", INT, "0", "heads for the tokens after the next"),
    NONE("model.reorder_and_upcast_attn", BOOL, "false", "attention weights are always computed in fp32"),

    FOREIGN("pretraining_tp", "products of the pretraining were split; transformers does not read it"),
    FOREIGN("architectures", "names a class of another program"),
    FOREIGN("_name_or_path", "says where the file came from"),
    FOREIGN("name_or_path", "says where the file came from"),
    FOREIGN("transformers_version", "says which program wrote the file"),
    FOREIGN("torch_dtype", "the tensors in the safetensors files say their type"),
    FOREIGN("dtype", "the tensors in the safetensors files say their type"),
    FOREIGN("torchscript", "a setting of another program"),
    FOREIGN("auto_map", "names code of another program"),
    FOREIGN("use_cache", GENERATION),
    FOREIGN("use_return_dict", "a setting of another program"),
    FOREIGN("return_dict", "a setting of another program"),
    FOREIGN("output_attentions", "a setting of another program"),
    FOREIGN("output_hidden_states", "a setting of another program"),
    FOREIGN("pad_token_id", GENERATION),
    FOREIGN("sep_token_id", GENERATION),
    FOREIGN("decoder_start_token_id", GENERATION),
    FOREIGN("task_specific_params", GENERATION),
    FOREIGN("do_sample", GENERATION),
    FOREIGN("max_length", GENERATION),
    FOREIGN("min_length", GENERATION),
    FOREIGN("temperature", GENERATION),
    FOREIGN("top_k", GENERATION),
    FOREIGN("top_p", GENERATION),
    FOREIGN("n_ctx", "the same as n_positions in every published model"),
    FOREIGN("prefix", GENERATION),
    FOREIGN("gradient_checkpointing", "activation_checkpointing.enabled decides"),
    FOREIGN("summary_type", HEADS),
    FOREIGN("summary_use_proj", HEADS),
    FOREIGN("summary_activation", HEADS),
    FOREIGN("summary_proj_to_labels", HEADS),
    FOREIGN("summary_first_dropout", HEADS),
    FOREIGN("id2label", HEADS),
    FOREIGN("label2id", HEADS),
    FOREIGN("num_labels", HEADS),
    FOREIGN("problem_type", HEADS),
    FOREIGN("finetuning_task", HEADS),
    FOREIGN("chunk_size_feed_forward", "the planner decides how work is cut"),
    FOREIGN("attn_implementation", "a setting of another program"),
    FOREIGN("_attn_implementation", "a setting of another program"),
};

TABLE(ts_keys_model, rows);
