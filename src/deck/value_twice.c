/* Names the key that libconfig calls a "duplicate setting name": it tells only the line. */
#include "base/memory.h"
#include "deck/value.h"

#include <ctype.h>
#include <string.h>

typedef struct ts_name {
  const char *at;
  int length, line, section;
} ts_name;

typedef struct ts_names {
  ts_name *items;
  int n, capacity;
  int *open; /* Numbers of the sections around the current place. */
  int n_open, open_capacity, n_sections;
} ts_names;

static void open_section(ts_names *names) {
  TS_GROW(names->open, names->n_open, names->open_capacity);
  names->open[names->n_open++] = names->n_sections++;
}

static const char *take_name(ts_names *names, const char *p, int line) {
  int length = 0;
  while (isalnum((unsigned char) p[length]) || (p[length] != '\0' && strchr("-_*", p[length]) != NULL)) {
    ++length;
  }
  const char *next = p + length + strspn(p + length, " \t\r\n");
  if ((*next == '=' || *next == ':') && names->n_open > 0) {
    TS_GROW(names->items, names->n, names->capacity);
    names->items[names->n++] = (ts_name){p, length, line, names->open[names->n_open - 1]};
  }
  return p + length;
}

/* The second of two equal names of one section on the line, or NULL.  Cost: names of the line x names before. */
static const ts_name *find_twice(const ts_names *names, int line) {
  for (int i = 0; i < names->n; ++i) {
    const ts_name *a = &names->items[i];
    for (int k = 0; a->line == line && k < i; ++k) {
      const ts_name *b = &names->items[k];
      if (a->section == b->section && a->length == b->length && memcmp(a->at, b->at, (size_t) a->length) == 0) {
        return a;
      }
    }
  }
  return NULL;
}

char *ts_config_twice(const char *text, int line) {
  ts_names names = {0};
  open_section(&names);
  int at_line = 1;
  for (const char *p = text; *p != '\0';) {
    const char *start = p;
    if (*p == '"') {
      p = ts_json_skip_string(p);
    } else if (isalpha((unsigned char) *p) || *p == '*') {
      p = take_name(&names, p, at_line);
    } else {
      if (*p == '{') {
        open_section(&names);
      }
      names.n_open -= *p == '}' && names.n_open > 0;
      ++p;
    }
    for (; start < p; ++start) {
      at_line += *start == '\n';
    }
  }
  const ts_name *twice = find_twice(&names, line);
  char *found = twice != NULL ? ts_format("%.*s", twice->length, twice->at) : NULL;
  ts_free(names.items);
  ts_free(names.open);
  return found;
}
