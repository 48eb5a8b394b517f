#!/bin/sh
# TAP: DeepSpeed's monitors: event files and tables of a run, of one that is killed and goes on, and of one that may not
# begin.  The event files are read by the reader of regression/io/test_events, and by TensorBoard's own where python3
# (or PYTHON) has it.
# shellcheck disable=SC2317
# shellcheck source=regression/cli_common.sh
build=$(pwd)
. "${srcdir:-.}/regression/cli_common.sh"
python=${PYTHON:-python3}

# train DIRECTORY STEPS SETTING...: a run with both monitors, in directories of their own.
train() {
  directory=$1
  steps=$2
  shift 2
  run "$tessera" train tiny.cfg --set run.directory="$directory" --set run.steps="$steps" \
    --set tensorboard.enabled=true --set tensorboard.output_path=boards --set tensorboard.job_name="$directory" \
    --set csv_monitor.enabled=true --set csv_monitor.output_path=tables --set csv_monitor.job_name="$directory" "$@"
}

# events DIRECTORY: "step tag value" lines, without what a file begins with.
events() { "$build/regression/io/test_events" list "boards/$1" | grep -v -e ' session ' -e ' version ' | LC_ALL=C sort; }

# tables DIRECTORY: the same of the tables, by their heads and rows; values as floats.
tables() {
  for table in "tables/$1"/*.csv; do
    name=${table##*/}
    name=${name%.csv}
    curve=$(head -n 1 "$table")
    curve=${curve#step,}
    group=$(echo "${name%_"$curve"}" | tr _ /)
    tail -n +2 "$table" | tr , ' ' | while read -r step value; do
      echo "$step $group/$curve $value"
    done
  done | LC_ALL=C sort
}

# alike FILE FILE: the same steps and tags, values that agree to 7 digits.
alike() {
  [ -s "$1" ] && paste -d ' ' "$1" "$2" | awk 'NF != 6 || $1 != $4 || $2 != $5 || ($3 - $6) ^ 2 > ($6 * 1e-7) ^ 2 {
    print; wrong = 1 } END { exit wrong }'
}

# before STEP: the lines of earlier steps.
before() { awk -v last="$1" '$1 < last'; }

# agree DIRECTORY [STEP]: tables, our reader and TensorBoard's, up to a step in which the run may have been killed.
agree() {
  events "$1" | before "${2:-1e18}" > "$scratch/events"
  tables "$1" | before "${2:-1e18}" > "$scratch/tables"
  ok "$1: tables and event files say the same" alike "$scratch/events" "$scratch/tables"
  if "$python" -c 'import tensorboard' 2> /dev/null; then
    "$python" "$top/regression/train/read_events.py" "boards/$1" 2> "$scratch/err" | before "${2:-1e18}" |
      LC_ALL=C sort > "$scratch/theirs"
    ok "$1: TensorBoard's own reader says the same" alike "$scratch/theirs" "$scratch/events"
  else
    skip "$1: TensorBoard's own reader says the same" "python3 has no tensorboard"
  fi
}

head_of() { head -n 1 "tables/$1"; }
files() { (cd "tables/$1" && echo *.csv | sed 's/\.csv//g'); }
# column TABLE N: the values of a table's column, on one line.
column() { tail -n +2 "tables/$1" | cut -d, -f"$2" | paste -s -d ' ' -; }
of_metrics() { tail -n +2 "$1/metrics.csv" | cut -d, -f"$2" | paste -s -d ' ' -; }
# Every step of TABLE once, in order, up to the samples $2; a head once.
each_once() { [ "$(column "$1" 1)" = "$(seq -s ' ' 4 4 "$2")" ] && [ "$(grep -c step "tables/$1")" = 1 ]; }

# ---- what is written ----

ours="Tessera_Samples_grad_norm Tessera_Samples_mfu Tessera_Samples_peak_bytes Tessera_Samples_skipped \
Tessera_Samples_step_seconds Tessera_Samples_tokens_per_second"

test_curves() {
  train plain 6
  ok "a run with monitors" clean
  ok "has these tables, and no times" is "$(files plain)" \
    "$ours Train_Samples_eval_loss Train_Samples_lr Train_Samples_train_loss"
  ok "over samples" each_once plain/Train_Samples_lr.csv 24
  ok "with the last word of the tag for a head" is "$(head_of plain/Train_Samples_lr.csv)" step,lr
  ok "losses are those of metrics.csv" is "$(column plain/Train_Samples_train_loss.csv 2)" "$(of_metrics plain 3)"
  ok "and so are rates" is "$(column plain/Train_Samples_lr.csv 2)" "$(of_metrics plain 5)"
  ok "and norms" is "$(column plain/Tessera_Samples_grad_norm.csv 2)" "$(of_metrics plain 4)"
  ok "validations have their own steps" is "$(column plain/Train_Samples_eval_loss.csv 1)" "12 24"
  ok "and losses" is "$(column plain/Train_Samples_eval_loss.csv 2)" "$(tail -n +2 plain/validation.csv | cut -d, -f3 | paste -s -d ' ' -)"
  agree plain
}

