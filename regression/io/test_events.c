/* Event files: the bytes TensorBoard writes, whole records on a full disk, files in order.
 * `test_events list DIRECTORY` prints what the event files of a directory say, a line a number: step tag value. */
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/checksum.h"
#include "io/events.h"
#include "regression/io/event_file.h"
#include "regression/tap.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static char *make_events_directory(const char *name) {
  char *directory = ts_format("%s/%s", tap_directory(), name);
  TS_CHECK(ts_make_directory(directory, NULL) == TS_OK, "%s", directory);
  return directory;
}

/* The names of the files of a directory, sorted. */
static int list_files(const char *directory, char *name[], int most) {
  struct dirent **entry;
  int n = scandir(directory, &entry, NULL, alphasort), kept = 0;
  for (int i = 0; i < n; ++i) {
    if (entry[i]->d_name[0] != '.' && kept < most) {
      name[kept++] = ts_strdup(entry[i]->d_name);
    }
    free(entry[i]);
  }
  free(entry);
  return kept;
}

/* RFC 3720, B.4, and the check value of the catalogue of checksums. */
static void test_checksum(void) {
  uint8_t zeros[32] = {0}, ones[32], rising[32];
  for (int i = 0; i < 32; ++i) {
    ones[i] = 0xff;
    rising[i] = (uint8_t) i;
  }
  tap_ok(ts_crc32c(zeros, 32) == 0x8a9136aa && ts_crc32c(ones, 32) == 0x62a8ab43 &&
             ts_crc32c(rising, 32) == 0x46dd794e && ts_crc32c("123456789", 9) == 0xe3069283 && ts_crc32c("", 0) == 0,
         "CRC-32C of known data");
}

/* What TensorBoard's own writer was given for golden/events.tfevents. */
static void write_as_golden(const char *directory) {
  char tag[201];
  memset(tag, 't', 200);
  tag[200] = 0;
  ts_events *events;
  TS_CHECK(ts_events_open(directory, 401, 0, &events, NULL) == TS_OK, "%s", directory);
  ts_events_scalar(events, "Train/Samples/train_loss", 2.5);
  ts_events_scalar(events, "Train/Samples/lr", 1e-3);
  ts_events_write(events, 404);
  ts_events_write(events, 405); /* without numbers: nothing */
  ts_events_scalar(events, "empty value", 0);
  ts_events_scalar(events,
                   "Stra\xc3\x9f"
                   "e \"x\"\n\t",
                   -1.0 / 3);
  ts_events_scalar(events, tag, 3e38);
  ts_events_scalar(events, "nan", NAN);
  ts_events_scalar(events, "inf", -1e300);
  ts_events_write(events, (int64_t) 1 << 40);
  ts_events_close(&events);
  ts_events_close(&events);
}

static uint64_t length_of_event(const char *data) {
  uint64_t n = 0;
  memcpy(&n, data, 8); /* the machines this runs on are little-endian, too */
  return n;
}

/* Records that agree but for the time, 9 bytes in front, that the golden's do not have. */
static int alike_records(const char *mine, size_t length, const char *theirs, size_t their_length) {
  int n = 0;
  while (length >= 16 && their_length >= 16) {
    uint64_t a = length_of_event(mine), b = length_of_event(theirs);
    if (a > length - 16 || b > their_length - 16 || a != b + 9 || memcmp(mine + 12 + 9, theirs + 12, b) != 0) {
      return -1;
    }
    mine += a + 16;
    length -= a + 16;
    theirs += b + 16;
    their_length -= b + 16;
    ++n;
  }
  return length == 0 && their_length == 0 ? n : -1;
}

static void test_golden(void) {
  char *directory = make_events_directory("golden"), *name[2], *data, *golden;
  size_t length, golden_length;
  write_as_golden(directory);
  TS_CHECK(list_files(directory, name, 2) == 1, "%s", directory);
  char *path = ts_format("%s/%s", directory, name[0]);
  TS_CHECK(ts_read_file(path, 1 << 20, &data, &length, NULL) == TS_OK &&
               ts_read_file(tap_path("regression/golden/events.tfevents"), 1 << 20, &golden, &golden_length, NULL) ==
                   TS_OK,
           "%s", path);
  event_list ours = {0}, theirs = {0};
  event_list_read(&ours, data, length);
  event_list_read(&theirs, golden, golden_length);
  tap_ok(theirs.records == 4 && theirs.n == 9 && theirs.behind == 0 && theirs.number[2].value == 2.5,
         "TensorBoard's own file is read: %d records", theirs.records);
  tap_ok(ours.records == 4 && ours.behind == 0 && ours.timed, "ours has the checksums and times it should");
  tap_ok(alike_records(data, length, golden, golden_length) == 4, "and is theirs to the byte, but for the time");
  event_list_free(&ours);
  event_list_free(&theirs);
  ts_free(data);
  ts_free(golden);
  ts_free(path);
  ts_free(name[0]);
  ts_free(directory);
}

