#!/bin/sh
# TAP: runs as long as their data, so many times (run.epochs).
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"

# 10 samples of 24 tokens: an epoch is two steps and a half.
head -c 241 text.txt > ten.txt
tail -c 121 text.txt > five.txt
cat > epochs.cfg << 'END'
model = { model_type = "gpt2"; vocab_size = 256; n_embd = 24; n_layer = 2; n_head = 3; n_positions = 32; };
data = { path = "ten.txt"; format = "text"; sequence_length = 24; seed = 1; };
run = { directory = "run"; epochs = 2.0; seed = 1; threads = 1; save_every = 3; };
train_batch_size = 4;
optimizer = { type = "AdamW"; params = { lr = 1e-2; }; };
scheduler = { type = "WarmupCosineLR"; params = { total_num_steps = "auto"; warmup_num_steps = 1; }; };
END

# train RANKS DIRECTORY [WORD]...: keeps stdout, stderr, status.
train() {
  n=$1
  directory=$2
  shift 2
  run $mpiexec -n "$n" "$tessera" train epochs.cfg --set "run.directory=$directory" "$@"
}

steps_of() { awk -F, 'END { print $1 }' "$1/metrics.csv"; }
same() { "$tessera" compare "$@"; }
key() { "$tessera" deck "$1" --key "$2"; }

test_length() {
  train 1 two
  ok "2 epochs of 10 samples in batches of 4: 5 steps, and it says so" printed '^5 steps: 2 epochs of 10 samples$'
  ok "so many are done" is "$(steps_of two)" 5
  ok "the run's deck has the epochs" is "$(key two/deck.cfg run.epochs)/$(key two/deck.cfg run.steps)" 2.0/0
  ok "status counts to it" grep -q '^steps 5$' two/status/@run
  train 1 five --set run.epochs=0 --set run.steps=5
  ok "the bits of a run of 5 steps" same two five
  train 2 one --set run.epochs=1
  ok "1 epoch: the third batch is whole" printed '^3 steps: 1 epoch of 10 samples$'
  train 1 part --set run.epochs=1.2
  ok "1.2 epochs are 12 samples" printed '^3 steps: 1.2 epochs of 10 samples$'
  sed 's/total_num_steps = "auto"; //' epochs.cfg > untold.cfg
  run "$tessera" train untold.cfg --set run.directory=untold
  ok "a schedule without a total has it too" same two untold
}

test_sources() {
  sed 's/path = "ten.txt"/sources = ( { path = "ten.txt"; weight = 0.1; }, { path = "five.txt"; weight = 0.9; } )/' \
    epochs.cfg > sources.cfg
  run "$tessera" train sources.cfg --set run.directory=sources
  ok "an epoch of a mixture is the sum of its samples" printed '^8 steps: 2 epochs of 15 samples$'
}

test_resume() {
  cp -r two again
  rm -rf again/step_00000005
  train 2 again --resume auto
  ok "a run that was cut short" printed '^resumed at step 3 of 5 from again'
  ok "goes on as if it had not been" same two again --tolerance 2e-6 # sums of two ranks are in another order
  cp -r two own
  cp -r two users
  rm -r own/step_00000005 users/step_00000005
  train 1 users --resume auto --set run.epochs=3.5
  ok "more epochs" printed '^9 steps: 3.5 epochs of 10 samples$'
  ok "are more steps" is "$(steps_of users)" 9
  ok "and nothing to warn of" clean
  run "$tessera" train own/deck.cfg --set run.directory=own --resume auto --set run.epochs=3.5
  ok "by the run's deck the same, and the same schedule" same users own
  train 1 users --resume auto
  ok "fewer than are done: nothing is left" printed '^resumed at step 9 of 9 .*nothing is left to do$'
  rm -rf two/step_00000005
  train 2 two --resume auto --set train_batch_size=8
  ok "12 samples were read: 8 are left, a step of another batch" printed '^resumed at step 3 of 4 '
  ok "of which is said what goes on" printed "4 -> 8; the learning rate's schedule goes on counting steps, the data goes"
  ok "which is done" is "$(steps_of two)" 4
}

test_refused() {
  train 1 refused --set run.steps=5
  ok "run.steps beside run.epochs is refused, with the ways out" said 2 \
    'epochs.cfg:3: run.epochs: run.steps = 5 is given too; .*--set run.steps=0 or --set run.epochs=0'
  train 1 refused --set run.epochs=0
  ok "\"auto\" of the schedule without both" said 2 '"auto" takes run.steps or run.epochs, and neither is given'
  train 1 refused --set run.epochs=0 --set scheduler.params.total_num_steps=5
  ok "no epochs and no steps" said 2 'run.steps: missing: how many steps to train .or run.epochs'
  train 1 refused --set run.epochs=-1
  ok "less than none" said 2 'run.epochs: -1 is out of range'
  ok "nothing was made" [ ! -e refused ]
}

test_without_data() {
  run "$tessera" plan epochs.cfg --set data.path=missing.txt
  ok "a plan needs no data" printed 'peak: '
  run "$tessera" graph epochs.cfg --set data.path=missing.txt
  ok "nor does a graph" clean
  "$tessera" deck epochs.cfg > complete.cfg
  "$tessera" deck complete.cfg > complete_again.cfg
  ok "the deck that is printed reads back" both 'cmp complete.cfg complete_again.cfg' 'grep -q "epochs = 2.0;" complete.cfg'
}

test_length
test_sources
test_resume
test_refused
test_without_data
finish
