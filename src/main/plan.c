/* tessera plan: what a rank needs, without running. */
#include "base/log.h"
#include "base/memory.h"
#include "deck/elasticity.h"
#include "engine/workings.h"
#include "main/command.h"
#include "main/plan_against.h"
#include "main/plan_experts.h"
#include "main/plan_layout.h"
#include "main/plan_longest.h"
#include "main/plan_stages.h"
#include "main/plan_time.h"
#include "pass/recompute.h"
#include "run/budget.h"
#include "run/cuts.h"
#include "run/executor.h"
#include "run/plan_largest.h"
#include "run/program.h"
#include "run/turns.h"

#include <string.h>

static ts_status find_options(const ts_arguments *arguments, ts_deck *deck, ts_mesh *mesh, const ts_timing *timing,
                              ts_program_options *options, ts_error *err) {
  int64_t threads;
  const ts_backend *backend;
  const char *target = ts_argument(arguments, "--target");
  if (timing != NULL && strcmp(target, "auto") == 0 && strcmp(deck->run.device, "auto") == 0) {
    target = timing->machine[0].backend;
  }
  ts_status status = ts_engine_choose_target(target, deck, &backend, err);
  status = status == TS_OK ? ts_argument_int(arguments, "--threads", 0, 1024, &threads, err) : status;
  if (status != TS_OK) {
    return status;
  }
  threads = threads > 0                                                         ? threads
            : timing != NULL && timing->sheet == NULL && deck->run.threads == 0 ? timing->by[0]->threads
                                                                                : ts_engine_threads(deck, mesh->ranks);
  *options = (ts_program_options){.deck = deck,
                                  .mesh = mesh,
                                  .target = {backend, (int) threads, ts_engine_cudnn_use(deck, backend)},
                                  .use = TS_MODEL_TRAIN,
                                  .batch = deck->train_micro_batch_size_per_gpu,
                                  .length = deck->data.sequence_length};
  return ts_program_check(options, err);
}

/* As in a run whose ranks have so much memory; 0: all they want. */
static void choose_cuts(const ts_program_options *options, ts_deck *deck, int64_t memory) {
  ts_error why = {0};
  if (ts_cuts_decide(options, deck, memory, &why) != TS_OK) {
    ts_log(TS_LOG_WARNING, "%s", why.text);
  }
  ts_error_clear(&why);
}

/* What elasticity chooses for as many numbers of ranks as possible; empty without it. */
static ts_elastic_batch elastic_batch(const ts_deck *deck) {
  ts_elastic_batch choice = {0};
  if (deck->elasticity.enabled) {
    ts_elastic_choose(&deck->elasticity, 0, &choice);
  }
  return choice;
}

static void print_elasticity(const ts_deck *deck, ts_text *to) {
  ts_elastic_batch choice = elastic_batch(deck);
  if (choice.fits.n > 0) {
    ts_text_add(to, "elasticity: %lld samples go with these numbers of ranks: ", (long long) choice.batch);
    ts_elastic_list(&choice.fits, to);
    ts_text_add(to, deck->train_batch_size == choice.batch ? "\n" : "; others have a batch of their own\n");
  }
  ts_free(choice.fits.items);
}

static void print_batch(const ts_program *program, ts_text *to) {
  const ts_deck *deck = program->deck;
  int replicas = ts_mesh_group_size(&program->mesh, TS_AXES_BATCH);
  ts_text_add(to, "a step takes %lld samples: micro-batches of %lld x %lld accumulation step%s x %d rank%s\n",
              (long long) deck->train_batch_size, (long long) deck->train_micro_batch_size_per_gpu,
              (long long) deck->gradient_accumulation_steps, deck->gradient_accumulation_steps > 1 ? "s" : "", replicas,
              replicas > 1 ? "s" : "");
  if (program->step.together > 1) {
    ts_text_add(to, "%lld micro-batches at a time go through the model unit by unit\n",
                (long long) program->step.together);
  }
  print_elasticity(deck, to);
}

