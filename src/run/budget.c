#include "run/budget.h"

#include "base/memory.h"
#include "graph/op.h"
#include "pass/state.h"
#include "pass/storage.h"
#include "run/executor.h"
#include "run/turns.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Plans at most: to find how much fits, and of exchanges, the fewer the more parts there are, and the less each is. */
#define FILLS 8
#define EXCHANGES 40
#define FEW_ITEMS 16

/* A part's states, values or gradients, which may stay. */
typedef struct item {
  int part;
  unsigned char kind; /* TS_STATES_STAY, ... */
  double bytes;       /* that it takes then, */
  double saves;       /* and that are not copied in a step; */
  double there;       /* of its bytes, those that may be there at a time where it leaves */
} item;

/* What a choice comes to. */
typedef struct outcome {
  int64_t bytes;    /* where it computes */
  double moved;     /* bytes in a step */
  int64_t together; /* micro-batches, as the program's nodes let */
  bool fits;
} outcome;

typedef struct search {
  const ts_program_options *options;
  int64_t memory;
  item *item; /* owned: what saves most for a byte first, then the largest */
  int n, n_parts;
} search;

int64_t ts_budget_memory(const ts_program_options *o) {
  const ts_deck_run *run = &o->deck->run;
  int64_t limit = ts_budget_lower(o->memory, run->memory_limit);
  return o->target.backend->device != NULL ? limit : ts_budget_lower(limit, run->host_memory_limit);
}

int64_t ts_budget_host_memory(const ts_program_options *o) {
  return o->target.backend->device != NULL ? ts_budget_lower(o->host_memory, o->deck->run.host_memory_limit) : 0;
}

/* ---- plans ---- */

static ts_program *plan_with(const search *s, ts_offload_stay stay) {
  ts_program_options options = *s->options;
  stay.updater = options.stay.updater;
  options.stay = stay;
  options.last_pass = NULL;
  options.observer = NULL;
  return ts_program_create(&options);
}

static double moved_in_all(const ts_program *program) {
  const ts_moved moved = ts_program_moved(program);
  double sum = 0;
  for (ts_space space = 0; space < TS_N_SPACES; ++space) {
    sum += moved.read[space] + moved.written[space];
  }
  return sum;
}

static outcome try_choice(const search *s, ts_offload_stay stay) {
  ts_program *program = plan_with(s, stay);
  const int64_t bytes = program->plan->peak_bytes;
  outcome o = {bytes, moved_in_all(program), program->step.together, bytes <= s->memory};
  ts_program_destroy(&program);
  return o;
}

static bool stays(const ts_offload_stay *stay, const item *i) {
  return (stay->of_part[i->part] & i->kind) != 0;
}

/* ---- what there is to choose ---- */

/* What saves most for a byte first, then the largest, then the first. */
static int compare_items(const void *a, const void *b) {
  const item *x = a, *y = b;
  double density = y->saves * x->bytes - x->saves * y->bytes;
  return density != 0           ? (density > 0 ? 1 : -1)
         : x->bytes != y->bytes ? (x->bytes < y->bytes ? 1 : -1)
                                : x->part - y->part;
}

enum { KINDS = 3 };
static const unsigned char kinds[KINDS] = {TS_STATES_STAY, TS_VALUES_STAY, TS_GRADIENTS_STAY};

/* Where the state is in a list of all kinds of all parts. */
static int item_of(const ts_tensor *leaf) {
  ts_purpose purpose = ts_state_get(leaf->held.state)->purpose;
  return KINDS * leaf->held.part + (purpose == TS_PURPOSE_PARAMETER ? 1 : purpose == TS_PURPOSE_GRADIENT ? 2 : 0);
}

/* Of states pieces come and go, one ahead and one behind; of the rest all. */
enum { PIECES_AT_A_TIME = 3 };

