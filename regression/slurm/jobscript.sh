#!/bin/bash
# TAP: the job scripts without a Slurm: their waiting under signals, and what they decide and say, with stand-ins of Slurm's
# commands and of the program.  regression/slurm/jobs.sh has the same scripts on a real one.
# shellcheck source=regression/cli_common.sh
# shellcheck disable=SC2016,SC2317
. "${srcdir:-.}/regression/cli_common.sh"
script=$top/slurm/train.sbatch
unset TESSERA_MPI TESSERA_BIND TESSERA_LOGS TESSERA_ENV_FILE DS_ENV_FILE
unset "${!SLURM_@}"
HOME=$work
both() { eval "$1" && eval "$2"; }

# ---- waiting ----

# The functions of the script with these names.
functions() {
  local name
  for name in "$@"; do
    sed -n "/^$name() {/,/^}/p" "$script"
  done
}

# send SIGNAL SIGNAL PROCESS: both, three times, at random moments.
send() {
  local i
  for i in 1 2 3; do
    sleep "0.0$((RANDOM % 4))"
    kill -"$1" "$3" && kill -"$2" "$3"
  done 2> /dev/null
}

# A program that lasts long enough for all of them, then says so and ends with 7.
cat > lasting << 'END'
#!/bin/sh
trap '' TERM USR1
: > "$1.begun"
sleep 0.25
: > "$1.ended"
exit 7
END
chmod +x lasting

await() {
  until [ -e "$1" ]; do
    sleep 0.05
  done
}

rank_round() {
  local mine=$PWD/rank$1 process status signals=(TERM USR1)
  SLURM_PROCID=1 SLURM_STEP_ID=0 SLURMD_NODENAME=n bash -c 'rank "$@"' bash "$mine.exit" ./lasting "$mine" > "$mine.said" 2>&1 &
  process=$!
  await "$mine.begun"
  send "${signals[$1 % 2]}" "${signals[1 - $1 % 2]}" "$process"
  wait "$process" 2> /dev/null
  status=$?
  [ -e "$mine.ended" ] && [ "$status" = 7 ] || echo "rank $1: status $status, $(ls "$mine".*) $(cat "$mine.said")" >> lost
}

step_round() {
  local mine=$PWD/step$1 process signals=(TERM USR1)
  bash -c "$(functions on_signal wait_for_step)
    say() { :; }
    attend() { :; }
    stopping=
    trap 'on_signal USR1' USR1
    trap 'on_signal TERM' TERM
    ./lasting $mine &
    step=\$!
    wait_for_step
    status=\$?
    [ -e $mine.ended ] && echo \$status" > "$mine.said" 2>&1 &
  process=$!
  await "$mine.begun"
  send "${signals[$1 % 2]}" "${signals[1 - $1 % 2]}" "$process"
  wait "$process" 2> /dev/null || echo "step $1: left early" >> lost
}

# So many rounds of a function, 50 at a time; ROUNDS=300 is for more.
many=${ROUNDS:-100}
rounds() {
  local i
  : > lost
  for ((i = 0; i < many; ++i)); do
    "$1" "$i" &
    [ $((i % 50)) -ne 49 ] || wait
  done
  wait
  sed 's/^/# /' lost
  [ ! -s lost ]
}

test_waiting() {
  eval "$(functions rank)"
  export -f rank
  ok "$many ranks under TERM and USR1: each wrapper lasts as long as its program and tells its status" rounds rank_round
  ok "$many steps under TERM and USR1: the script waits until srun is gone" rounds step_round
  echo "# $(cat step*.said | grep -cvx 7) of $many statuses of srun were lost to a signal"
  rm -f rank* step*
}

# ---- a Slurm of stand-ins ----

