#!/bin/sh
# TAP: training on a GPU, what holds on any: the same losses as on the processors, the same bits however the device orders its
# work, recorded or not, on one rank or several that share it, going on from one to the other, and what is told when memory is
# short or a rank dies.  On the stand-in here, where TEST_DEVICE_ALL, with any value, is for all of it; regression/gpu runs it on
# a device.  Words name some of its parts, all otherwise: one (a rank, and going on from it), ranks (several), rest.
# shellcheck source=regression/cuda/runs.sh
. "${srcdir:-.}/regression/cuda/runs.sh"

# True where what says less beside its neighbours, or is in engine/test_offload.c, too, is run.
whole() { [ -n "${TEST_DEVICE:-}${TEST_DEVICE_ALL:-}" ]; }

# ---- the same run ----

test_losses() {
  run "$cpu" train deck.cfg --set run.directory=cpu --set run.device=cpu
  train 1 one
  ok "a run on the device ends well" clean
  ok "its losses and norms are those of the processors" close one cpu 1e-5 # another order of sums, six steps
  run "$cpu" train deck.cfg --set run.directory=cpu16 --set run.device=cpu --set bf16.enabled=true
  train 1 one16 --set bf16.enabled=true
  ok "also in bf16" close one16 cpu16 2e-2 # 2^-9 a rounding, fused products round less often
  for choice in 'policy="block"' 'policy="sac";interval=2'; do
    [ "$choice" != 'policy="block"' ] || whole || continue
    train 1 again16 --set bf16.enabled=true --set "activation_checkpointing={enabled=true;$choice;}"
    ok "what is computed again has the same bits: $choice" same one16 again16
    rm -rf again16
  done
  train 1 plain --set run.cuda_graphs=false
  ok "recorded steps and plain ones give the same bits" same one plain
  train 1 measured --set run.measure_algorithms=true --set run.steps=4
  # The library's first choice differs with the seed, as it may with its version.
  SHIM_SEED=7 train 1 other --set run.steps=4 --set run.algorithms=measured/algorithms.txt
  ok "with the same algorithms the device's order of execution does not matter" same measured other
}

# Products of one sample, and sums of gradients that are added later or at once: all runs take what the first two chose.
test_ranks() {
  train 2 first --set run.measure_algorithms=true --set run.steps=1
  train 2 two_chosen --set zero_optimization.stage=3 --set run.measure_algorithms=true --set run.algorithms=first/algorithms.txt --set run.steps=1
  for stage in 0 1 2 3; do
    SHIM_SEED=$stage train 2 "two$stage" --set zero_optimization.stage=$stage --set run.steps=4 --set run.algorithms=two_chosen/algorithms.txt
    ok "stage $stage on 2 ranks ends well" clean
  done
  ok "runs queued are counted, not waits, of which ranks have different numbers" same_numbers two1
  ok "stage 0 and 1 give the same bits" same two0 two1
  ok "stage 2 and 3 give the same bits" same two2 two3
  SHIM_SEED=9 train 2 again --set zero_optimization.stage=3 --set run.steps=4 --set run.cuda_graphs=false \
    --set run.algorithms=two_chosen/algorithms.txt
  ok "whatever the order of execution, recorded or not" same two3 again
  run "$cpu" train deck.cfg --set run.directory=cpu4 --set run.device=cpu --set run.steps=4
  ok "and the losses of one rank on the processors" close two3 cpu4 1e-5
  train 2 staged --set pipeline.stages=2 --set run.steps=4
  ok "two stages of a pipeline, too" both clean 'close staged cpu4 1e-5'
}

# Three heads on two ranks: the second has products of its own shapes, which it measures.
test_shared_model() {
  shared="--set tensor_parallel.autotp_size=2 --set run.steps=4"
  # shellcheck disable=SC2086
  train 2 tp $shared --set run.measure_algorithms=true
  ok "two ranks share a model: the losses of one on the processors" both clean 'close tp cpu4 1e-5'
  ok "the products of both are measured" both 'grep -Eq " k=16 .*algo=" tp/algorithms.txt' 'grep -Eq " k=8 .*algo=" tp/algorithms.txt'
  # shellcheck disable=SC2086
  SHIM_SEED=5 train 2 tp_plain $shared --set run.cuda_graphs=false --set run.algorithms=tp/algorithms.txt
  ok "whatever the order of execution, recorded or not, the same bits" same tp tp_plain
  whole || return 0
  # shellcheck disable=SC2086
  train 2 tp_whole $shared --set tensor_parallel.sequence_parallel=false --set zero_optimization.stage=3
  ok "with all tokens on each" both clean 'close tp_whole cpu4 1e-5'
}

