#include "pass/offload.h"

#include "base/memory.h"
#include "graph/op.h"
#include "pass/optimizer.h"
#include "pass/plan.h"
#include "pass/state.h"
#include "pass/step.h"

#include <stdlib.h>
#include <string.h>

/* What a deck's device means on a backend: processors have no other memory than the host's. */
static ts_space space_of_device(const ts_pass_context *context, const ts_deck_offload *offload) {
  bool device = context->target.backend->device != NULL, fits = strcmp(offload->device, "auto") == 0;
  bool host = device && (fits || strcmp(offload->device, "cpu") == 0);
  bool file = strcmp(offload->device, "nvme") == 0 || (fits && !device && ts_deck_files(context->deck)[0] != 0);
  return file ? TS_SPACE_FILE : host ? TS_SPACE_PINNED : TS_SPACE_BACKEND;
}

/* Where values of a part may go.  Of what two stages of a pipeline read each gives the other what is in its memory. */
static ts_space space_of_values(const ts_pass_context *context, const ts_part *part) {
  const ts_deck_zero *zero = &context->deck->zero_optimization;
  bool leave = zero->stage == 3 && part->here && part->copy < 0 && !part->persistent;
  return leave ? space_of_device(context, &zero->offload_param) : TS_SPACE_BACKEND;
}

/* And its optimizer's states. */
static ts_space space_of_states(const ts_pass_context *context, const ts_part *part) {
  bool leave = part->trainable && part->of_stage && !part->persistent;
  return leave ? space_of_device(context, &context->deck->zero_optimization.offload_optimizer) : TS_SPACE_BACKEND;
}

/* And its gradients: of what two stages read the copy's are added to home's, and what is reduced once a step is whole
 * before.  Sums that a rank makes alone are brought for the first node that adds to them and go back behind the last,
 * which must be one run: where gradients of weights have runs of their own, those that come with gradients of inputs
 * are of another, before which an earlier micro-batch's others are not there yet. */
static ts_space space_of_gradients(const ts_pass_context *context, const ts_part *part) {
  bool spread = part->group > 1 || (part->axes & TS_AXES_SHARERS) != 0;
  bool own = !context->defers && (spread ? context->deck->zero_optimization.stage >= 2 : !context->step->apart);
  bool leave = own && part->copy < 0 && context->deck->zero_optimization.offload_optimizer.gradients &&
               ts_optimizer_get(part->optimizer)->granularity == TS_GRANULARITY_ELEMENT;
  return leave && context->use == TS_MODEL_TRAIN ? space_of_states(context, part) : TS_SPACE_BACKEND;
}

/* What has no room in the host's memory goes on to a file, where the deck leaves that open. */
static ts_space farther(const ts_deck_offload *offload, ts_space space, bool stored) {
  return stored && space == TS_SPACE_PINNED && strcmp(offload->device, "auto") == 0 ? TS_SPACE_FILE : space;
}

ts_space ts_offload_space(const ts_pass_context *context, const ts_part *part, ts_state state) {
  const ts_deck_zero *zero = &context->deck->zero_optimization;
  ts_purpose purpose = ts_state_get(state)->purpose;
  bool states = purpose == TS_PURPOSE_OPTIMIZER && !part->states_stay && context->use == TS_MODEL_TRAIN;
  bool values = purpose == TS_PURPOSE_PARAMETER && !part->values_stay;
  bool gradients = purpose == TS_PURPOSE_GRADIENT && !part->gradients_stay;
  return states ? farther(&zero->offload_optimizer, space_of_states(context, part), part->states_stored)
         : values && part->values_beside ? TS_SPACE_PINNED
         : values    ? farther(&zero->offload_param, space_of_values(context, part), part->values_stored)
         : gradients ? farther(&zero->offload_optimizer, space_of_gradients(context, part), part->gradients_stored)
                     : TS_SPACE_BACKEND;
}

/* ---- what stays ---- */

/* A part that may leave. */
typedef struct movable {
  int part;
  int64_t elements;
} movable;

/* The largest first, of equal ones the first. */
static int compare_movable(const void *a, const void *b) {
  const movable *x = a, *y = b;
  return x->elements != y->elements ? (x->elements < y->elements ? 1 : -1) : x->part - y->part;
}

typedef ts_space space_of(const ts_pass_context *context, const ts_part *part);

/* In the order in which the next forward wants them. */
static movable *find_movable(const ts_pass_context *context, const ts_layout *layout, space_of *space, int *n) {
  movable *list = ts_malloc(((size_t) layout->n_parts + 1) * sizeof *list);
  *n = 0;
  for (int i = 0; i < layout->n_parts; ++i) {
    if (space(context, &layout->part[i]) != TS_SPACE_BACKEND) {
      list[(*n)++] = (movable){i, layout->part[i].shard};
    }
  }
  return list;
}

