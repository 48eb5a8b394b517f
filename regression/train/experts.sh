#!/bin/sh
# TAP: mixtures of experts on grids: what a checkpoint of one has, any other goes on from, exports and begins from; and what
# is said of experts.  TEST_EXPERTS_ALL, with any value, is for more grids of each.
# shellcheck source=regression/cli_common.sh
build=$(pwd)
. "${srcdir:-.}/regression/cli_common.sh"
golden=$top/regression/golden
same_tensors() { "$build/regression/io/test_safetensors" same "$@"; }

more() { [ -n "${TEST_EXPERTS_ALL:-}" ]; }

# train RANKSxEP DIRECTORY CASE [WORD]...: keeps stdout, stderr, status.
train() {
  on=$1
  directory=$2
  case=$3
  shift 3
  run $mpiexec -n "${on%x*}" "$tessera" train "$golden/$case.cfg" --set "run.directory=$directory" --set run.threads=1 \
    --set "model.from=$golden/$case" --set "data.path=$golden/$case/tokens.bin" --set run.steps=8 --set run.save_every=4 \
    --set train_batch_size=4 --set train_micro_batch_size_per_gpu="$((4 / ${on%x*}))" --set debug.digest_every=1 \
    --set "expert_parallel.autoep_size=${on#*x}" "$@"
}

# Losses of grids are equal to rounding: sums in another order.
other_grid=2e-6

# resume FROM GRID TOLERANCE NAME [WORD]...: the run FROM, cut back to step 4, goes on and ends as FROM did.
resume() {
  from=$1
  grid=$2
  tolerance=$3
  title=$4
  shift 4
  rm -rf again
  cp -r "$from" again
  rm -rf again/step_00000008
  train "$grid" again mixtral --resume auto "$@"
  ok "$title: goes on" gave 0
  ok "$title: like one that never stopped" "$tessera" compare again "$from" --tolerance "$tolerance"
}

# Five experts, so of two ranks one has three, of four three have one.
test_resume() {
  train 1x1 one mixtral
  ok "one rank" gave 0
  train 4x2 four mixtral --set zero_optimization.stage=1
  ok "experts of two, beside two" gave 0
  ok "the same losses" "$tessera" compare four one --tolerance $other_grid
  resume four 4x2 0 "ep 2 of 4, at stage 3" --set zero_optimization.stage=3
  resume four 1x1 $other_grid "on one rank"
  ! more || resume four 4x4 $other_grid "on ep 4" --set zero_optimization.stage=2
  resume one 2x2 $other_grid "from one rank on ep 2" --set zero_optimization.stage=3
  ! more || resume four 4x2 $other_grid "with tp" --set tensor_parallel.autotp_size=2 --set train_micro_batch_size_per_gpu=2
  cut="--set tensor_parallel.autotp_size=2 --set expert_parallel.expert_tensor_parallel_size=2 --set train_micro_batch_size_per_gpu=2"
  # shellcheck disable=SC2086
  ! more || resume four 4x2 $other_grid "with experts cut by tp" $cut --set zero_optimization.stage=3
  # shellcheck disable=SC2086
  train 4x2 shared mixtral $cut --set zero_optimization.stage=1
  ok "experts cut by tp: the same losses" "$tessera" compare shared one --tolerance $other_grid
  # shellcheck disable=SC2086
  resume shared 4x2 0 "experts cut by tp, at stage 3" $cut --set zero_optimization.stage=3
  resume shared 2x2 $other_grid "from experts cut by tp on ep 2"
  # shellcheck disable=SC2086
  ! more || resume one 2x1 $other_grid "from one rank on tp 2 that cuts experts" $cut --set train_micro_batch_size_per_gpu=4
  hdf5 "virtual datasets show experts whole" h5diff -d 1e-4 shared/step_00000008/model.h5 one/step_00000008/model.h5 /parameter
  if more; then
    # shellcheck disable=SC2086
    train 4x2 cast mixtral $cut --set torch_autocast.enabled=true
    train 4x2 cast_whole mixtral --set torch_autocast.enabled=true --set tensor_parallel.autotp_size=2 \
      --set train_micro_batch_size_per_gpu=2
    # Rounded to bf16, 2^-9, in other places.
    ok "experts cut by tp, under autocast" "$tessera" compare cast cast_whole --tolerance 2e-2
  fi
  train 4x2 low mixtral --set bf16.enabled=true
  resume low 4x2 0 "in bf16, at stage 2" --set bf16.enabled=true --set zero_optimization.stage=2
}

# Optimizers of whole tensors and of matrices: every expert is a matrix, wherever it is.
test_optimizers() {
  for optimizer in Muon ${TEST_EXPERTS_ALL:+Lamb}; do
    train 1x1 "$optimizer" mixtral --set "optimizer.type=$optimizer"
    for stage in ${TEST_EXPERTS_ALL:+0} 3; do
      rm -rf spread
      train 4x2 spread mixtral --set "optimizer.type=$optimizer" --set zero_optimization.stage=$stage
      ok "$optimizer, stage $stage" "$tessera" compare "$optimizer" spread --tolerance $other_grid
    done
  done
}

