#!/bin/sh
# TAP: runs that stop and go on, on the same grid and on others.  CHECKPOINTS=all takes the whole table of grids and
# stages (256 pairs, some minutes), and each optimizer and precision on other grids; otherwise a sample of them.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"

cat > gpt2.cfg << 'END'
model = { model_type = "gpt2"; vocab_size = 256; n_embd = 24; n_layer = 2; n_head = 3; n_positions = 32;
          attn_pdrop = 0.1; embd_pdrop = 0.1; resid_pdrop = 0.1; };
data = { path = "text.txt"; format = "text"; sequence_length = 24; validation_fraction = 0.1; seed = 1; };
run = { directory = "run"; steps = 6; seed = 1; evaluate_every = 3; threads = 1; log_every = 2; save_every = 3; };
train_batch_size = 12;
optimizer = { type = "AdamW"; params = { lr = 1e-2; weight_decay = 0.1; }; no_decay = ["ln_", "bias"]; };
scheduler = { type = "WarmupCosineLR"; params = { total_num_steps = 6; warmup_num_steps = 2; }; };
gradient_clipping = 1.0;
zero_optimization = { stage3_param_persistence_threshold = 100; };
debug = { digest_every = 1; };
END

# train RANKS DIRECTORY [WORD]...: keeps stdout, stderr, status.
train() {
  n=$1
  directory=$2
  shift 2
  run $mpiexec -n "$n" "$tessera" train gpt2.cfg --set "run.directory=$directory" "$@"
}

all() { [ "${CHECKPOINTS:-}" = all ]; }
published() { [ -f "$1/manifest" ] && [ -f "$1/model.h5" ] && [ -f "$1/shard_00000.h5" ]; }
same() { "$tessera" compare "$@"; }
rows() { wc -l < "$1"; }

# ---- saving ----

test_save() {
  train 2 save --set run.keep=2 --set run.save_every=2
  ok "a run with checkpoints ends well" clean
  ok "the kept ones are published" both 'published save/step_00000004' 'published save/step_00000006'
  ok "older ones are gone" [ ! -e save/step_00000002 ]
  ok "nothing is left over" [ -z "$(find save -name '*.tmp')" ]
  ok "latest names the newest" [ "$(head -n 1 save/latest)" = step_00000006 ]
  ok "metrics tell what saving took" grep -q 'save_seconds,stall_seconds,bubble,' save/metrics.csv
  train 2 ended
  ok "a run without save_every" gave 0
  run "$tessera" verify save
  ok "what is saved is intact" gave 0
  train 2 sync --set run.save_async=false
  ok "saved without a copy" clean
  train 2 async
  ok "saving beside the training and before it give the same run" same sync async
  for file in model.h5 shard_00000.h5 shard_00001.h5; do
    group=/
    [ $file != model.h5 ] || group=/parameter # the deck differs in the run's directory
    hdf5 "and the same $file" h5diff sync/step_00000003/$file async/step_00000003/$file $group
  done
}

# ---- going on ----

# resume FROM RANKS STAGE TOLERANCE NAME [WORD]...: the run FROM, cut back to step 3, goes on and ends as FROM did.
resume() {
  from=$1
  ranks=$2
  stage=$3
  tolerance=$4
  title=$5
  shift 5
  rm -rf again
  cp -r "$from" again
  rm -rf again/step_00000006
  train "$ranks" again --set "zero_optimization.stage=$stage" --resume auto "$@"
  ok "$title: goes on" gave 0
  ok "$title: like one that never stopped" same again "$from" --tolerance "$tolerance"
}

# The largest relative difference of losses between grids in fp32: sums in another order.
other_grid=2e-6

# full RANKS STAGE: the run full_RANKS_STAGE, unless it is there.
full() {
  if [ ! -d "full_$1_$2" ]; then
    train "$1" "full_$1_$2" --set "zero_optimization.stage=$2"
    ok "$1 ranks, stage $2" gave 0
  fi
}

