#include "io/store_blocks.h"

#include "base/memory.h"
#include "base/random.h"

#include <string.h>
#include <xxhash.h>

static int64_t blocks_in(const ts_store_extent *e) {
  return e->bytes / e->block + (e->bytes % e->block != 0);
}

int64_t ts_store_blocks_end(const ts_store_extent *extent, int n) {
  int64_t end = 0;
  for (int i = 0; i < n; ++i) {
    const ts_store_extent *e = &extent[i];
    int64_t last;
    TS_ASSERT(e->block > 0 && e->block % TS_STORE_ALIGN == 0 && e->bytes >= 0);
    TS_ASSERT(e->offset >= end && e->offset % TS_STORE_ALIGN == 0);
    if (__builtin_add_overflow(e->offset, e->bytes, &last) || last > INT64_MAX - TS_STORE_ALIGN) {
      return -1;
    }
    end = (int64_t) ts_align_up((size_t) last, TS_STORE_ALIGN);
  }
  return end;
}

int64_t ts_store_blocks_memory(const ts_store_extent *extent, int n) {
  int64_t blocks = 0;
  for (int i = 0; i < n; ++i) {
    blocks += blocks_in(&extent[i]);
  }
  return blocks * (int64_t) (sizeof(uint64_t) + sizeof(uint32_t));
}

void ts_store_blocks_init(ts_store_blocks *b, const ts_store_extent *extent, int n) {
  *b = (ts_store_blocks){.n = n};
  b->extent = ts_calloc((size_t) n, sizeof *b->extent);
  b->first = ts_calloc((size_t) n + 1, sizeof *b->first);
  for (int i = 0; i < n; ++i) {
    b->extent[i] = extent[i];
    b->first[i + 1] = b->first[i] + blocks_in(&extent[i]);
  }
  b->hash = ts_calloc((size_t) b->first[n], sizeof *b->hash);
  b->generation = ts_calloc((size_t) b->first[n], sizeof *b->generation);
}

void ts_store_blocks_clear(ts_store_blocks *b) {
  ts_free(b->extent);
  ts_free(b->first);
  ts_free(b->hash);
  ts_free(b->generation);
  *b = (ts_store_blocks){0};
}

/* The last extent that begins at or before an offset; -1: none does. */
static int find_extent(const ts_store_blocks *b, int64_t offset) {
  int low = 0, high = b->n;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (b->extent[middle].offset <= offset) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

bool ts_store_blocks_have(const ts_store_blocks *b, int64_t offset, int64_t bytes) {
  int i = find_extent(b, offset);
  for (; i >= 0 && b->extent[i].bytes == 0 && bytes == 0; --i) {
    if (b->extent[i].offset == offset) {
      return true;
    }
  }
  const ts_store_extent *e = i >= 0 ? &b->extent[i] : NULL;
  return e != NULL && bytes >= 0 && offset - e->offset <= e->bytes && bytes <= e->bytes - (offset - e->offset);
}

ts_store_block ts_store_block_at(const ts_store_blocks *b, int64_t offset) {
  int i = find_extent(b, offset);
  TS_ASSERT(i >= 0 && offset < b->extent[i].offset + b->extent[i].bytes);
  const ts_store_extent *e = &b->extent[i];
  int64_t k = (offset - e->offset) / e->block, rest = e->bytes - k * e->block;
  return (ts_store_block){b->first[i] + k, e->offset + k * e->block, rest < e->block ? rest : e->block};
}

/* Another seed for each place and each time. */
static uint64_t hash_block(const ts_store_blocks *b, const ts_store_block *k, const char *memory) {
  return XXH3_64bits_withSeed(memory, (size_t) k->bytes, ts_mix((uint64_t) k->offset, b->generation[k->number]));
}

void ts_store_blocks_renew(ts_store_blocks *b, int64_t offset, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    ts_store_block k = ts_store_block_at(b, offset + done);
    if (++b->generation[k.number] == 0) {
      b->generation[k.number] = 1; /* 0 is kept for what was never written */
    }
    done += k.bytes;
  }
}

void ts_store_blocks_keep(ts_store_blocks *b, int64_t offset, int64_t bytes, const char *memory) {
  for (int64_t done = 0; done < bytes;) {
    ts_store_block k = ts_store_block_at(b, offset + done);
    b->hash[k.number] = hash_block(b, &k, memory + done);
    done += k.bytes;
  }
}

int ts_store_blocks_differ(const ts_store_blocks *b, int64_t offset, int64_t bytes, const char *memory,
                           ts_store_block *bad) {
  int n = 0;
  for (int64_t done = 0; done < bytes;) {
    ts_store_block k = ts_store_block_at(b, offset + done);
    if (b->hash[k.number] != hash_block(b, &k, memory + done) && n++ == 0) {
      *bad = k;
    }
    done += k.bytes;
  }
  return n;
}
