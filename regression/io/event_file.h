/** \file
 * Event files as a test reads them: by the format's own rules, with a checksum bit by bit.  Nothing here is collective.
 */
#ifndef REGRESSION_IO_EVENT_FILE_H
#define REGRESSION_IO_EVENT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** A number of an event, or what a record without numbers says. */
typedef struct event_number {
  int64_t step;
  char *tag;    /**< Owned; of a session that starts "session", of a version "version". */
  double value; /**< Of a session its status. */
} event_number;

typedef struct event_list {
  event_number *number; /**< Owned. */
  size_t n;
  int records;   /**< That were whole and had the checksums they should. */
  size_t behind; /**< Bytes behind them. */
  bool timed;    /**< Every record says when it was written. */
} event_list;

/** Append what a file's \a length bytes say, up to the first record that is damaged or not whole. Not collective. */
void event_list_read(event_list *list, const char *data, size_t length);

/** Append what all event files of a directory say, in the order of their names; a session drops, of what is there, the
 * numbers from its step on.  Not collective.
 * \return the number of files. */
int event_list_read_directory(event_list *list, const char *directory);

/** Free and empty.  Not collective. */
void event_list_free(event_list *list);

#endif
