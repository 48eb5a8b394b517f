#!/bin/sh
# TAP: a machine is measured, for one rank and for two; plans say what a step will take there; files that are wrong are refused.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"

bench() {
  ranks=$1
  shift
  OMP_NUM_THREADS=1
  export OMP_NUM_THREADS
  run $mpiexec -n "$ranks" "$tessera" bench "$@"
}

# What a plan's json says of the time.
time_of() { sed -n "s/.*\"$1\": \([0-9.e+-]*\)[,}].*/\1/p" "$scratch/out"; }
is_positive() { awk -v x="$1" 'BEGIN { exit !(x > 0) }'; }

test_one() {
  bench 1 --quick -o machine.cfg
  ok "bench --quick" clean
  ok "and says what it did" printed '^machine.cfg: [0-9]+ samples of 1 rank a node x 1 thread, in'
  run "$tessera" plan tiny.cfg --machine machine.cfg
  ok "plan: the time of a step" both "printed '^  step +[0-9.]+ ms$'" "printed '^    forward +[0-9.]+ ms, backward [0-9.]+, update [0-9.]+$'"
  ok "tokens" both "printed '^  tokens/s +[0-9]+$'" "printed '^  tokens/s a rank +[0-9]+$'"
  kinds='6N|causal half, 6N \+ 6LCT|full, 6N \+ 12LCT'
  ok "FLOP/s, by three conventions" is "$(grep -cE "^  MFU \(($kinds)\) +[0-9.]+ % of its best product$" "$scratch/out")" 3
  run "$tessera" plan tiny.cfg --machine machine.cfg --set model.model_type=mistral --set model.sliding_window=2
  ok "where a window leaves less than half of attention, too" printed '^  MFU \(6N\) +[0-9.]+ %'
  run "$tessera" plan tiny.cfg --machine machine.cfg
  ok "ops" printed '^    matmul +[0-9]+ +[0-9.]+ +[0-9.]+%'
  ok "not all of it is measured" printed '^  \(of the time of nodes and messages .* between sizes that were measured'
  bench 1 tiny.cfg -o machine.cfg
  ok "bench DECK: its own nodes alone are added" printed '^steps of tiny.cfg'
  ok "nothing else is measured again" sh -c "! grep -q '^products' '$scratch/out'"
  step='^a step: [0-9.]+ ms, the fastest quarter of [0-9]+; planned by its nodes: [0-9.]+ ms \([+-][0-9.]+ %\)$'
  ok "and how far a plan by these is off" printed "$step"
  planned=$(sed -n 's/^a step: .* planned by its nodes: \([0-9.]*\) ms.*/\1/p' "$scratch/out")
  run "$tessera" plan tiny.cfg --machine machine.cfg
  said=$(sed -n 's/^  step  *\([0-9.]*\) ms$/\1/p' "$scratch/out")
  ok "which is what plan says: $planned, $said ms" awk -v a="$planned" -v b="$said" 'BEGIN { exit !(a > 0 && a - b < 0.1 && b - a < 0.1) }'
  ok "then all of its time is measured" printed '^  \(of the time of nodes and messages 100.0 % measured\)$'
  run "$tessera" plan tiny.cfg --machine machine.cfg --format json
  ok "json: nothing else on stdout" is "$(wc -l < "$scratch/out")" 1
  ok "json: a time" is_positive "$(time_of step_seconds)"
  ok "json: all of it measured" is "$(time_of measured)" 100.00
}

test_plans() {
  run "$tessera" plan tiny.cfg --machine machine.cfg --timeline planned.json
  ok "--timeline" both clean "grep -q '\"cat\": \"matmul\", \"ph\": \"X\"' planned.json"
  ok "which ends" is "$(tail -n 1 planned.json)" ']}'
  run "$tessera" train tiny.cfg --set run.directory=seen --set profile.timeline=seen.json --set run.steps=8
  run "$tessera" plan tiny.cfg --machine machine.cfg --against seen
  ok "--against a run: its step" printed '^  step +[0-9.]+ +[0-9.]+ +[+-][0-9.]+%$'
  ok "and its ops, those that are furthest off" printed '^    [a-z_]+ +[0-9.]+ +[0-9.]+ +[+-][0-9.]+%$'
  ok "nothing is otherwise" sh -c "! grep -q 'of another step' '$scratch/out'"
  run "$tessera" plan tiny.cfg --machine machine.cfg --against seen --set zero_optimization.stage=2
  ok "another stage is said" printed '^  of another step: ZeRO stage here 2, of the run 0$'
  run "$tessera" plan tiny.cfg --machine machine.cfg --against seen --ranks 2 --set train_batch_size=8
  ok "what is, is said" both "printed '^  of another step: ranks here 2, of the run 1$'" \
    "printed '^  of another step: tokens a step here 256, of the run 128$'"
  mv seen.json kept
  mkfifo seen.json
  run "$tessera" plan tiny.cfg --machine machine.cfg --against seen
  ok "--against a run with a pipe for its timeline" said 2 'seen.json: is no regular file'
  mv kept seen.json
  run "$tessera" plan tiny.cfg --machine machine.cfg --against nowhere
  ok "no such run" said 2 'nowhere/metrics.csv'
  run "$tessera" plan tiny.cfg --against seen
  ok "--against without a machine" said 2 '--against wants a --machine'
  bench 1 --quick -o files.cfg --files .
  ok "--files" grep -qE ' read = [1-9][0-9.]*e[+0-9]+; write = [1-9]' files.cfg
  bench 1 --quick -o files.cfg --files /dev/null
  ok "which are no directory" said 2 '/dev/null'
  bench 1 tiny.cfg --quick -o threads.cfg --set run.threads=2
  ok "a deck's threads are those that are measured" grep -q '{ ranks = 1; threads = 2;' threads.cfg
}

