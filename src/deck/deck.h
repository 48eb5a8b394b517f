/** \file
 * The deck: what the user asked for, in one plain struct, fully checked.
 *
 * Text comes in from a libconfig file, from `--set key.path=value`, from a DeepSpeed json (`deepspeed_config`) and from
 * a Hugging Face `config.json` (`model.from`).  All four pass through one table (schema.h): a row per key with its
 * path, type, default, range, accepted values, status and one line of help.  The same rows print the manual, so a key
 * that is read is documented and a key that is documented is read.  A field's name is its path in the deck; the
 * exceptions are the GPT-2 spellings (n_embd, n_layer, ...), which fill the fields of the common names.
 *
 * Every number in a ts_deck that ts_deck_read returned is in the range of its row, and the fields agree with each other
 * (heads divide the hidden size, the sequence fits the positions, ...).  What depends on the number of ranks is checked
 * by ts_deck_resolve_batch and by the mesh.  Sizes called "elements" count numbers, not bytes.
 *
 * No function here is collective: one rank reads, prints with ts_deck_print, and the others read that text, with the
 * places of the keys beside it (ts_deck_print_origins).
 */
#ifndef TS_DECK_DECK_H
#define TS_DECK_DECK_H

#include "base/dtype.h"
#include "base/loss_scale.h"
#include "base/status.h"
#include "base/text.h"
#include "deck/deck_read.h"

#include <stdbool.h>
#include <stdint.h>

/** A list of strings; owned by the deck.  Zero is the empty list. */
#define TS_PARTITION_TYPE "type:" /* pipeline.partition: an expression follows */

typedef struct ts_strings {
  int n;
  char **items;
} ts_strings;

/** A list of integers; owned by the deck.  Zero is the empty list. */
typedef struct ts_ints {
  int n;
  int64_t *items;
} ts_ints;

/** A flag that the deck may leave to the machine: it is AUTO until ts_deck_decide_precision. */
typedef enum ts_switch { TS_SWITCH_OFF, TS_SWITCH_ON, TS_SWITCH_AUTO } ts_switch;

typedef struct ts_reals {
  double *items; /**< Owned. */
  int n;
} ts_reals;

/** How rotary positions are stretched.  Which fields mean something depends on rope_type (model/rope.h). */
typedef struct ts_deck_rope {
  char *rope_type; /**< "default" (not at all), "linear", "dynamic", "llama3", "yarn" or "longrope". */
  double factor, low_freq_factor, high_freq_factor;
  double attention_factor; /**< Of cosines and sines; 0: as the kind's formula says. */
  double beta_fast, beta_slow, mscale, mscale_all_dim;
  bool truncate;
  ts_reals short_factor, long_factor;
  int64_t original_max_position_embeddings; /**< Positions of the pretraining; 0: max_position_embeddings. */
} ts_deck_rope;

/** Experts of a layer, and how many of them a token may have, at most. */
enum { TS_DECK_MOST_EXPERTS = 1024, TS_DECK_MOST_CHOSEN = 64 };

/** `model`: Hugging Face's names.  Derived sizes are filled in (head_dim, num_key_value_heads, intermediate_size). */
typedef struct ts_deck_model {
  char *model_type; /**< The family, a row of src/family. */
  char *from;       /**< Hugging Face directory to take the weights from, absolute; "" to initialise from run.seed. */
  bool from_config; /**< The keys in config.json of `from` are still to be merged: always false after ts_deck_read. */
  int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers;
  int64_t num_attention_heads, num_key_value_heads, head_dim;
  int64_t max_position_embeddings;
  bool tie_word_embeddings, attention_bias, mlp_bias;
  double rms_norm_eps, layer_norm_epsilon;
  char *hidden_act; /**< "silu", "gelu", ... */
  double rope_theta, partial_rotary_factor;
  ts_deck_rope rope_scaling;
  double rope_local_base_freq; /**< Of layers with a window, in families that have one of their own. */
  ts_deck_rope rope_local;     /**< Likewise. */
  int64_t sliding_window;      /**< Tokens that attention sees back, the token itself included; 0: all. */
  bool use_sliding_window;
  int64_t max_window_layers, sliding_window_pattern;
  ts_strings layer_types; /**< Empty: by the family's rule. */
  ts_ints no_rope_layers; /**< 1: rotary positions, 0: none; empty: by no_rope_layer_interval. */
  int64_t no_rope_layer_interval;
  int64_t query_pre_attn_scalar;                          /**< Attention's scale is 1 / sqrt (this); 0: of head_dim. */
  double attention_multiplier;                            /**< Attention's scale itself; 0: as above. */
  double attn_logit_softcapping, final_logit_softcapping; /**< 0: none. */
  double embedding_multiplier, residual_multiplier, logits_scaling;
  bool use_parallel_residual;
  int64_t num_experts, num_experts_per_tok; /**< Of a mixture; 0: there is none. */
  int64_t moe_intermediate_size;            /**< Width of an expert. */
  int64_t shared_expert_intermediate_size;  /**< Width of what every token goes through; 0: nothing. */
  int64_t n_shared_experts;                 /**< The same in widths of an expert. */
  bool norm_topk_prob;                      /**< The weights of the chosen experts sum to 1, */
  double routed_scaling_factor;             /**< times this. */
  int64_t n_group, topk_group;              /**< Groups of experts, and how many of them may be chosen from. */
  int64_t decoder_sparse_step, first_k_dense_replace; /**< Every so many layers has experts; none of the first. */
  ts_ints mlp_only_layers;                            /**< Layers without experts. */
  bool output_router_logits;                          /**< The loss has a part for balance, */
  double router_aux_loss_coef;                        /**< times this. */
  double attn_pdrop, embd_pdrop, resid_pdrop;
  double initializer_range;
  int64_t bos_token_id, eos_token_id; /**< -1: none. */
  ts_ints stop_token_ids;             /**< Tokens that end a generation; none: eos_token_id. */
} ts_deck_model;

