/* How long a step may take, heartbeats in memory of a node, and the thread that keeps watch.  With arguments one of the
 * jobs of status.sh:
 * `loop DIRECTORY RANK`: a rank computes for ever, the others wait for it in a collective; `inside DIRECTORY RANK`:
 * they wait inside of MPI, where they hold what it has of locks; `saving DIRECTORY RANK`: the same, while a checkpoint
 * is saved; `all DIRECTORY RANK`: all ranks do, in the name of one, and have state in files of DIRECTORY. */
#include "regression/tap.h"
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include "base/heartbeat.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "train/status_file.h"
#include "train/watchdog.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- hanging ---- */

static void work(ts_world *world, int64_t step) {
  ts_heartbeat_step(ts_world_heartbeat(world), step);
  ts_heartbeat_enter(ts_world_heartbeat(world), "test.collective", TS_HEARTBEAT_ALL);
  tap_barrier(MPI_COMM_WORLD);
  ts_heartbeat_leave(ts_world_heartbeat(world));
  ts_world_agree(world, TS_OK, NULL);
}

static int hang(ts_world *world, char **word) {
  const bool all_hang = strcmp(word[0], "all") == 0;
  char *files = ts_format("zero_optimization.offload_optimizer={device=\"nvme\";nvme_path=\"%s\";}", word[1]);
  char *sets = ts_format("run.directory=%s run.step_timeout=%s run.first_step_timeout=3 %s", word[1],
                         strcmp(word[0], "saving") == 0 ? "0.5" : "2", all_hang ? files : "");
  ts_deck *deck = train_run_deck(world, train_run_llama, sets);
  ts_watch *watch = ts_watch_create(world, deck);
  mkdir(word[1], 0777);
  ts_watch_publish(watch, 1, deck->run.steps);
  for (int64_t step = 1; step <= 5; ++step) {
    work(world, step);
  }
  ts_heartbeat_step(ts_world_heartbeat(world), 6);
  if (strcmp(word[0], "saving") == 0) {
    ts_heartbeat_phase(ts_world_heartbeat(world), TS_PHASE_SAVING);
  }
  if (ts_world_rank(world) == atoi(word[2]) || all_hang) {
    for (volatile int forever = 1; forever;) {
    }
  }
  ts_heartbeat_enter(ts_world_heartbeat(world), "test.missed", TS_HEARTBEAT_ALL);
  if (strcmp(word[0], "inside") == 0) {
    MPI_Barrier(MPI_COMM_WORLD);
  }
  ts_comm *all = ts_world_all(world);
  all->ops->barrier(all);
  ts_watch_destroy(&watch, "finished", 6, NULL);
  ts_deck_destroy(&deck);
  ts_free(sets);
  ts_free(files);
  return 0;
}

/* ---- how long a step may take ---- */

/* A step of 1,048,576 tokens of Llama-8B is no hang; what somebody set stays. */
static void test_timeouts(ts_world *world) {
  ts_deck *deck = train_run_deck(world, train_run_llama, ""),
          *set = train_run_deck(world, train_run_llama, "run.step_timeout=600 run.first_step_timeout=0");
  double needed = ts_timeouts_needed(9.2e17, 4e14);
  tap_ok_all(MPI_COMM_WORLD, needed == 9200, "4 x 9.2e17 FLOPs at 4e14 FLOP/s: %g s", needed);
  ts_timeouts plain = ts_timeouts_of(deck, 599), some = ts_timeouts_of(deck, 601), all = ts_timeouts_of(deck, needed),
              mine = ts_timeouts_of(set, needed);
  tap_ok_all(MPI_COMM_WORLD, plain.step == 600 && plain.first_step == 1800 && plain.peer == 1800,
             "defaults are enough");
  tap_ok_all(MPI_COMM_WORLD, some.step == 601 && some.first_step == 1800 && some.peer == 1800, "one is not");
  tap_ok_all(MPI_COMM_WORLD, all.step == needed && all.first_step == needed && all.peer == needed, "none is");
  tap_ok_all(MPI_COMM_WORLD, mine.step == 600 && mine.first_step == 0 && mine.peer == needed,
             "a default that is set, and never, are final");
  ts_deck_destroy(&deck);
  ts_deck_destroy(&set);
}

static ts_timeouts engine_timeouts(ts_world *world, int64_t accumulated, const char *more) {
  char *sets = ts_format("model.hidden_size=384 model.intermediate_size=1024 train_micro_batch_size_per_gpu=1 "
                         "gradient_accumulation_steps=%lld train_batch_size=%lld %s",
                         (long long) accumulated, (long long) accumulated * ts_world_size(world), more);
  ts_deck *deck = train_run_deck(world, train_run_llama, sets);
  const ts_engine_options options = {.world = world, .deck = deck, .abilities = TS_CAN_TRAIN};
  ts_engine *engine;
  ts_error err = {0};
  TS_CHECK(ts_engine_create(&options, &engine, &err) == TS_OK, "%s", err.text);
  ts_timeouts timeouts = *ts_engine_timeouts(engine);
  ts_engine_destroy(&engine);
  ts_deck_destroy(&deck);
  ts_free(sets);
  return timeouts;
}

