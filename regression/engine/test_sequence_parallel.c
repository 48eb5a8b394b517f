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
#include "base/text.h"

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
    {"llama-2/1", MODEL("llama", SIZES(28, 30, 1) HEADS(2, 1)), 2, 1, false}, /* fewer than ranks */
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
  const char *here; /* what does not change what is computed: of the grid alone, not of the rank it is compared with */
  bool bf16;
  bool drops; /* only for models that know all dropouts */
} setting_row;

#define AGAIN "activation_checkpointing.enabled=true "
#define SAC AGAIN "activation_checkpointing.policy=sac "
#define GROUPS "sequence_parallel.head_groups=2 zero_optimization.overlap_comm=true " /* exchanges under attention */
#define DROPS "model.attn_pdrop=0.1 model.embd_pdrop=0.1 model.resid_pdrop=0.1 "
#define DOCUMENTS "data.packing=documents model.eos_token_id=31 "

static const setting_row settings[] = {
    {"plain", "", "", false, false},
    {"accumulation", "", "gradient_accumulation_steps=2", false, false},
    {"recomputation", "", AGAIN, false, false},
    {"attention kept", "", SAC, false, false},
    {"attention kept, two blocks at a time", "", SAC "activation_checkpointing.interval=2", false, false},
    {"groups of heads", "data.sequence_length=150", GROUPS, false, false},
    {"groups of heads, attention kept, bf16", "bf16.enabled=true", GROUPS SAC, true, false},
    {"chunks of 128", "data.sequence_length=600", "", false, false},
    {"five tokens", "data.sequence_length=5", "", false, false},
    {"one token", "data.sequence_length=1 train_batch_size=12", "", false, false},
    {"attention dropout", "model.attn_pdrop=0.1", "", false, false},
    {"all dropouts", DROPS, "", false, true},
    {"all dropouts, recomputation", DROPS, AGAIN, false, true},
    {"documents", DOCUMENTS, "", false, false},
    {"documents, chunks of 128", DOCUMENTS "data.sequence_length=600", "", false, false},
    {"documents, attention dropout, groups of heads", DOCUMENTS "model.attn_pdrop=0.1", GROUPS, false, false},
    {"MLPs in tiles", "", "tiled_mlp_compute=true", false, false},
    {"whole rows along tp", "", "tensor_parallel.sequence_parallel=false", false, false},
    {"frozen attention", "frozen=[\"q_proj|c_attn|qkv_proj|query_key_value\"]", "", false, false},
    {"overlap", "", "zero_optimization.overlap_comm=true", false, false},
    {"memory check", "", "debug.memcheck=true", false, false},
    {"bf16", "bf16.enabled=true", "", true, false},
    {"bf16, chunks of 128", "bf16.enabled=true data.sequence_length=600", "", true, false},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

typedef struct grid {
  ts_world *all, *alone;
  int sp, dp, tp;
} grid;

static bool wants_all(void) {
  return getenv("TEST_SP_ALL") != NULL;
}

static int groups_of(const setting_row *setting) {
  return strstr(setting->here, "head_groups") != NULL ? 2 : 1;
}

/* Query heads of a group, of the rank along tp that has fewest. */
static int least_heads(const grid *on, const model_row *model, const setting_row *setting) {
  int sharers = (on->tp + model->kv_heads - 1) / model->kv_heads, group = model->heads / model->kv_heads;
  int heads = on->tp <= model->kv_heads ? model->kv_heads / on->tp * group : group / sharers;
  return heads / groups_of(setting);
}

static bool fits(const grid *on, const model_row *model, const setting_row *setting) {
  return least_heads(on, model, setting) > 0 && (model->drops || !setting->drops);
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

static ways find_ways(const grid *on, const model_row *model, const setting_row *setting) {
  ways w = {.set = {ts_strdup("sequence_parallel.ulysses_degree=auto")}, .n = 1};
  for (int u = 1; u <= on->sp && u <= least_heads(on, model, setting); ++u) {
    int r = on->sp / u;
    if (on->sp % u != 0) {
      continue;
    }
    add_way(&w, u, r, "p2p", "zigzag");
    if (r > 1) {
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

static train_run run_on(const grid *on, const char *what, const char *deck, const char *way, const char *sets,
                        const char *here, int stage, int steps) {
  char *all = ts_format("sequence_parallel_size=%d tensor_parallel.autotp_size=%d zero_optimization.stage=%d %s %s %s",
                        on->sp, on->tp, stage, way, sets, here);
  if (wants_all() && ts_world_rank(on->all) == 0) {
    tap_note("%s: %s", what, all); /* of one that does not come back */
  }
  train_run run = train_run_do(on->all, deck, all, steps);
  ts_free(all);
  return run;
}

/* AdamW makes the first updates of an element as large as any where its gradient is as small as its rounding: by its
 * usual eps olmo3's losses differ by 4e-6 between grids whose gradients agree to 1e-6; by this one by 2e-7. */
#define CALM " optimizer.params.eps=1e-3"

static void test_run(const grid *on, const char *what, const train_run *one, const model_row *model,
                     const setting_row *setting, const char *sets, const char *way, int stage) {
  train_run run = run_on(on, what, model->deck, way, sets, setting->here, stage, STEPS);
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
  if (!fits(on, model, setting) || !(tap_wanted(model->name) || tap_wanted(setting->name))) {
    return;
  }
  char *what = ts_format("%s, %s", model->name, setting->name), *sets = ts_format("%s" CALM, setting->sets);
  train_run one = train_run_alone(on->all, on->alone, model->deck, sets, STEPS);
  ways w = find_ways(on, model, setting);
  for (int i = 0; i < w.n; ++i) {
    for (int stage = 0; stage < 4; ++stage) {
      if (pick < 0 || (i == pick % w.n && stage == (pick + i) % 4)) {
        test_run(on, what, &one, model, setting, sets, w.set[i], stage);
      }
    }
  }
  free_ways(&w);
  train_run_free(&one);
  ts_free(sets);
  ts_free(what);
}

/* ---- bits ---- */

static void expect_equal(const grid *on, const char *what, const train_run *a, const train_run *b, const char *says) {
  tap_ok_all(MPI_COMM_WORLD, train_run_equal(a, b), "%s, dp %d x sp %d x tp %d: the bits of %s", what, on->dp, on->sp,
             on->tp, says);
}

/* One micro-batch: all stages are equal.  Several: gradients are added before they are reduced or after. */
static void test_stages(const grid *on, const model_row *model, const char *sets, int pick) {
  ways w = find_ways(on, model, &settings[0]);
  const char *way = w.set[pick % w.n];
  char *what = ts_format("%s, %s, %s", model->name, way, *sets != 0 ? sets : "plain");
  bool accumulates = strstr(sets, "gradient_accumulation_steps") != NULL;
  train_run run[4];
  for (int stage = 0; stage < 4; ++stage) {
    run[stage] = run_on(on, what, model->deck, way, sets, stage == 3 ? AGAIN : "", stage, STEPS);
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

/* One step of a huge rate with a huge eps leaves a hundred times the gradients where the weights were, which are below
 * their rounding then.  fp32: sums in another order, to 2e-6 of the largest. */
#define STEEP " optimizer.params.lr=1e5 optimizer.params.eps=1e3 optimizer.params.weight_decay=0"

/* \param [in] pick  Which of the ways, by turns, and with it a stage; -1: all ways. */
static void test_gradients(const grid *on, const model_row *model, const setting_row *setting, int pick) {
  if (!fits(on, model, setting) || setting->bf16) {
    return;
  }
  char *sets = ts_format("%s" STEEP, setting->sets);
  train_run one = train_run_alone(on->all, on->alone, model->deck, sets, 1);
  ways w = find_ways(on, model, setting);
  for (int i = 0; i < w.n; ++i) {
    if (pick < 0 || i == pick % w.n) {
      int stage = (i + on->sp + (pick < 0 ? 0 : pick)) % 4;
      train_run run = run_on(on, model->name, model->deck, w.set[i], sets, setting->here, stage, 1);
      double loss = train_run_difference(&run, &one).loss; /* the first rank alone has all of one's */
      double worst = ts_world_rank(on->all) == 0 ? train_run_parameters_apart(&run, &one) : 0;
      tap_ok_all(MPI_COMM_WORLD, loss <= loss_tolerance && worst <= 2e-6,
                 "%s, %s, dp %d x sp %d x tp %d, stage %d, %s: every gradient to %.1e of the largest", model->name,
                 setting->name, on->dp, on->sp, on->tp, stage, w.set[i], worst);
      train_run_free(&run);
    }
  }
  free_ways(&w);
  train_run_free(&one);
  ts_free(sets);
}

/* ---- grids ---- */

typedef void test_of_pair(const grid *on, const model_row *model, const setting_row *setting, int pick);

/* Documents are there to be told apart in the one step whose gradients are compared. */
static void test_documents(ts_world *alone) {
  for (int m = 0; m < N_MODELS; ++m) {
    train_run plain = train_run_do(alone, models[m].deck, "", 1),
              cut = train_run_do(alone, models[m].deck, DOCUMENTS, 1);
    double apart = train_run_difference(&plain, &cut).loss;
    tap_ok_all(MPI_COMM_WORLD, apart > 1e-4, "%s: documents change the first loss by %.1e", models[m].name, apart);
    train_run_free(&plain);
    train_run_free(&cut);
  }
}

/* The product; or every model and every setting once on a grid, less often on one with dp or tp. */
static void test_pairs(const grid *on, test_of_pair *test, int turn) {
  const int others = on->dp * on->tp;
  for (int m = 0; m < N_MODELS; ++m) {
    for (int s = 0; s < N_SETTINGS && wants_all(); ++s) {
      test(on, &models[m], &settings[s], -1);
    }
    if (!wants_all() && (m + on->sp + turn) % others == 0) {
      test(on, &models[m], &settings[0], m + on->sp + turn);
    }
  }
  for (int s = 1; s < N_SETTINGS && !wants_all(); ++s) {
    if ((s + on->tp + turn) % others == 0) {
      test(on, &models[settings[s].drops ? 1 : (5 * s + on->sp + turn) % N_MODELS], &settings[s], s + on->sp + turn);
    }
  }
}

/* Which of the ways this is: 2 ranks by heads, rings of 2 that deal in turns and send pieces on. */
static int way_of_pieces(const grid *on, const model_row *model, const setting_row *setting) {
  ways w = find_ways(on, model, setting);
  int found = -1;
  for (int i = 0; i < w.n; ++i) {
    bool is = strstr(w.set[i], "ulysses_degree=2") && strstr(w.set[i], "p2p") && strstr(w.set[i], "zigzag");
    found = is ? i : found;
  }
  free_ways(&w);
  TS_CHECK(found >= 0, "no such way");
  return found;
}

/* A window of half a chunk, and two ranks that read each key: as many gradients of keys arrive as there are keys, those
 * of one half twice. */
static void test_half_windows(const grid *on) {
  for (int m = 0; m < N_MODELS && on->sp == 4 && !wants_all(); ++m) {
    for (int s = 0; s < N_SETTINGS; ++s) {
      if (strcmp(models[m].name, "phi3") == 0 && strcmp(settings[s].name, "groups of heads") == 0) {
        test_pair(on, &models[m], &settings[s], way_of_pieces(on, &models[m], &settings[s]));
      }
    }
  }
}

static void test_grid(const grid *on) {
  train_run_set_evaluating(true);
  test_pairs(on, test_pair, 0);
  test_half_windows(on);
  test_bits(on);
  if (tap_wanted("gradients")) {
    train_run_set_evaluating(false);
    train_run_set_few_labels(true);
    test_pairs(on, test_gradients, 1);
    train_run_set_few_labels(false);
  }
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  ts_world *alone = ts_world_alone(world);
  double start = ts_seconds();
  int ranks = ts_world_size(world);
  ts_comm_set_agreement(true);
  test_documents(alone);
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
