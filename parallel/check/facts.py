"""The report of a host about itself: the cells of its column in the table, and its faults.

A broken installation is what the check is for. So neither MXNet nor Horovod is imported, and
whatever may be broken or hang is a program or a thread with a time limit, whose failure is an
answer.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from parallel.host_lists import free_port
from runtime import environment, installed, processors
from runtime.errors import ConfigError
from runtime.files import sha256
from runtime.installed import dotted

ROOT = Path(__file__).resolve().parents[2]
UNUSABLE = "unusable"
"""The cell of what cannot be found out."""
MAKE_AGAIN = "remove .venv there and make env"
_PACKAGES = ("backbones", "data", "evaluation", "parallel", "partial_fc", "runtime", "training")
# Importing MXNet and Horovod takes a busy host half a minute. The first host waits for 45 s.
_PROGRAM_SECONDS = 35.0
# Names, disks and drivers that do not answer; the programs have their own limit.
_GATHER_SECONDS = _PROGRAM_SECONDS + 2


@dataclass(frozen=True)
class Facts:
    """A host, as its probe describes it."""

    hostname: str
    interfaces: dict[str, str]
    """The IPv4 address of each network interface."""
    ssh_client: str
    """The address of the first host, as the ssh server here sees it; empty on that host."""
    ssh_server: str
    """The own address that ssh has reached; empty on the first host."""
    port: int
    """A port on which no process listens."""
    cells: dict[str, str]
    """The cells of the table, by the name of the row."""
    wrong: list[str]
    """The faults of this host that do not depend on the others, each with a remedy."""


def gather(models_root: str, ranks: int, hosts: int) -> Facts:
    """Find out everything about this host, in a limited time.

    Args:
        models_root: the folder of the run, which need not exist.
        ranks: of the run on this host.
        hosts: of the run.
    """
    # Each yields a cell, then what is wrong.
    checks = {
        "hostname": _hostname(hosts),
        "ranks": _processors(ranks),
        "Python": iter([".".join(platform.python_version_tuple()[:2])]),
        "MXNet": _mxnet(),
        "Horovod": _horovod(),
        "Open MPI": _open_mpi(),
        "project": _project(),
        "GPUs": _gpus(ranks),
        "memory free": _memory(ranks),
        "/dev/shm free": _shared_memory(ranks),
        "disk free": _disk(Path(models_root)),
    }
    pool = ThreadPoolExecutor(len(checks))
    end = time.monotonic() + _GATHER_SECONDS
    futures = {label: pool.submit(list, check) for label, check in checks.items()}
    cells: dict[str, str] = {}
    wrong: list[str] = []
    for label, future in futures.items():
        try:
            cells[label], *more = future.result(max(0, end - time.monotonic()))
            wrong += more
        except Exception as error:
            cells[label] = UNUSABLE
            reason = str(error) or "no answer"
            wrong.append(f"{label} cannot be used ({reason}); repair it, or {MAKE_AGAIN}")
    pool.shutdown(wait=False)
    client, _, server, _ = environment.variables().get("SSH_CONNECTION", "   ").split(" ")
    name, port = socket.gethostname(), free_port("")
    return Facts(name, _interfaces(), client, server, port, cells, wrong)


def _run(*command: str) -> str:
    """Return what a program prints.

    Raises:
        ConfigError: it fails; with what it says last.
        OSError, subprocess.TimeoutExpired: it does not start, or does not end.
    """
    done = subprocess.run(
        command,
        cwd=ROOT,
        # mpirun, the launcher, refuses wrong values of these; they are looked at by themselves.
        env={**environment.variables(), "NIC": "", "HOST_TIMEOUT": ""},
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
    return {
        name: one.address
        for name, addresses in psutil.net_if_addrs().items()
        for one in addresses
        if one.family == socket.AF_INET
    }


def _hostname(hosts: int) -> Iterator[str]:
    """Gloo connects to the address that a host's own name stands for on it."""
    name = socket.gethostname()
    yield name
    try:
        address = socket.gethostbyname(name)
    except OSError:
        address = "nothing"
    is_reached = address in _interfaces().values() and not address.startswith("127.")
    if hosts > 1 and not is_reached:
        yield (
            f"its name {name} stands there for {address}, which other hosts do not reach; Gloo's "
            "ranks connect to that: give the name the network's address in /etc/hosts"
        )


def _processors(ranks: int) -> Iterator[str]:
    count = processors.available()
    yield f"{ranks} on {count} processors"
    if ranks > count:
        yield (
            f"{ranks} ranks would share {count} processors; give it no more than {count} ranks, or "
            "more processors"
        )


