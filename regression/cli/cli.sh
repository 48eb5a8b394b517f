#!/bin/sh
# TAP: every command of tessera, as a user types it.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"
golden=$top/regression/golden

# ---- help ----

all_listed() {
  for command in train plan tune bench graph eval generate tokenize compare plot verify watch deck keys zero_to_fp32; do
    grep -Eq "^  $command +[a-z]" "$scratch/out" || return 1
  done
}

test_help() {
  run "$tessera" --help
  ok "--help" clean
  ok "--help lists every command" all_listed
  run "$tessera"
  ok "no command: the help, and exit 2" gave 2
  for command in train plan tune bench graph eval generate tokenize compare plot verify watch deck keys zero_to_fp32; do
    run "$tessera" $command --help
    ok "$command --help: usage" printed "^usage: tessera $command "
    ok "$command --help: an example" grep -q "^Example:" "$scratch/out"
  done
  run "$tessera" --version
  ok "--version" printed "^tessera [0-9]"
  run "$tessera" keys
  ok "keys: a key of the deck" printed "zero_optimization.stage"
}

# ---- the deck ----

test_deck() {
  run "$tessera" deck tiny.cfg --set run.steps=3 --key run.steps
  ok "deck --key: one value" is "$(cat "$scratch/out")" 3
  run "$tessera" deck tiny.cfg --key run.directory
  ok "deck --key: text without quotes" is "$(cat "$scratch/out")" run
  run "$tessera" deck tiny.cfg --key run.directry
  ok "deck --key: what was meant" said 2 "did you mean run.directory"
  "$tessera" deck tiny.cfg > complete.cfg
  "$tessera" deck complete.cfg > again.cfg
  ok "deck: what it prints is the same deck" cmp complete.cfg again.cfg
}

# ---- plan and graph ----

# ok_cuda NAME WORD...: of a plan for a GPU, which a build without CUDA has none of.
ok_cuda() {
  if said 2 'built without CUDA'; then
    skip "$1" "built without CUDA"
  else
    ok "$@"
  fi
}

# json FILE EXPRESSION NAME: python's answer about the document d
json() {
  if command -v python3 > /dev/null; then
    ok "$3" python3 -c "import json, sys; d = json.load(open(sys.argv[1])); assert $2, d" "$1"
  else
    skip "$3" "no python3 to read json with"
  fi
}

test_plan() {
  run "$tessera" plan tiny.cfg --ranks 2
  ok "plan" printed "^  peak: the sum of these +[0-9]+"
  run "$tessera" plan tiny.cfg --ranks 4 --format json --set zero_optimization.stage=3
  ok "plan --format json: nothing else on stdout" is "$(wc -l < "$scratch/out")" 1
  json "$scratch/out" "d['parameters'] == 23712 and d['peak_bytes'] > d['reserve_bytes'] > 0 and all(k in d for k in
    ('parameter_bytes', 'gradient_bytes', 'optimizer_bytes', 'activation_bytes', 'buffer_bytes'))" "plan: json fields"
  run "$tessera" plan tiny.cfg --format json --set train_batch_size=2000000000 --set gradient_accumulation_steps=2000000000
  json "$scratch/out" "d['buffer_bytes'] > 2e9 * 32 * 12" "plan: inputs of a step of 2e9 micro-batches, which are only counted"
  run "$tessera" plan tiny.cfg --format json --set train_batch_size=9000000000000000 --set train_micro_batch_size_per_gpu=1
  json "$scratch/out" "d['peak_bytes'] > d['buffer_bytes'] > 1e18" "plan: more inputs than any number of bytes"
}

# MLPs in tiles, and one that marks do not leave in one piece.
test_tiled_plan() {
  run "$tessera" plan tiny.cfg --ranks 2 --set tiled_mlp_compute=true --set tensor_parallel.autotp_size=2
  ok "plan: MLPs in tiles" clean
  run "$tessera" plan tiny.cfg --ranks 2 --set tiled_mlp_compute=true --set \
    'tensor_parallel={autotp_size=2;partition_config={layer_specs=({patterns=".*1.mlp.up_proj.weight";gather_output=true;});};}'
  ok "plan: one that is not is told" said 0 "warning: --set: tiled_mlp_compute: no effect on 1 of the MLPs: "
}

# How ranks share samples, and how long these may be.
test_sequence_plan() {
  run "$tessera" plan tiny.cfg --ranks 2 --set sequence_parallel_size=2 --set sequence_parallel.ulysses_degree=2 --memory 1GB
  ok "plan: who shares samples" printed "^2 ranks share each sample, at most .*: ulysses_degree 2 x ring_degree 1; "
  ok "plan --memory: the longest sample" printed "^samples of at most [0-9]+ tokens fit into 1.00 GB a rank"
  longest=$(sed -n 's/^samples of at most \([0-9]*\) .*/\1/p' "$scratch/out")
  for more in 0 128; do
    run "$tessera" plan tiny.cfg --ranks 2 --format json --set sequence_parallel_size=2 --set sequence_parallel.ulysses_degree=2 \
      --set "data.sequence_length=$((longest + more))"
    json "$scratch/out" "(d['peak_bytes'] <= 10 ** 9) == ($more == 0) and d['ulysses_degree'] == 2" \
      "plan: $more tokens more than the longest"
  done
  run "$tessera" plan tiny.cfg --memory much
  ok "plan --memory: a size" said 2 "--memory much: a size such as"
  run "$tessera" plan tiny.cfg --ranks 4 --set sequence_parallel_size=4 --set sequence_parallel.ulysses_degree=3
  ok "plan: degrees that do not multiply" said 2 "sequence_parallel.ulysses_degree: 3: .*; accepted: 1, 2"
  run "$tessera" plan tiny.cfg --ranks 4 --set sequence_parallel_size=2 --set sequence_parallel.ulysses_degree=2 --set data_parallel_size=4
  ok "plan: another number of replicas" said 2 "data_parallel_size: 4, but the other axes leave 2 of 4 ranks; accepted: 2, or to leave"
  test_shared_grid
  test_idle_sequence
}

