/* Steps whose state is in files have the bits of steps whose state is in memory: with every optimizer and type of
 * state, at every stage, on any grid, however much is read ahead and in however many pieces. */
#include "regression/subject.h"
#include "regression/tap_mpi.h"

#include "base/memory.h"
#include "base/text.h"
#include "run/program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 4 };

/* Everything leaves that may; pieces are as small as files let them be, so that units have several. */
#define ALL " zero_optimization.stage3_param_persistence_threshold=0"
#define PIECES " zero_optimization.sub_group_size=1"
#define DROPPED " zero_optimization.stage=3 zero_optimization.stage3_max_live_parameters=0"

/* On a device there is none. */
#ifdef STAND_IN
#define MEMCHECK
#else
#define MEMCHECK " debug.memcheck=true"
#endif

/* All micro-batches of a unit before the next one's. */
#define UNIT " run.accumulation_order=unit"

/* Beside a device. */
#define HOST " run.offload_update=host"

/* A tied table's two gradients are added up in an order of its own then. */
#define UNTIED " model.tie_word_embeddings=false"

/* What is in files: states of the optimizer, parameters, both. */
typedef enum what { STATES, PARAMETERS, BOTH, NOTHING } what;
static const char *const what_names[] = {"states", "parameters", "both", "nothing"};

typedef struct offload_case {
  int ranks; /* 0: any number */
  what what;
  const char *deck, *sets;
} offload_case;

