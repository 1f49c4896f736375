"""Files on their way to hosts, with a script in place of ssh that keeps a folder for each host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from parallel.launch import sync
from runtime.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
# The paths of this test's folder become those of the host's, in which nothing is at first.
SSH = """#!/bin/sh
while [ "${{1#-o}}" != "$1" ]; do shift; done
case $1 in
    unreachable) echo "connect to host: No route to host" >&2; exit 255 ;;
    damaging) command=$(printf %s "$2" | sed 's/tar -C/sed s,red,rde, | tar -C/') ;;
    *) command=$2 ;;
esac
echo "$1" >>"{folder}/calls"
exec sh -c "$(printf %s "$command" | sed "s#{folder}/here#{folder}/$1#g")"
"""
PROJECT = {"run.sh": "echo red\n", "room/one's.py": "red = 1\n"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two files in a folder with other things, from which commands are typed."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    folder = tmp_path / "here" / "two words"
    own = {"room/__pycache__/one.pyc": "compiled", "models/big": "none of the project"}
    for name, text in {**PROJECT, **own}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "run.sh").chmod(0o755)
    monkeypatch.setattr(sync, "_PROJECT", folder)
    monkeypatch.setattr(sync, "PROJECT_NAMES", ("room", "run*", "absent.md"))
    monkeypatch.chdir(folder)
    return folder


def on(here: Path, host: str) -> Path:
    return here.parents[1] / host / here.name


def content(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_a_host_gets_what_it_lacks_and_nothing_else_is_touched(here: Path) -> None:
    (here / "cifar" / "train").mkdir(parents=True)
    (here / "cifar" / "train" / "1.png").write_text("image")
    for host, line in zip("ab", sync.copy_to(["a", "b"], ["cifar"])):
        assert content(on(here, host)) == {**PROJECT, "cifar/train/1.png": "image"}
        assert os.access(on(here, host) / "run.sh", os.X_OK)
        assert line.startswith(f"{host} got 3 of 3 files, 0.0 MB: room/one's.py, run.sh, ")
    there = on(here, "a")
    (there / "cifar" / "own").write_text("a host's own")
    before = (there / "run.sh").stat().st_ino
    assert sync.copy_to(["a"], []) == ["a has all 2 files already"]
    (here / "room" / "one's.py").write_text("red = 2\n")
    for number in range(5):
        (here / "room" / f"{number}.py").write_text("x" * 100_000)
    (line,) = sync.copy_to(["a"], [])
    assert line.startswith("a got 6 of 7 files, 0.5 MB: ") and line.endswith(" and 1 more")
    assert (there / "run.sh").stat().st_ino == before
    assert content(there)["room/one's.py"] == "red = 2\n"
    assert content(there)["cifar/own"] == "a host's own"


def test_files_from_elsewhere_through_links_and_no_files(here: Path, tmp_path: Path) -> None:
    data = tmp_path / "here" / "data"
    data.mkdir()
    (data / "train.rec").write_text("records")
    os.mkfifo(data / "pipe")
    (here / "link").symlink_to(data)
    for said in ("a got 4 of 4 files", "a has all 4 files already"):
        (line,) = sync.copy_to(["a"], [str(data / "train.rec"), "link"])
        assert line.startswith(said) and line.endswith("; left out, as no files: 1")
    assert (tmp_path / "a" / "data" / "train.rec").read_text() == "records"
    assert content(on(here, "a")) == {**PROJECT, "link/train.rec": "records"}
    # This host, and one that shares the folder, keep their links.
    (line,) = sync.copy_to(["here"], [str(data / "train.rec"), "link"])
    assert line.startswith("here has all 4 files already") and (here / "link").is_symlink()
    (data / "b").symlink_to("nothing")
    with pytest.raises(ConfigError, match=r"^--sync: .*link/b cannot be read here \(No such"):
        sync.copy_to(["a"], ["link"])


def test_a_host_that_cannot_be_reached_or_written_or_gets_damaged_files(here: Path) -> None:
    there = on(here, "damaging")
    there.mkdir(parents=True)
    (there / "run.sh").write_text("the former\n")
    # A folder in the place of a file stays.
    (on(here, "a") / "run.sh").mkdir(parents=True)
    (here.parents[1] / "b").write_text("no folder")
    for host, reason in (
        ("damaging", "--sync has not copied all files there: .*did NOT match"),
        ("a", "--sync has not copied all files there: mv: "),
        ("b", "--sync has not copied all.*mkdir"),
        ("unreachable", r"no connection by ssh \(connect to"),
    ):
        with pytest.raises(ConfigError, match=f"^host {host}: {reason}") as raised:
            sync.copy_to([host], [])
        assert "\n" not in str(raised.value)
    assert content(there) == {"run.sh": "the former\n"} and not list(there.glob(".sync-*"))
    assert (on(here, "a") / "run.sh").is_dir()


def test_mistakes_are_found_before_anything_is_sent(here: Path) -> None:
    os.mkfifo(here / "pipe")
    (here / "data\\sets").touch()
    for name, message in (
        ("cifar", "^--sync cifar does not exist here"),
        ("pipe", "^--sync pipe is neither a file nor a folder"),
        ("data\\sets", "a line break or a backslash"),
    ):
        with pytest.raises(ConfigError, match=message):
            sync.copy_to(["a"], [name])
    assert not (here.parents[1] / "calls").exists()


def test_the_project_is_what_git_has() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no checkout of git")
    names = {line.split("/")[0] for line in listed.stdout.splitlines()}
    found = {path.name for name in sync.PROJECT_NAMES for path in ROOT.glob(name)}
    assert {name for name in names if not name.startswith(".")} == found
