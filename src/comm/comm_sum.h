/** \file
 * The arithmetic of reductions: contributions added in a fixed order, whoever brought them.  Sequential, no MPI,
 * nothing is collective.
 */
#ifndef TS_COMM_SUM_H
#define TS_COMM_SUM_H

#include "base/dtype.h"

/** One rank's contribution. */
typedef struct ts_addend {
  const void *data; /**< Borrowed. */
  ts_dtype dtype;   /**< F32, BF16 or F16; rounded to the wire dtype before it is added. */
  float divisor;    /**< It is divided by it before it is rounded; 0: it is as it travels. */
} ts_addend;

/** y = factor (addend[0] + addend[1] + ...) in fp32, in that order, or *beta y + that, rounded once to y's dtype.
 * y may be the data of an addend of the same dtype; otherwise nothing may overlap.
 * \param [in] beta   NULL: y is overwritten; 0: y is overwritten and not read.
 * \param [in] n      Addends, at least 1.
 * \param [in] factor 1 changes nothing.
 * \param [in] count  Elements. Not collective. */
void ts_sum_ordered(void *y, ts_dtype y_dtype, const float *beta, const ts_addend *addend, int n, ts_dtype wire,
                    float factor, int64_t count);

/** sum += \a addend, \a count elements; they do not overlap. Not collective. */
void ts_add_to_sum(float *sum, const ts_addend *addend, int64_t count);

/** Copy \a count elements of \a addend, converted to the dtype \a wire (F32, BF16 or F16).  \a to overlaps nothing.
 * Not collective. */
void ts_copy_to_wire(void *to, ts_dtype wire, const ts_addend *addend, int64_t count);

#endif