# A sample: each number of ranks and each stage is once where it came from; the targets of all begin at other places.
test_table() {
  for from_ranks in 1 2 3 4; do
    for from_stage in 0 1 2 3; do
      if ! all && [ $(((from_ranks * 3 + from_stage) % 4)) -ne 1 ]; then
        continue
      fi
      whole=full_${from_ranks}_$from_stage
      full $from_ranks $from_stage
      resume "$whole" $from_ranks $from_stage 0 "$from_ranks ranks, stage $from_stage"
      for to_ranks in 1 2 3 4; do
        for to_stage in 0 1 2 3; do
          sampled=$(((from_stage * 3 + to_ranks * 3 + to_stage) % 7))
          if { [ $from_ranks -ne $to_ranks ] || [ $from_stage -ne $to_stage ]; } \
            && { all || [ $sampled -eq 0 ]; }; then
            resume "$whole" $to_ranks $to_stage $other_grid "$whole on $to_ranks ranks, stage $to_stage"
          fi
        done
      done
    done
  done
}

test_layouts() {
  full 2 3
  resume full_2_3 2 3 $other_grid "another persistence threshold" --set zero_optimization.stage3_param_persistence_threshold=100000
  full 4 2
  resume full_4_2 4 2 0 "memory is checked" --set debug.memcheck=true
  train 2 bf16 --set bf16.enabled=true --set zero_optimization.stage=2
  ! all || resume bf16 2 2 0 "bf16" --set bf16.enabled=true
  resume bf16 2 3 0 "bf16, another stage" --set bf16.enabled=true
  chance="--set bf16.enabled=true --set bf16.stochastic_rounding=true"
  # shellcheck disable=SC2086
  {
    train 2 chance $chance --set zero_optimization.stage=2
    ok "bf16 rounded by chance: other losses" both '! same chance bf16 > /dev/null' '[ $(rows chance/metrics.csv) = 7 ]'
    stages=3
    ! all || stages="0 1 2 3"
    for stage in $stages; do
      resume chance 2 $stage 0 "bf16 rounded by chance, at stage $stage" $chance
    done
    train 1 chance1 $chance
    ok "bf16 rounded by chance: one rank alike" same chance1 chance --tolerance 1e-5 # to nearest they are 2e-4 away
    resume chance1 1 0 0 "bf16 rounded by chance, one rank" $chance
  }
  train 2 autocast --set torch_autocast.enabled=true --set zero_optimization.stage=3
  ! all || resume autocast 2 3 0 "autocast" --set torch_autocast.enabled=true
  resume autocast 2 1 0 "autocast, another stage" --set torch_autocast.enabled=true
  train 2 accumulated --set train_micro_batch_size_per_gpu=2
  resume accumulated 2 0 0 "gradient accumulation" --set train_micro_batch_size_per_gpu=2
  train 2 frozen --set 'frozen=["wte"]' --set bf16.enabled=true
  resume frozen 2 1 0 "frozen parameters" --set 'frozen=["wte"]' --set bf16.enabled=true
}

# ---- what a user asks for ----

# Optimizers and types of their states; in 8 bits another grid goes on with the same codes, and what a sum in another order
# makes another code of is a 2^-5 of a moment.
test_optimizers() {
  while read -r recipe on_stage words; do
    # shellcheck disable=SC2086
    {
      train 2 "$recipe" --set zero_optimization.stage=$on_stage $words
      ok "$recipe" clean
      resume "$recipe" 2 $on_stage 0 "$recipe" $words
      # in 8 bits, with a scale of the loss, and by whole matrices there is more to it
      case $recipe in
        *bits | fp16 | muon) ;;
        *) all || continue ;;
      esac
      resume "$recipe" 3 $((3 - on_stage)) ${others:-$other_grid} "$recipe, on 3 ranks" $words
    }
  done
}

test_recipes() {
  others=
  test_optimizers << 'END'
lion 1 --set optimizer.type=Lion --set optimizer.params.lr=1e-3
adagrad 2 --set optimizer.type=Adagrad
momentum 3 --set optimizer.type=SGD --set optimizer.params.momentum=0.9 --set optimizer.params.nesterov=true
END
  others=1e-3
  test_optimizers << 'END'
moments_bf16 2 --set optimizer.state_dtype=bf16
eight_bits 1 --set optimizer.state_dtype=8bit --set model.n_embd=48
eight_bits_muon 3 --set optimizer.state_dtype=8bit --set optimizer.type=Muon --set optimizer.params.lr=1e-2 --set model.n_embd=48
all_bf16 2 --set bf16.enabled=true --set bf16.bf16_master_weights_and_grads=true --set bf16.bf16_optimizer_states=true
fp16 1 --set fp16.enabled=true --set fp16.loss_scale_window=2
all_fp16 3 --set fp16.enabled=true --set fp16.loss_scale=128 --set fp16.fp16_master_weights_and_grads=true --set optimizer.state_dtype=bf16
END
  others=1e-5
  test_optimizers << 'END'
lamb 1 --set optimizer.type=Lamb
muon 2 --set optimizer.type=Muon --set optimizer.params.lr=1e-2
END
  hdf5 "codes and scales" h5dump -d /transformer.h.0/exp_avg_scale eight_bits/step_00000006/shard_00000.h5
  hdf5 "codes of a tensor" h5dump -d /exp_avg/transformer.h.0.mlp.c_fc.weight eight_bits/step_00000006/model.h5
  train 2 turned --resume lion/step_00000003
  ok "nor is a checkpoint of one optimizer for another's" said 2 "has no exp_avg_sq of .*saved without it, as by another optimizer.type; .--weights."
  train 2 other --resume eight_bits/step_00000003 --set model.n_embd=48
  ok "states in 8 bits are not taken for others" said 2 "is in 8 bits; optimizer.state_dtype as it was goes on"
}

