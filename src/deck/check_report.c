#include "base/text.h"
#include "deck/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST_MESSAGES 100

/* The one global of this room: set by tests only. */
static ts_deck_check disabled = TS_N_DECK_CHECKS;

void ts_deck_test_disable(ts_deck_check check) {
  disabled = check;
}

const char *ts_deck_check_name(ts_deck_check check) {
  static const char *const names[] = {
#define X(name) #name,
      TS_DECK_CHECKS(X)
#undef X
  };
  return names[check];
}

ts_status ts_deck_report(ts_error *err, ts_deck_check check, const char *where, const char *key, const char *format,
                         ...) {
  if (check == disabled) {
    return TS_OK;
  }
  if (err != NULL && err->count >= MOST_MESSAGES) {
    return err->count == MOST_MESSAGES ? ts_error_add(err, "more errors are not shown") : TS_BAD_INPUT;
  }
  char *problem = NULL;
  va_list arguments;
  va_start(arguments, format);
  TS_CHECK(vasprintf(&problem, format, arguments) >= 0, "out of memory for an error message");
  va_end(arguments);
  ts_error_add(err, "%s%s%s%s%s", where, *where != '\0' ? ": " : "", key, *key != '\0' ? ": " : "", problem);
  free(problem);
  return TS_BAD_INPUT;
}
