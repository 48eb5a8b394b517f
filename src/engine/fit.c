/* Does it fit?  Asked before anything is allocated, with what is planned. */
#include "base/cgroup.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "engine/engine.h"
#include "pass/saved.h"
#include "run/budget.h"

#include <string.h>

/* ---- what there is ---- */

/* The groups of processes that a rank is in and that may have so much, as ranks tell each other. */
enum { MOST_GROUPS = 8 };
typedef struct group_list {
  int n;
  uint64_t group[MOST_GROUPS]; /* its name */
  int64_t available[MOST_GROUPS];
} group_list;

static bool lists_group(const group_list *list, uint64_t group) {
  bool is = false;
  for (int i = 0; i < list->n; ++i) {
    is = is || list->group[i] == group;
  }
  return is;
}

/* Ranks of this node in a group. */
static int ranks_in_group(const ts_world *world, const group_list *all, uint64_t group) {
  int n = 0, node = ts_world_node(world, ts_world_rank(world));
  for (int r = 0; r < ts_world_size(world); ++r) {
    n += ts_world_node(world, r) == node && lists_group(&all[r], group);
  }
  return n;
}

static void limit_share(ts_memory_share *share, const ts_cgroup *group, int ranks) {
  int64_t bytes = group->available / ranks;
  if (bytes < share->bytes) {
    char left[32], limit[32];
    ts_free(share->why);
    *share =
        (ts_memory_share){bytes, ts_format(" (%s of the %s that the group of processes %s may have: a limit of the "
                                           "job's, as Slurm's --mem, or of a container)",
                                           ts_human_bytes((double) group->available, left),
                                           ts_human_bytes((double) group->limit, limit), group->path)};
  }
}

/* Of all ranks. */
static int64_t most_of(const ts_engine *e, int64_t mine) {
  int64_t *all = ts_world_gather(e->world, &mine, sizeof mine);
  for (int r = 0; r < ts_world_size(e->world); ++r) {
    mine = all[r] > mine ? all[r] : mine;
  }
  ts_free(all);
  return mine;
}

/* Equal shares of what is free on the node and, of each group with a limit, among its ranks. */
void ts_engine_find_memory(ts_engine *e) {
  const bool limited = e->deck->run.memory_limit > 0 || ts_deck_fits_offload(e->deck);
  if (e->deck->run.host_memory_limit > 0 || (limited && e->backend->device == NULL)) {
    ts_memory_keep_little();
  }
  e->resident = most_of(e, (int64_t) ts_process_memory()); /* ranks plan alike */
  ts_cgroup *groups;
  int n = ts_cgroups_limited(&groups);
  group_list mine = {.n = n < MOST_GROUPS ? n : MOST_GROUPS};
  for (int i = 0; i < mine.n; ++i) {
    mine.group[i] = ts_hash_name(groups[i].path);
    mine.available[i] = groups[i].available;
  }
  int64_t free = (int64_t) ts_machine_available();
  e->memory = (ts_memory_share){free > 0 ? free / ts_world_local_size(e->world) : INT64_MAX, ts_strdup("")};
  group_list *all = ts_world_gather(e->world, &mine, sizeof mine);
  for (int i = 0; i < mine.n; ++i) {
    limit_share(&e->memory, &groups[i], ranks_in_group(e->world, all, mine.group[i]));
  }
  ts_free(all);
  ts_cgroups_free(&groups, n);
}

/* ---- of the host ---- */

/* Beside devices the host keeps copies of the inputs, state that is offloaded and, planned or taken when one is saved,
 * copies of the state. */
int64_t ts_engine_host_bytes(const ts_engine *e) {
  const ts_program *const *program = (const ts_program *const *) e->program, *train = program[TS_PROGRAM_TRAIN];
  bool copied = train != NULL && !ts_plan_offloads(train->plan); /* else a checkpoint is written from there */
  int64_t saved = copied ? ts_saved_bytes(train->graph, train->layout) : 0;
  return ts_executor_host_bytes(program, TS_N_PROGRAMS) + saved;
}