# In the directory "slurm" of a case: state, restarts and command are what Slurm says of the job, requeue what becomes of a requeue
# (yes; no; late: it is done and an error is given; cancelled: the job is, meanwhile; a line a time, the last for ever); deaf has a line
# for each question that is not answered; calls collects what was asked for, script is the script's process, usr1 has a line for each
# USR1 that srun was told to hand on.
mkdir bin
cat > bin/scontrol << 'END'
#!/bin/sh
echo "scontrol $*" >> slurm/calls
case "$1 $2" in
  "show job")
    [ ! -s slurm/deaf ] || { sed -i 1d slurm/deaf; echo "Unable to contact slurm controller" >&2; exit 1; }
    cat << SHOWN
JobId=$3 JobName=job
   JobState=$(cut -d ' ' -f 1 slurm/state) Reason=$(cut -d ' ' -f 2 slurm/state) Dependency=(null)
   Requeue=1 Restarts=$(cat slurm/restarts) BatchFlag=1 Reboot=0 ExitCode=0:0
   Command=$(cat slurm/command)
SHOWN
    ;;
  requeue*)
    read -r answer < slurm/requeue
    [ "$(wc -l < slurm/requeue)" -lt 2 ] || sed -i 1d slurm/requeue
    [ "$answer" != cancelled ] || echo CANCELLED None > slurm/state
    [ "$answer" = no ] || [ "$answer" = cancelled ] || echo $(($(cat slurm/restarts) + 1)) > slurm/restarts
    [ "$answer" = yes ] || { echo "Socket timed out" >&2; exit 1; } ;;
esac
END
# As srun: rank 0 alone, and a process that ends the step when srun is killed.
cat > bin/srun << 'END'
#!/bin/bash
echo "srun $*" >> slurm/calls
[ "$*" != --mpi=list ] || { echo "MPI plugin types are... none pmi2"; exit; }
for word in "$@"; do
  case $word in --output=*) log=${word#--output=} ;; esac
done
while [ "$1" != bash ]; do
  shift
done
(trap '' TERM; while kill -0 $$; do sleep 0.3; done 2> /dev/null; [ -e slurm/srun.ended ] || echo "step killed" >> slurm/calls) &
trap 'echo told >> slurm/usr1' USR1
echo $PPID > slurm/script
SLURM_PROCID=0 SLURM_STEP_ID=0 SLURMD_NODENAME=n0 "$@" >> "$log" 2>&1 < /dev/null &
rank=$!
while kill -0 $rank; do
  wait $rank
  status=$?
done 2> /dev/null
: > slurm/srun.ended
exit $status
END
cat > bin/scancel << 'END'
#!/bin/sh
echo "scancel $*" >> slurm/calls
END
# The program: trains by what stands in the file "train", a part of a shell script.
"$tessera" train --help > help
cat > bin/program << 'END'
#!/bin/bash
saved() { mkdir -p "run/step_0000000$1" && : > "run/step_0000000$1/manifest"; }
if [ -e disturbed ]; then
  : > asked
  sleep 2
fi
case $* in
  "train --help") cat ../help ;;
  *"--key run.steps") echo 6 ;;
  *"--key run.epochs") cat epochs 2> /dev/null || echo 0.0 ;;
  *"--key run.directory") echo run ;;
  *"--key run.resume") cat resume 2> /dev/null || echo never ;;
  *) . ./train ;;
