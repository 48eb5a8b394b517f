/* What started this process: environments as launchers make them, and the worlds of one that are refused. */
#include "base/memory.h"
#include "regression/tap.h"
#include "slurm/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const *environment; /* of the row: "NAME=VALUE", ended by NULL */

static const char *look_up(const char *variable) {
  size_t n = strlen(variable);
  for (const char *const *e = environment; *e != NULL; ++e) {
    if (strncmp(*e, variable, n) == 0 && (*e)[n] == '=') {
      return *e + n + 1;
    }
  }
  return NULL;
}

/* A step of 3 tasks on 2 nodes, task 2; seen with Slurm 22.05. */
#define STEP                                                                                          \
  "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=2", "SLURM_STEP_NUM_TASKS=3", "SLURM_LOCALID=0", \
      "SLURM_NODEID=1", "SLURM_STEP_NUM_NODES=2", "SLURM_STEP_TASKS_PER_NODE=2,1", "SLURMD_NODENAME=n1"
#define HYDRA "PMI_FD=5", "PMI_RANK=3", "PMI_SIZE=4", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"

typedef struct row {
  const char *name;
  const char *environment[24];
  ts_launch expected; /* node_name "": the machine's host name */
} row;

static const row rows[] = {
    {"by hand", {NULL}, {.size = 1, .local_rank = -1, .node = -1}},
    {"srun --mpi=pmix",
     {STEP, "PMIX_NAMESPACE=slurm.pmix.7.0", "PMIX_RANK=2", "SLURM_MPI_TYPE=pmix"},
     {"srun --mpi=pmix", 2, 3, 0, 1, 1, 2, "n1", "7", 0, true, 0}},
    {"srun --mpi=pmi2",
     {STEP, "PMI_JOBID=7.0", "PMI_RANK=2", "PMI_SIZE=3", "PMI_FD=9"},
     {"srun --mpi=pmi2", 2, 3, 0, 1, 1, 2, "n1", "7", 0, false, 0}},
    {"srun --mpi=none", {STEP}, {"srun", 2, 3, 0, 1, 1, 2, "n1", "7", 0, false, 0}},
    {"srun --mpi=none within a step with PMIx",
     {STEP, "PMIX_NAMESPACE=slurm.pmix.7.4", "PMIX_RANK=0", "SLURM_MPI_TYPE=pmix"},
     {"srun", 2, 3, 0, 1, 1, 2, "n1", "7", 0, false, 0}},
    {"srun --mpi=pmix within a step with PMI-2",
     {STEP, "PMIX_NAMESPACE=slurm.pmix.7.0", "PMIX_RANK=2", "PMI_JOBID=7.1", "PMI_RANK=0"},
     {"srun --mpi=pmix", 2, 3, 0, 1, 1, 2, "n1", "7", 0, true, 0}},
    {"srun after two requeues", {STEP, "SLURM_RESTART_COUNT=2"}, {"srun", 2, 3, 0, 1, 1, 2, "n1", "7", 2, false, 0}},
    {"mpiexec", {HYDRA}, {"mpiexec", 3, 4, 1, 2, -1, 0, "", NULL, 0, false, 0}},
    {"mpiexec in an allocation: its proxies' variables are not the ranks'",
     {HYDRA, STEP, "MPIR_CVAR_CH3_INTERFACE_HOSTNAME=n7", "PMIX_NAMESPACE=slurm.pmix.7.0", "PMIX_RANK=2"},
     {"mpiexec", 3, 4, 1, 2, -1, 0, "n7", "7", 0, false, 0}},
    {"mpirun of Open MPI",
     {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1",
      "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=1234", "PMIX_RANK=1"},
     {"mpirun", 1, 2, 1, 2, -1, 0, "", NULL, 0, true, 0}},
    {"another launcher with PMI",
     {"PMI_RANK=1", "PMI_SIZE=2", "PMI_FD=3"},
     {"a PMI launcher", 1, 2, -1, 0, -1, 0, "", NULL, 0, false, 0}},
    {"another launcher with PMIx",
     {"PMIX_NAMESPACE=prte-1@1", "PMIX_RANK=1"},
     {"a PMIx launcher", 1, 0, -1, 0, -1, 0, "", NULL, 0, true, 0}},
    {"the batch script",
     {"SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NODEID=0", "SLURM_NTASKS=4", "SLURMD_NODENAME=n0"},
     {NULL, 0, 1, -1, 0, -1, 0, "n0", "7", 0, false, 0}},
    {"srun in a heterogeneous job",
     {STEP, "SLURM_HET_SIZE=2", "SLURM_JOB_NUM_NODES_HET_GROUP_0=2", "SLURM_JOB_NUM_NODES_HET_GROUP_1=3"},
     {"srun", 2, 3, 0, 1, 1, 2, "n1", "7", 0, false, 5}},
    {"numbers that are none",
     {"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=-1", "SLURM_STEP_NUM_TASKS=3x",
      "SLURM_LOCALID=", "SLURM_NODEID=99999999999999999999", "SLURM_STEP_TASKS_PER_NODE=2",
      "SLURMD_NODENAME=", "SLURM_HET_SIZE=99999999", "SLURM_JOB_NUM_NODES_HET_GROUP_0=-1"},
     {"srun", 0, 0, -1, 0, -1, 0, "", "7", 0, false, 0}},
};

