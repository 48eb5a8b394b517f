/** \file
 * Private to io/store: blocks of extents, and the hash of each.  Nothing here is collective.
 */
#ifndef IO_STORE_BLOCKS_H
#define IO_STORE_BLOCKS_H

#include "io/store.h"

/** Blocks are numbered through all extents.  Ranges of different blocks may be used by different threads. */
typedef struct ts_store_blocks {
  int n;
  ts_store_extent *extent; /**< Owned, like the others. */
  int64_t *first;          /**< Of n + 1: an extent's first block; the number of all. */
  uint64_t *hash;
  uint32_t *generation; /**< How often a block was written; 0: never, it is all zeros. */
} ts_store_blocks;

/** Bytes of a file of these extents, the last one rounded up; -1: more than there are numbers for. Not collective. */
int64_t ts_store_blocks_end(const ts_store_extent *extent, int n);

/** Bytes of memory for the hashes of these. Not collective. */
int64_t ts_store_blocks_memory(const ts_store_extent *extent, int n);

/** Copy extents; nothing is written yet.  Cleared in any case. Not collective. */
void ts_store_blocks_init(ts_store_blocks *blocks, const ts_store_extent *extent, int n);
void ts_store_blocks_clear(ts_store_blocks *blocks);

/** A block, with its place in the file; the block after it in its extent is number + 1. */
typedef struct ts_store_block {
  int64_t number;
  int64_t offset, bytes;
} ts_store_block;

/** The block that has the byte at \a offset, which some extent has. Not collective. */
ts_store_block ts_store_block_at(const ts_store_blocks *blocks, int64_t offset);

/** A range that lies in one extent? It may have no bytes. Not collective. */
bool ts_store_blocks_have(const ts_store_blocks *blocks, int64_t offset, int64_t bytes);

/** The range is written once more: other hashes are expected from now on. Not collective. */
void ts_store_blocks_renew(ts_store_blocks *blocks, int64_t offset, int64_t bytes);

/** Keep the hashes of what is to be written to a range of whole blocks. Not collective. */
void ts_store_blocks_keep(ts_store_blocks *blocks, int64_t offset, int64_t bytes, const char *memory);

/** Compare them with what was read.
 * \param [out] bad  The first block that differs.
 * \return how many do. Not collective. */
int ts_store_blocks_differ(const ts_store_blocks *blocks, int64_t offset, int64_t bytes, const char *memory,
                           ts_store_block *bad);

#endif