/** One entry of `data.sources`. */
typedef struct ts_deck_source {
  char *path, *format, *dataset;  /**< As of `data`, whose values are the defaults, */
  char *field, *completion_field; /**< likewise. */
  double weight;                  /**< Positive: its part of the samples, of the sum of all. */
} ts_deck_source;

typedef struct ts_deck_sources {
  ts_deck_source *items;
  int n;
} ts_deck_sources;

/** `data`. */
typedef struct ts_deck_data {
  ts_deck_sources sources; /**< None where `path` is given. */
  char *path;              /**< As written; relative to the directory the program was started in. */
  char *format;            /**< "auto", "text", "jsonl", "bin", "uint16", "hdf5" or "megatron". */
  char *dataset;           /**< Name inside an HDF5 file. */
  char *tokenizer;         /**< Directory with a tokenizer.json for text and jsonl, as `path`; "": model.from. */
  char *cache;             /**< Directory for the tokens made of them; "": beside each file. */
  char *field;             /**< Of jsonl: text, prompt or chat; */
  char *completion_field;  /**< what is to be said to the prompt; "": nothing. */
  char *chat_template;     /**< Its name; "": that of the tokenizer's directory. */
  bool train_on_prompt;    /**< Prompts and what others than the assistant say are learned too. */
  int64_t sequence_length;
  double validation_fraction; /**< Tail of `path` kept for validation, [0, 1); 0 when validation_path is given. */
  char *validation_path;      /**< "" for none. */
  char *packing;              /**< "stream", "documents", "best_fit" or "none". */
  bool shuffle;
  int64_t seed;
} ts_deck_data;

/** `run`. */
typedef struct ts_deck_run {
  char *directory; /**< "" when the deck names none (plan and graph need none). */
  int64_t steps, seed;
  double epochs;                           /**< 0: steps says how many; else ts_deck_steps_left, and steps is 0. */
  int64_t save_every;                      /**< Steps between checkpoints; 0: at the end only. */
  int64_t keep;                            /**< Newest checkpoints kept; 0: all. */
  bool save_async;                         /**< Write them while training goes on, from a copy. */
  int64_t evaluate_every;                  /**< Steps between validations; 0: never. */
  int64_t evaluate_batches;                /**< Global micro-batches of one validation; 0: the whole validation set. */
  char *device;                            /**< "auto", "cpu" or "cuda". */
  char *attention;                         /**< "auto" or "own". */
  char *algorithms;                        /**< "" or a file. */
  double peer_timeout;                     /**< Seconds; 0: for ever.  More where engine/timeouts.h says so. */
  double step_timeout, first_step_timeout; /**< Until a step counts as a hang (train/watchdog.h), likewise. */
  double time_limit;                       /**< Seconds from the beginning of the program; 0: what Slurm says. */
  double save_retry;                       /**< Seconds between two tries of a save that fails (engine/retry.h). */
  double save_timeout;                     /**< Seconds of failing saves after which the run stops; 0: never. */
  double time_margin;                      /**< Seconds kept beside what saving needs (train/time_limit.h). */
  bool exact_sums, deterministic;
  bool cuda_graphs, measure_algorithms, share_device, tf32;
  char *bind;                   /**< "auto", "cores" or "none". */
  char *accumulation_order;     /**< "auto", "micro_batch" or "unit". */
  char *offload_update;         /**< "auto", "device" or "host". */
  int64_t memory_limit;         /**< Bytes of a rank's memory where it computes; 0: what there is. */
  int64_t host_memory_limit;    /**< Likewise of the host's beside a device. */
  int64_t threads;              /**< Per rank; 0: the cores this rank may use. */
  char *resume;                 /**< "never", "auto", or a run or checkpoint directory. */
  int64_t log_every;            /**< Steps between printed lines; steps_per_print unless set. */
  int64_t stop_after_nonfinite; /**< Consecutive skipped steps that end the run. */
} ts_deck_run;