static void note_largest_copy(search *s, const ts_graph *g, const ts_place *place, ts_tid leaf) {
  double largest = 0;
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    bool copies = ts_node_is_copy(&g->node[n]) && place[ts_copy_away(&g->node[n])].root == leaf;
    largest = copies ? fmax(largest, (double) ts_tensor_bytes(g, g->node[n].out[0])) : largest;
  }
  double bytes = (double) ts_tensor_bytes(g, leaf);
  item *i = &s->item[item_of(&g->tensor[leaf])];
  i->there += i->kind == TS_STATES_STAY ? fmin(bytes, PIECES_AT_A_TIME * largest) : bytes;
}

static bool is_of_part(const ts_tensor *leaf) {
  return leaf->role == TS_ROLE_STATE && leaf->held.part >= 0;
}

/* Of a program in which nothing stays: what is elsewhere, and how much of it is copied. */
static void find_items(search *s, const ts_program *none) {
  const ts_graph *g = none->graph;
  s->n_parts = none->layout->n_parts;
  s->item = ts_calloc((size_t) (KINDS * s->n_parts + 1), sizeof *s->item);
  ts_place *place = ts_storage_find(g);
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_tensor *leaf = &g->tensor[t];
    if (is_of_part(leaf) && ts_space_is_away(leaf->space)) {
      item *i = &s->item[item_of(leaf)];
      i->part = leaf->held.part;
      i->kind = kinds[item_of(leaf) % KINDS];
      i->bytes += (double) ts_tensor_bytes(g, t);
      note_largest_copy(s, g, place, t);
    }
  }
  for (ts_nid n = 0; n < g->n_nodes; ++n) {
    const ts_node *node = &g->node[n];
    const ts_tensor *leaf = ts_node_is_copy(node) ? &g->tensor[place[ts_copy_away(node)].root] : NULL;
    if (leaf != NULL && is_of_part(leaf)) {
      s->item[item_of(leaf)].saves += ts_program_copied(none, node);
    }
  }
  ts_free(place);
  for (int i = 0; i < KINDS * s->n_parts; ++i) {
    if (s->item[i].bytes > 0) {
      s->item[s->n++] = s->item[i];
    }
  }
  qsort(s->item, (size_t) s->n, sizeof *s->item, compare_items);
}

/* ---- as much as fits ---- */

/* Each in turn that still has room. */
static void take_in_turn(const search *s, double room, ts_offload_stay *stay) {
  memset(stay->of_part, 0, (size_t) s->n_parts);
  for (int i = 0; i < s->n; ++i) {
    if (s->item[i].bytes <= room) {
      stay->of_part[s->item[i].part] |= s->item[i].kind;
      room -= s->item[i].bytes;
    }
  }
}

static double taken(const search *s, const ts_offload_stay *stay) {
  double sum = 0;
  for (int i = 0; i < s->n; ++i) {
    sum += stays(stay, &s->item[i]) ? s->item[i].bytes : 0;
  }
  return sum;
}

/* Aiming at what is left of the memory, then between what fits and what does not. */
static void fill_budget(const search *s, ts_offload_stay *stay, outcome *best) {
  double low = 0, high = INFINITY;
  for (int i = 0; i < FILLS; ++i) {
    double before = taken(s, stay), aim = before + (double) (s->memory - best->bytes);
    aim = high == INFINITY ? aim : (low + high) / 2;
    unsigned char *kept = ts_malloc((size_t) s->n_parts + 1);
    memcpy(kept, stay->of_part, (size_t) s->n_parts);
    take_in_turn(s, aim, stay);
    bool same = memcmp(kept, stay->of_part, (size_t) s->n_parts) == 0;
    outcome now = same ? *best : try_choice(s, *stay);
    bool better = now.fits && now.moved < best->moved;
    *(now.fits ? &low : &high) = aim;
    if (better) {
      *best = now;
    } else {
      memcpy(stay->of_part, kept, (size_t) s->n_parts);
    }
    ts_free(kept);
    if (same && high == INFINITY) {
      break;
    }
  }
}

/* ---- exchanges ---- */

