/* Files of offloaded state, by each engine: against a model in memory, damaged, on devices that fail, and whose ends
 * leave nothing. */
#include "io/lock.h"
#include "io/store.h"
#include "regression/io/run_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KB = 1024, BLOCK = 16 * KB, N_BLOCKS = 8, NOBODY = 65534 };

/* Blocks of several sizes, ends that are no multiple of anything, and nothing at all. */
static const ts_store_extent extents[] = {{0, 5 * 4096 + 123, 4096},
                                          {6 * 4096, 200007, 16 * KB},
                                          {256 * KB, 300 * KB, 32 * KB},
                                          {556 * KB, 0, 4096},
                                          {560 * KB, 9, 8 * KB}};
enum { N_EXTENTS = sizeof extents / sizeof *extents, FILE_BYTES = 564 * KB };

static const ts_store_extent plain = {0, N_BLOCKS *BLOCK, BLOCK};

typedef struct setting {
  const char *engine;
  int threads, queue_depth;
  int64_t block_size;
} setting;

static const setting settings[] = {
    {"io_uring", 1, 4, 64 * KB}, {"io_uring", 3, 2, 32 * KB}, {"threads", 1, 1, 64 * KB}, {"threads", 2, 3, 32 * KB}};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

static uint64_t state = 12345;

static int64_t below(int64_t n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (int64_t) ((state >> 33) % (uint64_t) n);
}

static void fill(char *to, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) {
    to[i] = (char) below(256);
  }
}

static const char *directory(void) {
  static char *made;
  made = made != NULL ? made : ts_format("%s/offload", tap_directory());
  return made;
}

static ts_store *make(const setting *g, const ts_store_extent *extent, int n) {
  const ts_store_options o = {directory(), "rank7", g->block_size, g->queue_depth, g->threads, g->engine};
  ts_store *store;
  ts_error err = {0};
  TS_CHECK(ts_store_create(&store, &o, extent, n, &err) == TS_OK, "%s", err.text);
  return store;
}

static bool works(const setting *g) {
  const ts_store_options o = {directory(), "rank7", g->block_size, g->queue_depth, g->threads, g->engine};
  ts_store *store;
  ts_error err = {0};
  bool does = ts_store_create(&store, &o, NULL, 0, &err) == TS_OK;
  if (!does) {
    tap_skip("%s", err.text);
  }
  ts_error_clear(&err);
  ts_store_destroy(&store);
  return does;
}

static const char *name_of(const setting *g) {
  static char name[64];
  snprintf(name, sizeof name, "%s x %d x %d", g->engine, g->threads, g->queue_depth);
  return name;
}

/* Memory of exactly so many bytes, which sanitizers watch the ends of; some bytes behind a page when not aligned. */
typedef struct memory {
  char *begin, *all;
} memory;

static memory get_memory(int64_t bytes, bool aligned) {
  memory m;
  int64_t shift = aligned ? 0 : 1 + below(TS_STORE_ALIGN - 1);
  TS_CHECK(posix_memalign((void **) &m.all, TS_STORE_ALIGN, (size_t) (shift + bytes + 1)) == 0, "memory");
  m.begin = m.all + shift;
  m.begin[bytes] = 77;
  return m;
}

/* \return that nothing was written behind its end. */
static bool put_memory(memory *m, int64_t bytes) {
  bool whole = m->begin[bytes] == 77;
  free(m->all);
  return whole;
}

/* ---- against a model ---- */

typedef struct range {
  int64_t offset, bytes;
} range;

static range whole_blocks(int i) {
  const ts_store_extent *e = &extents[i];
  int64_t n = (e->bytes + e->block - 1) / e->block, first = below(n), last = first + 1 + below(n - first);
  int64_t end = last * e->block < e->bytes ? last * e->block : e->bytes;
  return (range){e->offset + first * e->block, end - first * e->block};
}

static range any_bytes(int i) {
  const ts_store_extent *e = &extents[i];
  int64_t from = below(e->bytes), bytes = below(3) == 0 ? below(e->bytes - from + 1) : below(300);
  return (range){e->offset + from, bytes < e->bytes - from ? bytes : e->bytes - from};
}

static int some_extent(void) {
  static const int with_bytes[] = {0, 1, 2, 4};
  return with_bytes[below(4)];
}

static bool turn_sync(ts_store *store, char *model) {
  range r = any_bytes(some_extent());
  memory m = get_memory(r.bytes, below(2) == 0);
  bool write = below(2) == 0, right = true;
  if (write) {
    fill(m.begin, r.bytes);
    memcpy(model + r.offset, m.begin, (size_t) r.bytes);
    ts_store_write(store, r.offset, r.bytes, m.begin);
  } else {
    memset(m.begin, 1, (size_t) r.bytes);
    ts_store_read(store, r.offset, r.bytes, m.begin);
    right = memcmp(model + r.offset, m.begin, (size_t) r.bytes) == 0;
  }
  return put_memory(&m, r.bytes) && right;
}

