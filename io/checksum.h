/** \file
 * The checksum of HDF5's fletcher32 filter, at the speed of memory.  Nothing here is collective.
 */
#ifndef IO_CHECKSUM_H
#define IO_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/** Fletcher-32 as HDF5 computes it (H5_checksum_fletcher32): over big-endian 16-bit words, sums modulo 65535 that are 0
 * only for data that is all zero.  Of an odd number of \a bytes the last one is the first half of a word.  The filter
 * appends it to a chunk as 4 bytes, little-endian. Not collective. */
uint32_t ts_fletcher32(const void *data, size_t bytes);

#endif
