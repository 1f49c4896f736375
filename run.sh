#!/usr/bin/env bash
# Starts one training run with mpirun: config.sh on every rank. The arguments go on to config.sh and from there to
# train.py, as in: bash run.sh --max-update 20
#
# NP         the number of ranks over all hosts; 2 without a word
# HOSTS      the hosts with their number of ranks, as in HOSTS=ip1:8,ip2:8; this host without a word
# HOSTFILE   the same as a file in Open MPI's form ("ip1 slots=8" on each line)
#
# With several hosts this folder is at the same place on each, and each can be reached by ssh without a password.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# The environment of `make env`, unless another one is active.
if [[ -z ${VIRTUAL_ENV:-}${CONDA_PREFIX:-} && -d .venv ]]; then
    export PATH=$PWD/.venv/bin:$PATH
fi
if ! mpirun=$(command -v mpirun); then
    echo "error: mpirun not found: run 'make env' first" >&2
    exit 2
fi

NP=${NP:-2}
arguments=(-np "$NP")
if [[ -n ${HOSTFILE:-} ]]; then
    arguments+=(--hostfile "$HOSTFILE")
else
    arguments+=(-H "${HOSTS:-localhost:$NP}")
fi

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
choices=$(sed -n 's/^\([A-Z_]*\)=.*/\1/p' config.sh | paste -sd '|')
while read -r name; do
    arguments+=(-x "$name")
done < <(compgen -e | grep -xE "PROGRESS|PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|(OMP|NUMBA|MXNET|HOROVOD|NCCL)_.*|$choices")

exec mpirun "${arguments[@]}" bash config.sh "$@"
