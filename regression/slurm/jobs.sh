#!/bin/sh
# TAP: the job scripts on a Slurm of 4 nodes that this test starts for itself (regression/slurm/slurm_cluster.sh): jobs that end,
# that meet their time limit, that lose ranks and nodes.  "#" lines are what a user would read.
# Nodes share this machine's cores, so what waits for Slurm is queued first and runs beside the rest.
# REQUEUES=20 TEST_TIMEOUT=1800 queues one job again 20 times instead of 2.  regression/slurm/jobscript.sh has what needs no Slurm.
# shellcheck source=regression/cli_common.sh
# shellcheck disable=SC2016,SC2317
. "${srcdir:-.}/regression/cli_common.sh"
# shellcheck source=regression/slurm/slurm_cluster.sh
. "$top/regression/slurm/slurm_cluster.sh"
scripts=$top/slurm
directory=
clean_up() {
  trap '' INT TERM HUP
  cluster_stop
  rm -rf "$scratch" "$directory"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

missing=$(cluster_missing | tr '\n' ' ')
if [ -n "$missing" ]; then
  echo "1..0 # SKIP not installed: $missing"
  exit 0
fi

export OMP_WAIT_POLICY=passive TESSERA="$tessera"
unset TESSERA_MPI TESSERA_BIND TESSERA_LOGS TESSERA_ENV_FILE DS_ENV_FILE SBATCH_EXPORT
HOME=$work

# 24 steps, long enough to be hit, short enough to be run a dozen times.  Steps wait for saves: where the disk is slow, a
# run would be over before its first checkpoint is there.
cat > slow.cfg << 'END'
model = { model_type = "llama"; vocab_size = 256; hidden_size = 384; intermediate_size = 768; num_hidden_layers = 2;
          num_attention_heads = 4; num_key_value_heads = 2; max_position_embeddings = 192; tie_word_embeddings = true; };
data = { path = "text.txt"; format = "text"; sequence_length = 192; seed = 1; };
run = { directory = "run"; steps = 24; seed = 1; threads = 1; log_every = 4; save_every = 4; save_async = false; keep = 2;
        device = "cpu"; };
train_batch_size = 12;
optimizer = { type = "AdamW"; params = { lr = 1e-4; }; };
gradient_clipping = 1.0;
END
# Samples as long as makes a step of 4 ranks take about a tenth of a second here: a fifth for one rank, on any processor;
# by the fastest of some steps, as others may be slow for reasons of their own, and the jobs then too short to be hit.
"$tessera" train slow.cfg --set run.directory=pace --set run.steps=8 > "$scratch/pace"
length=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == "step_seconds") c = i } NR > 2 && (t == 0 || $c < t) { t = $c }
  END { n = int(192 * 0.2 / t / 16) * 16; print (n < 32 ? 32 : n > 192 ? 192 : n) }' pace/metrics.csv)
ok "how long samples may be: ${length:-unknown}" [ "${length:-0}" -ge 32 ]
[ $failures -eq 0 ] || finish
sed -i "s/sequence_length = 192/sequence_length = $length/" slow.cfg

# ---- what jobs are asked and told ----

# submit NAME SBATCH-OPTIONS [WORD]...: train.sbatch; the job's id in $job, what it prints in NAME.out.
submit() {
  title=$1
  asked=$2
  shift 2
  # shellcheck disable=SC2086
  job=$(sbatch --parsable --job-name="$title" --output="%x.out" --time=10 $asked "$scripts/train.sbatch" "$@" \
    --set "run.directory=$title" 2> "$scratch/err")
}

