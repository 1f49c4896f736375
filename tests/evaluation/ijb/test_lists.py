"""The lists of a set, and the folder of its features."""

from __future__ import annotations

import fcntl
import os
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.ijb import features_folder
from evaluation.ijb.features_folder import FeaturesFolder, describe
from evaluation.ijb.lists import Lists, find_lists, read_faces, read_pairs, read_subjects
from tests.evaluation.support import npy
from tests.support.ijb_set import Sizes, template_ids, write_set
from tests.support.sets import assert_refused

FACE = " 30 40 60 40 45 60 33 80 58 80 0.9"
IDS = template_ids(Sizes())
ROWS = np.arange(25 * 6, dtype=np.float32).reshape(25, 6)
OUT = Path("a/out")


@pytest.fixture
def lists(tmp_path: Path) -> Lists:
    return find_lists(write_set(tmp_path / "IJBC").folder)


def read_all(lists: Lists) -> None:
    ids = read_faces(lists).template_ids
    read_pairs(lists.pairs, ids)
    read_subjects(lists.probes, ids)


def change(path: Path, number: int, line: str) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[: number - 1], line, *lines[number:]]) + "\n")


@pytest.mark.parametrize(("prefix", "name"), [("ijbb", "IJB-B"), ("ijbc", "IJB-C")])
def test_what_was_written(tmp_path: Path, prefix: str, name: str) -> None:
    """As it is, and with a mark at the beginning, other ends of lines, tabs and no UTF-8."""
    made = write_set(tmp_path / "any", prefix=prefix)
    lists = find_lists(made.folder)
    assert lists.name == name
    for image in (b"2.png", b"\xfc\xa0.png"):
        names = [f"{n + 1}.png".encode().replace(b"2.png", image) for n in range(60)]
        faces, pairs = read_faces(lists), read_pairs(lists.pairs, IDS)
        assert [*map(os.fsencode, faces.names)] == names
        assert faces.template_ids.tolist() == IDS.tolist()
        read = np.column_stack([IDS[pairs.first], IDS[pairs.second], pairs.same])
        for found, expected in (
            (faces.points, made.points), (faces.scores, made.scores), (faces.media, made.media),
            (IDS[faces.templates], made.templates), (read, made.pairs),
        ):  # fmt: skip
            np.testing.assert_array_equal(found, expected)
        for path, places in zip((*lists.galleries, lists.probes), (*made.galleries, made.probes)):
            subjects = read_subjects(path, IDS)
            np.testing.assert_array_equal(subjects.templates, places)
            np.testing.assert_array_equal(subjects.subjects, made.subjects[places])
        for path in (lists.points, lists.media, lists.pairs, lists.probes):
            content = path.read_bytes().replace(b"\n", b"\r\n").replace(b"2.png", b"\xfc\xa0.png")
            path.write_bytes(b"\xef\xbb\xbf" + content.replace(b" ", b"\t"))


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("pairs", "10 13", "has a line that is not two templates, and 1 for one person or 0"),
        ("pairs", "10 13.5 1", "has a line that is not two templates"),
        ("pairs", "10 99999999999999999999 1", "has a line that is not two templates"),
        ("pairs", "10 1\U000fe2c03 1", "has a line that is not two templates"),
        ("pairs", "-10 13 1", "has the template -10, which has no faces; take all lists"),
        ("pairs", "10 1000 0", "has the template 1000, "),
        ("pairs", "10 13 2", r"has the labels \[0, 1, 2\]; both 0 and 1 are needed"),
        ("points", "7.png 1 2 3", "is not an image, x and y of five points, and a score"),
        ("points", "7.png" + " 1" * 10 + " nan", "a number of '7.png' that is too large or none"),
        ("points", f"8.png{FACE}", "has '7.png' in place of '8.png', face 7 of ijbc_name"),
        ("media", "7.png 10 x", "has a line that is not an image, its template and its media"),
        ("media", "", "has 59 faces, .*score.txt 60; take all lists"),
        ("probes", "10", "has a line that is not a template, its subject, and others"),
        ("probes", "11,1,a.png", "has the template 11, which has no faces"),
        ("probes", "34,7,a.png", "has two subjects for the template 34"),
        ("probes", "34," + "7" * 200_000, "has a line that is not a template"),
    ],
)  # fmt: skip
def test_a_wrong_line(lists: Lists, name: str, line: str, message: str) -> None:
    change(getattr(lists, name), 7, line)
    assert_refused(f"ijbc_.* {message}", read_all, lists)


