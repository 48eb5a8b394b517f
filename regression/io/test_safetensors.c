/* Safetensors: what is written is read back, files of the format's own description, and each rule of a header or index.
 * A file that breaks a rule must be refused, and accepted with that one check off: no other one hides its absence. */
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "io/safetensors_checks.h"
#include "regression/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *path_of(const char *name) {
  return ts_format("%s/%s", tap_directory(), name);
}

static void write_bytes(const char *path, const void *bytes, size_t n) {
  TS_CHECK(ts_write_file(path, bytes, n, NULL) == TS_OK, "%s", path);
}

/* A file of `length` in front, the header, and zeros as data. */
static void write_file(const char *path, uint64_t length, const char *header, size_t data) {
  size_t n = strlen(header);
  char *bytes = ts_calloc(8 + n + data, 1);
  for (int i = 0; i < 8; ++i) {
    bytes[i] = (char) (length >> 8 * i);
  }
  memcpy(bytes + 8, header, n);
  write_bytes(path, bytes, 8 + n + data);
  ts_free(bytes);
}

/* ---- what is written is read back ---- */

static const float values[6] = {0,     -1.5f,    3.25f,
                                65504, 0x1p-14f, INFINITY}; /* exact in every float type but BF16's 65504 */

static ts_safetensor tensor_of(const char *name, ts_dtype dtype, int64_t rows, int64_t columns, const void *data) {
  return (ts_safetensor){.name = name, .dtype = dtype, .n_dims = 2, .shape = {rows, columns}, .data = data};
}

static void test_round_trip(void) {
  double f64[6];
  uint16_t bf16[6], f16[6];
  int32_t i32[3] = {1, -2, 3};
  uint8_t u8[3] = {1, 2, 255};
  ts_convert(f64, TS_F64, values, TS_F32, 6);
  ts_convert(bf16, TS_BF16, values, TS_F32, 6);
  ts_convert(f16, TS_F16, values, TS_F32, 6);
  const ts_safetensor tensors[] = {tensor_of("u8", TS_U8, 3, 1, u8),       tensor_of("f64", TS_F64, 2, 3, f64),
                                   tensor_of("f32", TS_F32, 2, 3, values), tensor_of("bf16", TS_BF16, 3, 2, bf16),
                                   tensor_of("none", TS_F32, 0, 7, NULL),  tensor_of("f16", TS_F16, 1, 6, f16),
                                   tensor_of("i\"32", TS_I32, 1, 3, i32)};
  enum { N = sizeof tensors / sizeof tensors[0] };
  char *path = path_of("round.safetensors");
  ts_error err = {0};
  ts_safetensors *st;
  tap_ok(ts_safetensors_write(path, tensors, N, &err) == TS_OK, "written");
  tap_ok(ts_safetensors_open(path, &st, &err) == TS_OK && ts_safetensors_count(st) == N, "opened: %d tensors", N);
  bool sorted = true, same = true;
  for (int i = 0; i < N; ++i) {
    sorted = sorted && (i == 0 || strcmp(ts_safetensors_at(st, i - 1)->name, ts_safetensors_at(st, i)->name) < 0);
    const ts_safetensor *a = &tensors[i], *b = ts_safetensors_find(st, a->name);
    same = same && b != NULL && a->dtype == b->dtype && b->n_dims == 2 &&
           memcmp(a->shape, b->shape, sizeof a->shape) == 0 && b->count == a->shape[0] * a->shape[1] &&
           b->bytes == (size_t) b->count * ts_dtype_size(a->dtype) &&
           (b->bytes == 0 || memcmp(a->data, b->data, b->bytes) == 0) && strcmp(b->file, path) == 0;
  }
  tap_ok(same, "name, dtype, shape and data are what was written");
  tap_ok(sorted, "tensors are listed in the order of their names");
  tap_ok(ts_safetensors_find(st, "f3") == NULL && ts_safetensors_find(st, "f32 ") == NULL, "other names are not found");
  for (const char *const *name = (const char *const[]){"f64", "f32", "bf16", "f16", NULL}; *name != NULL; ++name) {
    float out[6] = {0};
    const ts_safetensor *t = ts_safetensors_find(st, *name);
    ts_safetensors_read_f32(t, 0, 2, out);
    ts_safetensors_read_f32(t, 2, 4, out + 2);
    out[3] = strcmp(*name, "bf16") == 0 && out[3] == 65536 ? 65504 : out[3]; /* 65504 needs 11 bits, bf16 has 8 */
    tap_ok(memcmp(out, values, sizeof out) == 0, "%s: converted to fp32 in two ranges", *name);
  }
  ts_safetensors_close(&st);
  ts_safetensors_close(&st);
  tap_ok(st == NULL && ts_safetensors_write("/nonexistent/x", tensors, N, &err) == TS_BAD_INPUT &&
             strstr(err.text, "/nonexistent/x: cannot be written: No such file") != NULL,
         "a file that cannot be written");
  ts_error_clear(&err);
  ts_free(path);
}

