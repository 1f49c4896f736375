"""Every command of the lab's pages, run as it is typed, prints what its page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.launch import clean_environment
from tests.support.printed import difference

pytestmark = pytest.mark.documents

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "lab").glob("[0-9]*.md"))
_BLOCK = re.compile(
    r"(<!-- numbers of the machine -->\n\n)?^```\n\$ (.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


class Exercise(NamedTuple):
    """A command of a page."""

    command: str
    expected: str
    of_the_machine: bool


def exercises(page: Path) -> list[Exercise]:
    text = page.read_text(encoding="utf-8")
    return [Exercise(command, said, bool(mark)) for mark, command, said in _BLOCK.findall(text)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that looks like the project's, but in which runs write beside it."""
    for path in ROOT.iterdir():
        if path.name not in ("models", "datasets", "timeline.json"):
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.mark.launcher
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_what_is_printed(page: Path, project: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    assert exercises(page)
    for command, expected, of_the_machine in exercises(page):
        done = subprocess.run(
            ["bash", "-c", command], cwd=project, env={**clean_environment(), "PATH": path},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        found = difference(done.stdout, expected, of_the_machine=of_the_machine)
        assert not found, f"{command}\n{found}\n{done.stdout}"
