/* Validation: the deck's data set, and the mean loss over its held-out samples. */
#include "base/memory.h"
#include "base/text.h"
#include "pass/step.h"
#include "train/texts.h"
#include "train/train.h"

#include <string.h>

static bool is_about(const char *problem, const char *path) {
  size_t length = strlen(path);
  return length > 0 && strncmp(problem, path, length) == 0 && problem[length] == ':';
}

/* Files as ts_data_options counts them: of which the room's message speaks, which begins with its path. */
static int find_blamed(const ts_deck *deck, const char *problem) {
  const ts_deck_data *data = &deck->data;
  int n = data->sources.n > 0 ? data->sources.n : 1;
  for (int i = 0; i < n; ++i) {
    if (is_about(problem, data->sources.n > 0 ? data->sources.items[i].path : data->path)) {
      return i;
    }
  }
  return is_about(problem, data->validation_path) ? n : 0;
}

ts_status ts_data_blame(const ts_deck *deck, int file, const char *problem, ts_error *err) {
  int n = deck->data.sources.n;
  char *source = n > 0 && file < n ? ts_format("data.sources[%d].path", file) : NULL;
  const char *key = source != NULL ? source : file == 0 ? "data.path" : "data.validation_path";
  ts_status status = ts_deck_error(deck, key, err, "%s", problem);
  ts_free(source);
  return status;
}

ts_status ts_data_read_deck(const ts_deck *deck, ts_data *data, ts_split split, int64_t position, ts_batch *batch,
                            int64_t i, ts_error *err) {
  ts_error found = {0};
  ts_status status = ts_data_read(data, split, position, batch, i, &found);
  if (status != TS_OK) {
    status = ts_data_blame(deck, find_blamed(deck, found.text), found.text, err);
  }
  ts_error_clear(&found);
  return status;
}

/* What was made of a text instead of it. */
static ts_data_source source_of(const ts_deck_source *s, const char *prepared) {
  return prepared != NULL ? (ts_data_source){prepared, "hdf5", "tokens", s->weight}
                          : (ts_data_source){s->path, s->format, s->dataset, s->weight};
}

static ts_data_source *list_sources(const ts_deck *deck, const ts_prepared *prepared) {
  const ts_deck_sources *from = &deck->data.sources;
  ts_data_source *sources = ts_calloc((size_t) from->n, sizeof *sources);
  for (int i = 0; i < from->n; ++i) {
    sources[i] = source_of(&from->items[i], prepared->path[i]);
  }
  return sources;
}

static const char *path_of_file(const ts_deck_data *d, int file) {
  int n = d->sources.n > 0 ? d->sources.n : 1;
  return file >= n ? d->validation_path : d->sources.n > 0 ? d->sources.items[file].path : d->path;
}

/* Of a file that was made of a text the user knows the text. */
static ts_status blame_text(const ts_deck *deck, const ts_prepared *prepared, int file, const char *problem,
                            ts_error *err) {
  const char *made = prepared->path[file];
  if (made == NULL || !is_about(problem, made)) {
    return ts_data_blame(deck, file, problem, err);
  }
  char *told = ts_format("%s%s (its tokens are in %s, which is made again where it is removed)",
                         path_of_file(&deck->data, file), problem + strlen(made), made);
  ts_status status = ts_data_blame(deck, file, told, err);
  ts_free(told);
  return status;
}

static ts_status open_prepared(const ts_deck *deck, const ts_prepared *prepared, ts_data **data, ts_error *err) {
  const ts_deck_data *d = &deck->data;
  const ts_deck_source whole = {.path = d->path, .format = d->format, .dataset = d->dataset},
                       other = {.path = d->validation_path, .format = d->format, .dataset = d->dataset};
  const ts_data_source one = source_of(&whole, prepared->path[0]);
  const ts_data_source validation =
      d->validation_path[0] != 0 ? source_of(&other, prepared->path[prepared->n - 1]) : (ts_data_source){0};
  int about = 0;
  ts_data_source *sources = list_sources(deck, prepared);
  const ts_data_options options = {.path = one.path,
                                   .sources = sources,
                                   .n_sources = deck->data.sources.n,
                                   .about = &about,
                                   .packing = ts_packing_find(deck->data.packing),
                                   .end_token = (int32_t) deck->model.eos_token_id,
                                   .format = one.format,
                                   .dataset = one.dataset,
                                   .sequence_length = deck->data.sequence_length,
                                   .validation_fraction = deck->data.validation_fraction,
                                   .validation_path = validation.path,
                                   .validation_format = validation.format,
                                   .validation_dataset = validation.dataset,
                                   .shuffle = deck->data.shuffle,
                                   .seed = (uint64_t) deck->data.seed,
                                   .vocab_size = deck->model.vocab_size};
  ts_error found = {0};
  ts_data_open(&options, data, &found);
  ts_status status = found.count > 0 ? blame_text(deck, prepared, about, found.text, err) : TS_OK;
  ts_error_clear(&found);
  ts_free(sources);
  return status;
}

