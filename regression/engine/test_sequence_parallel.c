/* Sequence parallelism: on any grid, however ranks share heads and keys, and at any stage the losses, norms and
 * gradients of one rank; on one grid the bits do not depend on the stage, nor on what is computed again.
 *
 * A sample of the product of models, settings, ways to share, grids and stages; all of it where TEST_SP_ALL is set.
 * TEST_ONLY takes names of models, settings, and "stages", "gradients". */
#include "regression/tap.h"
#include "regression/tap_mpi.h"
#include "regression/train_run.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "run/executor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3 };

#define MODEL(type, more) TRAIN_RUN_MODEL(type, "1024", "37", "4", more)
#define HEADS(q, kv) "num_attention_heads = " #q "; num_key_value_heads = " #kv "; "
#define SIZES(width, mlp, layers) \
  "hidden_size = " #width "; intermediate_size = " #mlp "; num_hidden_layers = " #layers "; "
#define NO_DROPOUT "attn_pdrop = 0.0; embd_pdrop = 0.0; resid_pdrop = 0.0; "
#define LOCAL "layer_types = [\"sliding_attention\", \"full_attention\"]; "

typedef struct model_row {
  const char *name, *deck;
  int heads, kv_heads;
  bool drops; /* knows all three dropouts, not that of attention alone */
} model_row;

/* Whole groups of heads that divide and that do not, groups that ranks share, one key head for all. */
static const model_row models[] = {
    {"llama", MODEL("llama", SIZES(36, 41, 2) HEADS(6, 2) "tie_word_embeddings = false; "), 6, 2, false},
    {"gpt2", MODEL("gpt2", "n_embd = 32; n_layer = 2; n_head = 4; " NO_DROPOUT), 4, 4, true},
    {"llama-7/7", MODEL("llama", SIZES(28, 30, 1) HEADS(7, 7)), 7, 7, false},
    {"llama-14/2", MODEL("llama", SIZES(28, 30, 1) HEADS(14, 2)), 14, 2, false},
    {"llama-4/1", MODEL("llama", SIZES(32, 29, 2) HEADS(4, 1) "tie_word_embeddings = true; "), 4, 1, false},
    {"qwen3-6/3", MODEL("qwen3", SIZES(36, 41, 2) HEADS(6, 3) "head_dim = 8; "), 6, 3, false},
    {"gemma2",
     MODEL("gemma2", SIZES(36, 29, 2) HEADS(4, 2) "head_dim = 8; query_pre_attn_scalar = 12; sliding_window = 5; "
                                                  "attn_logit_softcapping = 5.0; final_logit_softcapping = 3.0; "),
     4, 2, false},
    {"olmo2", MODEL("olmo2", SIZES(36, 41, 2) HEADS(6, 2)), 6, 2, false},
    {"olmo3", MODEL("olmo3", SIZES(36, 41, 2) HEADS(6, 2) "sliding_window = 11; " LOCAL), 6, 2, false},
    {"phi3", MODEL("phi3", SIZES(36, 41, 2) HEADS(6, 2) "sliding_window = 20; partial_rotary_factor = 0.67; "), 6, 2,
     false},
    {"gpt_neox",
     MODEL("gpt_neox", SIZES(36, 50, 2) "num_attention_heads = 6; use_parallel_residual = true; "
                                        "partial_rotary_factor = 0.67; "),
     6, 6, false},
    {"mistral", MODEL("mistral", SIZES(36, 41, 1) HEADS(9, 3) "sliding_window = 7; "), 9, 3, false},
};
enum { N_MODELS = sizeof models / sizeof *models };

/* fp32: sums in another order, as in test_tensor_parallel.c. */
static const double loss_tolerance = 2e-6, norm_tolerance = 1e-5;

/* bf16: gradients of keys are rounded once more where several ranks make them; products choose other blockings. */
static const double bf16_loss_tolerance = 5e-3, bf16_norm_tolerance = 5e-2;

