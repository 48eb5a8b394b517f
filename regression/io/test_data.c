/* Token files of each format, their splits and order, and every way in which they can be wrong. */
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "io/data.h"
#include "io/tokens.h"
#include "regression/tap.h"

#include <fcntl.h>
#include <hdf5.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *path_of(const char *name) {
  return ts_format("%s/%s", tap_directory(), name);
}

static char *write_bytes(const char *name, const void *bytes, size_t n) {
  char *path = path_of(name);
  TS_CHECK(ts_write_file(path, bytes, n, NULL) == TS_OK, "%s", path);
  return path;
}

static char *write_text(const char *name, size_t n) {
  char *bytes = ts_malloc(n + 1);
  for (size_t i = 0; i < n; ++i) {
    bytes[i] = (char) (i % 251);
  }
  char *path = write_bytes(name, bytes, n);
  ts_free(bytes);
  return path;
}

/* A bin file: header words, 50 tokens base, base + 7, ... of `width` bytes, and `cut` bytes missing at the end; more
 * where that is negative. */
static char *write_bin(const char *name, const int32_t words[3], int width, uint32_t base, int cut) {
  uint8_t bytes[2048] = {0};
  memcpy(bytes, words, 12);
  for (int i = 0; i < 50 * width; ++i) {
    bytes[1024 + i] = (uint8_t) ((base + 7 * (uint32_t) (i / width)) >> 8 * (i % width));
  }
  return write_bytes(name, bytes, (size_t) (1024 + width * 50 - cut));
}

typedef struct hdf5_case {
  const char *label;
  hid_t type;
  int rank, chunk;
  hsize_t n;
  int64_t step, base; /* token i = base + i * step % 50000 */
} hdf5_case;

static int64_t hdf5_token(const hdf5_case *c, hsize_t i) {
  return c->base + (int64_t) i * c->step % 50000;
}

static char *write_hdf5(const char *name, const char *dataset, const hdf5_case *c) {
  char *path = path_of(name);
  hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), list = H5Pcreate(H5P_DATASET_CREATE);
  hsize_t dims[2] = {c->n, 1}, chunk[2] = {(hsize_t) c->chunk, 1};
  if (c->chunk > 0) {
    H5Pset_chunk(list, c->rank, chunk);
    H5Pset_fletcher32(list);
  }
  int64_t *values = ts_malloc(c->n * sizeof *values);
  for (hsize_t i = 0; i < c->n; ++i) {
    values[i] = hdf5_token(c, i);
  }
  hid_t space = H5Screate_simple(c->rank, dims, NULL);
  hid_t data = H5Dcreate2(file, dataset, c->type, space, H5P_DEFAULT, list, H5P_DEFAULT);
  TS_CHECK(H5Dwrite(data, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0, "%s", path);
  H5Dclose(data);
  H5Sclose(space);
  H5Pclose(list);
  H5Fclose(file);
  ts_free(values);
  return path;
}

static ts_data *open_ok(const ts_data_options *options, const char *label) {
  ts_error err = {0};
  ts_data *data;
  ts_status status = ts_data_open(options, &data, &err);
  tap_ok(status == TS_OK && data != NULL && err.count == 0, "%s: opens%s%s", label, err.count > 0 ? ": " : "",
         err.count > 0 ? err.text : "");
  ts_error_clear(&err);
  return data;
}

/* Opening fails with one message that holds each of up to three parts. */
static void open_fails(const ts_data_options *options, const char *label, const char *a, const char *b, const char *c) {
  ts_error err = {0};
  ts_data *data = (ts_data *) &err;
  ts_status status = ts_data_open(options, &data, &err);
  bool told =
      err.count == 1 && strstr(err.text, a) != NULL && strstr(err.text, b) != NULL && strstr(err.text, c) != NULL;
  if (!tap_ok(status == TS_BAD_INPUT && data == NULL && told, "%s", label)) {
    tap_note("%s", err.count > 0 ? err.text : "no message");
  }
  ts_error_clear(&err);
}

static ts_data_options options_of(const char *path, int64_t length) {
  return (ts_data_options){.path = path, .sequence_length = length, .vocab_size = 65536};
}

static bool sample_is(ts_data *data, ts_split split, int64_t position, int32_t first, int32_t step, int32_t modulus) {
  int32_t tokens[17] = {0};
  ts_status status = ts_data_sample(data, split, position, tokens, NULL);
  bool same = status == TS_OK;
  for (int i = 0; i <= 16; ++i) {
    same = same && tokens[i] == (first + step * i) % modulus;
  }
  return same;
}

