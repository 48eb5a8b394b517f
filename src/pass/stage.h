/** \file
 * A pipeline's pieces: which units of the model are in which of them, and who has it.  The pass of the same name leaves
 * of the model what this rank's pieces are, and adds the messages between them; the layout and the plan ask the table.
 * None of these functions is collective.
 */
#ifndef TS_PASS_STAGE_H
#define TS_PASS_STAGE_H

#include "backend/backend.h"
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
  int *piece; /**< Owned: of each unit of the model, ascending. */
  ts_pipeline_seconds
      *seconds;  /**< Owned: what each piece is planned to take (ts_stage_seconds), on ranks that share it.
                                 */
  ts_tied *tied; /**< Owned. */
  int n_tied, tied_capacity;
} ts_stages;

/** The pipeline that a deck asks for: its schedule, stages, chunks and micro-batches. Not collective. */
ts_pipeline ts_deck_pipeline(const ts_deck *deck, const ts_mesh *mesh);

/** Can the model be cut so, and does the schedule take it? Not collective.
 * \param [in] model   The model's graph, before any pass.
 * \param [in] trains  With as many micro-batches as the deck has.
 * \return TS_BAD_INPUT with the key of the deck. */
ts_status ts_stages_check(const ts_graph *model, const ts_deck *deck, const ts_mesh *mesh, const ts_backend *backend,
                          bool trains, ts_error *err);

/** Cut the model. Not collective.
 * \return NULL where there is one piece; end with ts_stages_destroy. */
ts_stages *ts_stages_create(const ts_graph *model, const ts_deck *deck, const ts_mesh *mesh, const ts_backend *backend);

/** Is pipeline.partition one that is decided by plans ("best", "time", "memory")? Not collective. */
bool ts_stage_cuts_are_decided(const ts_deck *deck);

/** Does pipeline.units say where the units are cut: as many pieces, or another number, which is an error?  Beside
 * pipeline.partition it is what that came to in a run: of another number of pieces it is void, and where another
 * partition is asked for on the command line. Not collective. */
bool ts_stage_cuts_are_listed(const ts_deck *deck, int pieces);

/** Where the deck cuts a model's units, of as many pieces or more; "best" and "memory", which want plans of memory
 * (run/cuts.h), as "time". Not collective.
 * \param [out] cuts  [pieces + 1] */
void ts_stage_cuts(const ts_graph *model, const ts_deck *deck, const ts_backend *backend, int pieces, int *cuts);

/** What each unit is planned to take on one rank (ts_rates_of), of each node the more of what it computes and what it
 * moves.  Backward a product takes as long for inputs as for weights; what makes both in one node, as the head, takes
 * them with inputs; what is computed again in the backward comes to inputs. Not collective.
 * \param [in,out] unit  By unit: added to. */
void ts_stage_seconds(const ts_graph *model, const ts_deck *deck, const ts_backend *backend, ts_pipeline_seconds *unit);

/** Is what the deck says of the cut possible for this model? Not collective.
 * \return TS_BAD_INPUT with the key. */
ts_status ts_stage_cuts_check(const ts_graph *model, const ts_deck *deck, const ts_backend *backend, int pieces,
                              ts_error *err);

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
