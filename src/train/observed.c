#include "train/observed.h"

#include "base/log.h"
#include "base/memory.h"
#include "graph/op.h"
#include "io/timeline.h"

#include <pthread.h>
#include <string.h>

enum { TIMELINE_AFTER = 2 /* the first steps also warm caches and create what is created once */ };

/* Why a step is observed: a mask. */
enum { FOR_TIMELINE = 1 };

typedef struct instance_event {
  char name[TS_HEARTBEAT_INSTANCE];
  double start, seconds;
} instance_event;

struct ts_observed {
  ts_world *world;
  const ts_deck *deck;
  ts_engine *engine;
  int64_t timeline_step; /* steps done before it; -1: none */
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
  o->timeline_step = deck->profile.timeline[0] == 0 ? -1 : done + (steps - done > TIMELINE_AFTER ? TIMELINE_AFTER : 0);
  TS_CHECK(pthread_mutex_init(&o->mutex, NULL) == 0, "no mutex");
  return o;
}

bool ts_observed_is_on(const ts_observed *o) {
  return o->now != 0;
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
  ts_executor_set_observer(ts_engine_executor(o->engine), on ? note_node : NULL, o);
  ts_engine_observe_instances(o->engine, on ? note_instance : NULL, o);
}

void ts_observed_destroy(ts_observed **observed) {
  ts_observed *o = *observed;
  if (o == NULL) {
    return;
  }
  look(o, false);
  ts_timeline_close(&o->timeline);
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

ts_status ts_observed_begin(ts_observed *o, int64_t done, ts_error *err) {
  o->now = done == o->timeline_step ? FOR_TIMELINE : 0;
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

void ts_observed_end(ts_observed *o) {
  if (o->now == 0) {
    return;
  }
  look(o, false);
  if ((o->now & FOR_TIMELINE) != 0) {
    write_timeline(o);
  }
}
