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
from pathlib import Path
from threading import Thread
from unittest.mock import Mock

import pytest

from parallel.check import facts as facts_module
from parallel.check import probe as probe_module
from parallel.check import survey
from parallel.check.facts import gather
from parallel.check.probe import MARK, bandwidth, serve
from parallel.check.survey import HostError, Probe
from parallel.launch.ssh import Sessions
from runtime import installed
from runtime.errors import ConfigError
from tests.support.processes import listeners

ROOT = Path(__file__).resolve().parents[3]
KEY = bytes(range(32))


def test_what_hangs_fails_or_is_missing_is_a_fact(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installed, "gpus", Mock(side_effect=ConfigError("no driver")))
    for name, replaced in {
        "_mxnet": lambda package: "1.9.1",
        "_horovod_lacks": lambda: ["NCCL"],
        "_GATHER_SECONDS": 1,
        "_PROGRAM_SECONDS": 0.5,
        "_free_for": lambda _: time.sleep(3),
        "_checksum": Mock(side_effect=ZeroDivisionError("what")),
        "_open_mpi": lambda: facts_module._run("sleep", "5"),
    }.items():
        monkeypatch.setattr(facts_module, name, replaced)
    start = time.monotonic()
    facts = gather(tmp_path)
    assert time.monotonic() - start < 3
    assert facts.errors == {
        "gpus": "no driver",
        "disk": "no answer",
        "project": "what",
        "open_mpi": "Command '('sleep', '5')' timed out after 0.5 seconds",
    }
    assert (facts.gpus, facts.disk, facts.project, facts.open_mpi) == ([], None, "", None)


def test_programs_and_folders_that_fail_say_why(tmp_path: Path, monkeypatch) -> None:
    for words, reason in (
        (("sh", "-c", "echo x; echo 'error: no CUDA' >&2; exit 2"), "^no CUDA$"),
        (("sh", "-c", "exit 3"), "^status 3$"),
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
    key, other = "ab" * 32, "cd" * 32
    with Sessions() as sessions:
        probe = Probe(sessions, "localhost", tmp_path / "run" / "of" / "mine")
        assert not listeners(probe._process.pid)
        facts = survey._facts(probe)
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


def test_the_checksum_is_of_what_a_run_uses(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(facts_module, "ROOT", tmp_path)
    found = {facts_module._checksum()}
    files = ("train.py", "run.sh", "runtime/errors.py", "parallel/check/x.py", "setup-utils/a/b")
    for number, name in enumerate(files, 2):
        for text in ("", "changed"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
            found.add(facts_module._checksum())
        assert len(found) == 2 * number - 1
    for name in ("tests/test_a.py", "docs/a.md", "setup-utils/__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
        assert facts_module._checksum() in found


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

    monkeypatch.setattr(survey, "_END_SECONDS", 0.3)
    with Sessions() as sessions:
        yield start
        for one in started:
            one.close()


def test_a_conversation(probe) -> None:
    facts = json.dumps({"facts": 1})
    started = probe(f"echo welcome; echo '{MARK}{facts}'; read line; echo '{MARK}'$line")
    assert started.answer() == {"facts": 1}
    assert started.ask(listen=1) == {"listen": 1}
    with pytest.raises(HostError, match=r"does not run there \(what\)', 'copy this project"):
        probe("echo what >&2; exit 3").answer()
    refused = r"no connection by ssh \(Permission denied\)', 'it has to work .*ssh .* true'"
    with pytest.raises(HostError, match=refused):
        probe("echo Permission denied >&2; exit 255").answer()
    started = probe(f"exec <&-; echo '{MARK}{facts}'; exit 4")
    assert started.answer()
    started._process.wait()
    with pytest.raises(HostError, match="no reason given"):
        started.ask(listen=1)
    with pytest.raises(ValueError):
        probe(f"echo '{MARK}0123 {facts}'").answer()
    with pytest.raises(HostError, match="no reason given"):
        probe("exec >&- 2>&-; exec sleep 30").answer()


def test_a_probe_that_is_busy_and_one_that_hangs(probe, monkeypatch) -> None:
    monkeypatch.setattr(survey, "SILENCE_SECONDS", 1.0)
    busy = f"echo '{MARK}null'; sleep 0.4;"
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
        bandwidth(*address, bytes(32))
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
