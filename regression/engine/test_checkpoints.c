/* Checkpoints of programs: what goes on from one has the bits of what was never stopped; what a program gives along; on
 * which names and in which moments it is refused; damage and disks that cannot be written, alike on all ranks; and the
 * model as one file, at every stage and grid.  `leave DECK DIRECTORY`: for scripts, a checkpoint "best" of the deck's
 * model, or of one of its own. */
#include "engine/checkpoints.h"
#include "regression/subject.h"
#include "regression/tap.h"
#include "regression/tap_mpi.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/save.h"
#include "io/publication.h"
#include "io/safetensors.h"
#include "pass/plan.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EACH = 2, MICRO_BATCHES = 2, STEPS = 4, CUT = 2 };

#define SMALL_PARTS " zero_optimization.stage3_param_persistence_threshold=100 "

static const char *directory; /* of this test, the same on all ranks */

/* ---- a model of one's own ---- */

enum { IN = 6, HIDDEN = 40, OUT = 5 };

static void write_own(ts_builder *b, void *user) {
  const int64_t *hidden = user;
  ts_tid x = ts_builder_input(b, "x", TS_F32, 1, (int64_t[]){IN}, 0);
  ts_builder_unit(b, "first");
  ts_tid h = ts_builder_activation(b, "act", ts_builder_linear(b, "in", x, *hidden, true), TS_ACTIVATION_GELU);
  ts_builder_unit(b, "second");
  ts_builder_output(b, "y", ts_builder_linear(b, "out", h, OUT, true));
}

static int64_t hidden = HIDDEN, narrow = HIDDEN - 8;
static const ts_own_model own = {"two_layers", write_own, &hidden}, other = {"narrower", write_own, &narrow};

static const char own_deck[] = "model = { model_type = \"own\"; };\n"
                               "run = { directory = \"none\"; seed = 5; threads = 1; };\n"
                               "optimizer = { type = \"AdamW\"; params = { lr = 1e-2; }; };\n"
                               "scheduler = { type = \"WarmupLR\"; params = { warmup_num_steps = 4; }; };\n";

/* ---- engines ---- */

static subject open_small(ts_world *world, const char *text, const char *sets, unsigned abilities) {
  const bool is_own = text == own_deck;
  char *all = ts_format("train_batch_size=%d train_micro_batch_size_per_gpu=%d gradient_accumulation_steps=%d %s",
                        EACH * MICRO_BATCHES * ts_world_size(world), EACH, MICRO_BATCHES, sets);
  subject s = open_subject(world, text, strstr(sets, "train_batch_size") ? sets : all, abilities, is_own ? &own : NULL);
  ts_free(all);
  return s;
}

static void refused(ts_status status, ts_error *err, const char *rule) {
  tap_ok_all(MPI_COMM_WORLD, status == TS_BAD_INPUT && err->count > 0 && strstr(err->text, rule) != NULL, "%s",
             err->count > 0 ? err->text : "nothing is refused");
  ts_error_clear(err);
}

/* A path below the test's directory; valid for some calls. */
static const char *in(const char *name) {
  static char path[4][512];
  static int at;
  char *to = path[at++ % 4];
  snprintf(to, sizeof path[0], "%s/%s", directory, name);
  return to;
}

static void set_inputs(const subject *s, const ts_batch *batch, int m) {
  ts_error err = {0};
  for (int i = 0; batch != NULL && i < TS_N_INPUTS; ++i) {
    size_t bytes = ts_batch_bytes(batch, (ts_input_kind) i) * EACH;
    if ((ts_engine_inputs(s->engine) >> i & 1) != 0) {
      const char *name = ts_input_get((ts_input_kind) i)->name;
      must(ts_set_input(s->engine, name, (char *) batch->input[i] + bytes * (size_t) m, &err), &err);
    }
  }
}

/* Numbers of the step, micro-batch and rank alone. */
static void fill(float *value, int n, int64_t step, int m, int rank) {
  for (int i = 0; i < n; ++i) {
    value[i] = (float) ((((step * 7 + m) * 5 + rank) * 31 + i * 17) % 29) / 29 - 0.5f;
  }
}

static void go_forward_and_back(const subject *s, const ts_batch *batch, int64_t step, int m) {
  ts_error err = {0};
  float x[EACH * IN], gradient[EACH * OUT];
  if (batch == NULL) {
    fill(x, EACH * IN, step, m, ts_world_rank(s->world));
    must(ts_set_input(s->engine, "x", x, &err), &err);
  }
  set_inputs(s, batch, m);
  must(ts_forward(s->engine, &err), &err);
  if (batch == NULL) {
    must(ts_get_output(s->engine, "y", gradient, &err), &err);
    ts_scale(s->engine, 0);
    must(ts_backward_from(s->engine, "y", gradient, &err), &err);
  } else {
    must(ts_backward(s->engine, 1, &err), &err);
  }
}

