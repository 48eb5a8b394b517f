/** \file
 * Checksums of other people's formats.  Nothing here is collective.
 */
#ifndef IO_CHECKSUM_H
#define IO_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/** Fletcher-32, at the speed of memory, as HDF5 computes it (H5_checksum_fletcher32): over big-endian 16-bit words,
 * sums modulo 65535 that are 0 only for data that is all zero.  Of an odd number of \a bytes the last one is the first
 * half of a word.  The filter appends it to a chunk as 4 bytes, little-endian. Not collective. */
uint32_t ts_fletcher32(const void *data, size_t bytes);

/** CRC-32C, of Castagnoli's polynomial (RFC 3720, B.4), as of iSCSI and of TensorFlow's record files: half a byte at a
 * time, some 150 MB a second, for short records.  Not collective. */
uint32_t ts_crc32c(const void *data, size_t bytes);

#endif
