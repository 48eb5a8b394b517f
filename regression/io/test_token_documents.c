/* The documents of a token file: those it says it has, in every way in which it can say so and be wrong. */
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "io/data.h"
#include "io/documents.h"
#include "regression/io/token_files.h"
#include "regression/tap.h"

#include <string.h>

enum { END = 9 };

static ts_tokens *open_tokens(const char *path, const char *format) {
  ts_error err = {0};
  ts_tokens *tokens;
  if (!tap_ok(ts_tokens_open(path, format, "tokens", 100, &tokens, &err) == TS_OK, "%s opens", path)) {
    tap_note("%s", err.text);
  }
  ts_error_clear(&err);
  return tokens;
}

/* The documents of a file begin at `first`, and read as its tokens do. */
static void documents_are(const char *label, ts_tokens *tokens, int32_t end, const int64_t *first, int64_t n) {
  ts_documents documents;
  ts_error err = {0};
  bool found = ts_documents_find(tokens, end, &documents, &err) == TS_OK && documents.n == n;
  for (int64_t i = 0; i < n && found; ++i) {
    found = documents.first[i] == first[i] && ts_documents_at(&documents, first[i]) == i &&
            ts_documents_at(&documents, documents.first[i + 1] - 1) == i;
  }
  if (!tap_ok(found && documents.first[n] == ts_tokens_count(tokens), "%s: %d documents", label, (int) n)) {
    tap_note("%s", err.count > 0 ? err.text : "others");
  }
  ts_error_clear(&err);
  ts_documents_clear(&documents);
}

/* Neither finding nor opening accepts the file; the message begins with its path. */
static void file_fails(const char *label, const char *path, const char *format, int32_t end, const char *message) {
  ts_error err = {0};
  ts_tokens *tokens;
  ts_documents documents = {0};
  ts_status status = ts_tokens_open(path, format, "tokens", 100, &tokens, &err);
  status = status == TS_OK ? ts_documents_find(tokens, end, &documents, &err) : status;
  bool told = err.count == 1 && strncmp(err.text, path, strlen(path)) == 0 && strstr(err.text, message) != NULL;
  if (!tap_ok(status == TS_BAD_INPUT && told && documents.first == NULL, "%s", label)) {
    tap_note("%s", err.count > 0 ? err.text : "no message");
  }
  ts_error_clear(&err);
  ts_documents_clear(&documents);
  ts_tokens_close(&tokens);
}

static void test_end_tokens(void) {
  static const struct {
    const char *text;
    int64_t n, first[4];
  } rows[] = {{"\1\2\x09\3\x09", 2, {0, 3}},
              {"\1\2\x09\3", 2, {0, 3}},
              {"\x09\x09\1", 3, {0, 1, 2}},
              {"\1\2\3", 1, {0}},
              {"", 0, {0}},
              {"\x09", 1, {0}}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    char *path = token_file_bytes("end.txt", rows[i].text, strlen(rows[i].text));
    ts_tokens *tokens = open_tokens(path, "text");
    documents_are("end tokens", tokens, END, rows[i].first, rows[i].n);
    ts_tokens_close(&tokens);
    ts_free(path);
  }
  enum { MANY = 200000 }; /* several windows */
  char *text = ts_malloc(MANY), *path;
  int64_t *first = ts_malloc(MANY * sizeof *first), n = 0;
  for (int i = 0; i < MANY; ++i) {
    text[i] = (char) (i % 7 == 6 || i % 65536 == 65535 ? END : 1);
    if (i == 0 || text[i - 1] == END) {
      first[n++] = i;
    }
  }
  path = token_file_bytes("many.txt", text, MANY);
  ts_tokens *tokens = open_tokens(path, "text");
  documents_are("end tokens in several windows", tokens, END, first, n);
  ts_tokens_close(&tokens);
  file_fails("no index and no end token", path, "text", -1, "model.eos_token_id must say which token ends one");
  ts_free(path);
  ts_free(first);
  ts_free(text);
}

static const int64_t ten[] = {1, 2, 3, 4, 9, 6, 7, 8, 9, 10};
enum { TEN = 10 };