# Weights that no step changes come out as they went in, a tensor an expert.
test_export() {
  train 2x2 still mixtral --set optimizer.params.lr=0 --set zero_optimization.stage=3
  run "$tessera" zero_to_fp32 still still.hf --safe_serialization
  ok "a directory for transformers" gave 0
  ok "with the tensors it began from" same_tensors "$golden/mixtral/model.safetensors" still.hf/model.safetensors F32
  run "$tessera" zero_to_fp32 still parts.hf --safe_serialization --max-shard-size 40kB
  ok "in several files, which an index lists" both 'gave 0' \
    'grep -q "\"model.layers.1.block_sparse_moe.experts.4.w2.weight\": \"model-000" parts.hf/model.safetensors.index.json'
  train 1x1 begun mixtral --set model.from=parts.hf --set run.steps=1
  train 1x1 first mixtral --set run.steps=1
  ok "another run begins from them" "$tessera" compare begun first --tolerance 0
  train 1x1 fused qwen3_moe --set optimizer.params.lr=0
  run "$tessera" zero_to_fp32 fused fused.hf --safe_serialization
  train 1x1 begun2 qwen3_moe --set model.from=fused.hf --set run.steps=1
  train 2x2 first2 qwen3_moe --set run.steps=1
  ok "all experts in one tensor, or a tensor each" "$tessera" compare begun2 first2 --tolerance $other_grid
  train 1x1 bias dots1 --set run.steps=2 --set bf16.enabled=true
  run "$tessera" zero_to_fp32 bias bias.h5
  hdf5 "a router's bias" h5dump -d /model.layers.2.mlp.gate.e_score_correction_bias bias.h5
  ok "is as it was, in bf16 too" grep -q '(0): 30, -10,' "$scratch/out"
  train 2x1 moved dots1 --set run.steps=4 --set bf16.enabled=true --set expert_parallel.load_balance_coeff=0.01 \
    --set zero_optimization.stage=3 --set zero_optimization.stage3_gather_16bit_weights_on_model_save=true
  run "$tessera" zero_to_fp32 moved moved.h5 --dtype bf16 --exclude-frozen-parameters
  hdf5 "and is written in fp32 beside bf16" h5dump -d /model.layers.2.mlp.gate.e_score_correction_bias moved.h5
  ok "with all its steps" grep -q '(0): 29.96, -9.96,' "$scratch/out"
  train 1x1 reread dots1 --set model.from=moved/hf --set run.steps=1 --set optimizer.params.lr=0
  run "$tessera" zero_to_fp32 reread reread.h5
  hdf5 "the same where a run leaves a model" h5dump -d /model.layers.2.mlp.gate.e_score_correction_bias reread.h5
  ok "with all its steps, too" grep -q '(0): 29.96, -9.96,' "$scratch/out"
}

# begin RANKS DIRECTORY [WORD]...: a step that changes nothing, of a model of this size, with the weights of dense.
begin() {
  on=$1
  directory=$2
  shift 2
  run $mpiexec -n "$on" "$tessera" train "$golden/mixtral.cfg" $small --set "run.directory=$directory" --set run.steps=1 \
    --set optimizer.params.lr=0 --set train_micro_batch_size_per_gpu="$((4 / on))" --weights "${weights:-dense}" "$@"
}
same_loss() {
  awk -F, -v most="$3" 'FNR == 2 { loss[++n] = $3 } END { d = (loss[1] - loss[2]) / loss[1]; exit n != 2 || d > most || -d > most }' \
    "$1/metrics.csv" "$2/metrics.csv"
}

