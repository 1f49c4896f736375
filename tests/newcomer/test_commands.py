from __future__ import annotations

import pytest

from tests.newcomer import commands
from tests.newcomer.walk import ROOT


def test_every_command_of_the_readme_has_a_plan() -> None:
    found = list(commands.read((ROOT / "README.md").read_text(encoding="utf-8")))
    assert found[:2] == ["make train", "make test"]
    assert len(found) > 15
    plans = [commands.plan_of(command) for command in found]
    # Two hosts are more than any machine has by itself; everything else is run.
    assert [command for command, plan in zip(found, plans) if plan.left_out] == [
        "horovodrun -np 16 -H ip1:8,ip2:8 bash config.sh"
    ]


def test_every_plan_is_that_of_a_command() -> None:
    found = list(commands.read((ROOT / "README.md").read_text(encoding="utf-8")))
    for beginning in commands.PLANS:
        assert any(command.startswith(beginning) for command in found), beginning


def test_commands_are_read_without_comments_and_in_one_line() -> None:
    text = "a\n```\nmake x   # why\nA=b python y \\\n    --z 1,2\nmodel-0000.params   a file\n```\n"
    assert list(commands.read(text)) == ["make x", "A=b python y --z 1,2"]


def test_a_command_without_a_plan() -> None:
    with pytest.raises(LookupError, match="no plan for 'make trainer'"):
        commands.plan_of("make trainer")