/* Beside a device. */
static const char *way_to_files(const ts_engine *e) {
  return !ts_deck_offloads(e->deck) || ts_deck_files(e->deck)[0] != 0
             ? ""
             : "; zero_optimization.offload_optimizer.device = \"auto\" with an nvme_path, a directory, keeps in files "
               "what has no room";
}

static ts_status check_host_memory(const ts_engine *e, ts_error *err) {
  int ranks = ts_world_local_size(e->world);
  int64_t each = ts_engine_host_bytes(e);
  if (each <= e->memory.bytes) {
    return TS_OK;
  }
  char need[32], have[32];
  return ts_error_add(
      err,
      "not enough memory beside the GPUs: for checkpoints, inputs and offloaded state %d rank%s "
      "of %s need %s of the host's memory each, and can have %s each%s; ways out: a higher zero_optimization.stage, "
      "more nodes%s",
      ranks, ranks > 1 ? "s" : "", ts_world_node_name(e->world, ts_world_rank(e->world)),
      ts_human_bytes((double) each, need), ts_human_bytes((double) e->memory.bytes, have), e->memory.why,
      way_to_files(e));
}

/* What is kept of a text is another way out. */
static const char *less_context(const ts_engine *e) {
  return e->program[TS_PROGRAM_GENERATE] != NULL ? "; for generation a smaller --batch, fewer --tokens, or a smaller "
                                                   "data.sequence_length, whose keys and values are kept"
                                                 : "";
}

/* ---- of a device ---- */

/* What the executor takes in one piece. */
static int64_t arena_bytes(const ts_program *const *program, int n) {
  int64_t all = 0;
  for (ts_arena a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    all += ts_programs_arena_bytes(program, n, a);
  }
  return all;
}

/* The arenas, and the most that a program takes beside its own. */
static int64_t peak_bytes(const ts_program *const *program, int n) {
  int64_t beside = 0;
  for (int i = 0; i < n; ++i) {
    int64_t here = program[i] != NULL ? program[i]->plan->peak_bytes - arena_bytes(&program[i], 1) : 0;
    beside = here > beside ? here : beside;
  }
  return arena_bytes(program, n) + beside;
}

int64_t ts_engine_peak(const ts_engine *e) {
  return peak_bytes((const ts_program *const *) e->program, TS_N_PROGRAMS);
}

/* The training program of another deck: what its arenas would take. */
static void try_deck(const ts_engine *e, const ts_deck *deck, const char *change, double available, ts_text *to) {
  const ts_program *now = e->program[TS_PROGRAM_TRAIN];
  ts_program_options options = {.deck = deck,
                                .mesh = &e->mesh,
                                .use = TS_MODEL_TRAIN,
                                .target = now->target,
                                .batch = deck->train_micro_batch_size_per_gpu,
                                .length = now->length,
                                .memory = e->budget,
                                .order = now->step.order};
  ts_program *program = ts_program_create(&options);
  const ts_program *all[TS_N_PROGRAMS];
  memcpy(all, e->program, sizeof all);
  all[TS_PROGRAM_TRAIN] = program;
  double bytes = (double) arena_bytes(all, TS_N_PROGRAMS);
  char text[32];
  ts_text_add(to, "%s with %s: %s%s", to->length > 0 ? "," : "", change, ts_human_bytes(bytes, text),
              bytes <= available ? ", which fits" : "");
  ts_program_destroy(&program);
}

