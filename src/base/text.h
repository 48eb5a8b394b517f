/** \file
 * Text: a growing buffer, reading files, spelling suggestions, human-readable numbers.  Nothing here is collective.
 */
#ifndef TS_BASE_TEXT_H
#define TS_BASE_TEXT_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

/** A string that grows.  Zero-initialise; `text` is always terminated once something was added.  Free with
 * ts_text_free. */
typedef struct ts_text {
  char *text;    /**< Owned; NULL while empty. */
  size_t length; /**< Bytes without the terminator. */
  size_t capacity;
} ts_text;

/** Append formatted text. Not collective. */
void ts_text_add(ts_text *to, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Append \a bytes bytes as they are. Not collective. */
void ts_text_append(ts_text *to, const char *bytes, size_t length);

/** Append \a text as a quoted JSON string. Not collective. */
void ts_text_add_json(ts_text *to, const char *text);

/** Append \a word as one word of a POSIX shell, in single quotes where it needs them. Not collective. */
void ts_text_add_shell(ts_text *to, const char *word);

/** Append a shape: "[2, 3]". Not collective. */
void ts_text_add_shape(ts_text *to, const int64_t *d, int n);

/** Free and empty. Not collective. */
void ts_text_free(ts_text *text);

/** Newly allocated formatted string; free with ts_free. Not collective. */
char *ts_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Read a whole file.
 * \param [out] text  Owned by the caller (ts_free), terminated by a 0 that is not counted in \a length; NULL on error.
 * \param [in] limit  Largest accepted size in bytes.
 * \return TS_BAD_INPUT with "PATH: reason" when it cannot be read or is larger. Not collective.
 */
ts_status ts_read_file(const char *path, size_t limit, char **text, size_t *length, ts_error *err);

/** Open a regular file of at most \a limit bytes for reading.  A pipe or a device, which may never begin or end, is
 * refused, and nothing is waited for: what a run directory of somebody else has is opened this way.
 * \return the caller's (fclose); NULL with "PATH: reason". Not collective. */
FILE *ts_open_plain(const char *path, size_t limit, ts_error *err);

/** The same as ts_read_file for a file that ts_open_plain opens. Not collective. */
ts_status ts_read_plain_file(const char *path, size_t limit, char **text, size_t *length, ts_error *err);

/** The next line of a file, without its end, into \a line of \a size bytes; of a longer one what has room, and the rest
 * is passed over.
 * \return its length in the file, of size bytes or more where it was cut; -1: there is none. Not collective. */
int64_t ts_next_line(FILE *file, char *line, size_t size);

/** Write \a length bytes to PATH.tmp and rename it to PATH, so that a reader sees the old or the new file.
 * \return TS_BAD_INPUT with the reason. Not collective. */
ts_status ts_write_file(const char *path, const char *text, size_t length, ts_error *err);

/** Could ts_write_file write it?  To be asked before long work; what is there is left alone. Not collective.
 * \return TS_BAD_INPUT with the reason. */
ts_status ts_try_writing(const char *path, ts_error *err);

/** Is there a \a name in \a directory, whatever it is? Not collective. */
bool ts_has_file(const char *directory, const char *name);

/** The last part of a directory's real path, so that "." has a name too; owned by the caller (ts_free). Not
 * collective. */
char *ts_directory_name(const char *directory);

/** Are both there, and one file or directory? Not collective. */
bool ts_is_same_file(const char *a, const char *b);

/** The same file by a path that says so from anywhere: without links, "." and "..", as far as it is there; what is not
 * there yet is taken by its name.  Owned by the caller (ts_free); the empty path stays empty. Not collective. */
char *ts_full_path(const char *path);

/** Create a directory and its parents; existing ones are fine. Not collective. */
ts_status ts_make_directory(const char *path, ts_error *err);

/** True when \a text ends in \a end. Not collective. */
bool ts_ends_in(const char *text, const char *end);

/** The candidate nearest to \a word in edit distance, or NULL when none is near (more than a third of the word
 * differs; two letters may from four on, one below).
 * \param [in] candidates  Array of \a n borrowed strings. Not collective. */
const char *ts_nearest(const char *word, const char *const *candidates, size_t n);

/** Of a match: it took more steps than one may, as nested repetitions do, or more memory. */
#define TS_MATCH_GIVEN_UP (-2)

/** Glob-free pattern match: true when the PCRE2 regular expression \a pattern matches anywhere in \a text.
 * \return 1 match, 0 none, -1 the pattern is not a valid expression, TS_MATCH_GIVEN_UP nobody knows: the same on every
 * machine. Not collective. */
int ts_matches(const char *pattern, const char *text);

/** The same from the beginning of \a text on, whose end need not be reached: Python's re.match. Not collective. */
int ts_matches_from(const char *pattern, const char *text);

/** A computed number as it may be shown: a NaN loses the sign that the processor happened to give it, which printf
 * would show as "-nan".  Applied where numbers come from: the step's record, a validation, a table. Not collective. */
double ts_shown(double value);

/** A number of JSON, of all its digits, or "null", which JSON has for NaN and infinity; into \a out of at least 32
 * bytes; returns \a out. Not collective. */
char *ts_json_number(double value, char *out);

/** Bytes of "5GB", "500MB", "1.5GiB" or "4096"; case does not matter. Not collective.
 * \return false, and nothing is written: it is none, or not from 1 to 9e18. */
bool ts_parse_bytes(const char *word, int64_t *bytes);

/** "1.50 GB" (decimal units), "12.3 M", "1:02:03" into \a out of at least 32 bytes; returns \a out. Not collective. */
char *ts_human_bytes(double bytes, char *out);
char *ts_human_count(double count, char *out);
char *ts_human_seconds(double seconds, char *out);

#endif