static bool same_text(const char *a, const char *b) {
  return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static void test_rows(void) {
  char host[TS_NODE_NAME] = "";
  gethostname(host, sizeof host - 1);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    const ts_launch *e = &rows[i].expected;
    ts_launch l;
    environment = rows[i].environment;
    ts_launch_read(&l, look_up);
    bool good = same_text(l.launcher, e->launcher) && l.rank == e->rank && l.size == e->size &&
                l.local_rank == e->local_rank && l.local_size == e->local_size && l.node == e->node &&
                l.n_nodes == e->n_nodes && same_text(l.job, e->job) && l.restart == e->restart && l.pmix == e->pmix &&
                l.het_nodes == e->het_nodes && strcmp(l.node_name, e->node_name[0] != 0 ? e->node_name : host) == 0;
    if (!tap_ok(good, "%s", rows[i].name)) {
      tap_note("%s, %d of %d, local %d of %d, node %d of %d, %s, job %s, restart %d, pmix %d, het %d", l.launcher,
               l.rank, l.size, l.local_rank, l.local_size, l.node, l.n_nodes, l.node_name, l.job, l.restart, l.pmix,
               l.het_nodes);
    }
  }
}

/* Tasks of each node, in Slurm's short form. */
static void test_tasks_per_node(void) {
  static const struct {
    const char *list;
    int node, expected;
  } cases[] = {{"SLURM_STEP_TASKS_PER_NODE=1(x4)", 3, 1},
               {"SLURM_STEP_TASKS_PER_NODE=1(x4)", 4, 0},
               {"SLURM_STEP_TASKS_PER_NODE=2(x2),1", 2, 1},
               {"SLURM_STEP_TASKS_PER_NODE=3,2(x2),1", 2, 2},
               {"SLURM_STEP_TASKS_PER_NODE=", 0, 0},
               {"SLURM_STEP_TASKS_PER_NODE=2(x", 1, 0},
               {"SLURM_STEP_TASKS_PER_NODE=2(x0),1", 1, 0},
               {"SLURM_STEP_TASKS_PER_NODE=2,", 1, 0},
               {"SLURM_STEP_TASKS_PER_NODE=99999999999,1", 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    char node[32];
    snprintf(node, sizeof node, "SLURM_NODEID=%d", cases[i].node);
    const char *const of_step[] = {"SLURM_STEP_ID=0", cases[i].list, node, NULL};
    ts_launch l;
    environment = of_step;
    ts_launch_read(&l, look_up);
    tap_ok(l.local_size == cases[i].expected, "node %d of %s: %d", cases[i].node, strchr(cases[i].list, '=') + 1,
           l.local_size);
  }
}

static bool complains(const ts_launch *launch, int size, const char *types, const char *about) {
  char *text = ts_launch_complaint(launch, size, types);
  bool good = about == NULL ? text == NULL : text != NULL && strstr(text, about) != NULL;
  if (!good) {
    tap_note("%s", text != NULL ? text : "no complaint");
  }
  ts_free(text);
  return good;
}

static void test_complaints(void) {
  const char *types = "--mpi=pmi2 or --mpi=pmix";
  const ts_launch none = {.launcher = "srun", .size = 4}, one = {.launcher = "srun", .size = 1};
  const ts_launch other = {.launcher = "mpiexec", .size = 4}, hand = {.size = 1};
  tap_ok(complains(&none, 1, types, "srun started 4 tasks") &&
             complains(&none, 1, types, "use srun --mpi=pmi2 or --mpi=pmix"),
         "worlds of one under srun are refused, with what to use");
  tap_ok(complains(&other, 1, types, "belongs to another MPI"),
         "worlds of one under another MPI's mpiexec are refused");
  tap_ok(complains(&none, 4, types, NULL) && complains(&one, 1, types, NULL) && complains(&hand, 1, types, NULL),
         "one world, one task and no launcher are right");
  const ts_launch part = {.launcher = "srun --mpi=pmi2", .size = 2, .n_nodes = 1, .het_nodes = 3};
  const ts_launch all = {.launcher = "srun --mpi=pmi2", .size = 2, .n_nodes = 3, .het_nodes = 3};
  tap_ok(complains(&part, 2, types, "has 3 nodes, but srun started ranks on 1") &&
             complains(&part, 2, types, "--het-group=0,1"),
         "one component of a heterogeneous job is refused, with the way out");
  tap_ok(complains(&all, 2, types, NULL), "all of its components are right");
}

static void test_trust(void) {
  const ts_launch l = {.launcher = "srun", .rank = 2, .size = 4, .node = 1},
                  unknown = {.launcher = "mpiexec", .rank = 2, .size = 4, .node = -1};
  tap_ok(ts_launch_knows_nodes(&l, 2, 4), "nodes are believed where rank and size agree with MPI's");
  tap_ok(!ts_launch_knows_nodes(&l, 1, 4) && !ts_launch_knows_nodes(&l, 2, 8) && !ts_launch_knows_nodes(&unknown, 2, 4),
         "and not where either differs, or the launcher knows no nodes");
}

int main(void) {
  test_rows();
  test_tasks_per_node();
  test_complaints();
  test_trust();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
