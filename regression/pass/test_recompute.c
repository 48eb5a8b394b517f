/* Recomputation's one property: whatever is kept and whatever is computed again, losses, norms, gradients and
 * parameters have the bits that they have with everything kept.
 *
 * A sample of settings x stages; all of it where TEST_RECOMPUTE_ALL is set. */
#include "regression/tap.h"
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"

#include <stdlib.h>

enum { STEPS = 3 };

/* Five blocks: groups of two, two and one. */
#define DEEP "model.num_hidden_layers=5 "
#define CHOICE(policy, interval)                                                                           \
  {                                                                                                        \
    policy ", " #interval, "activation_checkpointing.enabled=true activation_checkpointing.policy=" policy \
                           " activation_checkpointing.interval=" #interval                                 \
  }
static const struct {
  const char *name, *sets;
} choices[] = {CHOICE("block", 1), CHOICE("block", 2), CHOICE("sac", 1), CHOICE("sac", 2)};
enum { N_CHOICES = sizeof choices / sizeof *choices };

#define TP "tensor_parallel.autotp_size=2 "
#define GROUPS "sequence_parallel.head_groups=2 zero_optimization.overlap_comm=true "
#define FAMILY(name) "model.model_type=" name " "

typedef struct setting {
  const char *name, *deck, *sets;
  int even; /* ranks come in pairs */
} setting;