/* A transfer in each extent at a time, waited for in any order. */
static bool turn_started(ts_store *store, char *model) {
  static const int with_bytes[] = {2, 0, 4, 1};
  uint64_t ticket[4];
  range r[4];
  memory m[4];
  bool write[4], right = true;
  for (int i = 0; i < 4; ++i) {
    r[i] = whole_blocks(with_bytes[i]);
    m[i] = get_memory(r[i].bytes, below(2) == 0);
    write[i] = below(2) == 0;
    memset(m[i].begin, 1, (size_t) r[i].bytes);
    if (write[i]) {
      fill(m[i].begin, r[i].bytes);
      memcpy(model + r[i].offset, m[i].begin, (size_t) r[i].bytes);
    }
    ticket[i] = ts_store_start(store, write[i], r[i].offset, r[i].bytes, m[i].begin);
  }
  for (int i = 0, first = (int) below(4); i < 4; ++i) {
    ts_store_wait(store, ticket[(first + i) % 4]);
  }
  for (int i = 0; i < 4; ++i) {
    right = memcmp(model + r[i].offset, m[i].begin, (size_t) r[i].bytes) == 0 && right;
    right = put_memory(&m[i], r[i].bytes) && right;
  }
  return right;
}

static void test_model(const setting *g) {
  enum { TURNS = 400 };
  ts_store *store = make(g, extents, N_EXTENTS);
  char *model = ts_calloc(FILE_BYTES, 1);
  int wrong_sync = 0, wrong_started = 0;
  for (int i = 0; i < TURNS; ++i) {
    wrong_sync += !turn_sync(store, model);
    wrong_started += i % 4 == 0 && !turn_started(store, model);
  }
  tap_ok(wrong_sync == 0, "%s: ranges are read as they were written, %d wrong", name_of(g), wrong_sync);
  tap_ok(wrong_started == 0, "%s: so are blocks that transfers move, %d wrong", name_of(g), wrong_started);
  ts_store_destroy(&store);
  ts_free(model);
}

/* ---- zeros, tickets, counts ---- */

static bool is_filled(const char *bytes, int64_t n, char with) {
  for (int64_t i = 0; i < n; ++i) {
    if (bytes[i] != with) {
      return false;
    }
  }
  return true;
}

static void test_zeros(const setting *g) {
  ts_store *store = make(g, &plain, 1);
  memory m = get_memory(plain.bytes, true), one = get_memory(BLOCK, true);
  memset(m.begin, 1, (size_t) plain.bytes);
  ts_store_read(store, 0, plain.bytes, m.begin);
  ts_store_read(store, 5, 1, one.begin);
  tap_ok(is_filled(m.begin, plain.bytes, 0) && one.begin[0] == 0, "%s: zeros before anything is written", name_of(g));
  tap_ok(ts_store_count(store).bytes_read == 0, "%s: and they are not read from the disk", name_of(g));
  memset(one.begin, 5, BLOCK);
  ts_store_write(store, 3 * BLOCK, BLOCK, one.begin);
  memset(m.begin, 1, (size_t) plain.bytes);
  ts_store_read(store, 0, plain.bytes, m.begin);
  bool right = is_filled(m.begin, 3 * BLOCK, 0) && is_filled(m.begin + 3 * BLOCK, BLOCK, 5) &&
               is_filled(m.begin + 4 * BLOCK, 4 * BLOCK, 0);
  tap_ok(right && ts_store_count(store).bytes_read == BLOCK, "%s: beside a block that was written", name_of(g));
  put_memory(&m, plain.bytes);
  put_memory(&one, BLOCK);
  ts_store_destroy(&store);
}

static void test_small(const setting *g) {
  ts_store *store = make(g, &plain, 1);
  char *model = ts_malloc((size_t) plain.bytes), *back = ts_malloc((size_t) plain.bytes);
  fill(model, plain.bytes);
  ts_store_write(store, 0, plain.bytes, model);
  ts_store_counts before = ts_store_count(store);
  tap_ok(before.bytes_written == plain.bytes && before.bytes_read == 0, "%s: whole blocks are only written",
         name_of(g));
  for (int64_t at = 100; at < plain.bytes - BLOCK - 1000; at += 37) {
    fill(model + at, 37);
    ts_store_write(store, at, 37, model + at);
  }
  for (int64_t at = 0; at < BLOCK - 100; at += 51) { /* again, in turns, as leaves that belong together are */
    for (int k = 0; k < 2; ++k) {
      fill(model + k * BLOCK + at, 13);
      ts_store_write(store, k * BLOCK + at, 13, model + k * BLOCK + at);
    }
  }
  ts_store_read(store, 0, plain.bytes, back); /* what is held goes to the disk */
  ts_store_counts after = ts_store_count(store);
  int64_t blocks = N_BLOCKS - 1 + 2, reads = after.bytes_read - before.bytes_read - plain.bytes;
  tap_ok(reads == blocks * BLOCK && after.bytes_written - before.bytes_written == blocks * BLOCK,
         "%s: many small writes read and write a block once, %lld and %lld bytes", name_of(g), (long long) reads,
         (long long) (after.bytes_written - before.bytes_written));
  tap_ok(memcmp(model, back, (size_t) plain.bytes) == 0, "%s: and all is there", name_of(g));
  ts_free(model);
  ts_free(back);
  ts_store_destroy(&store);
}

