/* What "auto" becomes: the value that Hugging Face's trainer would have filled in.  The deck is the trainer here, so
 * what it says comes first; these rows are for what it leaves out, or leaves "auto" itself.
 *
 * The rules are those of transformers 5.23, integrations/deepspeed.py (HfTrainerDeepSpeedConfig.trainer_config_process
 * and trainer_config_finalize) with the defaults of its training_args.py (TrainingArguments, get_warmup_steps), and of
 * accelerate 1.15, accelerator.py (Accelerator._prepare_deepspeed) and utils/dataclasses.py
 * (DeepSpeedPlugin.__post_init__).  An "auto" of any other key is the key's default, as DeepSpeed drops it from
 * the sections that it reads with DeepSpeedConfigModel (runtime/config_utils.py); where there is no default it is
 * missing.
 *
 * Two are wider than there: the sizes that belong to stage 3 are taken at every stage (below it they change nothing
 * there, and here all stages shall give the same bits).  bf16.enabled is decided on the machine. */
#include "deck/schema.h"

#include <string.h>

#define SQUARE "model.hidden_size * model.hidden_size"

static const ts_auto rows[] = {
    {"train_micro_batch_size_per_gpu", "8", "per_device_train_batch_size", true},
    {"gradient_accumulation_steps", "1", "gradient_accumulation_steps", true},
    {"train_batch_size", "train_micro_batch_size_per_gpu * gradient_accumulation_steps * ranks", NULL, true},
    {"gradient_clipping", "1.0", "max_grad_norm", false},
    {"optimizer.params.lr", "5e-5", "learning_rate", false},
    {"optimizer.params.betas", "[0.9, 0.999]", "adam_beta1, adam_beta2", false},
    {"optimizer.params.eps", "1e-8", "adam_epsilon", false},
    {"optimizer.params.weight_decay", "0.0", "weight_decay", false},
    {"scheduler.params.warmup_min_lr", "0.0", "warmup_min_lr", false},
    {"scheduler.params.warmup_max_lr", "optimizer.params.lr", NULL, false},
    {"scheduler.params.warmup_num_steps", "1", "warmup_steps (0), and at least 1", false},
    {"scheduler.params.total_num_steps", "run.steps", NULL, false},
    {"fp16.enabled", "false", "fp16", false},
    {"zero_optimization.stage", "2", "zero_stage", false},
    {"zero_optimization.reduce_bucket_size", SQUARE, NULL, false},
    {"zero_optimization.stage3_prefetch_bucket_size", "0.9 * " SQUARE, NULL, false},
    {"zero_optimization.stage3_param_persistence_threshold", "10 * model.hidden_size", NULL, false},
};

int ts_auto_count(void) {
  return (int) (sizeof rows / sizeof *rows);
}

const ts_auto *ts_auto_at(int index) {
  return &rows[index];
}

const ts_auto *ts_auto_find(const char *path) {
  for (int i = 0; i < ts_auto_count(); ++i) {
    if (strcmp(rows[i].path, path) == 0) {
      return &rows[i];
    }
  }
  return NULL;
}

void ts_auto_explain(const ts_auto *row, ts_text *to) {
  if (row->argument != NULL) {
    ts_text_add(to, "Hugging Face's default of %s", row->argument);
  } else {
    ts_text_add(to, "%s", row->formula);
  }
}
