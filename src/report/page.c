#include "report/page.h"

#include "base/memory.h"
#include "deck/deck.h"
#include "deck/deck_read.h"
#include "io/chart.h"
#include "report/assets.h"
#include "report/curves.h"
#include "report/picture_frame.h"
#include "report/pictures.h"

#include <math.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { MOST_JOBS = 50, MOST_DECK_BYTES = 500000 }; /* that are shown, of all runs together */

typedef struct page {
  const ts_report_run *run;
  int n;
  const ts_report_units *units;
  ts_curves curves; /* owned */
  char nonce[33];
  ts_text *html;
} page;

/* ---- the parts of the page ---- */

static void add_run_table(const page *p) {
  ts_text *to = p->html;
  ts_text_add(to, "<section><div class=\"scroll\"><table><thead><tr><th>run</th>");
  for (const ts_report_column *c = ts_report_columns; c->name != NULL; ++c) {
    char *heading = ts_report_heading(c, p->units);
    ts_text_add(to, "<th>%s</th>", heading);
    ts_free(heading);
  }
  ts_text_add(to, "</tr></thead><tbody>\n");
  for (int run = 0; run < p->n; ++run) {
    ts_text_add(to, "<tr>");
    ts_table_cell(to, "%s", p->run[run].name);
    for (const ts_report_column *c = ts_report_columns; c->name != NULL; ++c) {
      double value = c->value(&p->run[run], p->units);
      ts_text_add(to, "<td>");
      ts_text_add(to, isfinite(value) ? c->format : "-", value);
      ts_text_add(to, "</td>");
    }
    ts_text_add(to, "</tr>\n");
  }
  ts_text_add(to,
              TS_TABLE_END "</div>\n<p class=\"soft\">Times and rates are medians without the first %d steps of a job, "
                           "saves, validations and observed steps.</p></section>\n",
              TS_REPORT_WARM);
}

/* A heading where there are several runs; the picture of each that has one. */
static void begin_page_part(const page *p, int run, const char *title, bool *begun) {
  if (!*begun) {
    ts_text_add(p->html, "<section><h2>%s</h2>\n", title);
    *begun = true;
  }
  if (p->n > 1) {
    ts_text_add(p->html, "<h3>");
    ts_markup_add(p->html, p->run[run].name);
    ts_text_add(p->html, "</h3>\n");
  }
}

static void end_page_part(const page *p, bool begun) {
  ts_text_add(p->html, begun ? "</section>\n" : "");
}

static void add_run_part(const page *p, int run, const char *title, bool *begun, const ts_text *picture, bool figure) {
  begin_page_part(p, run, title, begun);
  ts_text_add(p->html, figure ? "<figure>" : "<div class=\"scroll\">");
  ts_text_append(p->html, picture->text, picture->length);
  ts_text_add(p->html, figure ? "</figure>\n" : "</div>\n");
}

static bool memory_picture(const page *p, const ts_report_run *run, ts_text *to) {
  return ts_picture_memory(&run->memory, p->n, to);
}

static bool experts_picture(const page *p, const ts_report_run *run, ts_text *to) {
  return ts_picture_experts(&run->experts, p->n, to);
}

static bool slowest_picture(const page *p, const ts_report_run *run, ts_text *to) {
  return ts_picture_slowest(run, p->n, to);
}

static bool add_pictures(const page *p, const char *title,
                         bool (*picture)(const page *p, const ts_report_run *run, ts_text *to), bool figure) {
  bool begun = false;
  for (int run = 0; run < p->n; ++run) {
    ts_text text = {0};
    if (picture(p, &p->run[run], &text)) {
      add_run_part(p, run, title, &begun, &text, figure);
    }
    ts_text_free(&text);
  }
  end_page_part(p, begun);
  return begun;
}

/* That of the last job that has left one; a run that was moved has it beside its metrics. The caller's; NULL: none. */
static char *find_timeline(const ts_report_run *run) {
  for (int j = run->n_jobs - 1; j >= 0; --j) {
    const char *path = run->jobs[j].timeline, *slash = path != NULL ? strrchr(path, '/') : NULL;
    if (path != NULL && path[0] != 0) {
      char *beside = ts_format("%s/%s", run->directory, slash != NULL ? slash + 1 : path);
      if (access(beside, R_OK) == 0) {
        return beside;
      }
      ts_free(beside);
      if (access(path, R_OK) == 0) {
        return ts_strdup(path);
      }
    }
  }
  return NULL;
}

static bool was_observed(const page *p) {
  for (int run = 0; run < p->n; ++run) {
    for (int64_t row = 0; row < p->run[run].metrics.n_rows; ++row) {
      if (ts_report_value(&p->run[run], row, TS_METRIC_observed) > 0) {
        return true;
      }
    }
  }
  return false;
}

