#include "train/job_files.h"

#include "base/log.h"
#include "base/memory.h"
#include "comm/comm_launch.h"
#include "io/jobs.h"

#include <string.h>
#include <time.h>

static const char *const purposes[TS_N_PURPOSES] = {
    [TS_PURPOSE_PARAMETER] = "parameters", [TS_PURPOSE_GRADIENT] = "gradients",
    [TS_PURPOSE_OPTIMIZER] = "optimizer",  [TS_PURPOSE_ACTIVATION] = "activations",
    [TS_PURPOSE_BUFFER] = "buffers",       [TS_PURPOSE_CHECKPOINT] = "checkpoint",
    [TS_PURPOSE_RESERVE] = "reserve"};

/* ---- memory.csv ---- */

/* Of the runs that have its node, the first one's. */
static int phase_of(const ts_program *program, ts_nid node) {
  const ts_step_runs *step = &program->step;
  int phase = TS_RUN_UPDATE;
  for (int k = step->n_kinds - 1; k >= 0 && node != TS_NONE; --k) {
    if (ts_step_has(step, k) && (step->kind[k].segments & program->graph->node[node].segment) != 0) {
      phase = step->kind[k].phase;
    }
  }
  return phase;
}

/* Of instructions [begin, end) the one at which most is in use. */
static int largest_moment(const ts_plan *plan, int begin, int end) {
  int most = begin;
  for (int i = begin; i < end; ++i) {
    most = plan->moment[i].bytes > plan->moment[most].bytes ? i : most;
  }
  return most;
}

static void print_moments(const ts_program *program, ts_text *to) {
  const ts_plan *plan = program->plan;
  ts_text_add(to, "instruction,phase");
  for (int k = 0; k < TS_N_PURPOSES; ++k) {
    ts_text_add(to, ",%s", purposes[k]);
  }
  ts_text_add(to, ",gaps\n");
  const int n = plan->n_moments, rows = n < TS_MEMORY_ROWS ? n : TS_MEMORY_ROWS;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t bytes[TS_N_PURPOSES], gaps;
    int i = largest_moment(plan, (int) (r * n / rows), (int) ((r + 1) * n / rows));
    ts_plan_in_use(plan, i, bytes, &gaps);
    ts_text_add(to, "%d,%d", i, phase_of(program, plan->moment[i].node));
    for (int k = 0; k < TS_N_PURPOSES; ++k) {
      ts_text_add(to, ",%lld", (long long) bytes[k]);
    }
    ts_text_add(to, ",%lld\n", (long long) gaps);
  }
}

static ts_status write_memory(const ts_training *r, ts_error *err) {
  ts_text text = {0};
  char *path = ts_format("%s/memory.csv", r->deck->run.directory);
  print_moments(ts_engine_program(r->engine), &text);
  ts_status status = ts_write_file(path, text.text, text.length, err);
  ts_free(path);
  ts_text_free(&text);
  return status;
}

/* ---- jobs.jsonl ---- */

/* "dp 4, tp 2": axes of more than one rank. */
static void add_job_grid(const ts_mesh *mesh, ts_text *to) {
  for (int axis = 0; axis < TS_N_AXES; ++axis) {
    if (mesh->size[axis] > 1) {
      ts_text_add(to, "%s%s %d", to->length > 0 ? ", " : "", ts_axis_name(axis), mesh->size[axis]);
    }
  }
  ts_text_add(to, "%s", to->length > 0 ? "" : "dp 1");
}

static ts_status add_job_line(const ts_training *r, int64_t planned, ts_error *err) {
  const ts_deck *deck = r->deck;
  const ts_program *p = ts_engine_program(r->engine);
  const ts_launch *launch = ts_launched();
  const double all = r->flops_per_step, of_one = p->flops > 0 ? all / p->flops : 0;
  ts_text grid = {0}, types = {0};
  add_job_grid(&r->mesh, &grid);
  ts_deck_add_types(deck, &types);
  char *timeline = ts_full_path(deck->profile.timeline);
  char *flops_report = ts_full_path(deck->flops_profiler.enabled ? deck->flops_profiler.output_file : "");
  const ts_job job = {.step = r->at.step,
                      .began = (double) time(NULL),
                      .job = launch->job != NULL ? (char *) launch->job : "",
                      .restart = launch->restart > 0 ? launch->restart : 0,
                      .launcher = launch->launcher != NULL ? (char *) launch->launcher : "hand",
                      .version = PACKAGE_VERSION,
                      .ranks = r->ranks,
                      .nodes = ts_world_n_nodes(r->world),
                      .threads = p->target.threads,
                      .device = (char *) p->target.backend->describe(),
                      .grid = grid.text,
                      .stage = deck->zero_optimization.stage,
                      .types = types.text,
                      .model = deck->model.model_type,
                      .parameters = (double) ts_layout_parameter_count(p->layout, false),
                      .active = (double) ts_program_active_parameters(p),
                      .steps = r->steps,
                      .tokens_per_step = deck->train_batch_size * r->length,
                      .flops = all,
                      .flops_full = p->flops_full_attention * of_one,
                      .peak_flops = r->peak,
                      .planned_bytes = planned,
                      .timeline = timeline,
                      .flops_report = flops_report};
  ts_status status = ts_jobs_add(deck->run.directory, !r->resume.same_run, &job, err);
  ts_free(timeline);
  ts_free(flops_report);
  ts_text_free(&grid);
  ts_text_free(&types);
  return status;
}

void ts_job_files_write(const ts_training *r, int most, int64_t planned) {
  ts_error err = {0};
  ts_status status = r->rank == most ? write_memory(r, &err) : TS_OK;
  status = status == TS_OK && r->rank == 0 ? add_job_line(r, planned, &err) : status;
  if (status != TS_OK) {
    ts_log(TS_LOG_WARNING, "%s; `tessera report` will not show it", err.text);
  }
  ts_error_clear(&err);
}