/* A block that is changed in memory and not on the disk yet, and transfers of it. */
static void test_held(const setting *g) {
  ts_store *store = make(g, &plain, 1);
  memory m = get_memory(2 * BLOCK, true);
  char two[2] = {0};
  ts_store_write(store, BLOCK + 10, 1, "a");
  ts_store_wait(store, ts_store_start(store, false, 0, 2 * BLOCK, m.begin));
  tap_ok(m.begin[BLOCK + 10] == 'a' && m.begin[BLOCK + 11] == 0, "%s: a transfer sees what was written", name_of(g));
  ts_store_write(store, BLOCK + 10, 1, "b");
  memset(m.begin, 'c', 2 * BLOCK);
  ts_store_wait(store, ts_store_start(store, true, 0, 2 * BLOCK, m.begin));
  ts_store_read(store, BLOCK + 10, 2, two);
  tap_ok(two[0] == 'c' && two[1] == 'c', "%s: and what a transfer wrote is seen", name_of(g));
  put_memory(&m, 2 * BLOCK);
  ts_store_destroy(&store);
}

static void test_tickets(const setting *g) {
  enum { MANY = 1100 };
  const ts_store_extent many = {0, MANY * 4096, 4096};
  ts_store *store = make(g, &many, 1);
  memory m = get_memory(many.bytes, true), back = get_memory(many.bytes, true);
  bool counted = true;
  fill(m.begin, many.bytes);
  for (int64_t i = 0; i < MANY; ++i) {
    counted = ts_store_start(store, true, i * 4096, 4096, m.begin + i * 4096) == (uint64_t) i + 1 && counted;
  }
  double waited = 0;
  for (uint64_t ticket = MANY; ticket > 0; --ticket) {
    waited += ts_store_wait(store, ticket);
  }
  tap_ok(counted, "%s: tickets are 1, 2, 3, ...", name_of(g));
  uint64_t none = ts_store_start(store, true, 0, 0, NULL), last = 0;
  for (int64_t i = MANY; i-- > 0;) {
    last = ts_store_start(store, false, i * 4096, 4096, back.begin + i * 4096);
  }
  waited += ts_store_wait(store, last);
  for (uint64_t ticket = none; ticket < last; ++ticket) {
    waited += ts_store_wait(store, ticket);
  }
  ts_store_counts counts = ts_store_count(store);
  tap_ok(memcmp(m.begin, back.begin, (size_t) many.bytes) == 0,
         "%s: more transfers than may be under way, in any order", name_of(g));
  tap_ok(counts.bytes_read == many.bytes && counts.bytes_written == many.bytes && counts.read_again == 0,
         "%s: bytes are counted", name_of(g));
  double off = counts.seconds_waited - waited;
  tap_ok(waited > 0 && off < 1e-9 && off > -1e-9, "%s: seconds waited are counted", name_of(g));
  put_memory(&m, many.bytes);
  put_memory(&back, many.bytes);
  ts_store_destroy(&store);
}

static void test_empty(const setting *g) {
  const ts_store_extent nothing = {0, 0, 4096};
  ts_store *store = make(g, NULL, 0);
  tap_ok(store != NULL && ts_store_count(store).bytes_read == 0, "%s: a store of nothing", name_of(g));
  ts_store_destroy(&store);
  tap_ok(store == NULL, "%s: is NULL then", name_of(g));
  ts_store_destroy(&store);
  store = make(g, &nothing, 1);
  ts_store_wait(store, ts_store_start(store, true, 0, 0, NULL));
  ts_store_wait(store, ts_store_start(store, false, 0, 0, NULL));
  ts_store_read(store, 0, 0, NULL);
  ts_store_destroy(&store);
}

/* ---- jobs that end ---- */

static void leave(int code, const char *reason) {
  (void) reason;
  _exit(code);
}

/* Does this end its process by a failure with these words? */
static bool dies(void (*run)(const void *), const void *argument, const char *words, const char *more) {
  char *path = path_of(tap_directory(), "said");
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    ts_set_failure_context(7, NULL, leave);
    alarm(60);
    if (file >= 0 && dup2(file, 2) == 2) {
      run(argument);
    }
    _exit(0);
  }
  int status;
  TS_CHECK(child > 0 && waitpid(child, &status, 0) == child, "fork");
  size_t length;
  char *said = get(tap_directory(), "said", &length);
  bool right = WIFEXITED(status) && WEXITSTATUS(status) == 1 && strstr(said, words) != NULL &&
               strstr(said, more) != NULL && strstr(said, "rank7") != NULL && strstr(said, directory()) != NULL &&
               strstr(said, "nvme_path") != NULL;
  if (!right) {
    tap_note("status %d, said %s", status, said);
  }
  ts_free(said);
  ts_free(path);
  return right;
}

/* ---- damage ---- */

/* The file by way of the page cache, which takes any range. */
static int open_again(const ts_store *store) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", ts_store_test_file(store));
  int file = open(path, O_RDWR | O_CLOEXEC);
  TS_CHECK(file >= 0, "%s: %s", path, strerror(errno));
  return file;
}

static void read_file(int file, int64_t offset, int64_t bytes, char *to) {
  TS_CHECK(pread(file, to, (size_t) bytes, (off_t) offset) == bytes, "pread: %s", strerror(errno));
}

static void write_file(int file, int64_t offset, int64_t bytes, const char *from) {
  TS_CHECK(pwrite(file, from, (size_t) bytes, (off_t) offset) == bytes && fsync(file) == 0, "pwrite: %s",
           strerror(errno));
}

