/* What a report makes of a run's files: which steps count, rates by each convention, thinned curves, jobs, timelines;
 * and that nothing of a user's text becomes markup. */
#include "base/log.h"
#include "base/memory.h"
#include "io/chart.h"
#include "io/timeline_read.h"
#include "regression/tap.h"
#include "report/page.h"
#include "report/pictures.h"
#include "report/series.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a run made up ---- */

static char *directory_of(const char *name) {
  char *path = ts_format("%s/%s", tap_directory(), name);
  ts_error err = {0};
  TS_CHECK(ts_make_directory(path, &err) == TS_OK, "%s", err.text);
  return path;
}

static void write_file(const char *directory, const char *name, const char *text) {
  char *path = ts_format("%s/%s", directory, name);
  ts_error err = {0};
  TS_CHECK(ts_write_file(path, text, strlen(text), &err) == TS_OK, "%s", err.text);
  ts_free(path);
}

enum { STEPS = 40 };

/* Steps of 0.1 s of which some are disturbed: those take 9 s.  The second job goes on behind step 20. */
static bool is_disturbed(int step) {
  return step <= 3 || (step > 20 && step <= 23) || (step > 8 && step <= 10) || step == 12 || step == 31;
}

static void write_run(const char *directory) {
  ts_text csv = {0};
  ts_text_add(
      &csv,
      "step,tokens,loss,step_seconds,tokens_per_second,save_seconds,save_step,observed,slowest_rank,slowest_seconds\n");
  for (int step = 1; step <= STEPS; ++step) {
    double seconds = is_disturbed(step) ? 9 : 0.1;
    ts_text_add(&csv, "%d,%d,%s,%g,%g,%d,%d,%d,%d,%g\n", step, 1000 * step, step == 7 ? "nan" : "2.5", seconds,
                1000 / seconds, step == 10, step == 10 ? 8 : 0, step == 12, step % 4 == 0, step == 13 ? 5 : 0.05);
  }
  write_file(directory, "metrics.csv", csv.text);
  write_file(directory, "validation.csv", "step,loss\n30,2.25\n40,2.5\n");
  ts_text_free(&csv);
  const ts_job job = {.ranks = 2,
                      .nodes = 1,
                      .parameters = 2e6,
                      .active = 1e6,
                      .tokens_per_step = 1000,
                      .flops = 7e9,
                      .flops_full = 8e9,
                      .peak_flops = 2e12,
                      .device = "a \"device\"\n<b>",
                      .planned_bytes = 5000000000};
  ts_job again = job;
  again.step = 20;
  again.ranks = 4;
  TS_CHECK(ts_jobs_add(directory, true, &job, NULL) == TS_OK && ts_jobs_add(directory, false, &again, NULL) == TS_OK,
           "jobs");
}

/* ---- jobs ---- */

static void test_jobs(const char *directory) {
  ts_job *jobs;
  int n;
  TS_CHECK(ts_jobs_read(directory, &jobs, &n, NULL) == TS_OK, "jobs.jsonl");
  tap_ok(n == 2 && strcmp(jobs[0].device, "a \"device\"\n<b>") == 0 && jobs[1].step == 20 && jobs[1].ranks == 4 &&
             jobs[0].flops_full == 8e9,
         "jobs are read as they were written");
  tap_ok(ts_jobs_of(jobs, n, 20) == &jobs[0] && ts_jobs_of(jobs, n, 21) == &jobs[1] &&
             ts_jobs_of(jobs, n, 1) == &jobs[0] && ts_jobs_of(jobs, 0, 1) == NULL,
         "a step is of the last job that began before it");
  tap_ok(ts_jobs_of(jobs + 1, 1, 20) == NULL, "a step before all that are known is of none");
  ts_jobs_free(&jobs, n);
  char *bad = directory_of("bad_jobs");
  write_file(bad, "jobs.jsonl",
             "{\"ranks\": -3, \"nodes\": 1e300, \"device\": 7}\nno json\n[1]\n{\"ranks\": 8, \"job\": \"x\"");
  TS_CHECK(ts_jobs_read(bad, &jobs, &n, NULL) == TS_OK, "jobs.jsonl");
  tap_ok(n == 1 && jobs[0].ranks == 0 && jobs[0].nodes == 0 && jobs[0].device == NULL,
         "lines that are none are passed over, numbers that are none are 0");
  ts_jobs_free(&jobs, n);
  TS_CHECK(ts_jobs_add(bad, false, &(ts_job){.ranks = 5}, NULL) == TS_OK, "added");
  TS_CHECK(ts_jobs_read(bad, &jobs, &n, NULL) == TS_OK, "jobs.jsonl");
  tap_ok(n == 2 && jobs[1].ranks == 5, "behind a line that was cut comes a new one");
  ts_jobs_free(&jobs, n);
  for (int i = 0; i < 1500; ++i) {
    TS_CHECK(ts_jobs_add(bad, i == 0, &(ts_job){.ranks = i + 1, .step = i}, NULL) == TS_OK, "added");
  }
  TS_CHECK(ts_jobs_read(bad, &jobs, &n, NULL) == TS_OK, "jobs.jsonl");
  tap_ok(n == 1000 && jobs[n - 1].ranks == 1500, "of many the last ones are read");
  ts_jobs_free(&jobs, n);
  char *file = ts_format("%s/jobs.jsonl", bad);
  TS_CHECK(remove(file) == 0 && ts_make_directory(file, NULL) == TS_OK, "a directory");
  tap_ok(ts_jobs_read(bad, &jobs, &n, NULL) == TS_BAD_INPUT && n == 0, "what cannot be read is an error");
  ts_free(file);
  ts_free(bad);
}

