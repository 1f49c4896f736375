from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from evaluation.ijb import lists as module
from evaluation.ijb.lists import find_lists, read_faces, read_pairs, read_subjects
from runtime.errors import DataError
from tests.support.ijb_set import MadeSet, Sizes, template_ids, write_set

FACE = " 30 40 60 40 45 60 33 80 58 80 0.9"


@pytest.fixture
def made(tmp_path: Path) -> MadeSet:
    return write_set(tmp_path / "IJBC")


def change(path: Path, number: int, line: str) -> None:
    """Write another line with this number."""
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("prefix", ["ijbb", "ijbc"])
def test_what_was_written(tmp_path: Path, prefix: str) -> None:
    made = write_set(tmp_path / "any", prefix=prefix)
    lists = find_lists(made.folder)
    assert lists.release.name == {"ijbb": "IJB-B", "ijbc": "IJB-C"}[prefix]
    faces = read_faces(lists)
    assert faces.names == [f"{n + 1}.png" for n in range(60)]
    np.testing.assert_array_equal(faces.points, made.points)
    np.testing.assert_array_equal(faces.scores, made.scores)
    np.testing.assert_array_equal(faces.media, made.media)
    np.testing.assert_array_equal(faces.template_ids, template_ids(Sizes()))
    np.testing.assert_array_equal(faces.template_ids[faces.templates], made.templates)
    pairs = read_pairs(lists.pairs, faces.template_ids)
    np.testing.assert_array_equal(faces.template_ids[pairs.first], made.pairs[:, 0])
    np.testing.assert_array_equal(faces.template_ids[pairs.second], made.pairs[:, 1])
    np.testing.assert_array_equal(pairs.same, made.pairs[:, 2])
    for path, places in zip((*lists.galleries, lists.probes), (*made.galleries, made.probes)):
        found = read_subjects(path, faces.template_ids)
        np.testing.assert_array_equal(found.templates, places)
        np.testing.assert_array_equal(found.subjects, made.subjects[places])


def test_lists_of_other_systems(made: MadeSet) -> None:
    """A mark at the beginning, other ends of lines, tabs, and names that are not UTF-8."""
    lists = find_lists(made.folder)
    faces = read_faces(lists)
    pairs, probes = read_pairs(lists.pairs, faces.template_ids), lists.probes
    subjects = read_subjects(probes, faces.template_ids)
    for path in (lists.points, lists.media, lists.pairs, probes):
        content = path.read_bytes().replace(b"\n", b"\r\n").replace(b"2.png", b"\xfc.png")
        path.write_bytes(b"\xef\xbb\xbf" + content.replace(b" ", b"\t"))
    found = read_faces(lists)
    assert found.names == [os.fsdecode(n.encode().replace(b"2.png", b"\xfc.png"))
                           for n in faces.names]  # fmt: skip
    np.testing.assert_array_equal(found.points, faces.points)
    np.testing.assert_array_equal(found.media, faces.media)
    for one, other in zip(read_pairs(lists.pairs, faces.template_ids), pairs):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(read_subjects(probes, faces.template_ids), subjects):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("size", [16, 37, 1000])
