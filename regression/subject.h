/** \file
 * What tests of programs with an engine of their own begin with: a deck and an engine on a world, and a stop where a
 * call that has to succeed does not.
 */
#ifndef TS_REGRESSION_SUBJECT_H
#define TS_REGRESSION_SUBJECT_H

#include "regression/train_run.h"

#include "base/memory.h"
#include "comm/comm_join.h"

/* The same test on the stand-in of a GPU, which is a hundred times as slow. */
#ifdef STAND_IN
#define DEVICE "run.device=cuda run.share_device=true run.measure_algorithms=false "
static const bool is_stand_in = true;
#else
#define DEVICE ""
static const bool is_stand_in = false;
#endif

typedef struct subject {
  ts_world *world; /**< Borrowed. */
  ts_deck *deck;
  ts_engine *engine;
} subject;

/** End the test with the message unless \a status is TS_OK. Not collective. */
static inline void must(ts_status status, const ts_error *err) {
  TS_CHECK(status == TS_OK, "%s", err->text);
}

/** The world of a communicator; end with ts_world_destroy. Collective over \a comm. */
static inline ts_world *join(MPI_Comm comm) {
  ts_world *world;
  ts_error err = {0};
  must(ts_world_join(comm, &world, &err), &err);
  return world;
}

/** An engine by the text of a deck and more keys, "key=value key=value"; end with close_subject.
 * \param [in] model  A program's own; NULL: the deck's. Collective over the world. */
static inline subject open_subject(ts_world *world, const char *text, const char *sets, unsigned abilities,
                                   const ts_own_model *model) {
  char *all = ts_format(DEVICE "%s", sets);
  subject s = {.world = world, .deck = train_run_deck(world, text, all)};
  ts_error err = {0};
  ts_free(all);
  must(ts_initialize(model, s.deck, world, abilities, &s.engine, &err), &err);
  return s;
}

/** Collective over the world. */
static inline void close_subject(subject *s) {
  ts_engine_destroy(&s->engine);
  ts_deck_destroy(&s->deck);
}

#endif
