# shellcheck shell=sh
# Sourced: a Slurm cluster of its own on this machine: munged, slurmctld and a slurmd for each of N nodes, in one
# directory, for whoever runs it; a second to start, a tenth to stop.  No systemd, no cgroups, nothing outside the
# loopback and the directory.
#
#   cluster_missing            print the Debian packages that are not installed
#   cluster_start DIRECTORY N  start N nodes node0, node1, ... of cluster_cores processors and cluster_gpus GPUs; exports SLURM_CONF
#   cluster_stop               stop every daemon and whatever jobs left behind; to be called in any case, by a trap
#   cluster_set KEY VALUE      change a line of slurm.conf
#   cluster_kill NODE          kill -9 the node's slurmd
#   cluster_revive NODE        start it again
#
# A GPU is a device file that is always there (Slurm wants a character device; nobody opens it): enough for
# CUDA_VISIBLE_DEVICES. Sockets are named in 108 bytes, so DIRECTORY is short, such as mktemp -d gives.
cluster_cores=${cluster_cores:-4}
cluster_gpus=${cluster_gpus:-4}
cluster_root=
PATH=$PATH:/usr/sbin

cluster_missing() {
  while read -r package program; do
    command -v "$program" > /dev/null || echo "$package"
  done << END
munge munged
slurmctld slurmctld
slurmd slurmd
slurm-client sbatch
END
}

# Is process $1 running?  A zombie, whose parent reaps late, is not.
cluster_alive() {
  state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2> /dev/null) && [ -n "$state" ] && [ "$state" != Z ]
}

# cluster_wait SECONDS COMMAND...: until the command succeeds.
cluster_wait() {
  cluster_tries=$(($1 * 10))
  shift
  while ! "$@"; do
    [ $((cluster_tries -= 1)) -gt 0 ] || return 1
    sleep 0.1
  done
}

# cluster_spawn NAME COMMAND...: a daemon in a session of its own; its process id in DIRECTORY/NAME.process.
cluster_spawn() {
  daemon=$1
  shift
  setsid "$@" < /dev/null > "$cluster_root/$daemon.out" 2>&1 &
  echo $! > "$cluster_root/$daemon.process"
}

# The first of $1 ports in a row that nobody uses, below those that Linux gives away by itself.
cluster_free_ports() {
  cat /proc/net/tcp /proc/net/tcp6 2> /dev/null | awk -v n="$1" -v seed="$$" '
    function number(text, i, value) {
      for (i = 1; i <= length(text); ++i) { value = value * 16 + index("0123456789ABCDEF", substr(text, i, 1)) - 1 }
      return value
    }
    { split($2, address, ":"); used[number(address[2])] = 1 }
    END {
      for (first = 10000 + seed * 7 % 20000; ; ++first) {
        for (i = 0; i < n && !((first + i) in used); ++i) { }
        if (i == n) { print first; exit }
      }
    }'
}

cluster_configure() {
  user=$(id -un)
  host=$(hostname -s)
  cat > "$SLURM_CONF" << END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$1
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
# A requeued job waits for the credentials of its last life to expire: two minutes unless they are this short.
AuthInfo=socket=$cluster_root/munge.socket,cred_expire=${cluster_cred_expire:-5}
CredType=cred/munge
StateSaveLocation=$cluster_root/state
SlurmdSpoolDir=$cluster_root/spool.%n
# PMIx keeps its server's socket there, and needs a directory for each node.
TmpFS=$cluster_root/tmp.%n
SlurmctldPidFile=$cluster_root/slurmctld.pid
SlurmdPidFile=$cluster_root/slurmd.%n.pid
SlurmctldLogFile=$cluster_root/slurmctld.log
SlurmdLogFile=$cluster_root/slurmd.%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1
PriorityType=priority/basic
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
GresTypes=gpu
SlurmdParameters=config_overrides
SlurmctldTimeout=30
# A dead slurmd is noticed after 9 seconds; with the default of the latter two after 26.
SlurmdTimeout=${cluster_slurmd_timeout:-4}
MessageTimeout=2
TCPTimeout=1
KillWait=30
MinJobAge=3600
JobRequeue=1
MailProg=/bin/true
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
PropagateResourceLimits=NONE
NodeName=node[0-$(($2 - 1))] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$(($1 + 1))-$(($1 + $2))] CPUs=$cluster_cores RealMemory=1024 Gres=gpu:test:$cluster_gpus State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
END
  for device in null zero full random urandom tty; do
    echo "NodeName=node[0-$(($2 - 1))] Name=gpu Type=test File=/dev/$device Flags=nvidia_gpu_env"
  done | head -n "$cluster_gpus" > "$cluster_root/gres.conf"
}

cluster_all_idle() {
  [ "$(sinfo -h -o '%D %t' 2> /dev/null | awk '$2 == "idle" { n += $1 } END { print n + 0 }')" = "$cluster_nodes" ]
}

cluster_start() {
  cluster_root=$1
  cluster_nodes=$2
  mkdir -p "$cluster_root/state"
  chmod 755 "$cluster_root"
  for i in $(seq 0 $(($2 - 1))); do
    mkdir -p "$cluster_root/spool.node$i" "$cluster_root/tmp.node$i"
  done
  export SLURM_CONF="$cluster_root/slurm.conf"
  cluster_configure "$(cluster_free_ports $(($2 + 1)))" "$2"
  (umask 077 && head -c 1024 /dev/urandom > "$cluster_root/munge.key")
  cluster_spawn munged munged --foreground --force --key-file="$cluster_root/munge.key" --socket="$cluster_root/munge.socket" \
    --pid-file="$cluster_root/munged.pid" --log-file="$cluster_root/munged.log" --seed-file="$cluster_root/munged.seed" \
    --num-threads=2
  cluster_wait 5 [ -S "$cluster_root/munge.socket" ] || return 1
  cluster_spawn slurmctld slurmctld -D -c -f "$SLURM_CONF"
  for i in $(seq 0 $(($2 - 1))); do
    cluster_revive "node$i"
  done
  cluster_wait 20 cluster_all_idle
}

cluster_set() {
  sed -i "s/^$1=.*/$1=$2/" "$SLURM_CONF"
  scontrol reconfigure
}

cluster_kill() {
  kill -9 "$(cat "$cluster_root/slurmd.$1.process")"
}

cluster_revive() {
  cluster_spawn "slurmd.$1" slurmd -D -N "$1" -f "$SLURM_CONF"
}

# Processes that belong to the cluster in directory $1 by their environment or directory: steps, ranks, what a dead
# slurmd left.
cluster_leftovers() {
  [ -n "$1" ] || return 1
  for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    if [ "$pid" != $$ ] && { tr '\0' '\n' < "$process/environ" | grep -Fqx "SLURM_CONF=$1/slurm.conf" \
      || readlink "$process/cwd" | grep -Fq "$1/"; }; then
      echo "$pid"
    fi
  done 2> /dev/null
}

cluster_any_alive() {
  for pid in "$@"; do
    cluster_alive "$pid" && return 0
  done
  return 1
}

cluster_none_alive() { ! cluster_any_alive "$@"; }

cluster_stop() {
  [ -n "$cluster_root" ] || return 0
  pids=$(cat "$cluster_root"/*.process 2> /dev/null | tr '\n' ' ')
  # shellcheck disable=SC2086
  kill -TERM $pids 2> /dev/null
  # shellcheck disable=SC2086
  cluster_wait 3 cluster_none_alive $pids
  # shellcheck disable=SC2046,SC2086
  kill -KILL $pids $(cluster_leftovers "$cluster_root") 2> /dev/null
  cluster_root=
}
