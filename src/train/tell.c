#include "train/tell.h"

#include "base/log.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

void ts_tell_lines(char *text) {
  for (char *line = text; line != NULL && *line != 0;) {
    char *end = strchr(line, '\n');
    if (end != NULL) {
      *end = 0;
    }
    ts_log(TS_LOG_INFO, "%s", line);
    line = end != NULL ? end + 1 : NULL;
  }
}

/* ---- memory ---- */

static const struct {
  ts_purpose purpose;
  const char *name;
} purposes[] = {{TS_PURPOSE_PARAMETER, "parameters"},
                {TS_PURPOSE_GRADIENT, "gradients"},
                {TS_PURPOSE_OPTIMIZER, "optimizer states"},
                {TS_PURPOSE_ACTIVATION, "activations and workspaces"},
                {TS_PURPOSE_BUFFER, "inputs and communication buffers"},
                {TS_PURPOSE_CHECKPOINT, "copy for asynchronous checkpoints"},
                {TS_PURPOSE_RESERVE, "reserve for libraries"}};

/* Of what a space has; nothing where that is nothing. */
static void add_purposes(const char *where, const int64_t bytes[TS_N_PURPOSES], ts_text *to) {
  char text[32];
  int64_t all = 0;
  for (int i = 0; i < TS_N_PURPOSES; ++i) {
    all += bytes[i];
  }
  for (size_t i = 0; all > 0 && i < sizeof purposes / sizeof *purposes; ++i) {
    ts_text_add(to, "  %-12s %-36s %12s\n", where, purposes[i].name,
                ts_human_bytes((double) bytes[purposes[i].purpose], text));
  }
}

void ts_tell_memory_plan(const ts_engine *engine) {
  const ts_program *p = ts_engine_program(engine);
  const ts_plan *plan = p->plan;
  bool device = ts_backend_device(p->target.backend) != NULL;
  char peak[32];
  ts_text text = {0};
  ts_text_add(&text, "memory planned for rank %d: at most %s\n", p->mesh.rank,
              ts_human_bytes((double) plan->peak_bytes, peak));
  add_purposes(device ? "device" : "memory", plan->bytes, &text);
  add_purposes("host", plan->away[TS_SPACE_PINNED], &text);
  add_purposes("files", plan->away[TS_SPACE_FILE], &text);
  ts_tell_lines(text.text);
  ts_text_free(&text);
}

void ts_tell_memory(ts_engine *engine, int64_t step) {
  ts_device *device = ts_backend_device(ts_engine_program(engine)->target.backend);
  char a[32], b[32], c[32];
  if (device != NULL) {
    ts_log(TS_LOG_INFO, "  memory after step %lld | device: at most %s, %s free", (long long) step,
           ts_human_bytes((double) device->ops->used(device), a),
           ts_human_bytes((double) device->ops->available(device), b));
  }
  double now = (double) ts_process_memory(), most = fmax(now, (double) ts_process_peak());
  ts_log(TS_LOG_INFO, "  memory after step %lld | process: %s, at most %s | machine: %s available", (long long) step,
         ts_human_bytes(now, a), ts_human_bytes(most, b), ts_human_bytes((double) ts_machine_available(), c));
}

/* ---- state ---- */

static void add_grid_and_program(const ts_program *p, ts_text *to) {
  char bytes[32];
  ts_text_add(to, "  grid: %d ranks =", p->mesh.ranks);
  static const char *const axes[TS_N_AXES] = {"pp", "dp", "ep", "sp", "tp"};
  for (int i = 0; i < TS_N_AXES; ++i) {
    ts_text_add(to, "%s %s %d", i > 0 ? " x" : "", axes[i], p->mesh.size[i]);
  }
  ts_text_add(to, "\n  program of rank %d: %d nodes, %d tensors, %d instructions, %lld runs a step\n", p->mesh.rank,
              p->graph->n_nodes, p->graph->n_tensors, p->schedule->n, (long long) p->step.n);
  for (ts_arena a = TS_ARENA_FILE; a < TS_N_ARENAS; ++a) {
    if (p->plan->arena_bytes[a] > 0) {
      ts_text_add(to, "  arena %-18s %12s\n", ts_arenas[a].name,
                  ts_human_bytes((double) p->plan->arena_bytes[a], bytes));
    }
  }
}

void ts_tell_state(const ts_deck *deck, const ts_engine *engine) {
  ts_text text = {0};
  ts_text_add(&text, "the deck as it is understood:\n");
  ts_deck_print(deck, &text);
  ts_text_add(&text, "what became of it:\n");
  add_grid_and_program(ts_engine_program(engine), &text);
  ts_log_unkept(TS_LOG_INFO, text.text); /* the run has deck.cfg */
  ts_text_free(&text);
}
