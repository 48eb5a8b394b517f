#include "train/observed.h"

#include "base/log.h"
#include "base/memory.h"
#include "graph/op.h"
#include "io/timeline.h"
#include "train/comms_log.h"
#include "train/flops_report.h"
#include "train/tell.h"

#include <pthread.h>
#include <string.h>

enum { WARM = 2 /* the first steps also warm caches and create what is created once */ };

/* Why a step is observed: a mask. */
enum { FOR_TIMELINE = 1, FOR_COMMS = 2, FOR_FLOPS = 4 };

typedef struct instance_event {
  char name[TS_HEARTBEAT_INSTANCE];
  double start, seconds;
} instance_event;

struct ts_observed {
  ts_world *world;
  const ts_deck *deck;
  ts_engine *engine;
  int64_t first;         /* steps done before the job's first that may be observed */
  int64_t timeline_step; /* steps done before it; -1: none */
  int64_t flops_step;    /* likewise */
  ts_comms_log *comms;   /* NULL: not wanted */
  bool costly;           /* looking makes a step slower */
  int64_t done;          /* steps before this one */
  unsigned now;          /* why this step is observed; 0: it is not */
  pthread_mutex_t mutex; /* of the events: collectives are told of by the thread that runs them */
  ts_observed_event *event;
  int n, capacity;
  instance_event *instance;
  int n_instances, instance_capacity;
  ts_timeline *timeline; /* this rank's, open during the step */
  double zero;           /* this rank's clock when rank 0's is the timeline's 0 */
};

ts_observed *ts_observed_create(ts_world *world, const ts_deck *deck, ts_engine *engine, int64_t done, int64_t steps) {
  ts_observed *o = ts_calloc(1, sizeof *o);
  o->world = world;
  o->deck = deck;
  o->engine = engine;
  o->first = done + (steps - done > WARM ? WARM : 0);
  o->timeline_step = deck->profile.timeline[0] != 0 ? o->first : -1;
  o->flops_step = deck->flops_profiler.enabled ? deck->flops_profiler.profile_step : -1;
  if (o->flops_step >= steps) {
    ts_log(TS_LOG_WARNING,
           "flops_profiler.profile_step = %lld: the run has %lld steps, so none is observed; the last "
           "one with %lld",
           (long long) o->flops_step, (long long) steps, (long long) steps - 1);
  }
  o->comms = deck->comms_logger.enabled ? ts_comms_log_create(deck, ts_engine_program(engine)) : NULL;
  o->costly = ts_backend_device(ts_engine_program(engine)->target.backend) != NULL;
  TS_CHECK(pthread_mutex_init(&o->mutex, NULL) == 0, "no mutex");
  return o;
}

bool ts_observed_is_on(const ts_observed *o) {
  return (o->now & (o->costly ? ~0U : ~(unsigned) FOR_COMMS)) != 0;
}

/* ---- looking ---- */

static void note_node(void *user, const ts_node *node, bool collective, double start, double seconds) {
  ts_observed *o = user;
  pthread_mutex_lock(&o->mutex);
  TS_GROW(o->event, o->n, o->capacity);
  o->event[o->n++] = (ts_observed_event){node, collective, start, seconds};
  pthread_mutex_unlock(&o->mutex);
}

static void note_instance(void *user, const char *instance, double start, double seconds) {
  ts_observed *o = user;
  const char *what = strchr(instance, ':'); /* behind the stage */
  if (what != NULL) {
    TS_GROW(o->instance, o->n_instances, o->instance_capacity);
    instance_event *e = &o->instance[o->n_instances++];
    *e = (instance_event){.start = start, .seconds = seconds};
    snprintf(e->name, sizeof e->name, "%s", what + 1);
  }
}

static void look(ts_observed *o, bool on) {
  ts_executor *executor = ts_engine_executor(o->engine);
  if (on && o->now == FOR_COMMS) {
    ts_executor_observe_messages(executor, note_node, o);
    return;
  }
  ts_executor_set_observer(executor, on ? note_node : NULL, o);
  ts_engine_observe_instances(o->engine, on ? note_instance : NULL, o);
}

void ts_observed_destroy(ts_observed **observed) {
  ts_observed *o = *observed;
  if (o == NULL) {
    return;
  }
  look(o, false);
  ts_timeline_close(&o->timeline);
  ts_comms_log_destroy(&o->comms);
  pthread_mutex_destroy(&o->mutex);
  ts_free(o->event);
  ts_free(o->instance);
  ts_free(o);
  *observed = NULL;
}

/* ---- profile.timeline ---- */

/* One clock for all ranks: rank 0's, from a moment there that all are told. Collective over the world. */
static ts_clock_offset compare_clocks(ts_observed *o) {
  ts_heartbeat *beat = ts_world_heartbeat(o->world);
  ts_heartbeat_enter(beat, "clocks", TS_HEARTBEAT_ALL);
  ts_clock_offset clock = ts_world_clock_offset(o->world, ts_seconds);
  double zero = ts_seconds();
  ts_comm *all = ts_world_all(o->world);
  all->ops->broadcast(all, &zero, sizeof zero, 0);
  ts_heartbeat_leave(beat);
  o->zero = zero + clock.offset;
  return clock;
}