static void flip_bit(int file, const char *older) {
  char byte;
  (void) older;
  read_file(file, 2 * BLOCK + 777, 1, &byte);
  byte ^= 4;
  write_file(file, 2 * BLOCK + 777, 1, &byte);
}

static void put_back_older(int file, const char *older) {
  write_file(file, 2 * BLOCK, BLOCK, older + 2 * BLOCK);
}

static void exchange_blocks(int file, const char *older) {
  char two[2 * BLOCK];
  (void) older;
  read_file(file, 2 * BLOCK, 2 * BLOCK, two);
  write_file(file, 2 * BLOCK, BLOCK, two + BLOCK);
  write_file(file, 3 * BLOCK, BLOCK, two);
}

static void tear_block(int file, const char *older) {
  write_file(file, 2 * BLOCK + BLOCK / 2, BLOCK / 2, older + 2 * BLOCK + BLOCK / 2);
}

static void lose_block(int file, const char *older) {
  (void) older;
  char zeros[BLOCK] = {0};
  write_file(file, 2 * BLOCK, BLOCK, zeros);
}

static void change_nothing(int file, const char *older) {
  (void) file;
  (void) older;
}

typedef struct damage {
  const char *what;
  void (*make)(int file, const char *older);
  const setting *setting;
  bool sync;
} damage;

/* Two versions are written, with blocks that have the same bytes every time; then the file changes. */
static void read_damaged(const void *argument) {
  const damage *d = argument;
  ts_store *store = make(d->setting, &plain, 1);
  memory first = get_memory(plain.bytes, true), second = get_memory(plain.bytes, true);
  fill(first.begin, plain.bytes);
  fill(second.begin, plain.bytes);
  ts_store_write(store, 0, plain.bytes, first.begin);
  ts_store_write(store, 0, plain.bytes, second.begin);
  int file = open_again(store);
  d->make(file, first.begin);
  close(file);
  if (d->sync) {
    ts_store_read(store, 2 * BLOCK + 5, 10, second.begin);
  } else {
    ts_store_wait(store, ts_store_start(store, false, 0, plain.bytes, second.begin));
  }
  put_memory(&first, plain.bytes);
  put_memory(&second, plain.bytes);
  ts_store_destroy(&store);
}

static void test_damage(const setting *g) {
  static const struct {
    const char *what;
    void (*make)(int file, const char *older);
  } kinds[] = {{"a flipped bit", flip_bit},
               {"an older version of a block", put_back_older},
               {"two blocks that were exchanged", exchange_blocks},
               {"a block half of which is older", tear_block},
               {"a block of zeros", lose_block}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
    for (int sync = 0; sync < 2; ++sync) {
      damage d = {kinds[i].what, kinds[i].make, g, sync};
      tap_ok(dies(read_damaged, &d, "hash of its block of 16384 bytes at offset 32768", "reading"),
             "%s: %s ends the job%s", name_of(g), d.what, sync ? ", in a read of some bytes" : "");
    }
  }
  damage none = {"nothing", change_nothing, g, false};
  read_damaged(&none);
  tap_ok(true, "%s: without damage it does not end", name_of(g));
}

/* ---- devices that fail, for the moment or for good ---- */

static atomic_int asked;     /* calls of the function below */
static int64_t answer;       /* to those that are about the block */
static bool answer_to_write; /* which ones */
static int damaged_file;

static int64_t answer_once(bool write, int64_t offset, int64_t bytes) {
  bool meant = write == answer_to_write && offset <= 2 * BLOCK && 2 * BLOCK < offset + bytes;
  return meant ? answer : bytes;
}

/* Pieces of one page, after interruptions. */
static int64_t move_little(bool write, int64_t offset, int64_t bytes) {
  int n = atomic_fetch_add(&asked, 1);
  (void) write;
  (void) offset;
  return n % 3 == 0 ? -EINTR : n % 3 == 1 ? -EAGAIN : bytes < TS_STORE_ALIGN ? bytes : TS_STORE_ALIGN;
}

static int64_t damage_first_reading(bool write, int64_t offset, int64_t bytes) {
  if (!write && offset <= 2 * BLOCK && 2 * BLOCK < offset + bytes && atomic_fetch_add(&asked, 1) < 2) {
    flip_bit(damaged_file, NULL); /* and back again before the second one */
  }
  return bytes;
}

static void test_passing(const setting *g) {
  ts_store *store = make(g, extents, N_EXTENTS);
  const ts_store_extent *e = &extents[1];
  memory m = get_memory(e->bytes, true), back = get_memory(e->bytes, false);
  fill(m.begin, e->bytes);
  atomic_store(&asked, 0);
  ts_store_set_test_faults(&(ts_store_faults){.move = move_little});
  ts_store_wait(store, ts_store_start(store, true, e->offset, e->bytes, m.begin));
  int pieces = atomic_load(&asked);
  ts_store_wait(store, ts_store_start(store, false, e->offset, e->bytes, back.begin));
  ts_store_set_test_faults(NULL);
  tap_ok(memcmp(m.begin, back.begin, (size_t) e->bytes) == 0 && pieces >= 3 * (e->bytes / 4096),
         "%s: what is moved in pieces, and interrupted, is moved: %d calls", name_of(g), pieces);
  ts_store_counts counts = ts_store_count(store);
  tap_ok(counts.bytes_read == e->bytes && counts.bytes_written == e->bytes, "%s: and counted once", name_of(g));
  put_memory(&m, e->bytes);
  put_memory(&back, e->bytes);
  ts_store_destroy(&store);
}

