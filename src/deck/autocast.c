/* torch_autocast: which parameters travel in the lower type, and what does not go with it. */
#include "deck/reader.h"
#include "family/family.h"

#include <string.h>

/* ---- classes of modules ---- */

static bool is_in_unit(const char *name, const char *unit) {
  size_t n = unit != NULL ? strlen(unit) : 0;
  return n > 0 && strncmp(name, unit, n) == 0 && name[n] == '.';
}

/* Is `name` a parameter of the module `base` of some block? */
static bool is_of(const char *name, const char *base) {
  const char *at = base != NULL ? strstr(name, base) : NULL;
  return at != NULL && at > name && at[-1] == '.' && at[strlen(base)] == '.' &&
         strchr(at + strlen(base) + 1, '.') == NULL;
}

static bool is_norms(const ts_family *f, const char *name) {
  bool found = is_in_unit(name, f->final_norm) || is_of(name, f->q_norm) || is_of(name, f->k_norm);
  for (int i = 0; i < TS_N_BLOCK_NORMS; ++i) {
    found = found || is_of(name, f->norm[i]);
  }
  return found;
}

/* Class names are what follows the last dot: two paths of torch lead to one class, and no two classes share a name. */
static bool is_listed(const ts_strings *list, const char *class) {
  for (int i = 0; i < list->n; ++i) {
    const char *dot = strrchr(list->items[i], '.');
    if (dot != NULL && strcmp(dot + 1, class) == 0) {
      return true;
    }
  }
  return false;
}

bool ts_deck_travels_low(const ts_deck *deck, const char *name) {
  if (!deck->torch_autocast.enabled) {
    return false;
  }
  const ts_family *f = ts_deck_family(deck);
  const ts_strings *list = &deck->torch_autocast.lower_precision_safe_modules;
  if (f == NULL) { /* a program's own: its builder has no classes */
    return is_listed(list, "Linear");
  }
  if (is_in_unit(name, f->embedding)) {
    return is_listed(list, f->embedding_class != NULL ? f->embedding_class : "Embedding") ||
           (deck->model.tie_word_embeddings && is_listed(list, "Linear"));
  }
  if (is_in_unit(name, f->positions)) {
    return is_listed(list, "Embedding");
  }
  if (is_norms(f, name)) {
    return is_listed(list, f->norm_class != NULL ? f->norm_class : "LayerNorm");
  }
  bool linear =
      f->linear_class == NULL || is_in_unit(name, f->head) || is_of(name, f->router) || is_of(name, f->residual_gate);
  return is_listed(list, linear ? "Linear" : f->linear_class);
}

/* ---- checks ---- */

static void note_off(ts_reader *reader) {
  ts_reader_note_idle(reader, "torch_autocast.dtype", "torch_autocast.enabled is false");
  ts_reader_note_idle(reader, "torch_autocast.lower_precision_safe_modules", "torch_autocast.enabled is false");
}

/* As in DeepSpeed from stage 1 on; here stage 0 has the same bits. */
static void note_wires(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  const char *const paths[] = {"communication_data_type", "seq_parallel_communication_data_type"};
  for (int i = 0; i < 2; ++i) {
    ts_dtype wire = i == 0 ? d->communication_data_type : d->seq_parallel_communication_data_type;
    if (wire != TS_F32) {
      ts_reader_note_idle(reader, paths[i], "with torch_autocast lower_precision_safe_modules decides");
    }
  }
}

void ts_reader_check_autocast(ts_reader *reader) {
  const ts_deck *d = reader->deck;
  if (!d->torch_autocast.enabled) {
    note_off(reader);
    return;
  }
  const char *other = d->fp16.enabled ? "fp16" : d->bf16.enabled == TS_SWITCH_ON ? "bf16" : NULL;
  if (other != NULL) {
    ts_reader_report(reader, TS_CHECK_AUTOCAST, "torch_autocast.enabled",
                     "%s.enabled is true too, and autocast lowers a model of fp32 parameters; accepted: one of the two "
                     "(%s.enabled for parameters in %s and fp32 masters, torch_autocast for fp32 parameters alone)",
                     other, other, other);
  }
  note_wires(reader);
}
