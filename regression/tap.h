/** \file
 * The Test Anything Protocol for small C mains: one result per line, the plan at the end, the verdict as exit status.
 *
 *     int main (void) {
 *       tap_ok (1 + 1 == 2, "sum of %d and %d", 1, 1);
 *       return tap_done ();
 *     }
 *
 * A test runs in the build directory; files of the source tree are found through tap_path.  Programs on several ranks
 * use tap_mpi.h.
 */
#ifndef REGRESSION_TAP_H
#define REGRESSION_TAP_H

#include <stdbool.h>

/** Print "ok N - name" or "not ok N - name".  \return \a condition.  Not collective. */
bool tap_ok(bool condition, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Count one result as skipped, visibly, with the reason.  Not collective. */
void tap_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Print a comment line: "# text".  Not collective. */
void tap_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** False when TEST_ONLY in the environment names others (a comma-separated list): for work on one thing. Not
 * collective. */
bool tap_wanted(const char *name);

/** Print the plan.  \return The exit status of main: 0 when all results were ok and there was at least one.  Not
 * collective. */
int tap_done(void);

/** Path of a file of the source tree, e.g. tap_path ("regression/deck/good.cfg").
 * \return A string that stays valid until the program ends.  Not collective. */
const char *tap_path(const char *path);

/** Path of a fresh directory for this program's files, removed by tap_done.  One per process, made at the first call.
 * Not collective. */
const char *tap_directory(void);

#endif