esac
END
chmod +x bin/*

# begin CASE [NAME=VALUE]... -- WORD...: the script as life $restart of job 7, in a directory of its own where the file "train" is.
script_of_job=$script
begin() {
  local variables=(SLURM_JOB_ID=7 SLURM_JOB_NAME=job SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=n0 SLURM_CPUS_ON_NODE=4
    SLURM_JOB_CPUS_PER_NODE=4 SLURM_RESTART_COUNT="$restart" TESSERA="$work/bin/program" PATH="$work/bin:$PATH")
  local case=$1
  shift
  while [ "$1" != -- ]; do
    variables+=("$1")
    shift
  done
  shift
  mkdir -p "$case/slurm"
  (
    cd "$case" || exit
    cp ../tiny.cfg ../text.txt .
    [ -e slurm/state ] || echo RUNNING None > slurm/state
    echo "$restart" > slurm/restarts
    [ -e slurm/requeue ] || echo yes > slurm/requeue
    [ -e slurm/command ] || echo "$script tiny.cfg" > slurm/command
    rm -f slurm/srun.ended
    timeout -k 5 60 env "${variables[@]}" bash "$script_of_job" "$@" > out 2>&1 < /dev/null
    echo $? > status
  )
}

# look CASE: its exit code in $status; what was said is asked for by says, what was asked of Slurm by asked.
look() {
  looked=$1
  status=$(cat "$1/status")
  cp "$1/out" "$scratch/out"
  : > "$scratch/err"
}

job() {
  begin "$@"
  look "$1"
}

restart=0
trains() { mkdir -p "$1"; echo "$2" > "$1/train"; }
asked() { grep -Eq -e "$1" "$looked/slurm/calls"; }
never() { ! "$@"; }
says() { grep -Eq -e "$1" "$scratch/out"; }
queued() { asked '^scontrol requeue 7$'; }

# ---- what becomes of the job ----

# name | what the run does | exit code of the job | queued again | what is said
endings='all steps|saved 6|0|no|finished: run, step 6$
exit 0 with steps left|saved 3|0|yes|failed with exit status 0 at step 3 of 6
no checkpoint at all|exit 0|0|yes|failed with exit status 0 at step 0 of 6
the last step was not finite|saved 6; exit 1|1|no|no step is left to do: not queued again
killed behind the last step|saved 6; kill -9 $$|137|no|no step is left to do: not queued again
stopped|saved 3; exit 75|0|yes|stopped and saved: run, step 3 of 6
failed|exit 9|0|yes|failed with exit status 9
refused|echo train: wrong; exit 2|2|no|train: wrong
half a checkpoint|mkdir -p run/step_00000006; saved 3; exit 0|0|yes|at step 3 of 6
latest is one behind|saved 3; saved 6; echo step_00000003 > run/latest|0|no|finished: run, step 6$
latest is of what is gone|saved 3; echo step_00000006 > run/latest; exit 1|0|yes|to go on from step 3$'

test_endings() {
  local n=0 what does code again words
  while IFS='|' read -r _ does _; do
    n=$((n + 1))
    trains "ending$n" "$does"
    begin "ending$n" -- tiny.cfg &
  done <<< "$endings"
  wait
  n=0
  while IFS='|' read -r what _ code again words; do
    n=$((n + 1))
    look "ending$n"
    ok "$what: exit code $code" is "$status" "$code"
    ok "$what: what is said" says "$words"
    if [ "$again" = yes ]; then
      ok "$what: queued again, not finished" both queued 'never says finished:'
    else
      ok "$what: not queued again" never queued
    fi
  done <<< "$endings"
}

# With run.epochs the run alone knows its steps.
test_epochs() {
  local case run='mkdir -p run/status; printf "step 1\nsteps 3\n" > run/status/@run'
  trains epochs "$run; saved 3"
  trains epochs_left "$run; saved 2; exit 0"
  trains epochs_unknown 'saved 6; exit 0'
  for case in epochs epochs_left epochs_unknown; do
    echo 1.5 > $case/epochs
    begin $case -- tiny.cfg &
  done
  wait
  look epochs
  ok "run.epochs: finished at what the run made of them" both 'says "finished: run, step 3$"' 'never queued'
  look epochs_left
  ok "run.epochs: steps left" both 'says "at step 2 of 3"' queued
  look epochs_unknown
  ok "run.epochs: a run that never said how many steps is not finished" both 'says "at step 6 of [?]"' queued
}

# ---- orphans, and other jobs ----

test_orphans() {
  trains orphan 'saved 6; echo 1 > logs/job-7.life; sleep 1'
  begin orphan -- tiny.cfg &
  trains locked 'saved 6; echo "job 7 restart 1 host n1 pid 5" > run/.lock'
  begin locked -- tiny.cfg &
  trains hanging 'echo 1 > logs/job-7.life; trap "" TERM; echo $$ > process; sleep 30'
  begin hanging -- tiny.cfg &
  trains taken 'saved 3; echo "job 8 restart 0 host n1 pid 5" > run/.lock; exit 1'
  begin taken -- tiny.cfg &
  restart=1
  trains earlier 'saved 3; exit 1'
  mkdir -p earlier/run earlier/logs
  echo "job 6 restart 9 host n1 pid 5" > earlier/run/.lock
  echo 0 > earlier/logs/job-7.life
  begin earlier -- tiny.cfg &
  restart=0
  trains reused 'saved 6; sleep 4'
  mkdir -p reused/run
  echo "job 7 restart 5 host n1 pid 5" > reused/run/.lock
  begin reused -- tiny.cfg &
  trains dead 'echo 0 > logs/job-7.r0.exit.died; for i in 1 2 3 4 5 6 7 8; do sleep 1; grep -q scancel slurm/calls && exit 9; done'
  begin dead -- tiny.cfg &
  wait
  look orphan
  ok "an orphan whose step ends is silent and does not queue the job" both 'never says "finished|queued"' 'never queued'
  ok "an orphan leaves its successor's file" is "$(cat orphan/logs/job-7.life)" 1
  look locked
  ok "an orphan by the lock of the run" both 'never says "finished|queued"' 'never queued'
  look hanging
  kill -9 "$(cat hanging/process)"
  ok "an orphan's srun is killed" [ "$status" -gt 128 ]
  ok "and takes nothing along" never asked 'step killed|scancel|requeue'
  look taken
  ok "a run that another job has taken meanwhile is left to it" both 'never queued' 'says "of another job .job 8 restart 0"'
  look earlier
  ok "one that another job had before is not" queued
  ok "a life that did not say goodbye is given time" says 'has not said goodbye'
  ok "a life that ends says goodbye" [ ! -e earlier/logs/job-7.life ]
  look reused
  ok "a line of a job with the same number of long ago makes no orphan" says 'finished: run'
  look dead
  ok "a rank that died: the rest of its step is killed" asked '^scancel --signal=KILL 7\.0$'
}

# ---- queueing ----

# Minutes are tenths of a second for who has this in front of PATH.
mkdir hasty
printf '#!/bin/sh\nexec /bin/sleep 0.1\n' > hasty/sleep
chmod +x hasty/sleep

test_requeue() {
  local case
  mkdir -p late/slurm no/slurm
  echo late > late/slurm/requeue
  trains late 'saved 3; exit 75'
  begin late -- tiny.cfg &
  echo no > no/slurm/requeue
  trains no 'saved 3; exit 75'
  begin no -- tiny.cfg &
  trains third 'exit 9'
  for restart in 0 1 2; do
    begin third -- tiny.cfg
  done
  wait
  mkdir -p second/slurm cancelled/slurm limit/slurm gone/slurm deaf/slurm
  printf '%s\n' no no yes > second/slurm/requeue
  printf '%s\n' cancelled yes > cancelled/slurm/requeue
  echo COMPLETING TimeLimit > limit/slurm/state
  echo COMPLETING None > gone/slurm/state
  printf '%s\n' no no > deaf/slurm/deaf
  restart=0
  for case in second cancelled limit gone; do
    trains $case 'saved 3; exit 75'
    begin $case -- tiny.cfg &
  done
  trains deaf 'saved 3; exit 75'
  begin deaf PATH="$work/hasty:$work/bin:$PATH" -- tiny.cfg &
  wait
  look second
  ok "Slurm says no twice: it is asked again" both '[ "$status" = 0 ]' 'never says "did not queue"'
  look cancelled
  ok "a job that is cancelled meanwhile is not revived" is "$(grep -c '^scontrol requeue' cancelled/slurm/calls)" 1
  look limit
  ok "a job that meets its limit is queued again" queued
  look gone
  ok "one that Slurm ends for another reason is not" both 'never queued' 'says "Slurm is ending this job"'
  look deaf
  ok "a slurmctld that does not answer is asked again" both queued 'says "slurmctld does not answer"'
  look late
  ok "Slurm says no to a requeue that it has done: nothing is wrong" both '[ "$status" = 0 ]' 'never says "did not queue"'
  look no
  ok "Slurm says no three times: so it is said" both '[ "$status" = 75 ]' 'says "did not queue the job again"'
  look third
  ok "the third life without a checkpoint is the last" both '[ "$status" = 1 ]' 'says "3 times in a row"'
  : > third/logs/job-7.failures
  restart=2
  job third -- tiny.cfg
  ok "the number of failures is lost: no life for ever" both '[ "$status" = 1 ]' 'says "3 times in a row"'
  restart=0
}

# Ranks of a former life hold the run for a while.
test_held() {
  trains held 'if [ -e asked ]; then saved 6; else : > asked
    echo "run.directory: run is being written by another job (job 7 restart 0 host n0 pid 5)"; exit 2; fi'
  restart=1
  job held PATH="$work/hasty:$work/bin:$PATH" -- tiny.cfg
  ok "a run that ranks of a former life hold is tried again" both 'says "again in a minute"' 'says "finished: run, step 6"'
  rm -r held/asked held/run held/logs
  sed -i 's/job 7/job 8/' held/train
  job held PATH="$work/hasty:$work/bin:$PATH" -- tiny.cfg
  ok "one that another job holds is not" is "$status" 2
  restart=0
}

# A signal to the script reaches the ranks, also one that comes too early for them, or to the script and the program that it asks.
test_signals() {
  local process
  trains disturbed 'saved 6'
  : > disturbed/disturbed
  begin disturbed -- tiny.cfg &
  until [ -e disturbed/status ]; do # each time that the program has been asked, and takes its time
    if [ -e disturbed/asked ]; then
      rm disturbed/asked
      for process in $(pgrep -f "^(/bin/)?bash ([^ ]*bin/program|$script tiny.cfg)"); do
        [ "$(readlink "/proc/$process/cwd")" != "$work/disturbed" ] || kill -TERM "$process"
      done
    fi
    sleep 0.05
  done 2> /dev/null
  wait
  look disturbed
  ok "TERM to the script and its program before there is a step: no step, nothing is refused" \
    both '[ ! -e disturbed/run ] && never says error' 'says "stopped before there was anything new"'
  trains told 'kill -USR1 $(cat slurm/script); for i in 1 2 3 4 5; do sleep 1; [ ! -e slurm/usr1 ] || { saved 3; exit 75; }; done'
  begin told -- tiny.cfg &
  trains early 'kill -USR1 $(cat slurm/script); for i in 1 2 3 4 5 6 7 8 9; do sleep 1; [ $(wc -l < slurm/usr1) -lt 2 ] || exit 75; done'
  begin early -- tiny.cfg &
  wait
  look told
  ok "USR1 to the script: saved, queued again" both queued 'says "USR1, ahead of the time limit" && says "stopped and saved: run, step 3"'
  look early
  ok "it is told again to who did not listen" both queued 'says "before there was anything new to save"'
}

# How lives begin.  life CASE RESTART DOES WORD...: what --resume they are given.
life() {
  local case=$1
  restart=$2
  trains "$case" "echo \"\$*\" > words; $3"
  shift 3
  job "$case" -- tiny.cfg "$@"
  restart=0
  resumed=$(sed -n 's/.*--resume //p' "$case/words")
}

test_begins() {
  life plain 0 'exit 9'
  ok "a run begins with --resume auto" is "$resumed" auto
  mkdir deck
  echo other > deck/resume
  life deck 0 'exit 9'
  ok "or as run.resume of the deck says" is "$resumed" other
  life deck 1 'saved 3; exit 9'
  ok "in the next life too, while nothing is saved" is "$resumed" other
  life deck 2 'exit 9'
  ok "and from there when something is" is "$resumed" auto
  life never 0 'exit 9' --resume never
  ok "never is for the first life" both 'is "$resumed" never' 'life never 1 "exit 9" --resume never; is "$resumed" auto'
  mkdir -p full_of_steps/run/step_00000003
  : > full_of_steps/run/step_00000003/manifest
  life full_of_steps 0 'kill -9 $$' --resume never
  life full_of_steps 1 'exit 2' --resume never
  ok "and stays where checkpoints are of another run" is "$resumed" never
  mkdir -p back/run/step_0000000{2,6}
  : > back/run/step_00000002/manifest
  : > back/run/step_00000006/manifest
  life back 0 'exit 9' --resume run/step_00000002
  ok "a life that is to go back and dies before: queued again" queued
  life back 1 'mv run/step_00000006 run/step_00000006.aside; exit 9' --resume run/step_00000002
  ok "and the next one goes back" is "$resumed" run/step_00000002
  life back 2 'saved 3; exit 9' --resume run/step_00000002
  ok "one that went back goes on from there" is "$resumed" auto
}

# A disk with room for the directories alone.
test_full_disk() {
  mkdir -p full/logs
  if ! mount -t tmpfs -o size=4k,nr_inodes=100 none full/logs 2> /dev/null; then
    skip "a full disk" "no file system can be mounted here"
    return
  fi
  restart=1
  trains full 'saved 3; exit 75'
  echo 0 > full/logs/job-7.failures
  cat /dev/zero > full/logs/filler 2> /dev/null
  job full -- tiny.cfg
  ok "a full disk: who goes forward is queued again" queued
  rm -r full/logs/* full/slurm/calls
  cat /dev/zero > full/logs/filler 2> /dev/null
  trains full 'exit 75'
  job full -- tiny.cfg
  ok "a full disk: stopped is not finished" never says finished:
  ok "a full disk: no queueing for ever" both 'never queued' 'says "failures cannot be written"'
  trains full 'exit 2'
  job full -- tiny.cfg
  ok "a full disk: refused stays refused" both '[ "$status" = 2 ]' 'never queued'
  trains full 'exit 0'
  job full -- tiny.cfg
  ok "a full disk: 0 alone is not finished" both 'never says finished:' 'never queued'
  umount full/logs
  restart=0
}

# ---- words ----

# what stands after the script | what is said
refusals='--nodes=2 tiny.cfg|come before the script: sbatch --nodes=2 
tiny.cfg -N2|come before the script: sbatch -N2 
tiny.cfg other.cfg|other.cfg: one deck is expected
tiny.cfg --set|--set needs a value
tiny.cfg --help|train --help. prints it here
--verbose|usage: sbatch'

test_words() {
  local n=0 words what
  trains words 'echo "$*" > words; saved 6'
  begin words -- --set run.directory=run --resume=never tiny.cfg --set=run.seed=3 --verbose &
  begin components SLURM_HET_SIZE=2 SLURM_JOB_NUM_NODES_HET_GROUP_0=1 SLURM_NTASKS_HET_GROUP_0=1 \
    SLURM_JOB_NUM_NODES_HET_GROUP_1=1 SLURM_NTASKS_HET_GROUP_1=2 -- tiny.cfg &
  while IFS='|' read -r words what; do
    n=$((n + 1))
    # shellcheck disable=SC2086
    begin "refusal$n" -- $words
    look "refusal$n"
    ok "$words: refused, with the way out" both '[ "$status" = 2 ]' 'says "$what"'
  done <<< "$refusals"
  wait
  look words
  ok "options before the deck" is "$(cat words/words)" \
    "train tiny.cfg --set run.directory=run --set run.seed=3 --verbose --resume never"
  printf 'A=1\nSLURM_NTASKS=3\n' > environment1
  printf 'TESSERA_LOGS=elsewhere\n' > environment2
  for n in 1 2; do
    begin "environment$n.case" TESSERA_ENV_FILE="$work/environment$n" -- tiny.cfg
    look "environment$n.case"
    ok "an environment file with what is not for it" both '[ "$status" = 2 ]' "says 'environment$n:$((3 - n)): (SLURM_NTASKS|TESSERA_LOGS) is'"
  done
  trains names 'saved 6'
  job names 'SLURM_JOB_NAME=a\b%j' -- tiny.cfg
  ok "% in a job's name is no pattern of srun, a backslash none either" \
    both "asked '--output=logs/a_b%%j-7.r0.log'" 'says "log: logs/a_b%j-7.r0.log"'
  sed 's/^  : # module load .*/  [ -z "$NOBODY_SET_THIS" ]/' "$script" > site.sbatch
  script_of_job=$work/site.sbatch
  trains site 'saved 6'
  job site -- tiny.cfg
  script_of_job=$script
  ok "site_setup may read what is not set" says "finished: run"
  look components
  ok "a heterogeneous job" both '[ "$status" = 2 ]' 'says "sbatch --nodes=2 --ntasks=3 slurm/train.sbatch tiny.cfg"'
}

