#!/bin/sh
# TAP: the search of settings as people call it: its table and reasons, the deck that it writes, trials that run, fail and hang,
# DeepSpeed's autotuning, and what is refused.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"

# Nothing but floors.
cat > machine.cfg <<'END'
tessera_machine = 1;
backend = "cpu";
device = "made up";
libraries = "none";
date = "2026-11-28";
measured = ({ ranks = 2; threads = 1; product_fp32 = 1e10; product_bf16 = 1e10; copy = 5e9; slowdown = 1.0; instruction = 2e-6;
  step = 1e-4; samples = (); });
END

tune() { run "$tessera" tune tiny.cfg --ranks 2 --machine machine.cfg "$@"; }

# A number of the first row of a json.
first_of() { sed -n "2s/.*\"$1\": \"\\{0,1\\}\\([A-Za-z0-9.e+-]*\\)\"\\{0,1\\}[,}].*/\\1/p" "$scratch/out"; }

test_search() {
  tune -o best.cfg
  ok "tune" clean
  ok "says for what" printed '^[0-9]+ samples a step on 2 ranks, 2 a node, no limit of memory given \(--memory\)$'
  ok "how many were walked" printed '^[0-9]+ candidates in [0-9.]+ s: [0-9]+ walked, [0-9]+ too large,'
  ok "a table" printed '^   1 +[0-9.]+ +1\.000 +[0-9.]+ [KMG]?B '
  ok "why not the others" printed '^  recompute block: 1\.[0-9]+ times as long, [0-9.]+ ms more computed'
  ok "each stage but that of the best has its line" is "$(grep -cE '^  stage [0-3]: ' "$scratch/out")" 3
  ok "the words for train" printed "^  --set 'zero_optimization.stage=[0-3]'"
  run "$tessera" tune tiny.cfg --ranks 2 --machine machine.cfg --format json
  ok "json" both "printed '^\{\"batch\": 4, \"ranks\": 2, '" "printed '\]\}$'"
  best=$(first_of step_seconds)
  run "$tessera" plan best.cfg --ranks 2 --machine machine.cfg --format json
  ok "the deck that was written takes what was said: $best s" \
    sh -c "grep -q '\"step_seconds\": $best,' '$scratch/out'"
  tune --keep stage,micro --set zero_optimization.stage=2
  ok "--keep: no column, no reason" sh -c "! grep -qE '^  (stage|micro) ' '$scratch/out' && ! grep -qE ' (stage|micro) ' '$scratch/out'"
  ok "and the deck's value" sh -c "grep -q 'zero_optimization.stage=2' '$scratch/out'"
  tune --memory 1MB
  ok "nothing fits: why and the way out" said 2 'no candidate fits: a larger --memory'
  ok "each value says what is missing" is "$(grep -cE '^  (stage|micro|recompute) .*: [0-9.]+ [KMG]?B missing of 1\.00 MB' "$scratch/out")" 10
  ok "what is missing" grep -qE '^  stage 3: [0-9.]+ [KMG]?B missing of 1\.00 MB' "$scratch/out"
}

