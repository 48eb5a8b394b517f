#include "base/cgroup.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "regression/files.h"
#include "regression/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void test_philox(void) {
  static const struct {
    uint64_t word;
    uint32_t expected[4];
  } known[] = {/* Random123's kat_vectors: counter and key all zero, all ones */
               {0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
               {~(uint64_t) 0, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}};
  for (int i = 0; i < 2; ++i) {
    uint32_t out[4];
    ts_philox(known[i].word, known[i].word, known[i].word, out);
    tap_ok(memcmp(out, known[i].expected, sizeof out) == 0, "philox known answer %d", i);
  }
}

static bool same_float(float a, float b) {
  return isnan(a) ? isnan(b) : memcmp(&a, &b, sizeof a) == 0;
}

static void test_bf16(void) {
  int wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    float value = ts_bf16_to_f32((uint16_t) bits);
    uint16_t back = ts_f32_to_bf16(value);
    wrong += isnan(value) ? !isnan(ts_bf16_to_f32(back)) : back != bits;
  }
  tap_ok(wrong == 0, "bf16: all 65536 values survive the round trip");
  tap_ok(ts_f32_to_bf16(1.0f + 0x1p-8f) == 0x3f80 && ts_f32_to_bf16(1.0f + 3 * 0x1p-8f) == 0x3f82,
         "bf16: ties go to even");
  tap_ok(ts_f32_to_bf16(1.0f + 0x1p-8f + 0x1p-20f) == 0x3f81, "bf16: above a tie goes up");
  tap_ok(ts_f32_to_bf16(3.4e38f) == 0x7f80, "bf16: overflow is infinity");
}

/* Over all numbers that may be drawn, as many go up as 65536ths are cut off: the mean is exact.  What is above the
 * largest finite bf16 stays finite. */
static void test_bf16_by_chance(void) {
  int moved = 0, wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    float value = ts_bf16_to_f32((uint16_t) bits);
    uint16_t back = ts_f32_to_bf16_by(value, 0xffff);
    moved += isnan(value) ? !isnan(ts_bf16_to_f32(back)) : back != bits;
  }
  tap_ok(moved == 0, "bf16 by chance: what bf16 holds is kept");
  static const uint32_t values[] = {0x3f800001, 0x3f808000, 0xbf81ffff, 0xc2345678,
                                    0x00000001, 0x807f1234, 0x7f7e8001, 0x3fffffff};
  for (size_t i = 0; i < sizeof values / sizeof *values; ++i) {
    float value;
    memcpy(&value, &values[i], sizeof value);
    uint32_t up = 0;
    for (uint32_t random = 0; random < 65536; ++random) {
      uint32_t got = ts_f32_to_bf16_by(value, random), below = values[i] >> 16;
      up += got == below + 1;
      wrong += got != below && got != below + 1;
    }
    wrong += up != (values[i] & 0xffff);
  }
  tap_ok(wrong == 0, "bf16 by chance: a neighbour, each as often as it is near");
  const uint32_t nan_bits = 0xff800001;
  float nan_low;
  memcpy(&nan_low, &nan_bits, sizeof nan_low);
  tap_ok(isnan(ts_bf16_to_f32(ts_f32_to_bf16_by(nan_low, 0))) &&
             isnan(ts_bf16_to_f32(ts_f32_to_bf16_by(nan_low, 0xffff))),
         "bf16 by chance: a NaN whose payload is cut off stays one");
  tap_ok(ts_f32_to_bf16_by(3.4e38f, 0xffff) == 0x7f7f && ts_f32_to_bf16_by(-3.4e38f, 0xffff) == 0xff7f,
         "bf16 by chance: no finite value becomes infinity");
}

/* Sums over a million normal numbers: the error of each has the mean 0 and at most the variance step^2 / 4, so that
 * five standard deviations of the sum are a bound that a right function passes but for once in a million. */
