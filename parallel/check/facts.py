"""Facts about a host, which its probe gathers and sends to the check as JSON.

A broken installation is what the check is for. So nothing but the standard library is imported, and
whatever may be broken or hang is a program or a thread with a time limit, whose failure is a fact.
"""

from __future__ import annotations

import concurrent.futures
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Optional, Union, get_args, get_origin, get_type_hints

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
    name_address: Optional[str]
    """What the host's own name stands for on it."""
    interfaces: dict[str, str]
    """The IPv4 address of each network interface."""
    ssh_client: Optional[str]
    """The address of the first host, as the ssh server here sees it; None on that host."""
    ssh_server: Optional[str]
    """The own address that ssh has reached."""
    python: str
    mxnet: Optional[str]
    mxnet_package: str
    horovod: Optional[str]
    horovod_lacks: list[str]
    """Of ``installed.HOROVOD_PARTS``."""
    open_mpi: Optional[str]
    files: dict[str, str]
    """The checksum of each file of the project that a run uses."""
    processors: int
    memory: int
    """Bytes that are free."""
    shared_memory: int
    """Bytes that are free in /dev/shm."""
    disk: Optional[int]
    """Bytes that are free for --models-root; None if it cannot be written."""
    gpus: list[Gpu]
    """Those that ranks would see."""
    cuda_of_driver: Optional[int]
    """The newest that the driver serves, such as 11040."""
    errors: dict[str, str]
    """Why a part of this could not be found out, by its name."""

    @classmethod
    def received(cls, answer: Mapping[str, Any]) -> Facts:
        """Return the facts that have come as JSON.

        Raises:
            LookupError, TypeError, ValueError: they are something else.
        """
        gpus = [
            Gpu(str(name), (int(major), int(minor)), int(size))
            for name, (major, minor), size in answer["gpus"]
        ]
        facts = cls(**{**answer, "gpus": gpus})
        for name, kind in get_type_hints(cls).items():
            if not _is(kind, getattr(facts, name)):
                raise TypeError(f"{name} is {getattr(facts, name)!r}")
        return facts


def _is(kind: Any, value: Any) -> bool:
    """True if a value is of the type of a fact."""
    inner = get_args(kind)
    if isinstance(value, (dict, list)):
        parts = value.values() if isinstance(value, dict) else value
        return type(value) is get_origin(kind) and all(_is(inner[-1], one) for one in parts)
    return get_origin(kind) in (None, Union) and isinstance(value, inner or kind)


def gather(models_root: Path) -> Facts:
    """Find out everything about this host; takes a minute at most.

    Args:
        models_root: the folder of the run, which need not exist.
    """
    package = installed.mxnet_package()
    # Each with the value that stands for it where it fails.
    tasks: dict[str, tuple[Callable[[], Any], Any]] = {
        "name_address": (lambda: socket.gethostbyname(socket.gethostname()), None),
        "interfaces": (_interfaces, {}),
        "mxnet": (lambda: _check_mxnet(package), _version(package)),
        "horovod_lacks": (_horovod_lacks, []),
        "open_mpi": (_open_mpi, None),
        "files": (_checksums, {}),
        "disk": (lambda: _free_for(models_root), None),
        "gpus": (installed.gpus, []),
        "cuda_of_driver": (installed.driver_version, None),
    }
    pool = concurrent.futures.ThreadPoolExecutor(len(tasks))
    end = time.monotonic() + _GATHER_SECONDS
    futures = {name: pool.submit(task) for name, (task, _) in tasks.items()}
    found, errors = {name: absent for name, (_, absent) in tasks.items()}, {}
    for name, future in futures.items():
        try:
            found[name] = future.result(max(0, end - time.monotonic()))
        except ConfigError as error:
            errors[name] = str(error)
        except concurrent.futures.TimeoutError:
            errors[name] = f"no answer in {_GATHER_SECONDS:.0f} s"
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    pool.shutdown(wait=False)
    connection = environment.variables().get("SSH_CONNECTION", "").split()
    return Facts(
        hostname=socket.gethostname(),
        ssh_client=connection[0] if len(connection) == 4 else None,
        ssh_server=connection[2] if len(connection) == 4 else None,
        python=platform.python_version(),
        mxnet_package=package,
        horovod=_version("horovod"),
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
    """
    try:
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
    except OSError as error:
        raise ConfigError(f"{command[0]} does not start: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{command[0]} has not ended in {_PROGRAM_SECONDS:.0f} s") from None
    if done.returncode == 0:
        return done.stdout
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    reason = lines[-1].removeprefix("error: ") if lines else f"status {done.returncode}"
    raise ConfigError(reason.strip())


def _version(package: str) -> Optional[str]:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _interfaces() -> dict[str, str]:
    import psutil

    return {
        name: one.address
        for name, addresses in psutil.net_if_addrs().items()
        for one in addresses
        if one.family == socket.AF_INET
    }


def _check_mxnet(package: str) -> Optional[str]:
    """The version, if it loads with libraries of its CUDA version."""
    version, cuda = _version(package), installed.cuda_of(package)
    if version is not None:
        wanted = "{}.{}".format(*cuda) if cuda else ""
        _run(sys.executable, "-W", "ignore", "setup-utils/check_mxnet.py", wanted)
    return version


def _horovod_lacks() -> list[str]:
    if _version("horovod") is None:
        return []
    report = _run(sys.executable, "-W", "ignore", "setup-utils/check_horovod.py")
    return [part for part in installed.HOROVOD_PARTS if f"[X] {part}" not in report]


def _open_mpi() -> str:
    # The launcher refuses wrong values of these; they are looked at by themselves.
    said = _run("mpirun", "--version", NIC="", HOST_TIMEOUT="")
    found = re.search(r"\(Open MPI\) ([\d.]+)", said)
    if found is None:
        raise ConfigError("mpirun is not that of Open MPI")
    return found[1]


def _checksums() -> dict[str, str]:
    """Return the checksums of programs, scripts and packages; tests and documents may differ."""
    paths = [*ROOT.glob("*.py"), *ROOT.glob("*.sh"), *(ROOT / "setup-utils").rglob("*")]
    for package in _PACKAGES:
        paths += (ROOT / package).rglob("*.py")
    return {
        path.relative_to(ROOT).as_posix(): sha256(path)[:12]
        for path in sorted(paths)
        if path.is_file() and "__pycache__" not in path.parts
    }


def _free_for(folder: Path) -> int:
    """What is free where a folder is or would be."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{existing} cannot be written")
    return shutil.disk_usage(existing).free


def _free_memory() -> int:
    found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0
