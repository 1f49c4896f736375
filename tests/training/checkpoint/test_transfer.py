"""gather and scatter, with a stand-in for ssh; over a real one in tests/hosts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallel.launch import ssh
from runtime.errors import ConfigError, DataError
from tests.support import processes
from tests.training.checkpoint.test_files import arrays_of
from training import run_folder
from training.checkpoint import __main__ as command
from training.checkpoint import files, layout, transfer
from training.checkpoint.layout import Part
from training.checkpoint.reader import Checkpoint

# A host's files are in a folder of its name beside ROOT; it is down if that is missing.
_SSH = """\
#!/bin/sh
while case $1 in -*) true ;; *) false ;; esac; do shift; done
host=$1
test -d "{root}/../$host" || {{ echo "ssh: connect to $host: No route" >&2; exit 255; }}
PATH="{root}/../$host/bin:$PATH"
printf '%s\\n' "$2" | sed "s|{root}|{root}/../$host|g" > "{root}/../$host/command"
exec sh "{root}/../$host/command"
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder on this host, which is host1; host2 and host3 have theirs beside it."""
    root = tmp_path / "our models"
    root.mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    executable(programs / "ssh", _SSH.format(root=root))
    for name in ("host2", "host3"):
        (tmp_path / name / "bin").mkdir(parents=True)
        executable(tmp_path / name / "bin" / "uname", f"#!/bin/sh\necho {name}\n")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(transfer, "os", SimpleNamespace(**vars(os)))
    monkeypatch.setattr(transfer.os, "uname", lambda: SimpleNamespace(nodename="host1"))
    return root


def executable(path: Path, content: str) -> None:
    path.write_text(content)
    path.chmod(0o755)


def write(root: Path, name: str, update: int, ranks: list[int], hosts: tuple[str, ...]) -> Path:
    """A host's part of a checkpoint."""
    models = root if name == "host1" else root.parent / name
    folder = files.hidden_folder(models / "checkpoints" / files.name_of(update), "a")
    folder.parent.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        files.write_rank(folder, rank, arrays_of(rank, len(hosts)))
    values = {"progress": {"update": update}}
    header = Part(update, update, f"word-{update}", hosts, {}, values, {})
    return files.publish(folder, header, ranks, 9)


@pytest.fixture
def parts(root: Path) -> Callable[[int], list[Path]]:
    """Writes one of three ranks, of which host1 has none, host2 two."""
    hosts = ("host2", "host3", "host2")

    def write_parts(update: int) -> list[Path]:
        return [
            write(root, "host2", update, [0, 2], hosts),
            write(root, "host3", update, [1], hosts),
        ]

    return write_parts


def run(*words: object) -> None:
    command.main([*map(str, words)])


def test_gather_brings_all_files_here_and_may_be_repeated(
    root: Path, parts, capsys: pytest.CaptureFixture[str]
) -> None:
    for update in (3, 7):
        there = parts(update)
    for _ in range(2):
        run("gather", "-H", "host2:2,host3", root)
        assert "update-00000007 has the files of all 3 ranks" in capsys.readouterr().out
        path = root / "checkpoints/update-00000007"
        saved = Checkpoint(path)
        assert saved.manifest.values == {"progress": {"update": 7}}
        for rank, folder in ((0, there[0]), (1, there[1]), (2, there[0])):
            name = layout.file_name(rank)
            assert (path / name).read_bytes() == (folder / name).read_bytes()
        run("verify", path)
        assert "is intact: 3 files" in capsys.readouterr().out
        assert [one.name for one in (root / "checkpoints").iterdir()] == ["update-00000007"]