static void test_random_to_bf16(void) {
  enum { N = 1000000 };
  float *x = ts_malloc(N * sizeof *x);
  uint16_t *y = ts_malloc(N * sizeof *y), *z = ts_malloc(N * sizeof *z);
  ts_random_normal(3, 0, N, 1.0, x);
  ts_random_to_bf16(17, 5, 0, N, x, y);
  double error = 0, variance = 0;
  for (int i = 0; i < N; ++i) {
    double step = ldexp(1, ilogbf(x[i]) - 7), e = (double) ts_bf16_to_f32(y[i]) - (double) x[i];
    error += e;
    variance += step * step / 4;
  }
  tap_ok(fabs(error) < 5 * sqrt(variance), "random_to_bf16: no bias: %.2f of the standard deviation",
         error / sqrt(variance));
  int wrong = 0;
  for (int from = 0; from < 300; from += 7) {
    int n = (from * 31) % 200;
    ts_random_to_bf16(17, 5, from, n, x + from, z);
    wrong += memcmp(z, y + from, (size_t) n * sizeof *z) != 0;
  }
  tap_ok(wrong == 0, "random_to_bf16: any sub-range is the same");
  for (int i = 0; i < N; ++i) {
    x[i] = 1.0f + 0x1p-8f; /* a tie: up or down is a coin's two sides */
  }
  ts_random_to_bf16(17, 5, 0, N, x, y);
  static const struct {
    uint64_t key, round;
    int64_t first;
  } others[] = {{17, 6, 0}, {18, 5, 0}, {17, 5, 1}, {17, 5, 8}};
  for (size_t k = 0; k < sizeof others / sizeof *others; ++k) {
    ts_random_to_bf16(others[k].key, others[k].round, others[k].first, N, x, z);
    double same = 0;
    for (int i = 0; i < N; ++i) {
      same += y[i] == z[i];
    }
    tap_ok(fabs(same - N / 2) < 5 * sqrt(N / 4.0), "random_to_bf16: key %d, round %d, element %d: others go up",
           (int) others[k].key, (int) others[k].round, (int) others[k].first);
  }
  ts_free(x);
  ts_free(y);
  ts_free(z);
}

static uint16_t to_f16(float value) {
  uint16_t half;
  ts_convert(&half, TS_F16, &value, TS_F32, 1);
  return half;
}

/* The value of a half by its definition. */
static double f16_value(uint16_t half) {
  int exponent = half >> 10 & 31, fraction = half & 1023;
  double magnitude = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                     : exponent == 0 ? ldexp(fraction, -24)
                                     : ldexp(fraction + 1024, exponent - 25);
  return half >> 15 != 0 ? -magnitude : magnitude;
}

/* The nearest half by arithmetic in fp64: in steps of the spacing at the value, ties to even. */
static double f16_nearest(double value) {
  int exponent;
  frexp(value, &exponent);
  double spacing = ldexp(1, (exponent < -13 ? -13 : exponent) - 11), nearest = nearbyint(value / spacing) * spacing;
  return fabs(nearest) > 65504 ? copysign(INFINITY, value) : isfinite(value) ? nearest : value;
}

/* Every upper half of a float with lower halves on both sides of each boundary: 13 bits are cut off, and more of what
 * becomes subnormal. */
static void test_f16_conversions(void) {
  int64_t wrong = 0;
  for (uint32_t half = 0; half < 0x10000; ++half) {
    double exact = f16_value((uint16_t) half), wide = (double) ts_f16_to_f32((uint16_t) half);
    wrong += isnan(exact) ? !isnan(wide) : wide != exact || !signbit(wide) != !signbit(exact);
  }
  tap_ok(wrong == 0, "fp16: all 65536 are widened to what they stand for");
  wrong = 0;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t at = 0; at < 0x10000; at += 0x1000) {
      for (uint32_t low = at + 0xffff; low <= at + 0x10001; ++low) {
        uint32_t bits = high << 16 | (low & 0xffff);
        float value;
        memcpy(&value, &bits, sizeof value);
        double got = f16_value(ts_f32_to_f16(value)), exact = f16_nearest((double) value);
        wrong += isnan(value) ? !isnan(got) : got != exact || !signbit(got) != !signbit(value);
      }
    }
  }
  tap_ok(wrong == 0, "fp16: every kind of float is rounded to the nearest, both signs, NaN stays");
}

