#!/usr/bin/env bash
# The script of a job that `REQUEUE=1 bash tools/slurm_train.sh` submits: runs it, and asks Slurm to
# start it again if it ended because it was told to (status 143 of mmkcr's PreemptionHook).
trap : TERM  # the job's steps are told too: wait for them
# `srun` does not take the CPUs of each task over from `sbatch`
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=1 python -u "$@" --launcher=slurm
status=$?
if [ "$status" -eq 143 ]; then
    echo "told to end after start ${SLURM_RESTART_COUNT:-0}: asking for another start"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
