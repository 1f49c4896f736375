"""Jobs with parameter servers over two hosts, and what is left of them there.

The project lies in a folder whose name has a space, with the files that docs/grouping-sgd.md names:
two workers on each host, a group for each host.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.hosts.two_hosts import PROGRAMS, ROOT, Host, HostJob, TwoHosts

PRODUCT = "classify.py backbones data evaluation parallel partial_fc runtime training".split()
NAMES, ADDRESSES = ("host1", "host2"), ("10.77.0.1", "10.77.0.2")
LAUNCH = ("-m", "parallel.launch", "-n", "4", "-s", "2", "-H", "hosts", "--launcher", "ssh")
SHORT = "--dataset synthetic --image-size 16 --num-images 600 --batch-size 16 --epochs 1".split()
# Hours: these jobs do not end by themselves.
ENDLESS = "--dataset synthetic --image-size 16 --num-images 20000 --batch-size 16 --epochs 1000 "
ENDLESS += "--frequent 5 --eval-frequency 1000"
SCHEMES = {
    "dist_sync": (), "dist_async": (), "dist_ssync": ("--staleness", "3"), "dist_gsync": (),
}  # fmt: skip
GROUPED = ("--groups", "groups")
# The longest time in which a job may end.
SECONDS = 30


def copy_product(folder: Path) -> None:
    """Make a folder with the product and the three files."""
    folder.mkdir()
    for part in PRODUCT:
        # With what Numba has compiled, for which the files keep their time.
        (shutil.copy2 if part.endswith(".py") else shutil.copytree)(ROOT / part, folder / part)
    write_files(folder, NAMES)


def write_files(project: Path, names: tuple[str, str]) -> None:
    one, other = names
    (project / "hosts").write_text(f"{one}\n{one}\n{other}\n{other}\n")
    (project / "groups").write_text(f"{one} {one}\n{other} {other}\n")
    (project / "data_sharding").write_text("0.0 0.25\n0.25 0.5\n0.5 0.75\n0.75 1.0\n")


def assert_nothing_left(two: TwoHosts, begin: float = 0) -> float:
    """Wait until only the ssh servers are left; returns the seconds since then."""
    begin = begin or time.monotonic()
    while remaining := [(host.name, *one) for host in two.all for one in host.running()]:
        assert time.monotonic() - begin < SECONDS, remaining
        time.sleep(0.05)
    return time.monotonic() - begin


def _command(scheme: str, *options: str) -> tuple[str, ...]:
    words = ("--", "python", "classify.py", "--kv-store", scheme)
    return (*LAUNCH, *options, *words, *SCHEMES[scheme])


def run(
    two: TwoHosts, project: Path, scheme: str, *options: str, active: bool = True,
    training: tuple[str, ...] = tuple(SHORT), **variables: str,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """A job to its end."""
    words = ("python" if active else PROGRAMS / "python", *_command(scheme, *options), *training)
    return two.run(*words, folder=project, path=[PROGRAMS] if active else [], **variables)


class Job(HostJob):
    """A job that by default trains until something ends it."""

    def __init__(
        self, two: TwoHosts, project: Path, models: Path, scheme: str,
        training: Sequence[str] = tuple(ENDLESS.split()),
    ) -> None:  # fmt: skip
        write_files(project, NAMES)
        groups = GROUPED if scheme == "dist_gsync" else ()
        super().__init__(
            two, models / "output", "python", *_command(scheme, "-i", "eth0", *groups), *training,
            "--models-root", models / "models", folder=project, path=[PROGRAMS],
        )  # fmt: skip

    def wait_for(self, word: str) -> None:
        """Wait for a word in its output, while it goes on."""
        self.wait_until(lambda: word in self.said())


def process_of(host: Host, role: str, worker: int = 0) -> psutil.Process:
    """The process of a role on a host, a worker's by its number; not the guard before it."""
    for process, words in host.running():
        with suppress(psutil.Error):
            variables = process.environ()
            own = variables.get("DMLC_ROLE"), variables.get("GROUPING_WORKER")
            if own == (role, str(worker)) and "parallel.launch.guard" not in words:
                return process
    raise AssertionError(f"there is no {role} {worker} on {host.name}")
