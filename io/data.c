#include "io/data.h"

#include "base/memory.h"
#include "base/random.h"
#include "io/mapping.h"
#include "io/replace.h"
#include "io/tokens.h"

#include <math.h>

/* A run of consecutive samples of one file. */
typedef struct part {
  ts_tokens *tokens; /* borrowed from `files` */
  int64_t first, count;
} part;

struct ts_data {
  ts_tokens *files[TS_N_SPLITS]; /* owned; the second is NULL without a validation_path */
  part parts[TS_N_SPLITS];
  int64_t sequence_length;
  bool shuffle;
  uint64_t seed;
  int32_t end_token; /* -1: none */
  int32_t *tokens;   /* owned: one sample */
};

static const char *or_default(const char *text, const char *fallback) {
  return text == NULL || text[0] == 0 ? fallback : text;
}

static ts_status open_file(const ts_data_options *options, const char *path, ts_tokens **file, part *all,
                           ts_error *err) {
  const char *format = or_default(options->format, "auto"), *dataset = or_default(options->dataset, "tokens");
  if (ts_tokens_open(path, format, dataset, options->vocab_size, file, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  int64_t count = ts_tokens_count(*file), need = options->sequence_length + 1;
  if (count < need) {
    return ts_error_add(err, "%s: too short: it has %lld tokens, one sample of sequence_length = %lld needs %lld", path,
                        (long long) count, (long long) options->sequence_length, (long long) need);
  }
  *all = (part){*file, 0, (count - 1) / options->sequence_length};
  return TS_OK;
}

/* Cut the tail off the training samples. */
static ts_status split_tail(ts_data *data, const ts_data_options *options, ts_error *err) {
  part *training = &data->parts[TS_SPLIT_TRAINING], *validation = &data->parts[TS_SPLIT_VALIDATION];
  int64_t all = training->count, tail = (int64_t) floor(options->validation_fraction * (double) all);
  if (tail == 0 || tail == all) {
    return ts_error_add(err,
                        "%s: no sample is left for %s: validation_fraction = %g of %lld samples of %lld tokens is %lld",
                        options->path, tail == 0 ? "validation" : "training", options->validation_fraction,
                        (long long) all, (long long) options->sequence_length, (long long) tail);
  }
  *validation = (part){training->tokens, all - tail, tail};
  training->count -= tail;
  return TS_OK;
}

static ts_status open_splits(ts_data *data, const ts_data_options *options, ts_error *err) {
  const char *other = or_default(options->validation_path, NULL);
  if (other != NULL && options->validation_fraction != 0) {
    return ts_error_add(err, "%s: validation_fraction = %g cannot be combined with validation_path = \"%s\"",
                        options->path, options->validation_fraction, other);
  }
  if (open_file(options, options->path, &data->files[TS_SPLIT_TRAINING], &data->parts[TS_SPLIT_TRAINING], err) !=
      TS_OK) {
    return TS_BAD_INPUT;
  }
  if (other != NULL) {
    return open_file(options, other, &data->files[TS_SPLIT_VALIDATION], &data->parts[TS_SPLIT_VALIDATION], err);
  }
  return options->validation_fraction > 0 ? split_tail(data, options, err) : TS_OK;
}

ts_status ts_data_open(const ts_data_options *options, ts_data **out, ts_error *err) {
  *out = NULL;
  TS_ASSERT(options->sequence_length > 0 && options->sequence_length < INT64_MAX);
  TS_ASSERT(options->validation_fraction >= 0 && options->validation_fraction < 1);
  ts_data *data = ts_calloc(1, sizeof *data);
  data->sequence_length = options->sequence_length;
  data->shuffle = options->shuffle;
  data->seed = options->seed;
  data->end_token = options->by_documents ? options->end_token : -1;
  if (open_splits(data, options, err) != TS_OK) {
    ts_data_close(&data);
    return TS_BAD_INPUT;
  }
  data->tokens = ts_malloc(((size_t) options->sequence_length + 1) * sizeof *data->tokens);
  *out = data;
  return TS_OK;
}

int64_t ts_data_tokens(const ts_data *data) {
  return ts_tokens_count(data->files[TS_SPLIT_TRAINING]);
}

int64_t ts_data_samples(const ts_data *data, ts_split split) {
  return data->parts[split].count;
}

ts_status ts_data_sample(ts_data *data, ts_split split, int64_t position, int32_t *tokens, ts_error *err) {
  const part *from = &data->parts[split];
  TS_ASSERT(from->count > 0 && position >= 0);
  int64_t epoch = position / from->count, sample = position % from->count;
  if (split == TS_SPLIT_TRAINING && data->shuffle) {
    sample = ts_permute(ts_mix(data->seed, (uint64_t) epoch), from->count, sample);
  }
  int64_t length = data->sequence_length;
  return ts_tokens_read(from->tokens, (from->first + sample) * length, length + 1, tokens, err);
}

ts_status ts_data_read(ts_data *data, ts_split split, int64_t position, ts_batch *batch, int64_t i, ts_error *err) {
  TS_ASSERT(batch->length == data->sequence_length && i < batch->samples);
  ts_status status = ts_data_sample(data, split, position, data->tokens, err);
  if (status == TS_OK) {
    ts_batch_set(batch, i, position, data->tokens, data->end_token);
  }
  return status;
}

void ts_data_close(ts_data **data) {
  if (*data != NULL) {
    for (int split = 0; split < TS_N_SPLITS; ++split) {
      ts_tokens_close(&(*data)->files[split]);
    }
    ts_free((*data)->tokens);
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
