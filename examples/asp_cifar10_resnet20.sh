#!/usr/bin/env bash
# ASP: no worker waits; a gradient counts 1 over its staleness. examples/common.sh has the variables that choose the data
# and the hosts.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

train --kv-store dist_async "$@"
