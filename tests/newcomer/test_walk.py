"""The README's commands have plans, and a walk through them notices what is not as it says."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from tests.newcomer import commands, walk
from tests.newcomer.commands import Typed
from tests.newcomer.walk import ROOT

pytestmark = pytest.mark.documents


def test_every_command_of_the_readme_has_a_plan_and_no_plan_is_left_over() -> None:
    found = list(commands.read((ROOT / "README.md").read_text(encoding="utf-8")))
    assert found[0].text == "make train" and found[0].output
    assert len(found) > 15
    plans = [commands.plan_of(typed.text) for typed in found]
    # Two hosts are more than any machine has by itself; everything else is run.
    assert [typed.text for typed, plan in zip(found, plans) if plan.left_out] == [
        "horovodrun -np 16 -H ip1:8,ip2:8 bash config.sh"
    ]
    for beginning in commands.PLANS:
        assert any(typed.text.startswith(beginning) for typed in found), beginning
    with pytest.raises(LookupError, match="no plan for 'make trainer'"):
        commands.plan_of("make trainer")


def test_what_a_command_prints_stands_behind_it() -> None:
    text = "```\n$ make x   # why\nloss 1.5\n…\ndone 7\n$ bash y \\\n    --z 1\n^C\nstopped\n```\n"
    assert list(commands.read(text)) == [
        Typed("make x", ("loss 1.5", "done 7"), prompted=True),
        Typed("bash y --z 1", ("stopped",), interrupted=True, prompted=True),
    ]


def test_what_was_not_printed() -> None:
    loss, done = expected = ("at 20: loss 1.5 (…)", "done 7")
    for printed, missing in (
        (["rank 0 INFO: at 20: loss 1.52 (3 s)", "done 7"], None),
        (["at 20: loss 1.5 (1.25 h)", "x", "done 7"], None),
        (["at 20: loss 1.54 (3 s)", "done 7"], loss),
        (["at 21: loss 1.5 (3 s)", "done 7"], loss),
        (["at 20: loss 1.5", "done 7"], loss),
        (["done 7", "at 20: loss 1.5 (3 s)"], done),
        (["at 20: loss 1.5 (3 s)", "done 70"], done),
        ([], loss),
    ):
        assert Typed("make x", expected).missing(printed) == missing, printed


def test_a_walk_keeps_sessions_and_counts_failures(tmp_path: Path, monkeypatch) -> None:
    """A command in a block without prompts is run and counts, but is no session."""
    readme = "```\n$ make x\nloss 1.5\n$ make y\nall 7\n```\n```\nmake z\n```\n"
    (tmp_path / "toolkit").mkdir()
    (tmp_path / "toolkit/README.md").write_text(readme)
    (tmp_path / "toolkit/Makefile").write_text(
        "x:\n\t@echo 2026-11-22 22:59:31 loss 1.51\ny:\n\t@echo all 8\n"
    )
    monkeypatch.setattr(commands, "PLANS", {"make": commands.Plan()})
    options = argparse.Namespace(data=tmp_path, python="python3", skip="", prompts=False)
    sessions = ["$ make x\nloss 1.51\n", "$ make y\n"]
    assert walk.walk(tmp_path, options) == walk.Walked(2, sessions)
    options.prompts = True
    assert walk.walk(tmp_path, options) == walk.Walked(1, sessions)


def test_ctrl_c_is_pressed_once_updates_are_reported(tmp_path: Path) -> None:
    clone = tmp_path / "toolkit"
    clone.mkdir()
    line = 'trap "echo stopped; exit 130" INT; echo "update 1/9 loss"; sleep 60 & wait; echo no'
    assert walk.wait(line, commands.Plan(), clone, os.environ, interrupted=True) == 130
    assert (tmp_path / "log.txt").read_text().split() == ["update", "1/9", "loss", "stopped"]
    assert walk.wait("echo done", commands.Plan(), clone, os.environ, interrupted=True) == 0
