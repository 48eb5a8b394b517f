#include "io/store.h"

#include "base/memory.h"
#include "io/store_blocks.h"
#include "io/store_engine.h"
#include "io/store_file.h"
#include "io/store_pool.h"

#include <string.h>

/* The first that works, where none is asked for. */
static const ts_store_engine *const engines[] = {&ts_store_uring, &ts_store_threads};
enum { N_ENGINES = sizeof engines / sizeof *engines };

/* Blocks as the caller sees them: so many leaves may be written a little each in turns, masters and their copies,
 * codes and their scales, and no block is moved more often than once. */
enum { HELD = 4 };

typedef struct held {
  char *memory;
  ts_store_block block;
  bool holds, changed; /* anything; something that the file does not have */
  uint64_t turn;       /* when it was wanted last */
} held;

struct ts_store {
  ts_store_file file;
  ts_store_blocks blocks;
  ts_store_pool *pool;
  char *place; /* owned, like the next */
  char *described;
  held held[HELD]; /* behind ts_store_read and ts_store_write */
  char *room;      /* for them, each of `longest` bytes */
  size_t longest;
  uint64_t turn;
};

static ts_store_faults faults;

void ts_store_set_test_faults(const ts_store_faults *given) {
  faults = given != NULL ? *given : (ts_store_faults){0};
}

const ts_store_faults *ts_store_test(void) {
  return &faults;
}

int ts_store_test_file(const ts_store *s) {
  return s->file.descriptor;
}

/* ---- engines ---- */

static const ts_store_engine *find_engine(const char *name) {
  for (int i = 0; i < N_ENGINES; ++i) {
    if (strcmp(engines[i]->name, name) == 0) {
      return engines[i];
    }
  }
  return NULL;
}

static void describe_store(ts_store *s, const ts_store_engine *engine, const ts_text *why, const ts_text *note) {
  ts_text text = {0};
  ts_text_add(&text, "%s", engine->name);
  if (why->length > 0) {
    ts_text_add(&text, " (%s)", why->text);
  }
  ts_text_add(&text, ", %s", s->file.how);
  if (note->length > 0) {
    ts_text_add(&text, ", %s", note->text);
  }
  s->described = text.text;
}

/* \a why tells of the engines before it. */
static bool start_engine(ts_store *s, const ts_store_options *o, const ts_store_engine *engine, ts_text *why) {
  const ts_store_pool_options options = {.engine = engine,
                                         .file = s->file.descriptor,
                                         .blocks = &s->blocks,
                                         .place = s->place,
                                         .block_size = o->block_size,
                                         .queue_depth = o->queue_depth,
                                         .threads = o->threads};
  ts_text reason = {0}, note = {0};
  s->pool = ts_store_pool_create(&options, &reason, &note);
  if (s->pool != NULL) {
    describe_store(s, engine, why, &note);
  } else {
    ts_text_add(why, "%s%s: %s", why->length > 0 ? "; " : "", engine->name, reason.text);
  }
  ts_text_free(&reason);
  ts_text_free(&note);
  return s->pool != NULL;
}

static ts_status choose_engine(ts_store *s, const ts_store_options *o, ts_error *err) {
  ts_text why = {0};
  ts_status status = TS_OK;
  for (int i = 0; i < N_ENGINES && s->pool == NULL; ++i) {
    if (o->engine == NULL || strcmp(o->engine, engines[i]->name) == 0) {
      start_engine(s, o, engines[i], &why);
    }
  }
  if (s->pool == NULL) {
    status =
        ts_error_add(err, "%s: the engine that was asked for does not work here: %s; let \"threads\" move its bytes",
                     s->place, why.text);
  }
  ts_text_free(&why);
  return status;
}

/* ---- creation ---- */

