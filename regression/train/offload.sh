#!/bin/sh
# TAP: runs whose state is in files: checkpoints of them and of others go on from one another with the same bits, what they
# are told when there is no room, and that nothing of them is left behind.  TEST_OFFLOAD_ALL, with any value, is for more of each.
# shellcheck disable=SC2086,SC2089,SC2090
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"
mkdir disk
more() { [ -n "${TEST_OFFLOAD_ALL:-}" ]; }
persistent="--set zero_optimization.stage3_param_persistence_threshold=0 --set zero_optimization.sub_group_size=1"
states="$persistent --set zero_optimization.offload_optimizer.device=nvme --set zero_optimization.offload_optimizer.nvme_path=disk"
parameters="--set zero_optimization.stage=3 --set zero_optimization.offload_param.device=nvme
  --set zero_optimization.offload_param.nvme_path=disk --set zero_optimization.stage3_max_live_parameters=0"
all="$states $parameters --set bf16.enabled=true"
is_empty() { [ -z "$(ls -A "$1")" ]; }

# train RANKS DIRECTORY [WORD]...
train() {
  ranks=$1
  directory=$2
  shift 2
  run $mpiexec -n "$ranks" "$tessera" train tiny.cfg --set run.directory="$directory" --set run.save_every=3 \
    --set debug.digest_every=1 "$@"
}

# goes_on FROM NAME [WORD]...: the run, cut back to its first checkpoint, goes on and ends as it did.
goes_on() {
  from=$1
  title=$2
  shift 2
  rm -rf again
  cp -r "$from" again
  rm -rf again/step_00000006
  train 2 again --resume auto "$@"
  ok "$title: goes on" gave 0
  ok "$title: as if nothing had changed" "$tessera" compare again "$from" --tolerance 0
}

test_resume() {
  train 2 memory --set zero_optimization.stage=3 --set bf16.enabled=true
  train 2 file $all
  ok "state in files" clean
  ok "and where, how" printed '^offload: .* a rank in disk \((io_uring|threads)'
  ok "and what that cost" printed '^offload: .* read, .* written, for which the computation waited [0-9.]+ s'
  ok "the same losses and parameters as in memory" "$tessera" compare file memory --tolerance 0
  goes_on file "a checkpoint of files, in memory" --set zero_optimization.stage=3 --set bf16.enabled=true
  goes_on memory "a checkpoint of memory, in files" $all
  ! more || goes_on memory "with states alone in files, at stage 1" $states --set zero_optimization.stage=1 --set bf16.enabled=true
  train 2 whole $states --set zero_optimization.stage=0
  goes_on whole "where every rank has all states, in files" $states --set zero_optimization.stage=0
  ok "nothing is left" is_empty disk
  train 1 few --set zero_optimization.offload_optimizer.device=nvme --set zero_optimization.offload_optimizer.nvme_path=disk
  ok "where nothing is large enough to leave that is said" printed '^offload: nothing leaves memory, as no parameter has more elements'
}

# Of a checkpoint, with parameters in a file.
test_inference() {
  for command in "eval memory" "generate memory --prompt line --tokens 8"; do
    run "$tessera" $command
    cp "$scratch/out" plain
    run "$tessera" $command $parameters --set zero_optimization.stage3_param_persistence_threshold=0
    ok "${command%% *} with parameters in a file" clean
    ok "${command%% *}: the same answer" cmp plain "$scratch/out"
  done
  run "$tessera" zero_to_fp32 memory hf --format safetensors
  run "$tessera" generate hf --prompt line --tokens 8
  cp "$scratch/out" plain
  run "$tessera" generate hf --prompt line --tokens 8 $parameters --set zero_optimization.stage3_param_persistence_threshold=0
  ok "generate from a Hugging Face directory, parameters in a file" both clean 'cmp plain "$scratch/out"'
}

test_plan() {
  run "$tessera" plan tiny.cfg --ranks 2 $all --set run.save_every=3
  ok "plan: what is in the file" printed '^  optimizer states +[1-9][0-9]*'
  ok "plan: no gradients in memory" printed '^  gradients +0 '
  ok "plan: and what moves" printed '^  read in a step +[1-9][0-9]*'
  ok "plan: that saving waits" printed 'run.save_async has no effect then'
  run "$tessera" plan tiny.cfg --format json
  ok "plan: nothing in files without offload" grep -q '"file_bytes": 0, "file_read_bytes": 0,' "$scratch/out"
}

