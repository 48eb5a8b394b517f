/* Cost: instructions x storages of a place for each rank's memory, collectives x ranks x pieces for what they say. */
#include "run/simulation.h"

#include "base/memory.h"
#include "base/text.h"
#include "graph/op.h"

#include <string.h>

static const char *tensor_name(const ts_sim_rank *r, ts_tid t) {
  return r->program->graph->tensor[t].name;
}

/* ---- memory ---- */

ts_sim_extent ts_sim_extent_of(const ts_sim_rank *r, ts_tid t, ts_run run) {
  const ts_plan *plan = r->program->plan;
  ts_address at = t == TS_NONE ? (ts_address){0} : plan->address[t];
  int64_t bytes = at.arena == TS_ARENA_NONE ? 0 : ts_tensor_bytes(r->program->graph, t);
  int64_t begin = at.offset + ts_plan_offset(plan, at.arena, run);
  return (ts_sim_extent){at.arena, begin, begin + bytes};
}

/* In the run under way. */
static ts_sim_extent extent_of(const ts_sim_rank *r, ts_tid t) {
  return ts_sim_extent_of(r, t, r->now);
}

/* Place of a tensor in tables by slot and tensor. */
static size_t in_slot(const ts_sim_rank *r, ts_tid t) {
  return (size_t) ts_run_slot(r->now) * (size_t) r->program->graph->n_tensors + (size_t) t;
}

/* Is it there for all micro-batches of a step? */
static bool is_of_step(const ts_sim_rank *r, ts_tid t) {
  return ts_arenas[r->program->plan->address[r->place[t].root].arena].lifetime == TS_LIFETIME_STEP;
}

/* Is it a version of state that the step's first forward has made, of what the step before has left? */
static bool is_made_late(const ts_sim_rank *r, ts_tid t) {
  const ts_node *producer = ts_graph_producer(r->program->graph, t);
  return producer != NULL && (producer->segment & (TS_SEGMENT_LATE_UPDATE | TS_SEGMENT_LATE_GATHER)) != 0 &&
         r->program->graph->tensor[r->place[t].root].role == TS_ROLE_STATE;
}

/* Place of what is known of its making: a version of state is of no slot, nor is what all micro-batches have. */
static size_t made_at(const ts_sim_rank *r, ts_tid t) {
  bool state = r->program->graph->tensor[r->place[t].root].role == TS_ROLE_STATE;
  return state || is_of_step(r, t) ? (size_t) t : in_slot(r, t);
}

static ts_sim_extent workspace_of(const ts_sim_rank *r, ts_nid n) {
  const ts_plan *plan = r->program->plan;
  int64_t bytes = plan->workspace_bytes[n], offset = plan->workspace[n].offset;
  return bytes > 0 ? (ts_sim_extent){TS_ARENA_WORK, offset, offset + bytes} : (ts_sim_extent){TS_ARENA_NONE, 0, 0};
}

bool ts_sim_overlap(ts_sim_extent a, ts_sim_extent b) {
  return a.arena != TS_ARENA_NONE && a.arena == b.arena && a.begin < b.end && b.begin < a.end;
}

/* Of a tensor's memory in the places of the run under way: the place in tables by place and tensor. */
static size_t in_place(const ts_sim_rank *r, ts_tid root) {
  ts_lifetime lifetime = ts_arenas[r->program->plan->address[root].arena].lifetime;
  return (size_t) r->now.place[lifetime] * (size_t) r->program->graph->n_tensors + (size_t) root;
}

static ts_sim_storage *storage_of(const ts_sim_rank *r, ts_tid t) {
  int index = t == TS_NONE ? -1 : r->of_root[in_place(r, r->place[t].root)];
  return index < 0 ? NULL : &r->storage[index];
}

/* Everything else in these bytes is lost: of the place that the run under way has, which no other reaches into. */
static void write_over(ts_sim_rank *r, ts_sim_extent at, const ts_sim_storage *own, ts_nid writer) {
  if (at.begin == at.end) {
    return;
  }
  const int place = r->now.place[ts_arenas[at.arena].lifetime];
  for (int i = r->first_of_place[place]; i < r->first_of_place[place + 1]; ++i) {
    ts_sim_storage *s = &r->storage[i];
    if (s != own && s->life == TS_SIM_INTACT && ts_sim_overlap(s->at, at)) {
      s->life = TS_SIM_CLOBBERED;
      s->culprit = writer;
    }
  }
}

