/* Mixtures of files: which source a sample is from is a function of its number alone. */
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "io/data.h"
#include "io/mixture.h"
#include "regression/io/token_files.h"
#include "regression/tap.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { PERIOD = TS_MIXTURE_PERIOD, MOST = 1000 };

/* ---- the mixture ---- */

/* Two periods: samples of a source are counted one by one, and no source is ever far from its part. */
static void check_mixture(const char *label, const double *weights, int n) {
  ts_mixture *m = ts_mixture_create(weights, n);
  int64_t dealt[MOST] = {0}, sample, all = 0;
  double sum = 0, most = 0, farthest = 0, error = 0;
  bool counted = true, some = true;
  for (int i = 0; i < n; ++i) {
    most = fmax(most, weights[i]);
    all += ts_mixture_count(m, i);
    some = some && ts_mixture_count(m, i) > 0;
  }
  for (int i = 0; i < n; ++i) {
    sum += weights[i] / most;
  }
  for (int64_t p = 0; p < 2 * PERIOD; ++p) {
    int source = ts_mixture_at(m, p, &sample);
    counted = counted && sample == dealt[source]++;
    double part = (double) ts_mixture_count(m, source) / PERIOD;
    farthest = fmax(farthest, fabs((double) dealt[source] - part * (double) (p + 1)));
  }
  for (int i = 0; i < n; ++i) {
    double wanted = weights[i] / most / sum * PERIOD;
    counted = counted && dealt[i] == 2 * ts_mixture_count(m, i);
    error = fmax(error, wanted > 1 ? fabs((double) ts_mixture_count(m, i) - wanted) / wanted : 0);
  }
  tap_ok(counted, "%s: samples of each source in their order", label);
  tap_ok(some && all == PERIOD, "%s: each has some", label);
  tap_ok(farthest <= (n > 2 ? 2 : 1), "%s: never more than %.2f samples from its part", label, farthest);
  tap_ok(error < 0.05, "%s: weights are kept to %.1e", label, error);
  ts_mixture_destroy(&m);
}

static void test_mixture(void) {
  check_mixture("one", (const double[]){3}, 1);
  check_mixture("0.7 and 0.3", (const double[]){0.7, 0.3}, 2);
  check_mixture("halves of what overflows", (const double[]){DBL_MAX, DBL_MAX}, 2);
  check_mixture("three quarters of it", (const double[]){DBL_MAX, DBL_MAX / 3}, 2);
  check_mixture("the largest and the smallest", (const double[]){DBL_MAX, DBL_TRUE_MIN}, 2);
  check_mixture("five", (const double[]){1, 2, 3, 5, 8}, 5);
  double weights[MOST];
  for (int i = 0; i < MOST; ++i) {
    weights[i] = 1;
  }
  check_mixture("a thousand", weights, MOST);
  ts_mixture *m = ts_mixture_create((const double[]){0.7, 0.3}, 2),
             *again = ts_mixture_create((const double[]){7, 3}, 2);
  bool same = ts_mixture_count(m, 0) == 45875 && ts_mixture_count(m, 1) == 19661;
  for (int64_t i = 0; i < PERIOD && same; ++i) { /* in another order, and far away */
    int64_t p = (i * 40503 + 7) % PERIOD, a, b, far = INT64_MAX / PERIOD / 2 * PERIOD;
    int source = ts_mixture_at(m, p, &a);
    same = source == ts_mixture_at(again, p, &b) && a == b && source == ts_mixture_at(m, far + p, &b) &&
           b == far / PERIOD * ts_mixture_count(m, source) + a;
  }
  tap_ok(same, "any position is the same whatever was asked before; the sum of weights is nothing");
  ts_mixture_destroy(&m);
  ts_mixture_destroy(&again);
}

/* ---- files ---- */

/* Samples of T = 2 whose first token says which: 1000 * file + 2 * sample. */
static char *write_source(const char *name, int file, int samples) {
  int64_t values[1000];
  for (int i = 0; i <= 2 * samples; ++i) {
    values[i] = 1000 * file + i;
  }
  token_dataset set = {"ids", H5T_STD_U16LE, values, (hsize_t) (2 * samples + 1)};
  return token_file_hdf5(name, &set, 1);
}

static int32_t first_token(ts_data *data, ts_split split, int64_t position) {
  int32_t tokens[3] = {-1};
  ts_data_sample(data, split, position, tokens, NULL);
  return tokens[0];
}

/* The first token of each position, as the header says it. */
static int32_t expected_token(const ts_mixture *m, const int *samples, bool shuffle, uint64_t seed, int64_t position) {
  int64_t at;
  int source = ts_mixture_at(m, position, &at);
  int64_t n = samples[source], sample = at % n;
  if (shuffle) {
    sample = ts_permute(ts_mix(seed + (uint64_t) source, (uint64_t) (at / n)), n, sample);
  }
  return (int32_t) (1000 * source + 2 * sample);
}