# Ranks that are no multiple of those that share samples, or products, or both; groups of heads that are too many.
test_shared_grid() {
  run "$tessera" plan tiny.cfg --ranks 6 --set sequence_parallel_size=2 --set tensor_parallel.autotp_size=2
  ok "plan: ranks that divide by each axis and not by both" said 2 \
    "^sequence_parallel_size = 2 x tensor_parallel.autotp_size = 2 wants a multiple of 4 ranks; "
  run "$tessera" plan tiny.cfg --ranks 3 --set sequence_parallel_size=2
  ok "plan: ranks that do not divide by one axis" said 2 "^sequence_parallel_size = 2 wants a multiple of as many ranks; "
  run "$tessera" plan tiny.cfg --set sequence_parallel.head_groups=5
  ok "plan: more groups than heads, on one rank" said 2 \
    "error: --set: sequence_parallel.head_groups: 5 groups of heads, but the model has 4 query heads, .*; accepted: 1 to 4"
  run "$tessera" plan tiny.cfg --ranks 4 --set sequence_parallel_size=2 --set tensor_parallel.autotp_size=2 \
    --set sequence_parallel.head_groups=3
  ok "plan: more groups than heads of a rank" said 2 \
    "sequence_parallel.head_groups: 3 groups of heads, but some rank along tp has 2 query heads, .*; accepted: 1 to 2"
  run "$tessera" plan tiny.cfg --set sequence_parallel.head_groups=4
  ok "plan: a group for each head" clean
}

# What is said of keys that the others leave without effect: a plan goes on.
test_idle_sequence() {
  run "$tessera" plan tiny.cfg --set 'sequence_parallel={ring_degree=1;ring_exchange="p2p";}'
  ok "plan: keys of shared samples where none are" said 0 "^sequence_parallel.ring_exchange: no effect: sequence_parallel_size is 1"
  ok "each of them" grep -q "^sequence_parallel.ring_degree: no effect: sequence_parallel_size is 1" "$scratch/err"
  run "$tessera" plan tiny.cfg --ranks 2 --set sequence_parallel_size=2 --set communication_data_type=bf16
  ok "plan: the other wire where samples are shared" said 0 \
    "^communication_data_type: no effect: .*seq_parallel_communication_data_type decides"
}

# Stages of a pipeline, what they do, and how the model may be cut.
test_pipeline() {
  run "$tessera" plan tiny.cfg --ranks 2 --schedule --set 'pipeline={stages=2;schedule="zb_h1";}' \
    --set gradient_accumulation_steps=2 --set train_batch_size=4
  ok "plan: a pipeline's bubble" printed '^pipeline "zb_h1", 1 piece of the model a stage, cut by "best"; planned bubble: [0-9.]+ % of the time'
  ok "the units of a stage" printed "^  0 .* %  model.embed_tokens"
  ok "and what it does" printed "^  1F0 1I0 1F1 1I1 1W0 1W1"
  ok "what the other schedules come to" printed "^  gpipe +[0-9.]+ +[0-9.]+ % +[0-9.]+ MB$"
  ok "and those that do not go" printed "^  zb_v +gradient_accumulation_steps: zb_v: 2 micro-batches cannot go through 2 stages; the nearest that can: 3"
  ok "the fastest" printed '^  the fastest: pipeline.schedule = "interleaved"'
  run "$tessera" plan tiny.cfg --ranks 2 --set pipeline.stages=2 --schedule stages.svg
  ok "a picture of the schedule" grep -q '<title>1B0</title><rect ' stages.svg
  run "$tessera" plan --schedule tiny.cfg --ranks 2 --set pipeline.stages=2
  ok "what is no picture is the deck" printed "^  1F0 1B0"
  run "$tessera" plan tiny.cfg --ranks 1 --schedule stages.svg
  ok "no picture of one stage" said 2 "error: --schedule stages.svg: a pipeline of one stage has no schedule to draw"
  run "$tessera" plan tiny.cfg --ranks 2 --set pipeline.stages=2 --memory 19MB
  ok "no cut fits" said 0 '"best": no cut fits: with the one that needs least a rank needs [0-9.]+ MB and has 19.00 MB'
  ok "and none is called the fastest" both "printed 'does not fit$'" "! printed 'the fastest'"
  run "$tessera" plan tiny.cfg --ranks 2 --set pipeline.stages=2 --set 'pipeline.units=[1,3]'
  ok "plan: units by a list" printed "^  1 .* %  model.layers.0 - model.norm"
  run "$tessera" plan tiny.cfg --ranks 2 --set pipeline.stages=2 --set 'pipeline.units=[1,4]'
  ok "a list of other units" said 2 "pipeline.units: 2 numbers that add up to 5; accepted: 2, one for each piece, that add up to 4"
  run "$tessera" plan tiny.cfg --ranks 2 --set pipeline.stages=2 --set 'pipeline.partition="type:decoderlayer"'
  ok "plan: units by their class" printed "^  1 .* %  model.layers.1 - model.norm"
  run "$tessera" plan tiny.cfg --ranks 2 --set pipeline.stages=2 --set 'pipeline.partition="type:conv"'
  ok "no unit of a class" said 2 "pipeline.partition: the expression matches no unit, .*the model has 4 units: model.embed_tokens, "
  run "$tessera" plan tiny.cfg --ranks 5 --set pipeline.stages=5
  ok "more stages than units" said 2 "pipeline.stages: 5 pieces, and each has a unit at least"
  run "$tessera" plan tiny.cfg --ranks 2 --set 'pipeline={stages=2;schedule="interleaved";virtual_stages=2147483647;}'
  ok "more pieces than a number holds" said 2 "pipeline.stages: 2147483647 pieces, and each has a unit at least"
  run "$tessera" plan tiny.cfg --ranks 2 --set pipeline.stages=2 --set gradient_accumulation_steps=2000000000 \
    --set train_batch_size=2000000000
  ok "more micro-batches than are listed" said 2 "gradient_accumulation_steps: 2000000000 micro-batches; accepted: up to 16384"
  run "$tessera" plan tiny.cfg --ranks 3 --set pipeline.stages=2
  ok "ranks that stages do not divide" said 2 "^pipeline.stages = 2 wants a multiple of 2 ranks; "
  run "$tessera" plan tiny.cfg --ranks 2 --set 'pipeline={stages=2;schedule="zb_v";}' --set train_batch_size=4
  ok "too few micro-batches" said 2 "zb_v: 1 micro-batches cannot go through 2 stages; the nearest that can: 3"
  run "$tessera" plan tiny.cfg --target cuda --ranks 2 --set 'pipeline={stages=2;schedule="interleaved";virtual_stages=8;}'
  ok_cuda "more pieces than a GPU has queues for" said 2 "pipeline.virtual_stages: 8: a GPU has queues .* accepted: 1 to 7"
}