# State in the host's memory, in pieces of 2048 elements, which come and go beside the computation, or in files.
# shellcheck disable=SC2086 # words
test_offload() {
  pieces="--set zero_optimization.stage3_param_persistence_threshold=0 --set zero_optimization.sub_group_size=1
    --set zero_optimization.stage3_max_live_parameters=0 --set run.steps=4 --set bf16.enabled=true"
  away="$pieces --set zero_optimization.offload_optimizer.device=cpu --set run.algorithms=resident/algorithms.txt"
  on3="--set zero_optimization.stage=3 --set run.algorithms=resident3/algorithms.txt"
  away3="$away $on3 --set zero_optimization.offload_param.device=cpu"
  files="$on3 --set zero_optimization.offload_optimizer.device=nvme
    --set zero_optimization.offload_param.device=nvme --set zero_optimization.offload_optimizer.nvme_path=$scratch
    --set zero_optimization.offload_param.nvme_path=$scratch --set zero_optimization.offload_param.max_in_cpu=20000"
  train 1 resident $pieces --set run.measure_algorithms=true
  train 2 resident3 $pieces --set zero_optimization.stage=3 --set run.measure_algorithms=true
  SHIM_SEED=3 train 1 away $away
  ok "states in the host's memory: the same bits, in any order of execution" both clean 'same resident away'
  SHIM_SEED=5 train 2 away3 $away3
  ok "and parameters, too, on two ranks" both clean 'same resident3 away3'
  rm -rf away3/step_00000004
  train 2 away3 --resume auto $pieces $on3
  ok "what was saved from there goes on without it" both clean 'same resident3 away3'
  SHIM_SEED=1 train 2 hosted3 $away3 --set run.offload_update=host
  ok "updated by the host: the same bits" both clean 'same resident3 hosted3'
  ok "and the run says so" grep -q 'offload: updated by the host.s processors' "$scratch/out"
  quiet="--set debug.digest_every=0 --set run.evaluate_every=0 --set run.save_every=0"
  train 2 alone3 $pieces $quiet $on3
  SHIM_SEED=2 train 2 hosted_late $away3 $quiet --set run.offload_update=host
  ok "also where nothing completes updates between steps" both clean 'close alone3 hosted_late 0'
  SHIM_SEED=2 train 2 stored3 $pieces $files
  ok "in files, some parameters in the host's memory: the same bits" both clean 'same resident3 stored3'
  ok "and the run says where" grep -q 'offload: .* a rank in .* (' "$scratch/out"
  rm -rf stored3/step_00000004
  train 2 stored3 --resume auto $pieces $on3
  ok "what was saved from files goes on without them" both clean 'same resident3 stored3'
  one="--set train_batch_size=auto --set train_micro_batch_size_per_gpu=2 --set gradient_accumulation_steps=1
    --set run.steps=3 --set bf16.enabled=true --set run.measure_algorithms=false $pieces"
  SHIM_SEED=1 train 1 one_resident $one
  SHIM_SEED=1 train 1 one_away $one --set zero_optimization.offload_optimizer.device=cpu
  ok "of one micro-batch gradients that leave have the same bits" both clean 'same one_resident one_away'
  ! whole || test_offload_more
}

