#!/bin/sh
# TAP: every rank is the same program with the same libraries, and has processors of its own.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"

test_identity() {
  cp "$tessera" other
  echo x >> other
  run $mpiexec -n 1 "$tessera" train tiny.cfg : -n 1 ./other train tiny.cfg
  ok "another build on rank 1 is refused, with both named" \
    said 2 'not one program: build: .*\(rank 0\) has [0-9.]+ [0-9a-f]{16}; .*\(rank 1\) has'
  ok "and said once" is "$(grep -c 'not one program' "$scratch/err")" 1
  ok "nothing is written" [ ! -e run ]
  rm other
  if [ "$(TESSERA_ISA=v3 "$tessera" plan tiny.cfg > /dev/null 2>&1; echo $?)" = 0 ]; then
    run $mpiexec -n 1 env TESSERA_ISA=generic "$tessera" train tiny.cfg : -n 1 env TESSERA_ISA=v3 "$tessera" train tiny.cfg
    ok "unlike processors are warned about" said 0 'nodes differ .*generic kernels.*v3 kernels'
  else
    skip "unlike processors are warned about" "this processor has one kind of kernels"
  fi
  rm -rf run
  run $mpiexec -n 2 "$tessera" train tiny.cfg
  ok "like ranks: no word of it" clean
}

# Processors as hwloc lists them, of the ranks in the order of the message.
places() { sed -n 's/^  rank [0-9]*: .*processors \([0-9,-]*\) .*/\1/p' "$scratch/out" "$scratch/err"; }

test_binding() {
  rm -rf run
  run $mpiexec -n 2 "$tessera" train tiny.cfg --set run.bind=cores
  if [ "$(nproc)" -ge 2 ]; then
    ok "two ranks of a node divide its processors" is "$(places | sort -u | wc -l)" 2
  else
    ok "two ranks share the one core" is "$(places | sort -u | wc -l)" 1
  fi
  ok "and the run is the same" clean
  mv run bound
  run $mpiexec -n 2 "$tessera" train tiny.cfg --set run.bind=none
  ok "run.bind = none says nothing of processors" [ -z "$(places)" ]
  run "$tessera" compare run bound
  ok "to the bit" gave 0
  rm -rf run
  run $mpiexec -n 2 taskset -c 0 "$tessera" train tiny.cfg --set run.bind=cores
  ok "ranks that the launcher put on one core stay there" is "$(places | sort -u)" 0
}

test_identity
test_binding
finish
