/* Files of offloaded state against a loop of io_uring that does nothing else: no hashes, no threads, one file.
 *
 *     benchmarks/store DIRECTORY [GB [THREADS [MIB DEPTH]]]     default: 1 GB, 1 thread, requests of 1 MiB, 8 under way
 *
 * Each way writes and reads all of its own file, direct where the file system can do that, in turns; the loop goes
 * first and last.  Prints the median of the rounds' rates, and of their ratios to the loop in the same round.  The last
 * row is the first store without hashes: what they cost is the difference. */
#include "io/store.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 9, AHEAD = 4, LOOP = 0, RING, THREADS, UNCHECKED, N_WAYS };

static const char *const ways[N_WAYS] = {"a bare loop", "store, io_uring", "store, threads", "without hashes"};

typedef struct bench {
  int64_t bytes, block, piece; /* of the file, of a request, of a transfer */
  unsigned depth;
  int file; /* of the loop */
  struct io_uring ring;
  ts_store *store[N_WAYS];
  char *memory; /* of pieces that are under way */
} bench;

/* ---- the loop ---- */

static void begin_block(bench *b, bool write, int64_t k) {
  struct io_uring_sqe *sqe = io_uring_get_sqe(&b->ring);
  char *memory = b->memory + k * b->block % (AHEAD * b->piece);
  io_uring_prep_rw(write ? IORING_OP_WRITE : IORING_OP_READ, sqe, b->file, memory, (unsigned) b->block,
                   (__u64) (k * b->block));
  TS_CHECK(io_uring_submit(&b->ring) == 1, "io_uring_submit");
}

static void finish_block(bench *b) {
  struct io_uring_cqe *cqe;
  TS_CHECK(io_uring_wait_cqe(&b->ring, &cqe) == 0 && cqe->res == b->block, "the loop's transfer");
  io_uring_cqe_seen(&b->ring, cqe);
}

static void run_loop(bench *b, bool write) {
  int64_t n = b->bytes / b->block;
  for (int64_t k = 0; k < n + b->depth; ++k) {
    if (k >= b->depth) {
      finish_block(b);
    }
    if (k < n) {
      begin_block(b, write, k);
    }
  }
}

/* ---- the store ---- */

static void run_store(bench *b, ts_store *store, bool write) {
  uint64_t ticket[AHEAD];
  int64_t n = b->bytes / b->piece;
  for (int64_t k = 0; k < n + AHEAD; ++k) {
    if (k >= AHEAD) {
      ts_store_wait(store, ticket[k % AHEAD]);
    }
    if (k < n) {
      ticket[k % AHEAD] = ts_store_start(store, write, k * b->piece, b->piece, b->memory + k % AHEAD * b->piece);
    }
  }
}

static double time_way(bench *b, int way, bool write) {
  ts_store_set_test_faults(way == UNCHECKED ? &(ts_store_faults){.unchecked = true} : NULL);
  double start = ts_seconds();
  if (way == LOOP) {
    run_loop(b, write);
  } else {
    run_store(b, b->store[way], write);
  }
  return 1e-9 * (double) b->bytes / (ts_seconds() - start);
}

/* ---- files ---- */

static void open_loop(bench *b, const char *directory) {
  b->file = open(directory, O_TMPFILE | O_RDWR, 0600);
  TS_CHECK(b->file >= 0 && fallocate(b->file, 0, 0, b->bytes) == 0, "%s: %s", directory, strerror(errno));
  fcntl(b->file, F_SETFL, O_DIRECT);
  TS_CHECK(io_uring_queue_init(b->depth, &b->ring, 0) == 0, "io_uring does not work here");
}

static ts_store *open_store(const bench *b, const char *directory, const char *engine, int threads) {
  const ts_store_extent extent = {0, b->bytes, b->block};
  const ts_store_options o = {directory, "benchmark", b->block, (int) b->depth, threads, engine};
  ts_store *store;
  ts_error err = {0};
  TS_CHECK(ts_store_create(&store, &o, &extent, 1, &err) == TS_OK, "%s", err.text);
  printf("  %s\n", ts_store_describe(store));
  return store;
}

/* ---- figures ---- */

static int by_rate(const void *a, const void *b) {
  double x = *(const double *) a, y = *(const double *) b;
  return (x > y) - (x < y);
}

static double middle(const double *of) {
  double sorted[ROUNDS];
  memcpy(sorted, of, sizeof sorted);
  qsort(sorted, ROUNDS, sizeof *sorted, by_rate);
  return sorted[ROUNDS / 2];
}

/* The rates of a round, the loop's as the mean of before and after. */
static void measure(bench *b, bool write, double rate[N_WAYS]) {
  double before = time_way(b, LOOP, write);
  for (int way = RING; way < N_WAYS; ++way) {
    rate[way] = time_way(b, way, write);
  }
  rate[LOOP] = (before + time_way(b, LOOP, write)) / 2;
}

static void print_ways(double (*rate)[N_WAYS], const char *what) {
  for (int way = 0; way < N_WAYS; ++way) {
    double rates[ROUNDS], ratios[ROUNDS];
    for (int i = 0; i < ROUNDS; ++i) {
      rates[i] = rate[i][way];
      ratios[i] = rate[i][way] / rate[i][LOOP];
    }
    printf("%-6s %-16s %6.2f GB/s  %5.2f of the loop\n", what, ways[way], middle(rates), middle(ratios));
  }
}

static double option(int argc, char **argv, int i, double otherwise) {
  double value = argc > i ? atof(argv[i]) : otherwise;
  return value > 0 ? value : otherwise;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: %s DIRECTORY [GB [THREADS [MIB DEPTH]]]\n", argv[0]);
    return 2;
  }
  int threads = (int) option(argc, argv, 3, 1);
  bench b = {.block = (int64_t) (option(argc, argv, 4, 1) * (1 << 20)), .depth = (unsigned) option(argc, argv, 5, 8)};
  b.piece = 2 * b.block * b.depth;
  b.bytes = (int64_t) (1e9 * option(argc, argv, 2, 1)) / b.piece * b.piece;
  b.memory = ts_map((size_t) (AHEAD * b.piece));
  for (int64_t i = 0; i < AHEAD * b.piece / 8; ++i) {
    ((uint64_t *) (void *) b.memory)[i] = ts_mix(1, (uint64_t) i);
  }
  printf("%.2f GB, %d threads, requests of %lld bytes, %u under way\n", 1e-9 * (double) b.bytes, threads,
         (long long) b.block, b.depth);
  open_loop(&b, argv[1]);
  b.store[RING] = b.store[UNCHECKED] = open_store(&b, argv[1], "io_uring", threads);
  b.store[THREADS] = open_store(&b, argv[1], "threads", threads);
  double written[ROUNDS][N_WAYS], read[ROUNDS][N_WAYS];
  for (int i = -1; i < ROUNDS; ++i) { /* the first one makes the files */
    measure(&b, true, written[i < 0 ? 0 : i]);
    run_store(&b, b.store[RING], true); /* what was written without hashes cannot be read with them */
    measure(&b, false, read[i < 0 ? 0 : i]);
  }
  print_ways(written, "write");
  print_ways(read, "read");
  ts_store_destroy(&b.store[RING]);
  ts_store_destroy(&b.store[THREADS]);
  io_uring_queue_exit(&b.ring);
  close(b.file);
  ts_unmap(b.memory, (size_t) (AHEAD * b.piece));
  return 0;
}