static void write_outputs(ts_sim_rank *r, ts_nid n) {
  const ts_node *node = ts_sim_node(r, n);
  for (int i = 0; i < node->n_out; ++i) {
    ts_sim_storage *s = storage_of(r, node->out[i]);
    if (s != NULL && s->life == TS_SIM_UNBORN) {
      s->life = TS_SIM_INTACT;
    }
    write_over(r, extent_of(r, node->out[i]), s, n);
    r->made[made_at(r, node->out[i])] = true;
  }
  write_over(r, workspace_of(r, n), NULL, n);
}

/* A window has been made when what it lies on, or what lies in it, has. */
static bool is_made(const ts_sim_rank *r, ts_tid t) {
  const ts_node *node = ts_graph_producer(r->program->graph, t);
  if (node == NULL || r->made[made_at(r, t)]) {
    return true;
  }
  bool all = ts_node_is_window(node);
  for (int i = 0; i < node->n_in && all; ++i) {
    all = is_made(r, node->in[i]);
  }
  return all;
}

/* Tensor i of those a node reads: its inputs, priors and beta; then those it writes.  Absent ones are TS_NONE.
 * \return false after the last. */
static bool nth_tensor(const ts_node *node, int i, ts_tid *t, bool *written) {
  int n_prior = node->prior != NULL ? node->n_out : 0;
  *written = i >= node->n_in + n_prior + 1;
  *t = i < node->n_in                               ? node->in[i]
       : i < node->n_in + n_prior                   ? node->prior[i - node->n_in]
       : !*written                                  ? node->beta
       : i - node->n_in - n_prior - 1 < node->n_out ? node->out[i - node->n_in - n_prior - 1]
                                                    : TS_NONE;
  return i < node->n_in + n_prior + 1 + node->n_out;
}

static char *check_made(const ts_sim_rank *r, ts_nid n) {
  const ts_node *node = ts_sim_node(r, n);
  ts_tid t;
  bool written;
  for (int i = 0; nth_tensor(node, i, &t, &written); ++i) {
    if (t != TS_NONE && !written && !is_made(r, t)) {
      return ts_format("rank %d: %s reads %s before it is made", r->program->mesh.rank, node->name, tensor_name(r, t));
    }
  }
  return NULL;
}

static char *check_storage(const ts_sim_rank *r, const ts_sim_storage *s, ts_tid t, const char *reader) {
  if (s != NULL && s->life == TS_SIM_CLOBBERED) {
    return ts_format("rank %d: %s uses %s, but %s was written over its memory", r->program->mesh.rank, reader,
                     tensor_name(r, t), ts_sim_node(r, s->culprit)->name);
  }
  return NULL;
}

/* After the node wrote: whatever it uses must still be there. */
static char *check_intact(const ts_sim_rank *r, ts_nid n) {
  const ts_node *node = ts_sim_node(r, n);
  char *fault = NULL;
  ts_tid t;
  bool written;
  for (int i = 0; fault == NULL && nth_tensor(node, i, &t, &written); ++i) {
    fault = check_storage(r, storage_of(r, t), t, node->name);
  }
  return fault;
}

/* ---- collectives in flight ---- */

/* Does the collective `c` write, or when `also_reads` read, any of these bytes? */
static bool in_flight_uses(const ts_sim_rank *r, ts_nid c, ts_sim_extent at, bool also_reads) {
  const ts_node *collective = ts_sim_node(r, c);
  ts_tid t;
  bool written, found = ts_sim_overlap(workspace_of(r, c), at);
  for (int i = 0; !found && nth_tensor(collective, i, &t, &written); ++i) {
    found = (written || also_reads) && ts_sim_overlap(extent_of(r, t), at);
  }
  return found;
}

