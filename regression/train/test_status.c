/* The status files of a run: what is written is read back, what is not one of them is refused, and who is behind is
 * named. */
#include "regression/tap.h"

#include "base/log.h"
#include "base/memory.h"
#include "comm/mesh.h"
#include "train/lag.h"
#include "train/run_log.h"
#include "train/status_file.h"
#include "train/time_limit.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <utime.h>

/* Lines of a node's file. */
#define NO_DEAD "dead_experts 0\ndead_layer 0\ndead_expert 0\n"

/* ---- a run made up ---- */

enum { NODES = 2, RANKS = 2 /* of a node */ };

/* All ranks are inside of collective 100 for 30 s. */
static ts_run_status make_run(void) {
  ts_run_status s = {.job = {.id = "abc.1",
                             .state = "running",
                             .job = "17",
                             .launcher = "srun",
                             .ranks = 4,
                             .nodes = 2,
                             .steps = 300,
                             .period = 5}};
  s.n_nodes = NODES;
  s.node = ts_calloc(NODES, sizeof *s.node);
  for (int i = 0; i < NODES; ++i) {
    ts_node_status *node = &s.node[i];
    *node = (ts_node_status){.id = "abc.1",
                             .number = 7,
                             .n = RANKS,
                             .age = 2,
                             .skipped = 3,
                             .loss_scale = 0x1p61,
                             .dead_experts = 5,
                             .dead_layer = 2,
                             .dead_expert = 11};
    snprintf(node->node, sizeof node->node, "node%d", i);
    node->beat = ts_calloc(RANKS, sizeof *node->beat);
    node->process = ts_calloc(RANKS, 1);
    for (int k = 0; k < RANKS; ++k) {
      node->beat[k] = (ts_beat){.rank = RANKS * i + k,
                                .pid = 1000 + k,
                                .step = 12,
                                .phase = TS_PHASE_COMPUTING,
                                .entered = 100,
                                .finished = 99,
                                .since_change = 30,
                                .since_step = 31,
                                .since_alive = 0.5};
      strcpy(node->beat[k].name, "block.3.reduce");
      strcpy(node->beat[k].instance, "-");
      node->process[k] = 'S';
    }
  }
  return s;
}

/* ---- one on a grid of four ranks ---- */

static const int tp_dp[TS_N_AXES] = {1, 2, 1, 1, 2}, pp_dp[TS_N_AXES] = {2, 2, 1, 1, 1};
enum { DP = TS_AXES(TS_AXIS_DP), TP = TS_AXES(TS_AXIS_TP), ALL = TS_AXES_ALL };

/* A rank's last collective is number `entered` of its group over these axes, and it is inside or has finished it.  How
 * many it entered in all groups together says nothing: each rank has another number of them. */
static void set_last(ts_run_status *s, const int *size, int rank, unsigned axes, uint64_t entered, bool inside) {
  ts_beat *b = &s->node[rank / RANKS].beat[rank % RANKS];
  ts_mesh mesh;
  ts_mesh_init(&mesh, size, NODES * RANKS, rank, NULL);
  ts_beat_group last = {.group = ts_mesh_group_id(&mesh, axes), .entered = entered};
  int at = 0;
  while (at < b->n_groups && b->group[at].group != last.group) {
    ++at;
  }
  b->n_groups += at == b->n_groups;
  b->group[at] = b->group[0];
  b->group[0] = last;
  b->entered = 1000 + 7 * (uint64_t) (rank * rank % 5);
  b->finished = b->entered - inside;
  strcpy(b->name, axes == ALL ? "agreement" : axes == TP ? "block.3.sum" : "block.3.reduce");
}

/* Everybody computes: 12 collectives of all ranks, and so many of those of its group over the axes. */
static ts_run_status make_grid_run(const int *size, unsigned axes, uint64_t first_half, uint64_t second_half) {
  ts_run_status s = make_run();
  for (int rank = 0; rank < NODES * RANKS; ++rank) {
    set_last(&s, size, rank, ALL, 12, false);
    set_last(&s, size, rank, axes, rank < NODES * RANKS / 2 ? first_half : second_half, false);
  }
  return s;
}