# backward and its two parts, of each row
parts_add_up() {
  paste -d , tables/timed/Train_Samples_elapsed_time_ms_backward.csv \
    tables/timed/Train_Samples_elapsed_time_ms_backward_inner.csv \
    tables/timed/Train_Samples_elapsed_time_ms_backward_allreduce.csv |
    awk -F, 'NR > 1 && ($2 <= 0 || $6 < 0 || $4 + $6 < $2 * 0.999999) { print; wrong = 1 }
             END { exit wrong || NR != 5 }'
}

test_times() {
  run $mpiexec -n 2 "$tessera" train tiny.cfg --set run.directory=timed --set run.steps=4 --set run.evaluate_every=0 \
    --set csv_monitor.enabled=true --set csv_monitor.output_path=tables --set csv_monitor.job_name=timed \
    --set tensorboard.enabled=true --set tensorboard.output_path=boards --set tensorboard.job_name=timed \
    --set wall_clock_breakdown=true --set zero_optimization.stage=2 --set fp16.enabled=true
  ok "two ranks, with wall_clock_breakdown and a loss scale" gave 0
  ok "times and scale, and nothing of validations" is "$(files timed)" "$ours \
Train_Samples_elapsed_time_ms_backward Train_Samples_elapsed_time_ms_backward_allreduce \
Train_Samples_elapsed_time_ms_backward_inner Train_Samples_elapsed_time_ms_forward Train_Samples_elapsed_time_ms_step \
Train_Samples_loss_scale Train_Samples_lr Train_Samples_train_loss"
  ok "one rank writes" is "$(find boards/timed -name 'events.out.*' | wc -l)" 1
  ok "the scale is that of metrics.csv" is "$(column timed/Train_Samples_loss_scale.csv 2)" "$(of_metrics timed 15)"
  ok "the backward is its two parts" parts_add_up
  agree timed
}

# ---- a run that is killed ----

