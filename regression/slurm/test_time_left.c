/* What squeue says of the time left, and asking it: a squeue of our own stands in the path. */
#include "regression/tap.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "slurm/time_left.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

static void test_formats(void) {
  static const struct {
    const char *text;
    double seconds; /* negative: refused */
  } rows[] = {{"0:00", 0},
              {"4:32", 272},
              {"59:59", 3599},
              {"1:00:00", 3600},
              {"23:59:59", 86399},
              {"1-00:00:00", 86400},
              {"2-01:04:32", 176672},
              {"365-00:00:01", 31536001},
              {"90:00", 5400},
              {"UNLIMITED", INFINITY},
              {"NOT_SET", -1},
              {"INVALID", -1},
              {"", -1},
              {"17", -1},
              {"-0:05", -1},
              {"1-", -1},
              {"1-02", -1},
              {"1-02:03", -1},
              {"1:2:3:4", -1},
              {"1:60", -1},
              {"1:00:60", -1},
              {"4:32 ", -1},
              {":30", -1},
              {"4:", -1},
              {"1.5:00", -1},
              {"0x4:00", -1},
              {"99999999999:00", -1},
              {"unlimited", -1},
              {"slurm_load_jobs error: Invalid job id", -1}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    double seconds = -1;
    bool accepted = ts_time_left_parse(rows[i].text, &seconds);
    tap_ok(accepted == (rows[i].seconds >= 0) && seconds == rows[i].seconds, "\"%s\": %g", rows[i].text, seconds);
  }
}

/* Ask a squeue that is this script. */
static bool ask(const char *script, double patience, double *seconds) {
  const char *directory = tap_directory();
  char *path = ts_format("%s/squeue", directory);
  FILE *file = fopen(path, "w");
  fprintf(file, "#!/bin/sh\n%s\n", script);
  fclose(file);
  chmod(path, 0755);
  char *search = ts_format("%s:/usr/bin:/bin", directory);
  setenv("PATH", search, 1);
  ts_time_left *asker = ts_time_left_create("17");
  double start = ts_seconds();
  bool answered = false;
  ts_time_left_ask(asker);
  while (!answered && ts_seconds() - start < patience) {
    answered = ts_time_left_poll(asker, seconds);
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
  }
  ts_time_left_destroy(&asker);
  ts_free(path);
  ts_free(search);
  return answered;
}

static void test_asking(void) {
  double seconds = 0;
  tap_ok(ask("[ \"$*\" = '-h -j 17 -o %L' ] && echo 1:04:32", 5, &seconds) && seconds == 3872,
         "squeue is asked for this job");
  setenv("SLURM_ARRAY_JOB_ID", "15", 1);
  setenv("SLURM_ARRAY_TASK_ID", "3", 1);
  tap_ok(ask("[ \"$*\" = '-h -j 15_3 -o %L' ] && echo 2:00", 5, &seconds) && seconds == 120, "a task of an array");
  unsetenv("SLURM_ARRAY_JOB_ID");
  unsetenv("SLURM_ARRAY_TASK_ID");
  tap_ok(ask("sleep 0.3; echo 4:32", 5, &seconds) && seconds == 272, "an answer that comes late");
  tap_ok(!ask("echo 'slurm_load_jobs error: Unable to contact slurm controller'; exit 1", 0.5, &seconds), "no answer");
  tap_ok(!ask("yes", 0.5, &seconds), "one that never ends");
  double start = ts_seconds();
  tap_ok(!ask("exec sleep 20", 0.3, &seconds) && ts_seconds() - start < 5, "nobody waits for one that hangs");
}

static void test_environment(void) {
  double seconds = 0;
  char *end = ts_format("%lld", (long long) time(NULL) + 100);
  setenv("SLURM_JOB_END_TIME", end, 1);
  ts_free(end);
  ts_time_left *asker = ts_time_left_create("17");
  tap_ok(ts_time_left_poll(asker, &seconds) && seconds > 90 && seconds <= 100, "SLURM_JOB_END_TIME: %.0f s", seconds);
  tap_ok(!ts_time_left_poll(asker, &seconds), "once");
  ts_time_left_destroy(&asker);
  asker = ts_time_left_create(NULL);
  ts_time_left_ask(asker);
  tap_ok(!ts_time_left_poll(asker, &seconds), "without a job there is no end");
  ts_time_left_destroy(&asker);
}

int main(void) {
  test_formats();
  test_asking();
  test_environment();
  return tap_done();
}