#define LLAMA train_run_llama
#define GPT2 train_run_gpt2
static const offload_case cases[] = {
    {0, STATES, LLAMA,
     ALL PIECES MEMCHECK " scheduler={type=\"WarmupLR\";params={warmup_num_steps=3;warmup_max_lr=0.01;};}"},
    {0, STATES, LLAMA, ALL PIECES " zero_optimization.offload_optimizer.super_offload=false"},
    {0, STATES, GPT2, ALL " zero_optimization.stage=1 gradient_accumulation_steps=2"},
    {0, STATES, GPT2, ALL PIECES " zero_optimization.stage=2 bf16.enabled=true bf16.stochastic_rounding=true"},
    {0, STATES, LLAMA, ALL PIECES " zero_optimization.stage=3 optimizer.type=Lamb"},
    {0, STATES, LLAMA, ALL PIECES " zero_optimization.stage=1 optimizer.type=Muon bf16.enabled=true"},
    {0, STATES, GPT2, ALL PIECES " optimizer.type=Lion fp16.enabled=true"},
    {0, STATES, LLAMA, ALL PIECES " optimizer.type=SGD optimizer.params.momentum=0.9 optimizer.params.nesterov=true"},
    {0, STATES, LLAMA,
     ALL PIECES " zero_optimization.offload_optimizer.pipeline_read=false "
                "zero_optimization.offload_optimizer.pipeline_write=false optimizer.type=Adagrad"},
    {0, PARAMETERS, LLAMA, ALL DROPPED PIECES MEMCHECK},
    {0, PARAMETERS, GPT2, ALL DROPPED " torch_autocast.enabled=true gradient_accumulation_steps=2"},
    {0, BOTH, LLAMA, ALL DROPPED PIECES " bf16.enabled=true activation_checkpointing.enabled=true"},
    {0, BOTH, GPT2, ALL " zero_optimization.stage=3 bf16.enabled=true optimizer.state_dtype=8bit"},
    {0, BOTH, LLAMA, ALL DROPPED " zero_optimization.stage3_prefetch_bucket_size=0 frozen=[\"v_proj\"]"},
    {0, BOTH, LLAMA,
     ALL DROPPED PIECES " bf16.enabled=true bf16.bf16_master_weights_and_grads=true data_types.grad_accum_dtype=bf16"},
    {0, BOTH, LLAMA,
     ALL DROPPED PIECES " zero_optimization.offload_optimizer.ratio=0.5 "
                        "zero_optimization.offload_param.max_in_cpu=4000 bf16.enabled=true"},
    {0, BOTH, GPT2,
     ALL DROPPED PIECES " zero_optimization.offload_optimizer.gradients=false gradient_accumulation_steps=2"},
    {0, STATES, LLAMA,
     ALL PIECES " zero_optimization.stage=2 gradient_accumulation_steps=3 bf16.enabled=true "
                "zero_optimization.reduce_bucket_size=2000" MEMCHECK},
    {0, STATES, GPT2, ALL PIECES " zero_optimization.stage=3 fp16.enabled=true data_types.grad_accum_dtype=fp16"},
    {0, BOTH, GPT2, ALL DROPPED PIECES " gradient_accumulation_steps=6" UNIT},
    {2, BOTH, LLAMA, ALL DROPPED PIECES " tensor_parallel.autotp_size=2 bf16.enabled=true"},
    {2, STATES, GPT2, ALL " tensor_parallel.autotp_size=2 gradient_accumulation_steps=3"},
    {2, BOTH, LLAMA, ALL DROPPED " sequence_parallel_size=2 gradient_accumulation_steps=2"},
    {2, BOTH, GPT2, ALL DROPPED PIECES " pipeline.stages=2 gradient_accumulation_steps=3"}, /* a tied table */
    {2, BOTH, LLAMA, ALL DROPPED " pipeline.stages=2 gradient_accumulation_steps=4 pipeline.schedule=zb_h1"},
    {2, STATES, LLAMA, ALL PIECES " pipeline.stages=2 gradient_accumulation_steps=4 pipeline.schedule=zb_v"},
    {4, BOTH, LLAMA,
     ALL DROPPED PIECES " tensor_parallel.autotp_size=2 bf16.enabled=true zero_optimization.overlap_comm=true"},
    {4, BOTH, GPT2, ALL DROPPED " pipeline.stages=2 gradient_accumulation_steps=3 pipeline.schedule=zb_h1"},
    {4, STATES, GPT2, ALL PIECES " zero_optimization.stage=1 optimizer.type=Muon tensor_parallel.autotp_size=2"},
    {2, BOTH, LLAMA, ALL DROPPED PIECES " gradient_accumulation_steps=2 moe={num_experts=4;k=2;ep_size=2;}"},
    {4, BOTH, LLAMA,
     ALL DROPPED " pipeline.stages=2 gradient_accumulation_steps=2 moe={num_experts=4;k=2;ep_size=2;} "
                 "moe.dispatch=alltoall"},
    {4, BOTH, LLAMA, ALL DROPPED " pipeline.stages=2 sequence_parallel_size=2 gradient_accumulation_steps=2"},
    {4, BOTH, LLAMA, ALL DROPPED " tensor_parallel.autotp_size=2 sequence_parallel_size=2 bf16.enabled=true"},
    /* what updates wait for is gathered among others' messages */
    {4, STATES, LLAMA,
     ALL PIECES
     " zero_optimization.stage=2 tensor_parallel.autotp_size=2 gradient_accumulation_steps=2 bf16.enabled=true"},
    {4, STATES, GPT2,
     ALL PIECES " zero_optimization.stage=1 pipeline.stages=2 gradient_accumulation_steps=3 "
                "zero_optimization.allgather_bucket_size=1000"},
    {4, STATES, LLAMA,
     ALL PIECES " zero_optimization.stage=1 pipeline.stages=2 gradient_accumulation_steps=6 pipeline.schedule=zb_v"},
    {4, STATES, LLAMA,
     ALL PIECES " zero_optimization.stage=2 gradient_accumulation_steps=3 moe={num_experts=4;k=2;ep_size=2;} "
                "moe.dispatch=alltoall"},
    {4, STATES, LLAMA, ALL PIECES " zero_optimization.stage=2 sequence_parallel_size=2 fp16.enabled=true"},
    /* of which ranks let other parts leave than others */
    {4, STATES, LLAMA,
     ALL PIECES " zero_optimization.stage=1 gradient_accumulation_steps=3 moe={num_experts=3;k=2;ep_size=2;} "
                "zero_optimization.offload_optimizer.ratio=0.6"},
    {4, STATES, LLAMA,
     ALL PIECES " zero_optimization.stage=2 gradient_accumulation_steps=3 moe={num_experts=3;k=2;ep_size=2;} "
                "zero_optimization.offload_optimizer.ratio=0.4 moe.dispatch=alltoall"},
};

