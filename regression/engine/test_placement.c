/* Which groups of a mesh span nodes. */
#include "base/text.h"
#include "engine/placement.h"
#include "regression/tap.h"

#include <string.h>

/* Ranks of a mesh, \a per_node of them on each node. */
static bool spans(int dp, int sp, int tp, int per_node, ts_axis axis, int expected, const char *groups) {
  int size[TS_N_AXES] = {1, dp, 1, sp, tp}, node[64], ranks = dp * sp * tp;
  for (int r = 0; r < ranks; ++r) {
    node[r] = r / per_node;
  }
  ts_mesh mesh;
  ts_text text = {0};
  bool made = ts_mesh_init(&mesh, size, ranks, ranks - 1, NULL) == TS_OK;
  int found = ts_placement_spanning(&mesh, axis, node, &text);
  bool right = made && found == expected && strcmp(text.text != NULL ? text.text : "", groups) == 0;
  if (!right) {
    tap_note("%d: %s", found, text.text != NULL ? text.text : "");
  }
  ts_text_free(&text);
  return right;
}

int main(void) {
  tap_ok(spans(4, 1, 1, 1, TS_AXIS_TP, 0, ""), "dp 4 on 4 nodes: no tp group");
  tap_ok(spans(2, 1, 4, 4, TS_AXIS_TP, 0, ""), "dp 2 x tp 4, 4 ranks a node: tp stays inside");
  tap_ok(spans(2, 1, 4, 2, TS_AXIS_TP, 2, "0-3 4-7"), "2 ranks a node: both groups span nodes");
  tap_ok(spans(2, 1, 3, 4, TS_AXIS_TP, 1, "3-5"), "tp 3 on nodes of 4: one of two");
  tap_ok(spans(1, 2, 4, 4, TS_AXIS_SP, 4, "0,4 1,5 2,6 3,7"), "sp 2 x tp 4: tp inside, sp across");
  tap_ok(spans(1, 2, 2, 4, TS_AXIS_SP, 0, ""), "sp 2 x tp 2 on one node");
  return tap_done();
}
