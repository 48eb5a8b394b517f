#!/bin/sh
# TAP: the step that is observed: one clock for the timelines of all ranks.
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
  traces "what is later on one than on the other is not the same moment" \
    "not meet(spans(0, 1)[0], spans(1, 1)[1], -1)" "$@"
  traces "their bytes are of the whole tensor: 23,712 gradients in fp32, by two ranks" \
    "[(e['args']['bytes'], e['args']['ranks']) for e in spans(0, 1)][0] == (94848, 2) and
     [e['args'] for e in spans(0, 1)] == [e['args'] for e in spans(1, 1)]" "$@"
  traces "computation has none" "all('args' not in e for e in spans(0, 0))" "$@"
  train 2 staged --set profile.timeline=stages.json --set pipeline.stages=2 --set gradient_accumulation_steps=2
  traces "a message between stages is of two ranks; of the bytes of an activation: 2 x 32 x 32 in fp32" \
    "set((e['args']['bytes'], e['args']['ranks']) for i in (0, 1) for e in spans(i, 1) if e['cat'] == 'receive') <= {(8192, 2)}
     and any(e['cat'] == 'receive' for i in (0, 1) for e in spans(i, 1))" stages.json stages.json.rank1
}

test_clock
finish
