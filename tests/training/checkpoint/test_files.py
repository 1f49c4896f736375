"""The format: nothing half is ever seen, changed bytes are noticed, slices are cut anew."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from partial_fc.shard import Shard
from partial_fc.store import header as headers
from runtime.errors import ConfigError, DataError
from runtime.state import OWN, REPLICATED, SHARDED, Stored
from tests.support import stored_head
from training.checkpoint import __main__ as checkpoint
from training.checkpoint import files, layout, reader
from training.checkpoint.layout import Part
from training.checkpoint.reader import Checkpoint

CLASSES, WIDTH = 11, 3
# Each row is contiguous, and the rows are not.
CENTERS = np.arange(CLASSES * WIDTH, dtype=np.float32).reshape(WIDTH, CLASSES).T
# Their mean is another in float32.
OWN_NUMBERS = (2**24, 1, 1)
COUNTS = np.arange(CLASSES, dtype=np.int32)


def arrays_of(rank: int, ranks: int) -> dict[str, Stored]:
    shard = Shard(rank, ranks, CLASSES)
    rows = slice(shard.start, shard.stop)
    arrays = {
        "head/centers": Stored(SHARDED, CENTERS[rows], shard.start, CLASSES),
        "head/counts": Stored(SHARDED, COUNTS[rows], shard.start, CLASSES),
        "net/mean": Stored(OWN, np.full(2, OWN_NUMBERS[rank], np.float32)),
    }
    if rank == 0:
        arrays["net/weight"] = Stored(REPLICATED, np.ones((2, 2, 1), np.float32))
        arrays["net/scalar"] = Stored(REPLICATED, np.array(2.5))
        arrays["net/empty"] = Stored(REPLICATED, np.ones((0, 2), np.float32))
    return arrays


def write(root: Path, update=7, ranks=3, keep=9, arrays=arrays_of, **further: Any) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    final, about = root / files.name_of(update), header(root, update, **further)
    if final.exists():
        final = root / f"{final.name}-{about.serial}"
    folder = files.hidden_folder(final, "a")
    for rank in reversed(range(ranks)):
        files.write_rank(folder, rank, arrays(rank, ranks))
    files.publish(folder, final, about, range(ranks), keep, threading.Event())
    return final


def header(root: Path, update: int = 7, **further: Any) -> Part:
    serial = max((part.serial for _, part in files.candidates(root) if part), default=0) + 1
    given = {"values": {"progress": {"update": update}}, "about": {"of": "a test"}, **further}
    return Part(update, serial, f"word-{serial}", (), {}, **given)


def verify(path: Path) -> None:
    checkpoint.verify(Checkpoint(path), None)


def found(root: Path) -> list[str]:
    return [path.name[7:].lstrip("0") for path, _ in files.candidates(root)]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.mark.parametrize("chunk", [8, layout.CHUNK])
def test_what_is_written_is_read(chunk: int, tmp_path: Path, monkeypatch) -> None:
    for module in (files, reader):
        monkeypatch.setattr(module, "CHUNK", chunk)
    saved = Checkpoint(write(tmp_path))
    assert saved.path == tmp_path / "update-00000007"
    assert names(saved.path) == ["manifest.json", *(f"rank-000{rank}.bin" for rank in range(3))]
    assert saved.manifest.values == {"progress": {"update": 7}}
    entries = [entry for file in saved.manifest.files.values() for entry in file.entries]
    assert not any(entry.offset % 64 for entry in entries)
    assert saved.replicated("net/weight").shape == (2, 2, 1)
    assert saved.replicated("net/empty").shape == (0, 2)
    assert (saved.replicated("net/scalar").shape, saved.replicated("net/scalar")) == ((), 2.5)
    verify(saved.path)
    assert saved.own("net/mean", 2, 3).tolist() == [1, 1]
    assert saved.own("net/mean", 0, 4).tolist() == [5592406, 5592406]
    with pytest.raises(DataError, match="lacks 'net/other'; it was written by another kind of"):
        saved.replicated("net/other")
    for name, whole in (("head/centers", CENTERS), ("head/counts", COUNTS)):
        for shard in (Shard(rank, ranks, CLASSES) for ranks in (1, 2, 4) for rank in range(ranks)):
            rows = np.full((shard.size, *whole.shape[1:]), -1, whole.dtype)
            for first, piece in saved.pieces(name, shard.start, shard.stop):
                assert isinstance(piece, np.memmap)
                rows[first : first + len(piece)] = piece
            np.testing.assert_array_equal(rows, whole[shard.start : shard.stop])
    with pytest.raises(DataError, match="lacks rows of 'head/counts' between 9 and 12"):
        list(saved.pieces("head/counts", 9, 12))
    wrong = write(tmp_path, 8, 2, arrays=lambda rank, ranks: arrays_of(2 * rank, 3))
    with pytest.raises(DataError, match="lacks rows of 'head/centers' between 0 and 11"):
        list(Checkpoint(wrong).pieces("head/centers", 0, CLASSES))


def test_every_changed_missing_or_truncated_byte_is_detected(tmp_path: Path) -> None:
    path = write(tmp_path, ranks=2)
    parts = layout.read_part(path).files
    rng = np.random.default_rng(0)
    for file in sorted(path.iterdir()):
        content = file.read_bytes()
        arrays = [range(len(content))]
        if file.suffix == ".bin":
            # Between arrays are bytes that nobody reads.
            entries = parts[int(file.stem[-4:])].entries
            arrays = [range(one.offset, one.offset + one.num_bytes) for one in entries]
        for place in rng.choice([*itertools.chain(*arrays)], 40, replace=False):
            changed = bytearray(content)
            changed[place] ^= 1 << int(rng.integers(8))
            file.write_bytes(changed)
            with pytest.raises(DataError, match=file.name):
                verify(path)
        for rest in (content[:-3], None):
            file.write_bytes(rest) if rest is not None else file.unlink()
            with pytest.raises(DataError, match=file.name):
                verify(path)
        file.write_bytes(content)
    verify(path)


def test_a_checkpoint_exists_when_the_last_rank_has_written_it(tmp_path: Path) -> None:
    final, cancelled = tmp_path / "update-00000007", threading.Event()
    folder = files.hidden_folder(final, "a")
    files.write_rank(folder, 0, arrays_of(0, 2))
    publish = partial(files.publish, folder, final, header(tmp_path), (0, 1), 2, cancelled)
    publishing = threading.Thread(target=publish)
    publishing.start()
    publishing.join(0.3)
    assert publishing.is_alive() and found(tmp_path) == []
    files.write_rank(folder, 1, arrays_of(1, 2))
    publishing.join(10)
    assert found(tmp_path) == ["7"]
    files.write_rank(files.hidden_folder(final, "killed"), 1, arrays_of(1, 2))
    files.prepare(tmp_path)
    assert names(tmp_path) == [final.name]


def test_what_fails_is_no_checkpoint(tmp_path: Path) -> None:
    arrays = {"net/weight": Stored(REPLICATED, np.array([1.0, np.nan], np.float32))}
    with pytest.raises(DataError, match="'net/weight' holds numbers that are not finite"):
        files.write_rank(tmp_path / ".update-x", 1, arrays)
    final, cancelled = tmp_path / "update-00000007", threading.Event()
    folder = files.hidden_folder(final, "b")
    publish = partial(files.publish, folder, final, header(tmp_path), (0, 1), 2, cancelled)
    files.write_rank(folder, 0, arrays_of(0, 3))
    cancelled.set()
    with pytest.raises(DataError, match="another rank could not write its file"):
        publish()
    files.write_rank(folder, 1, {})
    with pytest.raises(DataError, match="has other arrays on rank 1"):
        publish()
    cancelled.clear()
    folder.rename(files.hidden_folder(final, "c"))
    with pytest.raises(FileNotFoundError, match="vanished"):
        publish()
    assert found(tmp_path) == []


def test_which_checkpoints_are_kept_and_tried_first(tmp_path: Path, monkeypatch) -> None:
    for update in (100, 200, 300):
        write(tmp_path, update, keep=2)
    write(tmp_path, 50, keep=2)
    assert found(tmp_path) == ["50", "300"]
    # One that is written again replaces the former one, under another name.
    assert write(tmp_path, 300, keep=3).name == "update-00000300-5"
    assert found(tmp_path) == ["300-5", "50"] and len(names(tmp_path)) == 2
    # One without a readable manifest is tried first.
    for note in ("first", "second"):
        (tmp_path / "update-00000050" / "manifest.json").unlink()
        assert found(tmp_path) == ["50", "300-5"]
        (tmp_path / "update-00000050" / "note").write_text(note)
        aside = files.set_aside(tmp_path / "update-00000050")
        assert found(tmp_path) == ["300-5"] and (aside / "note").read_text() == note
        write(tmp_path, 50)
    (tmp_path / "file").touch()
    assert files.candidates(tmp_path / "file") == files.candidates(tmp_path / "gone") == []
    monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(DataError, match="see its permissions"):
        files.candidates(tmp_path)


def test_info_verify_merge(tmp_path: Path, capsys) -> None:
    path = write(tmp_path, ranks=2)
    for action in ("info", "verify"):
        checkpoint.main([action, str(path)])
    said, words = capsys.readouterr().out, ["7 updates", "2 ranks", "head/centers", "(11, 3)"]
    assert all(part in said for part in [*words, "classes 6 to 10", "is intact", "  of: a test\n"])
    (tmp_path / "user").write_bytes(b"precious")
    for name in (".all.npz.part", "all.npz"):
        (tmp_path / name).symlink_to("user")
    checkpoint.main(["merge", str(path), "--output", str(tmp_path / "all.npz")])
    assert (tmp_path / "user").read_bytes() == b"precious"
    with np.load(tmp_path / "all.npz", allow_pickle=False) as merged:
        assert (merged["head/centers"] == CENTERS).all() and (merged["head/counts"] == COUNTS).all()
        assert merged["net/mean"].tolist() == [2**23, 2**23]
        assert merged["net/weight"].shape == (2, 2, 1) and merged["net/empty"].shape == (0, 2)
    with pytest.raises(DataError, match="gone/all.npz cannot be written"):
        checkpoint.main(["merge", str(path), "--output", str(tmp_path / "gone/all.npz")])
    with pytest.raises(ConfigError, match="--output all.npz goes with merge, not with info"):
        checkpoint.main(["info", str(path), "--output", "all.npz"])
    os.truncate(path / "rank-0000.bin", 10)
    with pytest.raises(DataError, match="has 10 bytes"):
        checkpoint.main(["merge", str(path)])
    with pytest.raises(DataError, match="does not exist"):
        checkpoint.main(["info", str(path.with_name("gone"))])


def killed_at(step: int, monkeypatch, action: Callable[[], Any]) -> bool:
    """Run ``action`` and have it killed before its ``step``-th change of the file system."""
    left = itertools.count(-step)

    def counted(change):
        def changed(*arguments, **options):
            if next(left) == 0:
                raise KeyboardInterrupt
            return change(*arguments, **options)

        return changed

    with monkeypatch.context() as patch:
        for place, name in ((os, "fsync"), (os, "unlink"), (os, "rmdir"), (os, "rename")):
            patch.setattr(place, name, counted(getattr(place, name)))
        for name in ("rename", "mkdir", "unlink", "open"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        try:
            action()
        except KeyboardInterrupt:
            return True
    return False


def test_a_checkpoint_that_is_written_again_exists_at_every_moment(tmp_path: Path, monkeypatch):
    first, second = "update-00000007", "update-00000007-2"
    for step in itertools.count():
        root = tmp_path / str(step)
        write(root, ranks=1, keep=1)
        was_killed = killed_at(step, monkeypatch, lambda root=root: write(root, ranks=1, keep=1))
        for _ in ("as a reader finds it", "as the next run finds it"):
            for path, _ in files.candidates(root):
                verify(path)
            files.prepare(root)
        assert names(root) in ([first], [second], [first, second])
        last = write(root, ranks=1, keep=1)
        assert names(root) == [last.name] and Checkpoint(last).manifest.serial >= 2
        if not was_killed:
            break
    assert step > 10


class Disk:
    def __init__(self, monkeypatch) -> None:
        self.flushed: dict[Path, Any] = {}
        self.renamed: list[Path] = []
        self._fsync, self._rename = os.fsync, Path.rename
        monkeypatch.setattr(os, "fsync", self.fsync)
        for name in ("rename", "replace"):
            monkeypatch.setattr(Path, name, lambda path, to: self.rename(path, to))

    def content(self, path: Path) -> Any:
        return names(path) if path.is_dir() else (path.stat().st_ino, path.stat().st_size)

    def fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self.flushed[path] = self.content(path)

    def rename(self, path: Path, to: Path) -> Path:
        for one in (path, *path.rglob("*")):
            assert self.flushed.get(one) == self.content(one), f"{one} is not flushed"
        self.renamed.append(to)
        for one in (path, *path.rglob("*")):
            self.flushed[to / one.relative_to(path)] = self.flushed.pop(one)
        return self._rename(path, to)


def test_nothing_is_renamed_before_it_is_on_the_disk(tmp_path: Path, monkeypatch) -> None:
    disk = Disk(monkeypatch)
    root = tmp_path / "models" / "checkpoints"
    files.prepare(root)
    assert root.name in disk.flushed[root.parent]
    for times in (1, 2):
        path = write(root, keep=1)
        renamed = [to.name for to in disk.renamed]
        for rank in range(3):
            assert renamed.count(f"rank-000{rank}.json") == times
        assert renamed.count(path.name) == 1 and path.name in disk.flushed[root]
        assert disk.renamed.index(path) > renamed.index("rank-0002.json")
    files.write_rank(tmp_path, 1, arrays_of(1, 2))
    # As it was before the marker got its name; the first rank flushes that with the folder.
    assert {*disk.flushed[tmp_path]} >= {"rank-0001.bin", ".rank-0001.json"}


def saved_store(root: Path, ranks: int = 1, head: Any = None) -> tuple[Path, list[str]]:
    """Return a checkpoint, and the option of the last rank's store."""
    folders = [root / "centers" / str(rank) for rank in range(ranks)]
    head = stored_head.trained(*folders, updates=4).values() if head is None else head
    arrays = {"net/weight": Stored(REPLICATED, np.ones(3, np.float32))}
    path = write(root, 4, 1, arrays=lambda *_: arrays, values={"head": head})
    return path, ["--center-store", str(folders[-1])]


