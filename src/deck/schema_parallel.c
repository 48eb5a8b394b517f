/* The grid: pipelines, tensor, sequence and expert parallelism, and the compiler of them. */
#include "deck/parallel_words.h"
#include "deck/schema_rows.h"

#define PIPE(name, type_, initial_, reason) NONE("pipeline." name, type_, initial_, reason)
#define TP_NONE(name, type_, initial_, reason) NONE("tensor_parallel." name, type_, initial_, reason)
#define PYTHON(name, what, instead_) \
  LATER_BUT("tensor_parallel." name, ANY, NULL, what " of a Python program", instead_)
#define SPEC(type_, field, ...)                                                          \
  {                                                                                      \
    .path = TS_LAYER_SPECS "[]." #field, .type = TS_KEY_##type_, .status = TS_KEY_WORKS, \
    .offset = (ptrdiff_t) offsetof(ts_deck_tp_spec, field), __VA_ARGS__                  \
  }
#define PLAN(field, ...)                                                                          \
  {                                                                                               \
    .path = "tensor_parallel.tp_plan[]." #field, .type = TS_KEY_STRING, .status = TS_KEY_WORKS,   \
    .offset = (ptrdiff_t) offsetof(ts_deck_tp_rule, field), .flags = TS_KEY_REQUIRED, __VA_ARGS__ \
  }
#define WORDS(list) &(list(TS_BAR_WORD))[1]
#define STYLES_LATER                                                                          \
  "embedding_colwise|sequence_parallel|all_reduce|mla_kv_a_proj|local_params|moe_tp_experts|" \
  "moe_identity_expert|grouped_gemm|ep_router|gather|local|local_colwise|local_rowwise|local_packed_rowwise"
#define RENAMED(path_, instead_)                                                                                  \
  {                                                                                                               \
    .path = path_, .type = TS_KEY_INT, .status = TS_KEY_RENAMED, .offset = -1, .initial = "1", .min = -HUGE_REAL, \
    .max = HUGE_REAL, .flags = AUTO, .instead = instead_, .help = "ranks that share a sample"                     \
  }
#define EP(name, type_, initial_, reason) NONE("expert_parallel." name, type_, initial_, reason)
#define FAMILY_KNOWS "the model's family says so (model.model_type)"
#define ONE_PRODUCT "a layer's experts are one grouped product, and its rows are weighted where they are added up"
#define STATIC_SIZES "moe.dispatch says how tokens travel, over the communicators that all messages have"
#define COMPILE(name, type_, initial_) \
  NONE("compile." name, type_, initial_, "every run is compiled; passes follow from the other keys")

