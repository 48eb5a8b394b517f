#include "io/data.h"

#include "base/memory.h"
#include "base/random.h"
#include "io/mapping.h"
#include "io/replace.h"
#include "io/samples.h"
#include "io/tokens.h"

struct ts_data {
  ts_samples *files[TS_N_SPLITS]; /* owned; the second is NULL without a validation_path */
  int64_t length;
  bool shuffle;
  uint64_t seed;
  ts_samples_room room; /* owned */
};

static const char *or_default(const char *text, const char *fallback) {
  return text == NULL || text[0] == 0 ? fallback : text;
}

static ts_status open_file(const ts_data_options *o, const char *path, double fraction, ts_samples **out,
                           ts_error *err) {
  const ts_samples_options options = {.path = path,
                                      .format = or_default(o->format, "auto"),
                                      .dataset = or_default(o->dataset, "tokens"),
                                      .length = o->sequence_length,
                                      .packing = o->packing,
                                      .end_token = o->end_token,
                                      .vocab_size = o->vocab_size,
                                      .fraction = fraction};
  return ts_samples_open(&options, out, err);
}

static ts_status open_splits(ts_data *data, const ts_data_options *o, ts_error *err) {
  const char *other = or_default(o->validation_path, NULL);
  if (other != NULL && o->validation_fraction != 0) {
    return ts_error_add(err, "%s: validation_fraction = %g cannot be combined with validation_path = \"%s\"", o->path,
                        o->validation_fraction, other);
  }
  ts_status status = open_file(o, o->path, o->validation_fraction, &data->files[TS_SPLIT_TRAINING], err);
  return status == TS_OK && other != NULL ? open_file(o, other, 0, &data->files[TS_SPLIT_VALIDATION], err) : status;
}

ts_status ts_data_open(const ts_data_options *options, ts_data **out, ts_error *err) {
  *out = NULL;
  TS_ASSERT(options->sequence_length > 0 && options->sequence_length <= INT32_MAX);
  TS_ASSERT(options->validation_fraction >= 0 && options->validation_fraction < 1);
  ts_data *data = ts_calloc(1, sizeof *data);
  data->length = options->sequence_length;
  data->shuffle = options->shuffle;
  data->seed = options->seed;
  if (open_splits(data, options, err) != TS_OK) {
    ts_data_close(&data);
    return TS_BAD_INPUT;
  }
  data->room.tokens = ts_malloc(((size_t) data->length + 1) * sizeof *data->room.tokens);
  data->room.mask = ts_malloc((size_t) data->length * sizeof *data->room.mask);
  *out = data;
  return TS_OK;
}

int64_t ts_data_tokens(const ts_data *data) {
  return ts_samples_tokens(data->files[TS_SPLIT_TRAINING]);
}

void ts_data_describe(const ts_data *data, ts_text *to) {
  const ts_samples *file = data->files[TS_SPLIT_TRAINING];
  int64_t samples = ts_samples_count(file, TS_SPLIT_TRAINING);
  int64_t documents = ts_samples_documents(file, TS_SPLIT_TRAINING);
  double tokens = (double) samples * (double) data->length;
  if (documents > 0) {
    ts_text_add(to, "%lld documents in %lld samples, %.1f %% of them padding", (long long) documents,
                (long long) samples, 100 * (1 - (double) ts_samples_filled(file, TS_SPLIT_TRAINING) / tokens));
  }
}

/* The file that has the split, and which of its own splits that is. */
static ts_samples *file_of(const ts_data *data, ts_split *split) {
  bool other = *split == TS_SPLIT_VALIDATION && data->files[TS_SPLIT_VALIDATION] != NULL;
  *split = other ? TS_SPLIT_TRAINING : *split;
  return data->files[other ? TS_SPLIT_VALIDATION : TS_SPLIT_TRAINING];
}

int64_t ts_data_samples(const ts_data *data, ts_split split) {
  const ts_samples *file = file_of(data, &split);
  return ts_samples_count(file, split);
}

/* The sample at a position of any epoch. */
static int64_t sample_at(const ts_data *data, ts_split split, int64_t position) {
  int64_t n = ts_data_samples(data, split), epoch = position / n, sample = position % n;
  TS_ASSERT(n > 0 && position >= 0);
  bool shuffled = split == TS_SPLIT_TRAINING && data->shuffle;
  return shuffled ? ts_permute(ts_mix(data->seed, (uint64_t) epoch), n, sample) : sample;
}

ts_status ts_data_sample(ts_data *data, ts_split split, int64_t position, int32_t *tokens, ts_error *err) {
  int64_t sample = sample_at(data, split, position);
  ts_samples *file = file_of(data, &split);
  return ts_samples_stream(file, split, sample, tokens, err);
}

ts_status ts_data_read(ts_data *data, ts_split split, int64_t position, ts_batch *batch, int64_t i, ts_error *err) {
  TS_ASSERT(batch->length == data->length && i < batch->samples);
  int64_t sample = sample_at(data, split, position);
  ts_samples *file = file_of(data, &split);
  ts_batch_row row = ts_batch_begin(batch, i, position);
  return ts_samples_read(file, split, sample, data->room, &row, err);
}

void ts_data_close(ts_data **data) {
  if (*data != NULL) {
    for (int split = 0; split < TS_N_SPLITS; ++split) {
      ts_samples_close(&(*data)->files[split]);
    }
    ts_free((*data)->room.tokens);
    ts_free((*data)->room.mask);
    ts_free(*data);
    *data = NULL;
  }
}

static bool write_header(FILE *file, int64_t count) {
  uint8_t header[TS_TOKENS_BIN_HEADER] = {0};
  const uint32_t words[3] = {TS_TOKENS_BIN_MAGIC, TS_TOKENS_BIN_VERSION, (uint32_t) count};
  for (int i = 0; i < 12; ++i) {
    header[i] = (uint8_t) (words[i / 4] >> 8 * (i % 4));
  }
  return fwrite(header, 1, sizeof header, file) == sizeof header;
}

static bool write_bin(FILE *file, const void *from) {
  const ts_mapping *text = from;
  uint8_t block[65536];
  if (!write_header(file, (int64_t) text->size)) {
    return false;
  }
  for (size_t done = 0; done < text->size;) {
    size_t n = text->size - done < sizeof block / 2 ? text->size - done : sizeof block / 2;
    for (size_t i = 0; i < n; ++i) {
      block[2 * i] = text->bytes[done + i];
      block[2 * i + 1] = 0;
    }
    if (fwrite(block, 2, n, file) != n) {
      return false;
    }
    done += n;
  }
  return true;
}

ts_status ts_data_write_bin(const char *text_path, const char *bin_path, int64_t *count, ts_error *err) {
  ts_mapping text;
  *count = 0;
  if (ts_mapping_open(text_path, &text, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_status status = text.size > INT32_MAX
                         ? ts_error_add(err, "%s: %zu bytes are more tokens than a token file can have (%d)", text_path,
                                        text.size, INT32_MAX)
                         : ts_replace_file(bin_path, write_bin, &text, err);
  *count = status == TS_OK ? (int64_t) text.size : 0;
  ts_mapping_close(&text);
  return status;
}