/* How ranks share samples, by what that was chosen, and what is sent for it. */
static void print_sequence(const ts_program *program, ts_text *to) {
  const ts_sequence *s = &program->sequence;
  char heads[32], keys[32];
  if (program->mesh.size[TS_AXIS_SP] > 1) {
    ts_sequence_cost cost = ts_sequence_cost_of(program->deck, &program->heads, &program->mesh, program->length,
                                                s->ulysses, s->ring, program->target.backend);
    ts_text_add(to,
                "%d ranks share each sample, at most %lld tokens each: ulysses_degree %d x ring_degree %d; a block's "
                "forward sends at most %s for heads and %s for keys%s\n",
                program->mesh.size[TS_AXIS_SP], (long long) ts_sequence_most(s), s->ulysses, s->ring,
                ts_human_bytes(cost.ulysses_bytes, heads), ts_human_bytes(cost.ring_bytes, keys),
                s->ring == 1 ? ""
                : s->gathers ? " (all_gather)"
                             : " (p2p)");
    ts_sent sent = ts_program_sent(program, TS_AXIS_SP);
    ts_text_add(to, "a micro-batch sends %s along sp from rank %d, forward and backward, in %d messages\n",
                ts_human_bytes(sent.micro_batch, heads), program->mesh.rank, sent.messages);
  }
}

static void print_policy(const ts_program *program, ts_text *to) {
  const ts_deck *deck = program->deck;
  if (deck->activation_checkpointing.enabled) {
    const char *policy = ts_recompute_policy(deck, &program->sequence);
    ts_text_add(to, "activation checkpointing by policy %s%s: %s\n", policy,
                strcmp(deck->activation_checkpointing.policy, "auto") == 0 ? " (auto)" : "",
                strcmp(policy, "sac") == 0 ? "attention is kept, the rest of a block computed again"
                                           : "blocks are computed again from their inputs");
  }
}

static void print_sequence_json(const ts_program *program, ts_text *to) {
  const ts_sequence *s = &program->sequence;
  ts_sequence_cost cost = ts_sequence_cost_of(program->deck, &program->heads, &program->mesh, program->length,
                                              s->ulysses, s->ring, program->target.backend);
  ts_text_add(to,
              ", \"sequence_parallel_size\": %d, \"ulysses_degree\": %d, \"ring_degree\": %d, \"ulysses_bytes\": "
              "%.0f, \"ring_bytes\": %.0f, \"sp_sent_bytes\": %.0f",
              program->mesh.size[TS_AXIS_SP], s->ulysses, s->ring, cost.ulysses_bytes, cost.ring_bytes,
              ts_program_sent(program, TS_AXIS_SP).micro_batch);
  if (program->deck->activation_checkpointing.enabled) {
    ts_text_add(to, ", \"activation_checkpointing\": \"%s\"", ts_recompute_policy(program->deck, &program->sequence));
  }
}

static void print_batch_json(const ts_program *program, ts_text *to) {
  const ts_deck *deck = program->deck;
  ts_elastic_batch choice = elastic_batch(deck);
  ts_text_add(
      to,
      ", \"train_batch_size\": %lld, \"train_micro_batch_size_per_gpu\": %lld, \"gradient_accumulation_steps\": %lld, "
      "\"unit_by_unit\": %lld",
      (long long) deck->train_batch_size, (long long) deck->train_micro_batch_size_per_gpu,
      (long long) deck->gradient_accumulation_steps, (long long) program->step.together);
  if (choice.fits.n > 0) {
    ts_text_add(to, ", \"elastic_batch_size\": %lld, \"elastic_ranks\": [", (long long) choice.batch);
    for (int i = 0; i < choice.fits.n; ++i) {
      ts_text_add(to, i > 0 ? ", %lld" : "%lld", (long long) choice.fits.items[i]);
    }
    ts_text_add(to, "]");
  }
  ts_free(choice.fits.items);
}

