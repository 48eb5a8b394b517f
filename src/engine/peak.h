/** \file
 * What this machine can do: the measure that MFU is a fraction of.
 */
#ifndef TS_ENGINE_PEAK_H
#define TS_ENGINE_PEAK_H

#include "backend/backend.h"

#include <stdint.h>

/** Sorts \a n values, at least one, ascending. \return the median. Not collective. */
double ts_median(double *value, int n);

/** Sorts likewise. \return the mean of the least quarter, at least of one: of times, what they are where nothing else
 * uses the machine, as that makes some longer and none shorter. Not collective. */
double ts_least_quarter(double *value, int n);

/** c [m][n] = a b over k; what is turned lies as its transpose in memory. */
typedef struct ts_product_shape {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
} ts_product_shape;

/** FLOP/s of such a product through the backend's own kernel: of several runs, at least \a seconds long in all and at
 * least three, the best, or with \a typical the median. Not collective. */
double ts_product_flops(const ts_backend *backend, const ts_product_shape *shape, ts_dtype dtype, int threads,
                        double seconds, bool typical);

/** FLOP/s of this process's processors in a product of 512 to 3072 rows and columns that keeps \a threads busy, in some
 * 0.05 s: what MFU is a part of, and what limits of time are made from. Not collective. */
double ts_peak_flops(int threads, ts_dtype dtype);

/** Bytes/s, read and written, of a copy of so many bytes from a device's memory to its memory, by device events: the
 * median of 21.  For a backend with an open device. Not collective. */
double ts_copy_rate(const ts_backend *backend, size_t bytes);

#endif
