#!/bin/sh
# TAP: whole jobs.  A rank that fails, or does something else than the others, ends the job at once with a message that
# says who; ranks are numbered node by node.
results=0
failures=0

# result CONDITION NAME: CONDITION is empty or the reason of a failure.
result() {
  results=$((results + 1))
  if [ -z "$1" ]; then
    echo "ok $results - $2"
  else
    failures=$((failures + 1))
    echo "not ok $results - $2"
    echo "# $1"
    sed 's/^/# /' "$output"
  fi
}

# job COMMAND...: run it within 20 seconds; $status and $output are what came of it.
job() {
  timeout -k 5 20 "$@" > "$output" 2>&1 < /dev/null
  status=$?
}

# fails PATTERN NAME: the job failed by itself and said PATTERN.
fails() {
  if [ $status -eq 0 ] || [ $status -ge 124 ] || ! grep -q "$1" "$output"; then
    result "status $status, expected: $1" "$2"
  else
    result "" "$2"
  fi
}

output=$(mktemp)
trap 'rm -f "$output"' EXIT
mpiexec=${MPIEXEC:-mpiexec}

job $mpiexec -n 2 regression/comm/test_comm die
fails "^tessera: rank 1 on .*: rank 1 must die" "a rank that dies while another waits"
job $mpiexec -n 4 regression/comm/test_comm die
fails "^tessera: rank 1 on .*: rank 1 must die" "a rank that dies while three others wait"
job $mpiexec -n 3 regression/comm/test_comm mismatch
fails "rank 1 is in reduce_scatter of 3 elements while rank 0 is in all_gather of 3 elements" \
  "different collectives: the agreement names ranks and calls"
job $mpiexec -n 2 regression/comm/test_comm size
fails "than the [48] bytes expected: the ranks are not in the same collective" \
  "different sizes: noticed without the agreement"
job $mpiexec -n 3 regression/comm/test_comm tensors
fails "rank 1 is in exchange of 2 tensors while rank 0 is in exchange of 1 tensors" "different exchanges: the same"
job $mpiexec -n 2 regression/comm/test_comm blocks
fails "group rank 1 sent less than the 16 bytes expected: the ranks are not in the same collective" \
  "an exchange of other blocks: noticed by their sizes"
job $mpiexec -n 3 regression/comm/test_comm room
fails "group rank 0 gets 12 rows for its experts, and has room for 11" "more rows of experts than there is room for"
job $mpiexec -n 3 regression/comm/test_comm counts
fails "is in exchange_rows of 4 bytes a row: they differ in counts or directions" "rows of experts that two ranks count differently"
job env SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 regression/comm/test_comm die
fails "srun started 4 tasks, but MPI sees one world per task: use srun --mpi=" "srun without a process manager that MPI knows"
job env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=3 regression/comm/test_comm die
fails "mpirun started 3 processes, but MPI sees one world per process" "the launcher of another MPI"

# MPICH takes ranks 0, 2 and 1, 3 for two nodes; other libraries see one node and the same must hold.
job env MPIR_CVAR_NUM_CLIQUES=2 $mpiexec -n 4 regression/comm/test_comm nodes
result "$([ $status -eq 0 ] || echo "status $status")" "ranks are numbered node by node: $(head -n 1 "$output")"
echo "1..$results"
exit $((failures > 0))