# What two figures of the same name count.
test_peak() {
  run "$tessera" plan tiny.cfg
  ok "plan: says what its peak is" printed "^  peak: the sum of these +[0-9]+ "
  ok "and what metrics.csv's is" grep -q "peak_bytes in metrics.csv is that of the whole process" "$scratch/out"
  run "$tessera" plan tiny.cfg --target cuda
  ok_cuda "of a GPU, too" printed "peak_bytes in metrics.csv is this"
}

test_graph() {
  for pass in precision autodiff recompute zero fuse schedule memory; do
    run "$tessera" graph tiny.cfg --pass $pass --ranks 2 --format json
    json "$scratch/out" "d['nodes'] and d['tensors']" "graph after $pass: json"
  done
  run "$tessera" graph tiny.cfg --pass autodiff --format dot
  ok "graph: dot" printed "^digraph .*{"
  run "$tessera" graph tiny.cfg --pass precision
  ok "graph: text names the model's tensors" printed "model.layers.1.mlp.down_proj.weight"
}

# ---- train ----

train() {
  run "$tessera" train tiny.cfg "$@"
}

# What was computed: step, tokens, loss, norm, rate.
numbers() { cut -d, -f1-5 "$1/metrics.csv"; }
same_numbers() { numbers "$1" > "$scratch/a" && numbers "$2" > "$scratch/b" && cmp "$scratch/a" "$scratch/b"; }

column() { awk -F, -v name="$2" 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == name) c = i } END { print $c }' "$1"; }

rates_agree() {
  awk -F, 'NR > 1 { d = $6 * $7 / 128 - 1; if (d > 1e-9 || d < -1e-9) exit 1 }' run/metrics.csv
}

loss_falls() {
  awk -F, 'NR == 2 { first = $3 } END { exit !($3 < 0.8 * first) }' run/metrics.csv
}

test_train() {
  train
  ok "train: nothing on stderr" clean
  ok "train: plain lines in a pipe" printed "^step 6/6  loss [0-9.]+ .*tokens/s"
  ok "train: no bar in a pipe" is "$(tr -cd '\r' < "$scratch/out" | wc -c)" 0
  ok "the run directory" is "$(cd run && echo *)" \
    "deck.cfg jobs.jsonl latest log.txt loss.svg memory.csv metrics.csv status step_00000006 validation.csv"
  ok "metrics.csv: columns" grep -q \
    "^step,tokens,loss,grad_norm,lr,step_seconds,tokens_per_second,model_tflops,mfu,peak_bytes," run/metrics.csv
  ok "metrics.csv: a row a step" is "$(wc -l < run/metrics.csv)" 7
  ok "metrics.csv: tokens" is "$(column run/metrics.csv tokens)" 768
  ok "metrics.csv: seconds x tokens per second" rates_agree
  ok "metrics.csv: the loss falls" loss_falls
  ok "validation.csv: steps 3 and 6" is "$(cut -d, -f1 run/validation.csv | tr '\n' ' ')" "step 3 6 "
  ok "loss.svg is a picture" grep -q "</svg>" run/loss.svg
}

test_again() {
  train --set run.directory=again
  ok "the same deck: the same bits" same_numbers run again
  run "$tessera" train run/deck.cfg --set run.directory=reread
  ok "deck.cfg of a run, read again: the same bits" same_numbers run reread
  grep -v directory run/deck.cfg > "$scratch/a"
  grep -v directory reread/deck.cfg > "$scratch/b"
  ok "deck.cfg of a run, read again: the same deck" cmp "$scratch/a" "$scratch/b"
  run $mpiexec -n 2 "$tessera" train tiny.cfg --set run.directory=two --set zero_optimization.stage=2
  ok "two ranks" clean
  ok "two ranks speak once" is "$(grep -c '^step 6/6' "$scratch/out")" 1
}

# A json of Hugging Face's family beside a deck that is the trainer, and the deck that it makes.
test_json() {
  cat > ds.json << 'END'
{ # what axolotl has for stage 3
  "_comment": "on processors the offload changes nothing",
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true}, "sub_group_size": 0,
    "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",},
  "fp16": {"enabled": "auto", "initial_scale_power": 32}, "optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": "auto"}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}},
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto"
}
END
  { cat tiny.cfg; echo 'deepspeed_config = "ds.json";'; } > ds.cfg
  run $mpiexec -n 2 "$tessera" train ds.cfg --set run.directory=json
  ok "a DeepSpeed json on processors" clean
  ok "it says what \"auto\" became" printed '^scheduler.params.total_num_steps: "auto": 6 \(run.steps\)$'
  ok "and that offload has no effect" printed '^zero_optimization.offload_optimizer.device: "cpu": no effect on processors'
  for key in optimizer.params.lr=0.01 scheduler.params.warmup_max_lr=0.01 scheduler.params.warmup_num_steps=1 \
    zero_optimization.reduce_bucket_size=1024 zero_optimization.stage3_prefetch_bucket_size=921 \
    zero_optimization.stage3_param_persistence_threshold=320 train_micro_batch_size_per_gpu=2; do
    run "$tessera" deck json/deck.cfg --key "${key%%=*}"
    ok "deck.cfg has $key" is "$(cat "$scratch/out")" "${key#*=}"
  done
  run $mpiexec -n 2 "$tessera" train tiny.cfg --set run.directory=plain --set zero_optimization.stage=3 --set scheduler.type=WarmupDecayLR \
    --set 'scheduler.params={warmup_max_lr=0.01;warmup_num_steps=1;total_num_steps=6;}' \
    --set zero_optimization.stage3_param_persistence_threshold=320
  ok "the same run without a json: the same bits" same_numbers json plain
}

