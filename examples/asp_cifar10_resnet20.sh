#!/usr/bin/env bash
# ASP: no worker waits; a gradient counts 1 over its staleness. examples/common.sh has the variables that choose the data
# and the hosts.
script=${BASH_SOURCE[0]}
if [[ -L $script ]]; then script=$(readlink -f "$script"); fi
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$script")/common.sh"

train --kv-store dist_async "$@"
