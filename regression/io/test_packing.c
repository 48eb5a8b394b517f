/* Samples made of documents: every token once, where it belongs, with its label or none. */
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "io/data.h"
#include "io/documents.h"
#include "regression/io/token_files.h"
#include "regression/tap.h"

#include <string.h>

/* A file whose token i is i + 1, in documents of known lengths, with or without a mask. */
typedef struct book {
  char *path;
  int64_t n, tokens, first[200], mask[3000]; /* first[n] is the end */
  bool masked;
} book;

static book write_book(int64_t n, int64_t longest, bool masked, uint64_t seed) {
  book b = {.n = n, .masked = masked};
  int64_t token[3000];
  for (int64_t i = 0; i < n; ++i) {
    b.first[i] = b.tokens;
    b.tokens += 1 + (int64_t) (ts_mix(seed, (uint64_t) i) % (uint64_t) longest);
  }
  b.first[n] = b.tokens;
  TS_CHECK(b.tokens <= 3000, "%d tokens", (int) b.tokens);
  for (int64_t i = 0; i < b.tokens; ++i) {
    token[i] = i + 1;
    b.mask[i] = !masked || ts_mix(seed + 1, (uint64_t) i) % 3 > 0;
  }
  token_dataset sets[] = {{"tokens", H5T_STD_I32LE, token, (hsize_t) b.tokens},
                          {"documents", H5T_STD_I64LE, b.first, (hsize_t) n},
                          {"loss_mask", H5T_STD_U8LE, b.mask, (hsize_t) b.tokens}};
  b.path = token_file_hdf5("book.h5", sets, masked ? 3 : 2);
  return b;
}

static int64_t document_of(const book *b, int64_t token) {
  int64_t i = 0;
  while (b->first[i + 1] <= token) {
    ++i;
  }
  return i;
}

static int32_t row_of(const ts_batch *batch, ts_input_kind kind, int64_t t) {
  return ((const int32_t *) batch->input[kind])[t];
}

static bool padding_is_alone(const ts_batch *batch, int64_t t) {
  int32_t mine = row_of(batch, TS_INPUT_DOCUMENTS, t);
  bool alone = row_of(batch, TS_INPUT_LABELS, t) == TS_IGNORED && row_of(batch, TS_INPUT_POSITIONS, t) == 0;
  for (int64_t u = 0; u < batch->length; ++u) {
    alone = alone && (u == t || row_of(batch, TS_INPUT_DOCUMENTS, u) != mine);
  }
  return alone;
}

/* A token has the position, document and label that its place in its document gives it. */
static bool token_is_right(const book *b, const ts_batch *batch, int64_t t, bool whole) {
  int64_t token = row_of(batch, TS_INPUT_INPUT_IDS, t) - 1, document = document_of(b, token);
  int64_t in_document = token - b->first[document], position = row_of(batch, TS_INPUT_POSITIONS, t);
  bool follows = t > 0 && in_document > 0 && row_of(batch, TS_INPUT_INPUT_IDS, t - 1) == token;
  bool ends = token + 1 == b->first[document + 1];
  bool same = t > 0 && row_of(batch, TS_INPUT_DOCUMENTS, t) == row_of(batch, TS_INPUT_DOCUMENTS, t - 1);
  return row_of(batch, TS_INPUT_LABELS, t) == (ends || b->mask[token + 1] == 0 ? TS_IGNORED : token + 2) &&
         same == follows && (!whole || position == in_document % batch->length) &&
         position == (follows ? row_of(batch, TS_INPUT_POSITIONS, t - 1) + 1 : 0);
}

/* Reads all samples of a split; how often each token was an input is added to `seen`. */
static bool read_split(const book *b, ts_data *data, ts_split split, int64_t length, bool whole, int *seen) {
  ts_batch *batch = ts_batch_create(1, length, TS_INPUTS_ALL);
  bool good = true;
  for (int64_t s = 0; s < ts_data_samples(data, split) && good; ++s) {
    good = ts_data_read(data, split, s, batch, 0, NULL) == TS_OK;
    for (int64_t t = 0; t < length && good; ++t) {
      int64_t token = row_of(batch, TS_INPUT_INPUT_IDS, t) - 1;
      good = token < 0 ? padding_is_alone(batch, t) : token_is_right(b, batch, t, whole);
      seen[token < 0 ? b->tokens : token] += 1;
    }
  }
  ts_batch_destroy(&batch);
  return good;
}

static ts_data_options options_of_book(const book *b, ts_packing_kind packing, int64_t length) {
  return (ts_data_options){
      .path = b->path, .sequence_length = length, .packing = packing, .end_token = -1, .vocab_size = 65536, .seed = 3};
}