static void test_text(void) {
  char *path = write_text("book.txt", 16 * 10 + 1);
  ts_data_options options = options_of(path, 16);
  options.vocab_size = 251;
  ts_data *data = open_ok(&options, "text");
  tap_ok(ts_data_tokens(data) == 161 && ts_data_samples(data, TS_SPLIT_TRAINING) == 10,
         "text: 161 tokens are 10 samples");
  tap_ok(ts_data_samples(data, TS_SPLIT_VALIDATION) == 0, "text: no validation unless asked for");
  tap_ok(sample_is(data, TS_SPLIT_TRAINING, 0, 0, 1, 251) && sample_is(data, TS_SPLIT_TRAINING, 9, 144, 1, 251),
         "text: sample i is tokens [iT, iT + T]");
  tap_ok(sample_is(data, TS_SPLIT_TRAINING, 10, 0, 1, 251) &&
             sample_is(data, TS_SPLIT_TRAINING, 1000 * 10 + 3, 48, 1, 251),
         "text: without shuffle every epoch is the same");
  ts_data_close(&data);
  ts_data_close(&data);
  tap_ok(data == NULL, "text: closing twice");
  options.vocab_size = 160;
  open_fails(&options, "text: a byte outside the vocabulary is found at open", "book.txt", "offset 160 is 160",
             "vocab_size = 160");
  options.vocab_size = 161;
  data = open_ok(&options, "text: the smallest vocabulary that holds all bytes");
  ts_data_close(&data);
  ts_free(path);

  path = write_text("even.txt", 160);
  options = options_of(path, 16);
  data = open_ok(&options, "text of 10 T tokens");
  tap_ok(ts_data_samples(data, TS_SPLIT_TRAINING) == 9,
         "text: the last sample lacks its label, so 160 tokens are 9 samples");
  ts_data_close(&data);
  ts_free(path);
}

static void test_split(void) {
  char *path = write_text("split.txt", 16 * 15 + 1), *other = write_text("other.txt", 16 * 3 + 1);
  ts_data_options options = options_of(path, 16);
  options.validation_fraction = 0.25; /* floor (0.25 * 15) = 3 */
  options.shuffle = true;
  ts_data *data = open_ok(&options, "split");
  tap_ok(ts_data_samples(data, TS_SPLIT_TRAINING) == 12 && ts_data_samples(data, TS_SPLIT_VALIDATION) == 3,
         "split: 12 + 3");
  tap_ok(sample_is(data, TS_SPLIT_VALIDATION, 0, 192, 1, 251) && sample_is(data, TS_SPLIT_VALIDATION, 2, 224, 1, 251),
         "split: validation is the tail, in order though training is shuffled");
  tap_ok(sample_is(data, TS_SPLIT_VALIDATION, 3, 192, 1, 251), "split: validation wraps");
  ts_data_close(&data);
  options.validation_fraction = 0.06; /* floor (0.9) */
  open_fails(&options, "split: an empty validation is refused", "split.txt", "for validation", "0.06 of 15");
  options.validation_fraction = 0;
  options.validation_path = other;
  data = open_ok(&options, "validation_path");
  tap_ok(ts_data_samples(data, TS_SPLIT_TRAINING) == 15 && ts_data_samples(data, TS_SPLIT_VALIDATION) == 3 &&
             sample_is(data, TS_SPLIT_VALIDATION, 2, 32, 1, 251),
         "validation_path: the whole other file validates");
  ts_data_close(&data);
  options.validation_fraction = 0.5;
  open_fails(&options, "validation_path with a fraction is refused", "validation_fraction = 0.5", "validation_path",
             "");
  ts_free(path);
  ts_free(other);
}

static void collect_epoch(ts_data *data, int64_t epoch, int n, int32_t *order) {
  for (int i = 0; i < n; ++i) {
    int32_t tokens[2];
    ts_data_sample(data, TS_SPLIT_TRAINING, epoch * n + i, tokens, NULL);
    order[i] = tokens[0];
  }
}