/* And in the order of units, against that of micro-batches in memory. */
static const offload_case by_unit[] = {
    {0, NOTHING, GPT2, " zero_optimization.stage=2 gradient_accumulation_steps=3" MEMCHECK UNTIED},
    {0, NOTHING, LLAMA, " zero_optimization.stage=1 gradient_accumulation_steps=6 fp16.enabled=true"},
    {0, NOTHING, GPT2, " zero_optimization.stage=0 gradient_accumulation_steps=2 torch_autocast.enabled=true" UNTIED},
    {0, NOTHING, LLAMA, " gradient_accumulation_steps=3 moe={num_experts=4;k=2;aux_loss_coef=0.1;}"},
    {0, STATES, GPT2, ALL PIECES " gradient_accumulation_steps=6 zero_optimization.stage=2 bf16.enabled=true" UNTIED},
    {0, BOTH, LLAMA,
     ALL DROPPED PIECES " gradient_accumulation_steps=3 bf16.enabled=true activation_checkpointing.enabled=true "
                        "zero_optimization.reduce_bucket_size=2000" MEMCHECK},
    {0, BOTH, GPT2,
     ALL DROPPED PIECES " gradient_accumulation_steps=2 fp16.enabled=true "
                        "zero_optimization.offload_optimizer.gradients=false" UNTIED},
    {2, BOTH, LLAMA, ALL DROPPED " sequence_parallel_size=2 gradient_accumulation_steps=3"},
    {2, STATES, LLAMA,
     ALL " zero_optimization.stage=3 tensor_parallel.autotp_size=2 gradient_accumulation_steps=2 "
         "moe={num_experts=4;k=2;drop_tokens=false;} bf16.enabled=true"},
    {4, BOTH, GPT2,
     ALL DROPPED PIECES " tensor_parallel.autotp_size=2 gradient_accumulation_steps=3 "
                        "zero_optimization.overlap_comm=true"},
};

/* Where what leaves goes. */
static char *places_of(const char *place, what w) {
  bool some = w == STATES || w == BOTH, values = w == PARAMETERS || w == BOTH;
  char *states = ts_format(" zero_optimization.offload_optimizer={%s}", place);
  char *parameters = ts_format(" zero_optimization.offload_param={%s}", place);
  char *sets = ts_format("%s%s", some ? states : "", values ? parameters : "");
  ts_free(states);
  ts_free(parameters);
  return sets;
}

static char *offload_sets(const char *directory, what w) {
  char *place = ts_format("device=\"nvme\";nvme_path=\"%s\";", directory), *sets = places_of(place, w);
  ts_free(place);
  return sets;
}

/* On a device: to files or to the host's memory, updated there or by the host. */
enum { WAYS = 4 };
typedef struct way {
  bool host, cpu;
} way;
static const way ways[WAYS] = {{false, false}, {true, false}, {false, true}, {true, true}};

/* On the stand-in of a GPU a fortieth of the cases each of these ways; TEST_OFFLOAD_ALL: all. */
static bool is_left_out(size_t i, int w) {
  return is_stand_in && (i + 13 * (size_t) w) % 40 != 0 && getenv("TEST_OFFLOAD_ALL") == NULL;
}

/* Evaluations among them, which have the same parameters. */
static void test_case(ts_world *world, const char *directory, const offload_case *c, const way *how,
                      const char *order) {
  char *files = how->cpu ? places_of("device=\"cpu\";", c->what) : offload_sets(directory, c->what),
       *sets = ts_format(DEVICE "%s%s%s%s", c->sets, files, order, how->host ? HOST : "");
  char *resident = ts_format(DEVICE "%s", c->sets);
  train_run memory = train_run_do(world, c->deck, resident, STEPS), file = train_run_do(world, c->deck, sets, STEPS);
  bool evaluated = memcmp(memory.evaluation, file.evaluation, STEPS * sizeof *file.evaluation) == 0;
  tap_ok_all(MPI_COMM_WORLD, train_run_equal(&memory, &file) && evaluated, "%s %s%s,%s%s: the same bits",
             what_names[c->what], how->cpu ? "with the host" : "in files", how->host ? ", updated there" : "", c->sets,
             order);
  train_run_free(&memory);
  train_run_free(&file);
  ts_free(files);
  ts_free(sets);
  ts_free(resident);
}

/* ---- what is planned ---- */