static bool step_picture(const page *p, const ts_report_run *run, ts_text *to) {
  char *path = find_timeline(run);
  const bool found = path != NULL;
  ts_trace trace = {0};
  ts_text picture = {0}, messages = {0};
  ts_error err = {0};
  bool read = path != NULL && ts_trace_read(path, &trace, &err) == TS_OK;
  bool any = read && ts_picture_timeline(&trace, p->n, &picture);
  if (any) {
    ts_text_add(to, "<figure>%s", picture.text);
    ts_text_add(to, trace.step > 0 ? "<p class=\"soft\">Step %lld; " : "<p class=\"soft\">", (long long) trace.step);
    ts_text_add(to,
                "times are on rank 0's clock, give or take %.3g us.  Of each rank the upper lane is what it computed, "
                "the lower one its messages.  A viewer of Chrome traces opens the file with every op: ",
                1e6 * trace.bound);
    ts_markup_add(to, path);
    ts_text_add(to, "</p></figure>\n");
    if (ts_picture_messages(&trace, &messages)) {
      ts_text_add(to, "<h3>Messages of that step</h3><div class=\"scroll\">%s</div>\n", messages.text);
    }
  } else if (path != NULL) {
    ts_text_add(to, "<p class=\"warn\">");
    ts_markup_add(to, read ? path : err.text);
    ts_text_add(to, "%s</p>\n", read ? ": no timeline" : "");
  }
  ts_text_free(&picture);
  ts_text_free(&messages);
  ts_trace_clear(&trace);
  ts_error_clear(&err);
  ts_free(path);
  return found;
}

/* ---- jobs and decks ---- */

static bool jobs_table(const page *p, const ts_report_run *run, ts_text *to) {
  static const char *const headings[] = {"began (UTC)", "behind step", "job",  "ranks", "nodes",
                                         "threads",     "ZeRO",        "grid", "types", "device",
                                         "launcher",    "version",     NULL};
  const int most = MOST_JOBS / p->n > 3 ? MOST_JOBS / p->n : 3;
  if (run->n_jobs == 0) {
    return false;
  }
  ts_table_begin(headings, to);
  for (int j = run->n_jobs > most ? run->n_jobs - most : 0; j < run->n_jobs; ++j) {
    const ts_job *job = &run->jobs[j];
    const int64_t numbers[] = {job->ranks, job->nodes, job->threads, job->stage};
    const char *const texts[] = {job->grid, job->types, job->device, job->launcher, job->version};
    char when[40] = "?";
    struct tm utc;
    time_t began = (time_t) fmin(fmax(job->began, 0), 1e12);
    if (gmtime_r(&began, &utc) != NULL) {
      strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &utc);
    }
    ts_text_add(to, "<tr>");
    ts_table_cell(to, "%s", when);
    ts_table_cell(to, "%lld", (long long) job->step);
    ts_table_cell(to, "%s", job->job != NULL && job->job[0] != 0 ? job->job : "-");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
      ts_table_cell(to, "%lld", (long long) numbers[i]);
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i) {
      ts_table_cell(to, "%s", texts[i] != NULL ? texts[i] : "-");
    }
    ts_text_add(to, "</tr>\n");
  }
  ts_text_add(to, TS_TABLE_END);
  return true;
}

static bool deck_text(const page *p, const ts_report_run *run, ts_text *to) {
  if (run->deck != NULL && strlen(run->deck) > MOST_DECK_BYTES / (size_t) p->n) {
    ts_text_add(to, "<p class=\"soft\">Left out, as it is too large beside the others: ");
    ts_markup_add(to, run->directory);
    ts_text_add(to, "/deck.cfg</p>");
  } else if (run->deck != NULL) {
    ts_text_add(to, "<details><summary>deck.cfg</summary><pre>");
    ts_markup_add(to, run->deck);
    ts_text_add(to, "</pre></details>");
  }
  return run->deck != NULL;
}

static void add_difference(const page *p, int run) {
  static const char *const ignored[] = {"run.directory", "profile.timeline", "tensorboard.", "csv_monitor.", NULL};
  ts_deck *first = NULL, *other = NULL;
  ts_text text = {0};
  ts_error err = {0};
  ts_text_add(p->html, "<h3>");
  ts_markup_add(p->html, p->run[run].name);
  ts_text_add(p->html, " against ");
  ts_markup_add(p->html, p->run[0].name);
  ts_text_add(p->html, "</h3>\n<pre>");
  if (p->run[0].deck == NULL || p->run[run].deck == NULL) {
    ts_text_add(p->html, "a deck.cfg is missing");
  } else if (ts_deck_read_text(p->run[0].name, p->run[0].deck, NULL, 0, &first, &err) != TS_OK ||
             ts_deck_read_text(p->run[run].name, p->run[run].deck, NULL, 0, &other, &err) != TS_OK) {
    ts_markup_add(p->html, err.text);
  } else {
    bool differ = ts_deck_differences(first, other, "", ignored, &text) > 0;
    ts_markup_add(p->html, differ ? text.text : "the same");
  }
  ts_text_add(p->html, "</pre>\n");
  ts_deck_destroy(&first);
  ts_deck_destroy(&other);
  ts_error_clear(&err);
  ts_text_free(&text);
}

