"""What is changed of Horovod's launcher, beside what jobs on two hosts show."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "setup-utils/horovodrun.py"
# The shell of the other host gets one string.
SSH = """\
#!/usr/bin/env bash
echo "${*:1:$#-1}" >"$CALL"
exec bash -c "${*: -1}"
"""


@pytest.fixture(scope="module")
def horovodrun() -> ModuleType:
    spec = importlib.util.spec_from_file_location("horovodrun", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_command_reaches_another_host_as_it_is(horovodrun, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("HOST_TIMEOUT", "40")
    monkeypatch.setenv("CALL", str(tmp_path / "call"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    rank = f"cd {shlex.quote(str(folder))} ; env X='1  2' sh -c 'echo \"$X\" $(pwd); exit 3'"
    command = horovodrun.remote_command(shlex.quote(rank), "ip2", 77, "a key")
    said = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (said.stdout, said.stderr, said.returncode) == (f"1  2 {folder}\n", "", 3)
    call = (tmp_path / "call").read_text()
    assert "StrictHostKeyChecking=no -p 77 -i a key -o ServerAliveInterval=10" in call
    assert call.endswith(" ip2\n")


def test_a_rank_that_fails_is_named_with_its_host(horovodrun, monkeypatch, capsys) -> None:
    statuses = iter([0, 137])
    start = lambda *_: (next(statuses), 0.0)  # noqa: E731
    monkeypatch.setattr(horovodrun, "_gloo_starter", lambda settings: start)
    run = horovodrun.starter(None)
    for rank in (0, 1):
        run("true", SimpleNamespace(rank=rank, hostname=f"ip{rank + 1}"), [])
    assert capsys.readouterr().out == "rank 1 on ip2 has ended with status 137\n"
