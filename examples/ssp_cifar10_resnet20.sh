#!/usr/bin/env bash
# SSP: a worker waits when it is more than 9 steps ahead of the slowest: --staleness 10 of Grouping-SGD's script, which lets
# a worker start a step while it is less than 10 ahead. examples/common.sh has the variables that choose the data and the
# hosts.
script=${BASH_SOURCE[0]}
if [[ -L $script ]]; then script=$(readlink -f "$script"); fi
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$script")/common.sh"

train --kv-store dist_ssync --staleness 9 "$@"