/** One entry of `optimizer.groups`: parameters whose name matches the expression. The first match wins. */
typedef struct ts_deck_group {
  char *pattern;       /**< PCRE2, matched anywhere in the parameter's name; valid. */
  double lr_factor;    /**< Multiplies the learning rate. */
  double weight_decay; /**< Negative: that of optimizer.params (or 0 where no_decay matches). */
  bool frozen;         /**< Keeps its value, has no gradient and no optimizer state. */
} ts_deck_group;

typedef struct ts_deck_groups {
  int n;
  ts_deck_group *items;
} ts_deck_groups;

/** `optimizer.params`: of all types; each with its default. */
typedef struct ts_deck_optimizer_params {
  double lr;       /**< Of Muon's matrices where the type is Muon: resolved. */
  double betas[2]; /**< Resolved, as eps is: defaults of their own with Adagrad and Muon. */
  double eps, weight_decay;
  bool bias_correction;
  bool adam_w_mode; /**< Weight decay decoupled: resolved; for AdamW and Muon's always true. */
  double momentum, dampening;
  bool nesterov;
  double lr_decay, initial_accumulator_value; /**< Adagrad. */
  bool eps_inside_sqrt;                       /**< Lamb. */
  double max_coeff, min_coeff;                /**< Lamb: of its ratios. */
  double muon_lr, adam_lr;                    /**< Muon: resolved; of its matrices, and of the rest. */
  char *ns_method;                            /**< Muon: "gram" or "standard". */
  bool per_head_muon;                         /**< Muon: heads of q, k and v are matrices each. */
} ts_deck_optimizer_params;

/** `optimizer`. */
typedef struct ts_deck_optimizer {
  char *type;        /**< "AdamW", "Adam", "Lion", "Adagrad", "SGD", "Lamb" or "Muon", this spelling. */
  char *state_dtype; /**< "fp32", "bf16" or "8bit": of what it keeps of an element. Resolved. */
  ts_deck_optimizer_params params;
  ts_strings no_decay; /**< Expressions; a parameter that matches one has no weight decay. */
  ts_deck_groups groups;
} ts_deck_optimizer;

/** `scheduler`: the parameters of all types, each with DeepSpeed's default; only those of `type` can have been set. */
typedef struct ts_deck_scheduler {
  char *type; /**< "none", "LRRangeTest", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR" or "OneCycle". */
  struct {
    double lr_range_test_min_lr, lr_range_test_step_rate;
    int64_t lr_range_test_step_size;
    bool lr_range_test_staircase;
    double warmup_min_lr, warmup_max_lr;
    int64_t warmup_num_steps, total_num_steps;
    char *warmup_type; /**< "log" or "linear". */
    double warmup_min_ratio, cos_min_ratio;
    double cycle_min_lr, cycle_max_lr, decay_lr_rate;
    int64_t cycle_first_step_size, cycle_second_step_size;     /**< The second is resolved (default: the first). */
    int64_t cycle_first_stair_count, cycle_second_stair_count; /**< The second is resolved (default: the first). */
    int64_t decay_step_size;
    bool cycle_momentum;
    double cycle_min_mom, cycle_max_mom, decay_mom_rate;
    int64_t last_batch_iteration;
  } params;
} ts_deck_scheduler;

/** `zero_optimization.offload_param` and `offload_optimizer`. */
typedef struct ts_deck_offload {
  char *device;                       /**< "none", "cpu", "nvme" or "auto". */
  char *nvme_path;                    /**< The directory of files; not empty where device is "nvme". */
  double ratio;                       /**< Of the optimizer: the part of elements whose states leave, */
  bool gradients;                     /**< and do gradients with them? */
  bool super_offload;                 /**< May updates wait until the next forward? */
  double cpuadam_cores_perc;          /**< Of a rank's threads, for updates on the host: 0.8 is four of five. */
  int64_t max_in_cpu;                 /**< Of parameters: elements that stay in memory where device is "nvme". */
  bool pipeline_read, pipeline_write; /**< Of the optimizer. */
} ts_deck_offload;

