#include "slurm/pmix.h"

#include "base/memory.h"
#include "base/status.h"

#include <pmix.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct {
  bool open;
  pmix_proc_t me;
  int size;
  size_t handler; /* of events; SIZE_MAX: none */
} session = {.handler = SIZE_MAX};

/* ---- what the server knows ---- */

/* Look a key up among what the server sent at the start, never asking it (see the header).  Release the value after
 * use. */
static pmix_value_t *look_up_key(uint32_t rank, const char *key) {
  pmix_proc_t of;
  pmix_info_t optional;
  pmix_value_t *value = NULL;
  bool yes = true;
  PMIX_PROC_LOAD(&of, session.me.nspace, rank);
  PMIX_INFO_LOAD(&optional, PMIX_OPTIONAL, &yes, PMIX_BOOL);
  bool found = PMIx_Get(&of, key, &optional, 1, &value) == PMIX_SUCCESS && value != NULL;
  PMIX_INFO_DESTRUCT(&optional);
  return found ? value : NULL;
}

/* A key that is a number; \a fallback when it is not there. */
static int key_number(uint32_t rank, const char *key, int fallback) {
  pmix_value_t *value = look_up_key(rank, key);
  int n = fallback;
  if (value != NULL) {
    pmix_status_t status;
    PMIX_VALUE_GET_NUMBER(status, value, n, int);
    n = status == PMIX_SUCCESS ? n : fallback;
    PMIX_VALUE_RELEASE(value);
  }
  return n;
}

/* A key that is text, cut to \a limit bytes; \a out is left alone when it is not there. */
static void key_text(uint32_t rank, const char *key, char *out, size_t limit) {
  pmix_value_t *value = look_up_key(rank, key);
  if (value != NULL && value->type == PMIX_STRING && value->data.string != NULL) {
    strncpy(out, value->data.string, limit - 1);
    out[limit - 1] = 0;
  }
  if (value != NULL) {
    PMIX_VALUE_RELEASE(value);
  }
}

static void read_place(ts_launch *launch) {
  uint32_t me = session.me.rank;
  launch->rank = (int) me;
  launch->size = session.size = key_number(PMIX_RANK_WILDCARD, PMIX_JOB_SIZE, launch->size);
  launch->local_rank = key_number(me, PMIX_LOCAL_RANK, launch->local_rank);
  launch->local_size = key_number(PMIX_RANK_WILDCARD, PMIX_LOCAL_SIZE, launch->local_size);
  launch->node = key_number(me, PMIX_NODEID, launch->node);
  launch->n_nodes = key_number(PMIX_RANK_WILDCARD, PMIX_NUM_NODES, launch->n_nodes);
  key_text(me, PMIX_HOSTNAME, launch->node_name, sizeof launch->node_name);
}

char *ts_pmix_mapping(void) {
  pmix_value_t *value = session.open ? look_up_key(PMIX_RANK_WILDCARD, PMIX_ANL_MAP) : NULL;
  char *mapping = value != NULL && value->type == PMIX_STRING ? ts_strdup(value->data.string) : NULL;
  if (value != NULL) {
    PMIX_VALUE_RELEASE(value);
  }
  return mapping;
}

bool ts_pmix_built(void) {
  return true;
}

/* ---- peers that died ---- */

static const struct {
  pmix_status_t status;
  const char *what;
} deaths[] = {
    {PMIX_ERR_PROC_ABORTED, "aborted"},
    {PMIX_ERR_PROC_TERM_WO_SYNC, "ended without a word"},
    {PMIX_ERR_PROC_KILLED_BY_CMD, "was killed"},
    {PMIX_ERR_LOST_CONNECTION, "died"},
};

typedef struct news {
  const char *what;
  pmix_proc_t who;
} news;

/* Every survivor is told.  The first speaks and ends the job; the others wait for that, a little longer each. */
static void *announce(void *item) {
  news n = *(news *) item;
  ts_free(item);
  long place = session.me.rank < 100 ? (long) session.me.rank : 100;
  nanosleep(&(struct timespec){.tv_nsec = place * 5000000}, NULL);
  if (strcmp(n.who.nspace, session.me.nspace) != 0) {
    ts_die(__FILE__, __LINE__, "the PMIx server of this node (Slurm's slurmstepd) is gone");
  }
  char node[TS_NODE_NAME] = "an unknown node";
  key_text(n.who.rank, PMIX_HOSTNAME, node, sizeof node);
  ts_die(__FILE__, __LINE__, "rank %u on %s %s", n.who.rank, node, n.what);
}

