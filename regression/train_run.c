#include "regression/train_run.h"

#include "regression/tap_mpi.h"

#include "base/memory.h"
#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char train_run_llama[] = "model = { model_type = \"llama\"; vocab_size = 67; hidden_size = 36; intermediate_size "
                               "= 41; num_hidden_layers = 2;\n"
                               "  num_attention_heads = 6; num_key_value_heads = 2; max_position_embeddings = 32; "
                               "tie_word_embeddings = false; };\n"
                               "data = { path = \"none\"; format = \"text\"; sequence_length = 17; };\n"
                               "run = { directory = \"none\"; steps = 4; seed = 3; threads = 1; };\n"
                               "train_batch_size = 12;\n"
                               "optimizer = { type = \"AdamW\"; params = { lr = 1e-2; betas = [0.9, 0.95]; "
                               "weight_decay = 0.1; }; no_decay = [\"norm\"]; };\n"
                               "gradient_clipping = 1.0;\n";

const char train_run_gpt2[] =
    "model = { model_type = \"gpt2\"; vocab_size = 67; n_embd = 36; n_layer = 2; n_head = 3; n_positions = 32;\n"
    "  attn_pdrop = 0.1; embd_pdrop = 0.1; resid_pdrop = 0.1; };\n"
    "data = { path = \"none\"; format = \"text\"; sequence_length = 17; };\n"
    "run = { directory = \"none\"; steps = 4; seed = 3; threads = 1; };\n"
    "train_batch_size = 12;\n"
    "optimizer = { type = \"AdamW\"; params = { lr = 1e-2; betas = [0.9, 0.95]; weight_decay = 0.1; }; no_decay = "
    "[\"ln_\", \"bias\"]; };\n"
    "gradient_clipping = 1.0;\n";

/* A walk with a drift: the next token is the last one plus 0 .. 3, so there is something to learn. */
static void make_sample(int64_t sample, int64_t n, int64_t vocabulary, int32_t *tokens) {
  int64_t at = sample * 7 % vocabulary;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t words[4];
    ts_philox(77, (uint64_t) sample, (uint64_t) i, words);
    tokens[i] = (int32_t) at;
    at = (at + words[0] % 4) % vocabulary;
  }
}

static ts_step_order order;
static bool evaluating, few_labels;

void train_run_set_order(ts_step_order o) {
  order = o;
}

void train_run_set_evaluating(bool on) {
  evaluating = on;
}

void train_run_set_few_labels(bool on) {
  few_labels = on;
}

ts_deck *train_run_deck(ts_world *world, const char *text, const char *sets) {
  char *list = ts_strdup(sets != NULL ? sets : ""), *word[64];
  int n = 0;
  word[n++] = (char *) "run.device=cpu";
  for (char *w = strtok(list, " "); w != NULL && n < 64; w = strtok(NULL, " ")) {
    word[n++] = w;
  }
  ts_error err = {0};
  ts_deck *deck;
  ts_status status = ts_deck_read_text("test", text, word, n, &deck, &err);
  if (status == TS_OK) {
    int64_t shared = deck->tensor_parallel.autotp_size * deck->sequence_parallel_size * deck->pipeline.stages;
    status = ts_deck_resolve_batch(deck, (int) (ts_world_size(world) / shared), &err);
  }
  TS_CHECK(status == TS_OK, "%s", err.text);
  ts_free(list);
  return deck;
}

static void thin_labels(ts_batch *batch, int64_t i) {
  int32_t *label = (int32_t *) batch->input[TS_INPUT_LABELS] + i * batch->length;
  const int64_t first = 3 * batch->length / 8, end = batch->length / 2;
  for (int64_t t = 0; t < batch->length; ++t) {
    label[t] = t == first || (t > first && t < end) ? label[t] : TS_IGNORED;
  }
}

ts_batch *train_run_batch(const ts_engine *engine, const ts_deck *deck, int64_t step) {
  const ts_mesh *mesh = ts_engine_mesh(engine);
  int64_t each = deck->train_micro_batch_size_per_gpu, n = deck->data.sequence_length + 1;
  int64_t groups = ts_mesh_group_size(mesh, TS_AXES_BATCH), group = ts_mesh_group_rank(mesh, TS_AXES_BATCH);
  int64_t end_token = ts_deck_by_documents(deck) ? deck->model.eos_token_id : -1;
  ts_batch *batch = ts_batch_create(each * deck->gradient_accumulation_steps, n - 1, TS_INPUTS_ALL);
  int32_t *tokens = ts_malloc((size_t) n * sizeof *tokens);
  for (int64_t i = 0; i < batch->samples; ++i) {
    int64_t m = step * deck->gradient_accumulation_steps + i / each;
    int64_t sample = (m * groups + group) * each + i % each;
    make_sample(sample, n, deck->model.vocab_size, tokens);
    ts_batch_set(batch, i, sample, tokens, (int32_t) end_token);
    if (evaluating && sample % 4 != 0) {
      ts_batch_ignore(batch, i);
    }
    if (few_labels) {
      thin_labels(batch, i);
    }
  }
  ts_free(tokens);
  return batch;
}

