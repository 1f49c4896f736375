"""What launchers tell the processes that they start, and those that cannot start ranks of ours.

Ranks meet through Open MPI or Gloo, for which ``mpirun``, ``horovodrun`` or ``parallel.launch``
leave variables. Slurm's ``srun`` and the launchers of MPICH and its relatives leave others, which
say nothing to Horovod: each task would take itself for the only rank, and all of them would train
on the whole data and write into one folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Optional

from runtime import environment
from runtime.errors import ConfigError, is_launched
from runtime.stopping import StopRequest

# The number of tasks that a foreign launcher has started. Slurm's first variable is of the step
# that srun has started, the others are of the whole allocation.
_SIZES = ("PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
_RANKS = ("PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


def begin_rank(stall_timeout: int) -> StopRequest:
    """Prepare a process that trains; call it before MXNet and Horovod are imported.

    Args:
        stall_timeout: seconds without progress that end the run.

    Returns:
        Whether the process has been asked to end, from now on.

    Raises:
        ConfigError: the launcher is one that Horovod does not know.
    """
    refuse_foreign_launcher()
    request = StopRequest()
    request.listen()
    environment.prepare_stall_check(stall_timeout)
    return request


def refuse_foreign_launcher() -> None:
    """Refuse to run as one of several tasks whose launcher Horovod does not know.

    Raises:
        ConfigError: with the command to use instead.
    """
    if is_launched():
        return
    rank = _first(_RANKS, os.environ)
    size = _first(_SIZES, os.environ)
    if size is None:
        # PMIx tells a task its number and not how many there are.
        if rank is None:
            return
        count, what = "several", rank
    elif size[1] == "1":
        return
    else:
        count, what = size[1], size
    raise ConfigError(
        f"{what[0]}={what[1]}: srun or an MPI other than Open MPI has started {count} tasks, which "
        "cannot meet: each would train alone and write what the others write. Start them inside "
        f"the allocation with: mpirun -np {'N' if size is None else size[1]} -bind-to none bash "
        f"config.sh; for one rank by itself: env {' '.join(f'-u {name}' for name in _set())} ..."
    )


def _first(names: Iterable[str], variables: Mapping[str, str]) -> Optional[tuple[str, str]]:
    return next(((name, variables[name]) for name in names if name in variables), None)


def _set() -> list[str]:
    return [name for name in (*_SIZES, *_RANKS) if name in os.environ]