typedef struct course {
  ts_step_result step[STEPS];
  uint64_t digest;
} course;

/* Steps [from, to) by hand. */
static void go(const subject *s, int from, int to, course *c) {
  ts_error err = {0};
  for (int step = from; step < to; ++step) {
    ts_batch *batch = ts_deck_model_is_own(s->deck) ? NULL : train_run_batch(s->engine, s->deck, step);
    for (int m = 0; m < MICRO_BATCHES; ++m) {
      go_forward_and_back(s, batch, step, m);
      must(ts_step(s->engine, &c->step[step], &err), &err);
    }
    ts_batch_destroy(&batch);
  }
  c->digest = train_run_digest(s->engine);
}

static bool goes_alike(const course *a, const course *b, int from) {
  bool same = a->digest == b->digest;
  for (int i = from; i < STEPS; ++i) {
    const ts_step_result *x = &a->step[i], *y = &b->step[i];
    same = same && memcmp(&x->grad_norm, &y->grad_norm, sizeof x->grad_norm) == 0 && x->lr == y->lr &&
           x->loss_scale == y->loss_scale && (x->loss == y->loss || (x->loss != x->loss && y->loss != y->loss));
  }
  return same;
}

/* ---- going on ---- */

static const unsigned by_hand = TS_CAN_TRAIN | TS_CAN_STEP | TS_CAN_SEED | TS_CAN_DEFER;

static unsigned abilities_of(const char *text) {
  return text == own_deck ? TS_CAN_STEP | TS_CAN_SEED : TS_CAN_STEP;
}

/* One that has gone another way before, so what is not loaded shows. */
static course go_on(ts_world *world, const char *text, const char *sets, const char *run, const char *tag) {
  subject s = open_small(world, text, sets, abilities_of(text));
  course c = {0};
  ts_error err = {0};
  char *loaded;
  go(&s, 3, 4, &c);
  must(ts_load_checkpoint(s.engine, run, tag, NULL, &loaded, NULL, NULL, &err), &err);
  TS_CHECK(loaded != NULL, "%s has no %s", run, tag);
  ts_free(loaded);
  go(&s, CUT, STEPS, &c);
  close_subject(&s);
  return c;
}

static void test_going_on(ts_world *world, const char *what, const char *text, const char *sets) {
  subject s = open_small(world, text, sets, abilities_of(text));
  char *run = ts_strdup(in(what));
  course whole = {0};
  ts_error err = {0};
  go(&s, 0, CUT, &whole);
  must(ts_save_checkpoint(s.engine, run, NULL, NULL, 0, &err), &err);
  go(&s, CUT, STEPS, &whole);
  close_subject(&s);
  course again = go_on(world, text, sets, run, "step_00000002");
  tap_ok_all(MPI_COMM_WORLD, goes_alike(&whole, &again, CUT), "%s: goes on to the bits of what never stopped", what);
  ts_free(run);
}

/* ---- other grids ---- */

static uint64_t digest_loaded(ts_world *world, const char *sets, const char *run) {
  subject s = open_small(world, train_run_llama, sets, TS_CAN_TRAIN);
  ts_error err = {0};
  must(ts_load_checkpoint(s.engine, run, NULL, NULL, NULL, NULL, NULL, &err), &err);
  uint64_t digest = train_run_digest(s.engine);
  close_subject(&s);
  return digest;
}

static void test_grids(ts_world *world) {
  ts_world *alone = ts_world_alone(world);
  subject s = open_small(world, train_run_llama, "zero_optimization.stage=2", TS_CAN_TRAIN);
  ts_error err = {0};
  train_run_step(s.engine, s.deck, 0);
  must(ts_save_checkpoint(s.engine, in("grid"), NULL, NULL, 0, &err), &err);
  uint64_t digest = train_run_digest(s.engine);
  close_subject(&s);
  uint64_t here = digest_loaded(world, "zero_optimization.stage=3" SMALL_PARTS, in("grid"));
  uint64_t there = digest_loaded(alone, "zero_optimization.stage=0", in("grid"));
  tap_ok_all(MPI_COMM_WORLD, here == digest && there == digest, "another stage, and one rank alone, load it");
  if (ts_world_rank(world) == 0) {
    s = open_small(alone, train_run_llama, "zero_optimization.stage=0", TS_CAN_TRAIN);
    train_run_step(s.engine, s.deck, 1);
    must(ts_save_checkpoint(s.engine, in("alone"), "mine", NULL, 0, &err), &err);
    digest = train_run_digest(s.engine);
    close_subject(&s);
  }
  tap_barrier(MPI_COMM_WORLD);
  here = digest_loaded(world, "zero_optimization.stage=3", in("alone"));
  tap_ok_all(MPI_COMM_WORLD, ts_world_rank(world) != 0 || here == digest, "what one rank saved all of them load");
  ts_world_destroy(&alone);
}

