#!/bin/sh
# TAP: "An op" in doc/design.md's "Adding things" is true.  A toy op, cube: y = scale x^3, is added to a copy of the tree that is links
# to this one's sources and objects: by lines in the files that the entry names, and in no others; the tests that know every op accept
# it, and not with a wrong gradient.  FILES=all shows that they do not without its lines in any one of the files, either: a minute more.
# shellcheck source=regression/cli_common.sh
# shellcheck disable=SC2317
build=$(pwd)
. "${srcdir:-.}/regression/cli_common.sh"
. "$top/regression/toy_tree.sh"
: > "$scratch/out"
: > "$scratch/err"

# ---- the list ----

# The files of the entry, where FAMILY is the family of the toy.
sed -n '/^- \*\*An op\*\*/,/^- \*\*A /p' "$top/doc/design.md" | sed '$d' | grep -oE '`[A-Za-z_./]+/[A-Za-z_.]+`' | tr -d '`' |
  grep -v "${0##*/}" | sed 's/FAMILY/pointwise/' | sort -u > listed

# ---- the toy ----

# At the end: the other ops keep their numbers, so that most objects stay as they are.
after src/graph/ops.def << 'END'
/* y = scale x^3; and inputs (dy, x) */
OP(CUBE, cube, IN(1, 1, 0), OUT(1, 1, 0, 0), 0, cube, letters, cube, elements)
OP(CUBE_DX, cube_dx, IN(2, 2, 0), OUT(1, 1, 0, 0), 0, cube, letters, none, elements)
END
after src/graph/graph.h '  } cast;' << 'END'
  struct {
    float scale;
  } cube;
END
after src/graph/attribute.c 'const ts_attribute ts_attribute_none' << 'END'
const ts_attribute ts_attribute_cube = {{MEMBER(cube.scale)}, NO_ARRAY, NO_DTYPE};
END
after src/ops/build.h 'ts_tid ts_build_cast' << 'END'
ts_tid ts_build_cube(ts_site at, const char *name, ts_tid x, float scale);
ts_tid ts_build_cube_dx(ts_site at, const char *name, ts_tid dy, ts_tid x, float scale);
END
after src/ops/build.c << 'END'
ts_tid ts_build_cube(ts_site at, const char *name, ts_tid x, float scale) {
  return build_node(at, TS_OP_CUBE, name, INPUTS(x), (ts_attr){.cube = {scale}});
}
ts_tid ts_build_cube_dx(ts_site at, const char *name, ts_tid dy, ts_tid x, float scale) {
  return build_node(at, TS_OP_CUBE_DX, name, INPUTS(dy, x), (ts_attr){.cube = {scale}});
}
END
after src/ops/pointwise.c << 'END'
const char *ts_shape_cube(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  return same(g, node, 1, dtype, shape);
}
const char *ts_index_cube(const ts_node *node) {
  (void) node;
  return "*c->*c";
}
void ts_gradient_cube(ts_gradients *gradients, const ts_node *node) {
  char *name = ts_format("%s.dx", node->name);
  ts_site at = ts_gradients_site(gradients, node->in[0]);
  ts_tid dy = ts_gradients_of(gradients, node->out[0]);
  ts_gradients_add(gradients, node->in[0], ts_build_cube_dx(at, name, dy, node->in[0], node->attr.cube.scale));
  ts_free(name);
}
const char *ts_shape_cube_dx(const ts_graph *g, const ts_node *node, ts_dtype *dtype, ts_shape *shape) {
  return same(g, node, 2, dtype, shape);
}
const char *ts_index_cube_dx(const ts_node *node) {
  (void) node;
  return "*c,*c->*c";
}
END
after src/backend/cpu/kernels.h '#define TS_CPU_KERNELS(X)' << 'END'
  X(CUBE, cube)                 \
  X(CUBE_DX, cube_dx)           \