static const setting settings[] = {
    {"dropout", train_run_gpt2, "", 0},
    {"dropout, bf16, stages of small buckets", train_run_gpt2,
     "bf16.enabled=true zero_optimization.reduce_bucket_size=1600 zero_optimization.overlap_comm=true", 0},
    {"documents", train_run_llama, "data.packing=documents model.eos_token_id=5 model.attn_pdrop=0.1", 0},
    {"tied, gathered anew", train_run_llama,
     "model.tie_word_embeddings=true zero_optimization.stage3_max_reuse_distance=0 "
     "zero_optimization.stage3_param_persistence_threshold=0",
     0},
    {"accumulation, checked memory", train_run_gpt2,
     "train_batch_size=24 gradient_accumulation_steps=2 debug.memcheck=true", 0},
    {"frozen blocks", train_run_llama, "frozen=[\"layers.[13]\"]", 0},
    {"frozen attention and norms", train_run_llama, "frozen=[\"_proj|norm\"]", 0},
    {"parallel residual", train_run_gpt2,
     FAMILY("gpt_neox") "model.intermediate_size=50 model.partial_rotary_factor=0.67 bf16.enabled=true", 0},
    {"norms behind, softcaps, windows", train_run_llama, FAMILY("gemma2") "model.sliding_window=5", 0},
    {"scaled residuals", train_run_llama, FAMILY("granite") "model.residual_multiplier=0.5 bf16.enabled=true", 0},
    {"norms of heads", train_run_llama, FAMILY("qwen3"), 0},
    {"autocast, dropout", train_run_gpt2, "torch_autocast.enabled=true debug.memcheck=true", 0},
    {"autocast, norms of heads", train_run_llama,
     FAMILY("qwen3") "torch_autocast.enabled=true zero_optimization.stage3_param_persistence_threshold=0", 0},
    {"autocast, tensor parallelism", train_run_llama, TP FAMILY("olmo2") "torch_autocast.enabled=true", 2},
    {"autocast, groups of heads", train_run_llama, "sequence_parallel_size=2 " GROUPS "torch_autocast.enabled=true", 2},
    {"tensor parallelism", train_run_gpt2,
     TP "zero_optimization.overlap_comm=true tensor_parallel.tp_overlap_comm=true", 2},
    {"tensor parallelism, documents", train_run_llama,
     TP "data.packing=documents model.eos_token_id=5 model.attn_pdrop=0.1 bf16.enabled=true", 2},
    {"tensor parallelism, whole rows", train_run_llama, TP "tensor_parallel.sequence_parallel=false", 2},
    {"groups of heads", train_run_llama, GROUPS "model.attn_pdrop=0.1", 0},
    {"sequence parallelism, groups of heads", train_run_gpt2, "sequence_parallel_size=2 " GROUPS "bf16.enabled=true",
     2},
    {"sequence parallelism, ring", train_run_llama,
     "sequence_parallel_size=2 sequence_parallel.ring_degree=2 sequence_parallel.ring_exchange=p2p", 2},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

static void test_setting(ts_world *world, const setting *s, int stage) {
  char *plain = ts_format(DEEP "zero_optimization.stage=%d %s", stage, s->sets);
  train_run kept = train_run_do(world, s->deck, plain, STEPS);
  for (int i = 0; i < N_CHOICES; ++i) {
    char *sets = ts_format("%s %s", plain, choices[i].sets);
    train_run again = train_run_do(world, s->deck, sets, STEPS);
    tap_ok_all(MPI_COMM_WORLD, train_run_equal(&kept, &again), "%s, stage %d: %s gives the same bits", s->name, stage,
               choices[i].name);
    tap_ok_all(MPI_COMM_WORLD, again.live_bytes <= kept.live_bytes, "%s, stage %d: %s takes no more memory", s->name,
               stage, choices[i].name);
    train_run_free(&again);
    ts_free(sets);
  }
  train_run_free(&kept);
  ts_free(plain);
}

/* Every setting at one stage, another one on another number of ranks. */
static void test_settings(ts_world *world) {
  int ranks = ts_world_size(world);
  for (int s = 0; s < N_SETTINGS; ++s) {
    bool fits = settings[s].even == 0 || ranks % settings[s].even == 0;
    for (int stage = 0; stage < 4 && fits && tap_wanted(settings[s].name); ++stage) {
      if (getenv("TEST_RECOMPUTE_ALL") != NULL || stage == (s + ranks) % 4) {
        test_setting(world, &settings[s], stage);
      }
    }
  }
}

/* ---- a part each of what ranks along tp have alike ---- */

#define ALIKE DEEP TP "tensor_parallel.sequence_parallel=false activation_checkpointing.enabled=true "

static const setting parted[] = {
    {"dropout", train_run_gpt2, "", 2},
    {"stage 3, bf16, memory checked", train_run_llama,
     "zero_optimization.stage=3 bf16.enabled=true debug.memcheck=true", 2},
    {"attention kept, overlap", train_run_llama,
     "activation_checkpointing.policy=sac zero_optimization.overlap_comm=true tensor_parallel.tp_overlap_comm=true", 2},
    {"unit by unit", train_run_llama,
     "train_batch_size=24 gradient_accumulation_steps=2 run.accumulation_order=unit zero_optimization.stage=2", 2},
    {"some blocks", train_run_gpt2,
     "activation_checkpointing.layers=[\"transformer.h.0\",\"transformer.h.2\",\"transformer.h.3\"]", 2},
};
enum { N_PARTED = sizeof parted / sizeof *parted };

static void test_parts(ts_world *world) {
  for (int i = 0; i < N_PARTED && ts_world_size(world) % 2 == 0; ++i) {
    char *plain = ts_format(ALIKE "%s", parted[i].sets);
    char *sets = ts_format("%s activation_checkpointing.partition_activations=true", plain);
    train_run whole = train_run_do(world, parted[i].deck, plain, STEPS);
    train_run parts = train_run_do(world, parted[i].deck, sets, STEPS);
    tap_ok_all(MPI_COMM_WORLD, train_run_equal(&whole, &parts), "a part each, %s: the same bits", parted[i].name);
    tap_ok_all(MPI_COMM_WORLD, parts.live_bytes < whole.live_bytes, "a part each, %s: less memory, %lld of %lld bytes",
               parted[i].name, (long long) parts.live_bytes, (long long) whole.live_bytes);
    train_run_free(&whole);
    train_run_free(&parts);
    ts_free(plain);
    ts_free(sets);
  }
}

/* ---- gradients, one by one ---- */

static uint64_t mix_gradient(ts_engine *engine, const ts_parameter *p) {
  ts_tid leaf = ts_graph_find_state(ts_engine_program(engine)->graph, TS_STATE_GRADIENT, p->part);
  int64_t count = ts_shape_count(&p->held);
  uint32_t *value = ts_malloc((size_t) count * sizeof *value);
  uint64_t bits = 0;
  ts_executor_read_state(ts_engine_executor(engine), leaf, p->offset, count, value);
  for (int64_t i = 0; i < count; ++i) {
    bits = ts_mix(value[i], bits);
  }
  ts_free(value);
  return bits;
}

/* Per parameter a number made of the bits of its gradient of the first step (fp32, stage 0); *n of them, owned by the
 * caller. */
static uint64_t *find_gradients(ts_world *world, const char *text, const char *sets, int *n) {
  ts_deck *deck = train_run_deck(world, text, sets);
  ts_engine *engine;
  ts_error err = {0};
  const ts_engine_options options = {.world = world, .deck = deck, .abilities = TS_CAN_TRAIN};
  TS_CHECK(ts_engine_create(&options, &engine, &err) == TS_OK, "%s", err.text);
  train_run_step(engine, deck, 0);
  const ts_layout *layout = ts_engine_layout(engine);
  uint64_t *bits = ts_calloc((size_t) layout->n_parameters, sizeof *bits);
  for (int i = 0; i < layout->n_parameters; ++i) {
    bits[i] = mix_gradient(engine, &layout->parameter[i]);
  }
  *n = layout->n_parameters;
  ts_engine_destroy(&engine);
  ts_deck_destroy(&deck);
  return bits;
}

static void test_gradients(ts_world *world, const char *name, const char *deck) {
  int n, same = 0;
  uint64_t *kept = find_gradients(world, deck, DEEP, &n);
  for (int i = 0; i < N_CHOICES; ++i) {
    char *sets = ts_format(DEEP "%s", choices[i].sets);
    uint64_t *again = find_gradients(world, deck, sets, &n);
    for (int p = 0; p < n; ++p) {
      same += again[p] == kept[p];
    }
    ts_free(again);
    ts_free(sets);
  }
  tap_ok_all(MPI_COMM_WORLD, same == N_CHOICES * n, "%s: %d of %d gradients are the same", name, same, N_CHOICES * n);
  ts_free(kept);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  test_gradients(world, "llama", train_run_llama); /* makes communicators, which the world keeps */
  test_gradients(world, "gpt2", train_run_gpt2);
  test_parts(world);
  test_settings(world);
  int code = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return code;
}