static void test_hdf5_documents(void) {
  static const struct {
    const char *label, *message; /* NULL: good */
    int64_t n, entry[4];
    int64_t n_found, found[4];
  } rows[] = {
      {"hdf5: documents", NULL, 3, {0, 2, 7}, 3, {0, 2, 7}},
      {"hdf5: one document", NULL, 1, {0}, 1, {0}},
      {"hdf5: documents of no tokens", NULL, 4, {0, 0, 4, 10}, 2, {0, 4}},
      {"hdf5: documents that do not begin with 0",
       "entry 0 of its index of documents is 1; accepted: 0",
       2,
       {1, 2},
       0,
       {0}},
      {"hdf5: a negative one", "entry 0 of its index of documents is -1", 2, {-1, 2}, 0, {0}},
      {"hdf5: descending", "entry 2 of its index of documents is 3", 3, {0, 4, 3}, 0, {0}},
      {"hdf5: beyond the tokens",
       "entry 1 of its index of documents is 11; accepted: from the one before it to 10",
       2,
       {0, 11},
       0,
       {0}},
      {"hdf5: 2^62", "entry 1 of its index of documents is 4611686018427387904", 2, {0, (int64_t) 1 << 62}, 0, {0}},
      {"hdf5: an empty index", "its index of documents is empty", 0, {0}, 0, {0}}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    token_dataset sets[] = {{"tokens", H5T_STD_I32LE, ten, TEN},
                            {"documents", H5T_STD_I64LE, rows[i].entry, (hsize_t) rows[i].n}};
    char *path = token_file_hdf5("documents.h5", sets, 2);
    if (rows[i].message != NULL) {
      file_fails(rows[i].label, path, "auto", END, rows[i].message);
    } else {
      ts_tokens *tokens = open_tokens(path, "auto");
      documents_are(rows[i].label, tokens, -1, rows[i].found, rows[i].n_found);
      documents_are("hdf5: an index goes before end tokens", tokens, END, rows[i].found, rows[i].n_found);
      ts_tokens_close(&tokens);
    }
    ts_free(path);
  }
  token_dataset floats[] = {{"tokens", H5T_STD_I32LE, ten, TEN}, {"documents", H5T_IEEE_F64LE, ten, 2}};
  char *path = token_file_hdf5("floats.h5", floats, 2);
  file_fails("hdf5: an index of floats", path, "auto", END,
             "\"documents\" is not a one-dimensional dataset of integers");
  ts_free(path);
  path = token_file_hdf5("none.h5", floats, 1);
  ts_tokens *tokens = open_tokens(path, "auto");
  documents_are("hdf5: without an index by end tokens", tokens, END, (const int64_t[]){0, 5, 9}, 3);
  ts_tokens_close(&tokens);
  ts_free(path);
}

/* As h5py writes an array of truth values: an enumeration of bytes. */
static void test_truth_mask(void) {
  static const int8_t truth[TEN] = {1, 1, 0, 0, 1, 0, 1, 1, 0, 1};
  int8_t no = 0, yes = 1;
  token_dataset sets[] = {{"tokens", H5T_STD_I32LE, ten, TEN}};
  char *path = token_file_hdf5("truth.h5", sets, 1);
  hsize_t extent = TEN;
  hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT), type = H5Tenum_create(H5T_NATIVE_INT8);
  H5Tenum_insert(type, "FALSE", &no);
  H5Tenum_insert(type, "TRUE", &yes);
  hid_t space = H5Screate_simple(1, &extent, NULL);
  hid_t data = H5Dcreate2(file, "loss_mask", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  TS_CHECK(H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, truth) >= 0, "%s", path);
  H5Dclose(data);
  H5Sclose(space);
  H5Tclose(type);
  H5Fclose(file);
  ts_tokens *tokens = open_tokens(path, "auto");
  uint8_t mask[TEN] = {0};
  bool same = ts_tokens_are_masked(tokens) && ts_tokens_read_mask(tokens, 0, TEN, mask, NULL) == TS_OK;
  for (int i = 0; i < TEN; ++i) {
    same = same && mask[i] == truth[i];
  }
  tap_ok(same, "hdf5: a loss mask of truth values");
  ts_tokens_close(&tokens);
  ts_free(path);
}

