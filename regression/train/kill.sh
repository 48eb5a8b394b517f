#!/bin/sh
# TAP: ranks killed while they save.  What was published before always loads, half of a checkpoint never does, and the
# run goes on with the losses it would have had.  CHECKPOINTS=all kills at 50 random moments, otherwise at 6.
# shellcheck source=regression/cli_common.sh
build=$(pwd)
. "${srcdir:-.}/regression/cli_common.sh"
test_save=$build/regression/engine/test_save

# ---- in each state of a save ----

kill_in() {
  rm -rf "dir"
  mkdir "dir"
  run $mpiexec -n 3 "$test_save" kill dir "$1" "$2"
  ok "rank $2 is killed in $1: the job ends" [ "$status" -ne 0 -a "$status" -ne 124 ]
  run $mpiexec -n 3 "$test_save" check dir
  ok "rank $2 was killed in $1: the newest checkpoint loads and goes on" gave 0
}

test_states() {
  for state in DIRECTORY COPY SHARD INDEX SUM COLLECT MANIFEST PUBLISH LATEST PRUNE; do
    kill_in $state 0
  done
  for state in COPY SHARD SUM COLLECT; do
    kill_in $state 2
  done
}

# ---- at random moments ----

steps=120
train() {
  timeout -k 5 60 $mpiexec -n 2 sh -c 'echo $$ >> pids; exec "$@"' sh "$tessera" train tiny.cfg --set run.steps=$steps \
    --set run.save_every=2 --set run.keep=2 --set run.evaluate_every=0 --set zero_optimization.stage=2 \
    --set debug.digest_every=40 "$@" > "$scratch/out" 2> "$scratch/err" < /dev/null
}

# A moment between 0 and 1 seconds after the run began to write; the rank is drawn too.
kill_at_random() {
  rm -f pids
  train --set run.directory=killed --resume auto &
  job=$!
  tries=0
  while [ $tries -lt 100 ] && [ "$(wc -l < pids 2> /dev/null)" != 2 ]; do
    sleep 0.02
    tries=$((tries + 1))
  done
  # at random within a part of the run's time of its own
  sleep "$(awk -v i="$1" -v n="$moments" 'BEGIN { srand(i); printf "%.3f", 0.15 + 0.7 * (i - rand()) / n }')"
  kill -9 "$(sed -n "$((1 + $1 % 2))p" pids)" 2> /dev/null
  wait $job
  status=$?
}

newest_is_intact() {
  newest=$(find killed -maxdepth 1 -name 'step_*' ! -name '*.tmp' ! -name '*.aside' 2> /dev/null | sort | tail -n 1)
  [ -z "$newest" ] || "$tessera" verify "$newest"
}

test_random() {
  train --set run.directory=whole
  status=$?
  ok "a run that nobody kills" gave 0
  moments=6
  [ "${CHECKPOINTS:-}" = all ] && moments=50
  i=0
  damaged=0
  killed=0
  while [ $i -lt $moments ]; do
    i=$((i + 1))
    kill_at_random $i
    [ "$status" -eq 0 ] || killed=$((killed + 1))
    newest_is_intact > "$scratch/damage" 2>&1 || damaged=$((damaged + 1))
    if [ "$status" -eq 0 ]; then
      rm -rf killed
    fi
  done
  ok "$killed of $moments runs were killed before their end" [ $killed -gt 0 ]
  ok "the newest checkpoint was intact each time" is $damaged 0
  train --set run.directory=killed --resume auto
  status=$?
  ok "the last one goes on to its end" gave 0
  ok "and is the run that nobody killed" "$tessera" compare whole killed
}

# ---- in mid-pipeline, and on with other stages ----

# train_stages RANKS SETTING...: every rank is a stage, so losses are those of one rank to the bit.
train_stages() {
  ranks=$1
  shift
  timeout -k 5 60 $mpiexec -n "$ranks" sh -c 'echo $$ >> pids; exec "$@"' sh "$tessera" train tiny.cfg \
    --set run.steps=$steps --set run.save_every=4 --set run.keep=2 --set run.evaluate_every=0 \
    --set debug.digest_every=20 --set model.tie_word_embeddings=false --set train_batch_size=6 \
    --set gradient_accumulation_steps=6 --set pipeline.stages="$ranks" "$@" \
    > "$scratch/out" 2> "$scratch/err" < /dev/null
}

# kill_stage PROCESS RANKS SETTING...: once it has saved something more.
kill_stage() {
  stage=$1
  shift
  rm -f pids
  saved=$(cat staged/latest 2> /dev/null)
  train_stages "$@" --set run.directory=staged --resume auto &
  job=$!
  tries=0
  while [ $tries -lt 500 ] && [ "$(cat staged/latest 2> /dev/null)" = "$saved" ]; do
    sleep 0.02
    tries=$((tries + 1))
  done
  kill -9 "$(sed -n "$((1 + stage))p" pids)" 2> /dev/null
  wait $job
  status=$?
  advanced=no
  [ "$(cat staged/latest 2> /dev/null)" = "$saved" ] || advanced=yes
}

# It had saved more before, and did not come to its end.
died_later() { [ "$status" -ne 0 ] && [ "$advanced" = yes ]; }

test_stages() {
  steps=240
  train_stages 1 --set run.directory=one_stage
  status=$?
  ok "one stage" gave 0
  kill_stage 1 2 --set pipeline.schedule=zb_h1 --set zero_optimization.stage=1
  ok "one of two stages is killed" died_later
  kill_stage 0 4 --set pipeline.schedule=1f1b
  ok "the run goes on with four, of which one is killed" died_later
  kill_stage 1 2 --set pipeline.schedule=interleaved --set zero_optimization.stage=2
  ok "then with two that have two pieces each" died_later
  train_stages 1 --set run.directory=staged --resume auto
  status=$?
  ok "and on one to its end" gave 0
  ok "with a row for each step" [ "$(grep -c . staged/metrics.csv)" = $((steps + 1)) ]
  ok "with the losses and digests of the run that nobody killed" "$tessera" compare one_stage staged
}

# ---- signals while it computes ----

# A product must survive a signal: oneDNN's kernels keep the stack pointer in the heap, and a handler's frame damages it
# (one signal in four, before they were blocked).  A process that is not there any more ends the hail.
hail() {
  until [ -r hail/metrics.csv ] || ! kill -0 $job; do
    sleep 0.05
  done
  while kill -USR1 $job; do
    sleep 0.005
  done
}

test_hail() {
  for try in 1 2 3; do
    rm -rf hail
    "$tessera" train tiny.cfg --set model.hidden_size=384 --set model.intermediate_size=768 --set run.steps=200 \
      --set train_batch_size=12 --set run.directory=hail > "$scratch/out" 2> "$scratch/err" < /dev/null &
    job=$!
    hail 2> /dev/null
    wait $job
    status=$?
    ok "signals while it computes, try $try: saved" gave 75
  done
}

test_states
test_random
test_stages
test_hail
finish