def test_verify_info_and_merge_read_the_store(tmp_path: Path, capsys) -> None:
    path, store = saved_store(tmp_path)
    checkpoint.main(["info", str(path)])
    assert "the store" not in capsys.readouterr().out
    checkpoint.main(["info", str(path), *store])
    said = capsys.readouterr().out
    assert f"the store: 1,000 classes, of each centers float32 ({stored_head.EMBEDDING},)" in said
    for action in ("verify", "merge"):
        with pytest.raises(DataError, match="in a store; add --center-store DIR, the folder"):
            checkpoint.main([action, str(path)])
    assert not list(path.parent.glob("*.npz"))
    expected = stored_head.reference(4)
    checkpoint.main(["verify", str(path), *store])
    checkpoint.main(["merge", str(path), *store])
    written = np.count_nonzero(expected["momenta"].any(axis=1))
    said = capsys.readouterr().out
    assert f"is intact: {written:,} rows of 1,000 classes" in said and "3 arrays" in said
    with np.load(path.with_suffix(".npz")) as arrays:
        assert set(arrays) == {"net/weight", "head/centers", "head/momenta"}
        for name, rows in expected.items():
            np.testing.assert_array_equal(arrays[f"head/{name}"], rows)
            assert arrays[f"head/{name}"].dtype == rows.dtype
    other, _ = saved_store(tmp_path / "other", head={headers.STORE: 17})
    with pytest.raises(DataError, match="is not the store of this checkpoint"):
        checkpoint.main(["info", str(other), *store])
    records = Path(store[1]) / headers.RECORDS
    records.write_bytes(bytes(records.stat().st_size))
    with pytest.raises(DataError, match="does not match its checksum"):
        checkpoint.main(["verify", str(path), *store])


def test_a_store_of_some_classes_is_verified_and_not_merged(tmp_path: Path, capsys) -> None:
    path, store = saved_store(tmp_path, ranks=2)
    own = Shard(1, 2, stored_head.CLASSES)
    checkpoint.main(["verify", str(path), *store])
    assert f"rows of classes {own.start} to {own.stop - 1} of 1,000" in capsys.readouterr().out
    with pytest.raises(DataError, match="as other hosts have the others"):
        checkpoint.main(["merge", str(path), *store])
    assert not list(tmp_path.rglob("*.npz"))
