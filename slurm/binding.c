#include "slurm/binding.h"

#include "base/memory.h"

#include <hwloc.h>

#include <stdlib.h>
#include <string.h>

struct ts_machine {
  hwloc_topology_t topology;
  bool is_this; /* not a description */
};

static bool describe_to(hwloc_topology_t topology, const char *description) {
  if (description == NULL) {
    return true;
  }
  return description[0] == '<' ? hwloc_topology_set_xmlbuffer(topology, description, (int) strlen(description) + 1) == 0
                               : hwloc_topology_set_synthetic(topology, description) == 0;
}

ts_machine *ts_machine_create(const char *description) {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) {
    return NULL;
  }
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (!describe_to(topology, description) || hwloc_topology_load(topology) != 0) {
    hwloc_topology_destroy(topology);
    return NULL;
  }
  ts_machine *machine = ts_malloc(sizeof *machine);
  *machine = (ts_machine){.topology = topology, .is_this = description == NULL};
  return machine;
}

void ts_machine_destroy(ts_machine **machine) {
  if (*machine != NULL) {
    hwloc_topology_destroy((*machine)->topology);
    ts_free(*machine);
    *machine = NULL;
  }
}

/* ---- sets and their text ---- */

static char *bitmap_text(hwloc_const_bitmap_t set) {
  char *text, *mine;
  TS_CHECK(hwloc_bitmap_list_asprintf(&text, set) >= 0, "out of memory");
  mine = ts_strdup(text);
  free(text);
  return mine;
}

static hwloc_bitmap_t set_of(const char *text) {
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  TS_CHECK(set != NULL && hwloc_bitmap_list_sscanf(set, text) == 0, "\"%s\" is not a set of processors", text);
  return set;
}

static int cores_in(hwloc_topology_t topology, hwloc_const_bitmap_t set) {
  int cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, set, HWLOC_OBJ_CORE);
  return cores > 0 ? cores : hwloc_bitmap_weight(set); /* half a core, or a machine that does not know its cores */
}

/* ---- what is where ---- */

char *ts_binding_now(const ts_machine *machine) {
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  char *text = NULL;
  TS_CHECK(set != NULL, "out of memory");
  if (machine->is_this && hwloc_get_cpubind(machine->topology, set, HWLOC_CPUBIND_PROCESS) == 0) {
    hwloc_bitmap_and(set, set, hwloc_topology_get_allowed_cpuset(machine->topology));
    text = bitmap_text(set);
  }
  hwloc_bitmap_free(set);
  return text;
}

char *ts_binding_near(const ts_machine *machine, const char *set, const char *bus) {
  hwloc_obj_t device = bus[0] != 0 ? hwloc_get_pcidev_by_busidstring(machine->topology, bus) : NULL;
  hwloc_obj_t home = device != NULL ? hwloc_get_non_io_ancestor_obj(machine->topology, device) : NULL;
  if (home == NULL) {
    return ts_strdup(set);
  }
  hwloc_bitmap_t near = set_of(set);
  hwloc_bitmap_and(near, near, home->cpuset);
  char *text = hwloc_bitmap_iszero(near) ? ts_strdup(set) : bitmap_text(near);
  hwloc_bitmap_free(near);
  return text;
}

/* ---- dividing ---- */

/* hwloc_distrib divides what lies below its roots: a copy of the machine that holds the set alone. */
static hwloc_bitmap_t *divide_cores(hwloc_topology_t whole, hwloc_const_bitmap_t set, int parts) {
  hwloc_topology_t restricted;
  TS_CHECK(hwloc_topology_dup(&restricted, whole) == 0, "out of memory");
  hwloc_bitmap_t *part = ts_calloc((size_t) parts, sizeof *part);
  hwloc_obj_t root = NULL;
  if (hwloc_topology_restrict(restricted, set, 0) == 0) {
    root = hwloc_get_root_obj(restricted);
  }
  int depth = hwloc_get_type_or_below_depth(restricted, HWLOC_OBJ_CORE);
  TS_CHECK(root != NULL && hwloc_distrib(restricted, &root, 1, part, (unsigned) parts, depth, 0) == 0,
           "hwloc cannot divide the processors among %d ranks", parts);
  hwloc_topology_destroy(restricted);
  return part;
}

char *ts_binding_part(const ts_machine *machine, const char *set, int index, int parts) {
  hwloc_bitmap_t all = set_of(set);
  char *text = NULL;
  if (cores_in(machine->topology, all) >= parts) {
    hwloc_bitmap_t *part = divide_cores(machine->topology, all, parts);
    text = bitmap_text(part[index]);
    for (int i = 0; i < parts; ++i) {
      hwloc_bitmap_free(part[i]);
    }
    ts_free(part);
  }
  hwloc_bitmap_free(all);
  return text;
}

bool ts_binding_apply(const ts_machine *machine, const char *set) {
  hwloc_bitmap_t to = set_of(set);
  bool bound = machine->is_this && hwloc_set_cpubind(machine->topology, to, HWLOC_CPUBIND_PROCESS) == 0;
  hwloc_bitmap_free(to);
  return bound;
}

void ts_binding_describe(const ts_machine *machine, const char *text, ts_text *to) {
  hwloc_bitmap_t set = set_of(text), nodes = hwloc_bitmap_alloc();
  TS_CHECK(nodes != NULL, "out of memory");
  int cores = cores_in(machine->topology, set);
  hwloc_cpuset_to_nodeset(machine->topology, set, nodes);
  char *numa = bitmap_text(nodes);
  ts_text_add(to, "%d core%s, processors %s (NUMA node %s)", cores, cores == 1 ? "" : "s", text, numa);
  ts_free(numa);
  hwloc_bitmap_free(nodes);
  hwloc_bitmap_free(set);
}