# A dense model's MLPs become its experts; nothing of the first loss changes.
test_upcycling() {
  small="--set model.from= --set model.hidden_size=36 --set model.intermediate_size=21 --set model.num_hidden_layers=3
    --set model.num_attention_heads=6 --set model.num_key_value_heads=2 --set model.head_dim=8 --set model.vocab_size=67
    --set model.max_position_embeddings=32 --set data.path=$golden/mixtral/tokens.bin --set run.threads=1
    --set train_batch_size=4 --set model.rope_theta=10000 --set model.rms_norm_eps=1e-5"
  experts="--set model.num_experts=5 --set model.num_experts_per_tok=2"
  run "$tessera" train "$golden/mixtral.cfg" $small --set model.model_type=mistral --set run.directory=dense --set run.steps=4 \
    --set train_micro_batch_size_per_gpu=4
  begin 1 dense1 --set model.model_type=mistral
  begin 2 mixtral1 $experts --set model.model_type=mixtral --set expert_parallel.autoep_size=2 \
    --set zero_optimization.stage=3
  ok "experts begin as copies" both '! grep -q "other settings" "$scratch/err"' \
    'printed "dense/step_00000004 is of a dense model: experts begin as copies of its MLPs"'
  ok "weights of a token's experts that add up" same_loss dense1 mixtral1 1e-6
  # Scores are those of a router from the seed, which are not quite equal.
  begin 1 olmoe1 $experts --set model.model_type=qwen3_moe --set model.moe_intermediate_size=21 \
    --set model.norm_topk_prob=false --set model.attention_bias=false
  ok "a tensor that the dense model has not" said 2 'is of another model: it has no model.layers.0.self_attn.q_norm.weight'
  begin 1 qwen1 $experts --set model.model_type=qwen2_moe --set model.moe_intermediate_size=21 \
    --set model.shared_expert_intermediate_size=11 --set model.norm_topk_prob=true --set model.attention_bias=false
  ok "an expert of all tokens" same_loss dense1 qwen1 1e-6
  begin 1 qwen2 $experts --set model.model_type=qwen2_moe --set model.moe_intermediate_size=21 \
    --set model.shared_expert_intermediate_size=0 --set model.norm_topk_prob=false --set model.attention_bias=false
  ok "weights that do not add up, to how far scores are from equal" same_loss dense1 qwen2 5e-3
  run "$tessera" zero_to_fp32 dense dense.hf --format safetensors
  weights=dense.hf
  begin 2 from.hf $experts --set model.model_type=mixtral --set expert_parallel.autoep_size=2 \
    --set zero_optimization.stage=3
  ok "from a Hugging Face directory, too" printed 'dense.hf is of a dense model: experts begin as copies of its MLPs, 3 other'
  ok "all of it is read" both 'gave 0' '! grep -q "not read" "$scratch/err"'
  ok "with the same values" "$tessera" compare mixtral1 from.hf --tolerance 0
  begin 1 wide.hf $experts --set model.model_type=mixtral --set model.intermediate_size=22
  weights=
  ok "experts of another width" said 2 'mlp.gate_proj.weight is F32 \[21, 36\]; the model wants a floating-point \[22, 36\]'
  begin 1 wide $experts --set model.model_type=mixtral --set model.intermediate_size=22
  ok "experts of another width" said 2 'experts.w1.weight is \[21, 36\]; the deck.s model has it as \[5, 22, 36\]'
  train 1x1 sparse mixtral --set run.steps=1
  run "$tessera" train "$golden/mixtral.cfg" --set run.directory=dense2 --set "model.from=$golden/mixtral" \
    --set "data.path=$golden/mixtral/tokens.bin" --set model.num_experts=4 --weights sparse
  ok "experts are not copied from experts" said 2 'sparse/step_00000001'
}

# grown DIRECTORY [WORD]...: a step that changes nothing, of gpt2's golden with the weights of dense.g.
grown() {
  directory=$1
  shift
  train 1x1 "$directory" gpt2 --set run.steps=1 --set optimizer.params.lr=0 --set moe.drop_tokens=false --weights dense.g "$@"
}

# The same of DeepSpeed's layers, with biases, and with the MLP beside them.
test_upcycled_layers() {
  train 1x1 dense.g gpt2 --set run.steps=4
  train 1x1 dense.g1 gpt2 --set run.steps=1 --set optimizer.params.lr=0 --weights dense.g
  grown two --set moe.num_experts=3 --set moe.k=2 --set "moe.layers=[0, 1]"
  ok "layers of experts begin as copies" printed 'dense.g/step_00000004 is of a dense model'
  ok "weights of two that add up" same_loss dense.g1 two 1e-6
  grown one.g --set moe.num_experts=3 --set "moe.layers=[1]"
  ok "the weight of one, to how far scores are from equal" same_loss dense.g1 one.g 2e-2
  grown beside --set moe.num_experts=3 --set moe.k=2 --set moe.use_residual=true
  ok "the MLP beside them is that of the dense model" same_loss dense.g1 beside 1e-6
  train 1x1 dense.g0 gpt2 --set run.steps=1 --set optimizer.params.lr=0
  train 2x2 from.g gpt2 --set run.steps=1 --set optimizer.params.lr=0 --set moe.num_experts=3 --set moe.k=2 \
    --set moe.drop_tokens=false --set moe.use_residual=true
  ok "model.from is of a dense model: experts begin as copies" printed 'golden/gpt2 is of a dense model: experts begin as copies'
  ok "and the MLP beside them" same_loss dense.g0 from.g 1e-6
  grown even --set moe.num_experts=3 --set moe.k=2 --set moe.top2_2nd_expert_sampling=false --set moe.router_bias=true \
    --set expert_parallel.load_balance_coeff=0.5 --set run.steps=2
  ok "and biases of routers begin at 0" awk -F, '$1 == 1 { first = $10 } $1 == 2 { second = $10 } END { exit first != 0 || second != 0.5 }' even/moe.csv
}

