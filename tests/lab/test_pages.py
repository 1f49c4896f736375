"""Every command of the lab's pages, run as it is typed, prints what its page says."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.launch import ROOT, finish
from tests.support.printed import difference

_BLOCK = re.compile(
    r"(<!-- numbers of the machine -->\n\n)?^```\n\$ (.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
pytestmark = [pytest.mark.documents, pytest.mark.launcher]


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "lab").glob("[0-9]*.md")), ids=lambda page: page.stem
)
def test_a_page_says_what_is_printed(page: Path, tmp_path: Path) -> None:
    for path in ROOT.iterdir():
        if path.name not in ("models", "datasets", "timeline.json"):
            (tmp_path / path.name).symlink_to(path)
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    exercises = _BLOCK.findall(page.read_text(encoding="utf-8"))
    assert exercises
    for mark, command, expected in exercises:
        done = finish("bash", "-c", f"exec 2>&1; {command}", folder=tmp_path, PATH=places)
        found = difference(done.stdout, expected, of_the_machine=bool(mark))
        assert not found, f"{command}\n{found}\n{done.stdout}"