static ts_program *plan(ts_world *world, ts_deck *deck) {
  ts_mesh mesh;
  TS_CHECK(ts_deck_mesh(deck, ts_world_size(world), ts_world_rank(world), &mesh, NULL) == TS_OK, "a grid");
  return ts_program_create(&(ts_program_options){.deck = deck,
                                                 .mesh = &mesh,
                                                 .use = TS_MODEL_TRAIN,
                                                 .target = {.backend = ts_backend_cpu(), .threads = 1},
                                                 .batch = deck->train_micro_batch_size_per_gpu,
                                                 .length = deck->data.sequence_length});
}

/* Of a model whose update is larger than its activations. */
static const char wide[] = TRAIN_RUN_MODEL("llama", "32", "8", "4",
                                           "hidden_size = 256; intermediate_size = 512; num_hidden_layers = 12; "
                                           "num_attention_heads = 4; num_key_value_heads = 4;");

/* What left is not in memory any more, but for the pieces that are under way, and two blocks of twelve. */
static void test_plan(ts_world *world, what w) {
  const char *sets = DROPPED " zero_optimization.stage3_param_persistence_threshold=1000 "
                             "zero_optimization.reduce_bucket_size=300000" PIECES;
  char *files = offload_sets("/nowhere", w), *all = ts_format("%s%s", sets, files);
  ts_deck *deck[] = {train_run_deck(world, wide, sets), train_run_deck(world, wide, all)};
  ts_program *program[] = {plan(world, deck[0]), plan(world, deck[1])};
  const ts_plan *memory = program[0]->plan, *file = program[1]->plan;
  static const ts_purpose purposes[] = {TS_PURPOSE_OPTIMIZER, TS_PURPOSE_PARAMETER, TS_PURPOSE_GRADIENT};
  bool sum = true;
  int64_t left = 0;
  for (int i = 0; i < 3; ++i) {
    bool leaves = w == BOTH || (int) w == i % 2;
    int64_t here = file->bytes[purposes[i]], there = file->away[TS_SPACE_FILE][purposes[i]],
            before = memory->bytes[purposes[i]];
    /* places in a file begin at pages */
    sum = sum && here + there >= before && here + there <= before + 64 * TS_PLAN_PAGE && (there > 0) == leaves;
    sum = sum && (!leaves || here < before / 20);
    left += there;
  }
  /* beside what the store itself takes, which its size does not change */
  int64_t saved =
      memory->peak_bytes - file->peak_bytes + file->bytes[TS_PURPOSE_RESERVE] - memory->bytes[TS_PURPOSE_RESERVE];
  tap_ok_all(MPI_COMM_WORLD, sum && saved > left * 3 / 4, "%s: %lld bytes leave memory, which is %lld smaller",
             what_names[w], (long long) left, (long long) saved);
  for (int i = 0; i < 2; ++i) {
    ts_program_destroy(&program[i]);
    ts_deck_destroy(&deck[i]);
  }
  ts_free(files);
  ts_free(all);
}

/* Of twelve blocks, the table and the head a part of the elements stays, and no more of the values than is said. */
static void test_parts(ts_world *world) {
  char *files = offload_sets("/nowhere", BOTH);
  char *sets = ts_format("%s%s", DROPPED " zero_optimization.stage3_param_persistence_threshold=1000", files);
  char *some = ts_format("%s zero_optimization.offload_optimizer.ratio=0.4 zero_optimization.offload_param.max_in_cpu="
                         "3000000",
                         sets);
  ts_deck *deck[] = {train_run_deck(world, wide, sets), train_run_deck(world, wide, some)};
  ts_program *program[] = {plan(world, deck[0]), plan(world, deck[1])};
  const ts_offload_count *all = &program[0]->offload, *part = &program[1]->offload;
  double stay = (double) part->states_stay / (double) part->states;
  tap_ok_all(MPI_COMM_WORLD, all->states_stay == 0 && all->values_stay == 0 && stay <= 0.6 && stay > 0.5,
             "ratio = 0.4: the states of %.1f %% of the elements stay", 100 * stay);
  const ts_layout *layout = program[1]->layout;
  int64_t largest = 0;
  for (int i = 0; i < layout->n_parts; ++i) {
    largest = layout->part[i].count > largest ? layout->part[i].count : largest;
  }
  int first = -1, last = -1; /* of the blocks */
  for (int i = 0; i < layout->n_parts; ++i) {
    first = layout->part[i].count == largest && first < 0 ? i : first;
    last = layout->part[i].count == largest ? i : last;
  }
  tap_ok_all(MPI_COMM_WORLD, first < last && layout->part[first].states_stay && !layout->part[last].states_stay,
             "of %s, with which the next forward begins, and not of %s", layout->part[first].name,
             layout->part[last].name);
  bool many = part->values <= 3000000;
  tap_ok_all(MPI_COMM_WORLD,
             part->values_stay <= 3000000 && (many ? part->values_stay == part->values : part->values_stay > 2200000),
             "max_in_cpu = 3e6: the values of %lld of %lld elements stay", (long long) part->values_stay,
             (long long) part->values);
  for (int i = 0; i < 2; ++i) {
    ts_program_destroy(&program[i]);
    ts_deck_destroy(&deck[i]);
  }
  ts_free(files);
  ts_free(sets);
  ts_free(some);
}