def test_an_interrupted_gather_keeps_what_has_arrived(
    root: Path, parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts(7)
    fetch, fetched = transfer._fetch, []

    def fetch_two(source: Path, target: Path, *rest: Any) -> None:
        if len(fetched) == 2:
            raise KeyboardInterrupt
        fetched.append(source.name)
        fetch(source, target, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(transfer, "_fetch", fetch_two)
        with pytest.raises(KeyboardInterrupt):
            run("gather", "-H", "host2,host3", root)
    assert files.candidates(root / "checkpoints") == []
    first = list(fetched)
    fetched.clear()
    monkeypatch.setattr(transfer, "_fetch", lambda *words: (fetched.append(1), fetch(*words)))
    run("gather", "-H", "host2,host3", root)
    assert len(first) == 2 and len(fetched) == 1
    run("verify", root / "checkpoints/update-00000007")


def test_a_host_that_hangs_is_told_and_leaves_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "ANSWER_SECONDS", 1.0)
    hanging = f'#!/bin/sh\necho $$ >"{tmp_path}/pid"\nexec sleep 300\n'
    executable(tmp_path / "programs" / "ssh", hanging)
    for action in ("gather", "scatter"):
        if action == "scatter":
            whole(root)
        with pytest.raises(DataError, match=r"host2 cannot be reached by ssh .*: no answer in 1 s"):
            run(action, "-H", "host2", root)
        assert not processes.left([int((tmp_path / "pid").read_text())])


def test_a_signal_ends_what_gather_has_started(root: Path, tmp_path: Path) -> None:
    hanging = f'#!/bin/sh\necho $$ >"{tmp_path}/pid"\nexec sleep 300\n'
    executable(tmp_path / "programs" / "ssh", hanging)
    words = [sys.executable, "-m", "training.checkpoint", "gather", "-H", "host2", str(root)]
    process = subprocess.Popen(words, cwd=Path(__file__).resolve().parents[3])
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM
    assert not processes.left([int((tmp_path / "pid").read_text())])


def test_gather_takes_the_newest_that_is_complete(
    root: Path, parts, capsys: pytest.CaptureFixture[str]
) -> None:
    parts(3)
    write(root, "host1", 7, [0], ("host1", "host2"))
    run("gather", "-H", "host2,host3", root)
    said = capsys.readouterr().out
    assert "update-00000003 has the files of all 3 ranks; update-00000007 is not complete" in said
    found = sorted(path.name for path in (root / "checkpoints").iterdir())
    assert found == ["update-00000003", "update-00000007.broken"]


@pytest.mark.parametrize(
    ("hosts", "error", "kind"),
    [
        ("host2", "update-00000007 lacks rank-0001.bin of host3; add that host to -H", DataError),
        ("host9", "host9 cannot be reached by ssh without a password: ssh: connect", DataError),
        ("host2,-oProxyCommand=x", "is no list of hosts; write it as ip1:8", ConfigError),
        ("", "is no list of hosts", ConfigError),
    ],
)
def test_mistakes_are_one_line(root: Path, parts, hosts: str, error: str, kind) -> None:
    parts(7)
    with pytest.raises(kind) as caught:
        run("gather", f"-H={hosts}" if hosts else "--hosts=", root)
    assert error in str(caught.value) and "\n" not in str(caught.value)
    assert not (root / "checkpoints").exists()


def test_without_a_checkpoint_gather_says_where_it_looked(root: Path) -> None:
    with pytest.raises(DataError, match="no whole checkpoint in .*our models on host1, host2; "):
        run("gather", "-H", "host2", root)


def test_a_changed_byte_is_noticed_where_it_arrives(root: Path, parts) -> None:
    parts(7)
    file = root.parent / "host3/checkpoints/update-00000007/rank-0001.bin"
    file.write_bytes(b"\xff" + file.read_bytes()[1:])
    with pytest.raises(DataError, match=r"rank-0001.bin on host3 does not match its checksums"):
        run("gather", "-H", "host2,host3", root)
    assert files.candidates(root / "checkpoints") == []


def whole(root: Path, update: int = 7) -> Path:
    folder = files.hidden_folder(root / "checkpoints" / files.name_of(update), "a")
    folder.parent.mkdir(parents=True, exist_ok=True)
    for rank in range(3):
        files.write_rank(folder, rank, arrays_of(rank, 3))
    return files.publish(folder, Part(update, update, "", (), {}, {}, {}), range(3), 9)


def test_scatter_lays_files_out_by_slots_and_gather_brings_them_back(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = whole(root)
    manifest = layout.read(before)
    for _ in range(2):
        run("scatter", "-H", "host2:2,host3:1", root)
        assert "files on host2 2, host3 1" in capsys.readouterr().out
    for name, ranks in (("host2", [0, 1]), ("host3", [2])):
        part = layout.read_part(root.parent / name / "checkpoints/update-00000007")
        assert [*part.files] == ranks and part.hosts == ("host2", "host2", "host3")
        assert part.files == {rank: manifest.files[rank] for rank in ranks}
    shutil.rmtree(root / "checkpoints")
    run("gather", "-H", "host3,host2", root)
    assert layout.read(before) == manifest


def test_scatter_of_another_number_of_ranks_divides_the_files(root: Path) -> None:
    whole(root)
    run("scatter", "-H", "host2:8,host3:8", root)
    counts = [
        len(layout.read_part(root.parent / name / "checkpoints/update-00000007").files)
        for name in ("host2", "host3")
    ]
    assert counts == [2, 1]


def test_scatter_needs_a_whole_checkpoint(root: Path) -> None:
    write(root, "host1", 7, [0], ("host1", "host2"))
    with pytest.raises(DataError, match=r"lacks rank-0001.bin of host2; add that host to -H"):
        run("scatter", "-H", "host2", root)


def test_a_host_that_cannot_be_written_is_named(root: Path) -> None:
    whole(root)
    (root.parent / "host2/checkpoints").touch()
    with pytest.raises(DataError, match=r"^host2 failed: .*checkpoints on .* cannot be written"):
        run("scatter", "-H", "host2", root)


def test_what_has_not_arrived_whole_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(b"no archive")
    with (tmp_path / "cut").open("rb") as stream, pytest.raises(DataError, match="did not arrive"):
        transfer.receive(root, stream)


def test_a_run_keeps_gather_out(root: Path, parts, monkeypatch: pytest.MonkeyPatch) -> None:
    parts(7)
    monkeypatch.setattr(run_folder, "_SECONDS_SAME_HOST", 0.0)
    monkeypatch.setattr(run_folder, "_SECONDS_OTHER_HOST", 0.0)
    with run_folder.locked(root), pytest.raises(ConfigError, match="another run writes into"):
        run("gather", "-H", "host2,host3", root)


@pytest.mark.parametrize(
    ("words", "error"),
    [(("gather", "x"), "take -H HOSTS"), (("info", "-H", "host2", "x"), "nothing else does")],
)
def test_hosts_go_with_gather_and_scatter(words: tuple[str, ...], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        run(*words)