/* Of those from `first` on each that still has room. \return the elements that are kept. */
static int64_t keep_from(const movable *list, int n, int first, int64_t most, bool *stays) {
  int64_t sum = 0;
  for (int i = 0; i < n; ++i) {
    stays[i] = i >= first && list[i].elements <= most - sum;
    sum += stays[i] ? list[i].elements : 0;
  }
  return sum;
}

/* Which of them stay: the best of what is found without the largest, without the next size, and so on. */
static bool *choose_parts(const movable *list, int n, int64_t most) {
  bool *best = ts_calloc((size_t) n + 1, sizeof *best), *stays = ts_calloc((size_t) n + 1, sizeof *stays);
  int64_t kept = keep_from(list, n, 0, most, best);
  for (int i = 1; i < n; ++i) {
    if (list[i].elements < list[i - 1].elements && keep_from(list, n, i, most, stays) > kept) {
      kept = keep_from(list, n, i, most, best);
    }
  }
  ts_free(stays);
  return best;
}

static int64_t sum_elements(const movable *list, int n) {
  int64_t sum = 0;
  for (int i = 0; i < n; ++i) {
    sum += list[i].elements;
  }
  return sum;
}

/* Optimizers' states by the deck: what is not of its ratio stays, that of the units that the next forward begins with,
 * whose updates are awaited first. */
static void states_that_stay(const ts_pass_context *context, ts_layout *layout) {
  int n;
  movable *list = find_movable(context, layout, space_of_states, &n);
  const double stay = 1 - context->deck->zero_optimization.offload_optimizer.ratio;
  bool *stays = ts_calloc((size_t) n + 1, sizeof *stays);
  keep_from(list, n, 0, (int64_t) (stay * (double) sum_elements(list, n)), stays);
  for (int i = 0; i < n; ++i) {
    layout->part[list[i].part].states_stay = stays[i];
  }
  ts_free(stays);
  ts_free(list);
}

/* And values that would be in files: so many in the host's memory, which is the backend's or beside it. */
static void values_that_stay(const ts_pass_context *context, ts_layout *layout) {
  const bool device = context->target.backend->device != NULL;
  int n;
  movable *list = find_movable(context, layout, space_of_values, &n);
  qsort(list, (size_t) n, sizeof *list, compare_movable);
  bool *stays = choose_parts(list, n, context->deck->zero_optimization.offload_param.max_in_cpu);
  for (int i = 0; i < n; ++i) {
    ts_part *part = &layout->part[list[i].part];
    bool file = space_of_values(context, part) == TS_SPACE_FILE;
    part->values_stay = stays[i] && !device;
    part->values_beside = stays[i] && device && file;
  }
  ts_free(stays);
  ts_free(list);
}

void ts_offload_choose(const ts_pass_context *context, ts_layout *layout) {
  const unsigned char *of_part = context->stay.of_part;
  values_that_stay(context, layout);
  if (!context->stay.decided) {
    states_that_stay(context, layout);
    for (int i = 0; i < layout->n_parts; ++i) {
      layout->part[i].gradients_stay = layout->part[i].states_stay;
    }
    return;
  }
  for (int i = 0; i < layout->n_parts; ++i) {
    ts_part *part = &layout->part[i];
    const unsigned char bits = of_part != NULL ? of_part[i] : context->stay.all ? TS_STORED - 1 : 0;
    part->states_stay = (bits & TS_STATES_STAY) != 0;
    part->values_stay = (bits & TS_VALUES_STAY) != 0;
    part->gradients_stay = (bits & TS_GRADIENTS_STAY) != 0;
    part->states_stored = (bits & TS_STORED * TS_STATES_STAY) != 0;
    part->values_stored = (bits & TS_STORED * TS_VALUES_STAY) != 0;
    part->gradients_stored = (bits & TS_STORED * TS_GRADIENTS_STAY) != 0;
  }
}

ts_offload_count ts_offload_count_of(const ts_pass_context *context) {
  ts_offload_count count = {0};
  for (int i = 0; i < context->layout->n_parts; ++i) {
    const ts_part *part = &context->layout->part[i];
    int64_t states = space_of_states(context, part) != TS_SPACE_BACKEND ? part->shard : 0;
    int64_t values = space_of_values(context, part) != TS_SPACE_BACKEND ? part->shard : 0;
    int64_t gradients = space_of_gradients(context, part) != TS_SPACE_BACKEND ? part->shard : 0;
    count.states += states;
    count.values += values;
    count.gradients += gradients;
    count.gradients_stay += part->gradients_stay ? gradients : 0;
    count.states_stay += part->states_stay ? states : 0;
    count.values_stay += part->values_stay ? values : 0;
  }
  return count;
}

