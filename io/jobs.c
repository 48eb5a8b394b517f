#include "io/jobs.h"

#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 16 << 20, MOST_JOBS = 1000 };

#define FILE_NAME "jobs.jsonl"

static void add_member_name(ts_text *to, const char *name) {
  ts_text_add(to, "%s\"%s\": ", to->length > 1 ? ", " : "", name);
}

static void print_job(const ts_job *job, ts_text *to) {
  ts_text_add(to, "{");
#define TEXT(name)            \
  add_member_name(to, #name); \
  ts_text_add_json(to, job->name != NULL ? job->name : "");
#define INTEGER(name)         \
  add_member_name(to, #name); \
  ts_text_add(to, "%lld", (long long) job->name);
#define REAL(name)            \
  add_member_name(to, #name); \
  ts_text_add(to, "%.17g", isfinite(job->name) ? job->name : 0);
  TS_JOB_MEMBERS(TEXT, INTEGER, REAL)
#undef TEXT
#undef INTEGER
#undef REAL
  ts_text_add(to, "}\n");
}

/* Behind what a job that died has left of a line comes a new one. */
static bool needs_newline(FILE *file) {
  return fseek(file, -1, SEEK_END) == 0 && fgetc(file) != '\n';
}

ts_status ts_jobs_add(const char *directory, bool over, const ts_job *job, ts_error *err) {
  char *path = ts_format("%s/" FILE_NAME, directory);
  FILE *file = fopen(path, over ? "w+" : "a+");
  ts_text line = {0};
  print_job(job, &line);
  bool ok = file != NULL;
  if (ok) {
    bool newline = needs_newline(file);
    fseek(file, 0, SEEK_END);
    ok = (!newline || fputc('\n', file) != EOF) && fwrite(line.text, 1, line.length, file) == line.length;
    ok = fclose(file) == 0 && ok;
  }
  ts_status status = ok ? TS_OK : ts_error_add(err, "%s: cannot be written: %s", path, strerror(errno));
  ts_text_free(&line);
  ts_free(path);
  return status;
}

static char *job_text(const json_t *object, const char *name) {
  const char *text = json_string_value(json_object_get(object, name));
  return text != NULL ? ts_strdup(text) : NULL;
}

static double job_number(const json_t *object, const char *name) {
  const json_t *member = json_object_get(object, name);
  double value = json_is_number(member) ? json_number_value(member) : 0;
  return isfinite(value) ? value : 0;
}

/* 0 for what is negative, or no integer of 53 bits. */
static int64_t job_integer(const json_t *object, const char *name) {
  double value = job_number(object, name);
  return value >= 0 && value < 9007199254740992.0 ? (int64_t) value : 0;
}

static ts_job job_of_line(const json_t *object) {
  return (ts_job){
#define TEXT(name) .name = job_text(object, #name),
#define INTEGER(name) .name = job_integer(object, #name),
#define REAL(name) .name = job_number(object, #name),
      TS_JOB_MEMBERS(TEXT, INTEGER, REAL)
#undef TEXT
#undef INTEGER
#undef REAL
  };
}

static void free_texts(ts_job *job) {
#define TEXT(name) ts_free(job->name);
#define INTEGER(name)
#define REAL(name)
  TS_JOB_MEMBERS(TEXT, INTEGER, REAL)
#undef TEXT
#undef INTEGER
#undef REAL
}

static void read_jobs_lines(const char *text, size_t length, ts_job **jobs, int *n) {
  int capacity = 0;
  for (const char *line = text, *end; line < text + length; line = end + 1) {
    end = memchr(line, '\n', (size_t) (text + length - line));
    end = end != NULL ? end : text + length;
    json_t *object = json_loadb(line, (size_t) (end - line), JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(object)) {
      if (*n == MOST_JOBS) { /* the last ones count */
        free_texts(&(*jobs)[0]);
        memmove(*jobs, *jobs + 1, (size_t)-- * n * sizeof **jobs);
      }
      TS_GROW(*jobs, *n, capacity);
      (*jobs)[(*n)++] = job_of_line(object);
    }
    json_decref(object);
  }
}

ts_status ts_jobs_read(const char *directory, ts_job **jobs, int *n, ts_error *err) {
  char *path = ts_format("%s/" FILE_NAME, directory), *text;
  size_t length;
  ts_status status = TS_OK;
  *jobs = NULL;
  *n = 0;
  if (access(path, F_OK) == 0) {
    status = ts_read_plain_file(path, MOST_BYTES, &text, &length, err);
    if (status == TS_OK) {
      read_jobs_lines(text, length, jobs, n);
      ts_free(text);
    }
  }
  ts_free(path);
  return status;
}

void ts_jobs_free(ts_job **jobs, int n) {
  for (int i = 0; i < n; ++i) {
    free_texts(&(*jobs)[i]);
  }
  ts_free(*jobs);
  *jobs = NULL;
}

const ts_job *ts_jobs_of(const ts_job *jobs, int n, int64_t step) {
  const ts_job *job = NULL;
  for (int i = 0; i < n; ++i) {
    job = jobs[i].step < step ? &jobs[i] : job;
  }
  return job;
}
