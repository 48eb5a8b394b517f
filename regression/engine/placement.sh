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

# Two ranks that share a model, on two "nodes" made of one where the MPI can (MPICH's cliques).  The bytes of a step are
# counted as in regression/pass/test_plan.c: 25 rows of 32 and the statistics of each of 2 x 2 x 32 tokens, half of them
# sent; once a step the gradients of five norms, reduced and gathered, and the record.
test_spanning() {
  rm -rf run
  run env MPIR_CVAR_NUM_CLIQUES=2 MPIR_CVAR_CLIQUES_BY_BLOCK=1 $mpiexec -n 2 "$tessera" train tiny.cfg --set run.steps=1 \
    --set tensor_parallel.autotp_size=2 --set gradient_accumulation_steps=2
  if grep -q 'on 2 nodes' "$scratch/out"; then
    sent=$(awk 'BEGIN { printf "%.2f", (128 * (25 * 32 * 4 / 2 + 16 / 2) + 5 * 32 * 4 + 96) / 1e3 }')
    ok "a tp group that spans nodes is warned about, with the bytes of a step" \
      said 0 "1 tp group of 2 ranks span nodes .* in every layer, $sent kB a step from each rank; ranks: 0-1"
  else
    skip "a tp group that spans nodes is warned about" "this MPI does not divide a machine into nodes"
  fi
}

# plan_and_run RANKS NAME: both say the same rank and memory.
plan_and_run() {
  rm -rf run
  run "$tessera" plan tiny.cfg --ranks "$1" --set "tensor_parallel.autotp_size=$1"
  most=$(sed -n 's/^memory of \(rank [1-9], which needs most\)$/\1/p' "$scratch/out")
  peak=$(awk '/peak: the sum/ { print $(NF - 1), $NF }' "$scratch/out")
  run $mpiexec -n "$1" "$tessera" train tiny.cfg --set run.steps=1 --set "tensor_parallel.autotp_size=$1"
  ok "$2" printed "planned memory of ${most:-nobody}: $peak, of which"
}

# Of two alike the second has a zero for the loss, which the first has; of three the last has a key head alone, with both of
# its query heads.
test_memory() {
  plan_and_run 2 "a run says what the rank that needs most needs, as the plan does"
  plan_and_run 3 "and where heads are dealt unevenly"
}

test_identity
test_binding
test_spanning
test_memory
finish