static void test_shuffle(void) {
  enum { N = 200 };
  char *path = write_text("shuffle.txt", N + 1);
  ts_data_options options = options_of(path, 1);
  options.shuffle = true;
  options.seed = 5;
  ts_data *data = open_ok(&options, "shuffle");
  int32_t epochs[3][N];
  int seen[2][N] = {0}, expected = 0, same = 0, sorted = 0;
  for (int e = 0; e < 2; ++e) {
    collect_epoch(data, e, N, epochs[e]);
    for (int i = 0; i < N; ++i) {
      seen[e][epochs[e][i]] += 1;
      expected += epochs[e][i] == ts_permute(ts_mix(5, (uint64_t) e), N, i);
    }
  }
  bool once = true;
  for (int i = 0; i < N; ++i) {
    once = once && seen[0][i] == 1 && seen[1][i] == 1;
    same += epochs[0][i] == epochs[1][i];
    sorted += epochs[0][i] == i;
  }
  tap_ok(once, "shuffle: every sample once per epoch");
  tap_ok(expected == 2 * N, "shuffle: the order is the documented function of seed and epoch");
  /* Two random permutations of 200 agree in one place on average; 10 has a probability under 1e-6. */
  tap_ok(same < 10 && sorted < 10, "shuffle: another order in every epoch (%d and %d of %d in place)", same, sorted, N);
  ts_data_close(&data);
  options.seed = 6;
  data = open_ok(&options, "another seed");
  collect_epoch(data, 0, N, epochs[2]);
  tap_ok(memcmp(epochs[0], epochs[2], sizeof epochs[0]) != 0, "shuffle: another seed is another order");
  ts_data_close(&data);
  ts_free(path);
}

static const int32_t bin2[3] = {20240520, 1, 50}, bin4[3] = {20240801, 7, 50};

/* Both widths; tokens of 4 bytes are those of 2 and 70000 more. */
static void test_bin(void) {
  static const struct {
    const char *label;
    const int32_t *words;
    int width;
    int32_t base;
  } rows[] = {{"bin of 2 bytes", bin2, 2, 0}, {"bin of 4 bytes", bin4, 4, 70000}};
  for (int i = 0; i < 2; ++i) {
    int32_t base = rows[i].base;
    char *path = write_bin("good.tokens", rows[i].words, rows[i].width, base, 0);
    ts_data_options options = options_of(path, 16);
    options.vocab_size = base + 344; /* the last token is base + 343 */
    ts_data *data = open_ok(&options, rows[i].label);
    tap_ok(ts_data_tokens(data) == 50 && ts_data_samples(data, TS_SPLIT_TRAINING) == 3 &&
               sample_is(data, TS_SPLIT_TRAINING, 2, base + 224, 7, INT32_MAX),
           "%s: the magic decides, not the extension; the vocabulary's last token is inside", rows[i].label);
    ts_data_close(&data);
    options.vocab_size = base + 225;
    char *outside = ts_format("offset 33 is %d,", base + 231), *size = ts_format("vocab_size = %d", base + 225);
    open_fails(&options, "a token outside the vocabulary is found at open", "good.tokens", outside, size);
    ts_free(outside);
    ts_free(size);
    ts_free(path);
  }
}

/* What no int32 holds is no token: 2^31, and 2^32 - 1. */
static void test_bin_beyond(void) {
  static const struct {
    uint32_t base;
    const char *message;
  } rows[] = {{2147483648u - 49 * 7, "offset 49 is 2147483648,"}, {4294967295u, "offset 0 is 4294967295,"}};
  for (int i = 0; i < 2; ++i) {
    char *path = write_bin("beyond.bin", bin4, 4, rows[i].base, 0);
    ts_data_options options = options_of(path, 16);
    options.vocab_size = INT32_MAX;
    open_fails(&options, rows[i].message, "beyond.bin: the token at ", rows[i].message, "vocab_size = 2147483647");
    ts_free(path);
  }
}

static void test_bin_wrong(void) {
  static const int32_t magic[3] = {20240521, 1, 50}, version[3] = {20240520, 7, 50}, version4[3] = {20240801, 1, 50},
                       negative[3] = {20240520, 1, -50}, negative4[3] = {20240801, 7, -50};
  static const struct {
    const char *label, *message;
    const int32_t *words;
    int width, cut;
  } wrong[] = {
      {"bad magic", "magic 20240521", magic, 2, 0},
      {"all that is accepted", "1 (uint16 tokens), magic 20240801, version 7 (uint32 tokens), or with", magic, 2, 0},
      {"bad version", "magic 20240520, version 7; accepted", version, 2, 0},
      {"bad version of 4 bytes", "magic 20240801, version 1; accepted", version4, 4, 0},
      {"one byte missing", "truncated: the header says 50 tokens of 2 bytes, 99 bytes follow", bin2, 2, 1},
      {"one byte of 4 missing", "truncated: the header says 50 tokens of 4 bytes, 199 bytes follow", bin4, 4, 1},
      {"4 bytes said, 2 written", "truncated: the header says 50 tokens of 4 bytes, 100 bytes follow", bin4, 2, 0},
      {"2 bytes said, 4 written", "header and size disagree: the header says 50 tokens of 2 bytes", bin2, 4, 0},
      {"header only half there", "truncated: 600 bytes, the header alone has 1024", bin2, 2, 524},
      {"empty", "truncated: 0 bytes", bin2, 2, 1124},
      {"two bytes too many", "disagree: the header says 50 tokens of 2", bin2, 2, -2},
      {"four bytes too many", "disagree: the header says 50 tokens of 4", bin4, 4, -4},
      {"a negative number of tokens", "the header says -50 tokens", negative, 2, 100},
      {"a negative number of tokens of 4", "the header says -50 tokens", negative4, 4, 200}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    char *path = write_bin("wrong.bin", wrong[i].words, wrong[i].width, 0, wrong[i].cut);
    ts_data_options options = options_of(path, 16);
    open_fails(&options, wrong[i].label, "wrong.bin", wrong[i].message, "");
    ts_free(path);
  }
}

