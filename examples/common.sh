# shellcheck shell=bash
# Sourced by the scripts of this folder, which train ResNet-20 on CIFAR-10, each with another exchange of gradients. Their
# arguments go on to classify.py and win, as in: bash examples/gsp_cifar10_resnet20.sh --num-epoch 1
#
# DATA_DIR  the folder of CIFAR-10, in any form of docs/data.md; without it 1,600 drawn images, a run of a minute or two
# HOSTFILE  a file with the address of each worker, one a line (docs/grouping-sgd.md, `hosts`); without it all workers are
#           on this machine
# WORKERS   the number of workers; by default one for each line or slot of HOSTFILE, or two on this machine
# SERVERS   the number of parameter servers; by default one for each host
# NIC       the network interface between the hosts, as in eth1
# SYNC      set, also to nothing: copy the project to the hosts of HOSTFILE first, and what it names, as in SYNC=cifar10
#
# They can be started from any folder, in which the models, `groups` and `data_sharding` are, and to which relative paths
# are relative; all hosts have it and the project in the same places.
set -euo pipefail
project=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$project${PYTHONPATH:+:$PYTHONPATH}

# The environment of `make env`, unless another one is active.
if [[ -z ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} && -d $project/.venv ]]; then
    export PATH=$project/.venv/bin:$PATH
fi

source "$project/setup-utils/refuse.sh"

for name in WORKERS SERVERS; do
    if [[ -n ${!name:-} && ! ${!name} =~ ^[1-9][0-9]{0,4}$ ]]; then
        refuse "$name='${!name:0:80}' is not a number of processes; give one from 1 to 99999, or unset $name"
    fi
done

# Prints the number of workers and of hosts of a file, as the launcher reads it.
count_hosts='
import pathlib, sys
from parallel import host_lists
from runtime.errors import run_program

def main():
    hosts = host_lists.read_file(pathlib.Path(sys.argv[1]), colon=host_lists.PORT)
    print(sum(host.slots or 1 for host in hosts), len({host.host for host in hosts}))
    return 0

run_program(main)
'
if [[ -n ${HOSTFILE:-} ]]; then
    if [[ ! -f $HOSTFILE || ! -r $HOSTFILE ]]; then
        refuse "HOSTFILE='${HOSTFILE:0:80}' cannot be read; give a file with the address of each worker, one a line"
    fi
    counts=$(python -c "$count_hosts" "$HOSTFILE") || exit 2
    WORKERS=${WORKERS:-${counts% *}}
    SERVERS=${SERVERS:-${counts#* }}
    job=(-H "$HOSTFILE" --launcher ssh)
    if [[ -n ${SYNC+set} ]]; then job+=("--sync${SYNC:+=$SYNC}"); fi
else
    job=()
fi
job+=(-n "${WORKERS:-2}" -s "${SERVERS:-1}")
if [[ -n ${NIC:-} ]]; then job+=(-i "$NIC"); fi

# Batch, learning rate and weight decay of Grouping-SGD's scripts for this network.
training=(--network resnet20 --batch-size 25 --lr 0.05)
if [[ -n ${DATA_DIR:-} ]]; then
    training+=(--dataset cifar10_grouping_resnet --data-dir "$DATA_DIR")
else
    training+=(--dataset synthetic --image-size 32 --num-images 1600 --num-epoch 1 --wd 1e-4 --no-lr-scaling)
fi

# Writes groups and data_sharding, unless they are there: the workers' speeds, from 60 updates of each.
measure_groups() {
    if [[ -e groups && -e data_sharding ]]; then return; fi
    local examples=()
    if [[ -n ${DATA_DIR:-} ]]; then examples=(--num-examples $((60 * 25 * ${WORKERS:-2}))); fi
    python -m parallel.autogroup "${job[@]}" -- \
        python "$project/classify.py" "${training[@]}" ${examples[@]+"${examples[@]}"}
}

# Trains; the arguments are those of classify.py.
train() {
    exec python -m parallel.launch "${job[@]}" -- python "$project/classify.py" "${training[@]}" "$@"
}