def test_pairs_in_small_blocks(made: MadeSet, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that end within lines; empty lines, and ends of lines as on Windows."""
    path, ids = find_lists(made.folder).pairs, template_ids(Sizes())
    expected = read_pairs(path, ids)
    text = path.read_text().replace("\n", "\r\n").replace("\r\n", "\r\n \t\r\n\r\n", 40)
    path.write_bytes(text.rstrip().encode())
    monkeypatch.setattr(module, "_BLOCK_BYTES", size)
    for one, other in zip(read_pairs(path, ids), expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("10 13", "'10 13' is not two templates and a label"),
        ("10 13 1 1", "'10 13 1 1' is not two templates and a label"),
        ("10 13 1.0", "'10 13 1.0' is not two templates"),
        ("-10 13 1", "'-10 13 1' is not two templates"),
        ("10 x 1", "'10 x 1' is not two templates"),
        ("10 \u0663 1", "is not two templates"),
        ("10 13 2", "the label 2 is neither 0 nor 1"),
        ("10 11 1", "the template 11 has no face in the list of faces; take both lists"),
        ("999 13 1", "the template 999 has no face"),
        ("10 99999999999999999999 1", "'10 99999999999999999999 1' is not two templates"),
    ],
)
@pytest.mark.parametrize("number", [1, 250, 400])
@pytest.mark.parametrize("size", [50, 4096])
def test_a_wrong_pair(
    made: MadeSet, monkeypatch: pytest.MonkeyPatch, line: str, message: str, number: int, size: int
) -> None:
    path = find_lists(made.folder).pairs
    change(path, number, line)
    monkeypatch.setattr(module, "_BLOCK_BYTES", size)
    with pytest.raises(DataError, match=f"_pair_label.txt, line {number}: .*{message}"):
        read_pairs(path, template_ids(Sizes()))


def test_the_line_of_an_unknown_template_behind_empty_lines(made: MadeSet) -> None:
    path = find_lists(made.folder).pairs
    change(path, 300, "\n\n  \n10 11 1")
    with pytest.raises(DataError, match="line 303: the template 11 has no face"):
        read_pairs(path, template_ids(Sizes()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 pairs, 0 of one person; both kinds of pairs are needed"),
        (b"10 13 1\n", "has 1 pairs, 1 of one person"),
        (b"10 13 0\n10 16 0\n", "has 2 pairs, 0 of one person"),
        (b"1" * 200, "line 1: .* is not two templates and a label"),
        (b"10 13 1\r10 16 0\n", "line 1: .* is not two templates and a label"),
    ],
)
def test_no_list_of_pairs(tmp_path: Path, monkeypatch, content: bytes, message: str) -> None:
    (tmp_path / "pairs").write_bytes(content)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 100)
    with pytest.raises(DataError, match=message):
        read_pairs(tmp_path / "pairs", template_ids(Sizes()))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("7.png 1 2 3", "line 7: '7.png 1 2 3' is not the name of an image, x and y of five"),
        ("7.png" + " 1" * 10 + " x", "line 7: .* is not the name"),
        ("7.png" + " 1" * 10 + " nan", "line 7: .* is not the name"),
        ("7.png" + " 1" * 12, "line 7: .* is not the name"),
        ("7.png" + " 30 40" * 5 + " 0.9", "line 7: the five points lie in one place"),
        ("7.png" + " 1e200 40" * 5 + " 0.9", "line 7: .* is not the name"),
        (f"/7.png{FACE}", "line 7: '/7.png 30 .* is not the name of an image within loose_crop"),
        (f"../7.png{FACE}", "line 7: .* is not the name of an image within loose_crop"),
        (f"a/../7.png{FACE}", "line 7: .* is not the name of an image within loose_crop"),
        (f"a/..7.png{FACE}", "line 7: '7.png' stands where .* has 'a/..7.png'"),
        ("8.png 1 2 3 4 5 6 7 8 9 9 0.9", "line 7: '7.png' stands where .* has '8.png'"),
    ],
)
def test_a_wrong_face(made: MadeSet, line: str, message: str) -> None:
    lists = find_lists(made.folder)
    change(lists.points, 7, line)
    with pytest.raises(DataError, match=message):
        read_faces(lists)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("7.png 10", "line 7: '7.png 10' is not the name of an image, a template and a media"),
        ("7.png 10 x", "line 7: '7.png 10 x' is not"),
        ("", "ijbc_face_tid_mid.txt, line 8: '8.png' stands where .* has '7.png'"),
        ("7.png 10 1\n7.png 10 1", "line 8: '7.png' stands where .* has '8.png'"),
    ],
)
def test_a_wrong_media(made: MadeSet, line: str, message: str) -> None:
    lists = find_lists(made.folder)
    change(lists.media, 7, line)
    with pytest.raises(DataError, match=message):
        read_faces(lists)


def test_lists_of_different_lengths(made: MadeSet) -> None:
    lists = find_lists(made.folder)
    lines = lists.media.read_text().splitlines(True)
    lists.media.write_text("".join(lines[:-3]))
    with pytest.raises(DataError, match="has 57 faces, .*score.txt 60; take both lists from one"):
        read_faces(lists)
    lists.media.write_text("".join([*lines, lines[0]]))
    with pytest.raises(DataError, match="has 61 faces, .*score.txt 60"):
        read_faces(lists)
    lists.points.write_text("\n")
    with pytest.raises(DataError, match="score.txt is empty"):
        read_faces(lists)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("10", "line 4: '10' is not a template, a subject, and others"),
        ("x,1", "line 4: 'x,1' is not"),
        ("11,1,a.png", "line 4: the template 11 has no face in the list of faces"),
        ("999,1,a.png", "line 4: the template 999 has no face"),
        ("10,7,a.png", "line 4: the template 10 is of the subject 7, and of 0 in a line before"),
    ],
)
def test_a_wrong_subject(made: MadeSet, line: str, message: str) -> None:
    path = find_lists(made.folder).galleries[0]
    change(path, 4, line)
    with pytest.raises(DataError, match=f"ijbc_1N_gallery_G1.csv, {message}"):
        read_subjects(path, template_ids(Sizes()))


def test_a_table_without_heading_loses_no_template(made: MadeSet) -> None:
    path, ids = find_lists(made.folder).probes, template_ids(Sizes())
    path.write_text("16,4\n13,9\n")
    found = read_subjects(path, ids)
    assert (found.templates.tolist(), found.subjects.tolist()) == ([1, 2], [9, 4])


def test_no_table_of_subjects(made: MadeSet) -> None:
    path, ids = find_lists(made.folder).probes, template_ids(Sizes())
    path.write_text("TEMPLATE_ID,SUBJECT_ID\n")
    with pytest.raises(DataError, match="1N_probe_mixed.csv has no templates"):
        read_subjects(path, ids)
    path.write_bytes(b"TEMPLATE_ID,SUBJECT_ID\n10,\xff\n")
    with pytest.raises(DataError, match="1N_probe_mixed.csv cannot be read as a table"):
        read_subjects(path, ids)
    path.unlink()
    with pytest.raises(DataError, match="1N_probe_mixed.csv cannot be read: No such file"):
        read_subjects(path, ids)
    os.mkfifo(path)
    with pytest.raises(DataError, match="1N_probe_mixed.csv cannot be read: it is not a reg"):
        read_subjects(path, ids)


def test_which_set(made: MadeSet) -> None:
    with pytest.raises(DataError, match="meta/meta has to hold ijbb_.* or ijbc_.*, and has nei"):
        find_lists(made.folder / "meta")
    (made.folder / "meta" / "ijbb_name_5pts_score.txt").touch()
    with pytest.raises(DataError, match="and has those of both sets"):
        find_lists(made.folder)
