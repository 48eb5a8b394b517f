/* With n words w[i] the sums are S1 = sum w[i] and S2 = sum (n - i) w[i], modulo 65535.  Modulo 65535 swapping the
 * bytes of a word multiplies it by 256, so words are taken as they lie and the two sums are multiplied at the end.
 *
 * Words are added in LANES columns: after R rows acc1[l] = sum_r w[r][l] and acc2[l] = sum_r (R - r) w[r][l], two
 * additions a word that the compiler does for a vector at a time, and sum (n - i) w = LANES sum_l acc2[l] - sum_l l
 * acc1[l]. */
#include "io/checksum.h"

#include <string.h>

enum { LANES = 32, ROWS = 256 }; /* ROWS (ROWS + 1) / 2 * 65535 fits 32 bits */

/* Sums of at most LANES * ROWS words, their number a multiple of LANES. */
static void add_block(const unsigned char *at, size_t rows, uint64_t *s1, uint64_t *s2) {
  uint32_t acc1[LANES] = {0}, acc2[LANES] = {0};
  for (size_t r = 0; r < rows; ++r) {
    uint16_t word[LANES];
    memcpy(word, at + r * sizeof word, sizeof word);
    for (int l = 0; l < LANES; ++l) {
      acc1[l] += word[l];
      acc2[l] += acc1[l];
    }
  }
  uint64_t sum = 0, weighted = 0, columns = 0;
  for (int l = 0; l < LANES; ++l) {
    sum += acc1[l];
    weighted += acc2[l];
    columns += (uint64_t) l * acc1[l];
  }
  *s2 += rows * LANES * *s1 + LANES * weighted - columns;
  *s1 += sum;
}

static uint32_t fold(uint64_t sum) {
  uint64_t rest = sum * 256 % 65535;
  return (uint32_t) (rest == 0 && sum > 0 ? 65535 : rest);
}

uint32_t ts_fletcher32(const void *data, size_t bytes) {
  const unsigned char *at = data;
  size_t words = bytes / 2;
  uint64_t s1 = 0, s2 = 0;
  while (words >= LANES) {
    size_t rows = words / LANES < ROWS ? words / LANES : ROWS;
    add_block(at, rows, &s1, &s2);
    at += rows * LANES * 2;
    words -= rows * LANES;
    s1 = s1 > 0 && s1 % 65535 == 0 ? 65535 : s1 % 65535; /* 0 stays the mark of data that is all zero */
    s2 = s2 > 0 && s2 % 65535 == 0 ? 65535 : s2 % 65535;
  }
  for (; words > 0; --words, at += 2) {
    uint16_t word;
    memcpy(&word, at, sizeof word);
    s1 += word;
    s2 += s1;
  }
  if (bytes % 2 == 1) { /* the first half of a word in the file's order */
    s1 += *at;
    s2 += s1;
  }
  return fold(s2) << 16 | fold(s1);
}

uint32_t ts_crc32c(const void *data, size_t bytes) {
  static const uint32_t remainder[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
                                         0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                         0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75}; /* of half a byte */
  const uint8_t *at = data;
  uint32_t crc = ~0u;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= at[i];
    crc = remainder[crc & 15] ^ crc >> 4;
    crc = remainder[crc & 15] ^ crc >> 4;
  }
  return ~crc;
}