test_trials() {
  cp "$(sed -n 's/^data = { path = "\([^"]*\)".*/\1/p' tiny.cfg)" "a text's.txt"
  tune --measure 2 --launch "$mpiexec -n 2" --results trials --steps 2
  ok "--measure: rows" is "$(grep -cE '^ +[0-9]+ +[0-9.]+ +[0-9.]+ +[+-][0-9.]+%  trial-[0-9]+: tp ' "$scratch/out")" 2
  ok "and what it cost to believe the plan" grep -qE '^regret of the plan.s first: [0-9.]+ %$' "$scratch/out"
  ok "their decks, runs and logs" sh -c 'test -f trials/trial-2.cfg && test -f trials/trial-2/metrics.csv && test -f trials/trial-2.log'
  ok "of five steps each" is "$(wc -l < trials/trial-1/metrics.csv)" 6
  tune --measure 1 --launch "NOTHING=1 $mpiexec -n 2" --results deep/er --steps 1 --set run.steps=0 --set run.epochs=1 \
    --set profile.timeline=mine.json --set data.path="a text's.txt"
  ok "words of a shell; epochs and a timeline are the run's, not the trial's" both "grep -q 'trial-1: tp ' '$scratch/out'" 'test ! -e mine.json'
  ok "words are quoted" grep -qF -e "--set 'data.path=a text'\\''s.txt'" "$scratch/out"
  # A launcher that trains nothing and writes what it says: seconds of a step by the name of a run.
  cat > fake.sh << 'END'
for word; do case "$word" in run.directory=*) directory=${word#*=} ;; esac; done
echo "${directory#*trial-}" >> runs
case "$directory" in
  *-7-behind-9) s=2.0 ;; *-[17] | *-[17]-behind-*) s=1.0 ;; *-5-again) exit 1 ;; *-6-again | *-6-again-[34]) s=0.9 ;;
  *trial-2) s=1.05 ;; *-1-again*) s=0.99 ;; *trial-3 | *-8 | *-10) s=1.3 ;; *-9) s=2.6 ;;
  *-11 | *-11-behind-*) s=1.7 ;; *-12* | *-14 | *-14-behind-*) s=1.0 ;; *-1[36]*) s=1.3 ;;
  *-15) s=1.1 ;; *-1[45]-again* | *-18-again) exit 1 ;;
  *-17 | *-17-behind-*) s=1.7 ;; *-17-again) s=1.6 ;; *-18 | *-18-behind-*) s=1.0 ;; *-19) s=1.3 ;; *) s=0.8 ;;
esac
mkdir -p "$directory"
{ echo step,step_seconds,skipped; for i in 1 2 3 4; do echo "$i,$s,1"; done; echo 5,9.9,1; echo 6,0.1,2; } > "$directory/metrics.csv"
END
  again() { grep -c "$1-again" runs; }
  tune --measure 3 --launch 'sh fake.sh' --results fakes --steps 2 -o chosen.cfg
  ok "what came near the fastest runs again, until nothing changes" both 'is "$(again 1)$(again 2)" 22' 'is "$(again 3)" 0'
  took() { sed -n 's/^ *[0-9]* *[0-9.]* *\([0-9.]*\) .*trial-\([0-9]*\):.*/\2:\1/p' "$scratch/out" | tr '\n' ' '; }
  ok "the repeated run counts, but not what disturbs it, and others are as fast with it" is "$(took)" "1:990.0 2:800.0 3:1135.1 "
  ok "the fastest by that is chosen" cmp -s fakes/trial-2.cfg chosen.cfg
  ok "and the plan's first was not: its regret" grep -qE '^regret of the plan.s first: 23\.[78] %$' "$scratch/out"
  tune --measure 3 --launch 'sh fake.sh' --results fakes --steps 2 -o chosen.cfg
  ok "one that fails the second time has failed" grep -qE 'trial-5: .*: failed \(fakes/trial-5-again.log\)' "$scratch/out"
  ok "of equal ones the plan's first is taken" cmp -s fakes/trial-4.cfg chosen.cfg
  ok "while one takes longer at times all run, five times more at most" is "$(again 4)$(again 5)$(again 6)" 515
  ok "which is said" grep -q '^measured: the fastest quarter of 2 steps .*near the fastest the least of up to five runs more by turns, times as ' "$scratch/out"
  tune --measure 4 --launch 'sh fake.sh' --results fakes --steps 2 -o chosen.cfg
  ok "a machine half as fast for a while: the fastest so far says it" is "$(grep behind runs | tail -2 | tr '\n' ' ')" "7-behind-9 7-behind-10 "
  ok "times are as it was" is "$(took)" "7:1000.0 8:1300.0 9:1300.0 10:1300.0 "
  ok "the fastest is the best" cmp -s fakes/trial-7.cfg chosen.cfg
  tune --measure 3 --launch 'sh fake.sh' --results fakes --steps 2 -o chosen.cfg
  ok "one that was the fastest once, in a bad moment, has another chance" both 'cmp -s fakes/trial-11.cfg chosen.cfg' 'is "$(again 13)" 0'
  ok "by which nobody else becomes faster" is "$(took)" "11:800.0 12:1000.0 13:1300.0 "
  tune --measure 3 --launch 'sh fake.sh' --results fakes --steps 2 -o chosen.cfg
  ok "where all fail then, times are those from before" is "$(took)" "14:1000.0 15:1100.0 16:1300.0 "
  ok "it says so" both "grep -q '^none that is near the fastest ran to its end: times are' '$scratch/err'" 'cmp -s fakes/trial-14.cfg chosen.cfg'
  tune --measure 3 --launch 'sh fake.sh' --results fakes --steps 2 -o chosen.cfg
  ok "one that led is not chosen because the near one fails" both 'cmp -s fakes/trial-19.cfg chosen.cfg' 'is "$(took)" "17:1700.0 18: 19:1300.0 "'
  # The plan's first three have micro-batches of two.  These take twice as long as the others here, then they fail.
  cat > slow.sh << 'END'