/* ---- bytes of the program ---- */

static bool comes_back(subject *s, const char *tag, const char *bytes, size_t n) {
  ts_error err = {0};
  char *back = (char *) "x", *loaded;
  size_t n_back = 77;
  const char *given = ts_world_rank(s->world) == 0 ? bytes : NULL; /* rank 0's counts */
  must(ts_save_checkpoint(s->engine, in("blobs"), tag, given, n, &err), &err);
  must(ts_load_checkpoint(s->engine, in("blobs"), tag, NULL, &loaded, &back, &n_back, &err), &err);
  char *place = ts_tag_directory(in("blobs"), tag, "");
  bool same = loaded != NULL && strcmp(loaded, place) == 0;
  same = same && (bytes == NULL ? back == NULL && n_back == 0
                                : back != NULL && n_back == n && memcmp(back, bytes, n) == 0 && back[n] == 0);
  ts_free(place);
  ts_free(loaded);
  ts_free(back);
  return same;
}

static void test_blobs(ts_world *world) {
  const size_t large = (size_t) 1 << 20;
  subject s = open_small(world, own_deck, "", TS_CAN_STEP | TS_CAN_SEED);
  char *bytes = ts_malloc(large);
  for (size_t i = 0; i < large; ++i) {
    bytes[i] = (char) (i * i * 7 + i / 251);
  }
  tap_ok_all(MPI_COMM_WORLD, comes_back(&s, "none", NULL, 0), "no bytes: none come back");
  tap_ok_all(MPI_COMM_WORLD, comes_back(&s, "empty", bytes, 0), "0 bytes are not none");
  tap_ok_all(MPI_COMM_WORLD, comes_back(&s, "large", bytes, large), "1 MiB of all bytes, on every rank");
  tap_ok_all(MPI_COMM_WORLD, comes_back(&s, "large", bytes, 3), "the same tag again: others");
  ts_free(bytes);
  close_subject(&s);
}

/* ---- names ---- */