snapshot() { find . -type f | sort | xargs cksum; }

test_not_empty() {
  snapshot > "$scratch/before"
  train
  ok "a run directory that is not empty is refused, with the ways out" said 2 \
    "tiny.cfg:4: run.directory: run is not empty; .*--set run.directory=.* or remove it"
  snapshot > "$scratch/after"
  ok "and nothing is written" cmp "$scratch/before" "$scratch/after"
  mkdir empty
  train --set run.directory=empty
  ok "an empty one is taken" clean
}

# Runs that part after the second step, and there in the weights that are trained.
test_digests() {
  train --set run.directory=digests1 --set run.steps=3 --set debug.digest_every=1
  train --set run.directory=digests2 --set run.steps=3 --set debug.digest_every=1
  run "$tessera" compare digests1 digests2
  ok "compare: equal runs with digests" printed "^equal for all 3 steps"
  sort -t, -k1,1n -k2,2r digests2/digests.csv > other.csv
  mv other.csv digests2/digests.csv
  run "$tessera" compare digests1 digests2
  ok "compare: a grid that has the tensors in another order" both 'printed "^equal for all 3 steps"' '! grep "that differs" "$scratch/out"'
  sed 3d digests2/digests.csv > other.csv
  mv other.csv digests2/digests.csv
  run "$tessera" compare digests1 digests2
  ok "compare: a tensor that only the first has" both 'gave 1' 'grep -q "^first tensor that differs" "$scratch/out"'
  run "$tessera" compare digests2 digests1
  ok "compare: a tensor that only the second has" both 'gave 1' 'grep -q "^first tensor that differs" "$scratch/out"'
  train --set run.directory=digests3 --set run.steps=3 --set debug.digest_every=1 --set 'frozen=["embed"]'
  run "$tessera" compare digests1 digests3
  ok "compare: runs that part in the embedding" gave 1
  ok "compare: the first tensor that differs" grep -q \
    "^first tensor that differs: model.embed_tokens.weight, after step 1" "$scratch/out"
  run $mpiexec -n 2 "$tessera" train tiny.cfg --set run.directory=digests4 --set run.steps=3 --set debug.digest_every=1
  run "$tessera" compare digests1 digests4 --tolerance 2e-6 --format json
  json "$scratch/out" "d['equal'] is True" "compare: a tolerance excuses digests"
}

# changed COLUMN PART: the run with one number of step 3 larger by this part of it.
changed() {
  mkdir -p changed
  awk -F, -v OFS=, -v name="$1" -v part="$2" 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == name) c = i }
    NR == 4 { $c = sprintf("%.17g", $c * (1 + part)) } { print }' run/metrics.csv > changed/metrics.csv
  run "$tessera" compare run changed --tolerance 2e-6 $3
}

# Another grid: the loss to 2e-6, the norm to 1e-3, the rest exactly.
test_tolerances() {
  changed grad_norm 5e-4
  ok "compare --tolerance 2e-6: the norm may differ by 1e-3" printed "^equal is: loss to 2e-06, grad_norm to 0.001, the other columns exactly"
  changed grad_norm 2e-3
  ok "but not by more" both 'gave 1' 'grep -q "^step 3: grad_norm differs" "$scratch/out"'
  changed grad_norm 2e-3 '--norm-tolerance 1e-2'
  ok "unless --norm-tolerance says so" gave 0
  changed loss 1e-5
  ok "the loss may not" both 'gave 1' 'grep -q "^step 3: loss differs" "$scratch/out"'
  changed lr 1e-7
  ok "nor may another column" both 'gave 1' 'grep -q "^step 3: lr differs" "$scratch/out"'
  changed loss 1e-7 '--format json'
  json "$scratch/out" "d['equal'] and d['tolerance'] == {'loss': 2e-6, 'grad_norm': 1e-3}" "compare: tolerances in json"
  run "$tessera" compare --help
  ok "compare --help: the tolerances" printed "loss should differ by less than 2e-6 and grad_norm by less"
}

test_compare() {
  run "$tessera" compare run again
  ok "compare: equal runs" printed "^equal for all 6 steps"
  train --set run.directory=other --set run.seed=2
  run "$tessera" compare run other
  ok "compare: exit 1 when runs differ" gave 1
  ok "compare: the first step and column" grep -q "^step 1: loss differs" "$scratch/out"
  run "$tessera" compare run other --format json
  json "$scratch/out" "d['equal'] is False and d['step'] == 1 and d['column'] == 'loss'" "compare: json"
  run "$tessera" compare run two --tolerance 2e-6
  ok "compare: one rank and two, to rounding" printed "^equal for all 6 steps"
  test_tolerances
  train --set run.directory=shorter --set run.steps=4
  run "$tessera" compare run shorter
  ok "compare: a shorter run is not equal" gave 1
  test_digests
  run "$tessera" plot run
  ok "plot" clean
}

test_tokens() {
  run "$tessera" tokenize text.txt text.bin
  ok "tokenize: counts" printed "^text.bin: $(wc -c < text.txt | tr -d ' ') tokens"
  train --set run.directory=tokens --set data.path=text.bin --set data.format=bin
  ok "training on the .bin: the bits of the text" same_numbers run tokens
}

never() { ! grep -q "$@"; }