# shellcheck disable=SC2086 # words
test_offload_more() {
  SHIM_SEED=6 train 1 hosted $away --set run.offload_update=host
  ok "updated by the host, one rank" both clean 'same resident hosted'
  SHIM_SEED=4 train 1 stored $away --set 'zero_optimization.offload_optimizer={device="nvme";nvme_path=".";}'
  ok "states in files, one rank" both clean 'same resident stored'
  SHIM_SEED=2 train 2 early3 $pieces $files --set run.cuda_graphs=false \
    --set zero_optimization.offload_optimizer.super_offload=false --set zero_optimization.offload_optimizer.pipeline_write=false
  ok "updated at the end of a step, not recorded, one piece at a time" both clean 'same resident3 early3'
  SHIM_SEED=7 train 2 host3 $pieces $files --set run.offload_update=host
  ok "in files, updated by the host" both clean 'same resident3 host3'
}

# As much as a limit leaves no room for.
# shellcheck disable=SC2086 # words
test_limits() {
  limit=$("$tessera" plan deck.cfg --target cuda --format json $pieces --set zero_optimization.stage=3 \
    --set zero_optimization.offload_optimizer.device=cpu | sed 's/.*"peak_bytes": \([0-9]*\).*/\1/')
  SHIM_SEED=6 train 1 fitted $pieces --set zero_optimization.stage=3 --set zero_optimization.offload_param.device=auto \
    --set zero_optimization.offload_optimizer.device=auto --set run.memory_limit="$limit"L \
    --set run.algorithms=resident/algorithms.txt
  ok "a limit: what does not fit is there, the same bits" both clean 'same resident fitted'
  ok "and the run says how much" grep -q 'offload: of the elements.* stay, within' "$scratch/out"
  SHIM_SEED=8 train 1 tiers $pieces $files --set zero_optimization.offload_param.device=auto \
    --set zero_optimization.offload_optimizer.device=auto --set run.memory_limit="$limit"L \
    --set run.host_memory_limit=4550000 --set aio.block_size=4096 --set aio.queue_depth=1 --set run.algorithms=resident/algorithms.txt
  ok "and of the host's memory: the rest is in files" both clean 'same resident tiers'
  ok "as the run says" grep -q 'offload: of the elements.* stay, .*; .* a rank in ' "$scratch/out"
  train 1 limited $pieces --set zero_optimization.offload_optimizer.device=auto --set run.memory_limit=1MB
  ok "too small a limit" said 2 'the smallest limit that works with this deck'
  train 1 limited $away --set run.host_memory_limit=1000
  ok "and of the host's memory" said 2 'run.host_memory_limit: .* of the host.s memory beside its GPU'
  needs=$(sed -n 's/.*a rank needs \([0-9]*\) MB of the host.*/\1/p' "$scratch/err" | head -n 1)
  train 1 enough $away --set run.host_memory_limit="$needs"MB --set run.steps=2
  ok "with the $needs MB that it names it trains" clean
  run "$tessera" plan deck.cfg --target cuda --memory 1GB $away --set run.host_memory_limit=1000
  ok "a plan says so, too" both clean 'grep -q "^run.host_memory_limit: .* are too little, a rank needs" "$scratch/out"'
  ok "and that no sample has room there" grep -q '^samples of at most 0 tokens fit into 1.00 GB a rank$' "$scratch/out"
  run "$tessera" plan deck.cfg --target cuda $away
  ok "the plan says what is there" printed '^  optimizer states +[1-9][0-9]* .*'
}

