#!/bin/sh
# TAP: the step that is observed, one clock for the timelines of all ranks; comms_logger, flops_profiler; what a run
# says of itself.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"

# train RANKS DIRECTORY [WORD]...: keeps stdout, stderr, status.
train() {
  n=$1
  directory=$2
  shift 2
  run $mpiexec -n "$n" "$tessera" train tiny.cfg --set "run.directory=$directory" "$@"
}

# traces NAME EXPRESSION FILE...: a result by the timelines t[0], t[1], ... and functions of spans.
traces() {
  what=$1
  says=$2
  shift 2
  if ! command -v python3 > /dev/null; then
    skip "$what" "no python3 to read json with"
    return
  fi
  ok "$what" python3 -c "
import json, sys
t = [json.load(open(f)) for f in sys.argv[2:]]
def spans(i, kind): return [e for e in t[i]['traceEvents'] if e['ph'] == 'X' and e['tid'] == kind]
def meet(a, b, slack): return a['ts'] <= b['ts'] + b['dur'] + slack and b['ts'] <= a['ts'] + a['dur'] + slack
bound = sum(x['otherData']['clock_bound_us'] for x in t)
assert eval('(' + sys.argv[1] + ')'), t" "$says" "$@"
}

test_clock() {
  train 2 timed --set profile.timeline=trace.json --set zero_optimization.stage=2
  ok "timelines of two ranks" clean
  set -- trace.json trace.json.rank1
  traces "both name the step, which is the third, and the ranks" \
    "all(x['otherData']['step'] == 3 and x['otherData']['ranks'] == 2 for x in t)" "$@"
  traces "how far the clocks were apart was measured: rank 0 by definition is right" \
    "t[0]['otherData']['clock_bound_us'] == 0 < t[1]['otherData']['clock_bound_us'] and
     abs(t[1]['otherData']['clock_offset_us']) <= t[1]['otherData']['clock_bound_us']" "$@"
  traces "the same collectives, each on both ranks at a time" \
    "len(spans(0, 1)) == 3 and [e['name'] for e in spans(0, 1)] == [e['name'] for e in spans(1, 1)] and
     all(meet(a, b, bound) for a, b in zip(spans(0, 1), spans(1, 1)))" "$@"
  # Between the first and the third, parts of the norm are gathered, and no rank leaves that before the other has come to it.
  traces "what is later on one than on the other is not the same moment" \
    "spans(0, 1)[1]['cat'] == 'all_gather' and not meet(spans(0, 1)[0], spans(1, 1)[2], -bound)" "$@"
  traces "their bytes are of the whole tensor: 23,712 gradients in fp32, by two ranks" \
    "[(e['args']['bytes'], e['args']['ranks']) for e in spans(0, 1)][0] == (94848, 2) and
     [e['args'] for e in spans(0, 1)] == [e['args'] for e in spans(1, 1)]" "$@"
  traces "computation has none" "all('args' not in e for e in spans(0, 0))" "$@"
  train 2 staged --set profile.timeline=stages.json --set pipeline.stages=2 --set gradient_accumulation_steps=2
  traces "a message between stages is of two ranks; of the bytes of an activation: 2 x 32 x 32 in fp32" \
    "all([(e['args']['bytes'], e['args']['ranks']) for e in spans(i, 1) if e['cat'] == cat and 'boundary' in e['name']] ==
         [(8192, 2)] * 2 for i in (0, 1) for cat in ('send', 'receive'))" stages.json stages.json.rank1
}

# A column of a row of comms.csv by its operation.
column() { awk -F, -v op="$2" -v name="$3" 'NR == 1 { for (i = 1; i <= NF; ++i) c[$i] = i } $1 == op { print $c[name]; exit }' "$1/comms.csv"; }

