/* Batch, precision, optimizer, scheduler: DeepSpeed's keys of the training recipe. */
#include "deck/autocast_words.h"
#include "deck/schema_rows.h"

#define LRRT "LRRangeTest"
#define WARMUP "WarmupLR|WarmupDecayLR"
#define WARMUPS "WarmupLR|WarmupDecayLR|WarmupCosineLR"
#define TOTAL "WarmupDecayLR|WarmupCosineLR"
#define COSINE "WarmupCosineLR"
#define CYCLE "OneCycle"

#define SCHEDULE_INTEGER(name, initial_, min_, only_, help_)                                                          \
  {                                                                                                                   \
    STORED(INT, scheduler.params.name), .initial = initial_, .min = min_, .max = LARGE, .flags = AUTO, .only = only_, \
                                        .help = help_                                                                 \
  }
#define SCHEDULE_NUMBER(name, initial_, min_, max_, only_, help_)                                                     \
  {                                                                                                                   \
    STORED(REAL, scheduler.params.name), .initial = initial_, .min = min_, .max = max_, .flags = AUTO, .only = only_, \
                                         .help = help_                                                                \
  }

#define GROUP(type_, field, ...)                                                          \
  {                                                                                       \
    .path = "optimizer.groups[]." #field, .type = TS_KEY_##type_, .status = TS_KEY_WORKS, \
    .offset = (ptrdiff_t) offsetof(ts_deck_group, field), __VA_ARGS__                     \
  }

#define OF_ADAGRAD(type_, field, ...) \
  { STORED(type_, optimizer.params.field), .only = "Adagrad", __VA_ARGS__ }
#define OF_LAMB(type_, field, ...) \
  { STORED(type_, optimizer.params.field), .only = "Lamb", __VA_ARGS__ }
#define OF_MUON(type_, field, ...) \
  { STORED(type_, optimizer.params.field), .only = "Muon", __VA_ARGS__ }
#define ONE_BIT(name, type_, initial_, owner) \
  REMOVED("optimizer.params." name, type_, initial_, "a parameter of " owner)

