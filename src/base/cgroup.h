/** \file
 * Limits of memory that groups of processes have (Linux cgroups, versions 1 and 2), as Slurm sets them for a job
 * (--mem) and containers for themselves: who takes more is killed, however much the machine has.  Nothing here is
 * collective.
 */
#ifndef TS_BASE_CGROUP_H
#define TS_BASE_CGROUP_H

#include <stdint.h>

/** A group with a limit. */
typedef struct ts_cgroup {
  char *path;        /**< Owned: of the group, "/slurm/uid_1000/job_17"; "/" for the mounted one. */
  int64_t limit;     /**< Bytes that its processes may have together, */
  int64_t available; /**< and what is left of them, with what the kernel would give back of its copies of files. */
} ts_cgroup;

/** The groups with a limit of memory that this process is in, the innermost first.
 * \param [out] groups  The caller's, end with ts_cgroups_free; NULL where there are none.
 * \return their number; 0 where nothing is limited, or there are no cgroups. Not collective. */
int ts_cgroups_limited(ts_cgroup **groups);

/** Tests: look for /proc/self/cgroup and /sys/fs/cgroup below a directory, which is borrowed; "": where they are.
 * Not collective. */
void ts_cgroups_look_below(const char *directory);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_cgroups_free(ts_cgroup **groups, int n);

#endif
