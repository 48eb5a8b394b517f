/* The file of a machine: libconfig, read by the deck's own reader, which knows the line of each value. */
#include "base/log.h"
#include "base/memory.h"
#include "deck/value.h"
#include "run/machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1, MOST_BYTES = 16 << 20, MOST_RANKS = 1 << 20, MOST_THREADS = 1024, MOST_SAMPLES = 1 << 13 };

/* ---- writing ---- */

static void add_string(const char *name, const char *value, ts_text *to) {
  ts_text_add(to, "%s = ", name);
  ts_text_add_json(to, value);
  ts_text_add(to, ";\n");
}

static int by_kind(const void *a, const void *b) {
  return ts_work_order(&(*(const ts_sample *const *) a)->work, &(*(const ts_sample *const *) b)->work);
}

static void add_samples(const ts_measured *m, ts_text *to) {
  const ts_sample **sorted = ts_malloc(((size_t) m->n + 1) * sizeof *sorted);
  for (int i = 0; i < m->n; ++i) {
    sorted[i] = &m->sample[i];
  }
  qsort(sorted, (size_t) m->n, sizeof *sorted, by_kind);
  ts_text_add(to, "    # kind; three extents: of a product m, n, k, of others operations and bytes; operations; bytes; "
                  "seconds\n    samples = (");
  for (int i = 0; i < m->n; ++i) {
    const ts_work *w = &sorted[i]->work;
    ts_text_add(to, "%s\n      (\"%s\", %.9e, %.9e, %.9e, %.9e, %.9e, %.4e)", i > 0 ? "," : "", w->kind, w->extent[0],
                w->extent[1], w->extent[2], w->flops, w->bytes, sorted[i]->seconds);
  }
  ts_text_add(to, ");\n");
  ts_free(sorted);
}

ts_status ts_machine_write(const ts_machine *machine, const char *path, ts_error *err) {
  ts_text text = {0};
  ts_text_add(&text, "# What this machine was measured to take (tessera bench); read by tessera plan --machine.\n");
  ts_text_add(&text, "tessera_machine = %d;\n", FORMAT);
  add_string("backend", machine->backend, &text);
  add_string("device", machine->device, &text);
  add_string("libraries", machine->libraries, &text);
  add_string("date", machine->date, &text);
  ts_text_add(&text, "# of so many ranks a node at work, of so many threads; FLOP/s, bytes/s, seconds\nmeasured = (");
  for (int i = 0; i < machine->n; ++i) {
    const ts_measured *m = &machine->measured[i];
    ts_text_add(&text,
                "%s\n  { ranks = %d; threads = %d;\n    product_fp32 = %.4e; product_bf16 = %.4e; copy = %.4e; host = "
                "%.4e;\n    in = %.4e; out = %.4e; both = %.4e; read = %.4e; write = %.4e;\n    slowdown = %.4f; "
                "instruction = %.4e; step = %.4e;\n",
                i > 0 ? "," : "", m->ranks, m->threads, m->product[TS_RATED_FP32], m->product[TS_RATED_LOW], m->copy,
                m->host, m->in, m->out, m->both, m->read, m->write, m->slowdown, m->instruction, m->step);
    add_samples(m, &text);
    ts_text_add(&text, "  }");
  }
  ts_text_add(&text, ");\n");
  ts_status status = ts_write_file(path, text.text, text.length, err);
  ts_text_free(&text);
  return status;
}

/* ---- reading ---- */

static ts_status wrong(const ts_value *at, const char *path, ts_error *err, const char *what) {
  return at != NULL && at->file != NULL && at->line > 0 ? ts_error_add(err, "%s:%d: %s", at->file, at->line, what)
                                                        : ts_error_add(err, "%s: %s", path, what);
}

static const ts_value *member(const ts_value *section, const char *name) {
  for (int i = 0; section->kind == TS_VALUE_SECTION && i < section->n; ++i) {
    if (strcmp(section->names[i], name) == 0) {
      return &section->items[i];
    }
  }
  return NULL;
}

/* A number within bounds. */
static ts_status number_within(const ts_value *v, const char *path, const char *name, double low, double high,
                               double *to, ts_error *err) {
  bool number = v != NULL && (v->kind == TS_VALUE_INT || v->kind == TS_VALUE_REAL);
  if (!number || !(v->real >= low && v->real <= high)) {
    char text[256];
    snprintf(text, sizeof text, "%s is %s; a number from %g to %g is wanted", name, v == NULL ? "missing" : "wrong",
             low, high);
    return wrong(v, path, err, text);
  }
  *to = v->real;
  return TS_OK;
}

static ts_status read_string(const ts_value *root, const char *path, const char *name, char **to, ts_error *err) {
  const ts_value *v = member(root, name);
  if (v == NULL || v->kind != TS_VALUE_STRING) {
    char text[96];
    snprintf(text, sizeof text, "%s is not there as a string", name);
    return wrong(v, path, err, text);
  }
  *to = ts_strdup(v->string);
  return TS_OK;
}

enum { FIELDS = 7 };

