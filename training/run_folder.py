"""The folder of a run: its default name, and the lock that keeps other runs out.

Each data set and network has a folder of its own by default, so that several can be tried without
an option, and each run resumes from its own checkpoints. Two runs at once in one folder would
remove each other's checkpoints. So rank 0, or the first rank of each host that has a folder of its
own, locks a file in it for as long as the run lasts. The operating system removes the lock with the
process, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Optional

from runtime.errors import ConfigError
from runtime.files import open_kept
from runtime.process.terminal import print_line

LOCK = "run.lock"
_PARENT = Path("models")
_LONGEST_NAME = 100
_LONGEST_HOLDER = 300
# A run that is started again right after its end may find processes of before. A host that died
# keeps its locks on a network file system for a while.
_SECONDS_SAME_HOST, _SECONDS_OTHER_HOST = 10.0, 100.0
_POLL_SECONDS = 0.1


def default(data: Sequence[str], network: str) -> str:
    """The folder of a run that is given none; ``data`` is a preset, or folders of record sets."""
    names = "+".join(_name(part) for part in data)
    return f"./{_PARENT / f'{names[:_LONGEST_NAME]}-{network}'}"


def _name(folder: str) -> str:
    path = Path(os.path.abspath(folder))
    # Also the record file in a folder may be given.
    return (path.parent.name if path.suffix == ".rec" else path.name) or "data"


@contextmanager
def locked(models_root: Path) -> Iterator[None]:
    """Keep other runs out of a folder, which is made if it does not exist.

    Raises:
        ConfigError: another run uses the folder, or it cannot be written.
    """
    lock = _lock(models_root)
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):
                lock.truncate(0)
            # Closing writes what a full disk did not take before; it is closed in any case.
            with suppress(OSError):
                lock.close()


def _lock(models_root: Path) -> Optional[IO[str]]:
    """The open file with the lock; None where the file system has no locks."""
    try:
        models_root.mkdir(parents=True, exist_ok=True)
        descriptor = open_kept(models_root / LOCK, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        file = open(descriptor, "a+", encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(
            f"--models-root {models_root} cannot be written ({error.strerror}: {error.filename}); "
            "give a folder in which you may write"
        ) from None
    try:
        _wait_for(file, models_root)
    except ConfigError:
        file.close()
        raise
    except OSError as error:
        file.close()
        _warn(
            f"{models_root / LOCK} cannot be locked ({error.strerror}): make sure yourself that no "
            "other run writes into that folder"
        )
        return None
    former = _holder(file)
    if former and not _is_on_this_host(former):
        _warn(f"{models_root} was left without a regular end by a run of {former}")
    command = shlex.join([Path(sys.executable).name, *sys.argv])
    with suppress(OSError):
        file.truncate(0)
        file.write(f"host {os.uname().nodename}, process {os.getpid()}, {command}\n")
        file.flush()
    return file


def _wait_for(file: IO[str], models_root: Path) -> None:
    """Lock the file; a ConfigError if its holder stays, an OSError where there are no locks."""
    started = time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):
            pass
        holder = _holder(file) or "unknown host"
        seconds = _SECONDS_SAME_HOST if _is_on_this_host(holder) else _SECONDS_OTHER_HOST
        if time.monotonic() - started >= seconds:
            raise ConfigError(
                f"another run writes into --models-root {models_root}: {holder}; wait for its end, "
                "or give this run a --models-root of its own"
            )
        time.sleep(_POLL_SECONDS)


def _holder(file: IO[str]) -> str:
    """The line that the holder of the lock has written; empty after a regular end."""
    file.seek(0)
    return file.readline(_LONGEST_HOLDER).strip()


def _is_on_this_host(holder: str) -> bool:
    return holder.startswith(f"host {os.uname().nodename}, ")


def _warn(line: str) -> None:
    with suppress(OSError):
        print_line(f"warning: {line}", file=sys.stderr)
