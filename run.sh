#!/usr/bin/env bash
# Starts one training run with mpirun: config.sh on every rank. The arguments go on to config.sh and from there to
# train.py, as in: bash run.sh --max-update 20
#
# NP         the number of ranks over all hosts; as many as the hosts have room for, on this host 2
# HOSTS      the hosts with their number of ranks, as in HOSTS=ip1:8,ip2:8; this host without a word
# HOSTFILE   the same as a file in Open MPI's form ("ip1 slots=8" on each line)
#
# --restarts N starts the ranks again after a crash, up to N times: they go on from the newest checkpoint. The hostfile is
# read anew each time, so a host that is broken can be taken out of it meanwhile. A mistake that is the user's to mend
# (status 2) and a run that was told to end are not started again.
#
# Ctrl-C and SIGTERM end the run after the running update, with a checkpoint; a second one ends it at once.
#
# It can be started from any folder: paths mean what they mean there, and ./models and ./datasets are below it. With several
# hosts, the project and the folder from which it is started are at the same places on each, and each host can be reached by
# ssh without a password.
set -euo pipefail
project=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# The environment of `make env`, unless another one is active.
if [[ -z ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} && -d $project/.venv ]]; then
    export PATH=$project/.venv/bin:$PATH
fi
if ! mpirun=$(command -v mpirun); then
    echo "error: mpirun not found: run 'make env' first" >&2
    exit 2
fi

# shellcheck source=setup-utils/hosts.sh
source "$project/setup-utils/hosts.sh"

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
    echo "error: --restarts '$restarts' is no number of restarts" >&2
    exit 2
fi
if [[ -n ${NP:-} && ! $NP =~ ^[1-9][0-9]{0,4}$ ]]; then
    echo "error: NP='$NP' is no number of ranks" >&2
    exit 2
fi

arguments=()

# Open MPI refuses to start as root unless it is told that this is meant, as it is in a container.
if [[ $EUID == 0 ]]; then
    arguments+=(--allow-run-as-root)
fi

# The other hosts start Open MPI's daemon from the same folder as this one.
arguments+=(--prefix "$(dirname "$(dirname "$mpirun")")")

# A rank uses several threads, so it must not be bound to one processor; ranks fill one host after the other, which
# makes neighbors of the ranks of a host.
arguments+=(-bind-to none -map-by slot)

# Plain TCP and shared memory. Open MPI's InfiniBand transport does not go well with the threads of Horovod; NCCL,
# which moves the tensors between GPUs, uses InfiniBand by itself.
arguments+=(-mca pml ob1 -mca btl ^openib)

# Ranks of mpirun meet through MPI. With Gloo, as a process by itself uses it, each of them would train alone.
unset HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS

# mpirun gives every rank a terminal of its own making, wherever this script writes to: say when it is a real one.
if [[ -t 1 ]]; then export PROGRESS=bar; fi

# What the ranks on the other hosts must see of this shell's environment: where programs are, what the libraries read,
# and the choices that config.sh takes from the environment.
choices=$(sed -n 's/^\([A-Z_]*\)=.*/\1/p' "$project/config.sh" | paste -sd '|')
while read -r name; do
    arguments+=(-x "$name")
done < <(compgen -e | grep -xE "PROGRESS|PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|(OMP|NUMBA|MXNET|HOROVOD|NCCL)_.*|$choices")

# Sets where the ranks start, for one attempt.
find_hosts() {
    room=2
    if [[ -n ${HOSTFILE:-} ]]; then
        check_hostfile "$HOSTFILE" || exit
        hosts=(-np "${NP:-$room}" --hostfile "$HOSTFILE")
    else
        if [[ -n ${HOSTS:-} ]]; then check_hosts "$HOSTS" || exit; fi
        hosts=(-np "${NP:-$room}" -H "${HOSTS:-localhost:${NP:-$room}}")
    fi
}

# mpirun ends the ranks when it is told to end. It hands these two signals on to them, and they know what is meant.
mpirun_id='' told='' interrupted=''
tell() {
    interrupted=1
    if [[ -z $mpirun_id ]]; then exit "$1"; fi
    if [[ -n $told ]]; then
        kill -TERM "$mpirun_id" 2>/dev/null || true
    else
        told=$1
        echo "run.sh: the run ends after the running update; once more ends it at once" >&2
        kill -s "$2" "$mpirun_id" 2>/dev/null || true
    fi
}
trap 'tell 130 USR1' INT
trap 'tell 143 USR2' TERM
trap 'tell 129 USR2' HUP

# Runs the ranks once and leaves their status in $status. In a process group of its own, mpirun does not get the Ctrl-C
# of the terminal by itself.
attempt() {
    find_hosts
    set -m
    mpirun "${hosts[@]}" "${arguments[@]}" bash "$project/config.sh" ${options[@]+"${options[@]}"} </dev/null &
    mpirun_id=$!
    set +m
    # A signal ends the waiting, not what is waited for.
    while
        interrupted=""
        status=0
        wait "$mpirun_id" || status=$?
        [[ -n $interrupted ]]
    do :; done
    mpirun_id=""
}

pause=5
for ((left = restarts; ; left--)); do
    attempt
    if [[ -n $told ]]; then exit "$told"; fi
    case $status in 0 | 2 | 129 | 130 | 143) exit "$status" ;; esac
    if ((left == 0)); then exit "$status"; fi
    echo "run.sh: the run ended with status $status; starting it again in $pause s, $left of $restarts restarts left" >&2
    sleep "$pause" &
    wait $! || true
    pause=$((pause < 150 ? 2 * pause : 300))
done