# A small GPT-2 of no directory, whose first and third layers have experts.
tiny="--set model.model_type=gpt2 --set model.hidden_size=36 --set model.num_hidden_layers=3 --set model.num_attention_heads=4
    --set model.vocab_size=67 --set model.max_position_embeddings=32 --set model.resid_pdrop=0 --set model.embd_pdrop=0
    --set model.attn_pdrop=0"

test_said() {
  run "$tessera" plan "$golden/llama.cfg" --set "model.from=$golden/llama" --set moe.z_loss_coef=0.1
  ok "a loss of experts without any" said 2 'moe.z_loss_coef: a llama has no experts'
  train 1x1 none mixtral --set expert_parallel.score_func=sigmoid
  ok "another router than the family's" said 2 'score_func: "sigmoid": a mixtral has "softmax"'
  train 1x1 none mixtral --set expert_parallel.has_shared_experts=true
  ok "an expert of all tokens, where there is none" said 2 'has_shared_experts: true: a mixtral has no expert of all'
  cp -r "$golden/mixtral" broken
  "$build/regression/io/test_safetensors" spoil broken/model.safetensors model.layers.1.block_sparse_moe.experts.3.w1.weight
  train 1x1 nan mixtral --set model.from=broken --set run.steps=1
  ok "an expert that is not finite" said 1 'broken: 1 of 3780 values of all experts. model.layers.1.block_sparse_moe.experts.w1.weight are not'
  run "$tessera" plan "$golden/mixtral.cfg" --ranks 4 --layout --set "model.from=$golden/mixtral" \
    --set expert_parallel.autoep_size=2 --set train_micro_batch_size_per_gpu=1
  ok "the plan says who has which experts" printed 'experts.w1.weight .* along ep, dim 0: 0-2 3-4'
  run "$tessera" plan "$golden/mixtral.cfg" --ranks 4 --layout --set "model.from=$golden/mixtral" --set tensor_parallel.autotp_size=2 \
    --set expert_parallel.autoep_size=2 --set moe.enable_expert_tensor_parallelism=true --set train_micro_batch_size_per_gpu=2
  ok "of experts that are cut, too" printed 'experts.w2.weight .* row .* along ep, dim 0: 0-2 3-4, along tp, dim 2: 0-10 11-20'
  run "$tessera" plan "$golden/gpt2.cfg" --ranks 2 --set model.from= $tiny --set moe.num_experts=4 --set model.intermediate_size=1 \
    --set tensor_parallel.autotp_size=2 --set moe.enable_expert_tensor_parallelism=true
  ok "experts too narrow for tp" said 2 'expert_tensor_parallel_size: 2: of .* some rank would get nothing'
  run "$tessera" plan "$golden/mixtral.cfg" --ranks 4 --layout --set "model.from=$golden/mixtral" \
    --set expert_parallel.autoep_size=2 --set train_micro_batch_size_per_gpu=1
  ok "and how many parameters are at work" printed '^37.26 k parameters \(23.65 k for a token\)'
  # 6 N + 12 L C T a token, N of the matrices that a token meets: attention, router, two of five experts, head; of one sample.
  ok "FLOPs are those of the experts of a token" printed 'full attention \(6N \+ 12LCT\)  *2.8167e\+06'
  train 4x3 none mixtral
  ok "a grid that does not multiply" said 2 'expert_parallel.autoep_size = 3 wants a multiple of 3 ranks'
  train 1x6 none mixtral
  ok "more ranks than experts" said 2 'autoep_size: 6 ranks for the 5 experts of a layer'
  ok "nothing is written" [ ! -e none ]
}

# What moe.csv says of a grid is what it says of one rank: \$1 rows, numbers to rounding.
same_loads() {
  paste -d, "$1/moe.csv" "$2/moe.csv" | awk -F, '
    NR > 1 { for (i = 1; i <= 10; ++i) { d = $i - $(i + 10); if (d < 0) d = -d; if (d > 1e-5 * ($i > 1 ? $i : 1)) bad = 1 } }
    END { exit bad || NR != 17 || NF != 20 }'
}

