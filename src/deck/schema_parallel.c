/* The grid: pipelines, tensor, sequence and expert parallelism, and the compiler of them. */
#include "deck/schema_rows.h"

#define GRID(field, help_)                                                                                        \
  {                                                                                                               \
    .path = #field, .type = TS_KEY_INT, .status = TS_KEY_REFUSED, .offset = (ptrdiff_t) offsetof(ts_deck, field), \
    .initial = "1", .min = 0, .max = SIZE, .flags = AUTO, .help = help_                                           \
  }
#define PIPE(name, type_, initial_, reason) NONE("pipeline." name, type_, initial_, reason)
#define TP(name, type_, initial_) LATER("tensor_parallel." name, type_, initial_, "tensor parallelism")
#define EP(name, type_, initial_) LATER("expert_parallel." name, type_, initial_, "mixtures of experts")
#define COMPILE(name, type_, initial_) \
  NONE("compile." name, type_, initial_, "every run is compiled; passes follow from the other keys")

static const ts_key rows[] = {
    GRID(pipeline.stages, "pipelines of more than one stage"),
    GRID(tensor_parallel.autotp_size, "tensor parallelism"),
    GRID(sequence_parallel_size, "sequence parallelism"),
    GRID(expert_parallel.autoep_size, "expert parallelism"),
    NONE("use_data_before_expert_parallelism", BOOL, "false", "the order of the axes is that of the mesh"),

    PIPE("partition", STRING, "best", "a pipeline of one stage is not cut"),
    PIPE("seed_layers", BOOL, "false", "random numbers are keyed by the parameter's name"),
    PIPE("activation_checkpoint_interval", INT, "0", "activation_checkpointing.enabled decides"),
    PIPE("pipe_partitioned", BOOL, "true", "a pipeline of one stage sends nothing"),
    PIPE("grad_partitioned", BOOL, "true", "a pipeline of one stage sends nothing"),

    NONE("tensor_parallel.dtype", STRING, NULL, "bf16.enabled decides"),
    NONE("tensor_parallel.keep_module_on_host", BOOL, "false", "weights are read shard by shard"),
    NONE("tensor_parallel.replace_with_kernel_inject", BOOL, "false", "there is one set of kernels"),
    ALIAS("tensor_parallel.kernel_inject", "tensor_parallel.replace_with_kernel_inject"),
    NONE("tensor_parallel.vocab_parallel_ce_backend", STRING, "torch", "there is one cross entropy"),
    TP("vocab_parallel_lm_head", BOOL, NULL),
    TP("tp_overlap_comm", BOOL, "false"),
    TP("tp.tp_size", INT, "1"),
    TP("tp.tp_grain_size", INT, "1"),
    TP("tp.mpu", ANY, NULL),
    TP("tp.tp_group", ANY, NULL),
    TP("injection_policy_tuple", ANY, NULL),
    TP("preset_model", STRING, NULL),
    TP("partition_config", ANY, NULL),

    EP("enabled", BOOL, "false"),
    EP("expert_tensor_parallel_size", INT, "1"),
    EP("validate_folding_routing", BOOL, "false"),
    EP("preset_model", STRING, NULL),
    EP("moe_layer_pattern", STRING, NULL),
    EP("expert_pattern", STRING, NULL),
    EP("router_pattern", STRING, NULL),
    EP("use_grouped_mm", BOOL, "true"),
    EP("disable_triton_grouped_mm", BOOL, "false"),
    EP("route_norm", BOOL, NULL),
    EP("route_scale", REAL, "1.0"),
    EP("score_apply", STRING, NULL),
    EP("combine_impl", STRING, NULL),
    EP("num_expert_groups", INT, NULL),
    EP("num_limited_groups", INT, NULL),
    EP("score_func", STRING, NULL),
    EP("top_k", INT, NULL),
    EP("load_balance_coeff", REAL, NULL),
    EP("routed_scaling_factor", REAL, NULL),
    EP("expert_activation", STRING, NULL),
    EP("async_split_plan", BOOL, "false"),
    EP("row_weighting_impl", STRING, "auto"),
    EP("gate_up_impl", STRING, "separate"),
    EP("comm_backend", STRING, "comm"),
    EP("comm_num_sm", INT, "12"),
    EP("comm_qp_margin", INT, "4"),
    EP("comm_max_tokens_per_rank", INT, "0"),
    EP("expert_w1", STRING, NULL),
    EP("expert_w2", STRING, NULL),
    EP("expert_w3", STRING, NULL),
    EP("num_experts_attr", STRING, NULL),
    EP("top_k_attr", STRING, NULL),
    EP("has_shared_experts", BOOL, NULL),
    EP("shared_experts_pattern", STRING, NULL),
    EP("shared_experts_gate_pattern", STRING, NULL),

    {.path = "compile.passes",
     .type = TS_KEY_STRINGS,
     .status = TS_KEY_NO_EFFECT,
     .offset = -1,
     .accepted = "z1|z3",
     .later = "autosp|autotp",
     .help = "every run is compiled; passes follow from the other keys"},
    COMPILE("deepcompile", BOOL, "false"),
    COMPILE("autoep_non_moe", BOOL, "false"),
    COMPILE("enabled", BOOL, "false"),
    COMPILE("disable", BOOL, "false"),
    COMPILE("backend", STRING, "inductor"),
    COMPILE("kwargs", ANY, NULL),
    COMPILE("free_activation", BOOL, "false"),
    COMPILE("free_activation_threshold", INT, "10485760"),
    COMPILE("double_buffer", BOOL, "true"),
    COMPILE("symmetric_memory", BOOL, "false"),
    COMPILE("debug_log", BOOL, "false"),
    COMPILE("sync_before_reduce", BOOL, "false"),
    COMPILE("sync_after_reduce", BOOL, "false"),
    COMPILE("sync_before_allgather", BOOL, "false"),
    COMPILE("sync_after_allgather", BOOL, "false"),
    COMPILE("keep_int_input_tensors", BOOL, "true"),
    COMPILE("keep_all_input_tensors", BOOL, "false"),
    LATER("compile.offload_activation", BOOL, "false", "offload of activations"),
    LATER("compile.offload_activation_pin_memory", BOOL, "true", "offload of activations"),
    LATER("compile.offload_opt_states", BOOL, "false", "offload of optimizer states"),
    LATER("compile.offload_parameters", BOOL, "false", "offload of parameters"),
};

TABLE(ts_keys_parallel, rows);
