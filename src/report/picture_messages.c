#include "base/memory.h"
#include "io/chart.h"
#include "report/picture_frame.h"
#include "report/pictures.h"

#include <math.h>
#include <stdlib.h>

typedef struct message_row {
  int op, ranks;
  double bytes;
  int64_t count;
  double seconds, least, most; /* of a message: sum, and extremes */
} message_row;

static int by_message(const void *a, const void *b) {
  const ts_span *x = a, *y = b;
  return x->op != y->op         ? x->op - y->op
         : x->bytes != y->bytes ? (x->bytes > y->bytes) - (x->bytes < y->bytes)
                                : x->ranks - y->ranks;
}

static int by_seconds(const void *a, const void *b) {
  const message_row *x = a, *y = b;
  return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

/* The caller's. */
static message_row *sum_messages(const ts_trace *trace, int *n) {
  ts_span *message = ts_malloc((size_t) trace->n * sizeof *message);
  message_row *row = NULL;
  int64_t messages = 0;
  int capacity = 0;
  *n = 0;
  for (int64_t i = 0; i < trace->n; ++i) {
    if (trace->span[i].thread == TS_TIMELINE_COMMUNICATION && trace->span[i].ranks > 1) {
      message[messages++] = trace->span[i];
    }
  }
  qsort(message, (size_t) messages, sizeof *message, by_message);
  for (int64_t i = 0; i < messages; ++i) {
    const ts_span *m = &message[i];
    if (i == 0 || by_message(m, m - 1) != 0) {
      TS_GROW(row, *n, capacity);
      row[(*n)++] = (message_row){.op = m->op, .ranks = m->ranks, .bytes = m->bytes, .least = INFINITY};
    }
    message_row *r = &row[*n - 1];
    ++r->count;
    r->seconds += m->seconds;
    r->least = fmin(r->least, m->seconds);
    r->most = fmax(r->most, m->seconds);
  }
  ts_free(message);
  return row;
}

enum { MOST_MESSAGE_ROWS = 40 };

bool ts_picture_messages(const ts_trace *trace, ts_text *html) {
  int n;
  message_row *row = trace->n > 0 ? sum_messages(trace, &n) : NULL;
  if (row == NULL) {
    return false;
  }
  char bytes[32], rate[32];
  qsort(row, (size_t) n, sizeof *row, by_seconds);
  static const char *const headings[] = {
      "operation", "size", "ranks", "messages of a rank", "ms of a rank", "ms each", "least", "most", "rate", NULL};
  ts_table_begin(headings, html);
  for (int i = 0; i < n && i < MOST_MESSAGE_ROWS; ++i) {
    const message_row *r = &row[i];
    const double each = r->seconds / (double) r->count;
    const double numbers[] = {1e3 * r->seconds / trace->n_read, 1e3 * each, 1e3 * r->least, 1e3 * r->most};
    ts_text_add(html, "<tr>");
    ts_table_cell(html, "%s", trace->op[r->op]);
    ts_table_cell(html, "%s", ts_human_bytes(r->bytes, bytes));
    ts_table_cell(html, "%d", r->ranks);
    ts_table_cell(html, "%.4g", (double) r->count / trace->n_read);
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; ++k) {
      ts_table_cell(html, "%.3f", numbers[k]);
    }
    ts_table_cell(html, "%s/s", ts_human_bytes(each > 0 ? r->bytes / each : 0, rate));
    ts_text_add(html, "</tr>\n");
  }
  ts_text_add(html, TS_TABLE_END);
  if (n > MOST_MESSAGE_ROWS) {
    ts_text_add(html, "<p>%d more kinds of messages took less.</p>\n", n - MOST_MESSAGE_ROWS);
  }
  ts_free(row);
  return true;
}