# Biases of routers go on where they were, are written to files, and are seen.
test_balance() {
  follows="--set expert_parallel.load_balance_coeff=0.01 --set gradient_accumulation_steps=auto"
  train 1x1 follow dots1 $follows
  ok "biases that follow the balance" both 'gave 0' '! grep -q "no effect on" "$scratch/err"'
  train 1x1 frozen dots1 $follows --set 'frozen=["layers.1.mlp.gate"]' --set run.steps=1
  ok "biases that are frozen are told of" both 'gave 0' \
    'grep -q "load_balance_coeff: no effect on 1 of 2 routers, whose biases .frozen. or" "$scratch/err"'
  train 4x2 follow4 dots1 $follows --set pipeline.stages=2 --set train_micro_batch_size_per_gpu=1
  ok "on a pipeline with ep" "$tessera" compare follow4 follow --tolerance $other_grid
  ok "a row a step and layer, the same" same_loads follow4 follow
  if more; then
    train 2x1 follow2 dots1 $follows --set tensor_parallel.autotp_size=2 --set tensor_parallel.sequence_parallel=true \
      --set train_micro_batch_size_per_gpu=2 --set zero_optimization.stage=3
    ok "with tp" "$tessera" compare follow2 follow --tolerance $other_grid
    ok "the same loads" same_loads follow2 follow
  fi
  rm -rf follow/step_00000008
  cp -r follow again.f
  train 2x2 again.f dots1 $follows --resume auto --set zero_optimization.stage=3
  ok "they go on on ep 2" "$tessera" compare again.f follow4 --tolerance $other_grid
  ok "rows of before, and those of now" same_loads again.f follow4
  train 1x1 long dots1 --set run.steps=101 --set data.sequence_length=8
  ok "an expert without a token is told of" grep -q 'step 100: .* experts* got no token for 100 steps, expert 1 of layer 1 the first' \
    "$scratch/err"
  run "$tessera" status long
  ok "and status names it" printed 'dead    expert 1 of layer 1'
}

# DeepSpeed's layers, with all that it leaves to chance: the same choices and drops on every grid.
test_layers() {
  chance="--set moe.use_rts=true --set moe.noisy_gate_policy=RSample"
  train 1x1 layers gpt2_top1 $chance
  ok "DeepSpeed's layers of experts" gave 0
  # The gradient of a tied table comes whenever it does.
  train 4x1 checked gpt2_top2 --set pipeline.stages=2 --set gradient_accumulation_steps=2 --set train_micro_batch_size_per_gpu=1 \
    --set debug.memcheck=true --set run.steps=2
  ok "on a pipeline of replicas memory is as it was planned" gave 0
  ok "some tokens are dropped" awk -F, 'NR > 1 && $7 > 0 { some = 1 } END { exit !some }' layers/moe.csv
  train 4x2 layers4 gpt2_top1 $chance --set zero_optimization.stage=3
  ok "noise, choices and drops on ep 2 of 4" "$tessera" compare layers4 layers --tolerance $other_grid
  ok "the same loads, and drops" same_loads layers4 layers
  if more; then
    train 2x1 layers2 gpt2_top1 $chance --set pipeline.stages=2 --set train_micro_batch_size_per_gpu=1 \
      --set gradient_accumulation_steps=auto
    ok "on a pipeline" "$tessera" compare layers2 layers --tolerance $other_grid
  fi
  train 1x1 lone1 gpt2_top1 --set "moe.num_experts=3" --set "moe.layers=[0]" --set model.from= --set moe.aux_loss_coef=1.0 $tiny \
    --set run.steps=4
  train 2x1 lone2 gpt2_top1 --set "moe.num_experts=3" --set "moe.layers=[0]" --set model.from= --set moe.aux_loss_coef=1.0 $tiny \
    --set run.steps=4 --set pipeline.stages=2 --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=auto
  ok "whose last stage has no experts" "$tessera" compare lone2 lone1 --tolerance $other_grid
  train 1x1 idle gpt2_top2 --set moe.drop_tokens=false --set moe.use_rts=false --set run.steps=1
  ok "keys that nothing reads are told of" both 'grep -q "moe.capacity_factor: no effect: moe.drop_tokens is false" "$scratch/err" "$scratch/out"' \
    'grep -q "moe.use_rts: no effect" "$scratch/err" "$scratch/out"'
  resume_layers
  train 1x1 sampled gpt2_top2 --set moe.top2_2nd_expert_sampling=true --set moe.noisy_gate_policy=Jitter
  train 2x1 sampled2 gpt2_top2 --set moe.top2_2nd_expert_sampling=true --set moe.noisy_gate_policy=Jitter \
    --set tensor_parallel.autotp_size=2 --set tensor_parallel.sequence_parallel=false --set train_micro_batch_size_per_gpu=4
  ok "second experts that are sampled, jitter, tp" "$tessera" compare sampled2 sampled --tolerance $other_grid
  if more; then
    train 2x1 rows llama_topk --set moe.drop_tokens=false --set sequence_parallel_size=2 --set train_micro_batch_size_per_gpu=4
    train 1x1 row llama_topk --set moe.drop_tokens=false
    ok "without a limit, ranks share samples" "$tessera" compare rows row --tolerance $other_grid
  fi
  train 1x1 muon gpt2_top1 --set optimizer.type=Muon
  train 4x2 muon4 gpt2_top1 --set optimizer.type=Muon --set zero_optimization.stage=2
  ok "Muon has no matrix of biases" "$tessera" compare muon muon4 --tolerance $other_grid
}

