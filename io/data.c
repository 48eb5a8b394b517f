#include "io/data.h"

#include "base/memory.h"
#include "base/random.h"
#include "io/mapping.h"
#include "io/mixture.h"
#include "io/replace.h"
#include "io/samples.h"
#include "io/tokens.h"

struct ts_data {
  ts_samples **files; /* owned: those of the sources, then that of validation_path, if there is one */
  int n_sources, n_files;
  ts_mixture *mixture; /* owned: of the sources */
  int64_t length;
  bool shuffle;
  uint64_t seed;
  ts_samples_room room; /* owned */
};

static const char *or_default(const char *text, const char *fallback) {
  return text == NULL || text[0] == 0 ? fallback : text;
}

/* ---- opening ---- */

static ts_status open_file(ts_data *data, const ts_data_options *o, const ts_data_source *source, double fraction,
                           ts_error *err) {
  const ts_samples_options options = {.path = source->path,
                                      .format = or_default(source->format, "auto"),
                                      .dataset = or_default(source->dataset, "tokens"),
                                      .length = o->sequence_length,
                                      .packing = o->packing,
                                      .end_token = o->end_token,
                                      .vocab_size = o->vocab_size,
                                      .fraction = fraction};
  if (o->about != NULL) {
    *o->about = data->n_files;
  }
  ts_status status = ts_samples_open(&options, &data->files[data->n_files], err);
  data->n_files += status == TS_OK;
  return status;
}

static ts_status open_files(ts_data *data, const ts_data_options *o, const ts_data_source *sources, ts_error *err) {
  const ts_data_source other = {.path = or_default(o->validation_path, NULL),
                                .format = or_default(o->validation_format, o->format),
                                .dataset = or_default(o->validation_dataset, o->dataset)};
  if (other.path != NULL && o->validation_fraction != 0) {
    return ts_error_add(err, "%s: validation_fraction = %g cannot be combined with validation_path = \"%s\"",
                        sources->path, o->validation_fraction, other.path);
  }
  ts_status status = TS_OK;
  for (int i = 0; i < data->n_sources && status == TS_OK; ++i) {
    status = open_file(data, o, &sources[i], o->validation_fraction, err);
  }
  return status == TS_OK && other.path != NULL ? open_file(data, o, &other, 0, err) : status;
}

static ts_mixture *mix_sources(const ts_data_source *sources, int n) {
  double *weights = ts_malloc((size_t) n * sizeof *weights);
  for (int i = 0; i < n; ++i) {
    weights[i] = sources[i].weight;
  }
  ts_mixture *mixture = ts_mixture_create(weights, n);
  ts_free(weights);
  return mixture;
}

ts_status ts_data_open(const ts_data_options *options, ts_data **out, ts_error *err) {
  *out = NULL;
  TS_ASSERT(options->sequence_length > 0 && options->sequence_length <= INT32_MAX);
  TS_ASSERT(options->validation_fraction >= 0 && options->validation_fraction < 1);
  const ts_data_source one = {options->path, options->format, options->dataset, 1};
  const ts_data_source *sources = options->n_sources > 0 ? options->sources : &one;
  ts_data *data = ts_calloc(1, sizeof *data);
  data->n_sources = options->n_sources > 0 ? options->n_sources : 1;
  data->files = ts_calloc((size_t) data->n_sources + 1, sizeof *data->files);
  data->length = options->sequence_length;
  data->shuffle = options->shuffle;
  data->seed = options->seed;
  if (open_files(data, options, sources, err) != TS_OK) {
    ts_data_close(&data);
    return TS_BAD_INPUT;
  }
  data->mixture = mix_sources(sources, data->n_sources);
  data->room.tokens = ts_malloc(((size_t) data->length + 1) * sizeof *data->room.tokens);
  data->room.mask = ts_malloc(((size_t) data->length + 1) * sizeof *data->room.mask);
  *out = data;
  return TS_OK;
}

void ts_data_close(ts_data **data) {
  if (*data != NULL) {
    for (int i = 0; i < (*data)->n_files; ++i) {
      ts_samples_close(&(*data)->files[i]);
    }
    ts_free((*data)->files);
    ts_mixture_destroy(&(*data)->mixture);
    ts_free((*data)->room.tokens);
    ts_free((*data)->room.mask);
    ts_free(*data);
    *data = NULL;
  }
}