static void test_f16(void) {
  int wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    float value = ts_f16_to_f32((uint16_t) bits);
    uint16_t back = to_f16(value);
    wrong += isnan(value) ? !isnan(ts_f16_to_f32(back)) : back != bits;
  }
  tap_ok(wrong == 0, "fp16: all 65536 values survive the round trip");
  wrong = 0;
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) { /* each pair of finite neighbours: the tie, and just off it */
    float low = ts_f16_to_f32((uint16_t) bits), high = ts_f16_to_f32((uint16_t) (bits + 1)), tie = (low + high) / 2;
    wrong += to_f16(tie) != bits + (bits & 1);
    wrong += to_f16(nextafterf(tie, 0)) != bits || to_f16(nextafterf(tie, 1e9f)) != bits + 1;
  }
  tap_ok(wrong == 0, "fp16: nearest, ties to even, between all finite neighbours");
  tap_ok(to_f16(65519.996f) == 0x7bff && to_f16(65520.0f) == 0x7c00 && to_f16(-INFINITY) == 0xfc00,
         "fp16: overflow is infinity from 65520 on");
}

static void test_convert(void) {
  enum { N = 5 };
  const double from[N] = {0.0, -1.0, 0x1p-130, 1e300, NAN};
  const float expected[N] = {0.0f, -1.0f, 0x1p-130f, INFINITY, NAN};
  float to[N];
  ts_convert(to, TS_F32, from, TS_F64, N);
  bool same = true;
  for (int i = 0; i < N; ++i) {
    same = same && same_float(to[i], expected[i]);
  }
  tap_ok(same, "convert fp64 to fp32");
  tap_ok(ts_dtype_size(TS_BF16) == 2 && ts_dtype_size(TS_F64) == 8 && strcmp(ts_dtype_name(TS_I32), "int32") == 0 &&
             !ts_dtype_is_float(TS_I64) && ts_dtype_is_float(TS_F16),
         "table of element types");
}

static void test_normal(void) {
  enum { N = 100003, FIRST = 4093, PART = 1001 };
  float *whole = ts_malloc(N * sizeof *whole), *part = ts_malloc(PART * sizeof *part);
  ts_random_normal(7, 0, N, 0.5, whole);
  bool same = true;
  for (int shift = 0; shift < 4; ++shift) { /* every lane of a block of four */
    ts_random_normal(7, FIRST + shift, PART, 0.5, part);
    same = same && memcmp(part, whole + FIRST + shift, sizeof *part * PART) == 0;
  }
  tap_ok(same, "normal numbers of a sub-range are those of the whole");
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < N; ++i) {
    double x = whole[i] / 0.5;
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  /* Standard errors of the moments of N normal numbers: 1, sqrt 2, sqrt 96 over sqrt N; five of them are allowed. */
  double error = 5 / sqrt(N);
  tap_ok(fabs(sum / N) < error, "normal: mean %.5f", sum / N);
  tap_ok(fabs(squares / N - 1) < sqrt(2) * error, "normal: variance %.5f", squares / N);
  tap_ok(fabs(fourth / N - 3) < sqrt(96) * error, "normal: fourth moment %.5f", fourth / N);
  ts_random_normal(8, 0, PART, 0.5, part);
  tap_ok(memcmp(part, whole, sizeof *part * PART) != 0, "normal: another key, other numbers");
  ts_free(part);
  ts_free(whole);
}