# Two files in one run, whole lines in samples: which sample comes from which file does not depend on the ranks.
test_sources() {
  sed 's/the quick/a slow/; s/lazy/sleeping/' text.txt | head -n 100 > other.txt
  sed 's/path = "text.txt"; format = "text";/packing = "best_fit";\n  sources = ( { path = "text.txt"; weight = 0.7; },\n@/
       s/@/{ path = "other.txt"; weight = 0.3; } );/
       s/vocab_size/eos_token_id = 10; &/; s/evaluate_every/save_every = 3; &/' tiny.cfg > sources.cfg
  run "$tessera" train sources.cfg --set run.directory=sources
  ok "two sources" printed "^360 documents in [0-9]+ samples, [0-9.]+ % of them padding, from 2 sources"
  ok "and their weights are in the run's deck" grep -q 'path = "other.txt"; weight = 0.3; format = "auto"; dataset = "tokens"; field = "text"; ' \
    sources/deck.cfg
  cp -r sources onward
  rm -r onward/step_00000006
  run $mpiexec -n 2 "$tessera" train sources.cfg --set run.directory=onward --resume auto
  ok "two sources on two ranks from step 3" gave 0
  ok "nothing differs but the ranks" never "settings differ" "$scratch/err"
  run "$tessera" compare onward sources --tolerance 2e-6
  ok "the losses of one rank that never stopped" gave 0
  rm -r onward/step_00000006
  run "$tessera" train sources.cfg --set run.directory=onward --set data.sources[1].weight=0.5 --resume auto
  ok "another weight is told of" grep -q '^  data.sources: .* weight = 0.3; .*, now .* weight = 0.5; ' "$scratch/err"
  run "$tessera" deck sources.cfg --key 'data.sources[1].weight'
  ok "deck --key: of an entry" is "$(cat "$scratch/out")" 0.3
  run "$tessera" deck sources.cfg --key 'data.sources[2].weight'
  ok "deck --key: of no entry" said 2 "data.sources.2..weight: no such value"
  rm other.txt
  run "$tessera" train sources.cfg --set run.directory=none
  ok "a source that is not there: its line" said 2 "error: sources.cfg:5: data.sources.1..path: other.txt: No such file"
  run "$tessera" plan sources.cfg
  ok "a plan needs none of them" gave 0
  run "$tessera" train sources.cfg --set data.path=text.txt
  ok "sources and a path" said 2 "error: --set: data.path: data.sources is given too"
  run "$tessera" train sources.cfg --set data.path=text.txt --set 'data.sources=()' --set run.directory=path
  ok "a path instead of sources" gave 0
  printf '\n\n\n\n\n\n\n\n' > empty.txt
  run "$tessera" train sources.cfg --set data.path=empty.txt --set 'data.sources=()' --set data.validation_fraction=0 \
    --set data.packing=none --set run.directory=unlabelled --set run.steps=1
  ok "samples without a label: it is said" said 1 "warning: step 1: no token of its samples has a label: no update"
  ok "nothing was learned: it is said" said 1 "no step had a token with a label"
  printf 'TNTIDX\000\000' > old.idx
  run "$tessera" train sources.cfg --set data.path=old.idx --set 'data.sources=()' --set run.directory=none
  ok "an index that is none is not trained on" said 2 "data.path: old.idx"
  sed 's/"other.txt"/"text.txt"; format = "hdf5"/' sources.cfg > twice.cfg
  run "$tessera" train twice.cfg --set run.directory=none
  ok "a file that is named twice: the right line" said 2 "twice.cfg:5: data.sources.1..path: text.txt"
  run "$tessera" deck sources.cfg --set data.path=
  ok "an empty path is none" gave 0
}

# ---- eval and generate ----

test_eval() {
  # the first step's loss is that of the first three samples
  set -- eval "$golden/llama.cfg" --set "model.from=$golden/llama" --set "data.path=$golden/llama/tokens.bin" \
    --set "data.validation_path=$golden/llama/tokens.bin" --set run.evaluate_batches=1 --set run.threads=1
  run "$tessera" "$@"
  ok "eval: text" printed "^loss [0-9.]+ nats a token, perplexity [0-9.]+"
  run "$tessera" "$@" --format json
  cp "$scratch/out" eval.json
  json "$scratch/out" "abs(d['loss'] / json.load(open('$golden/llama/expected.json'))['losses'][0] - 1) < 1e-5" \
    "eval: the loss torch computes"
  run $mpiexec -n 3 "$tessera" "$@" --set train_micro_batch_size_per_gpu=1 --format json
  json "$scratch/out" "abs(d['loss'] / json.load(open('eval.json'))['loss'] - 1) < 2e-6" "eval: the same on three ranks"
  run "$tessera" eval "$golden/gpt2.cfg" --set "model.from=$golden/gpt2" --set "data.path=$golden/gpt2/tokens.bin" \
    --set data.validation_fraction=0.5 --format json
  json "$scratch/out" "d['loss'] > 0" "eval: notes on the deck are not in the json"
}

test_generate() {
  set -- generate tiny.cfg --prompt "line 1" --tokens 40
  run "$tessera" "$@" --seed 3
  cp "$scratch/out" one
  ok "generate: the prompt and 40 bytes" is "$(LC_ALL=C wc -c < one | tr -d ' ')" 47
  ok "generate: begins with the prompt" is "$(head -c 6 one)" "line 1"
  run "$tessera" "$@" --seed 3
  ok "generate: the same seed, the same text" cmp one "$scratch/out"
  run $mpiexec -n 2 "$tessera" "$@" --seed 3
  ok "generate: two ranks write it once" cmp one "$scratch/out"
  run "$tessera" "$@" --seed 4
  ok "generate: another seed, another text" differ one "$scratch/out"
  run "$tessera" "$@" --seed 3 --temperature 0
  cp "$scratch/out" one
  run "$tessera" "$@" --seed 4 --temperature 0
  ok "generate: no seed at temperature 0" cmp one "$scratch/out"
  run "$tessera" "$@" --seed 4 --top-k 1
  ok "generate: of one token there is no choice" cmp one "$scratch/out"
  test_stop_tokens
  test_rotary_length
  train --set run.directory=spoke --prompt "line 7" --tokens 5
  ok "train --prompt" printed "^line 7"
}