@pytest.mark.parametrize("image", ["/7.png", "a/../7.png", "a/..7.png"])
def test_no_image_is_outside(lists: Lists, image: str) -> None:
    change(lists.points, 7, f"{image}{FACE}")
    change(lists.media, 7, f"{image} 10 7")
    if image == "a/..7.png":
        assert read_faces(lists).names[6] == image
    else:
        assert_refused(f"names '{image}', which is not within loose_crop", read_faces, lists)


@pytest.mark.parametrize(
    ("name", "content"), [("points", "\n"), ("pairs", ""), ("probes", "TEMPLATE_ID,SUBJECT_ID\n")]
)
def test_too_few_lines(lists: Lists, name: str, content: str) -> None:
    path = getattr(lists, name)
    path.write_text(content)
    assert_refused(f"{path.name} .*input contained no data", read_all, lists)


def test_which_set(lists: Lists) -> None:
    meta = lists.points.parent
    (meta / "ijbb_name_5pts_score.txt").touch()
    for folder in (meta, meta.parent):
        assert_refused("/meta has to hold either ijbb_.* or ijbc_", find_lists, folder)


@pytest.fixture(autouse=True)
def _small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(features_folder, "PART", 10)


def described(count: int = 25, **changes: Any) -> FeaturesFolder:
    for name in ("model", "faces"):
        Path(name).write_bytes(changes.pop(name, b""))
    options = {"model": Path("model"), "no_flip": False, "dtype": "float32", **changes}
    return FeaturesFolder(OUT, describe(Namespace(**options), Path("faces"), count))


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
    assert_refused("part-00001.npy cannot be read: No such file", list, folder.read())
    with (OUT / "features.json").open("r+b") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert_refused("another command writes into .*out; wait for its end", claim)
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
    found, options = set(), Namespace(model=("m", 7), no_flip=False, dtype="float32")
    Path("faces").touch()
    for symbol, params in ((b"a", b"b"), (b"x", b"b"), (b"a", b"x")):
        Path("m-symbol.json").write_bytes(symbol)
        Path("m-0007.params").write_bytes(params)
        found.add(describe(options, Path("faces"), 1)["model"])
    assert len(found) == 3


def test_other_features_are_refused(folder: FeaturesFolder) -> None:
    folder.__exit__()
    before = sorted(OUT.iterdir())
    for changes in (
        {"model": b"other"}, {"faces": b"other"}, {"count": 24}, {"no_flip": True},
        {"dtype": "bfloat16"},
    ):  # fmt: skip
        assert_refused("features of another model or list of faces, or with", claim, **changes)
    assert sorted(OUT.iterdir()) == before


def test_a_folder_of_other_things_is_refused() -> None:
    OUT.mkdir(parents=True)
    (OUT / "thesis.tex").touch()
    assert_refused("out is not empty, and has no features.json; choose anoth", claim)
    (OUT / "features.json").write_text("[")
    assert_refused("features.json is damaged; choose another folder", claim)
    found = FeaturesFolder(OUT / "thesis.tex/c", {})
    assert_refused("tex/c cannot be written: Not a directory", found.claim)


def test_a_damaged_part(folder: FeaturesFolder) -> None:
    folder.write(1, ROWS[10:20])
    spoiled = ROWS[:10].copy()
    spoiled[3, 1] = np.nan
    whole = npy(ROWS[:10])
    # Of other lengths and widths, also one that has no two views, cut off, and not finite.
    others = [ROWS[:9], ROWS[:10, :4], ROWS[:10, :5], ROWS[:10, :0], spoiled]
    packed = [*map(npy, others)]
    for part, contents in ((1, [*packed, whole[:-1]]), (0, [*packed[2:], b""])):
        path = OUT / f"part-{part:05d}.npy"
        for content in contents:
            path.write_bytes(content)
            assert_refused(f"{path.name} is damaged or has features of an", list, folder.read())
        path.write_bytes(whole)
