/** \file
 * A pipeline's pieces: which units of the model are in which of them, and who has it.  The pass of the same name leaves
 * of the model what this rank's pieces are, and adds the messages between them; the layout and the plan ask the table.
 * None of these functions is collective.
 */
#ifndef TS_PASS_STAGE_H
#define TS_PASS_STAGE_H

#include "comm/mesh.h"
#include "deck/deck.h"
#include "graph/graph.h"
#include "pass/pipeline.h"

/** A parameter that two pieces read: the one that has its unit, and another one. */
typedef struct ts_tied {
  char *name; /**< Owned. */
  int piece;  /**< The other. */
} ts_tied;

typedef struct ts_stages {
  ts_pipeline pipeline; /**< Of training; its stages are the ranks along pp. */
  int n_units;
  int *piece;    /**< Owned: of each unit of the model, ascending. */
  double *time;  /**< Owned: what each piece is planned to take, forward and backward, in a unit of its own. */
  ts_tied *tied; /**< Owned. */
  int n_tied, tied_capacity;
} ts_stages;

/** The pipeline that a deck asks for: its schedule, stages, chunks and micro-batches. Not collective. */
ts_pipeline ts_deck_pipeline(const ts_deck *deck, const ts_mesh *mesh);

/** Can the model be cut so, and does the schedule take it? Not collective.
 * \param [in] model   The model's graph, before any pass.
 * \param [in] trains  With as many micro-batches as the deck has.
 * \return TS_BAD_INPUT with the key of the deck. */
ts_status ts_stages_check(const ts_graph *model, const ts_deck *deck, const ts_mesh *mesh, bool trains, ts_error *err);

/** Cut the model. Not collective.
 * \return NULL where there is one piece; end with ts_stages_destroy. */
ts_stages *ts_stages_create(const ts_graph *model, const ts_deck *deck, const ts_mesh *mesh);

/** Where the deck cuts a model's units, of as many pieces or more. Not collective.
 * \param [out] cuts  [pieces + 1] */
void ts_stage_cuts(const ts_graph *model, const ts_deck *deck, int pieces, int *cuts);

/** What each unit's forward and backward are planned to take, in a unit of their own: the more of what its products
 * compute and what its nodes move. Not collective.
 * \param [in,out] time  By unit: added to. */
void ts_stage_times(const ts_graph *model, double *time);

/** Is what the deck says of the cut possible for this model? Not collective.
 * \return TS_BAD_INPUT with the key. */
ts_status ts_stage_cuts_check(const ts_graph *model, const ts_deck *deck, int pieces, ts_error *err);

/** Free and set to NULL; NULL is allowed. Not collective. */
void ts_stages_destroy(ts_stages **stages);

/** The coordinate along pp of who has the last piece, and so the loss; 0 where \a stages is NULL. Not collective. */
int ts_stages_end(const ts_stages *stages);

/** The coordinate along pp of who has unit \a unit; 0 where \a stages is NULL. Not collective. */
int ts_stages_home(const ts_stages *stages, int unit);

/** The coordinate along pp of who has the other piece that reads a parameter, which may be its home; -1: there is none.
 * Not collective. */
int ts_stages_copy(const ts_stages *stages, const char *parameter);

#endif