typedef struct plan_row {
  const char *key, *label;
  int64_t bytes;
} plan_row;

/* What a rank has in a space where only copies come, and how much of it moves. */
static void print_space(const ts_program *program, ts_space space, const char *title, ts_text *to) {
  const ts_plan *plan = program->plan;
  ts_moved moved = ts_program_moved(program);
  const plan_row row[] = {{NULL, "parameters", plan->away[space][TS_PURPOSE_PARAMETER]},
                          {NULL, "gradients", plan->away[space][TS_PURPOSE_GRADIENT]},
                          {NULL, "optimizer states", plan->away[space][TS_PURPOSE_OPTIMIZER]},
                          {NULL, "activations", plan->away[space][TS_PURPOSE_ACTIVATION]},
                          {NULL, "on the way", plan->away[space][TS_PURPOSE_BUFFER]},
                          {NULL, "read in a step", (int64_t) moved.read[space]},
                          {NULL, "written in a step", (int64_t) moved.written[space]}};
  char bytes[32];
  enum { BUFFERS = 4 };
  bool any = row[0].bytes + row[1].bytes + row[2].bytes + row[3].bytes + row[BUFFERS].bytes > 0;
  ts_text_add(to, "%s", any ? title : "");
  for (size_t i = 0; any && i < sizeof row / sizeof *row; ++i) {
    if (i == BUFFERS && row[i].bytes == 0) {
      continue;
    }
    ts_text_add(to, "  %-34s %16lld  %10s\n", row[i].label, (long long) row[i].bytes,
                ts_human_bytes((double) row[i].bytes, bytes));
  }
}

/* A part of a hundred. */
static double percent(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * (double) part / (double) whole : 100.0;
}

/* What device = "auto" came to. */
static void print_choice(const ts_program_options *options, const ts_program *program, ts_text *to) {
  const ts_offload_count *n = &program->offload;
  int64_t limit = ts_budget_memory(options), peak = program->plan->peak_bytes;
  char has[32], needs[32];
  ts_human_bytes((double) limit, has);
  if (program->units_away > 0) {
    ts_text_add(to, "\nwhat %d of %d units keep for the backward leaves (%d tensors)\n", program->units_away,
                program->graph->n_units, program->kept_away);
  }
  if (!ts_deck_fits_offload(options->deck)) {
    return;
  }
  ts_text_add(to,
              "\nof the elements that could leave the states of %.1f %%, the gradients of %.1f %% and the values of "
              "%.1f %% stay: ",
              percent(n->states_stay, n->states), percent(n->gradients_stay, n->gradients),
              percent(n->values_stay, n->values));
  if (limit == 0) {
    ts_text_add(to, "no limit is given (run.memory_limit, --memory)\n");
  } else if (peak <= limit) {
    ts_text_add(to, "as many as fit into %s\n", has);
  } else {
    ts_text_add(to, "%s are too little, %s the smallest that works\n", has, ts_human_bytes((double) peak, needs));
  }
}

/* Bytes that a rank writes to its file in a day of steps that take no longer than planned. */
static double written_in_a_day(const ts_program *program, const ts_step_seconds *s) {
  const double day = 86400, written = ts_program_moved(program).written[TS_SPACE_FILE];
  return s->step > 0 ? written * day / s->step : 0;
}

static void print_exposed(const ts_program *program, ts_text *to) {
  const ts_step_seconds s = ts_program_step_seconds(program);
  const double away = s.sum.copies + s.sum.files;
  char bytes[32];
  if (away == 0) {
    return;
  }
  ts_text_add(to, "\na step by the rates of `machine`: computed %.3g s", s.sum.computing);
  if (s.sum.host > 0) {
    ts_text_add(to, ", by the host %.3g s", s.sum.host);
  }
  if (s.sum.copies > 0) {
    ts_text_add(to, ", copied %.3g s", s.sum.copies);
  }
  if (s.sum.files > 0) {
    ts_text_add(to, ", files %.3g s", s.sum.files);
  }
  ts_text_add(to, "; %.3g s of these are not hidden\n", s.exposed);
  if (s.sum.files > 0) {
    ts_text_add(to, "  (a rank writes %s to its file in a day so)\n",
                ts_human_bytes(written_in_a_day(program, &s), bytes));
  }
}

