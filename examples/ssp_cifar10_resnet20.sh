#!/usr/bin/env bash
# SSP: a worker waits when it is more than 10 steps ahead of the slowest. examples/common.sh has the variables that choose
# the data and the hosts.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

train --kv-store dist_ssync --staleness 10 "$@"
