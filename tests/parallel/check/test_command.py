"""The command, on this host."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from parallel.check import __main__ as command
from runtime.errors import ConfigError
from tests.support.healthy_hosts import healthy

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list:
    """What is asked of a survey that finds two healthy hosts; its findings come first."""
    found = healthy({"a": 1, "b": 1})
    calls: list = [found]

    def survey(slots, models_root, nic):
        calls.append((slots, models_root, nic))
        return found

    monkeypatch.setattr(command, "survey", survey)
    for variable in ("NIC", "HOSTS", "HOSTFILE", "OMPI_MCA_orte_default_hostfile"):
        monkeypatch.delenv(variable, raising=False)
    return calls


def test_options_and_the_variables_of_run_sh(
    asked: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    assert command.main(["-H", "a:1,b:1", "--models-root", "x"]) == 0
    assert asked[-1] == ({"a": 1, "b": 1}, Path.cwd() / "x", None)
    assert capsys.readouterr().out.endswith("healthy: nothing is wrong\n")
    hosts, operator = tmp_path / "hosts", tmp_path / "operator"
    hosts.write_bytes(b"\xef\xbb\xbfa slots=1\r\na:2\r\n")
    operator.write_text("c slots=3\n")
    command.main([])
    assert asked[-1] == ({"localhost": 1}, Path.cwd() / "models", None)
    monkeypatch.setenv("NIC", "eth1")
    for name, value, options, slots in (
        # The latter as mpirun and horovodrun write it.
        ("NIC", "eth1", ["--hostfile", str(hosts)], {"a": 3}),
        ("NIC", "eth1", ["-hostfile", str(hosts)], {"a": 3}),
        ("OMPI_MCA_orte_default_hostfile", str(operator), [], {"c": 3}),
        ("HOSTFILE", str(hosts), [], {"a": 3}),
        ("HOSTS", "a:1", [], {"a": 1}),
        # Names of this host are one host.
        ("HOSTS", "a:1", ["-H", "127.0.0.1:1,a:2,localhost:3"], {"127.0.0.1": 4, "a": 2}),
    ):
        monkeypatch.setenv(name, value)
        command.main(options)
        assert asked[-1] == (slots, Path.cwd() / "models", "eth1")
    for wrong in (["-H", ""], ["-H", "a", "--hostfile", "x"], ["a:1"], ["-H", "[::1]:2"]):
        with pytest.raises(ConfigError):
            command.main(wrong)
    assert len(asked) == 9


def test_what_is_wrong_is_the_status(asked: list, capsys) -> None:
    survey = asked[0]
    survey.facts["b"] = replace(survey.facts["b"], open_files=5)
    assert command.main(["-H", "a,b"]) == 2
    assert capsys.readouterr().out.splitlines()[-1] == "1 wrong"
    assert command.main(["-H", "a,b", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    (finding,) = found["findings"]
    assert finding["host"] == "b" and set(finding) == {"host", "what", "remedy"}
    assert found["facts"]["b"]["open_files"] == 5 and len(found["pairs"]) == 2


def test_this_host() -> None:
    """With the real probe, which imports MXNet and Horovod in processes of their own."""
    words = [sys.executable, "-m", "parallel.check", "--json"]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=150)
    found = json.loads(result.stdout)
    here = found["facts"]["localhost"]
    assert (here["mxnet"], here["horovod"]) == ("1.9.1", "0.28.1")
    assert here["horovod_lacks"] == ["NCCL"]
    assert not here["errors"] and found["silent"] == []
    # What is wrong with the machine that runs the tests, such as its disk, is its own.
    assert result.returncode == (2 if found["findings"] else 0)
