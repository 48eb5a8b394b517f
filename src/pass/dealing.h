/** \file
 * Dealing: which units of an index each rank along an axis has.
 *
 * An index of the model (the heads of a block, the columns of its MLP, the rows of the vocabulary) is a class; its
 * units are what stays together.  Dimensions of tensors are runs of classes: "columns 0 to 767: units of 64 of class
 * 3".  Ops find out which dimensions have one index (classes are united) and what stays together (they are coarsened):
 * a product begins with single columns, attention makes heads of them.  At the end the units of each class are dealt to
 * the ranks in order, earlier ranks get one more; nothing has to divide.
 *
 * Where a class has fewer units than there are ranks, each unit goes to neighbouring ranks (earlier units to one more),
 * who deal its parts among them: query heads of one key head.  Runs that have parts are cut by them; of others such a
 * rank holds the whole unit.
 *
 * None of these functions is collective.
 */
#ifndef TS_PASS_DEALING_H
#define TS_PASS_DEALING_H

#include "base/deal.h"
#include "graph/cut.h"

#define TS_MOST_RUNS 8

/** Elements of a dimension that lie side by side: all units of a class, \a size elements each. */
typedef struct ts_run_of {
  int index;    /**< The class. */
  int64_t size; /**< Elements of one of its units. */
} ts_run_of;

/** A dimension that is dealt: runs one after the other. */
typedef struct ts_dealt {
  int n;
  ts_run_of run[TS_MOST_RUNS];
} ts_dealt;

typedef struct ts_dealing ts_dealing;

/** No classes yet.  End with ts_dealing_destroy, which sets the pointer to NULL; NULL is allowed. Not collective.
 * \param [in] ranks  Along the axis, at least 1. */
ts_dealing *ts_dealing_create(int ranks);
void ts_dealing_destroy(ts_dealing **dealing);

/** A new class of \a units units, which are dealt \a grain at a time as far as nothing else stays together: the last of
 * them may be fewer. Not collective. */
int ts_dealing_add(ts_dealing *dealing, int64_t units, int64_t grain);

/** Let \a size elements of a run stay together. Not collective.
 * \return false: they do not fit into it a whole number of times; nothing has changed. */
bool ts_dealing_coarsen(ts_dealing *dealing, ts_run_of run, int64_t size);

/** Let two runs be cut alike: \a a_size elements of one belong to \a b_size elements of the other, both at least 1.
 * Not collective.
 * \return false: they do not fit; nothing that was dealt alike before is dealt otherwise. */
bool ts_dealing_unite(ts_dealing *dealing, ts_run_of a, int64_t a_size, ts_run_of b, int64_t b_size);

/** Say that each \a size elements of a run are \a parts parts that may be dealt further. Not collective.
 * \return false: what stays together is more than that; the units of its class are then dealt as a whole. */
bool ts_dealing_part(ts_dealing *dealing, ts_run_of run, int64_t size, int64_t parts);

/** True when the units of the run's class have parts, and the run is divided with them. Not collective. */
bool ts_dealing_has_parts(const ts_dealing *dealing, ts_run_of run);

/** The units of the run's class are dealt one by one from now on. Not collective. */
void ts_dealing_drop_grain(ts_dealing *dealing, ts_run_of run);

/** The class has no parts any more: something that is cut along it has none. Not collective. */
void ts_dealing_forbid_parts(ts_dealing *dealing, ts_run_of run);

/** A run that \a size elements of \a run stand for each, as \a of elements of another dimension: the run over there.
 * Not collective. */
ts_run_of ts_dealing_scale(const ts_dealing *dealing, ts_run_of run, int64_t size, int64_t of);

/** True when every rank gets something of the run's class. Not collective. */
bool ts_dealing_reaches(const ts_dealing *dealing, ts_run_of run);

/** True when the run has whole units that several ranks hold alike. Not collective. */
bool ts_dealing_is_shared(const ts_dealing *dealing, ts_run_of run);

/** The same of a dimension: one of its runs is. Not collective. */
bool ts_dealt_is_shared(const ts_dealing *dealing, const ts_dealt *dealt);

/** True when ranks have parts of the run's units. Not collective. */
bool ts_dealing_is_parted(const ts_dealing *dealing, ts_run_of run);

/** Elements of a run, over all ranks; and of all runs of a dimension. Not collective. */
int64_t ts_run_extent(const ts_dealing *dealing, ts_run_of run);

/** Elements of a run that stay together: one of its units, or a part of it. Not collective. */
int64_t ts_dealing_together(const ts_dealing *dealing, ts_run_of run);

/** What \a rank has of a run: elements from the run's first. Not collective. */
ts_interval ts_dealing_of_rank(const ts_dealing *dealing, ts_run_of run, int rank);

/** All units of a run of which \a rank has parts. Not collective. */
ts_interval ts_dealing_units_of_rank(const ts_dealing *dealing, ts_run_of run, int rank);

/** What \a rank has of a dimension.
 * \param [in] whole  Of units in parts all parts, as ts_dealing_units_of_rank.
 * \param [out] out  TS_MOST_RUNS entries, in the order of the dimension; ones of length 0 are left out.
 * \return their number. Not collective. */
int ts_dealt_of_rank(const ts_dealing *dealing, const ts_dealt *dealt, bool whole, int rank, ts_interval *out);

/** The share of \a rank in units of \a size elements of the run. Not collective.
 * \param [in] parts  Of such a unit. */
ts_share ts_dealing_share(const ts_dealing *dealing, ts_run_of run, int64_t size, int64_t parts, int rank);

#endif
