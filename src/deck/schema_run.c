/* `data`, `run` and the keys that DeepSpeed leaves to the user's script. */
#include "deck/schema_rows.h"

#define FORMATS "auto|text|jsonl|bin|uint16|hdf5|megatron"
#define LONGER "Where nobody sets it, at least 4 times what a step's FLOPs take at the measured rate of products."

#define SOURCE(type_, field, ...)                                                     \
  {                                                                                   \
    .path = "data.sources[]." #field, .type = TS_KEY_##type_, .status = TS_KEY_WORKS, \
    .offset = (ptrdiff_t) offsetof(ts_deck_source, field), __VA_ARGS__                \
  }

static const ts_key rows[] = {
    {.path = "deepspeed_config",
     .type = TS_KEY_STRING,
     .offset = -1,
     .initial = "",
     .help = "DeepSpeed json to merge in; its path is relative to this file."},
    WORD(data.path, "", NULL, NULL, 0,
         "Training data: a text, JSONL, a .bin of tokens, an HDF5 file, or Megatron's .idx and .bin."),
    SOURCE(STRING, path, .flags = REQUIRED, .help = "A file of a mixture, instead of data.path."),
    SOURCE(REAL, weight, .initial = "1.0", .min = 0, .max = HUGE_REAL, .flags = OPEN_MIN,
           .help = "Its part of the samples, of the sum of all weights."),
    SOURCE(STRING, format, .accepted = FORMATS, .help = "Kind of the file (default: data.format)."),
    SOURCE(STRING, dataset, .help = "Name of its token set (default: data.dataset)."),
    SOURCE(STRING, field, .help = "Member of its lines (default: data.field)."),
    SOURCE(STRING, completion_field, .help = "Likewise (default: data.completion_field)."),
    WORD(data.format, "auto", FORMATS, NULL, 0,
         "Kind of file; auto looks at its first bytes and its name; bin: llm.c's, of 2 bytes a token or 4 by its "
         "header; uint16: tokens without a header, as nanoGPT writes them; megatron: an indexed dataset, X.idx and "
         "X.bin, named by either or as X."),
    WORD(data.dataset, "tokens", NULL, NULL, 0, "Name of the token set inside an HDF5 file."),
    WORD(data.tokenizer, "", NULL, NULL, 0,
         "Directory with the tokenizer.json that makes tokens of text and jsonl, once, into an HDF5 file (default: "
         "model.from; where that has none, a text's bytes are its tokens)."),
    WORD(data.cache, "", NULL, NULL, 0, "Directory for these files, which all ranks see (default: beside each text)."),
    WORD(data.field, "text", NULL, NULL, 0,
         "jsonl: the member of a line that is its text, its chat (a list of {role, content} or {from, value}), or with "
         "completion_field its prompt."),
    WORD(data.completion_field, "", NULL, NULL, 0,
         "jsonl: the member of a line that is to be said to its prompt; only this is learned."),
    WORD(
        data.chat_template, "", NULL, NULL, 0,
        "The chat template by name, such as chatml or llama3 (default: that of the tokenizer's directory, which has to "
        "be one that is known)."),
    FLAG(data.train_on_prompt, "false", 0,
         "jsonl: prompts, and what others than the assistant say in chats, are learned too."),
    INTEGER(data.sequence_length, NULL, 1, SIZE, 0, "Tokens of a sample (default: max_position_embeddings)."),
    NUMBER(data.validation_fraction, "0.0", 0, 1, OPEN_MAX, "Part of the data's tail kept for validation."),
    WORD(data.validation_path, "", NULL, NULL, 0, "Validation data, instead of a fraction."),
    WORD(data.packing, "stream", "stream|documents|best_fit|none", NULL, 0,
         "stream: a sample is one piece of text; documents: cut from the same stream, but attention, positions and "
         "labels "
         "stay inside a document; best_fit: whole documents, as many as fit, and padding; none: a document is a "
         "sample.  "
         "model.eos_token_id ends a document where the file has no index of them."),
    LATER_BUT("data.reset_position_ids", BOOL, "false", "Megatron's name of a part of packing",
              "data.packing = \"documents\""),
    LATER_BUT("data.reset_attention_mask", BOOL, "false", "Megatron's name of a part of packing",
              "data.packing = \"documents\""),
    LATER_BUT("data.eod_mask_loss", BOOL, "false", "Megatron's name of a part of packing",
              "data.packing = \"documents\""),
    FLAG(data.shuffle, "true", 0, "A new order of the samples each epoch; false takes them as they lie."),
    INTEGER(data.seed, "1", 0, LARGE, 0, "Seed of the order."),

    WORD(run.directory, "", NULL, NULL, 0, "Where metrics and results go; made if absent."),
    INTEGER(run.steps, "0", 0, LARGE, 0,
            "Optimizer steps to train; 0 with model.from saves its weights as a checkpoint."),
    NUMBER(
        run.epochs, "0.0", 0, 1e9, 0,
        "Instead of run.steps (0: that): as many steps as read the training samples that many times, of data.sources "
        "the sum of all sources' samples; 1.5 is one and a half, and the last step's batch is whole."),
    INTEGER(run.seed, "1", 0, LARGE, 0, "Seed of initial weights and dropout."),
    INTEGER(run.save_every, "0", 0, LARGE, 0, "Steps between checkpoints; 0: only when the run ends or is stopped."),
    INTEGER(run.keep, "0", 0, LARGE, 0, "How many checkpoints to keep, the newest ones; 0 for all."),
    FLAG(run.save_async, "true", 0,
         "Copy the state to memory planned for it and write while training goes on; false writes it before going on."),
    NUMBER(run.save_retry, "60", 0, 1e6, OPEN_MIN,
           "Seconds until a save that failed (a full disk) is tried again, after a step; the run goes on meanwhile."),
    NUMBER(run.save_timeout, "1800", 0, 1e6, 0,
           "Seconds of saves that fail, from the first one, after which the run stops with exit code 2; 0: never."),
    INTEGER(run.evaluate_every, "0", 0, LARGE, 0, "Steps between validations; 0 for none."),
    INTEGER(run.evaluate_batches, "0", 0, LARGE, 0, "Batches of one validation; 0 for all of the validation data."),
    WORD(run.device, "auto", "auto|cpu|cuda", NULL, 0, "Where to compute; auto takes GPUs where every rank sees one."),
    FLAG(run.cuda_graphs, "true", 0, "Record a step's work on a GPU once and replay it; the results are the same."),
    FLAG(run.measure_algorithms, "true", 0,
         "Time the candidates for every product on a GPU when a run begins; false takes the library's first."),
    WORD(run.algorithms, "", NULL, NULL, 0,
         "algorithms.txt of another run, to compute products as it did; by default that of run.directory, if there is "
         "one."),
    WORD(run.attention, "auto", "auto|own", NULL, 0,
         "On a GPU: auto takes cuDNN's where it was faster when both were timed; own never does, and plans no "
         "workspace for it."),
    FLAG(run.deterministic, "true", 0,
         "On a GPU the same bits every time; false lets cuDNN's backward pass of attention add in the order in which "
         "blocks finish, which is faster."),
    FLAG(run.exact_sums, "false", 0,
         "On GPUs, sums over an fp32 wire in rank order too, as on processors and over bf16: bits that do not depend "
         "on how NCCL adds."),
    NUMBER(run.peer_timeout, "1800", 0, 1e6, LEAST,
           "Seconds that a GPU may keep its host waiting before a peer is taken for dead; 0: for ever. " LONGER),
    NUMBER(run.step_timeout, "600", 0, 1e6, LEAST,
           "Seconds after which a step counts as a hang: the ranks that are behind are named and the job is ended; 0: "
           "never. " LONGER),
    NUMBER(run.first_step_timeout, "1800", 0, 1e6, LEAST,
           "The same for the first step of a job with all that comes before it, and for a save or a validation in "
           "which nothing moves. " LONGER),
    NUMBER(run.time_limit, "0", 0, 1e9, 0,
           "Seconds after which the run stops, saved before that; 0: the time limit of its Slurm job, where there is "
           "one."),
    NUMBER(run.time_margin, "60", 0, 1e6, 0,
           "Seconds that stopping ahead of a time limit keeps beside two saves and two steps."),
    FLAG(run.share_device, "false", 0, "Let several ranks of a node use one GPU: for tests."),
    FLAG(run.tf32, "false", 0, "Let fp32 products on a GPU round their operands to TF32 (10 bits)."),
    WORD(
        run.accumulation_order, "auto", "auto|micro_batch|unit", NULL, 0,
        "What comes next where gradients are accumulated: micro_batch, the next unit of the same one; unit, the same "
        "unit "
        "of the next one, so that parameters, sums and states come and go once a step, and what all micro-batches keep "
        "is there at a time; auto, unit where that copies less and fits into a limit of memory."),
    WORD(run.offload_update, "auto", "auto|device|host", NULL, 0,
         "Where the update of what has left a GPU is made: device, to which states come and go; host, by its "
         "processors, where they are; auto, where plans of both say that a step takes less by the rates of `machine`.  "
         "Bits do not depend on it.  Lamb, Muon, what stays and what "
         "processors train: where the model computes."),
    WORD(run.bind, "auto", "auto|cores|none", NULL, 0,
         "Give each rank processors of its own, near its GPU, where the launcher has not: auto does so in a job of "
         "Slurm."),
    BYTES(
        run.memory_limit, "0",
        "Memory that a rank may take where it computes, that of libraries included, as \"24GB\": a run that needs more "
        "ends before it begins, and device = \"auto\" of offload_optimizer and offload_param fits it in; 0: what there "
        "is."),
    BYTES(run.host_memory_limit, "0",
          "The same of the host's memory beside a GPU; where no GPU computes the lower one of both counts."),
    INTEGER(run.threads, "0", 0, 4096, 0, "Threads of a rank; 0 for the cores it may use."),
    WORD(run.resume, "never", NULL, NULL, 0,
         "never; auto: the newest intact checkpoint of run.directory, if there is one; or a run or checkpoint "
         "directory."),
    INTEGER(run.log_every, NULL, 1, LARGE, AUTO, "Steps between printed lines (default: steps_per_print, or 10)."),
    INTEGER(run.stop_after_nonfinite, "10", 1, LARGE, 0,
            "Steps in a row, not finite, that end the run; overflows after which a loss scale is made smaller "
            "do not count."),

    FLAG(debug.check_finite, "false", 0, "Name the first op, rank and tensor that is not finite (slow)."),
    FLAG(debug.memcheck, "false", 0, "Poison memory that must not be read, catch stray writes (slow)."),
    WORD(debug.dump, "", NULL, NULL, 0, "Directory for a dump of the graph after each pass."),
    INTEGER(debug.digest_every, "0", 0, LARGE, 0,
            "Steps between digests of all parameters, for `tessera compare`; 0 for none."),
    FLAG(debug.skip_attention, "false", 0,
         "Rehearse the memory and the copies of a run with long samples: only the last block has attention, in the "
         "others it makes zeros; losses mean nothing."),
    WORD(profile.timeline, "", NULL, NULL, 0, "File for a Chrome trace of a step by op and collective."),
};

TABLE(ts_keys_run, rows);