# Of a Hugging Face directory: the third byte that it adds to "1234" ends the text where generation_config.json says so.
test_stop_tokens() {
  cp -R "$golden/llama" published
  set -- generate published --prompt 1234 --temperature 0 --tokens 12
  run "$tessera" "$@"
  cp "$scratch/out" whole
  ok "generate: of a directory" is "$(wc -c < whole | tr -d ' ')" 17
  third=$(od -An -v -tu1 -j 6 -N 1 whole | tr -d ' ')
  before=$(od -An -v -tu1 -w1 -j 4 whole | awk -v t="$third" '$1 == t { print NR - 1; exit }')
  echo "{\"eos_token_id\": [66, $third]}" > published/generation_config.json
  run "$tessera" "$@"
  ok "generate: until an end token" is "$(wc -c < "$scratch/out" | tr -d ' ')" $((4 + before + 1))
  run "$tessera" "$@" --set "model.stop_token_ids=[66]"
  ok "generate: a deck says others" cmp whole "$scratch/out"
  echo "{\"eos_token_id\": \"$third\"}" > published/generation_config.json
  run "$tessera" "$@"
  ok "generate: end tokens that are none" said 2 "published/generation_config.json: eos_token_id is neither"
}

# Where nobody says a length, positions that depend on it are those of this text.
test_rotary_length() {
  set -- generate "$golden/phi3_long" --prompt '?8' --temperature 0 --tokens 4
  run "$tessera" "$@" --set data.sequence_length=23
  cp "$scratch/out" long
  run "$tessera" "$@" --set data.sequence_length=6
  cp "$scratch/out" short
  run "$tessera" "$@"
  ok "generate: a directory's positions are those of the text" cmp short "$scratch/out"
  ok "generate: those of a long one are others" differ long "$scratch/out"
}

differ() { gave 0 && ! cmp -s "$1" "$2"; }

# ---- what goes on inside ----

test_timeline() {
  run $mpiexec -n 2 "$tessera" train tiny.cfg --set run.directory=timed --set profile.timeline=trace.json
  ok "profile.timeline" clean
  json trace.json "any(e.get('cat') == 'linear' or 'mat' in e.get('cat', '') for e in d['traceEvents'])" \
    "the timeline of rank 0 has products"
  json trace.json.rank1 "all(e['dur'] >= 0 for e in d['traceEvents'] if e['ph'] == 'X')" "the timeline of rank 1"
  run $mpiexec -n 2 "$tessera" train tiny.cfg --set run.directory=timed_stages --set profile.timeline=stages.json \
    --set pipeline.stages=2 --set gradient_accumulation_steps=2 --set train_batch_size=4
  json stages.json.rank1 "[e['name'] for e in d['traceEvents'] if e.get('cat') == 'instance'] == ['1F0', '1B0', '1F1', '1B1']" \
    "a pipeline's stage has a row of what it does"
  json stages.json.rank1 "d['traceEvents'][0]['args']['name'] == 'stage 1, rank 1'" "and its name"
  run $mpiexec -n 1 env OMP_NUM_THREADS=1 "$tessera" train tiny.cfg --set run.directory=threads --set run.steps=2 \
    --set pipeline.stages=2 --set pipeline.partition=memory : \
    -n 1 env OMP_NUM_THREADS=3 "$tessera" train tiny.cfg --set run.directory=threads --set run.steps=2 \
    --set pipeline.stages=2 --set pipeline.partition=memory
  ok "ranks with other threads have one cut" both 'gave 0' "grep -q 'units = \[[0-9], [0-9]\];' threads/deck.cfg"
  ok "metrics.csv has the bubble" awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "bubble") c = i }
    NR > 1 && (!c || $c <= 0 || $c >= 1) { exit 1 }' \
    timed_stages/metrics.csv
}

# What the machine of a plan computes in: bf16 where it has fast instructions for it.  One without AVX never has.
working_type() { "$tessera" plan tiny.cfg --format json --set bf16.enabled=auto | sed -n 's/.*"dtype": "\([a-z0-9]*\)".*/\1/p'; }
# Without AMX, Intel's processors that have AVX512_FP16 are faster in fp32.
fast_type() {
  flag() { grep -qsw "$1" /proc/cpuinfo; }
  slow() { flag GenuineIntel && flag avx512_fp16; }
  if flag amx_bf16 || { flag avx512_bf16 && ! slow; }; then echo bf16; else echo fp32; fi
}
decided() { sed -n '/^bf16/,/^}/s/.*enabled = \(.*\);/\1/p' "$1/deck.cfg"; }

