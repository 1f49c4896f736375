import errno
import hashlib
import os
import re
import resource
import shutil
import signal
import socket
from pathlib import Path

import pytest

from runtime import files
from runtime.errors import ConfigError, DataError


@pytest.fixture
def full_disk():
    """Files cannot grow beyond 64 KiB, which the kernel reports as it does a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, former)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_appear_together_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    """All of them are flushed before any gets its name, and after that the folder."""
    old, new = tmp_path / "a", tmp_path / "b"
    old.write_bytes(b"old")
    with pytest.raises(KeyError), files.StagedFiles() as staged:
        staged.open(old).write(b"new")
        raise KeyError
    assert names(tmp_path) == ["a"] and old.read_bytes() == b"old"
    events: list[list[str]] = []
    flush = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (events.append(names(tmp_path)), flush(file)))
    with files.StagedFiles() as staged:
        staged.open(old).write(b"new a")
        staged.open(new).write(b"new b")
        assert old.read_bytes() == b"old" and not new.exists()
    assert old.read_bytes() + new.read_bytes() == b"new anew b"
    assert events[0] == events[1] and events[2:] == [["a", "b"]] == [names(tmp_path)]
    parts = [re.sub(r"\.[0-9a-f]{12}\.", ".RANDOM.", name) for name in events[0]]
    assert parts == [".a.RANDOM.part", ".b.RANDOM.part", "a"]


def test_a_full_disk_leaves_what_was_there(full_disk: None, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(OSError) as caught:
        files.write_atomically(tmp_path / "a", bytes(1 << 17))
    assert caught.value.errno == errno.EFBIG
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"old"


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    full = pytest.raises(DataError, match="cannot be written: No space")
    with full, files.new_folder(out) as hidden:
        (hidden / "a").write_text("1")
        raise OSError(28, "No space left on device")
    assert not names(out.parent)
    out.mkdir()
    with files.new_folder(out) as hidden:
        (hidden / "a").write_text("1")
        assert not (out / "a").exists()
    assert names(out.parent) == ["out"] and (out / "a").read_text() == "1"


@pytest.mark.parametrize(("name", "target"), [
    ("out", None), (".out.part", "user"), (".out.part", "gone"),
])  # fmt: skip
def test_no_folder_is_overwritten(tmp_path: Path, name: str, target) -> None:
    """Nor is a link in place of the hidden one followed, to a folder of the user or to nothing."""
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "a").touch()
    if target is None:
        shutil.copytree(tmp_path / "user", tmp_path / name)
    else:
        (tmp_path / name).symlink_to(target)
    before = sorted(tmp_path.rglob("*"))
    refused = pytest.raises(ConfigError, match=f"{name} exists already")
    with refused, files.new_folder(tmp_path / "out"):
        raise AssertionError
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("opened", [
    files.open_regular, files.read_file, files.read_text,
    lambda path: open(path, "ab", opener=files.open_kept),
])  # fmt: skip
def test_only_regular_files_are_read_or_appended_to(tmp_path: Path, opened) -> None:
    """A pipe would make its reader wait forever, and so the test."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    for name, target in (("to a pipe", "pipe"), ("device", "/dev/zero"), ("itself", "itself")):
        (tmp_path / name).symlink_to(target)
    message = "not a regular file|No such device|Too many levels|it is a link|Is a directory"
    for path in tmp_path.iterdir():
        with pytest.raises(OSError, match=message):
            opened(path)


def test_a_file_is_read_through_a_link_unless_it_is_too_large(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"content")
    link.symlink_to("file")
    assert files.read_file(link, 7) == b"content"
    assert files.sha256(link, path) == hashlib.sha256(b"contentcontent").hexdigest()
    os.truncate(path, 1 << 40)
    with pytest.raises(OSError, match="it has more than 7 bytes"):
        files.read_file(path, 7)
    with pytest.raises(DataError, match="file cannot be read as a list: it has more than 4,294"):
        files.read_lines(path, "a list")