/* Of items that are as large and as dear only the first and the last: a part that is used where most memory is taken
 * may take less than its bytes, as it is there then anyway.
 * \param [out] list  Indices of those that stay, or do not. */
static int ends_of_runs(const search *s, const ts_offload_stay *stay, bool that_stay, int *list) {
  int n = 0, run = 0;
  for (int i = 0; i < s->n; ++i) {
    if (stays(stay, &s->item[i]) == that_stay) {
      bool alike =
          n > 0 && s->item[list[n - 1]].bytes == s->item[i].bytes && s->item[list[n - 1]].saves == s->item[i].saves;
      run = alike ? run + 1 : 1;
      n -= run > 2; /* in place of the last one */
      list[n++] = i;
    }
  }
  return n;
}

/* Up to two that go, and up to two that come; -1 for none. */
typedef struct exchange {
  int out[2], in[2];
  double gain, bytes; /* that are not copied any more; that it takes */
} exchange;

typedef struct exchanges {
  exchange *list; /* owned */
  int n, capacity;
} exchanges;

static void note_exchange(const search *s, exchanges *all, exchange e) {
  for (int k = 0; k < 2; ++k) {
    if (e.in[k] >= 0) {
      e.gain += s->item[e.in[k]].saves;
      e.bytes += s->item[e.in[k]].bytes;
    }
    if (e.out[k] >= 0) {
      e.gain -= s->item[e.out[k]].saves;
      e.bytes -= s->item[e.out[k]].bytes;
    }
  }
  if (e.gain > 0) {
    TS_GROW(all->list, all->n, all->capacity);
    all->list[all->n++] = e;
  }
}

/* Those of one that comes first, for which nothing goes, as it may take less than its bytes; then what gains most. */
static int compare_exchanges(const void *a, const void *b) {
  const exchange *x = a, *y = b;
  const bool x_alone = x->out[0] < 0 && x->in[1] < 0, y_alone = y->out[0] < 0 && y->in[1] < 0;
  return x_alone != y_alone   ? (x_alone ? -1 : 1)
         : x->gain != y->gain ? (x->gain < y->gain ? 1 : -1)
                              : memcmp(x, y, sizeof x->out + sizeof x->in);
}

/* Between the ends of what stays and of what does not. */
static exchanges find_exchanges(const search *s, const ts_offload_stay *stay) {
  int *out = ts_malloc(((size_t) s->n + 1) * sizeof *out), *in = ts_malloc(((size_t) s->n + 1) * sizeof *in);
  int n_out = ends_of_runs(s, stay, true, out), n_in = ends_of_runs(s, stay, false, in);
  exchanges all = {0};
  for (int i = 0; i < n_in; ++i) {
    for (int j = i; j < n_in; ++j) {
      const int second = j > i ? in[j] : -1;
      note_exchange(s, &all, (exchange){{-1, -1}, {in[i], second}, 0, 0});
      for (int k = 0; k < n_out; ++k) {
        note_exchange(s, &all, (exchange){{out[k], -1}, {in[i], second}, 0, 0});
        for (int l = k + 1; l < n_out && second < 0; ++l) {
          note_exchange(s, &all, (exchange){{out[k], out[l]}, {in[i], -1}, 0, 0});
        }
      }
    }
  }
  ts_free(out);
  ts_free(in);
  qsort(all.list, (size_t) all.n, sizeof *all.list, compare_exchanges);
  return all;
}

static void flip(const search *s, const exchange *e, ts_offload_stay *stay) {
  for (int k = 0; k < 2; ++k) {
    if (e->in[k] >= 0) {
      stay->of_part[s->item[e->in[k]].part] ^= s->item[e->in[k]].kind;
    }
    if (e->out[k] >= 0) {
      stay->of_part[s->item[e->out[k]].part] ^= s->item[e->out[k]].kind;
    }
  }
}