/** `aio`: how files of what is offloaded are read and written. */
typedef struct ts_deck_aio {
  int64_t block_size;           /**< Bytes of a request. */
  int64_t queue_depth;          /**< Requests in flight per thread. */
  int64_t intra_op_parallelism; /**< Threads that share a transfer. */
} ts_deck_aio;

/** `zero_optimization.leaf_module`: modules of a program's own model whose units are one. */
typedef struct ts_deck_leaf_modules {
  ts_strings classes, names, name_suffixes;
} ts_deck_leaf_modules;

/** `zero_optimization`; sizes in elements. */
typedef struct ts_deck_zero {
  int64_t stage; /**< 0..3 */
  int64_t reduce_bucket_size, allgather_bucket_size;
  bool overlap_comm; /**< Resolved: unless set, true at stage 3 only (as DeepSpeed). */
  int64_t stage3_prefetch_bucket_size, stage3_param_persistence_threshold;
  int64_t stage3_max_live_parameters, stage3_max_reuse_distance;
  bool stage3_gather_16bit_weights_on_model_save; /**< For ts_save_16bit_model, and a run's end (TS_RUN_MODEL). */
  ts_deck_leaf_modules leaf_module;
  int64_t sub_group_size; /**< Of states that are offloaded. */
  ts_deck_offload offload_param, offload_optimizer;
} ts_deck_zero;

/** A dimension of a view: -1 (what is left), a count, or, where the view is cut, the sizes of its blocks. */
typedef struct ts_deck_extent {
  int64_t count; /**< Where the view is cut: of equal blocks, or the extent itself (one block). */
  ts_ints sizes; /**< None: `count`. */
} ts_deck_extent;

/** A weight [out][in] seen with more dimensions.  Zero: as it is. */
typedef struct ts_deck_view {
  int n;
  ts_deck_extent *items; /**< Owned. */
} ts_deck_view;

/** One entry of `tensor_parallel.partition_config.layer_specs`; the first that matches a weight counts. */
typedef struct ts_deck_tp_spec {
  ts_strings patterns;    /**< Valid PCRE2, matched from the beginning of the weight's full name (ts_matches_from). */
  char *partition_type;   /**< "column", "row" or "skip". */
  int64_t partition_dim;  /**< Of `shape`, or of [out][in]; resolved (default: 0 for a column, else 1). */
  ts_deck_view shape;     /**< At most TS_DECK_DIMS dimensions, well-formed but for what depends on the weight. */
  ts_strings model_types; /**< Families that the entry is for; none: all. */
  bool gather_output;
} ts_deck_tp_spec;

#define TS_LAYER_SPECS "tensor_parallel.partition_config.layer_specs"

typedef struct ts_deck_tp_specs {
  int n;
  ts_deck_tp_spec *items;
} ts_deck_tp_specs;

#define TS_DECK_DIMS 8

/** One entry of `tensor_parallel.tp_plan`. */
typedef struct ts_deck_tp_rule {
  char *pattern; /**< End of a weight's name, from a dot on and without .weight; a star stands for a number. */
  char *style;   /**< Hugging Face's: "colwise", "rowwise", ... */
} ts_deck_tp_rule;

typedef struct ts_deck_tp_plan {
  int n;
  ts_deck_tp_rule *items;
} ts_deck_tp_plan;

/** `tensor_parallel`: pass/marks.h says what follows from it for a weight. */
typedef struct ts_deck_tensor_parallel {
  int64_t autotp_size; /**< Ranks that share each product; 1: none do.  At most num_attention_heads. */
  struct {
    int64_t tp_size;       /**< 1 or autotp_size; says nothing more. */
    int64_t tp_grain_size; /**< Shares of MLPs' widths and of the vocabulary are multiples of it. */
  } tp;
  bool tp_overlap_comm;        /**< Resolved: unless set, zero_optimization.overlap_comm. */
  bool vocab_parallel_lm_head; /**< Embedding and head are divided by vocabulary; false: each rank has them whole. */
  bool sequence_parallel;      /**< Between products each rank keeps its rows of the tokens alone. */
  char *preset_model;          /**< "none", or a preset's name. */
  struct {
    bool use_default_specs; /**< What layer_specs does not match is for preset_model and tp_plan; false: it is whole. */
    bool strict_mode;       /**< A matrix that nothing in the deck speaks of is an error. */
    ts_deck_tp_specs layer_specs;
  } partition_config;
  ts_deck_tp_plan tp_plan;
} ts_deck_tensor_parallel;