/* ---- rates ---- */

static double seconds_of(const ts_report_run *run, int64_t row, const void *user) {
  (void) user;
  return ts_report_value(run, row, TS_METRIC_step_seconds);
}

static void test_rates(const ts_report_run *run) {
  bool right = true;
  for (int step = 1; step <= STEPS; ++step) {
    right = right && run->steady[step - 1] == !is_disturbed(step);
  }
  tap_ok(right, "warm-up of both jobs, saves, observed steps and what follows a validation do not count");
  tap_ok(ts_report_median(run, seconds_of, NULL) == 0.1, "the median is of the others");
  tap_ok(ts_report_tokens_per_device(run, 18) == 5000 && ts_report_tokens_per_device(run, 38) == 2500,
         "a rate is by the ranks of its job");
  static const double flops[TS_N_FLOPS_CONVENTIONS] = {6e9, 7e9, 8e9};
  for (int c = 0; c < TS_N_FLOPS_CONVENTIONS; ++c) {
    double rate = ts_report_flops_per_device(run, 38, (ts_flops_convention) c);
    double mfu = ts_report_mfu(run, 38, (ts_flops_convention) c, 0);
    double of = ts_report_mfu(run, 38, (ts_flops_convention) c, 312e12);
    tap_ok(fabs(rate - flops[c] / 0.1 / 4) < 1 && fabs(mfu - flops[c] / 0.1 / 2e12) < 1e-12 &&
               fabs(of - flops[c] / 0.4 / 312e12) < 1e-15,
           "%s: FLOPs, and parts of either peak", ts_flops_rows[c].text);
  }
}

/* The rows of the article "From DeepSpeed to FSDP and back again with Hugging Face Accelerate", table 3: Granite 7B, 4
 * A100s of 312 TFLOP/s, 8 sequences of 4096 tokens a device.  Its MFU comes out of its tokens as 6 N. */
static void test_article(void) {
  static const struct {
    double tokens;
    const char *seconds, *mfu;
  } row[] = {{3158.7, "10.4", "0.41"}, {3094.5, "10.6", "0.40"}};
  for (int i = 0; i < 2; ++i) {
    char *directory = directory_of(i == 0 ? "fsdp" : "deepspeed");
    ts_text csv = {0};
    ts_text_add(&csv, "step,tokens,loss,step_seconds,tokens_per_second\n");
    for (int step = 1; step <= 9; ++step) {
      ts_text_add(&csv, "%d,%d,2,%.9g,%.9g\n", step, step * 131072, 32768 / row[i].tokens, 4 * row[i].tokens);
    }
    write_file(directory, "metrics.csv", csv.text);
    ts_text_free(&csv);
    const ts_job job = {.ranks = 4,
                        .parameters = 6738415616.0,
                        .active = 6738415616.0,
                        .tokens_per_step = 131072,
                        .flops = 5.9e15,
                        .flops_full = 6.6e15};
    TS_CHECK(ts_jobs_add(directory, true, &job, NULL) == TS_OK, "job");
    ts_report_run run;
    ts_text table = {0};
    TS_CHECK(ts_report_run_read(directory, &run, NULL) == TS_OK, "read");
    ts_report_table(&run, 1, &(ts_report_units){TS_FLOPS_6N, 312e12}, "markdown", &table, NULL);
    char *tokens = ts_format(" %.1f |", row[i].tokens), *seconds = ts_format(" %s |", row[i].seconds),
         *mfu = ts_format(" %s |", row[i].mfu);
    bool right = strstr(table.text, tokens) && strstr(table.text, seconds) && strstr(table.text, mfu);
    if (!tap_ok(right, "the article's row of %s tokens a second:%s%s", tokens, seconds, mfu)) {
      tap_note("%s", table.text);
    }
    ts_free(tokens);
    ts_free(seconds);
    ts_free(mfu);
    ts_text_free(&table);
    ts_report_run_clear(&run);
    ts_free(directory);
  }
}

