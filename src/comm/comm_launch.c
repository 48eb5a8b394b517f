#include "comm/comm_launch.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/comm_mpi.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What srun calls the ways to start this MPI, and whether PMI-1 is one of MPI's own. */
#ifdef OPEN_MPI
static const char types[] = "--mpi=pmix";
#else
static const char types[] = "--mpi=pmi2 or --mpi=pmix";
#endif

static bool speaks_pmi1(void) {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length;
  return MPI_Get_library_version(version, &length) == MPI_SUCCESS && strncmp(version, "MPICH Version", 13) == 0;
}

/* Launchers stop forwarding output once they are told of an abort: the message gets a head start. */
static void abort_job(int exit_code, const char *reason) {
  nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
  ts_launch_abort(exit_code, reason);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  _exit(exit_code);
}

/* Ranks that would train alone, or let others idle. */
static void refuse_launch(char *complaint) {
  const ts_launch *launch = ts_launched();
  ts_log_configure(TS_LOG_INFO, launch->rank == 0);
  ts_log(TS_LOG_ERROR, "%s", complaint);
  ts_free(complaint);
  MPI_Finalize();
  ts_launch_close();
  exit(ts_launch_exit_code(TS_BAD_INPUT));
}

void ts_mpi_before(void) {
  ts_launch_open(speaks_pmi1());
}

void ts_mpi_after(void) {
  ts_launch_close();
}

void ts_mpi_speak_as(int rank) {
  ts_set_failure_context(rank, ts_launched()->node_name, abort_job);
}

/* PMIx may be that of another job. */
static void compare_launch(int rank, int size) {
  const ts_launch *launch = ts_launched();
  if (launch->pmix && (launch->rank != rank || launch->size != size)) {
    ts_log(TS_LOG_DEBUG, "PMIx says rank %d of %d, MPI %d of %d: PMIx is another job's and not used", launch->rank,
           launch->size, rank, size);
    ts_launch_distrust();
  }
  ts_mpi_speak_as(rank);
}

void ts_mpi_begin(int *argc, char ***argv) {
  int provided, rank, size;
  ts_mpi_before();
  TS_CHECK(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided) == MPI_SUCCESS, "MPI_Init_thread failed");
  TS_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  TS_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  TS_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
  char *complaint = ts_launch_complaint(ts_launched(), size, types);
  if (complaint != NULL) {
    refuse_launch(complaint);
  }
  compare_launch(rank, size);
  TS_CHECK(provided >= MPI_THREAD_SERIALIZED, "this MPI has no support for threads (MPI_THREAD_SERIALIZED)");
}

ts_status ts_mpi_join(ts_error *err) {
  int initialized, finalized, provided, rank, size;
  if (MPI_Initialized(&initialized) != MPI_SUCCESS || !initialized) {
    return ts_error_add(err, "MPI does not run: call MPI_Init_thread with MPI_THREAD_SERIALIZED before");
  }
  if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized) {
    return ts_error_add(err, "MPI has been finalized");
  }
  TS_MPI(MPI_Query_thread(&provided));
  if (provided < MPI_THREAD_SERIALIZED) {
    return ts_error_add(err, "MPI was started with %s: MPI_Init_thread has to ask for MPI_THREAD_SERIALIZED or more",
                        provided == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SINGLE");
  }
  TS_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  TS_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
  char *complaint = ts_launch_complaint(ts_launched(), size, types);
  if (complaint != NULL) {
    ts_error_add(err, "%s", complaint);
    ts_free(complaint);
    return TS_BAD_INPUT;
  }
  compare_launch(rank, size);
  return TS_OK;
}

void ts_mpi_end(void) {
  ts_set_failure_context(-1, NULL, NULL);
  TS_CHECK(MPI_Finalize() == MPI_SUCCESS, "MPI_Finalize failed");
  ts_mpi_after();
}

/* ---- nodes ---- */

