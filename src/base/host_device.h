/** \file
 * Functions that processors and GPUs have in common: a header with them is read by C and by nvcc.  No functions here;
 * nothing is collective.
 */
#ifndef TS_BASE_HOST_DEVICE_H
#define TS_BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define TS_HOST_DEVICE __host__ __device__
#else
#define TS_HOST_DEVICE
#endif

#endif
