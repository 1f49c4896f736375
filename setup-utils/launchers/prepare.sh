# shellcheck shell=bash
# Sourced by the launchers mpirun and horovodrun: what ranks on other hosts need beyond what the user types.
set -euo pipefail
# shellcheck disable=SC2034  # used where this is sourced
project=$(CDPATH='' cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
# shellcheck disable=SC2034
launchers=$project/setup-utils/launchers

# A launcher of .venv/bin that is called by its path, without `source .venv/bin/activate`.
environment=$(CDPATH='' cd "$(dirname "$0")" && pwd)
if [[ -x $environment/python && ":$PATH" != ":$environment:"* ]]; then
    export PATH=$environment:$PATH
fi

source "$project/setup-utils/refuse.sh"

# Open MPI would answer with a page of text.
if [[ -z ${PWD:-} || ! . -ef $PWD ]]; then
    refuse "the current folder has been removed; start the job from another one"
fi

# Whether the launcher's arguments name hosts.
names_hosts() {
    local before='' word
    for word; do
        case $word in *hostfile | *machinefile) return 0 ;; esac
        if [[ $before =~ ^--?(H|host|hosts)$ && ! $word =~ ^localhost(:[0-9]+)?$ ]]; then return 0; fi
        before=$word
    done
    return 1
}

# Which GPUs ranks see. By number, that holds for every host; UUIDs name GPUs of one host. In a Slurm job each host has a
# value of its own, which must not be overridden.
if [[ -n ${CUDA_VISIBLE_DEVICES+set} && -z ${SLURM_JOB_ID:-} ]]; then
    if [[ ! $CUDA_VISIBLE_DEVICES =~ ^[0-9,\ -]*$ ]] && names_hosts "$@"; then
        refuse "CUDA_VISIBLE_DEVICES='${CUDA_VISIBLE_DEVICES:0:80}' names GPUs of a single host; with several hosts give" \
            "their numbers, as in CUDA_VISIBLE_DEVICES=0,1, or unset it"
    fi
fi

# The network interface of all traffic between hosts, of the same name on each: Open MPI's messages and its daemons',
# Gloo's and NCCL's. Without it, each of them looks for one by itself.
if [[ -n ${NIC:-} ]]; then
    # Each interface is a link there; the folder itself and the list of bonds are none.
    if [[ ! -L /sys/class/net/$NIC || $NIC == */* ]]; then
        refuse "NIC='${NIC:0:80}': this host has no such network interface; it has $(ls -m /sys/class/net)"
    fi
    export OMPI_MCA_btl_tcp_if_include=$NIC OMPI_MCA_oob_tcp_if_include=$NIC
    export NIC HOROVOD_GLOO_IFACE=$NIC NCCL_SOCKET_IFNAME=$NIC
fi

# How long a host may be cut off, and the job goes on when it answers again.
export HOST_TIMEOUT=${HOST_TIMEOUT:-120}
if [[ ! $HOST_TIMEOUT =~ ^[1-9][0-9]{1,4}$ ]]; then
    refuse "HOST_TIMEOUT='${HOST_TIMEOUT:0:80}' is not a number of seconds; give one from 10 to 99999, or unset it"
fi
