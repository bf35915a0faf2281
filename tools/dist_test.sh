#!/usr/bin/env bash
# Test on one or several nodes:
#     bash tools/dist_test.sh CONFIG CHECKPOINT PROCESSES [arguments of test.py]
# For several nodes set NNODES, NODE_RANK and MASTER_ADDR (and PORT, 29500) on each.
. "$(dirname "$0")/launch.sh"

[ $# -ge 3 ] || usage 'CONFIG CHECKPOINT PROCESSES [arguments of test.py]'
by_torchrun "$3" test.py "$1" "$2" "${@:4}"