test_precision() {
  here=$(working_type)
  word=$([ "$here" = bf16 ] && echo true || echo false)
  if grep -qs '^flags' /proc/cpuinfo; then
    ok "bf16.enabled = auto: a plan is for this machine" is "$here" "$(fast_type)"
  fi
  ok "bf16.enabled = auto: fp32 without instructions for bf16" is "$(TESSERA_ISA=generic working_type)" fp32
  run $mpiexec -n 2 "$tessera" train tiny.cfg --set bf16.enabled=auto --set run.directory=auto
  ok "bf16.enabled = auto: the run says what it became" printed "^bf16.enabled: \"auto\": $word"
  ok "bf16.enabled = auto: and what it became stands in its deck" is "$(decided auto)" "$word"
  run "$tessera" eval tiny.cfg --set bf16.enabled=auto --format json
  ok "bf16.enabled = auto: on stderr where stdout is for the result" both 'gave 0' \
    '[ "$(cut -c1 < "$scratch/out")" = "{" ] && grep -q "^bf16.enabled: .auto.: " "$scratch/err"'
  TESSERA_ISA=generic train --set bf16.enabled=auto --set bf16.stochastic_rounding=true --set run.directory=chance
  ok "bf16.enabled = auto: fp32 is not rounded by chance, and that is said" printed 'auto.: false: .*stochastic_rounding has no effect'
  run $mpiexec -n 1 env TESSERA_ISA=generic "$tessera" train tiny.cfg --set bf16.enabled=auto --set run.directory=mixed : \
    -n 1 "$tessera" train tiny.cfg --set bf16.enabled=auto --set run.directory=mixed
  ok "bf16.enabled = auto: one rank without is enough for fp32" printed \
    "^bf16.enabled: \"auto\": false: $([ "$here" = bf16 ] && echo 1 || echo 0) of 2 ranks have bf16 products faster .* rank 0 on"
  TESSERA_ISA=generic train --set bf16.enabled=auto --set run.directory=kept --set run.steps=3
  train --set bf16.enabled=auto --set run.directory=kept --resume auto
  ok "bf16.enabled = auto: a run that goes on keeps it" both 'printed "^bf16.enabled: .auto.: false: as the run began"' \
    '[ "$(decided kept)" = false ]'
  TESSERA_BF16=no run "$tessera" plan tiny.cfg
  ok "TESSERA_BF16: another word is told" both '[ "$status" -ne 0 ]' 'grep -q "TESSERA_BF16=no is unknown; accepted: instructions, widened" "$scratch/err"'
  if grep -qsw avx512_bf16 /proc/cpuinfo; then
    TESSERA_BF16=widened train --set run.directory=widened --set run.steps=1
    ok "bf16 that is widened in spite of instructions is part of what the processor is" printed ' v4 kernels, bf16 widened, '
    TESSERA_BF16=instructions train --set run.directory=instructions --set run.steps=1
    ok "and else not" both 'printed " v4 kernels, "' '! grep -q "bf16 widened" "$scratch/out"'
    TESSERA_ISA=v3 TESSERA_BF16=widened train --set run.directory=v3 --set run.steps=1
    ok "nor of kernels without" both 'printed " v3 kernels, "' '! grep -q "bf16 widened" "$scratch/out"'
  fi
  unset TESSERA_BF16
  run "$tessera" plan tiny.cfg --set torch_autocast.enabled=true
  ok "autocast: a plan says what products are in" printed 'parameters, fp32 with products in bf16, '
  run "$tessera" plan tiny.cfg --set torch_autocast.enabled=true --format json
  ok "autocast: so in json" printed '"dtype": "fp32", "products": "bf16"'
  TESSERA_ISA=generic train --set bf16.enabled=true --set run.directory=slow --set run.steps=1
  ok "bf16 that is widened is said to be no faster" printed 'bf16 \(widened here: no faster than fp32\)'
}

# Norms of the whole width of all heads: columns where ranks have heads of their own; whole where they share some.
test_norm_of_columns() {
  set -- plan "$golden/olmo2.cfg" --set "model.from=$golden/olmo2" --layout
  run "$tessera" "$@" --ranks 2 --set tensor_parallel.autotp_size=2
  ok "plan --layout: q's norm by columns" printed 'layers\.0\.self_attn\.q_norm\.weight .* column +dim 0: 0-17 18-35$'
  ok "plan --layout: k with it" printed 'layers\.0\.self_attn\.k_proj\.weight .* column +dim 0: 0-5 6-11$'
  run "$tessera" "$@" --ranks 4 --set tensor_parallel.autotp_size=4
  ok "plan --layout: shared keys' norm whole" printed 'layers\.0\.self_attn\.k_norm\.weight .* whole '
}

# Where the last column of the parameters' lines begins: as many places as there are.
last_columns() { awk '/weight/ && match($0, /(dim [0-9]+:|on every rank)/) { print RSTART }' "$scratch/out" | sort -u | wc -l; }

test_columns_of_layout() {
  run "$tessera" plan tiny.cfg --layout --ranks 2 --set \
    'tensor_parallel={autotp_size=2;partition_config={layer_specs=({patterns=".*q_proj.weight";});};}'
  ok "plan --layout: a long rule" printed 'q_proj\.weight +\[32, 32\] +partition_config\.layer_specs\[0\] +dim 0: 0-15 16-31$'
  ok "plan --layout: the columns are aligned" is "$(last_columns)" 1
  run "$tessera" plan --help
  ok "plan --help: whose memory, and what --layout adds" both 'printed "rank that needs"' 'printed "--layout adds"'
}

# The last four bytes of the golden's file are the last element of the last norm's weight.  The NaN has a sign, as those that
# processors make, which printf would show.
write_nan() {
  cp -r "$golden/llama" nan && chmod -R u+w nan
  size=$(wc -c < nan/model.safetensors)
  printf '\000\000\300\377' | dd of=nan/model.safetensors bs=1 seek=$((size - 4)) conv=notrunc 2> /dev/null
}

test_nonfinite() {
  write_nan
  set -- train "$golden/llama.cfg" --set model.from=nan --set "data.path=$golden/llama/tokens.bin" \
    --set train_micro_batch_size_per_gpu=1 --set run.stop_after_nonfinite=3 --set run.threads=1
  run $mpiexec -n 2 "$tessera" "$@" --set run.directory=nan1 --set debug.check_finite=true
  ok "a NaN: stops after three steps with exit 1" said 1 "stopped at step 3: 3 steps in a row were not finite"
  ok "debug.check_finite: op, rank, tensor" grep -Eq \
    "^tessera: step 1: first value that is not finite: rank 1, op model.norm .*tensor model.norm" "$scratch/err"
  ok "a warning a step" is "$(grep -c 'warning: step .* no update' "$scratch/err")" 3
  ok "metrics.csv: the loss is nan" is "$(column nan1/metrics.csv loss)" nan
  ok "metrics.csv: skipped steps are counted" is "$(column nan1/metrics.csv skipped)" 3
  train --set run.directory=huge --set optimizer.params.lr=1e30 --set gradient_clipping=0 --set run.stop_after_nonfinite=2
  ok "a rate that is far too large" said 1 "stopped at step .*a lower lr"
  test_last_nonfinite
  test_loss_scale
  test_all_finite
}