# The last step that a run that was killed has in all of its files, or the one before, as rows may end within a step.
last_step() {
  {
    tail -q -n 1 tables/killed/*.csv | cut -d, -f1
    events killed | sort -n | tail -n 1 | cut -d ' ' -f1
  } | sort -n | head -n 1
}

# has_saved DIRECTORY: every table has the step of the newest checkpoint, also that of validations.
has_saved() {
  newest=$(ls "$1" | sed -n 's/^step_0*\([0-9][0-9]*\)$/\1/p' | sort -n | tail -n 1)
  for table in "tables/$1"/*.csv; do
    [ "$(tail -n 1 "$table" | cut -d, -f1)" -ge $((4 * newest)) ] || return 1
  done
}

# kill_after DIRECTORY ROWS: begin a long run, and kill it once its table has so many rows.
kill_after() {
  name=$1
  wanted=$2
  shift 2
  (
    exec "$tessera" train tiny.cfg --set run.directory="$name" --set run.steps=100000 --set run.save_every=10 \
      --set run.keep=2 --set run.evaluate_every=0 --set tensorboard.enabled=true --set tensorboard.output_path=boards \
      --set tensorboard.job_name="$name" --set csv_monitor.enabled=true --set csv_monitor.output_path=tables \
      --set csv_monitor.job_name="$name" --set wall_clock_breakdown=true --resume auto "$@"
  ) > "$scratch/out" 2> "$scratch/err" < /dev/null &
  job=$!
  tries=0
  while [ $tries -lt 500 ] && [ "$(cat "tables/$name/Train_Samples_lr.csv" 2> /dev/null | wc -l)" -lt "$wanted" ]; do
    sleep 0.02
    tries=$((tries + 1))
  done
  sleep "${after:-0}"
  kill -9 $job 2> /dev/null
  wait $job 2> /dev/null
  status=$?
}

whole_tables() {
  for table in tables/killed/*.csv; do
    [ "$(tail -c 1 "$table" | od -An -c | tr -d ' ')" = '\n' ] || return 1
  done
}

test_killed() {
  kill_after killed 35
  ok "a run is killed" gave 137
  ok "its tables have whole rows" whole_tables
  agree killed "$(last_step)"
  kill_after killed 80
  ok "it goes on, and is killed again" gave 137
  reached=$(($(last_step) / 4))
  agree killed "$(last_step)"
  train killed $((reached + 20)) --set run.save_every=10 --set run.evaluate_every=0 --resume auto
  ok "it goes on to its end, without times" gave 0
  ok "from a checkpoint" grep -q '^resumed at step' "$scratch/out"
  from=$(sed -n 's/^resumed at step \([0-9]*\) .*/\1/p' "$scratch/out")
  ok "each step has one row" each_once killed/Train_Samples_train_loss.csv $((4 * (reached + 20)))
  ok "with the loss of metrics.csv" is "$(column killed/Train_Samples_train_loss.csv 2)" "$(of_metrics killed 3)"
  ok "times end where the run went on without" \
    each_once killed/Train_Samples_elapsed_time_ms_forward.csv $((4 * from))
  ok "three lives have three event files" is "$(find boards/killed -name 'events.out.*' | wc -l)" 3
  agree killed
}

# Rows are held for a while, but none that a checkpoint needs: runs that are killed between two saves.
test_held() {
  lost=0
  for rows in 60 70 85 95; do
    rm -rf held tables/held boards/held
    after=0.0$rows
    kill_after held "$rows" --set run.save_every=25 --set run.evaluate_every=25
    after=0
    has_saved held || lost=$((lost + 1))
  done
  ok "no table lacks what the newest checkpoint of a killed run has" is $lost 0
}

# ---- what may not begin ----

test_refused() {
  train other 2 --set csv_monitor.job_name=plain
  ok "tables of another run are refused" said 2 \
    'csv_monitor.job_name: tables/plain is of another run, .*/plain; choose another csv_monitor.job_name or output_path'
  ok "before anything is written" [ ! -e other ]
  ok "and are as they were" each_once plain/Train_Samples_lr.csv 24
  train plain 8 --set csv_monitor.job_name=timed --resume auto
  ok "also where a run that goes on turns to them" said 2 'tables/timed is of another run, .*/timed;'
  mkdir tables/theirs boards/theirs
  echo step,lr > tables/theirs/Train_Samples_lr.csv
  : > boards/theirs/events.out.tfevents.1.host.1.0
  train other 2 --set csv_monitor.job_name=theirs
  ok "tables of nobody known too" said 2 \
    'csv_monitor.job_name: tables/theirs/Train_Samples_lr.csv is of another run; choose another'
  train other 2 --set tensorboard.job_name=plain
  ok "and event files" said 2 'tensorboard.job_name: boards/plain is of another run, .*/plain; choose another'
  train other 2 --set tensorboard.job_name=theirs
  ok "of nobody known" said 2 'tensorboard.job_name: boards/theirs/events.out.tfevents.\* is of another run; choose'
  ok "before anything is written" both '[ ! -e other ]' 'is "$(find tables/theirs boards/theirs -type f | wc -l)" 2'
  : > file
  train other 2 --set csv_monitor.output_path=file
  ok "a file in the way of tables" said 2 'csv_monitor.output_path: file/other cannot be made or written: .*directory'
  train other 2 --set tensorboard.output_path=file/below
  ok "and of event files" said 2 'tensorboard.output_path: file/below/other cannot be made or written: .*directory'
  mkdir full
  if mount -t tmpfs -o size=4k,nr_inodes=2 none full 2> /dev/null; then
    trap 'umount -l full; rm -rf "$scratch"' EXIT
    : > full/last
    train other 2 --set tensorboard.output_path="$work/full" --set tensorboard.job_name=.
    ok "a disk without room for the file" said 2 'tensorboard.output_path: .*: cannot be written: No space'
    umount full
    trap 'rm -rf "$scratch"' EXIT
  else
    skip "a disk without room for the file" "no file system can be mounted here"
  fi
}

# ---- runs that share a name ----

# in DIRECTORY RUN STEPS WORD...: a run of DIRECTORY's, with tables where DeepSpeed has them.
in_directory() {
  place=$1
  directory=$2
  steps=$3
  shift 3
  run env -C "$place" "$tessera" train "$work/tiny.cfg" --set data.path="$work/text.txt" --set run.directory="$directory" \
    --set run.steps="$steps" --set run.evaluate_every=0 --set csv_monitor.enabled=true "$@"
}
rows() { wc -l < "$1/DeepSpeedJobName/Train_Samples_lr.csv"; }

test_places() {
  mkdir one two
  in_directory one "$work/first" 3
  in_directory two "$work/second" 9
  in_directory two "$work/first" 6 --resume auto
  ok "a run that goes on elsewhere finds no tables of its own" said 2 \
    'csv_monitor.job_name: DeepSpeedJobName is of another run, .*/second;'
  ok "and cuts none" is "$(rows two) $(rows one)" "10 4"
  in_directory one "$work/first" 6 --resume auto
  ok "where it was it goes on" both clean 'is "$(rows one)" 7'
  mv one moved
  mv first later
  in_directory moved "$work/later" 8 --resume auto
  ok "also when both were moved" both clean 'is "$(rows moved)" 9'
  cp -r later copy
  in_directory moved "$work/copy" 9 --resume auto
  ok "the copy of a run is another one" both "said 2 'is of another run, .*/'" 'is "$(rows moved)" 9'
}

# Both ask before either has made anything.
test_at_once() {
  for name in left right; do
    mkdir "$scratch/$name"
    (
      scratch=$scratch/$name
      in_directory . "$name" 20 --set csv_monitor.job_name=shared
    ) &
  done
  wait
  ok "of two runs that begin at once one has the tables" is "$(find left right -name latest | wc -l)" 1
  ok "the other says why not" grep -hq 'csv_monitor.job_name: shared is of another run, .*; choose' "$scratch/left/err" "$scratch/right/err"
  ok "alone" both each_shared_once "is $(find left right -name metrics.csv -size +1k | wc -l) 1"
}
each_shared_once() { [ "$(tail -n +2 shared/Train_Samples_lr.csv | cut -d, -f1 | paste -s -d ' ' -)" = "$(seq -s ' ' 4 4 80)" ]; }

test_heads() {
  train heads 3
  deck=$(cksum heads/deck.cfg)
  sed -i '1s/.*/samples,value/' tables/heads/Train_Samples_lr.csv
  train heads 6 --resume auto
  ok "a table with another head is refused" said 2 \
    'csv_monitor.output_path: tables/heads/Train_Samples_lr.csv: has other columns'
  ok "before the run's deck is another" is "$(cksum heads/deck.cfg)" "$deck"
  printf 'step,' > tables/heads/Train_Samples_lr.csv
  train heads 6 --resume auto
  ok "half a head is what a process that died may leave" clean
}

test_observed() {
  train observed 5 --set profile.timeline=trace.json --set wall_clock_breakdown=true --set run.evaluate_every=0
  ok "an observed step, the third" both clean 'is "$(column observed/Train_Samples_lr.csv 1)" "4 8 12 16 20"'
  for name in Tessera_Samples_step_seconds Tessera_Samples_tokens_per_second Tessera_Samples_mfu \
    Train_Samples_elapsed_time_ms_forward Train_Samples_elapsed_time_ms_step; do
    ok "$name does not have it" is "$(column observed/$name.csv 1)" "4 8 16 20"
  done
  agree observed
}

# ---- wandb, comet, places ----

# What a shell makes of the command that was said last, a word a line.
uploaded() {
  (
    wandb() { printf '[%s]\n' "$@"; }
    eval "$(grep '^wandb sync' "$scratch/out" | tail -n 1)"
  )
}

test_wandb() {
  run "$tessera" train tiny.cfg --set run.directory='a run' --set run.steps=2 --set wandb.enabled=true \
    --set wandb.team=us --set wandb.group=many --set comet.enabled=true
  ok "wandb.enabled alone writes event files into the run" [ -n "$(ls 'a run/events')" ]
  ok "and says at the beginning and the end how they are uploaded" is "$(grep -Fxc \
    "wandb sync --sync-tensorboard --project deepspeed --entity us 'a run/events'" "$scratch/out")" 2
  ok "in the log on a line of its own, too" grep -q '^ *wandb sync .* .a run/events.$' 'a run/log.txt'
  ok "and that there is no group" grep -q 'no option for group many' "$scratch/out"
  ok "comet.enabled: no effect, once" is "$(cat "$scratch/out" "$scratch/err" | grep -c 'comet.enabled: no effect')" 1
  run "$tessera" train tiny.cfg --set run.directory=defaults --set run.steps=2 --set tensorboard.enabled=true \
    --set csv_monitor.enabled=true --set wandb.enabled=true
  ok "without a path both are where the run was started, with DeepSpeed's name" \
    [ -s DeepSpeedJobName/Train_Samples_lr.csv -a -n "$(find DeepSpeedJobName -name 'events.out.tfevents.*')" ]
  ok "and wandb uploads what is there" grep -q -- '--project deepspeed DeepSpeedJobName' "$scratch/out"
  run "$tessera" train tiny.cfg --set "run.directory='strange
%s \\ run'" --set run.steps=2 --set wandb.enabled=true --set wandb.group="\$(x)"
  ok "any name becomes one word of a shell" is "$(uploaded)" "[sync]
[--sync-tensorboard]
[--project]
[deepspeed]
['strange
%s \\ run'/events]"
  run "$tessera" train tiny.cfg --set run.directory=off --set run.steps=2
  ok "without monitors nothing is written" is "$(find off -mindepth 1 -maxdepth 1 | wc -l)" \
    "$(find 'a run' -mindepth 1 -maxdepth 1 ! -name events | wc -l)"
}

test_curves
test_times
test_killed
test_held
test_refused
test_places
test_at_once
test_heads
test_observed
test_wandb
finish
