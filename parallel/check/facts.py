"""What a host is: gathered by the probe there, and checked here when it arrives as JSON.

A broken installation is what the check is for. So nothing but the standard library is imported, and
whatever may be broken or hang is a program or a thread with a time limit, whose failure is a fact.
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import hashlib
import os
import platform
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Optional, Union, get_args, get_origin, get_type_hints

from runtime import environment, installed, processors
from runtime.errors import ConfigError
from runtime.installed import Gpu

ROOT = Path(__file__).resolve().parents[2]
_ROOMS = ("backbones", "data", "evaluation", "parallel", "partial_fc", "runtime", "training")
# Importing MXNet and Horovod takes a busy host half a minute.
_PROGRAM_SECONDS = 60.0
# Names, disks and drivers that do not answer; the programs have their own limit.
_GATHER_SECONDS = _PROGRAM_SECONDS + 5
_CHARACTERS = 300
_SIOCGIFADDR = 0x8915  # linux/sockios.h
# In the sockaddr_in within the ifreq of netdevice(7).
_ADDRESS_IN_ANSWER = slice(20, 24)


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
    horovod_lacks: tuple[str, ...]
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
    open_files: Optional[int]
    """The limit of this process; None if there is none."""
    locked_memory: Optional[int]
    """The same in bytes."""
    infiniband: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    """Those that ranks would see."""
    cuda_of_driver: Optional[int]
    """The newest that the driver serves, such as 11040."""
    driver: Optional[str]
    """The version that nvidia-smi prints."""
    errors: dict[str, str]
    """Why a part of this could not be found out, by its name."""


class _Broken(Exception):
    """What a program or a library says of itself."""


def parse(kind: Any, value: Any) -> Any:
    """Convert what has come as JSON into a type: a dataclass, a NamedTuple, or their parts.

    Raises:
        ValueError: it is something else.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Union:
        return None if value is None else parse(inner[0], value)
    if origin is tuple and isinstance(value, list):
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        if len(kinds) == len(value):
            return tuple(map(parse, kinds, value))
    elif origin is dict and isinstance(value, dict):
        return {parse(inner[0], key): parse(inner[1], one) for key, one in value.items()}
    elif hasattr(kind, "_fields") and isinstance(value, list):
        hints = get_type_hints(kind)
        if len(hints) == len(value):
            return kind(*map(parse, hints.values(), value))
    elif hasattr(kind, "__dataclass_fields__") and isinstance(value, dict):
        hints = get_type_hints(kind)
        if hints.keys() == value.keys():
            return kind(**{name: parse(hints[name], one) for name, one in value.items()})
    elif kind is str and isinstance(value, str):
        return "".join(one if one.isprintable() else " " for one in value[:_CHARACTERS])
    elif kind is type(value) and kind in (int, float):
        return value
    raise ValueError(f"{str(value)[:40]!r} is no {getattr(kind, '__name__', kind)}")


def gather(models_root: Path) -> Facts:
    """Find out everything about this host; takes a minute at most.

    Args:
        models_root: the folder of the run, which need not exist.
    """
    package = installed.mxnet_package()
    tasks: dict[str, Callable[[], Any]] = {
        "name_address": lambda: socket.gethostbyname(socket.gethostname()),
        "mxnet": lambda: _check_mxnet(package),
        "horovod_lacks": _horovod_lacks,
        "open_mpi": _open_mpi,
        "files": _checksums,
        "disk": lambda: _free_for(models_root),
        "gpus": lambda: tuple(installed.gpus()),
        "cuda_of_driver": installed.driver_version,
        "driver": _driver,
    }
    found, errors = _in_time(tasks)
    for name, absent in (("horovod_lacks", ()), ("files", {}), ("gpus", ())):
        found.setdefault(name, absent)
    connection = environment.variables().get("SSH_CONNECTION", "").split()
    return Facts(
        hostname=socket.gethostname(),
        interfaces=_interfaces(),
        ssh_client=connection[0] if len(connection) == 4 else None,
        ssh_server=connection[2] if len(connection) == 4 else None,
        python=platform.python_version(),
        mxnet_package=package,
        horovod=_version("horovod"),
        processors=processors.available(),
        memory=_free_memory(),
        shared_memory=_free_in(Path("/dev/shm")),
        open_files=_limit(resource.RLIMIT_NOFILE),
        locked_memory=_limit(resource.RLIMIT_MEMLOCK),
        infiniband=_folder("/sys/class/infiniband"),
        errors=errors,
        **{"mxnet": _version(package), **dict.fromkeys(_OPTIONAL), **found},
    )