/* Where more is said than there may be. */
static void print_host_limit(const ts_program_options *options, const ts_program *program, ts_text *to) {
  const int64_t limit = ts_budget_host_memory(options);
  const int64_t need = limit > 0 ? ts_executor_host_bytes(&program, 1) : 0;
  char has[32], needs[32];
  if (need > limit) {
    ts_text_add(to, "\nrun.host_memory_limit: %s are too little, a rank needs %s of the host's memory\n",
                ts_human_bytes((double) limit, has), ts_human_bytes((double) need, needs));
  }
}

static void print_offload(const ts_program *program, ts_text *to) {
  print_space(program, TS_SPACE_PINNED, "\nin the host's memory, copied to the GPU and back\n", to);
  print_space(program, TS_SPACE_FILE, "\nin a file of the rank\n", to);
  const bool device = program->target.backend->device != NULL;
  if (device && program->offload.states > program->offload.states_stay) {
    ts_text_add(to, "  (run.offload_update: %s)\n",
                program->updates_on_host ? "the host's processors make the updates of what is there"
                                         : "the GPU makes the updates, to which states come and go");
  }
  print_exposed(program, to);
  if (ts_plan_offloads(program->plan) && program->deck->run.save_async && program->deck->run.save_every > 0) {
    ts_text_add(to, "  (run.save_async has no effect then: checkpoints are written from there, while the run waits)\n");
  }
}

static void print_rows(const ts_program_options *options, const ts_program *program, const plan_row *row, int n,
                       ts_text *to) {
  char a[32], b[32];
  int64_t all = ts_layout_parameter_count(program->layout, false), active = ts_program_active_parameters(program);
  ts_text_add(to, "%s parameters", ts_human_count((double) all, a));
  if (active < all) {
    ts_text_add(to, " (%s for a token)", ts_human_count((double) active, a));
  }
  ts_text_add(to, ", ");
  ts_deck_add_types(program->deck, to);
  ts_text_add(to, ", %d rank%s x %d thread%s, ZeRO stage %lld, micro-batch %lld x %lld tokens\n", program->mesh.ranks,
              program->mesh.ranks > 1 ? "s" : "", program->target.threads, program->target.threads > 1 ? "s" : "",
              (long long) program->deck->zero_optimization.stage, (long long) program->batch,
              (long long) program->length);
  print_batch(program, to);
  print_sequence(program, to);
  print_policy(program, to);
  ts_text_add(to, "\n");
  bool device = program->target.backend->device != NULL;
  const char *where = device ? " on its GPU (the copy for checkpoints: on the host)" : "";
  if (program->mesh.size[TS_AXIS_TP] > 1 || program->mesh.size[TS_AXIS_EP] > 1 || program->mesh.size[TS_AXIS_SP] > 1 ||
      program->stages != NULL) {
    ts_text_add(to, "memory of rank %d, which needs most%s\n", program->mesh.rank, where);
  } else {
    ts_text_add(to, "memory of one rank%s\n", where);
  }
  for (int i = 0; i < n; ++i) {
    ts_text_add(to, "  %-34s %16lld  %10s\n", row[i].label, (long long) row[i].bytes,
                ts_human_bytes((double) row[i].bytes, b));
  }
  ts_text_add(to, device ? "  (a run's peak_bytes in metrics.csv is this, with what libraries really take)\n"
                         : "  (a run's peak_bytes in metrics.csv is that of the whole process: with the program\n"
                           "  and its libraries some 0.03 GB more, and what MPI takes)\n");
  ts_text_add(to, "  (%s arena %lld bytes for %lld live at most)\n", ts_arenas[TS_ARENA_WORK].name,
              (long long) program->plan->arena_bytes[TS_ARENA_WORK], (long long) program->plan->live_bytes);
  ts_text_add(to, "  (of these %lld are kept from forward to backward, %s; at work beside them: %lld, %s)\n",
              (long long) program->plan->kept_bytes, ts_human_bytes((double) program->plan->kept_bytes, a),
              (long long) program->plan->working_bytes, ts_human_bytes((double) program->plan->working_bytes, b));
  print_choice(options, program, to);
  print_host_limit(options, program, to);
  print_offload(program, to);
  double full, half = ts_program_model_flops(program, &full);
  ts_text_add(to, "\nmodel FLOPs of one micro-batch\n  %-34s %16.4e\n  %-34s %16.4e\n", "causal half (6N + 6LCT)", half,
              "full attention (6N + 12LCT)", full);
}

