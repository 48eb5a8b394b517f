#!/bin/sh
# TAP: zero_to_fp32: a checkpoint as one model, and back.
# shellcheck source=regression/cli_common.sh
build=$(pwd)
. "${srcdir:-.}/regression/cli_common.sh"
zero_to_fp32=$build/zero_to_fp32
golden=$top/regression/golden
same() { "$build/regression/io/test_safetensors" same "$@"; }
both() { eval "$1" && eval "$2"; }

# import CASE RANKS [WORD]...: zero steps from a Hugging Face directory, saved in CASE.run
import() {
  case=$1
  ranks=$2
  shift 2
  rm -rf "$case.run"
  cat > import.cfg << END
model = { from = "$golden/$case"; };
data = { path = "$golden/$case/tokens.bin"; format = "bin"; sequence_length = 16; };
run = { directory = "$case.run"; threads = 1; };
train_micro_batch_size_per_gpu = 1;
END
  run $mpiexec -n "$ranks" "$tessera" train import.cfg "$@"
}

test_round_trip() {
  for case in gpt2 gpt2_accumulate llama llama_tied llama_rope llama_sharded; do
    import $case 3 --set zero_optimization.stage=3
    ok "$case: zero steps" gave 0
    run "$zero_to_fp32" $case.run $case.hf --format safetensors
    ok "$case: a directory" clean
    ok "$case: the tensors it began with, to the bit" same "$golden/$case" $case.hf F32
  done
  ok "config.json is that of the directory, but for the type of the tensors" \
    is "$(tr -d ' \n' < llama_tied.hf/config.json | sed 's/1e-6/1e-06/')" "$(tr -d ' \n' < "$golden/llama_tied/config.json")"
  run "$tessera" eval llama.hf --set data.path="$golden/llama/tokens.bin" --set data.sequence_length=16 \
    --set data.validation_fraction=0.5
  ok "eval takes the directory as a model" printed "^loss [0-9.]+ nats"
  loss=$(cat "$scratch/out")
  run "$tessera" eval llama.run --set data.validation_fraction=0.5
  ok "and the checkpoint itself has the same loss" is "$(cat "$scratch/out")" "$loss"
}

# What transformers 5.23 saves, and Mistral's.
companions='./tokenizer.json ./tokenizer_config.json ./vocab.json ./merges.txt ./special_tokens_map.json ./added_tokens.json
  ./tokenizer.model ./tokenizer.model.v3 ./tokenizer.4.0.0.json ./tekken.json ./chat_template.jinja ./generation_config.json
  additional_chat_templates/tool_use.jinja additional_chat_templates/rag.jinja'
are_alike() {
  for file in $companions; do
    cmp "$1/$file" "$2/$file" || return 1
  done
}

test_source() {
  mkdir source
  cp "$golden/llama_tied"/config.json "$golden/llama_tied"/model.safetensors source
  for file in $companions; do
    mkdir -p "source/${file%/*}"
    echo "{\"words\": \"$file\"}" > "source/$file"
  done
  touch source/README.md source/additional_chat_templates/notes
  sed 's/"bfloat16"/"float32"/' source/config.json > source/config.new && mv source/config.new source/config.json
  rm -rf from.run
  run $mpiexec -n 2 "$tessera" train import.cfg --set model.from=source --set run.directory=from.run \
    --set data.path="$golden/llama_tied/tokens.bin"
  run "$zero_to_fp32" from.run with --format safetensors --dtype bf16
  ok "the tokenizer's files come along, templates in both places and generation_config.json" are_alike source with
  ok "and nothing else" is "$(cd with && find . -type f | wc -l)" "$(echo $companions config.json model.safetensors | wc -w)"
  ok "the type of the tensors is noted" grep -q '"torch_dtype": "bfloat16"' with/config.json
  ok "bf16: rounded to nearest" same source with BF16
  mv source away
  run "$zero_to_fp32" from.run kept --format safetensors --dtype bf16
  ok "without the source: the run has kept what is needed" both clean 'cmp with/config.json kept/config.json'
  ok "tokenizer files too" are_alike with kept
  rm -r from.run/from
  run "$zero_to_fp32" from.run without --format safetensors --dtype fp16
  ok "without both: config.json is made from the deck, and that is said" said 0 "source.*is not there any more"
  ok "fp16: rounded to nearest" same away without F16
  run "$tessera" eval without --set data.path="$golden/llama_tied/tokens.bin" --set data.sequence_length=16 \
    --set data.validation_fraction=0.5
  ok "and is a config that computes" printed "^loss [0-9.]+ nats"
}

