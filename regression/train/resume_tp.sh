#!/bin/sh
# TAP: checkpoints of grids with tensor parallelism: any grid goes on from any other's, exports it and evaluates it.
# CHECKPOINTS=all takes the whole table of grids and stages (400 pairs, some minutes), and more grids of each other case;
# otherwise a sample of them.
# shellcheck source=regression/cli_common.sh
build=$(pwd)
. "${srcdir:-.}/regression/cli_common.sh"
same_tensors() { "$build/regression/io/test_safetensors" same "$@"; }
golden=$top/regression/golden
all() { [ "${CHECKPOINTS:-}" = all ]; }

# Six query heads on two key heads: of 3 ranks one has more, of 4 two share a key head.  50 columns are dealt unevenly.
cat > llama.cfg << 'END'
model = { model_type = "llama"; vocab_size = 256; hidden_size = 24; intermediate_size = 50; num_hidden_layers = 2;
          num_attention_heads = 6; num_key_value_heads = 2; head_dim = 4; max_position_embeddings = 32;
          tie_word_embeddings = true; };
data = { path = "text.txt"; format = "text"; sequence_length = 24; validation_fraction = 0.1; seed = 1; };
run = { directory = "run"; steps = 6; seed = 1; threads = 1; log_every = 2; save_every = 3; };
train_batch_size = 12;
optimizer = { type = "AdamW"; params = { lr = 1e-2; weight_decay = 0.1; }; no_decay = ["norm"]; };
scheduler = { type = "WarmupCosineLR"; params = { total_num_steps = 6; warmup_num_steps = 2; }; };
gradient_clipping = 1.0;
zero_optimization = { stage3_param_persistence_threshold = 100; };
debug = { digest_every = 1; };
END

# A grid is written RANKSxTP.
ranks() { echo "${1%x*}"; }
# train GRID DIRECTORY [WORD]...: keeps stdout, stderr, status.
train() {
  on=$1
  directory=$2
  shift 2
  run $mpiexec -n "$(ranks "$on")" "$tessera" train llama.cfg --set "run.directory=$directory" \
    --set "tensor_parallel.autotp_size=${on#*x}" "$@"
}
same() { "$tessera" compare "$@"; }

# The largest relative difference of losses between grids in fp32: sums in another order.
other_grid=2e-6

# resume FROM GRID TOLERANCE NAME [WORD]...: the run FROM, cut back to step 3, goes on and ends as FROM did.
resume() {
  from=$1
  grid=$2
  tolerance=$3
  title=$4
  shift 4
  rm -rf again
  cp -r "$from" again
  rm -rf again/step_00000006
  train "$grid" again --resume auto "$@"
  ok "$title: goes on" gave 0
  ok "$title: like one that never stopped" same again "$from" --tolerance "$tolerance"
}

# full GRID STAGE: a run that never stops, once.
full() {
  if [ ! -d "full_$1_$2" ]; then
    train "$1" "full_$1_$2" --set "zero_optimization.stage=$2"
    ok "$1, stage $2" gave 0
  fi
}

test_table() {
  pair=0
  for g in 1x1 2x2 3x3 4x4 4x2; do
    for stage in 0 1 2 3; do
      for h in 1x1 2x2 3x3 4x4 4x2; do
        for t in 0 1 2 3; do
          pair=$((pair + 1))
          tolerance=$other_grid
          often=113
          if [ "$g$stage" = "$h$t" ]; then
            tolerance=0
            often=17
          fi
          if all || [ $((pair % often)) -eq 0 ]; then
            full $g $stage
            resume "full_${g}_$stage" $h $tolerance "$g, stage $stage on $h, stage $t" --set zero_optimization.stage=$t
          fi
        done
      done
    done
  done
}

# cases NAME FROM [WORD]...: bit for bit on its own grid at another stage, and on others.
cases() {
  what=$1
  from_grid=$2
  shift 2
  rm -rf one
  train "$from_grid" one --set zero_optimization.stage=2 "$@"
  ok "$what: a run" gave 0
  resume one "$from_grid" 0 "$what: $from_grid" --set zero_optimization.stage=2 "$@"
}

test_kinds() {
  cases "untied, parts frozen" 4x4 --set model.tie_word_embeddings=false --set 'frozen=["k_proj", "embed", "up_proj"]'
  resume one 2x2 $other_grid "untied, parts frozen: on 2x2" --set model.tie_word_embeddings=false \
    --set 'frozen=["k_proj", "embed", "up_proj"]'
  ! all || resume one 1x1 $other_grid "and on one rank" --set model.tie_word_embeddings=false \
    --set 'frozen=["k_proj", "embed", "up_proj"]'
  cases "bf16" 4x2 --set bf16.enabled=true
  resume one 4x2 0 "bf16: at stage 3" --set bf16.enabled=true --set zero_optimization.stage=3
  # the masters and moments of fp32 come along: three steps of other roundings
  resume one 3x3 2e-3 "bf16: on 3x3" --set bf16.enabled=true
  cases "bf16 rounded by chance, memory checked" 2x2 --set bf16.enabled=true --set bf16.stochastic_rounding=true \
    --set debug.memcheck=true
}

