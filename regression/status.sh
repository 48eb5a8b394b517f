#!/bin/sh
# TAP: what a run says of itself in RUN/status, what `tessera status` makes of it, and the watchdog that reads it.
# Two "nodes" are made of one machine where the MPI can (MPICH's cliques).
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"

export MPIR_CVAR_NUM_CLIQUES=2 MPIR_CVAR_CLIQUES_BY_BLOCK=1

# begin RANKS DIRECTORY [WORD]...: a run that does not end by itself, in the background; returns when it takes steps.
begin() {
  n=$1
  directory=$2
  shift 2
  rm -f pids
  timeout -k 5 60 $mpiexec -n "$n" sh -c 'echo $$ $(($PMI_RANK)) >> pids; exec "$@"' sh "$tessera" train tiny.cfg \
    --set run.steps=100000000 --set run.evaluate_every=0 --set "run.directory=$directory" "$@" > "$scratch/out" 2> "$scratch/err" < /dev/null &
  job=$!
  wait_for 200 steps_taken "$directory"
}

# wait_for TRIES COMMAND...: until it succeeds, 0.05 s between two tries.
wait_for() {
  tries=$1
  shift
  while [ "$tries" -gt 0 ] && ! "$@" > "$scratch/why" 2>&1; do
    sleep 0.05
    tries=$((tries - 1))
  done
  [ "$tries" -gt 0 ]
}

steps_taken() { [ "$(wc -l < "$1/metrics.csv")" -gt 3 ] && ls "$1"/status/[!@]*; }
pid_of() { awk -v rank="$1" '$2 == rank { print $1 }' pids; }

end() {
  wait "$job"
  status=$?
}

# ---- a run and its end ----

test_life() {
  run "$tessera" status nowhere
  ok "a missing directory" said 2 "nowhere: No such file"
  mkdir empty
  run "$tessera" status empty
  ok "a directory that is no run" said 2 "empty: says nothing of itself"
  begin 2 life
  run "$tessera" status life
  ok "a running one" printed '^state +running'
  ok "its ranks, by node" grep -Eq '^[^ ]+\.r1 +1 ' "$scratch/out"
  run "$tessera" status life --format json
  ok "as json" printed '"state": "running".*"ranks": 2'
  touch life/STOP
  end
  ok "it is asked to stop" gave 75
  run "$tessera" status life
  ok "it says so" printed '^state +stopped and saved'
  ok "and what was saved" grep -Eq '^saved +step_[0-9]+$' "$scratch/out"
  run $mpiexec -n 2 "$tessera" train tiny.cfg
  run "$tessera" status run
  ok "a finished one" printed '^state +finished'
  ok "with its steps" grep -Eq '^steps +6 of 6' "$scratch/out"
}

test_life
finish