# A file that is no tokenizer's is named, and not read.
test_huge() {
  cp -r away huge
  dd if=/dev/zero of=huge/vocab.json bs=1 count=1 seek=1073741824 2> /dev/null
  run "$tessera" train import.cfg --set model.from=huge --set run.directory=huge.run \
    --set data.path="$golden/llama_tied/tokens.bin"
  ok "more than 1 GiB: the run says which file, and that nothing is kept" said 0 \
    "config.json and tokenizer are not kept: .*/huge/vocab.json: larger than the 1073741824 bytes"
  run "$zero_to_fp32" huge.run huge.hf --format safetensors
  ok "so does zero_to_fp32, which leaves nothing" both 'said 1 "/huge/vocab.json: larger than"' '[ ! -e huge.hf ] && [ ! -e huge.hf.tmp ]'
}

# What the deck says otherwise than the directory is in config.json, what it does not say is as it was there.
test_override() {
  rm -rf from.run
  run $mpiexec -n 1 "$tessera" train import.cfg --set model.from=away --set run.directory=from.run \
    --set data.path="$golden/llama_tied/tokens.bin" --set model.attn_pdrop=0.25 --set model.eos_token_id=7
  run "$zero_to_fp32" from.run/ override/ --format safetensors
  ok "OUTPUT may end in a slash" both 'clean' '[ ! -e override.tmp ]'
  ok "config.json has what the deck said otherwise" is "$(diff llama_tied.hf/config.json override/config.json | grep '^>' | tr -d ' \n')" \
    '>"attention_dropout":0.25,>"eos_token_id":7,'
  rm -r from.run/from
  sed 's/"rope_theta": [0-9.]*/"rope_theta": 30000.0/' away/config.json > away/config.new && mv away/config.new away/config.json
  run "$zero_to_fp32" from.run changed --format safetensors
  ok "a directory that was changed since: the model is that of the checkpoint" cmp override/config.json changed/config.json
  echo "[1]" > away/config.json
  refused "a config.json that is none" "away/config.json: is not a JSON object" from.run out --format safetensors
}

# Killed at any moment: there is no output, or all of it.
test_kill() {
  run $mpiexec -n 1 "$tessera" train tiny.cfg --set model.hidden_size=512 --set model.intermediate_size=1408 \
    --set model.num_hidden_layers=4 --set run.steps=1 --set run.evaluate_every=0 --set run.directory=large
  run "$zero_to_fp32" large reference --format safetensors
  ok "a model of some size" gave 0
  begun=0
  halves=0
  for format in hdf5 safetensors; do
    for moment in 002 005 010 015 020 030 040 050 060 080 100 130 160 200 250 300 400; do
      rm -rf cut_off
      timeout -s KILL 0.$moment "$zero_to_fp32" large cut_off --format $format > "$scratch/out" 2> "$scratch/err"
      [ -e cut_off.tmp ] && begun=$((begun + 1))
      if [ $format = safetensors ] && [ -e cut_off ]; then
        same reference cut_off F32 > /dev/null 2>&1 && [ -s cut_off/config.json ] || halves=$((halves + 1))
      elif [ -e cut_off ]; then
        [ "$(wc -c < cut_off)" -gt "$(wc -c < reference/model.safetensors)" ] || halves=$((halves + 1))
      fi
    done
  done
  ok "killed while it wrote" [ $begun -gt 0 ]
  ok "never half an output" [ $halves -eq 0 ]
  rm -rf cut_off
  run "$zero_to_fp32" large cut_off --format safetensors
  ok "and afterwards all of it" both 'gave 0' '[ ! -e cut_off.tmp ] && same reference cut_off F32'
}