/* Runs in the library's thread, which must not wait for the library: what is to be done is given to another. */
static void on_event(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t *info, size_t n_info,
                     pmix_info_t *results, size_t n_results, pmix_event_notification_cbfunc_fn_t done, void *data) {
  (void) id;
  (void) results;
  (void) n_results;
  for (size_t i = 0; i < sizeof deaths / sizeof deaths[0]; ++i) {
    if (deaths[i].status == status && source != NULL) {
      news *item = ts_malloc(sizeof *item);
      *item = (news){.what = deaths[i].what, .who = *source};
      for (size_t k = 0; k < n_info; ++k) {
        if (PMIX_CHECK_KEY(&info[k], PMIX_EVENT_AFFECTED_PROC) && info[k].value.type == PMIX_PROC) {
          item->who = *info[k].value.data.proc;
        }
      }
      pthread_t thread;
      if (pthread_create(&thread, NULL, announce, item) == 0) {
        pthread_detach(thread);
      }
    }
  }
  if (done != NULL) {
    done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
  }
}

/* For all events: a server refuses the whole list when it has one that it does not know. */
static void watch_peers(void) {
  pmix_status_t id = PMIx_Register_event_handler(NULL, 0, NULL, 0, on_event, NULL, NULL);
  session.handler = id >= 0 ? (size_t) id : SIZE_MAX; /* without a callback the handler's number is returned */
}

/* ---- beginning and end ---- */

bool ts_pmix_open(ts_launch *launch) {
  if (getenv("PMIX_NAMESPACE") == NULL || getenv("PMIX_RANK") == NULL) {
    return false;
  }
  sigset_t all, before; /* signals are for the threads of the program, not for the library's */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  session.open = PMIx_Init(&session.me, NULL, 0) == PMIX_SUCCESS;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (session.open) {
    read_place(launch);
    watch_peers();
  }
  return session.open;
}

void ts_pmix_close(void) {
  if (session.open) {
    session.open = false;
    if (session.handler != SIZE_MAX) {
      PMIx_Deregister_event_handler(session.handler, NULL, NULL);
      session.handler = SIZE_MAX;
    }
    PMIx_Finalize(NULL, 0);
  }
}

void ts_pmix_abort(int exit_code, const char *reason) {
  if (session.open) {
    PMIx_Abort(exit_code, reason, NULL, 0);
  }
}

/* ---- the store of the PMI-1 bridge ---- */

static bool publish_key(const char *key, const char *text, size_t length) {
  pmix_value_t value = {.type = PMIX_BYTE_OBJECT, .data.bo = {.bytes = (char *) text, .size = length}};
  pmix_proc_t everybody;
  pmix_info_t collect;
  bool yes = true;
  PMIX_PROC_LOAD(&everybody, session.me.nspace, PMIX_RANK_WILDCARD);
  PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
  bool done = PMIx_Put(PMIX_GLOBAL, key, &value) == PMIX_SUCCESS && PMIx_Commit() == PMIX_SUCCESS &&
              PMIx_Fence(&everybody, 1, &collect, 1) == PMIX_SUCCESS;
  PMIX_INFO_DESTRUCT(&collect);
  return done;
}

/* The fence has brought every rank's blob, so this does not wait; the limit is for a server that lost one. */
static bool collect_one(const char *key, int rank, ts_pmi1_take *take, void *taker) {
  pmix_proc_t of;
  pmix_info_t limit;
  pmix_value_t *value = NULL;
  int seconds = 60;
  PMIX_PROC_LOAD(&of, session.me.nspace, (uint32_t) rank);
  PMIX_INFO_LOAD(&limit, PMIX_TIMEOUT, &seconds, PMIX_INT);
  bool good = PMIx_Get(&of, key, &limit, 1, &value) == PMIX_SUCCESS && value != NULL;
  if (good) {
    good = value->type == PMIX_BYTE_OBJECT && take(taker, rank, value->data.bo.bytes, value->data.bo.size);
    PMIX_VALUE_RELEASE(value);
  }
  PMIX_INFO_DESTRUCT(&limit);
  return good;
}

typedef struct receiver {
  ts_pmi1_take *take;
  void *taker;
} receiver;

/* The first byte says that there is a blob: an empty one cannot be told from none. */
static bool strip(void *to, int rank, const char *bytes, size_t length) {
  receiver *r = to;
  return length > 0 && r->take(r->taker, rank, bytes + 1, length - 1);
}

static bool exchange_keys(void *context, int round, const char *mine, size_t length, ts_pmi1_take *take, void *taker) {
  (void) context;
  receiver to = {take, taker};
  char key[32], *blob = ts_malloc(length + 1);
  snprintf(key, sizeof key, "tessera.pmi1.%d", round);
  blob[0] = '+';
  memcpy(blob + 1, mine, length);
  bool good = publish_key(key, blob, length + 1);
  for (int r = 0; good && r < session.size; ++r) {
    good = collect_one(key, r, strip, &to);
  }
  ts_free(blob);
  return good;
}

static void abort_by_store(void *context, int exit_code, const char *reason) {
  (void) context;
  ts_pmix_abort(exit_code, reason);
}

const ts_pmi1_store ts_pmix_store = {.exchange = exchange_keys, .abort = abort_by_store};