/* Could it fit, when what comes is in memory at the peak, too? */
static bool may_fit(const search *s, const exchange *e, const outcome *best) {
  double there = 0;
  for (int k = 0; k < 2; ++k) {
    there += e->in[k] >= 0 ? s->item[e->in[k]].there : 0;
  }
  return e->bytes - there <= (double) (s->memory - best->bytes);
}

/* One that came alone has shown how much of it is there at the peak anyway. */
static void note_growth(const search *s, const exchange *e, int64_t growth) {
  if (e->out[0] < 0 && e->in[1] < 0) {
    item *came = &s->item[e->in[0]];
    came->there = fmax(0, came->bytes - (double) growth);
  }
}

/* The best one that fits, until there is none. */
static void exchange_some(const search *s, ts_offload_stay *stay, outcome *best) {
  int tries = 0, most = s->n > FEW_ITEMS ? EXCHANGES * FEW_ITEMS / s->n : EXCHANGES;
  for (bool found = true; found && tries < most;) {
    exchanges all = find_exchanges(s, stay);
    found = false;
    for (int i = 0; i < all.n && !found && tries < most; ++i) {
      if (may_fit(s, &all.list[i], best)) {
        ++tries;
        flip(s, &all.list[i], stay);
        outcome now = try_choice(s, *stay);
        note_growth(s, &all.list[i], now.bytes - best->bytes);
        found = now.fits && now.moved < best->moved;
        if (found) {
          *best = now;
        } else {
          flip(s, &all.list[i], stay);
        }
      }
    }
    ts_free(all.list);
  }
}

/* ---- all of it ---- */

/* Beside so many gathered elements.
 * \param [in,out] stay  In: live, together and at_once; out: of_part, the caller's. */
static outcome choose_beside(const ts_program_options *options, int64_t memory, ts_offload_stay *stay) {
  search s = {.options = options, .memory = memory};
  ts_program *program = plan_with(&s, *stay);
  const int64_t bytes = program->plan->peak_bytes;
  outcome best = {bytes, moved_in_all(program), program->step.together, bytes <= memory};
  find_items(&s, program);
  stay->of_part = ts_calloc((size_t) s.n_parts + 1, 1);
  ts_program_destroy(&program);
  if (best.fits) {
    fill_budget(&s, stay, &best);
  }
  if (best.fits && stay->together <= 1) { /* else each plan takes as many times as long */
    exchange_some(&s, stay, &best);
  }
  ts_free(s.item);
  return best;
}

/* The better of two choices, the first where they are alike, of which the other one's list is freed: what fits copies
 * less, what does not takes less. */
static outcome take_better(outcome a, ts_offload_stay *chosen, outcome b, ts_offload_stay other) {
  bool better = a.fits && b.fits ? b.moved < a.moved : b.fits || (!a.fits && b.bytes < a.bytes);
  ts_free(better ? chosen->of_part : other.of_part);
  *chosen = better ? other : *chosen;
  return better ? b : a;
}

/* With as many gathered elements as the deck lets be, and with few. */
static outcome choose_with(const ts_program_options *options, int64_t memory, const ts_offload_stay *like,
                           ts_offload_stay *chosen) {
  ts_offload_stay few = *like;
  few.all = false;
  few.live = 0;
  *chosen = *like;
  chosen->all = false;
  outcome many = choose_beside(options, memory, chosen);
  return take_better(many, chosen, choose_beside(options, memory, &few), few);
}

/* ---- micro-batches unit by unit ---- */

/* The next smaller number of micro-batches of which a step's are a multiple; 1 is the last. */
static int64_t fewer(int64_t micro_batches, int64_t together) {
  do {
    --together;
  } while (together > 1 && micro_batches % together != 0);
  return together;
}

/* The most that can go together where all leaves that may, whether updates wait or not, but no fewer than `least`. */
static int64_t most_together(const search *s, int kept, int64_t micro_batches, int64_t least) {
  ts_offload_stay none = {.decided = true, .together = micro_batches, .kept = kept};
  bool fits = false;
  while (!fits && none.together > least) {
    none.at_once = false;
    outcome now = try_choice(s, none);
    none.together = now.together < none.together ? now.together : none.together; /* more nodes than there may be */
    none.at_once = true;
    fits = now.fits || try_choice(s, none).fits;
    int64_t next = fewer(micro_batches, none.together);
    if (!fits && next < least) {
      break;
    }
    none.together = fits ? none.together : next;
  }
  return none.together;
}