/* By turn, in the order of ts_turn. */
static void print_turns_json(const ts_program *program, ts_text *to) {
  for (int writes = 0; writes < 2; ++writes) {
    ts_text_add(to, ", \"file_%s_bytes_by_turn\": [", writes ? "written" : "read");
    for (ts_turn turn = 0; turn < TS_N_TURNS; ++turn) {
      ts_moved moved = ts_program_moved_in(program, turn);
      ts_text_add(to, "%s%.0f", turn > 0 ? ", " : "", (writes ? moved.written : moved.read)[TS_SPACE_FILE]);
    }
    ts_text_add(to, "]");
  }
}

/* What is elsewhere, what of it is copied, and by the rates how long that takes. */
static void print_offload_json(const ts_program *program, ts_text *to) {
  ts_moved moved = ts_program_moved(program);
  ts_text_add(to, ", \"file_bytes\": %lld, \"file_read_bytes\": %.0f, \"file_written_bytes\": %.0f",
              (long long) ts_plan_file_bytes(program->plan), moved.read[TS_SPACE_FILE], moved.written[TS_SPACE_FILE]);
  print_turns_json(program, to);
  ts_text_add(to, ", \"states_that_stay\": %.4f, \"gradients_that_stay\": %.4f, \"values_that_stay\": %.4f",
              percent(program->offload.states_stay, program->offload.states) / 100,
              percent(program->offload.gradients_stay, program->offload.gradients) / 100,
              percent(program->offload.values_stay, program->offload.values) / 100);
  ts_text_add(to, ", \"pinned_bytes\": %lld, \"copied_in_bytes\": %.0f, \"copied_out_bytes\": %.0f",
              (long long) program->plan->arena_bytes[TS_ARENA_PINNED], moved.read[TS_SPACE_PINNED],
              moved.written[TS_SPACE_PINNED]);
  const ts_step_seconds s = ts_program_step_seconds(program);
  ts_text_add(to,
              ", \"computing_seconds\": %.6g, \"host_seconds\": %.6g, \"copy_seconds\": %.6g, \"file_seconds\": %.6g, "
              "\"exposed_seconds\": %.6g, \"file_written_bytes_a_day\": %.0f",
              s.sum.computing, s.sum.host, s.sum.copies, s.sum.files, s.exposed, written_in_a_day(program, &s));
}