def _mxnet() -> Iterator[str]:
    """The version, if it loads with libraries of its CUDA version."""
    package = installed.mxnet_package()
    cuda = installed.cuda_of(package)
    wanted = "{}.{}".format(*cuda) if cuda else ""
    _run(sys.executable, "-W", "ignore", "setup-utils/check_libraries.py", "mxnet", wanted)
    yield f"{metadata.version(package)} {package}"


def _horovod() -> Iterator[str]:
    report = _run(sys.executable, "-W", "ignore", "setup-utils/check_libraries.py", "horovod")
    yield metadata.version("horovod")
    is_for_gpus = installed.cuda_of(installed.mxnet_package()) is not None
    for part in ("MXNet", "MPI", "Gloo", "NCCL"):
        if f"[X] {part}" not in report and (part != "NCCL" or is_for_gpus):
            yield f"Horovod is built without {part}; {MAKE_AGAIN}"


def _open_mpi() -> Iterator[str]:
    found = re.search(r"\(Open MPI\) ([\d.]+)", _run("mpirun", "--version"))
    if found is None:
        raise ConfigError("mpirun is not that of Open MPI")
    yield found[1]


def _project() -> Iterator[str]:
    """The checksum of programs, scripts and packages; tests and documents may differ."""
    paths = [*ROOT.glob("*.py"), *ROOT.glob("*.sh"), *(ROOT / "setup-utils").rglob("*")]
    for package in _PACKAGES:
        paths += (ROOT / package).rglob("*.py")
    whole = hashlib.sha256()
    for path in sorted(paths):
        if path.is_file() and "__pycache__" not in path.parts:
            whole.update(f"{path.relative_to(ROOT)} {sha256(path)}\n".encode())
    yield whole.hexdigest()[:12]


def _gpus(ranks: int) -> Iterator[str]:
    """Each rank has a GPU that goes with driver and MXNet, as ``runtime.devices`` assigns them."""
    package = installed.mxnet_package()
    cuda = installed.cuda_of(package)
    try:
        found, driver = installed.gpus()
    except ConfigError:
        if cuda is not None:
            raise
        found, driver = [], 0
    names = ", ".join(sorted({gpu.name for gpu in found}))
    newest = f", CUDA {dotted(driver)}" if driver else ""
    yield f"{len(found)} {names}{newest}" if found else "none"
    if cuda is None:
        if found:
            yield (
                f"its MXNet is for processors and would not use its {len(found)} GPUs; "
                "MXNET_PACKAGE=mxnet-cu112 make env there, or CUDA_VISIBLE_DEVICES= to do without"
            )
        return
    if ranks > len(found):
        yield (
            f"more ranks ({ranks}) than GPUs ({len(found)}); start fewer ranks there, repair its "
            "driver (nvidia-smi), or show more GPUs by CUDA_VISIBLE_DEVICES"
        )
    without = sorted({gpu.name for gpu in found if gpu.runs(package) is False})
    if without:
        yield (
            f"{package} has no machine code for {', '.join(without)}; docs/gpu.md says which "
            "package has"
        )
    # Within a major version of CUDA, from 11 on, an older driver is enough.
    least = 1000 * cuda[0] + (10 * cuda[1] if cuda[0] < 11 else 0)
    if 0 < driver < least:
        yield (
            f"its driver is for CUDA {dotted(driver)}, too old for {package}; install a newer one"
        )


def _memory(ranks: int) -> Iterator[str]:
    yield from _free("of memory", psutil.virtual_memory().available, ranks << 30)


def _shared_memory(ranks: int) -> Iterator[str]:
    """Ranks of a host exchange in it; docker run --shm-size gives a container more."""
    least = ranks << 25 if ranks > 1 else 0
    yield from _free("in /dev/shm", shutil.disk_usage("/dev/shm").free, least)


def _disk(folder: Path) -> Iterator[str]:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if os.access(existing, os.W_OK | os.X_OK):
        free = shutil.disk_usage(existing).free
        yield from _free("on the disk of --models-root", free, 2 << 30)
    else:
        yield UNUSABLE
        yield f"--models-root cannot be used ({existing} cannot be written); give one that can be"


def _free(where: str, free: int, least: int) -> Iterator[str]:
    """Bytes that are free; below the least a run fails or is slow."""
    yield _size(free)
    if free < least:
        more = "free some, or start fewer ranks there"
        yield f"{_size(free)} are free {where}, and {_size(least)} are expected; {more}"


def _size(count: int) -> str:
    """Bytes for readers."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"
