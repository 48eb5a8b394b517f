#!/bin/sh
# TAP: runs that go on with other numbers of ranks keep their batch; elasticity chooses one.  A GPT-2 with dropout,
# whose masks are drawn by sample, so that they would show samples dealt out wrongly.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"

# The largest relative difference of losses between grids in fp32: sums in another order.
other_grid=2e-6

cat > elastic.cfg << 'END'
model = { model_type = "gpt2"; vocab_size = 256; n_embd = 24; n_layer = 2; n_head = 3; n_positions = 32;
          attn_pdrop = 0.1; embd_pdrop = 0.1; resid_pdrop = 0.1; };
data = { path = "text.txt"; format = "text"; sequence_length = 24; validation_fraction = 0.1; seed = 1; };
run = { directory = "run"; steps = 8; seed = 1; threads = 1; log_every = 2; save_every = 1; keep = 2; };
optimizer = { type = "AdamW"; params = { lr = 1e-2; weight_decay = 0.1; }; no_decay = ["ln_", "bias"]; };
scheduler = { type = "WarmupCosineLR"; params = { total_num_steps = 8; warmup_num_steps = 2; }; };
gradient_clipping = 1.0;
zero_optimization = { stage = 2; };
END
cat > left_out.cfg << 'END'
@include "elastic.cfg"
train_micro_batch_size_per_gpu = 2;
gradient_accumulation_steps = 3;
END
cat > three.cfg << 'END'
@include "left_out.cfg"
train_batch_size = 24;
END
cat > chosen.cfg << 'END'
@include "elastic.cfg"
elasticity = { enabled = true; max_train_batch_size = 24; micro_batch_sizes = [2, 3]; version = 0.1; };
END

# train DECK RANKS DIRECTORY STEPS [WORD]...: up to that step, from where the run is.
train() {
  words="-n $2 $tessera train $1 --resume auto --set run.directory=$3 --set run.steps=$4"
  shift 4
  # shellcheck disable=SC2086
  run $mpiexec $words "$@"
}

same() { "$tessera" compare "$@"; }
both() { eval "$1" && eval "$2"; }
tokens() { cut -d, -f1,2 "$1/metrics.csv"; }
# key RUN NAME: a line of the deck that the run wrote.
key() { "$tessera" deck "$1/deck.cfg" --key "$2"; }
triple() { echo "$(key "$1" train_batch_size) = $(key "$1" train_micro_batch_size_per_gpu) x $(key "$1" gradient_accumulation_steps)"; }

test_kept() {
  train left_out.cfg 4 whole 8
  ok "4 ranks, never stopped" gave 0
  for deck in left_out.cfg three.cfg; do
    rm -rf run
    train $deck 4 run 2
    ok "$deck: 4 ranks" clean
    train $deck 2 run 4
    ok "$deck: then 2, which the run says" \
      printed '^4 ranks before, 2 now: gradient_accumulation_steps 3 -> 6 keeps train_batch_size 24$'
    train $deck 2 run 5
    ok "$deck: 2 again: the deck's 3 steps are still for 4" \
      printed '^train_batch_size 24 is kept: train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 6 x 2 ranks'
    train $deck 3 run 6
    ok "$deck: then 3" printed '^2 ranks before, 3 now: gradient_accumulation_steps 6 -> 4 keeps train_batch_size 24$'
    train run/deck.cfg 1 run 7
    ok "$deck: then 1, from the deck in the run's directory" both 'gave 0' '[ "$(triple run)" = "24 = 2 x 12" ]'
    train $deck 4 run 8
    ok "$deck: and 4" both 'gave 0' '[ "$(triple run)" = "24 = 2 x 3" ]'
    ok "$deck: losses of 4 ranks throughout" same run whole --tolerance $other_grid
    ok "$deck: and their tokens, row by row" is "$(tokens run)" "$(tokens whole)"
  done
}

test_divides() {
  rm -rf run
  for n in 3 2; do
    train left_out.cfg $n run $((5 - n)) --set train_micro_batch_size_per_gpu=4 --set gradient_accumulation_steps=1
  done
  ok "a micro-batch that does not divide becomes a smaller one" \
    printed '^3 ranks before, 2 now: train_micro_batch_size_per_gpu 4 -> 3, gradient_accumulation_steps 1 -> 2 keeps train_batch_size 12$'
}

# Without learning the loss of a step is the mean over its samples, in any order: 26 steps of one sample tell what it
# should be.
still="--set optimizer.params.lr=0 --set model.attn_pdrop=0 --set model.embd_pdrop=0 --set model.resid_pdrop=0"
mean_of() { tail -n "+$(($2 + 1))" "$1/metrics.csv" | head -n "$3" | awk -F, '{ sum += $3 } END { printf "%.9f\n", sum / NR }'; }
# near A B: relative difference up to that of other sums
near() { awk -v a="$1" -v b="$2" -v most="$other_grid" 'BEGIN { d = (a - b) / b; exit !(d < most && -d < most) }'; }

