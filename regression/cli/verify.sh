#!/bin/sh
# TAP: tessera verify on the checkpoints of a run, whole and damaged.
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"

# flip FILE OFFSET BIT
flip() {
  byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
  # shellcheck disable=SC2059
  printf "\\$(printf %o $((byte ^ 1 << $3)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2> /dev/null
}

size() { wc -c < "$1" | tr -d ' '; }

# fresh: the run as it was saved, in run/
fresh() { rm -rf run && cp -r saved run; }

# damaged NAME REASON: verify says so, with exit 2, on one of the steps only
damaged() {
  run "$tessera" verify run
  ok "$1: exit 2 and the reason" said 2 "$2"
  ok "$1: one line says damaged" is "$(grep -c 'damaged$' "$scratch/out")" 1
}

run $mpiexec -n 2 "$tessera" train tiny.cfg --set run.save_every=2 --set zero_optimization.stage=2
ok "a run of two ranks that saves three times" clean
mv run saved
fresh

test_intact() {
  run "$tessera" verify run
  ok "a run: exit 0, nothing on stderr" clean
  ok "a run: a line for latest and for each step" is "$(sed 's/ [0-9.]* [kM]*B / N /' "$scratch/out")" "latest  intact
step_00000006  4 files  N  intact
step_00000004  4 files  N  intact
step_00000002  4 files  N  intact"
  run "$tessera" verify run/step_00000004/
  ok "a checkpoint" printed "^run/step_00000004/  4 files  .*  intact$"
  run "$tessera" verify run --format json
  ok "json: nothing else on stdout" is "$(head -n 1 "$scratch/out")" '{"intact": true, "checked": ['
  ok "json: a checkpoint" printed \
    '"name": "step_00000002", "step": 2, "files": 4, "bytes": [0-9]+, "intact": true, "errors": \[\]'
  if command -v python3 > /dev/null; then
    ok "json: python reads it" python3 -m json.tool "$scratch/out"
  fi
  mv run/step_00000004 best
  run "$tessera" verify best
  ok "a checkpoint under another name" printed "^best  4 files"
}

test_damaged() {
  for file in model.h5 shard_00000.h5 shard_00001.h5; do
    fresh
    flip run/step_00000004/$file $(($(size run/step_00000004/$file) / 2)) 0
    damaged "a bit of $file" "run/step_00000004/$file: damaged: its contents"
  done
  fresh
  flip run/step_00000004/manifest 100 3
  damaged "a bit of the manifest" "run/step_00000004/manifest: damaged"
  fresh
  rm run/step_00000002/shard_00001.h5
  damaged "a shard is missing" "run/step_00000002/shard_00001.h5: missing"
  fresh
  rm run/step_00000002/manifest
  damaged "the manifest is missing" "run/step_00000002/manifest: No such file"
  fresh
  dd if=/dev/null of=run/step_00000006/model.h5 bs=1 seek=1000 2> /dev/null
  damaged "the index is cut" "run/step_00000006/model.h5: cut short: 1000 bytes, the manifest says"
  fresh
  cp run/step_00000002/shard_00000.h5 run/step_00000004/
  damaged "a shard of another checkpoint" "run/step_00000004/shard_00000.h5"
  fresh
  cp run/step_00000002/shard_00000.h5 run/step_00000004/shard_00002.h5
  damaged "a shard too many" "run/step_00000004/shard_00002.h5: the manifest does not list it"
  fresh
  sed 's/6$/2/' saved/latest > run/latest
  damaged "latest lies" "run/latest: "
  run "$tessera" verify run --format json
  ok "json: damage" gave 2
  ok "json: the reason" grep -q '"name": "latest", "intact": false, "errors": \["run/latest: ' "$scratch/out"
}

# A file after the other, at random places; each bit is put right again.
test_random_bits() {
  fresh
  set -- model.h5 shard_00000.h5 shard_00001.h5 manifest
  missed=0
  for number in $(awk 'BEGIN { srand(1); for (i = 0; i < 200; ++i) print int(rand() * 1e9) }'); do
    name=$1
    file=run/step_00000004/$name
    offset=$((number / 8 % $(size "$file")))
    flip "$file" $offset $((number % 8))
    run "$tessera" verify run/step_00000004
    said 2 "^tessera: error: run/step_00000004/$name: damaged" || missed=$((missed + 1))
    flip "$file" $offset $((number % 8))
    shift
    set -- "$@" "$name"
  done
  ok "200 bits at random places over all files: each is seen, and its file named" is $missed 0
  run "$tessera" verify run/step_00000004
  ok "and the right bits are accepted" clean
}

test_no_checkpoint() {
  mkdir empty
  run "$tessera" verify empty
  ok "an empty directory" said 2 "empty: no checkpoint is there"
  run "$tessera" verify nowhere
  ok "no directory" said 2 "nowhere: is not a directory"
  run "$tessera" verify run --format xml
  ok "an unknown format" said 2 "text or json"
  fresh
  mv run/step_00000006 run/step_00000006.tmp
  rm run/latest run/step_00000004/manifest run/step_00000004/model.h5
  run "$tessera" verify run
  ok "what was not published is not looked at, a step without its files is damaged" is \
    "$(cut -d ' ' -f 1 "$scratch/out" | tr '\n' ' ')$status" "latest step_00000004 step_00000002 2"
}

test_intact
test_damaged
test_random_bits
test_no_checkpoint
finish