/** `elasticity`: what the batch is chosen from (deck/elasticity.h). */
typedef struct ts_deck_elasticity {
  bool enabled;
  int64_t max_train_batch_size; /**< Limit of the global batch, in samples. */
  ts_ints micro_batch_sizes;
  int64_t min_gpus, max_gpus;                     /**< Numbers of ranks that count. */
  int64_t num_gpus_per_node, model_parallel_size; /**< Version 0.2 only. */
  bool prefer_larger_batch;
  bool ignore_non_elastic_batch_info; /**< The batch triple may be given, and is not looked at. */
  double version;                     /**< 0.1 or 0.2. */
} ts_deck_elasticity;

/** Experts: what holds for all families, and DeepSpeed's layer of them, with which models without experts get some. */
typedef struct ts_deck_moe {
  double z_loss_coef, aux_loss_coef;
  char *router_dtype; /**< "fp32" or "model". */
  char *save;         /**< "auto", "rows" or "nothing". */
  char *dispatch;     /**< "auto", "alltoall" or "allgather". */
  int64_t token_chunks;
  char *balance_over; /**< "micro_batch", "global" or "sequence". */
  ts_ints
      num_experts; /**< Of each layer that has some, or one number for all; none: the model is as its family says. */
  ts_ints layers;  /**< Which these are; none: every second. */
  int64_t k, min_capacity;
  double capacity_factor, eval_capacity_factor;
  bool drop_tokens, use_rts, top2_2nd_expert_sampling, use_residual, router_bias;
  bool enable_expert_tensor_parallelism; /**< expert_parallel.expert_tensor_parallel_size is autotp_size. */
  char *noisy_gate_policy;               /**< "None", "RSample" or "Jitter". */
  char *drop_policy;                     /**< "probs" or "position". */
  char *capacity_over;                   /**< "micro_batch" or "sequence". */
} ts_deck_moe;