/* What is evaluated has just been learned: a loss half as large, of one update more.  Seen: 8e-3. */
static const double bf16_evaluation_tolerance = 1.2e-2;

typedef struct setting_row {
  const char *name, *sets;
  bool bf16;
  bool drops; /* only for models that know all dropouts */
} setting_row;

static const setting_row settings[] = {
    {"plain", "", false, false},
    {"accumulation", "gradient_accumulation_steps=2", false, false},
    {"recomputation", "activation_checkpointing.enabled=true", false, false},
    {"attention kept", "activation_checkpointing.enabled=true activation_checkpointing.policy=sac", false, false},
    {"attention kept, two blocks at a time",
     "activation_checkpointing.enabled=true activation_checkpointing.policy=sac activation_checkpointing.interval=2",
     false, false},
    {"groups of heads", "sequence_parallel.head_groups=2 data.sequence_length=150", false, false},
    {"groups of heads, attention kept, bf16",
     "sequence_parallel.head_groups=2 bf16.enabled=true activation_checkpointing.enabled=true "
     "activation_checkpointing.policy=sac",
     true, false},
    {"chunks of 128", "data.sequence_length=600 train_batch_size=4", false, false},
    {"five tokens", "data.sequence_length=5", false, false},
    {"one token", "data.sequence_length=1 train_batch_size=12", false, false},
    {"attention dropout", "model.attn_pdrop=0.1", false, false},
    {"all dropouts", "model.attn_pdrop=0.1 model.embd_pdrop=0.1 model.resid_pdrop=0.1", false, true},
    {"all dropouts, recomputation",
     "model.attn_pdrop=0.1 model.embd_pdrop=0.1 model.resid_pdrop=0.1 activation_checkpointing.enabled=true", false,
     true},
    {"documents", "data.packing=documents model.eos_token_id=5", false, false},
    {"documents, chunks of 128", "data.packing=documents model.eos_token_id=5 data.sequence_length=600", false, false},
    {"frozen attention", "frozen=[\"q_proj|c_attn|qkv_proj|query_key_value\"]", false, false},
    {"overlap", "zero_optimization.overlap_comm=true", false, false},
    {"memory check", "debug.memcheck=true", false, false},
    {"bf16", "bf16.enabled=true", true, false},
    {"bf16, chunks of 128", "bf16.enabled=true data.sequence_length=600", true, false},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

typedef struct grid {
  ts_world *all, *alone;
  int sp, dp, tp;
} grid;

static bool wants_all(void) {
  return getenv("TEST_SP_ALL") != NULL;
}

/* ---- how ranks share ---- */

enum { MOST_WAYS = 32 };

typedef struct ways {
  char *set[MOST_WAYS]; /* owned */
  int n;
} ways;

static void add_way(ways *w, int u, int r, const char *exchange, const char *balancer) {
  w->set[w->n++] = ts_format("sequence_parallel.ulysses_degree=%d sequence_parallel.ring_degree=%d "
                             "sequence_parallel.ring_exchange=%s sequence_parallel.load_balancer=%s",
                             u, r, exchange, balancer);
}

static ways find_ways(const grid *on, const model_row *model, int groups) {
  ways w = {0};
  int sharers = (on->tp + model->kv_heads - 1) / model->kv_heads, group = model->heads / model->kv_heads;
  int heads = on->tp <= model->kv_heads ? model->kv_heads / on->tp * group : group / sharers;
  heads = groups > 1 && heads > 1 ? heads / groups : heads;
  for (int u = 1; u <= on->sp && u <= heads; ++u) {
    int r = on->sp / u;
    if (on->sp % u != 0) {
      continue;
    }
    add_way(&w, u, r, "auto", "zigzag");
    if (r > 1) {
      add_way(&w, u, r, "p2p", "zigzag");
      add_way(&w, u, r, "all_gather", "contiguous");
      add_way(&w, u, r, "all_gather", "zigzag");
      add_way(&w, u, r, "p2p", "contiguous");
    }
  }
  return w;
}

static void free_ways(ways *w) {
  for (int i = 0; i < w->n; ++i) {
    ts_free(w->set[i]);
  }
}

/* ---- losses and norms ---- */

static char *grid_sets(const grid *on, const char *way, int stage, const char *sets) {
  return ts_format("sequence_parallel_size=%d tensor_parallel.autotp_size=%d zero_optimization.stage=%d %s %s", on->sp,
                   on->tp, stage, way, sets);
}

static train_run run_on(const grid *on, const char *what, const char *deck, const char *way, const char *sets,
                        int stage) {
  char *all = grid_sets(on, way, stage, sets);
  if (wants_all() && ts_world_rank(on->all) == 0) {
    tap_note("%s: %s", what, all); /* of one that does not come back */
  }
  train_run run = train_run_do(on->all, deck, all, STEPS);
  ts_free(all);
  return run;
}

static void test_run(const grid *on, const char *what, const train_run *one, const model_row *model,
                     const setting_row *setting, const char *way, int stage) {
  train_run run = run_on(on, what, model->deck, way, setting->sets, stage);
  train_difference d = train_run_difference(&run, one);
  bool near = d.loss <= (setting->bf16 ? bf16_loss_tolerance : loss_tolerance) &&
              d.evaluation <= (setting->bf16 ? bf16_evaluation_tolerance : loss_tolerance) &&
              d.norm <= (setting->bf16 ? bf16_norm_tolerance : norm_tolerance);
  tap_ok_all(MPI_COMM_WORLD, near,
             "%s, dp %d x sp %d x tp %d, stage %d, %s: losses to %.1e, evaluated %.1e, norms %.1e", what, on->dp,
             on->sp, on->tp, stage, way, d.loss, d.evaluation, d.norm);
  train_run_free(&run);
}

/* \param [in] pick  Which of the ways, by turns, and with it a stage; -1: all of both. */
static void test_pair(const grid *on, const model_row *model, const setting_row *setting, int pick) {
  bool fits = on->tp <= model->heads && (model->drops || !setting->drops);
  if (!fits || !(tap_wanted(model->name) || tap_wanted(setting->name))) {
    return;
  }
  char *what = ts_format("%s, %s", model->name, setting->name);
  train_run one = train_run_alone(on->all, on->alone, model->deck, setting->sets, STEPS);
  ways w = find_ways(on, model, strstr(setting->sets, "head_groups") != NULL ? 2 : 1);
  for (int i = 0; i < w.n; ++i) {
    for (int stage = 0; stage < 4; ++stage) {
      if (pick < 0 || (i == pick % w.n && stage == (pick + i) % 4)) {
        test_run(on, what, &one, model, setting, w.set[i], stage);
      }
    }
  }
  free_ways(&w);
  train_run_free(&one);
  ts_free(what);
}

/* ---- bits ---- */

static void expect_equal(const grid *on, const char *what, const train_run *a, const train_run *b, const char *says) {
  tap_ok_all(MPI_COMM_WORLD, train_run_equal(a, b), "%s, dp %d x sp %d x tp %d: the bits of %s", what, on->dp, on->sp,
             on->tp, says);
}

/* One micro-batch: all stages are equal.  Several: gradients are added before they are reduced or after. */
static void test_stages(const grid *on, const model_row *model, const char *sets, int pick) {
  ways w = find_ways(on, model, 1);
  const char *way = w.set[pick % w.n];
  char *what = ts_format("%s, %s, %s", model->name, way, *sets != 0 ? sets : "plain");
  char *again = ts_format("%s activation_checkpointing.enabled=true", sets);
  bool accumulates = strstr(sets, "gradient_accumulation_steps") != NULL;
  train_run run[4];
  for (int stage = 0; stage < 4; ++stage) {
    run[stage] = run_on(on, what, model->deck, way, stage == 3 ? again : sets, stage);
  }
  expect_equal(on, what, &run[1], &run[0], "stage 1 are those of stage 0");
  expect_equal(on, what, &run[3], &run[2], "stage 3 with recomputation are those of stage 2");
  if (!accumulates) {
    expect_equal(on, what, &run[2], &run[0], "stage 2 are those of stage 0");
  }
  for (int stage = 0; stage < 4; ++stage) {
    train_run_free(&run[stage]);
  }
  free_ways(&w);
  ts_free(again);
  ts_free(what);
}

static void test_bits(const grid *on) {
  static const char *const sets[] = {"", "gradient_accumulation_steps=2", "bf16.enabled=true"};
  for (int m = 0; m < N_MODELS && tap_wanted("stages"); ++m) {
    for (int i = 0; i < 3; ++i) {
      for (int way = 0; way < (wants_all() ? 5 : 1); ++way) {
        if (on->tp <= models[m].heads && (wants_all() || m == (2 * i + on->sp) % N_MODELS)) {
          test_stages(on, &models[m], sets[i], wants_all() ? way : m + i);
        }
      }
    }
  }
}

/* ---- every gradient ---- */

/* Adam's first moments after one step are (1 - beta) times the clipped gradients, whole on each rank at stage 0. */
typedef struct moments {
  float *value; /* owned: of all parts */
  int64_t count;
  double loss, valid;
} moments;

/* Labels of a stretch of each sample alone: other ranks have none. */
static ts_batch *make_batch(const ts_engine *engine, const ts_deck *deck) {
  const ts_mesh *mesh = ts_engine_mesh(engine);
  int64_t each = deck->train_micro_batch_size_per_gpu, length = deck->data.sequence_length;
  int64_t group = ts_mesh_group_rank(mesh, TS_AXES_BATCH);
  ts_batch *batch = ts_batch_create(each, length, TS_INPUTS_ALL);
  int32_t *tokens = ts_malloc((size_t) (length + 1) * sizeof *tokens);
  for (int64_t i = 0; i < each; ++i) {
    for (int64_t t = 0; t <= length; ++t) {
      uint32_t words[4];
      ts_philox(31, (uint64_t) (group * each + i), (uint64_t) t, words);
      tokens[t] = (int32_t) (words[0] % 67);
    }
    ts_batch_set(batch, i, group * each + i, tokens, ts_deck_by_documents(deck) ? 5 : -1);
    int32_t *label = (int32_t *) batch->input[TS_INPUT_LABELS] + i * length;
    for (int64_t t = 0; t < length; ++t) {
      label[t] = t < length / 5 || t > length / 2 ? TS_IGNORED : label[t];
    }
  }
  ts_free(tokens);
  return batch;
}

static moments find_moments(ts_world *world, const char *text, const char *sets) {
  ts_deck *deck = train_run_deck(world, text, sets);
  ts_engine *engine;
  const ts_engine_options options = {.world = world, .deck = deck, .abilities = TS_CAN_TRAIN};
  TS_CHECK(ts_engine_create(&options, &engine, NULL) == TS_OK, "the deck is good");
  ts_batch *batch = make_batch(engine, deck);
  ts_step_result step = ts_engine_train_step(engine, &(ts_step_input){.batch = batch});
  const ts_program *p = ts_engine_program(engine);
  moments m = {.loss = step.loss, .valid = step.valid_tokens};
  for (int i = 0; i < p->layout->n_parts; ++i) {
    m.count += p->layout->part[i].count;
  }
  m.value = ts_malloc((size_t) m.count * sizeof *m.value);
  float *to = m.value;
  for (int i = 0; i < p->layout->n_parts; to += p->layout->part[i++].count) {
    ts_tid leaf = ts_graph_find_state(p->graph, TS_STATE_EXP_AVG, i);
    ts_executor_read_state(ts_engine_executor(engine), leaf, 0, p->layout->part[i].count, to);
  }
  ts_batch_destroy(&batch);
  ts_engine_destroy(&engine);
  ts_deck_destroy(&deck);
  return m;
}

/* Of the largest: the gradient is clipped, so that all have one scale. */
static double worst_moment(const moments *a, const moments *b) {
  double worst = 0, largest = 0;
  for (int64_t i = 0; i < a->count; ++i) {
    double d = fabs((double) a->value[i] - (double) b->value[i]);
    worst = d <= worst ? worst : d; /* NaN is the worst */
    largest = fmax(largest, fabs((double) b->value[i]));
  }
  return worst / largest;
}

static void test_gradients(const grid *on, const model_row *model, const char *sets) {
  moments one = {0};
  ways w = find_ways(on, model, 1);
  if (ts_world_rank(on->all) == 0) {
    one = find_moments(on->alone, model->deck, sets);
  }
  tap_barrier(MPI_COMM_WORLD);
  for (int i = 0; i < w.n; ++i) {
    char *all = grid_sets(on, w.set[i], 0, sets);
    moments m = find_moments(on->all, model->deck, all);
    double worst = ts_world_rank(on->all) == 0 ? worst_moment(&m, &one) : 0;
    bool same = ts_world_rank(on->all) != 0 || (fabs(m.loss / one.loss - 1) <= loss_tolerance && m.valid == one.valid);
    tap_ok_all(MPI_COMM_WORLD, same && worst <= 2e-6,
               "%s, dp %d x sp %d, %s, %s: every gradient to %.1e of the largest", model->name, on->dp, on->sp,
               w.set[i], sets, worst);
    ts_free(m.value);
    ts_free(all);
  }
  ts_free(one.value);
  free_ways(&w);
}

static void test_all_gradients(const grid *on) {
  static const char *const sets[] = {"", "data.sequence_length=600",
                                     "data.packing=documents model.eos_token_id=5 data.sequence_length=300"};
  for (int m = 0; m < N_MODELS && tap_wanted("gradients") && on->tp == 1; ++m) {
    for (int i = 0; i < 3; ++i) {
      if (wants_all() || m == (i + on->sp) % 3) {
        test_gradients(on, &models[m], sets[i]);
      }
    }
  }
}

/* ---- grids ---- */

static void test_grid(const grid *on) {
  for (int m = 0; m < N_MODELS; ++m) {
    for (int s = 0; s < N_SETTINGS && wants_all(); ++s) {
      test_pair(on, &models[m], &settings[s], -1);
    }
    if (!wants_all() && (m + on->sp) % (on->dp * on->tp) == 0) {
      test_pair(on, &models[m], &settings[0], m + on->sp);
    }
  }
  for (int s = 1; s < N_SETTINGS && !wants_all(); ++s) {
    if ((s + on->tp) % (on->dp * on->tp) == 0) {
      test_pair(on, &models[settings[s].drops ? 1 : (5 * s + on->sp) % N_MODELS], &settings[s], s + on->sp);
    }
  }
  test_bits(on);
  test_all_gradients(on);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  ts_world *alone = ts_world_alone(world);
  double start = ts_seconds();
  int ranks = ts_world_size(world);
  ts_comm_set_agreement(true);
  train_run_set_evaluating(true);
  for (int sp = 2; sp <= ranks; ++sp) {
    for (int tp = 1; tp <= ranks / sp; ++tp) {
      if (ranks % (sp * tp) == 0) {
        test_grid(&(grid){world, alone, sp, ranks / (sp * tp), tp});
      }
    }
  }
  if (ts_world_rank(world) == 0) {
    tap_note("%.1f seconds", ts_seconds() - start);
  }
  ts_world_destroy(&alone);
  int status = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return status;
}
