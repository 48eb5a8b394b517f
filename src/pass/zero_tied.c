/* What two stages of a pipeline read, as an embedding that is the head too: its home is the stage that has its unit,
 * the other has a copy, of parameter and gradient alone.  Once a step what the copy's ranks have reduced goes home,
 * rank by rank, and is added behind home's own; so it is counted once and updated once.  The new values come back
 * likewise. */
#include "pass/zero.h"

#include "base/memory.h"
#include "pass/record.h"

/* The message of a part, of one tensor; \a crossing is what the result points to. */
static ts_attr tied_message(const ts_zero *z, int index, ts_tid like, bool gradients, ts_crossing *crossing) {
  const ts_part *part = &z->layout->part[index];
  const ts_graph *g = z->rewrite.to;
  const ts_pipeline *p = &z->context->stages->pipeline;
  *crossing = (ts_crossing){.dtype = (int64_t) g->tensor[like].dtype, .n = 1, .d = {ts_tensor_count(g, like)}};
  return (ts_attr){.message = {.boundary = p->stages * p->chunks + index,
                               .back = gradients,
                               .into = !gradients && ts_part_is_copy(part),
                               .peer = ts_part_is_copy(part) ? part->stage : part->copy,
                               .n = 1,
                               .crossing = crossing}};
}

static bool is_tied(const ts_part *part) {
  return part->here && part->copy >= 0 && part->copy != part->stage;
}

/* The gradient that an update reads. */
static ts_tid *gradient_to_read(ts_zero *z, int index) {
  ts_part_state *s = &z->part[index];
  return ts_zero_stage(z, &z->layout->part[index]) == 0 ? &s->gradient : &s->shard;
}

static void add_copys_gradient(ts_zero *z, ts_site at, int index, const char *name) {
  const ts_part *part = &z->layout->part[index];
  ts_part_state *s = &z->part[index];
  ts_crossing crossing;
  ts_tid *gradient = gradient_to_read(z, index);
  const ts_attr message = tied_message(z, index, *gradient, true, &crossing);
  ts_tid other = ts_build_receive(at, name, &message, NULL);
  char *sum = ts_format("%s.sum", name);
  *gradient = ts_build_accumulate(at, sum, *gradient, other, ts_zero_one(z));
  if (gradient == &s->gradient) { /* the record's window on it */
    s->shard = ts_zero_is_spread(part) ? ts_zero_my_window(at, part, s->gradient) : s->gradient;
  }
  ts_free(sum);
}

void ts_zero_collect_tied(ts_zero *z, ts_site at) {
  for (int i = 0; i < z->layout->n_parts; ++i) {
    const ts_part *part = &z->layout->part[i];
    if (!is_tied(part) || !part->trainable) {
      continue;
    }
    char *name = ts_format("%s.gradient_of_copy", part->name);
    if (ts_part_is_copy(part)) {
      ts_crossing crossing;
      const ts_tid *gradient = gradient_to_read(z, i);
      const ts_attr message = tied_message(z, i, *gradient, true, &crossing);
      ts_build_send(at, name, gradient, &message);
    } else {
      add_copys_gradient(z, at, i, name);
    }
    ts_free(name);
  }
}

/* Of a copy the place of the values that this rank's counterpart at home has; of home these. */
static ts_tid values_of(ts_zero *z, ts_site at, int index, bool *window) {
  const ts_part *part = &z->layout->part[index];
  const ts_part_state *s = &z->part[index];
  *window = ts_zero_stage(z, part) != 0 && !ts_zero_parameter_is_sharded(z, part);
  return !ts_part_is_copy(part) ? s->fresh : *window ? ts_zero_my_window(at, part, s->param) : s->param;
}

void ts_zero_spread_tied(ts_zero *z, ts_site at) {
  for (int i = 0; i < z->layout->n_parts; ++i) {
    const ts_part *part = &z->layout->part[i];
    if (!is_tied(part) || !part->trainable) {
      continue;
    }
    bool window;
    ts_crossing crossing;
    ts_tid values = values_of(z, at, i, &window);
    const ts_attr message = tied_message(z, i, values, false, &crossing);
    char *name = ts_format("%s.values", part->name);
    if (ts_part_is_copy(part)) {
      values = ts_build_receive(at, name, &message, &values);
      z->part[i].updated = window ? values : TS_NONE;
    } else {
      ts_build_send(at, name, &values, &message);
    }
    ts_free(name);
  }
}