/* Instead of what was found, which fits, if less is copied so. */
static void try_units(const search *s, outcome found, ts_offload_stay *chosen) {
  ts_offload_stay units = *chosen;
  units.all = false;
  units.of_part = NULL;
  units.live = 0;
  units.together = most_together(s, chosen->kept, s->options->deck->gradient_accumulation_steps, 1);
  if (units.together > 1) {
    outcome by_unit = choose_beside(s->options, s->memory, &units);
    take_better(found, chosen, by_unit, units);
  }
}

static bool goes_by_unit(const ts_program_options *options) {
  return ts_program_may_go_by_unit(options) && options->deck->gradient_accumulation_steps > 1 &&
         strcmp(options->deck->run.accumulation_order, "unit") == 0;
}

/* All state, and so many of the activations. */
static ts_offload_stay everything(const ts_program_options *options, int kept) {
  const ts_deck *deck = options->deck;
  return (ts_offload_stay){.decided = true,
                           .live = deck->zero_optimization.stage3_max_live_parameters,
                           .together = goes_by_unit(options) ? deck->gradient_accumulation_steps : 1,
                           .all = true,
                           .kept = kept};
}

/* Beside so many of the activations. */
static ts_offload_stay decide_what_stays(const ts_program_options *options, int kept) {
  const ts_deck *deck = options->deck;
  const bool may = ts_program_may_go_by_unit(options) && deck->gradient_accumulation_steps > 1;
  const bool always = goes_by_unit(options);
  const search s = {.options = options, .memory = ts_budget_memory(options)};
  ts_offload_stay like = everything(options, kept), chosen = like, other;
  outcome found = s.memory > 0 ? try_choice(&s, chosen) : (outcome){.fits = true};
  if (found.fits) {
    return chosen;
  }
  like.together = always ? most_together(&s, kept, deck->gradient_accumulation_steps, 2) : 1;
  const int ways = deck->zero_optimization.offload_optimizer.super_offload ? 2 : 1;
  for (int way = 0; way < ways && !found.fits; ++way) { /* updates wait where that fits */
    like.at_once = way > 0;
    outcome now = choose_with(options, s.memory, &like, &other);
    found = take_better(found, &chosen, now, other);
  }
  if (found.fits && may && !always) {
    try_units(&s, found, &chosen);
  }
  return chosen;
}

/* ---- and what has no room beside a device ---- */

/* Of the list the last `n`, which are copied least for their bytes, go to files. */
static void store_last(const search *s, int n, ts_offload_stay *stay) {
  for (int i = 0; i < s->n; ++i) {
    const unsigned char bit = (unsigned char) (TS_STORED * s->item[i].kind);
    unsigned char *bits = &stay->of_part[s->item[i].part];
    *bits = (unsigned char) (i >= s->n - n ? *bits | bit : *bits & ~bit);
  }
}

static int64_t host_bytes(const search *s, ts_offload_stay stay) {
  ts_program *program = plan_with(s, stay);
  const int64_t bytes = ts_executor_host_bytes((const ts_program *const *) &program, 1);
  ts_program_destroy(&program);
  return bytes;
}

/* As few as can be; all, where that does not suffice. */
static void store_some(const ts_program_options *options, int64_t most, ts_offload_stay *stay) {
  search s = {.options = options};
  ts_program *program = plan_with(&s, *stay);
  bool fits = ts_executor_host_bytes((const ts_program *const *) &program, 1) <= most;
  if (!fits) {
    find_items(&s, program);
  }
  ts_program_destroy(&program);
  if (s.n > 0 && stay->of_part == NULL) {
    stay->of_part = ts_calloc((size_t) s.n_parts + 1, 1);
  }
  int few = 0, enough = s.n;
  while (enough - few > 1) {
    int middle = few + (enough - few) / 2;
    store_last(&s, middle, stay);
    *(host_bytes(&s, *stay) <= most ? &enough : &few) = middle;
  }
  store_last(&s, enough, stay);
  ts_free(s.item);
}