/* Does node n touch what another one under way writes, or write what that reads? */
static char *check_beside(const ts_sim_rank *r, ts_nid n, ts_nid other) {
  const ts_node *node = ts_sim_node(r, n);
  ts_tid t;
  bool written, hit = in_flight_uses(r, other, workspace_of(r, n), true);
  for (int i = 0; !hit && nth_tensor(node, i, &t, &written); ++i) {
    hit = in_flight_uses(r, other, extent_of(r, t), written);
  }
  return hit ? ts_format("rank %d: %s touches memory of %s, which is in flight", r->program->mesh.rank, node->name,
                         ts_sim_node(r, other)->name)
             : NULL;
}

static char *check_flight(const ts_sim_rank *r, ts_nid n) {
  char *fault = NULL;
  for (int k = r->n_waited; k < r->n_issued && fault == NULL; ++k) {
    fault = check_beside(r, n, r->queue[k]);
  }
  return fault;
}

static char *check_copies(const ts_sim_rank *r, ts_nid n) {
  char *fault = NULL;
  for (int k = 0; k < r->n_copies && fault == NULL; ++k) {
    fault = check_beside(r, n, r->copy[k]);
  }
  return fault;
}

static char *check_messages(const ts_sim_rank *r, ts_nid n) {
  const ts_node *node = ts_sim_node(r, n);
  ts_nid other = ts_sim_message_uses(r, workspace_of(r, n), true);
  ts_tid t;
  bool written;
  /* a gather writes the columns of others in what it adds to, and what is sent from there is this rank's own */
  bool gathers = node->op == TS_OP_ALL_GATHER && node->attr.comm.into;
  for (int i = 0; other == TS_NONE && nth_tensor(node, i, &t, &written); ++i) {
    other = ts_sim_message_uses(r, extent_of(r, t), written && !gathers);
  }
  return other == TS_NONE ? NULL
                          : ts_format("rank %d: %s touches memory of %s, which is under way", r->program->mesh.rank,
                                      node->name, ts_sim_node(r, other)->name);
}

/* ---- one rank's walk ---- */

/* With one slot, and one run from the turn on, all that is not state is the micro-batch's. */
static bool is_one_life(const ts_program *p) {
  return !ts_step_overlaps(&p->step, p->graph);
}

/* A run of both backwards has the turn of weights'. */
static ts_sim_turn turn_of(const ts_run_kind *kind) {
  bool inputs = kind->segments == TS_SEGMENT_BACKWARD_INPUT;
  return kind->phase == TS_RUN_FORWARD  ? TS_SIM_FORWARDS
         : kind->phase == TS_RUN_UPDATE ? TS_SIM_UPDATES
         : inputs                       ? TS_SIM_INPUTS
                                        : TS_SIM_WEIGHTS;
}

/* Of the chunk under way. */
static int64_t *runs_of(const ts_sim_rank *r, int chunk, ts_sim_turn turn) {
  return &r->n_of[chunk * TS_SIM_TURNS + (int) turn];
}

static bool all_is_done(const ts_sim_rank *r) {
  bool all = true;
  for (int chunk = 0; chunk < ts_graph_chunks(r->program->graph); ++chunk) {
    all = all && *runs_of(r, chunk, TS_SIM_WEIGHTS) == r->program->step.micro_batches;
  }
  return all;
}

/* Does what has this lifetime begin with the run under way, and is it there in this run? */
static bool begins_now(const ts_sim_rank *r, ts_lifetime lifetime) {
  ts_sim_turn turn = turn_of(r->kind);
  return turn == (lifetime == TS_LIFETIME_TO_WEIGHT ? TS_SIM_INPUTS : TS_SIM_FORWARDS);
}

static bool keeps(const ts_sim_rank *r, ts_lifetime lifetime) {
  ts_sim_turn turn = turn_of(r->kind);
  bool apart = r->program->step.apart;
  return lifetime == TS_LIFETIME_SLOT       ? true
         : lifetime == TS_LIFETIME_TO_INPUT ? apart && (turn == TS_SIM_FORWARDS || turn == TS_SIM_INPUTS)
                                            : apart && (turn == TS_SIM_INPUTS || turn == TS_SIM_WEIGHTS);
}

#define EACH_KEPT(l)                \
  ts_lifetime l = TS_LIFETIME_SLOT; \
  l <= TS_LIFETIME_TO_WEIGHT;       \
  ++l

/* What has no place is scratch of one run; what has one begins with the first run that keeps it.  Leaves keep what they
 * hold. */