field() { scontrol show job "$1" 2> /dev/null | sed -n "s/.*[[:space:]]$2=\([^[:space:]]*\).*/\1/p" | head -n 1; }
in_state() { field "$1" JobState | grep -Eqx "$2"; }
ended() { in_state "$1" 'COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL'; }
restarted() { [ "$(field "$1" Restarts)" = "$2" ]; }
# The job's state, its restarts and its exit code, as "COMPLETED 1 0:0".
verdict() { echo "$(field "$1" JobState) $(field "$1" Restarts) $(field "$1" ExitCode)"; }
second_node() { scontrol show hostnames "$(field "$1" NodeList)" | tail -n 1; }
stop_early() { scancel --signal=USR1 --batch "$1"; }

rows() { [ ! -r "$1/metrics.csv" ] || wc -l < "$1/metrics.csv"; }
# The run in directory $1 has done more than $2 steps.
beyond() { [ -r "$1/latest" ] && [ "$(rows "$1")" -gt $(($2 + 1)) ]; }
same() { "$tessera" compare "$@"; }
both() { eval "$1" && eval "$2"; }
shown() { sed 's/^/#   /' "$@"; }

# job_processes JOB NAME [VARIABLE=VALUE]: the job's processes of this name with this in their environment. One grep
# finds the name: one for each process of the machine takes seconds, and the job may be over.
job_processes() {
  for comm in $(grep -lFx -e "$2" /proc/[0-9]*/comm); do
    process=${comm%/comm}
    if tr '\0' '\n' < "$process/environ" | grep -Fqx "SLURM_JOB_ID=$1" \
      && tr '\0' '\n' < "$process/environ" | grep -Fqx -e "${3:-SLURM_JOB_ID=$1}"; then
      echo "${process#/proc/}"
    fi
  done 2> /dev/null
}
rank_process() { job_processes "$1" tessera "SLURM_PROCID=$2"; }

# ---- by hand: the ways to start ranks ----

modes='pmi2|srun --mpi=pmi2 -n 4 -N 4
mpiexec|salloc -n 4 -N 4 mpiexec -n 4'
if ldd "$tessera" | grep -q libpmix; then
  modes="$modes
pmix|srun --mpi=pmix -n 4 -N 4"
fi

test_modes() {
  while IFS='|' read -r mode launch; do
    # shellcheck disable=SC2086
    run $launch "$tessera" train slow.cfg --set "run.directory=by_$mode"
    ok "$launch: one world of 4 ranks" both 'gave 0' 'grep -q "4 ranks" "$scratch/out"'
    [ "$mode" = pmi2 ] || ok "$launch: the run of srun --mpi=pmi2" same by_pmi2 "by_$mode"
  done << END
$modes
END
  run srun --mpi=none -n 4 -N 4 "$tessera" train slow.cfg --set run.directory=by_none
  ok "srun --mpi=none: refused, with the way out" both '[ "$status" -ne 0 -a "$status" -ne 124 ]' 'grep -q "mpi=pmi" "$scratch/err"'
  shown "$scratch/err" | head -n 3
}

# Of a heterogeneous job srun starts ranks on the first component, unless it is told otherwise.
test_components() {
  run salloc -N1 -n1 : -N1 -n2 srun --mpi=pmi2 "$tessera" train tiny.cfg --set run.directory=part
  ok "srun in a heterogeneous job: refused, with the way out" said 2 "has 2 nodes, but srun .* on 1 .*--het-group=0,1"
  run salloc -N1 -n1 : -N1 -n2 srun --mpi=pmi2 --het-group=0,1 "$tessera" train slow.cfg --set run.steps=2 --set run.directory=both
  ok "srun --het-group=0,1: all of its ranks" printed "3 ranks on 2 nodes"
  cluster_wait 20 ended "$components"
  ok "train.sbatch in a heterogeneous job: refused" is "$(verdict "$components")" "FAILED 0 2:0"
  shown components.out
}

# ---- jobs that need nobody ----