static void test_permute(void) {
  static const int64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 255, 1000, 65537};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    int64_t n = sizes[i], fixed = 0, hit = 0, moved = 0;
    char *seen = ts_calloc((size_t) n, 1);
    for (int64_t j = 0; j < n; ++j) {
      int64_t to = ts_permute(42, n, j);
      if (to >= 0 && to < n) {
        hit += !seen[to];
        seen[to] = 1;
      }
      fixed += to == j;
      moved += to != ts_permute(43, n, j);
    }
    /* A random permutation has one fixed point on average; 12 or more has probability below 1e-8. */
    tap_ok(hit == n && (n < 100 || (fixed < 12 && moved > n / 2)), "permutation of %lld is a bijection", (long long) n);
    ts_free(seen);
  }
  int64_t big = (int64_t) 1 << 60, to = ts_permute(1, big + 1, big);
  tap_ok(to >= 0 && to <= big, "permutation of 2^60 + 1 stays inside");
}

static void test_nearest(void) {
  static const char *const keys[] = {"stage", "overlap_comm", "reduce_bucket_size", "betas"};
  const struct {
    const char *word, *expected;
  } cases[] = {{"stgae", "stage"},
               {"overlap_com", "overlap_comm"},
               {"reduce_buckets_size", "reduce_bucket_size"},
               {"stage", "stage"},
               {"gradient", NULL},
               {"", NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const char *found = ts_nearest(cases[i].word, keys, 4);
    tap_ok(found == cases[i].expected || (found && cases[i].expected && strcmp(found, cases[i].expected) == 0),
           "nearest to \"%s\" is %s", cases[i].word, cases[i].expected ? cases[i].expected : "none");
  }
}

static void test_text(void) {
  ts_text text = {0};
  ts_text_add_json(&text, "a\"b\\c\n\t\x01\xc3\xa9");
  tap_ok(strcmp(text.text, "\"a\\\"b\\\\c\\u000a\\u0009\\u0001\xc3\xa9\"") == 0, "json string: %s", text.text);
  ts_text_free(&text);
  for (int i = 0; i < 1000; ++i) {
    ts_text_add(&text, "%d,", i % 10);
  }
  tap_ok(text.length == 2000 && strlen(text.text) == 2000 && strcmp(text.text + 1996, "8,9,") == 0, "text grows");
  ts_text_free(&text);
  char out[32];
  tap_ok(strcmp(ts_human_bytes(31.4e9, out), "31.40 GB") == 0 && strcmp(ts_human_seconds(3723, out), "1:02:03") == 0,
         "numbers for people");
  tap_ok(ts_matches("^h\\.\\d+\\.", "h.12.attn") == 1 && ts_matches("bias$", "weight") == 0 &&
             ts_matches("(", "") == -1 && ts_matches_from("h|b", "bh") == 1 && ts_matches_from("h|c", "bh") == 0 &&
             ts_matches_from("^.h", "bhx") == 1 && ts_matches_from("(", "") == -1,
         "regular expressions");
  double start = ts_seconds();
  bool given_up = ts_matches("^((a+)+)+[bc]", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa") == TS_MATCH_GIVEN_UP;
  tap_ok(given_up, "one that takes too long is neither a match nor none");
  tap_note("%.4f seconds", ts_seconds() - start);
}

static bool has_full_path(const char *path, const char *expected) {
  char *full = ts_full_path(path);
  bool same = strcmp(full, expected) == 0;
  if (!same) {
    tap_note("%s is %s, not %s", path, full, expected);
  }
  ts_free(full);
  return same;
}

static void test_full_path(void) {
  char *here = realpath(".", NULL), *there = realpath(tap_directory(), NULL);
  char *link = ts_format("%s/link", there), *real = ts_format("%s/real", there), *in = ts_format("%s/in/x", real);
  char *by_link = ts_format("%s/./in//y/../x", link), *plain = ts_format("%s/not here", here);
  TS_CHECK(here != NULL && ts_make_directory(real, NULL) == TS_OK && symlink("real", link) == 0, "%s", link);
  tap_ok(has_full_path(link, real) && has_full_path(by_link, in) && has_full_path("not here", plain) &&
             has_full_path("nor/../there/../not here/", plain) && has_full_path("", "") && has_full_path("/", "/") &&
             has_full_path("/nonexistent/../x", "/x") && has_full_path("/../nonexistent", "/nonexistent"),
         "a full path, also of what is not there yet");
  ts_free(plain);
  ts_free(by_link);
  ts_free(in);
  ts_free(real);
  ts_free(link);
  free(there);
  free(here);
}

static void test_files(void) {
  ts_error err = {0};
  char *path = ts_format("%s/a/b/file", tap_directory()), *parent = ts_format("%s/a/b", tap_directory()), *text;
  size_t length;
  test_full_path();
  tap_ok(ts_make_directory(parent, &err) == TS_OK && ts_make_directory(parent, &err) == TS_OK,
         "make a directory twice");
  tap_ok(ts_write_file(path, "x\0y", 3, &err) == TS_OK && ts_read_file(path, 3, &text, &length, &err) == TS_OK &&
             length == 3 && memcmp(text, "x\0y", 4) == 0,
         "a file reads back as written");
  ts_free(text);
  tap_ok(err.count == 0, "no error so far");
  tap_ok(ts_read_file(path, 2, &text, &length, &err) == TS_BAD_INPUT && text == NULL, "a file over the limit");
  tap_ok(ts_read_file(parent, 9, &text, &length, &err) == TS_BAD_INPUT && text == NULL, "a directory is not a file");
  tap_ok(ts_write_file("/nonexistent/x", "", 0, &err) == TS_BAD_INPUT && err.count == 3, "errors are counted");
  ts_error_clear(&err);
  ts_free(path);
  ts_free(parent);
}

/* What may never begin or end is no file of a run. */
static void test_plain_files(void) {
  ts_error err = {0};
  size_t length;
  char *pipe = ts_format("%s/pipe", tap_directory()), *zero = ts_format("%s/zero", tap_directory()), *text;
  TS_CHECK(mkfifo(pipe, 0600) == 0 && symlink("/dev/zero", zero) == 0, "%s", pipe);
  alarm(60); /* where it is waited for */
  tap_ok(ts_read_plain_file(pipe, 9, &text, &length, &err) == TS_BAD_INPUT && text == NULL &&
             strstr(err.text, "pipe: is no regular file") != NULL,
         "a pipe is refused, without a wait");
  alarm(0);
  ts_error_clear(&err);
  tap_ok(ts_open_plain(zero, 9, &err) == NULL && strstr(err.text, "zero: is no regular file") != NULL,
         "a link to a device is refused");
  ts_error_clear(&err);
  put_file(tap_directory(), "plain", "abc\n\nlonger\nlast");
  char *path = ts_format("%s/plain", tap_directory()), line[5];
  tap_ok(ts_open_plain(path, 15, &err) == NULL && strstr(err.text, "larger than the 15 bytes") != NULL,
         "a file over the limit is refused before it is read");
  ts_error_clear(&err);
  FILE *file = ts_open_plain(path, 16, &err);
  static const struct {
    int64_t length;
    const char *line;
  } lines[] = {{3, "abc"}, {0, ""}, {6, "long"}, {4, "last"}, {-1, ""}};
  for (size_t i = 0; i < sizeof lines / sizeof *lines && file != NULL; ++i) {
    int64_t n = ts_next_line(file, line, sizeof line);
    tap_ok(n == lines[i].length && strcmp(line, lines[i].line) == 0, "line %zu: of %lld bytes \"%s\"", i,
           (long long) lines[i].length, lines[i].line);
  }
  tap_ok(file != NULL && fclose(file) == 0, "and it is the caller's");
  ts_free(path);
  ts_free(zero);
  ts_free(pipe);
}

/* ---- limits of memory ---- */

static bool is_group(const ts_cgroup *g, const char *path, int64_t limit, int64_t available) {
  return strcmp(g->path, path) == 0 && g->limit == limit && g->available == available;
}

/* Version 2: a job of Slurm's, whose step has less, and whose task has no limit of its own. */
static void test_second_cgroups(const char *root) {
  ts_cgroup *g;
  put_file(root, "proc/self/cgroup", "0::/slurm/job_7/step_0/task_1\n");
  put_file(root, "sys/fs/cgroup/slurm/job_7/memory.max", "4000000000\n");
  put_file(root, "sys/fs/cgroup/slurm/job_7/memory.current", "1000000000\n");
  put_file(root, "sys/fs/cgroup/slurm/job_7/memory.stat", "anon 7\ninactive_file 200000000\nactive_file 50000000\n");
  put_file(root, "sys/fs/cgroup/slurm/job_7/step_0/memory.max", "300");
  put_file(root, "sys/fs/cgroup/slurm/job_7/step_0/memory.current", "400");
  put_file(root, "sys/fs/cgroup/slurm/job_7/step_0/task_1/memory.max", "max\n");
  put_file(root, "sys/fs/cgroup/slurm/job_7/step_0/task_1/memory.current", "5");
  put_file(root, "sys/fs/cgroup/slurm/memory.max", "99999999999999999999");
  put_file(root, "sys/fs/cgroup/slurm/memory.current", "5");
  ts_cgroups_look_below(root);
  int n = ts_cgroups_limited(&g);
  tap_ok(n == 2 && is_group(&g[0], "/slurm/job_7/step_0", 300, 0) &&
             is_group(&g[1], "/slurm/job_7", 4000000000, 3250000000),
         "cgroups 2: what is left of each limit, with copies of files");
  ts_cgroups_free(&g, n);
}

/* Version 1, in a container, which sees its own group as the mounted one. */
static void test_first_cgroups(const char *root) {
  ts_cgroup *g;
  put_file(root, "proc/self/cgroup", "9:cpu,cpuacct:/a\n4:cpuset,memory:/docker/abc\n1:name=systemd:/\n0::/\n");
  put_file(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "1000");
  put_file(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "600");
  put_file(root, "sys/fs/cgroup/memory/memory.stat",
           "inactive_file 900\ntotal_inactive_file 30\ntotal_active_file 5000\n");
  ts_cgroups_look_below(root);
  int n = ts_cgroups_limited(&g);
  tap_ok(n == 1 && is_group(&g[0], "/", 1000, 430), "cgroups 1: of a container, without what cannot be");
  ts_cgroups_free(&g, n);
  put_file(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  n = ts_cgroups_limited(&g);
  tap_ok(n == 0 && g == NULL, "cgroups 1: no limit");
}

static void test_cgroups(void) {
  static const char *const lines[] = {"", "nonsense\n", "0:\n", "0::\n", "1:memory:\n", ":::\n", "4:memoryless:/a"};
  ts_cgroup *g;
  char *root = ts_format("%s/cgroups", tap_directory());
  ts_cgroups_look_below(root);
  int n = ts_cgroups_limited(&g);
  tap_ok(n == 0 && g == NULL, "cgroups: none");
  for (size_t i = 0; i < sizeof lines / sizeof *lines; ++i) {
    put_file(root, "proc/self/cgroup", lines[i]);
    n += ts_cgroups_limited(&g);
  }
  tap_ok(n == 0, "cgroups: lines that say nothing");
  test_second_cgroups(root);
  test_first_cgroups(root);
  ts_cgroups_look_below("");
  ts_free(root);
}

int main(void) {
  test_philox();
  test_bf16();
  test_bf16_by_chance();
  test_random_to_bf16();
  test_f16();
  test_f16_conversions();
  test_convert();
  test_normal();
  test_permute();
  test_nearest();
  test_text();
  test_files();
  test_plain_files();
  test_cgroups();
  tap_ok(ts_memory_live() == 0, "nothing leaked");
  return tap_done();
}