/* A tied table's gradients come to the same, but for the rounding of fp32 sums. */
static void test_tied(ts_world *world) {
  const char *sets = "gradient_accumulation_steps=3";
  train_run turns = train_run_do(world, GPT2, sets, 2),
            units = train_run_do(world, GPT2, "gradient_accumulation_steps=3" UNIT, 2);
  double norm = units.norm[0] / turns.norm[0] - 1, loss = units.loss[1] / turns.loss[1] - 1;
  tap_ok_all(MPI_COMM_WORLD, units.loss[0] == turns.loss[0] && fabs(norm) < 1e-6 && fabs(loss) < 1e-5,
             "a tied table: the same but for the order of sums, norm %.1e, next loss %.1e", norm, loss);
  train_run_free(&turns);
  train_run_free(&units);
}

/* Parts whose update waits for the next forward, and others that are updated. */
static void count_updates(const ts_program *p, int *late, int *others) {
  *late = *others = 0;
  for (ts_nid n = 0; n < p->graph->n_nodes; ++n) {
    bool updates = p->graph->node[n].op == TS_OP_UPDATE_ELEMENTS;
    *(p->graph->node[n].segment == TS_SEGMENT_LATE_UPDATE ? late : others) += updates;
  }
}

static int count_late_gathers(const ts_program *p) {
  int n = 0;
  for (ts_nid i = 0; i < p->graph->n_nodes; ++i) {
    n += p->graph->node[i].segment == TS_SEGMENT_LATE_GATHER;
  }
  return n;
}

/* What has left is updated late; where others need the new values too, gathers come behind that. */
static void test_late(ts_world *world) {
  static const struct {
    const char *sets;
    bool waits, gathers;
  } rows[] = {{" zero_optimization.stage=3", true, false},
              {" zero_optimization.stage=2", true, true},
              {" zero_optimization.stage=1", true, true},
              {" zero_optimization.stage=0", true, false},
              {" zero_optimization.stage=1 zero_optimization.offload_optimizer.super_offload=false", false, false},
              {" zero_optimization.stage=3 optimizer.type=Lamb", false, false}};
  char *files = offload_sets("/nowhere", STATES);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char *sets = ts_format("%s%s%s", ALL PIECES, files, rows[i].sets);
    ts_deck *deck = train_run_deck(world, LLAMA, sets);
    ts_program *program = plan(world, deck);
    bool waits = rows[i].waits, gathers = rows[i].gathers && ts_world_size(world) > 1;
    const unsigned leaves = (waits ? TS_LEFT_UPDATES : 0) | (gathers ? TS_LEFT_GATHERS : 0);
    int late, others, gathered = count_late_gathers(program);
    count_updates(program, &late, &others);
    tap_ok_all(MPI_COMM_WORLD,
               program->step.leaves == leaves && (waits ? late >= 4 && others == 0 : late == 0) &&
                   (gathers ? gathered >= 4 : gathered == 0),
               "%s: %d updates wait and %d gathers, %d updates do not", rows[i].sets, late, gathered, others);
    ts_program_destroy(&program);
    ts_deck_destroy(&deck);
    ts_free(sets);
  }
  ts_free(files);
}

