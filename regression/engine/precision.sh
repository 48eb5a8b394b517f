#!/bin/sh
# TAP: what types cost in loss (doc/precision.md).  At a small learning rate bf16 parameters without fp32 masters stand
# still, where parameters with masters learn; rounded by chance they learn again.  States in 8 bits end where fp32's do.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"

# learn NAME [WORD]...: by how much the loss fell, from the first step to the mean of the last 20, in $learned.
learn() {
  mode=$1
  shift
  run "$tessera" train "$top/inputs/precision.cfg" --set data.path=text.txt --set "run.directory=$mode" \
    --set data.sequence_length=32 --set train_batch_size=4 --set run.steps=120 --set run.save_every=0 "$@"
  ok "$mode: a run" gave 0
  learned=$(awk -F, 'NR == 2 { first = $3 } { sum += $3 - last[NR % 20]; last[NR % 20] = $3 }
    END { print first - sum / 20 }' "$mode/metrics.csv")
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

# Muon makes matrices of any size alike, also of gradients that are too small for fp16 when the loss scale is gone.
for sums in fp16 fp32; do
  learn "muon_$sums" --set bf16.enabled=false --set fp16.enabled=true --set optimizer.type=Muon --set optimizer.params.lr=5e-3 \
    --set gradient_clipping=1e-6 --set "data_types.grad_accum_dtype=$sums" --set fp16.initial_scale_power=10 --set run.steps=40
  [ $sums = fp32 ] || small=$learned
done
ok "Muon with gradients in fp16 and clipped to 1e-6: $small, in fp32 $learned" \
  awk "BEGIN { exit !($learned > 0.5 && $small > 0.98 * $learned && $small < 1.02 * $learned) }"

# At a usual rate, on a text that takes longer, and that nobody edits.  Matrices of 4,096 elements have codes: all but those
# of keys and values.
bible gen1:1-gen30:43 > text.txt
ok "Genesis, from Debian's bible-kjv" [ "$(wc -c < text.txt)" -gt 100000 ]
# Where a rate is so large that runs are chaotic (Lamb's 1e-2, Muon's 2e-2), two seeds are 5 % apart in fp32 alone.
optimizers=AdamW:2e-3
[ -z "${TEST_PRECISION_ALL:-}" ] || optimizers="AdamW:2e-3 Lion:3e-4 Adagrad:1e-2 Lamb:3e-3 Muon:5e-3"
for optimizer in $optimizers; do
  set -- --set bf16.enabled=false --set run.steps=500 --set "optimizer.type=${optimizer%:*}" \
    --set "optimizer.params.lr=${optimizer#*:}"
  learn "fp32_${optimizer%:*}" "$@"
  begin=$(awk -F, 'NR == 2 { print $3 }' "$mode/metrics.csv")
  fp32=$(awk "BEGIN { print $begin - $learned }")
  learn "codes_${optimizer%:*}" --set optimizer.state_dtype=8bit "$@"
  codes=$(awk "BEGIN { print $begin - $learned }")
  ok "${optimizer%:*}: 500 steps with states in 8 bits end at $codes, within 1 % of $fp32 in fp32" \
    awk "BEGIN { exit !($codes < 1.01 * $fp32 && $codes > 0.99 * $fp32 && $fp32 < 3.5 && $codes != $fp32) }"
done
finish
