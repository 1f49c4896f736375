"""gather and scatter, with a stand-in for ssh; over a real one in tests/hosts."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

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
    """A host's part of a checkpoint; a whole one without ``hosts``."""
    models = root if name == "host1" else root.parent / name
    folder = files.hidden_folder(models / "checkpoints" / files.name_of(update), "a")
    folder.parent.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        files.write_rank(folder, rank, arrays_of(rank, len(hosts) or len(ranks)))
    word = f"word-{update}" if hosts else ""
    header = Part(update, update, word, hosts, {}, {"progress": {"update": update}}, {})
    return files.publish(folder, header, ranks, 9)


def write_parts(root: Path, update: int) -> list[Path]:
    """Of three ranks, of which host1 has none, host2 two."""
    hosts = ("host2", "host3", "host2")
    parts = ("host2", [0, 2]), ("host3", [1])
    return [write(root, name, update, ranks, hosts) for name, ranks in parts]


def whole(root: Path) -> Path:
    return write(root, "host1", 7, [0, 1, 2], ())


def run(*words: object) -> None:
    command.main([*map(str, words)])


def test_gather_brings_all_files_here_and_may_be_repeated(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for update in (3, 7):
        there = write_parts(root, update)
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


def test_a_gather_that_fails_keeps_what_has_arrived_whole(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_parts(root, 7)[0] / "rank-0002.bin"
    content = file.read_bytes()
    file.write_bytes(b"\xff" + content[1:])
    monkeypatch.setattr(run_folder, "_SECONDS_SAME_HOST", 0.0)
    monkeypatch.setattr(run_folder, "_SECONDS_OTHER_HOST", 0.0)
    with run_folder.locked(root), pytest.raises(ConfigError, match="another run writes into"):
        run("gather", "-H", "host2,host3", root)
    with pytest.raises(DataError, match=r"rank-0002.bin on host2 does not match its checksums"):
        run("gather", "-H", "host2,host3", root)
    assert files.candidates(root / "checkpoints") == []
    file.write_bytes(content)
    run("gather", "-H", "host2,host3", root)
    assert "rank-0002.bin" in (root.parent / "host2/command").read_text()
    assert "rank-0001.bin" not in (root.parent / "host3/command").read_text()
    run("verify", root / "checkpoints/update-00000007")


def test_what_hangs_is_ended_in_time_and_by_a_signal(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "pid"
    hanging = f'#!/bin/sh\necho $$ >"{place}"\nexec sleep 300\n'
    executable(tmp_path / "programs" / "ssh", hanging)
    words = [sys.executable, "-m", "training.checkpoint", "gather", "-H", "host2", str(root)]
    process = subprocess.Popen(words, cwd=Path(__file__).resolve().parents[3])
    while not place.exists() or not place.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM
    assert not processes.left([int(place.read_text())])
    monkeypatch.setattr(ssh, "ANSWER_SECONDS", 1.0)
    whole(root)
    for action in ("gather", "scatter"):
        with pytest.raises(DataError, match=r"host2 cannot be reached by ssh .*: no answer in 1 s"):
            run(action, "-H", "host2", root)
        assert not processes.left([int(place.read_text())])


def test_gather_takes_the_newest_that_is_complete(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parts(root, 3)
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
def test_mistakes_are_one_line(root: Path, hosts: str, error: str, kind: type[Exception]) -> None:
    with pytest.raises(DataError, match="no whole checkpoint in .*our models on host1, host2; "):
        run("gather", "-H", "host2", root)
    write_parts(root, 7)
    with pytest.raises(kind) as caught:
        run("gather", f"-H={hosts}" if hosts else "--hosts=", root)
    assert error in str(caught.value) and "\n" not in str(caught.value)
    assert not (root / "checkpoints").exists()


@pytest.mark.parametrize("hosts", ["host2:2,host3:1", "host2:8,host3:8"])
def test_scatter_lays_files_out_by_slots_and_gather_brings_them_back(
    root: Path, hosts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = whole(root)
    manifest = layout.read(before)
    for _ in range(2):
        run("scatter", "-H", hosts, root)
        assert "files on host2 2, host3 1" in capsys.readouterr().out
    for name, ranks in (("host2", [0, 1]), ("host3", [2])):
        part = layout.read_part(root.parent / name / "checkpoints/update-00000007")
        assert [*part.files] == ranks and part.hosts == ("host2", "host2", "host3")
        assert part.files == {rank: manifest.files[rank] for rank in ranks}
    shutil.rmtree(root / "checkpoints")
    run("gather", "-H", "host3,host2", root)
    assert layout.read(before) == manifest


def test_what_scatter_cannot_send_is_named(root: Path) -> None:
    path = write(root, "host1", 7, [0], ("host1", "host2"))
    with pytest.raises(DataError, match=r"lacks rank-0001.bin of host2; add that host to -H"):
        run("scatter", "-H", "host2", root)
    shutil.rmtree(path)
    whole(root)
    (root.parent / "host2/checkpoints").touch()
    with pytest.raises(DataError, match=r"^host2 failed: .*checkpoints on .* cannot be written"):
        run("scatter", "-H", "host2", root)
    with pytest.raises(DataError, match="did not arrive"):
        transfer.receive(root, io.BytesIO(b"no archive"))


def test_hosts_go_with_gather_and_scatter() -> None:
    with pytest.raises(ConfigError, match="take -H HOSTS"):
        run("gather", "x")
    with pytest.raises(ConfigError, match="nothing else does"):
        run("info", "-H", "host2", "x")
