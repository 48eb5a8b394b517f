/* The plan: the ZeRO paper's table, fields of the program's output, how near the arena is to what lives in it. */
#include "regression/tap.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "run/program.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <string.h>

/* ---- the paper's table ---- */

/* Output of `tessera plan` as JSON; NULL when it does not run or does not print JSON. */
static json_t *plan_json(const char *deck, int ranks, const char *set) {
  char *command = ts_format("./tessera plan %s --ranks %d --format json %s", tap_path(deck), ranks, set);
  FILE *pipe = popen(command, "r");
  json_t *root = pipe != NULL ? json_loadf(pipe, 0, NULL) : NULL;
  int code = pipe != NULL ? pclose(pipe) : 1;
  ts_free(command);
  return code == 0 ? root : NULL;
}

static double number(const json_t *root, const char *key) {
  const json_t *value = json_object_get(root, key);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

/* Rajbhandari et al., "ZeRO", SC20, figure 1: 7.5 billion parameters, 64 devices, 2 + 2 + 12 bytes a parameter.
 * Decimal GB, equal in the digits that are printed there. */
static void test_paper(void) {
  static const struct { double gigabytes, digits; } paper[] = {{120, 1}, {31.4, 0.1}, {16.6, 0.1}, {1.9, 0.1}};
  for (int stage = 0; stage <= 3; ++stage) {
    double start = ts_seconds();
    char *set = ts_format("--set zero_optimization.stage=%d", stage);
    json_t *plan = plan_json("inputs/plan_7b5.cfg", 64, set);
    double seconds = ts_seconds() - start;
    double states = number(plan, "parameter_bytes") + number(plan, "gradient_bytes") + number(plan, "optimizer_bytes");
    double rest = number(plan, "activation_bytes") + number(plan, "buffer_bytes") + number(plan, "reserve_bytes");
    double parameters = number(plan, "parameters");
    tap_ok(fabs(parameters / 7.5e9 - 1) < 1e-3, "stage %d: %.0f parameters", stage, parameters);
    tap_ok(fabs(states * 1e-9 - paper[stage].gigabytes) <= paper[stage].digits / 2,
           "stage %d on 64 ranks: %.3f GB of states, %.1f in the paper", stage, states * 1e-9, paper[stage].gigabytes);
    bool sum = states + rest == number(plan, "peak_bytes");
    tap_ok(sum && number(plan, "activation_bytes") > 0, "stage %d: the rows make the peak", stage);
    /* a plan takes a fraction of a second; the rest is room for a busy machine */
    tap_ok(seconds < 5, "stage %d: planned in %.1f s", stage, seconds);
    json_decref(plan);
    ts_free(set);
  }
}

/* Our default keeps gradients in fp32: twice the paper's two bytes a parameter. */
static void test_default_gradients(void) {
  json_t *paper = plan_json("inputs/plan_7b5.cfg", 64, "");
  json_t *ours = plan_json("inputs/plan_7b5.cfg", 64, "--set data_types.grad_accum_dtype=fp32");
  double two = number(paper, "gradient_bytes"), four = number(ours, "gradient_bytes");
  tap_ok(four == 2 * two, "gradients in fp32, our default, are twice those in bf16");
  json_decref(paper);
  json_decref(ours);
}

/* Bytes a parameter of each precision and type of states, the table of doc/precision.md: parameters, gradients, the
 * optimizer (masters and states; two scales of 4 bytes for 256 elements), and the copy that a checkpoint is written
 * from.  Biases and norms, whose states stay in fp32, are 2e-4 of this model. */
static void test_precisions(void) {
#define FP32 "--set bf16.enabled=false --set data_types.grad_accum_dtype=fp32"
#define BF16 "--set data_types.grad_accum_dtype=fp32"
#define FP16 FP32 " --set fp16.enabled=true"
#define LOW "--set bf16.bf16_master_weights_and_grads=true"
#define STATES(type) " --set optimizer.state_dtype=" type
  static const struct {
    const char *set;
    double parameter, gradient, optimizer, checkpoint;
  } rows[] = {
      {FP32, 4, 4, 8, 12},
      {FP32 STATES("bf16"), 4, 4, 4, 8},
      {FP32 STATES("8bit"), 4, 4, 2.03125, 6.03125},
      {BF16, 2, 4, 12, 12},
      {BF16 STATES("bf16"), 2, 4, 8, 8},
      {BF16 STATES("8bit"), 2, 4, 6.03125, 6.03125},
      {BF16 STATES("8bit") " --set optimizer.type=Lion", 2, 4, 5.015625, 5.015625},
      {FP16, 2, 4, 12, 12},
      {LOW, 2, 2, 8, 10},
      {LOW " --set bf16.bf16_optimizer_states=true", 2, 2, 4, 6},
      {LOW STATES("8bit"), 2, 2, 2.03125, 4.03125},
      {"--set bf16.enabled=false --set fp16.enabled=true --set fp16.fp16_master_weights_and_grads=true" STATES("bf16"),
       2, 2, 4, 6}};
#undef FP32
#undef BF16
#undef FP16
#undef LOW
#undef STATES
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char *set = ts_format("--set run.save_every=1 %s", rows[i].set);
    json_t *plan = plan_json("inputs/plan_7b5.cfg", 1, set);
    double n = number(plan, "parameters"), parameter = number(plan, "parameter_bytes") / n;
    double gradient = number(plan, "gradient_bytes") / n, optimizer = number(plan, "optimizer_bytes") / n;
    double checkpoint = number(plan, "checkpoint_bytes") / n;
    tap_ok(fabs(parameter - rows[i].parameter) < 5e-3 && fabs(gradient - rows[i].gradient) < 5e-3 &&
               fabs(optimizer - rows[i].optimizer) < 5e-3 && fabs(checkpoint - rows[i].checkpoint) < 5e-3,
           "%s: %.3f + %.3f + %.3f bytes a parameter, %.3f of a checkpoint", rows[i].set, parameter, gradient,
           optimizer, checkpoint);
    json_decref(plan);
    ts_free(set);
  }
}

