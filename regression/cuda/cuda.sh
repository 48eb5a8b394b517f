#!/bin/sh
# TAP: training on a GPU, on the stand-in of one (regression/shim): the same losses as on the processors, the same bits
# however the device orders its work, going on from one to the other, and what is told when something is wrong.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"
cpu=$tessera
tessera=$(dirname "$cpu")/regression/shim/tessera_shim
if [ ! -x "$tessera" ]; then
  echo "1..0 # SKIP no C++ compiler for the stand-in"
  exit 0
fi
export SHIM_DEVICES=4 OMP_NUM_THREADS=1

cat > deck.cfg << 'END'
model = { model_type = "gpt2"; vocab_size = 256; n_embd = 24; n_layer = 2; n_head = 3; n_positions = 32;
          attn_pdrop = 0.1; embd_pdrop = 0.1; resid_pdrop = 0.1; };
data = { path = "text.txt"; format = "text"; sequence_length = 24; validation_fraction = 0.1; seed = 1; };
run = { directory = "run"; steps = 6; seed = 1; evaluate_every = 3; evaluate_batches = 2; threads = 1; log_every = 2; save_every = 3;
        device = "cuda"; measure_algorithms = false; };
train_batch_size = 4; gradient_accumulation_steps = 2;
optimizer = { type = "AdamW"; params = { lr = 1e-2; weight_decay = 0.1; }; no_decay = ["ln_", "bias"]; };
gradient_clipping = 1.0;
zero_optimization = { stage = 1; overlap_comm = true; stage3_param_persistence_threshold = 100; };
debug = { digest_every = 1; };
END

# train RANKS DIRECTORY [WORD]...
train() {
  n=$1
  directory=$2
  shift 2
  run $mpiexec -n "$n" "$tessera" train deck.cfg --set "run.directory=$directory" "$@"
}
within() { [ $(($3 - $2)) -ge 0 ] && [ $(($3 - $2)) -lt "$1" ]; }
same() { "$cpu" compare "$@"; }
# same_numbers DIRECTORY: its two ranks have entered as many collectives of the group of all, 0.
same_numbers() { grep -Eho ' 0:[1-9][0-9]*$' "$1"/status/[!@]* | sort | uniq -c | grep -Eq '^ *2 '; }
# close DIRECTORY DIRECTORY TOLERANCE: losses and norms of all steps.
close() {
  paste -d, "$1/metrics.csv" "$2/metrics.csv" | awk -F, -v most="$3" '
    NR == 1 { for (i = 1; i <= NF / 2; ++i) { if ($i == "loss" || $i == "grad_norm") { column[i] = 1 } } half = NF / 2; next }
    { for (i in column) { d = ($i - $(i + half)) / $i; d = d < 0 ? -d : d; worst = d > worst ? d : worst } ++n }
    END { print n " rows, " worst; exit !(n > 0 && worst <= most) }'
}

# ---- the same run ----

test_losses() {
  run "$cpu" train deck.cfg --set run.directory=cpu --set run.device=cpu
  train 1 one
  ok "a run on the device ends well" clean
  ok "its losses and norms are those of the processors" close one cpu 1e-5 # another order of sums, six steps
  run "$tessera" plan deck.cfg --target cuda --format json
  planned=$(sed 's/.*"reserve_bytes": \([0-9]*\), "peak_bytes": \([0-9]*\).*/\2 \1/' "$scratch/out" | awk '{ print $1 - $2 }')
  peak=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) { if ($i == "peak_bytes") { c = i } } } END { print $c }' one/metrics.csv)
  # The stand-in's libraries take nothing, and not a page is lost to alignment.
  ok "peak_bytes is the device's: $peak, planned $planned" within 4096 "$planned" "$peak"
  run "$cpu" train deck.cfg --set run.directory=cpu16 --set run.device=cpu --set bf16.enabled=true
  train 1 one16 --set bf16.enabled=true
  ok "also in bf16" close one16 cpu16 2e-2 # 2^-9 a rounding, fused products round less often
  for choice in 'policy="block"' 'policy="sac";interval=2'; do
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
  # shellcheck disable=SC2086
  train 2 tp_whole $shared --set tensor_parallel.sequence_parallel=false --set zero_optimization.stage=3
  ok "with all tokens on each" both clean 'close tp_whole cpu4 1e-5'
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
  for method in 0 1; do
    SHIM_BLAS_REFUSE=$method train 1 refused$method --set run.measure_algorithms=true --set run.steps=1
    ok "algorithm $method, offered and then refused, is not chosen" clean
  done
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

told() { grep -qE "$1" "$scratch/err" "$scratch/out"; }

# Heads of 64 are what cuDNN takes: the table says who computed them, and either way the run is that of the processors.
test_attention() {
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
}

test_timeline() {
  train 2 timed --set run.algorithms=two_chosen/algorithms.txt --set profile.timeline=trace.json --set zero_optimization.stage=2 --set run.steps=4
  ok "a timeline of one step" both 'grep -q matmul trace.json' 'grep -q reduce_scatter trace.json'
  ok "observing one step changes no bit" same timed two2
}

# ---- what is wrong ----

test_bad() {
  SHIM_DEVICES=0 train 1 none
  ok "no device" both 'gave 2' 'told "rank 0 on [^ ]+: run.device is cuda, but this process sees no GPU"'
  ok "nothing is written" [ ! -e none ]
  train 2 host --set zero_optimization.offload_optimizer.device=cpu
  ok "offload to the host" both 'gave 2 && [ ! -e host ]' \
    'told "error: --set: zero_optimization.offload_optimizer.device: .cpu.: refused, not there yet on GPUs"'
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
    "$@" & echo $! > victim; wait; sleep 30' sh "$tessera" train deck.cfg \
    --set run.steps=100000000 --set run.save_every=0 --set run.evaluate_every=0 --set run.step_timeout=2 \
    --set "run.directory=$directory" "$@" > "$scratch/out" 2> "$scratch/err" < /dev/null &
  job=$!
  tries=200
  while [ $tries -gt 0 ] && ! has_rows "$directory/metrics.csv"; do
    sleep 0.05
    tries=$((tries - 1))
  done
  kill -9 "$(cat victim)"
  wait $job
  status=$?
  ok "$directory: a rank dies silently: the job ends" killed_itself
  ok "$directory: and names it" told 'rank 1 on .* does not run for .*its process is (dead|gone)'
}

# UCX_TLS: a transport that reads the other's memory would end the program by itself.
test_killed() {
  UCX_TLS=posix,sysv,self
  export UCX_TLS
  kill_one killed_cpu --set run.device=cpu
  kill_one killed
  kill_one killed_stage --set pipeline.stages=2
  ok "and whose message a stage waits for" told 'waiting: rank 0 in stage0:[^ ]+ for boundary.0.[^ ]+ of rank 1'
  SHIM_STUCK=1 train 1 stuck_watched --set run.first_step_timeout=2
  ok "a rank alone whose device does not end" both '! gave 0' 'told "takes longer than run.first_step_timeout = 2 s"'
}

# ---- generation; what the kernels cannot do ----

test_generate() {
  set -- generate deck.cfg --prompt "0 the" --tokens 40 --temperature 0
  run "$cpu" "$@" --set run.device=cpu
  cp "$scratch/out" text_cpu
  run "$tessera" "$@"
  ok "generation on the device: the processors' text" cmp text_cpu "$scratch/out"
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

test_losses
test_generate
test_wide_heads
test_ranks
test_shared_model
test_resume
test_algorithms
test_attention
test_timeline
test_bad
test_killed
finish