# What the backward reads leaves, too.
# shellcheck disable=SC2086 # words
test_activations() {
  again="--set model.n_layer=4 --set activation_checkpointing.enabled=true --set run.steps=4 --set bf16.enabled=true"
  train 1 blocks $again --set run.measure_algorithms=true
  policies=sac
  ! whole || policies="block sac"
  for policy in $policies; do
    SHIM_SEED=7 train 1 $policy $again --set run.algorithms=blocks/algorithms.txt --set activation_checkpointing.policy=$policy \
      --set activation_checkpointing.cpu_checkpointing=true
    ok "what blocks keep waits in the host's memory ($policy): the same bits" both clean "same blocks $policy"
  done
  deep="--set model.n_layer=8 --set run.steps=2 --set bf16.enabled=true --set train_batch_size=auto
    --set train_micro_batch_size_per_gpu=6 --set gradient_accumulation_steps=3 --set pipeline.stages=2"
  deep_away="$deep --set compile.offload_activation=true --set zero_optimization.offload_optimizer.device=nvme
    --set zero_optimization.stage3_param_persistence_threshold=0
    --set zero_optimization.offload_optimizer.nvme_path=. --set aio.block_size=4096 --set aio.queue_depth=1
    --set run.host_memory_limit=5MB --set run.algorithms=deep/algorithms.txt"
  train 2 deep $deep --set run.measure_algorithms=true
  train 2 deep_away $deep_away --set run.memory_limit=1MB
  least=$(sed -n 's/.*a rank needs \([0-9]*\) MB[^ ]* *.*/\1/p' "$scratch/err" | head -n 1)
  SHIM_SEED=3 train 2 deep_away $deep_away --set run.memory_limit="$least"MB
  ok "in a pipeline, with states in files, within limits of both memories" both clean 'same deep deep_away'
  ok "as that run says" grep -Eq 'offload: [0-9.]+ [kM]B a rank in .*; what [0-9]+ of [0-9]+ units keep' "$scratch/out"
  train 1 rehearsal $again --set run.algorithms=blocks/algorithms.txt --set debug.skip_attention=true
  ok "a rehearsal without attention goes through all steps" both clean 'told "losses mean nothing"'
  run "$tessera" plan deck.cfg --target cuda $again --set activation_checkpointing.cpu_checkpointing=true
  ok "the plan says how much" printed '^  activations +[1-9][0-9]* .*'
  ! whole || test_activations_more
}

# shellcheck disable=SC2086 # words
test_activations_more() {
  all="--set model.n_layer=4 --set run.steps=4 --set bf16.enabled=true --set run.algorithms=blocks/algorithms.txt"
  train 1 all_here $all
  SHIM_SEED=4 train 1 all_away $all --set compile.offload_activation=true
  ok "all that the backward reads, with nothing computed again: the same bits" both clean 'same all_here all_away'
  train 2 stages $again --set pipeline.stages=2 --set run.algorithms=blocks/algorithms.txt
  SHIM_SEED=8 train 2 stages_away $again --set pipeline.stages=2 --set run.algorithms=blocks/algorithms.txt \
    --set activation_checkpointing.cpu_checkpointing=true
  ok "and of a pipeline, for each micro-batch in its slot" both clean 'same stages stages_away'
  stored="$all --set compile.offload_activation=true --set zero_optimization.offload_optimizer.device=nvme
    --set zero_optimization.offload_optimizer.nvme_path=$scratch --set aio.block_size=4096 --set aio.queue_depth=1
    --set run.host_memory_limit=4720000"
  least=$("$tessera" plan deck.cfg --target cuda --format json $stored | sed 's/.*"peak_bytes": \([0-9]*\).*/\1/')
  SHIM_SEED=5 train 1 all_stored $stored --set run.memory_limit=$((least + 40000))L
  ok "and within limits of both memories, the first blocks' in a file" both clean 'same all_here all_stored'
  ok "as the run says" grep -Eq 'offload: .* a rank in .*; what [0-9]+ of [0-9]+ units keep' "$scratch/out"
}

# Counts that the host reads cut the recordings of forward and backward, which go on beside the rows that travel.
test_experts() {
  experts="--set moe={num_experts=4;ep_size=2;k=2;drop_tokens=false;token_chunks=2;} --set run.steps=4"
  # shellcheck disable=SC2086
  run "$cpu" train deck.cfg --set run.directory=experts_cpu --set run.device=cpu $experts --set moe.ep_size=1
  # shellcheck disable=SC2086
  train 2 experts $experts --set moe.dispatch=alltoall --set run.measure_algorithms=true
  ok "rows of experts from rank to rank: the losses of one on the processors" both clean 'close experts experts_cpu 1e-5'
  # shellcheck disable=SC2086
  SHIM_SEED=3 train 2 experts_plain $experts --set moe.dispatch=alltoall --set run.cuda_graphs=false \
    --set run.algorithms=experts/algorithms.txt
  ok "whatever the order of execution, recorded or not, the same bits" same experts experts_plain
}

