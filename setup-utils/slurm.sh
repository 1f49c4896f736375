#!/usr/bin/env bash
# One training run in an allocation of Slurm, with a rank for each of its tasks: config.sh on every rank. The arguments go
# on to config.sh and from there to train.py. It can be started in either way:
#
#   sbatch --nodes=2 --ntasks-per-node=8 --wrap 'exec bash setup-utils/slurm.sh --max-update 1000'   mpirun starts the ranks
#   srun --mpi=pmix --nodes=2 --ntasks-per-node=8 bash setup-utils/slurm.sh --max-update 1000        srun does
#
# The first calls run.sh, also within salloc: --restarts and its variables work as there. The second needs a Slurm that was
# built with PMIx (`srun --mpi=list`).
set -euo pipefail
script=${BASH_SOURCE[0]}
if [[ -L $script ]]; then script=$(readlink -f "$script"); fi
project=$(CDPATH='' cd "$(dirname "$script")/.." && pwd)

source "$project/setup-utils/refuse.sh"

# expand TASKS_PER_NODE: Slurm's form 8(x2),4 as one number on each line, for each node of the allocation.
expand() {
    local part count
    for part in ${1//,/ }; do
        [[ $part =~ ^([1-9][0-9]{0,3})(\(x([1-9][0-9]{0,4})\))?$ ]] || refuse "'$1' are no tasks per node of Slurm"
        for ((count = ${BASH_REMATCH[3]:-1}; count > 0; count--)); do echo "${BASH_REMATCH[1]}"; done
    done
}

# need NAMES: refuse a job without variables that Slurm sets.
need() {
    local name
    for name; do
        [[ -n ${!name:-} ]] || refuse "$name is not set, which Slurm sets in an allocation: start it by sbatch, salloc or srun"
    done
}

[[ -n ${SLURM_JOB_ID:-} ]] ||
    refuse "SLURM_JOB_ID is not set: start it in an allocation, as in: sbatch --nodes=2 --ntasks-per-node=8 --wrap" \
        "'exec bash setup-utils/slurm.sh'; without Slurm: bash run.sh"

[[ ${SLURM_HET_SIZE:-1} == 1 ]] ||
    refuse "SLURM_HET_SIZE=${SLURM_HET_SIZE:0:80}: each part of a heterogeneous job has hosts of its own, of which Slurm" \
        "names those of one here; list them all, as in: HOSTS=a:8,b:4 bash run.sh"

[[ ${SLURM_STEP_NUM_TASKS:-1} =~ ^[1-9][0-9]{0,5}$ ]] ||
    refuse "SLURM_STEP_NUM_TASKS='${SLURM_STEP_NUM_TASKS:0:80}' is not a number of tasks; unset it outside of srun"

# One of several tasks of srun. What mpirun would tell its ranks, they get from Slurm; the rest from PMIx.
if ((${SLURM_STEP_NUM_TASKS:-1} > 1)); then
    [[ -n ${PMIX_RANK:-} ]] ||
        refuse "srun has started $SLURM_STEP_NUM_TASKS tasks without PMIx, by which they would find each other: add" \
            "--mpi=pmix if 'srun --mpi=list' has it, or use sbatch or salloc and no srun"
    need SLURM_STEP_TASKS_PER_NODE SLURM_PROCID SLURM_LOCALID SLURM_NODEID
    tasks=$(expand "$SLURM_STEP_TASKS_PER_NODE")
    export OMPI_COMM_WORLD_RANK=$SLURM_PROCID OMPI_COMM_WORLD_SIZE=$SLURM_STEP_NUM_TASKS
    export OMPI_COMM_WORLD_LOCAL_RANK=$SLURM_LOCALID
    OMPI_COMM_WORLD_LOCAL_SIZE=$(sed -n "$((SLURM_NODEID + 1))p" <<<"$tasks")
    # As run.sh does.
    export OMPI_COMM_WORLD_LOCAL_SIZE OMPI_MCA_pml=ob1 OMPI_MCA_btl=^openib
    # On one node ranks have shared memory, and listen on no port.
    if [[ ${SLURM_STEP_NUM_NODES:-} == 1 ]]; then OMPI_MCA_btl+=,tcp; fi
    unset HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS
    exec bash "$project/config.sh" "$@"
fi

need SLURM_JOB_NODELIST SLURM_TASKS_PER_NODE
command -v scontrol >/dev/null || refuse "the program scontrol of Slurm is not found; add its folder to PATH"
names=$(scontrol show hostnames "$SLURM_JOB_NODELIST" 2>/dev/null) ||
    refuse "scontrol does not know the hosts of the allocation, SLURM_JOB_NODELIST='${SLURM_JOB_NODELIST:0:80}'"
tasks=$(expand "$SLURM_TASKS_PER_NODE")
# As many lines of both.
[[ ${names//[!$'\n']/} == "${tasks//[!$'\n']/}" ]] ||
    refuse "SLURM_TASKS_PER_NODE='${SLURM_TASKS_PER_NODE:0:80}' has not a number for each host of" \
        "SLURM_JOB_NODELIST='${SLURM_JOB_NODELIST:0:80}'"
HOSTS=$(paste -d : <(echo "$names") <(echo "$tasks") | paste -sd ,)
export HOSTS
unset HOSTFILE NP
exec bash "$project/run.sh" "$@"