/* nanoGPT's: tokens and nothing else. */
static void test_uint16(void) {
  uint8_t bytes[2200] = {0};
  for (int i = 0; i < 1100; ++i) {
    bytes[2 * i] = (uint8_t) (7 * i);
    bytes[2 * i + 1] = (uint8_t) (7 * i >> 8);
  }
  char *path = write_bytes("train.bin", bytes, sizeof bytes);
  ts_data_options options = options_of(path, 16);
  open_fails(&options, "uint16: auto names the format", "train.bin", "data.format = \"uint16\"", "nanoGPT");
  options.format = "uint16";
  ts_data *data = open_ok(&options, "uint16");
  tap_ok(ts_data_tokens(data) == 1100 && sample_is(data, TS_SPLIT_TRAINING, 0, 0, 7, 65536) &&
             sample_is(data, TS_SPLIT_TRAINING, 67, 7 * 16 * 67, 7, 65536),
         "uint16: tokens from the first byte on");
  ts_data_close(&data);
  options.vocab_size = 7000;
  open_fails(&options, "uint16: a token outside the vocabulary is found at open", "offset 1000 is 7000", "", "");
  ts_free(path);
  path = write_bytes("odd.bin", bytes, 2199);
  options = options_of(path, 16);
  options.format = "uint16";
  open_fails(&options, "uint16: half a token", "odd.bin: truncated: 2199 bytes", "", "");
  ts_free(path);
}

/* What is no text and no tokens is known by its first bytes or by its name, and refused unless the format is given. */
static void test_foreign(void) {
  static const struct {
    const char *name, *head;
    size_t n;
    const char *message, *command;
  } rows[] = {{"a.txt", "\x1f\x8b\x08", 3, "compressed (gzip)", " > unpacked-a.txt "},
              {"a.jsonl.gz", "\x1f\x8b\x08", 3, "compressed (gzip)", "make a.jsonl of it: gzip -dc < "},
              {"train.bin.GZ", "\x1f\x8b\x08", 3, "compressed (gzip)", " > train.bin "},
              {"b.jsonl.zst", "\x28\xb5\x2f\xfd", 4, "compressed (zstd)", "make b.jsonl of it: zstd -dc < "},
              {"c.bin",
               "\xfd"
               "7zXZ",
               6, "compressed (xz)", "xz -dc < "},
              {"d", "BZh91AY&SY", 10, "compressed (bzip2)", "bzip2 -dc < "},
              {"e", "PK\x03\x04", 4, "an archive (zip", "name a file of it: unzip "},
              {"e.npz", "PK\x03\x04", 4, "several arrays of numpy", "numpy.load(sys.argv[1])[\"NAME\"]"},
              {"e.pt", "PK\x03\x04", 4, "a file of torch", "torch.load(sys.argv[1]"},
              {"f.bin", "\x93NUMPY", 6, "an array of numpy", "one dimension of integers"},
              {"g", "PAR1", 4, "a table (Parquet)", "read_table("},
              {"h.arrow", "", 0, "a table (Arrow stream)", "open_stream("},
              {"i.arrow", "ARROW1\0", 8, "a table (Arrow file)", "open_file("},
              {"i.JSONL", "{\"text\": \"", 10, "is jsonl, an object a line", "set data.tokenizer"},
              {"j.json", "[", 1, "is json,", "json.load(open("}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    char bytes[64] = {0};
    memcpy(bytes, rows[i].head, rows[i].n);
    char *path = write_bytes(rows[i].name, bytes, sizeof bytes);
    ts_data_options options = options_of(path, 16);
    open_fails(&options, rows[i].message, rows[i].message, rows[i].command, path);
    options.format = "text";
    ts_data *data = open_ok(&options, "as text all the same");
    ts_data_close(&data);
    ts_free(path);
  }
}

