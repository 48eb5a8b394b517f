/** \file
 * The rows that kernels_*.c contribute to the table of kernels_table.c: one line an op.  Nothing here is collective.
 */
#ifndef TS_BACKEND_CPU_KERNELS_H
#define TS_BACKEND_CPU_KERNELS_H

#include "backend/cpu/cpu.h"

/** X (ENUM, name) */
#define TS_CPU_KERNELS(X)                 \
  X(ADD, add)                             \
  X(MULTIPLY, multiply)                   \
  X(BIAS, bias)                           \
  X(SCALE, scale)                         \
  X(OVER_NORM, over_norm)                 \
  X(ADD_DIAGONAL, add_diagonal)           \
  X(CAST, cast)                           \
  X(ACCUMULATE, accumulate)               \
  X(ACTIVATION, activation)               \
  X(ACTIVATION_DX, activation_dx)         \
  X(GLU, glu)                             \
  X(GLU_DX, glu_dx)                       \
  X(DROPOUT, dropout)                     \
  X(SPLIT, split)                         \
  X(CONCAT, concat)                       \
  X(TAKE, take)                           \
  X(PLACE, place)                         \
  X(SUM_ROWS, sum_rows)                   \
  X(EMBEDDING, embedding)                 \
  X(EMBEDDING_DW, embedding_dw)           \
  X(PICK, pick)                           \
  X(PICK_DX, pick_dx)                     \
  X(LAYERNORM, layernorm)                 \
  X(LAYERNORM_DX, layernorm_dx)           \
  X(LAYERNORM_DW, layernorm_dw)           \
  X(RMSNORM, rmsnorm)                     \
  X(RMSNORM_DX, rmsnorm_dx)               \
  X(RMSNORM_DW, rmsnorm_dw)               \
  X(NORMALIZE, normalize)                 \
  X(NORMALIZE_DX, normalize_dx)           \
  X(ROW_SQUARES, row_squares)             \
  X(ROW_DOTS, row_dots)                   \
  X(ROPE, rope)                           \
  X(ROUTE, route)                         \
  X(ROUTE_DX, route_dx)                   \
  X(ROUTE_LIMIT, route_limit)             \
  X(ROUTE_LIMIT_DX, route_limit_dx)       \
  X(ROUTE_EXCESS, route_excess)           \
  X(ROUTE_LOADS, route_loads)             \
  X(ROUTE_LOADS_DX, route_loads_dx)       \
  X(BALANCE_LOSS, balance_loss)           \
  X(BALANCE_LOSS_DX, balance_loss_dx)     \
  X(DISPATCH, dispatch)                   \
  X(FIRST_OF_ALL, first_of_all)           \
  X(TAKE_ROWS, take_rows)                 \
  X(COMBINE, combine)                     \
  X(COMBINE_DOTS, combine_dots)           \
  X(GROUPED, grouped)                     \
  X(GROUPED_DW, grouped_dw)               \
  X(GROUPED_BIAS, grouped_bias)           \
  X(GROUPED_SUM, grouped_sum)             \
  X(BLEND, blend)                         \
  X(BLEND_DX, blend_dx)                   \
  X(ATTENTION, attention)                 \
  X(ATTENTION_DX, attention_dx)           \
  X(ATTENTION_DELTA, attention_delta)     \
  X(ATTENTION_MERGE, attention_merge)     \
  X(ATTENTION_CACHED, attention_cached)   \
  X(SOFT_LOSS, soft_loss)                 \
  X(SOFT_LOSS_DX, soft_loss_dx)           \
  X(LOSS, loss)                           \
  X(LOSS_DX, loss_dx)                     \
  X(SUM_SQUARES, sum_squares)             \
  X(STEP_CONTROL, step_control)           \
  X(SCALE_LOSS, scale_loss)               \
  X(UPDATE_LOSS_SCALE, update_loss_scale) \
  X(ADVANCE, advance)                     \
  X(TRUST_RATIOS, trust_ratios)           \
  X(UPDATE_ELEMENTS, update_elements)

/** The row of an op in this instruction set; its definition looks the same: TS_CPU_KERNEL (add) = {...}. */
#define TS_CPU_KERNEL(name) const ts_kernel TS_ISA_NAME(ts_cpu_kernel_##name)

#define X(ENUM, name) extern TS_CPU_KERNEL(name);
TS_CPU_KERNELS(X)
#undef X

#endif
