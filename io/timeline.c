#include "io/timeline.h"

#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <string.h>

struct ts_timeline {
  FILE *file;
  char *path; /* owned */
  int rank, stage;
};

static const char *const threads[TS_N_TIMELINE_THREADS] = {
#define X(name, text) [TS_TIMELINE_##name] = text,
    TS_TIMELINE_THREADS(X)
#undef X
};

static void write_head(const ts_timeline *t, const ts_timeline_clock *clock) {
  fprintf(t->file, "{\"displayTimeUnit\": \"ms\", ");
  if (clock != NULL) {
    fprintf(t->file,
            "\"otherData\": {\"step\": %lld, \"ranks\": %d, \"clock_offset_us\": %.3f, \"clock_bound_us\": %.3f}, ",
            (long long) clock->step, clock->ranks, 1e6 * clock->offset, 1e6 * clock->bound);
  }
  fprintf(t->file, "\"traceEvents\": [\n");
  char stage[32] = "";
  if (t->stage >= 0) {
    snprintf(stage, sizeof stage, "stage %d, ", t->stage);
  }
  fprintf(t->file, "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": \"%srank %d\"}}",
          t->rank, stage, t->rank);
  fprintf(t->file, ",\n{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"sort_index\": %d}}",
          t->rank, t->stage >= 0 ? t->stage : t->rank);
  for (int i = 0; i < (t->stage >= 0 ? TS_N_TIMELINE_THREADS : TS_TIMELINE_INSTANCES); ++i) {
    fprintf(t->file,
            ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": \"%s\"}}",
            t->rank, i, threads[i]);
  }
}

ts_status ts_timeline_open(const char *path, int rank, int stage, const ts_timeline_clock *clock, ts_timeline **out,
                           ts_error *err) {
  *out = NULL;
  FILE *file = fopen(path, "w");
  if (file == NULL) {
    return ts_error_add(err, "%s: cannot be written: %s", path, strerror(errno));
  }
  *out = ts_malloc(sizeof **out);
  **out = (ts_timeline){file, ts_strdup(path), rank, stage};
  write_head(*out, clock);
  return TS_OK; // cppcheck-suppress resourceLeak
}

/* A span without its end. */
static void add_span(ts_text *line, int rank, const char *name, const char *category, int thread, double start,
                     double seconds) {
  TS_ASSERT(isfinite(start) && isfinite(seconds) && thread >= 0 && thread < TS_N_TIMELINE_THREADS);
  ts_text_add(line, ",\n{\"name\": ");
  ts_text_add_json(line, name);
  ts_text_add(line, ", \"cat\": ");
  ts_text_add_json(line, category);
  ts_text_add(line, ", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f", rank, thread, 1e6 * start,
              1e6 * seconds);
}

static void write_span(ts_timeline *t, ts_text *line) {
  ts_text_add(line, "}");
  fputs(line->text, t->file);
  ts_text_free(line);
}

void ts_timeline_event(ts_timeline *t, const char *name, const char *category, int thread, double start,
                       double seconds) {
  ts_text line = {0};
  add_span(&line, t->rank, name, category, thread, start, seconds);
  write_span(t, &line);
}

void ts_timeline_message(ts_timeline *t, const char *name, const char *category, double start, double seconds,
                         double bytes, int ranks) {
  ts_text line = {0};
  add_span(&line, t->rank, name, category, TS_TIMELINE_COMMUNICATION, start, seconds);
  ts_text_add(&line, ", \"args\": {\"bytes\": %.0f, \"ranks\": %d}", bytes, ranks);
  write_span(t, &line);
}

void ts_timeline_close(ts_timeline **timeline) {
  ts_timeline *t = *timeline;
  if (t == NULL) {
    return;
  }
  fprintf(t->file, "\n]}\n");
  bool failed = ferror(t->file) != 0;
  failed = fclose(t->file) != 0 || failed;
  TS_CHECK(!failed, "%s cannot be written: %s", t->path, strerror(errno));
  ts_free(t->path);
  ts_free(t);
  *timeline = NULL;
}