for word; do case "$word" in *.cfg) deck=$word ;; run.directory=*) directory=${word#*=} ;; esac; done
s=0.0015
if grep -q '^train_micro_batch_size_per_gpu = 2;' "$deck"; then s=$TWO; fi
mkdir -p "$directory"
{ echo step,step_seconds; for i in 1 2 3 4 5; do echo "$i,$s"; done; } > "$directory/metrics.csv"
END
  tune --measure 1 --launch false --results slow
  ok "as many steps as take two seconds, at most" grep -q '^measured: the fastest quarter of 20 steps behind 3$' "$scratch/out"
  ok "(the plan's first three have micro-batches of two)" is "$(sed -n 's/^ *[123] .* \([0-9][0-9]*\)  *none .*/\1/p' "$scratch/out" | tr '\n' ' ')" "2 2 2 "
  TWO=0.0015 tune --measure 10 --launch 'sh slow.sh' --results many --steps 2
  ok "of ten that take the same eight run again, once" is "$(find many -name '*-again.log' | wc -l) $(find many -name '*-again-2.log' | wc -l)" "8 0"
  for two in 0.003 0.0015 none; do
    TWO=$two tune --measure 4 --launch 'sh slow.sh' --results slow --steps 2
    sizes=$(sed -n 's/^ *[0-9].*trial-[0-9]*: .*, micro \([0-9]*\),.*/\1/p' "$scratch/out" | awk '{ printf "%s ", $1 == 2 ? "two" : "other" }')
    if [ "$two" = 0.0015 ]; then expected="two two other two "; else expected="two other other other "; fi
    ok "trials of two: $two s.  What they took says which are next" is "$sizes" "$expected"
  done
  ok "one that has no time is a row" grep -qE '^ +1 +[0-9.]+ +- +trial-10: .*: slow/trial-10/metrics.csv has no steps that count$' "$scratch/out"
  tune --measure 1 --launch false --results trials
  ok "one that fails is a row" grep -qE '^ +1 +[0-9.]+ +- +trial-3: .*: failed \(trials/trial-3.log\)' "$scratch/out"
  ok "and not the end" gave 0
  tune --measure 1 --launch 'sleep 60;' --timeout 1 --results trials
  ok "one that hangs, too" grep -qE 'trial-4: .*: did not end in 1 s and was ended$' "$scratch/out"
}

