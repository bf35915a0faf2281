#!/usr/bin/env bash
# Train on a Slurm cluster:
#     GPUS=8 bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of train.py]
# GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5) and SRUN_ARGS are read from the environment.
# Without GPUs: GPUS=2 GPUS_PER_NODE=2 SRUN_ARGS=--gres=none for two processes on one node.
. "$(dirname "$0")/launch.sh"

[ $# -ge 4 ] || usage 'PARTITION JOB_NAME CONFIG WORK_DIR [arguments of train.py]'
by_srun "$1" "$2" train.py "$3" --work-dir="$4" "${@:5}"
