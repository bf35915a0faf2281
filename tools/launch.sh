# What the dist_*.sh and slurm_*.sh scripts share; they read it with `.`.
set -e
TOOLS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHONPATH="$TOOLS/..${PYTHONPATH:+:$PYTHONPATH}"

refuse() {  # SENTENCE
    echo "error: $1" >&2
    exit 2
}

usage() {  # ARGUMENTS
    echo "usage: bash $0 $1" >&2
    exit 2
}

number() {  # NAME VALUE
    [[ $2 =~ ^[0-9]+$ ]] || refuse "expected a whole number as $1, found \`$2\`"
}

# torchrun, by the interpreter that has torch. Several nodes by NNODES, NODE_RANK, MASTER_ADDR, PORT.
# GRACE (120) is how many seconds the processes have to save once they are told to end.
by_torchrun() {  # PROCESSES SCRIPT ARGUMENTS...
    local processes=$1 script=$2 name
    number PROCESSES "$processes"
    number NNODES "${NNODES:=1}"
    if [ "$NNODES" -gt 1 ]; then
        for name in NODE_RANK MASTER_ADDR; do
            [ -n "${!name}" ] ||
                refuse "expected $name in the environment for NNODES=$NNODES, found it unset"
        done
    fi
    number NODE_RANK "${NODE_RANK:=0}"
    number PORT "${PORT:=29500}"
    [ "$NODE_RANK" -lt "$NNODES" ] ||
        refuse "expected NODE_RANK below NNODES=$NNODES, found \`$NODE_RANK\`"
    number GRACE "${GRACE:=120}"
    # a run that is told to end saves first: torchrun kills it after 30 seconds otherwise
    export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-$GRACE}"
    exec python -m torch.distributed.run \
        --nnodes="$NNODES" \
        --node_rank="$NODE_RANK" \
        --master_addr="${MASTER_ADDR:-127.0.0.1}" \
        --nproc_per_node="$processes" \
        --master_port="$PORT" \
        "$TOOLS/$script" "${@:3}" --launcher pytorch
}

# What Slurm is asked for. Read from the environment: GPUS, GPUS_PER_NODE and CPUS_PER_TASK.
resources() {  # PARTITION JOB_NAME
    number GPUS "${GPUS:=8}"
    number GPUS_PER_NODE "${GPUS_PER_NODE:=8}"
    number CPUS_PER_TASK "${CPUS_PER_TASK:=5}"
    RESOURCES=(-p "$1" --job-name="$2" --gres=gpu:"$GPUS_PER_NODE" --ntasks="$GPUS"
        --ntasks-per-node="$GPUS_PER_NODE" --cpus-per-task="$CPUS_PER_TASK")
}

# srun, in the foreground. SRUN_ARGS follow; on nodes without GPUs, SRUN_ARGS=--gres=none.
by_srun() {  # PARTITION JOB_NAME SCRIPT ARGUMENTS...
    command -v srun > /dev/null || refuse "expected Slurm's \`srun\` on the PATH, found none"
    resources "$1" "$2"
    set -x
    # SRUN_ARGS is several words: not quoted
    exec srun "${RESOURCES[@]}" --kill-on-bad-exit=1 $SRUN_ARGS \
        python -u "$TOOLS/$3" "${@:4}" --launcher=slurm
}

# sbatch: a job that is started again, with --resume, when Slurm took its node or its time was up.
# GRACE (120) is how many seconds before the end of its time it is told.
by_sbatch() {  # PARTITION JOB_NAME LOG_FOLDER SCRIPT ARGUMENTS...
    command -v sbatch > /dev/null || refuse "expected Slurm's \`sbatch\` on the PATH, found none"
    resources "$1" "$2"
    number GRACE "${GRACE:=120}"
    local word
    for word in "${@:5}"; do
        [[ $word != --resume && $word != --resume=* ]] ||
            refuse "expected no --resume with REQUEUE=1, whose every start resumes, found \`$word\`;\
 to begin from a checkpoint: --cfg-options load_from=CHECKPOINT"
    done
    mkdir -p "$3"
    exec sbatch "${RESOURCES[@]}" --requeue --open-mode=append --output="$3/slurm-%j.out" \
        --signal="TERM@$GRACE" $SRUN_ARGS "$TOOLS/requeue.sh" "$TOOLS/$4" "${@:5}" --resume
}
