#include "io/events.h"

#include "base/memory.h"
#include "base/text.h"
#include "io/checksum.h"
#include "io/rows.h"

#include <dirent.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PREFIX "events.out.tfevents."
#define SECONDS_DIGITS 10 /* of the time in a name: more would not sort behind */
#define HEAD 12           /* bytes before an event: its length, the checksum of that */
#define TAIL 4

struct ts_events {
  ts_rows *rows;
  ts_text summary; /* of the event that is being made */
};

/* ---- protobuf ---- */

enum { VARINT = 0, FIXED_64 = 1, BYTES = 2, FIXED_32 = 5 }; /* wire types */

static void put_little(ts_text *to, uint64_t bits, int bytes) {
  char out[8];
  for (int i = 0; i < bytes; ++i) {
    out[i] = (char) (uint8_t) (bits >> 8 * i);
  }
  ts_text_append(to, out, (size_t) bytes);
}

static void put_varint(ts_text *to, uint64_t value) {
  while (value > 127) {
    put_little(to, (value & 127) | 128, 1);
    value >>= 7;
  }
  put_little(to, value, 1);
}

static void put_key(ts_text *to, int field, int wire) {
  put_varint(to, (uint64_t) (field << 3 | wire));
}

static void put_integer(ts_text *to, int field, uint64_t value) {
  put_key(to, field, VARINT);
  put_varint(to, value);
}

static void put_bytes(ts_text *to, int field, const char *bytes, size_t length) {
  put_key(to, field, BYTES);
  put_varint(to, length);
  ts_text_append(to, bytes, length);
}

static void put_double(ts_text *to, int field, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  put_key(to, field, FIXED_64);
  put_little(to, bits, 8);
}

static void put_float(ts_text *to, int field, double value) {
  float narrow =
      isfinite(value) && fabs(value) > FLT_MAX ? copysignf(INFINITY, (float) copysign(1, value)) : (float) value;
  uint32_t bits;
  memcpy(&bits, &narrow, sizeof bits);
  put_key(to, field, FIXED_32);
  put_little(to, bits, 4);
}

static void put_time(ts_text *to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  put_double(to, 1, (double) now.tv_sec + 1e-9 * (double) now.tv_nsec);
}

/* ---- records ---- */

static uint32_t masked_checksum(const char *data, size_t length) {
  uint32_t crc = ts_crc32c(data, length);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put_record(ts_text *to, const ts_text *event) {
  ts_text head = {0};
  put_little(&head, event->length, 8);
  put_little(&head, masked_checksum(head.text, head.length), 4);
  ts_text_append(to, head.text, head.length);
  ts_text_append(to, event->text, event->length);
  put_little(to, masked_checksum(event->text, event->length), TAIL);
  ts_text_free(&head);
}

static size_t record_length(const char *data, size_t length) {
  uint64_t event = 0;
  for (int i = 0; i < 8 && length >= HEAD + TAIL; ++i) {
    event |= (uint64_t) (uint8_t) data[i] << 8 * i;
  }
  return length >= HEAD + TAIL && event <= length - HEAD - TAIL ? (size_t) event + HEAD + TAIL : 0;
}

static const ts_row_kind records = {"record", record_length};

/* ---- the file ---- */

/* NULL: it is no event file. */
static const char *behind_prefix(const char *name) {
  return strncmp(name, PREFIX, strlen(PREFIX)) == 0 ? name + strlen(PREFIX) : NULL;
}

bool ts_events_are_in(const char *directory) {
  bool any = false;
  DIR *all = opendir(directory);
  for (struct dirent *entry; all != NULL && !any && (entry = readdir(all)) != NULL;) {
    any = behind_prefix(entry->d_name) != NULL;
  }
  if (all != NULL) {
    closedir(all);
  }
  return any;
}

/* The largest time in the names of the event files that are there; what has other digits is of no interest. */
static long long latest_begin(const char *directory) {
  long long latest = 0;
  DIR *all = opendir(directory);
  for (struct dirent *entry; all != NULL && (entry = readdir(all)) != NULL;) {
    const char *digits = behind_prefix(entry->d_name);
    if (digits != NULL && strspn(digits, "0123456789") == SECONDS_DIGITS) {
      long long begin = strtoll(digits, NULL, 10);
      latest = begin > latest ? begin : latest;
    }
  }
  if (all != NULL) {
    closedir(all);
  }
  return latest;
}

static char *name_file(const char *directory) {
  char host[256] = "";
  long long now = (long long) time(NULL), latest = latest_begin(directory);
  if (gethostname(host, sizeof host - 1) != 0 || host[0] == 0) {
    strcpy(host, "localhost");
  }
  for (char *slash; (slash = strchr(host, '/')) != NULL;) {
    *slash = '-';
  }
  return ts_format("%s/" PREFIX "%0*lld.%s.%lld.0", directory, SECONDS_DIGITS, now > latest ? now : latest + 1, host,
                   (long long) getpid());
}

/* What a file begins with. */
static void put_first_records(ts_text *to, int64_t from) {
  static const char version[] = "brain.Event:2", start[] = {1 << 3 | VARINT, 1};
  ts_text event = {0};
  put_time(&event);
  put_bytes(&event, 3, version, strlen(version));
  put_record(to, &event);
  ts_text_free(&event);
  put_time(&event);
  put_integer(&event, 2, (uint64_t) from);
  put_bytes(&event, 7, start, sizeof start);
  put_record(to, &event);
  ts_text_free(&event);
}

ts_status ts_events_open(const char *directory, int64_t from, double hold, ts_events **out, ts_error *err) {
  ts_events *events = ts_calloc(1, sizeof *events);
  char *path = name_file(directory);
  ts_text first = {0};
  put_first_records(&first, from);
  ts_status status = ts_rows_open_kind(path, true, &records, first.text, first.length, &events->rows, err);
  ts_text_free(&first);
  ts_free(path);
  if (status == TS_OK) {
    ts_rows_hold(events->rows, hold);
  } else {
    ts_events_close(&events);
  }
  *out = events;
  return status;
}

void ts_events_scalar(ts_events *events, const char *tag, double value) {
  ts_text one = {0};
  put_bytes(&one, 1, tag, strlen(tag));
  put_float(&one, 2, value);
  put_bytes(&events->summary, 1, one.text, one.length);
  ts_text_free(&one);
}

void ts_events_write(ts_events *events, int64_t step) {
  if (events->summary.length == 0) {
    return;
  }
  ts_text event = {0}, record = {0};
  put_time(&event);
  put_integer(&event, 2, (uint64_t) step);
  put_bytes(&event, 5, events->summary.text, events->summary.length);
  put_record(&record, &event);
  ts_rows_add(events->rows, record.text, record.length);
  ts_text_free(&record);
  ts_text_free(&event);
  events->summary.length = 0;
}

void ts_events_flush(ts_events *events) {
  ts_rows_flush(events->rows);
}

void ts_events_close(ts_events **events) {
  if (*events == NULL) {
    return;
  }
  ts_rows_close(&(*events)->rows);
  ts_text_free(&(*events)->summary);
  ts_free(*events);
  *events = NULL;
}
