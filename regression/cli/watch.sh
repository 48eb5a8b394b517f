#!/bin/sh
# TAP: `tessera watch` on terminals of every kind (regression/cli/terminal.c is one), and where there is none; and log.txt, which it
# shows.
# shellcheck disable=SC2016,SC2317
# shellcheck source=regression/cli_common.sh
build=$(pwd)
. "${srcdir:-.}/regression/cli_common.sh"
terminal=$build/regression/cli/terminal
export LC_ALL=C.UTF-8 TERM=xterm PATH="$build:$PATH"

# on SIZE STEP... -- WORD...: a program on a terminal
on() {
  timeout -k 5 120 "$terminal" "$@" > "$scratch/out" 2> "$scratch/err" < /dev/null
  status=$?
}

shows() { grep -Eq -e "$1" "$scratch/out"; }
hides() { ! grep -Eq -e "$1" "$scratch/out"; }
restored() { tail -n 2 "$scratch/out" | grep -qx 'cursor shown, screen normal, wraps on, settings same, beyond 0, unknown 0'; }
# ended HOW: how the program ended, and that the terminal is as it was
ended() { gave 0 && [ "$(tail -n 1 "$scratch/out")" = "$1" ] && restored; }
# The picture that the step "show" gave: the lines ahead of the state that follows.
picture() { sed '/^cursor /,$d' "$scratch/out"; }
lines() { picture | grep -c '^|'; }
no_wider() { ! picture | grep -Eq "^.{$(($1 + 2)),}"; }

train() { timeout -k 5 100 "$tessera" train tiny.cfg "$@" > "$scratch/train.out" 2> "$scratch/train.err" < /dev/null; }

# pretend DIRECTORY STATE: a copy of the run that has ended is in another state
pretend() {
  rm -rf "$1"
  cp -r run "$1"
  sed -i "s/^state .*/state $2/; s/^ended .*/ended 0.000/" "$1/status/@run"
}

# ---- what a run says ----

entries() { grep -Ec '^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} ' "$1/log.txt"; }
said_so() { sed 's/^[^ ]* [^ ]* //' "$1/log.txt"; }

test_log() {
  train --set run.steps=40 --set run.evaluate_every=20 --set run.save_every=20
  ok "log.txt: what the run printed, line by line" is "$(said_so run)" "$(cat "$scratch/train.out")"
  ok "log.txt: each with a time" is "$(entries run)" "$(wc -l < "$scratch/train.out")"
  before=$(wc -l < run/log.txt)
  printf 'half a li' >> run/log.txt
  train --set run.steps=60 --set run.evaluate_every=20 --set run.save_every=20 --resume auto
  ok "log.txt: a run that goes on appends" [ "$(wc -l < run/log.txt)" -gt "$((before + 3))" ]
  ok "log.txt: behind a half line, too" grep -qx 'half a li' run/log.txt
  ok "log.txt: also what it says before it has the directory" grep -q ' resumed at step 40 of 60 from run/step_00000040$' run/log.txt
  train --set run.directory=wrong --set run.steps=3 --set optimizer.params.lr=1e30 --set gradient_clipping=0.0
  train --set run.directory=told --set run.steps=3 --set wandb.enabled=true
  ok "log.txt: also what is said at the end, of curves" is "$(grep -c 'wandb: nothing is sent' told/log.txt)" 2
  ok "log.txt: warnings and errors" grep -Eq ' (warning|error): .*not finite' wrong/log.txt
}

# ---- terminals ----