/* Names are words of the shell in every command; what is unpacked keeps the kind its name says. */
static void test_foreign_names(void) {
  char *blank = write_bytes("it's a.jsonl.gz", "\x1f\x8b\x08", 3);
  char *array = write_bytes("two \"x\".npy", "\x93NUMPY", 6);
  char *word = ts_format("'%s/it'\\''s a.jsonl.gz'", tap_directory());
  ts_data_options options = options_of(blank, 16);
  open_fails(&options, "a blank and a quote", word, "> 'it'\\''s a.jsonl'", "");
  options = options_of(array, 16);
  open_fails(&options, "double quotes", "' '/", "/two \"x\".npy'", "");
  ts_free(write_bytes("tar.tar", (char[512]){[257] = 'u', 's', 't', 'a', 'r'}, 512));
  char *tar = path_of("tar.tar"), *bytes = write_bytes("bytes", "\x1f\x8b\x09 0123456789abcdef", 20);
  options = options_of(tar, 16);
  open_fails(&options, "a tar", "an archive (tar)", "tar -xf ", "");
  options = options_of(bytes, 16);
  ts_data *data = open_ok(&options, "two bytes do not make a gzip");
  ts_data_close(&data);
  ts_free(blank);
  ts_free(array);
  ts_free(word);
  ts_free(tar);
  ts_free(bytes);
}

static void test_write_bin(void) {
  char *text = write_text("write.txt", 70000), *path = path_of("write.bin"), *nowhere = path_of("no/such/x.bin");
  int64_t count = -1;
  ts_error err = {0};
  tap_ok(ts_data_write_bin(text, path, &count, &err) == TS_OK && count == 70000, "write_bin: 70000 tokens");
  struct stat info;
  tap_ok(stat(path, &info) == 0 && info.st_size == 1024 + 2 * 70000, "write_bin: header and two bytes per token");
  ts_data_options options = options_of(path, 16);
  options.format = "bin";
  ts_data *data = open_ok(&options, "what write_bin wrote");
  bool same = ts_data_tokens(data) == 70000;
  for (int64_t i = 0; i < ts_data_samples(data, TS_SPLIT_TRAINING); ++i) {
    same = same && sample_is(data, TS_SPLIT_TRAINING, i, (int32_t) (16 * i), 1, 251);
  }
  tap_ok(same, "write_bin: the same tokens as the text");
  ts_data_close(&data);
  tap_ok(ts_data_write_bin(text, nowhere, &count, &err) == TS_BAD_INPUT && count == 0 &&
             strstr(err.text, "x.bin: cannot be written: No such file") != NULL,
         "write_bin: no such directory");
  ts_error_clear(&err);
  tap_ok(ts_data_write_bin(nowhere, path, &count, &err) == TS_BAD_INPUT && stat(path, &info) == 0,
         "write_bin: a missing text leaves the old file");
  ts_error_clear(&err);
  ts_free(text);
  ts_free(path);
  ts_free(nowhere);
}

