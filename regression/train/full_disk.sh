#!/bin/sh
# TAP: runs on a disk without room.  A save that fails is tried again while the run goes on; what has gone on for too
# long ends it; rows of its tables wait in memory.
# shellcheck disable=SC2013,SC2016,SC2317
# shellcheck source=regression/cli_common.sh
. "${srcdir:-.}/regression/cli_common.sh"

# full/run lies on a small disk with room for some rows and no checkpoint.
mkdir full
if ! mount -t tmpfs -o size=8m none full 2> /dev/null; then
  echo "1..0 # SKIP no file system can be mounted here"
  exit 0
fi
trap 'umount -l full; rm -rf "$scratch"' EXIT

fill() {
  rm -rf full/run pids
  mkdir full/run
  : > "$scratch/out"
  : > "$scratch/err"
  dd if=/dev/zero of=full/filler bs=1k count=8144 2> /dev/null
}

train() {
  timeout -k 5 60 $mpiexec -n 2 sh -c 'echo $$ >> pids; exec "$@"' sh "$tessera" train tiny.cfg \
    --set run.directory=full/run "$@" > "$scratch/out" 2> "$scratch/err" < /dev/null
  status=$?
}

# begin STEPS: a run beside this script; returns when its first save has failed.
begin() {
  (
    train --set run.save_retry=0.1 --set "run.steps=$1" --set run.save_every=40 --set run.keep=1 \
      --set run.evaluate_every=20 --set debug.digest_every=20
    exit $status
  ) &
  job=$!
  wait_for grep -q 'is not saved' "$scratch/err"
}

end() {
  wait $job
  status=$?
}

wait_for() {
  tries=300
  while [ $tries -gt 0 ] && ! "$@"; do
    sleep 0.1
    tries=$((tries - 1))
  done
}

send() {
  for pid in $(cat pids); do
    kill "-$1" "$pid" 2> /dev/null
  done
}

count() { grep -Ec "$1" "$scratch/err"; }
rows() { wc -l < "full/run/$1"; }
last() { tail -n 1 "full/run/$1" | cut -d, -f1; }
# The steps of metrics.csv are 1, 2, 3, ...
no_gap() { awk -F, 'NR > 1 && $1 != NR - 1 { exit 1 }' full/run/metrics.csv; }
told_waiting() { grep -q 'the run waits until its last step' "$scratch/err"; }
told_saved() { grep -Eq 'saved full/run/step_[0-9]+, .*, after [0-9]+ that failed' "$scratch/out"; }

# ---- no room for long ----

# There is room for the files that begin a save and not for the rest, and the next save begins before that one has failed.
test_files() {
  mkdir few
  mount -t tmpfs -o size=16m,nr_inodes=40 none few
  mkdir few/run
  i=0
  while [ $i -lt 37 ] && : > "few/$i" 2> /dev/null; do
    i=$((i + 1))
  done
  for i in 0 1 2 3 4 5 6 7 8 9 10 11 12; do
    rm "few/$i"
  done
  run "$tessera" train tiny.cfg --set run.directory=few/run --set run.steps=100000000 --set run.evaluate_every=0 \
    --set run.save_every=1 --set run.keep=0 --set run.save_retry=0.2 --set run.save_timeout=1
  ok "a save a step, none complete: the run stops" said 2 "step [1-9][0-9]* is not saved: .* saves? failed in 0:0"
  umount -l few
}

test_limit() {
  "$tessera" train tiny.cfg --set run.directory=limited --set run.steps=100000000 --set run.evaluate_every=0 --set run.save_every=20 \
    --set run.save_retry=0.2 --set run.save_timeout=1 > "$scratch/out" 2> "$scratch/err" &
  job=$!
  wait_for [ -s limited/metrics.csv ]
  prlimit --pid $job --fsize=1000
  end
  ok "files that may not grow (ulimit -f) are as a full disk" said 2 "is not saved: .*File too large"
}

test_timeout() {
  fill
  train --set run.steps=40 --set run.save_retry=0.2 --set run.save_timeout=1 --set debug.digest_every=1
  ok "a run's end: exit code 2, with the way out" said 2 \
    "step 40 is not saved: .*are free there.* Make room in full/run, then .*: it begins anew"
  ok "it is said at the first failure" is "$(count 'warning: step 40 is not saved: .*every 0.2 s, and after 1 s')" 1
  ok "and once" is "$(count 'warning: step .* is not saved: ')" 1
  for table in metrics digests; do
    ok "lines of $table.csv wait: said once, with the reason" is "$(count "$table.csv cannot be written: No space left")" 1
    ok "those that are lost are counted" is "$(count "$table.csv: [0-9]+ lines could not")" 1
  done
  run "$tessera" status full/run
  ok "status says why it ended" printed "^state +failed: step 40 is not saved: "
  ok "the rows before can be read" "$tessera" compare full/run full/run
  fill
  train --set run.steps=100000000 --set run.evaluate_every=0 --set run.save_every=50 --set run.save_retry=0.2 \
    --set run.save_timeout=1
  ok "a run with many steps to go stops" said 2 "step [1-9][0-9]* is not saved: .* saves failed in 0:0"
}

# ---- room again ----

test_room_again() {
  fill
  begin 100000000
  rm full/filler
  wait_for told_saved
  dd if=/dev/zero of=full/filler bs=1k count=8144 2> /dev/null
  wait_for grep -q 'metrics.csv cannot be written' "$scratch/err"
  sleep 0.3
  rm full/filler
  touch full/run/STOP
  end
  ok "the run went on, and stops saved" gave 75
  ok "the log says that it works again" told_saved
  ok "metrics.csv has no gap" both no_gap '[ "$(last metrics.csv)" -ge 40 ]'
  ok "nor has validation.csv" is "$(rows validation.csv)" $((1 + $(last metrics.csv) / 20))
  ok "nor digests.csv" is "$(rows digests.csv)" $((1 + 20 * ($(last metrics.csv) / 20)))
  run "$tessera" verify full/run
  ok "what is saved is intact" gave 0
}

# ---- the last save ----

test_last_save() {
  fill
  begin 40
  wait_for told_waiting
  rm full/filler
  end
  ok "a last save that fails is tried again until it succeeds" gave 0
  ok "with the last step" [ -f full/run/step_00000040/manifest ]
  fill
  begin 40
  wait_for told_waiting
  send USR1
  sleep 0.6
  send TERM
  end
  ok "SIGTERM ends the waiting, SIGUSR1 does not: exit code 1" said 1 'SIGTERM came while .* Make room in full/run'
  fill
  begin 100000000
  send TERM
  wait_for told_waiting
  rm full/filler
  end
  ok "a run that was told to stop waits, too" gave 75
  fill
  train --set run.steps=40 --set run.save_retry=0.1 --set run.time_limit=8 --set run.time_margin=1
  ok "but not beyond the job's time" said 2 'step [0-9]+ is not saved: .* saves? failed in'
}

test_files
test_limit
test_timeout
test_room_again
test_last_save
finish