/* Something that the processes of a node, and only they, have in common: its lowest process. */
static int find_leader(MPI_Comm all) {
  const ts_launch *launch = ts_launched();
  int rank, world_rank, world_size, known;
  MPI_Comm node;
  TS_MPI(MPI_Comm_rank(all, &rank));
  TS_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank));
  TS_MPI(MPI_Comm_size(MPI_COMM_WORLD, &world_size));
  known = ts_launch_knows_nodes(launch, world_rank, world_size);
  TS_MPI(MPI_Allreduce(MPI_IN_PLACE, &known, 1, MPI_INT, MPI_MIN, all));
  if (known) {
    TS_MPI(MPI_Comm_split(all, launch->node, rank, &node));
  } else {
    TS_MPI(MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node));
  }
  TS_MPI(MPI_Bcast(&rank, 1, MPI_INT, 0, node));
  TS_MPI(MPI_Comm_free(&node));
  return rank;
}

/* Leaders, in the order of the ranks, become numbers of nodes, and their names are the nodes'. */
static void number_nodes(ts_nodes *nodes, int leader) {
  char mine[TS_NODE_NAME], *names = ts_calloc((size_t) nodes->size, TS_NODE_NAME);
  memcpy(mine, ts_launched()->node_name, sizeof mine);
  nodes->of_rank = ts_calloc((size_t) nodes->size, sizeof *nodes->of_rank);
  TS_MPI(MPI_Allgather(&leader, 1, MPI_INT, nodes->of_rank, 1, MPI_INT, nodes->comm));
  TS_MPI(MPI_Allgather(mine, TS_NODE_NAME, MPI_CHAR, names, TS_NODE_NAME, MPI_CHAR, nodes->comm));
  nodes->name = ts_calloc((size_t) nodes->size, TS_NODE_NAME);
  for (int r = 0, last = -1; r < nodes->size; ++r) {
    if (nodes->of_rank[r] != last) {
      last = nodes->of_rank[r];
      memcpy(nodes->name[nodes->n++], names + (size_t) r * TS_NODE_NAME, TS_NODE_NAME);
    }
    nodes->of_rank[r] = nodes->n - 1;
  }
  nodes->name = ts_realloc(nodes->name, (size_t) nodes->n, TS_NODE_NAME);
  ts_free(names);
}

static void find_local(ts_nodes *nodes) {
  for (int r = 0; r < nodes->size; ++r) {
    if (nodes->of_rank[r] == nodes->of_rank[nodes->rank]) {
      nodes->local_rank += r < nodes->rank;
      ++nodes->local_size;
    }
  }
}

void ts_nodes_find(MPI_Comm comm, ts_nodes *nodes) {
  int leader = find_leader(comm);
  *nodes = (ts_nodes){0};
  TS_MPI(MPI_Comm_split(comm, 0, leader, &nodes->comm)); /* equal leaders keep their order */
  TS_MPI(MPI_Comm_set_errhandler(nodes->comm, MPI_ERRORS_RETURN));
  TS_MPI(MPI_Comm_rank(nodes->comm, &nodes->rank));
  TS_MPI(MPI_Comm_size(nodes->comm, &nodes->size));
  number_nodes(nodes, leader);
  find_local(nodes);
}

char *ts_nodes_describe(const ts_nodes *nodes) {
  enum { SHOWN = 16 };
  ts_text text = {0};
  const ts_launch *launch = ts_launched();
  ts_text_add(&text, "%d rank%s on %d node%s (", nodes->size, nodes->size == 1 ? "" : "s", nodes->n,
              nodes->n == 1 ? "" : "s");
  for (int r = 0; r < nodes->size && nodes->of_rank[r] < SHOWN;) {
    int node = nodes->of_rank[r], first = r;
    while (r < nodes->size && nodes->of_rank[r] == node) {
      ++r;
    }
    ts_text_add(&text, r - first > 1 ? "%s%s: %d-%d" : "%s%s: %d", node > 0 ? ", " : "", nodes->name[node], first,
                r - 1);
  }
  ts_text_add(&text, nodes->n > SHOWN ? ", ...), %s%s" : "), %s%s",
              launch->launcher != NULL ? "started by " : "no launcher",
              launch->launcher != NULL ? launch->launcher : "");
  return text.text;
}

void ts_nodes_clear(ts_nodes *nodes) {
  TS_MPI(MPI_Comm_free(&nodes->comm));
  ts_free(nodes->of_rank);
  ts_free(nodes->name);
}
