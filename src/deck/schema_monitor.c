/* DeepSpeed's monitors (src/train/monitors.h). */
#include "deck/schema_rows.h"

#define COMET(name, type_, initial_) \
  NONE("comet." name, type_, initial_, "nothing is sent to Comet; tensorboard and csv_monitor write files")

static const ts_key rows[] = {
    FLAG(tensorboard.enabled, "false", 0,
         "Write event files for TensorBoard into output_path/job_name: loss, learning rate and more over samples."),
    WORD(tensorboard.output_path, "", NULL, NULL, 0,
         "Where the directory of job_name is made; empty: where the run was started."),
    WORD(tensorboard.job_name, "DeepSpeedJobName", NULL, NULL, 0, "Its name: a run has one of its own."),
    FLAG(csv_monitor.enabled, "false", 0,
         "Write the same curves as tables, output_path/job_name/Train_Samples_lr.csv and others: step,lr with a row "
         "per optimizer step, where step counts samples."),
    WORD(csv_monitor.output_path, "", NULL, NULL, 0,
         "Where the directory of job_name is made; empty: where the run was started."),
    WORD(csv_monitor.job_name, "DeepSpeedJobName", NULL, NULL, 0,
         "Its name: a new run does not begin where another one's tables lie."),
    FLAG(wandb.enabled, "false", 0,
         "Write the event files of tensorboard, into RUN/events where that is off, and say the command that uploads "
         "them to Weights & Biases: nothing is sent while the run goes on."),
    WORD(wandb.group, "", NULL, NULL, 0, "Said beside the command, which has no option for a group."),
    WORD(wandb.team, "", NULL, NULL, 0, "The command's entity; empty: that of whoever uploads."),
    WORD(wandb.project, "deepspeed", NULL, NULL, 0, "The command's project."),
    COMET("enabled", BOOL, "false"),
    COMET("samples_log_interval", INT, "100"),
    COMET("project", STRING, NULL),
    COMET("workspace", STRING, NULL),
    COMET("api_key", STRING, NULL),
    COMET("experiment_name", STRING, NULL),
    COMET("experiment_key", STRING, NULL),
    COMET("online", BOOL, NULL),
    COMET("mode", STRING, NULL),
    NONE("monitor_config", ANY, NULL, "DeepSpeed does not read it either; tensorboard and csv_monitor write files"),
};

TABLE(ts_keys_monitor, rows);