test_comms() {
  logger="--set comms_logger.enabled=true"
  stage=zero_optimization.stage=2
  train 2 plain --set $stage
  train 2 logged $logger --set $stage
  ok "comms_logger: a table of all steps" printed '^communication of 6 steps, as rank 0 saw it'
  ok "an operation a step, by DeepSpeed's name, of the whole tensor and its group" grep -Eq \
    '^ +reduce_scatter_tensor +94.85 kB +2 +6 ' "$scratch/out"
  ok "comms.csv has the same" is "$(column logged reduce_scatter_tensor bytes),$(column logged reduce_scatter_tensor \
    ranks),$(column logged reduce_scatter_tensor count)" 94848,2,6
  ok "the bus of two ranks carries half" awk -v t="$(column logged reduce_scatter_tensor tput_gbps)" \
    -v b="$(column logged reduce_scatter_tensor busbw_gbps)" 'BEGIN { exit !(t > 0 && (2 * b - t) ^ 2 < (1e-5 * t) ^ 2) }'
  ok "nobody waits for less than nothing, nor for longer than it takes" awk -F, 'NR > 1 && ($NF < 0 || $NF > $7) { exit 1 }' \
    logged/comms.csv
  ok "the run is the same to the bit" "$tessera" compare plain logged
  train 2 loud $logger --set $stage --set comms_logger.verbose=true --set comms_logger.debug=true
  ok "verbose: a line for each message of the third step" is "$(grep -c '^  step [0-9]*: ' "$scratch/out")/$(
    grep -c '^  step 3: .*, 2 ranks, .* ms, tput .* Gbps, busbw .* Gbps$' "$scratch/out")" 3/3
  ok "debug: rows have the names of nodes" grep -q '^all_gather_into_tensor,record.gather,160,2,6,' loud/comms.csv
  train 2 chosen $logger --set $stage --set comms_logger.prof_all=false --set comms_logger.prof_ops=reduce_scatter
  ok "prof_ops: what is named alone" is "$(cut -d, -f1 chosen/comms.csv | tr '\n' ' ')" "operation reduce_scatter_tensor "
  train 2 stages $logger --set pipeline.stages=2 --set gradient_accumulation_steps=2
  ok "messages between stages are waited for by nobody else" is "$(column stages recv straggler_ms)" nan
  ok "each is counted, waited for or not: micro-batches times steps" is \
    "$(column stages send count),$(column stages recv count)" 12,12
  ok "and has no rate" both "grep -Eq '^ +send +8.19 kB +2 +12 +[0-9.]+ +[0-9.]+ +- +- +-$' '$scratch/out'" \
    "[ '$(column stages recv tput_gbps),$(column stages recv busbw_gbps)' = nan,nan ]"
  train 1 refused $logger --set comms_logger.prof_ops=allreduce
  ok "a word that is no operation" said 2 'comms_logger.prof_ops: "allreduce" is no operation; accepted: all_reduce,'
  train 1 silent $logger --set comms_logger.prof_all=false
  ok "nothing to count is said" both 'gave 0' "grep -q 'comms_logger: nothing is counted' '$scratch/err' '$scratch/out'"
}

test_flops() {
  profiler="--set flops_profiler.enabled=true"
  train 1 flops $profiler
  ok "flops_profiler: DeepSpeed's step 1 is the second" printed '^flops_profiler: step 2 as rank 0 observed it$'
  # 128 tokens: 15,360 MACs of two blocks' products and 8,192 of the head a token, 2 x 131,072 of causal attention
  ok "MACs by hand" grep -q '^  fwd MACs of a rank  *3.28 MMACs$' "$scratch/out"
  ok "modules down to the products" grep -Eq '^ +q_proj: 1.02 k params = 4.32%, 131.07 kMACs = 4.00%, ' "$scratch/out"
  train 1 shallow $profiler --set flops_profiler.module_depth=2 --set flops_profiler.top_modules=2 \
    --set flops_profiler.profile_step=4 --set flops_profiler.recompute_fwd_factor=1 --set flops_profiler.output_file=report.txt
  ok "into a file, and not on the screen" both "printed '^step 1/6'" "! grep -q flops_profiler '$scratch/out'"
  ok "of the step that was asked for" grep -q '^flops_profiler: step 5 ' report.txt
  ok "module_depth" both "grep -q '^  depth 2$' report.txt" "! grep -Eq 'depth 3|q_proj' report.txt"
  ok "top_modules" grep -Eq '^    params +layers: 15.49 k params, embed_tokens: 8.19 k params$' report.txt
  ok "recompute_fwd_factor" grep -q '^  bwd FLOPS of a rank = 3 x fwd FLOPs / bwd latency' report.txt
  train 2 stages_of $profiler --set pipeline.stages=2 --set flops_profiler.detailed=false
  ok "the model's FLOPs on two stages, of which one has the head" grep -q '^  fwd FLOPs of the model .* 6.55 MFLOPs$' "$scratch/out"
  train 1 brief $profiler --set flops_profiler.detailed=false
  ok "detailed = false: no list of modules" both "printed '^  depth 5$'" "! grep -q 'each module' '$scratch/out'"
  train 1 refused $profiler --set flops_profiler.output_file=report.txt
  ok "a report over another file" said 2 'flops_profiler.output_file: report.txt exists already'
  train 1 refused $profiler --set flops_profiler.output_file=nowhere/report.txt
  ok "one that cannot be written" said 2 'flops_profiler.output_file: nowhere/report.txt: cannot be written'
  train 1 refused $profiler --set flops_profiler.profile_step=-1
  ok "a step that cannot be" said 2 'flops_profiler.profile_step: .*accepted'
  train 1 short $profiler --set flops_profiler.profile_step=6
  ok "a step that never comes is said" said 0 'flops_profiler.profile_step = 6: the run has 6 steps'
  cp -r shallow again
  train 1 again $profiler --set run.steps=8 --set run.resume=auto --set flops_profiler.output_file=report.txt
  ok "a run that goes on is behind that step, and its report stays" both 'gave 0' "grep -q '^flops_profiler: step 5 ' report.txt"
}

