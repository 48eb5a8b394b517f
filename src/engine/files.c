/* The file of a rank's state that is not in memory. */
#include "base/memory.h"
#include "engine/engine.h"
#include "pass/offload.h"
#include "run/executor.h"

#include <string.h>

/* Nothing where this rank has no file; others may. */
static ts_status open_own_file(ts_engine *e, ts_error *err) {
  const ts_program *first = ts_engine_program(e); /* which has all that any has */
  if (ts_plan_file_bytes(first->plan) == 0) {
    return TS_OK;
  }
  char *name = ts_format("rank%d", ts_world_rank(e->world));
  ts_store_options options = ts_store_options_of(e->deck);
  options.name = name;
  int n, rank = ts_world_rank(e->world);
  ts_store_extent *extent = ts_program_extents(first, &n);
  ts_error why = {0};
  ts_status status = ts_store_create(&e->store, &options, extent, n, &why);
  if (status != TS_OK) {
    ts_error_add(err, "rank %d on %s: %s", rank, ts_world_node_name(e->world, rank), why.text);
  }
  ts_error_clear(&why);
  ts_free(extent);
  ts_free(name);
  return status;
}

ts_status ts_engine_open_store(ts_engine *e, ts_error *err) {
  return ts_world_agree(e->world, open_own_file(e, err), err);
}

/* Where device = "auto" has come to a choice: which part of what could leave does not. */
static void add_choice(const ts_engine *e, ts_text *to) {
  const ts_offload_count *n = &ts_engine_program(e)->offload;
  char limit[32];
  ts_text_add(to, "offload: of the elements that could leave the states of %.0f %%",
              n->states > 0 ? 100.0 * (double) n->states_stay / (double) n->states : 100.0);
  if (n->gradients > 0) {
    ts_text_add(to, ", the gradients of %.0f %%", 100.0 * (double) n->gradients_stay / (double) n->gradients);
  }
  if (n->values > 0) {
    ts_text_add(to, " and the values of %.0f %%", 100.0 * (double) n->values_stay / (double) n->values);
  }
  ts_text_add(to, " stay, within %s a rank", ts_human_bytes((double) (e->budget + ts_engine_taken(e)), limit));
}

static void add_store(const ts_engine *e, ts_text *to) {
  char size[32];
  ts_text_add(to, "%s%s a rank in %s (%s)", to->length > 0 ? "; " : "offload: ",
              ts_human_bytes((double) ts_plan_file_bytes(ts_engine_program(e)->plan), size), ts_deck_files(e->deck),
              ts_store_describe(e->store));
}

/* Of all stages of a pipeline. */
static int sum_over_stages(const ts_engine *e, int mine) {
  int *all = ts_world_gather(e->world, &mine, sizeof mine), sum = 0;
  for (int stage = 0; stage < e->mesh.size[TS_AXIS_PP]; ++stage) {
    sum += all[ts_mesh_group_member(&e->mesh, TS_AXES(TS_AXIS_PP), stage)];
  }
  ts_free(all);
  return sum;
}

char *ts_engine_describe_offload(const ts_engine *e) {
  const ts_offload_count *n = &ts_engine_program(e)->offload;
  const int units = sum_over_stages(e, ts_engine_program(e)->units_away);
  const int kept = sum_over_stages(e, ts_engine_program(e)->kept_away);
  ts_text text = {0};
  const bool activations = ts_offload_activations(e->deck, e->backend);
  if (ts_deck_files(e->deck)[0] != 0 && n->states + n->values + units == 0 && !activations) {
    ts_text_add(&text,
                "offload: nothing leaves memory, as no parameter has more elements than "
                "zero_optimization.stage3_param_persistence_threshold, %lld",
                (long long) e->deck->zero_optimization.stage3_param_persistence_threshold);
  }
  if (e->stay.decided && e->budget > 0 && n->states + n->values > 0) {
    add_choice(e, &text);
  }
  if (e->store != NULL) {
    add_store(e, &text);
  }
  if (units > 0) {
    ts_text_add(&text, "%swhat %d of %d units keep for the backward leaves (%d tensors)",
                text.length > 0 ? "; " : "offload: ", units, ts_engine_program(e)->graph->n_units, kept);
  }
  if (ts_engine_program(e)->updates_on_host) {
    ts_text_add(&text, "%supdated by the host's processors", text.length > 0 ? ", " : "offload: ");
  }
  return text.text;
}

char *ts_engine_take_moved(ts_engine *e) {
  if (e->store == NULL) {
    return NULL;
  }
  ts_store_counts all = ts_store_count(e->store), before = e->moved;
  char read[32], written[32];
  e->moved = all;
  return ts_format("offload: %s read, %s written, for which the computation waited %.2f s",
                   ts_human_bytes((double) (all.bytes_read - before.bytes_read), read),
                   ts_human_bytes((double) (all.bytes_written - before.bytes_written), written),
                   all.seconds_waited - before.seconds_waited);
}