static void add_differences(const page *p) {
  if (p->n > 1) {
    ts_text_add(p->html, "<section><h2>Differences of decks</h2>\n");
    for (int run = 1; run < p->n; ++run) {
      add_difference(p, run);
    }
    ts_text_add(p->html, "</section>\n");
  }
}

/* ---- the page ---- */

static void make_nonce(char nonce[33]) {
  unsigned char bytes[16];
  TS_CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "the system has no random numbers");
  for (int i = 0; i < 16; ++i) {
    snprintf(nonce + 2 * i, 3, "%02x", bytes[i]);
  }
}

static void add_run_names(const page *p) {
  for (int run = 0; run < p->n && run < 8; ++run) {
    ts_text_add(p->html, "%s", run > 0 ? ", " : "");
    ts_markup_add(p->html, p->run[run].name);
  }
  ts_text_add(p->html, "%s", p->n > 8 ? ", ..." : "");
}

static void add_page_head(const page *p) {
  ts_text *to = p->html;
  ts_text_add(
      to,
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta "
      "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src "
      "'nonce-%s'; base-uri 'none'; form-action 'none'\"/>\n<meta name=\"generator\" content=\"" TS_REPORT_MARK
      "\"/>\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"/>\n<title>",
      p->nonce);
  add_run_names(p);
  ts_text_add(to, "</title>\n<style>\n/*<![CDATA[*/\n%s%s/*]]>*/\n</style>\n</head>\n<body>\n<h1>",
              ts_asset_dygraphs_css, ts_asset_page_css);
  add_run_names(p);
  ts_text_add(to, "</h1>\n");
  for (int run = 0; run < p->n; ++run) {
    const ts_report_run *r = &p->run[run];
    const ts_job *job = r->n_jobs > 0 ? &r->jobs[r->n_jobs - 1] : NULL;
    char count[32];
    ts_text_add(to, "<p class=\"soft\">");
    ts_markup_add(to, r->directory);
    if (job != NULL && job->model != NULL) {
      ts_text_add(to, ": ");
      ts_markup_add(to, job->model);
      ts_text_add(to, " of %s parameters", ts_human_count(job->parameters, count));
    }
    ts_text_add(to, r->state != NULL ? "; " : "");
    ts_markup_add(to, r->state != NULL ? r->state : "");
    ts_text_add(to, "</p>\n");
    if (r->damage != NULL) {
      ts_text_add(to, "<p class=\"warn\">");
      ts_markup_add(to, r->damage);
      ts_text_add(to, "</p>\n");
    }
  }
}

static void add_scripts(const page *p) {
  if (!p->curves.plain) {
    ts_curves_add_data(&p->curves, p->html);
    ts_text_add(p->html, "<script nonce=\"%s\">\n//<![CDATA[\n%s\n//]]>\n</script>\n", p->nonce, ts_asset_dygraphs_js);
    ts_text_add(p->html, "<script nonce=\"%s\">\n//<![CDATA[\n%s//]]>\n</script>\n", p->nonce, ts_asset_page_js);
  }
}

void ts_report_page(const ts_report_run *run, int n, const ts_report_units *units, bool plain, ts_text *html) {
  page p = {.run = run, .n = n, .units = units, .curves = ts_curves_make(run, n, units, plain), .html = html};
  make_nonce(p.nonce);
  add_page_head(&p);
  add_run_table(&p);
  ts_curves_add_section(&p.curves, html);
  add_pictures(&p, "Memory over a step", memory_picture, true);
  if (!add_pictures(&p, "The observed step", step_picture, false) && !was_observed(&p)) {
    ts_text_add(html, "<section><h2>The observed step</h2>\n<p class=\"soft\">None was: a run with --set "
                      "profile.timeline=FILE has one, of which this shows what each rank did, and its messages.</p>"
                      "</section>\n");
  }
  add_pictures(&p, "Which rank was slowest", slowest_picture, false);
  add_pictures(&p, "Load of experts", experts_picture, true);
  add_pictures(&p, "Jobs", jobs_table, false);
  add_differences(&p);
  add_pictures(&p, "Decks", deck_text, false);
  add_scripts(&p);
  ts_text_add(html, "</body>\n</html>\n");
  ts_curves_clear(&p.curves);
}