/* ---- the text ---- */

static bool same_groups(const ts_beat *a, const ts_beat *b) {
  bool same = a->n_groups == b->n_groups;
  for (int i = 0; same && i < a->n_groups; ++i) {
    same = a->group[i].group == b->group[i].group && a->group[i].entered == b->group[i].entered;
  }
  return same;
}

static bool same_node(const ts_node_status *a, const ts_node_status *b) {
  bool same = strcmp(a->node, b->node) == 0 && strcmp(a->id, b->id) == 0 && a->number == b->number && a->n == b->n &&
              a->skipped == b->skipped && a->dead_experts == b->dead_experts && a->dead_layer == b->dead_layer &&
              a->dead_expert == b->dead_expert && fabs(a->loss_scale - b->loss_scale) <= 1e-8 * b->loss_scale;
  for (int i = 0; same && i < a->n; ++i) {
    const ts_beat *x = &a->beat[i], *y = &b->beat[i];
    same = x->rank == y->rank && x->pid == y->pid && x->step == y->step && x->micro_batch == y->micro_batch &&
           x->phase == y->phase && x->entered == y->entered && x->finished == y->finished &&
           x->since_change == y->since_change && x->since_step == y->since_step && x->since_alive == y->since_alive &&
           strcmp(x->name, y->name) == 0 && strcmp(x->instance, y->instance) == 0 && x->awaited == y->awaited &&
           a->process[i] == b->process[i] && same_groups(x, y);
  }
  return same;
}

static bool is_node(const char *text, size_t length) {
  ts_node_status node;
  bool ok = ts_status_parse_node(text, length, &node) == TS_OK;
  ts_node_status_clear(&node);
  return ok;
}

static bool is_job(const char *text, size_t length) {
  ts_job_status job;
  return ts_status_parse_job(text, length, &job) == TS_OK;
}

/* How many of the texts that a function accepts when each byte in turn is changed to \a byte; and how many
 * beginnings. */
static int count_accepted(bool (*accepts)(const char *, size_t), const ts_text *text, char byte, int *beginnings) {
  int n = 0;
  char *copy = ts_malloc(text->length + 1);
  *beginnings = 0;
  for (size_t i = 0; i < text->length; ++i) {
    memcpy(copy, text->text, text->length + 1);
    copy[i] = byte;
    n += byte != text->text[i] && accepts(copy, text->length);
    *beginnings += accepts(text->text, i);
  }
  ts_free(copy);
  return n;
}

static void test_text(void) {
  ts_run_status s = make_run();
  ts_node_status back;
  ts_text text = {0};
  ts_status_print_node(&s.node[1], 4096, &text);
  tap_ok(text.length == 4096, "a node's text is filled up");
  tap_ok(ts_status_parse_node(text.text, text.length, &back) == TS_OK && same_node(&back, &s.node[1]), "and read back");
  ts_node_status_clear(&back);
  ts_text_free(&text);
  ts_status_print_node(&s.node[1], 0, &text);
  tap_ok(text.length <= ts_status_node_bytes(RANKS), "%zu bytes are at most %zu", text.length,
         ts_status_node_bytes(RANKS));
  int beginnings, accepted = count_accepted(is_node, &text, 0, &beginnings);
  tap_ok(accepted == 0, "no zero byte");
  tap_ok(beginnings == 0, "no text that is cut short");
  accepted = count_accepted(is_node, &text, '\n', &beginnings);
  tap_ok(accepted < (int) text.length / 4, "%d of %zu lines broken in two pass: in the heading only", accepted,
         text.length);
  count_accepted(is_node, &text, '9', &beginnings); /* for the sanitizers */
  count_accepted(is_node, &text, '\xff', &beginnings);
  ts_text_free(&text);
  ts_status_print_job(&s.job, &text);
  tap_ok(is_job(text.text, text.length), "the job's text is read back");
  accepted = count_accepted(is_job, &text, 0, &beginnings);
  tap_ok(accepted == 0 && beginnings == 0, "no zero byte and no part of it");
  count_accepted(is_job, &text, '\xff', &beginnings);
  ts_text_free(&text);
  static const char *const wrong[] = {"",
                                      "\n",
                                      "tessera node 4\n",
                                      "tessera node 4\nnumber 1\n",
                                      "tessera node 4\nnumber 1\nid a\nnode b\nstep_seconds 0\ntokens_per_second "
                                      "0\nskipped 0\nloss_scale 0\n" NO_DEAD "ranks 65536\nx\n",
                                      "tessera node 4\nnumber 1\nid a\nnode b\nstep_seconds nan\ntokens_per_second "
                                      "0\nskipped 0\nloss_scale 0\n" NO_DEAD "ranks 1\nx\n",
                                      "tessera node 4\nnumber -1\nid a\nnode b\nstep_seconds 0\ntokens_per_second "
                                      "0\nskipped 0\nloss_scale 0\n" NO_DEAD "ranks 1\nx\n",
                                      "tessera node 4\nnumber 99999999999999999999\n"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    tap_ok(!is_node(wrong[i], strlen(wrong[i])), "refused: case %zu", i);
  }
  ts_run_status_clear(&s);
}