/* What keeps least: of a group of blocks one input is kept, and the others are there while it is computed again. */
static void try_intervals(const ts_engine *e, double available, ts_text *to) {
  ts_deck other = *e->deck;
  int64_t interval = 1;
  while (interval * interval < other.model.num_hidden_layers) {
    ++interval;
  }
  if (strcmp(other.activation_checkpointing.policy, "block") == 0 &&
      other.activation_checkpointing.interval >= interval) {
    return;
  }
  other.activation_checkpointing.policy = (char *) "block";
  other.activation_checkpointing.interval = interval;
  char *change = ts_format("activation_checkpointing.policy = \"block\", .interval = %lld", (long long) interval);
  try_deck(e, &other, change, available, to);
  ts_free(change);
}

/* The next stage, half of the micro-batch, activations computed again: planned. */
static void try_decks(const ts_engine *e, double available, ts_text *to) {
  const ts_deck *deck = e->deck;
  ts_deck other = *deck;
  if (ts_mesh_group_size(&e->mesh, TS_AXES_BATCH) > 1 && deck->zero_optimization.stage < 3) {
    ++other.zero_optimization.stage;
    try_deck(e, &other, "zero_optimization.stage one higher", available, to);
  }
  other = *deck;
  if (deck->train_micro_batch_size_per_gpu > 1) {
    other.train_micro_batch_size_per_gpu /= 2;
    try_deck(e, &other, "half the train_micro_batch_size_per_gpu", available, to);
  }
  other = *deck;
  if (!deck->activation_checkpointing.enabled) {
    other.activation_checkpointing.enabled = true;
    try_deck(e, &other, "activation_checkpointing.enabled", available, to);
  } else {
    try_intervals(e, available, to);
  }
}

/* Before libraries and communicators have taken their part: what does not fit now never will. */
static ts_status check_device_memory(const ts_engine *e, ts_error *err) {
  double need = (double) arena_bytes((const ts_program *const *) e->program, TS_N_PROGRAMS);
  ts_device *device = ts_backend_device(e->backend);
  double available = (double) device->ops->available(device);
  if (need <= available) {
    return TS_OK;
  }
  ts_text ways = {0};
  char needs[32], have[32];
  int rank = ts_world_rank(e->world);
  if (e->program[TS_PROGRAM_TRAIN] != NULL) {
    try_decks(e, available, &ways);
  }
  ts_error_add(err,
               "rank %d on %s: an arena of %s is needed, %s are free on its GPU%s%s (before NCCL and other libraries "
               "take theirs); more GPUs need less each (`tessera plan`)%s",
               rank, ts_world_node_name(e->world, rank), ts_human_bytes(need, needs), ts_human_bytes(available, have),
               ways.length > 0 ? ";" : "", ways.length > 0 ? ways.text : "", less_context(e));
  ts_text_free(&ways);
  return TS_BAD_INPUT;
}

/* ---- of both ---- */

/* Of the GPU, or a share of what the node has. */
static int64_t memory_here(const ts_engine *e) {
  ts_device *device = ts_backend_device(e->backend);
  return device != NULL ? (int64_t) device->ops->available(device) : e->memory.bytes < INT64_MAX ? e->memory.bytes : 0;
}

int64_t ts_engine_memory_of_rank(const ts_engine *e) {
  int64_t mine = memory_here(e), *all = ts_world_gather(e->world, &mine, sizeof mine), least = mine;
  for (int r = 0; r < ts_world_size(e->world); ++r) {
    least = all[r] < least ? all[r] : least;
  }
  ts_free(all);
  return least;
}

/* In megabytes that are enough. */
static long long megabytes(int64_t bytes) {
  return (long long) ((bytes + 999999) / 1000000);
}

/* What HDF5 has of its own while a checkpoint is written: 5 to 6 MB were seen. */
enum { SAVING = 6000000 };

/* Of a device programs take all that is planned; of the host the process has some already, and when it saves. */
int64_t ts_engine_taken(const ts_engine *e) {
  return e->backend->device != NULL ? 0 : e->resident + SAVING;
}

