/* What `elasticity` chooses from. */
#include "deck/elasticity.h"
#include "deck/reader.h"

#define SIZES "elasticity.micro_batch_sizes"
#define LIMIT "elasticity.max_train_batch_size"

static bool is_given(const ts_reader *reader, const char *path) {
  const ts_setting *setting = ts_reader_find(reader, path);
  return setting != NULL && !ts_setting_is_auto(setting);
}

/* Version 0.2 works with the replicas of a node, 0.1 with one. */
static int64_t replicas_of_node(const ts_deck_elasticity *e) {
  int64_t n = e->num_gpus_per_node / e->model_parallel_size;
  return e->version > 0.1 && n > 0 ? n : 1;
}

static void check_version(ts_reader *reader) {
  const ts_deck_elasticity *e = &reader->deck->elasticity;
  if (e->version != 0.1 && e->version != 0.2) {
    ts_reader_report(reader, TS_CHECK_ELASTICITY, "elasticity.version", "%g is not there; accepted: 0.1, 0.2",
                     e->version);
  } else if (e->version == 0.1 && e->model_parallel_size > 1) {
    ts_reader_report(reader, TS_CHECK_ELASTICITY, "elasticity.model_parallel_size",
                     "%lld, but version 0.1 has no model parallelism; accepted: 1, or elasticity.version = 0.2",
                     (long long) e->model_parallel_size);
  } else if (e->num_gpus_per_node % e->model_parallel_size != 0) {
    ts_reader_report(reader, TS_CHECK_ELASTICITY, "elasticity.num_gpus_per_node",
                     "%lld is not a multiple of elasticity.model_parallel_size %lld", (long long) e->num_gpus_per_node,
                     (long long) e->model_parallel_size);
  }
}

/* DeepSpeed's users may have divided the model by other means; here the grid is in the deck. */
static void check_grid(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  int64_t shared = d->tensor_parallel.autotp_size * d->sequence_parallel_size * d->pipeline.stages;
  if (d->elasticity.model_parallel_size != shared) {
    ts_reader_note(reader, "elasticity.model_parallel_size: %lld, but in this deck %lld rank%s a replica of the model",
                   (long long) d->elasticity.model_parallel_size, (long long) shared, shared > 1 ? "s share" : " has");
  }
}

static void check_gpus(ts_reader *reader) {
  const ts_deck_elasticity *e = &reader->deck->elasticity;
  if (e->max_gpus < e->min_gpus) {
    ts_reader_report(reader, TS_CHECK_ELASTICITY, "elasticity.max_gpus", "%lld is below elasticity.min_gpus %lld",
                     (long long) e->max_gpus, (long long) e->min_gpus);
  }
}

static void check_sizes(ts_reader *reader) {
  const ts_deck_elasticity *e = &reader->deck->elasticity;
  int64_t n = replicas_of_node(e), limit = e->max_train_batch_size / n;
  if (e->micro_batch_sizes.n > TS_ELASTIC_SIZES) {
    ts_reader_report(reader, TS_CHECK_ELASTICITY, SIZES, "%d sizes; accepted: at most %d", e->micro_batch_sizes.n,
                     TS_ELASTIC_SIZES);
  }
  for (int i = 0; i < e->micro_batch_sizes.n; ++i) {
    if (e->micro_batch_sizes.items[i] > limit) {
      ts_reader_report(reader, TS_CHECK_ELASTICITY, SIZES, "%lld is above %s %lld / %lld replicas of a node = %lld",
                       (long long) e->micro_batch_sizes.items[i], LIMIT, (long long) e->max_train_batch_size,
                       (long long) n, (long long) limit);
      return;
    }
  }
}

/* Elasticity decides all three: one that the user set would be silently something else. */
static void check_triple(ts_reader *reader) {
  static const char *const paths[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                      "gradient_accumulation_steps"};
  bool ignored = reader->deck->elasticity.ignore_non_elastic_batch_info;
  for (int i = 0; i < 3; ++i) {
    if (is_given(reader, paths[i]) && ignored) {
      ts_reader_note(reader, "%s: no effect: elasticity.enabled chooses the batch", paths[i]);
    } else if (is_given(reader, paths[i])) {
      ts_reader_report(reader, TS_CHECK_ELASTIC_BATCH, paths[i],
                       "elasticity.enabled chooses the batch; accepted: to leave it out, or "
                       "elasticity.ignore_non_elastic_batch_info = true");
    }
  }
}

void ts_reader_check_elasticity(ts_reader *reader) {
  const ts_deck_elasticity *e = &reader->deck->elasticity;
  if (!e->enabled) {
    return;
  }
  check_triple(reader);
  if (e->micro_batch_sizes.n == 0) {
    ts_reader_report(reader, TS_CHECK_REQUIRED_BY, SIZES, "missing: elasticity.enabled needs it, such as [2, 4, 6]");
  }
  if (e->max_train_batch_size == 0) {
    ts_reader_report(reader, TS_CHECK_REQUIRED_BY, LIMIT, "missing: elasticity.enabled needs it");
  } else {
    check_sizes(reader);
  }
  check_version(reader);
  check_gpus(reader);
  check_grid(reader);
}