# The scale goes from 2^42 to 2^40, at which gradients overflow and not the loss, and then it cannot go on.  A loss that is
# NaN, on one of two ranks, is no matter of the scale.
test_loss_scale() {
  set -- --set "data.path=$golden/llama/tokens.bin" --set train_micro_batch_size_per_gpu=1 --set fp16.enabled=true \
    --set run.threads=1 --set run.log_every=1
  run $mpiexec -n 2 "$tessera" train "$golden/llama.cfg" "$@" --set "model.from=$golden/llama" --set run.directory=stuck \
    --set fp16.initial_scale_power=42 --set fp16.min_loss_scale=1099511627776L --set fp16.hysteresis=1 \
    --set run.stop_after_nonfinite=2 --set run.save_every=1
  ok "an overflow at the smallest scale: exit 1" said 1 \
    "stopped at step 3: loss or gradient norm is not finite at loss scale 1.09951163e[+]12, the smallest allowed [(]fp16.min"
  ok "each overflow is told" grep -q "step 2: overflow at loss scale 2.19902326e+12: no update; the next scale is 1.09951163e+12" "$scratch/out"
  ok "the step that ends it is not saved" [ ! -d stuck/step_00000003 ]
  ok "metrics.csv: the scale of the step" is "$(column stuck/metrics.csv loss_scale) $(column stuck/metrics.csv skipped)" "1099511627776 3"
  run "$tessera" status stuck
  ok "status: why, skipped steps, the scale" both 'printed "^state +failed: overflow at the smallest loss scale"' \
    'printed "3 skipped, loss scale 1.09951163e[+]12"'
  run "$tessera" train "$golden/llama.cfg" "$@" --set "model.from=$golden/llama" --set run.directory=early --set run.steps=2 \
    --set fp16.initial_scale_power=60
  ok "only overflows: nothing was learned" said 1 "the loss scale was still too large at the end"
  run $mpiexec -n 2 "$tessera" train "$golden/llama.cfg" "$@" --set model.from=nan --set run.directory=nan16 \
    --set run.stop_after_nonfinite=2
  ok "a loss that is NaN: no smaller scale helps" said 1 "stopped at step 2: 2 steps in a row were not finite"
  run $mpiexec -n 2 "$tessera" train "$golden/llama.cfg" "$@" --set "model.from=$golden/llama" --set run.directory=half
  ok "fp16: a run, with its scale on each line" printed "step 10/10 .* loss scale 65536 "
  run "$tessera" status half --format json
  json "$scratch/out" "d['loss_scale'] == 65536 and d['skipped'] == 0" "status: the scale in json"
}

test_all_finite() {
  run $mpiexec -n 2 "$tessera" train "$golden/llama_documents.cfg" --set "model.from=$golden/llama_documents" \
    --set "data.path=$golden/llama_documents/tokens.bin" --set run.directory=finite --set run.steps=1 \
    --set debug.check_finite=true --set sequence_parallel_size=2 --set sequence_parallel.ring_degree=2 \
    --set sequence_parallel.ring_exchange=p2p
  ok "a ring, queries that see none of some keys: all is finite" clean
}

no_sign() { ! grep -re '-nan' "$scratch/out" "$scratch/err" signs/*.csv signs/*.svg signs/status; }

test_last_nonfinite() {
  set -- train "$golden/llama.cfg" --set model.from=nan --set "data.path=$golden/llama/tokens.bin" --set run.directory=signs \
    --set run.steps=7 --set run.evaluate_every=7 --set data.validation_fraction=0.5 --set run.threads=1
  run "$tessera" "$@"
  ok "a last step that is not finite: exit 1" said 1 "the last step was not finite: loss or gradient norm; steps 1 to 7 were without an update"
  ok "its checkpoint is there" [ -f signs/step_00000007/manifest ]
  ok "a NaN without a sign: log, tables, picture" both 'no_sign' 'grep -Eq "loss nan" "$scratch/out"'
  run "$tessera" status signs
  ok "status says so, without one" both 'printed "^state +failed: the last step was not finite"' no_sign
  run "$tessera" eval signs
  ok "eval: without one" both 'printed "^loss nan nats a token, perplexity nan"' no_sign
  run "$tessera" eval signs --format json
  json "$scratch/out" "d['loss'] is None and d['perplexity'] is None" "eval: null in json"
  sed 's/,nan/,-nan/' signs/metrics.csv > "$scratch/a" && cp "$scratch/a" signs/metrics.csv
  run "$tessera" compare signs run
  ok "compare: without one, of a table that has it" no_sign_printed
  run "$tessera" "$@" --resume auto
  ok "it is no better when it is begun again: exit 1" said 1 "the last step was not finite"
  run "$tessera" "$@" --set run.directory=sign --set run.steps=1 --set run.evaluate_every=0
  ok "a single step" said 1 "the last step was not finite: loss or gradient norm; step 1 was without an update"
}
both() { eval "$1" && eval "$2"; }
no_sign_printed() { ! grep -e '-nan' "$scratch/out"; }

# The last thing drawn on the bar's line is its erasure.
bar_is_gone() {
  tr '\r' '\n' < "$scratch/terminal" | awk '/^\[#/ { bar = NR } /^\033\[K/ { gone = NR } END { exit !(gone > bar) }'
}

test_terminal() {
  if ! command -v script > /dev/null; then
    skip "a bar on a terminal" "no script(1) to make a terminal with"
    return
  fi
  run script -qec "$tessera train tiny.cfg --set run.directory=terminal --set run.steps=50" "$scratch/terminal"
  ok "on a terminal: a bar" grep -Eq "\[#+-+\] [0-9]+/50  loss .*ETA" "$scratch/terminal"
  ok "on a terminal: the bar is gone at the end" bar_is_gone
  run script -qec "env TESSERA_PROGRESS=bar $mpiexec -n 2 $tessera train tiny.cfg --set run.directory=terminal2 \
    --set run.steps=50" "$scratch/terminal"
  ok "under mpiexec on a terminal: a bar" grep -Eq "\[#+-+\] [0-9]+/50  loss .*ETA" "$scratch/terminal"
}

test_help
test_deck
test_plan
test_tiled_plan
test_sequence_plan
test_pipeline
test_peak
test_graph
test_train
test_again
test_json
test_norm_of_columns
test_columns_of_layout
test_not_empty
test_compare
test_tokens
test_sources
test_eval
test_generate
test_timeline
test_precision
test_nonfinite
test_terminal
finish
