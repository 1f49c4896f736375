"""``python -m parallel.check`` on two hosts: every mistake is planted, found and named; no other.

Each host has a copy of the project with an environment of its own in a private folder. MXNet,
Horovod and all of NVIDIA are small stubs there, so that a host can have other versions, other
libraries and GPUs; ssh, network, disks, limits and clocks are real. The healthy hosts have the real
packages, too.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, NamedTuple

import pytest

from runtime import processors
from tests.pythons.campaign import VERSIONS, candidates
from tests.support import hosts
from tests.support.hosts import Host, TwoHosts

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.prefix) / "bin"
PACKAGES = Path(sys.prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
ROOMS = ("backbones", "data", "evaluation", "parallel", "partial_fc", "runtime", "training")
FIRST, SECOND = "10.77.0.1", "10.77.0.2"
BOTH = f"{FIRST}:1,{SECOND}:1"
# The kernel refuses 65535 in a rule.
PORTS = "1024-65534"
# A host that hangs is given up after 20 s; a busy machine needs some to start Python.
LONGEST = 60

WHY_NOT = hosts.missing()
pytestmark = [pytest.mark.hosts, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

# The functions of NVIDIA's driver that are asked, and of its libraries that MXNet loads.
DRIVER = r"""
#include <stdio.h>
#include <string.h>
int cuInit(unsigned flags) { return INIT; }
int cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int* count) { *count = COUNT; return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetName(char* name, int size, int device) { strcpy(name, "Stub GPU"); return 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = 1ul << 34; return 0; }
int cuDeviceGetAttribute(int* value, int key, int _) { *value = key == 75 ? MAJOR : 0; return 0; }
"""
LIBRARIES = {
    "libcudart.so.11.0": "int cudaRuntimeGetVersion(int *v) { *v = VERSION; return 0; }",
    "libcudnn.so.8": "unsigned long cudnnGetCudartVersion(void) { return VERSION; }",
}
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec* now) {
    int (*real)(clockid_t, struct timespec*) = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, now);
    if (id == CLOCK_REALTIME) now->tv_sec += 90;
    return status;
}
"""
NVCC = '#!/bin/sh\necho "Cuda compilation tools, release {0}, V{0}.152"\n'
MXNET = "import ctypes, os\n" + "".join(
    f"ctypes.CDLL(os.path.dirname(__file__) + '/{name}')\n" for name in LIBRARIES
)
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("check")
    private = folder / "private"
    private.mkdir()
    with TwoHosts(folder / "hosts", private) as two:
        made = Cluster(two, folder, private)
        made.make()
        yield made


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


@contextmanager
def link_down(cluster: Cluster) -> Iterator[None]:
    """When the probe has started."""
    text = "#!/bin/sh\nip link set eth0 down\nsleep 40\n"
    try:
        with instead("{project}/.venv/bin/python", text)(cluster):
            yield
    finally:
        cluster.second.ip("link", "set", "eth0", "up")


def ssh_client(change: Callable[[str, Path], str]) -> Plant:
    """Another configuration of the clients; known_hosts is that of the test."""

    @contextmanager
    def plant(cluster: Cluster) -> Iterator[None]:
        folder = cluster.two.folder
        config, known = folder / "ssh_config", folder / "known_hosts"
        text, keys = config.read_text(), known.read_text() if known.exists() else ""
        config.write_text(change(text, folder))
        try:
            yield
        finally:
            config.write_text(text)
            known.write_text(keys)

    return plant


def _unknown(text: str, folder: Path) -> str:
    (folder / "known_hosts").write_text("")
    return text.replace("StrictHostKeyChecking no", "StrictHostKeyChecking ask")


def _changed(text: str, folder: Path) -> str:
    _new_key(folder / "other_host")
    key = (folder / "other_host.pub").read_text()
    (folder / "known_hosts").write_text(f"{SECOND} {key}")
    return text.replace("StrictHostKeyChecking no", "StrictHostKeyChecking ask")


def _refused(text: str, folder: Path) -> str:
    _new_key(folder / "other")
    return text.replace(f"{folder}/key", f"{folder}/other")


def _new_key(path: Path) -> None:
    if not path.exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
        subprocess.run(command, check=True)


@contextmanager
def stopped_sshd(cluster: Cluster) -> Iterator[None]:
    server = cluster.second._server.pid
    os.kill(server, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server, signal.SIGCONT)


@contextmanager
def few_files(cluster: Cluster) -> Iterator[None]:
    """As if limits.conf said so: sessions have the limits of the server."""
    server = cluster.second._server.pid
    before = resource.prlimit(server, resource.RLIMIT_NOFILE)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server, resource.RLIMIT_NOFILE, before)


