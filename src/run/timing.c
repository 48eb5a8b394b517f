#include "run/timing.h"

#include "base/log.h"
#include "base/memory.h"

#include <unistd.h>

/* ---- by whose times ---- */

/* As many ranks of a node as were measured: of those that the job has at least, the most. */
static int node_of(const ts_machine *machine, int ranks) {
  int node = machine->measured[0].ranks;
  for (int i = 1; i < machine->n; ++i) { /* ascending */
    node = machine->measured[i].ranks <= ranks ? machine->measured[i].ranks : node;
  }
  return node < ranks ? node : ranks;
}

/* The most threads that ranks of such a node were measured with. */
static int threads_of(const ts_machine *machine, int node) {
  int threads = machine->measured[machine->n - 1].threads;
  for (int i = 0; i < machine->n; ++i) {
    threads = machine->measured[i].ranks == node ? machine->measured[i].threads : threads;
  }
  return threads;
}

/* No file is called so. */
static ts_status unknown_machine(const char *name, ts_error *err) {
  ts_text names = {0};
  ts_datasheet_list(&names);
  ts_status status = ts_error_add(err,
                                  "--machine %s: there is no such file, which tessera bench writes, and no "
                                  "datasheet of that name: there are %s",
                                  name, names.text);
  ts_text_free(&names);
  return status;
}

ts_status ts_timing_open(const char *machine, int ranks, int node, int threads, ts_timing *t, ts_error *err) {
  *t = (ts_timing){.ends = 1};
  bool file = access(machine, F_OK) == 0;
  t->sheet = file ? NULL : ts_datasheet_find(machine);
  if (!file && t->sheet == NULL) {
    return unknown_machine(machine, err);
  }
  if (t->sheet != NULL) {
    t->ends = TS_N_ENDS;
    for (ts_end end = 0; end < TS_N_ENDS; ++end) {
      ts_datasheet_machine(t->sheet, end, &t->machine[end]);
    }
  } else if (ts_machine_read(machine, &t->machine[0], err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  node = node > 0 ? node : node_of(&t->machine[0], ranks);
  t->node = node < ranks ? node : ranks;
  threads = threads > 0 ? threads : threads_of(&t->machine[0], t->node);
  for (int end = 0; end < t->ends; ++end) {
    t->by[end] = ts_machine_find(&t->machine[end], t->node, threads);
  }
  return TS_OK;
}

void ts_timing_clear(ts_timing *t) {
  for (int end = 0; end < TS_N_ENDS; ++end) {
    ts_machine_clear(&t->machine[end]);
  }
  *t = (ts_timing){0};
}

/* ---- a step ---- */

ts_program *ts_stage_program_create(const ts_program_options *options, int stage) {
  ts_program_options of = *options;
  ts_mesh mesh = ts_mesh_at(options->mesh, ts_mesh_group_member(options->mesh, TS_AXES(TS_AXIS_PP), stage));
  of.mesh = &mesh;
  return ts_program_create(&of);
}

ts_stage_programs ts_stage_programs_create(const ts_program_options *options) {
  ts_stage_programs s = {.n = options->mesh->size[TS_AXIS_PP]};
  s.program = ts_calloc((size_t) s.n, sizeof *s.program);
  for (int i = 0; i < s.n; ++i) {
    s.program[i] = ts_stage_program_create(options, i);
  }
  return s;
}

void ts_stage_programs_clear(ts_stage_programs *s) {
  for (int i = 0; i < s->n; ++i) {
    ts_program_destroy(&s->program[i]);
  }
  ts_free(s->program);
  *s = (ts_stage_programs){0};
}

ts_clock ts_timing_walk(const ts_stage_programs *s, const ts_timing *timing, ts_end end, ts_clock_observer *observer,
                        void *user) {
  ts_clock clock;
  TS_CHECK(ts_clock_step((const ts_program *const *) s->program, s->n, timing->by[end], timing->node, observer, user,
                         &clock),
           "the programs of a step do not come to its end");
  return clock;
}
