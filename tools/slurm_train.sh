#!/usr/bin/env bash
# Train on a Slurm cluster:
#     GPUS=8 bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of train.py]
# GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5) and SRUN_ARGS are read from the environment.
# Without GPUs: GPUS=2 GPUS_PER_NODE=2 SRUN_ARGS=--gres=none for two processes on one node.
# REQUEUE=1 submits a job instead, which goes on after preemption or the end of its time; GRACE
# (120) is how many seconds before that it is told.
. "$(dirname "$0")/launch.sh"

[ $# -ge 4 ] || usage 'PARTITION JOB_NAME CONFIG WORK_DIR [arguments of train.py]'
if [ "${REQUEUE:-0}" = 1 ]; then
    by_sbatch "$1" "$2" "$4" train.py "$3" --work-dir="$4" "${@:5}"
fi
by_srun "$1" "$2" train.py "$3" --work-dir="$4" "${@:5}"