/* And then activations: as few as can be, those that the backward reads last. */
static void store_kept(const ts_program_options *options, int64_t most, ts_offload_stay *stay) {
  const search s = {.options = options};
  ts_program *program = plan_with(&s, *stay);
  bool fits = ts_executor_host_bytes((const ts_program *const *) &program, 1) <= most;
  int few = 0, enough = program->kept_away + 1;
  ts_program_destroy(&program);
  while (!fits && enough - few > 1) {
    stay->kept_stored = few + (enough - few) / 2;
    *(host_bytes(&s, *stay) <= most ? &enough : &few) = stay->kept_stored;
  }
  stay->kept_stored = fits ? 0 : enough;
}

/* ---- activations that leave ---- */

#define ALL_KEPT INT_MAX

/* Beside what else stays, as many as fit: what the backward wants first.  A file takes some memory of its own, so that
 * all may fit where none does. */
static void keep_some(const search *s, ts_offload_stay *stay) {
  int enough = stay->kept;
  stay->kept = ALL_KEPT;
  if (try_choice(s, *stay).fits) {
    return;
  }
  stay->kept = enough;
  ts_program *program = plan_with(s, *stay);
  int too_many = enough + program->kept_away;
  bool fits = program->plan->peak_bytes <= s->memory;
  ts_program_destroy(&program);
  while (fits && too_many - enough > 1) {
    stay->kept = enough + (too_many - enough) / 2;
    *(try_choice(s, *stay).fits ? &enough : &too_many) = stay->kept;
  }
  stay->kept = enough;
}

/* Whichever copies less: all other state first, or activations. */
static ts_offload_stay decide_with_activations(const ts_program_options *options, bool states) {
  const search s = {.options = options, .memory = ts_budget_memory(options)};
  ts_offload_stay stay = {.kept = 1};
  if (states) {
    stay = everything(options, ALL_KEPT);
    if (try_choice(&s, stay).fits) {
      return stay;
    }
    stay = decide_what_stays(options, 1);
  }
  keep_some(&s, &stay);
  ts_offload_stay none = {.decided = true, .at_once = true, .together = 1, .kept = 1};
  if (states) {
    keep_some(&s, &none);
  }
  if (none.kept > stay.kept) {
    ts_offload_stay other = decide_what_stays(options, none.kept);
    take_better(try_choice(&s, stay), &stay, try_choice(&s, other), other);
  }
  const outcome found = try_choice(&s, stay);
  if (!found.fits) { /* with none away, then */
    ts_offload_stay other = states ? decide_what_stays(options, ALL_KEPT) : (ts_offload_stay){.kept = ALL_KEPT};
    take_better(found, &stay, try_choice(&s, other), other);
  }
  return stay;
}

static bool activations_compete(const ts_program_options *o) {
  bool leave = ts_offload_activations(o->deck, o->target.backend) && o->use == TS_MODEL_TRAIN;
  return leave && ts_budget_memory(o) > 0;
}

bool ts_budget_is_open(const ts_program_options *o) {
  return ts_deck_fits_offload(o->deck) || activations_compete(o);
}

ts_offload_stay ts_budget_all_away(const ts_program_options *o) {
  return (ts_offload_stay){
      .decided = ts_deck_fits_offload(o->deck), .at_once = true, .together = 1, .kept = ts_budget_is_open(o) ? 1 : 0};
}