/* Eight ranks share Llama-3.1-8B: an eighth of every matrix, norms whole; of the activations rows, heads and columns of
 * one rank.  Without attention's key and value heads dealt, or the head by vocabulary, neither bound holds. */
static void test_shared_model(void) {
  json_t *one = plan_json("inputs/plan_llama_8b.cfg", 1, "");
  json_t *eight = plan_json("inputs/plan_llama_8b.cfg", 8, "--set tensor_parallel.autotp_size=8");
  double parameters = number(eight, "parameter_bytes") / number(one, "parameter_bytes");
  tap_ok(parameters <= 0.126, "Llama-3.1-8B on eight: %.2f %% of the parameters on a rank", 100 * parameters);
  double moving = (number(eight, "activation_bytes") + number(eight, "buffer_bytes")) /
                  (number(one, "activation_bytes") + number(one, "buffer_bytes"));
  tap_ok(moving <= 0.2, "Llama-3.1-8B on eight: %.3f of the activations and buffers at 8192 tokens", moving);
  tap_ok(number(eight, "parameters") == number(one, "parameters") && number(one, "parameters") == 8030261248,
         "no parameter counts twice");
  json_decref(one);
  json_decref(eight);
}

/* The longest sample of Llama-3.1-8B on eight GPUs of 141 GB that share it, states in eighths. */
static double find_longest(const char *set) {
  char *all =
      ts_format("--target cuda --memory 141GB --set zero_optimization.stage=3 --set sequence_parallel_size=8 %s", set);
  json_t *plan = plan_json("inputs/plan_llama_8b.cfg", 8, all);
  double longest = number(plan, "longest_sample");
  json_decref(plan);
  ts_free(all);
  return longest;
}

/* Each of what saves memory for long samples pays, on top of those before it.  Plain, the forward of 32 blocks is kept:
 * of each some 24 rows of a token beside the input and what attention left, which alone are kept otherwise.  Then the
 * largest thing is one block's MLP, then what attention has of all heads at once. */
