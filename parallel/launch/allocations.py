"""Allocations of schedulers and the folder of output, checked before ranks start.

Slurm has granted tasks to a job; PBS, Grid Engine or LSF have granted hosts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from runtime import environment
from runtime.errors import ConfigError
from runtime.files import read_text

# Variables of PBS, Grid Engine and LSF, which Open MPI's wheels do not know: a file that names a
# host first on each line.
_HOST_FILES = ("PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE")


def tasks_of_slurm() -> int:
    """Return the tasks of Slurm's allocation, which Open MPI takes for its slots; 0 without one."""
    # Open MPI takes no allocation for one without this variable.
    variables = environment.variables()
    if "SLURM_JOBID" not in variables:
        return 0
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", variables.get("SLURM_TASKS_PER_NODE", ""))
    return sum(int(tasks) * int(nodes or 1) for tasks, nodes in counts)


def refuse_unread_hosts(is_own: Callable[[str], bool]) -> None:
    """Refuse to start all ranks on this host where another batch system has given more.

    Args:
        is_own: whether a name is one of this host.

    Raises:
        ConfigError: with what to type.
    """
    variables = environment.variables()
    for variable in _HOST_FILES:
        # Without the variable, or without its file, there is no such allocation.
        with suppress(OSError):
            text = read_text(Path(variables.get(variable, "")))
            hosts = [line.split()[0] for line in text.splitlines() if line.strip()]
            other = next((host for host in hosts if not is_own(host)), None)
            if other is not None:
                raise ConfigError(
                    f"{variable} names other hosts, such as {other[:80]}, but this Open MPI does "
                    "not read it; give the hosts, as in mpirun -H a:8,b:8 or HOSTS=a:8,b:8 bash "
                    "run.sh, or -H localhost:8 for this one alone"
                )


def make_output_folder(path: str) -> None:
    """Make the folder into which what each rank prints is written, if need be.

    Raises:
        ConfigError: it cannot be made, or is a file.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--output-filename {path} is no folder, and cannot be made ({error.strerror}); "
            "name another place"
        ) from None