# planned RANKSxEP SAVE: bytes of activations, with models that have more tokens than parameters.
planned() {
  "$tessera" plan "$golden/mixtral.cfg" --ranks "${1%x*}" --set "model.from=$golden/mixtral" --format json \
    --set train_micro_batch_size_per_gpu=4 --set train_batch_size="$((4 * ${1%x*}))" --set "expert_parallel.autoep_size=${1#*x}" \
    --set "moe.save=$2" | sed 's/.*"activation_bytes": \([0-9]*\).*/\1/'
}

# To the choices of the first step, before updates differ in rounding.
same_routing() {
  [ -n "$(grep '^1,' "$1/moe.csv")" ] && [ "$(grep '^1,' "$1/moe.csv" | cut -d, -f1-7)" = "$(grep '^1,' "$2/moe.csv" | cut -d, -f1-7)" ]
}
fewer_rows() {
  awk 'NF == 7 && $1 ~ /^[1248]$/ { ++n; room = $1 == 1 ? $2 : room; bad = bad || $2 * $1 != room || $3 != int(($2 * 3 + 4) / 5) }
       END { exit n != 4 || bad }' "$scratch/out"
}

# Tokens in chunks, which need not be even.
test_chunks() {
  for chunks in 1 ${TEST_EXPERTS_ALL:+2} 5; do
    train 2x2 "chunks.$chunks" mixtral --set "moe.token_chunks=$chunks" --set moe.save=rows
  done
  ! more || ok "tokens in two chunks" "$tessera" compare chunks.1 chunks.2 --tolerance $other_grid
  ok "tokens in five chunks" "$tessera" compare chunks.1 chunks.5 --tolerance $other_grid
  ok "which are sent to the same experts at first" same_routing chunks.1 chunks.5
  train 4x2 chunks.again mixtral --set moe.token_chunks=5 --set moe.save=nothing --set zero_optimization.stage=3
  train 4x2 chunks.2s mixtral --set moe.token_chunks=5 --set zero_optimization.stage=2
  ok "stages and rows that are dispatched again: the same bits" "$tessera" compare chunks.again chunks.2s --tolerance 0
  if more; then
    train 4x4 chunks.4 mixtral --set moe.token_chunks=3 --set tensor_parallel.autotp_size=1 --set zero_optimization.stage=1
    ok "ep 4" "$tessera" compare chunks.1 chunks.4 --tolerance $other_grid
  fi
  train 1x1 chunks.one mixtral --set moe.token_chunks=7 --set moe.save=nothing
  ok "one rank" "$tessera" compare chunks.1 chunks.one --tolerance $other_grid
  train 2x1 chunks.tp mixtral --set moe.token_chunks=2 --set tensor_parallel.autotp_size=2 --set train_micro_batch_size_per_gpu=4
  ok "tp" "$tessera" compare chunks.1 chunks.tp --tolerance $other_grid
  train 1x1 chunks.most mixtral --set moe.token_chunks=4096 --set run.steps=1
  ok "no more than there are tokens" same_loss chunks.most chunks.1 1e-6
  run "$tessera" plan "$golden/mixtral.cfg" --ranks 2 --set expert_parallel.autoep_size=2 --set "model.from=$golden/mixtral" \
    --set train_micro_batch_size_per_gpu=8 --set train_batch_size=16
  ok "the plan: as many times fewer rows, of which three experts of five get theirs" fewer_rows
  run "$tessera" graph "$golden/mixtral.cfg" --ranks 2 --set expert_parallel.autoep_size=2 --set "model.from=$golden/mixtral" \
    --set moe.token_chunks=2 --set train_micro_batch_size_per_gpu=8 --set train_batch_size=16 --set zero_optimization.overlap_comm=true
  ok "a chunk's tokens travel under the products of the one before" ahead
}