def other_python(cluster: Cluster) -> AbstractContextManager[object]:
    own = "{}.{}".format(*sys.version_info)
    found = [one for version in VERSIONS if version != own for one in candidates(version)]
    if not found:
        pytest.skip("there is no other Python")
    text = f'#!/bin/sh\nexec {found[-1]} "$@"\n'
    return instead("{project}/.venv/bin/python", text)(cluster)


@contextmanager
def other_clock(cluster: Cluster) -> Iterator[None]:
    """A minute and a half ahead; the machine has one clock, so one program is shown another."""
    library = cluster.folder / "clock.so"
    compile_library(library, CLOCK, "-ldl")
    text = f'#!/bin/sh\nLD_PRELOAD={library} exec "$0.kept" "$@"\n'
    python = cluster.project / ".venv/bin/python"
    wrapper = cluster.folder / "wrapper"
    wrapper.write_text(text)
    wrapper.chmod(0o755)
    sh(cluster.second, 'mv "$1" "$1.kept"; cp "$2" "$1"', python, wrapper)
    try:
        yield
    finally:
        sh(cluster.second, 'mv "$1.kept" "$1"', python)


def compile_library(path: Path, source: str, *options: str) -> None:
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), *options]
    subprocess.run(command, input=source, text=True, check=True)


@contextmanager
def name_is_loopback(cluster: Cluster) -> Iterator[None]:
    """As Debian's installer writes the hosts file."""
    file = cluster.two.folder / "hosts"
    text = file.read_text()
    file.write_text(text.replace(f"{SECOND} host2", "127.0.1.1 host2"))
    try:
        yield
    finally:
        file.write_text(text)


@contextmanager
def bridge(cluster: Cluster) -> Iterator[None]:
    """A named network of Docker, on both hosts."""
    for host in cluster.two.all:
        host.ip("link", "add", "br-0123", "type", "bridge")
        host.ip("addr", "add", "172.18.0.1/16", "dev", "br-0123")
    try:
        yield
    finally:
        for host in cluster.two.all:
            host.ip("link", "del", "br-0123")


@contextmanager
def one_way(cluster: Cluster) -> Iterator[None]:
    """What the first host sends to the second's address is lost; the second one's replies are not.

    Packets for that address go to a network card that does not exist, as into a firewall that says
    nothing. The second host connects from another address of its own.
    """
    first, second = cluster.two.all
    second.ip("addr", "add", "10.78.0.22/32", "dev", "eth1")
    network = ("10.78.0.0/24", "dev", "eth1", "src")
    second.ip("route", "replace", *network, "10.78.0.22")
    neighbor = ("10.78.0.2", "lladdr", "02:00:00:00:00:99", "dev", "eth1", "nud", "permanent")
    first.ip("neigh", "replace", *neighbor)
    try:
        yield
    finally:
        first.ip("neigh", "del", "10.78.0.2", "dev", "eth1")
        second.ip("route", "replace", *network, "10.78.0.2")
        second.ip("addr", "del", "10.78.0.22/32", "dev", "eth1")


NO_SSH = {
    "a key that is refused": ssh_client(_refused),
    "a host key that is unknown": ssh_client(_unknown),
    "a host key that has changed": ssh_client(_changed),
    "no ssh server": ssh_client(lambda text, _: f"{text}Port 2222\n"),
}
SAID = {
    "a key that is refused": r"ssh without a password is refused; ssh-copy-id 10\.77\.0\.2",
    "a host key that is unknown": r"ssh does not know its host key; .*ssh 10\.77\.0\.2",
    "a host key that has changed": r"its host key is another one .*ssh-keygen -R 10\.77\.0\.2",
    "no ssh server": "nothing listens on its ssh port; start sshd",
}
STUB_MPIRUN = '#!/bin/sh\necho "mpirun (Open MPI) 4.0.7"\n'
INSTALLED = "project/.venv/lib/*/site-packages"
DROP = f"ip rule add pref 0 iif eth0 ipproto tcp dport {PORTS} blackhole"
KEEP = f"ip rule del pref 0 iif eth0 ipproto tcp dport {PORTS} blackhole"