static void test_hdf5(void) {
  /* 70000 tokens are more than one window when read as one sample. */
  const hdf5_case cases[] = {{"uint16, contiguous", H5T_STD_U16LE, 1, 0, 70000, 7, 0},
                             {"int64, chunked with checksums", H5T_STD_I64LE, 1, 1000, 70000, 7, 0},
                             {"big-endian int32", H5T_STD_I32BE, 1, 333, 70000, 3, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    char *path = write_hdf5("tokens.h5", "tokens", &cases[i]);
    ts_data_options options = options_of(path, 69999);
    ts_data *data = open_ok(&options, cases[i].label);
    int32_t *tokens = ts_malloc(70000 * sizeof *tokens);
    bool same = ts_data_samples(data, TS_SPLIT_TRAINING) == 1 &&
                ts_data_sample(data, TS_SPLIT_TRAINING, 0, tokens, NULL) == TS_OK;
    for (hsize_t j = 0; j < 70000; ++j) {
      same = same && tokens[j] == hdf5_token(&cases[i], j);
    }
    tap_ok(same, "hdf5: %s: one sample over several windows", cases[i].label);
    ts_data_close(&data);
    options.sequence_length = 16;
    data = open_ok(&options, "short samples");
    tap_ok(
        sample_is(data, TS_SPLIT_TRAINING, 100, (int32_t) hdf5_token(&cases[i], 1600), (int32_t) cases[i].step, 50000),
        "hdf5: %s: a short sample", cases[i].label);
    ts_data_close(&data);
    ts_free(tokens);
    ts_free(path);
  }
}

static void test_hdf5_errors(void) {
  const struct {
    hdf5_case file;
    const char *message;
  } wrong[] = {
      {{"a dataset of floats", H5T_IEEE_F32LE, 1, 0, 100, 1, 0}, "not a one-dimensional dataset of integers"},
      {{"a dataset of two dimensions", H5T_STD_I32LE, 2, 0, 100, 1, 0}, "not a one-dimensional dataset of integers"},
      {{"too few tokens", H5T_STD_I32LE, 1, 0, 16, 1, 0}, "has 16 tokens"}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    char *path = write_hdf5("wrong.h5", "tokens", &wrong[i].file);
    ts_data_options options = options_of(path, 16);
    open_fails(&options, wrong[i].file.label, "wrong.h5", wrong[i].message, "");
    ts_free(path);
  }
  const hdf5_case outside[] = {{"negative", H5T_STD_I32LE, 1, 0, 100, 0, -3},
                               {"2^32 + 5", H5T_STD_I64LE, 1, 0, 100, 0, 4294967301}};
  const char *messages[] = {"offset 16 is -3", "offset 16 is 4294967301"};
  for (int i = 0; i < 2; ++i) {
    char *path = write_hdf5("outside.h5", "ids", &outside[i]);
    ts_data_options options = options_of(path, 16);
    open_fails(&options, "hdf5: no dataset of this name", "outside.h5", "no dataset \"tokens\"", "");
    options.dataset = "ids";
    ts_data *data = open_ok(&options, "hdf5: the dataset's name is an option");
    int32_t tokens[17];
    ts_error err = {0};
    tap_ok(ts_data_sample(data, TS_SPLIT_TRAINING, 1, tokens, &err) == TS_BAD_INPUT && err.count == 1 &&
               strstr(err.text, messages[i]) != NULL,
           "hdf5: a token outside the vocabulary: %s", outside[i].label);
    ts_error_clear(&err);
    ts_data_close(&data);
    ts_free(path);
  }
  char *path = write_text("text.h5", 2000);
  ts_data_options options = options_of(path, 16);
  open_fails(&options, "hdf5: not an HDF5 file", "text.h5", "cannot be opened as an HDF5 file", "");
  ts_free(path);
}

/* A flipped bit in a chunk with a checksum must be an error of the read, not wrong tokens. */
static void test_hdf5_damage(void) {
  const hdf5_case c = {"damaged", H5T_STD_U16LE, 1, 4096, 4096, 7, 0};
  char *path = write_hdf5("damaged.h5", "tokens", &c), *bytes;
  size_t n;
  TS_CHECK(ts_read_file(path, 1 << 20, &bytes, &n, NULL) == TS_OK, "%s", path);
  bytes[n - 2000] ^= 1;
  TS_CHECK(ts_write_file(path, bytes, n, NULL) == TS_OK, "%s", path);
  ts_data_options options = options_of(path, 4095);
  ts_data *data = open_ok(&options, "hdf5: a damaged chunk is not seen at open");
  int32_t *tokens = ts_malloc(4096 * sizeof *tokens);
  ts_error err = {0};
  tap_ok(ts_data_sample(data, TS_SPLIT_TRAINING, 0, tokens, &err) == TS_BAD_INPUT &&
             strstr(err.text, "damaged.h5: dataset \"tokens\" cannot be read at offset 0") != NULL,
         "hdf5: a damaged chunk is an error of the read");
  ts_error_clear(&err);
  ts_data_close(&data);
  ts_free(tokens);
  ts_free(bytes);
  ts_free(path);
}

static void test_wrong_paths(void) {
  char *missing = path_of("missing.txt"), *fifo = path_of("fifo"), *none = write_text("none.txt", 0);
  char *short_text = write_text("short.txt", 16);
  TS_CHECK(mkfifo(fifo, 0600) == 0, "%s", fifo);
  ts_data_options options = options_of(missing, 16);
  open_fails(&options, "a missing file", "missing.txt", "No such file or directory", "");
  options.format = "hdf5";
  open_fails(&options, "a missing HDF5 file", "missing.txt", "No such file or directory", "");
  options = options_of(tap_directory(), 16);
  open_fails(&options, "a directory", tap_directory(), "is not a regular file", "");
  options = options_of(fifo, 16);
  open_fails(&options, "a FIFO is refused and does not block", "fifo", "is not a regular file", "");
  options = options_of(none, 16);
  open_fails(&options, "an empty file", "none.txt", "too short: it has 0 tokens", "needs 17");
  options = options_of(short_text, 16);
  open_fails(&options, "one token too few", "short.txt", "too short: it has 16 tokens",
             "sequence_length = 16 needs 17");
  options.validation_path = short_text;
  options.sequence_length = 15;
  ts_data *data = open_ok(&options, "exactly enough tokens");
  tap_ok(ts_data_samples(data, TS_SPLIT_TRAINING) == 1, "one sample");
  ts_data_close(&data);
  options.validation_path = none;
  open_fails(&options, "a validation file that is too short", "none.txt", "too short", "");
  options.format = "parquet";
  open_fails(&options, "an unknown format", "short.txt", "unknown format \"parquet\"",
             "accepted: auto, text, jsonl, bin, uint16, hdf5, megatron");
  ts_free(missing);
  ts_free(fifo);
  ts_free(none);
  ts_free(short_text);
}

/* Sparse files over 4 GiB, where a byte offset of 32 bits would wrap. */
static void test_large(void) {
  const int64_t text_size = (int64_t) 5 << 30, bin_tokens = INT32_MAX;
  char *text = path_of("large.txt"), *bin = path_of("large.bin");
  int file = open(text, O_CREAT | O_WRONLY, 0600);
  bool made = ftruncate(file, text_size) == 0 && pwrite(file, "end", 3, text_size - 3) == 3;
  close(file);
  const int32_t header[3] = {20240520, 1, INT32_MAX};
  file = open(bin, O_CREAT | O_WRONLY, 0600);
  made = made && pwrite(file, header, 12, 0) == 12 && pwrite(file, "\x39\x30", 2, 1024 + 2 * (bin_tokens - 1)) == 2;
  close(file);
  if (!made) {
    tap_skip("files over 4 GiB cannot be made here");
  } else {
    int32_t tokens[3];
    ts_data_options options = options_of(text, 1);
    ts_data *data = open_ok(&options, "5 GiB of text");
    int64_t n = ts_data_samples(data, TS_SPLIT_TRAINING);
    tap_ok(n == text_size - 1 && ts_data_sample(data, TS_SPLIT_TRAINING, n - 1, tokens, NULL) == TS_OK &&
               tokens[0] == 'n' && tokens[1] == 'd',
           "5 GiB of text: the last byte");
    ts_data_close(&data);
    options = options_of(bin, 2);
    data = open_ok(&options, "2^31 - 1 tokens of bin");
    n = ts_data_samples(data, TS_SPLIT_TRAINING);
    tap_ok(ts_data_sample(data, TS_SPLIT_TRAINING, n - 1, tokens, NULL) == TS_OK && tokens[1] == 0 &&
               tokens[2] == 12345,
           "2^31 - 1 tokens of bin: the last token");
    ts_data_close(&data);
    int64_t count;
    ts_error err = {0};
    tap_ok(ts_data_write_bin(text, bin, &count, &err) == TS_BAD_INPUT &&
               strstr(err.text, "more tokens than a token file can have") != NULL,
           "write_bin: more tokens than the header can count");
    ts_error_clear(&err);
  }
  ts_free(text);
  ts_free(bin);
}

/* ---- batches ---- */

static const void *input_of(const ts_batch *batch, ts_input_kind kind, int64_t sample) {
  return (const char *) batch->input[kind] + (size_t) sample * ts_batch_bytes(batch, kind);
}

static bool has(const ts_batch *batch, ts_input_kind kind, int64_t sample, const int32_t expected[3]) {
  return memcmp(input_of(batch, kind, sample), expected, 3 * sizeof *expected) == 0;
}

static void test_batch(void) {
  ts_batch *batch = ts_batch_create(3, 3, TS_INPUTS_ALL);
  ts_batch_set(batch, 0, 40, (const int32_t[]){5, 6, 7, 8}, -1);
  ts_batch_set(batch, 2, 41, (const int32_t[]){1, TS_IGNORED, 2, TS_IGNORED}, -1);
  tap_ok(has(batch, TS_INPUT_INPUT_IDS, 0, (const int32_t[]){5, 6, 7}) &&
             has(batch, TS_INPUT_LABELS, 0, (const int32_t[]){6, 7, 8}),
         "batch: a label is the token after");
  tap_ok(has(batch, TS_INPUT_POSITIONS, 2, (const int32_t[]){0, 1, 2}) &&
             has(batch, TS_INPUT_DOCUMENTS, 2, (const int32_t[]){0, 0, 0}),
         "batch: positions count from the first token of its one document");
  tap_ok(has(batch, TS_INPUT_INPUT_IDS, 2, (const int32_t[]){1, 0, 2}) &&
             has(batch, TS_INPUT_LABELS, 2, (const int32_t[]){TS_IGNORED, 2, TS_IGNORED}),
         "batch: what is ignored is a label, and no token");
  tap_ok(*(const int64_t *) input_of(batch, TS_INPUT_SAMPLE, 0) == 40 &&
             *(const int64_t *) input_of(batch, TS_INPUT_SAMPLE, 2) == 41,
         "batch: samples have their numbers");
  ts_batch_set(batch, 1, 42, (const int32_t[]){9, 6, 9, 8}, 9);
  tap_ok(has(batch, TS_INPUT_POSITIONS, 1, (const int32_t[]){0, 0, 1}) &&
             has(batch, TS_INPUT_DOCUMENTS, 1, (const int32_t[]){0, 1, 1}) &&
             has(batch, TS_INPUT_LABELS, 1, (const int32_t[]){TS_IGNORED, 9, TS_IGNORED}),
         "batch: an end token closes its document, and what follows is no label of it");
  ts_batch_ignore(batch, 0);
  tap_ok(has(batch, TS_INPUT_LABELS, 0, (const int32_t[]){TS_IGNORED, TS_IGNORED, TS_IGNORED}) &&
             has(batch, TS_INPUT_INPUT_IDS, 0, (const int32_t[]){5, 6, 7}),
         "batch: an ignored sample is counted nowhere");
  ts_batch_destroy(&batch);
  bool named = true;
  for (int i = 0; i < TS_N_INPUTS; ++i) {
    const ts_input *input = ts_input_get((ts_input_kind) i);
    named = named && input->name[0] != 0 && input->is_sequence == (input->dtype == TS_I32);
  }
  tap_ok(named && batch == NULL, "batch: inputs of the sequence are those of its tokens");
}

/* A batch has no more than was asked for. */
static void test_mask(void) {
  ts_batch *batch = ts_batch_create(2, 3, 1u << TS_INPUT_LABELS | 1u << TS_INPUT_SAMPLE);
  ts_batch_set(batch, 1, 9, (const int32_t[]){5, 6, 7, 8}, -1);
  bool set = has(batch, TS_INPUT_LABELS, 1, (const int32_t[]){6, 7, 8}) &&
             *(const int64_t *) input_of(batch, TS_INPUT_SAMPLE, 1) == 9;
  tap_ok(set && batch->input[TS_INPUT_INPUT_IDS] == NULL && batch->input[TS_INPUT_POSITIONS] == NULL &&
             batch->input[TS_INPUT_DOCUMENTS] == NULL,
         "batch: inputs that nobody asked for are not made");
  ts_batch_destroy(&batch);
  batch = ts_batch_create(1, 3, 1u << TS_INPUT_INPUT_IDS);
  ts_batch_set(batch, 0, 9, (const int32_t[]){5, 6, 7, 8}, -1);
  ts_batch_ignore(batch, 0);
  tap_ok(has(batch, TS_INPUT_INPUT_IDS, 0, (const int32_t[]){5, 6, 7}) && batch->input[TS_INPUT_SAMPLE] == NULL,
         "batch: without labels nothing is left to ignore");
  ts_batch_destroy(&batch);
}

static void test_read(void) {
  const int64_t length = 16;
  char *path = write_text("batch.txt", 100);
  ts_data_options options = options_of(path, length);
  ts_data *data = open_ok(&options, "batch");
  ts_batch *batch = ts_batch_create(2, length, TS_INPUTS_ALL);
  int32_t tokens[17];
  bool same = ts_data_read(data, TS_SPLIT_TRAINING, 7, batch, 1, NULL) == TS_OK &&
              ts_data_sample(data, TS_SPLIT_TRAINING, 7, tokens, NULL) == TS_OK;
  tap_ok(same && memcmp(input_of(batch, TS_INPUT_INPUT_IDS, 1), tokens, 16 * sizeof *tokens) == 0 &&
             memcmp(input_of(batch, TS_INPUT_LABELS, 1), tokens + 1, 16 * sizeof *tokens) == 0 &&
             *(const int64_t *) input_of(batch, TS_INPUT_SAMPLE, 1) == 7,
         "batch: the sample at a position, in any epoch");
  ts_batch_destroy(&batch);
  ts_data_close(&data);
  ts_free(path);
}

int main(void) {
  test_text();
  test_split();
  test_shuffle();
  test_bin();
  test_bin_beyond();
  test_bin_wrong();
  test_uint16();
  test_foreign();
  test_foreign_names();
  test_write_bin();
  test_hdf5();
  test_hdf5_errors();
  test_hdf5_damage();
  test_wrong_paths();
  test_large();
  test_batch();
  test_mask();
  test_read();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
