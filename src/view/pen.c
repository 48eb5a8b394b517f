#include "view/pen.h"

#include "base/memory.h"
#include "view/clean.h"

#include <stdarg.h>

bool ts_pen_line(ts_pen *pen) {
  if (pen->frame->n >= pen->look->height) {
    return false;
  }
  ts_text_append(&pen->frame->line[pen->frame->n], "", 0); /* a line of nothing has a text, too */
  pen->frame->columns[pen->frame->n++] = 0;
  pen->full = false;
  return true;
}

int ts_pen_room(const ts_pen *pen) {
  return pen->look->width - pen->frame->columns[pen->frame->n - 1];
}

static void put_styled(ts_pen *pen, ts_style style, const char *text) {
  static const char *const begin[TS_N_STYLES] = {
      [TS_BOLD] = "\033[1m", [TS_FAINT] = "\033[2m", [TS_GOOD] = "\033[32m", [TS_BAD] = "\033[1;31m"};
  ts_text *line = &pen->frame->line[pen->frame->n - 1];
  bool styled = pen->look->colour && begin[style] != NULL;
  ts_text_add(line, "%s", styled ? begin[style] : "");
  pen->frame->columns[pen->frame->n - 1] += ts_view_clean(text, ts_pen_room(pen), pen->look->utf8, line);
  ts_text_add(line, "%s", styled ? "\033[0m" : "");
}

void ts_pen_put(ts_pen *pen, ts_style style, const char *text) {
  if (text[0] != 0 && ts_pen_room(pen) > 0) {
    put_styled(pen, style, text);
  }
}

void ts_pen_field(ts_pen *pen, ts_style style, const char *format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  bool first = pen->frame->columns[pen->frame->n - 1] == 0;
  pen->full = pen->full || (!first && ts_view_columns(text, pen->look->utf8) + 2 > ts_pen_room(pen));
  if (!pen->full) {
    ts_pen_put(pen, TS_PLAIN, first ? "" : "  ");
    ts_pen_put(pen, style, text);
  }
}

void ts_pen_drawn(ts_pen *pen, const ts_text *drawn, int columns) {
  ts_text_append(&pen->frame->line[pen->frame->n - 1], drawn->text != NULL ? drawn->text : "", drawn->length);
  pen->frame->columns[pen->frame->n - 1] += columns;
}