/* Samples that pieces of at most T take: each in the first that has room, or by best-fit decreasing, piece by piece. */
static int64_t count_fitted(const book *b, int64_t length, bool best) {
  int64_t piece[3000], room[3000], n = 0, samples = 0;
  for (int64_t i = 0; i < b->n; ++i) {
    for (int64_t at = b->first[i]; at < b->first[i + 1]; at += length) {
      int64_t rest = b->first[i + 1] - at;
      piece[n++] = rest < length ? rest : length;
    }
  }
  for (int64_t i = 1; best && i < n; ++i) { /* the longest first */
    int64_t mine = piece[i], j = i;
    for (; j > 0 && piece[j - 1] < mine; --j) {
      piece[j] = piece[j - 1];
    }
    piece[j] = mine;
  }
  for (int64_t i = 0; i < n; ++i) {
    int64_t to = samples;
    for (int64_t s = samples - 1; s >= 0; --s) {
      to = room[s] >= piece[i] && (!best || to == samples || room[s] < room[to]) ? s : to;
    }
    room[to] = (to == samples ? length : room[to]) - piece[i];
    samples += to == samples;
  }
  return samples;
}

static void test_whole_documents(void) {
  static const struct {
    int64_t n, longest, length;
  } cases[] = {{1, 1, 8}, {1, 40, 1}, {60, 6, 7}, {60, 20, 16}, {50, 40, 16}, {150, 16, 16}, {20, 100, 9}, {90, 3, 2}};
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; ++c) {
    for (int packing = TS_PACKING_BEST_FIT; packing <= TS_PACKING_NONE; ++packing) {
      bool best = packing == TS_PACKING_BEST_FIT;
      const char *name = best ? "best_fit" : "none";
      int64_t length = cases[c].length, pieces = 0;
      book b = write_book(cases[c].n, cases[c].longest, c % 2 == 1, c);
      ts_data_options options = options_of_book(&b, (ts_packing_kind) packing, length);
      options.shuffle = c % 3 == 0;
      ts_data *data;
      TS_CHECK(ts_data_open(&options, &data, NULL) == TS_OK, "%s", b.path);
      int seen[3001] = {0};
      bool good = read_split(&b, data, TS_SPLIT_TRAINING, length, true, seen), once = true;
      for (int64_t i = 0; i < b.tokens; ++i) {
        once = once && seen[i] == 1;
      }
      for (int64_t i = 0; i < b.n; ++i) {
        pieces += (b.first[i + 1] - b.first[i] + length - 1) / length;
      }
      int64_t samples = ts_data_samples(data, TS_SPLIT_TRAINING);
      tap_ok(good, "%s, case %zu: labels, positions, documents and padding", name, c);
      tap_ok(once && seen[b.tokens] == samples * length - b.tokens,
             "%s, case %zu: every token once, the rest is padding", name, c);
      tap_ok(samples == (best ? count_fitted(&b, length, true) : pieces) &&
                 (!best || samples <= count_fitted(&b, length, false)),
             "%s, case %zu: %d pieces in %d samples (first fit: %d), %.1f %% padding", name, c, (int) pieces,
             (int) samples, (int) count_fitted(&b, length, false),
             100.0 * seen[b.tokens] / (double) (samples * length));
      ts_text said = {0};
      char *expected = ts_format("%d documents in %d samples, %.1f %% of them padding", (int) b.n, (int) samples,
                                 100.0 * seen[b.tokens] / (double) (samples * length));
      ts_data_describe(data, &said);
      tap_ok(said.text != NULL && strcmp(said.text, expected) == 0, "%s, case %zu: it is said", name, c);
      ts_text_free(&said);
      ts_free(expected);
      ts_data_close(&data);
      ts_free(b.path);
    }
  }
}

/* Samples are numbered by their first pieces in the order of the file, and pieces in them are in it too. */
static void order_is(const char *label, const int64_t *first, int64_t n, int64_t length, const int *count,
                     const int64_t (*pieces)[2], int64_t samples) {
  const ts_documents documents = {.n = n, .first = (int64_t *) first};
  ts_packing *p;
  TS_CHECK(ts_packing_create(&documents, 0, n, length, true, &p, NULL) == TS_OK, "it packs");
  bool same = ts_packing_samples(p) == samples && ts_packing_tokens(p) == first[n];
  for (int64_t s = 0; s < samples && same; ++s) {
    same = ts_packing_pieces(p, s) == count[s];
    for (int k = 0; k < count[s] && same; ++k, ++pieces) {
      ts_packed piece = ts_packing_piece(p, s, k);
      same = piece.first == (*pieces)[0] && piece.count == (*pieces)[1] && piece.goes_on == (piece.count == length);
    }
  }
  tap_ok(same, "best_fit: %s", label);
  ts_packing_destroy(&p);
}

