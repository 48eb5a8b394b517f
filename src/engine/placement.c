#include "engine/placement.h"

#include "base/log.h"
#include "base/memory.h"
#include "slurm/binding.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- what each rank has, known to all ---- */

enum { SET = 512, WHERE = 160 };

/* A set that does not fit is cut, and then differs from others only by what is left of it: machines of a thousand
 * processors in no order. */
typedef struct place {
  char set[SET];     /* processors it may use */
  char where[WHERE]; /* the same for people; "" where nothing was chosen */
} place;

/* ---- choosing ---- */

/* This rank's part of the processors that it shares with others of its node; NULL: it stays where it is. */
static char *choose_places(const ts_world *world, const ts_machine *machine, const char *near, const place *all,
                           bool moved) {
  int rank = ts_world_rank(world), first = rank - ts_world_local_rank(world), index = 0, sharers = 0;
  for (int r = first; r < first + ts_world_local_size(world); ++r) {
    bool same = strcmp(all[r].set, all[rank].set) == 0;
    index += same && r < rank;
    sharers += same;
  }
  if (sharers > 1) {
    return ts_binding_part(machine, near, index, sharers);
  }
  return moved ? ts_strdup(near) : NULL;
}

static void bind_to(const ts_machine *machine, const char *set) {
  if (!ts_binding_apply(machine, set)) {
    ts_log(TS_LOG_WARNING, "run.bind: processors %s: %s; the rank runs where it may", set, strerror(errno));
  }
}

/* ---- saying so ---- */

static void add_node_ranks(const ts_world *world, const place *all, int first, int last, ts_text *to) {
  ts_text_add(to, "%s:", ts_world_node_name(world, first));
  for (int r = first; r < last; ++r) {
    ts_text_add(to, "\n  rank %d: %s", r, all[r].where);
  }
}

/* Every node's ranks, but nodes that look like the first are counted. */
static void say_places(const ts_world *world, const place *all, const char *who) {
  int ranks = ts_world_size(world), alike = 0, width = 0;
  ts_text text = {0};
  for (int first = 0, last; first < ranks; first = last) {
    for (last = first + 1; last < ranks && ts_world_node(world, last) == ts_world_node(world, first);) {
      ++last;
    }
    width = first == 0 ? last : width;
    bool same = first > 0 && last - first == width;
    for (int r = 0; same && r < width; ++r) {
      same = strcmp(all[r].where, all[first + r].where) == 0;
    }
    alike += same;
    if (!same) {
      ts_text_add(&text, first > 0 ? "\n" : "");
      add_node_ranks(world, all, first, last, &text);
    }
  }
  if (alike > 0) {
    ts_text_add(&text, "\n  and the same on %d more node%s", alike, alike > 1 ? "s" : "");
  }
  ts_log(TS_LOG_INFO, "processors, %s\n%s", who, text.text);
  ts_text_free(&text);
}

static void describe_places(const ts_machine *machine, const char *set, const char *bus, place *mine) {
  ts_text text = {0};
  ts_binding_describe(machine, set, &text);
  snprintf(mine->where, sizeof mine->where, "%s%s%s", text.text, bus[0] != 0 ? ", GPU " : "", bus);
  ts_text_free(&text);
}

/* A job's processors are its own; on a machine that others use as well the system places threads better. */
static bool is_wanted(const ts_deck *deck) {
  return strcmp(deck->run.bind, "cores") == 0 ||
         (strcmp(deck->run.bind, "auto") == 0 && getenv("SLURM_JOB_ID") != NULL);
}

