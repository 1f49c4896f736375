"""Two hosts whose check is tested: a project each in a private folder, and mistakes to plant there.

MXNet and Horovod are small stubs in it, so that a host can have other versions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Callable, NamedTuple

from tests.support.hosts import Host, TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
PACKAGES = Path(sys.prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
ROOMS = ("backbones", "data", "evaluation", "parallel", "partial_fc", "runtime", "training")
FIRST, SECOND = "10.77.0.1", "10.77.0.2"
BOTH = f"{FIRST}:1,{SECOND}:1"
# A host that hangs is given up after 20 s; a busy machine needs some to start Python.
LONGEST = 60
HOROVOD = "mpi_built = gloo_built = lambda: True\nnccl_built = lambda: {}\n"


def sh(host: Host, script: str, *arguments: object) -> str:
    """Run a script on a host."""
    command = host.inside("sh", "-ec", script, "sh", *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Cluster:
    """Two hosts with a project each."""

    def __init__(self, two: TwoHosts, folder: Path, private: Path) -> None:
        self.two, self.folder, self.private = two, folder, private
        self.project = private / "project"
        self.packages = self.project / ".venv/lib" / PACKAGES.name / "site-packages"

    @property
    def second(self) -> Host:
        return self.two.second

    def make(self) -> None:
        """Fill the private folders of both hosts."""
        made = self.folder / "project"
        made.mkdir()
        for path in (*ROOT.glob("*.py"), *ROOT.glob("*.sh")):
            shutil.copy(path, made)
        for name in (*ROOMS, "setup-utils"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, made / name, symlinks=True, ignore=ignored)
        self._make_environment(made / ".venv")
        for host in self.two.all:
            sh(host, 'cp -a "$1" "$2"', made, self.project)

    def _make_environment(self, made: Path) -> None:
        """With stubs before the packages of this one."""
        packages = made / "lib" / PACKAGES.name / "site-packages"
        (packages / "horovod").mkdir(parents=True)
        (made / "bin").mkdir()
        python = Path(os.path.realpath(sys.executable))
        (made / "bin/python").symlink_to(python)
        (made / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
        real = f"import site; site.addsitedir({str(PACKAGES / 'site-packages')!r})\n"
        (packages / "real.pth").write_text(real)
        (packages / "mxnet.py").touch()
        (packages / "horovod/__init__.py").touch()
        (packages / "horovod/mxnet.py").write_text(HOROVOD.format("False"))
        for package, version in (("mxnet", "1.9.1"), ("horovod", "0.28.1")):
            distribution(packages, package, version)

    def check(self, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run it in the private project, with NVIDIA's programs where stubs would be."""
        path = [self.private / "gpu/bin", self.project / ".venv/bin", PROGRAMS]
        words = ("python", "-m", "parallel.check", *(options or ("-H", BOTH)))
        return self.two.run(*words, folder=self.project, path=path, **variables)


def distribution(packages: Path, package: str, version: str) -> None:
    """What pip leaves of an installed package."""
    folder = packages / f"{package.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    text = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    (folder / "METADATA").write_text(text)


class Wrong(NamedTuple):
    """A finding that is expected: the host, and a pattern for the rest of its line."""

    host: str
    line: str


Plant = Callable[[Cluster], AbstractContextManager[object]]


class Mistake(NamedTuple):
    """How it is planted, and what has to be found: that, and nothing else."""

    plant: Plant
    found: tuple[Wrong, ...]
    options: tuple[str, ...] = ("-H", BOTH)
    variables: tuple[tuple[str, str], ...] = ()


def lines_of(result: subprocess.CompletedProcess[str]) -> list[str]:
    assert "Traceback" not in result.stderr and not result.stderr, result.stderr
    return [line[7:] for line in result.stdout.splitlines() if line.startswith("wrong  ")]


def second_does(script: str, undo: str) -> Plant:
    """Scripts on the second host, in its private folder."""

    @contextmanager
    def plant(cluster: Cluster) -> Iterator[None]:
        sh(cluster.second, f'cd "$1"; {script}', cluster.private)
        try:
            yield
        finally:
            sh(cluster.second, f'cd "$1"; {undo}', cluster.private)

    return plant


def instead(path: str, text: str) -> Plant:
    """Another file on the second host; {project} and {packages} stand for its folders."""

    @contextmanager
    def plant(cluster: Cluster) -> Iterator[None]:
        places = {"project": cluster.project, "packages": cluster.packages}
        there, folder = path.format(**places), cluster.private
        source = cluster.folder / "planted"
        source.write_text(text.format(**places))
        source.chmod(0o755)
        keep = '[ ! -e "$1" ] || mv "$1" "$2/kept"; mkdir -p "$(dirname "$1")"; cp "$3" "$1"'
        sh(cluster.second, keep, there, folder, source)
        try:
            yield
        finally:
            sh(cluster.second, 'rm "$1"; [ ! -e "$2/kept" ] || mv "$2/kept" "$1"', there, folder)

    return plant


def compile_library(path: Path, source: str, *options: str) -> None:
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), *options]
    subprocess.run(command, input=source, text=True, check=True)


INSTALLED = "project/.venv/lib/*/site-packages"


def assert_found(cluster: Cluster, mistake: Mistake) -> None:
    with mistake.plant(cluster):
        start = time.monotonic()
        result = cluster.check(*mistake.options, **dict(mistake.variables))
        seconds = time.monotonic() - start
    lines = lines_of(result)
    assert result.returncode == 2
    assert seconds < LONGEST, result.stdout
    assert len(lines) == len(mistake.found), result.stdout
    for wrong in mistake.found:
        pattern = f"{re.escape(wrong.host)}: {wrong.line}"
        assert any(re.match(pattern, line) for line in lines), result.stdout
    assert result.stdout.endswith(f"{len(lines)} wrong\n")
