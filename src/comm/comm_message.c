/* Messages between two ranks that are sent again and again: MPI's persistent requests.  Several pieces of memory are
 * one message by a derived type of their addresses, so nothing is packed here. */
#include "comm/comm_line.h"

#include "base/memory.h"

enum { MOST_BLOCK = 1 << 30 /* counts of MPI are ints */ };

typedef struct host_line {
  ts_message_line base;
  MPI_Request request;
  MPI_Datatype type;
  int64_t bytes;
} host_line;

static int count_pieces_of(const ts_message_part *part, int n) {
  int blocks = 0;
  for (int i = 0; i < n; ++i) {
    blocks += (int) ((part[i].bytes + MOST_BLOCK - 1) / MOST_BLOCK);
  }
  return blocks;
}

static MPI_Datatype make_type(const ts_message_part *part, int n) {
  int n_blocks = count_pieces_of(part, n), k = 0;
  int *length = ts_calloc((size_t) n_blocks + 1, sizeof *length);
  MPI_Aint *address = ts_calloc((size_t) n_blocks + 1, sizeof *address);
  for (int i = 0; i < n; ++i) {
    for (size_t done = 0; done < part[i].bytes; done += MOST_BLOCK, ++k) {
      size_t rest = part[i].bytes - done;
      length[k] = (int) (rest < MOST_BLOCK ? rest : MOST_BLOCK);
      TS_MPI(MPI_Get_address((char *) part[i].data + done, &address[k]));
    }
  }
  MPI_Datatype type;
  TS_MPI(MPI_Type_create_hindexed(n_blocks, length, address, MPI_BYTE, &type));
  TS_MPI(MPI_Type_commit(&type));
  ts_free(length);
  ts_free(address);
  return type;
}

static void announce_on_host(ts_message_line *line) {
  (void) line;
}

static void start_on_host(ts_message_line *base) {
  TS_MPI(MPI_Start(&((host_line *) base)->request));
}

/* Of what is received all has come. */
static void check_arrived(const host_line *line, const MPI_Status *status) {
  if (!line->base.sends) {
    MPI_Count bytes;
    TS_MPI(MPI_Get_elements_x(status, line->type, &bytes));
    TS_CHECK(bytes == line->bytes, "a message of %lld bytes has come, %lld are expected", (long long) bytes,
             (long long) line->bytes);
  }
}

static bool poll_on_host(ts_message_line *base) {
  host_line *line = (host_line *) base;
  MPI_Status status;
  int done;
  TS_MPI(MPI_Test(&line->request, &done, &status));
  if (done) {
    check_arrived(line, &status);
  }
  return done;
}

static void wait_on_host(ts_message_line *line) {
  ts_patience patience = {0};
  while (!poll_on_host(line)) {
    ts_patience_pause(&patience);
  }
}

static void destroy_on_host(ts_message_line *base) {
  host_line *line = (host_line *) base;
  TS_MPI(MPI_Request_free(&line->request));
  TS_MPI(MPI_Type_free(&line->type));
  ts_free(line);
}

ts_message_line *ts_message_line_create(ts_comm *comm, bool sends, int peer, int number, const ts_message_part *part,
                                        int n) {
  static const ts_message_line_ops ops = {announce_on_host, start_on_host, poll_on_host, wait_on_host, destroy_on_host};
  const ts_comm_mpi *c = (const ts_comm_mpi *) comm;
  host_line *line = ts_calloc(1, sizeof *line);
  line->base = (ts_message_line){.ops = &ops, .sends = sends};
  line->type = make_type(part, n);
  for (int i = 0; i < n; ++i) {
    line->bytes += (int64_t) part[i].bytes;
  }
  int tag = TS_FIRST_LINE_TAG + number;
  if (sends) {
    TS_MPI(MPI_Send_init(MPI_BOTTOM, 1, line->type, peer, tag, c->comm, &line->request));
  } else {
    TS_MPI(MPI_Recv_init(MPI_BOTTOM, 1, line->type, peer, tag, c->comm, &line->request));
  }
  return &line->base;
}
