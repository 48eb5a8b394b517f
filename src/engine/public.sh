#!/bin/sh
# Make one header of the public headers, or list the functions of it.
# usage: public.sh header VERSION FILE...     the headers in an order in which each has what it needs
#        public.sh functions tessera.h        a name a line
set -eu

# Comments gone, a name before a parenthesis in what is left: prototypes, and types of functions, which hide nothing.
functions() {
  awk '
    {
      line = $0
      while (line != "") {
        if (inside) {
          end = index(line, "*/")
          if (!end) { break }
          inside = 0
          line = substr(line, end + 2)
        } else {
          start = match(line, /\/\*/)
          print start ? substr(line, 1, start - 1) : line
          if (!start) { break }
          inside = 1
          line = substr(line, start + 2)
        }
      }
    }' "$1" | grep -v -e '^[ 	]*#' -e '^typedef' | grep -o 'ts_[a-z0-9_]*(' | tr -d '(' | sort -u
}

header() {
  version=$1
  shift
  cat << END
/* Tessera $version: trains transformer language models on clusters.  One header of all that programs may call; made from
 * those of the rooms it comes from.
 *
 *   mpicc program.c \$(pkg-config --cflags --libs tessera)
 */
#ifndef TESSERA_H
#define TESSERA_H

END
  cat "$@" | sed -n 's/^#include </#include </p' | sort -u
  printf '\n#ifdef __cplusplus\nextern "C" {\n#endif\n'
  for file in "$@"; do
    echo
    # Without the guard, which is the first two lines of the preprocessor and the last, and without includes.
    awk '
      /^#ifndef TS_.*_H$/ && !guarded { guarded = 1; guard = $2; next }
      guarded && $0 == "#define " guard { next }
      /^#include / { next }
      { line[++n] = $0 }
      END {
        while (n > 0 && line[n] !~ /^#endif/) { --n }
        for (i = 1; i < n; ++i) { print line[i] }
      }' "$file" | cat -s | sed -e '$ { /^$/ d; }'
  done | sed '1 { /^$/ d; }'
  printf '\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n'
}

"$@"
