#!/bin/sh
# TAP: nvcc's report of every kernel: no spills and no stack frame, unless it is listed here with its reason.
top=$(cd "${srcdir:-.}" && pwd)
# KERNEL (as nvcc's report names it, a part of it) | reason
allowed='
norm_forward_rowI6__halfLi8ELb0ELi32E | one register, stored once a row: widening fp16 takes more of them than bf16, whose bits are moved
norm_forward_rowI6__halfLi8ELb1ELi32ELi8E | two registers, likewise
norm_dw_partialI6__halfLi8ELb0E | one register, likewise, in a block
'
results=0
failures=0
if [ -f cuda/pointwise.o.ptxas ] && ! grep -q '^NVCCFLAGS = .*-O3' Makefile; then
  echo "1..0 # SKIP kernels are built without -O3 (NVCCFLAGS)"
  exit 0
fi
for report in cuda/*.ptxas; do
  [ -f "$report" ] || continue
  results=$((results + 1))
  bad=$(awk -v allowed="$allowed" '
    BEGIN { n = split(allowed, row, "\n"); for (i = 1; i <= n; ++i) { split(row[i], part, "|"); gsub(/ /, "", part[1]); name[i] = part[1] } }
    /Compiling entry function/ { split($0, q, "\047"); kernel = q[2] }
    /Function properties for/ { kernel = $NF }
    /stack frame/ {
      if ($0 !~ /^ *0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads/) {
        for (i = 1; i <= n; ++i) { if (name[i] != "" && index(kernel, name[i])) { next } }
        print kernel ": " $0
      }
      ++kernels
    }
    END { if (!kernels) { print "the report names no kernel" } }' "$report")
  source=${report%.o.ptxas}.cu
  if ! grep -q __global__ "$top/$source"; then
    bad= # host code only
  fi
  if [ -z "$bad" ]; then
    echo "ok $results - $source: no spills, no stack"
  else
    failures=$((failures + 1))
    echo "not ok $results - $source: no spills, no stack"
    echo "$bad" | sed 's/^/# /'
  fi
done
if [ $results -eq 0 ]; then
  echo "1..0 # SKIP built without CUDA"
else
  echo "1..$results"
fi
exit $((failures > 0))