static void test_long_samples(void) {
#define SAC "--set activation_checkpointing.enabled=true --set activation_checkpointing.policy=sac "
#define TILES SAC "--set tiled_mlp_compute=true "
  if (ts_backend_cuda() == NULL) {
    tap_skip("samples on GPUs: this build is without CUDA");
    return;
  }
  double plain = find_longest(""), sac = find_longest(SAC), tiles = find_longest(TILES);
  double groups = find_longest(TILES "--set sequence_parallel.head_groups=4");
  tap_ok(plain >= 128 * 1024, "Llama-3.1-8B on eight GPUs: samples of %.0f tokens", plain);
  tap_ok(sac >= 5 * plain, "all but attention recomputed: %.0f tokens, %.2f times as many", sac, sac / plain);
  tap_ok(tiles >= 1.1 * sac, "MLPs in tiles, too: %.0f tokens, %.2f times as many", tiles, tiles / sac);
  tap_ok(groups > tiles && groups >= 1.5e6, "heads in four groups, too: %.0f tokens, %.2f times as many", groups,
         groups / tiles);
}

/* ---- tensor parallelism for people: plan --layout ---- */

/* The quickstart's model (4 query heads, 2 key heads, 128 tokens) made tiny, shared by \a tp ranks. */
static json_t *layout_json(int tp, const char *set) {
  char *all = ts_format("--layout --set bf16.enabled=false --set model.vocab_size=67 --set model.hidden_size=32 "
                        "--set model.intermediate_size=48 --set model.num_hidden_layers=2 "
                        "--set tensor_parallel.autotp_size=%d %s",
                        tp, set);
  json_t *plan = plan_json("inputs/quickstart.cfg", tp, all);
  ts_free(all);
  return plan;
}

static int integer(const json_t *array, size_t i) {
  return (int) json_integer_value(json_array_get(array, i));
}

static bool heads_are(const json_t *plan, int ranks, const int (*expected)[2]) {
  const json_t *heads = json_object_get(plan, "heads");
  bool right = (int) json_array_size(heads) == ranks;
  for (int r = 0; right && r < ranks; ++r) {
    const json_t *of = json_array_get(heads, (size_t) r);
    right = integer(of, 0) == expected[r][0] && integer(of, 1) == expected[r][1];
  }
  return right;
}

static const json_t *find_parameter(const json_t *plan, const char *name) {
  const json_t *layout = json_object_get(plan, "layout");
  for (size_t i = 0; i < json_array_size(layout); ++i) {
    const json_t *p = json_array_get(layout, i);
    if (strcmp(json_string_value(json_object_get(p, "name")), name) == 0) {
      return p;
    }
  }
  return NULL;
}

static bool text_is(const json_t *parameter, const char *key, const char *expected) {
  const char *text = json_string_value(json_object_get(parameter, key));
  return text != NULL && strcmp(text, expected) == 0;
}

static double count_of(const json_t *parameter) {
  const json_t *shape = json_object_get(parameter, "shape");
  double count = json_array_size(shape) > 0;
  for (size_t d = 0; d < json_array_size(shape); ++d) {
    count *= integer(shape, d);
  }
  return count;
}

/* Of the ranks' pieces of a parameter: how many ranks have each element along its dimension, at least and at most. */
static void count_holders(const json_t *parameter, int *least, int *most) {
  const json_t *pieces = json_object_get(parameter, "pieces");
  int extent = integer(json_object_get(parameter, "shape"), (size_t) number(parameter, "dim"));
  int *holders = ts_calloc((size_t) extent + 1, sizeof *holders);
  for (size_t r = 0; r < json_array_size(pieces); ++r) {
    const json_t *runs = json_array_get(pieces, r);
    for (size_t i = 0; i < json_array_size(runs); ++i) {
      const json_t *run = json_array_get(runs, i);
      for (int k = integer(run, 0); k < integer(run, 1); ++k) {
        ++holders[k < extent ? k : extent];
      }
    }
  }
  *least = holders[0];
  *most = holders[extent] > 0 ? INT_MAX : holders[0];
  for (int k = 1; k < extent; ++k) {
    *least = holders[k] < *least ? holders[k] : *least;
    *most = holders[k] > *most ? holders[k] : *most;
  }
  ts_free(holders);
}