/* What the deck says, with all that the process has, and by which key. */
static int64_t deck_limit(const ts_engine *e, const char **key) {
  const ts_deck_run *run = &e->deck->run;
  int64_t limit =
      e->backend->device != NULL ? run->memory_limit : ts_budget_lower(run->memory_limit, run->host_memory_limit);
  *key = limit == run->memory_limit ? "run.memory_limit" : "run.host_memory_limit";
  return limit;
}

int64_t ts_engine_limit(const ts_engine *e) {
  const char *key;
  int64_t limit = deck_limit(e, &key), left = limit - ts_engine_taken(e);
  return limit == 0 ? 0 : left > 0 ? left : 1;
}

/* Behind what is needed. */
static const char *way_out(const ts_engine *e) {
  bool device = e->backend->device != NULL, files = ts_deck_files(e->deck)[0] != 0;
  if (ts_deck_fits_offload(e->deck)) {
    return e->mesh.size[TS_AXIS_PP] > 1 && (device || files)
               ? " at least, the smallest limit that works with this deck and this cut of its model (pipeline.units)"
           : device || files ? " at least, the smallest limit that works with this deck"
                             : " at least, the smallest limit that works with this deck; "
                               "zero_optimization.offload_optimizer.nvme_path, a directory, lets state leave";
  }
  return ts_deck_offloads(e->deck)
             ? "; a smaller micro-batch, activation_checkpointing.enabled with cpu_checkpointing and "
               "more ranks need less"
         : device ? "; zero_optimization.offload_optimizer.device = \"auto\", and offload_param's, let what "
                    "does not fit leave"
                  : "; zero_optimization.offload_optimizer.device = \"auto\", and offload_param's, with an "
                    "nvme_path let what does not fit leave";
}

ts_status ts_engine_check_limits(const ts_engine *e, ts_error *err) {
  const char *key;
  int64_t limit = deck_limit(e, &key), peak = most_of(e, ts_engine_peak(e) + ts_engine_taken(e));
  int64_t hosts = e->backend->device != NULL ? e->deck->run.host_memory_limit : 0,
          host = most_of(e, hosts > 0 ? ts_engine_host_bytes(e) : 0);
  ts_status status = TS_OK;
  if (limit > 0 && peak > limit) {
    status = ts_deck_error(e->deck, key, err, "%lld bytes: a rank needs %lld MB%s", (long long) limit, megabytes(peak),
                           way_out(e));
  }
  if (host > hosts) {
    status =
        ts_deck_error(e->deck, "run.host_memory_limit", err,
                      "%lld bytes: a rank needs %lld MB of the host's memory beside its GPU; more ranks, and states "
                      "in fewer bits (optimizer.state_dtype), need less each%s",
                      (long long) hosts, megabytes(host), way_to_files(e));
  }
  return status;
}

/* The ranks of this node must fit into its memory. */
ts_status ts_engine_check_memory(const ts_engine *e, ts_error *err) {
  if (e->backend->device != NULL) {
    ts_status status = check_host_memory(e, err);
    return status == TS_OK ? check_device_memory(e, err) : status;
  }
  int ranks = ts_world_local_size(e->world);
  int64_t peak = ts_engine_peak(e);
  if (peak <= e->memory.bytes) {
    return TS_OK;
  }
  char need[32], have[32];
  return ts_error_add(err,
                      "not enough memory: %d rank%s of %s need %s each, and can have %s each%s; ways out: a "
                      "higher zero_optimization.stage, a smaller train_micro_batch_size_per_gpu, "
                      "activation_checkpointing.enabled, %smore nodes (`tessera plan` shows what each gives)%s",
                      ranks, ranks > 1 ? "s" : "", ts_world_node_name(e->world, ts_world_rank(e->world)),
                      ts_human_bytes((double) peak, need), ts_human_bytes((double) e->memory.bytes, have),
                      e->memory.why,
                      ts_deck_files(e->deck)[0] != 0
                          ? ""
                          : "zero_optimization.offload_optimizer.device = \"nvme\", which keeps states in files, ",
                      less_context(e));
}