@pytest.mark.parametrize("content", [
    "a é\n\nb".encode(),
    "\ufeffa é\r\n\r\nb\r\n".encode(),
    "a é\r\rb\r".encode(),
    "\ufeffa é\n\nb\n".encode("utf-16-be"),
])  # fmt: skip
def test_lines_of_any_system(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "list").write_bytes(content)
    assert files.read_lines(tmp_path / "list", "a list") == ["a é", "", "b"]
    assert files.read_text(tmp_path / "list").rstrip("\n") == "a é\n\nb"


def test_what_is_not_text_is_refused(tmp_path: Path) -> None:
    content = b"m\xfc.jpg\nx\x0cy\xc2\x85z\xe2\x80\xa8.jpg\n"
    (tmp_path / "list").write_bytes(content)
    found = files.read_lines(tmp_path / "list", "a list", errors="surrogateescape")
    assert [os.fsencode(line) for line in found] == content.split(b"\n")[:-1]
    with pytest.raises(DataError, match="it is not text in UTF-8 or UTF-16"):
        files.read_lines(tmp_path / "list", "a list")
    (tmp_path / "odd").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "binary").write_bytes(b"\xff\xd8\xff\0\x10")
    for name in ("odd", "binary", "nowhere"):
        with pytest.raises(DataError, match="cannot be read as a list of pairs: "):
            files.read_lines(tmp_path / name, "a list of pairs", errors="surrogateescape")


def test_no_link_is_followed_to_be_written(tmp_path: Path) -> None:
    """A temporary name is one that nobody can guess."""
    user = tmp_path / "user"
    user.write_bytes(b"precious")
    (tmp_path / "symbolic").symlink_to(user)
    (tmp_path / "to nothing").symlink_to("gone")
    os.link(user, tmp_path / "hard")
    for name in ("symbolic", "to nothing", "hard"):
        with pytest.raises(OSError, match="it is a (hard )?link"):
            open(tmp_path / name, "ab", opener=files.open_kept)
        with files.create(tmp_path / name) as file:
            file.write(b"new")
        assert (tmp_path / name).read_bytes() == b"new" and not (tmp_path / name).is_symlink()
    (tmp_path / "a").symlink_to(user)
    files.write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new" and not (tmp_path / "a").is_symlink()
    with files.StagedFiles() as staged:
        assert len({staged.open(tmp_path / "a").name for _ in range(20)}) == 20
    assert user.read_bytes() == b"precious" and not (tmp_path / "gone").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_logs_and_links_of_other_users(tmp_path: Path) -> None:
    """The owner of the folder may have files in it: he could replace them in any case."""
    (tmp_path / "log").write_bytes(b"")
    os.chown(tmp_path / "log", 12345, -1)
    with pytest.raises(OSError, match="belongs to another user"):
        open(tmp_path / "log", "ab", opener=files.open_kept)
    os.chown(tmp_path, 12345, -1)
    for line in (b"one\n", b"two\n"):
        with open(tmp_path / "log", "ab", opener=files.open_kept) as file:
            file.write(line)
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    # The user's own link may lead to another disk.
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    files.make_folder(tmp_path / "link")
    os.chown(tmp_path / "link", 12345, -1, follow_symlinks=False)
    with pytest.raises(OSError, match="it is a link of another user"):
        files.make_folder(tmp_path / "link")
    files.make_folder(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()


def test_a_folder_and_its_lock_have_to_stay_where_they_are(tmp_path: Path) -> None:
    def refuse() -> None:
        about = f"^--models-root {root} is no longer the folder .*{root} was moved, removed or repl"
        with pytest.raises(DataError, match=about):
            held.check()

    root, moved = tmp_path / "run", tmp_path / "moved"
    root.mkdir()
    held = files.HeldFolder("--models-root", root, "run.lock")
    held.check()
    root.rename(moved)
    refuse()
    root.symlink_to(tmp_path)
    refuse()
    root.unlink()
    root.symlink_to(moved)
    held.check()
    held.close()
    # A lock that another run has made ends this one.
    lock = tmp_path / "run.lock"
    lock.touch()
    held = files.HeldFolder("--models-root", tmp_path, "run.lock")
    held.check()
    lock.unlink()
    held.check()
    lock.touch()
    with pytest.raises(DataError, match=f"or another run has it: {lock} was moved"):
        held.check()
    held.close()