static const ts_key rows[] = {
    INTEGER(train_batch_size, NULL, 1, LARGE, AUTO, "Samples of one optimizer step, over all ranks."),
    INTEGER(train_micro_batch_size_per_gpu, NULL, 1, SIZE, AUTO, "Samples of one forward on one rank."),
    INTEGER(gradient_accumulation_steps, NULL, 1, SIZE, AUTO, "Micro-batches summed before an optimizer step."),
    NONE("managed_gradient_accumulation", BOOL, "true", "the schedule of a step decides where accumulation ends"),
    INTEGER(steps_per_print, NULL, 1, LARGE, AUTO | ENDLESS,
            "Steps between printed lines; \"inf\" for the first and the last."),
    FLAG(wall_clock_breakdown, "false", 0, "Print where the time of a step goes."),
    NUMBER(gradient_clipping, "1.0", 0, HUGE_REAL, AUTO, "Largest global norm of the gradient; 0 for no clipping."),
    ALIAS("max_grad_norm", "gradient_clipping"),
    FLAG(prescale_gradients, "false", AUTO,
         "Divide gradients that travel in fp16 by their ranks before they are summed, and multiply the sum by them in "
         "fp32."),
    NUMBER(gradient_predivide_factor, "1.0", 1e-30, 1e30, AUTO, "The same by this number, without prescale_gradients."),
    LATER("gradient_allreduce_op", STRING, "mean", "gradients that are summed over ranks, not averaged"),
    DTYPE(communication_data_type, NULL, "fp32|bf16|fp16", NULL,
          "Type of gradients on the wire where sequence_parallel_size is 1 (default: data_types.grad_accum_dtype); "
          "sums are always fp32."),
    SPELLING("fp32_allreduce", "communication_data_type", "true=fp32",
             "An old spelling: true is communication_data_type = \"fp32\"."),
    DTYPE(seq_parallel_communication_data_type, "fp32", "fp32|bf16|fp16", NULL,
          "Type of gradients on the wire where sequence_parallel_size is above 1; there it alone decides."),
    ALIAS("seq_parallel_comm_data_type", "seq_parallel_communication_data_type"),
    DTYPE(data_types.grad_accum_dtype, "fp32", "fp32|bf16|fp16", NULL, "Type in which gradients are kept and summed."),
    LATER("data_types.param_dtype", STRING, NULL, "a type of the weights other than that of bf16 and fp32 training"),
    NONE("data_types.keep_in_fp32_modules", ANY, NULL, "it is about buffers, and there are none beside the weights"),
    LATER("data_types.buffer_dtype", STRING, NULL, "a type of the buffers other than that of bf16 and fp32 training"),

    SWITCH(bf16.enabled, "false",
           "Compute in bf16; master weights, moments and sums stay in fp32.  \"auto\": where every rank has "
           "instructions for it that outrun fp32's; decided once, and kept on resume."),
    FLAG(
        bf16.stochastic_rounding, "false", 0,
        "Round the master weights to their bf16 copies up or down by chance, so that the mean of a copy is its master; "
        "the same numbers on any number of replicas and after a resume.  Not a key of DeepSpeed."),
    NONE("bf16.immediate_grad_update", BOOL, "false", "gradients go into their shard as soon as they are reduced"),
    FLAG(bf16.check_grad_overflow, "true", 0,
         "Skip a step whose loss or norm is not finite; false: it is done all the same, in bf16."),
    FLAG(bf16.bf16_master_weights_and_grads, "false", 0,
         "No fp32 masters: the bf16 parameters are updated themselves, and gradients are kept and summed in bf16."),
    FLAG(bf16.bf16_optimizer_states, "false", 0,
         "optimizer.state_dtype = \"bf16\", in DeepSpeed's words; with bf16_master_weights_and_grads."),
    ALIAS("bfloat16.enabled", "bf16.enabled"),
    ALIAS("bfloat16.immediate_grad_update", "bf16.immediate_grad_update"),
    ALIAS("bfloat16.check_grad_overflow", "bf16.check_grad_overflow"),
    ALIAS("bfloat16.bf16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads"),
    ALIAS("bfloat16.bf16_optimizer_states", "bf16.bf16_optimizer_states"),

    FLAG(
        fp16.enabled, "false", AUTO,
        "Compute in fp16, with a loss scale; master weights, moments and sums stay in fp32.  Not beside bf16.enabled."),
    NONE("fp16.auto_cast", BOOL, "false", "what goes into the model are the ids of tokens"),
    NUMBER(fp16.loss_scale, "0.0", 0, 0x1p127, AUTO,
           "What the loss is multiplied by; 0: dynamic, as the next keys say."),
    INTEGER(fp16.initial_scale_power, "16", 0, 127, AUTO, "The dynamic scale begins at 2 to this power."),
    INTEGER(fp16.loss_scale_window, "1000", 1, SIZE, AUTO, "Steps without an overflow after which the scale doubles."),
    INTEGER(fp16.hysteresis, "2", 1, SIZE, AUTO, "The scale halves at this overflow, counted since it doubled."),
    FLAG(fp16.consecutive_hysteresis, "false", AUTO, "Count these anew after each step without an overflow."),
    INTEGER(fp16.min_loss_scale, "1", 1, LARGE, AUTO, "An overflow at this scale ends the run."),
    FLAG(fp16.fp16_master_weights_and_grads, "false", 0,
         "No fp32 masters: the fp16 parameters are updated themselves, and gradients are kept and summed in fp16."),
    REMOVED("amp.enabled", BOOL, "false", "a mixed precision library of another framework"),
    REMOVED("amp.opt_level", STRING, NULL, "a mixed precision library of another framework"),
    FLAG(
        torch_autocast.enabled, "false", 0,
        "Compute in the lower type what torch.autocast does on the device, chiefly products and attention; parameters, "
        "the residual stream, norms and the optimizer stay fp32.  Not together with bf16 or fp16."),
    DTYPE(torch_autocast.dtype, "bf16", "bf16|fp16", NULL,
          "The lower type; fp16 with a loss scale by the rule of torch.amp.GradScaler."),
    {STORED(STRINGS, torch_autocast.lower_precision_safe_modules), .initial = TS_AUTOCAST_DEFAULT,
     .accepted = TS_AUTOCAST_CLASSES,
     .help =
         "Modules whose own parameters travel in the lower type: gradients between ranks, and at stage 3 the values "
         "that only products read; what computes in it is torch's to say.  As in DeepSpeed classes are exact: "
         "GPT-2's Conv1D is no Linear, a tied head is."},

    {STORED(STRING, optimizer.type), .initial = "AdamW", .accepted = "AdamW|Adam|Lion|Adagrad|SGD|Lamb|Muon",
     .later = "MuAdam|MuAdamW|MuSGD", .gone = "OneBitAdam|ZeroOneAdam|OneBitLamb", .help = "Optimizer."},
    WORD(optimizer.state_dtype, "fp32", "fp32|bf16|8bit", NULL, 0,
         "Type of what the optimizer keeps of an element.  8bit: blocks of 256 elements share a scale, parameters of "
         "less "
         "than 4,096 stay in fp32 (bitsandbytes' dynamic map).  Not a key of DeepSpeed."),
    NUMBER(optimizer.params.lr, "1e-3", 0, HUGE_REAL, AUTO,
           "Learning rate (default of Adagrad: 1e-2; of Muon: muon_lr)."),
    {STORED(PAIR, optimizer.params.betas), .initial = "[0.9, 0.999]", .min = 0, .max = 1, .flags = AUTO | OPEN_MAX,
     .help = "Decay of the first and second moment (default of Muon's AdamW: [0.9, 0.95])."},
    NUMBER(optimizer.params.eps, "1e-8", 0, HUGE_REAL, AUTO,
           "Added to the root of the second moment (default of Adagrad, and of Muon's AdamW: 1e-10)."),
    NUMBER(optimizer.params.weight_decay, "0.0", 0, HUGE_REAL, AUTO, "Weight decay."),
    FLAG(optimizer.params.bias_correction, "true", 0, "Correct the moments for their start at zero."),
    FLAG(optimizer.params.adam_w_mode, "true", 0,
         "Adam: decoupled weight decay, else it is added to the gradient; AdamW always decouples."),
    NONE("optimizer.params.torch_adam", BOOL, "false",
         "one arithmetic; adam_w_mode decides how weights decay, there too"),
    NUMBER(optimizer.params.momentum, "0.0", 0, 1, OPEN_MAX,
           "SGD, Muon: what is kept of the last update (default of Muon: 0.95)."),
    NUMBER(optimizer.params.dampening, "0.0", 0, 1, 0, "SGD with momentum: what of the gradient is left out."),
    FLAG(optimizer.params.nesterov, "false", 0, "SGD with momentum: look ahead."),
    OF_ADAGRAD(REAL, lr_decay, .initial = "0.0", .min = 0, .max = HUGE_REAL,
               .help = "The rate of update t is divided by 1 + (t - 1) times this."),
    OF_ADAGRAD(REAL, initial_accumulator_value, .initial = "0.0", .min = 0, .max = HUGE_REAL,
               .help = "What the sum of squares begins with."),
    OF_LAMB(BOOL, eps_inside_sqrt, .initial = "false", .help = "eps is added to what the root is taken of."),
    OF_LAMB(REAL, max_coeff, .initial = "10.0", .min = 0, .max = HUGE_REAL,
            .help = "Largest ratio of a parameter's norm to its step's."),
    OF_LAMB(REAL, min_coeff, .initial = "0.01", .min = 0, .max = HUGE_REAL, .help = "Smallest ratio."),
    OF_MUON(STRING, ns_method, .initial = "gram", .accepted = "gram|standard",
            .help = "Newton-Schulz on x x^T where x is not square, or always on x."),
    OF_MUON(REAL, muon_lr, .min = 0, .max = HUGE_REAL,
            .help = "Learning rate of the matrices but embeddings and head (default: lr; without lr 0.02)."),
    OF_MUON(REAL, adam_lr, .min = 0, .max = HUGE_REAL,
            .help = "Learning rate of the rest, AdamW's (default: lr; without lr 3e-4)."),
    OF_MUON(BOOL, per_head_muon, .initial = "false", .help = "Each head of q, k and v is a matrix."),
    STRINGS(optimizer.no_decay, "[]", REGEX, "Parameters (expressions) without weight decay."),
    GROUP(STRING, pattern, .flags = REGEX | REQUIRED,
          .help = "Parameters (an expression) of this group; the first match wins."),
    GROUP(REAL, lr_factor, .initial = "1.0", .min = 0, .max = HUGE_REAL, .help = "Multiplies the learning rate."),
    GROUP(REAL, weight_decay, .initial = "-1.0", .min = -1, .max = HUGE_REAL,
          .help = "Weight decay of the group; -1 for that of optimizer.params."),
    GROUP(BOOL, frozen, .initial = "false", .help = "Parameters that keep their values."),
    STRINGS(frozen, "[]", REGEX, "Parameters (expressions) that keep their values."),
    NONE("optimizer.legacy_fusion", BOOL, "false", "the update is always one fused kernel over a shard"),
    NONE("optimizer.params.set_grad_none", BOOL, "true", "gradients live in planned memory"),
    NONE("optimizer.params.adamw_mode", BOOL, "true", "the name of adam_w_mode inside one implementation"),
    NONE("optimizer.params.fp32_optimizer_states", BOOL, "true", "optimizer.state_dtype says it"),
    LATER("optimizer.params.amsgrad", BOOL, "false", "AMSGrad"),
    LATER_BUT("optimizer.params.max_grad_norm", REAL, "0.0", "clipping in the optimizer (DeepSpeed refuses it too)",
              "--set optimizer.params.max_grad_norm=0 --set gradient_clipping=NORM"),
    ONE_BIT("coeff_beta", REAL, "0.9", "OneBitLamb"),
    ONE_BIT("factor_max", REAL, "4.0", "OneBitLamb"),
    ONE_BIT("factor_min", REAL, "0.5", "OneBitLamb"),
    ONE_BIT("factor_threshold", REAL, "0.1", "OneBitLamb"),
    ONE_BIT("freeze_step", INT, "100000", "the one-bit optimizers"),
    ONE_BIT("var_freeze_step", INT, "100000", "ZeroOneAdam"),
    ONE_BIT("var_update_scaler", INT, "16", "ZeroOneAdam"),
    ONE_BIT("local_step_scaler", INT, "32678", "ZeroOneAdam"),
    ONE_BIT("local_step_clipper", INT, "16", "ZeroOneAdam"),
    ONE_BIT("cuda_aware", BOOL, "false", "the one-bit optimizers"),
    ONE_BIT("comm_backend_name", STRING, "nccl", "the one-bit optimizers"),
    NONE("optimizer.params.ns_steps", INT, "5", "always five steps, as DeepSpeed"),

    WORD(scheduler.type, "none", "none|LRRangeTest|WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle", NULL, 0,
         "Schedule of the learning rate."),
    SCHEDULE_NUMBER(lr_range_test_min_lr, "1e-3", 0, HUGE_REAL, LRRT, "First learning rate."),
    SCHEDULE_INTEGER(lr_range_test_step_size, "2000", 1, LRRT, "Steps of one increase."),
    SCHEDULE_NUMBER(lr_range_test_step_rate, "1.0", 0, HUGE_REAL, LRRT, "Increase, as a multiple of the first rate."),
    {STORED(BOOL, scheduler.params.lr_range_test_staircase), .initial = "false", .only = LRRT,
     .help = "Increase in stairs."},
    SCHEDULE_NUMBER(warmup_min_lr, "0.0", 0, HUGE_REAL, WARMUP, "First learning rate."),
    SCHEDULE_NUMBER(warmup_max_lr, NULL, 0, HUGE_REAL, WARMUP,
                    "Learning rate after the warm-up (default: optimizer.params.lr; 1e-3 for WarmupDecayLR)."),
    SCHEDULE_INTEGER(warmup_num_steps, "1000", 1, WARMUPS, "Steps of the warm-up."),
    {STORED(STRING, scheduler.params.warmup_type), .initial = "log", .accepted = "log|linear", .flags = AUTO,
     .only = WARMUPS, .help = "Shape of the warm-up."},
    SCHEDULE_INTEGER(total_num_steps, NULL, 1, TOTAL, "Steps of the whole schedule."),
    SCHEDULE_NUMBER(warmup_min_ratio, "0.0", 0, HUGE_REAL, COSINE, "First learning rate as a part of lr."),
    SCHEDULE_NUMBER(cos_min_ratio, "0.0001", 0, HUGE_REAL, COSINE, "Last learning rate as a part of lr."),
    SCHEDULE_NUMBER(cycle_min_lr, NULL, 0, HUGE_REAL, CYCLE, "Lower end of the cycle."),
    SCHEDULE_NUMBER(cycle_max_lr, NULL, 0, HUGE_REAL, CYCLE, "Upper end of the cycle."),
    SCHEDULE_NUMBER(decay_lr_rate, "0.0", 0, HUGE_REAL, CYCLE, "Decay after the cycle, per decay_step_size."),
    SCHEDULE_INTEGER(cycle_first_step_size, "2000", 1, CYCLE, "Steps of the rise."),
    SCHEDULE_INTEGER(cycle_second_step_size, NULL, 0, CYCLE, "Steps of the fall (default: those of the rise)."),
    SCHEDULE_INTEGER(cycle_first_stair_count, "0", 0, CYCLE, "Stairs of the rise; 0 for none."),
    SCHEDULE_INTEGER(cycle_second_stair_count, NULL, 0, CYCLE, "Stairs of the fall (default: those of the rise)."),
    SCHEDULE_INTEGER(decay_step_size, "0", 0, CYCLE, "Steps of one decay after the cycle; 0 for none."),
    {STORED(BOOL, scheduler.params.cycle_momentum), .initial = "true", .only = CYCLE,
     .help = "Cycle the first moment's decay against the learning rate."},
    SCHEDULE_NUMBER(cycle_min_mom, "0.8", 0, 1, CYCLE, "Lower end of the momentum."),
    SCHEDULE_NUMBER(cycle_max_mom, "0.9", 0, 1, CYCLE, "Upper end of the momentum."),
    SCHEDULE_NUMBER(decay_mom_rate, "0.0", 0, HUGE_REAL, CYCLE, "Decay of the momentum, per decay_step_size."),
    {STORED(INT, scheduler.params.last_batch_iteration), .initial = "-1", .min = -1, .max = LARGE,
     .only = "LRRangeTest|WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle",
     .help = "Step after which the schedule starts; -1 for its begin."},
};

TABLE(ts_keys_train, rows);
