/* `zero_optimization`, activation checkpointing, and the devices that state is moved to. */
#include "deck/schema_rows.h"

#define ZERO(name, type_, initial_, reason) NONE("zero_optimization." name, type_, initial_, reason)
#define NOT_YET(name, type_, initial_, reason) LATER("zero_optimization." name, type_, initial_, reason)
#define GONE(name, type_, initial_, reason) REMOVED("zero_optimization." name, type_, initial_, reason)
#define DEVICE(field, help_) WORD(zero_optimization.field.device, "none", "none|cpu|nvme|auto", NULL, 0, help_)
#define BUCKET(name, initial_, min_, help_) INTEGER(zero_optimization.name, initial_, min_, LARGE, AUTO, help_)
#define ZENFLOW(name, type_, initial_)                                                                            \
  NOT_YET("zenflow." name, type_, initial_,                                                                       \
          "updates of gradients that are stale by then; zero_optimization.offload_optimizer.super_offload hides " \
          "updates behind the next forward, and nothing is stale")
#define AIO(name, type_, initial_, reason) NONE("aio." name, type_, initial_, reason)
#define PLANNED "memory is planned before the run and tensors die after their last use"

static const ts_key rows[] = {
    SPELLING("zero_optimization", "zero_optimization.stage", "false=0|true=1",
             "An old spelling: false is zero_optimization.stage = 0, true is 1."),
    INTEGER(zero_optimization.stage, "0", 0, 3, AUTO,
            "What each rank keeps only its shard of: 1 optimizer states, 2 + gradients, 3 + parameters."),
    BUCKET(reduce_bucket_size, "5e8", 1, "Elements of a reduction of gradients."),
    BUCKET(allgather_bucket_size, "5e8", 1, "Elements of a gather of parameters."),
    FLAG(zero_optimization.overlap_comm, NULL, AUTO,
         "Communicate while computing (default: at stage 3 only).  GPUs always do: there it has no effect."),
    BUCKET(stage3_prefetch_bucket_size, "5e7", 0, "Elements gathered ahead of their use."),
    BUCKET(stage3_param_persistence_threshold, "1e5", 0, "Parameters of at most so many elements stay gathered."),
    {.path = "zero_optimization.stage3_model_persistence_threshold",
     .type = TS_KEY_INT,
     .status = TS_KEY_REFUSED,
     .offset = -1,
     .initial = "9223372036854775807",
     .min = 0,
     .max = LARGE,
     .flags = AUTO,
     .help = "a bound on all elements that stay gathered"},
    BUCKET(stage3_max_live_parameters, "1e9", 0, "Most elements gathered at a time."),
    BUCKET(stage3_max_reuse_distance, "1e9", 0, "Keep what is used again within so many elements."),
    ALIAS("zero_optimization.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"),
    ALIAS("zero_optimization.param_persistence_threshold", "zero_optimization.stage3_param_persistence_threshold"),
    ALIAS("zero_optimization.model_persistence_threshold", "zero_optimization.stage3_model_persistence_threshold"),
    ALIAS("zero_optimization.max_live_parameters", "zero_optimization.stage3_max_live_parameters"),
    ALIAS("zero_optimization.max_reuse_distance", "zero_optimization.stage3_max_reuse_distance"),
    ZERO("contiguous_gradients", BOOL, "true", "gradients of a unit always lie in one range"),
    ZERO("reduce_scatter", BOOL, "true", "gradients are always reduced by a reduce-scatter"),
    ZERO("use_multi_rank_bucket_allreduce", BOOL, "true", "a bucket always holds a piece for every rank"),
    ZERO("allgather_partitions", BOOL, "true", "parameters are always gathered by an all-gather"),
    BUCKET(
        sub_group_size, "1e9", 0,
        "Most elements of a part updated at a time where its states are offloaded, which come and go in such pieces: "
        "4194304 at most (and for 0), a multiple of 262144 or else a power of 2."),
    ZERO("round_robin_gradients", BOOL, "false", "it balances copies of offload, and the shards are equal"),
    ZERO("ignore_unused_parameters", BOOL, "true", "the graph knows which parameters are used"),
    ZERO("find_unused_parameters", BOOL, "false", "the graph knows which parameters are used"),
    ZERO("compute_grad_norm", BOOL, "true", "the norm is always computed"),
    ZERO("parameter_alignment", BOOL, "false", "parameters always begin at multiples of 64 bytes"),
    ZERO("legacy_stage1", BOOL, "false", "there is one implementation of all stages"),
    ZERO("stage3_module_granularity_threshold", INT, "0", "what is gathered together is a unit of the model"),
    ALIAS("zero_optimization.module_granularity_threshold", "zero_optimization.stage3_module_granularity_threshold"),
    ZERO("stage3_use_all_reduce_for_fetch_params", BOOL, "false", "gathers write into place without copies"),
    ALIAS("zero_optimization.use_all_reduce_for_fetch_params",
          "zero_optimization.stage3_use_all_reduce_for_fetch_params"),
    ZERO("stage3_allgather_sequential", BOOL, "false", "gathers write into place without copies"),
    ALIAS("zero_optimization.allgather_sequential", "zero_optimization.stage3_allgather_sequential"),
    STRINGS(
        zero_optimization.leaf_module.classes, "[]", TS_KEY_ONE,
        "Classes of modules that are gathered together: of a program's own model by ts_builder_module; of a family's, "
        "whose blocks are gathered together as they are, Hugging Face's names, with or without their path."),
    STRINGS(zero_optimization.leaf_module.names, "[]", TS_KEY_ONE,
            "Modules that are gathered together, by their names: \"model.layers\", all blocks."),
    STRINGS(zero_optimization.leaf_module.name_suffixes, "[]", TS_KEY_ONE, "The same by the ends of their names."),
    ZERO("memory_efficient_linear", BOOL, "true", PLANNED),
    ZERO("override_module_apply", BOOL, "true", "initial weights are drawn in blocks, and a rank keeps what it owns"),
    ZERO("log_trace_cache_warnings", BOOL, "false", "the order of gathers is fixed before the run"),
    ZERO("enable_sanity_checks", BOOL, "false", "debug.memcheck and the verifier are there"),
    ZERO("cpu_offload_use_pin_memory", BOOL, "false", "offload_optimizer.pin_memory has taken its place"),
    ZERO("save_muon_momentum_buffer_in_memory", BOOL, "false", "only Muon with offload to files uses it"),
    ZERO("load_from_fp32_weights", BOOL, "true", "checkpoints hold the fp32 masters, and loading takes them"),
    ZERO("elastic_checkpoint", BOOL, "false", "every checkpoint loads on any grid and stage"),
    ZERO("pipeline_loading_checkpoint", BOOL, "false", "each rank reads only what it owns"),
    FLAG(zero_optimization.stage3_gather_16bit_weights_on_model_save, "false", AUTO,
         "At its end, at every stage, a run writes the parameters in the type it computes in to RUN/hf: a Hugging Face "
         "directory.  For programs: whether ts_save_16bit_model gathers at stage 3."),
    ALIAS("zero_optimization.gather_16bit_weights_on_model_save",
          "zero_optimization.stage3_gather_16bit_weights_on_model_save"),
    ALIAS("zero_optimization.stage3_gather_fp16_weights_on_model_save",
          "zero_optimization.stage3_gather_16bit_weights_on_model_save"),
    DEVICE(
        offload_param,
        "Where parameters wait for their use, at stage 3 and also of one rank, but for those that "
        "stage3_param_persistence_threshold exempts: cpu, in the host's memory beside a GPU; nvme, in files; auto, as "
        "many of them as do not fit into run.memory_limit, or into what there is, in the host's "
        "memory beside a GPU and else in files."),
    WORD(zero_optimization.offload_param.nvme_path, "", NULL, NULL, AUTO,
         "The directory for these files: that of offload_optimizer, where both have one."),
    ZERO("offload_param.buffer_count", INT, "5", "memory for parameters is planned: as many as are under way"),
    ZERO("offload_param.buffer_size", INT, "1e8", "memory for parameters is planned: no tensor is too large for it"),
    INTEGER(zero_optimization.offload_param.max_in_cpu, "0", 0, LARGE, AUTO,
            "Elements of a rank that stay in the host's memory where the device is nvme (DeepSpeed's default is 1e9)."),
    ZERO("offload_param.pin_memory", BOOL, "true", "what a GPU copies is always pinned"),
    DEVICE(
        offload_optimizer,
        "Where optimizer states and fp32 masters are, but for those of parameters that "
        "stage3_param_persistence_threshold exempts: cpu, in the host's memory beside a GPU; nvme, in files; auto, as "
        "many of them as do not fit, behind offload_param's."),
    WORD(zero_optimization.offload_optimizer.nvme_path, "", NULL, NULL, AUTO,
         "The directory for these files, on each node; one a rank, which nothing leaves behind."),
    FLAG(zero_optimization.offload_optimizer.pipeline_read, "true", AUTO,
         "Bring the next piece of states while one is updated (DeepSpeed's default is false)."),
    FLAG(zero_optimization.offload_optimizer.pipeline_write, "true", AUTO,
         "Take the piece behind it back meanwhile (DeepSpeed's default is false)."),
    ZERO("offload_optimizer.buffer_count", INT, "4", "memory for pieces is planned: as many as are under way"),
    ZERO("offload_optimizer.pin_memory", BOOL, "true", "what a GPU copies is always pinned"),
    ZERO("offload_optimizer.fast_init", BOOL, "false", "states begin as zeros, which nobody writes"),
    NUMBER(zero_optimization.offload_optimizer.ratio, "1.0", 0, 1, AUTO,
           "The part of a rank's elements whose states leave, where the device is cpu or nvme; those of the units that "
           "the next forward begins with stay."),
    FLAG(zero_optimization.offload_optimizer.gradients, "true", 0,
         "Do sums of gradients leave with these states, where a rank has its own alone: at stages 2 and 3, and of one "
         "rank?"),
    FLAG(
        zero_optimization.offload_optimizer.super_offload, "true", 0,
        "May the update of what has left wait until the next forward wants its values, so that its copies go on behind "
        "what is computed?  Nothing that anybody reads is stale, on other ranks neither.  With a limit it waits "
        "where its pieces have room beside the forward of every rank (DeepSpeed's default is false)."),
    NUMBER(zero_optimization.offload_optimizer.cpuadam_cores_perc, "0.8", 0, 1, AUTO,
           "The part of a rank's threads that its updates on the host have (run.offload_update); one at least."),
    SPELLING("zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device", "true=cpu",
             "An old spelling: true is zero_optimization.offload_optimizer.device = \"cpu\"."),
    SPELLING("zero_optimization.cpu_offload_param", "zero_optimization.offload_param.device", "true=cpu",
             "An old spelling: true is zero_optimization.offload_param.device = \"cpu\"."),
    SPELLING("zero_optimization.cpu_offload_params", "zero_optimization.offload_param.device", "true=cpu",
             "An old spelling: true is zero_optimization.offload_param.device = \"cpu\"."),
    ZENFLOW("topk_ratio", REAL, NULL),
    ZENFLOW("select_strategy", STRING, NULL),
    ZENFLOW("select_interval", INT, NULL),
    ZENFLOW("update_interval", INT, NULL),
    ZENFLOW("overlap_step", BOOL, "false"),
    ZENFLOW("offload", BOOL, "false"),
    ZENFLOW("auto_ratio", REAL, NULL),
    ZENFLOW("full_warm_up_rounds", INT, NULL),
    ZENFLOW("pt_reserved_cores_perc", REAL, NULL),
    ZENFLOW("steps_per_epoch", INT, NULL),
    NOT_YET("zero_hpz_partition_size", INT, "1", "a second copy of the shards inside a node"),
    NOT_YET("zero_quantized_weights", BOOL, "false", "quantised communication"),
    NOT_YET("zero_quantized_nontrainable_weights", BOOL, "false", "quantised communication"),
    NOT_YET("zero_quantized_gradients", BOOL, "false", "quantised communication"),
    GONE("zeropp_loco_param", ANY, NULL, "quantised communication"),
    GONE("mics_shard_size", INT, "-1", "shards over a part of the ranks"),
    GONE("mics_hierarchical_params_gather", BOOL, "false", "shards over a part of the ranks"),
    NONE("zero_allow_untested_optimizer", BOOL, "false", "every optimizer here works with every stage"),
    NONE("zero_force_ds_cpu_optimizer", BOOL, "true", "only offload uses it"),
    NONE("allgather_size", INT, "5e8", "zero_optimization.allgather_bucket_size has taken its place"),
    NONE("zero_reduce_scatter", BOOL, "true", "gradients are always reduced by a reduce-scatter"),
    NONE("zero_max_elements_per_comm", INT, "5e8", "zero_optimization.reduce_bucket_size has taken its place"),
    NONE("disable_allgather", BOOL, "false", "parameters are always gathered by an all-gather"),

    FLAG(activation_checkpointing.enabled, "false", 0,
         "Compute again in the backward pass what blocks made in the forward pass.  It and how change memory and time, "
         "never bits."),
    WORD(activation_checkpointing.policy, "auto", "auto|block|sac", NULL, 0,
         "block: all of a block, from its input; sac: all but attention, whose results are kept; auto: sac from 4096 "
         "tokens a sample on.  Not a key of DeepSpeed."),
    INTEGER(activation_checkpointing.interval, "1", 0, 256, 0,
            "Of so many blocks the input of the first is kept, and those of the others are computed again; 0 as 1: of "
            "each."),
    STRINGS(activation_checkpointing.layers, "[]", TS_KEY_ONE,
            "Blocks that are computed again, by their names (\"model.layers.3\") or their Hugging Face class "
            "(\"LlamaDecoderLayer\"); empty: all.  Also called pipeline.checkpointable_layers."),
    NONE("activation_checkpointing.number_checkpoints", INT, NULL, "activation_checkpointing.interval decides"),
    NONE("activation_checkpointing.contiguous_memory_optimization", BOOL, "false", PLANNED),
    NONE("activation_checkpointing.synchronize_checkpoint_boundary", BOOL, "false", "profile.timeline is there"),
    NONE("activation_checkpointing.profile", BOOL, "false", "profile.timeline is there"),
    FLAG(activation_checkpointing.partition_activations, "false", 0,
         "With activation_checkpointing.enabled ranks along tp keep a part each of the inputs of blocks that all of "
         "them have, and gather them again.  No effect without such ranks, and where each has rows of its own "
         "(tensor_parallel.sequence_parallel), which is that."),
    FLAG(activation_checkpointing.cpu_checkpointing, "false", 0,
         "With activation_checkpointing.enabled what blocks keep for the backward waits in the host's memory beside a "
         "GPU; within a limit (run.memory_limit) that of as many blocks as do not fit, and in files (nvme_path) where "
         "the host has no room, or no GPU computes."),
    ALIAS("activation_checkpoint_cpu_offload", "activation_checkpointing.cpu_checkpointing"),
    FLAG(tiled_mlp_compute, "false", 0,
         "Compute each MLP for hidden_size tokens at a time, and keep of it only its input: long samples take less "
         "memory, "
         "and its first products are computed once more in the backward pass.  Not a key of DeepSpeed but of "
         "ArcticTraining."),
    INTEGER(aio.block_size, "1048576", 4096, 1073741824, AUTO,
            "Bytes of a request to a file of offloaded state, at most; counted in whole 4096."),
    INTEGER(aio.queue_depth, "8", 1, 1024, AUTO, "Requests in flight per thread."),
    INTEGER(aio.intra_op_parallelism, "1", 1, 64, AUTO, "Threads that share the requests of a transfer."),
    ALIAS("aio.thread_count", "aio.intra_op_parallelism"),
    AIO("single_submit", BOOL, "false", "each request is submitted as soon as there is room for it"),
    AIO("overlap_events", BOOL, "true", "requests are always submitted while others are under way"),
    LATER("aio.use_gds", BOOL, "false", "a GPU that reads files past the host, which checks the hash of each block"),
};

TABLE(ts_keys_zero, rows);