test_autotuning() {
  cp tiny.cfg auto.cfg
  echo 'autotuning = { enabled = true; tuner_num_trials = 2; end_profile_step = 4; metric_path = "metric.json"; exps_dir = "exps";
    min_train_batch_size = 4; max_train_batch_size = 8; arg_mappings = { a = 1; }; };' >> auto.cfg
  run "$tessera" tune auto.cfg --ranks 2 --machine machine.cfg --launch "$mpiexec -n 2"
  ok "autotuning: two batches" is "$(grep -cE '^batch (4|8): [0-9.]+ ms a step, [0-9.]+ samples/s$' "$scratch/out")" 2
  ok "the larger one by throughput" printed '^8 samples a step on 2 ranks'
  ok "two trials" is "$(grep -cE ' trial-[0-9]+: ' "$scratch/out")" 2
  ok "no effect is said" said 0 'autotuning.arg_mappings: no effect: a deck has no other arguments'
  ok "summary.txt" sh -c "cmp -s autotuning_results/summary.txt '$scratch/out'"
  ok "the metrics" grep -qE '^\{"throughput": [0-9.]+, "latency": [0-9.e-]+, "FLOPS_per_gpu": [0-9.e+]+\}$' metric.json
  echo 'deepspeed_config = "autotuning_results/ds_config_optimal.json";' > optimal.cfg
  run "$tessera" deck optimal.cfg --key train_batch_size
  ok "ds_config_optimal.json is a deck" printed '^8$'
  run "$tessera" tune auto.cfg --ranks 2 --machine machine.cfg --set autotuning.metric=latency --set autotuning.tuner_num_trials=1 --launch false
  ok "by latency the smaller one" printed '^4 samples a step on 2 ranks'
  run "$tessera" tune auto.cfg --ranks 2 --machine machine.cfg --set autotuning.overwrite=false
  ok "nothing is written over, if that is asked" said 2 'autotuning_results is there already, and autotuning.overwrite is false'
  run "$tessera" tune auto.cfg --ranks 2 --machine machine.cfg --set autotuning.start_profile_step=9
  ok "an end before the begin" said 2 'autotuning.end_profile_step'
  run "$tessera" tune auto.cfg --ranks 2 --machine machine.cfg --set autotuning.mp_size=2 --set autotuning.max_train_batch_size=0 \
    --set autotuning.tuner_num_trials=1 --launch false
  ok "mp_size" sh -c "grep -q 'tensor_parallel.autotp_size=2' '$scratch/out' && ! grep -qE '^  tp ' '$scratch/out'"
}

# tried SETTING: its values in a json.
tried() { sed -n "s/.*\"result\": \"fits\".*\"$1\": \"\([^\"]*\)\".*/\1/p" "$scratch/out" | sort -u | xargs; }