bool ts_offload_values_may_leave(const ts_pass_context *context, const ts_part *part) {
  return space_of_values(context, part) != TS_SPACE_BACKEND;
}

int64_t ts_offload_live(const ts_pass_context *context) {
  int64_t most = context->deck->zero_optimization.stage3_max_live_parameters;
  return context->stay.decided && context->stay.live < most ? context->stay.live : most;
}

/* ---- in which pieces ---- */

/* The fewest elements whose states are whole units of a file: of codes in 8 bits the scales are. */
static int64_t least_piece(const ts_part *part) {
  return part->moments == TS_U8 ? TS_PLAN_PAGE / (int64_t) sizeof(float) * TS_STATE_BLOCK
                                : TS_PLAN_PAGE / (int64_t) ts_dtype_size(TS_BF16);
}

int64_t ts_offload_piece(const ts_pass_context *context, const ts_part *part) {
  if (ts_offload_space(context, part, TS_STATE_MASTER) == TS_SPACE_BACKEND &&
      ts_offload_space(context, part, TS_STATE_GRADIENT) == TS_SPACE_BACKEND &&
      ts_offload_space(context, part, TS_STATE_PARAMETER) == TS_SPACE_BACKEND) {
    return INT64_MAX;
  }
  const int64_t whole = TS_OFFLOAD_BLOCK / (int64_t) sizeof(float); /* of fp32, in blocks of the largest size */
  int64_t most = context->deck->zero_optimization.sub_group_size;
  most = most > 0 && most < TS_OFFLOAD_PIECE ? most : TS_OFFLOAD_PIECE;
  int64_t piece = least_piece(part);
  while (2 * piece <= most && 2 * piece <= whole) {
    piece *= 2;
  }
  return most > whole ? most / whole * whole : piece;
}

/* Others need the new values of a part: then all of its group make them at one place, so that what of it stays where is
 * each rank's own matter, as it is elsewhere. */
bool ts_offload_waits(const ts_pass_context *context, const ts_part *part) {
  const ts_deck_zero *zero = &context->deck->zero_optimization;
  bool asked = context->use == TS_MODEL_TRAIN && zero->offload_optimizer.super_offload && !context->stay.at_once;
  bool updated = part->trainable && part->of_stage && part->copy < 0 && !context->defers;
  bool gathered = zero->stage == 1 || zero->stage == 2;
  bool shared = gathered && (part->group > 1 || (part->axes & TS_AXES_SHARERS) != 0);
  bool leaves =
      shared ? space_of_states(context, part) != TS_SPACE_BACKEND : ts_offload_piece(context, part) < INT64_MAX;
  return asked && updated && leaves && ts_optimizer_get(part->optimizer)->granularity == TS_GRANULARITY_ELEMENT;
}

/* ---- who updates ---- */

int ts_offload_threads(const ts_deck *deck, const ts_target *target) {
  int threads = (int) (deck->zero_optimization.offload_optimizer.cpuadam_cores_perc * target->threads + 0.5);
  return threads > 0 ? threads : 1;
}

bool ts_offload_updates_on_host(const ts_pass_context *context, const ts_part *part) {
  const char *where = context->deck->run.offload_update;
  bool may = context->target.backend->device != NULL && context->use == TS_MODEL_TRAIN && part->trainable &&
             ts_optimizer_get(part->optimizer)->granularity == TS_GRANULARITY_ELEMENT &&
             ts_offload_space(context, part, TS_STATE_MASTER) != TS_SPACE_BACKEND;
  bool chosen = strcmp(where, "auto") == 0 && context->stay.updater == TS_UPDATES_BY_HOST;
  return may && (strcmp(where, "host") == 0 || chosen);
}

bool ts_offload_activations(const ts_deck *deck, const ts_backend *backend) {
  bool blocks = deck->activation_checkpointing.enabled && deck->activation_checkpointing.cpu_checkpointing;
  return (blocks || deck->compile.offload_activation) && (backend->device != NULL || ts_deck_files(deck)[0] != 0);
}

int ts_offload_ahead(const ts_deck *deck) {
  return deck->zero_optimization.offload_optimizer.pipeline_read ? 1 : 0;
}

int ts_offload_units_ahead(const ts_deck *deck) {
  return deck->zero_optimization.stage3_prefetch_bucket_size > 0 ? 1 : 0;
}

int ts_offload_behind(const ts_deck *deck) {
  return deck->zero_optimization.offload_optimizer.pipeline_write ? 1 : 0;
}