/* A file of one rank whose line ends so: its groups. */
static ts_status read_groups(const char *groups, ts_node_status *node) {
  char *text = ts_format(
      "tessera node 4\nnumber 3\nid a\nnode b\nstep_seconds 0\ntokens_per_second 0\nskipped 0\nloss_scale 0\n" NO_DEAD
      "ranks 1\n"
      "  rank     pid       step micro            phase   entered  finished    change      step     "
      "alive process collective instance awaited\n"
      "     0    4711         12     0 forward/backward       100        99    30.000    31.000     "
      "0.500       S block.3.reduce - 0%s\nend 3\n",
      groups);
  ts_status status = ts_status_parse_node(text, strlen(text), node);
  ts_free(text);
  return status;
}

static void test_groups(void) {
  ts_run_status s = make_grid_run(tp_dp, TP, 40, 41);
  ts_node_status back;
  ts_text text = {0};
  set_last(&s, tp_dp, 3, DP, UINT64_MAX / 2, true);
  ts_status_print_node(&s.node[1], 0, &text);
  tap_ok(ts_status_parse_node(text.text, text.length, &back) == TS_OK && same_node(&back, &s.node[1]),
         "groups are read back");
  ts_node_status_clear(&back);
  ts_text_free(&text);
  tap_ok(read_groups("", &back) == TS_OK && back.beat[0].n_groups == 0 && back.beat[0].entered == 100,
         "a file of a program that knew none");
  ts_node_status_clear(&back);
  static const char *const wrong[] = {" 48",
                                      " 48:",
                                      " :7",
                                      " -48:7",
                                      " 48:-7",
                                      " 48:99999999999999999999",
                                      " 48:7:8",
                                      " 48:7 x",
                                      " 99999999999999999999:7",
                                      " 48:7 49:8 48:9"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    tap_ok(read_groups(wrong[i], &back) != TS_OK, "refused: groups%s", wrong[i]);
    ts_node_status_clear(&back);
  }
  for (int i = 0; i < TS_HEARTBEAT_GROUPS; ++i) {
    ts_text_add(&text, " %d:9223372036854775807", i);
  }
  tap_ok(read_groups(text.text, &back) == TS_OK && back.beat[0].n_groups == TS_HEARTBEAT_GROUPS, "as many as fit");
  ts_text_free(&text);
  ts_status_print_node(&back, 0, &text);
  tap_ok(text.length <= ts_status_node_bytes(1), "%zu bytes are at most %zu", text.length, ts_status_node_bytes(1));
  ts_node_status_clear(&back);
  ts_text_free(&text);
  for (int i = 0; i <= TS_HEARTBEAT_GROUPS; ++i) {
    ts_text_add(&text, " %d:1", i);
  }
  tap_ok(read_groups(text.text, &back) != TS_OK, "refused: one more");
  ts_node_status_clear(&back);
  ts_text_free(&text);
  ts_run_status_clear(&s);
}