static void test_read_again(const setting *g) {
  ts_store *store = make(g, &plain, 1);
  memory m = get_memory(plain.bytes, true), back = get_memory(plain.bytes, true);
  fill(m.begin, plain.bytes);
  ts_store_write(store, 0, plain.bytes, m.begin);
  damaged_file = open_again(store);
  atomic_store(&asked, 0);
  ts_store_set_test_faults(&(ts_store_faults){.move = damage_first_reading});
  ts_store_wait(store, ts_store_start(store, false, 0, plain.bytes, back.begin));
  ts_store_set_test_faults(NULL);
  close(damaged_file);
  tap_ok(memcmp(m.begin, back.begin, (size_t) plain.bytes) == 0 && atomic_load(&asked) == 2 &&
             ts_store_count(store).read_again == 1,
         "%s: a block that was wrong once is read again, and counted", name_of(g));
  put_memory(&m, plain.bytes);
  put_memory(&back, plain.bytes);
  ts_store_destroy(&store);
}

typedef struct failure {
  bool write;
  int64_t answer;
  const setting *setting;
} failure;

static void move_on_failing(const void *argument) {
  const failure *f = argument;
  answer = f->answer;
  answer_to_write = f->write;
  ts_store_set_test_faults(&(ts_store_faults){.move = answer_once});
  ts_store *store = make(f->setting, &plain, 1);
  memory m = get_memory(plain.bytes, true);
  fill(m.begin, plain.bytes);
  ts_store_wait(store, ts_store_start(store, true, 0, plain.bytes, m.begin));
  ts_store_wait(store, ts_store_start(store, false, 0, plain.bytes, m.begin));
  put_memory(&m, plain.bytes);
  ts_store_destroy(&store);
  ts_store_set_test_faults(NULL);
}

static void test_failing(const setting *g) {
  static const struct {
    bool write;
    int64_t answer;
    const char *words;
  } kinds[] = {{false, -EIO, "Input/output error"},
               {true, -EIO, "Input/output error"},
               {true, -ENOSPC, "No space left on device"},
               {false, 0, "the file ended after 0 of them"}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
    failure f = {kinds[i].write, kinds[i].answer, g};
    tap_ok(dies(move_on_failing, &f, kinds[i].words, f.write ? "writing" : "reading"), "%s: %s: %s", name_of(g),
           f.write ? "writing" : "reading", kinds[i].words);
  }
  move_on_failing(&(failure){false, INT64_MAX, g});
  tap_ok(true, "%s: without failures the same does not end", name_of(g));
}

/* A file that became shorter behind our back. */
static void read_cut_file(const void *argument) {
  ts_store *store = make(argument, &plain, 1);
  memory m = get_memory(plain.bytes, true);
  fill(m.begin, plain.bytes);
  ts_store_write(store, 0, plain.bytes, m.begin);
  TS_CHECK(ftruncate(ts_store_test_file(store), BLOCK + 4096) == 0, "ftruncate");
  ts_store_read(store, 0, plain.bytes, m.begin);
}

/* Nobody waits for what fails: it is no failure of the one that is destroyed. */
static void test_unheard(const setting *g) {
  answer = -EIO;
  answer_to_write = true;
  ts_store_set_test_faults(&(ts_store_faults){.move = answer_once});
  ts_store *store = make(g, &plain, 1);
  memory m = get_memory(plain.bytes, true);
  fill(m.begin, plain.bytes);
  ts_store_start(store, true, 0, plain.bytes, m.begin);
  ts_store_destroy(&store);
  ts_store_set_test_faults(NULL);
  tap_ok(store == NULL, "%s: a store ends with a failure that nobody waits for", name_of(g));
  put_memory(&m, plain.bytes);
}

/* ---- threads ---- */

/* Threads of stores, and whether each blocks what ends jobs. */
static int count_threads(bool *block) {
  DIR *tasks = opendir("/proc/self/task");
  int n = 0;
  *block = true;
  for (struct dirent *entry; tasks != NULL && (entry = readdir(tasks)) != NULL;) {
    char path[300], line[256], name[32] = "";
    unsigned long long blocked = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
      sscanf(line, "Name: %31s", name);
      sscanf(line, "SigBlk: %llx", &blocked);
    }
    if (file != NULL) {
      fclose(file);
    }
    if (strcmp(name, "ts_store") == 0) {
      ++n;
      *block =
          *block && (blocked >> (SIGTERM - 1) & 1) && (blocked >> (SIGUSR1 - 1) & 1) && (blocked >> (SIGINT - 1) & 1);
    }
  }
  closedir(tasks);
  return n;
}