static void test_hdf5_mask(void) {
  static const int64_t good[] = {1, 0, 1, 1, 0, 0, 1, 0, 1, 1}, bad[] = {1, 0, 1, 1, 0, 2, 1, 0, 1, 1};
  token_dataset sets[] = {{"tokens", H5T_STD_I32LE, ten, TEN}, {"loss_mask", H5T_STD_U8LE, good, TEN}};
  char *path = token_file_hdf5("mask.h5", sets, 2);
  ts_tokens *tokens = open_tokens(path, "auto");
  uint8_t mask[TEN] = {0};
  bool same = ts_tokens_are_masked(tokens) && ts_tokens_read_mask(tokens, 1, 9, mask, NULL) == TS_OK;
  for (int i = 0; i < 9; ++i) {
    same = same && mask[i] == good[i + 1];
  }
  tap_ok(same, "hdf5: a loss mask");
  ts_tokens_close(&tokens);
  ts_free(path);
  sets[1].values = bad;
  path = token_file_hdf5("two.h5", sets, 2);
  tokens = open_tokens(path, "auto");
  ts_error err = {0};
  tap_ok(ts_tokens_read_mask(tokens, 2, 8, mask, &err) == TS_BAD_INPUT && strncmp(err.text, path, strlen(path)) == 0 &&
             strstr(err.text, "\"loss_mask\" has 2 at offset 5; accepted: 0, 1") != NULL,
         "hdf5: a mask of something else");
  ts_error_clear(&err);
  ts_tokens_close(&tokens);
  ts_free(path);
  sets[1].n = 9;
  path = token_file_hdf5("nine.h5", sets, 2);
  file_fails("hdf5: a mask of another length", path, "auto", END, "has 9 entries for 10 tokens");
  ts_free(path);
  sets[1] = (token_dataset){"loss_mask", H5T_IEEE_F32LE, good, TEN};
  path = token_file_hdf5("floats.h5", sets, 2);
  file_fails("hdf5: a mask of floats", path, "auto", END, "\"loss_mask\" is not a one-dimensional dataset of integers");
  ts_free(path);
}

/* What lies beside the tokens of another group is not theirs. */
static void test_hdf5_groups(void) {
  static const int64_t mask[TEN] = {0}, near_first[] = {0, 3}, far_first[] = {0, 1, 2};
  token_dataset sets[] = {{"train/ids", H5T_STD_I32LE, ten, TEN},
                          {"train/documents", H5T_STD_I64LE, near_first, 2},
                          {"documents", H5T_STD_I64LE, far_first, 3},
                          {"loss_mask", H5T_STD_U8LE, mask, TEN}};
  char *path = token_file_hdf5("groups.h5", sets, 4);
  ts_tokens *tokens;
  TS_CHECK(ts_tokens_open(path, "auto", "train/ids", 100, &tokens, NULL) == TS_OK, "%s", path);
  documents_are("hdf5: those of the group", tokens, -1, near_first, 2);
  tap_ok(!ts_tokens_are_masked(tokens), "hdf5: a mask of another group");
  ts_tokens_close(&tokens);
  TS_CHECK(ts_tokens_open(path, "auto", "documents", 100, &tokens, NULL) == TS_OK || tokens == NULL, "%s", path);
  tap_ok(tokens == NULL, "hdf5: the mask of a file whose tokens are something else has another length");
  ts_free(path);
}

/* ---- Megatron's pairs ---- */

/* Sequences of 3, 0, 5 and 2 tokens, the last of which lies before the others; documents of 2, 0 and 2 sequences. */
static const megatron_pair pair = {.version = 1,
                                   .code = 4,
                                   .width = 4,
                                   .n_sequences = 4,
                                   .size = {3, 0, 5, 2},
                                   .pointer = {8, 20, 20, 0},
                                   .n_entries = 4,
                                   .entry = {0, 2, 2, 4},
                                   .n_values = 10,
                                   .value = {9, 10, 1, 2, 3, 4, 9, 6, 7, 8}};