/* ---- the directory ---- */

static void write_file(const char *run, const char *name, const char *text, size_t length) {
  char *path = ts_status_path(run, name);
  FILE *file = fopen(path, "w");
  fwrite(text, 1, length, file);
  fclose(file);
  ts_free(path);
}

static ts_status read_run(const char *run, ts_run_status *s, const char *message) {
  ts_error err = {0};
  ts_status status = ts_status_read(run, s, &err);
  if (message != NULL) {
    tap_ok(status != TS_OK && strstr(err.text, message) != NULL, "%s", err.text);
  }
  ts_error_clear(&err);
  return status;
}

static void fill_directory(const char *run, const ts_run_status *s) {
  char *directory = ts_status_directory(run);
  ts_text text = {0};
  mkdir(run, 0777);
  mkdir(directory, 0777);
  ts_free(directory);
  ts_status_print_job(&s->job, &text);
  write_file(run, "@run", text.text, text.length);
  ts_text_free(&text);
  for (int i = NODES - 1; i >= 0; --i) {
    ts_status_print_node(&s->node[i], 4096, &text);
    write_file(run, s->node[i].node, text.text, text.length);
    ts_text_free(&text);
  }
}

static void test_directory(void) {
  ts_run_status s = make_run(), back;
  char *run = ts_format("%s/run", tap_directory()), *old = ts_status_path(run, "node0"),
       *fifo = ts_status_path(run, "fifo"), *link = ts_status_path(run, "link"), *inner = ts_status_path(run, "inner");
  read_run(run, &back, "No such file");
  ts_run_status_clear(&back);
  fill_directory(run, &s);
  tap_ok(read_run(run, &back, NULL) == TS_OK && back.n_nodes == 2 && same_node(&back.node[0], &s.node[0]),
         "a run is read back");
  tap_ok(back.node[0].age < 60 && back.n_damaged == 0, "just written");
  ts_run_status_clear(&back);
  utime(old, &(struct utimbuf){.modtime = time(NULL) - 1000, .actime = 0});
  tap_ok(read_run(run, &back, NULL) == TS_OK && back.node[0].age > 900, "a file that is old");
  ts_run_status_clear(&back);
  mkfifo(fifo, 0666);
  mkdir(inner, 0777);
  tap_ok(symlink("/dev/zero", link) == 0, "a link to where no end is");
  write_file(run, "binary", "\0\1\2\377", 4);
  write_file(run, "huge", "x", 1);
  char *huge = ts_status_path(run, "huge");
  tap_ok(truncate(huge, (off_t) 1 << 40) == 0, "a file of 1 TiB");
  tap_ok(read_run(run, &back, NULL) == TS_OK && back.n_nodes == 2 && back.n_damaged == 5, "%d are damaged",
         back.n_damaged);
  ts_run_status_clear(&back);
  strcpy(s.job.id, "def.2");
  fill_directory(run, &(ts_run_status){.job = s.job, .node = s.node, .n_nodes = 2});
  tap_ok(read_run(run, &back, NULL) == TS_OK && back.n_nodes == 0 && back.n_older == 2, "files of an earlier start");
  ts_run_status_clear(&back);
  write_file(run, "@failed", "rank 1: \033[31mred\n", 17);
  tap_ok(read_run(run, &back, NULL) == TS_OK && strcmp(back.failed, "rank 1: ?[31mred") == 0,
         "a terminal gets no orders");
  ts_run_status_clear(&back);
  write_file(run, "@run", "tessera job 1\nid ", 17);
  read_run(run, &back, "damaged");
  ts_run_status_clear(&back);
  char *path = ts_status_path(run, "../x");
  tap_ok(strstr(path, "/status/_._x") != NULL, "no name leads elsewhere: %s", path);
  ts_free(path);
  ts_free(huge);
  ts_free(inner);
  ts_free(link);
  ts_free(fifo);
  ts_free(old);
  ts_free(run);
  ts_run_status_clear(&s);
}