/* What is split is held once, what is shared at least once; what is whole has no dimension and no pieces. */
static void check_pieces(const json_t *plan, int tp) {
  const json_t *layout = json_object_get(plan, "layout");
  int wrong = 0, split = 0;
  double count = 0;
  for (size_t i = 0; i < json_array_size(layout); ++i) {
    const json_t *p = json_array_get(layout, i);
    bool is_split = text_is(p, "how", "split"), cut = is_split || text_is(p, "how", "shared");
    int least = 1, most = 1;
    if (cut) {
      count_holders(p, &least, &most);
    }
    wrong += cut != (json_object_get(p, "dim") != NULL) || cut != (json_object_get(p, "pieces") != NULL);
    wrong += least < 1 || most > (is_split ? 1 : tp);
    count += count_of(p);
    split += is_split;
  }
  tap_ok(split > 0 && wrong == 0, "tp %d: pieces make the shapes", tp);
  tap_ok(count == number(plan, "parameters"), "tp %d: shapes make the %.0f parameters", tp, count);
}

static double partial_count(const json_t *plan) {
  const json_t *layout = json_object_get(plan, "layout");
  double count = 0;
  for (size_t i = 0; i < json_array_size(layout); ++i) {
    const json_t *p = json_array_get(layout, i);
    count += text_is(p, "how", "partial") ? count_of(p) : 0;
  }
  return count;
}

/* Heads, pieces, rules.  Three ranks: the first two share key head 0 and divide its query heads, the third has key head
 * 1 alone, with both of its query heads, and so needs most memory. */
static void test_layout(void) {
  json_t *two = layout_json(2, "");
  tap_ok(heads_are(two, 2, (const int[][2]){{2, 1}, {2, 1}}), "tp 2: heads of each rank");
  check_pieces(two, 2);
  const json_t *q = find_parameter(two, "model.layers.1.self_attn.q_proj.weight");
  const json_t *o = find_parameter(two, "model.layers.1.self_attn.o_proj.weight");
  tap_ok(text_is(q, "rule", "column") && number(q, "dim") == 0 && text_is(o, "rule", "row") && number(o, "dim") == 1,
         "tp 2: the family's rules");
  json_decref(two);
  const char *mark =
      "--set "
      "'tensor_parallel.partition_config.layer_specs=({patterns=\".*q_proj.weight\";partition_type=\"column\";})'";
  json_t *marked = layout_json(2, mark);
  q = find_parameter(marked, "model.layers.1.self_attn.q_proj.weight");
  tap_ok(text_is(q, "rule", "partition_config.layer_specs[0]") && text_is(q, "how", "split"),
         "tp 2: a rule of the deck");
  const json_t *norm = find_parameter(marked, "model.norm.weight");
  tap_ok(text_is(norm, "rule", "whole") && count_of(norm) == 32 && json_object_get(norm, "dim") == NULL,
         "tp 2: what is whole has a shape and no dimension");
  json_decref(marked);
  json_t *three = layout_json(3, "");
  tap_ok(heads_are(three, 3, (const int[][2]){{1, 1}, {1, 1}, {2, 1}}), "tp 3: heads of each rank");
  check_pieces(three, 3);
  tap_ok(number(three, "rank") == 2, "tp 3: the plan is of rank %.0f, which needs most", number(three, "rank"));
  json_decref(three);
}

/* Bytes that a rank sends, by hand.  fp32, hidden size 32, 2 layers, 2 ranks: a message of rows of all tokens moves
 * half of 32 x 4 bytes, 64 a token.
 *   forward    reduce_scatters after the embedding and each attention and MLP: 1 + 2 x 2;
 *              all_gathers after each norm: 2 x 2 + 1;
 *   backward   these five gathered values again, a reduce_scatter of the gradient of each, and an all_gather of the
 *              gradient of each of the five that were scattered: 3 x 5;
 *   the loss   an all_gather of 2 fp32 a token of either rank, half of 16 bytes.
 * That is 25 x 64 + 8 = 1608 bytes a token in 26 messages.  Once a step each element of what is whole and whose
 * gradient is partial (5 norms of 32) is reduced and gathered (stage 0), half of 4 bytes each; so is the record, half
 * of two rows of fp64: 6 values and a sum of squares of each part (the embedding, two layers' split and whole, the last
 * norm).  At stage 2 each micro-batch reduces, and the new values are gathered. */