test_sizes() {
  on 24x80 -- tessera watch run
  ok "finished: a last picture as text, exit 0" ended "exit 0"
  ok "name and state" shows '^\|run  finished  1 rank on 1 node'
  ok "progress" shows '100 %  step 60 of 60'
  ok "losses" shows '^\|loss [0-9.]+  mean of 60: [0-9.]+  validation [0-9.]+ at step 60'
  ok "speed" shows '^\|[0-9.]+ k? ?tokens/s  [0-9.e-]+ s a step'
  ok "a curve" grep -q "$(printf '\342\240')" "$scratch/out"
  ok "validations in it" shows '^\| .*│.*o|┤.*o'
  ok "messages" shows 'saved run/step_00000060'
  on 24x80 -- tessera watch run --ascii
  ok "--ascii: a curve" shows "[|][.':]+|[|] +[.':]+"
  ok "--ascii: nothing else" is "$(LC_ALL=C tr -d '\000-\177' < "$scratch/out" | wc -c)" 0
  LC_ALL=C on 24x80 -- tessera watch run
  ok "a locale without UTF-8: the same" is "$(LC_ALL=C tr -d '\000-\177' < "$scratch/out" | wc -c)" 0
  pretend live running
  for size in 5x20 8x30 24x80 50x200; do
    on $size wait=live show state key=q -- tessera watch live
    ok "$size: q ends it" ended "exit 0"
    ok "$size: fits" is "$(no_wider "${size#*x}" && [ "$(lines)" -le "${size%x*}" ] && echo fits)" fits
    ok "$size: progress" shows '60/60|step 60 of 60|100 %'
  done
  ok "50x200: a second curve" shows '^\|tokens/s$'
  on 2x3 key=q -- tessera watch live
  ok "2x3: ends as well" ended "exit 0"
}

# A key that nobody reads is not offered.
test_no_keys() {
  on 24x80 wait=memory show state key=q -- tessera watch live
  ok "keys: how to leave" shows '^\|q ends this view'
  on 24x80 wait=memory show state "$(printf 'key=\003')" -- sh -c 'exec tessera watch live < /dev/null'
  ok "standard input is no terminal: Ctrl-C" shows '^\|Ctrl-C ends this view'
  ok "which does" ended "signal 2"
}

test_resized() {
  on 24x80 wait=memory size=6x30 gone=memory state size=40x120 "wait=tokens/s" "wait=memory" show state key=q -- tessera watch live --every 3600
  ok "resized: drawn anew at once, without what was there" ended "exit 0"
  ok "resized: nothing beyond the edge" hides 'beyond [1-9]|unknown [1-9]'
  on 24x80 wait=memory bytes size=24x80 wait=memory key=q -- tessera watch live --every 0.05
  ok "the same size: ends well" ended "exit 0"
}

test_signals() {
  for number in 1 2 3 15; do
    on 24x80 wait=memory state signal=$number -- tessera watch live
    ok "signal $number: it ends by it, and the terminal is as it was" ended "signal $number"
    ok "signal $number: which it was not" shows '^cursor hidden, screen alternate, wraps off, settings changed'
  done
  on 24x80 wait=memory "$(printf 'key=\003')" -- tessera watch live
  ok "control-C" ended "signal 2"
  on 24x80 wait=memory signal=20 stopped state signal=18 wait=memory show state key=q -- tessera watch live
  ok "stopped and going on" ended "exit 0"
  ok "stopped: the terminal is the shell's" shows '^cursor shown, screen normal, wraps on, settings same'
  ok "going on: it is drawn again" shows '^\|live'
  on 100x300 wait=memory deaf size=120x350 "run=sleep 0.5" size=121x351 "run=sleep 0.5" size=122x352 "run=sleep 0.5" signal=15 -- tessera watch live
  ok "a terminal that takes nothing any more: it ends all the same" is "$(tail -n 1 "$scratch/out")" "signal 15"
  on 24x80 wait=memory close -- tessera watch live
  ok "the terminal is closed: it ends" is "$(tail -n 1 "$scratch/out")" "signal 1"
}

test_plain() {
  run "$tessera" watch run
  ok "no terminal: lines" printed '^step 60 of 60  loss [0-9.]+  '
  ok "no terminal: the end" grep -qx finished "$scratch/out"
  ok "no terminal: messages" grep -q 'saved run/step_00000060' "$scratch/out"
  ok "no terminal: no sequences" is "$(tr -cd '\033' < "$scratch/out" | wc -c)" 0
  TERM=dumb on 24x200 -- tessera watch run
  ok "TERM=dumb: the same" ended "exit 0"
  ok "TERM=dumb: lines" shows '^\|step 60 of 60  loss'
  env -u TERM "$terminal" 24x200 -- "$tessera" watch run > "$scratch/out"
  ok "no TERM: the same" shows '^\|step 60 of 60  loss'
  run "$tessera" watch run --once
  ok "--once: a picture" printed '^run  finished'
  run "$tessera" watch nowhere
  ok "no such run" said 2 'nowhere: No such file'
  run "$tessera" watch run --every 0
  ok "--every: too short" said 2 '--every'
}

test_colour() {
  NO_COLOR=1 on 24x80 wait=memory 'run=true' key=q -- tessera watch live
  ok "NO_COLOR: it ends well" ended "exit 0"
  with=$(pieces) without=$(NO_COLOR=1 pieces)
  ok "NO_COLOR: less is sent" [ "$without" -lt "$with" ]
}

# Bytes of a picture that is drawn once.
pieces() {
  on 24x80 wait=memory bytes key=q -- tessera watch live --every 3600
  sed -n 's/^bytes //p' "$scratch/out"
}

# ---- runs that go on, and end ----

# A row is added as the run would.
add_row() { awk -F, -v step="$2" 'END { OFS = ","; $1 = step; $3 = 7.25; print }' "$1/metrics.csv" >> "$1/metrics.csv"; }

test_going_on() {
  pretend live running
  on 24x80 wait=memory "run=awk -F, 'END { OFS = FS; \$1 = 61; \$3 = 7.25; print }' live/metrics.csv >> live/metrics.csv" 'wait=loss 7.2500' \
    "run=echo '2026-11-21 12:32:06 a new word' >> live/log.txt" 'wait=a new word' \
    "run=sed -i 20,\\\$d live/metrics.csv" 'wait=steps 1 to 18' \
    "run=sed -i 's/^state .*/state failed/; s/^reason .*/reason it was wrong/' live/status/@run" -- tessera watch live --every 0.1
  ok "rows and messages that come are seen, and a table that is cut" ended "exit 1"
  ok "failed: why" shows '^\|failed: it was wrong'
  pretend gone running
  sed -i 's/^state .*/state stopped/' gone/status/@run
  on 24x80 -- tessera watch gone
  ok "stopped: exit 0" ended "exit 0"
  ok "stopped: it says so" shows '^\|gone  stopped'
}

# A run that is killed, goes on from its checkpoint, and is asked to stop, all while it is watched.
go_on() { timeout -k 5 60 tessera train tiny.cfg --set run.directory=real --set run.steps=1000000 --set run.evaluate_every=0 \
  --set run.save_every=200 --set run.keep=2 --set run.step_timeout=10; }

test_real() {
  go_on > /dev/null 2>&1 &
  job=$!
  tries=400
  while [ "$tries" -gt 0 ] && [ ! -d real/step_00000200 ]; do
    sleep 0.05
    tries=$((tries - 1))
  done
  kills="kill -9 $(pgrep -P "$(pgrep -P "$job" timeout || echo "$job")" | head -n 1)"
  on 40x100 wait=running 'wait=saved step_' 'wait=% ' "run=$kills" 'wait=no heartbeat' show state \
    'run=timeout 60 tessera train real/deck.cfg --resume auto > going.out 2>&1 &' \
    'wait=running' 'wait=resumed at step' 'run=touch real/STOP' -- tessera watch real --every 0.1
  ok "killed, going on and stopped: exit 0" ended "exit 0"
  ok "killed: no heartbeat, and what that means" shows '^\|no heartbeat for 0:[0-9]+: killed, or its machines are gone'
  ok "stopped: seen to its end" shows '^\|real  stopped'
  wait "$job" 2> /dev/null
}

# ---- hostile ----

test_hostile() {
  evil=$(printf 'evil\033[2J\033]0;title\007\302\233')
  pretend "$evil" running
  printf '2026-11-21 12:32:06 \033[31mred\033c\n' >> "$evil/log.txt"
  printf 'nan,inf,x\n1,2\n9e999,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1\n' >> "$evil/metrics.csv"
  on 24x80 'wait=red' show state key=q -- tessera watch "$evil"
  ok "hostile names, messages and numbers reach no terminal" ended "exit 0"
  ok "they are shown as text" shows '^\|evil\?\[2J\?\]0;title\?'
  ok "what is damaged is counted" shows 'damaged line'
  sed -i "s/^state .*/state failed/; s/^ended .*/ended 1.000/" "$evil/status/@run"
  run "$tessera" watch "$evil"
  ok "nor plain lines" is "$(tr -cd '\033\007' < "$scratch/out" | wc -c)" 0
  pretend deep running
  rm deep/metrics.csv
  mkfifo deep/metrics.csv
  on 24x80 wait=saved key=q -- tessera watch deep
  ok "a pipe in place of a table: nobody waits for it" ended "exit 0"
}

# ---- long ones ----

test_long() {
  pretend long running
  awk -F, 'NR == 1 { print } NR == 2 { OFS = FS; for (i = 1; i <= 1000000; ++i) { $1 = i; print } }' run/metrics.csv > long/metrics.csv
  on 24x80 'wait=steps 1 to 1000000' 'run=grep rchar /proc/$PROGRAM/io >&2; tail -n 1 long/metrics.csv | sed s/^1000000/1000001/ >> long/metrics.csv' \
    'wait=steps 1 to 1000001' 'run=grep rchar /proc/$PROGRAM/io >&2' key=q -- tessera watch long --every 0.1
  ok "a million rows, and one more" ended "exit 0"
  ok "of which the second look reads only what is new" awk 'NR == 1 { all = $2 } END { exit !(all > 5e7 && $2 - all < 4e6) }' "$scratch/err"
  rm -r long
}

test_log
test_sizes
test_no_keys
test_resized
test_signals
test_plain
test_colour
test_going_on
test_real
test_hostile
test_long
finish