ts_status ts_data_open_deck(ts_world *world, const ts_deck *deck, ts_data **data, ts_error *err) {
  *data = NULL;
  if (deck->data.path[0] == 0 && deck->data.sources.n == 0) {
    return ts_deck_error(deck, "data.path", err, "missing: the file of tokens or text (or data.sources)");
  }
  ts_prepared prepared = {0};
  ts_status status = ts_prepare_texts(world, deck, &prepared, err);
  if (status == TS_OK) {
    status = ts_world_agree(world, open_prepared(deck, &prepared, data, err), err);
  }
  ts_prepared_clear(&prepared);
  return status;
}

/* Which samples of the split a rank has: of `n` global micro-batches from number `first` on its own. */
typedef struct share {
  int64_t micro_batch, global, rank; /* samples of one, of all ranks' together; among them */
} share;

/* Samples past the end of the split are filled with the first one and counted nowhere. */
static ts_status read_validation(const ts_deck *deck, ts_data *data, const share *s, int64_t first, ts_batch *batch,
                                 ts_error *err) {
  int64_t n = ts_data_samples(data, TS_SPLIT_VALIDATION);
  ts_status status = TS_OK;
  for (int64_t i = 0; i < batch->samples && status == TS_OK; ++i) {
    int64_t at = (first + i / s->micro_batch) * s->global + s->rank * s->micro_batch + i % s->micro_batch;
    bool past = at >= n;
    status = ts_data_read_deck(deck, data, TS_SPLIT_VALIDATION, past ? 0 : at, batch, i, err);
    if (status == TS_OK && past) {
      ts_batch_ignore(batch, i);
    }
  }
  return status;
}

ts_status ts_validate(ts_engine *engine, ts_world *world, const ts_deck *deck, ts_data *data, double *loss,
                      int64_t *n_batches, ts_error *err) {
  const ts_mesh *mesh = ts_engine_mesh(engine);
  int64_t micro_batch = deck->train_micro_batch_size_per_gpu, n = ts_data_samples(data, TS_SPLIT_VALIDATION);
  int64_t global = micro_batch * ts_mesh_group_size(mesh, TS_AXES_BATCH);
  if (n == 0) {
    return ts_deck_error(deck, "data.validation_fraction", err,
                         "there is no validation data: set it or data.validation_path");
  }
  int64_t batches = (n + global - 1) / global;
  if (deck->run.evaluate_batches > 0 && deck->run.evaluate_batches < batches) {
    batches = deck->run.evaluate_batches;
  }
  const share mine = {micro_batch, global, ts_mesh_group_rank(mesh, TS_AXES_BATCH)};
  const int64_t most = ts_deck_evaluates(deck);
  double sum = 0, valid = 0;
  ts_status status = TS_OK;
  for (int64_t i = 0; i < batches && status == TS_OK; i += most) {
    int64_t samples = micro_batch * (batches - i < most ? batches - i : most);
    ts_batch *batch = ts_batch_create(samples, deck->data.sequence_length, ts_engine_inputs(engine));
    status = ts_world_agree(world, read_validation(deck, data, &mine, i, batch, err), err);
    if (status == TS_OK) {
      double batch_loss, batch_valid;
      ts_engine_evaluate(engine, batch, &batch_loss, &batch_valid);
      sum += batch_loss;
      valid += batch_valid;
    }
    ts_batch_destroy(&batch);
  }
  if (status == TS_OK && valid == 0) {
    bool apart = deck->data.validation_path[0] != 0;
    status = ts_deck_error(deck, apart ? "data.validation_path" : "data.validation_fraction", err,
                           "no token of the validation data has a label (a loss mask, or documents of one token)");
  }
  *loss = ts_shown(sum / valid);
  if (n_batches != NULL) {
    *n_batches = batches;
  }
  return status;
}
