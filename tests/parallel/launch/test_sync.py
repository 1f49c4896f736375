"""Files on their way to hosts, with a script in place of ssh that keeps a folder for each host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from parallel.launch import sync
from runtime.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
# The root of this test's folder becomes that of the host's, in which nothing is at first.
SSH = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do [ "$1" = -p ] && shift; shift; done
host=$1; shift
echo "$host" >>"{folder}/calls"
[ "$host" = unreachable ] && echo "connect to host: No route to host" >&2 && exit 255
[ "$host $*" = "plain command -v rsync" ] && exit 127
exec sh -c "$(printf %s "$*" | sed "s#tar -C /#tar -C {folder}/$host#")"
"""
# It says what it has been told, and which files it has sent; or fails.
RSYNC = """#!/bin/sh
printf '%s\\n' "$@" >"{folder}/words"
[ -e "{folder}/same" ] || printf '+ x/\\n+ x/%s\\nskipping non-regular file "y"\\n' 1 2 3 4 5 6
[ ! -e "{folder}/full" ] || {{ printf 'no space left\\nrsync error: code 11\\n' >&2; exit 11; }}
"""
PROJECT = {"run.sh": "echo red\n", "room/one's.py": "red = 1\n"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two files in a folder with other things, from which commands are typed."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("ssh", SSH), ("rsync", RSYNC)):
        (programs / name).write_text(text.format(folder=tmp_path))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    folder = tmp_path / "here" / "two words"
    own = {"room/__pycache__/one.pyc": "compiled", "models/big": "none of the project"}
    for name, text in {**PROJECT, **own}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "run.sh").chmod(0o755)
    (tmp_path / "plain").mkdir()
    monkeypatch.setattr(sync, "_PROJECT", folder)
    monkeypatch.setattr(sync, "PROJECT_NAMES", ("room", "run*", "absent.md"))
    monkeypatch.chdir(folder)
    return folder


def content(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_rsync_sends_the_project_and_named_files_to_the_same_paths(
    here: Path, tmp_path: Path
) -> None:
    (here / "cifar").mkdir()
    (line,) = sync.copy_to(["a:2222"], ["cifar", "../two words/cifar"])
    assert line == "a:2222 got /x/1, /x/2, /x/3, /x/4, /x/5 and 1 more"
    words = (tmp_path / "words").read_text().splitlines()
    assert {"-rLpcR", "--delay-updates", "--exclude=__pycache__"} < {*words}
    assert words[words.index("-e") + 1].startswith("ssh -oBatchMode=yes ")
    assert words[words.index("-e") + 1].endswith(" -p 2222")
    names = ("room", "run.sh", "cifar", "cifar")
    assert words[words.index("-e") + 2 :] == [*(f"{here}/{name}" for name in names), "a:/"]
    (tmp_path / "same").touch()
    assert sync.copy_to(["a"], []) == ["a has all files already"]
    (tmp_path / "full").touch()
    with pytest.raises(ConfigError, match="^host a: --sync has not copied all .*: no space left$"):
        sync.copy_to(["a"], [])


def test_tar_sends_them_where_there_is_no_rsync(here: Path, tmp_path: Path) -> None:
    data = tmp_path / "here" / "data"
    data.mkdir()
    (data / "train.rec").write_text("records")
    (here / "link").symlink_to(data)
    there = tmp_path / "plain" / str(here)[1:]
    there.mkdir(parents=True)
    (there / "own").write_text("a host's own")
    (line,) = sync.copy_to(["plain"], [str(data / "train.rec"), "link"])
    names = {"run.sh", "room/one's.py", str(data / "train.rec"), "link/train.rec"}
    assert {*line.removeprefix("plain got ").split(", ")} == names
    assert content(there) == {**PROJECT, "own": "a host's own", "link/train.rec": "records"}
    assert (there.parent / "data" / "train.rec").read_text() == "records"
    assert os.access(there / "run.sh", os.X_OK)
    (data / "b").symlink_to("nothing")
    with pytest.raises(ConfigError, match="^host plain: .*link/b"):
        sync.copy_to(["plain"], ["link"])
    # A folder in the place of a file stays.
    (there / "run.sh").unlink()
    (there / "run.sh" / "sub").mkdir(parents=True)
    with pytest.raises(ConfigError, match="^host plain: .*run.sh: Cannot open") as raised:
        sync.copy_to(["plain"], [])
    assert "\n" not in str(raised.value)


def test_mistakes_are_found_before_anything_is_sent(here: Path, tmp_path: Path) -> None:
    os.mkfifo(here / "pipe")
    for name, message in (
        ("cifar", "^--sync cifar does not exist here; .* put -- before the command"),
        ("pipe", "^--sync pipe is neither a file nor a folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            sync.copy_to(["a"], [name])
    assert not (tmp_path / "calls").exists()
    with pytest.raises(ConfigError, match=r"^host unreachable: no connection by ssh \(connect to"):
        sync.copy_to(["plain", "unreachable"], [])
    assert not content(tmp_path / "plain")


def test_the_project_is_what_git_has() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no checkout of git")
    names = {line.split("/")[0] for line in listed.stdout.splitlines()}
    found = {path.name for name in sync.PROJECT_NAMES for path in ROOT.glob(name)}
    assert {name for name in names if not name.startswith(".")} == found
