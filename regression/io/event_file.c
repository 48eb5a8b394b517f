#include "regression/io/event_file.h"

#include "base/memory.h"
#include "base/text.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

typedef struct bytes {
  const uint8_t *at;
  size_t left;
} bytes;

static uint64_t take_fixed(bytes *from, size_t n) {
  uint64_t value = 0;
  TS_CHECK(from->left >= n, "a field is cut");
  for (size_t i = 0; i < n; ++i) {
    value |= (uint64_t) from->at[i] << 8 * i;
  }
  from->at += n;
  from->left -= n;
  return value;
}

static uint64_t take_varint(bytes *from) {
  uint64_t value = 0;
  for (int shift = 0, more = 1; more; shift += 7) {
    uint64_t byte = take_fixed(from, 1);
    TS_CHECK(shift < 64, "a number without an end");
    value |= (byte & 127) << shift;
    more = byte > 127;
  }
  return value;
}

static bytes take_bytes(bytes *from) {
  size_t n = (size_t) take_varint(from);
  TS_CHECK(from->left >= n, "a message is cut");
  bytes part = {from->at, n};
  from->at += n;
  from->left -= n;
  return part;
}

/* The next field of a message: its number; its value in one of the two. */
static int take_field(bytes *from, uint64_t *value, bytes *part) {
  uint64_t key = take_varint(from);
  switch (key & 7) {
    case 0: *value = take_varint(from); break;
    case 1: *value = take_fixed(from, 8); break;
    case 2: *part = take_bytes(from); break;
    default: TS_CHECK((key & 7) == 5, "a field of another type"); *value = take_fixed(from, 4);
  }
  return (int) (key >> 3);
}

static void add(event_list *list, const char *tag, size_t length, double value) {
  list->number = ts_realloc(list->number, list->n + 1, sizeof *list->number);
  list->number[list->n++] = (event_number){.tag = ts_format("%.*s", (int) length, tag), .value = value};
}

static void read_value(event_list *list, bytes from) {
  bytes tag = {0};
  uint64_t bits = 0;
  while (from.left > 0) {
    take_field(&from, &bits, &tag);
  }
  uint32_t narrow = (uint32_t) bits;
  float value;
  memcpy(&value, &narrow, sizeof value);
  add(list, (const char *) tag.at, tag.left, (double) value);
}

static void read_event(event_list *list, bytes from) {
  size_t first = list->n;
  int64_t step = 0;
  bool timed = false;
  while (from.left > 0) {
    uint64_t value = 0, status = 0;
    bytes part = {0}, inner;
    switch (take_field(&from, &value, &part)) {
      case 1: timed = true; break;
      case 2: step = (int64_t) value; break;
      case 3: add(list, "version", 7, memcmp(part.at, "brain.Event:2", 13) == 0 ? 2 : 0); break;
      case 5:
        while (part.left > 0) {
          take_field(&part, &value, &inner);
          read_value(list, inner);
        }
        break;
      case 7:
        take_field(&part, &status, &inner);
        add(list, "session", 7, (double) status);
        break;
      default: TS_CHECK(false, "a field that nobody asked for");
    }
  }
  for (size_t i = first; i < list->n; ++i) {
    list->number[i].step = step;
  }
  list->timed = list->timed && timed;
}

static uint32_t masked(const uint8_t *at, size_t n) {
  uint32_t crc = 0xffffffff;
  for (size_t bit = 0; bit < 8 * n; ++bit) {
    uint32_t out = (crc ^ at[bit / 8] >> bit % 8) & 1;
    crc = crc >> 1 ^ (out ? 0x82f63b78 : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

/* The next record's event; false: none is whole and sound. */
static bool take_record(bytes *from, bytes *event) {
  bytes at = *from;
  if (at.left < 16) {
    return false;
  }
  uint64_t n = take_fixed(&at, 8);
  bool sound = take_fixed(&at, 4) == masked(from->at, 8) && at.left >= 4 && n <= at.left - 4;
  if (!sound) {
    return false;
  }
  *event = (bytes){at.at, (size_t) n};
  at.at += n;
  at.left -= n;
  sound = take_fixed(&at, 4) == masked(event->at, event->left);
  *from = sound ? at : *from;
  return sound;
}

void event_list_read(event_list *list, const char *data, size_t length) {
  bytes from = {(const uint8_t *) data, length}, event;
  list->timed = list->records == 0 || list->timed;
  while (take_record(&from, &event)) {
    read_event(list, event);
    ++list->records;
  }
  list->behind = from.left;
}

static int is_event_file(const struct dirent *entry) {
  return strstr(entry->d_name, "tfevents") != NULL;
}

static void drop_from(event_list *list, size_t behind, int64_t step) {
  size_t n = 0;
  for (size_t i = 0; i < list->n; ++i) {
    if (i < behind && list->number[i].step >= step) {
      ts_free(list->number[i].tag);
    } else {
      list->number[n++] = list->number[i];
    }
  }
  list->n = n;
}

int event_list_read_directory(event_list *list, const char *directory) {
  struct dirent **entry;
  int n = scandir(directory, &entry, is_event_file, alphasort);
  for (int i = 0; i < n; ++i) {
    char *path = ts_format("%s/%s", directory, entry[i]->d_name), *data;
    size_t length, before = list->n;
    TS_CHECK(ts_read_file(path, 1 << 28, &data, &length, NULL) == TS_OK, "%s", path);
    event_list_read(list, data, length);
    for (size_t k = before; k < list->n; ++k) {
      if (strcmp(list->number[k].tag, "session") == 0) {
        drop_from(list, before, list->number[k].step);
        break;
      }
    }
    ts_free(data);
    ts_free(path);
    free(entry[i]);
  }
  if (n >= 0) {
    free(entry);
  }
  return n;
}

void event_list_free(event_list *list) {
  for (size_t i = 0; i < list->n; ++i) {
    ts_free(list->number[i].tag);
  }
  ts_free(list->number);
  *list = (event_list){0};
}