/* ---- who is behind ---- */

/* What is found is `lag`, and the text has `first` and `second`. */
static void check_lag(ts_run_status *s, ts_lag lag, const char *first, const char *second, const char *name) {
  ts_text text = {0};
  ts_lag found = ts_lag_find(s, 5, &text);
  const char *said = text.text != NULL ? text.text : "";
  tap_ok(found == lag && strstr(said, first) != NULL && strstr(said, second) != NULL, "%s", name);
  if (found != lag || strstr(said, first) == NULL || strstr(said, second) == NULL) {
    tap_note("found %d: %s", (int) found, said);
  }
  ts_text_free(&text);
  ts_run_status_clear(s);
}

static void test_lag(void) {
  ts_run_status s = make_run();
  check_lag(&s, TS_LAG_NONE, "", "", "all wait in the same: nobody is behind");
  s = make_run();
  s.node[1].beat[1].entered = s.node[1].beat[1].finished = 99;
  check_lag(&s, TS_LAG_BEHIND, "rank 3 on node1 is behind", "ranks 0-2 in collective 100 (block.3.reduce)",
            "one computes for ever");
  s = make_run();
  s.node[0].beat[1].entered = s.node[0].beat[1].finished = 99;
  s.node[0].beat[0].since_change = 1;
  check_lag(&s, TS_LAG_NONE, "", "", "nobody has waited long enough");
  s = make_run();
  s.node[1].beat[0].since_alive = 20;
  s.node[1].process[0] = 'T';
  check_lag(&s, TS_LAG_FROZEN_RANK, "rank 2 on node1 does not run", "is stopped (1000)", "one is stopped inside of it");
  s = make_run();
  /* rank 2 is stopped inside of 99, in which it gave ranks 0 and 3 what they needed, but not rank 1 */
  s.node[1].beat[0].since_alive = 20;
  s.node[1].beat[0].entered = s.node[0].beat[1].entered = 99;
  s.node[1].beat[0].finished = s.node[0].beat[1].finished = 98;
  check_lag(&s, TS_LAG_FROZEN_RANK, "waiting: ranks 0, 3 in collective 100", "waiting: rank 1 in collective 99",
            "those that wait in the collective before are named, too, and who is stopped waits for nobody");
  s = make_run();
  s.node[0].age = 40;
  check_lag(&s, TS_LAG_SILENT_NODE, "no heartbeat of node node0 for 40.0 s: ranks 0-1", "collective 100",
            "a node is gone");
  s = make_run();
  s.node[0].beat[0].entered = 98; /* inside of an older one: also behind, but another is further */
  s.node[0].beat[0].finished = s.node[0].beat[1].entered = s.node[0].beat[1].finished = 97;
  check_lag(&s, TS_LAG_BEHIND, "rank 1 on node0 is behind", "ranks 2-3 in collective 100",
            "the furthest behind is named");
  s = make_run();
  s.node[0].beat[0].entered = 98;
  s.node[0].beat[0].finished = s.node[0].beat[1].entered = s.node[0].beat[1].finished = 97;
  check_lag(&s, TS_LAG_BEHIND, "ranks 2-3 in collective 100", "waiting: rank 0 in collective 98",
            "and all that wait, in whatever collective");
  s = make_run();
  s.node[1].age = 40;
  check_lag(&s, TS_LAG_SILENT_NODE, "ranks 2-3; last seen", "waiting: ranks 0-1 in collective 100",
            "a node that is gone does not wait");
  ts_text text = {0};
  ts_lag_add_ranks((const int64_t[]){0, 1, 2, 5, 7, 8}, 6, &text);
  tap_ok(strcmp(text.text, "0-2, 5, 7-8") == 0, "ranks: %s", text.text);
  ts_text_free(&text);
}

