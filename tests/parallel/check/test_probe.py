"""The report of a host about itself, its measurements, and conversations with probes."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from parallel.check import facts as facts_module
from parallel.check import probe as probe_module
from parallel.check.facts import UNUSABLE, gather
from parallel.check.probe import MARK, bandwidth, serve
from parallel.host_lists import free_port
from runtime import installed, processors
from runtime.errors import ConfigError
from runtime.installed import Gpu
from tests.support.launch import ROOT
from tests.support.processes import listeners

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
        "_disk": lambda _: iter([str(time.sleep(3))] for _ in "x"),
        "_open_mpi": lambda: iter([facts_module._run("sleep", "5")] for _ in "x"),
    }
    for name, replaced in nothing.items():
        monkeypatch.setattr(facts_module, name, replaced)
    monkeypatch.setattr(facts_module, "_GATHER_SECONDS", 1)
    monkeypatch.setattr(facts_module, "_PROGRAM_SECONDS", 0.5)
    start = time.monotonic()
    facts = gather(str(tmp_path), 1, 1)
    assert time.monotonic() - start < 3
    reasons = {
        "Open MPI": "Command '('sleep', '5')' timed out after 0.5 seconds",
        "GPUs": "no driver",
        "disk free": "no answer",
    }
    assert [one for one in facts.wrong if "cannot be used" in one] == [
        f"{row} cannot be used ({reason}); repair it, or remove .venv there and make env"
        for row, reason in reasons.items()
    ]
    assert {row for row, cell in facts.cells.items() if cell == UNUSABLE} == set(reasons)


def test_what_is_free_and_what_ranks_need(monkeypatch, tmp_path: Path) -> None:
    memory, disk = Mock(), Mock()
    monkeypatch.setattr(facts_module.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    folder = tmp_path / "run" / "of"
    for check, given, least in (
        (facts_module._memory, 8, 8 << 30), (facts_module._shared_memory, 8, 256 << 20),
        (facts_module._shared_memory, 1, 0), (facts_module._disk, folder, 2 << 30),
    ):  # fmt: skip
        for free in (least, least - 1)[: 1 + bool(least)]:
            memory.available = disk.free = free
            assert (not wrong_of(check(given))) == (free == least)
    memory.available = 200 << 20
    (line,) = wrong_of(facts_module._memory(8))
    assert line.startswith("200 MiB are free of memory, and 8.0 GiB are expected; free some, ")
    (tmp_path / "file").touch()
    (line,) = wrong_of(facts_module._disk(tmp_path / "file" / "run"))
    assert line.startswith("--models-root cannot be used (")
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
    ("mxnet", [], 0, "none", []),
    ("mxnet", [T4], 11040, "1 Tesla T4, CUDA 11.4", ["its MXNet is for processors and would not"]),
    # Newer; or older within CUDA 11, which is enough.
    ("mxnet-cu112", [T4] * 8, 12020, "8 Tesla T4, CUDA 12.2", []),
    ("mxnet-cu112", [T4] * 8, 11000, "8 Tesla T4, CUDA 11.0", []),
    ("mxnet-cu112", [T4] * 7, 11040, "7 Tesla T4, CUDA 11.4", ["more ranks (8) than GPUs (7); "]),
    ("mxnet-cu112", [], 0, "none", ["more ranks (8) than GPUs (0); "]),
    ("mxnet-cu112", [T4] * 7 + [H100], 11040, "8 H100, Tesla T4, CUDA 11.4",
     ["mxnet-cu112 has no machine code for H100; docs"]),
    ("mxnet-cu112", [T4] * 8, 10020, "8 Tesla T4, CUDA 10.2", ["its driver is for CUDA 10.2, too"]),
    # CUDA 10 takes no older driver.
    ("mxnet-cu102", [T4] * 8, 10020, "8 Tesla T4, CUDA 10.2", []),
    ("mxnet-cu102", [T4] * 8, 10010, "8 Tesla T4, CUDA 10.1", ["its driver is for CUDA 10.1, too"]),
])  # fmt: skip
def test_each_rank_has_a_gpu_that_fits(package, gpus, driver, cell, lines, monkeypatch) -> None:
    monkeypatch.setattr(installed, "mxnet_package", lambda: package)
    monkeypatch.setattr(installed, "gpus", lambda: (gpus, driver))
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


def probe(**request: object) -> subprocess.Popen:
    words = [sys.executable, "-m", "parallel.check.probe"]
    process = subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.stdin.write(json.dumps(request))
    process.stdin.close()
    return process


def said(process: subprocess.Popen) -> dict:
    with process:
        _, _, answer = process.stdout.read().partition(MARK)
    assert process.returncode == 0
    return json.loads(answer)


def test_two_probes_measure_each_other() -> None:
    key, ports = "ab" * 32, [free_port("127.0.0.1"), free_port("127.0.0.2")]
    places = [("127.0.0.1", ports[0]), ("127.0.0.2", ports[1])]
    first = probe(key=key, listen=places[0], send=places[1])
    # The other one starts later; a process without the key is none.
    while not listeners(first.pid):
        time.sleep(0.05)
    assert listeners(first.pid) == {places[0]}
    other = said(probe(key="cd" * 32, listen=None, send=places[0]))
    assert other["bandwidth"] == 0 and "proof" in other["error"]
    second = probe(key=key, listen=places[1], send=places[0])
    for process in (first, second):
        answer = said(process)
        assert answer["bandwidth"] > 1e6 and not answer["error"]


def test_the_checksum_is_of_what_a_run_uses(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(facts_module, "ROOT", tmp_path)
    (before,) = facts_module._project()
    files = {"train.py": True, "run.sh": True, "parallel/b/c.py": True, "setup-utils/d": True}
    files |= {"tests/test_a.py": False, "setup-utils/__pycache__/a.pyc": False}
    for name, counts in files.items():
        for text in ("", "changed"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
            (now,) = facts_module._project()
            assert (now != before) == counts, (name, text)
            before = now


def test_connections_that_fail_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "_START_SECONDS", 0)
    monkeypatch.setattr(probe_module, "_CONNECT_SECONDS", 0.5)
    port = free_port("127.0.0.1")
    serve("::1", port, KEY)
    assert bandwidth("::1", port, KEY) > 0
    with pytest.raises(OSError, match="refused"):
        bandwidth("127.0.0.2", port, KEY)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with pytest.raises(OSError):
            bandwidth("127.0.0.1", silent.getsockname()[1], KEY)
        assert time.monotonic() - start < 3
