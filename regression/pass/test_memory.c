/* The plan against the process: a run with some 500 MB of state.  The arenas are what the plan says, to the byte; the
 * process grows by them and by the declared reserves. */
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include "base/log.h"
#include "base/memory.h"
#include "engine/save.h"

#include <stdio.h>
#include <stdlib.h>

/* 32 million parameters of 16 bytes: fp32 values, gradients, two moments. */
static const char deck_text[] =
    "model = { model_type = \"llama\"; vocab_size = 2048; hidden_size = 512; intermediate_size = 1536;\n"
    "  num_hidden_layers = 9; num_attention_heads = 8; num_key_value_heads = 8; max_position_embeddings = 128;\n"
    "  tie_word_embeddings = true; };\n"
    "data = { path = \"none\"; format = \"text\"; sequence_length = 128; };\n"
    "run = { directory = \"none\"; steps = 2; seed = 3; threads = 1; };\n"
    "train_micro_batch_size_per_gpu = 1; gradient_accumulation_steps = 1;\n"
    "optimizer = { type = \"AdamW\"; params = { lr = 1e-3; }; };\n";

/* Two stages, and what micro-batches keep counts. */
#define STAGES                                                                                                 \
  "model.num_hidden_layers=5 model.tie_word_embeddings=false pipeline.stages=2 gradient_accumulation_steps=4 " \
  "train_micro_batch_size_per_gpu=4 "                                                                          \
  "pipeline.schedule="

/* Where the last thing in an arena ends. */
static int64_t end_of(const ts_program *program, ts_arena arena) {
  const ts_plan *plan = program->plan;
  int64_t end = 0;
  for (ts_tid t = 0; t < program->graph->n_tensors; ++t) {
    int64_t e = plan->address[t].offset + ts_tensor_bytes(program->graph, t);
    end = plan->address[t].arena == arena && e > end ? e : end;
  }
  for (ts_nid n = 0; n < program->graph->n_nodes; ++n) {
    int64_t e = plan->workspace[n].offset + plan->workspace_bytes[n];
    end = plan->workspace[n].arena == arena && e > end ? e : end;
  }
  return (end + TS_PLAN_ALIGN - 1) / TS_PLAN_ALIGN * TS_PLAN_ALIGN;
}

/* What the host writes lies in INPUT, all other leaves that are touched in STATE. */
static bool leaves_lie_where_they_say(const ts_program *program) {
  bool right = true;
  for (ts_tid t = 0; t < program->graph->n_tensors; ++t) {
    const ts_tensor *tensor = &program->graph->tensor[t];
    ts_arena arena = program->plan->address[t].arena;
    bool host = tensor->role == TS_ROLE_INPUT || tensor->role == TS_ROLE_SCALAR;
    bool leaf = tensor->producer == TS_NONE;
    right = right && (!leaf || tensor->space == (host ? TS_SPACE_HOST : TS_SPACE_BACKEND)) &&
            (!leaf || arena == TS_ARENA_NONE || arena == (host ? TS_ARENA_INPUT : TS_ARENA_STATE));
  }
  return right;
}

/* What is in use at most, with gaps, is the peak, and at no time less than nothing of anything. */
static bool moments_reach_the_peak(const ts_plan *plan) {
  int64_t most = 0, least = 0;
  for (int i = 0; i < plan->n_moments; ++i) {
    int64_t bytes[TS_N_PURPOSES], sum;
    ts_plan_in_use(plan, i, bytes, &sum); /* begins with the gaps */
    least = sum < least ? sum : least;
    for (int k = 0; k < TS_N_PURPOSES; ++k) {
      sum += bytes[k];
      least = bytes[k] < least ? bytes[k] : least;
    }
    most = sum > most ? sum : most;
  }
  return plan->n_moments > 1 && most == plan->peak_bytes && least == 0;
}

static void check_arenas(ts_engine *engine) {
  const ts_program *program = ts_engine_program(engine);
  const ts_plan *plan = program->plan;
  int64_t planned = 0;
  for (ts_arena a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    planned += plan->arena_bytes[a];
  }
  int64_t bytes = ts_executor_arena_bytes(ts_engine_executor(engine));
  tap_ok_all(MPI_COMM_WORLD, bytes == planned, "the arenas have the planned size");
  tap_ok_all(MPI_COMM_WORLD, leaves_lie_where_they_say(program), "every leaf lies in the arena of its space");
  tap_ok_all(MPI_COMM_WORLD, moments_reach_the_peak(plan), "over the step no more and no less than the peak is in use");
  for (ts_arena a = TS_ARENA_STATE; a < TS_N_ARENAS; ++a) {
    int64_t bytes_of_place = plan->slot_bytes[a] > 0 ? plan->slot_bytes[a] : plan->arena_bytes[a];
    tap_ok_all(MPI_COMM_WORLD, end_of(program, a) == bytes_of_place, "the %s arena is used to its last byte",
               ts_arenas[a].name);
  }
}

