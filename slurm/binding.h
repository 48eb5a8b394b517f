/** \file
 * Binding: on which of its node's processors a rank runs.
 *
 * A rank should have processors of its own, and those near its GPU.  A launcher that gives each rank its own (srun
 * --cpu-bind=cores) has decided; where several ranks of a node may run on the same processors, they divide them here.
 * hwloc knows the machine.  Sets of processors are text, "0-7,64-71", with hwloc's (that is, Linux') numbers.
 * Nothing here is collective: engine/placement asks the other ranks.
 */
#ifndef TS_SLURM_BINDING_H
#define TS_SLURM_BINDING_H

#include "base/text.h"

#include <stdbool.h>

typedef struct ts_machine ts_machine;

/** Look at this machine, or for tests at what \a description says (hwloc's synthetic text, "package:2 core:4 pu:2", or
 * its XML). NULL is returned when hwloc cannot; free with ts_machine_destroy. Not collective. */
ts_machine *ts_machine_create(const char *description);
void ts_machine_destroy(ts_machine **machine);

/** Where this process may run now; owned by the caller, NULL when the system does not say. Not collective. */
char *ts_binding_now(const ts_machine *machine);

/** Those of \a set that are nearest to the device on PCI bus \a bus ("0000:1b:00.0"); all of them when the device is
 * not known or near none of them.  Owned by the caller. Not collective. */
char *ts_binding_near(const ts_machine *machine, const char *set, const char *bus);

/** Part \a index of \a parts of \a set, in whole cores, as far apart from the other parts as the caches allow.
 * Owned by the caller; NULL when there are fewer cores than parts: then sharing all is better. Not collective. */
char *ts_binding_part(const ts_machine *machine, const char *set, int index, int parts);

/** Let all threads of this process run on \a set only.
 * \return false with errno when the system refuses. Not collective. */
bool ts_binding_apply(const ts_machine *machine, const char *set);

/** Append "8 cores, processors 0-7 (NUMA node 0)". Not collective. */
void ts_binding_describe(const ts_machine *machine, const char *set, ts_text *to);

#endif
