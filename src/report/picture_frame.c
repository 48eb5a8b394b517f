#include "report/picture_frame.h"

#include "base/memory.h"
#include "io/chart.h"

#include <stdarg.h>

void ts_picture_begin(int height, const char *label, ts_text *svg) {
  ts_text_add(svg,
              "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\" "
              "font-size=\"12\" fill=\"var(--soft)\">\n",
              TS_PICTURE_WIDTH, height, label);
}

void ts_picture_key(const char *const *name, int n, const int *color, ts_text *html) {
  ts_text_add(html, "<p class=\"key\">");
  for (int i = 0; i < n; ++i) {
    ts_text_add(html, "<span><i class=\"b%d\"></i>", color[i] % TS_PICTURE_COLORS);
    ts_markup_add(html, name[i]);
    ts_text_add(html, "</span> ");
  }
  ts_text_add(html, "</p>\n");
}

void ts_table_begin(const char *const *heading, ts_text *html) {
  ts_text_add(html, "<table><thead><tr>");
  for (; *heading != NULL; ++heading) {
    ts_text_add(html, "<th>%s</th>", *heading);
  }
  ts_text_add(html, "</tr></thead><tbody>\n");
}

void ts_table_cell(ts_text *html, const char *format, ...) {
  va_list list;
  va_start(list, format);
  int length = vsnprintf(NULL, 0, format, list);
  va_end(list);
  char *text = ts_malloc((size_t) length + 1);
  va_start(list, format);
  vsnprintf(text, (size_t) length + 1, format, list);
  va_end(list);
  ts_text_add(html, "<td>");
  ts_markup_add(html, text);
  ts_text_add(html, "</td>");
  ts_free(text);
}