test_requests() {
  train 2 again --resume never
  ok "a directory in use is refused, with --resume auto as a way out" said 2 "again is not empty.*--resume auto"
  train 2 fresh --resume auto
  ok "auto in a new directory begins" gave 0
  cp fresh/metrics.csv before.csv
  train 2 fresh --resume auto
  ok "a finished run has nothing to do" gave 0
  ok "and is left alone" cmp before.csv fresh/metrics.csv
  train 2 elsewhere --resume fresh/step_00000003
  ok "a checkpoint of another run begins a run at its step" both 'gave 0' '[ $(rows elsewhere/metrics.csv) = 4 ]'
  train 1 weights --weights fresh
  ok "only the weights: from step 1" both clean '[ $(rows weights/metrics.csv) = 7 ]'
  train 1 other_eps --weights fresh --set model.layer_norm_epsilon=1e-3 --set model.attn_pdrop=0 --set run.steps=1
  ok "settings of their model that differ are named" said 0 "fresh: the weights are of a model with other settings:"
  ok "one a line, and none that training alone has" is "$(grep "now" "$scratch/err")" "  model.layer_norm_epsilon: 1e-05, now 0.001"
  train 2 more --set run.steps=3
  train 2 more --resume more
  ok "more steps" gave 0
  ok "as if they had been asked for at once" same more fresh
  train 2 back --set run.save_every=2
  train 2 back --resume back/step_00000002 --set run.steps=3 --set run.save_every=0
  ok "back to an older step" gave 0
  ok "the later ones are set aside" both '[ -d back/step_00000004.aside ]' '[ ! -e back/step_00000004 ]'
  ok "and latest follows" is "$(head -n 1 back/latest)" step_00000003
  mkdir dead
  cp fresh/deck.cfg dead
  head -n 3 fresh/metrics.csv > dead/metrics.csv
  train 2 dead --resume auto
  ok "a run that died before its first checkpoint begins anew" gave 0
  ok "with all its rows" same dead fresh
  ok "and files of the same bytes" cmp dead/step_00000006/shard_00001.h5 fresh/step_00000006/shard_00001.h5
  for left in '' deck.cfg.tmp deck.cfg 'deck.cfg log.txt'; do
    rm -rf begins
    mkdir begins
    touch begins/.lock
    for name in $left; do
      head -n 20 "fresh/${name%.tmp}" > "begins/$name"
    done
    train 2 begins --resume auto
    ok "so does one that had only begun to (.lock $left)" both 'gave 0' 'same begins fresh'
  done
  for left in notes validation.csv step_00000002.tmp; do
    rm -rf others
    mkdir others
    touch others/.lock others/$left
    train 2 others --resume auto
    ok "not where there is more than it begins with ($left)" said 2 "others is not empty"
  done
  mkdir early
  cp fresh/deck.cfg early
  head -n 1 fresh/metrics.csv > early/metrics.csv
  train 2 early --resume fresh/step_00000003
  ok "so does one that is to begin at another's checkpoint" both 'gave 0' 'same early elsewhere'
  cp -r fresh older
  rm -rf older/step_00000006
  sed 's/,[^,]*$//' fresh/metrics.csv > older/metrics.csv
  train 2 older --resume auto
  ok "a run of a version with fewer columns goes on, which is said" both clean 'grep -q "older/metrics.csv: is of an earlier version" "$scratch/out"'
  ok "with all columns" is "$(head -n 1 older/metrics.csv)" "$(head -n 1 fresh/metrics.csv)"
  ok "its rows have all that they had" is "$(sed -n '2,4s/,nan$//p' older/metrics.csv)" "$(sed -n '2,4s/,[^,]*$//p' fresh/metrics.csv)"
  ok "and the whole is as of one version" both 'same older fresh' '[ $(rows older/metrics.csv) = 7 ]'
  sed -i '1s/tokens/words/' older/metrics.csv
  cp older/metrics.csv before.csv
  train 2 older --resume auto
  ok "other columns are refused, with what to do" said 2 "older/metrics.csv: has other columns .*; move it away"
  ok "and left alone" cmp before.csv older/metrics.csv
  train 2 fresh --resume auto --set optimizer.params.lr=2e-2 --set run.steps=7
  ok "a setting that differs is named" said 0 "optimizer.params.lr: 0.01, now 0.02"
  rm -rf fresh/step_00000007
  train 2 fresh --resume auto --set run.steps=7
  ok "steps and directories are no settings" clean
  mkdir outer
  cp -r fresh outer/inner
  train 2 outer --resume outer/inner
  ok "a run inside of the directory is another run" said 2 "outer is not empty"
  rm -rf fresh/step_*
  train 2 fresh --resume auto
  ok "a run that lost its checkpoints is not begun over" said 2 "fresh is not empty"
  train 2 locked --set run.steps=2000 &
  tries=0
  while [ $tries -lt 300 ] && ! [ -s locked/metrics.csv ]; do
    sleep 0.1
    tries=$((tries + 1))
  done
  timeout -k 5 60 $mpiexec -n 2 "$tessera" train gpt2.cfg --set run.directory=locked --resume auto --set run.steps=3000 \
    > second.out 2> second.err
  second=$?
  touch locked/STOP
  wait
  ok "two jobs in one run: the second is refused" both '[ $second -eq 2 ]' \
    'grep -q "written by another job (host .* pid [0-9]*): wait for its end, or stop it$" second.err'
  ok "and the first is intact" "$tessera" verify locked
  rm -rf fresh
  train 2 fresh
  train 2 other --resume fresh --set model.n_embd=36
  ok "another model: the first tensor that differs" said 2 "of another model: .* is \[.*the deck's model has it as"
  train 2 other --resume fresh --set model.n_layer=3
  ok "another model: a tensor that is not there" said 2 "of another model: it has no transformer.h.2"
  train 2 other --resume fresh --set model.n_layer=1
  ok "another model: a tensor too many" said 2 "of another model: the deck's has no transformer.h.1"
  train 2 other --set run.resume=fresh --set model.n_layer=1
  ok "another model than the deck's run.resume" said 2 "--set: run.resume: fresh/.* of another model"
  ok "nothing is written" [ ! -e other ]
}