static void test_table(const ts_report_run *run) {
  static const struct {
    const char *format, *has;
  } formats[] = {{"text", "steps  Tokens/sec/device"},
                 {"markdown", "|---|--:|"},
                 {"csv", "run,flops_convention,devices,steps,tokens_per_second_per_device,"},
                 {"json", "\"flops_convention\": \"6N + 6LCT\", \"devices\": 4, \"steps\": 40"}};
  const ts_report_units units = {.convention = TS_FLOPS_CAUSAL};
  for (size_t i = 0; i < sizeof formats / sizeof *formats; ++i) {
    ts_text text = {0};
    ts_status status = ts_report_table(run, 1, &units, formats[i].format, &text, NULL);
    tap_ok(status == TS_OK && strstr(text.text, formats[i].has) != NULL && strstr(text.text, "nan") == NULL,
           "a table as %s", formats[i].format);
    ts_text_free(&text);
  }
  ts_error err = {0};
  ts_text text = {0};
  tap_ok(ts_report_table(run, 1, &units, "xml", &text, &err) == TS_BAD_INPUT &&
             strstr(err.text, "text, markdown, csv or json") != NULL,
         "another format is refused");
  ts_error_clear(&err);
  ts_text_free(&text);
}

/* ---- curves ---- */

static void test_series(const ts_report_run *run) {
  const ts_report_units units = {0};
  ts_series all = ts_series_make(run, &units, 1000), few = ts_series_make(run, &units, 5);
  tap_ok(all.n == STEPS && few.n == 5 && few.step[4] == STEPS && few.step[0] == 8, "curves are thinned");
  /* the second piece: steps 9, 10, 12 take 9 s, but 12 was observed; 11, 13 to 16 take 0.1 s */
  tap_ok(fabs(few.value[TS_SERIES_SPEED][1] - 0.5 * 7000 / 18.5) < 1e-3, "rates of a piece are tokens over time: %g",
         few.value[TS_SERIES_SPEED][1]);
  tap_ok(isnan(all.value[TS_SERIES_SLOWEST][11]) && all.value[TS_SERIES_SLOWEST][12] == 50 &&
             isnan(all.value[TS_SERIES_SLOWEST][19]) && isnan(all.value[TS_SERIES_SLOWEST][39]),
         "the slowest of a step is told by the row behind it: not of the observed one, nor of a job's last");
  tap_ok(isnan(all.value[TS_SERIES_LOSS][6]) && few.value[TS_SERIES_LOSS][0] == 2.5,
         "what is no number is left out of means");
  tap_ok(isnan(all.value[TS_SERIES_SPEED][11]) && all.value[TS_SERIES_SPEED][12] == 5000,
         "the observed step is in no curve of times");
  tap_ok(!ts_series_has(&all, TS_SERIES_MFU) == false && !ts_series_has(&all, TS_SERIES_LR),
         "a column that a run has not makes no curve");
  double tokens, hours;
  ts_series_place(run, 20, &tokens, &hours);
  tap_ok(tokens == 20000 && fabs(hours * 3600 - (6 * 9 + 14 * 0.1)) < 1e-6, "tokens and hours of a step");
  ts_series_place(run, 0, &tokens, &hours);
  tap_ok(isnan(tokens) && isnan(hours), "before the first step there are none");
  ts_series_clear(&all);
  ts_series_clear(&few);
}

/* ---- timelines ---- */