# Ranks along tp have parts of each expert, with biases.
test_cut_experts() {
  cut="--set moe={num_experts=3;k=2;drop_tokens=false;enable_expert_tensor_parallelism=true;} --set run.steps=3"
  # shellcheck disable=SC2086
  run "$cpu" train deck.cfg --set run.directory=cut_cpu --set run.device=cpu $cut
  # shellcheck disable=SC2086
  train 2 cut $cut --set tensor_parallel.autotp_size=2 --set zero_optimization.stage=3
  ok "experts that ranks share: the losses of one on the processors" both clean 'close cut cut_cpu 1e-5'
}

# ---- going on ----

test_resume() {
  train 1 half --set run.steps=3
  cp -r half half_cpu
  train 1 half --resume auto
  ok "a resumed run gives the bits of one that was not stopped" same one half
  run "$cpu" train deck.cfg --set run.directory=half_cpu --set run.device=cpu --resume auto
  ok "it can go on on the processors" both 'gave 0' 'told "run.device: .cuda., now .cpu."'
  ok "with the losses it would have had" close half_cpu one 1e-5
  train 2 half_two --resume half --set run.steps=9 --set zero_optimization.stage=3
  ok "and on more ranks at another stage" clean
  train 1 sync --set run.save_async=false
  ok "saved without a copy" clean
  hdf5 "a save beside the training is the same" h5diff sync/step_00000003/shard_00000.h5 one/step_00000003/shard_00000.h5
}

test_algorithms() {
  train 1 chosen --set run.measure_algorithms=true --set run.steps=3
  ok "algorithms are kept in the run directory" grep -q '^m=.* algo=' chosen/algorithms.txt
  head -n 3 chosen/algorithms.txt > few.txt
  train 1 few --set run.algorithms=few.txt --set run.measure_algorithms=true --set run.steps=1
  ok "a named file that lacks some is told" both 'gave 0' 'told "warning: few.txt: [0-9]+ products.* are not in it"'
  cp chosen/algorithms.txt kept
  train 1 chosen --resume auto --set run.measure_algorithms=true
  ok "and used again" cmp kept chosen/algorithms.txt
  sed 's/^device .*/device another/' kept > chosen/algorithms.txt
  train 1 none --set run.algorithms=chosen/algorithms.txt
  ok "a file that the deck names must fit" both 'gave 2' 'told "algorithms were chosen on"'
  train 1 chosen --resume auto --set run.steps=9 --set run.measure_algorithms=true
  ok "those of another device are not taken, with the reason" both 'gave 0' 'told "algorithms were chosen on"'
}

# Heads of 64 are what cuDNN takes: the table says who computed them, and either way the run is that of the processors.
test_attention() {
  if told "no cuDNN"; then
    skip "attention by cuDNN" "built without it"
    return
  fi
  heads="--set model.n_embd=64 --set model.n_head=1 --set model.attn_pdrop=0.0 --set bf16.enabled=true --set run.steps=3"
  # shellcheck disable=SC2086
  train 1 attention $heads --set run.measure_algorithms=true
  ok "who computes attention is measured" grep -q '^attention pass=forward .* by=' attention/algorithms.txt
  sed 's/by=.*/by=cudnn/' attention/algorithms.txt > cudnn.txt
  # shellcheck disable=SC2086
  train 1 by_cudnn $heads --set run.measure_algorithms=true --set run.algorithms=cudnn.txt
  ok "by cuDNN" clean
  # shellcheck disable=SC2086
  train 1 by_own $heads --set run.attention=own
  ok "and by our kernels" clean
  # shellcheck disable=SC2086
  run "$cpu" train deck.cfg --set run.directory=by_cpu --set run.device=cpu $heads
  ok "with the losses of the processors" both 'close by_cudnn by_cpu 2e-2' 'close by_own by_cpu 2e-2'
  # shellcheck disable=SC2086
  train 1 in_any_order $heads --set run.measure_algorithms=true --set run.deterministic=false
  ok "in any order, too" both 'grep -Eq "^attention pass=backward .* order=any( qkv=fused)? by=" in_any_order/algorithms.txt' \
    'close in_any_order by_cpu 2e-2'
  sed 's/by=.*/by=cudnn/' in_any_order/algorithms.txt > any_order.txt
  # shellcheck disable=SC2086
  train 1 any_by_cudnn $heads --set run.measure_algorithms=true --set run.algorithms=any_order.txt --set run.deterministic=false
  ok "by cuDNN" close any_by_cudnn by_cpu 2e-2
}

