/** \file
 * What a model's writer needs of a graph: its values, and how parameters begin.
 */
#ifndef TS_GRAPH_VALUE_H
#define TS_GRAPH_VALUE_H

#include "base/element.h"

#include <stdint.h>

typedef int32_t ts_tid; /**< A tensor of a graph. */
#define TS_NONE (-1)    /**< No tensor, no node. */

#define TS_MAX_DIMS 5 /**< Extents of a shape, at most. */

/** How a parameter begins. */
typedef enum ts_init_kind { TS_INIT_ZERO, TS_INIT_ONE, TS_INIT_NORMAL } ts_init_kind;
typedef struct ts_init {
  ts_init_kind kind;
  double std; /**< Of NORMAL, whose mean is 0. */
} ts_init;

/** Kinds of activation; graph/ops.def has their formulas. */
typedef enum ts_activation {
  TS_ACTIVATION_GELU_TANH,
  TS_ACTIVATION_GELU,
  TS_ACTIVATION_SILU,
  TS_ACTIVATION_RELU,
  TS_N_ACTIVATIONS
} ts_activation;

#define TS_N_FLAGS 3 /**< Numbers of the host that travel with a step's record. */

#endif