static void test_tags(ts_world *world) {
  subject s = open_small(world, own_deck, "", TS_CAN_STEP | TS_CAN_SEED);
  course c = {0};
  ts_error err = {0};
  char *loaded, *run = ts_strdup(in("tags"));
  static const char *const bad[] = {"",       "a/b",     "..",         ".",       "../tags",
                                    "/etc",   ".hidden", "-f",         "x.tmp",   "step_00000001.aside",
                                    "latest", "a b",     "line\nline", "caf\xe9", "step_00000007",
                                    "step_1"};
  must(ts_load_checkpoint(s.engine, run, NULL, NULL, &loaded, NULL, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, loaded == NULL, "a directory that is not there: nothing is loaded, and that is no error");
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    bool rejected = ts_save_checkpoint(s.engine, run, bad[i], NULL, 0, &err) == TS_BAD_INPUT && err.count == 1 &&
                    access(run, F_OK) != 0;
    tap_ok_all(MPI_COMM_WORLD, rejected, "refused: %s", err.count > 0 ? err.text : bad[i]);
    ts_error_clear(&err);
  }
  refused(ts_save_checkpoint(s.engine, "", NULL, NULL, 0, &err), &err, "the directory has no name");
  refused(ts_load_checkpoint(s.engine, run, "a/../b", NULL, NULL, NULL, NULL, &err), &err, "no name of a checkpoint");
  go(&s, 0, 1, &c);
  uint64_t first = c.digest;
  must(ts_save_checkpoint(s.engine, run, "best-0.1_A", NULL, 0, &err), &err);
  go(&s, 1, 2, &c);
  must(ts_save_checkpoint(s.engine, run, NULL, NULL, 0, &err), &err);
  uint64_t second = c.digest;
  must(ts_load_checkpoint(s.engine, run, "best-0.1_A", NULL, NULL, NULL, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, train_run_digest(s.engine) == first, "a tag is what was saved under it");
  must(ts_load_checkpoint(s.engine, run, NULL, NULL, &loaded, NULL, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, train_run_digest(s.engine) == second && ts_ends_in(loaded, "/step_00000002"),
             "without one it is the last: %s", loaded);
  ts_free(loaded);
  refused(ts_load_checkpoint(s.engine, run, "worst", NULL, NULL, NULL, NULL, &err), &err,
          "there are step_00000002, best-0.1_A");
  must(ts_load_checkpoint(s.engine, run, "best-0.1_A", NULL, NULL, NULL, NULL, &err), &err);
  must(ts_save_checkpoint(s.engine, run, "again", NULL, 0, &err), &err);
  must(ts_load_checkpoint(s.engine, run, NULL, NULL, &loaded, NULL, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, ts_ends_in(loaded, "/again") && ts_latest_verify(run, &err) == TS_OK,
             "who goes back and saves is found there again: %s", loaded);
  ts_free(loaded);
  must(ts_load_checkpoint(s.engine, in("tags/again"), NULL, NULL, &loaded, NULL, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, ts_ends_in(loaded, "tags/again"), "a checkpoint itself");
  ts_free(loaded);
  if (ts_world_rank(world) == 0) { /* what a user has in the way */
    TS_CHECK(ts_make_directory(in("tags/mine"), NULL) == TS_OK && ts_make_directory(in("tags/x.tmp"), NULL) == TS_OK &&
                 ts_write_file(in("tags/x.tmp/thesis"), "a", 1, NULL) == TS_OK &&
                 ts_make_directory(in("tags/y.tmp"), NULL) == TS_OK &&
                 ts_write_file(in("tags/y.tmp/shard_00000.h5"), "a", 1, NULL) == TS_OK,
             "files");
  }
  tap_barrier(MPI_COMM_WORLD);
  refused(ts_save_checkpoint(s.engine, run, "mine", NULL, 0, &err), &err, "is there already and no checkpoint");
  refused(ts_save_checkpoint(s.engine, run, "x", NULL, 0, &err), &err,
          "not what an interrupted save left: it has thesis");
  tap_ok_all(MPI_COMM_WORLD, access(in("tags/x.tmp/thesis"), F_OK) == 0, "and stays as it was");
  must(ts_save_checkpoint(s.engine, run, "y", NULL, 0, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, access(in("tags/y.tmp"), F_OK) != 0, "half of a save that died goes");
  close_subject(&s);
  ts_free(run);
}

/* ---- what is taken ---- */

static void test_options(ts_world *world) {
  subject s = open_small(world, own_deck, "", TS_CAN_STEP | TS_CAN_SEED);
  course c = {0}, fresh = {0};
  ts_error err = {0};
  char *run = ts_strdup(in("options"));
  go(&s, 0, 2, &c);
  const double lr_2 = ts_learning_rate(s.engine);
  must(ts_save_checkpoint(s.engine, run, "two", NULL, 0, &err), &err);
  uint64_t two = c.digest;
  go(&s, 2, 3, &c);
  const double lr_3 = ts_learning_rate(s.engine);
  must(ts_load_checkpoint(s.engine, run, "two", &(ts_load_options){.module_only = true}, NULL, NULL, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, train_run_digest(s.engine) == two && ts_learning_rate(s.engine) == lr_3 && lr_2 != lr_3,
             "module_only: the parameters, and the rate of the engine");
  go(&s, 3, 4, &c);
  uint64_t other_moments = c.digest;
  ts_load_options options = {.no_optimizer_states = true, .no_lr_schedule = true};
  must(ts_load_checkpoint(s.engine, run, "two", &options, NULL, NULL, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, train_run_digest(s.engine) == two && ts_learning_rate(s.engine) > lr_3,
             "no_lr_schedule: the schedule stays");
  options.no_lr_schedule = false;
  must(ts_load_checkpoint(s.engine, run, "two", &options, NULL, NULL, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, ts_learning_rate(s.engine) == lr_2, "else it is the checkpoint's");
  go(&s, 3, 4, &c);
  close_subject(&s);
  s = open_small(world, own_deck, "", TS_CAN_STEP | TS_CAN_SEED); /* moments of 0, parameters of the checkpoint */
  must(ts_load_checkpoint(s.engine, run, "two", &options, NULL, NULL, NULL, &err), &err);
  go(&s, 3, 4, &fresh);
  tap_ok_all(MPI_COMM_WORLD, fresh.digest == c.digest && c.digest != other_moments,
             "no_optimizer_states: the optimizer begins anew, whatever the engine did before");
  must(ts_load_checkpoint(s.engine, run, "two", NULL, NULL, NULL, NULL, &err), &err);
  must(ts_save_checkpoint(s.engine, run, NULL, NULL, 0, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, access(in("options/step_00000002/manifest"), F_OK) == 0,
             "steps are counted on from there");
  close_subject(&s);
  s = open_small(world, own_deck, "", TS_CAN_EVALUATE);
  must(ts_load_checkpoint(s.engine, run, "two", NULL, NULL, NULL, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, train_run_digest(s.engine) == two, "an engine that does not train takes the parameters");
  refused(ts_save_checkpoint(s.engine, run, NULL, NULL, 0, &err), &err, "without TS_CAN_TRAIN");
  close_subject(&s);
  ts_free(run);
}

/* ---- whose turn it is ---- */

static void test_turns(ts_world *world) {
  subject s = open_small(world, own_deck, "", by_hand & ~(unsigned) TS_CAN_TRAIN);
  ts_error err = {0};
  course c = {0}, wanted = {0};
  const char *run = "unused";
  must(ts_no_sync_begin(s.engine, &err), &err);
  refused(ts_save_checkpoint(s.engine, run, NULL, NULL, 0, &err), &err, "not inside of ts_no_sync");
  refused(ts_load_checkpoint(s.engine, run, NULL, NULL, NULL, NULL, NULL, &err), &err, "not inside of ts_no_sync");
  must(ts_no_sync_end(s.engine, &err), &err);
  go_forward_and_back(&s, NULL, 0, 0);
  refused(ts_save_checkpoint(s.engine, run, NULL, NULL, 0, &err), &err, "the step has gradients, which are not saved");
  must(ts_step(s.engine, NULL, &err), &err);
  must(ts_zero_grad(s.engine, &err), &err);
  must(ts_save_checkpoint(s.engine, in("turns"), "half", NULL, 0, &err), &err);
  bool half = ts_is_gradient_accumulation_boundary(s.engine);
  go_forward_and_back(&s, NULL, 0, 1);
  must(ts_step(s.engine, &wanted.step[0], &err), &err);
  tap_ok_all(MPI_COMM_WORLD, half && ts_was_step_applied(s.engine), "the second of two micro-steps is the last");
  must(ts_load_checkpoint(s.engine, in("turns"), "half", NULL, NULL, NULL, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, ts_is_gradient_accumulation_boundary(s.engine), "also of an engine that loads it");
  must(ts_zero_grad(s.engine, &err), &err);
  go_forward_and_back(&s, NULL, 0, 1);
  must(ts_step(s.engine, &c.step[0], &err), &err);
  tap_ok_all(MPI_COMM_WORLD, c.step[0].grad_norm == wanted.step[0].grad_norm, "and goes on as it did");
  go_forward_and_back(&s, NULL, 1, 0);
  must(ts_load_checkpoint(s.engine, in("turns"), "half", NULL, NULL, NULL, NULL, &err), &err);
  refused(ts_step(s.engine, NULL, &err), &err, "there is no gradient");
  close_subject(&s);
}

/* ---- what cannot be ---- */

static void flip_byte(const char *path) {
  FILE *file = fopen(path, "r+b");
  TS_CHECK(file != NULL && fseek(file, -100, SEEK_END) == 0, "%s", path);
  int c = fgetc(file);
  TS_CHECK(fseek(file, -1, SEEK_CUR) == 0 && fputc(c ^ 1, file) != EOF && fclose(file) == 0, "%s", path);
}

/* The same words on every rank. */
static void refused_alike(ts_status status, ts_error *err, const char *rule) {
  uint64_t hash = err->count > 0 ? ts_hash_name(err->text) : 0, first = hash;
  MPI_Bcast(&first, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  tap_ok_all(MPI_COMM_WORLD, hash == first, "every rank has the same message");
  refused(status, err, rule);
}

static void test_damage(ts_world *world) {
  subject s = open_small(world, own_deck, "zero_optimization.stage=1", TS_CAN_STEP | TS_CAN_SEED);
  course c = {0};
  ts_error err = {0};
  char *run = ts_strdup(in("damage")), *loaded;
  go(&s, 0, 1, &c);
  uint64_t first = c.digest;
  must(ts_save_checkpoint(s.engine, run, NULL, "one", 3, &err), &err);
  go(&s, 1, 2, &c);
  must(ts_save_checkpoint(s.engine, run, NULL, "two", 3, &err), &err);
  go(&s, 2, 3, &c);
  char *shard = ts_format("%s/step_00000002/shard_%05d.h5", run, ts_world_size(world) - 1);
  if (ts_world_rank(world) == 0) {
    flip_byte(shard);
  }
  tap_barrier(MPI_COMM_WORLD);
  refused_alike(ts_load_checkpoint(s.engine, run, "step_00000002", NULL, NULL, NULL, NULL, &err), &err, "damaged");
  tap_ok_all(MPI_COMM_WORLD, train_run_digest(s.engine) == c.digest, "the engine is as it was");
  must(ts_load_checkpoint(s.engine, run, NULL, NULL, &loaded, NULL, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, ts_ends_in(loaded, "/step_00000001") && train_run_digest(s.engine) == first,
             "without a tag the one before is taken: %s", loaded);
  ts_free(loaded);
  char *client = ts_format("%s/step_00000001/" TS_CLIENT_FILE, run);
  if (ts_world_rank(world) == 0) {
    TS_CHECK(ts_write_file(client, "oni", 3, NULL) == TS_OK, "%s", client);
  }
  tap_barrier(MPI_COMM_WORLD);
  refused_alike(ts_load_checkpoint(s.engine, run, NULL, NULL, NULL, NULL, NULL, &err), &err,
                TS_CLIENT_FILE ": damaged");
  ts_free(client);
  ts_free(shard);
  ts_free(run);
  close_subject(&s);
}

/* A model of other shapes, a directory below a file, a disk that is full. */
static void test_refusals(ts_world *world) {
  subject s = open_small(world, own_deck, "", TS_CAN_STEP | TS_CAN_SEED);
  ts_error err = {0};
  must(ts_save_checkpoint(s.engine, in("refusals"), "a", NULL, 0, &err), &err);
  const ts_engine_options options = {
      .world = world, .deck = s.deck, .abilities = TS_CAN_STEP | TS_CAN_SEED, .model = &other};
  ts_engine *engine;
  must(ts_engine_create(&options, &engine, &err), &err);
  refused_alike(ts_load_checkpoint(engine, in("refusals"), "a", NULL, NULL, NULL, NULL, &err), &err,
                "is of another model: first.in.");
  ts_engine_destroy(&engine);
  if (ts_world_rank(world) == 0) {
    TS_CHECK(ts_write_file(in("file"), "a", 1, NULL) == TS_OK, "file");
  }
  tap_barrier(MPI_COMM_WORLD);
  refused_alike(ts_save_checkpoint(s.engine, in("file/run"), NULL, NULL, 0, &err), &err, "file");
  refused_alike(ts_save_16bit_model(s.engine, in("file/run"), NULL, false, NULL, &err), &err, "file");
  ts_publication_set_test_space(1000);
  refused_alike(ts_save_checkpoint(s.engine, in("refusals"), "b", NULL, 0, &err), &err, "make room");
  ts_publication_set_test_space(-1);
  ts_publication_set_test_failure(ts_world_rank(world) == 0 ? 6 : 0, 1000, ENOSPC);
  refused_alike(ts_save_checkpoint(s.engine, in("refusals"), "b", NULL, 0, &err), &err, strerror(ENOSPC));
  ts_publication_set_test_failure(0, 0, 0);
  char *loaded;
  must(ts_load_checkpoint(s.engine, in("refusals"), NULL, NULL, &loaded, NULL, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, ts_ends_in(loaded, "/a"), "what was there before is there");
  ts_free(loaded);
  must(ts_save_checkpoint(s.engine, in("refusals"), "b", NULL, 0, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, ts_latest_verify(in("refusals"), &err) == TS_OK, "and the next save is well");
  close_subject(&s);
}

/* What `tessera train` saves. */
static void test_of_train(ts_world *world) {
  char *sets = ts_format("run.directory=%s", in("train"));
  subject s = open_small(world, train_run_llama, sets, TS_CAN_TRAIN);
  ts_error err = {0};
  must(ts_make_directory(in("train"), &err), &err);
  ts_saver *saver = ts_saver_create(s.engine);
  train_run_step(s.engine, s.deck, 0);
  uint64_t digest = train_run_digest(s.engine);
  ts_saver_begin(saver, &(ts_position){.step = 1, .samples = s.deck->train_batch_size});
  bool saved = ts_saver_finish(saver);
  ts_saver_destroy(&saver);
  train_run_step(s.engine, s.deck, 1);
  char *client, *loaded;
  must(ts_load_checkpoint(s.engine, in("train"), NULL, NULL, &loaded, &client, NULL, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, saved && client == NULL && train_run_digest(s.engine) == digest,
             "a checkpoint of a training run loads, and has no bytes of a program");
  ts_free(loaded);
  must(ts_save_checkpoint(s.engine, in("train"), "copy", NULL, 0, &err), &err);
  close_subject(&s);
  ts_free(sets);
}

/* ---- the model as one file ---- */

/* Tensors of the file: each parameter's masters, rounded once. */
static int count_wrong(ts_engine *e, const ts_safetensors *st, ts_dtype dtype, const char *without) {
  const ts_layout *layout = ts_engine_layout(e);
  int wrong = 0;
  for (int i = 0; i < layout->n_parameters; ++i) {
    const ts_parameter *p = &layout->parameter[i];
    const ts_safetensor *t = ts_safetensors_find(st, p->name);
    size_t count = (size_t) ts_shape_count(&p->shape), bytes = count * ts_dtype_size(dtype);
    float *master = ts_malloc(count * sizeof *master);
    char *rounded = ts_malloc(bytes);
    ts_error err = {0};
    must(ts_get_full_fp32_parameter(e, p->name, master, &err), &err);
    ts_convert(rounded, dtype, master, TS_F32, count);
    bool left_out = without != NULL && strstr(p->name, without) != NULL;
    wrong += left_out ? t != NULL
                      : t == NULL || t->dtype != dtype || t->n_dims != p->shape.n || t->bytes != bytes ||
                            memcmp(t->shape, p->shape.d, (size_t) t->n_dims * sizeof *t->shape) != 0 ||
                            memcmp(t->data, rounded, bytes) != 0;
    ts_free(master);
    ts_free(rounded);
  }
  return wrong;
}

static void test_16bit(ts_world *world, const char *text, ts_dtype dtype, const char *sets, const char *without) {
  subject s = open_small(world, text, sets, text == own_deck ? TS_CAN_STEP | TS_CAN_SEED : TS_CAN_TRAIN);
  ts_error err = {0};
  ts_safetensors *st;
  course c = {0};
  if (text == own_deck) {
    go(&s, 0, 1, &c);
  } else {
    train_run_step(s.engine, s.deck, 0);
  }
  char *to = ts_format("%s/%s", in("16bit"), text == own_deck ? "own" : "family");
  bool saved = false;
  must(ts_save_16bit_model(s.engine, to, NULL, without != NULL, &saved, &err), &err);
  tap_barrier(MPI_COMM_WORLD);
  must(ts_safetensors_open(to, &st, &err), &err);
  int wrong = count_wrong(s.engine, st, dtype, without);
  tap_ok_all(MPI_COMM_WORLD, saved && wrong == 0 && ts_has_file(to, "config.json") == (text != own_deck),
             "one file, %s: the masters in %s%s, %d tensors", sets, ts_dtype_name(dtype),
             without != NULL ? ", without what is frozen" : "", ts_safetensors_count(st));
  ts_safetensors_close(&st);
  ts_free(to);
  close_subject(&s);
}

/* Rank 0's file may not grow beyond some bytes: an older one stays, and the others do not wait for ever. */
static void test_16bit_full(ts_world *world) {
  subject s = open_small(world, train_run_llama, "zero_optimization.stage=1", TS_CAN_TRAIN);
  ts_error err = {0};
  must(ts_save_16bit_model(s.engine, in("full"), "kept.safetensors", false, NULL, &err), &err);
  struct stat before, after;
  struct rlimit old, small;
  char *kept = ts_strdup(in("full/kept.safetensors"));
  tap_barrier(MPI_COMM_WORLD);
  getrlimit(RLIMIT_FSIZE, &old);
  small = (struct rlimit){20000, old.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  TS_CHECK(stat(kept, &before) == 0, "%s", kept);
  if (ts_world_rank(world) == 0) {
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ts_status status = ts_save_16bit_model(s.engine, in("full"), "kept.safetensors", false, NULL, &err);
  setrlimit(RLIMIT_FSIZE, &old);
  refused_alike(status, &err, "kept.safetensors: cannot be written: ");
  tap_ok_all(MPI_COMM_WORLD,
             stat(kept, &after) == 0 && after.st_ino == before.st_ino && after.st_size > 20000 &&
                 access(in("full/kept.safetensors.tmp"), F_OK) != 0,
             "the older file is as it was, and nothing is left");
  close_subject(&s);
  ts_free(kept);
}

static void test_16bit_refusals(ts_world *world) {
  subject s = open_small(world, own_deck, "zero_optimization.stage=3", TS_CAN_STEP | TS_CAN_SEED);
  ts_error err = {0};
  bool saved = true;
  must(ts_save_16bit_model(s.engine, in("not"), NULL, false, &saved, &err), &err);
  tap_ok_all(MPI_COMM_WORLD, !saved && access(in("not"), F_OK) != 0,
             "stage 3 without stage3_gather_16bit_weights_on_model_save: not saved, and no error");
  static const char *const bad[] = {"", "pytorch_model.bin", "../model.safetensors", "a/b.safetensors", ".safetensors"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    refused(ts_save_16bit_model(s.engine, in("not"), bad[i], false, &saved, &err), &err, "ends in .safetensors");
  }
  close_subject(&s);
}

/* ---- frozen parameters ---- */

/* Nothing of an optimizer and no gradient is planned for them. */
static void test_frozen(ts_world *world) {
  const char *frozen = "bf16.enabled=true frozen=[\"mlp\"]";
  subject all = open_small(world, train_run_llama, "bf16.enabled=true", TS_CAN_TRAIN);
  subject some = open_small(world, train_run_llama, frozen, TS_CAN_TRAIN);
  const ts_plan *a = ts_engine_program(all.engine)->plan, *b = ts_engine_program(some.engine)->plan;
  const ts_layout *layout = ts_engine_layout(some.engine);
  double left = (double) ts_layout_parameter_count(layout, true) / (double) ts_layout_parameter_count(layout, false);
  double optimizer = (double) b->bytes[TS_PURPOSE_OPTIMIZER] / (double) a->bytes[TS_PURPOSE_OPTIMIZER];
  double gradient = (double) b->bytes[TS_PURPOSE_GRADIENT] / (double) a->bytes[TS_PURPOSE_GRADIENT];
  /* alignment: 32 elements a parameter of some hundred, the shards of as many parts */
  tap_ok_all(MPI_COMM_WORLD, optimizer < left + 0.05 && gradient < left + 0.05 && left < 0.7,
             "%.0f %% of the parameters are trained: %.0f %% of the optimizer's memory, %.0f %% of the gradients'",
             100 * left, 100 * optimizer, 100 * gradient);
  close_subject(&all);
  close_subject(&some);
  test_16bit(world, train_run_llama, TS_BF16, frozen, "mlp");
}

static void test_16bit_everywhere(ts_world *world) {
  for (int stage = 0; stage <= 3; ++stage) {
    char *sets = ts_format("bf16.enabled=true zero_optimization.stage=%d%s"
                           "zero_optimization.stage3_gather_16bit_weights_on_model_save=true",
                           stage, SMALL_PARTS);
    test_16bit(world, train_run_llama, TS_BF16, sets, NULL);
    ts_free(sets);
  }
  test_16bit(world, train_run_gpt2, TS_F16, "fp16.enabled=true", NULL);
  test_16bit(world, own_deck, TS_F32, "zero_optimization.stage=2", NULL);
  if (ts_world_size(world) > 1) {
    char *sets = ts_format("bf16.enabled=true tensor_parallel.autotp_size=2 train_batch_size=%d "
                           "zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=100 "
                           "zero_optimization.stage3_gather_16bit_weights_on_model_save=true",
                           2 * ts_world_size(world));
    test_16bit(world, train_run_llama, TS_BF16, sets, NULL);
    ts_free(sets);
  }
}

/* A deck that a script has written, after a step. */
static int leave(ts_world *world, char **words) {
  ts_error err = {0};
  char *text;
  size_t length;
  bool is_own = strcmp(words[0], "own") == 0;
  must(is_own ? TS_OK : ts_read_file(words[0], 1 << 20, &text, &length, &err), &err);
  subject s = open_small(world, is_own ? own_deck : text, "", is_own ? TS_CAN_STEP | TS_CAN_SEED : TS_CAN_TRAIN);
  course c = {0};
  if (is_own) {
    go(&s, 0, 1, &c);
  } else {
    train_run_step(s.engine, s.deck, 0);
    ts_free(text);
  }
  must(ts_save_checkpoint(s.engine, words[1], "best", "client", 6, &err), &err);
  close_subject(&s);
  return 0;
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  if (argc == 4 && strcmp(argv[1], "leave") == 0) {
    int code = leave(world, argv + 2);
    ts_world_destroy(&world);
    return code;
  }
  ts_log_configure(TS_LOG_ERROR, ts_world_rank(world) == 0);
  char *path = ts_strdup(tap_directory_all(MPI_COMM_WORLD));
  directory = path;
  test_going_on(world, "llama, bf16, stage 2", train_run_llama, "bf16.enabled=true zero_optimization.stage=2");
  test_going_on(world, "gpt2, fp16, stage 1", train_run_gpt2, "fp16.enabled=true zero_optimization.stage=1");
  test_going_on(world, "own, stage 0", own_deck, "");
  test_going_on(world, "own, bf16, stage 3", own_deck, "bf16.enabled=true zero_optimization.stage=3" SMALL_PARTS);
  test_grids(world);
  test_blobs(world);
  test_tags(world);
  test_options(world);
  test_turns(world);
  test_damage(world);
  test_refusals(world);
  test_of_train(world);
  test_16bit_everywhere(world);
  test_16bit_full(world);
  test_16bit_refusals(world);
  test_frozen(world);
  int status = tap_done_all(MPI_COMM_WORLD);
  ts_free(path);
  ts_world_destroy(&world);
  return status;
}