test_timeline() {
  train 2 timed --set run.algorithms=two_chosen/algorithms.txt --set profile.timeline=trace.json --set zero_optimization.stage=2 --set run.steps=4
  ok "a timeline of one step" both 'grep -q matmul trace.json' 'grep -q reduce_scatter trace.json'
  ok "observing one step changes no bit" same timed two2
}

test_generate() {
  set -- generate deck.cfg --prompt "0 the" --tokens 40 --temperature 0
  run "$cpu" "$@" --set run.device=cpu
  cp "$scratch/out" text_cpu
  run "$tessera" "$@"
  ok "generation on the device: the processors' text" cmp text_cpu "$scratch/out"
}

# ---- what is wrong ----

# 22 GB of parameters and what belongs to them, some 400 of activations.
test_memory() {
  for i in 1 2 3 4 5; do cat text.txt; done > long.txt
  SHIM_MEMORY=1000000000 train 1 none --set model.n_embd=2048 --set model.n_layer=24 --set model.n_head=16 \
    --set train_batch_size=2560 --set gradient_accumulation_steps=1 --set data.path=long.txt
  ok "too little device memory: what is needed and free" both 'gave 2' \
    'told "an arena of [0-9.]+ GB is needed, [0-9.]+ .B are free.*with half the train_micro_batch_size_per_gpu"'
}

killed_itself() { [ "$status" -ne 0 ] && [ "$status" -ne 124 ]; }
has_rows() { [ -f "$1" ] && [ "$(wc -l < "$1")" -gt 3 ]; }

# kill_one DIRECTORY [WORD]...: one of two ranks dies and its launcher does not see it: the watchdog ends the job.
kill_one() {
  directory=$1
  shift
  rm -f victim
  # shellcheck disable=SC2016
  timeout -k 5 60 $mpiexec -n 2 sh -c '
    [ "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}" = 1 ] || exec "$@"
    "$@" & echo $! > victim; wait; sleep 30' sh "$tessera" train deck.cfg $share \
    --set run.steps=100000000 --set run.save_every=0 --set run.evaluate_every=0 --set run.step_timeout=2 \
    --set "run.directory=$directory" "$@" > "$scratch/out" 2> "$scratch/err" < /dev/null &
  job=$!
  tries=600
  while [ $tries -gt 0 ] && ! has_rows "$directory/metrics.csv"; do
    sleep 0.05
    tries=$((tries - 1))
  done
  kill -9 "$(cat victim)"
  wait $job
  status=$?
  ok "$directory: a rank dies silently: the job ends" killed_itself
  # NCCL's sockets may notice first.
  ok "$directory: and names it" told 'rank 1 on .* does not run for .*its process is (dead|gone)|remote process exited'
}

# UCX_TLS: a transport that reads the other's memory would end the program by itself.
test_killed() {
  UCX_TLS=posix,sysv,self
  export UCX_TLS
  kill_one killed_cpu --set run.device=cpu
  kill_one killed
  kill_one killed_stage --set pipeline.stages=2
  # Where it waits when the other dies is chance on a device.
  where='in stage0:[^ ]+ for boundary.0.[^ ]+ of rank 1'
  [ "${TEST_DEVICE:-}" != real ] || where='(in|for) '
  ok "and what a stage waits for" told "waiting: rank 0 $where"
}

parts=${*:-one ranks rest}
for part in $parts; do
  case $part in
    one)
      test_losses
      test_resume
      ;;
    ranks)
      test_ranks
      test_shared_model
      test_offload
      test_limits
      test_activations
      test_experts
      test_cut_experts
      test_timeline
      ;;
    rest)
      test_generate
      test_algorithms
      test_attention
      test_memory
      test_killed
      ;;
    *)
      echo "device.sh: $part is none of its parts: one, ranks, rest" >&2
      exit 2
      ;;
  esac
done
finish