# None where the task fails.
_OPTIONAL = ("name_address", "open_mpi", "disk", "cuda_of_driver", "driver")


def _in_time(tasks: dict[str, Callable[[], Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    """Results and errors of tasks that run at the same time; one that hangs is an error."""
    pool = concurrent.futures.ThreadPoolExecutor(len(tasks))
    end = time.monotonic() + _GATHER_SECONDS
    futures = {name: pool.submit(task) for name, task in tasks.items()}
    found, errors = {}, {}
    for name, future in futures.items():
        try:
            found[name] = future.result(max(0, end - time.monotonic()))
        except (_Broken, ConfigError) as error:
            errors[name] = str(error)
        except concurrent.futures.TimeoutError:
            errors[name] = f"no answer in {_GATHER_SECONDS:.0f} s"
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    pool.shutdown(wait=False)
    return found, errors


def _run(*command: str, **variables: str) -> str:
    """What a program prints; what it says last if it fails."""
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
        raise _Broken(f"{command[0]} does not start: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise _Broken(f"{command[0]} has not ended in {_PROGRAM_SECONDS:.0f} s") from None
    if done.returncode == 0:
        return done.stdout
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    reason = lines[-1].removeprefix("error: ") if lines else f"status {done.returncode}"
    raise _Broken(reason.strip())


def _version(package: str) -> Optional[str]:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _check_mxnet(package: str) -> Optional[str]:
    """The version, if it loads with libraries of its CUDA version."""
    version, cuda = _version(package), installed.cuda_of(package)
    if version is not None:
        wanted = "{}.{}".format(*cuda) if cuda else ""
        _run(sys.executable, "-W", "ignore", "setup-utils/check_mxnet.py", wanted)
    return version


def _horovod_lacks() -> tuple[str, ...]:
    if _version("horovod") is None:
        return ()
    report = _run(sys.executable, "-W", "ignore", "setup-utils/check_horovod.py")
    return tuple(installed.horovod_parts(report)[1])


def _open_mpi() -> Optional[str]:
    # The launcher refuses wrong values of these; they are looked at by themselves.
    said = _run("mpirun", "--version", NIC="", HOST_TIMEOUT="")
    found = re.search(r"\(Open MPI\) ([\d.]+)", said)
    if found is None:
        raise _Broken("mpirun is not that of Open MPI")
    return found[1]


def _checksums() -> dict[str, str]:
    """Of configuration, programs and rooms; tests and documents may differ."""
    paths = [*ROOT.glob("*.py"), *ROOT.glob("*.sh"), *(ROOT / "setup-utils").rglob("*")]
    for room in _ROOMS:
        paths += (ROOT / room).rglob("*.py")
    return {
        path.relative_to(ROOT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in sorted(paths)
        if path.is_file() and "__pycache__" not in path.parts
    }


def _free_for(folder: Path) -> int:
    """What is free where a folder is or would be."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise _Broken(f"{existing} cannot be written")
    return _free_in(existing)


def _free_in(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _free_memory() -> int:
    found = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0


def _limit(number: int) -> Optional[int]:
    limit = resource.getrlimit(number)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _folder(path: str) -> tuple[str, ...]:
    return tuple(sorted(os.listdir(path))) if os.path.isdir(path) else ()


def _interfaces() -> dict[str, str]:
    return dict(_addresses())


def _addresses() -> Iterator[tuple[str, str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
            except OSError:
                # It has no IPv4 address.
                continue
            yield name, socket.inet_ntoa(answer[_ADDRESS_IN_ANSWER])


def _driver() -> Optional[str]:
    if shutil.which("nvidia-smi") is None:
        return None
    words = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return _run(*words).strip().partition("\n")[0]
