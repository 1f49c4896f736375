"""How a rank begins, and which launchers can start ranks."""

from __future__ import annotations

import os
import socket

import psutil

from runtime.errors import ConfigError, StopRequest, is_launched

# The number of tasks that a launcher unknown to Horovod has started. Slurm's first variable is of
# the step that srun has started, the other is of the whole allocation.
_TASK_COUNTS = ("PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def begin_rank(stall_timeout: int) -> StopRequest:
    """Prepare a process that trains; call it before MXNet and Horovod are imported.

    Args:
        stall_timeout: seconds without progress that end the run. A tenth of it, at most a minute,
            brings a warning of Horovod that names the missing ranks; up to four times as late in a
            collective that has been done before, whose time it begins to count anew in between.

    Returns:
        Whether a signal has requested the end of this process.

    Raises:
        ConfigError: the launcher is one that Horovod does not know, or Gloo could not use the
            address of this host's name.
    """
    refuse_foreign_launcher()
    refuse_hosts_name()
    request = StopRequest()
    request.listen()
    # The watchdog ends the run: Horovod's clock goes on while the ranks are suspended, and Horovod
    # does not know that a checkpoint may take longer than an update.
    warning = str(min(60, max(1, stall_timeout // 10)))
    os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", warning)
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0")
    return request


def refuse_foreign_launcher() -> None:
    """Refuse to run as one of several tasks whose launcher Horovod does not know.

    Ranks connect through Open MPI or Gloo, for which ``mpirun``, ``horovodrun`` or
    ``parallel.launch`` set variables. Slurm's ``srun`` and the launchers of MPICH and its relatives
    set others, which Horovod does not read: each task would consider itself the only rank, and all
    of them would train on the whole data and write into one folder.

    Raises:
        ConfigError: with the command to use instead.
    """
    found = [name for name in _TASK_COUNTS if name in os.environ]
    tasks = os.environ[found[0]] if found else "1"
    if is_launched() or tasks == "1":
        return
    raise ConfigError(
        f"{found[0]}={tasks}: srun or an MPI other than Open MPI has started {tasks} tasks, which "
        "cannot connect: each would train alone and overwrite the files of the others. Start them "
        f"inside the allocation with: mpirun -np {tasks} -bind-to none bash config.sh; for a "
        f"single rank: env -u {' -u '.join(found)} ..."
    )


def refuse_hosts_name() -> None:
    """Refuse ranks with Gloo whose host's name has no address, or not one on ``NIC``.

    Horovod 0.28.1 connects its controller on the interface that it is told, but the process sets,
    whose tensors are all the data, on the address of the host's own name. Without one, it crashes.

    Raises:
        ConfigError: with what to change.
    """
    ranks, local = (os.environ.get(f"HOROVOD_{count}") for count in ("SIZE", "LOCAL_SIZE"))
    if os.environ.get("HOROVOD_CONTROLLER") != "gloo" or ranks in (None, "1"):
        return
    name = socket.gethostname()
    try:
        used = socket.gethostbyname(name)
    except OSError:
        raise ConfigError(
            f"the name of this host, {name}, has no address, which Gloo needs; add it to "
            f"/etc/hosts (127.0.0.1 {name}, if all ranks run here), or leave out --gloo"
        ) from None
    chosen = os.environ.get("NIC")
    if not chosen or ranks == local:
        return
    addresses = [found.address for found in psutil.net_if_addrs().get(chosen, ())]
    if used not in addresses:
        raise ConfigError(
            f"NIC={chosen}: Gloo takes the address of the host's name {name}, {used}, which is not "
            "on that interface; change it in the hosts files, or leave out --gloo"
        )
