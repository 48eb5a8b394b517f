/* What must hold for `tensor_parallel` whatever the model's weights are; the rest is found in pass/marks.c.  And keys
 * of sequence parallelism that say nothing; what is wrong with the others is found in pass/sequence.c. */
#include "base/memory.h"
#include "deck/reader.h"

#include <string.h>
#include <strings.h>

static void check_ranks(ts_reader *reader) {
  const ts_deck_tensor_parallel *tp = &reader->deck->tensor_parallel;
  int64_t heads = reader->deck->model.num_attention_heads;
  if (tp->tp.tp_size != 1 && tp->tp.tp_size != tp->autotp_size) {
    ts_reader_report(reader, TS_CHECK_RANKS, "tensor_parallel.tp.tp_size",
                     "%lld, but tensor_parallel.autotp_size is %lld; accepted: 1 or the same (autotp_size decides)",
                     (long long) tp->tp.tp_size, (long long) tp->autotp_size);
  }
  if (!ts_deck_model_is_own(reader->deck) && tp->autotp_size > heads) {
    ts_reader_report(
        reader, TS_CHECK_RANKS, "tensor_parallel.autotp_size",
        "%lld ranks share the %lld heads of model.num_attention_heads, and some would have none; accepted: "
        "1 to %lld (more ranks make more replicas, with ZeRO's stages)",
        (long long) tp->autotp_size, (long long) heads, (long long) heads);
  }
}

/* Says what is wrong with a key of entry i. */
static void report_spec(ts_reader *reader, int i, const char *key, const char *problem) {
  char *path = ts_format(TS_LAYER_SPECS "[%d].%s", i, key), *value = ts_deck_value(reader->deck, path);
  ts_reader_report(reader, TS_CHECK_PARTITION, path, "%.80s%s%s", value, strlen(value) > 80 ? "..." : "", problem);
  ts_free(value);
  ts_free(path);
}

static void check_dimension(ts_reader *reader, int i, const ts_deck_tp_spec *spec) {
  int dims = spec->shape.n > 0 ? spec->shape.n : 2;
  int64_t own = strcmp(spec->partition_type, "row") == 0;
  char *problem = NULL;
  if (spec->partition_dim >= dims) {
    problem = ts_format(": there are %d dimensions; accepted: 0 to %d", dims, dims - 1);
  } else if (spec->shape.n == 0 && strcmp(spec->partition_type, "skip") != 0 && spec->partition_dim != own) {
    problem = ts_format(" is not the dimension of [out][in] that a %s is cut along; accepted: %lld, or a shape",
                        spec->partition_type, (long long) own);
  }
  if (problem != NULL) {
    report_spec(reader, i, "partition_dim", problem);
  }
  ts_free(problem);
}

static bool has_zero(const ts_deck_extent *extent) {
  bool found = extent->sizes.n == 0 && extent->count == 0;
  for (int k = 0; k < extent->sizes.n; ++k) {
    found = found || extent->sizes.items[k] <= 0;
  }
  return found;
}

static void check_spec_shape(ts_reader *reader, int i, const ts_deck_tp_spec *spec) {
  const ts_deck_view *shape = &spec->shape;
  int open = 0, elsewhere = 0, bad = 0;
  for (int d = 0; d < shape->n; ++d) {
    open += shape->items[d].sizes.n == 0 && shape->items[d].count == -1;
    elsewhere += shape->items[d].sizes.n > 0 && d != spec->partition_dim;
    bad += has_zero(&shape->items[d]);
  }
  if (shape->n == 1 || shape->n > TS_DECK_DIMS) {
    report_spec(reader, i, "shape", ": accepted: two to eight dimensions, of [out] and then of [in]");
  } else if (bad > 0) {
    report_spec(reader, i, "shape", ": accepted: counts and sizes of at least 1, or -1 for a dimension");
  } else if (open > 1) {
    report_spec(reader, i, "shape", " has -1 more than once; accepted: one dimension that is left to be counted");
  } else if (elsewhere > 0) {
    char *problem =
        ts_format(" has sizes of blocks in another dimension than partition_dim %lld; accepted: there alone",
                  (long long) spec->partition_dim);
    report_spec(reader, i, "shape", problem);
    ts_free(problem);
  }
}

