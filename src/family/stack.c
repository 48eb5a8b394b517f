#include "family/stack.h"

#include "base/memory.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* What the number of an expert stands behind; NULL: nothing. */
static const char *behind_module(const char *name) {
  static const char *const modules[] = {".deepspeed_experts.", ".experts."};
  const char *behind = NULL;
  for (size_t i = 0; i < sizeof modules / sizeof *modules && behind == NULL; ++i) {
    const char *at = strstr(name, modules[i]);
    behind = at != NULL ? at + strlen(modules[i]) : NULL;
  }
  return behind;
}

bool ts_stack_is(const char *name, int n_dims) {
  return (n_dims == 3 || (n_dims == 2 && ts_ends_in(name, ".bias"))) && behind_module(name) != NULL;
}

char *ts_stack_name(const char *stack, int64_t e) {
  const char *rest = behind_module(stack);
  return ts_format("%.*s%lld.%s", (int) (rest - stack), stack, (long long) e, rest);
}

char *ts_stack_of(const char *name, int64_t *e) {
  enum { MOST_DIGITS = 9 };
  const char *behind = behind_module(name), *number = behind != NULL ? behind : "";
  size_t digits = strspn(number, "0123456789");
  if (digits == 0 || digits > MOST_DIGITS || number[digits] != '.') {
    return NULL;
  }
  *e = strtoll(number, NULL, 10);
  return ts_format("%.*s%s", (int) (number - name), name, number + digits + 1);
}
