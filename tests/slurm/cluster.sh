#!/usr/bin/env bash
# A Slurm of one node for a test, without systemd and without touching /etc:
#     bash tests/slurm/cluster.sh start FOLDER    # Debian's slurm-wlm and munge, as root
#     SLURM_CONF=FOLDER/slurm.conf srun -p debug -n 2 --gres=none hostname
#     bash tests/slurm/cluster.sh stop FOLDER
# `start` ends with status 77 and one sentence where Slurm cannot be installed or does not start
# (some sandboxes). The packages stay installed; daemons, keys, spool and logs live in FOLDER and
# end with `stop`.
set -euE

if [ $# -ne 2 ]; then
    echo "usage: bash $0 start|stop FOLDER" >&2
    exit 2
fi
FOLDER=$2
export PATH="$PATH:/usr/sbin:/sbin"
DAEMONS='slurmd slurmctld munged'

cannot() {  # SENTENCE
    echo "$1" >&2
    exit 77
}

install() {
    [ "$(id -u)" = 0 ] || cannot 'Slurm needs root, found another user'
    local missing=
    for daemon in $DAEMONS; do
        command -v "$daemon" > /dev/null || missing="$missing $daemon"
    done
    [ -n "$missing" ] || return 0
    command -v apt-get > /dev/null || cannot "Slurm needs$missing, found no apt-get to install it"
    local log=$FOLDER/apt.log
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -o Acquire::http::Timeout=10 update &&
        apt-get -o DPkg::Lock::Timeout=60 install -y --no-install-recommends slurm-wlm munge; } \
        > "$log" 2>&1 ||
        cannot "apt-get could not install slurm-wlm and munge: $(tail -n 1 "$log")"
}

free_port() {
    python3 -c 'import socket
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    print(free.getsockname()[1])'
}

# Two processors whatever the machine has; no cgroups, which a container may not have. A job in the
# partition `urgent` takes them from one in `debug`, which is told, has two minutes, and is queued
# again; a job that is queued again waits until its old credentials have expired (5 s).
configure() {
    cat > "$FOLDER/slurm.conf" << CONF
ClusterName=mmkcr
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$FOLDER/munge.socket,cred_expire=5
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MailProg=/bin/true
StateSaveLocation=$FOLDER/state
SlurmdSpoolDir=$FOLDER/spool
SlurmctldPidFile=$FOLDER/slurmctld.pid
SlurmdPidFile=$FOLDER/slurmd.pid
SlurmctldLogFile=$FOLDER/slurmctld.log
SlurmdLogFile=$FOLDER/slurmd.log
NodeName=localhost NodeHostname=$(hostname) NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=debug Nodes=localhost Default=YES MaxTime=30 State=UP PriorityTier=1 GraceTime=120
PartitionName=urgent Nodes=localhost MaxTime=10 State=UP PriorityTier=2
CONF
}

start() {
    mkdir -p "$FOLDER"
    install
    chmod 755 "$FOLDER"
    mkdir -p "$FOLDER/state" "$FOLDER/spool"
    configure
    export SLURM_CONF=$FOLDER/slurm.conf
    (umask 077 && head -c 1024 /dev/urandom > "$FOLDER/munge.key")
    trap 'cannot "Slurm is installed but does not start here: $(last_words)"' ERR
    munged --force --key-file="$FOLDER/munge.key" --socket="$FOLDER/munge.socket" \
        --pid-file="$FOLDER/munged.pid" --log-file="$FOLDER/munged.log" \
        --seed-file="$FOLDER/munged.seed" 2> "$FOLDER/munged.err"
    slurmctld
    slurmd -N localhost
    for _ in $(seq 100); do
        [ "$(sinfo --noheader --format=%t 2> /dev/null)" != idle ] || return 0
        sleep 0.2
    done
    false  # no idle node within 20 s
}

last_words() {
    tail -q -n 2 "$FOLDER"/munged.err "$FOLDER"/slurmctld.log "$FOLDER"/slurmd.log 2> /dev/null |
        tr '\n' ' '
}

# Only the processes whose ids the daemons have written into FOLDER.
stop() {
    local pids=
    [ ! -f "$FOLDER/slurm.conf" ] || SLURM_CONF=$FOLDER/slurm.conf timeout 5 scancel --user=root || :
    for daemon in $DAEMONS; do
        [ ! -f "$FOLDER/$daemon.pid" ] || pids="$pids $(cat "$FOLDER/$daemon.pid")"
    done
    for pid in $pids; do
        kill "$pid" 2> /dev/null || :
    done
    for pid in $pids; do
        for _ in $(seq 100); do
            kill -0 "$pid" 2> /dev/null || continue 2
            sleep 0.1
        done
        kill -9 "$pid"
    done
}

case $1 in
    start) start ;;
    stop) stop ;;
    *) echo "error: expected start or stop, found \`$1\`" >&2 && exit 2 ;;
esac