static void test_files(void) {
  static const int samples[] = {40, 7, 12};
  static const double weights[] = {2, 0.5, 1};
  ts_data_source sources[3];
  char *path[3], name[] = "source.0";
  for (int i = 0; i < 3; ++i) {
    name[sizeof name - 2] = (char) ('0' + i);
    path[i] = write_source(name, i, samples[i]);
    sources[i] = (ts_data_source){.path = path[i], .format = "hdf5", .dataset = "ids", .weight = weights[i]};
  }
  ts_mixture *m = ts_mixture_create(weights, 3);
  for (int shuffle = 0; shuffle < 2; ++shuffle) {
    ts_data_options options = {.sources = sources,
                               .n_sources = 3,
                               .sequence_length = 2,
                               .shuffle = shuffle,
                               .seed = 4,
                               .end_token = -1,
                               .vocab_size = 65536};
    ts_data *data;
    ts_error err = {0};
    TS_CHECK(ts_data_open(&options, &data, &err) == TS_OK, "%s", err.text);
    bool same = ts_data_tokens(data) == 2 * 59 + 3 && ts_data_samples(data, TS_SPLIT_TRAINING) == 59;
    for (int64_t i = 0; i < 2000 && same; ++i) {
      int64_t p = i * 1009 % 2000; /* in any order */
      same = first_token(data, TS_SPLIT_TRAINING, p) == expected_token(m, samples, shuffle, 4, p);
    }
    tap_ok(same, "%s: each source in its own epochs, whatever is asked first", shuffle ? "shuffled" : "in order");
    ts_text said = {0};
    ts_data_describe(data, &said);
    tap_ok(said.text != NULL && strcmp(said.text, "59 samples, from 3 sources") == 0, "sources are told of");
    ts_text_free(&said);
    ts_data_close(&data);
  }
  ts_mixture_destroy(&m);
  for (int i = 0; i < 3; ++i) {
    ts_free(path[i]);
  }
}

static void test_validation(void) {
  char *a = write_source("a.h5", 0, 40), *b = write_source("b.h5", 1, 8), *c = write_source("c.h5", 2, 3);
  const ts_data_source sources[] = {{a, "auto", "ids", 1}, {b, "auto", "ids", 1}};
  ts_data_options options = {.sources = sources,
                             .n_sources = 2,
                             .dataset = "ids",
                             .sequence_length = 2,
                             .validation_fraction = 0.25,
                             .end_token = -1,
                             .vocab_size = 65536};
  ts_data *data;
  ts_error err = {0};
  TS_CHECK(ts_data_open(&options, &data, &err) == TS_OK, "%s", err.text);
  bool same = ts_data_samples(data, TS_SPLIT_VALIDATION) == 12 && ts_data_samples(data, TS_SPLIT_TRAINING) == 36;
  for (int i = 0; i < 24; ++i) {
    int32_t token = i % 12 < 10 ? 60 + 2 * (i % 12) : 1012 + 2 * (i % 12 - 10);
    same = same && first_token(data, TS_SPLIT_VALIDATION, i) == token;
  }
  tap_ok(same, "a quarter of each source validates, one source after another");
  ts_data_close(&data);
  options.validation_fraction = 0;
  options.validation_path = c;
  TS_CHECK(ts_data_open(&options, &data, &err) == TS_OK, "%s", err.text);
  tap_ok(ts_data_samples(data, TS_SPLIT_VALIDATION) == 3 && ts_data_samples(data, TS_SPLIT_TRAINING) == 48 &&
             first_token(data, TS_SPLIT_VALIDATION, 4) == 2002,
         "validation_path validates, and nothing of the sources");
  ts_data_close(&data);
  options.validation_path = NULL;
  options.validation_fraction = 0.1; /* 4 of 40, none of 8 */
  tap_ok(ts_data_open(&options, &data, &err) == TS_BAD_INPUT && data == NULL && strncmp(err.text, b, strlen(b)) == 0 &&
             strstr(err.text, "no sample is left for validation") != NULL,
         "a source that is too short for the fraction is named");
  ts_error_clear(&err);
  ts_free(a);
  ts_free(b);
  ts_free(c);
}

/* One source is the same as its path. */
static void test_one(void) {
  char *path = write_source("one.h5", 3, 50);
  const ts_data_source source = {path, "hdf5", "ids", 0.2};
  ts_data_options options = {
      .path = path, .dataset = "ids", .sequence_length = 2, .shuffle = true, .seed = 9, .vocab_size = 65536};
  ts_data *by_path, *by_source;
  TS_CHECK(ts_data_open(&options, &by_path, NULL) == TS_OK, "%s", path);
  options.path = NULL;
  options.sources = &source;
  options.n_sources = 1;
  TS_CHECK(ts_data_open(&options, &by_source, NULL) == TS_OK, "%s", path);
  bool same = true;
  for (int64_t p = 0; p < 300; ++p) {
    same =
        same && first_token(by_path, TS_SPLIT_TRAINING, p) == first_token(by_source, TS_SPLIT_TRAINING, p) &&
        first_token(by_path, TS_SPLIT_TRAINING, p) == 3000 + 2 * ts_permute(ts_mix(9, (uint64_t) (p / 50)), 50, p % 50);
  }
  tap_ok(same, "one source is the same as its path, in the order that a path has");
  ts_data_close(&by_path);
  ts_data_close(&by_source);
  ts_free(path);
}

int main(void) {
  test_mixture();
  test_files();
  test_validation();
  test_one();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