/* Of two million micro-batches: hours. */
static void test_large_step(ts_world *world) {
  const int64_t many = 2000000;
  ts_timeouts small = engine_timeouts(world, 1, ""), large = engine_timeouts(world, many, ""),
              set = engine_timeouts(world, many, "run.step_timeout=7 run.peer_timeout=9"),
              *all = ts_world_gather(world, &large, sizeof large);
  tap_ok_all(MPI_COMM_WORLD, small.step == 600 && small.first_step == 1800 && small.peer == 1800, "a small step");
  tap_ok_all(MPI_COMM_WORLD,
             large.step > 1800 && large.step < INFINITY && large.first_step == large.step && large.peer == large.step,
             "a large one may take %.0f s", large.step);
  tap_ok_all(MPI_COMM_WORLD, memcmp(&all[0], &large, sizeof large) == 0, "the same on all ranks");
  tap_ok_all(MPI_COMM_WORLD, set.step == 7 && set.peer == 9 && set.first_step > 1800, "what is set stays");
  ts_free(all);
}

/* ---- the record ---- */

static void test_memory(ts_world *world) {
  ts_node_memory *memory = ts_node_memory_create(world, 1000);
  int rank = ts_world_rank(world);
  bool zero = true, seen = true, ascends = true;
  for (int i = 0; i < 1000; ++i) {
    zero = zero && ((char *) memory->memory[memory->index])[i] == 0;
  }
  tap_ok_all(MPI_COMM_WORLD, zero && memory->rank[memory->index] == rank, "memory of a node begins with zeros");
  memset(memory->memory[memory->index], 10 + rank, 1000);
  tap_barrier(MPI_COMM_WORLD);
  for (int k = 0; k < memory->n; ++k) {
    seen = seen && ((char *) memory->memory[k])[999] == 10 + memory->rank[k];
    ascends = ascends && (k == 0 || memory->rank[k] > memory->rank[k - 1]);
  }
  tap_ok_all(MPI_COMM_WORLD, seen && ascends, "each sees what the others wrote");
  tap_ok_all(MPI_COMM_WORLD,
             memory->n == ts_world_local_size(world) && memory->n_nodes * memory->n >= ts_world_size(world),
             "%d nodes, %d ranks on %s", memory->n_nodes, memory->n, memory->name);
  ts_node_memory_destroy(&memory);
}

static void test_beat(ts_heartbeat *mine) {
  ts_beat beat;
  ts_heartbeat_step(mine, 3);
  ts_heartbeat_micro_batch(mine, 2);
  ts_heartbeat_enter(mine, "first", TS_HEARTBEAT_ALL);
  ts_heartbeat_leave(mine);
  ts_heartbeat_enter(mine, "a name with blanks \n and more letters than there is room for in the record of a rank",
                     TS_HEARTBEAT_ALL);
  ts_heartbeat_read(mine, &beat);
  tap_ok_all(MPI_COMM_WORLD,
             beat.step == 3 && beat.micro_batch == 2 && beat.entered == beat.finished + 1 &&
                 beat.phase == TS_PHASE_COMPUTING,
             "step, micro-batch, and inside of a collective");
  tap_ok_all(MPI_COMM_WORLD, strlen(beat.name) == TS_HEARTBEAT_NAME - 1 && strpbrk(beat.name, " \n") == NULL, "%s",
             beat.name);
  ts_heartbeat_leave(mine);
  tap_ok_all(MPI_COMM_WORLD, beat.n_groups == 0, "all of it of the group of all");
  ts_heartbeat_wait(mine, "wait", TS_HEARTBEAT_ALL);
  ts_heartbeat_read(mine, &beat);
  tap_ok_all(MPI_COMM_WORLD,
             beat.entered == beat.finished + 1 && beat.n_groups == 1 && beat.group[0].entered == beat.entered - 1,
             "a wait is no collective of it");
  ts_heartbeat_leave(mine);
  ts_heartbeat_join(mine, 48);
  ts_heartbeat_join(mine, 49);
  ts_heartbeat_enter(mine, "of.another.group", 49);
  ts_heartbeat_read(mine, &beat);
  tap_ok_all(MPI_COMM_WORLD,
             beat.n_groups == 3 && beat.group[0].group == 49 && beat.group[0].entered == 1 &&
                 beat.group[1].group == 48 && beat.group[1].entered == 0 && beat.group[2].group == TS_HEARTBEAT_ALL &&
                 beat.group[2].entered == beat.entered - 2,
             "each group has its own number, that of the last collective is first");
  ts_heartbeat_leave(mine);
  double start = ts_seconds();
  enum { MANY = 200000 };
  for (int i = 0; i < MANY; ++i) {
    ts_heartbeat_enter(mine, "transformer.block.11.attention.gather_gradient.0", TS_HEARTBEAT_ALL);
    ts_heartbeat_leave(mine);
  }
  double each = (ts_seconds() - start) / MANY;
  /* measured 0.1 us; a collective of 8 bytes takes 2 us at least, and a busy machine gets room for others' work */
  tap_ok_all(MPI_COMM_WORLD, each < 5e-6, "a collective is noted in %.3f us", 1e6 * each);
}