# refused NAME EXPRESSION RUN WORD...: a run that says so, and ends.
refused() {
  what=$1
  expression=$2
  shift 2
  train 1 "$@" --set run.steps=6 --set flops_profiler.enabled=true
  ok "$what" said 2 "$expression"
}

test_overwritten() {
  train 1 goes_on --set run.steps=4 --set flops_profiler.enabled=true --set flops_profiler.output_file=own.txt --set profile.timeline=own.json
  ok "a run with both files" clean
  echo mine > precious.txt
  cp precious.txt p2.json
  refused "a run that goes on spares what it did not name" 'flops_profiler.output_file: precious.txt exists already' \
    goes_on --resume auto --set flops_profiler.output_file=precious.txt
  refused "under any key" 'profile.timeline: p2.json exists already' goes_on --resume auto --set profile.timeline=p2.json
  refused "what it named under the other key" 'profile.timeline: own.txt exists already' \
    goes_on --resume auto --set flops_profiler.output_file=new.txt --set profile.timeline=own.txt
  mkdir elsewhere
  cp precious.txt elsewhere/own.txt
  run env -C elsewhere "$tessera" train "$work/tiny.cfg" --set data.path="$work/text.txt" --set run.directory="$work/goes_on" \
    --set run.steps=6 --resume auto --set flops_profiler.enabled=true --set flops_profiler.output_file=own.txt
  ok "and what has the name elsewhere" said 2 'flops_profiler.output_file: own.txt exists already'
  ok "they are as they were" is "$(cat precious.txt p2.json elsewhere/own.txt | sort -u)" mine
  train 1 goes_on --set run.steps=8 --resume auto --set flops_profiler.enabled=true --set flops_profiler.profile_step=5 \
    --set flops_profiler.output_file=./own.txt --set profile.timeline="$work/own.json"
  ok "its own it writes again" both clean "grep -q 'step 6 as' own.txt"
  cp precious.txt p.json.rank1
  train 2 refused --set profile.timeline=p.json
  ok "each rank's file is looked for" said 2 'profile.timeline: p.json.rank1 exists already'
  ok "and spared" both 'is "$(cat p.json.rank1)" mine' '[ ! -e p.json ]'
  refused "both are one file" 'flops_profiler.output_file: ./new is a file of profile.timeline' refused \
    --set flops_profiler.output_file=./new --set profile.timeline=new
  refused "or one of a rank's" 'new.rank3 is a file of profile.timeline' refused \
    --set flops_profiler.output_file=new.rank3 --set profile.timeline=new
}

# Whatever a run leaves that shows all it can is its own.
test_own_names() {
  train 1 full --set flops_profiler.enabled=true --set comms_logger.enabled=true --set debug.digest_every=2 --set wandb.enabled=true \
    --set csv_monitor.enabled=true
  ok "a run with all files" clean
  for name in $(ls -A full) hf from/x STOP moe.csv report.html; do
    refused "$name is the run's" "flops_profiler.output_file: refused/$name is a name that the run itself uses" refused \
      --set flops_profiler.output_file="refused/$name"
  done
  refused "by whatever way" 'profile.timeline: .*/metrics.csv is a name that the run' refused \
    --set profile.timeline="$work/full/../refused/./metrics.csv"
  ok "nothing of these runs is there" [ ! -e refused ]
  train 1 inside --set flops_profiler.enabled=true --set flops_profiler.output_file=inside/report.txt
  ok "another name in the run's directory is fine" both clean '[ -s inside/report.txt ]'
}

test_said() {
  train 2 said --set dump_state=true --set memory_breakdown=true --set zero_optimization.stage=1 --set steps_per_print=3 \
    --set run.log_every=auto
  cp "$scratch/out" said.txt
  ok "memory_breakdown: what is planned for" printed '^  memory +optimizer states +[0-9.]+ kB$'
  ok "and what is used, after the first step and with every line" is \
    "$(grep -c '^  memory after step [0-9]* | process: .* | machine: .* available$' said.txt)" \
    "$(grep -c '^step [0-9]*/6' said.txt)"
  ok "steps_per_print" is "$(sed -n 's,^step \([0-9]*\)/6.*,\1,p' said.txt | tr '\n' ' ')" "1 3 6 "
  ok "dump_state: the grid and the program" both "grep -q '^  grid: 2 ranks = pp 1 x dp 2 x ep 1 x sp 1 x tp 1$' said.txt" \
    "grep -Eq '^  program of rank 0: [0-9]+ nodes, [0-9]+ tensors, [0-9]+ instructions, 3 runs a step$' said.txt"
  sed -n '/^the deck as it is understood:$/,/^what became of it:$/p' said.txt | sed '1d;$d' > dumped.cfg
  ok "the deck that is printed is the run's" cmp dumped.cfg said/deck.cfg
  ok "the log has the run, not the deck" both "grep -q 'memory after step 1 ' said/log.txt" \
    "! grep -Eq 'as it is understood|hidden_size' said/log.txt"
}

test_clock
test_comms
test_flops
test_overwritten
test_own_names
test_said
finish
