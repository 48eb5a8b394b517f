#!/bin/sh
# TAP: each function of each header says whether it is collective, the includes point down the rooms and never around,
# no static function's name stands in two files (or stack traces would not say which), and each source is listed in a
# Makefile.am (or the distribution would lack it).
top=$(cd "${srcdir:-.}" && pwd)
results=0
failures=0

# tap_empty TEXT NAME: ok when TEXT is empty, else each line of it becomes a comment.
tap_empty() {
  results=$((results + 1))
  if [ -z "$1" ]; then
    echo "ok $results - $2"
  else
    failures=$((failures + 1))
    echo "not ok $results - $2"
    echo "$1" | sed 's/^/#   /'
  fi
}

# Print "LINE: DECLARATION" for every function of a header whose comment does not state collectivity.  A comment covers
# the declarations up to the next blank line.
silent_functions() {
  awk '
    function judge(text) {
      if (text ~ /\(/ && text !~ /^[ \t]*(typedef|_Static_assert|static_assert)/ && text !~ /=/ &&
          contract !~ /Collective|[Nn]ot collective|[Ll]ogically collective/) {
        gsub(/[ \t]+/, " ", text)
        print started ":" text
      }
    }
    {
      line = $0
      if (!in_comment && depth == 0 && line ~ /^[ \t]*$/) { contract = "" }
      if (!in_comment && (in_macro || line ~ /^[ \t]*#/)) { in_macro = (line ~ /\\$/); next }
      while (line != "") {
        if (in_comment) {
          end = index(line, "*/")
          if (leading) {
            said = end ? substr(line, 1, end - 1) : line
            sub(/^[ \t]*\*?[ \t]*/, "", said)
            contract = contract " " said
          }
          if (!end) { break }
          in_comment = 0
          line = substr(line, end + 2)
          continue
        }
        if (depth == 0 && declaration ~ /^[ \t]*$/) { started = NR }
        start = match(line, /\/\*|\/\/|[;{}]/)
        if (!start) {
          if (depth == 0) { declaration = declaration " " line }
          break
        }
        before = substr(line, 1, start - 1)
        mark = substr(line, start, RLENGTH)
        line = substr(line, start + RLENGTH)
        if (depth == 0) { declaration = declaration " " before }
        if (mark == "/*") {
          in_comment = 1
          leading = (depth == 0 && declaration ~ /^[ \t]*$/ && !spoken[NR])
          if (leading) { contract = "" }
        } else if (mark == "//") { break
        } else if (mark == "{") {
          if (depth == 0) { judge(declaration); declaration = ""; spoken[NR] = 1 }
          ++depth
        } else if (mark == "}") { --depth
        } else if (depth == 0) { judge(declaration); declaration = ""; spoken[NR] = 1 }
      }
    }' "$1"
}

# Print each include of FILE (second argument, relative to the tree in the first) that the rooms do not allow.
wrong_includes() {
  awk -v file="$2" '
    BEGIN {
      n = split("base:0 family:0 slurm:1 deck:1 tokenizer:1 chat:1 graph:2 ops:2 comm:2 backend:2 cuda:2 " \
                "run:3 pass:3 model:3 io:3 engine:4 tune:5 train:5 report:6 view:6 main:7", rows, " ")
      for (i = 1; i <= n; ++i) { split(rows[i], row, ":"); level[row[1]] = row[2] }
      split(file, part, "/")
      room = (part[1] == "src") ? part[2] : part[1]
    }
    function complain(why) { print file ":" FNR ": " $0 ": " why }
    /^[ \t]*#[ \t]*include/ {
      target = $0
      sub(/^[^<"]*[<"]/, "", target)
      sub(/[>"].*$/, "", target)
      to = target
      sub(/\/.*/, "", to)
      if ($0 ~ /"/ && target !~ /\//) { complain("an include names its room") }
      if ((to in level) && level[to] > level[room]) { complain(room " is below " to) }
      if (to == "comm" && room == "model") { complain("a model knows no ranks") }
      if (target == "mpi.h" && file !~ /^(src\/comm\/(comm_|mesh)|src\/main\/|io\/|cuda\/)/) {
        complain("MPI stays in comm")
      }
      if (target == "hdf5.h" && file !~ /^io\//) { complain("HDF5 stays in io") }
      if (target ~ /^(cuda|nccl|cublas|cudnn)[A-Za-z_]*\.h/ && file !~ /^(cuda\/|src\/comm\/comm_nccl)/) {
        complain("CUDA stays in cuda")
      }
    }' "$1/$2"
}

# Print each include between rooms of the tree in the first argument that is part of a cycle of rooms, or of a way from
# one cycle to another: what is left when includes of rooms that include nothing, and by rooms that nothing includes, are
# taken away as long as there are any.
cycles() {
  (cd "$1" && find src io cuda slurm -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' 2> /dev/null | sort |
    xargs awk '
      FNR == 1 { split(FILENAME, part, "/"); room = (part[1] == "src") ? part[2] : part[1] }
      /^[ \t]*#[ \t]*include[ \t]*"/ {
        to = $0
        sub(/^[^"]*"/, "", to)
        sub(/\/.*/, "", to)
        if (to != room) { places[room, to] = places[room, to] FILENAME ":" FNR ": " room " includes " to "\n" }
      }
      END {
        do {
          split("", includes)
          split("", included)
          for (edge in places) {
            split(edge, end, SUBSEP)
            includes[end[1]] = included[end[2]] = 1
          }
          gone = 0
          for (edge in places) {
            split(edge, end, SUBSEP)
            if (!(end[2] in includes) || !(end[1] in included)) {
              gone = 1
              delete places[edge]
            }
          }
        } while (gone)
        for (edge in places) { printf "%s", places[edge] }
      }' | sort)
}

# Print "NAME FILE..." for each static function's name that stands in more than one file of the tree in the first
# argument.
shared_names() {
  (cd "$1" && find src io cuda slurm -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' 2> /dev/null | sort | xargs awk '
    /^(template <.*> )?static / {
      name = $0
      gsub(/__(launch_bounds|attribute)__ *\(\(?[^)]*\)?\)/, "", name)
      if (name !~ /^[^=(]*[ *][A-Za-z_0-9]+\(/) { next }
      sub(/\(.*/, "", name)
      sub(/.*[ *]/, "", name)
      if (!((FILENAME, name) in seen)) {
        seen[FILENAME, name] = ++files[name]
        where[name] = where[name] " " FILENAME
      }
    }
    END { for (name in files) { if (files[name] > 1) { print name where[name] } } }' | sort)
}

# Print each source of the tree in the first argument that none of its fragments names; a program is named without .c.
unlisted_sources() {
  (cd "$1" && cat Makefile.am */Makefile.am src/*/Makefile.am src/*/*/Makefile.am 2> /dev/null |
    tr ' \t' '\n\n' | sed 's/\.c$//' | sort -u > "$scratch/listed"
  for file in src/*/*.[ch] src/*/*/*.[ch] src/*/*.def io/*.[ch] cuda/*.c cuda/*.h cuda/*.cu cuda/*.cuh slurm/*.[ch] regression/*.[ch] regression/*/*.[ch] \
    benchmarks/*.[ch]; do
    if [ -f "$file" ] && ! grep -qxF "${file%.c}" "$scratch/listed"; then
      echo "$file"
    fi
  done)
}

# The checks are checked first, on a tree that is wrong in each way.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/src/graph" "$scratch/src/model" "$scratch/src/comm"
cat > "$scratch/good.h" << 'END'
/** The file: f (x). */
#define CALL(x) \
  g (x)
/** A type; its operations are not functions. */
typedef struct s {
  int (*call)(int x); /**< No contract. */
} s;
typedef int (*callback)(int x);
extern const int table[3];
/** Does it.  Collective over all. */
int good_one(int x,
             int y) __attribute__((format(printf, 1, 2)));

/** Two of a kind.
 * Not collective. */
int good_two(int x);
/** Not
 * collective. */
static inline int good_three(int x) {
  if (x) { return good_two(x); }
  return 0;
}
END
tap_empty "$(silent_functions "$scratch/good.h")" "self-test: a good header is accepted"

# expect CHECK EXPECTED NAME: the lines CHECK printed, reduced to what is in front of the first blank.
expect_lines() {
  tap_empty "$(test "$1" = "$2" || printf 'expected %s\ngot %s' "$2" "$1")" "$3"
}
cat > "$scratch/bad.h" << 'END'
int bad_first(void);
/** Says nothing of ranks. */
int bad_second(int x,
               int y);
/** Not collective. */
int good(void); /**< Trailing. */

int bad_detached(void);
/** Not collective. */
int good_again(void);
/** Another. */
static inline int bad_inline(void) { return 0; }
END
expect_lines "$(silent_functions "$scratch/bad.h" | sed 's/:.*//' | tr '\n' ' ')" "1 3 8 12 " \
  "self-test: functions without a contract are found"

printf '#include <mpi.h>\n#include <hdf5.h>\n#include "run/x.h"\n#include "base/x.h"\n#include "x.h"\n#include <nccl.h>\n' \
  > "$scratch/src/graph/x.c"
expect_lines "$(wrong_includes "$scratch" src/graph/x.c | cut -d: -f2 | tr '\n' ' ')" "1 2 3 5 6 " \
  "self-test: includes that the graph may not have are found"
printf '#include "comm/comm.h"\n#include "graph/graph.h"\n' > "$scratch/src/model/x.c"
expect_lines "$(wrong_includes "$scratch" src/model/x.c | cut -d: -f2 | tr '\n' ' ')" "1 " \
  "self-test: a model that includes comm is found"
printf '#include <mpi.h>\n#include "base/x.h"\n' > "$scratch/src/comm/comm_mpi.c"
tap_empty "$(wrong_includes "$scratch" src/comm/comm_mpi.c)" "self-test: comm_mpi may include mpi.h"

ring=$scratch/ring
mkdir -p "$ring/src/main" "$ring/src/comm" "$ring/src/ops/cpu" "$ring/src/base" "$ring/cuda"
printf '#include "comm/x.h"\n#include "main/y.h"\n' > "$ring/src/main/x.c"
printf '#include <mpi.h>\n#include "base/x.h"\n  # include "cuda/x.h"\n' > "$ring/src/comm/x.c"
printf '#include "ops/x.h"\n' > "$ring/cuda/x.cu"
printf '#include "ops/x.h"\n#include "base/x.h"\n' > "$ring/src/ops/cpu/x.c"
touch "$ring/src/base/x.h"
tap_empty "$(cycles "$ring")" "self-test: rooms without a cycle are accepted"
printf '#include "base/x.h"\n#include "comm/x.h"\n' > "$ring/src/ops/cpu/x.h"
expect_lines "$(cycles "$ring" | cut -d: -f1,2 | tr '\n' ' ')" "cuda/x.cu:1 src/comm/x.c:3 src/ops/cpu/x.h:2 " \
  "self-test: a cycle of three rooms is found, and not who includes it or what it includes"

printf 'static int f(int x);\nstatic int f(int x) {\nstatic ts_x *g(void) {\nstatic int (*h)(void);\nstatic int once = f(1);\n' \
  > "$ring/src/base/a.c"
printf 'static ts_x *g(void) {\nstatic int (*h)(void);\nstatic int other = f(1);\nint f(int x) {\n' > "$ring/src/ops/b.c"
printf 'static __global__ void __launch_bounds__(N) f(int x) {\ntemplate <int N, X<N> T> static void g() {\n' > "$ring/cuda/c.cu"
expect_lines "$(shared_names "$ring" | tr '\n' ' ')" "f cuda/c.cu src/base/a.c g cuda/c.cu src/base/a.c src/ops/b.c " \
  "self-test: names of static functions in several files are found"

mkdir -p "$scratch/regression"
touch "$scratch/src/comm/unlisted.h" "$scratch/regression/test_a.c"
printf 'a_SOURCES = src/comm/comm_mpi.c \\\n  src/model/x.c src/graph/x.c\n' > "$scratch/src/comm/Makefile.am"
printf 'TESTS = regression/test_a\n' > "$scratch/regression/Makefile.am"
expect_lines "$(unlisted_sources "$scratch")" "src/comm/unlisted.h" "self-test: a source that is not listed is found"

cd "$top" || exit 99
tap_empty "$(unlisted_sources .)" "every source is listed"
tap_empty "$(cycles .)" "no room includes itself by way of others"
tap_empty "$(shared_names .)" "no static function's name stands in two files"
for file in src/*/*.h src/*/*/*.h io/*.h cuda/*.h slurm/*.h regression/tap*.h; do
  if [ -f "$file" ]; then
    tap_empty "$(silent_functions "$file")" "contracts of $file"
  fi
done
for room in src/*/ src/*/*/ io/ cuda/ slurm/; do
  if [ "$room" != "src/*/*/" ]; then
    tap_empty "$(for file in "$room"*.c "$room"*.h "$room"*.cu "$room"*.cuh; do [ -f "$file" ] && wrong_includes . "$file"; done)" \
      "includes of $room"
  fi
done
echo "1..$results"
exit $((failures > 0))