static void print_rows_json(const ts_program_options *options, const ts_program *program, const plan_row *row, int n,
                            ts_text *to) {
  (void) options;
  double full, half = ts_program_model_flops(program, &full);
  ts_text_add(to,
              "{\"parameters\": %lld, \"active_parameters\": %lld, \"dtype\": \"%s\", \"products\": \"%s\", \"ranks\": "
              "%d, \"rank\": %d, \"stage\": %lld",
              (long long) ts_layout_parameter_count(program->layout, false),
              (long long) ts_program_active_parameters(program), ts_dtype_name(ts_deck_dtype(program->deck)),
              ts_dtype_name(ts_deck_products(program->deck)), program->mesh.ranks, program->mesh.rank,
              (long long) program->deck->zero_optimization.stage);
  print_batch_json(program, to);
  print_sequence_json(program, to);
  for (int i = 0; i < n; ++i) {
    ts_text_add(to, ", \"%s\": %lld", row[i].key, (long long) row[i].bytes);
  }
  ts_text_add(to, ", \"kept_bytes\": %lld, \"working_bytes\": %lld", (long long) program->plan->kept_bytes,
              (long long) program->plan->working_bytes);
  print_offload_json(program, to);
  ts_text_add(to, ", \"work_bytes\": %lld, \"live_bytes\": %lld, \"model_flops\": %.17g, \"model_flops_full\": %.17g",
              (long long) program->plan->arena_bytes[TS_ARENA_WORK], (long long) program->plan->live_bytes, half, full);
}

static void print_plan(const ts_program_options *options, const ts_program *program, bool json, ts_text *to) {
  const ts_plan *p = program->plan;
  bool device = program->target.backend->device != NULL;
  const plan_row row[] = {
      {"parameter_bytes", "parameters", p->bytes[TS_PURPOSE_PARAMETER]},
      {"gradient_bytes", "gradients", p->bytes[TS_PURPOSE_GRADIENT]},
      {"optimizer_bytes", "optimizer states", p->bytes[TS_PURPOSE_OPTIMIZER]},
      {"activation_bytes", "activations and workspaces", p->bytes[TS_PURPOSE_ACTIVATION]},
      {"buffer_bytes", "inputs and communication buffers", p->bytes[TS_PURPOSE_BUFFER]},
      {"checkpoint_bytes", "copy for asynchronous checkpoints", p->bytes[TS_PURPOSE_CHECKPOINT]},
      {"reserve_bytes", "reserve for libraries", p->bytes[TS_PURPOSE_RESERVE]},
      {"peak_bytes", device ? "peak: the sum but for that copy" : "peak: the sum of these", p->peak_bytes},
  };
  (json ? print_rows_json : print_rows)(options, program, row, (int) (sizeof row / sizeof row[0]), to);
}

static void print_longest(const ts_program_options *options, int64_t memory, bool json, ts_text *to) {
  char text[32], beside[32];
  int64_t host, longest = ts_plan_longest(options, memory, &host);
  if (json) {
    ts_text_add(to, ", \"memory_bytes\": %lld, \"longest_sample\": %lld, \"longest_host_bytes\": %lld",
                (long long) memory, (long long) longest, (long long) host);
    return;
  }
  ts_text_add(to, "\nsamples of at most %lld tokens fit into %s a rank", (long long) longest,
              ts_human_bytes((double) memory, text));
  if (host > 0) {
    ts_text_add(to, " and want %s of the host's memory each", ts_human_bytes((double) host, beside));
  }
  ts_text_add(to, "\n");
}

/* By --machine; *given is false without it. */
static ts_status open_timing(const ts_arguments *arguments, const ts_deck *deck, int ranks, ts_timing *timing,
                             bool *given, ts_error *err) {
  static const char *const needing[] = {"--ranks-per-node", "--timeline", "--against"};
  const char *machine = ts_argument(arguments, "--machine");
  int64_t node = 0, threads = 0;
  *given = machine != NULL;
  for (size_t i = 0; i < sizeof needing / sizeof *needing && machine == NULL; ++i) {
    if (ts_argument(arguments, needing[i]) != NULL) {
      return ts_error_add(err, "%s wants a --machine, and there is none", needing[i]);
    }
  }
  if (machine == NULL) {
    return TS_OK;
  }
  ts_status status = ts_argument_int(arguments, "--threads", 0, 1024, &threads, err);
  if (status == TS_OK && ts_argument(arguments, "--ranks-per-node") != NULL) {
    status = ts_argument_int(arguments, "--ranks-per-node", 1, 1 << 20, &node, err);
  }
  return status == TS_OK ? ts_timing_open(machine, ranks, (int) node, (int) (threads > 0 ? threads : deck->run.threads),
                                          timing, err)
                         : status;
}

