"""Two hosts on this machine: network namespaces with names, addresses and ssh servers of their own.

They share processors, processes and files, but for a folder that each may have for itself. Nothing
outside of them is changed: their hosts file and the configuration of ssh are mounted inside.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Optional

import psutil
import pytest

from tests.support.job import Watched
from tests.support.launch import ROOT as ROOT

PROGRAMS = Path(sys.prefix) / "bin"
INTERFACES = ("eth0", "eth1")
NAMES, ADDRESSES = "host1:1,host2:1", "10.77.0.1:1,10.77.0.2:1"
# As InsightFace's run.sh has them.
MPI_FLAGS = (
    "-bind-to none -map-by slot -mca pml ob1 -mca btl ^openib -mca btl_tcp_if_include eth0".split()
)
_RANKS, _CONFIG = ("-np", "2", "-H", NAMES), ("bash", "config.sh")
LAUNCHERS = {
    "run.sh": ("bash", "run.sh"),
    "mpirun": ("mpirun", *_RANKS, "-bind-to", "none", *_CONFIG),
    "horovodrun": ("horovodrun", *_RANKS, *_CONFIG),
    "horovodrun --gloo": ("horovodrun", *_RANKS, "--gloo", *_CONFIG),
}
_NEEDED = ("ip", "nsenter", "unshare", "ssh", "ssh-keygen", "sshd")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START_SECONDS = 10
_SSH_SERVER = """\
ListenAddress {address}
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
"""
_SSH_CLIENT = """\
IdentityFile {folder}/key
UserKnownHostsFile {folder}/known_hosts
StrictHostKeyChecking no
LogLevel ERROR
"""
# sshd wants a folder in /run; that of this machine stays as it is.
_PREPARE = """\
set -e
mount -t tmpfs tmpfs /run
mkdir /run/sshd
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/ssh_config /etc/ssh/ssh_config
{private}
hostname {name}
exec {sshd} -D -e -f {folder}/{name}.conf 2>>{folder}/{name}.log
"""


def missing() -> Optional[str]:
    """Why there can be no such hosts on this machine; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [program for program in _NEEDED if _find(program) is None]
    return f"needs {', '.join(absent)}" if absent else None


def _find(program: str) -> Optional[str]:
    return shutil.which(program, path=f"{os.environ['PATH']}:{_SYSTEM_PATH}")


MARKS = [pytest.mark.hosts, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


class Host(Watched):
    """A network namespace in which an ssh server runs, at ``address``."""

    def __init__(self, number: int, folder: Path, private: Optional[Path]) -> None:
        self.name = f"host{number}"
        self.addresses = {
            interface: f"10.{77 + index}.0.{number}" for index, interface in enumerate(INTERFACES)
        }
        self.address = self.addresses[INTERFACES[0]]
        self.namespace = f"{self.name}-{os.getpid()}"
        self._folder, self._private = folder, private
        self.output = folder / f"{self.name}.log"
        subprocess.run(["ip", "netns", "add", self.namespace], check=True)
        self.ip("link", "set", "lo", "up")

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", "-n", self.namespace, *words], check=True)

    def start(self) -> None:
        private = f"mount -t tmpfs tmpfs {shlex.quote(str(self._private))}" * bool(self._private)
        place = {"name": self.name, "folder": shlex.quote(str(self._folder))}
        script = _PREPARE.format(**place, sshd=_find("sshd"), private=private)
        config = _SSH_SERVER.format(address=self.address, folder=self._folder)
        (self._folder / f"{self.name}.conf").write_text(config)
        self.output.write_text("")
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "unshare", "-u", "-m", "sh", "-c", script]
        )
        self.wait_until(lambda: "listening" in self.said(), _START_SECONDS)

    @property
    def server_pid(self) -> int:
        # Each connection has processes of its own.
        return self.process.pid

    def inside(self, *words: object) -> list[str]:
        """A command that runs here, as a user's on the host itself."""
        return ["nsenter", "-t", str(self.process.pid), "-n", "-m", "-u", *map(str, words)]

    def sh(self, script: str, *words: object) -> str:
        """Run a script here, with words as its arguments; returns what it prints."""
        return subprocess.check_output(self.inside("sh", "-ec", script, "sh", *words), text=True)

    def bytes_sent(self, interface: str) -> int:
        counter = f"/sys/class/net/{interface}/statistics/tx_bytes"
        return int(subprocess.check_output(self.inside("cat", counter)))

    def processes(self) -> list[int]:
        command = ["ip", "netns", "pids", self.namespace]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return list(map(int, found.stdout.split()))

    def running(self) -> Iterator[tuple[psutil.Process, list[str]]]:
        """Yield what runs here beside the ssh server that listens, with its words."""
        for pid in set(self.processes()) - {self.server_pid}:
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                # An ended process has no words any more.
                if words := process.cmdline():
                    yield process, words

    def end(self) -> None:
        for process in self.processes():
            os.kill(process, signal.SIGKILL)
        if hasattr(self, "process"):
            self.process.wait(_START_SECONDS)
        subprocess.run(["ip", "netns", "del", self.namespace], check=False)


