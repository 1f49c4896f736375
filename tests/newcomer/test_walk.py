"""The README's commands have plans, and a walk through them notices what is not as it says."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from tests.newcomer import walk
from tests.newcomer.walk import ROOT, Plan, Typed

pytestmark = pytest.mark.documents


def test_every_command_of_the_readme_has_a_plan_and_no_plan_is_left_over() -> None:
    found = list(walk.read((ROOT / "README.md").read_text(encoding="utf-8")))
    assert found[0].text == "make train" and found[0].output
    assert len(found) > 15
    assert [typed.text for typed in found if walk.plan_of(typed.text) is None] == []
    for begin in walk.PLANS:
        assert any(typed.text.startswith(begin) for typed in found), begin
    assert walk.plan_of("make trainer") is None


def test_what_a_command_prints_stands_behind_it() -> None:
    text = "```\n$ make x   # why\nloss 1.5\n…\ndone 7\n$ bash y \\\n    --z 1\n^C\nstopped\n```\n"
    assert list(walk.read(text)) == [
        Typed("make x", ("loss 1.5", "done 7"), prompted=True),
        Typed("bash y --z 1", ("stopped",), interrupted=True, prompted=True),
    ]
    typed = Typed("make x", ("at 20: loss 1.5 (…)", "done 7"))
    for printed, count in (
        ("2026-11-22 22:59:31 rank 0 INFO: at 20: loss 1.52 (3 s)\n\nx\ndone 7\n", 2),
        ("at 20: loss 1.54 (3 s)\ndone 7\n", 0),
        ("at 20: loss 1.5\ndone 7\n", 0),
        ("done 7\nat 20: loss 1.5 (3 s)\n", 1),
        ("at 20: loss 1.5 (3 s)\ndone 70\n", 1),
    ):
        assert len(typed.said(printed)) == count, printed


def test_a_walk_prints_sessions_and_counts_failures(tmp_path: Path, monkeypatch, capsys) -> None:
    readme = "```\n$ make x\nloss 1.5\n$ make y\nall 7\n```\n```\nmake z\n```\n"
    (tmp_path / "toolkit").mkdir()
    (tmp_path / "toolkit/README.md").write_text(readme)
    (tmp_path / "toolkit/Makefile").write_text("x:\n\t@echo loss 1.51\ny:\n\t@echo all 8\n")
    monkeypatch.setattr(walk, "PLANS", {"make": Plan()})
    options = argparse.Namespace(data=tmp_path, python="python3", skip="", prompts=False)
    assert walk.walk(tmp_path, options) == 2
    said = capsys.readouterr().out
    assert "$ make x\nloss 1.51\nstatus 0, " in said and "not printed: all 7\n$ make z\n" in said
    assert "make: *** No rule to make target 'z'" in said


def test_ctrl_c_is_pressed_once_updates_are_reported(tmp_path: Path) -> None:
    clone = tmp_path / "toolkit"
    clone.mkdir()
    line = 'trap "echo stopped; exit 130" INT; echo "update 1/9 loss"; sleep 60 & wait; echo no'
    assert walk.wait(line, Plan(), clone, os.environ, interrupted=True) == 130
    assert (tmp_path / "log.txt").read_text().split() == ["update", "1/9", "loss", "stopped"]
    assert walk.wait("echo done", Plan(), clone, os.environ, interrupted=True) == 0