/* All values of the parameters, read by all ranks, are those of another engine. */
static bool has_values_of(const subject *a, const subject *b) {
  int64_t extent[TS_MAX_DIMS];
  bool same = true;
  for (int i = 0; i < ts_parameter_count(a->engine); ++i) {
    const char *name = ts_parameter_name(a->engine, i);
    size_t bytes = sizeof(float);
    for (int d = ts_parameter_shape(a->engine, i, extent) - 1; d >= 0; --d) {
      bytes *= (size_t) extent[d];
    }
    float *x = ts_malloc(bytes), *y = ts_malloc(bytes);
    ts_error err = {0};
    must(ts_get_full_fp32_parameter(a->engine, name, x, &err), &err);
    must(ts_get_full_fp32_parameter(b->engine, name, y, &err), &err);
    same = same && memcmp(x, y, bytes) == 0;
    ts_free(x);
    ts_free(y);
  }
  return same;
}

/* One rank's own values alone are read, which the others know nothing of. */
static void read_share(const subject *s, int rank) {
  const char *name = ts_parameter_name(s->engine, 1);
  ts_local_share share;
  ts_error err = {0};
  if (ts_world_rank(s->world) == rank) {
    must(ts_get_local_share(s->engine, name, &share, &err), &err);
    float *value = ts_malloc((size_t) share.elements * sizeof *value + 1);
    must(ts_get_local_fp32_parameter(s->engine, name, value, &err), &err);
    ts_free(value);
  }
}

/* Between steps values are read: by one rank alone, then all of them, by one alone again, and by nobody. */
static void test_reading(ts_world *world, const char *directory, const char *sets) {
  char *place = offload_sets(directory, STATES), *files = ts_format("%s%s", sets, place);
  subject file = open_subject(world, LLAMA, files, TS_CAN_TRAIN, NULL),
          memory = open_subject(world, LLAMA, sets, TS_CAN_TRAIN, NULL);
  bool same = true;
  for (int step = 0; step < STEPS; ++step) {
    ts_step_result a = train_run_step(file.engine, file.deck, step),
                   b = train_run_step(memory.engine, memory.deck, step);
    same = same && a.loss == b.loss && a.grad_norm == b.grad_norm;
    if (step % 2 == 0) {
      read_share(&file, step / 2 % ts_world_size(world));
    } else if (step == 1) {
      same = has_values_of(&file, &memory) && same;
    }
  }
  same = has_values_of(&file, &memory) && same;
  tap_ok_all(MPI_COMM_WORLD, same, "%s: one rank reads what waits, then all do: the same bits", sets);
  close_subject(&file);
  close_subject(&memory);
  ts_free(place);
  ts_free(files);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  train_run_set_evaluating(true);
  char *directory = ts_strdup(tap_directory_all(MPI_COMM_WORLD));
  int ranks = ts_world_size(world);
  for (int w = 0; w < (is_stand_in ? WAYS : 1); ++w) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
      if (!is_left_out(i, w) && (cases[i].ranks == ranks || (cases[i].ranks == 0 && ranks < 4))) {
        test_case(world, directory, &cases[i], &ways[w], "");
      }
    }
    for (size_t i = 0; i < sizeof by_unit / sizeof *by_unit; ++i) {
      if (!is_left_out(i + 1, w) && (by_unit[i].ranks == ranks || (by_unit[i].ranks == 0 && ranks < 4))) {
        test_case(world, directory, &by_unit[i], &ways[w], UNIT);
      }
    }
  }
  test_tied(world);
  test_late(world);
  test_reading(world, directory, ALL PIECES " zero_optimization.stage=1");
  test_reading(world, directory, ALL PIECES " zero_optimization.stage=2 bf16.enabled=true");
  if (ranks == 4) {
    test_reading(world, directory,
                 ALL PIECES " zero_optimization.stage=2 tensor_parallel.autotp_size=2 bf16.enabled=true");
    test_reading(world, directory,
                 ALL PIECES " zero_optimization.stage=1 pipeline.stages=2 gradient_accumulation_steps=2");
  }
  for (what w = STATES; w <= BOTH; ++w) {
    test_plan(world, w);
  }
  test_parts(world);
  ts_free(directory);
  int status = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return status;
}