test_damage() {
  rm -rf again
  cp -r fresh again
  printf x | dd of=again/step_00000006/shard_00001.h5 bs=1 seek=3000 conv=notrunc 2> /dev/null
  train 2 again --resume auto
  ok "the newest is damaged: the one before" gave 0
  ok "and that is said" grep -q "step 6 is damaged and passed over: .*shard_00001.h5" "$scratch/err"
  ok "the run ends as it did" same again fresh
  at=$(grep -abo digest_every again/step_00000006/model.h5 | head -n 1 | cut -d: -f1) # a key of the deck in it
  printf x | dd of=again/step_00000006/model.h5 bs=1 seek="$at" conv=notrunc 2> /dev/null
  run "$tessera" eval again
  ok "eval trusts no index before its hash" said 2 "step_00000006/model.h5: damaged"
  train 2 imported --resume "$top/regression/golden/gpt2"
  ok "the weights of a Hugging Face directory come by other ways, which are named" said 2 "a deck takes it as model.from, or .* --weights"
  rm again/step_00000003/manifest again/step_00000006/manifest
  train 2 again --resume auto
  ok "all are damaged" said 2 "--set: run.directory: again: every checkpoint is damaged"
  ok "each is named" both 'grep -q step_00000003 "$scratch/err"' 'grep -q step_00000006 "$scratch/err"'
}

