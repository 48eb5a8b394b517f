/* MLPs in tiles of rows: losses, norms and gradients are those of whole MLPs, to the rounding of sums in another order,
 * for each form of MLP, on any grid; and where there is one tile, bit for bit. */
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include "base/memory.h"
#include "base/text.h"

#include <math.h>
#include <string.h>

enum { STEPS = 4 };

#define TILED " tiled_mlp_compute=true"
#define REST                                                                                            \
  " max_position_embeddings = 32; initializer_range = 0.15; hidden_size = 36; intermediate_size = 41; " \
  "num_hidden_layers = 2; num_attention_heads = 6; };\n"                                                \
  "data = { path = \"none\"; format = \"text\"; sequence_length = 17; };\n"                             \
  "run = { directory = \"none\"; steps = 4; seed = 3; threads = 1; };\n"                                \
  "train_batch_size = 12;\n"                                                                            \
  "optimizer = { type = \"AdamW\"; params = { lr = 1e-2; eps = 1e-5; weight_decay = 0.1; }; };\n"       \
  "gradient_clipping = 1.0;\n"
#define MODEL(type, more) "model = { model_type = \"" type "\"; vocab_size = 67; " more REST

/* The forms: gated, of [in][out] with biases and dropout behind, fused, gated with biases, turned with biases, without
 * a norm before it and with one behind it. */
static const struct {
  const char *name, *deck;
  bool same; /* One tile computes the same sums. Not where what is fused is one product there and two here; nor without
              * a norm in front, where the residual's gradient is added to what the first of two products left. */
} models[] = {
    {"llama", train_run_llama, true},
    {"gpt2", train_run_gpt2, true},
    {"phi3", MODEL("phi3", "num_key_value_heads = 2;"), false},
    {"llama with biases", MODEL("llama", "num_key_value_heads = 3; mlp_bias = true; attention_bias = true;"), true},
    {"gpt_neox", MODEL("gpt_neox", "use_parallel_residual = true; partial_rotary_factor = 0.67;"), true},
    {"olmo2", MODEL("olmo2", "num_key_value_heads = 2;"), false}};
enum { N_MODELS = sizeof models / sizeof *models };

/* fp32: a gradient of a weight is a sum over 204 rows, by tiles of 36 instead of at once; steps carry on what differs.
 * bf16: what differs by a last bit of fp32 is now and then rounded to another bf16, 2^-9 of one weight (seen: 1e-5).
 * Where one product has become two, there is a rounding more in each block (seen: 1e-3 and 6e-3). */
static const struct tolerance {
  double loss, norm;
} fp32 = {2e-6, 1e-5}, bf16 = {1e-4, 1e-3}, bf16_twice = {5e-3, 5e-2};

static const struct {
  const char *sets;
  bool bf16;
} settings[] = {{"", false},
                {"zero_optimization.stage=3", false},
                {"activation_checkpointing.enabled=true zero_optimization.stage=3", false},
                {"activation_checkpointing.enabled=true", false},
                {"gradient_accumulation_steps=2 zero_optimization.stage=1", false},
                {"tensor_parallel.sequence_parallel=false debug.memcheck=true", false},
                {"frozen=[\"mlp\"] zero_optimization.stage=2", false},
                {"frozen=[\"mlp.*(down|c_proj|4h_to_h)\"]", false},
                {"bf16.enabled=true zero_optimization.stage=3", true},
                {"bf16.enabled=true data_types.grad_accum_dtype=bf16 gradient_accumulation_steps=2 "
                 "activation_checkpointing.enabled=true",
                 true}};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

static train_run run_with(ts_world *world, const char *deck, const char *sets, const char *more, int steps) {
  char *all = ts_format("%s%s", sets, more);
  train_run run = train_run_do(world, deck, all, steps);
  ts_free(all);
  return run;
}

static void test_losses(ts_world *world, int model, int setting, int tp) {
  char *sets = ts_format("tensor_parallel.autotp_size=%d %s", tp, settings[setting].sets);
  train_run whole = run_with(world, models[model].deck, sets, "", STEPS);
  train_run tiled = run_with(world, models[model].deck, sets, TILED, STEPS);
  train_difference d = train_run_difference(&tiled, &whole);
  struct tolerance most = !settings[setting].bf16 ? fp32 : models[model].same ? bf16 : bf16_twice;
  bool near = d.loss <= most.loss && d.norm <= most.norm && d.evaluation <= most.loss;
  tap_ok_all(MPI_COMM_WORLD, near, "%s, tp %d, %s: losses to %.1e, evaluated to %.1e, norms to %.1e",
             models[model].name, tp, settings[setting].sets, d.loss, d.evaluation, d.norm);
  train_run_free(&whole);
  train_run_free(&tiled);
  ts_free(sets);
}

/* One step of a huge rate with a huge eps: what it leaves are the gradients, a thousand times as large as the weights
 * were.  fp32: sums of 204 rows; 2e-6 of the largest. */
static void test_gradients(ts_world *world, int model, int tp) {
  const char *steep = "optimizer.params.lr=1e5 optimizer.params.eps=1e3 optimizer.params.weight_decay=0";
  char *sets = ts_format("tensor_parallel.autotp_size=%d %s", tp, steep);
  train_run whole = run_with(world, models[model].deck, sets, "", 1);
  train_run tiled = run_with(world, models[model].deck, sets, TILED, 1);
  double worst = train_run_parameters_apart(&tiled, &whole);
  tap_ok_all(MPI_COMM_WORLD, worst <= 2e-6, "%s, tp %d: every gradient, to %.1e of the largest", models[model].name, tp,
             worst);
  train_run_free(&whole);
  train_run_free(&tiled);
  ts_free(sets);
}

/* 34 rows are one tile of at most 36. */
static void test_one_tile(ts_world *world, int model, int tp) {
  int ranks = ts_world_size(world) / tp;
  char *sets = ts_format("tensor_parallel.autotp_size=%d train_batch_size=%d train_micro_batch_size_per_gpu=2 "
                         "tensor_parallel.sequence_parallel=false",
                         tp, 4 * ranks);
  train_run whole = run_with(world, models[model].deck, sets, "", STEPS);
  train_run tiled = run_with(world, models[model].deck, sets, TILED, STEPS);
  tap_ok_all(MPI_COMM_WORLD, train_run_equal(&whole, &tiled), "%s, tp %d: one tile gives the bits of a whole MLP",
             models[model].name, tp);
  train_run_free(&whole);
  train_run_free(&tiled);
  ts_free(sets);
}

/* Every model plain, every setting with one of the models. */
static void test_grid(ts_world *world, int tp) {
  for (int m = 0; m < N_MODELS; ++m) {
    test_gradients(world, m, tp);
    test_losses(world, m, 0, tp);
    if (models[m].same) {
      test_one_tile(world, m, tp);
    }
  }
  for (int s = 1; s < N_SETTINGS; ++s) {
    test_losses(world, (s + tp) % 3, s, tp);
    test_losses(world, (s + tp + 1) % 3, s, tp);
  }
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  train_run_set_evaluating(true);
  test_grid(world, 1);
  if (ts_world_size(world) > 1) {
    test_grid(world, ts_world_size(world));
  }
  int status = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return status;
}
