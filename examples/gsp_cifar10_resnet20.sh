#!/usr/bin/env bash
# GSP, Grouping-SGD: the workers of a group wait for each other, the groups do not. Groups and shares of the data are those
# of the files groups and data_sharding; where they are missing, an asynchronous run measures the workers first and writes
# them. Grouping-SGD's script gives all workers equal shares, as --data-allocator 0 does. examples/common.sh has the variables
# that choose the data and the hosts.
script=${BASH_SOURCE[0]}
if [[ -L $script ]]; then script=$(readlink -f "$script"); fi
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$script")/common.sh"

measure_groups
train --kv-store dist_gsync --data-allocator 1 "$@"