static void test_megatron(void) {
  static const int64_t expected[] = {1, 2, 3, 4, 9, 6, 7, 8, 9, 10};
  static const struct { int code, width; } kinds[] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
  for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
    megatron_pair p = pair;
    p.code = kinds[k].code;
    p.width = kinds[k].width;
    p.pointer[0] = 2 * p.width;
    p.pointer[1] = p.pointer[2] = 5 * p.width;
    char *prefix = token_file_megatron("pair", &p);
    for (int named = 0; named < 3; ++named) {
      char *path = ts_format("%s%s", prefix, (const char *const[]){".idx", ".bin", ""}[named]);
      ts_tokens *tokens = open_tokens(path, named == 0 ? "megatron" : "auto");
      int32_t out[10];
      bool same = ts_tokens_count(tokens) == 10;
      for (int64_t first = 0; first < 10 && same; ++first) {
        same = ts_tokens_read(tokens, first, 10 - first, out, NULL) == TS_OK;
        for (int64_t i = first; i < 10; ++i) {
          same = same && out[i - first] == expected[i];
        }
      }
      tap_ok(same, "megatron: type %d by %s", kinds[k].code, path);
      documents_are("megatron", tokens, named == 1 ? END : -1, (const int64_t[]){0, 3}, 2);
      ts_tokens_close(&tokens);
      ts_free(path);
    }
    ts_free(prefix);
  }
}

/* Names that are like one of a pair. */
static void test_megatron_names(void) {
  char *prefix = token_file_megatron("names", &pair), *bin = ts_format("%s.bin", prefix);
  ts_free(token_file_bytes("names", "\1\2\3\4\5\6", 6));
  ts_tokens *tokens = open_tokens(prefix, "auto");
  tap_ok(ts_tokens_count(tokens) == 6, "a file of the pair's name is itself");
  ts_tokens_close(&tokens);
  tokens = open_tokens(bin, "uint16");
  tap_ok(ts_tokens_count(tokens) == 20, "a format that is given is taken");
  ts_tokens_close(&tokens);
  remove(bin);
  ts_free(bin);
  bin = ts_format("%s.idx", prefix);
  file_fails("megatron: no .bin", bin, "auto", END, "names.bin: No such file");
  ts_free(bin);
  ts_free(prefix);
}

typedef struct damage {
  const char *label, *message;
  void (*make)(megatron_pair *p);
} damage;

static void cut_header(megatron_pair *p) {
  p->cut = 34 + 4 * 12 + 4 * 8 - 20;
}
static void cut_byte(megatron_pair *p) {
  p->cut = 1;
}
static void add_bytes(megatron_pair *p) {
  p->cut = -4;
}
static void empty_index(megatron_pair *p) {
  p->cut = 34 + 4 * 12 + 4 * 8;
}
static void many_sequences(megatron_pair *p) {
  p->says_sequences = ((uint64_t) 1 << 62) + 4; /* times 12 as 4 in 64 bits */
}
static void many_entries(megatron_pair *p) {
  p->says_entries = ((uint64_t) 1 << 61) + 4;
}
static void version(megatron_pair *p) {
  p->version = 2;
}
static void magic(megatron_pair *p) {
  p->magic = "MMIDIDY\0\0";
}
static void code_float(megatron_pair *p) {
  p->code = 7;
}
static void code_nine(megatron_pair *p) {
  p->code = 9;
}
static void code_zero(megatron_pair *p) {
  p->code = 0;
}
static void negative_size(megatron_pair *p) {
  p->size[2] = -5;
}
static void long_size(megatron_pair *p) {
  p->size[2] = 6;
}
static void negative_pointer(megatron_pair *p) {
  p->pointer[0] = -4;
}
static void far_pointer(megatron_pair *p) {
  p->pointer[0] = INT64_MAX - 3;
}
static void late_pointer(megatron_pair *p) {
  p->pointer[3] = 33;
}
static void empty_pointer(megatron_pair *p) {
  p->pointer[1] = 41;
}
static void late_begin(megatron_pair *p) {
  p->entry[0] = 1;
}
static void descending(megatron_pair *p) {
  p->entry[2] = 1;
}
static void beyond(megatron_pair *p) {
  p->entry[3] = 5;
}
static void early_end(megatron_pair *p) {
  p->entry[3] = 3;
}
static void no_entries(megatron_pair *p) {
  p->n_entries = 0;
}
static void short_bin(megatron_pair *p) {
  p->n_values = 9;
}