static void forget(ts_sim_rank *r) {
  const ts_graph *g = r->program->graph;
  bool first = r->kind->phase == TS_RUN_FORWARD;
  if (is_one_life(r->program) && !first) {
    return;
  }
  for (int i = 0; i < r->n_storages; ++i) {
    ts_sim_storage *s = &r->storage[i];
    if (g->tensor[s->root].producer != TS_NONE && s->lifetime != TS_LIFETIME_STEP &&
        (s->place < 0 || (begins_now(r, s->lifetime) && s->place == r->now.place[s->lifetime]))) {
      s->life = TS_SIM_UNBORN;
    }
  }
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const ts_sim_storage *s = storage_of(r, t);
    if (is_of_step(r, t) || is_made_late(r, t)) {
      continue;
    }
    bool scratch = s != NULL && s->place < 0 && g->tensor[s->root].producer != TS_NONE;
    bool state = g->tensor[r->place[t].root].role == TS_ROLE_STATE, kept = state && !is_one_life(r->program);
    r->made[in_slot(r, t)] = r->made[in_slot(r, t)] && !scratch && (!first || kept);
  }
}

/* Is the place that the run has for a lifetime free where it takes it, and its micro-batch's where it has it? */
static char *check_place(const ts_sim_rank *r, ts_run run, ts_lifetime lifetime) {
  static const char *const what[TS_N_LIFETIMES] = {[TS_LIFETIME_SLOT] = "slot",
                                                   [TS_LIFETIME_TO_INPUT] = "place to backward of inputs",
                                                   [TS_LIFETIME_TO_WEIGHT] = "place to backward of weights"};
  int place = run.place[lifetime], n = r->program->step.n_places[lifetime];
  if (place < 0 || place >= n) {
    return ts_format("rank %d: run %lld is in %s %d of %d", r->program->mesh.rank, (long long) r->run, what[lifetime],
                     place, n);
  }
  ts_sim_occupant there = r->occupant[lifetime][place];
  ts_sim_occupant expected = {begins_now(r, lifetime) ? -1 : run.micro_batch, begins_now(r, lifetime) ? 0 : run.chunk};
  return there.micro_batch == expected.micro_batch && there.chunk == expected.chunk
             ? NULL
             : ts_format("rank %d: run %lld (%s of micro-batch %lld) finds micro-batch %lld in %s %d",
                         r->program->mesh.rank, (long long) r->run, r->kind->name, (long long) run.micro_batch,
                         (long long) there.micro_batch, what[lifetime], place);
}

/* Forwards into free places, backwards where theirs went, each in the order of micro-batches; the update after all. */
static char *check_order(const ts_sim_rank *r, ts_run run) {
  const ts_step_runs *step = &r->program->step;
  ts_sim_turn phase = turn_of(r->kind);
  for (EACH_KEPT(l)) {
    char *fault = keeps(r, l) ? check_place(r, run, l) : NULL;
    if (fault != NULL) {
      return fault;
    }
  }
  int64_t next = phase == TS_SIM_UPDATES ? step->micro_batches - 1 : *runs_of(r, run.chunk, phase);
  bool all = phase != TS_SIM_UPDATES || all_is_done(r);
  if (run.micro_batch != next || !all) {
    return ts_format("rank %d: run %lld is the %s of micro-batch %lld where that of %lld is due", r->program->mesh.rank,
                     (long long) r->run, r->kind->name, (long long) run.micro_batch, (long long) next);
  }
  return NULL;
}

static void take_places(ts_sim_rank *r) {
  for (EACH_KEPT(l)) {
    if (keeps(r, l)) {
      r->occupant[l][r->now.place[l]] = (ts_sim_occupant){r->now.micro_batch, r->now.chunk};
    }
  }
}

/* After its backward a micro-batch is done, but for the last one, which the update follows; in a validation after its
 * forward. */
static void leave_places(ts_sim_rank *r) {
  bool train = r->program->use == TS_MODEL_TRAIN, inputs = turn_of(r->kind) == TS_SIM_INPUTS;
  bool done = train ? turn_of(r->kind) == TS_SIM_WEIGHTS && !all_is_done(r) : r->run < r->program->step.n - 1;
  for (EACH_KEPT(l)) {
    if (keeps(r, l) && (l == TS_LIFETIME_TO_INPUT ? inputs : done)) {
      r->occupant[l][r->now.place[l]] = (ts_sim_occupant){-1, 0};
    }
  }
}