# Slurm lets a requeued job wait for some seconds: these are queued first and looked at last.
begin_waiting() {
  cat > fails << END
#!/bin/sh
[ "\$1 \$2" = "train --help" ] || [ "\$1" = deck ] && exec "$tessera" "\$@"
echo "this program always fails"
exit 9
END
  chmod +x fails
  TESSERA=$work/fails
  submit failing -N1 slow.cfg
  failing=$job
  TESSERA=$tessera
  submit wrong -N1 slow.cfg --set run.stepps=3
  wrong=$job
  submit refused -N2 slow.cfg --set train_batch_size=3
  refused=$job
  components=$(sbatch --parsable -J components -o %x.out -N1 -n1 : -N1 -n2 "$scripts/train.sbatch" tiny.cfg 2> "$scratch/err")
  # --ntasks-per-node has made 4 tasks and processors a lower bound
  submit narrow '--hold -N4 --ntasks-per-node=1' tiny.cfg
  narrow=$job
  scontrol update JobId="$narrow" NumNodes=2-2 NumTasks=2 NumCPUs=2
  scontrol release "$narrow"
  # a copy of the script that does not know its program, but lies where it is installed
  place="$work/a place/share/tessera/slurm"
  mkdir -p "$place" "$work/a place/bin"
  ln -s "$tessera" "$work/a place/bin/tessera"
  cp "$scripts/train.sbatch" "$place/my job"
  copy=$(TESSERA='' sbatch --parsable -J copy -o %x.out -N3 -n4 "$place/my job" --set run.directory=copy tiny.cfg 2> "$scratch/err")
  # a minute is the shortest limit; the run wants most of it for itself
  submit limit '-N1 --time=1' slow.cfg --set run.time_margin=54 --set run.steps=400
  limit=$job
  printf '%s\n' '# what ranks get' 'NCCL_DEBUG=INFO' "OMP_TEST=a 'b' \$(c)" > .deepspeed_env
  sed 's/directory = "run"/directory = "sweep"/' tiny.cfg > sweep.cfg
  printf '%s\n' "--set optimizer.params.lr=1e-3" "--set optimizer.params.lr=2e-3 --set 'optimizer.params.betas=[0.9, 0.98]'" \
    "--set run.seed=7 --set run.directory=mine" > variants
  array=$(sbatch --parsable --array=1-3 -J sweep -o %x-%a.out "$scripts/array.sbatch" sweep.cfg variants --set run.steps=4 2> "$scratch/err")
}

test_wrong() {
  cluster_wait 20 ended "$wrong"
  ok "a wrong deck is not queued again" is "$(verdict "$wrong")" "FAILED 0 2:0"
  shown wrong.out
  cluster_wait 30 ended "$refused"
  ok "a deck that its ranks refuse is not queued again" is "$(verdict "$refused")" "FAILED 0 2:0"
  shown refused.out
}

test_words() {
  cluster_wait 30 ended "$narrow"
  ok "fewer nodes with --ntasks-per-node" both 'is "$(verdict "$narrow")" "COMPLETED 0 0:0"' 'grep -q "nodes: 2, ranks: 2," narrow.out'
  cluster_wait 30 ended "$copy"
  ok "a copy of the script, and options before the deck" is "$(verdict "$copy")" "COMPLETED 0 0:0"
  ok "4 ranks on 3 nodes" both 'grep -q "nodes: 3, ranks: 4," copy.out' 'grep -q "^4 ranks on 3 nodes" "logs/copy-$copy.r0.log"'
  shown copy.out
}

test_limit() {
  cluster_wait 60 grep -q "queued again" limit.out
  ok "ahead of the time limit it saves and is queued again" grep -q "stopped and saved: limit, step [1-9]" limit.out
  scancel "$limit"
  shown limit.out
  grep '^stopped' logs/limit-*.r0.log | shown
}

test_array() {
  for task in 1 2 3; do
    cluster_wait 30 ended "${array}_$task"
    ok "array.sbatch: task $task" is "$(field "${array}_$task" JobState)" COMPLETED
  done
  ok "array.sbatch: a directory a task, or the line's own" [ -f sweep/1/latest -a -f sweep/2/latest -a -f mine/latest ]
  ok "array.sbatch: a line's options" is "$("$tessera" deck sweep/2/deck.cfg --key optimizer.params.betas)" "[0.9, 0.98]"
}

