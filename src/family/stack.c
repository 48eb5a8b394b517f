#include "family/stack.h"

#include "base/memory.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#define MARK ".experts."

bool ts_stack_is(const char *name, int n_dims) {
  return n_dims == 3 && strstr(name, MARK) != NULL;
}

char *ts_stack_name(const char *stack, int64_t e) {
  const char *rest = strstr(stack, MARK) + strlen(MARK);
  return ts_format("%.*s%lld.%s", (int) (rest - stack), stack, (long long) e, rest);
}

char *ts_stack_of(const char *name, int64_t *e) {
  enum { MOST_DIGITS = 9 };
  const char *mark = strstr(name, MARK), *number = mark != NULL ? mark + strlen(MARK) : "";
  size_t digits = strspn(number, "0123456789");
  if (digits == 0 || digits > MOST_DIGITS || number[digits] != '.') {
    return NULL;
  }
  *e = strtoll(number, NULL, 10);
  return ts_format("%.*s%s", (int) (number - name), name, number + digits + 1);
}