/* The high-water mark starts again from what is resident now. */
static void reset_peak(void) {
  FILE *file = fopen("/proc/self/clear_refs", "w");
  TS_CHECK(file != NULL && fputs("5", file) >= 0 && fclose(file) == 0, "the kernel cannot reset a peak");
}

/* The first run of a process also pays what libraries keep; later ones find it there. */
static void test(ts_world *world, const char *sets, bool first) {
  ts_deck *deck = train_run_deck(world, deck_text, sets);
  ts_engine *engine;
  const ts_engine_options options = {.world = world, .deck = deck, .abilities = TS_CAN_TRAIN};
  reset_peak();
  size_t before = ts_process_peak(); /* just reset: what it has */
  TS_CHECK(ts_engine_create(&options, &engine, NULL) == TS_OK, "the deck is good");
  ts_saver *saver = deck->run.save_every > 0 ? ts_saver_create(engine) : NULL;
  for (int step = 0; step < 2; ++step) {
    train_run_step(engine, deck, step);
    if (saver != NULL) {
      ts_saver_begin(saver, &(ts_position){.step = step + 1});
    }
  }
  bool saved = saver == NULL || ts_saver_finish(saver);
  tap_ok_all(MPI_COMM_WORLD, saved, "%s: trained", sets);
  double growth = (double) (ts_process_peak() - before);
  double planned = (double) ts_engine_program(engine)->plan->peak_bytes;
  double arenas = (double) ts_executor_arena_bytes(ts_engine_executor(engine));
  check_arenas(engine);
#ifdef __SANITIZE_ADDRESS__
  (void) growth, (void) planned, (void) arenas, (void) first;
  tap_skip_all(MPI_COMM_WORLD, "%s: resident memory is the sanitizer's", sets);
#else
  tap_ok_all(MPI_COMM_WORLD, growth >= arenas, "%s: every page of the arenas is used", sets);
  /* 3 % is the project's limit; measured 0.5 to 1.2 % below the plan on 1 to 4 ranks */
  tap_ok_all(MPI_COMM_WORLD, growth / planned <= 1.03 && (!first || growth / planned >= 0.97),
             "%s: grows by %.1f MB, %.3f of arenas (%.1f), copy and reserves (%.1f)", sets, growth * 1e-6,
             growth / planned, arenas * 1e-6, (planned - arenas) * 1e-6);
  double copy = (double) ts_engine_program(engine)->plan->bytes[TS_PURPOSE_CHECKPOINT];
  tap_ok_all(MPI_COMM_WORLD, growth >= arenas + copy && (copy > 0) == (saver != NULL),
             "%s: the copy of a save is planned", sets);
#endif
  ts_saver_destroy(&saver);
  ts_engine_destroy(&engine);
  ts_deck_destroy(&deck);
}

static void test_later(ts_world *world, const char *sets) {
  test(world, sets, false);
}

/* Rows that say less here than on the other number of ranks, or beside their neighbours: with TEST_MEMORY_ALL. */
static void test_more(ts_world *world, const char *sets) {
  if (getenv("TEST_MEMORY_ALL") != NULL) {
    test_later(world, sets);
  }
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  ts_log_configure(TS_LOG_WARNING, ts_world_rank(world) == 0);
  bool alone = ts_world_size(world) == 1; /* most rows are tried with one rank or with two, where they say more */
  test(world, "zero_optimization.stage=0", true);
  if (!alone) {
    test_more(world, "zero_optimization.stage=1 zero_optimization.overlap_comm=true");
  }
  test(world, "zero_optimization.stage=2 zero_optimization.overlap_comm=true bf16.enabled=true", false);
  test_more(world, "zero_optimization.stage=3 torch_autocast.enabled=true");
  if (alone) {
    test(world,
         "zero_optimization.stage=1 fp16.enabled=true fp16.fp16_master_weights_and_grads=true "
         "optimizer.state_dtype=bf16",
         false);
  } else {
    test(world, "zero_optimization.stage=3 zero_optimization.stage3_max_live_parameters=5000000", false);
  }
  (alone ? test_later : test_more)(world, "zero_optimization.stage=3 optimizer.type=Muon model.num_hidden_layers=5");
  char *sets = ts_format("run.save_every=1 run.directory=%s zero_optimization.stage=1 optimizer.state_dtype=8bit",
                         tap_directory_all(MPI_COMM_WORLD));
  test(world, sets, false);
  ts_free(sets);
  if (ts_world_size(world) == 2) { /* each rank against the plan of its own stage */
    test_more(world, STAGES "1f1b");
    test(world, STAGES "zb_h1 activation_checkpointing.enabled=true bf16.enabled=true", false);
    test_more(world, STAGES "zb_v zero_optimization.stage=3");
  }
  int code = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return code;
}