test_layout() {
  local case
  for case in uneven crowded fewer gpus poor chosen; do
    trains $case 'saved 6'
  done
  begin gpus SLURM_JOB_NUM_NODES=2 SLURM_GPUS_ON_NODE=2 'SLURM_JOB_CPUS_PER_NODE=2(x2)' -- tiny.cfg &
  begin poor SLURM_GPUS_ON_NODE=8 SLURM_JOB_CPUS_PER_NODE=1 -- tiny.cfg &
  begin chosen SLURM_GPUS_ON_NODE=8 SLURM_NTASKS=1 SLURM_JOB_CPUS_PER_NODE=1 SLURM_CPUS_PER_TASK=1 -- tiny.cfg &
  begin uneven SLURM_JOB_NUM_NODES=3 SLURM_NTASKS=4 'SLURM_JOB_CPUS_PER_NODE=2,1(x2)' -- tiny.cfg &
  begin crowded SLURM_NTASKS=4 SLURM_CPUS_ON_NODE=1 SLURM_JOB_CPUS_PER_NODE=1 -- tiny.cfg &
  begin fewer SLURM_JOB_NUM_NODES=2 SLURM_NTASKS=8 SLURM_NTASKS_PER_NODE=2 -- tiny.cfg &
  wait
  look gpus
  ok "a rank a GPU" asked "srun --nodes=2 --ntasks=4 --ntasks-per-node=2"
  look poor
  ok "fewer processors than GPUs: refused, with the way out" both '[ "$status" = 2 ]' 'says "ntasks-per-node=8 asks"'
  look chosen
  ok "--ntasks is what was asked for" asked "srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1"
  look uneven
  ok "4 ranks on 3 nodes are 4" both 'says "nodes: 3, ranks: 4, processors of the nodes: 2,1"' \
    'asked "srun --nodes=3 --ntasks=4 --mpi"'
  look crowded
  ok "more ranks than processors" both 'says "nodes: 1, ranks: 4, processors of the nodes: 1,"' 'never says "0 processors"'
  look fewer
  ok "fewer nodes than before with --ntasks-per-node" asked "srun --nodes=2 --ntasks=4 --ntasks-per-node=2"
}