/* What comes may come; the run begins when what it sends next has gone. */
static char *open_run(ts_sim_rank *r) {
  const ts_step_runs *step = &r->program->step;
  r->at = r->n_issued = r->n_done = r->n_waited = 0;
  r->begun = false;
  if (r->run >= step->n) {
    return NULL;
  }
  r->now = ts_step_run(step, r->run);
  ts_step_takes_left(step->leaves, &r->now);
  r->kind = &step->kind[r->now.kind];
  return ts_sim_post_receives(r);
}

static char *begin_run(ts_sim_rank *r, bool *blocked) {
  bool ended = r->run >= r->program->step.n;
  *blocked = !ts_sim_wait_sends(r, ended);
  if (*blocked) {
    return NULL;
  }
  r->begun = true;
  char *fault = ended ? NULL : check_order(r, r->now);
  if (!ended && fault == NULL) {
    take_places(r);
    ++*runs_of(r, r->now.chunk, turn_of(r->kind));
    forget(r);
  }
  return fault;
}

static char *end_run(ts_sim_rank *r) {
  if (r->n_waited < r->n_issued) {
    return ts_format("rank %d: %s is issued, but not waited for when its phase ends", r->program->mesh.rank,
                     ts_sim_node(r, r->queue[r->n_waited])->name);
  }
  if (r->n_copies > 0) {
    return ts_format("rank %d: %s is issued, but not waited for when its phase ends", r->program->mesh.rank,
                     ts_sim_node(r, r->copy[0])->name);
  }
  leave_places(r);
  ++r->run;
  return open_run(r);
}

static char *execute(ts_sim_rank *r, ts_nid n) {
  char *fault = check_made(r, n);
  fault = fault == NULL && !ts_node_is_collective(ts_sim_node(r, n)) ? check_flight(r, n) : fault;
  fault = fault == NULL ? check_copies(r, n) : fault;
  fault = fault == NULL ? check_messages(r, n) : fault;
  if (fault == NULL) {
    write_outputs(r, n);
    fault = check_intact(r, n);
  }
  return fault;
}

/* \param [out] blocked  The collective is not complete yet. */
static char *wait_for_node(ts_sim_rank *r, ts_nid n, bool *blocked) {
  int i = 0;
  while (i < r->n_issued && r->queue[i] != n) {
    ++i;
  }
  if (i == r->n_issued) {
    return ts_format("rank %d: waits for %s, which was not issued", r->program->mesh.rank, ts_sim_node(r, n)->name);
  }
  *blocked = i >= r->n_done;
  r->n_waited = !*blocked && r->n_waited < i + 1 ? i + 1 : r->n_waited;
  return NULL;
}

/* A copy is under way from where it is issued to where it is waited for. */
static char *execute_copy(ts_sim_rank *r, const ts_instruction *instruction) {
  int i = 0;
  if (instruction->kind == TS_ISSUE) {
    char *fault = execute(r, instruction->node);
    r->copy[r->n_copies++] = instruction->node;
    return fault;
  }
  while (i < r->n_copies && r->copy[i] != instruction->node) {
    ++i;
  }
  if (i == r->n_copies) {
    return ts_format("rank %d: waits for %s, which was not issued", r->program->mesh.rank,
                     ts_sim_node(r, instruction->node)->name);
  }
  r->copy[i] = r->copy[--r->n_copies];
  return NULL;
}

/* What is received is there; what is sent is under way from now on. */
static char *execute_message(ts_sim_rank *r, ts_nid n, bool *blocked) {
  bool sends = ts_sim_node(r, n)->op == TS_OP_SEND;
  char *fault = sends ? check_made(r, n) : ts_sim_wait_message(r, n, ts_run_slot(r->now), blocked);
  fault = fault == NULL && sends ? check_intact(r, n) : fault;
  fault = fault == NULL && sends ? ts_sim_post(r, n, ts_run_slot(r->now), r->now.micro_batch) : fault;
  if (fault == NULL && !sends && !*blocked) {
    fault = execute(r, n);
  }
  return fault;
}