/* ---- numbers ---- */

int64_t ts_data_tokens(const ts_data *data) {
  int64_t tokens = 0;
  for (int i = 0; i < data->n_sources; ++i) {
    tokens += ts_samples_tokens(data->files[i]);
  }
  return tokens;
}

/* A split of the data is made of splits of files; that of validation_path validates with all it has. */
static int64_t count_of(const ts_data *data, ts_split split, int file) {
  if (file < data->n_sources) {
    return ts_samples_count(data->files[file], split);
  }
  return split == TS_SPLIT_VALIDATION ? ts_samples_count(data->files[file], TS_SPLIT_TRAINING) : 0;
}

int64_t ts_data_samples(const ts_data *data, ts_split split) {
  int64_t samples = 0;
  for (int i = 0; i < data->n_files; ++i) {
    samples += count_of(data, split, i);
  }
  return samples;
}

/* The part of a file's training samples that is padding. */
static double padding_of(const ts_data *data, int file) {
  const ts_samples *samples = data->files[file];
  double tokens = (double) ts_samples_count(samples, TS_SPLIT_TRAINING) * (double) data->length;
  return 1 - (double) ts_samples_filled(samples, TS_SPLIT_TRAINING) / tokens;
}

void ts_data_describe(const ts_data *data, ts_text *to) {
  int64_t documents = 0;
  double padding = 0;
  for (int i = 0; i < data->n_sources; ++i) {
    double part = (double) ts_mixture_count(data->mixture, i) / TS_MIXTURE_PERIOD;
    documents += ts_samples_documents(data->files[i], TS_SPLIT_TRAINING);
    padding += part * padding_of(data, i);
  }
  long long samples = (long long) ts_data_samples(data, TS_SPLIT_TRAINING);
  if (documents > 0) {
    ts_text_add(to, "%lld documents in %lld samples, %.1f %% of them padding", (long long) documents, samples,
                100 * padding);
  } else if (data->n_sources > 1) {
    ts_text_add(to, "%lld samples", samples);
  }
  if (data->n_sources > 1) {
    ts_text_add(to, ", from %d sources", data->n_sources);
  }
}

/* ---- reading ---- */

/* A sample of a file. */
typedef struct place {
  ts_samples *file;
  ts_split split; /* of the file */
  int64_t sample;
} place;

/* Each source has its own epochs; the permutations of two are not the same. */
static place find_training(const ts_data *data, int64_t position) {
  int64_t at;
  int source = ts_mixture_at(data->mixture, position, &at);
  int64_t n = count_of(data, TS_SPLIT_TRAINING, source), epoch = at / n, sample = at % n;
  if (data->shuffle) {
    sample = ts_permute(ts_mix(data->seed + (uint64_t) source, (uint64_t) epoch), n, sample);
  }
  return (place){data->files[source], TS_SPLIT_TRAINING, sample};
}

/* One file after another. */
static place find_validation(const ts_data *data, int64_t position) {
  int64_t sample = position % ts_data_samples(data, TS_SPLIT_VALIDATION);
  int file = 0;
  for (; sample >= count_of(data, TS_SPLIT_VALIDATION, file); ++file) {
    sample -= count_of(data, TS_SPLIT_VALIDATION, file);
  }
  return (place){data->files[file], file < data->n_sources ? TS_SPLIT_VALIDATION : TS_SPLIT_TRAINING, sample};
}

static place find_sample(const ts_data *data, ts_split split, int64_t position) {
  TS_ASSERT(ts_data_samples(data, split) > 0 && position >= 0);
  return split == TS_SPLIT_TRAINING ? find_training(data, position) : find_validation(data, position);
}

ts_status ts_data_sample(ts_data *data, ts_split split, int64_t position, int32_t *tokens, ts_error *err) {
  place at = find_sample(data, split, position);
  return ts_samples_stream(at.file, at.split, at.sample, tokens, err);
}

ts_status ts_data_read(ts_data *data, ts_split split, int64_t position, ts_batch *batch, int64_t i, ts_error *err) {
  TS_ASSERT(batch->length == data->length && i < batch->samples);
  place at = find_sample(data, split, position);
  ts_batch_row row = ts_batch_begin(batch, i, position);
  return ts_samples_read(at.file, at.split, at.sample, data->room, &row, err);
}

/* ---- writing ---- */

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