/* A file takes some memory of its own, so less away may take less. */
int64_t ts_budget_least(const ts_program_options *options) {
  ts_offload_stay some = ts_budget_all_away(options), none = some;
  some.kept = none.kept = ALL_KEPT;
  none.all = true;
  const ts_offload_stay choice[] = {ts_budget_all_away(options), some, none};
  const int n = ts_budget_is_open(options) ? 3 : 1;
  int64_t least = INT64_MAX;
  for (int i = 0; i < n; ++i) {
    ts_program_options o = *options;
    o.stay = n > 1 ? choice[i] : options->stay;
    ts_program *program = ts_program_create(&o);
    least = program->plan->peak_bytes < least ? program->plan->peak_bytes : least;
    ts_program_destroy(&program);
  }
  return least;
}

/* What stays, beside the updater of the options. */
static ts_offload_stay decide(const ts_program_options *options) {
  const bool states = ts_deck_fits_offload(options->deck);
  ts_offload_stay stay =
      activations_compete(options) ? decide_with_activations(options, states) : decide_what_stays(options, 0);
  const int64_t beside = ts_budget_host_memory(options);
  const bool files = beside > 0 && ts_deck_files(options->deck)[0] != 0;
  if (files && states) {
    store_some(options, beside, &stay);
  }
  if (files && stay.kept > 0) {
    store_kept(options, beside, &stay);
  }
  stay.updater = options->stay.updater;
  return stay;
}

/* ---- who updates what has left ---- */

static bool updater_is_open(const ts_program_options *o) {
  const ts_deck *deck = o->deck;
  return o->use == TS_MODEL_TRAIN && o->target.backend->device != NULL &&
         strcmp(deck->run.offload_update, "auto") == 0 &&
         strcmp(deck->zero_optimization.offload_optimizer.device, "none") != 0;
}

/* What a choice comes to, with the seconds that a step of it is planned to take. */
static outcome time_choice(const search *s, ts_offload_stay stay, double *seconds) {
  ts_program *program = plan_with(s, stay);
  const int64_t bytes = program->plan->peak_bytes;
  *seconds = ts_program_step_seconds(program).step;
  const int64_t beside = ts_budget_host_memory(s->options);
  const bool has_room = beside == 0 || ts_executor_host_bytes((const ts_program *const *) &program, 1) <= beside;
  outcome o = {.bytes = bytes, .fits = has_room && (s->memory == 0 || bytes <= s->memory)};
  ts_program_destroy(&program);
  return o;
}

/* \param [in] device, host  Of the same deck, or of what either has chosen. */
static bool is_faster_by_host(const search *device, ts_offload_stay by_device, const search *host,
                              ts_offload_stay by_host) {
  double seconds[2];
  outcome a = time_choice(device, by_device, &seconds[0]), b = time_choice(host, by_host, &seconds[1]);
  return a.fits == b.fits ? seconds[1] < seconds[0] : b.fits;
}

/* The host is asked where it is faster when all has left that may: what stays is the device's either way. */
ts_offload_stay ts_budget_decide(const ts_program_options *options) {
  const bool open = ts_budget_is_open(options);
  if (!updater_is_open(options)) {
    return open ? decide(options) : (ts_offload_stay){0};
  }
  ts_program_options device_options = *options, host_options = *options;
  device_options.stay = (ts_offload_stay){.updater = TS_UPDATES_BY_DEVICE};
  host_options.stay = (ts_offload_stay){.updater = TS_UPDATES_BY_HOST};
  const search device = {.options = &device_options, .memory = ts_budget_memory(options)},
               host = {.options = &host_options, .memory = ts_budget_memory(options)};
  const ts_offload_stay none = {.decided = ts_deck_fits_offload(options->deck), .kept = open ? 1 : 0};
  bool asked = is_faster_by_host(&device, none, &host, none);
  if (!open) {
    return asked ? host_options.stay : device_options.stay;
  }
  ts_offload_stay chosen = decide(&device_options);
  if (asked) {
    ts_offload_stay other = decide(&host_options);
    bool faster = is_faster_by_host(&device, chosen, &host, other);
    ts_free(faster ? chosen.of_part : other.of_part);
    chosen = faster ? other : chosen;
  }
  return chosen;
}