test_whole() {
  submit whole -N4 slow.cfg
  cluster_wait 60 ended "$job"
  ok "sbatch: to completion, not queued again" is "$(verdict "$job")" "COMPLETED 0 0:0"
  shown whole.out
  ok "sbatch: the run of srun" same by_pmi2 whole
  ok "sbatch: the environment file, literally" grep -Fq "OMP_TEST=a 'b' \$(c)" whole.out
  job=$(sbatch --parsable -J consolidate -o %x.out "$scripts/consolidate.sbatch" whole hf --format safetensors)
  cluster_wait 30 ended "$job"
  ok "consolidate.sbatch: a model" both 'is "$(verdict "$job")" "COMPLETED 0 0:0"' '[ -s hf/model.safetensors ]'
  shown consolidate.out
}

test_failing() {
  cluster_wait 60 ended "$failing"
  ok "three failures without a new checkpoint end it" is "$(verdict "$failing")" "FAILED 2 1:0"
  shown failing.out
}

# ---- jobs that are disturbed: begun one after the other, each looked at when it has had its time to wait ----

begin_signalled() {
  submit signalled -N4 slow.cfg
  signalled=$job
  cluster_wait 60 beyond signalled 5
  stop_early "$signalled"
  cluster_wait 20 grep -q "queued again" signalled.out
}

test_signalled() {
  cluster_wait 60 ended "$signalled"
  ok "USR1: saved, queued again, finished" is "$(verdict "$signalled")" "COMPLETED 1 0:0"
  shown signalled.out
  ok "USR1: the losses of a run that was never stopped" same by_pmi2 signalled
}

begin_killed() {
  export TESSERA_MPI=pmi2 # with PMIx the others notice by themselves
  submit killed -N4 slow.cfg
  unset TESSERA_MPI
  killed=$job
  cluster_wait 60 [ -r killed/metrics.csv ]
  victim=$(rank_process "$killed" 2) # looked for while there is time: the steps are short
  cluster_wait 60 beyond killed 5
  kill -9 "$victim"
  cluster_wait 12 grep -q "the run failed" killed.out
  ok "kill -9 of a rank: the step ends in seconds" grep -q "the run failed" killed.out
}

test_killed() {
  cluster_wait 60 ended "$killed"
  ok "kill -9 of a rank: queued again, finished" is "$(verdict "$killed")" "COMPLETED 1 0:0"
  shown killed.out
  ok "kill -9 of a rank: it and its node are named" grep -q "^rank 2 on node2 was ended by SIGKILL" killed.out
  ok "kill -9 of a rank: the losses it would have had" same by_pmi2 killed
}

# Slurm's own requeue: TERM to every process at once, then USR1 by way of srun.  The deck has no last step until the last
# requeue, each life reads it anew: however slow this machine is, no life is over before it is disturbed.  Slurm counts a restart
# before the former life is over, so a life's rows are counted once its run has a log.
requeues=${REQUEUES:-2}
test_requeued() {
  sed 's/steps = 24/steps = 100000/' slow.cfg > requeued.cfg
  export TESSERA_MPI=pmi2
  submit requeued -N2 requeued.cfg
  unset TESSERA_MPI
  for restart in $(seq "$requeues"); do
    cluster_wait 60 [ -s "logs/requeued-$job.r$((restart - 1)).log" ]
    cluster_wait 60 beyond requeued "$(rows requeued)"
    if [ "$restart" -eq "$requeues" ]; then
      steps=$(($(rows requeued) + 24))
      sed -i "s/steps = 100000/steps = $steps/" requeued.cfg
    fi
    cluster_wait 20 scontrol requeue "$job"
    cluster_wait 60 restarted "$job" "$restart"
  done
  cluster_wait 60 ended "$job"
  ok "scontrol requeue: finished" is "$(verdict "$job")" "COMPLETED $requeues 0:0"
  shown requeued.out
  ok "scontrol requeue: saved each time" is "$(grep -c "stopped and saved" requeued.out)" "$requeues"
  ok "scontrol requeue: no rank was lost" is "$(cat logs/requeued-*.log requeued.out | grep -Ec 'failed|ended by|exit code')" 0
  run srun --mpi=pmi2 -n 2 -N 2 "$tessera" train slow.cfg --set run.directory=again --set run.steps=$steps
  ok "scontrol requeue: the losses it would have had" same again requeued
}