/* One of its instructions that the run has. */
static char *execute_instruction(ts_sim_rank *r, const ts_instruction *instruction, bool *blocked) {
  if (ts_node_is_message(ts_sim_node(r, instruction->node))) {
    return execute_message(r, instruction->node, blocked);
  }
  if (ts_node_is_copy(ts_sim_node(r, instruction->node))) {
    return execute_copy(r, instruction);
  }
  char *fault =
      instruction->kind == TS_WAIT ? wait_for_node(r, instruction->node, blocked) : execute(r, instruction->node);
  if (instruction->kind == TS_ISSUE) {
    r->queue[r->n_issued++] = instruction->node;
  }
  return fault;
}

static bool has_ended(const ts_sim_rank *r) {
  return r->run >= r->program->step.n && r->begun;
}

/* Execute instructions until the rank has to wait or has done the step.
 * \param [in,out] moved  Set when there was anything to do. */
static char *advance(ts_sim_rank *r, bool *moved) {
  const ts_schedule *schedule = r->program->schedule;
  while (!has_ended(r)) {
    char *fault = NULL;
    bool blocked = false;
    if (!r->begun) {
      fault = begin_run(r, &blocked);
    } else if (r->at == schedule->n) {
      fault = end_run(r);
    } else {
      const ts_instruction *instruction = &schedule->instruction[r->at];
      if (ts_run_has(&r->program->step, r->now, r->program->graph, ts_sim_node(r, instruction->node))) {
        fault = execute_instruction(r, instruction, &blocked);
      }
      r->at += !blocked;
    }
    if (fault != NULL || blocked) {
      return fault;
    }
    *moved = true;
  }
  return NULL;
}

/* ---- the step ---- */

static bool is_leaf_kept(const ts_tensor *t) {
  return t->producer == TS_NONE && t->role != TS_ROLE_PARAM;
}

/* The storages of a place, and with the first those that are no micro-batch's. */
static char *open_place(ts_sim_rank *r, int place) {
  const ts_program *program = r->program;
  const ts_graph *g = program->graph;
  for (EACH_KEPT(l)) {
    r->now.place[l] = place;
  }
  r->first_of_place[place] = r->n_storages;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    ts_arena arena = program->plan->address[t].arena;
    ts_lifetime lifetime = ts_arenas[arena].lifetime;
    bool kept = ts_lifetime_is_kept(lifetime);
    int64_t begin = ts_plan_offset(program->plan, arena, r->now), end = program->plan->arena_bytes[arena];
    end = kept && begin + program->plan->slot_bytes[arena] < end ? begin + program->plan->slot_bytes[arena] : end;
    ts_sim_extent at = extent_of(r, t);
    if (arena == TS_ARENA_NONE || place >= program->step.n_places[lifetime]) {
      continue;
    }
    if (at.begin < begin || at.end > end) {
      return ts_format("rank %d: %s lies outside the %s arena", program->mesh.rank, tensor_name(r, t),
                       ts_arenas[arena].name);
    }
    if (r->place[t].root == t) {
      bool one_life = !kept && lifetime != TS_LIFETIME_STEP && is_one_life(program); /* all is the micro-batch's */
      r->of_root[in_place(r, t)] = r->n_storages;
      r->storage[r->n_storages++] =
          (ts_sim_storage){.root = t,
                           .place = kept || one_life ? place : -1,
                           .lifetime = one_life ? TS_LIFETIME_SLOT : lifetime,
                           .at = at,
                           .life = is_leaf_kept(&g->tensor[t]) ? TS_SIM_INTACT : TS_SIM_UNBORN,
                           .culprit = TS_NONE};
    }
  }
  r->first_of_place[place + 1] = r->n_storages;
  return NULL;
}