static void test_order(void) {
  order_is("lengths 6, 3, 4, 2 and 8 + 5: 6 + 2, 3 + 5, 4, 8", (const int64_t[]){0, 6, 9, 13, 15, 28}, 5, 8,
           (const int[]){2, 2, 1, 1}, (const int64_t[][2]){{0, 6}, {13, 2}, {6, 3}, {23, 5}, {9, 4}, {15, 8}}, 4);
  order_is("the least room of two that do", (const int64_t[]){0, 5, 11, 13}, 3, 10, (const int[]){1, 2},
           (const int64_t[][2]){{0, 5}, {5, 6}, {11, 2}}, 2);
  order_is("of equal rooms the one touched last", (const int64_t[]){0, 6, 12, 15}, 3, 10, (const int[]){1, 2},
           (const int64_t[][2]){{0, 6}, {6, 6}, {12, 3}}, 2);
}

/* No document is in both splits, and none is lost. */
static void test_validation(void) {
  for (int packing = TS_PACKING_BEST_FIT; packing <= TS_PACKING_NONE; ++packing) {
    book b = write_book(40, 30, false, 11);
    ts_data_options options = options_of_book(&b, (ts_packing_kind) packing, 16);
    options.validation_fraction = 0.25;
    ts_data *data;
    TS_CHECK(ts_data_open(&options, &data, NULL) == TS_OK, "%s", b.path);
    int training[3001] = {0}, validation[3001] = {0};
    bool good = read_split(&b, data, TS_SPLIT_TRAINING, 16, true, training) &&
                read_split(&b, data, TS_SPLIT_VALIDATION, 16, true, validation);
    for (int64_t i = 0; i < b.tokens; ++i) {
      good = good && training[i] == (i < b.first[30]) && validation[i] == (i >= b.first[30]);
    }
    tap_ok(good, "%s: a quarter of the documents validates", packing == TS_PACKING_NONE ? "none" : "best_fit");
    ts_data_close(&data);
    options.validation_fraction = 0.01;
    ts_error err = {0};
    tap_ok(ts_data_open(&options, &data, &err) == TS_BAD_INPUT &&
               strstr(err.text, "book.h5: no document is left for validation: validation_fraction = 0.01 of 40") !=
                   NULL,
           "no document validates");
    ts_error_clear(&err);
    ts_free(b.path);
  }
}

/* The stream is cut as ever; an index closes documents in it, and a mask counts there too. */
static void test_stream(void) {
  for (int packing = TS_PACKING_STREAM; packing <= TS_PACKING_DOCUMENTS; ++packing) {
    book b = write_book(60, 20, true, 5);
    if (packing == TS_PACKING_STREAM) {
      b.n = 1;
      b.first[1] = b.tokens;
    }
    ts_data_options options = options_of_book(&b, (ts_packing_kind) packing, 16);
    ts_data *data;
    TS_CHECK(ts_data_open(&options, &data, NULL) == TS_OK, "%s", b.path);
    int seen[3001] = {0};
    bool good = read_split(&b, data, TS_SPLIT_TRAINING, 16, false, seen) && seen[b.tokens] == 0;
    for (int64_t i = 0; i < (b.tokens - 1) / 16 * 16; ++i) {
      good = good && seen[i] == 1;
    }
    tap_ok(good, "%s: documents by the index, labels by the mask",
           packing == TS_PACKING_STREAM ? "stream" : "documents");
    ts_data_close(&data);
    ts_free(b.path);
  }
  char *path = token_file_bytes("plain.txt", "abcabcabcabc", 12), *none = token_file_bytes("none.txt", "", 0);
  for (int packing = TS_PACKING_DOCUMENTS; packing < TS_N_PACKINGS; ++packing) {
    ts_data_options options = {
        .path = path, .sequence_length = 4, .packing = (ts_packing_kind) packing, .end_token = -1, .vocab_size = 256};
    ts_error err = {0};
    ts_data *data;
    tap_ok(ts_data_open(&options, &data, &err) == TS_BAD_INPUT && strstr(err.text, "model.eos_token_id") != NULL,
           "neither index nor end token");
    ts_error_clear(&err);
    options.path = none;
    options.end_token = 7;
    tap_ok(ts_data_open(&options, &data, &err) == TS_BAD_INPUT && strstr(err.text, "none.txt: too short") != NULL,
           "an empty file");
    ts_error_clear(&err);
  }
  ts_free(path);
  ts_free(none);
}

int main(void) {
  test_whole_documents();
  test_order();
  test_validation();
  test_stream();
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
