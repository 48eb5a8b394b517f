#include "run/datasheet.h"

#include "base/memory.h"

#include <string.h>

/* NVIDIA's datasheets of the GPUs and of the DGX and HGX nodes with eight of them; a node's links to others shared. */
static const ts_datasheet rows[] = {
    {"a100-40gb", "NVIDIA A100 40GB (SXM)", {19.5e12, 312e12}, 1.555e12, {300e9, 25e9}, 50e9, (int64_t) 40e9, 8},
    {"a100", "NVIDIA A100 80GB (SXM)", {19.5e12, 312e12}, 2.039e12, {300e9, 25e9}, 50e9, (int64_t) 80e9, 8},
    {"l40s", "NVIDIA L40S (PCIe)", {91.6e12, 362e12}, 0.864e12, {32e9, 12.5e9}, 50e9, (int64_t) 48e9, 8},
    {"h100", "NVIDIA H100 80GB (SXM)", {67e12, 989e12}, 3.35e12, {450e9, 50e9}, 75e9, (int64_t) 80e9, 8},
    {"h200", "NVIDIA H200 141GB (SXM)", {67e12, 989e12}, 4.8e12, {450e9, 50e9}, 75e9, (int64_t) 141e9, 8},
    {"b200", "NVIDIA B200 180GB (SXM)", {75e12, 2250e12}, 7.7e12, {900e9, 50e9}, 75e9, (int64_t) 180e9, 8},
};

/* What is reached of them.  On an H100 and an H200 large bf16 products were seen at 66 to 82 % of the peak, small and
 * fused ones at half of these, a copy at 88 to 90 % of the memory's rate and other kernels at 50 to 95 % of the copy
 * (doc/performance.md).  Of links nothing was measured here: half to nine tenths is what nccl-tests' tables in the
 * open show of large messages, with 5 to 20 microseconds for each doubling of the ranks before them. */
static const struct {
  double product, memory, link, start, slowdown, instruction;
} reached[TS_N_ENDS] = {
    [TS_END_FAST] = {0.75, 0.85, 0.9, 5e-6, 1.0, 1e-6},
    [TS_END_SLOW] = {0.40, 0.50, 0.5, 20e-6, 1.2, 5e-6},
};

const ts_datasheet *ts_datasheet_find(const char *name) {
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (strcmp(rows[i].name, name) == 0) {
      return &rows[i];
    }
  }
  return NULL;
}

void ts_datasheet_list(ts_text *to) {
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    ts_text_add(to, "%s%s", i > 0 ? ", " : "", rows[i].name);
  }
}

void ts_datasheet_machine(const ts_datasheet *sheet, ts_end end, ts_machine *machine) {
  *machine = (ts_machine){.backend = ts_strdup("cuda"),
                          .device = ts_strdup(sheet->device),
                          .libraries = ts_strdup("none was asked"),
                          .date = ts_strdup("never")};
  ts_measured *m = ts_machine_of(machine, sheet->node, 1);
  for (int i = 0; i < TS_N_RATED; ++i) {
    m->product[i] = reached[end].product * sheet->product[i];
  }
  m->copy = reached[end].memory * sheet->memory_rate;
  m->host = reached[end].memory * sheet->host_rate;
  for (int i = 0; i < TS_N_LINKS; ++i) {
    m->link[i] = reached[end].link * sheet->link[i];
  }
  m->start = reached[end].start;
  m->slowdown = reached[end].slowdown;
  m->instruction = reached[end].instruction;
}