# What the script says of the newest checkpoint is what the run resumes from.
test_resumes() {
  trains resumes "exec $tessera \"\$@\""
  job resumes -- tiny.cfg --set run.save_every=2
  ok "the program itself: finished" both '[ "$status" = 0 ]' 'says "finished: run, step 6"'
  rm -r resumes/run/step_00000006
  sed -i 's/.*/x/; 1s/.*/step_00000002/' resumes/run/latest
  job resumes -- tiny.cfg
  ok "latest is one behind: where it goes on" both 'says "newest checkpoint: step 4"' \
    'grep -q "^resumed at step 4 of 6" resumes/logs/job-7.r0.log'
  rm -f resumes/logs/*.log
  job resumes -- tiny.cfg --resume run/step_00000002
  ok "another checkpoint is asked for: it is named" both 'says "--resume run/step_00000002"' \
    'grep -q "^resumed at step 2 of 6" resumes/logs/job-7.r0.log'
}

# The script's own directory, and what it says where Slurm does not know it.
test_home() {
  local place="$work/a place/bin" copy
  mkdir -p "$place" "$work/a place/share/tessera/slurm" home/slurm
  ln -s "$work/bin/program" "$place/tessera"
  copy="$work/a place/share/tessera/slurm/my job"
  cp "$script" "$copy"
  trains home 'saved 6'
  echo "$copy tiny.cfg --set run.directory=run" > home/slurm/command
  job home TESSERA= PATH="$work/bin:/usr/bin:/bin" -- tiny.cfg
  ok "a copy with another name and blanks finds its program" says "slurm/../../../bin/tessera$"
  echo "$work/mine.sh tiny.cfg" > home/slurm/command
  cp "$script" mine.sh
  job home TESSERA= PATH="$work/bin:/usr/bin:/bin" -- tiny.cfg
  ok "a copy far from the program says where it lies" both '[ "$status" = 2 ]' 'says "it lies in $work\): set TESSERA="'
  echo "(null)" > home/slurm/command
  job home TESSERA= PATH="$work/bin:/usr/bin:/bin" -- tiny.cfg
  ok "a script from a pipe says that Slurm does not know" both '[ "$status" = 2 ]' 'says "Slurm does not say where\): set TESSERA="'
}

# The other two find their program and their neighbour as train.sbatch does.
test_others() {
  local place="$work/a place/share/tessera/slurm"
  cp "$top/slurm/array.sbatch" "$place/my array"
  cp "$script" "$place/train.sbatch"
  trains array 'echo "$*" > words; saved 6'
  mkdir -p array/slurm
  printf '%s\r\n' "--set run.seed=1" "" "# a word" "--prompt ''" > array/variants
  echo "$place/my array tiny.cfg variants" > array/slurm/command
  script_of_job="$place/my array"
  job array SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_JOB_ID=7 -- tiny.cfg variants --verbose
  ok "array.sbatch with another name and blanks" \
    is "$(cat array/words)" "train tiny.cfg --verbose --set run.seed=1 --set run.directory=run/1 --resume auto"
  job array SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_JOB_ID=7 -- tiny.cfg variants
  ok "an empty line is the deck as it is" is "$(cat array/words)" "train tiny.cfg --set run.directory=run/2 --resume auto"
  job array SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_JOB_ID=7 -- tiny.cfg variants
  ok "a comment is none" both '[ "$status" = 2 ]' 'says "variants:3: a comment is no variant"'
  job array SLURM_ARRAY_TASK_ID=4 SLURM_ARRAY_JOB_ID=7 -- tiny.cfg variants
  ok "an empty word is one" is "$(cat array/words)" "train tiny.cfg --prompt  --set run.directory=run/4 --resume auto"
  job array SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_JOB_ID=7 -- tiny.cfg variants
  ok "behind the last line" both '[ "$status" = 2 ]' 'says "variants has no line 5 \(4 lines\)"'
  job array SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_JOB_ID=7 -- -N2 tiny.cfg variants
  ok "array.sbatch: -N2 behind the script" both '[ "$status" = 2 ]' 'says "sbatch.s own come before the script"'
  echo "(null)" > array/slurm/command
  job array SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_JOB_ID=7 -- tiny.cfg variants
  ok "array.sbatch from a pipe" both '[ "$status" = 2 ]' 'says "TESSERA_SCRIPTS=DIRECTORY"'
  cp "$top/slurm/consolidate.sbatch" "$place/my consolidation"
  script_of_job="$place/my consolidation"
  mkdir -p consolidated/slurm
  echo 'echo "$*" > words' > consolidated/train
  echo "$place/my consolidation run out" > consolidated/slurm/command
  job consolidated TESSERA= PATH="$work/bin:/usr/bin:/bin" -- run out
  ok "consolidate.sbatch with another name and blanks" is "$(cat consolidated/words)" "zero_to_fp32 run out"
  job consolidated TESSERA=none -- run out
  ok "consolidate.sbatch: TESSERA is no program" both '[ "$status" = 2 ]' 'says "TESSERA=none is not a program"'
  script_of_job=$script
}

test_waiting
test_endings
test_epochs
test_orphans
test_requeue
test_held
test_signals
test_begins
test_full_disk
test_words
test_layout
test_resumes
test_home
test_others
finish
