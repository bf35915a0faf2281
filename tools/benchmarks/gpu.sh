#!/usr/bin/env bash
# All figures of one GPU in 20 minutes, without hands; --short: of a CPU, to see that all of it runs.
#     bash tools/benchmarks/gpu.sh [arguments of gpu.py]
# Rows that are there are not measured again: the same command goes on where time or a process ended.
cd "$(dirname "$0")/../.." || exit 1
MMKCR_BEGAN=${MMKCR_BEGAN:-$(date +%s)}
export MMKCR_BEGAN PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
while :; do
    ${PYTHON:-python} tools/benchmarks/gpu.py "$@"
    status=$?
    # 75: an error that a GPU does not recover from; above 128: killed by a signal of the system
    [ $status -eq 75 ] || [ $status -eq 134 ] || [ $status -eq 137 ] || [ $status -eq 139 ] || exit $status
done