/** Everything.  Plain data: other rooms read the fields, only this room writes them. */
typedef struct ts_deck {
  ts_deck_model model;
  ts_deck_moe moe;
  ts_deck_data data;
  ts_deck_run run;
  int64_t train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps; /**< 0: not given (yet). */
  int64_t steps_per_print;
  bool wall_clock_breakdown, memory_breakdown, dump_state;
  double gradient_clipping; /**< Largest global norm; 0: no clipping. */
  bool prescale_gradients;  /**< ts_deck_wire_divisor, as the next one. */
  double gradient_predivide_factor;
  ts_dtype communication_data_type; /**< F32, BF16 or F16 (default: grad_accum_dtype); ts_deck_wire. */
  struct {
    ts_dtype grad_accum_dtype; /**< F32, BF16 or F16 */
  } data_types;
  ts_deck_optimizer optimizer;
  ts_strings frozen; /**< Expressions; a parameter that matches one is not trained. */
  ts_deck_scheduler scheduler;
  struct {
    ts_switch enabled;
    bool stochastic_rounding; /**< Of the working values, when they are updated; only with enabled. */
    /** The bf16 parameters are the masters, and gradients are kept and summed in bf16. */
    bool bf16_master_weights_and_grads;
    bool bf16_optimizer_states; /**< optimizer.state_dtype = "bf16", in DeepSpeed's words; resolved. */
    bool check_grad_overflow;   /**< A step whose norm is not finite is skipped. */
  } bf16;
  struct {
    bool enabled;      /**< Never with bf16.enabled. */
    double loss_scale; /**< 0: dynamic, by the keys below; ts_deck_loss_scaler. */
    int64_t initial_scale_power, loss_scale_window, hysteresis, min_loss_scale;
    bool consecutive_hysteresis;
    /** The fp16 parameters are the masters, and gradients are kept and summed in fp16. */
    bool fp16_master_weights_and_grads;
  } fp16;
  struct {
    bool enabled;
    ts_dtype dtype; /**< Of what is lower, BF16 or F16. */
    ts_strings lower_precision_safe_modules;
  } torch_autocast; /**< Not with bf16; ts_deck_autocasts, ts_deck_products, ts_deck_travels_low. */
  ts_deck_zero zero_optimization;
  ts_deck_aio aio;
  struct {
    bool enabled;               /**< Compute again in the backward what blocks made in the forward. */
    char *policy;               /**< "auto", "block" or "sac". */
    int64_t interval;           /**< Blocks of which one's input is kept; 0 as 1. */
    ts_strings layers;          /**< Units or their classes; empty: all blocks. */
    bool cpu_checkpointing;     /**< On a GPU what is kept waits in the host's memory. */
    bool partition_activations; /**< Of inputs that ranks along tp have alike each keeps a part. */
  } activation_checkpointing;
  struct {
    bool offload_activation; /**< On a GPU all that the backward reads waits in the host's memory. */
  } compile;
  bool tiled_mlp_compute; /**< MLPs in tiles of rows (pass/tile). */
  ts_deck_elasticity elasticity;
  struct {
    int64_t stages;
    char *schedule;                          /**< A row of pass/pipeline.h. */
    int64_t virtual_stages;                  /**< Pieces that each stage has, of "interleaved". */
    char *partition;                         /**< "best", "time", "memory", "uniform", "parameters", "type:REGEX". */
    ts_ints units;                           /**< Of each piece; empty: partition decides. */
    bool decided;                            /**< units is what was decided here (run/cuts.h); no key. */
    bool pipe_partitioned, grad_partitioned; /**< Of values alike along tp, their gradients, each sends a part. */
  } pipeline;
  struct {
    /** See ts_rates; 0: nominal. */
    double product_flops, memory_bandwidth, link_bandwidth, copy_bandwidth, core_bandwidth, file_bandwidth;
  } machine;
  struct {
    bool enabled;   /**< The keys below count in `tessera tune`. */
    bool fast;      /**< Buckets and overlap are as the deck has them. */
    bool overwrite; /**< Files of an earlier search in results_dir are replaced. */
    char *results_dir, *exps_dir, *metric_path;
    char *metric;     /**< "throughput", "latency", "flops": which of several batches is the best. */
    char *tuner_type; /**< "gridsearch", "random", "model_based": the order of trials. */
    int64_t tuner_early_stopping, tuner_num_trials;
    int64_t start_profile_step, end_profile_step;
    int64_t mp_size;                                    /**< tensor_parallel.autotp_size of all candidates, above 1. */
    int64_t max_train_batch_size, min_train_batch_size; /**< 0: the deck's batch alone. */
    int64_t max_train_micro_batch_size_per_gpu, min_train_micro_batch_size_per_gpu, num_tuning_micro_batch_sizes;
  } autotuning;
  ts_deck_tensor_parallel tensor_parallel;
  int64_t sequence_parallel_size; /**< Ranks that share each sample; 1: none do. */
  int64_t data_parallel_size;     /**< 0: what the other axes leave; else that, or an error. */
  struct {
    int64_t ulysses_degree,
        ring_degree;     /**< Their product is sequence_parallel_size; 0: left open (pass/sequence.h). */
    int64_t head_groups; /**< That attention works on one after another, at least 1. */
    char *ring_exchange; /**< "auto", "p2p", "all_gather" */
    char *load_balancer; /**< "zigzag", "contiguous" */
  } sequence_parallel;
  ts_dtype seq_parallel_communication_data_type; /**< F32, BF16 or F16; ts_deck_wire. */
  struct {
    bool enabled; /**< Resolved: autoep_size is 1 without. */
    int64_t autoep_size;
    int64_t expert_tensor_parallel_size; /**< Resolved: 1, or autotp_size. */
    double load_balance_coeff;
  } expert_parallel;
  struct {
    bool check_finite;    /**< Name the first op, rank and tensor that is not finite. */
    bool memcheck;        /**< Poison memory before the first write and after death. */
    char *dump;           /**< Directory for a dump of the graph after each pass; "" for none. */
    int64_t digest_every; /**< Steps between digests of all parameters in digests.csv; 0: none. */
    bool skip_attention;  /**< In all blocks but the last queries see nothing: losses mean nothing. */
  } debug;
  struct {
    bool enabled;
    char *output_path, *job_name;
  } tensorboard, csv_monitor;
  struct {
    bool enabled;
    char *group, *team, *project; /**< "" for none. */
  } wandb;
  struct {
    char *timeline; /**< File for a Chrome trace; "" for none. */
  } profile;
  struct {
    bool enabled, verbose, debug;
    bool prof_all;
    ts_strings prof_ops; /**< Words of deck/comms_words.h: what counts, unless prof_all. */
  } comms_logger;
  struct {
    bool enabled, detailed;
    int64_t profile_step;              /**< Steps done before the one that is observed. */
    int64_t module_depth, top_modules; /**< -1: as deep as modules go. */
    double recompute_fwd_factor;
    char *output_file; /**< "" for stdout. */
  } flops_profiler;
  ts_strings notes;   /**< For ts_deck_notes. */
  ts_strings origins; /**< For ts_deck_origin. */
} ts_deck;

/** In a run's directory: what it keeps of model.from, config.json and the tokenizer's files. */
#define TS_RUN_FROM "from"

/** Where a run keeps the files of data.tokenizer, in its directory. */
#define TS_RUN_TOKENIZER "tokenizer"