test_options() {
  run "$zero_to_fp32" llama_tied.run cut --format safetensors --max-shard-size 20KB
  ok "several files" both 'gave 0' '[ "$(ls cut/model-*-of-*.safetensors | wc -l)" -gt 2 ]'
  ok "none larger than asked for, but with one tensor" [ "$(find cut -name '*.safetensors' -size +40k | wc -l)" -eq 0 ]
  ok "with an index, the same tensors" same "$golden/llama_tied" cut F32
  run "$zero_to_fp32" llama_tied.run model.h5
  ok "hdf5: one file" clean
  hdf5 "hdf5: a vector of model.h5" h5diff model.h5 llama_tied.run/step_00000000/model.h5 /model.norm.weight \
    /parameter/model.norm.weight
  hdf5 "hdf5: a matrix of model.h5" h5diff model.h5 llama_tied.run/step_00000000/model.h5 \
    /model.layers.1.mlp.up_proj.weight /parameter/model.layers.1.mlp.up_proj.weight
  hdf5 "h5dump opens model.h5" h5dump -n llama_tied.run/step_00000000/model.h5
  cp "$scratch/out" names
  hdf5 "hdf5: the step" h5dump -a /step model.h5
  hdf5 "hdf5: the version" h5dump -a /version model.h5
  missing=$(tr ',{' '\n\n' < cut/model.safetensors.index.json | sed -n 's/^ *"\(model\.[^"]*weight\)".*/\1/p' |
    while read -r name; do grep -q "/parameter/$name\$" names || echo "$name"; done)
  [ "$status" -ne 0 ] || ok "h5dump shows every parameter by name" both '[ -z "$missing" ]' 'grep -q /parameter/model.norm.weight names'
  run $mpiexec -n 2 "$tessera" train tiny.cfg --set 'frozen=["embed"]' --set run.save_every=3
  run "$zero_to_fp32" run trained --format safetensors --exclude-frozen-parameters
  ok "without what is frozen" both 'gave 0' '! grep -q embed_tokens trained/model.safetensors'
  run "$zero_to_fp32" run whole --format safetensors
  ok "with it" both 'gave 0' 'grep -q embed_tokens whole/model.safetensors'
  run "$zero_to_fp32" run tagged --format safetensors --tag step_00000003
  ok "--tag takes an older one" both 'gave 0' 'grep -q "of step 3," "$scratch/out"'
  ok "which differs" both '! same whole tagged F32' 'same tagged tagged F32'
}

# As DeepSpeed's own zero_to_fp32.py is called.
test_spellings() {
  run "$zero_to_fp32" run spelt --max_shard_size 20KB --safe_serialization --exclude_frozen_parameters -t step_00000003 -d
  ok "DeepSpeed's spellings" both 'gave 0' 'grep -q "of step 3," "$scratch/out"'
  ok "do what they say there" both '[ "$(ls spelt/model-*-of-*.safetensors | wc -l)" -gt 2 ]' \
    '! grep -q embed_tokens spelt/model.safetensors.index.json'
  run "$zero_to_fp32" run debugged --debug --safe-serialization --format safetensors
  ok "--debug, and one format said twice" both clean '[ -s debugged/config.json ]'
  refused "two formats" "--format hdf5 and --safe-serialization, .*: one of the two" run out --safe_serialization --format hdf5
  refused "-t and --tag" "--tag a and -t b: one of the two" run out --tag a -t b
  refused "-t without its value" "zero_to_fp32: -t needs a value: -t TAG" run out -t
}