static void test_megatron_damage(void) {
  static const damage rows[] = {
      {"half a header", "its .idx is truncated: 20 bytes", cut_header},
      {"an empty index", "its .idx is truncated: 0 bytes", empty_index},
      {"a byte is missing", "do not take the 79 bytes", cut_byte},
      {"bytes too many", "do not take the 84 bytes", add_bytes},
      {"sequences that wrap 64 bits", "4611686018427387908 sequences", many_sequences},
      {"entries that wrap 64 bits", "2305843009213693956 document indices", many_entries},
      {"version 2", "its version is not 1", version},
      {"another magic", "it does not begin with MMIDIDX", magic},
      {"floats", "type 7, float32; accepted: integers", code_float},
      {"type 9", "type 9; accepted", code_nine},
      {"type 0", "type 0; accepted", code_zero},
      {"a negative size", "sequence 2 has -5 tokens", negative_size},
      {"a size beyond the .bin", "sequence 2 has 6 tokens of 4 bytes from byte 20 on; its .bin has 40", long_size},
      {"a negative pointer", "from byte -4 on", negative_pointer},
      {"a pointer that overflows", "from byte 9223372036854775804 on", far_pointer},
      {"a pointer outside", "sequence 3 has 2 tokens of 4 bytes from byte 33", late_pointer},
      {"nothing outside", "sequence 1 has 0 tokens of 4 bytes from byte 41", empty_pointer},
      {"documents that begin late", "document index 0 of its .idx is 1", late_begin},
      {"documents that descend", "document index 2 of its .idx is 1, after 2", descending},
      {"documents beyond the sequences", "document index 3 of its .idx is 5", beyond},
      {"documents that end early", "end with 3, not with its 4 sequences", early_end},
      {"no documents", "end with -1, not with its 4", no_entries},
      {"a truncated .bin", "its .bin has 36 bytes", short_bin}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    megatron_pair p = pair;
    rows[i].make(&p);
    char *prefix = token_file_megatron("damaged", &p), *label = ts_format("megatron: %s", rows[i].label);
    file_fails(label, prefix, "megatron", END, rows[i].message);
    ts_free(label);
    ts_free(prefix);
  }
  char *prefix = token_file_megatron("alone", &pair), *idx = ts_format("%s.idx", prefix);
  remove(idx);
  file_fails("megatron: no .idx", prefix, "megatron", END, "alone.idx: No such file");
  ts_free(idx);
  ts_free(prefix);
}

/* Whatever a few changed bytes make of an index, it is refused or can be read to its end. */
static void test_megatron_fuzz(void) {
  char *prefix = token_file_megatron("fuzz", &pair), *idx = ts_format("%s.idx", prefix), *good;
  size_t size;
  TS_CHECK(ts_read_file(idx, 1000, &good, &size, NULL) == TS_OK, "%s", idx);
  int refused = 0, read = 0;
  for (uint64_t round = 0; round < 1000; ++round) {
    char bytes[200];
    memcpy(bytes, good, size);
    for (uint64_t k = 0; k <= round % 3; ++k) {
      uint64_t change = ts_mix(round, k);
      bytes[9 + change % (size - 9)] ^= (char) (1 << (change >> 32) % 8);
    }
    FILE *file = fopen(idx, "wb");
    fwrite(bytes, 1, size - (round % 17 == 0 ? round % 5 : 0), file);
    fclose(file);
    ts_tokens *tokens;
    ts_documents documents = {0};
    if (ts_tokens_open(prefix, "megatron", "", 100, &tokens, NULL) == TS_OK &&
        ts_documents_find(tokens, -1, &documents, NULL) == TS_OK) {
      int64_t count = ts_tokens_count(tokens);
      int32_t *out = ts_malloc((size_t) count * sizeof *out + 1);
      ts_tokens_read(tokens, 0, count, out, NULL);
      ts_free(out);
      ++read;
    } else {
      ++refused;
    }
    ts_documents_clear(&documents);
    ts_tokens_close(&tokens);
  }
  tap_ok(refused > 0 && read > 0, "megatron: %d damaged indices refused, %d read", refused, read);
  ts_free(good);
  ts_free(idx);
  ts_free(prefix);
}

int main(void) {
  test_end_tokens();
  test_hdf5_documents();
  test_hdf5_mask();
  test_truth_mask();
  test_hdf5_groups();
  test_megatron();
  test_megatron_names();
  test_megatron_damage();
  test_megatron_fuzz();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