static void test_threads(void) {
  static const struct {
    setting setting;
    int threads;
  } rows[] = {{{"threads", 1, 4, BLOCK}, 4}, {{"threads", 3, 8, BLOCK}, 16}, {{"io_uring", 3, 8, BLOCK}, 3}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    bool block;
    if (works(&rows[i].setting)) {
      ts_store *store = make(&rows[i].setting, &plain, 1);
      int n = count_threads(&block);
      tap_ok(n == rows[i].threads, "%s: %d threads, wanted %d", name_of(&rows[i].setting), n, rows[i].threads);
      tap_ok(n > 0 && block, "%s: which leave signals to others", name_of(&rows[i].setting));
      ts_store_destroy(&store);
      tap_ok(count_threads(&block) == 0, "%s: and end", name_of(&rows[i].setting));
    }
  }
}

/* ---- creation ---- */

static const ts_store_options options_here = {.name = "rank7", .block_size = 64 * KB, .queue_depth = 4, .threads = 1};

static bool refused(const char *in, const char *engine, const ts_store_extent *extent, const char *words,
                    const char *more) {
  ts_store_options o = options_here;
  ts_error err = {0};
  ts_store *store;
  o.directory = in;
  o.engine = engine;
  ts_status status = ts_store_create(&store, &o, extent, 1, &err);
  bool right = store == NULL && err.count == 1 && strstr(err.text, more) != NULL;
  right = says(status, &err, words) && right;
  ts_store_destroy(&store);
  return right;
}

static void test_refusals(void) {
  const ts_store_extent exabyte = {0, (int64_t) 1 << 60, BLOCK}, beyond = {0, INT64_MAX - 5, BLOCK};
  tap_ok(refused(directory(), NULL, &exabyte, "needs 1152.92 PB (1152921504606846976 bytes) and ",
                 "are free there: No space left on device"),
         "a disk that is too small: bytes wanted and free");
  tap_ok(refused(directory(), NULL, &beyond, "more than 2^63 bytes", directory()), "bytes without a number");
  ts_store_set_test_faults(&(ts_store_faults){.reserve = EDQUOT});
  tap_ok(refused(directory(), NULL, &plain, "needs 131.07 kB (131072 bytes)", "nvme_path"), "a quota");
  ts_store_set_test_faults(NULL);
  tap_ok(refused(directory(), "aio", &plain, "\"aio\"", "\"threads\""), "an engine that is not there");
  ts_store_set_test_faults(&(ts_store_faults){.uring = EPERM});
  tap_ok(refused(directory(), "io_uring", &plain, "asked for does not work here: io_uring: ", "\"threads\""),
         "an engine that was asked for and does not work");
  ts_store_set_test_faults(NULL);
  put(tap_directory(), "a_file", "x", 1);
  char *file = path_of(tap_directory(), "a_file");
  tap_ok(refused(file, NULL, &plain, "a_file: cannot be created", ""), "a directory that is a file");
  ts_free(file);
}

/* Does this hold of another user, who may lock no memory, in a process of its own? */
static bool holds_of_nobody(bool (*fact)(void)) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    const struct rlimit little = {64 * KB, 64 * KB};
    bool became =
        geteuid() != 0 || (setrlimit(RLIMIT_MEMLOCK, &little) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    _exit(!became ? 2 : !fact());
  }
  int status;
  TS_CHECK(child > 0 && waitpid(child, &status, 0) == child, "fork");
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool is_forbidden(void) {
  return refused(directory(), NULL, &plain, "Permission denied", "nvme_path");
}

/* \return owned by the caller; NULL and a message when there is no store. */
static char *description(const char *engine) {
  ts_store_options o = options_here;
  ts_store *store;
  ts_error err = {0};
  o.directory = directory();
  o.engine = engine;
  char *text = ts_store_create(&store, &o, &plain, 1, &err) == TS_OK ? ts_strdup(ts_store_describe(store)) : NULL;
  if (text == NULL) {
    tap_note("%s", err.text);
  }
  ts_error_clear(&err);
  ts_store_destroy(&store);
  return text;
}

static bool describes(const char *engine, const char *words) {
  char *text = description(engine);
  bool right = text != NULL && strstr(text, words) != NULL;
  if (!right) {
    tap_note("wanted \"%s\", got %s", words, text != NULL ? text : "nothing");
  }
  ts_free(text);
  return right;
}

static bool is_not_pinned(void) {
  return describes("io_uring", "its buffers not pinned (Cannot allocate memory: ulimit -l)");
}

static void test_nobody(void) {
  static const setting ring = {"io_uring", 1, 4, 64 * KB};
  TS_CHECK(chmod(tap_directory(), 0755) == 0 && chmod(directory(), 0555) == 0, "chmod");
  tap_ok(holds_of_nobody(is_forbidden), "a directory that may not be written to");
  TS_CHECK(chmod(directory(), 0777) == 0, "chmod");
  if (works(&ring)) {
    tap_ok(holds_of_nobody(is_not_pinned), "buffers beyond ulimit -l are used as they are, and that is told");
  }
  TS_CHECK(chmod(directory(), 0700) == 0, "chmod");
}