static ts_status check_options(const ts_store_options *o, int64_t bytes, ts_error *err) {
  TS_ASSERT(o->block_size > 0 && o->block_size % TS_STORE_ALIGN == 0 && o->queue_depth > 0 && o->threads > 0);
  if (bytes < 0) {
    return ts_error_add(err, "%s: the offloaded state of %s has more than 2^63 bytes; offload less", o->directory,
                        o->name);
  }
  if (o->engine != NULL && find_engine(o->engine) == NULL) {
    return ts_error_add(err, "%s: no engine is called \"%s\"; there are \"io_uring\" and \"threads\"", o->directory,
                        o->engine);
  }
  return TS_OK;
}

static int64_t longest_block(const ts_store_extent *extent, int n) {
  int64_t longest = 0;
  for (int i = 0; i < n; ++i) {
    int64_t bytes = extent[i].bytes < extent[i].block ? extent[i].bytes : extent[i].block;
    longest = bytes > longest ? bytes : longest;
  }
  return longest;
}

/* After the file has its space: what does not fit on the disk is told before its hashes want memory. */
static ts_status start_store(ts_store *s, const ts_store_options *o, const ts_store_extent *extent, int n,
                             ts_error *err) {
  ts_store_blocks_init(&s->blocks, extent, n);
  s->longest = ts_align_up((size_t) longest_block(extent, n), TS_STORE_ALIGN);
  s->room = ts_map(HELD * s->longest);
  for (int i = 0; i < HELD; ++i) {
    s->held[i].memory = s->room + (size_t) i * s->longest;
  }
  s->place = s->file.path != NULL
                 ? ts_format("%s: the offloaded state of %s", s->file.path, o->name)
                 : ts_format("%s: the offloaded state of %s (a file without a name)", o->directory, o->name);
  TS_ASSERT(s->longest <= (size_t) o->block_size);
  return choose_engine(s, o, err);
}

ts_status ts_store_create(ts_store **store, const ts_store_options *o, const ts_store_extent *extent, int n,
                          ts_error *err) {
  int64_t bytes = ts_store_blocks_end(extent, n);
  *store = NULL;
  if (check_options(o, bytes, err) != TS_OK) {
    return TS_BAD_INPUT;
  }
  ts_store *s = ts_calloc(1, sizeof *s);
  ts_status status = ts_store_file_open(&s->file, o->directory, o->name, bytes, err);
  status = status == TS_OK ? start_store(s, o, extent, n, err) : status;
  if (status != TS_OK) {
    ts_store_destroy(&s);
  }
  *store = s;
  return status;
}

void ts_store_destroy(ts_store **store) {
  ts_store *s = *store;
  if (s == NULL) {
    return;
  }
  ts_store_pool_destroy(&s->pool);
  ts_store_file_close(&s->file);
  ts_store_blocks_clear(&s->blocks);
  ts_unmap(s->room, HELD * s->longest);
  ts_free(s->described);
  ts_free(s->place);
  ts_free(s);
  *store = NULL;
}

const char *ts_store_describe(const ts_store *s) {
  return s->described;
}

ts_store_counts ts_store_count(ts_store *s) {
  return ts_store_pool_counts(s->pool);
}

int64_t ts_store_memory(const ts_store_options *o, const ts_store_extent *extent, int n) {
  const ts_store_engine *engine = o->engine != NULL ? find_engine(o->engine) : NULL;
  return ts_store_blocks_memory(extent, n) + HELD * longest_block(extent, n) +
         ts_store_pool_memory(engine != NULL ? engine : engines[0], o->block_size, o->queue_depth, o->threads);
}

/* ---- the blocks that are held ---- */

static void move_whole(ts_store *s, bool write, int64_t offset, int64_t bytes, char *memory) {
  ts_store_pool_wait(s->pool, ts_store_pool_start(s->pool, write, offset, bytes, memory));
}

static void let_go_changes(ts_store *s, held *h) {
  if (h->changed) {
    h->changed = false;
    move_whole(s, true, h->block.offset, h->block.bytes, h->memory);
  }
}

