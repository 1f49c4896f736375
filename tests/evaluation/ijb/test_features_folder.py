from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.ijb import features_folder
from evaluation.ijb.features_folder import FeaturesFolder, describe
from runtime.errors import DataError

ROWS = np.arange(25 * 6, dtype=np.float32).reshape(25, 6)
OUT = Path("a/out")


@pytest.fixture(autouse=True)
def _small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(features_folder, "PART", 10)


def described(count: int = 25, **changes: Any) -> FeaturesFolder:
    """The folder ``a/out`` for a model and a list of faces."""
    for name in ("model", "faces"):
        Path(name).write_bytes(changes.pop(name, b""))
    options = {"flip": True, "dtype": "float32", **changes}
    return FeaturesFolder(OUT, describe(Path("model"), Path("faces"), count, **options))


def packed_rows(rows: np.ndarray) -> bytes:
    np.save("rows.npy", rows)
    return Path("rows.npy").read_bytes()


def claim(**changes: Any) -> FeaturesFolder:
    with described(**changes) as found:
        found.claim()
    return found


@pytest.fixture
def folder() -> Iterator[FeaturesFolder]:
    """All parts but the second are there."""
    with described() as found:
        found.claim()
        for part in (0, 2):
            found.write(part, ROWS[10 * part : 10 * part + 10])
        yield found


def test_a_folder_continues(folder: FeaturesFolder) -> None:
    assert folder.missing() == [1]
    assert [folder.faces(part) for part in range(3)] == [range(10), range(10, 20), range(20, 25)]
    with pytest.raises(DataError, match="part-00001.npy cannot be read: No such file"):
        list(folder.read())
    with (OUT / "features.json").open("r+b") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(DataError, match="another command writes into .*out; wait for its end"):
        claim()
    folder.__exit__()
    unfinished = OUT / ".part-00001.npy.77.part"
    unfinished.touch()
    other = claim()
    assert not unfinished.exists() and other.missing() == [1]
    other.write(1, ROWS[10:20])
    assert other.missing() == []
    views = np.concatenate(list(other.read()), axis=1)
    np.testing.assert_array_equal(views, [ROWS[:, :3], ROWS[:, 3:]])
    np.testing.assert_array_equal(np.load(OUT / "part-00001.npy"), ROWS[10:20])


def test_a_checkpoint_is_known_by_both_files() -> None:
    found = set()
    Path("faces").touch()
    for symbol, params in ((b"a", b"b"), (b"x", b"b"), (b"a", b"x")):
        Path("m-symbol.json").write_bytes(symbol)
        Path("m-0007.params").write_bytes(params)
        one = describe(("m", 7), Path("faces"), 1, flip=True, dtype="float32")
        found.add(one["model"])
    assert len(found) == 3


def test_other_features_are_refused(folder: FeaturesFolder) -> None:
    folder.__exit__()
    before = sorted(OUT.iterdir())
    for changes, message in (
        ({"model": b"other"}, "the model, whose file has another content; choose"),
        ({"faces": b"other"}, "the list of faces"),
        ({"count": 24}, "the number of faces"),
        ({"flip": False}, "--no-flip"),
        ({"dtype": "bfloat16"}, "--dtype"),
    ):
        with pytest.raises(DataError, match=f"differ in {message}"):
            claim(**changes)
    assert sorted(OUT.iterdir()) == before


def test_a_folder_of_other_things_is_refused() -> None:
    OUT.mkdir(parents=True)
    (OUT / "thesis.tex").touch()
    with pytest.raises(DataError, match="out is not empty, and has no features.json; choose anoth"):
        claim()
    (OUT / "features.json").write_text("[")
    with pytest.raises(DataError, match="features.json is damaged; choose another folder"):
        claim()
    with pytest.raises(DataError, match="tex/c cannot be written: Not a directory"):
        FeaturesFolder(OUT / "thesis.tex/c", {}).claim()


def test_a_damaged_part(folder: FeaturesFolder) -> None:
    folder.write(1, ROWS[10:20])
    spoiled = ROWS[:10].copy()
    spoiled[3, 1] = np.nan
    whole = packed_rows(ROWS[:10])
    # Of other lengths and widths, also one that has no two views, cut off, and not finite.
    others = [ROWS[:9], ROWS[:10, :4], ROWS[:10, :5], ROWS[:10, :0], spoiled]
    packed = [packed_rows(rows) for rows in others]
    for part, contents in ((1, [*packed, whole[:-1]]), (0, [*packed[2:], b""])):
        path = OUT / f"part-{part:05d}.npy"
        for content in contents:
            path.write_bytes(content)
            with pytest.raises(DataError, match=f"{path.name} is damaged or has features of an"):
                list(folder.read())
        path.write_bytes(whole)