test_two() {
  bench 2 --quick -o machine.cfg
  ok "of two ranks, into the same file" printed '^machine.cfg: [0-9]+ samples of 2 ranks a node x 1 thread'
  ok "which has both" is "$(grep -c '{ ranks = ' machine.cfg)" 2
  stage2="--set zero_optimization.stage=2"
  # shellcheck disable=SC2086
  run "$tessera" plan tiny.cfg $stage2 --ranks 2 --machine machine.cfg
  ok "plan for two: by the times of two" printed '^time of a step, .*, 2 ranks a node x 1 thread$'
  ok "messages, and what is exposed of them" both "printed '^  messages +[0-9.]+ ms$'" "printed '^    exposed +[0-9.]+ ms$'"
  # shellcheck disable=SC2086
  run "$tessera" plan tiny.cfg $stage2 --ranks 2 --machine machine.cfg --ranks-per-node 1
  ok "by those of one rank a node, where that is said" printed '^time of a step, .*, 1 rank a node x 1 thread$'
  run "$tessera" plan tiny.cfg --ranks 4 --machine machine.cfg --ranks-per-node 4
  ok "of so many that were not measured" printed '^  \(4 ranks a node were not measured: messages leave nodes of 4, their times are those of 2\)$'
  run "$tessera" plan tiny.cfg --ranks 2 --machine machine.cfg --set pipeline.stages=2 --set gradient_accumulation_steps=4
  ok "of a pipeline" printed '^  bubble +[0-9.]+ % of the time'
  gathers() { grep -c '"all_gather fp32 x2"' machine.cfg; }
  before=$(gathers)
  bench 2 tiny.cfg -o machine.cfg --set zero_optimization.stage=3 --set zero_optimization.overlap_comm=true
  ok "bench DECK of two, whose messages overlap: a second engine without" printed "$step"
  ok "messages of its own" test "$(gathers)" -gt "$before"
  sets="--set zero_optimization.stage=3 --set zero_optimization.overlap_comm=true"
  # shellcheck disable=SC2086
  run "$tessera" plan tiny.cfg --ranks 2 --machine machine.cfg $sets
  ok "then all of it is measured, messages included" printed '^  \(of the time of nodes and messages 100\.0 % measured\)$'
  # shellcheck disable=SC2086
  bench 2 tiny.cfg -o machine.cfg $sets --set run.memory_limit=1GB
  ok "within a limit one engine at a time" printed '^a step: .*, which were observed behind these, by an engine of their own$'
  heads() { grep -c '"head_loss_train ' machine.cfg; } # which the second stage has
  before=$(heads)
  bench 2 tiny.cfg -o machine.cfg --set pipeline.stages=2 --set gradient_accumulation_steps=4 --set model.vocab_size=352
  ok "of a pipeline" printed "$step"
  ok "nodes of the second stage, too" test "$(heads)" -gt "$before"
  run "$tessera" plan tiny.cfg --ranks 4096 --machine machine.cfg --set train_batch_size=4096 --set zero_optimization.stage=3
  ok "of 4096 ranks, of which two are on a node" printed '^time of a step, .*, 2 ranks a node x 1 thread$'
}

test_wrong() {
  bench 1 --quick -o nowhere/machine.cfg
  ok "a directory that is not there, before anything is measured" both 'said 2 "nowhere/machine.cfg"' 'sh -c "! grep -q products \"$scratch/out\""'
  sed 's/^device = .*/device = "another one";/' machine.cfg > other.cfg
  bench 1 --quick -o other.cfg
  ok "a file of another device is not added to" said 2 'other.cfg is of another device \(another one; here: .*\): give -o another name'
  echo 'measured = (' > broken.cfg
  bench 1 --quick -o broken.cfg
  ok "one that is broken, neither" said 2 'broken.cfg is there already and cannot be added to: give -o another name'
  bench 1 --quick -o machine.cfg --set run.threads=2
  ok "--set without a deck" said 2 '--set changes a DECK'
  bench 1 --quick -o machine.cfg --target tpu
  ok "an unknown target" said 2 'run.device'
  run "$tessera" plan tiny.cfg --machine nothing.cfg
  ok "plan: no such file" said 2 'nothing.cfg: '
  run "$tessera" plan tiny.cfg --machine tiny.cfg
  ok "plan: a deck" said 2 'tiny.cfg: no file of tessera bench'
  run "$tessera" plan tiny.cfg --ranks-per-node 4
  ok "plan: --ranks-per-node alone" said 2 'there is none'
  run "$tessera" plan tiny.cfg --machine machine.cfg --ranks-per-node 0
  ok "plan: no ranks a node" said 2 '--ranks-per-node'
  sed 's/^backend = .*/backend = "cuda";/' machine.cfg > other.cfg
  run "$tessera" plan tiny.cfg --machine other.cfg --target cpu
  ok "plan: of another backend" said 2 'is of "cuda", the plan is for "cpu": --target cuda'
}

test_one
test_plans
test_two
test_wrong
finish