static ts_status open_timeline(ts_observed *o, const ts_clock_offset *by, ts_error *err) {
  const ts_mesh *mesh = ts_engine_mesh(o->engine);
  const char *path = o->deck->profile.timeline;
  char *mine = mesh->rank == 0 ? ts_strdup(path) : ts_format("%s.rank%d", path, mesh->rank);
  int stage = mesh->size[TS_AXIS_PP] > 1 ? mesh->coord[TS_AXIS_PP] : -1;
  const ts_timeline_clock clock = {o->timeline_step + 1, mesh->ranks, by->offset, by->bound};
  ts_status status = ts_timeline_open(mine, mesh->rank, stage, &clock, &o->timeline, err);
  ts_free(mine);
  return status;
}

static void write_event(const ts_observed *o, const ts_observed_event *e) {
  const ts_node *node = e->node;
  const char *op = ts_op_get(node->op)->name;
  double start = e->start - o->zero;
  if (ts_node_is_collective(node) || ts_node_is_message(node)) {
    ts_timeline_message(o->timeline, node->name, op, start, e->seconds,
                        ts_program_whole_bytes(ts_engine_program(o->engine), node), ts_node_ranks(node));
  } else {
    ts_timeline_event(o->timeline, node->name, op, e->collective ? TS_TIMELINE_COMMUNICATION : TS_TIMELINE_COMPUTATION,
                      start, e->seconds);
  }
}

static void write_timeline(ts_observed *o) {
  for (int i = 0; i < o->n; ++i) {
    write_event(o, &o->event[i]);
  }
  for (int i = 0; i < o->n_instances; ++i) {
    const instance_event *e = &o->instance[i];
    ts_timeline_event(o->timeline, e->name, "instance", TS_TIMELINE_INSTANCES, e->start - o->zero, e->seconds);
  }
  ts_timeline_close(&o->timeline);
}

/* ---- a step ---- */

/* One of many, also where all are looked at. */
static bool is_sample(const ts_observed *o, int64_t done) {
  return done >= o->first && (done - o->first) % TS_OBSERVED_EVERY == 0;
}

static unsigned reasons(const ts_observed *o, int64_t done) {
  unsigned now = (done == o->timeline_step ? FOR_TIMELINE : 0) | (done == o->flops_step ? FOR_FLOPS : 0);
  bool messages = o->comms != NULL && (now != 0 || !o->costly || is_sample(o, done));
  return now | (messages ? FOR_COMMS : 0);
}

ts_status ts_observed_begin(ts_observed *o, int64_t done, ts_error *err) {
  o->now = reasons(o, done);
  o->done = done;
  o->n = o->n_instances = 0;
  if ((o->now & FOR_TIMELINE) != 0) {
    ts_clock_offset clock = compare_clocks(o);
    ts_status status = ts_world_agree(o->world, open_timeline(o, &clock, err), err);
    if (status != TS_OK) {
      return status;
    }
  }
  if (o->now != 0) {
    look(o, true);
  }
  return TS_OK;
}

/* ---- flops_profiler ---- */

static void report_flops(const ts_observed *o, const ts_step_result *result) {
  const char *path = o->deck->flops_profiler.output_file;
  const ts_flops_step step = {.step = o->done + 1,
                              .event = o->event,
                              .n = o->n,
                              .forward = result->forward_seconds,
                              .backward = result->backward_seconds,
                              .update = result->update_seconds};
  ts_text text = {0};
  ts_error err = {0};
  ts_flops_report(o->deck, ts_engine_program(o->engine), &step, &text);
  if (path[0] == 0) {
    ts_tell_lines(text.text);
  } else if (ts_write_file(path, text.text, text.length, &err) != TS_OK) {
    ts_log(TS_LOG_WARNING, "flops_profiler.output_file: %s", err.text);
  }
  ts_error_clear(&err);
  ts_text_free(&text);
}

/* ---- the end ---- */

void ts_observed_end(ts_observed *o, const ts_step_result *result) {
  if (o->now == 0) {
    return;
  }
  look(o, false);
  if ((o->now & FOR_TIMELINE) != 0) {
    write_timeline(o);
  }
  if ((o->now & FOR_FLOPS) != 0 && ts_world_rank(o->world) == 0) {
    report_flops(o, result);
  }
  if ((o->now & FOR_COMMS) != 0) {
    bool tells = o->deck->comms_logger.verbose && is_sample(o, o->done);
    ts_comms_log_step(o->comms, o->event, o->n, tells ? o->done + 1 : 0);
  }
}

void ts_observed_finish(ts_observed *o) {
  if (o->comms != NULL) {
    ts_comms_log_compare(o->comms, o->world);
    if (ts_world_rank(o->world) == 0) {
      char *path = ts_format("%s/comms.csv", o->deck->run.directory);
      ts_comms_log_print(o->comms, path);
      ts_free(path);
    }
  }
}