MISTAKES: dict[str, Mistake] = {
    **{name: Mistake(plant, (Wrong(SECOND, SAID[name]),)) for name, plant in NO_SSH.items()},
    "no such host": Mistake(
        lambda _: nullcontext(),
        (Wrong("10.77.0.9", "there is no route to it; look whether it runs"),),
        ("-H", f"{FIRST}:1,10.77.0.9:1"),
    ),
    "an unknown name": Mistake(
        lambda _: nullcontext(),
        (Wrong("host3", "ssh does not know this name; correct -H"),),
        ("-H", f"{FIRST}:1,host3:1"),
    ),
    "an ssh server that hangs": Mistake(
        stopped_sshd, (Wrong(SECOND, "ssh gets no answer; .*whether sshd hangs"),)
    ),
    "a process that hangs": Mistake(
        instead("{project}/.venv/bin/python", "#!/bin/sh\nkill -STOP $$\n"),
        (Wrong(SECOND, "it has given no sign of life for 20 s; .*ssh 10.77.0.2 uptime"),),
    ),
    "a link that goes down meanwhile": Mistake(
        link_down,
        (Wrong(SECOND, "(ssh gets no answer|it has given no sign of life)"),),
    ),
    "another Python": Mistake(
        other_python,
        (
            Wrong(SECOND, r"Python is 3\.\d+, but 3\.\d+ on 10\.77\.0\.1; "),
            Wrong(SECOND, "MXNet is not installed; make env"),
            Wrong(SECOND, "Horovod is not installed; make env"),
        ),
    ),
    "another MXNet": Mistake(
        second_does(f"cd {INSTALLED}; sed -i s/1.9.1/1.8.0/ mxnet*/METADATA",
                    f"cd {INSTALLED}; sed -i s/1.8.0/1.9.1/ mxnet*/METADATA"),
        (Wrong(SECOND, r"MXNet is mxnet 1\.8\.0, but mxnet 1\.9\.1 on 10\.77\.0\.1; .*make env"),),
    ),
    "an MXNet that does not load": Mistake(
        instead("{packages}/mxnet.py", "raise OSError('libgomp.so.1: no such file')\n"),
        (Wrong(SECOND, r"mxnet does not load as it should \(OSError: libgomp.so.1: no such"),),
    ),
    "another Horovod": Mistake(
        second_does(f"cd {INSTALLED}; sed -i s/0.28.1/0.27.0/ horovod*/METADATA",
                    f"cd {INSTALLED}; sed -i s/0.27.0/0.28.1/ horovod*/METADATA"),
        (Wrong(SECOND, r"Horovod is 0\.27\.0, but 0\.28\.1 on 10\.77\.0\.1; "),),
    ),
    "a Horovod without Gloo": Mistake(
        instead("{packages}/horovod/mxnet.py",
                "mpi_built = lambda: True\ngloo_built = nccl_built = lambda: False\n"),
        (Wrong(SECOND, "Horovod is built without Gloo; "),),
    ),
    "another Open MPI": Mistake(
        instead("{project}/.venv/bin/mpirun", STUB_MPIRUN),
        (Wrong(SECOND, r"Open MPI is 4\.0\.7, but \d[\d.]+ on 10\.77\.0\.1; "),),
    ),
    "another project": Mistake(
        second_does("cp -p project/training/loop.py kept; echo >>project/training/loop.py",
                    "mv kept project/training/loop.py"),
        (Wrong(SECOND, r"this project is not that of 10\.77\.0\.1: training/loop\.py differs; "),),
    ),
    "an earlier project": Mistake(
        second_does("mv project/parallel/check kept", "mv kept project/parallel/check"),
        (Wrong(SECOND, r"the project in .* is another one \(.*No module named 'parallel.check'"),),
    ),
    "no project": Mistake(
        second_does("mv project kept", "mv kept project"),
        (Wrong(SECOND, "the project is not in .*/project there; copy it to the same path"),),
    ),
    "no environment": Mistake(
        second_does("mv project/.venv kept", "mv kept project/.venv"),
        (Wrong(SECOND, r"there is no .*/\.venv/bin/python; make env there"),),
    ),
    "a firewall that lets ssh alone pass": Mistake(
        # The table of the host's own addresses comes after, so that the rule is obeyed.
        second_does(f"ip rule add pref 1 lookup local; {DROP}; ip rule del pref 0 lookup local",
                    f"ip rule add pref 0 lookup local; {KEEP}; ip rule del pref 1 lookup local"),
        (
            Wrong(FIRST, r"a port of it is not reached from 10\.77\.0\.2 \(timed out\); .*wall"),
            Wrong(SECOND, r"a port of it is not reached from 10\.77\.0\.1 \(timed out\); .*wall"),
        ),
    ),
    "a firewall in one direction": Mistake(
        one_way,
        (Wrong(SECOND, r"a port of it is not reached from 10\.77\.0\.1 \(timed out\); .*wall"),),
        variables=(("NIC", "eth1"),),
    ),
    "no such interface there": Mistake(
        second_does("ip link set eth1 down; ip link set eth1 name eth5",
                    "ip link set eth5 name eth1; ip link set eth1 up"),
        (Wrong(SECOND, "it has no interface eth1 with an IPv4 address; .*it has lo, eth0, eth5"),),
        variables=(("NIC", "eth1"),),
    ),
    "the same address twice": Mistake(
        bridge,
        (Wrong(SECOND, r"its interface br-0123 has the address 172\.18\.0\.1, as .*NIC=eth1"),),
    ),
    "a slow link": Mistake(
        second_does("tc qdisc add dev eth0 root tbf rate 80mbit burst 32kb latency 400ms",
                    "tc qdisc del dev eth0 root"),
        (Wrong(SECOND, r"it sends (\d|1\d)(\.\d+)? MB/s to 10\.77\.0\.1, and 50 are expected; "),),
    ),
    "a name for 127.0.1.1": Mistake(
        name_is_loopback,
        (Wrong(SECOND, r"its name host2 stands for 127\.0\.1\.1, .*/etc/hosts"),),
    ),
    "the same name twice": Mistake(
        second_does("hostname host1", "hostname host2"),
        (
            Wrong(SECOND, r"its hostname is host1, as that of 10\.77\.0\.1: .*set-hostname"),
            Wrong(SECOND, r"its name host1 stands for 10\.77\.0\.1, which is no address of it"),
        ),
    ),
    "another clock": Mistake(
        other_clock, (Wrong(SECOND, r"its clock is (89|90)\.\d s ahead of that of 10\.77\.0\.1"),)
    ),
    "a disk that is nearly full": Mistake(
        second_does("mkdir project/models; mount -t tmpfs -o size=10m tmpfs project/models",
                    "umount project/models; rmdir project/models"),
        (Wrong(SECOND, "10 MiB are free on the disk of --models-root"),),
    ),
    "a disk that cannot be written": Mistake(
        second_does("mkdir project/models; mount -t tmpfs -o ro tmpfs project/models",
                    "umount project/models; rmdir project/models"),
        (Wrong(SECOND, "--models-root cannot be used .*/models cannot be written"),),
    ),
    "more ranks than processors": Mistake(
        lambda _: nullcontext(),
        (Wrong(SECOND, f"{processors.available() + 1} ranks would share .* processors; "),),
        ("-H", f"{FIRST}:1,{SECOND}:{processors.available() + 1}"),
    ),
    "few open files": Mistake(
        few_files, (Wrong(SECOND, r"a process may open 256 files \(ulimit -n\); .*limits.conf"),)
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        # A user who has logged in from elsewhere.
        (("-H", BOTH), {"SSH_CONNECTION": "192.0.2.1 5 192.0.2.2 22"}),
        (("-H", "host1:2,host2:2"), {"NIC": "eth1"}),
        (("--hostfile", "hostfile"), {}),
        ((), {}),
    ],
    ids=["addresses", "names and NIC", "hostfile", "alone"],
)
def test_healthy_hosts_have_no_findings(cluster: Cluster, tmp_path, options, variables) -> None:
    """With the project and the packages of this environment."""
    (tmp_path / "hostfile").write_text("host1 slots=2\nhost2 slots=1 # the last\n")
    words = [str(tmp_path / word) if word == "hostfile" else word for word in options]
    command = ("python", "-m", "parallel.check", *words)
    result = cluster.two.run(*command, folder=ROOT, path=[PROGRAMS], **variables)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    assert result.stdout.endswith("\nhealthy: nothing is wrong\n")
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "192.0.2" not in result.stdout
    assert "0.28.1" in result.stdout and ("host2" in result.stdout) == bool(options)