/* What the last step left in sums must not be read: a first micro-batch overwrites.  NaN would spread everywhere. */
static void spoil_sums(ts_engine *engine) {
  const ts_graph *g = ts_engine_program(engine)->graph;
  for (ts_tid t = 0; t < g->n_tensors; ++t) {
    const char *name = g->tensor[t].name;
    bool sum = strstr(name, ".gradient") != NULL || strcmp(name, "loss_sum") == 0 || strcmp(name, "valid_sum") == 0;
    if (g->tensor[t].role == TS_ROLE_STATE && sum) {
      size_t bytes = (size_t) ts_tensor_bytes(g, t);
      void *nans = ts_malloc(bytes);
      memset(nans, 0xff, bytes);
      ts_executor_write_state(ts_engine_executor(engine), t, 0, ts_tensor_count(g, t), nans);
      ts_free(nans);
    }
  }
}

ts_step_result train_run_step(ts_engine *engine, const ts_deck *deck, int64_t step) {
  if (step % 2 == 0) { /* before others updates may wait, which need their gradients */
    spoil_sums(engine);
  }
  ts_batch *batch = train_run_batch(engine, deck, step);
  ts_step_result result = ts_engine_train_step(engine, &(ts_step_input){.batch = batch});
  ts_batch_destroy(&batch);
  return result;
}

/* Mean loss of the step's micro-batches. */
static double evaluate(ts_engine *engine, const ts_deck *deck, int64_t step) {
  ts_batch *batch = train_run_batch(engine, deck, step);
  double sum, valid;
  ts_engine_evaluate(engine, batch, &sum, &valid);
  ts_batch_destroy(&batch);
  return sum / valid;
}

static int compare_names(const void *a, const void *b) {
  return strcmp((*(const ts_parameter *const *) a)->name, (*(const ts_parameter *const *) b)->name);
}

/* The order of a layout depends on the grid.  Bits: a sum over all elements of a mix of bits, name and position. */
static void read_parameters(ts_engine *engine, train_run *run) {
  const ts_layout *layout = ts_engine_layout(engine);
  const size_t n = (size_t) layout->n_parameters;
  const ts_parameter **sorted = ts_calloc(n, sizeof *sorted);
  for (size_t i = 0; i < n; ++i) {
    sorted[i] = &layout->parameter[i];
  }
  qsort(sorted, n, sizeof *sorted, compare_names);
  for (size_t i = 0; i < n; ++i) {
    const ts_parameter *p = sorted[i];
    const int64_t count = ts_shape_count(&p->shape), first = run->n_parameters;
    run->n_parameters += count;
    run->parameter = ts_realloc(run->parameter, (size_t) run->n_parameters, sizeof *run->parameter);
    float *value = run->parameter + first;
    ts_error err = {0};
    TS_CHECK(ts_get_full_fp32_parameter(engine, p->name, value, &err) == TS_OK, "%s", err.text);
    const uint64_t hash = ts_hash_name(p->name);
    for (int64_t k = 0; k < count; ++k) {
      uint32_t bits;
      memcpy(&bits, &value[k], sizeof bits);
      run->bits += ts_mix(bits, hash + (uint64_t) k);
    }
  }
  ts_free(sorted);
}

static train_run new_run(int steps) {
  return (train_run){.steps = steps,
                     .loss = ts_calloc((size_t) steps, sizeof(double)),
                     .norm = ts_calloc((size_t) steps, sizeof(double)),
                     .evaluation = ts_calloc((size_t) steps, sizeof(double))};
}

static train_run run_steps(ts_engine *engine, const ts_deck *deck, int steps) {
  train_run run = new_run(steps);
  run.work_bytes = ts_engine_program(engine)->plan->arena_bytes[TS_ARENA_WORK];
  run.live_bytes = ts_engine_program(engine)->plan->live_bytes;
  for (int step = 0; step < steps; ++step) {
    ts_step_result result = train_run_step(engine, deck, step);
    run.loss[step] = result.loss;
    run.norm[step] = result.grad_norm;
    run.evaluation[step] = evaluating && step % 4 == 1 ? evaluate(engine, deck, step) : 0;
  }
  read_parameters(engine, &run);
  return run;
}

char *train_run_try(ts_world *world, const char *text, const char *sets, int steps, train_run *run) {
  ts_deck *deck = train_run_deck(world, text, sets);
  ts_engine *engine;
  ts_error err = {0};
  unsigned abilities = TS_CAN_TRAIN | (evaluating ? TS_CAN_EVALUATE : 0);
  const ts_engine_options options = {.world = world, .deck = deck, .abilities = abilities, .order = order};
  char *refused = NULL;
  if (ts_engine_create(&options, &engine, &err) == TS_OK) {
    *run = run_steps(engine, deck, steps);
    ts_engine_destroy(&engine);
  } else {
    refused = ts_strdup(err.text);
  }
  ts_error_clear(&err);
  ts_deck_destroy(&deck);
  return refused;
}