class TwoHosts(AbstractContextManager["TwoHosts"]):
    """host1 and host2, on the networks ``INTERFACES``; each has the folder ``private`` alone."""

    def __init__(self, folder: Path, private: Optional[Path] = None) -> None:
        self.folder = folder
        self.all = [Host(number, folder, private) for number in (1, 2)]
        self.first, self.second = self.all

    def __enter__(self) -> TwoHosts:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        (self.folder / "home").mkdir(parents=True)
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "key")]
        subprocess.run(key, check=True)
        (self.folder / "ssh_config").write_text(_SSH_CLIENT.format(folder=self.folder))
        self.name_on(INTERFACES[0])
        for interface in INTERFACES:
            peer = ("peer", "name", interface, "netns", self.second.namespace)
            self.first.ip("link", "add", interface, "type", "veth", *peer)
            for host in self.all:
                host.ip("addr", "add", f"{host.addresses[interface]}/24", "dev", interface)
                host.ip("link", "set", interface, "up")
        for host in self.all:
            host.start()

    def cut(self, is_cut: bool) -> None:
        """Lose all packets of the first network from now on, or none."""
        for host in self.all:
            # The table of the host's own addresses comes after the rule.
            for change, rule in (
                ("add" if is_cut else "del", ("pref", "1", "lookup", "local")),
                ("add" if is_cut else "del", ("pref", "0", "iif", INTERFACES[0], "blackhole")),
                ("del" if is_cut else "add", ("pref", "0", "lookup", "local")),
            )[:: 1 if is_cut else -1]:
                host.ip("rule", change, *rule)

    def name_on(self, interface: str) -> None:
        """Let the hosts' names stand for their addresses on an interface; at first the first."""
        lines = [f"{host.addresses[interface]} {host.name}\n" for host in self.all]
        (self.folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))

    def started(
        self, *command: object, folder: Path, path: Iterable[Path] = (),
        variables: Optional[dict[str, str]] = None, **further: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Return Popen's arguments: a command on the first host, with folders first in PATH."""
        search = ":".join([*map(str, path), _SYSTEM_PATH])
        words = self.first.inside("sh", "-c", 'cd "$0" && exec "$@"', folder, *command)
        known = {"HOME": str(self.folder / "home"), "PATH": search, **(variables or {})}
        stdin = subprocess.DEVNULL
        return {"args": words, "env": known, "stdin": stdin, "text": True, **further}

    def run(
        self, *command: object, folder: Path, path: Iterable[Path] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the first host to its end; see ``started``."""
        how = self.started(*command, folder=folder, path=path, variables=variables)
        return subprocess.run(**how, capture_output=True, timeout=250, check=False)

    def train(
        self, models: Path, *command: object, active: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the README in the project's folder: three updates of a small network.

        It is called by its path where the environment is not ``active``.
        """
        choices = {"NETWORK": "tiny", "BATCH_SIZE": "8", "MAX_UPDATE": "3", "OMP_NUM_THREADS": "1"}
        how: dict[str, Any] = {**choices, "MODELS_ROOT": str(models), **variables}
        if active:
            how.update(VIRTUAL_ENV=sys.prefix, path=[PROGRAMS])
        elif command[0] != "bash":
            command = (PROGRAMS / str(command[0]), *command[1:])
        return self.run(*command, folder=ROOT, **how)

    def __exit__(self, *_: object) -> None:
        for host in self.all:
            host.end()


@contextmanager
def repeated(look: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call a function again and again, with a pause, in a thread of its own."""
    is_over = threading.Event()

    def go_on() -> None:
        while not is_over.wait(seconds):
            look()

    with ThreadPoolExecutor() as pool:
        looking = pool.submit(go_on)
        try:
            yield
        finally:
            is_over.set()
    looking.result()


class HostJob(Watched):
    """A command on a host, whose output goes to the end of a file; see ``TwoHosts.started``."""

    def __init__(self, two: TwoHosts, output: Path, *command: object, **how: Any) -> None:
        self.two, self.output = two, output
        with output.open("ab") as file:
            self.process = subprocess.Popen(
                **two.started(*command, stdout=file, stderr=file, **how)
            )

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(_START_SECONDS)