# Lists where one value belongs are what is tried.
test_lists() {
  cat > lists.json << 'END'
{"zero_optimization": {"stage": [1, 3], "reduce_bucket_size": [5e6, 5e7], "overlap_comm": [false, true],
  "contiguous_gradients": [true, false], "stage3_param_persistence_threshold": [1000]}, "train_micro_batch_size_per_gpu": [2, 1]}
END
  cat tiny.cfg - > lists.cfg << 'END'
deepspeed_config = "lists.json";
END
  run "$tessera" tune lists.cfg --ranks 2 --machine machine.cfg --keep tp,sp,pp,schedule,recompute,offload --format json
  ok "lists of a json" gave 0
  ok "are what is tried: two stages" is "$(tried stage)" "1 3"
  ok "two sizes, overlap and not, two buckets" is "$(tried micro), $(tried overlap), $(tried bucket)" "1 2, false true, 5000000 50000000"
  run "$tessera" tune tiny.cfg --ranks 2 --machine machine.cfg --set zero_optimization.stage=all -o best.cfg \
    --set 'activation_checkpointing.enabled=[true, false]' --set 'activation_checkpointing.policy=["sac", "block"]'
  ok "of --set, too, and all stages" both "is '$(grep -cE '^  stage [0-3]: ' "$scratch/out")' 3" \
    "is '$(grep -cE '^  recompute (none|sac|block): ' "$scratch/out")' 2"
  ok "the deck that was written has one of each" "$tessera" plan best.cfg --ranks 2
  tune --set 'activation_checkpointing.enabled=[true]' --set 'activation_checkpointing.policy=["sac", "block"]' --format json
  ok "a list of one is no choice" is "$(tried recompute)" "block sac"
  tune --set 'tensor_parallel.autotp_size=[3]'
  ok "values that nothing goes with" said 2 'are no multiple of .*: train_batch_size, --keep, lists in the deck, '
  tune --set 'train_micro_batch_size_per_gpu=[3, 2, 1]' --set 'zero_optimization.stage=[3, 1]' --format json
  ok "a first value that does not divide is not the end of the others" is "$(tried micro), $(tried stage)" "1 2, 1 3"
  tune --set 'train_micro_batch_size_per_gpu=[3, 5]'
  ok "all of them are" said 2 'train_batch_size: 4 is not a multiple of train_micro_batch_size_per_gpu 3'
  tune --set 'optimizer.params.lr=[0.1, 0.2]'
  ok "of what changes results no values are tried" said 2 'optimizer.params.lr: no values of this are tried, give one; accepted: lists of '
  tune --set 'optimizer.params.lr=[0.1]'
  ok "but one may be said as a list" clean
  tune --set 'run.directory=["a"]'
  ok "nor of names" said 2 'run.directory: a list of 1 is not a string'
  tune --set 'zero_optimization.stage=([1, 2], 3)'
  ok "a list of lists" said 2 'zero_optimization.stage: a list of 2 is not an integer'
  tune --set 'zero_optimization.stage=[1, 4]'
  ok "each value is checked" said 2 'zero_optimization.stage: 4 is out of range'
  run "$tessera" plan tiny.cfg --set zero_optimization.stage=all
  ok "other commands know no word for all" said 2 'zero_optimization.stage: "all" is for .tessera tune., which tries each'
  run "$tessera" plan lists.cfg --ranks 2
  ok "other commands say who takes them" said 2 'zero_optimization.stage: a list of 2 is for .tessera tune., which tries each; accepted: '
}

test_wrong() {
  run "$tessera" tune tiny.cfg --ranks 2
  ok "no machine" said 2 '--machine FILE is wanted: tessera bench writes one'
  run "$tessera" tune tiny.cfg --ranks 2 --machine h1000
  ok "an unknown one" said 2 'no datasheet of that name: there are a100-40gb, '
  tune --keep stage,speed
  ok "an unknown setting" said 2 '--keep speed: there are tp, sp, ep, '
  tune --measure 1 --format json
  ok "trials as json" said 2 'trials are told as text'
  tune --format xml
  ok "an unknown format" said 2 '--format xml'
  tune --set zero_optimization.stage=7
  ok "a wrong deck" said 2 'zero_optimization.stage'
  tune --set elasticity.enabled=true --set elasticity.max_train_batch_size=16 --set 'elasticity.micro_batch_sizes=[1,2]' \
    --set elasticity.ignore_non_elastic_batch_info=true
  ok "an elastic batch" said 2 'elasticity.enabled: .*chooses the batch itself'
  tune --keep micro --set train_micro_batch_size_per_gpu=4 --set gradient_accumulation_steps=1
  ok "a batch that does not divide, where the micro-batch is kept" said 2 'train_batch_size'
  tune --set train_micro_batch_size_per_gpu=4 --set gradient_accumulation_steps=1
  ok "and is searched where it is not" clean
  tune --set autotuning.enabled=true --set autotuning.min_train_micro_batch_size_per_gpu=100
  ok "no micro-batch that is large enough" said 2 'samples a step are no multiple of what is left open'
  ok "each value says so" sh -c "grep -q '^  stage 3: refused: no size of micro-batches' '$scratch/out' && ! grep -q ' inf ' '$scratch/out'"
  tune -o nowhere/best.cfg
  ok "a directory that is not there" said 2 'nowhere/best.cfg'
}

test_search
test_trials
test_autotuning
test_lists
test_wrong
finish
