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
project=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

refuse() {
    echo "error: $*" >&2
    exit 2
}

# expand TASKS_PER_NODE: Slurm's form 8(x2),4 as one number on each line, for each node of the allocation.
expand() {
    local part count
    for part in ${1//,/ }; do
        [[ $part =~ ^([1-9][0-9]{0,3})(\(x([1-9][0-9]{0,4})\))?$ ]] || refuse "'$1' are no tasks per node of Slurm"
        for ((count = ${BASH_REMATCH[3]:-1}; count > 0; count--)); do echo "${BASH_REMATCH[1]}"; done
    done
}

[[ -n ${SLURM_JOB_ID:-} ]] ||
    refuse "SLURM_JOB_ID is not set: start it in an allocation, as in: sbatch --nodes=2 --ntasks-per-node=8 --wrap" \
        "'exec bash setup-utils/slurm.sh'; without Slurm: bash run.sh"

# One of several tasks of srun. What mpirun would tell its ranks, they get from Slurm; the rest from PMIx.
if ((${SLURM_STEP_NUM_TASKS:-1} > 1)); then
    [[ -n ${PMIX_RANK:-} ]] ||
        refuse "srun has started $SLURM_STEP_NUM_TASKS tasks without PMIx, by which they would find each other: add" \
            "--mpi=pmix if 'srun --mpi=list' has it, or use sbatch or salloc and no srun"
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

names=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || refuse "scontrol does not know the hosts of the allocation"
tasks=$(expand "$SLURM_TASKS_PER_NODE")
HOSTS=$(paste -d : <(echo "$names") <(echo "$tasks") | paste -sd ,)
export HOSTS
unset HOSTFILE NP
exec bash "$project/run.sh" "$@"
