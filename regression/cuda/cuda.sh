#!/bin/sh
# TAP: training on a GPU, what only a stand-in of one can be made to do (device.sh has what holds on any): faults, another driver,
# little memory to the byte, and what is told then.
# shellcheck source=regression/cuda/runs.sh
. "${srcdir:-.}/regression/cuda/runs.sh"

test_peak() {
  train 1 one
  run "$tessera" plan deck.cfg --target cuda --format json
  planned=$(sed 's/.*"reserve_bytes": \([0-9]*\), "peak_bytes": \([0-9]*\).*/\2 \1/' "$scratch/out" | awk '{ print $1 - $2 }')
  peak=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) { if ($i == "peak_bytes") { c = i } } } END { print $c }' one/metrics.csv)
  # The stand-in's libraries take nothing, and not a page is lost to alignment.
  ok "peak_bytes is the device's: $peak, planned $planned" within 4096 "$planned" "$peak"
}

test_refused() {
  train 1 chosen --set run.measure_algorithms=true --set run.steps=1
  for method in 0 1; do
    SHIM_BLAS_REFUSE=$method train 1 refused$method --set run.measure_algorithms=true --set run.steps=1
    ok "algorithm $method, offered and then refused, is not chosen" clean
  done
}

test_bad() {
  SHIM_DEVICES=0 train 1 none
  ok "no device" both 'gave 2' 'told "rank 0 on [^ ]+: run.device is cuda, but this process sees no GPU"'
  ok "nothing is written" [ ! -e none ]
  touch disk
  train 2 host --set zero_optimization.offload_optimizer.device=nvme --set zero_optimization.offload_optimizer.nvme_path=disk \
    --set zero_optimization.stage3_param_persistence_threshold=0
  ok "no directory for state in files" both 'gave 2 && [ ! -e host ]' 'told "error: rank [01] on [^ ]+: disk: cannot be created: File exists; nvme_path names"'
  SHIM_DEVICES=0 train 1 auto --set run.device=auto --set run.steps=1
  ok "auto takes the processors then" both 'gave 0' 'told oneDNN'
  SHIM_DRIVER=12040 train 1 none
  ok "too old a driver" both 'gave 2' 'told "the driver knows CUDA 12.4"'
  SHIM_DRIVER=12040 train 1 old --set run.device=auto --set run.steps=1
  ok "auto says that it cannot use it" both 'gave 0' 'told "warning: run.device is auto: the driver knows CUDA 12.4"'
  SHIM_ARCHITECTURE=80 train 1 none
  ok "another architecture" both 'gave 2' 'told "sm_80.*built for sm_90"'
  SHIM_DEVICES=1 train 2 none
  ok "more ranks than devices" both 'gave 2' 'told "ranks 0 and 1 on [^ ]+ are both on GPU .* which has 2 ranks, and a rank sees 1 GPU"'
  SHIM_DEVICES=1 train 2 shared --set run.share_device=true --set run.steps=2
  ok "which may be asked for, and is told" both 'gave 0' 'told "ranks share a GPU"'
  MPIR_CVAR_NUM_CLIQUES=2 MPIR_CVAR_CLIQUES_BY_BLOCK=1 SHIM_DEVICES=1 train 2 apart --set run.steps=2
  ok "the same bus on two nodes is two devices" both clean '! told "ranks share a GPU"'
  train 1 none --set debug.memcheck=true
  ok "memcheck is for the host" both 'gave 2' 'told compute-sanitizer'
  train 1 none --set model.n_embd=288 --set model.n_head=1
  ok "heads that no kernel takes" both 'gave 2' 'told "heads of at most 256"'
  SHIM_MEMORY=4700000 train 1 none
  ok "too little device memory: what is needed and free, what else would need" both 'gave 2' \
    'told "an arena of 4.76 MB is needed, 4.70 MB are free.*with half the train_micro_batch_size_per_gpu: [0-9.]+ MB, which fits, with act"'
  SHIM_MEMORY=4600000 train 1 none --set activation_checkpointing.enabled=true
  ok "and less kept where activations are computed again already" both 'gave 2' \
    'told "with activation_checkpointing.policy = \"block\", .interval = 2: [0-9.]+ MB"'
  # The plan fits, but for some bytes that a library takes first.
  SHIM_MEMORY=$((planned + 4)) train 1 none --set run.evaluate_every=0
  ok "out of device memory later: who took it" both 'gave 1' 'told "an arena of .* is needed, .* of 4.76 MB are free.  4.76 MB were free when this process"'
  SHIM_MEMORY=1000000000000000 train 1 none --set model.n_embd=98304 --set model.n_layer=12 --set model.n_head=1024
  ok "out of the host's memory beside it" both 'gave 2' 'told "not enough memory beside the GPUs: .* 1 rank of .* need .* TB of the host"'
  SHIM_FAIL_LAUNCH=200 train 1 broken
  ok "an error in mid-step names device, op and call" both '! gave 0' 'told "device 0, op [a-z_.0-9]+: .*cudaErrorIllegalAddress"'
  SHIM_FAIL_RUN=400 train 1 late
  ok "one that shows later, what was queued and how to find the op" both '! gave 0' \
    'told "cudaErrorIllegalAddress.*queued last: the (update|.* pass) of a step, recorded.*CUDA_LAUNCH_BLOCKING=1"'
  leaves="--set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=cpu
    --set zero_optimization.offload_param.device=cpu"
  # shellcheck disable=SC2086
  SHIM_FAIL_RUN=300 SHIM_FAIL_AS=214 train 2 ecc $leaves --set run.offload_update=host
  ok "a GPU that fails while state comes and goes: which, where, and what to do" both '! gave 0' \
    'told "rank [01] on [^ ]+: .*GPU [01] .* has failed: .*cudaErrorECCUncorrectable.*sbatch --exclude"'
  # shellcheck disable=SC2086
  SHIM_FAIL_RUN=300 SHIM_FAIL_AS=46 train 1 gone $leaves
  ok "or is gone" both '! gave 0' 'told "GPU 0 .* has failed: .*cudaErrorDevicesUnavailable"'
  # shellcheck disable=SC2086
  SHIM_PINNED=10000 train 2 pinned $leaves
  ok "page-locked memory refused: how much, and the ways out" both '! gave 0' \
    'told "rank [01] on [^ ]+: .* of the host.s memory that a GPU can reach cannot be had .*ulimit -l.*run.host_memory_limit"'
  ok "before the first step" [ ! -e pinned/metrics.csv ]
  SHIM_NCCL_ERROR=1:20 train 2 dead
  ok "a dead peer in a recorded step" both '! gave 0' \
    'told "rank 1 on .*waiting for the device: remote process.*recorded and replayed with the step, queued last: the (update|.* pass) of a step"'
  SHIM_NCCL_ERROR=1:20 train 2 dead_plain --set run.cuda_graphs=false
  ok "in a plain one with the collective" both '! gave 0' 'told "rank 1 on .*remote process.*is number [0-9]+, (all_gather|reduce_scatter|all_reduce), op "'
  SHIM_STUCK=1 train 1 stuck --set run.peer_timeout=1
  ok "a device that does not end" both '! gave 0' 'told "waiting for the device: nothing came for 1 s .run.peer_timeout.; queued last: "'
  run "$tessera" plan deck.cfg --target cuda --ranks 2
  ok "a plan for GPUs needs none" both 'gave 0' 'told "on its GPU"'
  TESSERA_ISA=generic run "$tessera" plan deck.cfg --target cuda --set bf16.enabled=auto
  ok "bf16.enabled = auto: GPUs have bf16 whatever the processor has" both 'gave 0' 'told "parameters, bf16, "'
  if ! "$cpu" plan deck.cfg --target cuda > "$scratch/out" 2> "$scratch/err"; then
    run "$cpu" train deck.cfg
    ok "a build without CUDA says so" both 'gave 2' 'told "built without CUDA"'
  fi
}