/* Bytes of files that are in the process's memory: a page counts once it was touched. */
static int64_t mapped_bytes(void) {
  long all = 0, resident = 0, of_files = 0;
  FILE *in = fopen("/proc/self/statm", "r");
  if (in != NULL && fscanf(in, "%ld %ld %ld", &all, &resident, &of_files) != 3) {
    of_files = 0;
  }
  if (in != NULL) {
    fclose(in);
  }
  return of_files * (int64_t) sysconf(_SC_PAGESIZE);
}

/* What was read in large pieces does not stay in memory beside what was made of it, but for what the kernel maps around
 * their ends, 2 MB at most. */
static void test_dropped(void) {
  enum { N = 1 << 22, PIECE = N / 4 };
  float *x = ts_malloc(N * sizeof *x), *y = ts_calloc(PIECE, sizeof *y);
  for (int i = 0; i < N; ++i) {
    x[i] = (float) i;
  }
  char *path = path_of("large.safetensors");
  const ts_safetensor tensor = tensor_of("x", TS_F32, N, 1, x);
  ts_error err = {0};
  ts_safetensors *st = NULL;
  bool read = ts_safetensors_write(path, &tensor, 1, &err) == TS_OK && ts_safetensors_open(path, &st, &err) == TS_OK;
  const int64_t before = mapped_bytes();
  int64_t most = 0;
  for (int turn = 0; turn < 2 && read; ++turn) {
    for (int64_t at = 0; at < N; at += PIECE) {
      ts_safetensors_read_f32(ts_safetensors_find(st, "x"), at, PIECE, y);
      read = read && memcmp(y, x + at, PIECE * sizeof *y) == 0;
      const int64_t here = mapped_bytes() - before;
      most = here > most ? here : most;
    }
  }
  tap_ok(read && most < (int64_t) (PIECE * sizeof *y),
         "16 MB read twice in pieces of 4: %lld bytes of the file stay in memory", (long long) most);
  ts_safetensors_close(&st);
  ts_error_clear(&err);
  ts_free(path);
  ts_free(x);
  ts_free(y);
}

/* More elements than one block of the conversion, at an odd address. */
static void test_unaligned(void) {
  enum { N = 5000 };
  const char *header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                       "\"x\":{\"dtype\":\"F32\",\"shape\":[5000],\"data_offsets\":[1,20001]}}";
  char *path = path_of("odd.safetensors"), *bytes = ts_calloc(1, 8 + 120 + 4 * N);
  size_t n = strlen(header);
  bytes[0] = (char) n;
  memcpy(bytes + 8, header, n);
  for (int i = 0; i < N; ++i) {
    memcpy(bytes + 8 + n + 1 + 4 * i, &(float){(float) i}, 4);
  }
  write_bytes(path, bytes, 8 + n + 1 + 4 * N);
  ts_safetensors *st;
  float *out = ts_malloc(N * sizeof *out);
  bool same = ts_safetensors_open(path, &st, NULL) == TS_OK;
  ts_safetensors_read_f32(ts_safetensors_find(st, "x"), 1, N - 1, out);
  for (int i = 1; i < N; ++i) {
    same = same && out[i - 1] == (float) i;
  }
  tap_ok(same, "data at an odd address, behind one byte");
  ts_safetensors_close(&st);
  ts_free(out);
  ts_free(bytes);
  ts_free(path);
}