# The script itself is killed: the run saves, the job ends; it can be queued again by hand.
begin_slain() {
  submit slain -N1 slow.cfg
  slain=$job
  cluster_wait 60 beyond slain 5
  kill -9 "$(pgrep -o -f "^/bin/bash .*/job0*$slain/slurm_script")"
  cluster_wait 20 ended "$slain"
  ok "kill -9 of the script: Slurm ends the job" is "$(verdict "$slain")" "FAILED 0 0:9"
  scontrol requeue "$slain"
}

test_slain() {
  cluster_wait 60 ended "$slain"
  ok "kill -9 of the script, then scontrol requeue: finished" is "$(verdict "$slain")" "COMPLETED 1 0:0"
  shown slain.out
}

all_nodes_seen() {
  "$tessera" status "$1" > status.out 2>&1
  grep -q "^node3 .*s ago" status.out
}

test_cancelled() {
  submit cancelled -N4 tiny.cfg --set run.steps=100000
  cluster_wait 30 all_nodes_seen cancelled
  ok "tessera status, beside the job: all nodes" all_nodes_seen cancelled
  shown status.out
  scancel "$job"
  cluster_wait 20 ended "$job"
  cluster_wait 10 grep -q "a new sbatch" cancelled.out
  ok "scancel: saved" grep -q "stopped and saved" cancelled.out
  ok "scancel: not queued again" is "$(field "$job" JobState) $(field "$job" Restarts)" "CANCELLED 0"
  shown cancelled.out
}

# The largest relative difference of losses between grids in fp32: sums in another order.
other_grid=2e-6

# Stop the job $elastic and let it go on, on $1 nodes.
go_on_with() {
  stop_early "$elastic"
  cluster_wait 30 in_state "$elastic" PENDING
  scontrol update JobId="$elastic" NumNodes="$1-$1"
}

begin_elastic() {
  submit elastic -N4 slow.cfg
  elastic=$job
  cluster_wait 60 beyond elastic 5
  go_on_with 2
  stopped_at=$(rows elastic)
}

test_elastic() {
  cluster_wait 60 beyond elastic "$stopped_at"
  go_on_with 3
  cluster_wait 60 ended "$elastic"
  ok "4 nodes, then 2, then 3: finished" is "$(verdict "$elastic")" "COMPLETED 2 0:0"
  shown elastic.out
  ok "4 nodes, then 2, then 3: it was so" is "$(sed -n 's/.* nodes: \([0-9]\), ranks: \1,.*/\1/p' elastic.out | tr '\n' ' ')" "4 2 3 "
  ok "4 nodes, then 2, then 3: the losses of 4" same by_pmi2 elastic --tolerance $other_grid
}