/* All that is said is `expected`. */
static void check_said(ts_run_status *s, ts_lag lag, const char *expected, const char *name) {
  ts_text text = {0};
  ts_lag found = ts_lag_find(s, 5, &text);
  bool right = found == lag && strcmp(text.text != NULL ? text.text : "", expected) == 0;
  tap_ok(right, "%s", name);
  if (!right) {
    tap_note("found %d: %s", (int) found, text.text);
  }
  ts_text_free(&text);
  ts_run_status_clear(s);
}

#define BEHIND(rank, node, where) \
  "  rank " rank " on " node " is behind: step 12, forward/backward of micro-batch 0 for 32.0 s; " where "\n"
#define WAITING(rest) "  waiting: rank" rest "\n"

static void test_lag_tp(void) {
  ts_run_status s = make_grid_run(tp_dp, TP, 48, 41);
  for (int rank = 0; rank < 4; ++rank) {
    set_last(&s, tp_dp, rank, DP, rank < 2 ? 8 : 7, rank < 2);
  }
  set_last(&s, tp_dp, 2, TP, 40, false);
  set_last(&s, tp_dp, 3, TP, 41, true);
  check_said(&s, TS_LAG_BEHIND,
             BEHIND("2", "node1", "the last it finished is collective 40 of tp group 1 (block.3.sum)")
                 WAITING(" 0 in collective 8 of dp group 0 (block.3.reduce) for 30.0 s, which it did not reach")
                     WAITING(" 1 in collective 8 of dp group 1 (block.3.reduce) for 30.0 s")
                         WAITING(" 3 in collective 41 of tp group 1 (block.3.sum) for 30.0 s, which it did not reach"),
             "dp 2 x tp 2: named is the one that others wait for, not one that waits for it in turn");
  s = make_grid_run(tp_dp, TP, 48, 41);
  set_last(&s, tp_dp, 0, ALL, 13, true);
  set_last(&s, tp_dp, 1, TP, 49, true);
  check_said(&s, TS_LAG_BEHIND,
             BEHIND("2", "node1", "the last it finished is collective 41 of tp group 1 (block.3.sum)")
                 BEHIND("3", "node1", "the last it finished is collective 41 of tp group 1 (block.3.sum)")
                     WAITING(" 0 in collective 13 (agreement) for 30.0 s, which they did not reach")
                         WAITING(" 1 in collective 49 of tp group 0 (block.3.sum) for 30.0 s"),
             "two compute, while one waits for all and another one for that");
  s = make_grid_run(tp_dp, TP, 48, 48);
  set_last(&s, tp_dp, 0, TP, 49, true);
  set_last(&s, tp_dp, 1, ALL, 13, true);
  set_last(&s, tp_dp, 2, ALL, 13, true);
  set_last(&s, tp_dp, 3, ALL, 13, true);
  check_said(&s, TS_LAG_BEHIND,
             BEHIND("0", "node0", "inside of collective 49 of tp group 0 (block.3.sum)")
                 BEHIND("1", "node0", "inside of collective 13 (agreement)")
                     WAITING("s 1-3 in collective 13 (agreement) for 30.0 s, which it did not reach")
                         WAITING(" 0 in collective 49 of tp group 0 (block.3.sum) for 30.0 s, which it did not reach"),
             "two that wait for each other are both named");
}