# Rows that go to their experts' ranks, or tokens to all: sums of a token's rows are in another order, and with rows alone those
# of one rank.
test_dispatch() {
  for how in alltoall allgather; do
    train 2x2 "by.$how" mixtral --set "moe.dispatch=$how"
    train 4x4 "by.$how.4" mixtral --set "moe.dispatch=$how" --set moe.save=rows --set moe.token_chunks=2 --set zero_optimization.stage=3
    ok "$how: ep 2 and 4" "$tessera" compare "by.$how" "by.$how.4" --tolerance $other_grid
  done
  ok "both: the same losses" "$tessera" compare by.alltoall by.allgather --tolerance $other_grid
  ok "and choices" same_routing by.alltoall by.allgather
  train 2x1 by.none mixtral
  ok "alltoall: the first loss of ranks that have all experts" same_loss by.none by.alltoall 0
  train 4x4 by.alltoall.3 mixtral --set moe.dispatch=alltoall --set moe.save=nothing --set moe.token_chunks=2 --set zero_optimization.stage=2
  ok "stages, and rows that are sent again: the same bits" "$tessera" compare by.alltoall.4 by.alltoall.3 --tolerance 0
  for how in auto allgather; do
    run "$tessera" plan "$golden/mixtral.cfg" --ranks 4 --target cpu --set expert_parallel.autoep_size=4 --set "model.from=$golden/mixtral" \
      --set train_micro_batch_size_per_gpu=8 --set train_batch_size=32 --set "moe.dispatch=$how"
    expected='allgather, each token to all 4 ranks'
    [ $how = allgather ] || expected='alltoall, each of a token' # fewer choices than ranks
    ok "the plan, $how" grep -q "moe.dispatch: $expected" "$scratch/out"
  done
  run "$tessera" graph "$golden/mixtral.cfg" --ranks 2 --set expert_parallel.autoep_size=2 --set "model.from=$golden/mixtral" \
    --set moe.token_chunks=2 --set moe.dispatch=alltoall --set train_micro_batch_size_per_gpu=8 --set train_batch_size=16 \
    --set zero_optimization.overlap_comm=true
  ok "a chunk's rows travel under the products of the one before" rows_ahead
}
rows_ahead() {
  awk '/^forward .*layers.0.*tokens1\.to_experts = exchange_rows/ { early = 1 } /^forward .*layers.0.*tokens0 = grouped/ && !done { done = 1; good = early }
       /^backward .*layers.0.*tokens0\.to_experts\.again = exchange_rows/ { rows = 1 } /^backward .*layers.0.*tokens0\.home\.dx = exchange_rows/ { dy = 1 }
       /^backward .*layers.0.*w2\.tokens1\.dx = grouped/ { good = good && rows }
       /^backward .*layers.0.*w1\.tokens0\.again = grouped/ { ++last; good = good && dy }
       END { exit !(good && last == 1) }' "$scratch/out"
}

# In the graph of a step: choices and tokens of the second chunk before products of the first, likewise in the backward.
ahead() {
  awk '/^forward .*layers.0.*tokens1\.of_all = all_gather/ { ++early } /^forward .*layers.0.*tokens0 = grouped/ && !done { done = 1; good = early == 2 }
       /^backward .*layers.0.*tokens0\.home\.dx = all_gather/ { back = 1 } /^backward .*layers.0.*tokens1\.dx = grouped/ && !first++ { good = good && back }
       END { exit !(good && first) }' "$scratch/out"
}

# Rows that are kept, or dispatched again: the same bits, and less memory.
test_saving() {
  for save in rows nothing; do
    train 2x2 "save.$save" mixtral --set "moe.save=$save" --set zero_optimization.stage=2
    train 1x1 "alone.$save" mixtral --set "moe.save=$save"
  done
  ok "rows that are dispatched again" "$tessera" compare save.rows save.nothing --tolerance 0
  ok "on one rank too" "$tessera" compare alone.rows alone.nothing --tolerance 0
  ok "which takes less memory" test "$(planned 1x1 rows)" -gt "$(planned 1x1 nothing)"
  ok "and on ep 2" test "$(planned 2x2 rows)" -gt "$(planned 2x2 nothing)"
  ok "where it is the default" test "$(planned 2x2 auto)" = "$(planned 2x2 nothing)"
  ok "and else is not" test "$(planned 1x1 auto)" = "$(planned 1x1 rows)"
}

# What is gathered together: a block as it is, or what is named.
test_leaves() {
  leaf=zero_optimization.leaf_module
  train 2x2 apart mixtral --set zero_optimization.stage=3
  train 2x2 together mixtral --set zero_optimization.stage=3 --set "$leaf.names=model.layers" \
    --set "$leaf.classes=[\"MixtralSparseMoeBlock\", \"a.b.Qwen2MoeSparseMoeBlock\"]" --set "$leaf.name_suffixes=sparse_moe.experts"
  ok "blocks that are gathered together: the same bits" "$tessera" compare together apart --tolerance 0
  run "$tessera" graph "$golden/mixtral.cfg" --set "model.from=$golden/mixtral" --ranks 2 --set zero_optimization.stage=3 \
    --set train_micro_batch_size_per_gpu=2 --set "$leaf.names=model.layers"
  ok "are one unit" both 'printed "model[.]layers[.]persistent[.]adamw"' '! printed "model[.]layers[.]0[.]persistent"'
  train 2x2 none mixtral --set "$leaf.names=model.layer" --set "$leaf.classes=LlamaMLP"
  ok "a module that is not there" both 'said 2 "leaf_module.names: \"model.layer\" names no module of the model"' \
    'said 2 "leaf_module.classes: \"LlamaMLP\" names no module"'
}