# States in 8 bits, of matrices that are large enough for them.  With the same pieces of parameters a resume has the same
# codes; else values are coded again in other blocks, of which a largest magnitude may be another one: 1e-4 in loss.
test_codes() {
  eight="--set optimizer.state_dtype=8bit --set model.hidden_size=48 --set model.intermediate_size=250"
  # shellcheck disable=SC2086
  {
    cases "8 bits" 2x2 $eight
    resume one 2x2 0 "8 bits: at stage 3" $eight --set zero_optimization.stage=3
    resume one 3x3 3e-4 "8 bits: on 3x3, coded again" $eight
    all || return 0
    resume one 4x2 $other_grid "8 bits: on 4x2" $eight --set zero_optimization.stage=1
    resume one 1x1 3e-4 "8 bits: on one rank, coded again" $eight
    train 3x3 three --set zero_optimization.stage=3 $eight
    resume three 2x2 3e-4 "8 bits: of 3x3 on 2x2" $eight
  }
}

# ---- saving ----

test_save() {
  train 4x4 sync --set run.save_async=false --set zero_optimization.stage=1
  ok "saved without a copy" gave 0
  train 4x4 async --set zero_optimization.stage=1
  for file in model.h5 shard_00000.h5 shard_00003.h5; do
    group=/
    [ $file != model.h5 ] || group=/parameter # the deck differs in the run's directory
    hdf5 "beside the training: the same $file" h5diff sync/step_00000003/$file async/step_00000003/$file $group
  done
  run "$tessera" verify async
  ok "what is saved is intact" gave 0
  train 4x2 whole --set zero_optimization.stage=1
  run "$tessera" verify whole
  ok "with dp too" gave 0
}

# ---- first values ----

test_first_values() {
  grids="2x2 3x3 4x2"
  ! all || grids="$grids 4x4"
  for grid in 1x1 $grids; do
    rm -rf "still_$grid"
    train $grid "still_$grid" --set optimizer.params.lr=0 --set zero_optimization.stage=3
  done
  for grid in $grids; do
    run "$tessera" compare still_1x1 still_$grid --tolerance $other_grid
    ok "$grid: the first values of one rank, to the bit, and digests that say so" both 'gave 0' \
      '! grep "tensor that differs" "$scratch/out"'
  done
  train 2x2 moved --set zero_optimization.stage=3
  run "$tessera" compare still_1x1 moved --tolerance 1
  ok "other values have other digests" grep -q "first tensor that differs" "$scratch/out"
}

# import GRID CASE STAGE [WORD]...: zero steps from a Hugging Face directory, saved in imported.
import() {
  grid=$1
  case=$2
  stage=$3
  shift 3
  rm -rf imported
  cat > import.cfg << END
model = { from = "$golden/$case"; };
data = { path = "$golden/$case/tokens.bin"; format = "bin"; sequence_length = 16; };
run = { directory = "imported"; threads = 1; };
train_micro_batch_size_per_gpu = 2;
END
  run $mpiexec -n "$(ranks "$grid")" "$tessera" train import.cfg --set "tensor_parallel.autotp_size=${grid#*x}" \
    --set "zero_optimization.stage=$stage" --set zero_optimization.stage3_param_persistence_threshold=100 "$@"
}

# exact GRID CASE STAGE
exact() {
  import "$@"
  ok "$1, stage $3: $2, zero steps" gave 0
  run "$tessera" zero_to_fp32 imported out --format safetensors
  ok "$1, stage $3: the tensors it began with, to the bit" same_tensors "$golden/$2" out F32
  rm -rf out
}

test_import() {
  exact 2x2 llama_tied 0
  exact 3x3 llama 0
  exact 4x4 llama 3
  exact 2x2 gpt2 3 # columns of a matrix [in][out], three pieces of a row on each rank
  exact 4x2 phi3 3 # several pieces of a fused matrix on each rank
}

# offset NAME: where a tensor's data begins in broken/model.safetensors
offset() {
  header=$(od -A n -t u8 -N 8 broken/model.safetensors | tr -d ' ')
  begin=$(head -c $((header + 8)) broken/model.safetensors | tail -c "$header" |
    sed "s/.*\"$1\":{[^}]*\"data_offsets\":\[\([0-9]*\),.*/\1/")
  echo $((header + 8 + begin))
}

# spoil NAME ELEMENT...: NaN
spoil() {
  at=$(offset "$1")
  shift
  for element in "$@"; do
    printf '\000\000\300\177' | dd of=broken/model.safetensors bs=1 seek=$((at + 4 * element)) conv=notrunc 2> /dev/null
  done
}

