#include "comm/comm_mpi.h"

#include "base/status.h"

enum { RECEIVE, SEND };

/* Fill slot \a slot of the request array with the next message of its list, if there is one. */
static bool post(ts_exchange *e, int slot) {
  int way = slot < TS_SLOTS ? RECEIVE : SEND;
  ts_message m;
  if (!e->next[way](e->list[way], slot % TS_SLOTS, &m)) {
    return false;
  }
  ++e->in_flight;
  if (way == RECEIVE) {
    e->expected[slot] = m.bytes;
    TS_MPI(MPI_Irecv(m.data, (int) m.bytes, MPI_BYTE, m.peer, 0, e->comm, &e->request[slot]));
  } else {
    TS_MPI(MPI_Isend(m.data, (int) m.bytes, MPI_BYTE, m.peer, 0, e->comm, &e->request[slot]));
  }
  return true;
}

void ts_exchange_begin(ts_exchange *e, ts_message_next *receive, ts_message_received *received, void *receive_list,
                       ts_message_next *send, void *send_list, int send_slots) {
  TS_ASSERT(e->in_flight == 0 && send_slots <= TS_SLOTS);
  e->next[RECEIVE] = receive;
  e->received = received;
  e->list[RECEIVE] = receive_list;
  e->slots[RECEIVE] = TS_SLOTS;
  e->next[SEND] = send;
  e->list[SEND] = send_list;
  e->slots[SEND] = send_slots;
  for (int slot = 0; slot < 2 * TS_SLOTS; ++slot) {
    e->request[slot] = MPI_REQUEST_NULL;
  }
}

static void post_all(ts_exchange *e) {
  for (int way = RECEIVE; way <= SEND; ++way) {
    bool more = true;
    for (int slot = way * TS_SLOTS; more && slot < way * TS_SLOTS + e->slots[way]; ++slot) {
      more = e->request[slot] != MPI_REQUEST_NULL || post(e, slot);
    }
  }
}

/* A longer message than expected is an error of MPI, a shorter one is not. */
static void check_completed(const ts_exchange *e, int slot, const MPI_Status *status, bool failed) {
  int bytes = 0, error = failed ? status->MPI_ERROR : MPI_SUCCESS;
  if (slot >= TS_SLOTS) {
    ts_mpi_check(error, __FILE__, __LINE__, "send");
    return;
  }
  if (error == MPI_SUCCESS) {
    TS_MPI(MPI_Get_count(status, MPI_BYTE, &bytes));
  } else {
    MPI_Error_class(error, &error);
    TS_CHECK(error == MPI_ERR_TRUNCATE, "a receive failed with MPI error class %d", error);
  }
  TS_CHECK(bytes == e->expected[slot],
           "group rank %d sent %s than the %lld bytes expected: the ranks are not in the same collective",
           status->MPI_SOURCE, error == MPI_SUCCESS ? "less" : "more", (long long) e->expected[slot]);
}

bool ts_exchange_poll(ts_exchange *e) {
  int done = 0, index[2 * TS_SLOTS];
  MPI_Status status[2 * TS_SLOTS];
  post_all(e);
  if (e->in_flight == 0) {
    return false;
  }
  int code = MPI_Testsome(2 * TS_SLOTS, e->request, &done, index, status);
  if (code != MPI_ERR_IN_STATUS) {
    TS_MPI(code);
  }
  e->in_flight -= done;
  for (int i = 0; i < done; ++i) {
    check_completed(e, index[i], &status[i], code != MPI_SUCCESS);
    if (index[i] < TS_SLOTS && e->received != NULL) {
      e->received(e->list[RECEIVE], index[i]);
    }
  }
  return done > 0;
}

void ts_exchange_finish(ts_exchange *e) {
  ts_patience patience = {0};
  for (;;) {
    if (ts_exchange_poll(e)) {
      patience = (ts_patience){0};
    } else if (e->in_flight == 0) {
      return;
    } else {
      ts_patience_pause(&patience);
    }
  }
}