/* A timeline of rank \a rank, of one span of a kind of its own. */
static void write_rank(const char *path, int rank, int64_t step, int ranks) {
  char *mine = rank == 0 ? ts_strdup(path) : ts_format("%s.rank%d", path, rank), *op = ts_format("op%d", rank);
  ts_timeline *timeline;
  const ts_timeline_clock clock = {.step = step, .ranks = ranks, .bound = rank};
  TS_CHECK(ts_timeline_open(mine, rank, -1, &clock, &timeline, NULL) == TS_OK, "opened");
  ts_timeline_event(timeline, "a", op, TS_TIMELINE_COMPUTATION, 10 + rank, 1);
  ts_timeline_close(&timeline);
  ts_free(op);
  ts_free(mine);
}

/* Files that a larger run, or another step, has left. */
static void test_stale_ranks(const char *path) {
  ts_trace trace;
  write_rank(path, 0, 7, 3);
  write_rank(path, 1, 3, 4);
  write_rank(path, 2, 7, 3);
  write_rank(path, 3, 7, 4);
  ts_status status = ts_trace_read(path, &trace, NULL);
  tap_ok(status == TS_OK && trace.step == 7 && trace.n_read == 2 && trace.n_ranks == 3 && trace.n == 2 &&
             trace.n_ops == 2 && trace.bound == 2 && trace.span[0].rank == 0 && trace.span[1].rank == 2,
         "ranks of another step, and beyond those of the run, are none of it");
  ts_trace_clear(&trace);
  char *lies = ts_format("%s/lies.json", tap_directory());
  write_file(tap_directory(), "lies.json", "], \"otherData\": {\"step\": 1, \"ranks\": 9e15}}");
  tap_ok(ts_trace_read(lies, &trace, NULL) == TS_OK && trace.n_read == 1, "a number of ranks that cannot be ends");
  ts_trace_clear(&trace);
  ts_free(lies);
}

/* What is no timeline, and may never begin or end. */
static void test_endless(void) {
  ts_trace trace;
  char *path = ts_format("%s/endless.json", tap_directory());
  alarm(60); /* where it is waited for */
  TS_CHECK(mkfifo(path, 0600) == 0, "%s", path);
  tap_ok(ts_trace_read(path, &trace, NULL) == TS_BAD_INPUT && trace.n_read == 0, "a pipe is no timeline");
  ts_trace_clear(&trace);
  TS_CHECK(remove(path) == 0 && symlink("/dev/zero", path) == 0, "%s", path);
  tap_ok(ts_trace_read(path, &trace, NULL) == TS_BAD_INPUT && trace.n_read == 0, "a device is no timeline");
  ts_trace_clear(&trace);
  TS_CHECK(remove(path) == 0, "%s", path);
  write_file(tap_directory(), "endless.json", "");
  TS_CHECK(truncate(path, (off_t) 1 << 40) == 0, "%s", path);
  tap_ok(ts_trace_read(path, &trace, NULL) == TS_BAD_INPUT && trace.n_read == 0, "nor a terabyte of nothing");
  ts_trace_clear(&trace);
  alarm(0);
  ts_text text = {0};
  static const char *const name[] = {"a", "b", "c"}; /* b's line is longer than any that a run writes */
  for (int i = 0; i < 3; ++i) {
    ts_text_add(&text, "{\"ph\": \"X\", \"cat\": \"%s\", \"ts\": 1, \"dur\": 1, \"tid\": 0%*s},\n", name[i],
                i == 1 ? 1 << 17 : 0, "");
  }
  write_file(tap_directory(), "endless.json", text.text);
  tap_ok(ts_trace_read(path, &trace, NULL) == TS_OK && trace.n == 2 && trace.n_ops == 2 &&
             strcmp(trace.op[1], "c") == 0,
         "a line of no end is passed over, those behind it are read");
  ts_trace_clear(&trace);
  ts_text_free(&text);
  ts_free(path);
}