/** Below a run's directory: the model at its end, as a Hugging Face directory. */
#define TS_RUN_MODEL "hf"

/** The model_type of a model that is written in a program (model/builder.h), and not in the deck. */
#define TS_MODEL_OWN "own"

/** The deck's model is a program's own: its section has nothing else. Not collective. */
bool ts_deck_model_is_own(const ts_deck *deck);

/** What training needs and planning does not: data.path or data.sources, run.directory, and run.steps or run.epochs.
 * Not collective.
 * \return TS_BAD_INPUT naming each that the deck lacks. */
ts_status ts_deck_check_training(const ts_deck *deck, ts_error *err);

/** The directory of what offload_optimizer and offload_param keep in files; both have the same; "" without one.
 * Not collective. */
const char *ts_deck_files(const ts_deck *deck);

/** Is what leaves to be what does not fit (device = "auto")? Not collective. */
bool ts_deck_fits_offload(const ts_deck *deck);

/** Is some of the state to leave, or may it? Not collective. */
bool ts_deck_offloads(const ts_deck *deck);

/** Fill the batch triple: train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x
 * \a batch_parallel_size.  Any subset that determines the rest is enough; the micro-batch alone takes one accumulation
 * step, as does the batch alone.  With elasticity.enabled all three are chosen (deck/elasticity.h), and
 * elasticity.ignore_non_elastic_batch_info becomes true, as the deck now has them.  Not collective; the same on every
 * rank.
 * \param [in] batch_parallel_size  Ranks that read different samples (data x expert parallel), at least 1.
 * \return TS_BAD_INPUT with the equation that does not hold; the deck is then unchanged. */
ts_status ts_deck_resolve_batch(ts_deck *deck, int64_t batch_parallel_size, ts_error *err);

/** Fill the batch triple for a run that goes on, which keeps its train_batch_size.  The deck's own triple is taken
 * where it gives that batch on these ranks.  Where it does not (the ranks are others, or were when the triple was
 * written), the accumulation steps follow: the micro-batch is the largest that divides and is at most the deck's (the
 * run's, where the deck has none), since a micro-batch is as large as memory allows.  A deck whose train_batch_size is
 * another one means to change the batch, and elasticity.enabled chooses it: then this is ts_deck_resolve_batch.  Not
 * collective; the same on every rank.
 * \param [in]  before  The run's deck as it was saved, its batch resolved; not owned.
 * \param [out] said    A line is appended where ranks or triple are others than before, or than the deck says.
 * \return TS_BAD_INPUT: \a batch_parallel_size does not divide the batch, with those near it that do. */
ts_status ts_deck_keep_batch(ts_deck *deck, const ts_deck *before, int64_t batch_parallel_size, ts_text *said,
                             ts_error *err);

/** Optimizer steps of the resolved batch until the training samples were read run.epochs times: the last one reads on
 * into the next epoch.  Not collective.
 * \param [in] samples  Of one epoch.
 * \param [in] done     Those that were read before, of any epoch.
 * \return 0 when they were read that often, or run.epochs is 0. */
int64_t ts_deck_steps_left(const ts_deck *deck, int64_t samples, int64_t done);

/** The row of the deck's family, with experts where it has section moe; NULL: the model is a program's own.
 * Not collective. */
const struct ts_family *ts_deck_family(const ts_deck *deck);

/** Do its routers have a bias for the choice (ts_family.router_bias)? Not collective. */
bool ts_deck_has_router_bias(const ts_deck *deck);

/** The experts of the layer that has fewest of those that have some; 0: the model has none. Not collective. */
int64_t ts_deck_fewest_experts(const ts_deck *deck);

/** How many of a layer's experts a token has; 0: the model has none. Not collective. */
int64_t ts_deck_experts_of_token(const ts_deck *deck);

/** The type of parameters and, without autocast, of all activations: F16, BF16 or F32.  Not collective.
 * bf16.enabled must not be AUTO any more (ts_engine_decide_precision, ts_deck_decide_precision). */
ts_dtype ts_deck_dtype(const ts_deck *deck);

/** True with torch_autocast: parameters are fp32, and products are in another type. Not collective. */
bool ts_deck_autocasts(const ts_deck *deck);

/** The type that products compute in: autocast's, or else ts_deck_dtype; under the same condition. Not collective. */
ts_dtype ts_deck_products(const ts_deck *deck);

/** Add their names for people: "bf16", "fp32 with products in bf16"; under the same condition. Not collective. */
void ts_deck_add_types(const ts_deck *deck, ts_text *to);

/** Is \a parameter one of a module of torch_autocast.lower_precision_safe_modules?  The class is that of transformers'
 * model; a tied head makes the table a Linear's too.  False without autocast. Not collective. */
