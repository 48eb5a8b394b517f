#include "run/turns.h"

#include "graph/op.h"
#include "pass/offload.h"
#include "pass/rates.h"

#include <math.h>

bool ts_node_happens_once(const ts_node *node) {
  const unsigned once =
      TS_SEGMENT_PREPARE | TS_SEGMENT_REDUCE | TS_SEGMENT_UPDATE | TS_SEGMENT_LATE_UPDATE | TS_SEGMENT_LATE_GATHER;
  return (node->segment & once) != 0;
}

/* How often it happens in a turn of a step. */
static double times_in(const ts_program *program, const ts_node *node, ts_turn turn) {
  ts_turn own = ts_segment_phase(node->segment) == 0   ? TS_TURN_FORWARD
                : ts_segment_phase(node->segment) == 1 ? TS_TURN_GRADIENTS
                                                       : TS_TURN_UPDATE;
  double all = ts_node_happens_once(node) ? 1 : (double) program->step.micro_batches;
  double first = own == TS_TURN_FORWARD ? 1 : all; /* later forwards are among backwards */
  return turn == own ? first : turn == TS_TURN_GRADIENTS ? all - first : 0;
}

static double copied_in(const ts_program *program, const ts_node *node, ts_turn turn) {
  bool copies = ts_node_is_copy(node);
  return copies ? times_in(program, node, turn) * (double) ts_tensor_bytes(program->graph, node->out[0]) : 0;
}

double ts_program_copied(const ts_program *program, const ts_node *node) {
  double sum = 0;
  for (ts_turn turn = 0; turn < TS_N_TURNS; ++turn) {
    sum += copied_in(program, node, turn);
  }
  return sum;
}

ts_moved ts_program_moved_in(const ts_program *program, ts_turn turn) {
  const ts_graph *g = program->graph;
  ts_moved moved = {0};
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    const ts_node *node = &g->node[i];
    if (ts_node_is_copy(node)) {
      ts_space space = ts_node_copies(node);
      *(ts_copy_reads(node) ? &moved.read[space] : &moved.written[space]) += copied_in(program, node, turn);
    }
  }
  return moved;
}

ts_moved ts_program_moved(const ts_program *program) {
  ts_moved all = {0};
  for (ts_turn turn = 0; turn < TS_N_TURNS; ++turn) {
    ts_moved part = ts_program_moved_in(program, turn);
    for (ts_space space = 0; space < TS_N_SPACES; ++space) {
      all.read[space] += part.read[space];
      all.written[space] += part.written[space];
    }
  }
  return all;
}

/* ---- seconds ---- */

static double bytes_of_operands(const ts_graph *g, const ts_node *node) {
  double bytes = 0;
  for (int i = 0; i < node->n_in + node->n_out; ++i) {
    ts_tid t = i < node->n_in ? node->in[i] : node->out[i - node->n_in];
    bytes += t != TS_NONE ? (double) ts_tensor_bytes(g, t) : 0;
  }
  return bytes;
}

ts_turn_seconds ts_program_turn_seconds(const ts_program *program, ts_turn turn) {
  const ts_graph *g = program->graph;
  const ts_rates rates = ts_rates_of(program->deck, program->target.backend);
  const double host = rates.core * ts_offload_threads(program->deck, &program->target);
  ts_turn_seconds s = {0};
  for (ts_nid i = 0; i < g->n_nodes; ++i) {
    const ts_node *node = &g->node[i];
    if (node->on_host) {
      s.host += times_in(program, node, turn) * bytes_of_operands(g, node) / host;
    } else if (!ts_node_is_copy(node) && !ts_node_is_collective(node) && !ts_node_is_message(node)) {
      s.computing += times_in(program, node, turn) * ts_node_seconds(g, node, &rates);
    }
  }
  const ts_moved moved = ts_program_moved_in(program, turn);
  s.copies = fmax(moved.read[TS_SPACE_PINNED], moved.written[TS_SPACE_PINNED]) / rates.copy;
  s.files = (moved.read[TS_SPACE_FILE] + moved.written[TS_SPACE_FILE]) / rates.file;
  return s;
}

ts_step_seconds ts_program_step_seconds(const ts_program *program) {
  ts_step_seconds all = {0};
  for (ts_turn turn = 0; turn < TS_N_TURNS; ++turn) {
    const ts_turn_seconds s = ts_program_turn_seconds(program, turn);
    all.sum.computing += s.computing;
    all.sum.host += s.host;
    all.sum.copies += s.copies;
    all.sum.files += s.files;
    all.step += fmax(fmax(s.computing, s.host), fmax(s.copies, s.files));
  }
  all.exposed = all.step - all.sum.computing;
  return all;
}
