#include "base/memory.h"
#include "report/picture_frame.h"
#include "report/pictures.h"

#include <math.h>
#include <string.h>

enum { LANE = 9, GAP = 5, MOST_LANES = 64, MOST_BOXES = 16000, LEAST_BINS = 60, OTHER = 7, MOST_BEGINNINGS = 10 };

/* Kinds of ops that have a colour; what is not told by its name is OTHER. */
static const struct {
  const char *text;
  const char *beginnings[MOST_BEGINNINGS]; /* of names of ops */
} classes[TS_PICTURE_COLORS] = {
    {"products", {"matmul", "mlp", "grouped", "linear"}},
    {"attention", {"attention"}},
    {"head and loss", {"head", "cross_entropy", "loss"}},
    {"messages", {"all_", "reduce_", "send", "receive", "broadcast", "exchange", "share"}},
    {"copies", {"copy", "load", "store"}},
    {"update", {"adam", "update", "sgd", "lion", "adagrad", "momentum", "sum_squares", "step_control", "lamb", "muon"}},
    {"routing", {"route", "dispatch", "combine", "take_rows"}},
    {"other", {NULL}}};

static int class_of(const char *op) {
  for (int k = 0; k < OTHER; ++k) {
    for (int i = 0; i < MOST_BEGINNINGS && classes[k].beginnings[i] != NULL; ++i) {
      if (strncmp(op, classes[k].beginnings[i], strlen(classes[k].beginnings[i])) == 0) {
        return k;
      }
    }
  }
  return OTHER;
}

typedef struct lanes {
  const ts_trace *trace;
  int n, ranks, bins;
  double *busy; /* owned: [lanes][bins][TS_PICTURE_COLORS] seconds */
  double of_class[TS_PICTURE_COLORS];
} lanes;

static void spread(lanes *l, const ts_span *span) {
  const double width = l->trace->seconds / l->bins;
  const int lane = 2 * span->rank + (span->thread != TS_TIMELINE_COMPUTATION), kind = class_of(l->trace->op[span->op]);
  double end = span->start + span->seconds;
  int first = (int) fmin(fmax(span->start / width, 0), l->bins - 1), last = (int) fmin(end / width, l->bins - 1);
  for (int bin = first; bin <= last; ++bin) {
    double part = fmin(end, (bin + 1) * width) - fmax(span->start, bin * width);
    l->busy[((int64_t) lane * l->bins + bin) * TS_PICTURE_COLORS + kind] += fmax(part, 0);
  }
  l->of_class[kind] += span->seconds;
}

/* The class that takes most of a bin; -1: it is idle for more than half. */
static int class_of_bin(const lanes *l, int lane, int bin) {
  const double *busy = l->busy + ((int64_t) lane * l->bins + bin) * TS_PICTURE_COLORS;
  double all = 0;
  int most = 0;
  for (int k = 0; k < TS_PICTURE_COLORS; ++k) {
    all += busy[k];
    most = busy[k] > busy[most] ? k : most;
  }
  return all > 0.5 * l->trace->seconds / l->bins ? most : -1;
}

static int y_of_lane(int lane) {
  return 10 + lane * LANE + lane / 2 * GAP;
}

/* One path a class and lane: boxes of neighbouring bins are one. */
static void draw_lane(const lanes *l, int lane, ts_text *svg) {
  for (int k = 0; k < TS_PICTURE_COLORS; ++k) {
    ts_text path = {0};
    for (int bin = 0, end; bin < l->bins; bin = end) {
      for (end = bin + 1; end < l->bins && class_of_bin(l, lane, end) == class_of_bin(l, lane, bin); ++end) {
      }
      if (class_of_bin(l, lane, bin) == k) {
        ts_text_add(&path, "M%.1f %dh%.1fv%dh%.1fz", TS_PICTURE_LEFT + (double) TS_PICTURE_DRAWN * bin / l->bins,
                    y_of_lane(lane), (double) TS_PICTURE_DRAWN * (end - bin) / l->bins, LANE - 1,
                    -(double) TS_PICTURE_DRAWN * (end - bin) / l->bins);
      }
    }
    if (path.length > 0) {
      ts_text_add(svg, "<path class=\"f%d\" d=\"%s\"><title>rank %d: %s</title></path>\n", k, path.text, lane / 2,
                  classes[k].text);
    }
    ts_text_free(&path);
  }
}

static void draw_times(const lanes *l, ts_text *svg) {
  const int low = y_of_lane(l->n);
  for (int i = 0; i <= 5; ++i) {
    double x = TS_PICTURE_LEFT + TS_PICTURE_DRAWN * i / 5.0;
    ts_text_add(svg,
                "<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"6\" y2=\"%d\"/><text text-anchor=\"%s\" x=\"%.1f\" "
                "y=\"%d\">%.4g ms</text>\n",
                x, x, low, i < 5 ? "middle" : "end", x, low + 16, 1e3 * l->trace->seconds * i / 5);
  }
  for (int rank = 0; rank < l->ranks; ++rank) {
    ts_text_add(svg, "<text text-anchor=\"end\" x=\"%d\" y=\"%d\">rank %d</text>\n", TS_PICTURE_LEFT - 6,
                y_of_lane(2 * rank) + 13, rank);
  }
}

bool ts_picture_timeline(const ts_trace *trace, int runs, ts_text *svg) {
  if (trace->n == 0 || !(trace->seconds > 0)) {
    return false;
  }
  lanes l = {.trace = trace, .ranks = trace->n_ranks < MOST_LANES / 2 ? trace->n_ranks : MOST_LANES / 2};
  l.n = 2 * l.ranks;
  l.bins = MOST_BOXES / l.n / runs < TS_PICTURE_DRAWN ? MOST_BOXES / l.n / runs : TS_PICTURE_DRAWN;
  l.bins = l.bins > LEAST_BINS ? l.bins : LEAST_BINS;
  l.busy = ts_calloc((size_t) l.n * (size_t) l.bins * TS_PICTURE_COLORS, sizeof *l.busy);
  for (int64_t i = 0; i < trace->n; ++i) {
    if (trace->span[i].rank < l.ranks && trace->span[i].thread != TS_TIMELINE_INSTANCES) {
      spread(&l, &trace->span[i]);
    }
  }
  ts_picture_begin(y_of_lane(l.n) + 24, "what ranks did in the observed step", svg);
  draw_times(&l, svg);
  const char *name[TS_PICTURE_COLORS];
  int color[TS_PICTURE_COLORS], n = 0;
  for (int lane = 0; lane < l.n; ++lane) {
    draw_lane(&l, lane, svg);
  }
  for (int k = 0; k < TS_PICTURE_COLORS; ++k) {
    if (l.of_class[k] > 0) {
      name[n] = classes[k].text;
      color[n++] = k;
    }
  }
  ts_text_add(svg, "</svg>\n");
  ts_picture_key(name, n, color, svg);
  const int64_t left = trace->n_ranks - l.ranks + trace->n_left;
  if (left > 0) {
    ts_text_add(svg, "<p>%lld more rank%s not drawn.</p>\n", (long long) left, left > 1 ? "s are" : " is");
  }
  ts_free(l.busy);
  return true;
}
