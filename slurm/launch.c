#include "slurm/launch.h"

#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"
#include "slurm/pmix.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_COMPONENTS = 1024 };

/* ---- launchers ---- */

/* A launcher: how it is recognised, and the variables that say who this process is; NULL: none says so. */
typedef struct launcher {
  const char *name;
  const char *mark;   /* the variable that it sets */
  const char *prefix; /* "": any value; else the value is this, SLURM_JOB_ID, ".", SLURM_STEP_ID: not an outer step's */
  const char *rank, *size, *local_rank, *local_size, *tasks_per_node, *node, *n_nodes, *node_name;
  bool pmix; /* has a PMIx server */
} launcher;

#define SLURM_STEP                                                                                      \
  .local_rank = "SLURM_LOCALID", .tasks_per_node = "SLURM_STEP_TASKS_PER_NODE", .node = "SLURM_NODEID", \
  .n_nodes = "SLURM_STEP_NUM_NODES", .node_name = "SLURMD_NODENAME", .size = "SLURM_STEP_NUM_TASKS",    \
  .rank = "SLURM_PROCID"

static const launcher launchers[] = {
    {.name = "mpirun",
     .mark = "OMPI_COMM_WORLD_RANK",
     .prefix = "",
     .rank = "OMPI_COMM_WORLD_RANK",
     .size = "OMPI_COMM_WORLD_SIZE",
     .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .pmix = true},
    /* Hydra also gives the name of the node it has started the process on, as the interface to use. */
    {.name = "mpiexec",
     .mark = "MPI_LOCALRANKID",
     .prefix = "",
     .rank = "PMI_RANK",
     .size = "PMI_SIZE",
     .local_rank = "MPI_LOCALRANKID",
     .local_size = "MPI_LOCALNRANKS",
     .node_name = "MPIR_CVAR_CH3_INTERFACE_HOSTNAME"},
    {.name = "srun --mpi=pmix", .mark = "PMIX_NAMESPACE", .prefix = "slurm.pmix.", SLURM_STEP, .pmix = true},
    {.name = "srun --mpi=pmi2", .mark = "PMI_JOBID", .prefix = "?", SLURM_STEP},
    {.name = "srun", .mark = "SLURM_STEP_ID", .prefix = "", SLURM_STEP},
    {.name = "a PMI launcher", .mark = "PMI_RANK", .prefix = "", .rank = "PMI_RANK", .size = "PMI_SIZE"},
    {.name = "a PMIx launcher", .mark = "PMIX_NAMESPACE", .prefix = "", .rank = "PMIX_RANK", .pmix = true},
};

/* Variables of an outer step reach an inner one, so a mark must name this step. */
static bool recognise(const launcher *l, ts_launch_lookup *get) {
  const char *mark = get(l->mark), *job = get("SLURM_JOB_ID"), *step = get("SLURM_STEP_ID");
  if (mark == NULL || l->prefix[0] == 0) {
    return mark != NULL;
  }
  if (job == NULL || step == NULL) {
    return false;
  }
  char *expected = ts_format("%s%s.%s", l->prefix[0] == '?' ? "" : l->prefix, job, step);
  bool same = strcmp(mark, expected) == 0;
  ts_free(expected);
  return same;
}

/* A whole number that is not negative; \a fallback when the variable is missing or no number. */
static int variable_number(ts_launch_lookup *get, const char *variable, int fallback) {
  const char *text = variable != NULL ? get(variable) : NULL;
  if (text == NULL || text[0] < '0' || text[0] > '9') {
    return fallback;
  }
  char *end;
  long n = strtol(text, &end, 10);
  return *end == 0 && n <= 1 << 28 ? (int) n : fallback;
}

/* Item \a node of Slurm's list "2(x3),1": tasks of each node; 0 when it does not say. */
static int tasks_of_node(const char *list, int node) {
  while (list != NULL && node >= 0 && *list >= '0' && *list <= '9') {
    char *end;
    long tasks = strtol(list, &end, 10), nodes = 1;
    if (strncmp(end, "(x", 2) == 0) {
      nodes = strtol(end + 2, &end, 10);
      end += *end == ')';
    }
    if (node < nodes) {
      return tasks <= 1 << 28 ? (int) tasks : 0;
    }
    node -= (int) nodes;
    list = *end == ',' && nodes > 0 ? end + 1 : NULL;
  }
  return 0;
}

/* Slurm describes each component of a heterogeneous job by variables with its number. */
static int count_het_nodes(ts_launch_lookup *get) {
  int components = variable_number(get, "SLURM_HET_SIZE", 0), nodes = 0;
  for (int i = 0; i < components && i < MOST_COMPONENTS && nodes < 1 << 28; ++i) {
    char *variable = ts_format("SLURM_JOB_NUM_NODES_HET_GROUP_%d", i);
    nodes += variable_number(get, variable, 0);
    ts_free(variable);
  }
  return components > 1 ? nodes : 0;
}

static void name_node(ts_launch *launch, const char *said) {
  launch->node_name[0] = 0;
  if (said != NULL && said[0] != 0) {
    strncpy(launch->node_name, said, sizeof launch->node_name - 1);
  } else if (gethostname(launch->node_name, sizeof launch->node_name - 1) != 0) {
    strcpy(launch->node_name, "localhost");
  }
}