# What DeepSpeed leaves: by its names, whatever is in the files.
test_deepspeed() {
  mkdir -p deep/global_step20
  touch deep/global_step20/mp_rank_00_model_states.pt
  echo global_step20 > deep/latest
  train 2 other --resume deep
  ok "DeepSpeed's checkpoint, without ZeRO: how to take its weights" said 2 "deep: is a checkpoint of DeepSpeed, .*\
torch.load\(sys.argv\[1\].* deep/global_step20/mp_rank_00_model_states.pt., .*model.from = OUT"
  touch deep/global_step20/zero_pp_rank_0_mp_rank_00_optim_states.pt
  train 2 other --resume deep
  ok "with ZeRO: by its own command" said 2 "python3 -m deepspeed.utils.zero_to_fp32 deep OUT -t global_step20 --safe_"
  train 2 other --resume deep/global_step20
  ok "the directory of a step" said 2 "zero_to_fp32 .*/deep OUT -t global_step20 --safe_serialization"
  mkdir -p "it's/global_step9"
  cp -r deep/global_step20 "it's"
  train 2 other --resume "it's"
  ok "without latest: the newest step, as a shell's word" said 2 "zero_to_fp32 'it'\\\\''s' OUT -t global_step20"
  train 2 other --set run.resume=deep
  ok "a request of the deck" said 2 "--set: run.resume: deep: is a checkpoint of DeepSpeed"
  train 2 deep --resume auto
  ok "as run.directory" said 2 "--set: run.directory: deep: is a checkpoint of DeepSpeed"
  touch deep/config.json
  train 2 other --weights deep
  ok "as weights, beside a config.json" said 2 "deep: is a checkpoint of DeepSpeed"
  cp "$top/regression/golden/gpt2/config.json" deep
  { echo 'model = { from = "deep"; }; train_micro_batch_size_per_gpu = 1;'
    echo "data = { path = \"$top/regression/golden/gpt2/tokens.bin\"; format = \"bin\"; sequence_length = 16; };"; } > deep.cfg
  run "$tessera" train deep.cfg --set run.directory=other
  ok "as model.from, beside a config.json" said 2 "deep: is a checkpoint of DeepSpeed"
  touch deep/model.safetensors
  train 2 other --weights deep
  ok "beside a whole model: that is taken" said 2 "deep/model.safetensors: "
}

# A run that began from a Hugging Face directory goes on when that is gone.
test_gone() {
  golden=$top/regression/golden/llama
  rm -rf decks gone
  mkdir -p decks/hf elsewhere2
  cp "$golden/config.json" "$golden/model.safetensors" decks/hf
  echo '{"words": 1}' > decks/hf/tokenizer.json
  cat > decks/gone.cfg << END
model = { from = "hf"; };
data = { path = "$golden/tokens.bin"; format = "bin"; sequence_length = 17; };
run = { directory = "gone"; steps = 4; threads = 1; save_every = 2; };
train_batch_size = 2;
END
  run $mpiexec -n 2 "$tessera" train decks/gone.cfg
  ok "model.from is relative to its deck" clean
  ok "in the run's deck.cfg it is absolute" grep -q "from = \"$work/decks/hf\"" gone/deck.cfg
  cp -r gone whole2
  rm -rf decks/hf
  for deck in ../gone/deck.cfg ../decks/gone.cfg; do
    rm -rf gone/step_00000004
    cd elsewhere2 || exit 1
    run $mpiexec -n 2 "$tessera" train $deck --set run.directory=../gone --resume auto
    cd .. || exit 1
    ok "$deck, from elsewhere and without the directory: goes on" gave 0
    ok "$deck: as if it were there" same gone whole2
  done
  ok "the deck's own says what it takes" grep -q "decks/hf is not there; ../gone/from/config.json is" "$scratch/out"
  ok "the tokenizer is kept too" grep -q words gone/from/tokenizer.json
  run "$tessera" train decks/gone.cfg --set run.directory=gone2
  ok "a new run is refused, with place and key" said 2 "decks/gone.cfg:1: model.from: .*/hf/config.json: No such file"
  run $mpiexec -n 2 "$tessera" train gone/deck.cfg --set run.directory=gone2
  ok "also by the deck of that run" said 2 "gone/deck.cfg:[0-9]+: model.from: .*/decks/hf: No such file"
  rm -r gone/from
  run "$tessera" train decks/gone.cfg --resume auto
  ok "a run that has kept nothing: its deck is the way" said 2 "goes on with gone/deck.cfg as its deck"
  mkdir hf
  cp "$golden/config.json" "$golden/model.safetensors" hf
  run "$tessera" train decks/gone.cfg --set run.directory=gone2
  ok "a deck for the working directory: the way out" said 2 "hf is in the working directory: --set model.from=hf takes"
  run "$tessera" train decks/gone.cfg --set run.directory=gone2 --set model.from=hf
  ok "which works" gave 0
  run "$tessera" train decks/gone.cfg --set run.directory=gone3 --set model.from=hf --weights hf
  ok "the weights of that directory" clean
  mkdir bare
  cp "$golden/model.safetensors" bare
  run "$tessera" train decks/gone.cfg --set run.directory=gone5 --set model.from=hf --weights bare
  ok "of one without config.json: that nothing but shapes was compared" printed "^bare does not say what its weights' model is like"
  run "$tessera" train decks/gone.cfg --set run.directory=gone4 --set model.from=hf --weights hf --set model.rope_theta=2e4
  ok "in a model with other settings: which" said 0 "^  model.rope_theta: 10000.0, now 20000.0"
}