def test_healthy_hosts_as_json(cluster: Cluster) -> None:
    result = cluster.check("-H", BOTH, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["findings"] == [] and list(found["facts"]) == [FIRST, SECOND]
    assert len(found["pairs"]) == 2 and found["facts"][SECOND]["hostname"] == "host2"


def test_nothing_is_left_on_the_hosts(cluster: Cluster) -> None:
    before = {host.name: len(host.processes()) for host in cluster.two.all}
    assert cluster.check().returncode == 0
    assert {host.name: len(host.processes()) for host in cluster.two.all} == before


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found_and_no_other(cluster: Cluster, name: str) -> None:
    mistake = MISTAKES[name]
    assert_found(cluster, mistake)


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


@dataclass(frozen=True)
class Gpus:
    """NVIDIA's part of a host."""

    init: int = 0
    """What the driver answers first."""
    driver: int = 11040
    count: int = 2
    major: int = 7
    """Of the compute capability."""
    nvcc: str = "11.2"
    nccl: str = "2.8.4+cuda11.2"
    cudnn: int = 11020
    smi: str = "echo 470.57.02"

    def put(self, cluster: Cluster, on: list[Host]) -> None:
        """Replace what is there."""
        made = cluster.folder / "gpu"
        shutil.rmtree(made, ignore_errors=True)
        for name in ("bin", "lib", "cuda/bin", "cuda/include", "cuda/lib64", "packages"):
            (made / name).mkdir(parents=True)
        values = {"INIT": self.init, "VERSION": self.driver, "COUNT": self.count}
        options = [f"-D{name}={value}" for name, value in {**values, "MAJOR": self.major}.items()]
        compile_library(made / "lib/libcuda.so.1", DRIVER, *options)
        for (name, source), version in zip(LIBRARIES.items(), (11020, self.cudnn)):
            compile_library(made / "packages" / name, source, f"-DVERSION={version}")
        header = "".join(
            f"#define NCCL_{part} {number}\n"
            for part, number in zip(("MAJOR", "MINOR", "PATCH"), self.nccl.split("+")[0].split("."))
        )
        (made / "cuda/include/nccl.h").write_text(header)
        library = b"\x7fELF\0NCCL version %s\0" % self.nccl.encode()
        (made / "cuda/lib64/libnccl.so").write_bytes(library)
        programs = {"bin/nvidia-smi": f"#!/bin/sh\n{self.smi}\n"}
        programs |= dict.fromkeys(("bin/nvcc", "cuda/bin/nvcc"), NVCC.format(self.nvcc))
        for name, text in programs.items():
            (made / name).write_text(text)
            (made / name).chmod(0o755)
        for host in on:
            script = 'rm -rf "$2/gpu"; cp -a "$1" "$2/gpu"; mv "$2/gpu/packages/"* "$3"'
            sh(host, script, made, cluster.private, cluster.packages)


def other_gpus(**values) -> Plant:
    """On the second host."""

    @contextmanager
    def plant(cluster: Cluster) -> Iterator[None]:
        Gpus(**values).put(cluster, [cluster.second])
        try:
            yield
        finally:
            Gpus().put(cluster, [cluster.second])

    return plant


WITHOUT_NCCL = HOROVOD.format("False")
GPU_MISTAKES: dict[str, tuple[Plant, str, int]] = {
    "more ranks than GPUs": (other_gpus(count=1), r"more ranks \(2\) than GPUs \(1\); ", 2),
    "no GPU": (
        other_gpus(init=100), r"it has no GPU that ranks would see, but 10\.77\.0\.1 does", 1
    ),
    "a driver that fails": (
        other_gpus(init=803), "NVIDIA's driver does not work: cuInit fails with CUDA error 803", 1
    ),
    "an nvidia-smi that fails": (
        other_gpus(smi="echo Driver/library version mismatch; exit 18"),
        r"nvidia-smi fails \(Driver/library version mismatch\); .*restart the host", 1,
    ),
    "a driver that is too old": (
        other_gpus(driver=10020), r"its driver 470\.57\.02 is for CUDA 10\.2, too old for mxnet", 1
    ),
    "a GPU that is too new": (
        other_gpus(major=9), "mxnet-cu112 has no machine code for Stub GPU; docs/gpu.md", 1
    ),
    "another toolkit": (
        other_gpus(nvcc="12.1"),
        r"mxnet-cu112 needs the compiler of CUDA 11\.2, and there is CUDA 12\.1 in .*; ", 1,
    ),
    "another NCCL": (
        other_gpus(nccl="2.8.4+cuda10.2"), r".*NCCL 2\.8\.4\+cuda10\.2, but mxnet-cu112 needs", 1
    ),
    "another cuDNN": (
        other_gpus(cudnn=12010), r"mxnet-cu112 does not load as it should \(.*cuDNN for CUDA 12", 1
    ),
    "a Horovod without NCCL": (
        instead("{packages}/horovod/mxnet.py", WITHOUT_NCCL), "Horovod is built without NCCL; ", 1
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def gpu_cluster(cluster: Cluster) -> Cluster:
    """The same hosts with GPUs and MXNet's package for CUDA 11.2, from here on."""
    Gpus().put(cluster, cluster.two.all)
    changes = {"mxnet.py": MXNET, "horovod/mxnet.py": HOROVOD.format("True")}
    for name, text in changes.items():
        source = cluster.folder / "changed"
        source.write_text(text)
        for host in cluster.two.all:
            sh(host, 'cp "$1" "$2"', source, cluster.packages / name)
    for host in cluster.two.all:
        renamed = "sed -i 's/^Name: mxnet$/Name: mxnet-cu112/' \"$1\"/mxnet*/METADATA"
        moved = 'mv "$1"/mxnet-1.9.1.dist-info "$1"/mxnet_cu112-1.9.1.dist-info'
        sh(host, f"{renamed}; {moved}", cluster.packages)
    return cluster


def gpu_variables(cluster: Cluster) -> dict[str, str]:
    folder = cluster.private / "gpu"
    return {"LD_LIBRARY_PATH": f"{folder / 'lib'}", "HOROVOD_CUDA_HOME": f"{folder / 'cuda'}"}


def test_healthy_hosts_with_gpus(gpu_cluster: Cluster) -> None:
    result = gpu_cluster.check("-H", f"{FIRST}:2,{SECOND}:2", **gpu_variables(gpu_cluster))
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    for shown in ("2 Stub GPU", "470.57.02 CUDA 11.4", "1.9.1 mxnet-cu112", "11.2"):
        assert result.stdout.count(shown) == 2, result.stdout


@pytest.mark.parametrize("name", GPU_MISTAKES)
def test_a_planted_mistake_with_gpus(gpu_cluster: Cluster, name: str) -> None:
    plant, line, ranks = GPU_MISTAKES[name]
    options, variables = ("-H", f"{FIRST}:1,{SECOND}:{ranks}"), gpu_variables(gpu_cluster)
    wrong = (Wrong(SECOND, line),)
    assert_found(gpu_cluster, Mistake(plant, wrong, options, tuple(variables.items())))


def test_mxnet_for_processors_on_a_host_with_gpus(gpu_cluster: Cluster) -> None:
    named = f"cd {INSTALLED}; sed -i 's/^Name: {{}}$/Name: {{}}/' mxnet*/METADATA"
    plant = second_does(named.format("mxnet-cu112", "mxnet"), named.format("mxnet", "mxnet-cu112"))
    found = (
        Wrong(SECOND, r"MXNet is mxnet 1\.9\.1, but mxnet-cu112 1\.9\.1 on 10\.77\.0\.1; "),
        Wrong(SECOND, "its MXNet is for processors and would not use its 2 GPUs; MXNET_PACKAGE="),
    )
    variables = tuple(gpu_variables(gpu_cluster).items())
    assert_found(gpu_cluster, Mistake(plant, found, ("-H", BOTH), variables))