END
after src/backend/cpu/kernels_pointwise.c << 'END'
static void cube_tiles(const ts_kernel_call *call, bool dx) {
  ts_source dy = ts_source_of(call, 0), x = ts_source_of(call, dx);
  ts_sink y = ts_sink_of(call, 0);
  for (int64_t at = 0, n; at < ts_call_count(call, 0); at += n) {
    ts_tile buffer, other;
    n = ts_min(TS_TILE, ts_call_count(call, 0) - at);
    const float *from = ts_source_read(&x, at, n, buffer), *factor = dx ? ts_source_read(&dy, at, n, other) : NULL;
    ts_tile to;
    for (int64_t i = 0; i < n; ++i) {
      to[i] = call->node->attr.cube.scale * from[i] * from[i] * (dx ? 3 * factor[i] : from[i]);
    }
    ts_sink_write(&y, at, n, to);
  }
}
static void cube_run(const ts_kernel_call *call) {
  cube_tiles(call, false);
}
TS_CPU_KERNEL(cube) = {.run = cube_run};
static void cube_dx_run(const ts_kernel_call *call) {
  cube_tiles(call, true);
}
TS_CPU_KERNEL(cube_dx) = {.run = cube_dx_run};
END
# twice: the kernel in front of the table, and its rows
after cuda/pointwise.cu '/* ---- dropout' << 'END'
template <typename T> static __global__ void cube(T *y, const T *dy, const T *x, float scale, int64_t n) {
  int64_t i = (int64_t) blockIdx.x * THREADS + threadIdx.x;
  if (i < n) {
    float from = ts_float(x[i]);
    y[i] = ts_round<T>(scale * from * from * (dy != NULL ? 3 * ts_float(dy[i]) : from));
  }
}
template <typename T> static void launch_cube(const ts_kernel_call *call) {
  int64_t n = ts_shape_count(&ts_call_in(call, 0)->shape);
  bool dx = call->node->op == TS_OP_CUBE_DX;
  ts_launch(cube<T>, ts_blocks(n, THREADS), THREADS, 0, ts_call_stream(call), (T *) call->out[0],
            dx ? (const T *) call->in[0] : NULL, (const T *) call->in[dx], call->node->attr.cube.scale, n);
}
static void cube_run(const ts_kernel_call *call) {
  TS_FOR_FLOAT(ts_call_in(call, 0)->dtype, launch_cube, call);
}
END
after cuda/pointwise.cu '      {TS_OP_ADD, ' << 'END'
      {TS_OP_CUBE, {NULL, cube_run, NULL}},
      {TS_OP_CUBE_DX, {NULL, cube_run, NULL}},
END
after regression/ops/pointwise.c '/* From dtype to each' << 'END'
static void build_cube(run_case *c, int variant, ts_dtype dtype) {
  build_same(c, variant, dtype, c->op == TS_OP_CUBE ? 1 : 2, 1);
  c->attr.cube.scale = 0.5f;
}
static void cube(run_case *c) {
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    ops_out(c, 0)[i] = (double) c->attr.cube.scale * pow(ops_in(c, 0)[i], 3);
  }
}
static void cube_dx(run_case *c) {
  for (int64_t i = 0; i < ops_count(c, 0); ++i) {
    ops_out(c, 0)[i] = (double) c->attr.cube.scale * 3 * ops_in(c, 0)[i] * pow(ops_in(c, 1)[i], 2);
  }
}
END
after regression/ops/pointwise.c '    {TS_OP_ADD, ' << 'END'
    {TS_OP_CUBE, OPS_SHAPES, build_cube, cube, 4},
    {TS_OP_CUBE_DX, OPS_SHAPES, build_cube, cube_dx, 4},
END
after regression/ops/test_ops_rules.c '    {TS_OP_ADD, ' << 'END'
    {TS_OP_CUBE, "", 1, 1, {X}, {X}, {.cube = {0.5f}}, ALL, ALL, ALL, 48},
    {TS_OP_CUBE_DX, "", 2, 1, {X, X}, {X}, {.cube = {0.5f}}, 0, 0, 0, 48},