# Weights beyond fp16 are an error, or 65504: 2272 values of the embedding, 0.02 wide, times 1e7.
test_fp16() {
  rm -rf wide wide.run
  cp -r "$golden/llama_tied" wide
  chmod -R u+w wide
  "$build/regression/io/test_safetensors" add wide/model.safetensors lm_head.weight model.embed_tokens.weight 1e7
  run $mpiexec -n 2 "$tessera" train import.cfg --set model.from=wide --set model.tie_word_embeddings=false \
    --set data.path="$golden/llama_tied/tokens.bin" --set run.directory=wide.run
  refused "beyond fp16" "[0-9]+ values of 1 tensor are beyond fp16, .*in lm_head.weight: --saturate .*--dtype bf16" \
    wide.run out --format safetensors --dtype fp16
  run "$zero_to_fp32" wide.run narrow --format safetensors --dtype fp16 --saturate
  ok "with --saturate they are counted and cut off" said 0 "of 1 tensor are beyond fp16, .*lm_head.weight; 65504 or"
  ok "with --saturate nothing is infinite" "$build/regression/io/test_safetensors" within narrow 65504
  run "$zero_to_fp32" wide.run wide.bf16 --format safetensors --dtype bf16
  ok "bf16 holds them" clean
}

refused() {
  what=$1
  pattern=$2
  shift 2
  find . | sort > "$scratch/before"
  run "$zero_to_fp32" "$@"
  ok "$what: exit 2" said 2 "$pattern"
  find . | sort > "$scratch/after"
  ok "$what: nothing written" cmp "$scratch/before" "$scratch/after"
}

test_refusals() {
  refused "output exists" "whole exists already" run whole --format safetensors
  refused "no such run" "nowhere: " nowhere out
  refused "no such tag" "step_00000009" run out --tag step_00000009
  refused "a format" "--format torch: hdf5 or safetensors" run out --format torch
  refused "a dtype" "--dtype int8: fp32, bf16 or fp16" run out --dtype int8
  refused "--saturate without fp16" "--saturate: only --dtype fp16" run out --saturate
  refused "a size" "--max-shard-size much: a size such as" run out --max-shard-size much
  refused "a directory that is not there" "no/where.*: No such" run no/where/out --format safetensors
  refused "a file instead of a run" "text.txt" text.txt out
  cp -r run damaged
  printf x | dd of=damaged/step_00000006/shard_00001.h5 bs=1 seek=3000 conv=notrunc 2> /dev/null
  refused "damage" "shard_00001.h5: damaged" damaged out
  cp run/step_00000006/shard_00001.h5 damaged/step_00000006
  size=$(wc -c < damaged/step_00000006/shard_00001.h5)
  printf x | dd of=damaged/step_00000006/shard_00001.h5 bs=1 seek=$((size - 300)) conv=notrunc 2> /dev/null
  refused "damage behind the last parameter" "shard_00001.h5: damaged" damaged out --format safetensors
  mkdir out.tmp
  echo old > out.tmp/old
  refused "somebody else's OUTPUT.tmp" "out.tmp is in the way" run out --format safetensors
  cp -r run/step_00000006 ck.tmp
  refused "the checkpoint itself is called so" "ck.tmp is in the way" ck.tmp ck
  touch out.tmp/.written_by_zero_to_fp32
  run "$zero_to_fp32" run out --format safetensors
  ok "what a killed one left is replaced" both 'gave 0' '[ ! -e out/old ] && [ ! -e out.tmp ]'
}

# A disk that is full: a file system of 100 KB.
test_full_disk() {
  mkdir full
  if ! mount -t tmpfs -o size=100k none full 2> /dev/null; then
    skip "a full disk" "no file system can be mounted here"
    return
  fi
  for format in hdf5 safetensors; do
    run "$zero_to_fp32" gpt2.run full/out --format $format
    ok "$format, a full disk: exit 1 with the reason" said 1 "full/out.tmp.*No space left"
    ok "$format, a full disk: nothing stays" [ -z "$(ls full)" ]
  done
  for file in tokenizer.json additional_chat_templates/a.jinja; do
    rm -rf from.run bulky
    cp -r "$golden/llama_tied" bulky
    mkdir -p bulky/additional_chat_templates
    head -c 100000 /dev/zero | tr '\000' ' ' > bulky/$file
    run $mpiexec -n 1 "$tessera" train import.cfg --set model.from=bulky --set run.directory=from.run
    run "$zero_to_fp32" from.run full/out --format safetensors
    ok "full after the tensors: exit 1 with the reason" said 1 "full/out.tmp/$file.*No space left"
    ok "full after the tensors: nothing stays" [ -z "$(ls full)" ]
  done
  umount full
}