# Two jobs with two nodes each; one loses its second node by the administrator, one by a crash: its slurmd
# is killed, and its rank says nothing any more.
test_lost_nodes() {
  submit crashed '-N2 --exclusive --ntasks-per-node=1' slow.cfg
  crashed=$job
  submit down '-N2 --exclusive --ntasks-per-node=1' slow.cfg
  down=$job
  cluster_wait 60 beyond crashed 5
  crashed_node=$(second_node "$crashed")
  kill -STOP "$(rank_process "$crashed" 1)"
  cluster_kill "$crashed_node"
  cluster_wait 60 beyond down 5
  scontrol update NodeName="$(second_node "$down")" State=DOWN Reason=test
  cluster_wait 30 restarted "$down" 1
  ok "a node set DOWN: queued again" restarted "$down" 1
  cluster_wait 60 restarted "$crashed" 1
  ok "a crashed slurmd: queued again" restarted "$crashed" 1
  cluster_revive "$crashed_node"
  run srun --mpi=pmi2 -n 2 -N 2 "$tessera" train slow.cfg --set run.directory=two
  for lost in down crashed; do
    eval "job=\$$lost"
    cluster_wait 60 ended "$job"
    ok "$lost: finished" is "$(verdict "$job")" "COMPLETED 1 0:0"
    shown $lost.out
    ok "$lost: the script leaves it to Slurm" grep -q "Slurm has put the job back into the queue" $lost.out
    ok "$lost: the losses it would have had" same two $lost
  done
}

# The slurmd of the batch host is killed while srun there hears of nothing: the job goes on elsewhere, and the life that was
# left behind, whose step has the same number, comes to itself.
trains_again() { grep -qs "^step" "logs/orphan-$orphan.r1.log"; }
test_orphan() {
  cluster_set KillWait 5
  submit orphan '-N2 --exclusive --ntasks-per-node=1' slow.cfg --set run.steps=60
  orphan=$job
  cluster_wait 60 beyond orphan 5
  batch_host=$(field "$orphan" BatchHost)
  left=$(job_processes "$orphan" srun | tr '\n' ' ')
  # shellcheck disable=SC2086
  kill -STOP $left
  cluster_kill "$batch_host"
  cluster_wait 60 restarted "$orphan" 1
  cluster_wait 60 trains_again
  # shellcheck disable=SC2086
  ok "an orphan ends its srun before its successor begins" cluster_none_alive $left
  # shellcheck disable=SC2086
  kill -CONT $left 2> /dev/null
  cluster_revive "$batch_host"
  cluster_wait 90 ended "$orphan"
  ok "an orphan leaves its successor alone: finished" is "$(verdict "$orphan")" "COMPLETED 1 0:0"
  ok "an orphan does not speak for its successor" \
    is "$(sed '1,/restart 1/d' orphan.out | grep -Ec 'stopped|failed|srun: |queue') $(grep -c finished: orphan.out)" "0 1"
  shown orphan.out
}

# ---- who runs where ----

different_gpus() {
  [ "$(sed -n 's/^rank [0-9]* on \(node[0-9]*\): GPUs \([0-9]\),.*/\1 \2/p' "$1" | sort -u | wc -l)" = 4 ]
}

test_binding() {
  TESSERA_BIND=slurm
  export TESSERA_BIND
  submit bound '-N2 --gpus-per-node=2 --ntasks-per-node=2' tiny.cfg --set run.device=cpu
  unset TESSERA_BIND
  cluster_wait 30 ended "$job"
  ok "2 GPUs a node: 2 ranks a node" both 'is "$(verdict "$job")" "COMPLETED 0 0:0"' 'grep -q "nodes: 2, ranks: 4," bound.out'
  shown bound.out
  ok "TESSERA_BIND=slurm: each rank its own GPU" different_gpus "logs/bound-$job.r0.log"
  grep '^rank' "logs/bound-$job.r0.log" | shown
}

directory=$(mktemp -d /tmp/slurm.XXXXXX)
cluster_cores=2
if ! cluster_start "$directory" 4; then
  ok "the cluster starts" false
  tail -n 5 "$directory"/*.log | shown
  finish
fi
begin_waiting
test_modes
test_components
test_limit
begin_signalled
test_wrong
begin_killed
test_array
test_signalled
begin_slain
begin_elastic
test_killed
test_cancelled
test_elastic
test_words
test_slain
test_binding
test_failing
test_whole
test_lost_nodes
test_requeued
test_orphan
cluster_stop
ok "every daemon and rank is gone" [ -z "$(cluster_leftovers "$directory")" ]
finish