END
after regression/ops/test_gradients.c '/* The loss is the root' << 'END'
static void build_cube(gradient_case *c, int variant) {
  (void) variant;
  ts_build_cube(ts_graph_site(c->graph), "node", numbers(c, "x", activations()), 0.5f);
}
END
after regression/ops/test_gradients.c '    {TS_OP_VIEW, ' << 'END'
    {TS_OP_CUBE, 1, build_cube},
END
after regression/graph/test_cut.c '    {TS_OP_ADD, ' << 'END'
    {TS_OP_CUBE, "", {X}, {X}, {.cube = {0.5f}}, "01c", ""},
    {TS_OP_CUBE_DX, "", {X, X}, {X}, {.cube = {0.5f}}, "01c", ""},
END

# ---- judging it ----

# What is made from FILE: of a header, whatever has a table of all ops or is the toy's; the rest is as it was.
made_from() {
  case $1 in
    *.c | *.cu) echo "$1" ;;
    *) (cd "$tree" && grep -lE 'ops[.]def|TS_N_OPS|TS_CPU_KERNELS' src/*/*.c src/*/*/*.c regression/*/*.c) && grep '[.]cu*$' "$work/touched" ;;
  esac | sort -u | while read -r source; do
    name=${source##*/}
    case $name in
      *.cu) ls "${source%.cu}.sho" "${source%.cu}.sho.d" ;; # gcc would write through the link
      *) ls "${source%.c}.o" "${source%/*}"/*-"${name%.c}.o" ;;
    esac 2> /dev/null
  done
}

# change FILE FROM: FILE of the tree is FROM now, and what is made from it is made again.
change() {
  put "$1" "$2"
  (cd "$made" && made_from "$1" | xargs rm -f)
}

programs="regression/ops/test_ops_rules regression/ops/test_gradients regression/graph/test_cut regression/ops/test_ops"
[ ! -x "$build/regression/shim/test_ops_shim" ] || programs="$programs regression/shim/test_ops_shim"

# Everything is made and accepts the toy; what does not is the end of ./said.
accepted() {
  # shellcheck disable=SC2086
  make_toy $programs > said 2>&1 || return 1
  for program in $programs; do
    (cd "$made" && TEST_ONLY=cube,cube_dx srcdir=$tree "$top/regression/run_test" "$program") > said 2>&1 || return 1
  done
}
refused() { ! accepted; }
shown() { "$@" || { tail -n 20 said; false; }; }

# Each file of the list is needed.
test_each_file() {
  while read -r file; do
    if [ "${file%.cu}" != "$file" ] && [ ! -x "$build/regression/shim/test_ops_shim" ]; then
      skip "not without its lines in $file" "the stand-in is not built here"
      continue
    fi
    change "$file" "$top/$file"
    ok "not without its lines in $file" refused
    change "$file" "toy/$file"
  done < touched
}

sort -u touched -o touched
ok "every place for the toy's lines is there" [ ! -e misplaced ]
ok "the entry names every file that an op touches" is "$(comm -13 listed touched)" ""
ok "and no other" is "$(comm -23 listed touched)" ""
(cd "$made" && made_from all | xargs rm -f)
ok "the tests of all ops accept the toy" shown accepted
sed 's/node->attr.cube.scale));/2 * node->attr.cube.scale));/' toy/src/ops/pointwise.c > wrong
change src/ops/pointwise.c wrong
accepted
ok "but not with a wrong gradient, and say so" grep -q '^not ok .*cube: gradient against differences' said
change src/ops/pointwise.c toy/src/ops/pointwise.c
if [ "${FILES:-}" = all ]; then test_each_file; else skip "not without its lines in each file" "FILES=all does it"; fi
finish