static void test_lag_pp(void) {
  ts_run_status s = make_grid_run(pp_dp, DP, 100, 20);
  check_said(&s, TS_LAG_NONE, "", "pp 2 x dp 2: a stage with fewer collectives is not behind");
  s = make_grid_run(pp_dp, DP, 99, 20);
  set_last(&s, pp_dp, 0, DP, 100, true);
  check_said(&s, TS_LAG_BEHIND,
             BEHIND("1", "node0", "the last it finished is collective 99 of dp group 0 (block.3.reduce)")
                 WAITING(" 0 in collective 100 of dp group 0 (block.3.reduce) for 30.0 s, which it did not reach"),
             "nor when somebody of another stage is");
  s = make_grid_run(pp_dp, DP, 99, 20);
  set_last(&s, pp_dp, 0, DP, 100, true);
  set_last(&s, pp_dp, 2, ALL, 13, true);
  set_last(&s, pp_dp, 3, ALL, 13, true);
  check_said(&s, TS_LAG_BEHIND,
             BEHIND("1", "node0", "the last it finished is collective 99 of dp group 0 (block.3.reduce)")
                 WAITING("s 2-3 in collective 13 (agreement) for 30.0 s, which it did not reach")
                     WAITING(" 0 in collective 100 of dp group 0 (block.3.reduce) for 30.0 s, which it did not reach"),
             "for whom the other stage waits, too");
  s = make_grid_run(pp_dp, DP, 100, 20);
  for (int rank = 0; rank < 4; ++rank) {
    set_last(&s, pp_dp, rank, DP, rank < 2 ? 100 : 20, true);
  }
  check_said(&s, TS_LAG_NONE, "", "both stages wait, each in its own collective: nobody is behind");
  s = make_grid_run(pp_dp, DP, 99, 20);
  set_last(&s, pp_dp, 0, DP, 100, true);
  s.node[0].beat[0].since_change = 1;
  check_said(&s, TS_LAG_NONE, "", "nobody has waited long enough");
  s = make_grid_run(pp_dp, DP, 100, 20);
  set_last(&s, pp_dp, 0, DP, 101, true);
  set_last(&s, pp_dp, 2, ALL, 13, true);
  s.node[0].beat[1].since_alive = 20;
  s.node[0].process[1] = 'T';
  check_lag(&s, TS_LAG_FROZEN_RANK, "rank 1 on node0 does not run", "waiting: rank 0 in collective 101 of dp group 0",
            "one is stopped");
}

/* Rank `rank` does `what` and waits for a message from or to `peer`; -1: it computes. */
static void set_instance(ts_run_status *s, int rank, const char *what, int peer) {
  ts_beat *b = &s->node[rank / RANKS].beat[rank % RANKS];
  strcpy(b->instance, what);
  strcpy(b->name, peer >= 0 ? "boundary.0.receive" : "block.3.reduce");
  b->awaited = peer + 1;
  b->finished = b->entered - (peer >= 0);
}

/* Stages wait for messages: named is the stage at the end of the chain, what it does, and who waits for whom. */
static void test_lag_messages(void) {
  static const int pp[TS_N_AXES] = {4, 1, 1, 1, 1};
  ts_run_status s = make_grid_run(pp, ALL, 12, 12);
  set_instance(&s, 0, "stage0:0B1", 1);
  set_instance(&s, 1, "stage1:1B1", 2);
  set_instance(&s, 2, "stage2:2B1", -1);
  set_instance(&s, 3, "stage3:3F2", 2);
  check_said(
      &s, TS_LAG_BEHIND,
      "  rank 2 on node1 is behind: step 12, forward/backward of micro-batch 0 (stage2:2B1) for 32.0 s; the last it "
      "finished is collective 12 (block.3.reduce)\n"
      "  waiting: rank 0 in stage0:0B1 for boundary.0.receive of rank 1 for 30.0 s\n"
      "  waiting: rank 1 in stage1:1B1 for boundary.0.receive of rank 2 for 30.0 s\n"
      "  waiting: rank 3 in stage3:3F2 for boundary.0.receive of rank 2 for 30.0 s\n",
      "pp 4: the stage that all others wait for, whatever hop they are away");
  s = make_grid_run(pp_dp, DP, 20, 20);
  set_last(&s, pp_dp, 0, DP, 21, true);
  set_instance(&s, 1, "stage0:0B3", 3);
  check_lag(&s, TS_LAG_BEHIND, "rank 3 on node1 is behind",
            "waiting: rank 1 in stage0:0B3 for boundary.0.receive of rank 3",
            "pp 2 x dp 2: not the one that another waits for, but whose message that one waits for");
  s = make_grid_run(pp, ALL, 12, 12);
  set_instance(&s, 0, "stage0:0B1", 1);
  set_instance(&s, 1, "stage1:1F1", 0);
  check_lag(&s, TS_LAG_NONE, "rank 0 in stage0:0B1 for boundary.0.receive of rank 1",
            "rank 1 in stage1:1F1 for boundary.0.receive of rank 0", "two that wait for each other are both told");
  s = make_grid_run(pp, ALL, 12, 12);
  set_instance(&s, 0, "stage0:0B1", 1);
  s.node[0].beat[0].since_change = 1;
  check_said(&s, TS_LAG_NONE, "", "a message is not late yet");
}

