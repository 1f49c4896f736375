"""What a host says of itself and measures, and conversations with probes, some of them scripts."""

import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from unittest.mock import Mock

import pytest

from parallel.check import facts as facts_module
from parallel.check import hosts
from parallel.check import probe as probe_module
from parallel.check.facts import Facts, gather
from parallel.check.hosts import HostError, Probe, explain
from parallel.check.probe import KEY_BYTES, MARK, bandwidth, serve
from parallel.launch.ssh import Sessions
from runtime import installed
from runtime.errors import ConfigError
from tests.support import healthy_hosts
from tests.support.processes import listeners

ROOT = Path(__file__).resolve().parents[3]
KEY = bytes(range(KEY_BYTES))


def test_facts_arrive_as_they_were_sent_and_others_are_refused() -> None:
    for package in ("mxnet", "mxnet-cu112"):
        facts = healthy_hosts.facts(1, package)
        sent = json.loads(json.dumps(asdict(facts)))
        assert Facts.received(sent) == facts
    for change in (
        {"memory": "40000"}, {"memory": None}, {"hostname": ["x"]}, {"more": 1}, {"disk": 1.5},
        {"interfaces": {"eth0": 5}}, {"horovod_lacks": "NCCL"}, {"horovod_lacks": {"a": "b"}},
        {"gpus": [["T4", [7, None], 5]]}, {"gpus": [{"name": "T4"}]}, {"gpus": 5},
    ):  # fmt: skip
        with pytest.raises((KeyError, TypeError, ValueError)):
            Facts.received({**sent, **change})


def test_what_hangs_fails_or_is_missing_is_a_fact(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installed, "gpus", Mock(side_effect=ConfigError("no driver")))
    for name, replaced in {
        "_check_mxnet": lambda package: "1.9.1",
        "_horovod_lacks": lambda: ["NCCL"],
        "_GATHER_SECONDS": 1,
        "_PROGRAM_SECONDS": 0.5,
        "_free_for": lambda _: time.sleep(3),
        "_checksums": Mock(side_effect=ZeroDivisionError("what")),
        "_open_mpi": lambda: facts_module._run("sleep", "5"),
    }.items():
        monkeypatch.setattr(facts_module, name, replaced)
    start = time.monotonic()
    facts = gather(tmp_path)
    assert time.monotonic() - start < 3
    assert facts.errors == {
        "gpus": "no driver",
        "disk": "no answer in 1 s",
        "files": "ZeroDivisionError: what",
        "open_mpi": "sleep has not ended in 0 s",
    }
    assert (facts.gpus, facts.disk, facts.files, facts.open_mpi) == ([], None, {}, None)


def test_programs_and_folders_that_fail_say_why(tmp_path: Path, monkeypatch) -> None:
    for words, reason in (
        (("sh", "-c", "echo x; echo 'error: no CUDA' >&2; exit 2"), "^no CUDA$"),
        (("sh", "-c", "exit 3"), "^status 3$"),
        (("nothing-there",), "^nothing-there does not start: No such file"),
    ):
        with pytest.raises(ConfigError, match=reason):
            facts_module._run(*words)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file cannot be written"):
        facts_module._free_for(tmp_path / "file" / "run")
    monkeypatch.setattr(facts_module, "_run", lambda *_, **__: "HYDRA build details")
    with pytest.raises(ConfigError, match="mpirun is not that of Open MPI"):
        facts_module._open_mpi()


def test_the_probe_needs_the_standard_library_alone() -> None:
    """Of a host whose packages are missing, it has to say just that."""
    code = "import sys; import parallel.check.probe; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", code]
    modules = subprocess.check_output(command, cwd=ROOT, text=True).split()
    others = {"numpy", "psutil", "mxnet", "horovod", "typing_extensions"}
    assert "parallel.check.facts" in modules and not others & set(modules)


def test_the_probe_of_this_host(tmp_path: Path) -> None:
    key, other = "ab" * KEY_BYTES, "cd" * KEY_BYTES
    with Sessions() as sessions:
        probe = Probe(sessions, "localhost", tmp_path / "run" / "of" / "mine")
        assert not listeners(probe._process.pid)
        facts = Facts.received(probe.answer()["facts"])
        # 192.0.2.1 is an address of documents (RFC 5737), and of no host.
        ports = probe.ask(key=key, listen=["127.0.0.1", "192.0.2.1"], measure=[])["ports"]
        ((address, port),) = ports.items()
        assert address == "127.0.0.1" and listeners(probe._process.pid) == {(address, port)}
        asked = [
            probe.ask(key=one, listen=[], measure=[address, number])
            for number, one in ((port, other), (port, key), (1, key))
        ]
        assert "error" in asked[0] and asked[1]["bandwidth"] > 1e6
        assert asked[2] == {"error": "Connection refused"}
        probe.close()
        assert probe._process.poll() == 0
    assert (facts.mxnet, facts.mxnet_package, facts.horovod) == ("1.9.1", "mxnet", "0.28.1")
    assert facts.horovod_lacks == ["NCCL"] and not facts.errors
    assert facts.hostname == socket.gethostname() and facts.interfaces["lo"] == "127.0.0.1"
    assert facts.open_mpi is not None and facts.open_mpi[0] in "34"
    assert facts.disk is not None and min(facts.disk, facts.memory, facts.shared_memory) > 0
    wanted = {"train.py", "config.sh", "runtime/errors.py", "setup-utils/launchers/mpirun"}
    assert wanted <= facts.files.keys()
    assert not [name for name in facts.files if name.startswith(("tests", "docs"))]


