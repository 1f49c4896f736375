from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.embed.rows_file import pack_rows
from evaluation.ijb import features_folder
from evaluation.ijb.features_folder import FeaturesFolder, describe
from runtime.errors import DataError

COUNT = 25
ROWS = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 6)


def described(folder: Path, **changes: Any) -> FeaturesFolder:
    """The folder ``a/out`` for a model and a list of faces."""
    (folder / "m.onnx").write_bytes(changes.pop("model", b"model"))
    (folder / "faces.txt").write_bytes(changes.pop("faces", b"faces"))
    options = {"flip": True, "dtype": "float32", "count": COUNT, **changes}
    found = describe(folder / "m.onnx", folder / "faces.txt", options.pop("count"), **options)
    return FeaturesFolder(folder / "a" / "out", found)


def claim(folder: Path, **changes: Any) -> FeaturesFolder:
    with described(folder, **changes) as found:
        found.claim()
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FeaturesFolder]:
    """All parts but the second are there."""
    monkeypatch.setattr(features_folder, "PART", 10)
    with described(tmp_path) as found:
        found.claim()
        for part in (0, 2):
            found.write(part, ROWS[10 * part : 10 * part + 10])
        yield found


def test_a_folder_continues(folder: FeaturesFolder, tmp_path: Path) -> None:
    assert folder.missing() == [1]
    assert [folder.faces(part) for part in range(3)] == [range(10), range(10, 20), range(20, 25)]
    with pytest.raises(DataError, match="part-00001.npy cannot be read: No such file"):
        list(folder.read())
    with (tmp_path / "a/out/features.json").open("r+b") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(DataError, match="another command writes into .*out; wait for its end"):
        claim(tmp_path)
    folder.__exit__()
    unfinished = tmp_path / "a/out/.part-00001.npy.77.part"
    unfinished.write_bytes(b"")
    other = claim(tmp_path)
    assert not unfinished.exists() and other.missing() == [1]
    other.write(1, ROWS[10:20])
    assert other.missing() == []
    views = np.concatenate(list(other.read()), axis=1)
    np.testing.assert_array_equal(views, [ROWS[:, :3], ROWS[:, 3:]])
    np.testing.assert_array_equal(np.load(tmp_path / "a/out/part-00001.npy"), ROWS[10:20])


def test_a_checkpoint_is_known_by_both_files(tmp_path: Path) -> None:
    (tmp_path / "faces.txt").touch()
    model, found = (str(tmp_path / "m"), 7), []
    for symbol, params in ((b"a", b"b"), (b"x", b"b"), (b"a", b"x")):
        (tmp_path / "m-symbol.json").write_bytes(symbol)
        (tmp_path / "m-0007.params").write_bytes(params)
        found.append(describe(model, tmp_path / "faces.txt", 1, flip=True, dtype="float32"))
    assert len({one["model"] for one in found}) == 3


def test_other_features_are_refused(folder: FeaturesFolder, tmp_path: Path) -> None:
    folder.__exit__()
    before = sorted((tmp_path / "a/out").iterdir())
    for changes, message in (
        ({"model": b"other"}, "the model, whose file has another content; choose"),
        ({"faces": b"other"}, "the list of faces"),
        ({"count": 24}, "the number of faces"),
        ({"flip": False}, "--no-flip"),
        ({"dtype": "bfloat16"}, "--dtype"),
    ):
        with pytest.raises(DataError, match=f"differ in {message}"):
            claim(tmp_path, **changes)
    assert sorted((tmp_path / "a/out").iterdir()) == before


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a/out").mkdir(parents=True)
    (tmp_path / "a/out/thesis.tex").touch()
    with pytest.raises(DataError, match="out is not empty, and has no features.json; choose anoth"):
        claim(tmp_path)
    (tmp_path / "a/out/features.json").write_text("[")
    with pytest.raises(DataError, match="features.json is damaged; choose another folder"):
        claim(tmp_path)
    with pytest.raises(DataError, match="tex/c cannot be written: Not a directory"):
        FeaturesFolder(tmp_path / "a/out/thesis.tex/c", {}).claim()


def test_a_damaged_part(folder: FeaturesFolder, tmp_path: Path) -> None:
    folder.write(1, ROWS[10:20])
    spoiled = ROWS[:10].copy()
    spoiled[3, 1] = np.nan
    whole = pack_rows(ROWS[:10])
    # Of other lengths and widths, also one that has no two views, cut off, and not finite.
    others = [ROWS[:9], ROWS[:10, :4], ROWS[:10, :5], ROWS[:10, :0], spoiled]
    for part, contents in (
        (1, [*map(pack_rows, others), whole[:-1]]), (0, [*map(pack_rows, others[2:]), b""]),
    ):  # fmt: skip
        path = tmp_path / f"a/out/part-{part:05d}.npy"
        for content in contents:
            path.write_bytes(content)
            with pytest.raises(DataError, match=f"{path.name} is damaged or has features of an"):
                list(folder.read())
        path.write_bytes(whole)