static ts_status read_sample(const ts_value *v, const char *path, ts_measured *m, ts_error *err) {
  if (v->kind != TS_VALUE_LIST || v->n != FIELDS || v->items[0].kind != TS_VALUE_STRING ||
      strlen(v->items[0].string) >= TS_WORK_TEXT) {
    return wrong(v, path, err, "a sample is (kind, extent, extent, extent, operations, bytes, seconds)");
  }
  ts_work work = {0};
  double seconds,
      *number[FIELDS] = {NULL, &work.extent[0], &work.extent[1], &work.extent[2], &work.flops, &work.bytes, &seconds};
  snprintf(work.kind, sizeof work.kind, "%s", v->items[0].string);
  ts_status status = TS_OK;
  for (int i = 1; i < FIELDS && status == TS_OK; ++i) {
    bool last = i == FIELDS - 1;
    status = number_within(&v->items[i], path, work.kind, last ? 1e-12 : 0, last ? 1e6 : 1e30, number[i], err);
  }
  if (status == TS_OK) {
    ts_measured_add(m, &work, seconds);
  }
  return status;
}

static ts_status read_measured(const ts_value *v, const char *path, ts_machine *machine, ts_error *err) {
  double ranks = 0, threads = 0;
  ts_measured of = {0};
  const struct {
    const char *name;
    double low, high, *to;
    bool optional;
  } row[] = {{"ranks", 1, MOST_RANKS, &ranks, false},
             {"threads", 1, MOST_THREADS, &threads, false},
             {"product_fp32", 1, 1e30, &of.product[TS_RATED_FP32], false},
             {"product_bf16", 1, 1e30, &of.product[TS_RATED_LOW], false},
             {"copy", 1, 1e30, &of.copy, false},
             {"host", 0, 1e30, &of.host, true},
             {"in", 0, 1e30, &of.in, true},
             {"out", 0, 1e30, &of.out, true},
             {"both", 0, 1e30, &of.both, true},
             {"read", 0, 1e30, &of.read, true},
             {"write", 0, 1e30, &of.write, true},
             {"slowdown", 1, 1e3, &of.slowdown, false},
             {"instruction", 0, 1, &of.instruction, false},
             {"step", 0, 1e3, &of.step, false}};
  if (v->kind != TS_VALUE_SECTION) {
    return wrong(v, path, err, "what was measured is a section");
  }
  ts_status status = TS_OK;
  for (size_t i = 0; i < sizeof row / sizeof *row && status == TS_OK; ++i) {
    const ts_value *number = member(v, row[i].name);
    if (number != NULL || !row[i].optional) {
      status = number_within(number, path, row[i].name, row[i].low, row[i].high, row[i].to, err);
    }
  }
  const ts_value *samples = member(v, "samples");
  if (status == TS_OK && (ranks != floor(ranks) || threads != floor(threads))) {
    status = wrong(v, path, err, "ranks and threads are whole numbers");
  }
  if (status == TS_OK && (samples == NULL || samples->kind != TS_VALUE_LIST || samples->n > MOST_SAMPLES)) {
    status = wrong(v, path, err, "samples are missing, or more than 8192");
  }
  if (status != TS_OK) {
    return status;
  }
  ts_measured *m = ts_machine_of(machine, (int) ranks, (int) threads);
  ts_free(m->sample);
  of.ranks = m->ranks;
  of.threads = m->threads;
  *m = of;
  for (int i = 0; i < samples->n && status == TS_OK; ++i) {
    status = read_sample(&samples->items[i], path, m, err);
  }
  return status;
}

static ts_status read_machine(const ts_value *root, const char *path, ts_machine *machine, ts_error *err) {
  double format = 0;
  const ts_value *measured = member(root, "measured");
  if (member(root, "tessera_machine") == NULL) {
    return ts_error_add(err, "%s: no file of tessera bench (tessera_machine is missing): a file that it writes is read",
                        path);
  }
  ts_status status =
      number_within(member(root, "tessera_machine"), path, "tessera_machine", FORMAT, FORMAT, &format, err);
  status = status == TS_OK ? read_string(root, path, "backend", &machine->backend, err) : status;
  status = status == TS_OK ? read_string(root, path, "device", &machine->device, err) : status;
  status = status == TS_OK ? read_string(root, path, "libraries", &machine->libraries, err) : status;
  status = status == TS_OK ? read_string(root, path, "date", &machine->date, err) : status;
  if (status == TS_OK && (measured == NULL || measured->kind != TS_VALUE_LIST || measured->n == 0)) {
    status = wrong(measured, path, err, "nothing was measured");
  }
  for (int i = 0; status == TS_OK && i < measured->n; ++i) {
    status = read_measured(&measured->items[i], path, machine, err);
  }
  return status;
}

ts_status ts_machine_read(const char *path, ts_machine *machine, ts_error *err) {
  char *text = NULL;
  size_t length;
  ts_source source = {.most = MOST_BYTES};
  ts_value root = {0};
  *machine = (ts_machine){0};
  ts_status status = ts_read_file(path, MOST_BYTES, &text, &length, err);
  status = status == TS_OK ? ts_value_from_config(&source, path, text, length, &root, err) : status;
  status = status == TS_OK ? read_machine(&root, path, machine, err) : status;
  ts_value_clear(&root);
  ts_source_clear(&source);
  ts_free(text);
  return status;
}