static const ts_key rows[] = {
    INTEGER(pipeline.stages, "1", 0, SIZE, AUTO,
            "Ranks that have a part of the model's blocks each; 0 as 1: it is not cut."),
    WORD(pipeline.schedule, "1f1b", "gpipe|1f1b|interleaved|zb_h1|zb_v|dualpipe_v", NULL, 0,
         "What each stage does when: `tessera plan --schedule` prints it."),
    INTEGER(pipeline.virtual_stages, "2", 1, SIZE, 0, "Pieces of the model that each stage has, of \"interleaved\"."),
    {STORED(STRING, pipeline.partition), .initial = "best",
     .help =
         "Where the model's units (blocks, embeddings, the last norm, the head) are cut: \"uniform\", by their number; "
         "\"parameters\"; \"type:REGEX\", by the number of those whose name or Hugging Face class it matches; "
         "\"time\": "
         "the slowest piece is as fast as can be, by the rates of `machine`; \"memory\": the rank that needs most "
         "needs "
         "as little as can be; \"best\": the fastest of those that fit, into what a rank may have of its node's "
         "memory or its GPU's (`tessera plan --memory`)."},
    INTEGERS(pipeline.units, 1, SIZE,
             "Units of each piece, in order, instead of pipeline.partition: a run's deck.cfg has here what was chosen, "
             "which "
             "counts as long as it has as many pieces."),
    FLAG(pipeline.pipe_partitioned, "true", 0,
         "Of what the ranks along tp have alike each sends its part to the next stage, where they are gathered.  With "
         "tensor_parallel.sequence_parallel each has rows of its own, and nothing is alike."),
    FLAG(pipeline.grad_partitioned, "true", 0, "Likewise of their gradients, on their way back."),
    NUMBER(machine.product_flops, "0", 0, HUGE_REAL, 0,
           "What plans choose by, of a rank: FLOP/s of its products; 0: nominal, 1e11 of processors, 4e14 of GPUs.  "
           "A deck may @include a file with this section."),
    NUMBER(machine.memory_bandwidth, "0", 0, HUGE_REAL, 0,
           "Bytes/s that its memory moves; 0: 2e10 of processors, 2e12 of GPUs."),
    NUMBER(machine.link_bandwidth, "0", 0, HUGE_REAL, 0,
           "Bytes/s of messages to another rank; 0: 4e9 of processors, 2e11 of GPUs."),
    NUMBER(machine.copy_bandwidth, "0", 0, HUGE_REAL, 0,
           "Bytes/s between a GPU and the host's memory, in one direction; 0: 5e10."),
    NUMBER(machine.core_bandwidth, "0", 0, HUGE_REAL, 0,
           "Bytes/s of the host's memory that one of its threads moves beside a GPU; 0: 1e10."),
    NUMBER(machine.file_bandwidth, "0", 0, HUGE_REAL, 0,
           "Bytes/s that a rank reads from its file of offloaded state and writes to it, in all; 0: 2e9."),
    INTEGER(sequence_parallel_size, "1", 0, SIZE, AUTO,
            "Ranks that share the tokens of each sample; 0 as 1: none do.  Any length and any number of heads."),
    INTEGER(data_parallel_size, NULL, 1, SIZE, AUTO,
            "Ranks with samples of their own: what the other axes leave, which it must agree with (default: that)."),
    INTEGER(sequence_parallel.ulysses_degree, NULL, 1, SIZE, AUTO,
            "Ranks that share the heads in attention; sequence_parallel_size is this times ring_degree (default: "
            "chosen from bytes and speeds, and printed by `tessera plan`)."),
    INTEGER(sequence_parallel.ring_degree, NULL, 1, SIZE, AUTO,
            "Groups of such ranks, to which keys of the others come (default: likewise)."),
    INTEGER(sequence_parallel.head_groups, "1", 0, SIZE, AUTO,
            "Groups of heads that attention works on one after another, at most the query heads of a rank: queries, "
            "keys, values and their gradients take less memory by that factor.  With one rank too; 0 as 1.  Where "
            "communication overlaps, the messages of one group travel under attention of another, and there are two "
            "groups of each."),
    WORD(sequence_parallel.ring_exchange, "auto", "auto|p2p|all_gather", NULL, 0,
         "Keys of other groups come one by one while attention works on those before (p2p), or all at once "
         "(all_gather); auto: at once while they take no more room than queries and outputs."),
    WORD(sequence_parallel.load_balancer, "zigzag", "zigzag|contiguous", NULL, 0,
         "Which tokens a group has: of 2 ring_degree chunks number i from either end, which are equal work under a "
         "causal mask, or chunk i of ring_degree."),
    RENAMED("sp_size", "sequence_parallel_size"),
    RENAMED("cp_size", "sequence_parallel_size with sequence_parallel.ring_degree"),
    RENAMED("context_parallel_size", "sequence_parallel_size with sequence_parallel.ring_degree"),
    FLAG(expert_parallel.enabled, "true", 0, "false: autoep_size is 1."),
    INTEGER(expert_parallel.autoep_size, "1", 1, SIZE, AUTO,
            "Ranks with other samples that have some of each layer's experts each; 1: every rank has all."),
    ALIAS("moe.ep_size", "expert_parallel.autoep_size"),
    INTEGER(
        expert_parallel.expert_tensor_parallel_size, "1", 1, SIZE, 0,
        "Ranks that share the matrices of each expert: 1, each rank along tp has experts whole, and brings its share "
        "of the tokens to them, or autotp_size, each has a part of every expert, and brings all tokens."),
    NUMBER(
        expert_parallel.load_balance_coeff, "0.0", 0, 1e3, 0,
        "After every step this is added to the bias of each expert that was chosen less often than the mean, and taken "
        "off that of each chosen more often (0.001 in DeepSeek-V3); of families whose routers have one. 0: biases "
        "stay."),
    NONE("use_data_before_expert_parallelism", BOOL, "false", "the order of the axes is that of the mesh"),

    ALIAS("pipeline.num_stages", "pipeline.stages"),
    ALIAS("pipeline.partition_method", "pipeline.partition"),
    PIPE("seed_layers", BOOL, "false", "random numbers are keyed by the parameter's name"),
    PIPE("base_seed", INT, "1234", "random numbers are keyed by the parameter's name and run.seed"),
    PIPE("use_reentrant", BOOL, "true", "recomputation is part of the graph"),
    PIPE("dynamic_shape", BOOL, "false", "shapes are known before the run"),
    ALIAS("pipeline.activation_checkpoint_interval", "activation_checkpointing.interval"),
    ALIAS("pipeline.checkpointable_layers", "activation_checkpointing.layers"),

    INTEGER(tensor_parallel.autotp_size, "1", 0, SIZE, AUTO,
            "Ranks that share each product of the model, from 1 to its heads; 0 as 1: none do."),
    INTEGER(tensor_parallel.tp.tp_size, "1", 1, SIZE, 0, "1 or autotp_size, which alone decides."),
    INTEGER(tensor_parallel.tp.tp_grain_size, "1", 1, SIZE, 0,
            "Shares of MLPs' widths and of the vocabulary are multiples of it; what is left over goes last.  "
            "Without effect where some rank would then have nothing."),
    PYTHON("tp.mpu", "an object", "tensor_parallel.autotp_size"),
    PYTHON("tp.tp_group", "an object", "tensor_parallel.autotp_size"),
    FLAG(tensor_parallel.tp_overlap_comm, NULL, 0,
         "Compute weight gradients while input gradients are summed (default: zero_optimization.overlap_comm).  GPUs "
         "always do: there it has no effect."),
    FLAG(tensor_parallel.vocab_parallel_lm_head, "true", 0,
         "Divide embedding and head by vocabulary; false: each rank has them whole."),
    FLAG(tensor_parallel.sequence_parallel, "true", 0,
         "Between products each rank keeps its rows of the tokens alone.  Not a key of DeepSpeed."),
    WORD(tensor_parallel.preset_model, "none", WORDS(TS_TP_PRESETS), NULL, 0,
         "A table of which weights are cut how, for what partition_config does not match."),
    FLAG(tensor_parallel.partition_config.use_default_specs, "true", 0,
         "What layer_specs does not match is for preset_model, tp_plan and the model's own rules; false: it is whole."),
    FLAG(tensor_parallel.partition_config.strict_mode, "false", 0,
         "A matrix that layer_specs, preset_model and tp_plan do not speak of is an error."),
    SPEC(STRINGS, patterns, .flags = REGEX | REQUIRED | TS_KEY_ONE,
         .help = "Weights: expressions that match their full names, ending in .weight, from the beginning, as Python's "
                 "re.match; the first entry that matches counts, and a bias goes with its weight."),
    SPEC(STRING, partition_type, .initial = "column", .accepted = "column|row|skip",
         .help = "Cut by outputs (column) or inputs (row), or left whole."),
    SPEC(INT, partition_dim, .min = 0, .max = TS_DECK_DIMS - 1,
         .help = "Dimension that is cut, of shape, or of [out][in] (default: 0 for a column, 1 for a row)."),
    SPEC(VIEW, shape, .initial = "()", .min = -1, .max = SIZE,
         .help = "The weight [out][in] with more dimensions.  At partition_dim a count is of equal blocks and a "
                 "list is of blocks by size, each cut by itself, at most 8; -1, or the extent itself, is one block."),
    SPEC(STRINGS, model_types, .initial = "[]",
         .help = "Families (model.model_type) that the entry is for; none: all."),
    SPEC(BOOL, gather_output, .initial = "false", .help = "Gather the outputs of a column."),
    NONE(TS_LAYER_SPECS "[].grad_allreduce", BOOL, "false",
         "which gradients are sums over ranks follows from the graph"),
    PLAN(pattern, .help = "End of a weight's name, as in transformers' tp_plan: \"layers.*.mlp.up_proj\"; a star "
                          "stands for a number."),
    PLAN(style, .accepted = WORDS(TS_TP_STYLES), .later = STYLES_LATER,
         .help = "Hugging Face's style: cut by outputs (colwise), by inputs (rowwise), or whole (replicate)."),
    TP_NONE("dtype", STRING, NULL, "bf16.enabled decides"),
    TP_NONE("keep_module_on_host", BOOL, "false", "weights are read shard by shard"),
    TP_NONE("replace_with_kernel_inject", BOOL, "false", "there is one set of kernels"),
    ALIAS("tensor_parallel.kernel_inject", "tensor_parallel.replace_with_kernel_inject"),
    TP_NONE("vocab_parallel_ce_backend", STRING, "torch", "there is one cross entropy"),
    TP_NONE("partition_config.tp_size", INT, "1", "autotp_size decides, as in DeepSpeed"),
    TP_NONE("partition_config.embedding_partition_dim", INT, "1",
            "vocab_parallel_lm_head decides (and DeepSpeed does not read it)"),
    TP_NONE("partition_config.lm_head_patterns", ANY, NULL,
            "the head is known from the model (and DeepSpeed does not read it)"),
    PYTHON("injection_policy_tuple", "classes", TS_LAYER_SPECS),

    LATER("expert_parallel.score_apply", STRING, "post", "weights that are applied in front of the experts"),
    LATER("expert_parallel.expert_activation", STRING, NULL, "activations of experts that are not hidden_act"),
    ALIAS("expert_parallel.top_k", "model.num_experts_per_tok"),
    ALIAS("expert_parallel.route_norm", "model.norm_topk_prob"),
    ALIAS("expert_parallel.route_scale", "model.routed_scaling_factor"),
    ALIAS("expert_parallel.routed_scaling_factor", "model.routed_scaling_factor"),
    ALIAS("expert_parallel.num_expert_groups", "model.n_group"),
    ALIAS("expert_parallel.num_limited_groups", "model.topk_group"),
    EP("score_func", STRING, NULL, FAMILY_KNOWS),
    EP("preset_model", STRING, NULL, FAMILY_KNOWS),
    EP("moe_layer_pattern", STRING, NULL, FAMILY_KNOWS),
    EP("expert_pattern", STRING, NULL, FAMILY_KNOWS),
    EP("router_pattern", STRING, NULL, FAMILY_KNOWS),
    EP("expert_w1", STRING, NULL, FAMILY_KNOWS),
    EP("expert_w2", STRING, NULL, FAMILY_KNOWS),
    EP("expert_w3", STRING, NULL, FAMILY_KNOWS),
    EP("num_experts_attr", STRING, NULL, FAMILY_KNOWS),
    EP("top_k_attr", STRING, NULL, FAMILY_KNOWS),
    EP("has_shared_experts", BOOL, NULL, FAMILY_KNOWS),
    EP("shared_experts_pattern", STRING, NULL, FAMILY_KNOWS),
    EP("shared_experts_gate_pattern", STRING, NULL, FAMILY_KNOWS),
    EP("validate_folding_routing", BOOL, "false", "what ranks along tp choose is the same by construction"),
    EP("use_grouped_mm", BOOL, "true", ONE_PRODUCT),
    EP("disable_triton_grouped_mm", BOOL, "false", ONE_PRODUCT),
    EP("combine_impl", STRING, NULL, ONE_PRODUCT),
    EP("row_weighting_impl", STRING, "auto", ONE_PRODUCT),
    EP("gate_up_impl", STRING, "separate", ONE_PRODUCT),
    EP("async_split_plan", BOOL, "false", STATIC_SIZES),
    EP("comm_backend", STRING, "comm", STATIC_SIZES),
    EP("comm_num_sm", INT, "12", STATIC_SIZES),
    EP("comm_qp_margin", INT, "4", STATIC_SIZES),
    EP("comm_max_tokens_per_rank", INT, "0", STATIC_SIZES),

    {.path = "compile.passes",
     .type = TS_KEY_STRINGS,
     .status = TS_KEY_NO_EFFECT,
     .offset = -1,
     .accepted = "z1|z3|autotp|autosp",
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
    FLAG(compile.offload_activation, "false", 0,
         "All that the forward makes and the backward reads waits as with activation_checkpointing.cpu_checkpointing, "
         "whether blocks are computed again or not."),
    NONE("compile.offload_activation_pin_memory", BOOL, "true", "what a GPU copies is always pinned"),
    SPELLING("compile.offload_opt_states", "zero_optimization.offload_optimizer.device", "true=cpu",
             "Another spelling: true is zero_optimization.offload_optimizer.device = \"cpu\"."),
    SPELLING("compile.offload_parameters", "zero_optimization.offload_param.device", "true=cpu",
             "Another spelling: true is zero_optimization.offload_param.device = \"cpu\"."),
};

TABLE(ts_keys_parallel, rows);
