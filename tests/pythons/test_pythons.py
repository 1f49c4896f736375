"""Which Pythons are found, and where each is tried; ``make pythons`` tries them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Optional

import pytest

from tests.pythons import campaign, modules
from tests.pythons.campaign import Trial


def stub(path: Path, answer: str, status: int = 0) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {answer}\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def test_pythons_are_found_on_the_path_and_among_pyenvs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:{tmp_path / 'bin'}:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    # As a shim answers for a version that is not active.
    stub(tmp_path / "shims/python3.9", "pyenv: python3.9: command not found", status=127)
    one = stub(tmp_path / "bin/python3.9", "3.9")
    other = stub(tmp_path / "pyenv/versions/3.9.18/bin/python3.9", "3.9")
    stub(tmp_path / "bin/python3.10", "3.12")
    assert campaign.candidates("3.9")[:2] == [one, other]
    assert str(tmp_path / "bin/python3.10") not in campaign.candidates("3.10")


def only_python_of_nobody(monkeypatch: pytest.MonkeyPatch, readable: str) -> None:
    def is_usable(python: str, version: str, user: Optional[int] = None) -> bool:
        return user is None or python == readable

    monkeypatch.setattr(campaign, "_is_usable", is_usable)


def test_each_python_gets_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    only_python_of_nobody(monkeypatch, "/usr/c")
    found = {"3.9": ["/a"], "3.10": ["/b"], "3.11": ["/c", "/usr/c"], "3.12": ["/d"]}
    assert campaign.deal_out(found, can_switch_user=True) == [
        Trial("3.9", "/a", "space"),
        Trial("3.10", "/b", "home"),
        Trial("3.11", "/usr/c", "user"),
        Trial("3.12", "/d", "plain"),
    ]
    places = [trial.place for trial in campaign.deal_out(found, can_switch_user=False)]
    assert places == ["space", "home", "plain", "plain"]


def test_pythons_and_places_that_are_left_out_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only_python_of_nobody(monkeypatch, "/none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        campaign, "candidates", lambda version: ["/p"] if version in ("3.9", "3.12") else []
    )
    tried = []

    def run(trial: Trial, folder: Path) -> str:
        tried.append(trial)
        if trial.version == "3.12":
            raise campaign.Failure("the end of its output")
        return "accuracy 0.5 -> 0.9"

    monkeypatch.setattr(campaign, "run", run)
    assert campaign.main([]) == 1
    assert tried == [Trial("3.9", "/p", "space"), Trial("3.12", "/p", "home")]
    said = capsys.readouterr().out
    for text in ("Python 3.10: not found", "Python 3.11: not found", "as a user without root: not",
                 "in a plain folder: not tried", "accuracy 0.5 -> 0.9", "the end of its output",
                 "pythons: 1 passed, 1 failed"):  # fmt: skip
        assert text in said
    assert campaign.main(["--only", "3.9", "--place", "plain"]) == 0
    assert tried[-1] == Trial("3.9", "/p", "plain")


def test_the_copy_is_what_git_knows_or_could(tmp_path: Path) -> None:
    campaign._copy(tmp_path)
    listed = subprocess.run(
        ["git", "ls-files"], cwd=campaign.ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    there = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert {name for name in listed if (campaign.ROOT / name).is_file()} <= there
    assert not there & {".venv", ".git"}


def test_every_module_is_imported() -> None:
    names = modules.names()
    expected = {"train", "runtime.mxnet", "training.log.metric_files", "benchmarks.head", "data"}
    assert expected <= set(names)
    assert not any("pytorch" in name or "-" in name for name in names)