static void test_sent(void) {
  const double record = 0.5 * 2 * 8 * (6 + 6), tokens = 4 * 128;
  json_t *plan = layout_json(2, "--set zero_optimization.stage=0");
  double token = number(plan, "tp_bytes_per_token"), once = number(plan, "tp_with_others_bytes_per_step");
  tap_ok(token == 25 * 64 + 8 && number(plan, "tp_messages") == 26, "tp 2: %.0f bytes a token", token);
  tap_ok(once == 5 * 32 * 4 + record, "tp 2: %.0f bytes a step along tp with other axes", once);
  tap_ok(number(plan, "tp_bytes_per_step") == tokens * token + once, "tp 2: the bytes of a step are their sum");
  json_decref(plan);
  json_t *twice = layout_json(2, "--set zero_optimization.stage=0 --set gradient_accumulation_steps=2");
  tap_ok(number(twice, "tp_with_others_bytes_per_step") == once &&
             number(twice, "tp_bytes_per_step") == 2 * tokens * token + once,
         "tp 2: gradients are summed once a step, however many micro-batches");
  json_decref(twice);
  twice = layout_json(2, "--set zero_optimization.stage=2 --set gradient_accumulation_steps=2");
  tap_ok(number(twice, "tp_with_others_bytes_per_step") == 5 * 32 * (2 * 2 + 2) + record,
         "tp 2, stage 2: and are reduced in each of two, the new values gathered once");
  json_decref(twice);
  json_t *whole =
      layout_json(2, "--set zero_optimization.stage=0 --set tensor_parallel.partition_config.use_default_specs=false");
  double partial = partial_count(whole);
  tap_ok(partial > 5 * 32 && number(whole, "tp_with_others_bytes_per_step") == partial * 4 + record,
         "tp 2, weights whole: the gradients of %.0f elements are counted", partial);
  json_decref(whole);
}

/* ---- the arena against what lives in it ---- */

static const char rest[] =
    "data = { path = \"none\"; format = \"text\"; }; run = { directory = \"none\"; steps = 1; };\n"
    "zero_optimization = { overlap_comm = true; };\n";

#define LLAMA(vocabulary, hidden, inner, layers, heads, kv_heads, positions)                                     \
  "model_type = \"llama\"; vocab_size = " #vocabulary "; hidden_size = " #hidden "; intermediate_size = " #inner \
  "; num_hidden_layers = " #layers "; num_attention_heads = " #heads "; num_key_value_heads = " #kv_heads        \
  "; max_position_embeddings = " #positions ";"
#define GPT2(vocabulary, hidden, layers, heads, positions)                                                             \
  "model_type = \"gpt2\"; vocab_size = " #vocabulary "; n_embd = " #hidden "; n_layer = " #layers "; n_head = " #heads \
  "; n_positions = " #positions ";"

static const struct {
  const char *name, *model;
  int length, batch;
} shapes[] = {
    {"tiny llama", LLAMA(67, 36, 41, 2, 6, 2, 32), 17, 2},
    {"tiny gpt2", GPT2(67, 36, 2, 3, 32), 17, 2},
    {"quickstart llama", LLAMA(256, 256, 688, 6, 4, 2, 512) " tie_word_embeddings = true;", 256, 16},
    {"gpt2 124M", GPT2(50257, 768, 12, 12, 1024), 256, 4},
    {"deep llama", LLAMA(32000, 512, 1376, 24, 8, 8, 1024), 1024, 1},
    {"wide llama", LLAMA(32000, 4096, 11008, 3, 32, 8, 4096), 2048, 1},
    {"one layer", GPT2(1000, 64, 1, 2, 128), 128, 1},
    {"long llama", LLAMA(256, 128, 1024, 2, 2, 2, 8192), 8192, 1},
};