/* That there are patterns is checked before. */
static void check_written(ts_reader *reader, int i) {
  char *path = ts_format(TS_LAYER_SPECS "[%d].patterns", i);
  const ts_setting *setting = ts_reader_find(reader, path);
  if (setting != NULL && setting->value.kind == TS_VALUE_LIST && setting->value.n == 0) {
    report_spec(reader, i, "patterns", " is empty; accepted: a string, or a list of strings");
  }
  ts_free(path);
}

/* With use_default_specs = false nobody asks these. */
static void note_unasked(ts_reader *reader) {
  const ts_deck_tensor_parallel *tp = &reader->deck->tensor_parallel;
  bool preset = strcmp(tp->preset_model, "none") != 0;
  if (!tp->partition_config.use_default_specs && (preset || tp->tp_plan.n > 0)) {
    ts_reader_note(reader, "tensor_parallel.%s: no effect: partition_config.use_default_specs is false",
                   preset ? "preset_model" : "tp_plan");
  }
}

/* A degree of more than the ranks that share samples is an error, once the grid is known. */
static void note_sequence(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  const struct {
    const char *path;
    bool right;
  } rows[] = {{"sequence_parallel.ulysses_degree", d->sequence_parallel.ulysses_degree <= 1},
              {"sequence_parallel.ring_degree", d->sequence_parallel.ring_degree <= 1},
              {"sequence_parallel.ring_exchange", true},
              {"sequence_parallel.load_balancer", true},
              {"seq_parallel_communication_data_type", true}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows && d->sequence_parallel_size == 1; ++i) {
    if (rows[i].right) {
      ts_reader_note_idle(reader, rows[i].path, "sequence_parallel_size is 1");
    }
  }
  const ts_setting *setting = ts_reader_find(reader, "communication_data_type");
  bool derived = setting != NULL && strcmp(setting->name, "communication_data_type") == 0 &&
                 d->communication_data_type == d->data_types.grad_accum_dtype; /* as in a deck that was printed */
  if (d->sequence_parallel_size > 1 && !derived &&
      d->communication_data_type != d->seq_parallel_communication_data_type) {
    ts_reader_note_idle(reader, "communication_data_type",
                        "where sequence_parallel_size is above 1, seq_parallel_communication_data_type decides");
  }
}

/* One stage is not cut, so its deck may say anything, as DeepSpeed's may. */
static void check_partition(ts_reader *reader) {
  const char *by = reader->deck->pipeline.partition, *expression = by + strlen(TS_PARTITION_TYPE);
  if (reader->deck->pipeline.stages <= 1) {
    static const char *const idle[] = {"pipeline.schedule", "pipeline.partition", "pipeline.virtual_stages",
                                       "pipeline.units"};
    for (size_t i = 0; i < sizeof idle / sizeof *idle; ++i) {
      ts_reader_note_idle(reader, idle[i], "a pipeline of one stage is not cut");
    }
    return;
  }
  if (strcmp(reader->deck->run.accumulation_order, "unit") == 0) {
    ts_reader_note_idle(reader, "run.accumulation_order", "the order of a pipeline is its schedule's");
  }
  bool type = strncasecmp(by, TS_PARTITION_TYPE, strlen(TS_PARTITION_TYPE)) == 0;
  if (type && ts_matches(expression, "") < 0) {
    ts_reader_report(reader, TS_CHECK_REGEX, "pipeline.partition", "\"%s\": not a valid regular expression",
                     expression);
  } else if (!type && !ts_key_listed("best|time|memory|uniform|parameters", by, NULL, NULL)) {
    ts_reader_report(reader, TS_CHECK_WORD, "pipeline.partition",
                     "\"%s\"; accepted: \"best\", \"time\", \"memory\", \"uniform\", \"parameters\", "
                     "\"" TS_PARTITION_TYPE "REGEX\"",
                     by);
  }
}

void ts_reader_check_parallel(ts_reader *reader) {
  const ts_deck_tp_specs *specs = &reader->deck->tensor_parallel.partition_config.layer_specs;
  check_ranks(reader);
  note_unasked(reader);
  note_sequence(reader);
  check_partition(reader);
  for (int i = 0; i < specs->n; ++i) {
    check_written(reader, i);
    check_dimension(reader, i, &specs->items[i]);
    check_spec_shape(reader, i, &specs->items[i]);
  }
}
