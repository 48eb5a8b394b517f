/* The PMI-1 bridge as MPI sees it: this program speaks the client's side over PMI_FD; a made-up store stands for the
 * other ranks. */
#include "base/memory.h"
#include "base/text.h"
#include "regression/tap.h"
#include "slurm/pmi1.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the store: rank 0 is this process, rank 1 says what the test wants ---- */

typedef struct store {
  const char *peer; /* what rank 1 has put; NULL: the exchange fails */
  char mine[65536]; /* what this process gave last */
  int rounds, abort_code;
} store;

static bool exchange(void *context, int round, const char *mine, size_t length, ts_pmi1_take *take, void *taker) {
  store *s = context;
  bool in_order = round == s->rounds++;
  memcpy(s->mine, mine, length);
  s->mine[length] = 0;
  return in_order && s->peer != NULL && take(taker, 0, mine, length) && take(taker, 1, s->peer, strlen(s->peer));
}

static void abort_job(void *context, int exit_code, const char *reason) {
  (void) reason;
  ((store *) context)->abort_code = exit_code;
}

static ts_pmi1 *start(store *s, const char *mapping) {
  const ts_pmi1_store table = {.exchange = exchange, .abort = abort_job, .context = s};
  s->abort_code = -1;
  s->rounds = 0;
  return ts_pmi1_start(0, 2, mapping, &table);
}

/* ---- the client ---- */

static int client(void) {
  return atoi(getenv("PMI_FD"));
}

/* One line of the answer without its newline; "closed" at the end of the stream. */
static const char *answer(void) {
  static char line[4096];
  size_t n = 0;
  while (n < sizeof line - 1 && read(client(), line + n, 1) == 1) {
    if (line[n] == '\n') {
      line[n] = 0;
      return line;
    }
    ++n;
  }
  return "closed";
}

static void put(const char *text) {
  if (send(client(), text, strlen(text), MSG_NOSIGNAL) != (ssize_t) strlen(text)) {
    tap_note("the bridge has closed");
  }
}

static bool says(const char *line, const char *expected) {
  put(line);
  const char *got = answer();
  bool same = strcmp(got, expected) == 0;
  if (!same) {
    tap_note("%s: \"%s\" instead of \"%s\"", line, got, expected);
  }
  return same;
}

/* A line of \a command with a key and a value of so many letters. */
static char *long_put(size_t key, size_t value) {
  char *line = ts_format("cmd=put kvsname=tessera key=%*s value=%*s\n", (int) key, "", (int) value, "");
  memset(strstr(line, "key=") + 4, 'k', key);
  memset(strstr(line, "value=") + 6, 'v', value);
  return line;
}

/* ---- the tests ---- */

