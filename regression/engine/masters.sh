#!/bin/sh
# TAP: the two modes of mixed precision (doc/precision.md).  At a small learning rate bf16 parameters without fp32
# masters stand still, where parameters with masters learn; rounded by chance they learn again.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"

# learn NAME [WORD]...: by how much the loss fell, from the first step to the mean of the last 20, in $learned.
learn() {
  mode=$1
  shift
  run "$tessera" train "$top/inputs/precision.cfg" --set data.path=text.txt --set "run.directory=$mode" \
    --set data.sequence_length=32 --set train_batch_size=4 --set run.steps=120 --set run.save_every=0 "$@"
  ok "$mode: a run" gave 0
  learned=$(awk -F, 'NR == 2 { first = $3 } NR > 101 { sum += $3 } END { print first - sum / 20 }' "$mode/metrics.csv")
}
# within A B: of the loss that was learned with masters
within() { awk "BEGIN { exit !($learned >= $1 * $masters && $learned <= $2 * $masters) }"; }
halves() { echo "--set $1.enabled=true --set $1.$1_master_weights_and_grads=true"; }

learn fp32 --set bf16.enabled=false
masters=$learned
ok "fp32 learns: $learned" awk "BEGIN { exit !($learned > 0.9) }" # of 5.86; an even guess is 5.55
learn aligned
ok "bf16 with fp32 masters learns as fp32: $learned" within 0.97 1.03

# An update is about the learning rate, 4e-5, and a bf16 takes no less than 2^-9 of itself: what moves are weights below
# 0.02, one in six, and of the rest none.
# shellcheck disable=SC2046
{
  learn constrained $(halves bf16) --set bf16.bf16_optimizer_states=true
  ok "bf16 without masters stands still: $learned" within -0.2 0.2
  learn states $(halves bf16)
  ok "and with states in fp32: $learned" within -0.2 0.2
  learn chance $(halves bf16) --set bf16.bf16_optimizer_states=true --set bf16.stochastic_rounding=true
  ok "rounded by chance it learns: $learned" within 0.97 1.03
  learn moments --set optimizer.state_dtype=bf16
  ok "states in bf16 alone cost nothing here: $learned" within 0.97 1.03
  learn half $(halves fp16) --set bf16.enabled=false
  ok "fp16, three bits finer, loses less: $learned" within 0.5 0.97
}
finish
