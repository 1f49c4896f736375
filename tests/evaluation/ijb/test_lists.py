from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from evaluation.ijb import lists as module
from evaluation.ijb.lists import Lists, find_lists, read_faces, read_pairs, read_subjects
from runtime.errors import DataError
from tests.support.ijb_set import MadeSet, Sizes, template_ids, write_set

FACE = " 30 40 60 40 45 60 33 80 58 80 0.9"
IDS = template_ids(Sizes())


@pytest.fixture
def lists(tmp_path: Path) -> Lists:
    return find_lists(write_set(tmp_path / "IJBC").folder)


def change(path: Path, number: int, line: str) -> None:
    """Write another line with this number."""
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[: number - 1], line, *lines[number:]]) + "\n")


def check(lists: Lists, made: MadeSet, names: list[str]) -> None:
    """Compare all that is read with what was written."""
    faces, pairs = read_faces(lists), read_pairs(lists.pairs, IDS)
    assert faces.names == names and faces.template_ids.tolist() == IDS.tolist()
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


@pytest.mark.parametrize(("prefix", "name"), [("ijbb", "IJB-B"), ("ijbc", "IJB-C")])
def test_what_was_written(tmp_path: Path, prefix: str, name: str) -> None:
    """As it is, and with a mark at the beginning, other ends of lines, tabs and no UTF-8."""
    made = write_set(tmp_path / "any", prefix=prefix)
    lists = find_lists(made.folder)
    assert lists.name == name
    names = [f"{n + 1}.png" for n in range(60)]
    check(lists, made, names)
    for path in (lists.points, lists.media, lists.pairs, lists.probes):
        content = path.read_bytes().replace(b"\n", b"\r\n").replace(b"2.png", b"\xfc.png")
        path.write_bytes(b"\xef\xbb\xbf" + content.replace(b" ", b"\t"))
    check(lists, made, [os.fsdecode(n.encode().replace(b"2.png", b"\xfc.png")) for n in names])


def test_pairs_in_small_blocks(lists: Lists, monkeypatch: pytest.MonkeyPatch) -> None:
    """With empty lines, and ends of lines as on Windows."""
    expected = read_pairs(lists.pairs, IDS)
    text = lists.pairs.read_text().replace("\n", "\r\n").replace("\r\n", "\r\n \t\r\n\r\n", 40)
    lists.pairs.write_bytes(text.rstrip().encode())
    for size in (16, 1000):
        monkeypatch.setattr(module, "_BLOCK_BYTES", size)
        np.testing.assert_array_equal(read_pairs(lists.pairs, IDS), expected)


@pytest.mark.parametrize(
    "line",
    [
        "10 13 1 1", "-10 13 1", "10 13\x0c1", "10 \u0663 1", "10 13 2", "13 11 1", "11 13 0",
        "10 99999999999999999999 1",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("number", "before", "size"), [(1, "", 50), (252, "\n \n", 4096)])
def test_a_wrong_pair(lists: Lists, monkeypatch, line: str, number, before, size: int) -> None:
    change(lists.pairs, number - before.count("\n"), before + line)
    monkeypatch.setattr(module, "_BLOCK_BYTES", size)
    message = re.escape(f"{line!r} is not two templates that have faces, and the label 0 or 1")
    with pytest.raises(DataError, match=f"_pair_label.txt, line {number}: {message}"):
        read_pairs(lists.pairs, IDS)


@pytest.mark.parametrize(
    ("content", "found"),
    [("", "0 pairs, 0"), ("10 13 1\n", "1 pairs, 1"), ("10 13 0\n", "1 pairs, 0")],
)
def test_pairs_of_one_kind(tmp_path: Path, content: str, found: str) -> None:
    (tmp_path / "pairs").write_text(content)
    with pytest.raises(DataError, match=f"has {found} of one person; both kinds of pairs are"):
        read_pairs(tmp_path / "pairs", IDS)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("points", "7.png 1 2 3", "7: '7.png 1 2 3' is not the name of an image, x and y of five"),
        ("points", "7.png" + " 1" * 10 + " nan", "7: .* is not the name"),
        ("points", "7.png" + " 30 40" * 5 + " 0.9", "7: the five points lie in one place"),
        ("points", "7.png" + " 1e200 40" * 5 + " 0.9", "7: .* is not the name"),
        ("points", f"/7.png{FACE}", "7: '/7.png .* is not the name of an image within loose_crop"),
        ("points", f"a/../7.png{FACE}", "7: .* is not the name of an image within loose_crop"),
        ("points", f"a/..7.png{FACE}", "7: '7.png' stands where .* has 'a/..7.png'"),
        ("media", "7.png 10 x", "7: '7.png 10 x' is not the name of an image, a template and a"),
        ("media", "", "8: '8.png' stands where .* has '7.png'"),
    ],
)
def test_a_wrong_face(lists: Lists, name: str, line: str, message: str) -> None:
    change(getattr(lists, name), 7, line)
    with pytest.raises(DataError, match=f"ijbc_.*.txt, line {message}"):
        read_faces(lists)


def test_lists_of_different_lengths(lists: Lists) -> None:
    lines = lists.media.read_text().splitlines(True)
    for content, count in ((lines[:-3], 57), ([*lines, lines[0]], 61)):
        lists.media.write_text("".join(content))
        with pytest.raises(DataError, match=f"has {count} faces, .*score.txt 60; take both lists"):
            read_faces(lists)
    lists.points.write_text("\n")
    with pytest.raises(DataError, match="score.txt is empty"):
        read_faces(lists)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("10", "line 4: '10' is not a template, a subject, and others"),
        ("x,1", "line 4: 'x,1' is not"),
        ("11,1,a.png", "line 4: '11,1,a.png' is not of a template that has faces; take all lists"),
        ("10,7,a.png", "line 4: '10,7,a.png' is not of the subject 0, as the template in lines"),
        ("10," + "7" * 200_000, "cannot be read as a table of templates"),
    ],
)
def test_a_wrong_subject(lists: Lists, line: str, message: str) -> None:
    change(lists.galleries[0], 4, line)
    with pytest.raises(DataError, match=f"ijbc_1N_gallery_G1.csv,? {message}"):
        read_subjects(lists.galleries[0], IDS)


def test_tables_without_heading_or_templates(lists: Lists) -> None:
    path = lists.probes
    path.write_text("16,4\n13,9\n")
    found = read_subjects(path, IDS)
    assert (found.templates.tolist(), found.subjects.tolist()) == ([1, 2], [9, 4])
    path.write_text("TEMPLATE_ID,SUBJECT_ID\n")
    with pytest.raises(DataError, match="1N_probe_mixed.csv has no templates"):
        read_subjects(path, IDS)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="1N_probe_mixed.csv cannot be read: it is not a reg"):
        read_subjects(path, IDS)


def test_which_set(lists: Lists) -> None:
    meta = lists.points.parent
    with pytest.raises(DataError, match="meta/meta has to hold ijbb_.* or ijbc_.*, and has nei"):
        find_lists(meta)
    (meta / "ijbb_name_5pts_score.txt").touch()
    with pytest.raises(DataError, match="and has those of both sets"):
        find_lists(meta.parent)