static ts_plan plan_of_deck(const char *model, int batch, int length, char **set, int n, int ranks) {
  char *text = ts_format("model = { %s };\n%strain_micro_batch_size_per_gpu = %d; gradient_accumulation_steps = 1;\n",
                         model, rest, batch);
  ts_error err = {0};
  ts_deck *deck;
  ts_mesh mesh;
  ts_status status = ts_deck_read_text("test", text, set, n, &deck, &err);
  status = status == TS_OK ? ts_deck_resolve_batch(deck, ranks, &err) : status;
  status = status == TS_OK ? ts_deck_mesh(deck, ranks, 0, &mesh, &err) : status;
  TS_CHECK(status == TS_OK, "%s", err.text);
  const ts_program_options options = {.deck = deck,
                                      .mesh = &mesh,
                                      .target = {ts_backend_null(), 1, TS_CUDNN_NEVER},
                                      .use = TS_MODEL_TRAIN,
                                      .batch = batch,
                                      .length = length};
  ts_program *program = ts_program_create(&options);
  ts_plan plan = *program->plan; /* only its numbers outlive the program */
  ts_program_destroy(&program);
  ts_deck_destroy(&deck);
  ts_free(text);
  return plan;
}

static ts_plan plan_with(size_t shape, int stage, bool recompute, const char *bf16, int ranks, bool tiled) {
  char *set[5] = {ts_format("zero_optimization.stage=%d", stage),
                  ts_format("activation_checkpointing={enabled=%s; policy=\"block\";}", recompute ? "true" : "false"),
                  ts_format("bf16.enabled=%s", bf16), ts_format("data.sequence_length=%d", shapes[shape].length),
                  ts_format("tiled_mlp_compute=%s", tiled ? "true" : "false")};
  ts_plan plan = plan_of_deck(shapes[shape].model, shapes[shape].batch, shapes[shape].length, set, 5, ranks);
  for (int i = 0; i < 5; ++i) {
    ts_free(set[i]);
  }
  return plan;
}

static ts_plan plan_of(size_t shape, int stage, bool recompute, const char *bf16, int ranks) {
  return plan_with(shape, stage, recompute, bf16, ranks, false);
}

static double ratio_of(const ts_plan *plan) {
  return (double) plan->arena_bytes[TS_ARENA_WORK] / (double) plan->live_bytes;
}

/* Every stage, grid and dtype of a shape: the arena is at most 1.15 of the largest set of bytes that live at once (the
 * project's limit), and recomputation never needs more than keeping. */
static void test_shape(size_t shape) {
  double worst = 0, saving = 1;
  bool saved = true;
  for (int stage = 0; stage <= 3; ++stage) {
    for (int i = 0; i < 6; ++i) {
      static const int ranks[] = {1, 8, 64};
      ts_plan keep = plan_of(shape, stage, false, i % 2 ? "true" : "false", ranks[i / 2]);
      ts_plan again = plan_of(shape, stage, true, i % 2 ? "true" : "false", ranks[i / 2]);
      worst = fmax(worst, fmax(ratio_of(&keep), ratio_of(&again)));
      saving = fmin(saving, 1 - (double) again.arena_bytes[TS_ARENA_WORK] / (double) keep.arena_bytes[TS_ARENA_WORK]);
      saved = saved && again.bytes[TS_PURPOSE_ACTIVATION] < keep.bytes[TS_PURPOSE_ACTIVATION];
    }
  }
  tap_ok(worst <= 1.15, "%s: the work arena is at most %.3f of what is live", shapes[shape].name, worst);
  tap_ok(saved, "%s: recomputation saves at least %.0f %% of the arena", shapes[shape].name, 100 * saving);
}

/* ---- what recomputation keeps ---- */

static double live_of(int layers, const char *policy, int interval) {
  char *set[] = {ts_format("model.num_hidden_layers=%d", layers),
                 ts_format("activation_checkpointing={enabled=true; policy=\"%s\"; interval=%d;}", policy, interval),
                 (char *) "bf16.enabled=true", (char *) "data.sequence_length=512"};
  ts_plan plan = plan_of_deck(LLAMA(67, 128, 344, 1, 8, 4, 512), 2, 512, set, 4, 1);
  ts_free(set[0]);
  ts_free(set[1]);
  return (double) plan.live_bytes;
}

