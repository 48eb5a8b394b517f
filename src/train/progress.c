#include "train/progress.h"

#include "base/log.h"
#include "base/text.h"

#include <string.h>

#define BAR 24
#define REDRAW_SECONDS 0.1

void ts_progress_begin(ts_progress *p, int64_t first, int64_t steps, int64_t log_every) {
  *p = (ts_progress){.first = first,
                     .steps = steps,
                     .log_every = log_every > 0 ? log_every : (steps + 19) / 20,
                     .begin = ts_seconds()};
}

bool ts_progress_is_shown(const ts_progress *p, int64_t done) {
  return done % p->log_every == 0 || done == p->first + 1 || done == p->steps;
}

static void fill_bar(char bar[BAR + 1], double part) {
  memset(bar, '-', BAR);
  memset(bar, '#', (size_t) (part * BAR));
  bar[BAR] = 0;
}

static void draw_bar(const ts_progress *p, int64_t done, double loss, double tokens_per_second, const char *left) {
  char bar[BAR + 1], line[160];
  fill_bar(bar, p->steps > 0 ? (double) done / (double) p->steps : 1);
  snprintf(line, sizeof line, "[%s] %lld/%lld  loss %.4f  %.0f tokens/s  ETA %s", bar, (long long) done,
           (long long) p->steps, loss, tokens_per_second, left);
  ts_log_status_line(line);
}

void ts_progress_step(ts_progress *p, int64_t done, double loss, double lr, double loss_scale,
                      double tokens_per_second) {
  double now = ts_seconds();
  bool line = ts_progress_is_shown(p, done);
  char left[32];
  ts_human_seconds((now - p->begin) / (double) (done - p->first) * (double) (p->steps - done), left);
  if (line) {
    char scale[40] = "";
    if (loss_scale > 0) {
      snprintf(scale, sizeof scale, "  loss scale %.9g", loss_scale);
    }
    ts_log(TS_LOG_INFO, "step %lld/%lld  loss %.4f  lr %.3g%s  %.0f tokens/s  ETA %s", (long long) done,
           (long long) p->steps, loss, lr, scale, tokens_per_second, left);
  }
  if (line || now - p->shown >= REDRAW_SECONDS) { /* a line erases the bar */
    p->shown = now;
    draw_bar(p, done, loss, tokens_per_second, left);
  }
}

void ts_progress_bytes(ts_progress *p, const char *what, int64_t done, int64_t all) {
  double now = ts_seconds();
  if (now - p->shown < REDRAW_SECONDS || done == 0 || all == 0) {
    return;
  }
  char bar[BAR + 1], line[160], left[32], size[32];
  double seconds = now - p->begin;
  p->shown = now;
  fill_bar(bar, done < all ? (double) done / (double) all : 1);
  snprintf(line, sizeof line, "%s [%s] of %s  %.1f MB/s  ETA %s", what, bar, ts_human_bytes((double) all, size),
           (double) done / seconds / 1e6, ts_human_seconds(seconds / (double) done * (double) (all - done), left));
  ts_log_status_line(line);
}

void ts_progress_end(ts_progress *p) {
  (void) p;
  ts_log_status_line(NULL);
}