static char *open_rank(ts_sim_rank *r, const ts_program *program) {
  const ts_graph *g = program->graph;
  int most = 1;
  for (ts_lifetime l = TS_LIFETIME_STATE; l < TS_N_LIFETIMES; ++l) {
    most = program->step.n_places[l] > most ? program->step.n_places[l] : most;
  }
  size_t entries = (size_t) most * (size_t) g->n_tensors + 1;
  *r = (ts_sim_rank){.program = program,
                     .place = ts_storage_find(g),
                     .storage = ts_malloc(entries * sizeof *r->storage),
                     .first_of_place = ts_calloc((size_t) most + 1, sizeof *r->first_of_place),
                     .of_root = ts_malloc(entries * sizeof *r->of_root),
                     .made = ts_calloc(entries, sizeof *r->made),
                     .waits = {.node = TS_NONE},
                     .queue = ts_malloc(((size_t) program->schedule->n + 1) * sizeof *r->queue),
                     .copy = ts_malloc(((size_t) program->schedule->n + 1) * sizeof *r->copy)};
  memset(r->of_root, -1, entries * sizeof *r->of_root);
  for (EACH_KEPT(l)) {
    r->occupant[l] = ts_malloc((size_t) program->step.n_places[l] * sizeof *r->occupant[l]);
    for (int i = 0; i < program->step.n_places[l]; ++i) {
      r->occupant[l][i] = (ts_sim_occupant){-1, 0};
    }
  }
  char *fault = NULL;
  for (int place = 0; place < most && fault == NULL; ++place) {
    fault = open_place(r, place);
  }
  r->n_of = ts_calloc((size_t) ts_graph_chunks(r->program->graph) * TS_SIM_TURNS, sizeof *r->n_of);
  return fault == NULL ? open_run(r) : fault;
}

static void close_rank(ts_sim_rank *r) {
  ts_free(r->place);
  ts_free(r->storage);
  ts_free(r->first_of_place);
  ts_free(r->of_root);
  ts_free(r->made);
  for (EACH_KEPT(l)) {
    ts_free(r->occupant[l]);
  }
  ts_free(r->n_of);
  ts_free(r->message);
  ts_free(r->queue);
  ts_free(r->copy);
}

/* Leaves are not touched by anything but what updates them; results wait for the host. */
static char *check_end(const ts_sim_rank *r) {
  const ts_graph *g = r->program->graph;
  char *fault = NULL;
  for (int i = 0; fault == NULL && i < r->n_storages; ++i) {
    bool kept = is_leaf_kept(&g->tensor[r->storage[i].root]);
    fault = kept ? check_storage(r, &r->storage[i], r->storage[i].root, "the next step") : NULL;
  }
  for (int i = 0; fault == NULL && i < g->n_marks; ++i) {
    fault = check_storage(r, storage_of(r, g->mark[i].tensor), g->mark[i].tensor, "the host");
  }
  return fault;
}

/* All ranks as far as they come, then all collectives that have everybody, until nothing moves. */
static char *step(ts_simulation *s) {
  char *fault = NULL;
  for (bool moved = true; moved && fault == NULL;) {
    moved = false;
    for (int i = 0; i < s->n_ranks && fault == NULL; ++i) {
      fault = advance(&s->rank[i], &moved);
    }
    for (int i = 0; i < s->n_ranks && fault == NULL; ++i) {
      fault = ts_sim_match_collective(s, &s->rank[i], &moved);
    }
    fault = fault == NULL ? ts_sim_match_messages(s, &moved) : fault;
  }
  for (int i = 0; i < s->n_ranks && fault == NULL; ++i) {
    fault = !has_ended(&s->rank[i]) ? ts_sim_explain_deadlock(s) : check_end(&s->rank[i]);
  }
  return fault;
}

char *ts_simulate_step(const ts_program *const *programs, int n_ranks) {
  ts_simulation s = {.n_ranks = n_ranks, .rank = ts_calloc((size_t) n_ranks, sizeof *s.rank)};
  char *fault = NULL;
  for (int i = 0; i < n_ranks && fault == NULL; ++i) {
    TS_CHECK(programs[i]->mesh.rank == i && programs[i]->mesh.ranks == n_ranks && programs[i]->use == programs[0]->use,
             "program %d is not that of rank %d of %d", i, i, n_ranks);
    fault = open_rank(&s.rank[i], programs[i]);
  }
  fault = fault == NULL ? step(&s) : fault;
  for (int i = 0; i < n_ranks; ++i) {
    close_rank(&s.rank[i]);
  }
  ts_free(s.rank);
  return fault;
}