/* The most that lives at once grows by what a block keeps, of h = 128 elements and H = 8 heads, and by nothing else: at
 * the turn from forward to backward all that can be computed again is gone. */
static void test_kept(const char *policy, int interval, double expected) {
  double more = live_of(16, policy, interval) - live_of(8, policy, interval), each = more / (8 * 2 * 512);
  tap_ok(each == expected, "%s, inputs of every %d: a block keeps %g bytes a token", policy, interval, each);
}

static void test_recomputation(void) {
  const double h = 128, heads = 8;
  test_kept("block", 1, 2 * h);
  test_kept("block", 4, 2 * h / 4);
  test_kept("sac", 1, 4 * h + 4 * heads);
  test_kept("sac", 4, 2 * h + 4 * heads + 2 * h / 4);
  test_kept("auto", 1, 2 * h);
}

/* Bytes at work for each token of a rank, blocks of Llama-3.1-8B: what two lengths differ by. */
static double work_of_token(int sp, const char *policy, int interval, int groups) {
  double bytes[2];
  for (int i = 0; i < 2; ++i) {
    char *set = ts_format("--set zero_optimization.stage=3 --set model.num_hidden_layers=8 "
                          "--set tiled_mlp_compute=true --set activation_checkpointing.enabled=true "
                          "--set activation_checkpointing.policy=%s --set activation_checkpointing.interval=%d "
                          "--set model.max_position_embeddings=1048576 --set data.sequence_length=%d "
                          "--set sequence_parallel_size=%d --set sequence_parallel.ulysses_degree=%d "
                          "--set sequence_parallel.head_groups=%d",
                          policy, interval, 524288 << i, sp, sp, groups);
    json_t *plan = plan_json("inputs/plan_llama_8b.cfg", sp, set);
    bytes[i] = number(plan, "working_bytes");
    json_decref(plan);
    ts_free(set);
  }
  return (bytes[1] - bytes[0]) * sp / 524288;
}

/* With MLPs in tiles and attention in n groups of heads the backward of a block needs 8h for its input, its gradient
 * and what a norm makes of either, 8 (h + GD) / n for q, k, v, o and their gradients of a group, and 8H for two
 * numbers a head; besides inputs of the other blocks of its interval.  A block computed again, attention with it, has
 * all of o, 2h, until it meets its gradient.  Where groups travel another one is on its way. */
static void test_at_work(int sp, const char *policy, int interval, int groups) {
  const double h = 4096, keys = 1024, heads = 32;
  double most = 8 * h + 8 * (h + keys) / groups + 2 * h * (interval - 1) + 8 * heads;
  double each = work_of_token(sp, policy, interval, groups);
  most += strcmp(policy, "block") == 0 ? 2 * h : 0;
  most += sp > 1 ? 8 * (h + keys) / groups : 0;
  tap_ok(each <= most, "sp %d, %s, inputs of every %d, %d groups: %g bytes a token are at work, at most %g", sp, policy,
         interval, groups, each, most);
}

static void test_work(void) {
  test_at_work(1, "block", 1, 1);
  test_at_work(1, "block", 1, 8);
  test_at_work(1, "sac", 1, 8);
  test_at_work(1, "sac", 4, 8);
  test_at_work(8, "sac", 1, 4);
}

/* ---- MLPs in tiles ---- */

static int64_t work_of(size_t shape, bool recompute, bool tiled) {
  ts_plan plan = plan_with(shape, 0, recompute, "true", 1, tiled);
  return plan.arena_bytes[TS_ARENA_WORK];
}

/* MLPs in tiles: up, gate and their product, bf16, are not kept; nearly all of that is gone at the peak. */
static void test_tiles_kept(size_t shape, double layers, double inner) {
  double kept = 3 * layers * inner * shapes[shape].length * shapes[shape].batch * 2;
  double saved = (double) (work_of(shape, false, false) - work_of(shape, false, true));
  tap_ok(saved >= 0.85 * kept && saved <= 1.3 * kept, "%s in tiles: %.0f MB less, of %.0f MB that are inside MLPs",
         shapes[shape].name, 1e-6 * saved, 1e-6 * kept);
}