test_refused() {
  # shellcheck disable=SC2086
  {
    train elastic.cfg 1 single 26 --set train_batch_size=1 $still
    train elastic.cfg 4 odd 1 --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=2 $still
    before=$(tokens odd)
    train elastic.cfg 3 odd 2 --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=2 $still
    ok "a batch that does not divide is refused, with the ranks that would do" \
      said 2 'keeps its train_batch_size, and 8 / data-parallel size 3 is not a whole number; accepted: 1, 2, 4 ranks, another train_batch'
    ok "and the run is left as it was" is "$(tokens odd)" "$before"
    cp -r odd other
    train elastic.cfg 3 odd 3 --set 'elasticity={enabled=true;max_train_batch_size=9;micro_batch_sizes=[3];}' $still
    ok "elasticity has a fit" \
      printed '^4 ranks before, 3 now: train_batch_size 8 -> 9, train_micro_batch_size_per_gpu 1 -> 3, gradient_accumulation_steps 2 -> 1; run.steps and'
    train elastic.cfg 3 other 3 --set train_batch_size=9 $still
    ok "another train_batch_size is taken too" printed '^4 ranks before, 3 now: train_batch_size 8 -> 9, '
  }
  for directory in odd other; do
    ok "$directory: 8 samples a step, then 9" is "$(tokens $directory | tail -n 2 | tr '\n' ' ')" "2,$((17 * 24)) 3,$((26 * 24)) "
    ok "$directory: the first 8" near "$(mean_of $directory 1 1)" "$(mean_of single 1 8)"
    ok "$directory: the 9 behind them" near "$(mean_of $directory 2 1)" "$(mean_of single 9 9)"
    ok "$directory: and the 9 behind those" near "$(mean_of $directory 3 1)" "$(mean_of single 18 9)"
  done
}

test_chosen() {
  rm -rf run
  train chosen.cfg 4 run 2
  ok "elasticity on 4 ranks" both 'gave 0' '[ "$(triple run)" = "24 = 3 x 2" ]'
  train chosen.cfg 3 run 4
  ok "then 3" printed '^4 ranks before, 3 now: train_micro_batch_size_per_gpu 3 -> 2, gradient_accumulation_steps 2 -> 4 keeps train_batch_size 24$'
  train run/deck.cfg 2 run 6
  ok "then 2, from the deck in the run's directory" both 'gave 0' '[ "$(triple run)" = "24 = 3 x 4" ]'
  train chosen.cfg 1 run 8
  ok "then 1" clean
  ok "the losses of a run on 4 with that batch" same run whole --tolerance $other_grid
  ok "and its tokens" is "$(tokens run)" "$(tokens whole)"
  train chosen.cfg 3 nine 8 --set elasticity.max_gpus=2
  ok "ranks that do not fit are refused, with those that do" \
    said 2 'data-parallel size 3 does not fit train_batch_size 24; accepted: 1, 2, or elasticity.version = 0.2'
  ok "nothing is written" [ ! -e nine ]
  train chosen.cfg 2 nine 8 --set train_batch_size=24
  ok "a batch beside elasticity is refused" said 2 'train_batch_size: elasticity.enabled chooses the batch; accepted: to leave it out'
}

test_dead() {
  train left_out.cfg 4 begun 1
  mkdir dead
  cp begun/deck.cfg dead
  head -n 1 begun/metrics.csv > dead/metrics.csv
  train left_out.cfg 2 dead 8
  ok "a run that died before its first checkpoint keeps its batch too" \
    printed '^4 ranks before, 2 now: gradient_accumulation_steps 3 -> 6 keeps train_batch_size 24$'
  ok "with the losses of 4 ranks" same dead whole --tolerance $other_grid
}

test_plan() {
  run "$tessera" plan left_out.cfg --ranks 4
  ok "plan shows the batch" printed '^a step takes 24 samples: micro-batches of 2 x 3 accumulation steps x 4 ranks$'
  run "$tessera" plan chosen.cfg --ranks 3
  ok "and the numbers of ranks that elasticity's is for" \
    printed '^elasticity: 24 samples go with these numbers of ranks: 1, 2, 3, 4, 6, 8, 12$'
  run "$tessera" plan chosen.cfg --ranks 5 --set elasticity.version=0.2
  ok "or that one has its own" printed '^elasticity: 24 samples go with .*; others have a batch of their own$'
  run "$tessera" plan chosen.cfg --ranks 3 --format json
  ok "as json" printed '"elastic_batch_size": 24, "elastic_ranks": \[1, 2, 3, 4, 6, 8, 12\]'
  run "$tessera" plan chosen.cfg --ranks 5
  ok "and refuses the others" said 2 'data-parallel size 5 does not fit train_batch_size 24'
}

test_kept
test_divides
test_refused
test_chosen
test_dead
test_plan
finish
