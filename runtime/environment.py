"""The one place for environment variables that MXNet, Horovod and Numba read.

These libraries read their variables once, while they are imported, so the values have to stand in
the environment before. Scattered over scripts and modules they would be set too late by one program
and forgotten by the next; here they are one table. ``prepare()`` sets what is still unset, so
that a user's own value always wins, and ``python -m runtime.environment`` prints the same values
for ``config.sh`` to ``eval``. The ranks of one host share its processors: each gets an equal
part, where every library by itself would take them all.
"""

from __future__ import annotations

import os
import shlex
from typing import NamedTuple

from runtime import amx, processors
from runtime.errors import ConfigError, is_launched, launcher_number

_LOCAL_SIZE_NAMES = ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")


class Setting(NamedTuple):
    """A variable, the value it gets when the user has not set it, and the reason."""

    name: str
    default: str
    why: str


def visible_threads() -> int:
    """Return how many threads this rank may keep busy, at least 1.

    ``OMP_NUM_THREADS`` decides where it is set, by the user or by ``prepare()``; otherwise it is
    the rank's share of the processors of this host that the process may use.

    Raises:
        ConfigError: if ``OMP_NUM_THREADS`` is not a positive integer.
    """
    chosen = os.environ.get("OMP_NUM_THREADS")
    if chosen is None:
        return max(1, processors.available() // launcher_number(_LOCAL_SIZE_NAMES, default=1))
    if not chosen.isdecimal() or int(chosen) < 1:
        raise ConfigError(
            f"OMP_NUM_THREADS={chosen!r} is not a positive integer; "
            "unset it to give every rank its share of the processors"
        )
    return int(chosen)


def sees_one_gpu() -> bool:
    """Whether ``CUDA_VISIBLE_DEVICES`` shows a single GPU to this process."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return len([device for device in shown.split(",") if device.strip()]) == 1


def settings() -> tuple[Setting, ...]:
    """Return the table of variables for this rank."""
    table = _for_every_rank()
    if amx.request_tiles():
        table += _WITH_TILES
    if visible_threads() <= _FEW_THREADS:
        table += _WITH_FEW_THREADS
    return table if is_launched() else table + _WITHOUT_LAUNCHER


_FEW_THREADS = 2
_WITH_FEW_THREADS = (
    Setting(
        "HOROVOD_CYCLE_TIME",
        "5",
        "looking for work each millisecond takes a tenth of a processor, each fifth a thirtieth",
    ),
)

# MPI would have to start a daemon for a process that no launcher started; Gloo needs nobody.
_WITHOUT_LAUNCHER = (
    Setting("HOROVOD_CONTROLLER", "gloo", "one rank by itself has nobody to meet"),
    Setting("HOROVOD_CPU_OPERATIONS", "gloo", "one rank by itself has nobody to meet"),
)

_WITH_TILES = (
    Setting(
        "DNNL_MAX_CPU_ISA",
        "AVX512_CORE_AMX",
        "oneDNN leaves the processor's matrix tiles alone unless told; they were asked for",
    ),
)


def _for_every_rank() -> tuple[Setting, ...]:
    threads = str(visible_threads())
    return (
        Setting(
            "OMP_NUM_THREADS",
            threads,
            "MXNet takes half of all processors in every process, which stalls the ranks of a host",
        ),
        Setting(
            "NUMBA_NUM_THREADS",
            threads,
            "Numba takes all processors in every process; it runs when MXNet's threads are idle",
        ),
        Setting(
            "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",
            "python",
            "protobuf's compiled form, which Python 3.9 and 3.10 have, crashes beside libmxnet.so: "
            "both hold a protobuf library, of different versions",
        ),
        Setting(
            "MXNET_SUBGRAPH_BACKEND",
            "NONE",
            "the oneDNN fusion of the symbol executor fails on networks with PReLU",
        ),
        Setting(
            "MXNET_CUDNN_AUTOTUNE_DEFAULT",
            "1",
            "look for the fastest convolution within the workspace limit: centers need the memory",
        ),
        Setting(
            "OMPI_MCA_mpi_yield_when_idle",
            "1",
            "Open MPI polls while it waits and takes the processor from a rank that computes",
        ),
        Setting(
            "HOROVOD_GLOO_TIMEOUT_SECONDS",
            "300",
            "ranks that share few processors take longer than 30 s to import and meet",
        ),
    )


def prepare_stall_check(seconds: int) -> None:
    """Have Horovod warn of ranks that wait for each other, and leave the ending to the watchdog.

    Horovod's clock goes on while the ranks are suspended, and it does not know that a checkpoint
    may take longer than an update; so it ends no run unless the user has said so.

    Not in the table, because the time is an option of the program. Call it before Horovod starts;
    what the user has set stays.

    Args:
        seconds: without progress that end the run. A tenth of it, at most a minute, brings a
            warning that names the missing ranks; up to four times as late in a collective that has
            been done before, whose time Horovod begins to count anew in between.
    """
    os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(min(60, max(1, seconds // 10))))
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0")


def prepare() -> None:
    """Set the variables of the table that the user has not set. Call it before importing MXNet."""
    for setting in settings():
        os.environ.setdefault(setting.name, setting.default)


def main() -> None:
    """Print ``export NAME=value`` lines for a shell; what the user has set keeps its value."""
    for setting in settings():
        value = os.environ.get(setting.name, setting.default)
        print(f"export {setting.name}={shlex.quote(value)}")


if __name__ == "__main__":
    from runtime.errors import run_program

    run_program(main)
