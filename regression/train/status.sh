#!/bin/sh
# TAP: what a run says of itself in RUN/status, what `tessera status` makes of it, and the watchdog that reads it.
# Two "nodes" are made of one machine where the MPI can (MPICH's cliques).
# shellcheck source=regression/cli_common.sh
build=$(pwd)
. "${srcdir:-.}/regression/cli_common.sh"

export MPIR_CVAR_NUM_CLIQUES=2 MPIR_CVAR_CLIQUES_BY_BLOCK=1

# begin RANKS DIRECTORY [WORD]...: a run that does not end by itself, in the background; returns when it takes steps.
begin() {
  n=$1
  directory=$2
  shift 2
  rm -f pids
  timeout -k 5 60 $mpiexec -n "$n" sh -c 'echo $$ ${PMI_RANK:-$OMPI_COMM_WORLD_RANK} >> pids; exec "$@"' sh "$tessera" train tiny.cfg \
    --set run.steps=100000000 --set run.evaluate_every=0 --set "run.directory=$directory" "$@" > "$scratch/job.out" 2> "$scratch/job.err" < /dev/null &
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
  cp "$scratch/job.out" "$scratch/out"
  cp "$scratch/job.err" "$scratch/err"
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

# A file that cannot be written is told once, and the run goes on.
test_unwritable() {
  begin 1 blocked --set run.first_step_timeout=2
  rm "blocked/status/$(hostname)"
  mkdir "blocked/status/$(hostname)"
  sleep 2
  run "$tessera" status blocked
  ok "a status file that cannot be written" printed '^1 damaged file '
  touch blocked/STOP
  end
  ok "does not end the run" gave 75
  ok "and is told once" is "$(grep -c 'cannot be written: Is a directory' "$scratch/err")" 1
}

# ---- ranks that hang ----

test_watch=$build/regression/train/test_watch

# The signs of an ended job: not by time, not well.
job_failed() { [ "$status" -ne 0 ] && [ "$status" -ne 124 ] && [ "$status" -ne 75 ]; }
show() { sed 's/^/# /' "$scratch/err"; }

# hang NAME MODE RANK: a rank of two that never gets to the next collective
hang() {
  rm -rf hang
  run $mpiexec -n 2 "$test_watch" "$2" hang "$3"
  ok "$1: the job ends" job_failed
  ok "$1: it is named, with what it did not reach" grep -Eq "rank $3 on [^ ]+ is behind: step 6, .*collective 10" "$scratch/err"
  ok "$1: and who waits" grep -Eq "waiting: rank $((1 - $3)) in collective 11 \(test.missed\) for .*, which it did not reach" "$scratch/err"
  ok "$1: one speaks" is "$(grep -c 'tessera: error' "$scratch/err")" 1
}

# stop_ranks NAME EXPECTED RANK...: four ranks on two nodes, some of which are stopped from outside
stop_ranks() {
  title=$1
  expected=$2
  shift 2
  rm -rf stopped
  begin 4 stopped --set run.step_timeout=3
  wait_for 200 ls "stopped/status/$(hostname).r2" # a node that never spoke is missed by nobody
  for rank in "$@"; do
    kill -STOP "$(pid_of "$rank")"
  done
  end
  ok "$title: the job ends" job_failed
  ok "$title: they are named" grep -Eq "$expected" "$scratch/err"
  ok "$title: and in which collective the others wait" grep -Eq \
    'waiting: .* in collective [0-9]+ \((agreement|[a-z_.]*(reduce|gather)[a-z_.0-9]*)\) for' "$scratch/err"
  ok "$title: one speaks" is "$(grep -c 'tessera: error' "$scratch/err")" 1
  ok "$title: the log has it too" is "$(grep -c ' error: step [0-9]* takes longer' stopped/log.txt),$(grep -c \
    '^    .*rank' stopped/log.txt | sed 's/^[1-9].*/some/')" 1,some
  show
  run "$tessera" status stopped
  ok "$title: status knows why" printed 'state +failed: step [0-9]+ takes longer than run.step_timeout = 3 s'
}

test_hangs() {
  hang "a rank that computes for ever" loop 1
  hang "the first, while the other waits inside of MPI" inside 0
  hang "one that hangs in a save" saving 1
  rm -rf hang
  run $mpiexec -n 2 "$test_watch" all hang 0
  ok "all hang: the job ends" job_failed
  ok "all hang: a disk that they wait for is thought of" grep -Eq \
    'nobody is behind: .* or a disk does not answer that has state in files: hang$' "$scratch/err"
  stop_ranks "a rank is stopped" 'rank 3 on [^ ]+\.r2 does not run for .*stopped' 3
  stop_ranks "the first is stopped" 'rank 0 on [^ ]+ does not run for .*stopped' 0
  stop_ranks "a node is gone" 'no heartbeat of node [^ ]+\.r2 for .*ranks 2-3' 2 3
}

# ---- killed ----

test_killed() {
  begin 2 killed --set run.step_timeout=1
  kill -9 "$(pid_of 0)" "$(pid_of 1)"
  end
  sleep 2
  run "$tessera" status killed
  ok "a killed run has no heartbeat" printed '^state +no heartbeat for'
  printf 'tessera node 1\nnumber 1\n' > killed/status/cut
  head -c 100000 /dev/urandom > killed/status/binary
  mkfifo killed/status/fifo
  ln -s /dev/zero killed/status/endless
  run "$tessera" status killed
  ok "files that are none of its own are counted, not believed" printed '^4 damaged files'
  rm killed/status/fifo killed/status/endless
  train 2 killed --resume auto --set run.steps=20
  ok "the next start" gave 0
  ok "clears them" is "$(cd killed/status && echo *)" "@run $(hostname) $(hostname).r1"
  printf 'tessera job 1\nid' > killed/status/@run
  run "$tessera" status killed
  ok "a cut @run" said 2 'status/@run: damaged'
}

# ---- suspended ----

is_suspended() { "$tessera" status suspended | grep -Eq '^state +suspended'; }
is_running() { "$tessera" status suspended | grep -Eq '^state +running'; }

# status_of JOB STATE: a squeue of our own says what state the job has.
status_of() {
  mkdir -p bin
  printf '#!/bin/sh\n[ "$*" = "-h -j %s -o %%T" ] && echo %s\n' "$1" "$2" > bin/squeue
  chmod +x bin/squeue
  run env PATH="$work/bin:$PATH" "$tessera" status suspended
}

test_suspended() {
  begin 2 suspended --set run.step_timeout=2
  kill -STOP "$(pid_of 0)" "$(pid_of 1)"
  wait_for 200 is_suspended
  run "$tessera" status suspended
  ok "a run whose processes are stopped is suspended" printed '^state +suspended: its processes are stopped; SIGCONT'
  ok "so are its nodes, and nobody is behind" both 'grep -Eq "ago +suspended\$" "$scratch/out"' "absent '^behind'"
  run "$tessera" status suspended --format json
  ok "as json" printed '"state": "suspended", "reason": "suspended: its processes are stopped; SIGCONT'
  kill -CONT "$(pid_of 0)" "$(pid_of 1)"
  wait_for 200 is_running
  ok "it goes on" is_running
  sed 's/^job .*/job 17/' suspended/status/@run > "$scratch/a" && cp "$scratch/a" suspended/status/@run
  kill -9 "$(pid_of 0)" "$(pid_of 1)"
  end
  sleep 3
  status_of 17 SUSPENDED
  ok "Slurm says that a job is suspended" printed '^state +suspended by Slurm: `scontrol resume 17`'
  status_of 17 RUNNING
  ok "or that it is not" printed '^state +no heartbeat for'
}
absent() { ! grep -Eq "$1" "$scratch/out"; }

# What is saved has been finished, however old a node's file is.
test_steps() {
  train 2 steps --set run.steps=6 --set run.save_every=3
  sed 's/^state .*/state running/; s/^step .*/step 0/; s/^ended .*/ended 0.000/' steps/status/@run > "$scratch/a"
  cp "$scratch/a" steps/status/@run
  for file in steps/status/[!@]*; do
    awk '/^ *[0-9]+ +[0-9]+ / { sub(/ 6 +0 /, " 2     0 ") } { print }' "$file" > "$scratch/a" && cp "$scratch/a" "$file"
  done
  run "$tessera" status steps
  ok "the steps are not behind what is saved" both 'printed "^steps +6 of 6"' 'grep -Eq "^saved +step_00000006" "$scratch/out"'
  ok "while a node's file is" grep -Eq '^[^ ]+ +0 +2 ' "$scratch/out"
  run "$tessera" status steps --format json
  ok "nor as json" printed '"step": 6, "steps": 6'
}
both() { eval "$1" && eval "$2"; }

# ---- time ----

train() {
  n=$1
  directory=$2
  shift 2
  run $mpiexec -n "$n" "$tessera" train tiny.cfg --set run.evaluate_every=0 --set train_batch_size=32 \
    --set "run.directory=$directory" "$@"
}

step_of() { sed 's/step_0*//' "$1/latest" | head -n 1; }

test_time() {
  train 2 timed --set run.steps=100000000 --set run.time_limit=5 --set run.time_margin=1 --set run.save_every=50
  ok "a run with a time limit stops before it" gave 75
  ok "and says how long before" grep -Eq '^stopped after step [0-9]+ of 100000000, [1-4] s before the end' "$scratch/out"
  stopped=$(step_of timed)
  ok "after several steps: $stopped" [ "$stopped" -gt 5 ]
  train 2 timed --resume auto --set run.steps=$((stopped + 20))
  ok "it goes on" gave 0
  train 2 whole --set run.steps=$((stopped + 20))
  ok "to where a run without a limit comes" "$tessera" compare timed whole
  train 2 short --set run.steps=100 --set run.time_limit=1
  ok "less time than a step and a save need" said 75 "the job's time is short"
  ok "is one step" is "$(step_of short)" 1
  train 2 short --resume auto --set run.steps=100 --set run.time_limit=1
  ok "and one more the next time" is "$(step_of short)" 2
}

# Slurm is asked: a squeue of our own says what is left.
test_slurm() {
  mkdir -p bin
  printf '#!/bin/sh\n[ "$*" = "-h -j 17 -o %%L" ] && echo 0:04\n' > bin/squeue
  chmod +x bin/squeue
  (
    PATH=$work/bin:$PATH
    export PATH SLURM_JOB_ID=17
    train 2 slurm --set run.steps=100000000 --set run.time_margin=1
    echo $status > slurm.status
  )
  status=$(cat slurm.status)
  ok "Slurm's time limit stops a run" gave 75
  ok "which says so" grep -Eq '^stopped after step [0-9]+ of .* s before the end' "$scratch/out"
  run "$tessera" status slurm
  ok "and of which job it was" printed '^job +17, restart 0'
  printf '#!/bin/sh\nsleep 100\n' > bin/squeue
  (
    PATH=$work/bin:$PATH
    export PATH SLURM_JOB_ID=17
    train 2 mute
    echo $status > slurm.status
  )
  status=$(cat slurm.status)
  ok "nobody waits for a squeue that hangs" clean
}

# ---- signals while it saves ----

test_signals() {
  begin 2 signals --set model.hidden_size=512 --set model.intermediate_size=1024 --set model.num_hidden_layers=6 \
    --set run.save_async="$1"
  tries=0
  while [ $tries -lt 1000 ] && kill -TERM "$(pid_of 0)" "$(pid_of 1)" 2> /dev/null; do
    tries=$((tries + 1))
    sleep 0.01
  done
  end
  ok "$tries times TERM before and in a save, run.save_async=$1: saved" gave 75
  run "$tessera" verify signals
  ok "and intact" gave 0
  rm -rf signals
}

test_life
test_unwritable
test_hangs
test_killed
test_suspended
test_steps
test_time
test_slurm
test_signals true
test_signals false
finish
