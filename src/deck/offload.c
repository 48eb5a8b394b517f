/* What a deck says of state that leaves: zero_optimization.offload_param and offload_optimizer. */
#include "deck/reader.h"

#include <string.h>

static bool is_device(const ts_deck_offload *offload, const char *device) {
  return strcmp(offload->device, device) == 0;
}

/* Does some of it go to files, as far as the deck knows? */
static bool may_have_files(const ts_deck_offload *offload) {
  return offload->nvme_path[0] != 0 && (is_device(offload, "nvme") || is_device(offload, "auto"));
}

const char *ts_deck_files(const ts_deck *deck) {
  const ts_deck_zero *zero = &deck->zero_optimization;
  return may_have_files(&zero->offload_optimizer) ? zero->offload_optimizer.nvme_path
         : may_have_files(&zero->offload_param)   ? zero->offload_param.nvme_path
                                                  : "";
}

bool ts_deck_fits_offload(const ts_deck *deck) {
  return is_device(&deck->zero_optimization.offload_optimizer, "auto") ||
         is_device(&deck->zero_optimization.offload_param, "auto");
}

bool ts_deck_offloads(const ts_deck *deck) {
  return !is_device(&deck->zero_optimization.offload_optimizer, "none") ||
         !is_device(&deck->zero_optimization.offload_param, "none");
}

static void note_idle(ts_reader *reader, const char *path, const ts_deck_offload *offload) {
  bool processors = strcmp(reader->deck->run.device, "cuda") != 0;
  if (is_device(offload, "cpu") && processors) {
    ts_reader_note(reader, "%s: \"%s\": no effect on processors, where all state is in host memory", path,
                   offload->device);
  }
}

void ts_reader_check_offload(ts_reader *reader) {
  const ts_deck_zero *zero = &reader->deck->zero_optimization;
  const ts_deck_offload *param = &zero->offload_param, *optimizer = &zero->offload_optimizer;
  note_idle(reader, "zero_optimization.offload_param.device", param);
  note_idle(reader, "zero_optimization.offload_optimizer.device", optimizer);
  if (strcmp(reader->deck->run.offload_update, "host") == 0 && is_device(optimizer, "none")) {
    ts_reader_note_idle(reader, "run.offload_update", "zero_optimization.offload_optimizer.device is \"none\"");
  } else if (strcmp(reader->deck->run.offload_update, "host") == 0 && strcmp(reader->deck->run.device, "cuda") != 0) {
    ts_reader_note(reader, "run.offload_update: \"host\": no effect on processors, which make all updates");
  }
  if (zero->stage < 3 && (is_device(param, "cpu") || is_device(param, "auto"))) {
    ts_reader_note_idle(reader, "zero_optimization.offload_param.device", "zero_optimization.stage is below 3");
  }
  if (zero->stage < 3 && is_device(param, "nvme")) {
    ts_reader_report(reader, TS_CHECK_OFFLOAD, "zero_optimization.offload_param.device",
                     "\"nvme\" needs zero_optimization.stage = 3, and it is %lld", (long long) zero->stage);
  }
  if (may_have_files(param) && may_have_files(optimizer) && strcmp(param->nvme_path, optimizer->nvme_path) != 0) {
    ts_reader_report(reader, TS_CHECK_OFFLOAD, "zero_optimization.offload_optimizer.nvme_path",
                     "\"%s\", and offload_param has \"%s\": a rank has one file; accepted: the same for both",
                     optimizer->nvme_path, param->nvme_path);
  }
}