@pytest.mark.parametrize(("status", "errors", "what"), [
    (255, "root@h: Permission denied (publickey,password).\n", "ssh without a password is ref"),
    (255, "Host key verification failed.\n", "ssh does not know its host key"),
    (255, "@ REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.\n",
     "its host key is another one than known_hosts has"),
    (255, "ssh: connect to host h port 22: Connection refused\n", "nothing listens on its ssh"),
    (255, "ssh: connect to host h port 22: No route to host\n", "there is no route"),
    (255, "ssh: Could not resolve hostname h: Name or service not known\n", "ssh does not"),
    (255, "Connection timed out during banner exchange\n", "ssh gets no answer"),
    (255, "kex_exchange_identification: read: Connection reset by peer\n", "ssh fails (kex_"),
    (255, "", "ssh gets no answer"),
    (1, "bash: line 1: cd: /x: No such file or directory\n", "the project is not in "),
    (127, f"env: '{sys.executable}': No such file or directory\n", "there is no "),
    (1, "/x/python: No module named parallel.check.probe\n", "the project in "),
    (1, "Traceback:\nSyntaxError: invalid syntax\n", "the probe has ended with status 1 (Syn"),
])  # fmt: skip
def test_why_a_host_does_not_answer(status: int, errors: str, what: str) -> None:
    found, remedy = explain("h", status, errors).args
    assert found.startswith(what) and "{" not in found
    assert remedy and "{" not in remedy


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    started: list[Probe] = []

    def start(script: str) -> Probe:
        file = tmp_path / "python"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(file))
        started.append(Probe(sessions, "localhost", tmp_path))
        return started[-1]

    monkeypatch.setattr(hosts, "_END_SECONDS", 0.3)
    with Sessions() as sessions:
        yield start
        for one in started:
            one.close()


def test_a_conversation(probe) -> None:
    facts = json.dumps({"facts": 1})
    started = probe(f"echo welcome; echo '{MARK}{facts}'; read line; echo '{MARK}'$line")
    assert started.answer() == {"facts": 1}
    assert started.ask(listen=1) == {"listen": 1}
    with pytest.raises(HostError, match=r"has ended with status 3 \(what\)', 'try there"):
        probe("echo what >&2; exit 3").answer()
    started = probe(f"exec <&-; echo '{MARK}{facts}'; exit 4")
    assert started.answer()
    started._process.wait()
    with pytest.raises(HostError, match="has ended with status 4"):
        started.ask(listen=1)
    for answer in (f"echo '{MARK}0123 {facts}'", "yes | tr -d '\\n'"):
        with pytest.raises(ValueError):
            probe(answer).answer()
    with pytest.raises(HostError, match="has ended with status -1"):
        probe("exec >&-; exec sleep 30").answer()


def test_a_probe_that_is_busy_and_one_that_hangs(probe, monkeypatch) -> None:
    monkeypatch.setattr(hosts, "SILENCE_SECONDS", 1.0)
    busy = f"echo '{MARK}{{\"busy\": true}}'; sleep 0.4;"
    assert probe(f"{busy * 3} echo '{MARK}{{\"facts\": 1}}'").answer()
    with pytest.raises(HostError, match="it has given no sign of life for 1 s', 'look there"):
        probe("exec sleep 30").answer()


def test_several_measure_one_address_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    address = ("127.0.0.1", serve("127.0.0.1", KEY))
    with ThreadPoolExecutor(3) as pool:
        rates = list(pool.map(lambda _: bandwidth(*address, KEY), range(3)))
    assert min(rates) > 1e7
    assert address in listeners(os.getpid())
    with pytest.raises(OSError, match="refused"):
        bandwidth("127.0.0.2", address[1], KEY)
    with pytest.raises(OSError):
        serve("192.0.2.1", KEY)
    assert bandwidth("::1", serve("::1", KEY), KEY) > 0
    with pytest.raises(OSError, match="another proof"):
        bandwidth(*address, bytes(KEY_BYTES))
    monkeypatch.setattr(probe_module, "_CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            bandwidth("127.0.0.1", silent.getsockname()[1], KEY)
        assert time.monotonic() - start < 3
    # A connection that ends without an answer.
    one, other = socket.socketpair()
    monkeypatch.setattr(probe_module, "call", lambda *_: one)
    other.sendall(b"half")
    other.close()
    with pytest.raises(OSError, match="the connection was closed"):
        bandwidth(*address, KEY)


def test_a_slow_link_is_measured_at_the_end_that_receives() -> None:
    """The buffers of the sender take all data at once; the receiver counts what arrives."""
    one, other = socket.socketpair()
    counting = Thread(target=probe_module._count, args=(other,))
    counting.start()
    while not select.select([one], [], [], 0.05)[0]:
        one.sendall(bytes(20_000))
    (rate,) = struct.unpack("!d", one.recv(8))
    assert 50_000 < rate <= 440_000
    one.sendall(bytes(1 << 20))
    one.close()
    counting.join(10)
    assert not counting.is_alive()