static void test_descriptions(void) {
  static const setting ring = {"io_uring", 1, 4, 64 * KB};
  static const struct {
    ts_store_faults faults;
    const char *engine, *words;
  } rows[] = {{{.direct = EINVAL}, "threads", "threads, through the page cache (O_DIRECT: Invalid argument)"},
              {{.unnamed = EOPNOTSUPP, .unlink = EBUSY}, "threads", ", a file with a name"},
              {{.uring = EPERM}, NULL, "threads (io_uring: "},
              {{.pin = ENOMEM}, "io_uring", "io_uring, "},
              {{.pin = ENOMEM}, "io_uring", ", its buffers not pinned (Cannot allocate memory: ulimit -l)"},
              {{.uring = EPERM}, NULL, "threads (io_uring: Operation not permitted), "}};
  bool has_ring = works(&ring);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (has_ring || rows[i].faults.uring + rows[i].faults.pin == 0) {
      ts_store_set_test_faults(&rows[i].faults);
      tap_ok(describes(rows[i].engine, rows[i].words), "described: %s", rows[i].words);
      ts_store_set_test_faults(NULL);
    }
  }
  tap_ok(describes(NULL, has_ring ? "io_uring, " : "threads (io_uring: "), "the first engine that works is taken");
}

/* What containers do. */
static bool forbid(unsigned call) {
  struct sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void test_filter(unsigned call, const char *what) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    _exit(!forbid(call) ? 77 : !describes(NULL, "threads (io_uring: Operation not permitted), "));
  }
  int status;
  TS_CHECK(child > 0 && waitpid(child, &status, 0) == child, "fork");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    tap_skip("no filters of system calls");
  } else {
    tap_ok(status == 0, "where %s is not permitted threads are taken, and that is told", what);
  }
}

static void test_filters(void) {
  static const setting ring = {"io_uring", 1, 4, 64 * KB};
  if (works(&ring)) {
    test_filter(SYS_io_uring_setup, "io_uring");
    test_filter(SYS_io_uring_enter, "giving a ring anything");
  }
}

/* What is said of the page cache is so. */
static void test_direct(void) {
  static const int errors[] = {0, EINVAL};
  for (size_t i = 0; i < 2; ++i) {
    ts_store_set_test_faults(&(ts_store_faults){.direct = errors[i]});
    ts_store *store = make(&settings[2], &plain, 1);
    bool said = strstr(ts_store_describe(store), ", O_DIRECT") != NULL;
    tap_ok(said == ((fcntl(ts_store_test_file(store), F_GETFL) & O_DIRECT) != 0) && (errors[i] == 0 || !said), "%s",
           ts_store_describe(store));
    ts_store_destroy(&store);
    ts_store_set_test_faults(NULL);
  }
}

/* A file system of a megabyte. */
static void test_small_disk(void) {
  char *in = make_run("small");
  if (mount("tmpfs", in, "tmpfs", 0, "size=1m") != 0) {
    tap_skip("no small file system: mount: %s", strerror(errno));
  } else {
    const ts_store_extent half = {0, 512 * KB, BLOCK}, more = {0, 640 * KB, BLOCK}, twice = {0, 2048 * KB, BLOCK};
    ts_store_options o = options_here;
    ts_store *store;
    o.directory = in;
    tap_ok(refused(in, NULL, &twice, "needs 2.10 MB (2097152 bytes) and 1.05 MB are free there", in),
           "a full disk is told at the start");
    tap_ok(ts_store_create(&store, &o, &half, 1, NULL) == TS_OK, "what fits is taken");
    tap_ok(refused(in, NULL, &more, "(655360 bytes) and 524.29 kB are free there", "nvme_path"),
           "and its space is reserved");
    ts_store_destroy(&store);
    TS_CHECK(umount(in) == 0, "umount: %s", strerror(errno));
  }
  ts_free(in);
}

static void test_reserved(void) {
  static const int errors[] = {0, EOPNOTSUPP};
  for (size_t i = 0; i < 2; ++i) {
    ts_store_set_test_faults(&(ts_store_faults){.reserve = errors[i]});
    ts_store *store = make(&settings[2], extents, N_EXTENTS);
    struct stat info;
    TS_CHECK(fstat(ts_store_test_file(store), &info) == 0, "fstat");
    tap_ok(info.st_size == FILE_BYTES && info.st_blocks * 512 >= FILE_BYTES, "the file has its space%s",
           errors[i] != 0 ? ", where fallocate is not supported" : "");
    ts_store_destroy(&store);
    ts_store_set_test_faults(NULL);
  }
}

static void test_through_cache(void) {
  ts_store_set_test_faults(&(ts_store_faults){.direct = EINVAL});
  for (int i = 0; i < N_SETTINGS; ++i) {
    if (works(&settings[i])) {
      test_model(&settings[i]);
    }
  }
  ts_store_set_test_faults(NULL);
}

static void test_memory(void) {
  ts_store_options o = options_here;
  ts_store_extent some[] = {{0, 100 * 4096, 4096}}, more[] = {{0, 1100 * 4096 - 9, 4096}};
  int64_t first = ts_store_memory(&o, some, 1);
  tap_ok(ts_store_memory(&o, more, 1) - first == 1000 * 12 && first >= 4 * 64 * KB,
         "memory: 12 bytes for each block, and the buffers");
}

/* ---- names ---- */

static int count_files(const char *in) {
  DIR *entries = opendir(in);
  int n = -2; /* . and .. */
  for (; entries != NULL && readdir(entries) != NULL; ++n) {
  }
  if (entries != NULL) {
    closedir(entries);
  }
  return n;
}

