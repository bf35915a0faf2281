#!/usr/bin/env bash
# Train on one or several nodes:
#     bash tools/dist_train.sh CONFIG PROCESSES [arguments of train.py]
# For several nodes set NNODES, NODE_RANK and MASTER_ADDR (and PORT, 29500) on each.
. "$(dirname "$0")/launch.sh"

[ $# -ge 2 ] || usage 'CONFIG PROCESSES [arguments of train.py]'
by_torchrun "$2" train.py "$1" "${@:3}"