static void test_trace(void) {
  char *path = ts_format("%s/t.json", tap_directory());
  ts_trace trace;
  for (int rank = 0; rank < 2; ++rank) {
    char *mine = rank == 0 ? ts_strdup(path) : ts_format("%s.rank1", path);
    ts_timeline *timeline;
    const ts_timeline_clock clock = {.step = 3, .ranks = 2, .offset = 5, .bound = 1e-6 * (1 + rank)};
    TS_CHECK(ts_timeline_open(mine, rank, -1, &clock, &timeline, NULL) == TS_OK, "opened");
    ts_timeline_event(timeline, "a \"name\"", "matmul", TS_TIMELINE_COMPUTATION, 10 + rank, 2);
    ts_timeline_message(timeline, "sum", "all_reduce", 12 + rank, 0.5, 4096, 2);
    ts_timeline_close(&timeline);
    ts_free(mine);
  }
  ts_status status = ts_trace_read(path, &trace, NULL);
  tap_ok(status == TS_OK && trace.n_ranks == 2 && trace.n == 4 && trace.n_ops == 2 && trace.step == 3 &&
             fabs(trace.bound - 2e-6) < 1e-12 && fabs(trace.seconds - 3.5) < 1e-9,
         "the timelines of both ranks are one");
  ts_text svg = {0}, messages = {0};
  tap_ok(ts_picture_timeline(&trace, 1, &svg) && strstr(svg.text, "rank 1: products") != NULL &&
             strstr(svg.text, "rank 1: messages") != NULL && strstr(svg.text, "attention") == NULL,
         "a picture of what they did");
  /* 4096 bytes in half a second */
  tap_ok(ts_picture_messages(&trace, &messages) &&
             strstr(messages.text, "<td>all_reduce</td><td>4.10 kB</td><td>2</td><td>1</td><td>500.000</td>") != NULL &&
             strstr(messages.text, "<td>8.19 kB/s</td>") != NULL,
         "a table of their messages");
  ts_text_free(&svg);
  ts_text_free(&messages);
  ts_trace_clear(&trace);
  write_file(tap_directory(), "t.json.rank1",
             "{\"ph\": \"X\", \"cat\": 3}\n{\"ph\": \"X\", \"cat\": \"a\", \"ts\": 1e400}\n{");
  status = ts_trace_read(path, &trace, NULL);
  tap_ok(status == TS_OK && trace.n == 2, "what is no span is passed over");
  ts_trace_clear(&trace);
  test_stale_ranks(path);
  test_endless();
  tap_ok(ts_trace_read("/nonexistent", &trace, NULL) == TS_BAD_INPUT, "a file that is not there is an error");
  ts_trace_clear(&trace);
  ts_free(path);
}

/* ---- pictures ---- */

static void test_pictures(const ts_report_run *run) {
  ts_text html = {0};
  /* told by rows 2 to 20 and 22 to 40 of the steps before them, without step 12: every fourth row says rank 1 */
  tap_ok(ts_picture_slowest(run, 1, &html) && strstr(html.text, "<td>0</td><td>27</td>") != NULL &&
             strstr(html.text, "<td>1</td><td>10</td>") != NULL && strstr(html.text, ">rank 3</text>") != NULL,
         "which rank was slowest, and how often");
  ts_text_free(&html);
  tap_ok(!ts_picture_memory(&run->memory, 1, &html) && !ts_picture_experts(&run->experts, 1, &html) && html.length == 0,
         "what a run does not have makes no picture");
  char *directory = directory_of("moe");
  write_file(directory, "moe.csv", "step,layer,largest\n1,0,1\n1,1,3\n2,0,nan\n2,1,2\n2,-1,2\n2,1e300,9\n");
  write_file(directory, "memory.csv",
             "instruction,phase,parameters,</title><b>,gaps\n0,0,100,0,5\n1,1,100,50,5\n2,2,100,20,5\n");
  char *moe = ts_format("%s/moe.csv", directory), *memory = ts_format("%s/memory.csv", directory);
  ts_csv csv;
  TS_CHECK(ts_csv_read(moe, &csv, NULL) == TS_OK, "moe.csv");
  tap_ok(ts_picture_experts(&csv, 1, &html) && strstr(html.text, "at a step is 3.00 times") != NULL &&
             strstr(html.text, "layer 1<") != NULL && strstr(html.text, "nan") == NULL,
         "the load of experts");
  ts_csv_free(&csv);
  ts_text_free(&html);
  TS_CHECK(ts_csv_read(memory, &csv, NULL) == TS_OK, "memory.csv");
  tap_ok(ts_picture_memory(&csv, 1, &html) && strstr(html.text, "at once is 155 B") != NULL &&
             strstr(html.text, "&lt;/title&gt;&lt;b&gt;: 50 B at most") != NULL,
         "memory over a step: %s", html.text != NULL ? strstr(html.text, "The most") : "");
  ts_csv_free(&csv);
  ts_text_free(&html);
  ts_free(moe);
  ts_free(memory);
  ts_free(directory);
}

