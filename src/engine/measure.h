/** \file
 * Measuring a machine (run/machine.h): the real kernels in real steps, products of a grid of shapes, collectives of a
 * row of sizes.  All ranks work at a time, as they will, each on steps of its own but for those of a deck.
 */
#ifndef TS_ENGINE_MEASURE_H
#define TS_ENGINE_MEASURE_H

#include "engine/workings.h"
#include "run/machine.h"

/** What is measured, by whom. */
typedef struct ts_measuring {
  ts_world *world;           /**< Borrowed. */
  const char *device;        /**< Borrowed: a value of run.device. */
  const ts_backend *backend; /**< Set by ts_measure_open, as the next one is where it is 0; */
  int threads;               /**< of a rank: unless it is set, as many as a deck that does not say has. */
  ts_dtype low;              /**< BF16 or F16, measured beside fp32. */
  bool quick;                /**< A few shapes, sizes and models: for tests, and to see how it works. */
} ts_measuring;

/** Open the backend that the device means here.
 * \return TS_BAD_INPUT, agreed, as ts_engine_create's. Collective over the world. */
ts_status ts_measure_open(ts_measuring *measuring, ts_error *err);

/** What the best product and a copy come to: the floors of all else.  To be measured first. Collective over the
 * world. */
void ts_measure_floors(const ts_measuring *measuring, ts_measured *measured);

/** Copies between a device's memory and the host's, each way and both at once; and where \a directory is one, writing
 * and reading a file of 256 MB in it.
 * \return TS_BAD_INPUT, agreed: the file cannot be made. Collective over the world. */
ts_status ts_measure_copies(const ts_measuring *measuring, const char *directory, ts_measured *measured, ts_error *err);

/** Products of matrices not turned, and of either turned, of 64 to 2048 rows, columns and inner extents, in fp32 and in
 * the lower type, of two turns the faster one. Collective over the world. */
void ts_measure_products(const ts_measuring *measuring, ts_measured *measured);

/** Collectives among all ranks and among neighbours that divide them, of 4 kB to 128 MB; on processors messages from
 * one to another, too, and how much longer products take beside them.  Nothing with one rank. Collective over the
 * world. */
void ts_measure_messages(const ts_measuring *measuring, ts_measured *measured);

/** Small models of two families, from 0.5 to 25 million parameters, the smaller ones with one micro-batch and with two,
 * which every rank trains for itself; and what a step takes beside its nodes.  Of the same work, as a product, what was
 * measured before is forgotten.
 * \return TS_BAD_INPUT, agreed. Collective over the world. */
ts_status ts_measure_models(const ts_measuring *measuring, ts_measured *measured, ts_error *err);

/** A step of a deck, seconds. */
typedef struct ts_measured_step {
  double measured; /**< The mean of the fastest quarter of so many, */
  int turns;
  double planned; /**< and what the clock (run/clock.h) says of it, by the nodes of as many others; on rank 0. */
  bool in_turns;  /**< These were in between; false: behind them, as there is no room for two engines. */
} ts_measured_step;

/** What the steps of a deck consist of, messages included, with what waits for others in them: some steps of all ranks,
 * observed, in turns with others that are timed.  Of the same work what was measured before is forgotten; rank 0 learns
 * what all have seen.
 * \param [in,out] deck  Its batch and precision are decided here.
 * \return TS_BAD_INPUT, agreed: a deck that cannot be trained here. Collective over the world. */
ts_status ts_measure_deck(ts_world *world, ts_deck *deck, ts_measured *measured, ts_measured_step *step, ts_error *err);

/** Wait for everybody, before what all do at a time is timed. Collective over the world. */
void ts_measure_begin(ts_world *world);

/** This rank's samples for a step of an engine, tokens made up by place; end with ts_batch_destroy. Not collective. */
ts_batch *ts_measure_batch(const ts_engine *engine, const ts_deck *deck);

#endif