test_nonfinite() {
  mkdir broken
  cp "$golden/llama/config.json" "$golden/llama/model.safetensors" broken
  spoil model.layers.0.mlp.down_proj.weight 0 40 41 100 1475
  for grid in 1x1 2x2 4x2; do
    import $grid llama 1 --set "model.from=broken"
    ok "$grid: values that are not finite are counted once" \
      said 0 ": 5 of 1476 values of model.layers.0.mlp.down_proj.weight are not finite \(NaN or infinite\): no loss"
    ok "$grid: and said once" is "$(grep -c "not finite" "$scratch/err")" 1
  done
  spoil model.layers.1.input_layernorm.weight 3
  import 4x2 llama 3 --set "model.from=broken"
  ok "of replicas too" said 0 ": (1 of 36|5 of 1476) values of .* and values of 1 more tensor too"
}

# ---- sequence parallelism: a checkpoint does not know of it ----

test_shared_samples() {
  rm -rf shared
  train 4x1 shared --set sequence_parallel_size=4 --set zero_optimization.stage=1
  ok "sp 4: a run" gave 0
  resume shared 4x1 0 "sp 4, stage 1 on the same, stage 0" --set sequence_parallel_size=4 --set zero_optimization.stage=0
  resume shared 2x2 $other_grid "sp 4 on tp 2, stage 3" --set zero_optimization.stage=3
  ! all || resume shared 1x1 $other_grid "sp 4 on one rank"
  ! all || resume shared 4x2 $other_grid "sp 4 on sp 2 x tp 2, stage 2" --set sequence_parallel_size=2 \
    --set zero_optimization.stage=2
  full 3x3 2
  resume full_3x3_2 4x1 $other_grid "tp 3 on dp 2 x sp 2, stage 3" --set sequence_parallel_size=2 \
    --set zero_optimization.stage=3
  run $mpiexec -n 4 "$tessera" eval shared --format json
  loss=$(loss_of)
  run "$tessera" eval shared --format json --set sequence_parallel_size=1
  ok "sp 4: eval on one rank: the loss of four" near "${loss:-0}" "$(loss_of)"
  run "$tessera" eval shared
  ok "a grid that does not fit is an error, with the way out" said 2 "sequence_parallel_size=1"
  run $mpiexec -n 4 "$tessera" generate shared --prompt 'line 1' --tokens 20 --temperature 0
  text=$(cat "$scratch/out")
  run "$tessera" generate shared --prompt 'line 1' --tokens 20 --temperature 0 --set sequence_parallel_size=1
  ok "sp 4: generate: the same text" is "$(cat "$scratch/out")" "$text"
}

# ---- what is trained ----

test_exports() {
  full 1x1 1
  full 4x4 2
  run "$tessera" zero_to_fp32 full_1x1_1 one.h5
  trainings=full_4x4_2
  if all; then
    full 2x2 1
    trainings="full_2x2_1 full_4x4_2"
  fi
  for trained in $trainings; do
    run "$tessera" zero_to_fp32 $trained $trained.h5
    ok "$trained: exported" gave 0
    hdf5 "$trained: as one rank has trained it" h5diff -d 1e-4 one.h5 $trained.h5
  done
  train 1x1 weights --weights full_4x4_2 --set run.steps=1
  ok "--weights of another grid" gave 0
}

loss_of() { sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' "$scratch/out"; }
near() { awk "BEGIN { exit !($1 > 0 && ($1 - $2) / $1 < $other_grid && ($2 - $1) / $1 < $other_grid) }"; }

test_uses() {
  full 4x4 2
  run $mpiexec -n 4 "$tessera" eval full_4x4_2 --format json
  loss=$(loss_of)
  run "$tessera" eval full_4x4_2 --format json --set tensor_parallel.autotp_size=1
  ok "eval on one rank: the loss of four" near "${loss:-0}" "$(loss_of)"
  run $mpiexec -n 2 "$tessera" eval full_4x4_2 --format json --set tensor_parallel.autotp_size=2
  ok "and of two" near "${loss:-0}" "$(loss_of)"
  run "$tessera" eval full_4x4_2
  ok "a grid that does not fit is an error" said 2 "tp 4 = 4, but there is 1 rank"
  run $mpiexec -n 4 "$tessera" generate full_4x4_2 --prompt 'line 1' --tokens 20 --temperature 0
  text=$(cat "$scratch/out")
  run "$tessera" generate full_4x4_2 --prompt 'line 1' --tokens 20 --temperature 0 --set tensor_parallel.autotp_size=1
  ok "generate: the same text" is "$(cat "$scratch/out")" "$text"
  ok "which is one" [ ${#text} -gt 20 ]
}

test_table
test_kinds
test_codes
test_save
test_first_values
test_import
test_nonfinite
test_exports
test_uses
test_shared_samples
finish
