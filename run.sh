#!/usr/bin/env bash
# Starts one training run with mpirun: config.sh on every rank. The arguments go on to config.sh and from there to
# train.py, as in: bash run.sh --max-update 20
#
# NP         the number of ranks on all hosts; by default the sum of their slots, 2 on this host
# HOSTS      the hosts with their numbers of ranks (slots), as in HOSTS=ip1:8,ip2:8; by default this host
# HOSTFILE   the same as a file in Open MPI's format ("ip1 slots=8" on each line); without a number, a host has one; by
#            default OMPI_MCA_orte_default_hostfile, which Kubernetes' MPI operator sets
# NIC        the network interface between the hosts, as in eth1; it has the same name on all of them
# CUDA_VISIBLE_DEVICES     the GPUs that ranks see on every host, by number, as in 2,3; by default all
# HOST_TIMEOUT             seconds after which a host that does not answer ends the job; by default 120
# SEND_VARIABLES           names of variables that other hosts get, besides those that libraries read: WANDB_API_KEY,HF_HOME
#
# --restarts N starts the ranks again after a crash, up to N times: they resume from the newest checkpoint. The hostfile
# is read again each time, and hosts that ssh does not reach then are left out. A run that ends with a user's error
# (status 2; also where ssh does not reach a host at the first start) or by a signal is not started again.
#
# Ctrl-C and SIGTERM end the run after the current update, with a checkpoint; a second one ends it at once, but for one
# of the same second: `timeout` sends its signal to run.sh and then to the process group of run.sh.
#
# It can be started from any folder: relative paths, among them ./models and ./datasets, are relative to that folder. With
# several hosts, the project and that folder have the same paths on all of them, and ssh to each needs no password.
set -euo pipefail
script=${BASH_SOURCE[0]}
if [[ -L $script ]]; then script=$(readlink -f "$script"); fi
project=$(CDPATH='' cd "$(dirname "$script")" && pwd)

# The environment of `make env`, unless another one is active.
if [[ -z ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} && -d $project/.venv ]]; then
    export PATH=$project/.venv/bin:$PATH
fi

source "$project/setup-utils/refuse.sh"

restarts=0
options=()
while (($#)); do
    case $1 in
        --restarts=*) restarts=${1#*=} ;;
        --restarts) restarts=${2-} && shift "$(($# > 1))" ;;
        *) options+=("$1") ;;
    esac
    shift
done
if [[ ! $restarts =~ ^(0|[1-9][0-9]{0,4})$ ]]; then
    refuse "--restarts '${restarts:0:80}' is not a number of restarts; give one from 0 to 99999"
fi
if [[ -n ${NP:-} && ! $NP =~ ^[1-9][0-9]{0,4}$ ]]; then
    refuse "NP='${NP:0:80}' is not a number of ranks; give one from 1 to 99999, or unset NP"
fi

# A rank uses several threads, so it must not be bound to one processor. Ranks fill one host after the other, so that
# the ranks of a host have consecutive numbers.
arguments=(-bind-to none -map-by slot)

# Plain TCP and shared memory. Open MPI's InfiniBand transport does not work with the threads of Horovod; NCCL, which
# moves the tensors between GPUs, uses InfiniBand by itself.
arguments+=(-mca pml ob1 -mca btl ^openib)

# Ranks of mpirun connect through MPI. With Gloo, the setting for a single process, each of them would train alone.
unset HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS

# mpirun gives every rank a pseudo-terminal, wherever this script writes to; PROGRESS says whether that is a terminal.
if [[ -t 1 ]]; then export PROGRESS=bar; fi

# The ranks' hosts. The launcher reads the lists, counts the ranks if NP is empty, and asks each host that is not this one.
if [[ -z ${HOSTS:-}${HOSTFILE:-} && ${OMPI_MCA_orte_default_hostfile:-none} != none ]]; then
    HOSTFILE=$OMPI_MCA_orte_default_hostfile
fi
if [[ -n ${HOSTS:-} && -n ${HOSTFILE:-} ]]; then
    refuse "HOSTS='${HOSTS:0:80}' and HOSTFILE='${HOSTFILE:0:80}' both name the hosts; unset one of them"
elif [[ -n ${HOSTFILE:-} ]]; then
    hosts=(--hostfile "$HOSTFILE")
else
    hosts=(-H "${HOSTS:-localhost:${NP:-2}}")
fi
if [[ -n ${NP:-} ]]; then hosts=(-np "$NP" "${hosts[@]}"); fi

# On SIGINT or SIGTERM, mpirun would end the ranks at once. It forwards SIGUSR1 and SIGUSR2 to the ranks, which finish
# their update and save a checkpoint. request_stop STATUS SIGNAL: the exit status, and the signal for mpirun.
mpirun_id='' stop_status='' stop_signal='' stop_second='' interrupted=''
request_stop() {
    interrupted=1
    if [[ -z $mpirun_id ]]; then exit "$1"; fi
    if [[ -n $stop_status ]]; then
        # The clock of whole seconds may have turned in between.
        if ((SECONDS <= stop_second + 1)); then return 0; fi
        kill -TERM "$mpirun_id" 2>/dev/null || true
    else
        stop_status=$1 stop_signal=$2 stop_second=$SECONDS
        echo "run.sh: the run ends after the current update; a second signal ends it at once" >&2
        kill -s "$2" "$mpirun_id" 2>/dev/null || true
    fi
}
# Until mpirun has started the ranks, it loses the signal: it gets it again after 4, 8, 16, ... seconds.
repeat_stop() {
    local next=4
    while [[ -n $stop_status ]] && kill -0 "$mpirun_id" 2>/dev/null; do
        # Sleeps for a second.
        read -r -t 1 <> <(:) || true
        if ((SECONDS - stop_second >= next)); then
            next=$((2 * next))
            kill -s "$stop_signal" "$mpirun_id" 2>/dev/null || true
        fi
    done
}
trap 'request_stop 130 USR1' INT
trap 'request_stop 143 USR2' TERM
trap 'request_stop 129 USR2' HUP

# Runs the ranks once and sets their $status. In a process group of its own, mpirun does not get the Ctrl-C of the
# terminal.
attempt() {
    set -m
    RUN_SH_ATTEMPT=$((restarts - left)) bash "$project/setup-utils/launchers/mpirun" "${hosts[@]}" "${arguments[@]}" bash "$project/config.sh" ${options[@]+"${options[@]}"} </dev/null &
    mpirun_id=$!
    set +m
    # A signal ends the wait, not mpirun.
    while
        interrupted=""
        status=0
        wait "$mpirun_id" 2>/dev/null || status=$?
        [[ -n $interrupted ]]
    do repeat_stop; done
    mpirun_id=""
}

pause=5
for ((left = restarts; ; left--)); do
    attempt
    if [[ -n $stop_status ]]; then exit "$stop_status"; fi
    case $status in 0 | 2 | 129 | 130 | 143) exit "$status" ;; esac
    if ((left == 0)); then exit "$status"; fi
    echo "run.sh: the run ended with status $status; starting it again in $pause s, $left of $restarts restarts left" >&2
    sleep "$pause" &
    wait $! || true
    pause=$((pause < 150 ? 2 * pause : 300))
done