/* Where blocks are computed again, what an MLP is made of is there one block at a time, and now one tile. */
static void test_tiles_at_work(size_t shape) {
  int64_t whole = work_of(shape, true, false), tiled = work_of(shape, true, true);
  tap_ok(tiled < whole / 2, "%s, recomputed, in tiles: %.1f MB instead of %.1f MB", shapes[shape].name,
         1e-6 * (double) tiled, 1e-6 * (double) whole);
}

/* ---- what is not hidden ---- */

/* Files that are fast are hidden, of slow ones a step waits for all but what it computes. */
static void test_exposed(void) {
  static const char *const files = "--set zero_optimization.stage=3 --set bf16.enabled=true --set "
                                   "'zero_optimization.offload_optimizer={device=\"nvme\";nvme_path=\"/nowhere\";}'";
  char *fast_set = ts_format("%s --set machine.file_bandwidth=1e15", files);
  char *slow_set = ts_format("%s --set machine.file_bandwidth=1e6", files);
  json_t *fast = plan_json("inputs/plan_7b5.cfg", 4, fast_set), *slow = plan_json("inputs/plan_7b5.cfg", 4, slow_set);
  double bytes = number(slow, "file_read_bytes") + number(slow, "file_written_bytes");
  tap_ok(bytes > 1e10 && fabs(number(slow, "file_seconds") * 1e6 / bytes - 1) < 1e-5, "files take %g s at 1e6 bytes/s",
         number(slow, "file_seconds"));
  double least = number(slow, "file_seconds") - number(slow, "computing_seconds");
  tap_ok(number(fast, "exposed_seconds") < 1e-3 * number(fast, "computing_seconds") &&
             number(slow, "exposed_seconds") >= least * (1 - 1e-5) && /* six digits are printed */
             number(slow, "exposed_seconds") <= number(slow, "file_seconds") && least > 0,
         "not hidden are %g s of fast files, %g s of slow ones", number(fast, "exposed_seconds"),
         number(slow, "exposed_seconds"));
  double day = number(slow, "file_written_bytes") * 86400 /
               (number(slow, "computing_seconds") + number(slow, "exposed_seconds"));
  tap_ok(fabs(number(slow, "file_written_bytes_a_day") / day - 1) < 1e-4, "%g bytes are written in a day", day);
  json_decref(fast);
  json_decref(slow);
  ts_free(fast_set);
  ts_free(slow_set);
}

/* A micro-batch's sums are stored and the update loads them; those before them are loaded where it is not the first,
 * and in a run that may be any of several. */
static void test_first_sums(void) {
  double read[2], written[2];
  for (int i = 0; i < 2; ++i) {
    char *sets =
        ts_format("--set zero_optimization.stage=2 --set bf16.enabled=true --set gradient_accumulation_steps=%d "
                  "--set 'zero_optimization.offload_optimizer={device=\"nvme\";nvme_path=\"/nowhere\";}'",
                  1 + i);
    json_t *plan = plan_json("inputs/plan_7b5.cfg", 4, sets);
    read[i] = number(plan, "file_read_bytes");
    written[i] = number(plan, "file_written_bytes");
    json_decref(plan);
    ts_free(sets);
  }
  double sums = written[1] - written[0]; /* of one more micro-batch */
  tap_ok(sums > 1e9 && fabs(read[0] - written[0]) < 1e-3 * sums,
         "of one micro-batch as much is read, %g bytes, as is written, %g", read[0], written[0]);
  tap_ok(fabs(read[1] - read[0] - 2 * sums) < 1e-3 * sums, "of two its sums and what was there: %g bytes more, of %g",
         read[1] - read[0], sums);
}

int main(void) {
  test_exposed();
  test_first_sums();
  test_paper();
  test_default_gradients();
  test_precisions();
  test_shared_model();
  test_long_samples();
  test_layout();
  test_sent();
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
    test_shape(i);
  }
  test_recomputation();
  test_work();
  test_tiles_kept(4, 24, 1376);
  test_tiles_kept(5, 3, 11008);
  test_tiles_at_work(7);
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