test_stuck() {
  SHIM_STUCK=1 train 1 stuck_watched --set run.first_step_timeout=2
  ok "a rank alone whose device does not end" both '! gave 0' 'told "takes longer than run.first_step_timeout = 2 s"'
}

test_long_text() {
  run env SHIM_MEMORY=2000000 "$tessera" generate deck.cfg --prompt "0 the" --tokens 50000 --set model.n_positions=60000 \
    --set data.sequence_length=60000
  ok "too much to keep: the way out" said 2 "fewer --tokens, or a smaller data.sequence_length"
}

test_wide_heads() {
  cat > wide.cfg << 'END'
model = { model_type = "llama"; vocab_size = 256; hidden_size = 24; intermediate_size = 24; num_hidden_layers = 1;
          num_attention_heads = 2; head_dim = 320; max_position_embeddings = 32; };
data = { path = "text.txt"; format = "text"; };
run = { directory = "wide"; steps = 1; device = "cuda"; measure_algorithms = false; };
train_batch_size = 1;
END
  run "$tessera" train wide.cfg
  ok "rotary heads that are too wide" said 2 "rotary positions on a GPU turn at most 256 elements of a head; run.device"
}

test_peak
test_refused
test_bad
test_stuck
test_long_text
test_wide_heads
finish
