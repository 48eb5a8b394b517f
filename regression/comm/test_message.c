/* Messages that are sent again and again: in order, in parts of any lengths, to oneself too, late on either side. */
#include "regression/tap_mpi.h"

#include "base/memory.h"
#include "comm/comm.h"

enum { SLOTS = 3, TIMES = 4, MOST = 300000 /* beyond what MPI sends at once */ };

/* What message number k over a line is made of. */
static unsigned char content(int from, int k, size_t i) {
  return (unsigned char) (31 * from + 7 * k + (int) (i % 251));
}

typedef struct end {
  ts_message_line *line[SLOTS];
  unsigned char *memory[SLOTS];
} end;

/* The two sides divide a message into parts at different places. */
static end open_end(ts_comm *comm, bool sends, int peer, int number, size_t bytes) {
  end e;
  for (int slot = 0; slot < SLOTS; ++slot) {
    size_t cut = sends ? bytes / 3 : bytes / 2;
    e.memory[slot] = ts_calloc(bytes + 1, 1);
    const ts_message_part part[] = {{e.memory[slot], cut}, {e.memory[slot] + cut, bytes - cut}};
    e.line[slot] = ts_message_line_create(comm, sends, peer, number, part, 2);
  }
  return e;
}

static void close_end(end *e) {
  for (int slot = 0; slot < SLOTS; ++slot) {
    ts_message_line_destroy(&e->line[slot]);
    ts_free(e->memory[slot]);
  }
}

static void fill(end *e, int slot, int from, int k, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    e->memory[slot][i] = content(from, k, i);
  }
}

static bool has(const end *e, int slot, int from, int k, size_t bytes) {
  bool same = true;
  for (size_t i = 0; i < bytes; ++i) {
    same = same && e->memory[slot][i] == content(from, k, i);
  }
  return same;
}

/* Receives are all posted first, the sends follow: what was posted first has what was sent first. */
static void test(ts_comm *comm, int to, int from, size_t bytes, const char *what) {
  end out = open_end(comm, true, to, 3, bytes), in = open_end(comm, false, from, 3, bytes);
  bool right = true, was_open = true;
  for (int time = 0; time < TIMES; ++time) {
    for (int slot = 0; slot < SLOTS; ++slot) {
      ts_message_start(in.line[slot]);
      was_open = was_open && ts_message_is_open(in.line[slot]);
    }
    for (int slot = 0; slot < SLOTS; ++slot) {
      fill(&out, slot, comm->rank, SLOTS * time + slot, bytes);
      ts_message_start(out.line[slot]);
    }
    for (int slot = SLOTS - 1; slot >= 0; --slot) {
      ts_message_wait(in.line[slot]);
      right = right && has(&in, slot, from, SLOTS * time + slot, bytes) && !ts_message_is_open(in.line[slot]);
    }
    for (int slot = 0; slot < SLOTS; ++slot) {
      ts_message_wait(out.line[slot]);
      right = right && ts_message_poll(out.line[slot]);
    }
  }
  tap_ok_all(MPI_COMM_WORLD, right && was_open, "%zu bytes %s: in order, again and again", bytes, what);
  close_end(&out);
  close_end(&in);
}

int main(int argc, char **argv) {
  ts_world *world = ts_world_create(&argc, &argv);
  ts_mesh mesh;
  int size = ts_world_size(world), rank = ts_world_rank(world);
  ts_mesh_init(&mesh, (int[]){size, 0, 1, 1, 1}, size, rank, NULL);
  ts_comm *comm = ts_world_comm(world, &mesh, TS_AXES(TS_AXIS_PP));
  int64_t live = ts_memory_live();
  for (size_t bytes = 5; bytes <= MOST; bytes *= 60) {
    test(comm, (rank + 1) % size, (rank + size - 1) % size, bytes, "to the next");
    test(comm, rank, rank, bytes, "to oneself");
  }
  tap_ok_all(MPI_COMM_WORLD, ts_memory_live() == live, "nothing is left behind");
  int code = tap_done_all(MPI_COMM_WORLD);
  ts_world_destroy(&world);
  return code;
}
