/* Where each key was set, for what is found wrong with it after the deck was read. */
#include "base/memory.h"
#include "deck/reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An entry is "path\tplace"; that of the deck itself has no path. */
static void add_origin(ts_deck *deck, const char *path, const char *place) {
  char *entry = ts_format("%s\t%s", path, place);
  ts_strings_add(&deck->origins, entry);
  ts_free(entry);
}

void ts_reader_keep_origins(const ts_reader *reader) {
  add_origin(reader->deck, "", reader->name);
  for (int i = 0; i < reader->n_settings; ++i) {
    char *place = ts_reader_where(reader, &reader->settings[i]);
    add_origin(reader->deck, reader->settings[i].path, place);
    ts_free(place);
  }
}

/* NULL: nobody set it. */
static const char *find_origin(const ts_deck *deck, const char *path) {
  size_t length = strlen(path);
  for (int i = 0; i < deck->origins.n; ++i) {
    const char *entry = deck->origins.items[i];
    if (strncmp(entry, path, length) == 0 && entry[length] == '\t') {
      return entry + length + 1;
    }
  }
  return NULL;
}

bool ts_deck_is_set(const ts_deck *deck, const char *path) {
  return find_origin(deck, path) != NULL;
}

const char *ts_deck_origin(const ts_deck *deck, const char *path) {
  const char *place = find_origin(deck, path);
  place = place == NULL ? find_origin(deck, "") : place;
  return place != NULL ? place : "";
}

ts_status ts_deck_error(const ts_deck *deck, const char *path, ts_error *err, const char *format, ...) {
  char *problem = NULL;
  va_list arguments;
  va_start(arguments, format);
  TS_CHECK(vasprintf(&problem, format, arguments) >= 0, "out of memory for an error message");
  va_end(arguments);
  const char *place = ts_deck_origin(deck, path);
  ts_status status = ts_error_add(err, "%s%s%s: %s", place, *place != '\0' ? ": " : "", path, problem);
  free(problem);
  return status;
}

void ts_deck_print_origins(const ts_deck *deck, ts_text *to) {
  for (int i = 0; i < deck->origins.n; ++i) {
    ts_text_add(to, "%s\n", deck->origins.items[i]);
  }
}

void ts_deck_take_origins(ts_deck *deck, const char *text) {
  ts_strings_clear(&deck->origins);
  for (const char *line = text, *stop; (stop = strchr(line, '\n')) != NULL; line = stop + 1) {
    char *entry = ts_format("%.*s", (int) (stop - line), line);
    ts_strings_add(&deck->origins, entry);
    ts_free(entry);
  }
}
