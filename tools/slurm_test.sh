#!/usr/bin/env bash
# Test on a Slurm cluster:
#     GPUS=8 bash tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [arguments of test.py]
# GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5) and SRUN_ARGS are read from the environment.
# Without GPUs: GPUS=2 GPUS_PER_NODE=2 SRUN_ARGS=--gres=none for two processes on one node.
. "$(dirname "$0")/launch.sh"

[ $# -ge 4 ] || usage 'PARTITION JOB_NAME CONFIG CHECKPOINT [arguments of test.py]'
by_srun "$1" "$2" test.py "$3" "$4" "${@:5}"
