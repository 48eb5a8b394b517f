/** \file
 * What oneDNN 2 (Debian 12) and oneDNN 3 (Debian 13, Ubuntu 24.04) spell differently, for onednn.c only: in version 2 a
 * memory descriptor is a struct and implementations are iterated over; in version 3 it is a handle and the primitive
 * descriptor itself moves on.
 *
 * Nothing here is collective.
 */
#ifndef TS_BACKEND_CPU_ONEDNN_VERSION_H
#define TS_BACKEND_CPU_ONEDNN_VERSION_H

#include "base/memory.h"

#include <dnnl.h>

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t ts_dnnl_desc;
typedef const_dnnl_memory_desc_t ts_dnnl_const_desc;
#else
typedef dnnl_memory_desc_t *ts_dnnl_desc;
typedef const dnnl_memory_desc_t *ts_dnnl_const_desc;
#endif

/** c = a b (+ bias, NULL where there is none), with attributes.  All borrowed. */
typedef struct ts_dnnl_matmul {
  ts_dnnl_const_desc a, b, bias, c;
  const_dnnl_primitive_attr_t attr;
} ts_dnnl_matmul;

/** A matrix by its strides in elements; the caller destroys it (ts_dnnl_desc_destroy). Not collective. */
static inline dnnl_status_t ts_dnnl_desc_create(ts_dnnl_desc *out, const dnnl_dims_t dims, dnnl_data_type_t type,
                                                const dnnl_dims_t strides) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
#else
  *out = ts_malloc(sizeof **out);
  return dnnl_memory_desc_init_by_strides(*out, 2, dims, type, strides);
#endif
}

/** Free. Not collective. */
static inline dnnl_status_t ts_dnnl_desc_destroy(ts_dnnl_desc desc) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_memory_desc_destroy(desc);
#else
  ts_free(desc);
  return dnnl_success;
#endif
}

/** The result is added to what the destination holds. Not collective. */
static inline dnnl_status_t ts_dnnl_append_sum(dnnl_post_ops_t ops) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
#else
  return dnnl_post_ops_append_sum(ops, 1.0f);
#endif
}

/** Implementation number \a index of a product, in oneDNN's order of preference.
 * \return owned by the caller (dnnl_primitive_desc_destroy); NULL when there are not so many. Not collective. */
static inline dnnl_primitive_desc_t ts_dnnl_implementation(dnnl_engine_t engine, const ts_dnnl_matmul *matmul,
                                                           int index) {
  dnnl_primitive_desc_t result = NULL;
  dnnl_status_t status;
#if DNNL_VERSION_MAJOR >= 3
  status =
      dnnl_matmul_primitive_desc_create(&result, engine, matmul->a, matmul->b, matmul->bias, matmul->c, matmul->attr);
  for (int i = 0; i < index && status == dnnl_success; ++i) {
    status = dnnl_primitive_desc_next_impl(result);
  }
  if (status != dnnl_success && result != NULL) {
    dnnl_primitive_desc_destroy(result);
    result = NULL;
  }
#else
  dnnl_matmul_desc_t desc;
  dnnl_primitive_desc_iterator_t it = NULL;
  status = dnnl_matmul_desc_init(&desc, matmul->a, matmul->b, matmul->bias, matmul->c);
  if (status == dnnl_success) {
    status = dnnl_primitive_desc_iterator_create(&it, &desc, matmul->attr, engine, NULL);
  }
  for (int i = 0; i < index && status == dnnl_success; ++i) {
    status = dnnl_primitive_desc_iterator_next(it);
  }
  if (status == dnnl_success) {
    result = dnnl_primitive_desc_iterator_fetch(it);
  }
  if (it != NULL) {
    dnnl_primitive_desc_iterator_destroy(it);
  }
#endif
  return result;
}

#endif