void ts_engine_place(ts_world *world, const ts_deck *deck, const char *bus) {
  if (!is_wanted(deck)) {
    return;
  }
  ts_machine *machine = ts_machine_create(NULL);
  char *now = machine != NULL ? ts_binding_now(machine) : NULL;
  char *near = now != NULL ? ts_binding_near(machine, now, bus) : ts_strdup("");
  place mine = {0};
  snprintf(mine.set, sizeof mine.set, "%s", near);
  place *all = ts_world_gather(world, &mine, sizeof mine);
  char *chosen = now != NULL ? choose_places(world, machine, near, all, strcmp(near, now) != 0) : NULL;
  ts_free(all);
  if (chosen != NULL) {
    bind_to(machine, chosen);
  }
  if (now != NULL) {
    describe_places(machine, chosen != NULL ? chosen : now, bus, &mine);
  }
  mine.set[0] = (char) (chosen != NULL);
  all = ts_world_gather(world, &mine, sizeof mine);
  say_places(world, all, all[0].set[0] != 0 ? "divided by run.bind" : "as the launcher gave them");
  ts_free(all);
  ts_free(chosen);
  ts_free(near);
  ts_free(now);
  ts_machine_destroy(&machine);
}

/* ---- groups and nodes ---- */

static bool spans(const ts_mesh *mesh, ts_axis axis, const int *node) {
  for (int i = 1; i < mesh->size[axis]; ++i) {
    if (node[ts_mesh_group_member(mesh, TS_AXES(axis), i)] != node[ts_mesh_group_member(mesh, TS_AXES(axis), 0)]) {
      return true;
    }
  }
  return false;
}

/* "0-3", or "0,4,8" where the members do not follow each other. */
static void add_group(const ts_mesh *mesh, ts_axis axis, ts_text *to) {
  int size = mesh->size[axis], first = ts_mesh_group_member(mesh, TS_AXES(axis), 0);
  int last = ts_mesh_group_member(mesh, TS_AXES(axis), size - 1);
  ts_text_add(to, "%d", first);
  if (last - first == size - 1) {
    ts_text_add(to, "-%d", last);
    return;
  }
  for (int i = 1; i < size; ++i) {
    ts_text_add(to, ",%d", ts_mesh_group_member(mesh, TS_AXES(axis), i));
  }
}

int ts_placement_spanning(const ts_mesh *mesh, ts_axis axis, const int *node, ts_text *to) {
  int found = 0;
  for (int rank = 0; rank < mesh->ranks; ++rank) {
    ts_mesh seen;
    if (ts_mesh_init(&seen, mesh->size, mesh->ranks, rank, NULL) == TS_OK && seen.coord[axis] == 0 &&
        spans(&seen, axis, node)) {
      ts_text_add(to, "%s", found++ > 0 ? " " : "");
      add_group(&seen, axis, to);
    }
  }
  return found;
}

/* ", 1.2 GB a step from each rank", or nothing. */
static char *print_sent(const ts_program *training, ts_axis axis) {
  char text[32];
  double each = training != NULL ? ts_program_sent(training, axis).step : 0;
  return each > 0 ? ts_format(", %s a step from each rank", ts_human_bytes(each, text)) : ts_strdup("");
}

void ts_engine_warn_spanning(const ts_world *world, const ts_mesh *mesh, const ts_program *training) {
  static const ts_axis axes[] = {TS_AXIS_TP, TS_AXIS_SP};
  int *node = ts_calloc((size_t) mesh->ranks, sizeof *node);
  for (int r = 0; r < mesh->ranks; ++r) {
    node[r] = ts_world_node(world, r);
  }
  for (size_t i = 0; i < sizeof axes / sizeof *axes; ++i) {
    ts_text groups = {0};
    int found = ts_placement_spanning(mesh, axes[i], node, &groups);
    if (found > 0) {
      char *sent = print_sent(training, axes[i]);
      ts_log(TS_LOG_WARNING,
             "%d %s group%s of %d ranks span nodes and communicate over the network in every layer%s; ranks: %s", found,
             ts_axis_name(axes[i]), found > 1 ? "s" : "", mesh->size[axes[i]], sent, groups.text);
      ts_free(sent);
    }
    ts_text_free(&groups);
  }
  ts_free(node);
}
