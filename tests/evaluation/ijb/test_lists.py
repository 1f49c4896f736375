"""The lists of a set, and the folder of its features."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.ijb import features_folder
from evaluation.ijb import lists as module
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


def change(path: Path, number: int, line: str) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[: number - 1], line, *lines[number:]]) + "\n")


@pytest.mark.parametrize(("prefix", "name"), [("ijbb", "IJB-B"), ("ijbc", "IJB-C")])
def test_what_was_written(tmp_path: Path, prefix: str, name: str) -> None:
    """As it is, and with a mark at the beginning, other ends of lines, tabs and no UTF-8."""
    made = write_set(tmp_path / "any", prefix=prefix)
    lists = find_lists(made.folder)
    assert lists.name == name
    for image in (b"2.png", b"\xfc.png"):
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
            content = path.read_bytes().replace(b"\n", b"\r\n").replace(b"2.png", b"\xfc.png")
            path.write_bytes(b"\xef\xbb\xbf" + content.replace(b" ", b"\t"))


def test_empty_lines_are_left_out(lists: Lists) -> None:
    expected = read_pairs(lists.pairs, IDS)
    text = lists.pairs.read_text().replace("\n", "\r\n").replace("\r\n", "\r\n \t\r\n\r\n", 40)
    lists.pairs.write_bytes(text.rstrip().encode())
    np.testing.assert_array_equal(read_pairs(lists.pairs, IDS), expected)


@pytest.mark.parametrize(
    "line",
    [
        "10 13 1 1", "10 13", "-10 13 1", "10 \u0663 1", "10 13 2", "13 11 1", "11 13 0",
        "10 99999999999999999999 1",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("number", "before"), [(1, ""), (252, "\n \n")])
def test_a_wrong_pair(lists: Lists, line: str, number: int, before: str) -> None:
    change(lists.pairs, number - before.count("\n"), before + line)
    message = re.escape(f"{line!r} is not two templates that have faces, and the label 0 or 1")
    message = f"_pair_label.txt, line {number}: {message}"
    assert_refused(message, read_pairs, lists.pairs, IDS)


def test_pairs_of_one_kind(tmp_path: Path) -> None:
    path = tmp_path / "pairs"
    for line, found in (("", "0 pairs, 0"), ("10 13 1", "1 pairs, 1"), ("10 13 0", "1 pairs, 0")):
        path.write_text(line)
        message = f"has {found} of one person; both kinds of pairs are"
        assert_refused(message, read_pairs, path, IDS)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("points", "7.png 1 2 3", "7: '7.png 1 2 3' is not the name of an image within loose_c"),
        ("points", "7.png" + " 1" * 10 + " nan", "7: .* is not the name"),
        ("points", "7.png" + " 1e200 40" * 5 + " 0.9", "7: .* is not the name"),
        ("points", f"/7.png{FACE}", "7: '/7.png .* is not the name of an image within loose_crop"),
        ("points", f"a/../7.png{FACE}", "7: .* is not the name of an image within loose_crop"),
        ("points", f"a/..7.png{FACE}", "7: '7.png .* is not the image in this place of"),
        ("media", "7.png 10 x", "7: .* is not the image in .*score.txt, a template and a media"),
        ("media", f"7.png {'7' * 19} 1", "7: .* is not the image in this place"),
        ("media", "", "8: '8.png .* is not the image in this place"),
    ],
)
def test_a_wrong_face(lists: Lists, name: str, line: str, message: str) -> None:
    change(getattr(lists, name), 7, line)
    assert_refused(f"ijbc_.*.txt, line {message}", read_faces, lists)


def test_points_in_one_place(lists: Lists) -> None:
    change(lists.points, 7, "7.png" + " 30 40" * 5 + " 0.9")
    message = "score.txt, '7.png': its five points lie in one place; each line has"
    assert_refused(message, module.check_points, lists.points, read_faces(lists))


def test_lists_of_different_lengths(lists: Lists) -> None:
    lines = lists.media.read_text().splitlines(True)
    for content, message in (
        (lines[:-3], "has 57 faces, .*score.txt 60; take both lists"),
        ([*lines, lines[0]], "line 61: '1.png .* is not the image in this place"),
    ):
        lists.media.write_text("".join(content))
        assert_refused(message, read_faces, lists)
    lists.points.write_text("\n")
    assert_refused("score.txt is empty", read_faces, lists)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("10", "line 4: '10' is not a template that has faces, its only subject, and others"),
        ("x,1", "line 4: 'x,1' is not"),
        ("11,1,a.png", "line 4: '11,1,a.png' is not a template that has faces, .*; take all lists"),
        ("10,7,a.png", "line 4: '10,7,a.png' is not"),
        ("10," + "7" * 200_000, "line 4: '10,777.* is not a template"),
    ],
)
def test_a_wrong_subject(lists: Lists, line: str, message: str) -> None:
    change(lists.galleries[0], 4, line)
    message = f"ijbc_1N_gallery_G1.csv,? {message}"
    assert_refused(message, read_subjects, lists.galleries[0], IDS)


def test_tables_without_heading_or_templates(lists: Lists) -> None:
    path = lists.probes
    path.write_text("16,4\n13,9\n")
    found = read_subjects(path, IDS)
    assert (found.templates.tolist(), found.subjects.tolist()) == ([1, 2], [9, 4])
    path.write_text("TEMPLATE_ID,SUBJECT_ID\n")
    assert_refused("1N_probe_mixed.csv has no templates", read_subjects, path, IDS)
    path.unlink()
    os.mkfifo(path)
    message = "1N_probe_mixed.csv cannot be read: it is not a reg"
    assert_refused(message, read_subjects, path, IDS)


def test_which_set(lists: Lists) -> None:
    meta = lists.points.parent
    assert_refused("meta/meta has to hold ijbb_.* or ijbc_.*, and has nei", find_lists, meta)
    (meta / "ijbb_name_5pts_score.txt").touch()
    assert_refused("and has those of both sets", find_lists, meta.parent)


@pytest.fixture(autouse=True)
def _small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(features_folder, "PART", 10)


def described(count: int = 25, **changes: Any) -> FeaturesFolder:
    for name in ("model", "faces"):
        Path(name).write_bytes(changes.pop(name, b""))
    options = {"flip": True, "dtype": "float32", **changes}
    return FeaturesFolder(OUT, describe(Path("model"), Path("faces"), count, **options))


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
    for changes in (
        {"model": b"other"}, {"faces": b"other"}, {"count": 24}, {"flip": False},
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
