"""The report of a host about itself, its measurements, and conversations with probes."""

import asyncio
import json
import os
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from parallel.check import facts as facts_module
from parallel.check import probe as probe_module
from parallel.check import survey
from parallel.check.facts import UNUSABLE, Facts, gather
from parallel.check.probe import MARK, bandwidth, serve
from parallel.check.survey import HostError, Probe
from runtime import installed, processors
from runtime.errors import ConfigError
from runtime.installed import Gpu
from tests.support.launch import write_program
from tests.support.processes import listeners

ROOT = Path(__file__).resolve().parents[3]
KEY = bytes(range(32))
T4, H100 = Gpu("Tesla T4", (7, 5)), Gpu("H100", (9, 0))


def wrong_of(check: Iterator[str]) -> list[str]:
    """What a check yields after the cell."""
    _, *wrong = check
    return wrong


def test_what_hangs_fails_or_is_missing_is_an_answer(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installed, "mxnet_package", lambda: "mxnet-cu112")
    monkeypatch.setattr(installed, "gpus", Mock(side_effect=ConfigError("no driver")))
    nothing: dict[str, Callable[..., Iterator[str]]] = {
        "_mxnet": lambda: iter(["1.9.1 mxnet"]),
        "_horovod": lambda: iter(["0.28.1"]),
        "_project": lambda: iter([str(1 // 0)] for _ in "x"),
        "_disk": lambda _: iter([str(time.sleep(3))] for _ in "x"),
        "_open_mpi": lambda: iter([facts_module._run("sleep", "5")] for _ in "x"),
    }
    for name, replaced in nothing.items():
        monkeypatch.setattr(facts_module, name, replaced)
    monkeypatch.setattr(facts_module, "_GATHER_SECONDS", 1)
    monkeypatch.setattr(facts_module, "_PROGRAM_SECONDS", 0.5)
    start = time.monotonic()
    facts = gather(tmp_path, 1, 1)
    assert time.monotonic() - start < 3
    reasons = {
        "Open MPI": "Command '('sleep', '5')' timed out after 0.5 seconds",
        "project": "integer division or modulo by zero",
        "GPUs": "no driver",
        "disk free": "no answer",
    }
    assert [one for one in facts.wrong if "cannot be used" in one] == [
        f"{row} cannot be used ({reason}); repair it, or remove .venv there and make env"
        for row, reason in reasons.items()
    ]
    assert {row for row, cell in facts.cells.items() if cell == UNUSABLE} == set(reasons)


def test_what_is_free_and_what_ranks_need(monkeypatch, tmp_path: Path) -> None:
    for free, expected in (
        ((8 << 30) - 1, ["8.0 GiB are free of memory, and 8.0 GiB are expected; free some, "]),
        (8 << 30, []),
        (200 << 20, ["200 MiB are free of memory, and 8.0 GiB are expected; free some, "]),
    ):
        text = f"MemTotal: 1 kB\nMemAvailable:   {free >> 10} kB\n"
        monkeypatch.setattr(facts_module.Path, "read_text", lambda _, text=text: text)
        found = wrong_of(facts_module._memory(8))
        assert [one[: len(start)] for one, start in zip(found, expected)] == expected
        assert len(found) == len(expected)
    for free, ranks, is_enough in (
        ((256 << 20) - 1, 8, False), (256 << 20, 8, True), (0, 1, True), (0, 2, False)
    ):  # fmt: skip
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert (not wrong_of(facts_module._shared_memory(ranks))) == is_enough
    for free, is_enough in (((2 << 30) - 1, False), (2 << 30, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert (not wrong_of(facts_module._disk(tmp_path / "run" / "of"))) == is_enough
    (tmp_path / "file").touch()
    (line,) = wrong_of(facts_module._disk(tmp_path / "file" / "run"))
    assert re.match(r"--models-root cannot be used \(.*file cannot be written\); give one", line)
    monkeypatch.setattr(processors, "available", lambda: 8)
    assert wrong_of(facts_module._processors(8)) == []
    assert wrong_of(facts_module._processors(9))[0].startswith("9 ranks would share 8 processors; ")


@pytest.mark.parametrize(("address", "said"), [
    ("127.0.1.1", "127.0.1.1"), (None, "nothing"), ("10.9.9.9", "10.9.9.9"), ("10.0.0.1", ""),
])  # fmt: skip
def test_the_name_of_a_host_stands_for_what_others_reach(address, said, monkeypatch) -> None:
    own = {"lo": "127.0.0.1", "lo:1": "127.0.1.1", "eth0": "10.0.0.1"}
    monkeypatch.setattr(facts_module, "_interfaces", lambda: own)
    monkeypatch.setattr(socket, "gethostname", lambda: "node1")
    asked = Mock(return_value=address) if address else Mock(side_effect=OSError)
    monkeypatch.setattr(socket, "gethostbyname", asked)
    found = wrong_of(facts_module._hostname(2))
    assert len(found) == bool(said)
    assert all(one.startswith(f"its name node1 stands there for {said}, which") for one in found)
    assert wrong_of(facts_module._hostname(1)) == []


@pytest.mark.parametrize(("package", "gpus", "driver", "cell", "lines"), [
    ("mxnet", [], None, "none", []),
    ("mxnet", [T4], 11040, "1 Tesla T4, CUDA 11.4", ["its MXNet is for processors and would not"]),
    ("mxnet", None, None, "none", []),
    ("mxnet-cu112", [T4] * 8, 11040, "8 Tesla T4, CUDA 11.4", []),
    # Newer; or older within CUDA 11, which is enough.
    ("mxnet-cu112", [T4] * 8, 12020, "8 Tesla T4, CUDA 12.2", []),
    ("mxnet-cu112", [T4] * 8, 11000, "8 Tesla T4, CUDA 11.0", []),
    ("mxnet-cu112", [T4] * 7, 11040, "7 Tesla T4, CUDA 11.4", ["more ranks (8) than GPUs (7); "]),
    ("mxnet-cu112", [], None, "none", ["more ranks (8) than GPUs (0); "]),
    ("mxnet-cu112", [T4] * 7 + [H100], 11040, "8 H100, Tesla T4, CUDA 11.4",
     ["mxnet-cu112 has no machine code for H100; docs"]),
    ("mxnet-cu112", [T4] * 8, 10020, "8 Tesla T4, CUDA 10.2", ["its driver is for CUDA 10.2, too"]),
    # CUDA 10 takes no older driver.
    ("mxnet-cu102", [T4] * 8, 10020, "8 Tesla T4, CUDA 10.2", []),
    ("mxnet-cu102", [T4] * 8, 10010, "8 Tesla T4, CUDA 10.1", ["its driver is for CUDA 10.1, too"]),
])  # fmt: skip
def test_each_rank_has_a_gpu_that_fits(package, gpus, driver, cell, lines, monkeypatch) -> None:
    monkeypatch.setattr(installed, "mxnet_package", lambda: package)
    asked = Mock(side_effect=ConfigError) if gpus is None else Mock(return_value=gpus)
    monkeypatch.setattr(installed, "gpus", asked)
    monkeypatch.setattr(installed, "driver_version", lambda: driver)
    found, *wrong = facts_module._gpus(8)
    assert found == cell and len(wrong) == len(lines)
    assert all(one.startswith(line) for one, line in zip(wrong, lines))


def test_programs_that_fail_say_why(monkeypatch) -> None:
    for words, reason in (
        (("sh", "-c", "echo x; echo 'error: no CUDA' >&2; exit 2"), "^no CUDA$"),
        (("sh", "-c", "exit 3"), "^status 3$"),
    ):
        with pytest.raises(ConfigError, match=reason):
            facts_module._run(*words)
    monkeypatch.setattr(facts_module, "_run", lambda *_, **__: "HYDRA build details")
    with pytest.raises(ConfigError, match="mpirun is not that of Open MPI"):
        list(facts_module._open_mpi())
    for package, lacks in (("mxnet", ["MPI"]), ("mxnet-cu112", ["MPI", "NCCL"])):
        monkeypatch.setattr(installed, "mxnet_package", lambda package=package: package)
        monkeypatch.setattr(facts_module, "_run", lambda *_: "[X] MXNet [ ] MPI [X] Gloo [ ] NCCL")
        found = wrong_of(facts_module._horovod())
        assert [one.partition(";")[0] for one in found] == [
            f"Horovod is built without {part}" for part in lacks
        ]


def test_the_probe_needs_the_standard_library_alone() -> None:
    """Of a host whose packages are missing, it has to say just that."""
    code = "import sys; import parallel.check.probe; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", code]
    modules = subprocess.check_output(command, cwd=ROOT, text=True).split()
    others = {"numpy", "psutil", "mxnet", "horovod", "typing_extensions"}
    assert "parallel.check.facts" in modules and not others & set(modules)


def test_the_probe_of_this_host(tmp_path: Path) -> None:
    key, other = "ab" * 32, "cd" * 32

    async def converse() -> Facts:
        probe = Probe("localhost", str(tmp_path / "run" / "of" / "mine"), "1", "1")
        await probe.start()
        assert not listeners(probe._process.pid)
        facts = Facts(**await probe.answer())
        # 192.0.2.1 is an address of documents (RFC 5737), and of no host.
        asked = await probe.ask(key=key, listen=["127.0.0.1", "192.0.2.1"], measure=[])
        ((address, port),) = asked["ports"].items()
        assert address == "127.0.0.1" and listeners(probe._process.pid) == {(address, port)}
        answers = [
            await probe.ask(key=one, listen=[], measure=[address, number])
            for number, one in ((port, other), (port, key), (1, key))
        ]
        assert "error" in answers[0] and answers[1]["bandwidth"] > 1e6
        assert answers[2] == {"error": "Connection refused"}
        await probe.close()
        assert probe._process.returncode == 0
        return facts

    facts = asyncio.run(converse())
    assert facts.hostname == socket.gethostname() and facts.interfaces["lo"] == "127.0.0.1"
    cells = facts.cells
    assert (cells["MXNet"], cells["Horovod"], cells["GPUs"]) == ("1.9.1 mxnet", "0.28.1", "none")
    assert cells["Open MPI"][0] in "34" and cells["ranks"].startswith("1 on ")
    assert not facts.wrong and UNUSABLE not in cells.values()


def test_the_checksum_is_of_what_a_run_uses(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(facts_module, "ROOT", tmp_path)

    def checksum() -> str:
        (found,) = facts_module._project()
        return found

    found = {checksum()}
    files = ("train.py", "run.sh", "runtime/errors.py", "parallel/check/x.py", "setup-utils/a/b")
    for number, name in enumerate(files, 2):
        for text in ("", "changed"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
            found.add(checksum())
        assert len(found) == 2 * number - 1
    for name in ("tests/test_a.py", "docs/a.md", "setup-utils/__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
        assert checksum() in found


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Start a script as the probe; return its answers to requests, the first without one."""

    async def converse(requests: int) -> list:
        probe = Probe("localhost", str(tmp_path))
        await probe.start()
        try:
            answers = [await probe.answer()]
            for number in range(requests):
                if probe._process.stdin.is_closing():
                    await probe._process.wait()
                answers.append(await probe.ask(listen=number))
            return answers
        finally:
            await probe.close()
            assert probe._process.returncode is not None

    def ask(script: str, requests: int = 0) -> list:
        write_program(tmp_path / "python", f"{script}\n")
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        return asyncio.run(converse(requests))

    monkeypatch.setattr(survey, "_END_SECONDS", 0.3)
    return ask


def test_a_conversation(asked) -> None:
    facts = json.dumps({"facts": 1})
    script = f"echo welcome; echo '{MARK}{facts}'; read line; echo '{MARK}'$line"
    assert asked(script, 1) == [{"facts": 1}, {"listen": 0}]
    refused = r"no connection by ssh \(Permission denied\); it has to work .*ssh .* true"
    for script, requests, reason in (
        ("echo what >&2; exit 3", 0, r"does not run there \(what\); copy this project"),
        ("echo Permission denied >&2; exit 255", 0, refused),
        (f"exec <&-; echo '{MARK}{facts}'; exit 4", 1, "no reason given"),
        ("exec >&- 2>&-; exec sleep 30", 0, "no reason given"),
    ):
        with pytest.raises(HostError, match=reason):
            asked(script, requests)
    for answer in (f"0123 {facts}", "1" * (2 << 20)):
        with pytest.raises(ValueError):
            asked(f"echo '{MARK}{answer}'")


def test_a_probe_that_is_busy_and_one_that_hangs(asked, monkeypatch) -> None:
    monkeypatch.setattr(survey, "SILENCE_SECONDS", 1.0)
    busy = f"echo '{MARK}null'; sleep 0.4;"
    assert asked(f"{busy * 3} echo '{MARK}{{\"facts\": 1}}'") == [{"facts": 1}]
    with pytest.raises(HostError, match="it has given no sign of life for 1 s; look there"):
        asked("exec sleep 30")


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
    with pytest.raises(OSError, match="another one"):
        bandwidth(*address, bytes(32))
    monkeypatch.setattr(probe_module, "_CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with pytest.raises(OSError):
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