# ---- a budget ----

# Of which most is state; what files need is little, and so are pieces.
large="--set model.hidden_size=256 --set model.intermediate_size=1024 --set zero_optimization.stage=3
  --set zero_optimization.stage3_param_persistence_threshold=1000 --set bf16.enabled=true
  --set zero_optimization.sub_group_size=32768 --set aio={block_size=65536;queue_depth=1;}"
fitted="$large --set zero_optimization.offload_optimizer={device=\"auto\";nvme_path=\"disk\";}
  --set zero_optimization.offload_param={device=\"auto\";nvme_path=\"disk\";}"
# The most that a process had, by the last row.
peak_of() {
  awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) { if ($i == "peak_bytes") { c = i } } } { p = $c } END { print p }' "$1/metrics.csv"
}
limited() { train "$1" "$2" $fitted --set run.memory_limit=\""$3"\"; }

# The numbers of the message, MB.  What a process has before it plans differs by some pages from run to run.
test_limits() {
  ranks=$1
  train "$ranks" roomy $large
  limited "$ranks" least 1MB
  ok "$ranks ranks, a limit of 1 MB" said 2 'run.memory_limit: 1000000 bytes: a rank needs [0-9]+ MB at least, the smallest'
  ok "nothing was written" [ ! -e least/metrics.csv ]
  least=$(grep -o 'needs [0-9]* MB' "$scratch/err" | head -n 1 | tr -dc 0-9)
  limited "$ranks" least $((least - 2))MB
  ok "less than the smallest, $least MB" said 2 'the smallest limit that works'
  limited "$ranks" least $((least + 1))MB
  ok "the smallest: it trains" clean
  # What the process has before it plans, MPI's part of it, is found once and grows by some pages.
  ok "and stays within it, saving as well: $(peak_of least) bytes" [ "$(peak_of least)" -le $(((least + 4) * 1000000)) ]
  ok "with the same bits" "$tessera" compare least roomy --tolerance 0
  ok "and state in files" printed 'offload: .*states of [0-9] %.* in disk '
  if [ "$ranks" = 2 ] || more; then
    limited "$ranks" half $((least + 4))MB
    ok "4 MB more: more stays" printed 'offload: .*(states|values) of [1-9][0-9]* %.* in disk '
    ok "with the same bits" "$tessera" compare half roomy --tolerance 0
    limited "$ranks" all_of_it 1GB
    ok "1 GB: all of it stays" printed 'states of 100 %, the gradients of 100 % and the values of 100 % stay, within 1.00 GB a rank$'
  fi
  rm -rf least half all_of_it roomy
}

test_budget() {
  test_limits 1
  test_limits 2
  train 1 all_of_it $fitted
  ok "without a limit all of it stays" printed 'states of 100 %'
  train 1 tight $large --set run.memory_limit=5MB
  ok "a limit without offload" said 2 'run.memory_limit: 5000000 bytes: a rank needs [0-9]+ MB; .*device = "auto".* nvme_path'
  train 1 tight $large --set run.host_memory_limit=5MB
  ok "of the host's memory" said 2 'run.host_memory_limit: 5000000 bytes: a rank needs [0-9]+ MB'
  train 1 tight $large --set run.memory_limit=much
  ok "a limit that is none" said 2 'run.memory_limit: "much" is not a size; accepted: .*24GB'
  train 1 tight $large --set zero_optimization.offload_optimizer.device=auto --set run.memory_limit=5MB
  ok "nowhere to go" said 2 'the smallest limit that works with this deck; .*nvme_path'
  uneven="$fitted --set pipeline.stages=2 --set pipeline.units=[1,3] --set gradient_accumulation_steps=2"
  for limit in 70MB ${TEST_OFFLOAD_ALL:+80MB 90MB} 110MB; do
    timeout -k 5 60 $mpiexec -n 2 "$tessera" train tiny.cfg $uneven --set run.directory=uneven --set run.steps=2 \
      --set run.memory_limit=\"$limit\" > "$scratch/out" 2> "$scratch/err" < /dev/null
    status=$?
    ok "stages of which one may have a file and the other none, $limit" [ "$status" -eq 0 -o "$status" -eq 2 ]
    rm -rf uneven
  done
  ok "and within the last they train" gave 0
  run "$tessera" plan tiny.cfg $fitted --memory 1GB
  ok "plan: what stays" printed 'states of 100.0 %, the gradients of 100.0 % and the values of 100.0 % stay: as many as fit into 1'
}

# kept_away RANKS NAME [WORD]...: within the smallest limit that works, which activations leave for, and without one.
kept_away() {
  ranks=$1
  title=$2
  shift 2
  rm -rf least roomy
  train "$ranks" roomy $long "$@"
  train "$ranks" least $away "$@" --set run.memory_limit=1MB
  smallest=$(grep -o 'needs [0-9]* MB' "$scratch/err" | head -n 1 | tr -dc 0-9)
  train "$ranks" least $away "$@" --set "run.memory_limit=\"$((smallest + 1))MB\""
  ok "$title: activations leave" both 'gave 0' 'printed "what [0-9]+ of [0-9]+ units keep for the backward leaves"'
  ok "$title: the same bits" "$tessera" compare least roomy --tolerance 0
}

# Of twelve blocks whose inputs take most, those that do not fit are in the file.
test_activations() {
  long="--set model.num_hidden_layers=12 --set model.hidden_size=128 --set model.intermediate_size=128
    --set data.sequence_length=64 --set model.max_position_embeddings=64 --set train_batch_size=32
    --set train_micro_batch_size_per_gpu=32 --set activation_checkpointing.enabled=true --set run.steps=2
    --set optimizer.type=SGD --set run.save_every=0 --set run.evaluate_every=0
    --set aio={block_size=65536;queue_depth=1;}"
  away="$long --set activation_checkpointing.cpu_checkpointing=true
    --set zero_optimization.offload_optimizer={device=\"auto\";nvme_path=\"disk\";}"
  train 1 roomy $long
  ok "long samples" gave 0
  train 1 least $long --set run.memory_limit=1MB
  whole=$(grep -o 'needs [0-9]* MB' "$scratch/err" | head -n 1 | tr -dc 0-9)
  train 1 least $away --set run.memory_limit=1MB
  least=$(grep -o 'needs [0-9]* MB' "$scratch/err" | head -n 1 | tr -dc 0-9)
  ok "$least MB suffice, with activations in memory $whole MB" [ "${least:-99999}" -lt $((whole - 6)) ]
  for limit in ${TEST_OFFLOAD_ALL:+$((least + 1))} $(((least + whole) / 2)); do
    rm -rf least
    train 1 least $away --set "run.memory_limit=\"${limit}MB\""
    ok "within $limit MB: it trains, and says what leaves" both clean 'printed "what [0-9]+ of [0-9]+ units keep for the backward leaves"'
    ok "with the same bits" "$tessera" compare least roomy --tolerance 0
  done
  peak=$("$tessera" plan tiny.cfg $long --format json | sed 's/.*"peak_bytes": \([0-9]*\).*/\1/')
  run "$tessera" plan tiny.cfg $away --memory $((peak - 4000000))
  ok "plan: what leaves" printed '^what [0-9]+ of [0-9]+ units keep for the backward leaves'
  ok "plan: in files" printed '^  activations.* +[1-9]'
  rm -rf roomy
  train 1 roomy $away --set 'aio={block_size=1048576;queue_depth=8;}' --set "run.memory_limit=\"$((whole + 1))MB\""
  ok "with all in memory a file's buffers are not wanted: $((whole + 1)) MB" gave 0
  kept_away 2 "2 ranks at stage 3, two micro-batches" --set zero_optimization.stage=3 \
    --set train_batch_size=64
  ! more || kept_away 1 "unit by unit" --set train_micro_batch_size_per_gpu=16 --set run.accumulation_order=unit
  kept_away 1 "all that the backward reads, memory checked" --set activation_checkpointing.enabled=false \
    --set compile.offload_activation=true --set debug.memcheck=true --set train_batch_size=16 \
    --set train_micro_batch_size_per_gpu=16 --set model.num_hidden_layers=4
  ! more || kept_away 2 "along tp a part each, attention kept" --set tensor_parallel.autotp_size=2 \
    --set tensor_parallel.sequence_parallel=false --set activation_checkpointing.partition_activations=true \
    --set activation_checkpointing.policy=sac --set bf16.enabled=true
  in_stages="--set pipeline.stages=2 --set train_micro_batch_size_per_gpu=8 --set gradient_accumulation_steps=3
    --set train_batch_size=auto"
  # shellcheck disable=SC2086
  ! more || kept_away 2 "two stages, each micro-batch in its slot" $in_stages
  # shellcheck disable=SC2086
  kept_away 2 "two stages, each micro-batch in its slot, and with backwards of weights apart" $in_stages --set pipeline.schedule=zb_h1 \
    --set activation_checkpointing.enabled=false --set compile.offload_activation=true
  # shellcheck disable=SC2086
  ! more || kept_away 2 "two pieces a stage" $in_stages --set pipeline.schedule=interleaved
  rm -rf least roomy
}

# What the C library keeps of what was freed is some 15 MB of this one.
test_process() {
  train 1 within --set model.hidden_size=512 --set model.intermediate_size=1024 --set model.num_hidden_layers=8 \
    --set model.num_attention_heads=4 --set model.num_key_value_heads=4 --set zero_optimization.stage=3 \
    --set zero_optimization.stage3_param_persistence_threshold=1000 --set train_batch_size=4 \
    --set 'zero_optimization.offload_optimizer={device="auto";nvme_path="disk";}' \
    --set 'zero_optimization.offload_param={device="auto";nvme_path="disk";}' --set debug.digest_every=0 --set run.threads=1 \
    --set data.sequence_length=64 --set model.max_position_embeddings=128 \
    --set run.steps=2 --set run.save_every=1 --set run.evaluate_every=2 --set run.memory_limit=300MB
  ok "a process that saves and evaluates is within its limit: $(peak_of within) bytes" [ "$(peak_of within)" -le 300000000 ]
  rm -rf within
}

# KILLS=12: as many times, each time in the run that goes on.
test_killed() {
  kills=0
  while [ $kills -lt "${KILLS:-2}" ]; do
    kills=$((kills + 1))
    before=$(cat killed/metrics.csv 2> /dev/null | wc -l)
    (train 2 "$(pwd)/killed" $all --set run.steps=20000 --resume auto) &
    job=$!
    tries=0
    while [ $tries -lt 400 ] && [ "$(cat killed/metrics.csv 2> /dev/null | wc -l)" -le $((before + 2)) ]; do
      sleep 0.05
      tries=$((tries + 1))
    done
    # by its whole name: another test's run of this machine may be called killed, too
    pkill -9 -f "run.directory=$(pwd)/killed" || true
    wait $job
    ok "kill $kills: the run had begun" [ $tries -lt 400 ]
    ok "and leaves nothing" is_empty disk
  done
  "$tessera" verify killed > verified 2>&1 || true
  ok "its checkpoints are whole: $(ls -d killed/step_* | wc -l)" sh -c '! grep -q damaged verified && [ -d killed/step_00000003 ]'
}

test_refused() {
  : > nowhere
  train 2 refused $states --set zero_optimization.offload_optimizer.nvme_path=nowhere
  ok "a directory that is a file" said 2 'nowhere: '
  ok "nothing was written" [ ! -e refused/metrics.csv ]
  mkdir small
  if mount -t tmpfs -o size=128k none small 2> /dev/null; then
    train 2 refused $states --set zero_optimization.offload_optimizer.nvme_path=small
    umount -l small
    ok "a disk without room, before the first step" said 2 'small.*(free|room)'
    ok "and nothing was written" [ ! -e refused/metrics.csv ]
  else
    skip "a disk without room" "no file system can be mounted here"
  fi
}

test_resume
test_inference
test_plan
test_budget
test_activations
test_process
test_killed
test_refused
finish