static ts_status print_all(const ts_program_options *options, bool json, const ts_arguments *arguments, int64_t memory,
                           const ts_timing *timing, ts_error *err) {
  bool layout = ts_argument(arguments, "--layout") != NULL;
  ts_text text = {0};
  ts_program *program = ts_plan_largest(options);
  print_plan(options, program, json, &text);
  ts_program_destroy(&program);
  ts_plan_print_experts(options, json, &text);
  if (timing != NULL) {
    ts_plan_print_time(options, timing, json, &text);
  }
  const char *schedule = ts_argument(arguments, "--schedule");
  ts_plan_print_stages(options, memory, json, schedule != NULL && schedule[0] == 0, &text);
  if (memory > 0) {
    print_longest(options, memory, json, &text);
  }
  if (layout) {
    ts_plan_print_layout(options, json, &text);
  }
  const char *against = ts_argument(arguments, "--against");
  ts_status status = against != NULL && !json ? ts_plan_print_against(options, timing, against, &text, err) : TS_OK;
  printf(json ? "%s}\n" : "%s", text.text);
  ts_text_free(&text);
  return status;
}

int ts_main_plan(const ts_arguments *arguments, ts_world *world, ts_error *err) {
  (void) world;
  int64_t ranks, memory = 0;
  ts_deck *deck = NULL;
  ts_program_options options;
  ts_timing times = {0}, *timing;
  bool timed = false;
  ts_mesh mesh;
  const char *format = ts_argument(arguments, "--format");
  bool json = strcmp(format, "json") == 0;
  ts_status status = (json && ts_argument(arguments, "--against") == NULL) || strcmp(format, "text") == 0
                         ? ts_argument_int(arguments, "--ranks", 1, 1 << 20, &ranks, err)
                         : ts_error_add(err, "--format %s: text or json is accepted, with --against text", format);
  if (status == TS_OK && ts_argument(arguments, "--memory") != NULL) {
    status = ts_argument_bytes(arguments, "--memory", &memory, err);
  }
  status = status == TS_OK ? ts_read_deck(arguments, NULL, &deck, err) : status;
  status = status == TS_OK ? ts_deck_mesh(deck, (int) ranks, 0, &mesh, err) : status;
  status = status == TS_OK ? ts_deck_resolve_batch(deck, ts_mesh_group_size(&mesh, TS_AXES_BATCH), err) : status;
  status = status == TS_OK ? open_timing(arguments, deck, (int) ranks, &times, &timed, err) : status;
  timing = timed ? &times : NULL;
  status = status == TS_OK ? find_options(arguments, deck, &mesh, timing, &options, err) : status;
  if (status == TS_OK && timed && strcmp(times.machine[0].backend, options.target.backend->name) != 0) {
    status = ts_error_add(err, "--machine %s is of \"%s\", the plan is for \"%s\": --target %s",
                          ts_argument(arguments, "--machine"), times.machine[0].backend, options.target.backend->name,
                          times.machine[0].backend);
  }
  if (status == TS_OK) {
    options.memory = memory;
    choose_cuts(&options, deck, ts_budget_memory(&options));
    const char *schedule = ts_argument(arguments, "--schedule");
    const char *timeline = ts_argument(arguments, "--timeline");
    status = print_all(&options, json, arguments, memory, timing, err);
    status =
        status == TS_OK && schedule != NULL && schedule[0] != 0 ? ts_plan_draw_stages(&options, schedule, err) : status;
    status = status == TS_OK && timeline != NULL ? ts_plan_write_timeline(&options, timing, timeline, err) : status;
  }
  ts_timing_clear(&times);
  ts_deck_destroy(&deck);
  return status;
}
