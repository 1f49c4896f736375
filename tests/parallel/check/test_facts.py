"""What a host says of itself, and how that is checked when it arrives."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

import pytest

from parallel.check import facts as facts_module
from parallel.check.facts import Facts, gather, parse
from parallel.check.network import Link
from runtime import installed
from runtime.errors import ConfigError
from tests.support import healthy_hosts


def sent(facts: Facts) -> Any:
    """As it arrives."""
    return json.loads(json.dumps(asdict(facts)))


def test_facts_arrive_as_they_were_sent() -> None:
    for package in ("mxnet", "mxnet-cu112"):
        facts = healthy_hosts.facts(1, package)
        assert parse(Facts, sent(facts)) == facts
    assert parse(Optional[int], None) is None and parse(Optional[int], 5) == 5
    assert parse(Link, [2.0]) == Link(2.0)
    # Text of others is one printable line of some length.
    assert parse(str, "a\nb\x1b[2Jc\u202ed") == "a b [2Jc d"
    assert len(parse(str, "x" * 9999)) == 300


def test_other_facts_are_refused() -> None:
    for change in (
        {"memory": "40000"}, {"memory": True}, {"memory": None}, {"hostname": ["x"]}, {"more": 1},
        {"interfaces": {"eth0": 5}}, {"infiniband": "mlx5"}, {"gpus": [["T4", [7, 5]]]},
        {"gpus": [{"name": "T4"}]},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="is no "):
            parse(Facts, {**sent(healthy_hosts.facts(0)), **change})
    for answer in (None, 5, "x", [], {}, ["1"], {"memory": 1}):
        for kind in (Facts, Link):
            with pytest.raises(ValueError):
                parse(kind, answer)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the programs that import MXNet."""
    monkeypatch.setattr(facts_module, "_check_mxnet", lambda package: "1.9.1")
    monkeypatch.setattr(facts_module, "_horovod_lacks", lambda: ("NCCL",))


def test_the_facts_of_this_host(quick: None, tmp_path: Path) -> None:
    facts = gather(tmp_path / "run" / "of" / "mine")
    assert (facts.hostname, facts.mxnet_package) == (socket.gethostname(), "mxnet")
    assert facts.interfaces["lo"] == "127.0.0.1" and facts.horovod == "0.28.1"
    assert facts.open_mpi is not None and facts.open_mpi[0] in "34"
    assert facts.disk is not None and min(facts.disk, facts.memory, facts.shared_memory) > 0
    assert {"train.py", "config.sh", "runtime/errors.py", "setup-utils/launchers/mpirun"} <= set(
        facts.files
    )
    assert not [name for name in facts.files if name.startswith(("tests", "docs"))]
    assert parse(Facts, sent(facts)) == facts


def test_what_hangs_fails_or_is_missing_is_a_fact(
    quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(error: Exception) -> None:
        raise error

    monkeypatch.setattr(facts_module, "_GATHER_SECONDS", 1)
    monkeypatch.setattr(facts_module, "_PROGRAM_SECONDS", 0.5)
    monkeypatch.setattr(installed, "gpus", lambda: fail(ConfigError("no driver")))
    monkeypatch.setattr(facts_module, "_free_for", lambda _: time.sleep(3))
    monkeypatch.setattr(facts_module, "_driver", lambda: fail(ZeroDivisionError("what")))
    monkeypatch.setattr(facts_module, "_open_mpi", lambda: facts_module._run("sleep", "5"))
    start = time.monotonic()
    facts = gather(tmp_path)
    assert time.monotonic() - start < 3
    assert facts.errors == {
        "gpus": "no driver",
        "disk": "no answer in 1 s",
        "driver": "ZeroDivisionError: what",
        "open_mpi": "sleep has not ended in 0 s",
    }
    assert (facts.gpus, facts.disk, facts.driver, facts.open_mpi) == ((), None, None, None)


def test_programs_and_folders_that_fail_say_why(tmp_path: Path) -> None:
    for words, reason in (
        (("sh", "-c", "echo x; echo 'error: no CUDA' >&2; exit 2"), "^no CUDA$"),
        (("sh", "-c", "exit 3"), "^status 3$"),
        (("nothing-there",), "^nothing-there does not start: No such file"),
    ):
        with pytest.raises(facts_module._Broken, match=reason):
            facts_module._run(*words)
    (tmp_path / "file").touch()
    with pytest.raises(facts_module._Broken, match="file cannot be written"):
        facts_module._free_for(tmp_path / "file" / "run")


def test_the_probe_needs_the_standard_library_alone() -> None:
    """Of a host whose packages are missing, it has to say just that."""
    code = "import sys; import parallel.check.probe; print(*sys.modules)"
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-S", "-c", code]
    modules = subprocess.check_output(command, cwd=root, text=True).split()
    others = {"numpy", "psutil", "mxnet", "horovod", "typing_extensions"}
    assert "parallel.check.facts" in modules and not others & set(modules)