/* Files of a directory are read by name: one of a clock that is ahead comes first all the same. */
static void test_order(void) {
  char *directory = make_events_directory("order"), *name[8];
  char *ahead = ts_format("%s/events.out.tfevents.%lld.other.1.0", directory, (long long) time(NULL) + 5000);
  TS_CHECK(ts_write_file(ahead, "", 0, NULL) == TS_OK, "%s", ahead);
  for (int i = 0; i < 3; ++i) {
    ts_events *events;
    TS_CHECK(ts_events_open(directory, 1 + 10 * i, 0, &events, NULL) == TS_OK, "%s", directory);
    for (int step = 1 + 10 * i; step < 16 + 10 * i; ++step) {
      ts_events_scalar(events, "x", 100 * i + step);
      ts_events_write(events, step);
    }
    ts_events_close(&events);
  }
  int n = list_files(directory, name, 8);
  tap_ok(n == 4 && strcmp(name[0], strrchr(ahead, '/') + 1) == 0, "each file comes behind those that are there");
  event_list list = {0};
  event_list_read_directory(&list, directory);
  int64_t step = 0;
  bool right = true;
  for (size_t i = 0; i < list.n; ++i) {
    if (strcmp(list.number[i].tag, "x") == 0) {
      ++step;
      int64_t session = (step - 1) / 10 < 2 ? (step - 1) / 10 : 2;
      right = right && list.number[i].step == step && list.number[i].value == (double) (100 * session + step);
    }
  }
  tap_ok(right && step == 35, "a session takes over from the step it starts at: %lld steps", (long long) step);
  event_list_free(&list);
  for (int i = 0; i < n; ++i) {
    ts_free(name[i]);
  }
  ts_free(ahead);
  ts_free(directory);
}

static void limit_file_size(rlim_t bytes) {
  struct rlimit limit;
  TS_CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0, "getrlimit");
  limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
  TS_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
}

static void write_steps(ts_events *events, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) {
    ts_events_scalar(events, "a\nb", (double) step); /* a record is no line */
    ts_events_write(events, step);
  }
}

/* Files that may not grow, as on a full disk: no record is cut, and those that waited come in their order. */
static void test_full_disk(void) {
  char *directory = make_events_directory("full");
  ts_events *events;
  event_list list = {0};
  signal(SIGXFSZ, SIG_IGN);
  TS_CHECK(ts_events_open(directory, 0, 0, &events, NULL) == TS_OK, "%s", directory);
  limit_file_size(1000);
  write_steps(events, 1, 100);
  event_list_read_directory(&list, directory);
  tap_ok(list.behind == 0 && list.n > 10 && list.n < 30, "a full disk has whole records: %zu numbers, %zu bytes behind",
         list.n, list.behind);
  event_list_free(&list);
  limit_file_size(RLIM_INFINITY);
  ts_events_flush(events);
  event_list_read_directory(&list, directory);
  tap_ok(list.n == 102 && list.number[101].step == 100, "a flush writes what waited");
  event_list_free(&list);
  write_steps(events, 101, 120);
  ts_events_close(&events);
  event_list_read_directory(&list, directory);
  bool right = list.n == 122 && list.behind == 0;
  for (size_t i = 2; i < list.n && right; ++i) {
    right = list.number[i].step == (int64_t) i - 1 && list.number[i].value == (double) (i - 1);
  }
  tap_ok(right, "then come the next ones, without a gap");
  event_list_free(&list);
  ts_free(directory);
}

static void test_are_in(void) {
  char *directory = make_events_directory("are in"), *other = ts_format("%s/run_id", directory);
  ts_events *events;
  TS_CHECK(ts_write_file(other, "x", 1, NULL) == TS_OK, "%s", other);
  bool before = ts_events_are_in(directory) || ts_events_are_in("/nonexistent/there");
  TS_CHECK(ts_events_open(directory, 1, 0, &events, NULL) == TS_OK, "%s", directory);
  tap_ok(!before && ts_events_are_in(directory), "a directory with an event file is told from one without");
  ts_events_close(&events);
  ts_free(other);
  ts_free(directory);
}

static void test_refused(void) {
  ts_events *events;
  ts_error err = {0};
  tap_ok(ts_events_open("/nonexistent/there", 1, 0, &events, &err) == TS_BAD_INPUT && events == NULL &&
             strstr(err.text, "/nonexistent/there/events.out.tfevents.") != NULL,
         "a directory that is not there");
  ts_error_clear(&err);
}

static int list_directory(const char *directory) {
  event_list list = {0};
  int files = event_list_read_directory(&list, directory);
  for (size_t i = 0; i < list.n; ++i) {
    printf("%lld %s %.9g\n", (long long) list.number[i].step, list.number[i].tag, list.number[i].value);
  }
  event_list_free(&list);
  return files > 0 ? 0 : 1;
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "list") == 0) {
    return list_directory(argv[2]);
  }
  ts_log_configure(TS_LOG_ERROR, true);
  test_checksum();
  test_golden();
  test_order();
  test_full_disk();
  test_are_in();
  test_refused();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
