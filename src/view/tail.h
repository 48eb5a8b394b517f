/** \file
 * A file that another process appends lines to, read on from where it was.  A file that was replaced, cut or written
 * anew, as a run that goes on does with its tables, is read from its beginning again: it is another file, it is
 * shorter, or what was read last is not there any more.  Nothing here is collective.
 */
#ifndef TS_VIEW_TAIL_H
#define TS_VIEW_TAIL_H

#include "base/text.h"

/** Longest line, bytes; a longer one is left out. */
#define TS_TAIL_LINE 65536

/** What is to be done with what is read. */
typedef struct ts_tail_reader {
  void (*begin)(void *user);                  /**< The file is read from its beginning; what came before is void. */
  void (*line)(void *user, const char *line); /**< A whole line, without its newline. */
  void *user;
} ts_tail_reader;

typedef struct ts_tail {
  char *path;       /**< Owned. */
  int64_t from_end; /**< Of a file that is begun only the last so many bytes are read; 0: all. */
  int file;         /**< Owned; -1: not there.  Kept open, so that no other file gets its number. */
  int64_t offset;   /**< Of what has not been read yet. */
  ts_text half;     /**< Of the line that has begun there. */
  bool skips;       /**< Until the next newline. */
  char last[64];    /**< What stands ahead of the offset. */
  size_t n_last;
} ts_tail;

/** Prepare to read \a path, which need not be there yet.  End with ts_tail_close. Not collective. */
void ts_tail_open(ts_tail *tail, const char *path, int64_t from_end);

/** Read what has come, at most some megabytes at a time.  What is no plain file has no lines.
 * \return bytes read; 0: nothing is left for now. Not collective. */
int64_t ts_tail_read(ts_tail *tail, const ts_tail_reader *reader);

/** Free what it has. Not collective. */
void ts_tail_close(ts_tail *tail);

#endif