static void test_markup(void) {
  static const struct {
    const char *text, *markup;
  } rows[] = {{"<b a=\"1\" c='2'>&</b>", "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;&lt;/b&gt;"},
              {"a\x01\x1b[2Jb\x7f", "a  [2Jb "},
              {"\xff\xc3(", "\xef\xbf\xbd\xef\xbf\xbd("},
              {"\xc2\x85 \xc3\xa4", "  \xc3\xa4"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_text text = {0};
    ts_markup_add(&text, rows[i].text);
    tap_ok(strcmp(text.text, rows[i].markup) == 0, "escaped: %s", rows[i].markup);
    ts_text_free(&text);
  }
}

/* A page without its scripts, which are the same whatever the runs are. The caller's. */
static ts_text make_page(const ts_report_run *run, bool plain) {
  ts_text page = {0};
  ts_report_page(run, 1, &(ts_report_units){0}, plain, &page);
  bool whole = strstr(page.text, "</body>\n</html>\n") != NULL;
  char *script = strstr(page.text, "<script nonce=");
  if (script != NULL) {
    *script = 0;
  }
  TS_CHECK(whole, "the page ends");
  return page;
}

static void test_page(const ts_report_run *run, bool plain) {
  ts_text page = make_page(run, plain);
  tap_ok(strstr(page.text, "<b>") == NULL && strstr(page.text, "a &quot;device&quot;\n&lt;b&gt;") != NULL,
         "a page takes nothing of a run for markup");
  tap_ok(strstr(page.text, "default-src 'none'") != NULL && strstr(page.text, " src=") == NULL &&
             strstr(page.text, "<link") == NULL && strstr(page.text, "@import") == NULL &&
             strstr(page.text, "nan") == NULL,
         "and loads nothing");
  ts_text_free(&page);
}

static void test_damaged(void) {
  ts_report_run run;
  ts_error err = {0};
  char *directory = directory_of("damaged");
  tap_ok(ts_report_run_read(directory, &run, &err) == TS_BAD_INPUT && strstr(err.text, "metrics.csv") != NULL,
         "no metrics: %s", err.text);
  ts_report_run_clear(&run);
  ts_error_clear(&err);
  write_file(directory, "metrics.csv", "step,loss\n1,2\n");
  tap_ok(ts_report_run_read(directory, &run, &err) == TS_BAD_INPUT && strstr(err.text, "lacks a column") != NULL,
         "too few columns: %s", err.text);
  ts_report_run_clear(&run);
  ts_error_clear(&err);
  static const char *const odd[] = {"", "step,tokens,loss\n", "step,tokens,loss\n1,5,nan\n",
                                    "step,tokens,loss\n1,5,inf\n2,1e300,-inf\n3,nan,1\n4,5,"};
  write_file(directory, "validation.csv", "step,loss\n1,x\n");
  for (size_t i = 0; i < sizeof odd / sizeof *odd; ++i) {
    ts_text table = {0};
    write_file(directory, "metrics.csv", odd[i]);
    ts_status status = ts_report_run_read(directory, &run, &err);
    ts_text page = make_page(&run, i % 2 == 1);
    ts_report_table(&run, 1, &(ts_report_units){0}, "text", &table, NULL);
    tap_ok(status == TS_OK && run.metrics.n_rows == (int64_t) (i == 3 ? 3 : i == 2) &&
               strstr(run.damage, "validation.csv") != NULL && strstr(page.text, "nan") == NULL &&
               strstr(page.text, "inf,") == NULL,
           "a page of odd numbers %zu", i);
    ts_text_free(&page);
    ts_text_free(&table);
    ts_report_run_clear(&run);
  }
  ts_error_clear(&err);
  ts_free(directory);
}

int main(void) {
  char *directory = directory_of("a run");
  ts_report_run run;
  ts_error err = {0};
  write_run(directory);
  test_jobs(directory);
  TS_CHECK(ts_report_run_read(directory, &run, &err) == TS_OK, "%s", err.text);
  test_rates(&run);
  test_article();
  test_table(&run);
  test_series(&run);
  test_trace();
  test_pictures(&run);
  test_markup();
  test_page(&run, false);
  test_page(&run, true);
  test_damaged();
  ts_report_run_clear(&run);
  ts_free(directory);
  return tap_done();
}