static void test_time_limit(void) {
  ts_time_limit limit = {.margin = 60, .save = 12};
  ts_time_limit_step(&limit, 30);
  ts_time_limit_step(&limit, 3);
  tap_ok(ts_time_limit_needed(&limit) == 60 + 24 + 60, "two saves, two of the slowest step, the margin: %g s",
         ts_time_limit_needed(&limit));
  for (int i = 0; i < TS_TIME_LIMIT_STEPS; ++i) {
    ts_time_limit_step(&limit, 3);
  }
  tap_ok(ts_time_limit_needed(&limit) == 60 + 24 + 6, "a slow step is forgotten after %d", TS_TIME_LIMIT_STEPS);
  limit.validation = 100;
  tap_ok(ts_time_limit_needed(&limit) == 60 + 24 + 6 + 100, "a validation counts");
}

/* ---- last words ---- */

static void leave(int code, const char *reason) {
  (void) reason;
  _exit(code);
}

static void die_plainly(void) {
  ts_die("kernel.c", 7, "memory is %s\nand so on\n", "gone");
}

static void die_while_kept(void *user, ts_log_level level, const char *text) {
  (void) user;
  (void) level;
  ts_die("keeper.c", 8, "of: %s", text);
}

/* Where the thread that dies keeps a line, it holds the lock of that. */
static void die_keeping(void) {
  ts_log_keep(die_while_kept, NULL);
  ts_log(TS_LOG_WARNING, "a warning");
}

static void end_well(void) {
}

static void die_behind_the_end(void) {
  ts_run_log_name(NULL);
  die_plainly();
}

/* A child process that has a log and fails; what is in the log then, the caller's. */
static char *log_of(void (*body)(void)) {
  char *path = ts_format("%s/log.txt", tap_directory()), *text;
  size_t length;
  pid_t child = fork();
  if (child == 0) {
    int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    alarm(20);
    ts_run_log *log = ts_run_log_begin(true);
    ts_run_log_open(log, tap_directory(), true);
    ts_set_failure_context(3, "node5", leave);
    ts_log(TS_LOG_WARNING, "first");
    body();
    ts_run_log_end(&log, NULL);
    _exit(0);
  }
  TS_CHECK(child > 0 && waitpid(child, NULL, 0) == child, "no child");
  TS_CHECK(ts_read_file(path, 1 << 20, &text, &length, NULL) == TS_OK, "%s", path);
  ts_free(path);
  return text;
}

static void test_last_words(void) {
  const struct {
    void (*body)(void);
    const char *what, *ends;
  } rows[] = {
      {end_well, "a run that ends", " warning: first\n"},
      {die_plainly, "what ends a process", " error: rank 3 on node5: kernel.c:7: memory is gone\n    and so on\n"},
      {die_keeping, "also where it holds the lock", " error: rank 3 on node5: keeper.c:8: of: a warning\n"},
      {die_behind_the_end, "not of a log that has ended", " warning: first\n"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char *text = log_of(rows[i].body);
    size_t n = strlen(text), m = strlen(rows[i].ends);
    tap_ok(n > m && strcmp(text + n - m, rows[i].ends) == 0 && strstr(text, " warning: first\n") != NULL, "log.txt: %s",
           rows[i].what);
    ts_free(text);
  }
}

int main(void) {
  test_text();
  test_groups();
  test_directory();
  test_lag();
  test_lag_tp();
  test_lag_pp();
  test_lag_messages();
  test_time_limit();
  test_last_words();
  return tap_done();
}