/* A process that has a store, and says so, and stays until it is killed. */
static pid_t start_holder(const ts_store_faults *how) {
  int ready[2];
  char byte;
  fflush(stdout);
  TS_CHECK(pipe(ready) == 0, "pipe");
  pid_t child = fork();
  if (child == 0) {
    ts_store_set_test_faults(how);
    ts_store *store = make(&settings[2], &plain, 1);
    ts_store_write(store, 10, 3, "abc");
    byte = store != NULL;
    _exit(write(ready[1], &byte, 1) == 1 && alarm(60) == 0 ? pause() : 1);
  }
  TS_CHECK(child > 0 && read(ready[0], &byte, 1) == 1, "fork");
  close(ready[0]);
  close(ready[1]);
  return child;
}

static void kill_holder(pid_t child) {
  int status;
  TS_CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status), "kill");
}

static void come_and_go(void) {
  ts_store *store = make(&settings[2], &plain, 1);
  ts_store_destroy(&store);
}

static const ts_store_faults unlinked = {.unnamed = EOPNOTSUPP}, kept = {.unnamed = EOPNOTSUPP, .unlink = EBUSY};

static void test_no_name(const ts_store_faults *how, const char *what) {
  pid_t child = start_holder(how);
  tap_ok(count_files(directory()) == 0, "%s: no name while it is open", what);
  kill_holder(child);
  tap_ok(count_files(directory()) == 0, "%s: nothing after kill -9", what);
}

static void test_names(void) {
  pid_t child = start_holder(&kept);
  tap_ok(count_files(directory()) == 1, "where unlinking fails there is a file");
  come_and_go();
  tap_ok(count_files(directory()) == 1, "whoever comes next leaves it as long as it is locked");
  kill_holder(child);
  tap_ok(count_files(directory()) == 1, "kill -9 leaves it");
  come_and_go();
  tap_ok(count_files(directory()) == 0, "whoever comes next removes it");
}

/* Whether another process can lock the only file there. */
static bool another_can_lock(void) {
  DIR *entries = opendir(directory());
  int status = 1;
  for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
    fflush(stdout);
    pid_t child = entry->d_name[0] != '.' ? fork() : -1;
    if (child == 0) {
      char *path = path_of(directory(), entry->d_name);
      int file = open(path, O_RDWR);
      _exit(file < 0 || ts_lock_take(file) != 0);
    }
    TS_CHECK(child < 0 || waitpid(child, &status, 0) == child, "fork");
  }
  closedir(entries);
  return status == 0;
}

/* Locks are a process's, whose own files must not look dead to it, nor be opened and closed. */
static void test_two_stores(void) {
  ts_store_set_test_faults(&kept);
  ts_store *first = make(&settings[2], &plain, 1);
  tap_ok(!another_can_lock(), "a file with a name is locked");
  come_and_go();
  tap_ok(count_files(directory()) == 1 && !another_can_lock(), "and stays so when the same process makes another");
  ts_store_destroy(&first);
  tap_ok(count_files(directory()) == 0, "its name goes with it");
  ts_store_set_test_faults(NULL);
}

/* Without locks nobody knows who is alive: then all stay. */
static void test_no_locks(void) {
  ts_store_set_test_faults(&kept);
  ts_lock_set_test_failure(ENOLCK);
  pid_t child = start_holder(&kept);
  come_and_go();
  tap_ok(count_files(directory()) == 1, "a file system without locks: none of another process is removed");
  kill_holder(child);
  ts_lock_set_test_failure(0);
  ts_store_set_test_faults(NULL);
  come_and_go();
  tap_ok(count_files(directory()) == 0, "with locks they go");
}

static void test_others_files(void) {
  static const char *const names[] = {"tessera-offload-notes.txt", "tessera-offload-rank7-abc12", "notes-abc123"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    put(directory(), names[i], "x", 1);
    char *path = path_of(directory(), names[i]);
    TS_CHECK(chmod(path, 0600) == 0, "chmod");
    ts_free(path);
  }
  put(directory(), "tessera-offload-rank7-abc123", "x", 1); /* whose mode is another */
  come_and_go();
  tap_ok(count_files(directory()) == 4, "what others have there stays");
}

/* ---- all ---- */

static void test_engine(const setting *g) {
  test_model(g);
  test_zeros(g);
  test_small(g);
  test_held(g);
  test_tickets(g);
  test_empty(g);
  test_damage(g);
  test_passing(g);
  test_read_again(g);
  test_failing(g);
  tap_ok(dies(read_cut_file, g, "the file ended after", "reading"), "%s: a file that became shorter", name_of(g));
  test_unheard(g);
}

int main(void) {
  for (int i = 0; i < N_SETTINGS; ++i) {
    if (works(&settings[i])) {
      test_engine(&settings[i]);
    }
  }
  test_through_cache();
  test_threads();
  test_refusals();
  test_nobody();
  test_descriptions();
  test_filters();
  test_direct();
  test_small_disk();
  test_reserved();
  test_memory();
  test_no_name(&(ts_store_faults){0}, "O_TMPFILE");
  test_no_name(&unlinked, "unlinked");
  test_names();
  test_two_stores();
  test_no_locks();
  test_others_files();
  ts_free((char *) directory());
  tap_ok(ts_memory_live() == 0, "nothing is left allocated");
  return tap_done();
}
