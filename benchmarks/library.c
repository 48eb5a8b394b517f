/* Steps that a program goes through by itself, in units of whole steps of the same run.
 *
 *     mpiexec -n RANKS benchmarks/library DECK STEPS [key=value ...]
 *
 * In turns: whole steps (ts_train_batch); by hand (ts_forward, ts_backward, ts_step), where a head makes its logits
 * twice; and by hand inside of coalesce, where the gradients of all micro-batches stay on their rank until the end.
 * Medians count; the plan's gradients stand beside them, because that is what the last one costs. */
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/workings.h"

#include <stdio.h>
#include <stdlib.h>

enum { WHOLE, BY_HAND, COALESCED, N_WAYS, MOST_STEPS = 100 };

static const struct {
  const char *name;
  unsigned abilities;
} ways[] = {{"whole", TS_CAN_TRAIN}, {"by hand", TS_CAN_STEP}, {"coalesced", TS_CAN_STEP | TS_CAN_DEFER}};

typedef struct run {
  ts_deck *deck;
  ts_engine *engine;
  ts_batch *batch;
  double seconds[MOST_STEPS];
} run;

static void must(ts_status status, const ts_error *err) {
  TS_CHECK(status == TS_OK, "%s", err->text);
}

/* Tokens at random, of this rank's own. */
static ts_batch *make_samples(const ts_engine *engine, const ts_deck *deck) {
  int64_t n = deck->data.sequence_length + 1;
  ts_batch *batch = ts_batch_create(ts_train_micro_batch_size(engine) * ts_gradient_accumulation_steps(engine), n - 1,
                                    ts_engine_inputs(engine));
  int32_t *tokens = ts_malloc((size_t) n * sizeof *tokens);
  for (int64_t i = 0; i < batch->samples; ++i) {
    for (int64_t t = 0; t < n; ++t) {
      uint64_t number = ts_mix((uint64_t) ts_data_parallel_rank(engine), (uint64_t) (i * n + t));
      tokens[t] = (int32_t) (number % (uint64_t) deck->model.vocab_size);
    }
    ts_batch_set(batch, i, i, tokens, -1);
  }
  ts_free(tokens);
  return batch;
}

static void feed(ts_engine *engine, int64_t micro_batch, void *user) {
  const ts_batch *batch = user;
  for (int i = 0; i < TS_N_INPUTS; ++i) {
    if (batch->input[i] != NULL) {
      size_t sample = ts_batch_bytes(batch, (ts_input_kind) i);
      size_t first = (size_t) (micro_batch * ts_train_micro_batch_size(engine));
      ts_set_input(engine, ts_input_get((ts_input_kind) i)->name, (const char *) batch->input[i] + first * sample,
                   NULL);
    }
  }
}

static void step_by_hand(run *r, int way) {
  ts_error err = {0};
  int64_t n = ts_gradient_accumulation_steps(r->engine);
  if (way == COALESCED) {
    must(ts_coalesce_grad_reduction_begin(r->engine, &err), &err);
  }
  for (int64_t m = 0; m < n; ++m) {
    feed(r->engine, m, r->batch);
    must(ts_forward(r->engine, &err), &err);
    must(ts_backward(r->engine, 1, &err), &err);
    if (way == BY_HAND) {
      must(ts_step(r->engine, NULL, &err), &err);
    }
  }
  if (way == COALESCED) {
    must(ts_coalesce_grad_reduction_end(r->engine, &err), &err);
    must(ts_set_gradient_accumulation_boundary(r->engine, true, &err), &err);
    must(ts_step(r->engine, NULL, &err), &err);
  }
}

static double one_step(ts_world *world, run *r, int way) {
  ts_comm *all = ts_world_all(world);
  ts_error err = {0};
  all->ops->barrier(all);
  double start = ts_seconds();
  if (way == WHOLE) {
    must(ts_train_batch(r->engine, &(ts_feed){feed, NULL, r->batch}, NULL, &err), &err);
  } else {
    step_by_hand(r, way);
  }
  return ts_seconds() - start;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

static void print(const run *r, int steps) {
  for (int way = 0; way < N_WAYS; ++way) {
    char bytes[32];
    const ts_plan *plan = ts_engine_program(r[way].engine)->plan;
    double median = r[way].seconds[steps / 2];
    printf("  %-10s %10.1f ms  %6.3f of whole steps  gradients %s\n", ways[way].name, 1e3 * median,
           median / r[WHOLE].seconds[steps / 2], ts_human_bytes((double) plan->bytes[TS_PURPOSE_GRADIENT], bytes));
  }
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  ts_error err = {0};
  run r[N_WAYS] = {{0}};
  TS_CHECK(argc >= 3, "usage: %s DECK STEPS [key=value ...]", argv[0]);
  int steps = atoi(argv[2]) > 0 && atoi(argv[2]) < MOST_STEPS ? atoi(argv[2]) : 5;
  for (int way = 0; way < N_WAYS; ++way) {
    must(ts_deck_read(argv[1], argv + 3, argc - 3, &r[way].deck, &err), &err);
    must(ts_initialize(NULL, r[way].deck, world, ways[way].abilities, &r[way].engine, &err), &err);
    r[way].batch = make_samples(r[way].engine, r[way].deck);
    one_step(world, &r[way], way);
  }
  for (int i = 0; i < steps; ++i) {
    for (int way = 0; way < N_WAYS; ++way) {
      r[way].seconds[i] = one_step(world, &r[way], way);
    }
  }
  for (int way = 0; way < N_WAYS; ++way) {
    qsort(r[way].seconds, (size_t) steps, sizeof(double), by_size);
  }
  if (ts_world_rank(world) == 0) {
    printf("%d ranks, %s, stage %lld, %lld micro-batches a step\n", ts_world_size(world),
           ts_dtype_name(ts_deck_dtype(r->deck)), (long long) r->deck->zero_optimization.stage,
           (long long) ts_gradient_accumulation_steps(r->engine));
    print(r, steps);
  }
  for (int way = 0; way < N_WAYS; ++way) {
    ts_engine_destroy(&r[way].engine);
    ts_batch_destroy(&r[way].batch);
    ts_deck_destroy(&r[way].deck);
  }
  ts_world_destroy(&world);
  return 0;
}
