/** \file
 * What a rank does in a second, by which plans choose: degrees of sequence parallelism, cuts of pipelines.  A choice
 * wants ratios, and one that all ranks and a login node agree on, so rates are given and not measured: nominal ones of
 * processors and of GPUs, or those that the deck's `machine` section says (as a file that decks include).
 */
#ifndef TS_PASS_RATES_H
#define TS_PASS_RATES_H

#include "backend/backend.h"
#include "deck/deck.h"
#include "graph/graph.h"

typedef struct ts_rates {
  double product; /**< Of matrix products and attention, FLOP/s. */
  double memory;  /**< Bytes/s that are read and written. */
  double link;    /**< Bytes/s of messages to another rank. */
  double copy;    /**< Bytes/s between a device's memory and the host's, one direction. */
  double core;    /**< Bytes/s of the host's memory that a thread of it moves. */
  double file;    /**< Bytes/s that a rank reads from its file or writes to it. */
} ts_rates;

/** The deck's, and what it leaves out as of the backend. Not collective. */
ts_rates ts_rates_of(const ts_deck *deck, const ts_backend *backend);

/** What a node computes, or what it moves, in seconds: the longer of both. Not collective. */
double ts_node_seconds(const ts_graph *graph, const ts_node *node, const ts_rates *rates);

#endif
