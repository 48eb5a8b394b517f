/** \file
 * The types of elements.
 */
#ifndef TS_BASE_ELEMENT_H
#define TS_BASE_ELEMENT_H

/** base/dtype.h has a row for each, in this order. */
typedef enum ts_dtype { TS_F32, TS_BF16, TS_F16, TS_F64, TS_I32, TS_I64, TS_U8, TS_N_DTYPES } ts_dtype;

#endif