# Biases of these routers follow the balance: on any grid, exported, read back and grown.
test_biased_layers() {
  biased="--set moe.router_bias=true --set moe.drop_tokens=false --set expert_parallel.load_balance_coeff=0.02"
  train 1x1 biased gpt2_top1 $biased --set model.from= $tiny
  ok "layers whose routers have biases" gave 0
  ok "which move" awk -F, '$1 == 8 && $10 > 0.02 { some = 1 } END { exit !some }' biased/moe.csv
  train 2x2 biased2 gpt2_top1 $biased --set model.from= $tiny --set zero_optimization.stage=2 --set moe.token_chunks=2
  ok "on ep 2" "$tessera" compare biased biased2 --tolerance $other_grid
  ok "to the same biases" same_loads biased biased2
  train 1x1 at_zero gpt2_top1 --set moe.router_bias=true --set model.from= $tiny --set run.steps=1
  train 1x1 unbiased gpt2_top1 --set model.from= $tiny --set run.steps=1
  ok "a bias of nothing chooses as none" same_loss at_zero unbiased 0
  run "$tessera" zero_to_fp32 biased biased.hf --safe_serialization
  ok "they are exported" grep -q '"router_bias": true' biased.hf/config.json
  train 1x1 back gpt2_top1 --set model.from=biased.hf --set moe.router_bias=true --set run.steps=1 --set optimizer.params.lr=0
  run "$tessera" zero_to_fp32 back back.hf --safe_serialization
  ok "and read back" same_tensors biased.hf/model.safetensors back.hf/model.safetensors F32
  train 1x1 two.b gpt2_top1 --set moe.router_bias=true --set moe.k=2 --set model.from= $tiny --set run.steps=1
  run "$tessera" zero_to_fp32 two.b two.hf --safe_serialization
  run "$tessera" generate two.hf --prompt " 1 2 3" --tokens 4
  ok "also from what config.json alone says" gave 0
  train 1x1 refused gpt2_top2 --set moe.router_bias=true --set moe.top2_2nd_expert_sampling=true
  ok "not where experts are sampled" said 2 'moe.router_bias: true: experts are sampled .moe.top2_2nd_expert_sampling.; accepted: with false'
  train 1x1 refused gpt2_top2 --set expert_parallel.load_balance_coeff=0.1
  ok "a rate wants a bias" said 2 'load_balance_coeff: 0.1: routers of DeepSpeed.s layers in a gpt2 have a bias with moe.router_bias = true'
}

resume_layers() {
  rm -rf layers4/step_00000008
  train 2x2 layers4 gpt2_top1 $chance --resume auto --set zero_optimization.stage=1
  ok "they go on on ep 2" "$tessera" compare layers4 layers --tolerance $other_grid
  train 2x2 stay gpt2_top1 --set optimizer.params.lr=0 --set zero_optimization.stage=3
  run "$tessera" zero_to_fp32 stay stay.hf --safe_serialization
  ok "they are exported under DeepSpeed's names" same_tensors "$golden/gpt2_top1/model.safetensors" stay.hf/model.safetensors F32
  train 1x1 again.l gpt2_top1 --set model.from=stay.hf --set run.steps=1
  train 1x1 first.l gpt2_top1 --set run.steps=1
  ok "another run begins from them" "$tessera" compare again.l first.l --tolerance 0
  train 1x1 same.l gpt2_top2 --set moe.num_experts=4 --set run.steps=1
  run "$tessera" zero_to_fp32 same.l same.hf --safe_serialization
  train 1x1 same.l2 gpt2_top2 --set moe.num_experts=4 --set model.from=same.hf --set run.steps=1
  ok "one number is that of a list of one" gave 0
  ok "a directory says which layers have experts" grep -q '"use_residual": true' stay.hf/config.json
  run "$tessera" generate stay.hf --prompt " 1 2 3" --tokens 4
  ok "so text is generated from it" gave 0
  train 1x1 other.l gpt2_top1 --set model.from=stay.hf --set "moe.num_experts=[3, 4]"
  ok "and another number is a contradiction" said 2 'gate.wg.weight is F32 .5, 36.; the model wants'
}

# Every token has the same expert: one rank of two has all rows, the other none, and each all the room for them.
test_worst() {
  cp -r "$golden/dots1" all
  sed -i.old 's/"num_experts_per_tok": 3/"num_experts_per_tok": 1/; s/"norm_topk_prob": true/"norm_topk_prob": false/' all/config.json
  train 1x1 worst dots1 --set model.from=all
  ok "all tokens to one expert" grep -q '^8,1,76,8,0,7,' worst/moe.csv
  train 2x2 worst2 dots1 --set model.from=all --set debug.memcheck=true --set debug.check_finite=true
  ok "the memory checker has nothing to say" gave 0
  ok "the same losses" "$tessera" compare worst2 worst --tolerance $other_grid
}

test_resume
test_worst
test_optimizers
test_balance
test_export
test_upcycling
test_upcycled_layers
test_layers
test_biased_layers
test_saving
test_chunks
test_dispatch
test_leaves
test_said
finish
