#include "view/table.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define X(type, column) {#column, offsetof(ROW, column), _Generic((type) 0, int64_t : true, double : false)},
#define END \
  { NULL, 0, false }
#define ROW ts_metrics_row
const ts_field ts_metrics_fields[] = {TS_METRICS_COLUMNS(X) END};
#undef ROW
const ts_field ts_curve_fields[] = {{"step", offsetof(ts_metrics_row, step), true},
                                    {"loss", offsetof(ts_metrics_row, loss), false},
                                    {"step_seconds", offsetof(ts_metrics_row, step_seconds), false},
                                    {"tokens_per_second", offsetof(ts_metrics_row, tokens_per_second), false},
                                    {"observed", offsetof(ts_metrics_row, observed), true},
                                    END};
#define ROW ts_validation_row
const ts_field ts_validation_fields[] = {TS_VALIDATION_COLUMNS(X) END};
#undef ROW
#define ROW ts_experts_row
const ts_field ts_experts_fields[] = {TS_EXPERTS_COLUMNS(X) END};
#undef ROW

static const ts_field *find_field(const ts_field *fields, const char *name, size_t length) {
  for (const ts_field *f = fields; f->name != NULL; ++f) {
    if (strlen(f->name) == length && memcmp(f->name, name, length) == 0) {
      return f;
    }
  }
  return NULL;
}

void ts_table_names(ts_table *t, const ts_field *fields, const char *line) {
  for (t->n_columns = 0; t->n_columns < TS_TABLE_MOST && line != NULL; ++t->n_columns) {
    const char *comma = strchrnul(line, ',');
    t->field[t->n_columns] = find_field(fields, line, (size_t) (comma - line));
    line = *comma != 0 ? comma + 1 : NULL;
  }
}

void ts_table_blank(const ts_field *fields, void *row) {
  for (const ts_field *f = fields; f->name != NULL; ++f) {
    char *to = (char *) row + f->offset;
    if (f->is_integer) {
      *(int64_t *) to = -1;
    } else {
      *(double *) to = (double) NAN;
    }
  }
}

bool ts_table_has(const ts_table *t, const char *name) {
  int i = 0;
  while (i < t->n_columns && (t->field[i] == NULL || strcmp(t->field[i]->name, name) != 0)) {
    ++i;
  }
  return i < t->n_columns;
}

static void store_number(const ts_field *field, double value, void *row) {
  char *to = (char *) row + field->offset;
  if (field->is_integer) {
    *(int64_t *) to = fabs(value) < 0x1p62 ? (int64_t) value : 0;
  } else {
    *(double *) to = ts_shown(value);
  }
}

/* The end of a column that goes nowhere is looked for, and that is all: numbers take most of the time. */
static const char *take_column(const ts_field *field, const char *text, void *row) {
  char *end = (char *) text + strcspn(text, ",");
  if (field != NULL) {
    double value = strtod(text, &end);
    if (end == text || (*end != ',' && *end != 0)) {
      return NULL;
    }
    store_number(field, value, row);
  }
  return end;
}

bool ts_table_row(const ts_table *t, const char *line, void *row) {
  for (int i = 0; i < t->n_columns; ++i) {
    const char *end = take_column(t->field[i], line, row);
    if (end == NULL || (*end == 0 && i + 1 < t->n_columns)) {
      return false;
    }
    line = end + 1;
  }
  return t->n_columns > 0;
}
