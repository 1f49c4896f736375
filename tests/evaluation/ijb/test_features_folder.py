from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from evaluation.embed.rows_file import pack_rows
from evaluation.ijb import features_folder
from evaluation.ijb.features_folder import FeaturesFolder, describe
from runtime.errors import DataError

COUNT = 25
ROWS = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 6)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features_folder, "PART", 10)


def description(folder: Path, model: bytes = b"model", **changes) -> dict:
    (folder / "m.onnx").write_bytes(model)
    (folder / "faces.txt").write_bytes(changes.pop("faces", b"faces"))
    options = {"flip": True, "dtype": "float32", "count": COUNT, **changes}
    count = options.pop("count")
    return describe(folder / "m.onnx", folder / "faces.txt", count, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[FeaturesFolder]:
    """All parts but the second are there."""
    with FeaturesFolder(tmp_path / "a" / "out", description(tmp_path)) as found:
        found.claim()
        for part in (0, 2):
            found.write(part, ROWS[10 * part : 10 * part + 10])
        yield found


def again(tmp_path: Path, **changes) -> FeaturesFolder:
    found = FeaturesFolder(tmp_path / "a" / "out", description(tmp_path, **changes))
    with found:
        found.claim()
    return found


def test_a_folder_continues(folder: FeaturesFolder, tmp_path: Path) -> None:
    assert folder.missing() == [1]
    assert [folder.faces(part) for part in range(3)] == [range(10), range(10, 20), range(20, 25)]
    with pytest.raises(DataError, match="part-00001.npy cannot be read: No such file"):
        list(folder.read())
    folder.__exit__()
    unfinished = tmp_path / "a" / "out" / ".part-00001.npy.77.part"
    unfinished.write_bytes(b"")
    other = again(tmp_path)
    assert not unfinished.exists()
    assert other.missing() == [1]
    other.write(1, ROWS[10:20])
    assert other.missing() == []
    views = np.concatenate(list(other.read()), axis=1)
    np.testing.assert_array_equal(np.concatenate(views, axis=1), ROWS)
    np.testing.assert_array_equal(np.load(unfinished.with_name("part-00001.npy")), ROWS[10:20])


def test_a_checkpoint_is_known_by_both_files(tmp_path: Path) -> None:
    (tmp_path / "faces.txt").touch()
    found = []
    for symbol, params in ((b"a", b"b"), (b"x", b"b"), (b"a", b"x")):
        (tmp_path / "m-symbol.json").write_bytes(symbol)
        (tmp_path / "m-0007.params").write_bytes(params)
        model = (str(tmp_path / "m"), 7)
        one = describe(model, tmp_path / "faces.txt", 1, flip=True, dtype="float32")
        found.append(one["model"])
    assert len(set(found)) == 3
    with pytest.raises(DataError, match="m-0008.params cannot be read: No such file.*; give --mod"):
        describe((model[0], 8), tmp_path / "faces.txt", 1, flip=True, dtype="float32")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": b"other"}, "differ in the model, whose file has another content; choose"),
        ({"faces": b"other"}, "differ in the list of faces"),
        ({"count": 24}, "differ in the number of faces"),
        ({"flip": False}, "differ in --no-flip"),
        ({"dtype": "bfloat16"}, "differ in --dtype"),
    ],
)
def test_other_features_are_refused(folder, tmp_path: Path, changes, message: str) -> None:
    folder.__exit__()
    before = sorted(path.name for path in (tmp_path / "a" / "out").iterdir())
    with pytest.raises(DataError, match=message):
        again(tmp_path, **changes)
    assert sorted(path.name for path in (tmp_path / "a" / "out").iterdir()) == before


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "out").mkdir(parents=True)
    (tmp_path / "a" / "out" / "thesis.tex").touch()
    with pytest.raises(DataError, match="out is not empty, and has no features.json; choose anoth"):
        again(tmp_path)
    (tmp_path / "a" / "out" / "features.json").write_text("[")
    with pytest.raises(DataError, match="features.json is damaged; choose another folder"):
        again(tmp_path)
    (tmp_path / "b").touch()
    with pytest.raises(DataError, match="b/c cannot be written: Not a directory"):
        FeaturesFolder(tmp_path / "b" / "c", description(tmp_path)).claim()


def test_one_command_at_a_time(folder: FeaturesFolder, tmp_path: Path) -> None:
    with (tmp_path / "a" / "out" / "features.json").open("r+b") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(DataError, match="another command writes into .*out; wait for its end"):
        again(tmp_path)
    assert folder.missing() == [1]


@pytest.mark.parametrize("kind", ["cut", "rows", "width", "nan", "long", "head", "empty"])
def test_a_damaged_part(folder: FeaturesFolder, tmp_path: Path, kind: str) -> None:
    folder.write(1, ROWS[10:20])
    path = tmp_path / "a" / "out" / "part-00001.npy"
    content, rows = path.read_bytes(), ROWS[10:20].copy()
    if kind == "cut":
        path.write_bytes(content[:-1])
    elif kind in ("empty", "long", "head"):
        made = {"empty": b"", "long": content + b"\0", "head": content.replace(b"<f4", b"<f8")}
        path.write_bytes(made[kind])
    else:
        rows[3, 1] = np.nan if kind == "nan" else rows[3, 1]
        kinds = {"rows": rows[:9], "width": rows[:, :4]}
        path.write_bytes(pack_rows(kinds.get(kind, rows)))
    with pytest.raises(DataError, match="part-00001.npy is damaged or has features of an"):
        list(folder.read())


def test_the_description_is_readable(folder: FeaturesFolder, tmp_path: Path) -> None:
    found = json.loads((tmp_path / "a" / "out" / "features.json").read_text())
    assert found.keys() == {"model", "faces", "count", "views", "flip", "dtype"}
    assert found["count"] == COUNT


def test_the_views_of_a_face_are_apart(folder: FeaturesFolder) -> None:
    folder.write(1, ROWS[10:20])
    views = np.concatenate(list(folder.read()), axis=1)
    np.testing.assert_array_equal(views, [ROWS[:, :3], ROWS[:, 3:]])


def test_features_of_earlier_versions_are_refused(folder: FeaturesFolder, tmp_path: Path) -> None:
    """Those were sums of the views, of which no protocol that normalizes views can be made."""
    folder.__exit__()
    path = tmp_path / "a" / "out" / "features.json"
    found = json.loads(path.read_text())
    del found["views"]
    path.write_text(json.dumps(found))
    with pytest.raises(DataError, match="differ in the views of a face, which earlier versions"):
        again(tmp_path)