/* A block, in the place of the one that was not wanted for longest. */
static held *hold(ts_store *s, const ts_store_block *k) {
  held *h = &s->held[0];
  for (int i = 0; i < HELD; ++i) {
    held *other = &s->held[i];
    if (other->holds && other->block.number == k->number) {
      other->turn = ++s->turn;
      return other;
    }
    h = other->turn < h->turn ? other : h;
  }
  let_go_changes(s, h);
  move_whole(s, false, k->offset, k->bytes, h->memory);
  h->block = *k;
  h->holds = true;
  h->turn = ++s->turn;
  return h;
}

/* Whole blocks are about to be moved; some of them may be held. */
static void meet_held(ts_store *s, bool write, int64_t offset, int64_t bytes) {
  for (int i = 0; i < HELD; ++i) {
    held *h = &s->held[i];
    if (!h->holds || h->block.offset < offset || h->block.offset >= offset + bytes) {
      continue;
    }
    if (write) {
      h->holds = h->changed = false; /* it is written as a whole */
    } else {
      let_go_changes(s, h);
    }
  }
}

/* ---- transfers ---- */

/* Does a range of an extent begin and end where blocks do? */
static bool is_of_whole_blocks(const ts_store *s, int64_t offset, int64_t bytes) {
  if (bytes == 0) {
    return true;
  }
  ts_store_block last = ts_store_block_at(&s->blocks, offset + bytes - 1);
  return ts_store_block_at(&s->blocks, offset).offset == offset && last.offset + last.bytes == offset + bytes;
}

uint64_t ts_store_start(ts_store *s, bool write, int64_t offset, int64_t bytes, void *memory) {
  TS_ASSERT(ts_store_blocks_have(&s->blocks, offset, bytes));
  TS_CHECK(is_of_whole_blocks(s, offset, bytes), "%lld bytes at %lld are not whole blocks", (long long) bytes,
           (long long) offset); /* what has no hash would be taken for good */
  meet_held(s, write, offset, bytes);
  return ts_store_pool_start(s->pool, write, offset, bytes, memory);
}

double ts_store_wait(ts_store *s, uint64_t ticket) {
  return ts_store_pool_wait(s->pool, ticket);
}

/* Bytes of whole blocks at the begin of a range. */
static int64_t count_whole(const ts_store *s, int64_t offset, int64_t bytes) {
  ts_store_block first = ts_store_block_at(&s->blocks, offset),
                 last = ts_store_block_at(&s->blocks, offset + bytes - 1);
  int64_t end = last.offset + last.bytes == offset + bytes ? offset + bytes : last.offset;
  return first.offset == offset && end > offset ? end - offset : 0;
}

/* Moves what one step can: whole blocks, or a part of one by way of the held block.  Returns its bytes. */
static int64_t move_some(ts_store *s, bool write, int64_t offset, int64_t bytes, char *memory) {
  int64_t whole = count_whole(s, offset, bytes);
  if (whole > 0) {
    meet_held(s, write, offset, whole);
    move_whole(s, write, offset, whole, memory);
    return whole;
  }
  ts_store_block k = ts_store_block_at(&s->blocks, offset);
  int64_t in_block = offset - k.offset, n = bytes < k.bytes - in_block ? bytes : k.bytes - in_block;
  held *h = hold(s, &k);
  if (write) {
    memcpy(h->memory + in_block, memory, (size_t) n);
    h->changed = true;
  } else {
    memcpy(memory, h->memory + in_block, (size_t) n);
  }
  return n;
}

static void move_range(ts_store *s, bool write, int64_t offset, int64_t bytes, char *memory) {
  TS_ASSERT(ts_store_blocks_have(&s->blocks, offset, bytes));
  for (int64_t done = 0; done < bytes;) {
    done += move_some(s, write, offset + done, bytes - done, memory + done);
  }
}

void ts_store_read(ts_store *s, int64_t offset, int64_t bytes, void *to) {
  move_range(s, false, offset, bytes, to);
}

void ts_store_write(ts_store *s, int64_t offset, int64_t bytes, const void *from) {
  move_range(s, true, offset, bytes, (char *) from); /* is only read */
}
