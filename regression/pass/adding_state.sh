#!/bin/sh
# TAP: a new state of the optimizer is a row of graph/states.def and a leaf that pass/zero_update makes; the plan, saving and loading know
# it by themselves.  Three toys are added to a copy of the tree: one with an element for each of the part's (a running sum of gradients),
# one with one a block of 32, one with a shape of its own.
# shellcheck source=regression/cli_common.sh
# shellcheck disable=SC2317
build=$(pwd)
. "${srcdir:-.}/regression/cli_common.sh"
. "$top/regression/toy_tree.sh"
: > "$scratch/out"
: > "$scratch/err"

after src/graph/states.def << 'END'
STATE(TOY, "toy", "toy", OPTIMIZER, "toy", F32, 1)
STATE(TOY_SCALE, "toy_scale", "toy_scale", OPTIMIZER, "toy_scale", F32, 32)
STATE(TOY_BIAS, "toy_bias", "toy_bias", OPTIMIZER, "toy_bias", F32, 0)
END
after src/pass/zero_update.c '  z->part[share->part].fresh = add_sweep(z, share, &s, &in);' << 'END'
  int index = share->part;
  bool whole = share->whole;
  ts_tid g = share->g, scale = ts_zero_state(z, index, TS_STATE_TOY_SCALE, whole);
  char *bias = ts_format("%s.toy_bias", part->name), *sum = ts_format("%s.toy_sum", part->name);
  ts_tid own = ts_graph_state(z->rewrite.to, bias, (ts_held){TS_STATE_TOY_BIAS, index, true}, TS_F32, TS_SHAPE(2), part->unit);
  ts_build_accumulate(site(z), sum, ts_zero_state(z, index, TS_STATE_TOY, whole), g, c->scale);
  ts_build_accumulate(site(z), bias, own, c->betas, c->scale);
  ts_tid first = ts_build_view(site(z), sum, g, 0, z->rewrite.to->tensor[scale].shape);
  ts_build_accumulate(site(z), sum, scale, first, c->scale);
  ts_free(bias);
  ts_free(sum);
END
# At the end of the table: where their number counts, and what has the leaves, is made again; the rest is as it was.
(cd "$tree" && grep -l TS_N_STATES src/*/*.c) | sed 's/c$/o/' > counted
ok "the table of states counts them" grep -q pass/state.o counted
(cd "$made" && xargs rm -f tessera libtessera.a src/pass/zero_update.o < "$work/counted")
ok "a row and a leaf are enough" make_toy tessera
cd "$work" || exit 1
write_text
write_deck
plan() { "$1" plan tiny.cfg --ranks 2 --format json --set zero_optimization.stage=2 | sed 's/.*"optimizer_bytes": \([0-9]*\).*/\1/'; }
before=$(plan "$tessera") now=$(plan "$made/tessera")
# of two moments before: one state more, and 1/32 of it
ok "the plan counts them as the optimizer's ($before, $now)" [ $((now * 64)) -ge $((before * 97)) ]

run_on() {
  ranks=$1 directory=$2
  shift 2
  run $mpiexec -n "$ranks" "$made/tessera" train tiny.cfg --set "run.directory=$directory" --set run.save_every=3 "$@"
}
run_on 2 whole --set zero_optimization.stage=2
ok "a run saves them" gave 0
shard=step_00000006/shard_00001.h5
part=model.layers.0.persistent
hdf5 "the state of an element each" h5dump -H -d "/$part/toy" whole/$shard
elements=$(sed -n 's/.*SIMPLE { ( \([0-9]*\) .*/\1/p' "$scratch/out")
hdf5 "the one of a block" h5dump -H -d "/$part/toy_scale" whole/$shard
[ "$status" -eq 127 ] || ok "has an element for 32" grep -q "( $(((elements + 31) / 32)) )" "$scratch/out"
hdf5 "the one of a shape of its own" h5dump -H -d "/$part/toy_bias" whole/step_00000006/shard_00000.h5
[ "$status" -eq 127 ] || ok "is two numbers" grep -q "( 2 )" "$scratch/out"
mkdir again
cp -r whole/step_00000003 again
run_on 2 again --set zero_optimization.stage=2 --resume again/step_00000003
ok "a run goes on from them" gave 0
ok "and has the same in the end" both "cmp whole/$shard again/$shard" "cmp whole/step_00000006/shard_00000.h5 again/step_00000006/shard_00000.h5"
run_on 1 one --set zero_optimization.stage=0 --resume whole/step_00000003
ok "on another grid" gave 0
hdf5 "too" h5diff --relative=1e-3 one/step_00000006/model.h5 whole/step_00000006/model.h5 /toy/model.norm.weight
run $mpiexec -n 2 "$tessera" train tiny.cfg --set run.directory=plain --set run.save_every=3
run_on 2 later --resume plain/step_00000003
ok "a run without them is not gone on from" said 2 "has no toy of [a-z_.0-9]+, which was saved without it, as by another optimizer.type"
run "$tessera" verify whole
ok "this build reads them as well" gave 0
finish