static void test_start(void) {
  store s = {.peer = ""};
  ts_pmi1 *p = start(&s, "(vector,(0,2,1))");
  tap_ok(p != NULL && strcmp(getenv("PMI_RANK"), "0") == 0 && strcmp(getenv("PMI_SIZE"), "2") == 0,
         "MPI is told rank and size");
  tap_ok(ts_pmi1_start(0, 2, NULL, &(ts_pmi1_store){0}) == NULL, "not started where there is a process manager");
  tap_ok(says("cmd=init pmi_version=1 pmi_subversion=1\n", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"),
         "init");
  tap_ok(says("cmd=get_maxes\n", "cmd=maxes kvsname_max=64 keylen_max=64 vallen_max=1024"), "get_maxes");
  tap_ok(says("cmd=get_appnum\n", "cmd=appnum appnum=0"), "get_appnum");
  tap_ok(says("cmd=get_my_kvsname\n", "cmd=my_kvsname kvsname=tessera"), "get_my_kvsname");
  tap_ok(says("cmd=get_universe_size\n", "cmd=universe_size size=2"), "get_universe_size");
  tap_ok(says("cmd=get kvsname=tessera key=PMI_process_mapping\n",
              "cmd=get_result rc=0 msg=success value=(vector,(0,2,1))"),
         "the mapping is there before anything is put");
  tap_ok(says("cmd=finalize\n", "cmd=finalize_ack") && strcmp(answer(), "closed") == 0,
         "finalize is acknowledged and ends the service");
  close(client()); /* as MPI does */
  ts_pmi1_stop(&p);
  tap_ok(p == NULL && getenv("PMI_FD") == NULL && getenv("PMI_RANK") == NULL && getenv("PMI_SIZE") == NULL,
         "the variables are taken back");
}

static void test_exchange(void) {
  store s = {.peer = "theirs=a=b\nempty=\n"};
  ts_pmi1 *p = start(&s, NULL);
  tap_ok(
      says("cmd=get kvsname=tessera key=PMI_process_mapping\n", "cmd=get_result rc=-1 msg=key_not_found value=unknown"),
      "a mapping that is not known");
  tap_ok(says("cmd=put kvsname=tessera key=mine value=1=x;y\n", "cmd=put_result rc=0 msg=success"), "put");
  tap_ok(says("cmd=get kvsname=tessera key=theirs\n", "cmd=get_result rc=-1 msg=key_not_found value=unknown"),
         "nothing of a peer before the barrier");
  tap_ok(says("cmd=barrier_in\n", "cmd=barrier_out rc=0") && strcmp(s.mine, "mine=1=x;y\n") == 0,
         "the barrier gives what was put");
  tap_ok(says("cmd=get kvsname=tessera key=theirs\n", "cmd=get_result rc=0 msg=success value=a=b"),
         "the peer's value after it");
  tap_ok(says("cmd=get kvsname=tessera key=empty\n", "cmd=get_result rc=0 msg=success value="), "an empty value");
  tap_ok(says("cmd=get kvsname=tessera key=mine\n", "cmd=get_result rc=0 msg=success value=1=x;y"), "one's own value");
  s.peer = "theirs=c\n";
  tap_ok(says("cmd=barrier_in\n", "cmd=barrier_out rc=0") && s.mine[0] == 0 && s.rounds == 2,
         "the next barrier gives nothing twice");
  tap_ok(says("cmd=get kvsname=tessera key=theirs\n", "cmd=get_result rc=0 msg=success value=c"),
         "a value that was put again");
  ts_pmi1_stop(&p);
}

static void test_many(void) {
  store s = {.peer = ""};
  ts_pmi1 *p = start(&s, NULL);
  bool good = true;
  for (int i = 0; i < 1000; ++i) {
    char *line = ts_format("cmd=put kvsname=tessera key=P%d-businesscard value=%d\n", i, 7 * i);
    good = good && says(line, "cmd=put_result rc=0 msg=success");
    ts_free(line);
  }
  good = good && says("cmd=barrier_in\n", "cmd=barrier_out rc=0");
  for (int i = 0; i < 1000; ++i) {
    char *line = ts_format("cmd=get kvsname=tessera key=P%d-businesscard\n", i);
    char *expected = ts_format("cmd=get_result rc=0 msg=success value=%d", 7 * i);
    good = good && says(line, expected);
    ts_free(expected);
    ts_free(line);
  }
  tap_ok(good, "1000 keys");
  ts_pmi1_stop(&p);
}

static void test_broken(void) {
  static const char refused[] = "cmd=put_result rc=-1 msg=key_or_value_missing_or_too_long";
  store s = {.peer = ""};
  ts_pmi1 *p = start(&s, NULL);
  static const struct {
    size_t key, value;
    bool fits;
  } rows[] = {
      {TS_PMI1_KEY - 1, TS_PMI1_VALUE - 1, true}, {TS_PMI1_KEY, 1, false}, {1, TS_PMI1_VALUE, false}, {0, 1, false}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    char *line = long_put(rows[i].key, rows[i].value);
    tap_ok(says(line, rows[i].fits ? "cmd=put_result rc=0 msg=success" : refused),
           "a key of %zu and a value of %zu bytes: %s", rows[i].key, rows[i].value, rows[i].fits ? "taken" : "refused");
    ts_free(line);
  }
  tap_ok(says("cmd=put kvsname=tessera value=x\n", refused), "put without a key");
  tap_ok(says("cmd=put kvsname=tessera key=a\n", refused), "put without a value");
  tap_ok(says("cmd=put kvsname=tessera key=a=b value=x\n", refused), "a key with an equals sign");
  tap_ok(says("cmd=get kvsname=tessera\n", "cmd=get_result rc=-1 msg=key_not_found value=unknown"),
         "get without a key");
  tap_ok(says("cmd=publish_name service=x port=y\n",
              "cmd=publish_name_result rc=-1 info=no msg=not_supported_under_this_launcher"),
         "a command that is not supported");
  put("cmd=get_app");
  usleep(20000);
  tap_ok(says("num\ncmd=get_my_kvsname\n", "cmd=appnum appnum=0") &&
             strcmp(answer(), "cmd=my_kvsname kvsname=tessera") == 0,
         "a line in two pieces, two lines in one");
  ts_pmi1_stop(&p);
}

/* Each ends the service: MPI sees the end of the stream, not silence. */
static void test_ends(void) {
  static const struct {
    const char *name, *peer, *line, *answer;
  } rows[] = {
      {"the store fails", NULL, "cmd=barrier_in\n", "cmd=barrier_out rc=-1"},
      {"a peer's line without an end", "a=b", "cmd=barrier_in\n", "cmd=barrier_out rc=-1"},
      {"a peer's line without a value", "a\n", "cmd=barrier_in\n", "cmd=barrier_out rc=-1"},
      {"a peer's line without a key", "=b\n", "cmd=barrier_in\n", "cmd=barrier_out rc=-1"},
      {"spawning", "", "mcmd=spawn\n", NULL},
      {"what is no PMI-1", "", "GET / HTTP/1.0\n", NULL},
      {"an empty line", "", "\n", NULL},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    store s = {.peer = rows[i].peer};
    ts_pmi1 *p = start(&s, NULL);
    bool good = rows[i].answer == NULL || says(rows[i].line, rows[i].answer);
    if (rows[i].answer == NULL) {
      put(rows[i].line);
    }
    tap_ok(good && strcmp(answer(), "closed") == 0, "%s ends the service", rows[i].name);
    ts_pmi1_stop(&p);
  }
  store s = {.peer = ""};
  ts_pmi1 *p = start(&s, NULL);
  char *line = ts_format("cmd=%4000s", "x");
  put(line);
  ts_free(line);
  tap_ok(strcmp(answer(), "closed") == 0, "a line that has no end ends the service");
  ts_pmi1_stop(&p);
  p = start(&s, NULL);
  put("cmd=abort exitcode=75\n");
  bool closed = strcmp(answer(), "closed") == 0;
  ts_pmi1_stop(&p);
  tap_ok(closed && s.abort_code == 75, "abort reaches the store with its code");
}

int main(void) {
  test_start();
  test_exchange();
  test_many();
  test_broken();
  test_ends();
  store s = {.peer = ""};
  ts_pmi1 *p = start(&s, "(vector,(0,1,2))");
  ts_pmi1_stop(&p);
  ts_pmi1_stop(&p);
  tap_ok(p == NULL, "stopped where MPI has never spoken");
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