bool ts_deck_travels_low(const ts_deck *deck, const char *parameter);

/** True where fp32 masters of narrower working values are kept; else the working values are what is updated.
 * Not collective. */
bool ts_deck_has_masters(const ts_deck *deck);

/** The type that gradients travel in between ranks: communication_data_type, or where ranks share samples
 * seq_parallel_communication_data_type, as in DeepSpeed.  Not collective. */
ts_dtype ts_deck_wire(const ts_deck *deck);

/** By what a gradient of \a ranks ranks is divided on its way, and multiplied again behind the sum: on an fp16 wire the
 * ranks with prescale_gradients, else gradient_predivide_factor; 1 on others.  Not collective. */
float ts_deck_wire_divisor(const ts_deck *deck, ts_dtype wire, int ranks);

/** How the loss is scaled: rule NONE unless the model computes in fp16.  Not collective. */
ts_loss_scaler ts_deck_loss_scaler(const ts_deck *deck);

/** For tests only: this is how, whatever the deck says, until the next call; NULL: as the deck says.  Borrowed.  Not
 * collective. */
void ts_deck_test_loss_scaler(const ts_loss_scaler *scaler);

/** May a sample hold several documents, so that the model is told of them?  True for "documents" and "best_fit"; with
 * "none" all that is behind the one document of a sample is padding, which causal attention does not let it see.  Not
 * collective. */
bool ts_deck_by_documents(const ts_deck *deck);

/** Is an entry of layer_specs for the deck's model?  Its model_types say so, in any case of letters.
 * Not collective. */
bool ts_deck_spec_applies(const ts_deck *deck, const ts_deck_tp_spec *spec);

/** Decide a bf16.enabled that is AUTO, once and before anything is built from the deck; leave any other.  What is for
 * bf16 alone (stochastic_rounding, masters and states in bf16) is put out where it becomes false.
 * Not collective; the same on every rank.
 * \param [in]  bf16  Every rank computes products in bf16 by instructions of its own.
 * \param [in]  why   For people.
 * \param [out] said  A line without its end is appended where there was something to decide. */
void ts_deck_decide_precision(ts_deck *deck, bool bf16, const char *why, ts_text *said);

/** The value of a key, of an entry's ("data.sources[0].path") or of a whole list as deck text, newly allocated
 * (ts_free); NULL where the deck does not have it. Not collective. */
char *ts_deck_value(const ts_deck *deck, const char *path);

/** Append the deck as libconfig text that needs no other file and reads back to an equal deck (floats round-trip).
 * Time limits that nobody set are left out: what is read back is set. Not collective. */
void ts_deck_print(const ts_deck *deck, ts_text *to);

/** Append a line per key whose value differs ("  optimizer.params.lr: 0.01, now 0.02"), joined by newlines.  A
 * list of sections is one value.  Not collective.
 * \param [in] within   The beginning of the paths that count: "model.", or "" for all.
 * \param [in] ignored  Beginnings of paths that do not count; ended by NULL.
 * \return the number of lines. */
int ts_deck_differences(const ts_deck *before, const ts_deck *now, const char *within, const char *const *ignored,
                        ts_text *to);

/** True when somebody set the canonical \a path: it is no default.  Not collective. */
bool ts_deck_is_set(const ts_deck *deck, const char *path);

/** Where the canonical \a path was set: "deck.cfg:12", "ds.json:4", "--set"; the deck's name for what nobody set.
 * Borrowed; "" for a deck that was not read.  Not collective. */
const char *ts_deck_origin(const ts_deck *deck, const char *path);

/** Add "deck.cfg:12: data.path: problem" to \a err: what is found wrong after the deck was read.  Not collective.
 * \return TS_BAD_INPUT. */
ts_status ts_deck_error(const ts_deck *deck, const char *path, ts_error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/** Append the places of all keys as text, and take them from it: a deck that was read from a printed one is then told
 * of as the user wrote it.  Not collective. */
void ts_deck_print_origins(const ts_deck *deck, ts_text *to);
void ts_deck_take_origins(ts_deck *deck, const char *text);

/** Append one line for every key that was set but does nothing ("key: no effect: reason"), that was left to us with
 * "auto", or of a config.json that we do not know; no newline behind the last.  Not collective. */
void ts_deck_notes(const ts_deck *deck, ts_text *to);

typedef enum ts_deck_format { TS_DECK_TEXT, TS_DECK_MAN } ts_deck_format;

/** Append the list of all keys: path, type, default, accepted values, status, help.  Not collective. */
void ts_deck_manual(ts_text *to, ts_deck_format format);

#endif