# What transformers computes from directories that zero_to_fp32 wrote after training (golden/make_trained.py), Tessera
# computes, from those and from the same training done now: sums in another order differ by some 1e-7, 1e-5 is asked
# for.
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a / b - 1; exit !(a > 0 && d < 1e-5 && d > -1e-5) }'; }
loss_of() {
  case=$1
  shift
  run "$tessera" eval "$@" --set "data.path=$golden/$case/tokens.bin" --set "data.validation_path=$golden/$case/tokens.bin" \
    --set "data.sequence_length=$length" --format json
  loss=$(sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' "$scratch/out")
}

test_trained() {
  for case in gpt2 llama_rope llama_sharded; do
    expected=$(sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' "$golden/trained_$case/expected.json")
    length=$(sed -n 's/.*"sequence_length": \([0-9]*\).*/\1/p' "$golden/trained_$case/expected.json")
    loss_of $case "$golden/trained_$case"
    ok "$case: the loss transformers computes from what was written after training" near "$loss" "$expected"
    samples=$(sed -n 's/^train_micro_batch_size_per_gpu = \([0-9]*\).*/\1/p' "$golden/$case.cfg")
    accumulation=$(sed -n 's/^gradient_accumulation_steps = \([0-9]*\).*/\1/p' "$golden/$case.cfg")
    run $mpiexec -n 2 "$tessera" train "$golden/$case.cfg" --set "run.directory=$case.train" --set "model.from=$golden/$case" \
      --set "data.path=$golden/$case/tokens.bin" --set zero_optimization.stage=3 --set train_micro_batch_size_per_gpu=1 \
      --set "gradient_accumulation_steps=$(((samples * accumulation + 1) / 2))"
    run "$zero_to_fp32" $case.train $case.trained --format safetensors
    loss_of $case $case.trained
    ok "$case: trained and written now" near "$loss" "$expected"
    ok "$case: under the names transformers reads" is "$(tensors $case.trained)" "$(tensors "$golden/trained_$case")"
  done
}
# The header: names, types and shapes.
tensors() { head -c 20000 "$1/model.safetensors" | tr -d '\000' | grep -ao '"[a-z_0-9.]*":{"dtype":"[A-Z0-9]*","shape":[^]]*]'; }

# 2 GB of parameters (a checkpoint of 6 GB) within 256 MB of address space, libraries included.
test_memory() {
  if [ "${CHECKPOINTS:-}" != all ]; then
    skip "a model of 2 GB within 256 MB" "large: CHECKPOINTS=all does it"
    return
  fi
  run $mpiexec -n 1 "$tessera" train tiny.cfg --set model.hidden_size=2048 --set model.intermediate_size=5504 \
    --set model.num_attention_heads=16 --set model.num_key_value_heads=16 --set model.num_hidden_layers=10 --set run.steps=1 \
    --set run.evaluate_every=0 --set run.directory=big --set train_batch_size=1
  ok "a model of 2 GB is saved" gave 0
  for format in hdf5 safetensors; do
    run sh -c "ulimit -v 262144; exec '$zero_to_fp32' big big.$format --format $format"
    ok "$format: within 256 MB" printed "2.0[0-9] GB"
  done
}

# What the library saves (regression/engine/test_checkpoints): a checkpoint "best".
leave() { run "$build/regression/engine/test_checkpoints" leave "$@"; }

test_programs() {
  leave own own
  ok "a program's own model is saved" gave 0
  run "$tessera" verify own
  ok "verify: latest and what has a name of its own" both 'printed "^latest  intact"' 'printed "^best  4 files"'
  run "$zero_to_fp32" own own.hf --format safetensors --tag best
  ok "its parameters are a directory, without a config.json" both clean '[ ! -e own.hf/config.json ]'
  ok "which is said" printed "program's own: there is no config.json"
  ok "under its names" is "$(tensors own.hf | sed 's/":.*shape/ /' | tr -d '\n')" \
    '"first.in.weight ":[40,6]"first.in.bias ":[40]"second.out.weight ":[5,40]"second.out.bias ":[5]'
  run "$zero_to_fp32" own own.h5
  ok "and a file" clean
  run "$tessera" eval own
  ok "eval cannot have it" said 2 'the model is written in a program'
  run "$tessera" generate own --prompt x
  ok "nor can generate" said 2 'the model is written in a program'
  leave tiny.cfg family
  run "$tessera" eval family
  ok "eval reads what a program saved of a family" printed "^loss [0-9.]+ nats"
  expected=$(cat "$scratch/out")
  run "$zero_to_fp32" family family.hf --format safetensors
  run "$tessera" eval family.hf --set data.path=text.txt --set data.sequence_length=32 --set data.validation_fraction=0.1 \
    --set data.format=text --set data.seed=1 --set train_micro_batch_size_per_gpu=2
  ok "as the directory made of it" is "$(cat "$scratch/out")" "$expected"
  run "$tessera" train tiny.cfg --set run.directory=next --set run.steps=1 --weights family
  ok "train begins with its weights" gave 0
  for from in family family/best; do
    run "$tessera" train tiny.cfg --set run.directory=other --resume $from
    ok "but does not go on from $from" said 2 "was saved by a program .*\`--weights family/best\`"
  done
  ok "and has made nothing" [ ! -e other ]
  run "$tessera" train tiny.cfg --set run.directory=family --resume auto
  ok "nor takes its directory" said 2 'family is not empty'
}

# The model at a run's end, by stage3_gather_16bit_weights_on_model_save: what zero_to_fp32 makes of the last checkpoint.
test_model_at_end() {
  key=zero_optimization.stage3_gather_16bit_weights_on_model_save=true
  import llama_tied 3 --set zero_optimization.stage=3 --set $key
  ok "a run ends with its model" both 'gave 0' '[ -f llama_tied.run/hf/config.json ]'
  ok "the tensors it began with, to the bit" same "$golden/llama_tied" llama_tied.run/hf F32
  rm -rf last.run last.hf
  run $mpiexec -n 2 "$tessera" train tiny.cfg --set run.directory=last.run --set bf16.enabled=true --set $key \
    --set data.validation_fraction=0.1
  ok "at stage 0 too, in bf16" gave 0
  ok "which is told" printed "the model is in last.run/hf/model.safetensors: bf16, "
  run "$zero_to_fp32" last.run last.hf --format safetensors
  ok "the masters of the last checkpoint, rounded" same last.hf last.run/hf BF16
  ok "config.json but for the type" is "$(sed 's/"float32"/"bfloat16"/' last.hf/config.json)" "$(cat last.run/hf/config.json)"
  expected=$(tail -n 1 last.run/validation.csv | cut -d , -f 3)
  run "$tessera" eval last.run/hf --set data.path=text.txt --set data.sequence_length=32 --set data.validation_fraction=0.1 \
    --set data.format=text --set data.seed=1 --set train_micro_batch_size_per_gpu=2 --set bf16.enabled=true --format json
  loss=$(sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' "$scratch/out")
  ok "a deck's model.from has the run's last loss" near "$loss" "$expected"
  rm -r last.run/hf && touch last.run/hf
  run $mpiexec -n 2 "$tessera" train last.run/deck.cfg --resume auto
  ok "where it cannot be written the run says so" said 2 'last.run/hf'
  rm last.run/hf
  run $mpiexec -n 2 "$tessera" train last.run/deck.cfg --resume auto
  ok "and another life writes it" both 'gave 0' '[ -f last.run/hf/model.safetensors ]'
}

test_round_trip
test_programs
test_model_at_end
test_trained
test_memory
test_source
test_huge
test_override
test_kill
test_options
test_spellings
test_fp16
test_refusals
test_full_disk
finish