static bool has(const char *run, const char *state, int nodes) {
  ts_run_status s;
  bool ok =
      ts_status_read(run, &s, NULL) == TS_OK && strcmp(s.job.state, state) == 0 && s.n_nodes == nodes && s.n_older == 0;
  ts_run_status_clear(&s);
  return ok;
}

static void test_watch(ts_world *world) {
  const char *run = tap_directory_all(MPI_COMM_WORLD);
  char *sets = ts_format("run.directory=%s run.step_timeout=1 run.first_step_timeout=4", run),
       *left = ts_status_path(run, "left");
  ts_deck *deck = train_run_deck(world, train_run_llama, sets);
  char *directory = ts_status_directory(run);
  if (ts_world_rank(world) == 0) {
    mkdir(directory, 0777);
    fclose(fopen(left, "w"));
  }
  ts_watch *watch = ts_watch_create(world, deck);
  ts_watch_publish(watch, 1, deck->run.steps);
  test_beat(ts_world_heartbeat(world));
  /* longer than a step may take, not as a step */
  ts_heartbeat_phase(ts_world_heartbeat(world), TS_PHASE_VALIDATING);
  double start = ts_seconds();
  while (ts_world_agree(world, ts_seconds() - start < 2.5 ? TS_OK : TS_BAD_INPUT, NULL) == TS_OK) {
  }
  tap_ok_all(MPI_COMM_WORLD, has(run, "running", 1), "the status of a run that goes on");
  tap_ok_all(MPI_COMM_WORLD, ts_watch_time_left(watch) > 1e9, "there is no time limit");
  ts_watch_destroy(&watch, "finished", 3, "a reason\nof two lines");
  tap_barrier(MPI_COMM_WORLD);
  tap_ok_all(MPI_COMM_WORLD, has(run, "finished", 1), "and of one that ended");
  ts_deck_destroy(&deck);
  ts_free(directory);
  ts_free(left);
  ts_free(sets);
}

/* All of this process, as `scontrol suspend` does it; a child wakes it up. */
static void stop_for(long milliseconds) {
  pid_t mine = getpid(), child = fork();
  if (child == 0) {
    nanosleep(&(struct timespec){.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000}, NULL);
    kill(mine, SIGCONT);
    _exit(0);
  }
  raise(SIGSTOP);
  waitpid(child, NULL, 0);
}

/* A step of which two thirds of the time are spent stopped: one that is no hang. */
static void test_suspended(ts_world *world) {
  const char *run = tap_directory_all(MPI_COMM_WORLD);
  char *sets = ts_format("run.directory=%s run.step_timeout=2 run.first_step_timeout=60", run);
  ts_deck *deck = train_run_deck(world, train_run_llama, sets);
  ts_watch *watch = ts_watch_create(world, deck);
  ts_watch_publish(watch, 1, deck->run.steps);
  ts_heartbeat_step(ts_world_heartbeat(world), 2);
  tap_barrier(MPI_COMM_WORLD);
  stop_for(3500);
  nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 600000000}, NULL);
  tap_ok_all(MPI_COMM_WORLD, true, "a run that was suspended in a step goes on");
  ts_watch_destroy(&watch, "finished", 2, NULL);
  ts_deck_destroy(&deck);
  ts_free(sets);
}

/* A step that is longer than the deck's limit, and not than the run's. */
static void test_limit(ts_world *world) {
  ts_deck *deck = train_run_deck(world, train_run_llama, "run.step_timeout=0.4 run.first_step_timeout=0.4");
  ts_watch *watch = ts_watch_create(world, deck);
  ts_watch_limit(watch, &(ts_timeouts){.step = 600, .first_step = 600});
  ts_heartbeat_step(ts_world_heartbeat(world), 1);
  nanosleep(&(struct timespec){.tv_sec = 2, .tv_nsec = 500000000}, NULL);
  tap_ok_all(MPI_COMM_WORLD, true, "a step that is long by the deck alone goes on");
  ts_watch_destroy(&watch, "finished", 1, NULL);
  ts_deck_destroy(&deck);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  ts_log_configure(TS_LOG_ERROR, ts_world_rank(world) == 0);
  int code;
  if (argc > 3) {
    code = hang(world, argv + 1);
  } else {
    test_timeouts(world);
    test_large_step(world);
    test_memory(world);
    test_watch(world);
    test_suspended(world);
    test_limit(world);
    code = tap_done_all(MPI_COMM_WORLD);
  }
  ts_world_destroy(&world);
  return code;
}
