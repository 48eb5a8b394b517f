#include "engine/beside.h"

#include "base/log.h"
#include "base/memory.h"
#include "io/companions.h"
#include "model/config_json.h"

#include <unistd.h>

static bool has_config(const char *directory) {
  char *path = ts_format("%s/config.json", directory);
  bool there = access(path, R_OK) == 0;
  ts_free(path);
  return there;
}

static void find_source(const char *run, const char *began, ts_beside *out) {
  char *kept = ts_format("%s/" TS_RUN_FROM, run);
  if (began[0] == 0) {
    ts_free(kept);
  } else if (run[0] != 0 && has_config(kept)) {
    out->source = kept;
  } else {
    ts_free(kept);
    out->source = has_config(began) ? ts_strdup(began) : NULL;
  }
  if (began[0] != 0 && out->source == NULL) {
    ts_log(TS_LOG_WARNING,
           "%s, which the run began from, is not there any more: config.json is made from the deck, "
           "and tokenizer files are missing",
           began);
  }
}

/* What the run kept of data.tokenizer, else that directory. */
static void find_named_tokenizer(const char *run, const ts_deck *deck, ts_beside *out) {
  char *kept = ts_format("%s/" TS_RUN_TOKENIZER, run);
  const char *named = deck->data.tokenizer;
  out->tokenizer = run[0] != 0 && ts_has_file(kept, "tokenizer.json")      ? ts_strdup(kept)
                   : named[0] != 0 && ts_has_file(named, "tokenizer.json") ? ts_strdup(named)
                                                                           : NULL;
  ts_free(kept);
}

void ts_beside_find(const char *run, const char *began, const ts_deck *deck, ts_beside *out) {
  *out = (ts_beside){0};
  find_source(run != NULL ? run : "", began, out);
  find_named_tokenizer(run != NULL ? run : "", deck, out);
}

static const char *torch_name(ts_dtype dtype) {
  return dtype == TS_BF16 ? "bfloat16" : dtype == TS_F16 ? "float16" : "float32";
}

ts_status ts_beside_config(const ts_beside *b, const ts_deck *deck, ts_dtype dtype, ts_text *to, ts_error *err) {
  if (b->source != NULL) {
    return ts_model_config_copy(b->source, deck, torch_name(dtype), to, err);
  }
  ts_model_config_json(deck, torch_name(dtype), to);
  return TS_OK;
}

ts_status ts_beside_write(const ts_beside *b, const ts_text *config, const char *directory, ts_error *err) {
  char *path = ts_format("%s/config.json", directory);
  ts_status status = ts_companions_copy(b->source, b->tokenizer, directory, err);
  status = status == TS_OK ? ts_write_file(path, config->text, config->length, err) : status;
  ts_free(path);
  return status;
}

void ts_beside_clear(ts_beside *b) {
  ts_free(b->source);
  ts_free(b->tokenizer);
  *b = (ts_beside){0};
}
