#include "main/plan_stages.h"

#include "base/memory.h"
#include "pass/stage.h"

static ts_mesh mesh_of_stage(const ts_program_options *o, int stage) {
  return ts_mesh_at(o->mesh, ts_mesh_group_member(o->mesh, TS_AXES(TS_AXIS_PP), stage));
}

static int64_t parameters_here(const ts_layout *layout) {
  int64_t sum = 0;
  for (int i = 0; i < layout->n_parameters; ++i) {
    const ts_part *part = &layout->part[layout->parameter[i].part];
    sum += part->here ? ts_shape_count(&layout->parameter[i].shape) : 0;
  }
  return sum;
}

/* "model.embed_tokens - model.layers.2", one for each of the stage's pieces. */
static void add_units_of(const ts_program *p, int stage, const char *between, ts_text *to) {
  const ts_stages *s = p->stages;
  for (int chunk = 0; chunk < s->pipeline.chunks; ++chunk) {
    int piece = ts_pipeline_piece(&s->pipeline, stage, chunk), first = 0, last = s->n_units - 1;
    while (s->piece[first] != piece) {
      ++first;
    }
    while (s->piece[last] != piece) {
      --last;
    }
    ts_text_add(to, "%s%s", chunk > 0 ? between : "", p->graph->unit[first]);
    if (last > first) {
      ts_text_add(to, " - %s", p->graph->unit[last]);
    }
  }
}

/* Of pieces that take what was planned; forward, and twice as much backward, half of it for weights. */
static ts_pipeline_times walk_clock(const ts_stages *s) {
  int pieces = s->pipeline.stages * s->pipeline.chunks;
  ts_pipeline_seconds *seconds = ts_calloc((size_t) pieces, sizeof *seconds);
  for (int k = 0; k < pieces; ++k) {
    double third = s->time[k] / 3;
    seconds[k] = (ts_pipeline_seconds){third, third, third};
  }
  ts_pipeline_times times;
  ts_error err = {0};
  TS_CHECK(ts_pipeline_clock(&s->pipeline, seconds, 0, &times, &err) == TS_OK, "%s", err.text);
  ts_free(seconds);
  return times;
}

static void add_stage(const ts_program *p, int stage, double idle, bool json, ts_text *to) {
  char count[32], bytes[32];
  int64_t parameters = parameters_here(p->layout);
  if (json) {
    ts_text_add(to, "%s{\"units\": \"", stage > 0 ? ", " : "");
    add_units_of(p, stage, ", ", to);
    ts_text_add(to, "\", \"parameters\": %lld, \"slots\": %d, \"peak_bytes\": %lld, \"idle\": %.6f}",
                (long long) parameters, ts_step_slots(&p->step), (long long) p->plan->peak_bytes, idle);
    return;
  }
  ts_text_add(to, "  %-5d  %10s  %5d  %10s  %5.1f %%  ", stage, ts_human_count((double) parameters, count),
              ts_step_slots(&p->step), ts_human_bytes((double) p->plan->peak_bytes, bytes), 100 * idle);
  add_units_of(p, stage, "; ", to);
  ts_text_add(to, "\n");
}

static void add_lists(const ts_pipeline *pipeline, bool json, ts_text *to) {
  ts_text_add(to, json ? ", \"schedule\": ["
                       : "\nwhat each stage does: pieces, F forward, I and W backward of inputs and "
                         "weights, B both, micro-batches\n");
  for (int stage = 0; stage < pipeline->stages; ++stage) {
    ts_text_add(to, json ? "%s\"" : "  ", json && stage > 0 ? ", " : "");
    ts_pipeline_print(pipeline, stage, to);
    ts_text_add(to, json ? "\"" : "\n");
  }
  ts_text_add(to, json ? "]" : "");
}

static void add_head(const ts_pipeline *pipeline, double bubble, bool json, ts_text *to) {
  const char *name = ts_pipeline_name(pipeline->schedule);
  if (json) {
    ts_text_add(to, ", \"pipeline\": {\"schedule\": \"%s\", \"chunks\": %d, \"bubble\": %.6f, \"stages\": [", name,
                pipeline->chunks, bubble);
    return;
  }
  ts_text_add(to,
              "\npipeline \"%s\", %d piece%s of the model a stage; planned bubble: %.1f %% of the time\n"
              "  stage  parameters  slots      memory     idle  units\n",
              name, pipeline->chunks, pipeline->chunks > 1 ? "s" : "", 100 * bubble);
}

void ts_plan_print_stages(const ts_program_options *options, bool json, bool lists, ts_text *to) {
  if (options->mesh->size[TS_AXIS_PP] == 1) {
    return;
  }
  ts_pipeline_times times = {0};
  ts_pipeline pipeline = {0};
  for (int stage = 0; stage < options->mesh->size[TS_AXIS_PP]; ++stage) {
    ts_mesh mesh = mesh_of_stage(options, stage);
    ts_program_options of = *options;
    of.mesh = &mesh;
    ts_program *p = ts_program_create(&of);
    if (stage == 0) {
      pipeline = p->stages->pipeline;
      times = walk_clock(p->stages);
      add_head(&pipeline, times.bubble, json, to);
    }
    add_stage(p, stage, times.idle[stage] / times.seconds, json, to);
    ts_program_destroy(&p);
  }
  ts_text_add(to, json ? "]" : "");
  if (lists) {
    add_lists(&pipeline, json, to);
  }
  ts_text_add(to, json ? "}" : "");
  ts_pipeline_times_clear(&times);
}
