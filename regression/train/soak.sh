#!/bin/bash
# TAP, outside of ./check: long runs of a small model, several ways.  Memory, threads and open files of every rank are those of a fifth
# of the way at its end, too: what is lost with each step, save or evaluation fills a node by hour 30.
# From a build directory: [STEPS=20000] [ONLY=NAME] ../regression/train/soak.sh
# shellcheck source=regression/cli_common.sh
srcdir=$(dirname "$0")/../..
build=$PWD
. "$srcdir/regression/cli_common.sh"
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
[ ! -f "$build/regression/yield.so" ] || export LD_PRELOAD="$build/regression/yield.so"
steps=${STEPS:-20000} # thousands: of fewer it may not see the end

away="zero_optimization.stage=3 zero_optimization.stage3_param_persistence_threshold=0"
for setting in device=nvme nvme_path=.; do
  away="$away zero_optimization.offload_optimizer.$setting"
done

# name | ranks | settings
runs="plain|1|run.evaluate_every=20
saves|2|zero_optimization.stage=3 run.save_every=50 run.keep=2 tensorboard.enabled=true csv_monitor.enabled=true run.evaluate_every=100
pipeline|2|pipeline.stages=2 gradient_accumulation_steps=4 train_batch_size=4 run.save_every=200 run.keep=1
tensor|2|tensor_parallel.autotp_size=2 bf16.enabled=true
sequence|2|sequence_parallel_size=2 zero_optimization.stage=2
files|2|$away
experts|2|moe.num_experts=4 moe.ep_size=2 moe.k=2 zero_optimization.stage=1
observed|1|comms_logger.enabled=true wall_clock_breakdown=true run.log_every=1"

# "KB THREADS FILES", what is resident of no file, of all ranks of a run together.
held() {
  local process kb sum=0 threads=0 files=0
  for process in $(pgrep -f "tessera train .*run.directory=$1( |$)"); do
    [ "$(cat "/proc/$process/comm")" = tessera ] && [ "$(readlink "/proc/$process/cwd")" = "$work" ] || continue
    for kb in $(sed -n 's/^Rss\(Anon\|Shmem\):[^0-9]*\([0-9]*\).*/\2/p' "/proc/$process/status"); do
      sum=$((sum + kb))
    done
    threads=$((threads + $(find "/proc/$process/task" -mindepth 1 -maxdepth 1 | wc -l)))
    files=$((files + $(find "/proc/$process/fd" -mindepth 1 | wc -l)))
  done 2> /dev/null
  echo "$sum $threads $files"
}

rows() { [ ! -r "$1/metrics.csv" ] || wc -l < "$1/metrics.csv"; }

# Memory: no more than a hundredth and half a megabyte above.
kept() { [ "$2" -le $(($1 + $1 / 100 + 512)) ]; }

# A file may be being written, or saved by a thread: what a step or a save loses is thousands or dozens.
as_many() { [ "$5" -le $(($2 + 4)) ] && [ "$6" -le $(($3 + 4)) ]; }

# The highest of five looks: buffers of messages come and go.
most_held() {
  local i sum most=0 threads=0 files=0 t f
  for i in 1 2 3 4 5; do
    read -r sum t f <<< "$(held "$1")"
    [ "$sum" -le "$most" ] || most=$sum
    [ "$t" -le "$threads" ] || threads=$t
    [ "$f" -le "$files" ] || files=$f
    sleep 0.2
  done
  echo "$most $threads $files"
}

soak() {
  local it=$1 ranks=$2 words=() setting process early='' late='' done_rows
  for setting in $3; do
    words+=(--set "$setting")
  done
  # shellcheck disable=SC2086
  timeout "${SOAK_TIMEOUT:-3600}" $mpiexec -n "$ranks" "$tessera" train tiny.cfg "${words[@]}" --set "run.steps=$steps" \
    --set "run.directory=$it" > "$it.out" 2>&1 < /dev/null &
  process=$!
  while kill -0 $process 2> /dev/null; do
    done_rows=$(rows "$it")
    if [ -z "$early" ] && [ "${done_rows:-0}" -ge $((steps / 5)) ]; then
      early=$(most_held "$it")
    elif [ "${done_rows:-0}" -ge $((steps * 9 / 10)) ]; then
      late=$(most_held "$it")
      break
    fi
    sleep 0.5
  done
  wait $process
  status=$?
  cp "$it.out" "$scratch/out"
  : > "$scratch/err"
  ok "$it: $steps steps" gave 0
  echo "# $it: KB, threads and files of $ranks ranks at a fifth ${early:-unknown}, at nine tenths ${late:-unknown}"
  ok "$it: memory" both "[ -n '$early' ] && [ -n '$late' ]" "kept ${early%% *} ${late%% *}"
  # shellcheck disable=SC2086
  ok "$it: threads and files" as_many $early $late
  rm -rf "$it"
}

sed -i 's/log_every = 2/log_every = 100/; s/evaluate_every = 3;//; s/steps = 6;//' tiny.cfg
while IFS='|' read -r name ranks settings; do
  [ "${ONLY:-$name}" != "$name" ] || soak "$name" "$ranks" "$settings"
done <<< "$runs"
finish
