/* Who speaks of a weight first. */
#include "pass/marks.h"

#include "base/memory.h"
#include "base/text.h"
#include "family/family.h"
#include "pass/marks_rules.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

void ts_tp_mark_clear(ts_tp_mark *mark) {
  ts_free(mark->size);
  *mark = (ts_tp_mark){.unit = 1};
}

void ts_tp_mark_blocks(ts_tp_mark *mark, int n) {
  mark->n_sizes = n;
  mark->size = ts_calloc((size_t) n, sizeof *mark->size);
}

bool ts_tp_spec_matches(const ts_deck_tp_spec *spec, const char *name) {
  for (int i = 0; i < spec->patterns.n; ++i) {
    if (ts_matches_from(spec->patterns.items[i], name) == 1) {
      return true;
    }
  }
  return false;
}

static ts_tp_style spec_style(const ts_deck_tp_spec *spec) {
  return strcmp(spec->partition_type, "column") == 0 ? TS_TP_COLUMN
         : strcmp(spec->partition_type, "row") == 0  ? TS_TP_ROW
                                                     : TS_TP_WHOLE;
}

/* The first entry of layer_specs that speaks of it, -1 for none. */
static int first_spec(const ts_tp_query *q) {
  const ts_deck_tp_specs *specs = &q->deck->tensor_parallel.partition_config.layer_specs;
  for (int i = 0; i < specs->n; ++i) {
    if (ts_deck_spec_applies(q->deck, &specs->items[i]) && ts_tp_spec_matches(&specs->items[i], q->name)) {
      return i;
    }
  }
  return -1;
}

static ts_status ask_specs(const ts_tp_query *q, ts_tp_mark *mark) {
  int i = first_spec(q);
  if (i < 0) {
    return TS_OK;
  }
  const ts_deck_tp_spec *spec = &q->deck->tensor_parallel.partition_config.layer_specs.items[i];
  mark->style = spec_style(spec);
  mark->gather_output = mark->style == TS_TP_COLUMN && spec->gather_output;
  snprintf(mark->rule, sizeof mark->rule, "partition_config.layer_specs[%d]", i);
  return mark->style != TS_TP_WHOLE && spec->shape.n > 0 ? ts_tp_view_fit(q, i, mark) : TS_OK;
}

/* Patterns may well match norms too, but a shape is meant for what it says. */
static ts_status check_vector(const ts_tp_query *q) {
  const ts_deck_tp_specs *specs = &q->deck->tensor_parallel.partition_config.layer_specs;
  int i = first_spec(q);
  if (i < 0 || specs->items[i].shape.n == 0 || spec_style(&specs->items[i]) == TS_TP_WHOLE) {
    return TS_OK;
  }
  char *key = ts_format(TS_LAYER_SPECS "[%d].shape", i);
  ts_status status = ts_deck_error(q->deck, key, q->err,
                                   "%s is a vector, which is never cut; accepted: no shape, or patterns that do not "
                                   "match it",
                                   q->name);
  ts_free(key);
  return status;
}

bool ts_tp_is_weight_of(const char *name, const char *unit) {
  size_t n = unit != NULL ? strlen(unit) : 0;
  return n > 0 && strncmp(name, unit, n) == 0 && strcmp(name + n, ".weight") == 0;
}

/* Tables have no product in front of them that they could follow from. */
static ts_status ask_family(const ts_tp_query *q, ts_tp_mark *mark) {
  const ts_family *family = ts_deck_family(q->deck);
  const char *name = q->name;
  if (family == NULL) { /* a program's own model */
    return TS_OK;
  }
  if (ts_tp_is_weight_of(name, family->embedding) || ts_tp_is_weight_of(name, family->head)) {
    mark->style = q->deck->tensor_parallel.vocab_parallel_lm_head ? TS_TP_COLUMN : TS_TP_WHOLE;
    snprintf(mark->rule, sizeof mark->rule, "vocab_parallel_lm_head");
  } else if (ts_tp_is_weight_of(name, family->positions)) {
    mark->style = TS_TP_WHOLE;
    snprintf(mark->rule, sizeof mark->rule, "family");
  }
  return TS_OK;
}

/* The matrix that is left when all were asked. */
static ts_status leave_matrix(const ts_tp_query *q, ts_tp_mark *mark) {
  const ts_deck_tensor_parallel *tp = &q->deck->tensor_parallel;
  bool defaults = tp->partition_config.use_default_specs;
  if (tp->partition_config.strict_mode) {
    return ts_deck_error(
        q->deck, "tensor_parallel.partition_config.strict_mode", q->err,
        "%s [%lld][%lld] is matched by no layer_specs%s; accepted: a pattern for it (of type \"skip\" to "
        "leave it whole), or strict_mode = false",
        q->name, (long long) q->out, (long long) q->in, defaults ? ", preset_model or tp_plan" : "");
  }
  if (!defaults) {
    mark->style = TS_TP_WHOLE;
    snprintf(mark->rule, sizeof mark->rule, "partition_config.use_default_specs");
  }
  return TS_OK;
}

ts_status ts_tp_mark_find(const ts_deck *deck, const char *weight_name, int64_t rows_out, int64_t columns_in,
                          ts_tp_mark *mark, ts_error *err) {
  static const struct {
    ts_status (*ask)(const ts_tp_query *q, ts_tp_mark *mark);
    bool is_default;
  } sources[] = {{ask_specs, false}, {ts_tp_preset_find, true}, {ts_tp_plan_find, true}, {ask_family, false}};
  const ts_tp_query q = {deck, weight_name, rows_out, columns_in, err};
  ts_status status = TS_OK;
  *mark = (ts_tp_mark){.unit = 1};
  if (columns_in == 0) {
    return check_vector(&q);
  }
  for (size_t i = 0; i < sizeof sources / sizeof *sources && status == TS_OK && mark->style == TS_TP_UNSPOKEN; ++i) {
    if (!sources[i].is_default || deck->tensor_parallel.partition_config.use_default_specs) {
      status = sources[i].ask(&q, mark);
    }
  }
  if (status == TS_OK && mark->style == TS_TP_UNSPOKEN) {
    status = leave_matrix(&q, mark);
  }
  if (status != TS_OK) {
    ts_tp_mark_clear(mark);
  }
  return status;
}