static void test_good_headers(void) {
  const struct {
    const char *label, *header;
    size_t data;
    int n;
  } good[] = {
      {"no tensors", "{}", 0, 0},
      {"metadata and blanks at the end", "{\"__metadata__\":{\"format\":\"pt\"}}    ", 0, 0},
      {"a scalar", "{\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, 1},
      {"eight dimensions", "{\"x\":{\"dtype\":\"U8\",\"shape\":[1,1,2,1,1,1,1,3],\"data_offsets\":[0,6]}}", 6, 1},
      {"a dtype of later versions", "{\"x\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3, 1},
      {"an empty tensor inside another",
       "{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"y\":{\"dtype\":\"U8\",\"shape\":[0],"
       "\"data_offsets\":[2,2]}}",
       4, 2}};
  char *path = path_of("good.safetensors");
  for (size_t i = 0; i < sizeof good / sizeof good[0]; ++i) {
    write_file(path, strlen(good[i].header), good[i].header, good[i].data);
    ts_error err = {0};
    ts_safetensors *st;
    tap_ok(ts_safetensors_open(path, &st, &err) == TS_OK && ts_safetensors_count(st) == good[i].n, "accepted: %s%s%s",
           good[i].label, err.count > 0 ? ": " : "", err.count > 0 ? err.text : "");
    if (i == 4 && st != NULL) {
      const ts_safetensor *x = ts_safetensors_find(st, "x");
      tap_ok(x->dtype == TS_N_DTYPES && strcmp(x->dtype_name, "F8_E4M3") == 0, "its dtype is known by name only");
    }
    ts_safetensors_close(&st);
    ts_error_clear(&err);
  }
  ts_free(path);
}

/* ---- the rules ---- */

static bool covered[TS_N_SAFETENSORS_CHECKS];

/* `path` is refused with one message that has `message` in it, and accepted without the check. */
static void refuse(const char *path, ts_safetensors_check check, const char *label, const char *message) {
  ts_error err = {0};
  ts_safetensors *st = NULL;
  ts_status status = ts_safetensors_open(path, &st, &err);
  bool told = err.count == 1 && strstr(err.text, message) != NULL;
  if (!tap_ok(status == TS_BAD_INPUT && st == NULL && told, "refused: %s", label)) {
    tap_note("%s", err.count > 0 ? err.text : "no message");
  }
  ts_safetensors_close(&st);
  ts_error_clear(&err);
  status = ts_safetensors_open_without(check, path, &st, &err);
  if (!tap_ok(status == TS_OK && st != NULL, "accepted without the check: %s", label)) {
    tap_note("%s", err.count > 0 ? err.text : "no message");
  }
  covered[check] = true;
  ts_safetensors_close(&st);
  ts_error_clear(&err);
}

#define X(dtype, shape, offsets) "{\"x\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct {
  ts_safetensors_check check;
  const char *label, *header;
  size_t data;
  const char *message;
} bad_headers[] = {
    {TS_SAFETENSORS_CHECK_HEADER_JSON, "a header that is no JSON", "{\"x\":", 0, "is not a JSON object"},
    {TS_SAFETENSORS_CHECK_HEADER_JSON, "a header that is an array", "[1, 2]", 0, "is not a JSON object"},
    {TS_SAFETENSORS_CHECK_HEADER_JSON, "bytes behind the object", "{} x", 0, "is not a JSON object"},
    {TS_SAFETENSORS_CHECK_DUPLICATE_KEYS, "a tensor twice",
     "{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"x\":{\"dtype\":\"U8\",\"shape\":[1],"
     "\"data_offsets\":[0,1]}}",
     1, "duplicate object key"},
    {TS_SAFETENSORS_CHECK_DTYPE, "a dtype that is a number", X("5", "[1]", "[0,4]"), 4, "dtype is not a string"},
    {TS_SAFETENSORS_CHECK_SHAPE, "a shape that is a number", X("\"F32\"", "1", "[0,4]"), 4, "shape is not a list"},
    {TS_SAFETENSORS_CHECK_SHAPE, "a length that is a float", X("\"F32\"", "[0.5]", "[0,0]"), 0, "shape is not a list"},
    {TS_SAFETENSORS_CHECK_RANK, "nine dimensions", X("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "9 dimensions"},
    {TS_SAFETENSORS_CHECK_NEGATIVE, "negative lengths", X("\"U8\"", "[-2,-2]", "[0,4]"), 4, "negative length"},
    {TS_SAFETENSORS_CHECK_OVERFLOW, "a product that wraps to 0", X("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0,
     "the product of the shape overflows"},
    {TS_SAFETENSORS_CHECK_OVERFLOW, "an unknown dtype whose product wraps",
     X("\"F4\"", "[4294967296,4294967296]", "[0,0]"), 0, "the product of the shape overflows"},
    {TS_SAFETENSORS_CHECK_OFFSETS, "three offsets", X("\"F32\"", "[1]", "[0,4,8]"), 4, "not a list of two integers"},
    {TS_SAFETENSORS_CHECK_OFFSETS, "offsets that are strings", X("\"F32\"", "[0]", "[\"0\",\"4\"]"), 0,
     "not a list of two integers"},
    {TS_SAFETENSORS_CHECK_ORDER, "an end before the begin", X("\"F4\"", "[1]", "[0,-4]"), 0, "[0, -4] are not a range"},
    {TS_SAFETENSORS_CHECK_ORDER, "a negative begin", X("\"F32\"", "[1]", "[-4,0]"), 0, "[-4, 0] are not a range"},
    {TS_SAFETENSORS_CHECK_RANGE, "truncated data", X("\"F32\"", "[2]", "[0,8]"), 7, "end outside the 7 bytes"},
    {TS_SAFETENSORS_CHECK_RANGE, "offsets far outside", X("\"U8\"", "[1099511627780]", "[0,1099511627780]"), 4,
     "end outside the 4 bytes"},
    {TS_SAFETENSORS_CHECK_BYTES, "too little data for the shape", X("\"F32\"", "[2]", "[0,4]"), 4,
     "4 bytes of data; its dtype F32 and shape need 8"},
    {TS_SAFETENSORS_CHECK_BYTES, "too much data for the shape", X("\"BF16\"", "[2]", "[0,8]"), 8, "shape need 4"},
    {TS_SAFETENSORS_CHECK_OVERLAP, "two tensors share a byte",
     "{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]},\"y\":{\"dtype\":\"U8\",\"shape\":[4],"
     "\"data_offsets\":[0,4]}}",
     7, "tensors y and x overlap"},
    {TS_SAFETENSORS_CHECK_OVERLAP, "a tensor inside another, an empty one between",
     "{\"x\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},\"z\":{\"dtype\":\"U8\",\"shape\":[0],"
     "\"data_offsets\":[2,2]},\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}",
     8, "tensors x and y overlap"},
    {TS_SAFETENSORS_CHECK_HOLE, "a byte before the first tensor", X("\"U8\"", "[4]", "[1,5]"), 5,
     "tensor x begins at byte 1 of the data, not at 0"},
    {TS_SAFETENSORS_CHECK_HOLE, "a hole between two tensors",
     "{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"y\":{\"dtype\":\"U8\",\"shape\":[4],"
     "\"data_offsets\":[8,12]}}",
     12, "tensor y begins at byte 8 of the data, not at 4"},
    {TS_SAFETENSORS_CHECK_TRAILING, "a byte behind the last tensor", X("\"U8\"", "[4]", "[0,4]"), 5,
     "1 byte follows the last tensor"},
    {TS_SAFETENSORS_CHECK_TRAILING, "data without a tensor", "{}", 4, "4 bytes follow the last tensor"}};

static void test_header_rules(void) {
  char *path = path_of("bad.safetensors");
  for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; ++i) {
    write_file(path, strlen(bad_headers[i].header), bad_headers[i].header, bad_headers[i].data);
    refuse(path, bad_headers[i].check, bad_headers[i].label, bad_headers[i].message);
  }
  write_file(path, 3, "{}", 0);
  refuse(path, TS_SAFETENSORS_CHECK_HEADER_LENGTH, "a header one byte longer than the file",
         "truncated: the header of 3");
  write_file(path, 1 << 20, "{}", 0);
  refuse(path, TS_SAFETENSORS_CHECK_HEADER_LENGTH, "a header of 1 MiB", "truncated: the header of 1048576");
  size_t n = TS_SAFETENSORS_LARGEST_HEADER + 1;
  char *large = ts_malloc(n + 1);
  memset(large, ' ', n);
  memcpy(large, "{}", 2);
  large[n] = 0;
  write_file(path, n, large, 0);
  refuse(path, TS_SAFETENSORS_CHECK_HEADER_LIMIT, "a header of 100 MiB and a byte", "at most 104857600 are accepted");
  ts_free(large);
  ts_free(path);
}

/* Refused without a switch: there is nothing to accept. */
static void test_no_file(void) {
  char *empty = path_of("empty.safetensors"), *wraps = path_of("wraps.safetensors"),
       *missing = path_of("missing.safetensors"), *directory = path_of("empty");
  write_bytes(empty, "1234567", 7);
  write_file(wraps, UINT64_MAX - 7, "{}", 0);
  TS_CHECK(ts_make_directory(directory, NULL) == TS_OK, "%s", directory);
  const char *const paths[] = {empty, wraps, missing, directory};
  const char *const messages[] = {"truncated: the header of 0", "truncated: the header of 18446744073709551608",
                                  "missing.safetensors: No such file",
                                  "neither model.safetensors nor model.safetensors.index.json"};
  for (int i = 0; i < 4; ++i) {
    ts_error err = {0};
    ts_safetensors *st;
    tap_ok(ts_safetensors_open(paths[i], &st, &err) == TS_BAD_INPUT && st == NULL && err.count == 1 &&
               strstr(err.text, messages[i]) != NULL,
           "refused: %s", messages[i]);
    ts_error_clear(&err);
  }
  ts_free(empty);
  ts_free(wraps);
  ts_free(missing);
  ts_free(directory);
}

/* ---- directories ---- */

static char *make_directory(const char *name, const char *index) {
  char *directory = path_of(name), *a = ts_format("%s/a.safetensors", directory);
  char *b = ts_format("%s/b.safetensors", directory), *path = ts_format("%s/model.safetensors.index.json", directory);
  TS_CHECK(ts_make_directory(directory, NULL) == TS_OK, "%s", directory);
  const ts_safetensor in_a[] = {tensor_of("z", TS_F32, 2, 1, values), tensor_of("x", TS_F32, 3, 1, values)};
  const ts_safetensor in_b[] = {tensor_of("y", TS_F32, 1, 1, values), tensor_of("x", TS_F32, 6, 1, values)};
  TS_CHECK(ts_safetensors_write(a, in_a, 2, NULL) == TS_OK && ts_safetensors_write(b, in_b, 2, NULL) == TS_OK, "%s", a);
  write_bytes(path, index, strlen(index));
  ts_free(a);
  ts_free(b);
  ts_free(path);
  return directory;
}

static void test_directories(void) {
  char *directory = make_directory("sharded", "{\"metadata\": {\"total_size\": 24}, \"weight_map\": {\"x\": "
                                              "\"b.safetensors\", \"z\": \"a.safetensors\"}}");
  ts_error err = {0};
  ts_safetensors *st;
  tap_ok(ts_safetensors_open(directory, &st, &err) == TS_OK && ts_safetensors_count(st) == 2, "index: two shards");
  const ts_safetensor *x = ts_safetensors_find(st, "x"), *z = ts_safetensors_find(st, "z");
  tap_ok(x != NULL && x->count == 6 && strstr(x->file, "/b.safetensors") != NULL && z != NULL && z->count == 2,
         "index: each tensor from the shard that the index names");
  tap_ok(ts_safetensors_find(st, "y") == NULL, "index: what it does not list is not there");
  ts_safetensors_close(&st);
  char *single = ts_format("%s/model.safetensors", directory);
  ts_safetensor only = tensor_of("only", TS_F32, 1, 1, values);
  TS_CHECK(ts_safetensors_write(single, &only, 1, NULL) == TS_OK, "%s", single);
  tap_ok(ts_safetensors_open(directory, &st, &err) == TS_OK && ts_safetensors_count(st) == 1 &&
             ts_safetensors_find(st, "only") != NULL,
         "model.safetensors goes before an index");
  ts_safetensors_close(&st);
  ts_free(single);
  ts_free(directory);
  directory = make_directory("missing-shard", "{\"weight_map\": {\"x\": \"c.safetensors\"}}");
  tap_ok(ts_safetensors_open(directory, &st, &err) == TS_BAD_INPUT && st == NULL &&
             strstr(err.text, "missing-shard/c.safetensors: No such file or directory") != NULL,
         "refused: a missing shard, named");
  ts_error_clear(&err);
  ts_free(directory);
}

static void test_index_rules(void) {
  const struct {
    ts_safetensors_check check;
    const char *label, *index, *message;
  } bad[] = {
      {TS_SAFETENSORS_CHECK_INDEX_JSON, "an index that is no JSON", "{", "index.json: is not a JSON object"},
      {TS_SAFETENSORS_CHECK_INDEX_JSON, "an index without a weight_map", "{}", "with an object \"weight_map\""},
      {TS_SAFETENSORS_CHECK_INDEX_JSON, "a weight_map that is an array", "{\"weight_map\": [1]}", "with an object"},
      {TS_SAFETENSORS_CHECK_DUPLICATE_KEYS, "a tensor twice in the index",
       "{\"weight_map\": {\"x\": \"a.safetensors\", \"x\": \"b.safetensors\"}}", "duplicate object key"},
      {TS_SAFETENSORS_CHECK_INDEX_FILE, "a shard in another directory",
       "{\"weight_map\": {\"x\": \"../sharded/a.safetensors\"}}", "\"../sharded/a.safetensors\" is not the plain name"},
      {TS_SAFETENSORS_CHECK_INDEX_TENSOR, "a tensor that its shard does not have",
       "{\"weight_map\": {\"x\": \"a.safetensors\", \"y\": \"a.safetensors\"}}", "tensor y is not in"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    char *directory = make_directory("bad-index", bad[i].index);
    refuse(directory, bad[i].check, bad[i].label, bad[i].message);
    ts_free(directory);
  }
}

static void test_coverage(void) {
  static const char *const names[TS_N_SAFETENSORS_CHECKS] = {
#define NAME(name) #name,
      TS_SAFETENSORS_CHECKS(NAME)
#undef NAME
  };
  for (int i = 0; i < TS_N_SAFETENSORS_CHECKS; ++i) {
    tap_ok(covered[i], "check %s has a file that only it refuses", names[i]);
  }
}

/* ---- mutations ---- */

static uint32_t draw(uint64_t *counter, uint32_t n) {
  uint32_t words[4];
  ts_philox(1, 0, (*counter)++, words);
  return words[0] % n;
}

/* One to four changes: a byte, a digit, a cut, a copied piece. */
static size_t mutate(char *bytes, size_t n, uint64_t *counter) {
  for (uint32_t change = 1 + draw(counter, 4); change > 0; --change) {
    uint32_t at = draw(counter, (uint32_t) n);
    switch (draw(counter, 4)) {
      case 0: bytes[at] = (char) draw(counter, 256); break;
      case 1: bytes[at] = (char) "0123456789-.[]{},\""[draw(counter, 18)]; break;
      case 2: n = draw(counter, 16) == 0 ? at + 1 : n; break;
      default: memmove(bytes + at, bytes + draw(counter, at + 1), (n - at) / 4);
    }
  }
  return n;
}

static void touch(const ts_safetensors *st, double *sum) {
  for (int i = 0; i < ts_safetensors_count(st); ++i) {
    const ts_safetensor *t = ts_safetensors_at(st, i);
    for (size_t byte = 0; byte < t->bytes; ++byte) {
      *sum += ((const uint8_t *) t->data)[byte];
    }
    float out[4];
    if (t->dtype < TS_N_DTYPES && ts_dtype_is_float(t->dtype)) {
      ts_safetensors_read_f32(t, 0, t->count < 4 ? t->count : 4, out);
    }
  }
}

static void test_mutations(void) {
  enum { ROUNDS = 4000 };
  const ts_safetensor tensors[] = {tensor_of("wte.weight", TS_F32, 2, 3, values),
                                   tensor_of("h.0.b", TS_BF16, 3, 2, values), tensor_of("count", TS_I64, 1, 2, values)};
  char *path = path_of("fuzz.safetensors"), *good, *bytes;
  size_t n;
  TS_CHECK(ts_safetensors_write(path, tensors, 3, NULL) == TS_OK && ts_read_file(path, 65536, &good, &n, NULL) == TS_OK,
           "%s", path);
  bytes = ts_malloc(n);
  uint64_t counter = 0;
  int accepted = 0, explained = 0;
  double sum = 0;
  for (int round = 0; round < ROUNDS; ++round) {
    memcpy(bytes, good, n);
    FILE *file = fopen(path, "wb"); /* ts_write_file would wait for the disk */
    fwrite(bytes, 1, mutate(bytes, n, &counter), file);
    fclose(file);
    ts_error err = {0};
    ts_safetensors *st;
    if (ts_safetensors_open(path, &st, &err) == TS_OK) {
      touch(st, &sum);
      ++accepted;
    } else {
      explained += err.count == 1 && strncmp(err.text, path, strlen(path)) == 0;
    }
    ts_safetensors_close(&st);
    ts_error_clear(&err);
  }
  tap_ok(accepted > 0 && accepted + explained == ROUNDS, "%d mutations: %d accepted, their data read; the others named",
         ROUNDS, accepted);
  ts_free(good);
  ts_free(bytes);
  ts_free(path);
}

/* `same A B DTYPE`, for zero_to_fp32.sh: every tensor of B, whose type must be DTYPE, is in A under its name, perhaps
 * without GPT-2's prefix, with the same elements (rounded to DTYPE). */
static int compare(const char *a, const char *b, const char *dtype) {
  ts_error err = {0};
  ts_safetensors *x, *y;
  TS_CHECK(ts_safetensors_open(a, &x, &err) == TS_OK && ts_safetensors_open(b, &y, &err) == TS_OK, "%s", err.text);
  int wrong = ts_safetensors_count(y) == 0;
  for (int i = 0; i < ts_safetensors_count(y); ++i) {
    const ts_safetensor *t = ts_safetensors_at(y, i), *s = ts_safetensors_find(x, t->name);
    s = s == NULL && strncmp(t->name, "transformer.", 12) == 0 ? ts_safetensors_find(x, t->name + 12) : s;
    bool same = s != NULL && strcmp(t->dtype_name, dtype) == 0 && s->dtype == TS_F32 && s->n_dims == t->n_dims &&
                memcmp(s->shape, t->shape, (size_t) s->n_dims * sizeof *s->shape) == 0;
    if (same) {
      void *rounded = ts_malloc(t->bytes), *values = ts_malloc(s->bytes);
      ts_safetensors_read_f32(s, 0, s->count, values);
      ts_convert(rounded, t->dtype, values, TS_F32, (size_t) s->count);
      same = memcmp(rounded, t->data, t->bytes) == 0;
      ts_free(rounded);
      ts_free(values);
    }
    printf("%s", same ? "" : ts_safetensors_at(y, i)->name);
    wrong += !same;
  }
  printf("%d tensors, %d differ\n", ts_safetensors_count(y), wrong);
  ts_safetensors_close(&x);
  ts_safetensors_close(&y);
  return wrong > 0;
}

/* `add FILE NAME LIKE FACTOR`, for shell tests: the file gets a tensor with the values of one of its own (F32), times a
 * factor. */
static int add(const char *path, const char *name, const char *like, double factor) {
  ts_error err = {0};
  ts_safetensors *st;
  TS_CHECK(ts_safetensors_open(path, &st, &err) == TS_OK && ts_safetensors_find(st, like) != NULL, "%s", path);
  int n = ts_safetensors_count(st);
  ts_safetensor *tensor = ts_calloc((size_t) n + 1, sizeof *tensor);
  for (int i = 0; i < n; ++i) {
    tensor[i] = *ts_safetensors_at(st, i);
  }
  tensor[n] = *ts_safetensors_find(st, like);
  float *values = ts_malloc(tensor[n].bytes);
  ts_safetensors_read_f32(&tensor[n], 0, tensor[n].count, values);
  for (int64_t i = 0; i < tensor[n].count; ++i) {
    values[i] *= (float) factor;
  }
  tensor[n].name = name;
  tensor[n].data = values;
  TS_CHECK(ts_safetensors_write(path, tensor, n + 1, &err) == TS_OK, "%s", err.text);
  ts_free(values);
  ts_free(tensor);
  ts_safetensors_close(&st);
  return 0;
}

/* `spoil FILE NAME`: the first value of a tensor (F32) becomes no number. */
static int spoil(const char *path, const char *name) {
  ts_error err = {0};
  ts_safetensors *st;
  TS_CHECK(ts_safetensors_open(path, &st, &err) == TS_OK && ts_safetensors_find(st, name) != NULL, "%s", path);
  int n = ts_safetensors_count(st);
  ts_safetensor *tensor = ts_calloc((size_t) n, sizeof *tensor);
  float *values = NULL;
  for (int i = 0; i < n; ++i) {
    tensor[i] = *ts_safetensors_at(st, i);
    if (strcmp(tensor[i].name, name) == 0) {
      values = ts_malloc(tensor[i].bytes);
      ts_safetensors_read_f32(&tensor[i], 0, tensor[i].count, values);
      values[0] = NAN;
      tensor[i].data = values;
    }
  }
  TS_CHECK(ts_safetensors_write(path, tensor, n, &err) == TS_OK, "%s", err.text);
  ts_free(values);
  ts_free(tensor);
  ts_safetensors_close(&st);
  return 0;
}

/* `within DIRECTORY LIMIT`: no value of a float tensor is larger. */
static int compare_with(const char *path, double limit) {
  ts_error err = {0};
  ts_safetensors *st;
  int wrong = 0;
  TS_CHECK(ts_safetensors_open(path, &st, &err) == TS_OK, "%s", err.text);
  for (int i = 0; i < ts_safetensors_count(st); ++i) {
    const ts_safetensor *t = ts_safetensors_at(st, i);
    for (int64_t k = 0; k < t->count; ++k) {
      float value;
      ts_safetensors_read_f32(t, k, 1, &value);
      wrong += !(fabs(value) <= limit);
    }
  }
  ts_safetensors_close(&st);
  return wrong > 0;
}

int main(int argc, char **argv) {
  if (argc == 4 && strcmp(argv[1], "within") == 0) {
    return compare_with(argv[2], atof(argv[3]));
  }
  if (argc == 4 && strcmp(argv[1], "spoil") == 0) {
    return spoil(argv[2], argv[3]);
  }
  if (argc == 6 && strcmp(argv[1], "add") == 0) {
    return add(argv[2], argv[3], argv[4], atof(argv[5]));
  }
  if (argc == 5 && strcmp(argv[1], "same") == 0) {
    return compare(argv[2], argv[3], argv[4]);
  }
  test_round_trip();
  test_dropped();
  test_unaligned();
  test_good_headers();
  test_header_rules();
  test_no_file();
  test_directories();
  test_index_rules();
  test_coverage();
  test_mutations();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
