#include "graph/cut.h"

#include "graph/op.h"

#include <ctype.h>
#include <string.h>

/* Dimension of `index` in an operand's letters, -1 for none. */
static int find_dim(const char *letters, int n, const ts_shape *shape, char index) {
  int stars = shape->n - n + 1; /* dimensions under a star */
  if (index == '*') {
    return letters[0] == '*' ? 0 : -1;
  }
  for (int i = 0, dim = 0; i < n; ++i) {
    if (letters[i] == index) {
      return dim;
    }
    if (letters[i] == '*' && isdigit((unsigned char) index)) {
      return index - '0' < stars ? dim + index - '0' : -1;
    }
    dim += letters[i] == '*' ? stars : 1;
  }
  return -1;
}

/* Of dimension `dim`; rows are all those under a star. */
static int64_t extent_along(const char *letters, int n, const ts_shape *shape, int dim, char index) {
  int64_t extent = 1;
  for (int d = 0; index == '*' && letters[0] == '*' && d < shape->n - n + 1; ++d) {
    extent *= shape->d[d];
  }
  return index == '*' ? extent : shape->d[dim];
}

/* One side; false when two extents differ, or one star has the dimension and another has not: those of one product may
 * hide different dimensions. */
static bool find_side(const ts_graph *g, const char **letters, const ts_tid *list, int n, char index, ts_cut *cut,
                      ts_slice *slice) {
  for (int i = 0; i < n; ++i) {
    int length = (int) strcspn(*letters, ",-");
    const ts_shape *shape = list[i] == TS_NONE ? NULL : &g->tensor[list[i]].shape;
    int dim = shape == NULL || **letters == '.' ? -1 : find_dim(*letters, length, shape, index);
    bool hidden = shape != NULL && dim < 0 && isdigit((unsigned char) index) && memchr(*letters, '*', (size_t) length);
    slice[i] = (ts_slice){dim, 1, 1};
    if (hidden) {
      return false;
    }
    if (dim >= 0) {
      int64_t extent = extent_along(*letters, length, shape, dim, index);
      if (cut->units >= 0 && cut->units != extent) {
        return false;
      }
      cut->units = extent;
    }
    *letters += length;
    *letters += **letters == ',';
  }
  return true;
}

bool ts_cut_letters(const ts_graph *g, const ts_node *node, char index, ts_cut *cut) {
  const char *letters = ts_op_get(node->op)->index(node);
  bool can = islower((unsigned char) index) || isdigit((unsigned char) index) || index == '*';
  if (*letters == '\0' || !can || node->n_in > TS_CUT_MOST || node->n_out > TS_CUT_MOST) {
    return false;
  }
  *cut = (ts_cut){.units = -1, .parts = 1};
  if (!find_side(g, &letters, node->in, node->n_in, index, cut, cut->in) || cut->units < 0) {
    return false;
  }
  letters += strlen("->");
  return find_side(g, &letters, node->out, node->n_out, index, cut, cut->out);
}

bool ts_node_cut(const ts_graph *graph, const ts_node *node, char index, ts_cut *cut) {
  return ts_op_get(node->op)->cut(graph, node, index, cut);
}