static void read_launcher(ts_launch *launch, const launcher *l, ts_launch_lookup *get) {
  launch->launcher = l->name;
  launch->pmix = l->pmix;
  launch->rank = variable_number(get, l->rank, 0);
  launch->size = variable_number(get, l->size, 0);
  launch->local_rank = variable_number(get, l->local_rank, -1);
  launch->local_size = variable_number(get, l->local_size, 0);
  launch->node = variable_number(get, l->node, -1);
  launch->n_nodes = variable_number(get, l->n_nodes, 0);
  if (l->tasks_per_node != NULL) {
    launch->local_size = tasks_of_node(get(l->tasks_per_node), launch->node);
  }
  name_node(launch, l->node_name != NULL ? get(l->node_name) : NULL);
}

void ts_launch_read(ts_launch *launch, ts_launch_lookup *get) {
  *launch = (ts_launch){.size = 1,
                        .local_rank = -1,
                        .node = -1,
                        .job = get("SLURM_JOB_ID"),
                        .het_nodes = count_het_nodes(get),
                        .restart = variable_number(get, "SLURM_RESTART_COUNT", 0)};
  for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; ++i) {
    if (recognise(&launchers[i], get)) {
      read_launcher(launch, &launchers[i], get);
      return;
    }
  }
  name_node(launch, get("SLURMD_NODENAME"));
}

/* ---- this process ---- */

static struct {
  bool known;
  ts_launch launch;
  ts_pmi1 *bridge;
} process;

static const char *environment(const char *variable) {
  return getenv(variable);
}

const ts_launch *ts_launched(void) {
  if (!process.known) {
    ts_launch_read(&process.launch, environment);
    process.known = true;
  }
  return &process.launch;
}

void ts_launch_open(bool speaks_pmi1) {
  ts_launched();
  ts_launch *l = &process.launch;
  l->pmix = l->pmix && ts_pmix_open(l);
  if (l->pmix && speaks_pmi1 && l->size > 1) {
    char *mapping = ts_pmix_mapping();
    process.bridge = ts_pmi1_start(l->rank, l->size, mapping, &ts_pmix_store);
    ts_free(mapping);
  }
}

void ts_launch_close(void) {
  ts_pmi1_stop(&process.bridge);
  ts_pmix_close();
  process.launch.pmix = false;
}

void ts_launch_distrust(void) {
  process.launch.pmix = false;
}

/* ---- one world? ---- */

/* srun without --het-group starts ranks on the first component only. */
static char *complain_of_components(const ts_launch *launch) {
  bool idle = launch->n_nodes > 0 && launch->n_nodes < launch->het_nodes;
  if (!idle || launch->launcher == NULL || strncmp(launch->launcher, "srun", 4) != 0) {
    return NULL;
  }
  return ts_format(
      "a heterogeneous job has %d nodes, but srun started ranks on %d and the others would idle: use srun "
      "--het-group=0,1,... with the number of every component, or ask for a job of one component (salloc or sbatch "
      "without \":\"; its nodes need not have equal numbers of ranks)",
      launch->het_nodes, launch->n_nodes);
}

static char *complain_of_worlds(const ts_launch *launch, int size, const char *types) {
  if (launch->launcher == NULL || size > 1 || launch->size <= 1) {
    return NULL;
  }
  if (strncmp(launch->launcher, "srun", 4) != 0) {
    return ts_format(
        "%s started %d processes, but MPI sees one world per process: the launcher belongs to another MPI than this "
        "program; use that MPI's mpiexec, or srun %s",
        launch->launcher, launch->size, types);
  }
  bool no_bridge =
      strcmp(launch->launcher, "srun --mpi=pmix") == 0 && !ts_pmix_built() && strstr(types, "pmi2") != NULL;
  return ts_format(
      "%s started %d tasks, but MPI sees one world per task%s: use srun %s (`srun --mpi=list` names what this Slurm "
      "has), or mpiexec in the job script",
      launch->launcher, launch->size, no_bridge ? " (this program is built without PMIx)" : "",
      no_bridge ? "--mpi=pmi2" : types);
}

char *ts_launch_complaint(const ts_launch *launch, int size, const char *types) {
  char *complaint = complain_of_worlds(launch, size, types);
  return complaint != NULL ? complaint : complain_of_components(launch);
}

bool ts_launch_knows_nodes(const ts_launch *launch, int rank, int size) {
  return launch->node >= 0 && launch->rank == rank && launch->size == size;
}

/* ---- the end ---- */

/* Should neither the server nor MPI end this process, the alarm does: a thread of it may be stuck in either. */
void ts_launch_abort(int exit_code, const char *reason) {
  sigset_t ring;
  sigemptyset(&ring);
  sigaddset(&ring, SIGALRM);
  signal(SIGALRM, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &ring, NULL);
  alarm(20);
  if (process.launch.pmix) {
    ts_pmix_abort(exit_code, reason);
    nanosleep(&(struct timespec){.tv_sec = 5}, NULL);
  }
}

int ts_launch_exit_code(int exit_code) {
  const ts_launch *l = ts_launched();
  bool agreed = exit_code == TS_BAD_INPUT || exit_code == TS_EXIT_UNFINISHED;
  if (!agreed || l->size <= 1 || l->launcher == NULL || strncmp(l->launcher, "srun", 4) != 0) {
    return exit_code;
  }
  if (l->rank != 0) {
    return 0;
  }
  nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
  return exit_code;
}
