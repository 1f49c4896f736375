"""Facts about a host, which its probe gathers and sends to the check as JSON.

A broken installation is what the check is for. So nothing but the standard library is imported, and
whatever may be broken or hang is a program or a thread with a time limit, whose failure is a fact.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Optional

from runtime import environment, installed, processors
from runtime.errors import ConfigError
from runtime.files import sha256
from runtime.installed import Gpu

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("backbones", "data", "evaluation", "parallel", "partial_fc", "runtime", "training")
# Importing MXNet and Horovod takes a busy host half a minute.
_PROGRAM_SECONDS = 60.0
# Names, disks and drivers that do not answer; the programs have their own limit.
_GATHER_SECONDS = _PROGRAM_SECONDS + 5


@dataclass(frozen=True)
class Facts:
    """A host, as its probe describes it; None stands for what it does not have."""

    hostname: str
    ssh_client: Optional[str]
    """The address of the first host, as the ssh server here sees it; None on that host."""
    ssh_server: Optional[str]
    """The own address that ssh has reached."""
    python: str
    mxnet_package: str
    processors: int
    memory: int
    """Bytes that are free."""
    shared_memory: int
    """Bytes that are free in /dev/shm."""
    errors: dict[str, str]
    """Why one of the following could not be found out, by its name."""
    name_address: Optional[str] = None
    """What the host's own name stands for on it."""
    interfaces: dict[str, str] = field(default_factory=dict)
    """The IPv4 address of each network interface."""
    mxnet: Optional[str] = None
    """The version, if it loads."""
    horovod: Optional[str] = None
    horovod_lacks: list[str] = field(default_factory=list)
    """Of ``installed.HOROVOD_PARTS``."""
    open_mpi: Optional[str] = None
    project: str = ""
    """The checksum of the files of the project that a run uses."""
    disk: Optional[int] = None
    """Bytes that are free for --models-root; None if it cannot be written."""
    gpus: list[Gpu] = field(default_factory=list)
    """Those that ranks would see."""
    cuda_of_driver: Optional[int] = None
    """The newest that the driver serves, such as 11040."""


def gather(models_root: Path) -> Facts:
    """Find out everything about this host; takes a minute at most.

    Args:
        models_root: the folder of the run, which need not exist.
    """
    package = installed.mxnet_package()
    tasks: dict[str, Callable[[], Any]] = {
        "name_address": lambda: socket.gethostbyname(socket.gethostname()),
        "interfaces": _interfaces,
        "mxnet": lambda: _mxnet(package),
        "horovod": lambda: metadata.version("horovod"),
        "horovod_lacks": _horovod_lacks,
        "open_mpi": _open_mpi,
        "project": _checksum,
        "disk": lambda: _free_for(models_root),
        "gpus": installed.gpus,
        "cuda_of_driver": installed.driver_version,
    }
    pool = ThreadPoolExecutor(len(tasks))
    end = time.monotonic() + _GATHER_SECONDS
    futures = {name: pool.submit(task) for name, task in tasks.items()}
    found, errors = {}, {}
    for name, future in futures.items():
        try:
            found[name] = future.result(max(0, end - time.monotonic()))
        except Exception as error:
            errors[name] = str(error) or "no answer"
    pool.shutdown(wait=False)
    connection = environment.variables().get("SSH_CONNECTION", "").split()
    return Facts(
        hostname=socket.gethostname(),
        ssh_client=connection[0] if len(connection) == 4 else None,
        ssh_server=connection[2] if len(connection) == 4 else None,
        python=platform.python_version(),
        mxnet_package=package,
        processors=processors.available(),
        memory=_free_memory(),
        shared_memory=shutil.disk_usage("/dev/shm").free,
        errors=errors,
        **found,
    )


def _run(*command: str, **variables: str) -> str:
    """Return what a program prints.

    Raises:
        ConfigError: it fails; with what it says last.
        OSError, subprocess.TimeoutExpired: it does not start, or does not end.
    """
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**environment.variables(), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PROGRAM_SECONDS,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"status {done.returncode}"
        raise ConfigError(said.splitlines()[-1].removeprefix("error: ").strip())
    return done.stdout


def _interfaces() -> dict[str, str]:
    import psutil

    return {
        name: one.address
        for name, addresses in psutil.net_if_addrs().items()
        for one in addresses
        if one.family == socket.AF_INET
    }


def _mxnet(package: str) -> str:
    """The version, if it loads with libraries of its CUDA version."""
    cuda = installed.cuda_of(package)
    wanted = "{}.{}".format(*cuda) if cuda else ""
    _run(sys.executable, "-W", "ignore", "setup-utils/check_mxnet.py", wanted)
    return metadata.version(package)


def _horovod_lacks() -> list[str]:
    report = _run(sys.executable, "-W", "ignore", "setup-utils/check_horovod.py")
    return [part for part in installed.HOROVOD_PARTS if f"[X] {part}" not in report]


def _open_mpi() -> str:
    # The launcher refuses wrong values of these; they are looked at by themselves.
    said = _run("mpirun", "--version", NIC="", HOST_TIMEOUT="")
    found = re.search(r"\(Open MPI\) ([\d.]+)", said)
    if found is None:
        raise ConfigError("mpirun is not that of Open MPI")
    return found[1]


def _checksum() -> str:
    """Return the checksum of programs, scripts and packages; tests and documents may differ."""
    paths = [*ROOT.glob("*.py"), *ROOT.glob("*.sh"), *(ROOT / "setup-utils").rglob("*")]
    for package in _PACKAGES:
        paths += (ROOT / package).rglob("*.py")
    whole = hashlib.sha256()
    for path in sorted(paths):
        if path.is_file() and "__pycache__" not in path.parts:
            whole.update(f"{path.relative_to(ROOT)} {sha256(path)}\n".encode())
    return whole.hexdigest()[:12]


def _free_for(folder: Path) -> int:
    """What is free where a folder is or would be."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{existing} cannot be written")
    return shutil.disk_usage(existing).free


def _free_memory() -> int:
    found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0
