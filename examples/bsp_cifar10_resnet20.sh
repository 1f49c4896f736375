#!/usr/bin/env bash
# BSP: all workers wait for each other in every step, and one update has the mean of all gradients. examples/common.sh has
# the variables that choose the data and the hosts.
script=${BASH_SOURCE[0]}
if [[ -L $script ]]; then script=$(readlink -f "$script"); fi
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$script")/common.sh"

train --kv-store dist_sync "$@"