# RUN/from is of the directory that the run's weights came from.
test_from() {
    for d in A B; do
    mkdir $d
    cp "$golden/config.json" "$golden/model.safetensors" $d
    echo "{\"words of\": \"$d\"}" > $d/tokenizer.json
  done
  echo of A > A/merges.txt
  sed 's|"hf"|"../A"|; s|"gone"|"died"|' decks/gone.cfg > decks/run.cfg
  run "$tessera" train decks/run.cfg
  cp -r died begun
  rm -rf died/step_* died/latest # killed before its first checkpoint
  run "$tessera" train decks/run.cfg --set model.from=B --resume auto
  ok "begun anew from another directory: it has that one's tokenizer" both 'gave 0' 'cmp B/tokenizer.json died/from/tokenizer.json'
  ok "and no file of the one before" [ ! -e died/from/merges.txt ]
  run "$tessera" zero_to_fp32 died out --safe_serialization
  ok "so has what is exported" both 'gave 0' 'cmp B/tokenizer.json out/tokenizer.json'
  run "$tessera" train decks/run.cfg --set run.directory=begun --set model.from=B --set run.steps=5 --resume auto
  ok "a run that goes on keeps its own" both 'gave 0' 'cmp A/tokenizer.json begun/from/tokenizer.json'
  rm -r A
  run "$tessera" train begun/deck.cfg --resume begun --set run.directory=branch --set run.steps=6
  ok "a checkpoint of another run, whose directory is gone: what that run kept" both 'gave 0' 'diff -r begun/from branch/from'
  rm -rf out
  run "$tessera" zero_to_fp32 branch out --safe_serialization
  ok "is exported" both 'gave 0' 'cmp begun/from/tokenizer.json out/tokenizer.json'
}

# ---- stopping ----

# stop HOW: a long run is asked to stop after its first steps.
stop() {
  rm -rf stopped pids
  timeout -k 5 60 $mpiexec -n 2 sh -c 'echo $$ >> pids; exec "$@"' sh "$tessera" train gpt2.cfg \
    --set run.directory=stopped --set run.steps=1000000 --set run.save_every=0 --set run.evaluate_every=0 \
    --set debug.digest_every=0 > "$scratch/out" 2> "$scratch/err" < /dev/null &
  job=$!
  tries=0
  while [ $tries -lt 300 ] && ! grep -q '^3,' stopped/metrics.csv 2> /dev/null; do
    sleep 0.1
    tries=$((tries + 1))
  done
  "$@"
  wait $job
  status=$?
}
signal_one() { kill "-$1" "$(tail -n 1 pids)"; }
signal_all() {
  for pid in $(cat pids); do
    kill "-$1" "$pid" 2> /dev/null
  done
}
signal_twice() {
  signal_all "$1"
  sleep 0.02
  signal_all "$1"
}
last_step() { tail -n 1 stopped/metrics.csv | cut -d, -f1; }

test_stop() {
  for how in "signal_one TERM" "signal_one USR1" "touch stopped/STOP" "signal_twice TERM"; do
    # shellcheck disable=SC2086
    stop $how
    ok "$how: exit code 75" gave 75
    ok "$how: the step that was done last is saved" published "stopped/step_$(printf %08d "$(last_step)")"
    ok "$how: and intact" "$tessera" verify stopped
  done
  ok "the file STOP is gone" [ ! -e stopped/STOP ]
  steps=$(($(last_step) + 3))
  run $mpiexec -n 2 "$tessera" train gpt2.cfg --set run.directory=stopped --set run.steps=$steps --resume auto
  ok "it goes on to its end" both 'gave 0' '[ $(last_step) = $steps ]'
}

test_save
test_table
test_layouts
test_recipes
test_requests
test_damage
test_deepspeed
test_gone
test_from
test_stop
finish