train_run train_run_do(ts_world *world, const char *text, const char *sets, int steps) {
  train_run run;
  char *refused = train_run_try(world, text, sets, steps, &run);
  TS_CHECK(refused == NULL, "%s", refused);
  return run;
}

train_run train_run_alone(ts_world *all, ts_world *alone, const char *text, const char *sets, int steps) {
  train_run run = ts_world_rank(all) == 0 ? train_run_do(alone, text, sets, steps) : new_run(steps);
  tap_barrier(MPI_COMM_WORLD); /* yielding */
  MPI_Bcast(run.loss, steps, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  MPI_Bcast(run.norm, steps, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  MPI_Bcast(run.evaluation, steps, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  MPI_Bcast(&run.bits, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  return run;
}

void train_run_open(ts_world *world, ts_deck *deck, unsigned abilities, ts_engine **engine, ts_data **data) {
  ts_error err = {0};
  const ts_engine_options options = {.world = world, .deck = deck, .abilities = TS_CAN_TRAIN | abilities};
  TS_CHECK(ts_engine_create(&options, engine, &err) == TS_OK, "%s", err.text);
  TS_CHECK(ts_data_open_deck(world, deck, data, &err) == TS_OK, "%s", err.text);
}

ts_step_result train_run_step_of(ts_engine *engine, const ts_deck *deck, ts_data *data, int64_t step) {
  const ts_mesh *mesh = ts_engine_mesh(engine);
  int64_t each = deck->train_micro_batch_size_per_gpu, accumulation = deck->gradient_accumulation_steps;
  int64_t groups = ts_mesh_group_size(mesh, TS_AXES_BATCH), group = ts_mesh_group_rank(mesh, TS_AXES_BATCH);
  ts_batch *batch = ts_batch_create(each * accumulation, deck->data.sequence_length, TS_INPUTS_ALL);
  for (int64_t i = 0; i < batch->samples; ++i) {
    int64_t sample = ((step * accumulation + i / each) * groups + group) * each + i % each;
    ts_error err = {0};
    TS_CHECK(ts_data_read(data, TS_SPLIT_TRAINING, sample, batch, i, &err) == TS_OK, "%s", err.text);
  }
  ts_step_result result = ts_engine_train_step(engine, &(ts_step_input){.batch = batch});
  ts_batch_destroy(&batch);
  return result;
}

uint64_t train_run_digest(ts_engine *engine) {
  const ts_layout *layout = ts_engine_layout(engine);
  uint64_t *each = ts_calloc((size_t) layout->n_parameters, sizeof *each), sum = 0;
  ts_engine_digest(engine, each);
  for (int i = 0; i < layout->n_parameters; ++i) {
    sum += ts_mix(each[i], ts_hash_name(layout->parameter[i].name));
  }
  ts_free(each);
  return sum;
}

void train_run_free(train_run *run) {
  ts_free(run->loss);
  ts_free(run->norm);
  ts_free(run->evaluation);
  ts_free(run->parameter);
  *run = (train_run){0};
}

bool train_run_equal(const train_run *a, const train_run *b) {
  size_t bytes = (size_t) a->steps * sizeof *a->loss;
  return a->steps == b->steps && a->bits == b->bits && memcmp(a->loss, b->loss, bytes) == 0 &&
         memcmp(a->norm, b->norm, bytes) == 0 && memcmp(a->evaluation, b->evaluation, bytes) == 0;
}

/* Equal zeros do not differ: what was not evaluated. */
static double worst_of(const double *a, const double *b, int n) {
  double worst = 0;
  for (int i = 0; i < n; ++i) {
    double d = a[i] == b[i] ? 0 : fabs(a[i] - b[i]) / fabs(b[i]);
    worst = isfinite(d) ? fmax(worst, d) : INFINITY;
  }
  return worst;
}

train_difference train_run_difference(const train_run *a, const train_run *b) {
  if (a->steps != b->steps) {
    return (train_difference){INFINITY, INFINITY, INFINITY};
  }
  return (train_difference){worst_of(a->loss, b->loss, a->steps), worst_of(a->norm, b->norm, a->steps),
                            worst_of(a->evaluation, b->evaluation, a->steps)};
}

double train_run_parameters_apart(const train_run *a, const train_run *b) {
  double largest = 0, worst = a->n_parameters == b->n_parameters ? 0 : INFINITY;
  for (int64_t i = 0; i < a->n_parameters && i < b->n_parameters; ++i) {
    double difference = fabs((double) a->parameter[i] - (double) b->parameter[i]);
    largest = fmax(largest, fabs((double) b->parameter[i]));
    worst = isnan(difference) ? INFINITY : fmax(worst, difference);
  }
  return worst / largest;
}
