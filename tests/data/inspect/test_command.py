from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from data.decoding import decode_rgb
from data.inspect import sheets
from data.inspect.__main__ import main
from data.records.record_set import RecordSet
from data.verification.bin_file import read_bin, write_bin
from runtime.errors import DataError
from tests.support.sets import overwrite, pack_set

REASON = "the image cannot be decoded: it is no JPEG, PNG, BMP or WebP"


def numbers_in(sheet: np.ndarray) -> set[int]:
    return {*sheet[sheet[..., 1] == 7][:, 0].tolist()}


@pytest.fixture
def written(monkeypatch):
    texts: list[str] = []

    def put(paper, text, place, font, scale, color, width, kind) -> None:
        assert (color, width, kind) == ((30, 30, 30), 1, cv2.LINE_AA)
        texts.append(text)

    monkeypatch.setattr(cv2, "putText", put)
    return texts


def test_a_row_shows_one_identity(write_set) -> None:
    records = RecordSet(write_set([3, 1, 2]))
    png = sheets.draw_identities(records, records.labels().astype(np.int64), "faces")
    sheet = decode_rgb(png)
    # A margin of 8, the title of 36, rows of 112, a note of 20 and a gap of 4.
    assert png.startswith(b"\x89PNG") and sheet.shape == (8 + 36 + 3 * 136 + 8, 720, 3)
    for number, (row, column) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)]):
        # A heading of 200 before the tiles.
        top, left = 8 + 36 + 136 * row, 8 + 200 + 116 * column
        found = np.argwhere((sheet == (number, 7, 255 - number)).all(axis=2))
        assert len(found) == 112 * 112
        assert found[[0, -1]].tolist() == [[top, left], [top + 111, left + 111]]


def test_large_sets_are_sampled_evenly_and_a_broken_image_is_a_cross(write_set) -> None:
    records = RecordSet(overwrite(write_set([100, *[1] * 10]), 1, b"junk", at=32))
    sheet = decode_rgb(sheets.draw_identities(records, records.labels().astype(np.int64), "faces"))
    # Of 110 images every twelfth; the first identity's row shows eight of its hundred.
    shown = numbers_in(sheet)
    assert {99, 109} <= shown and len(shown) == 7 + 1 and 0 not in shown
    assert (sheet == (200, 30, 30)).all(axis=2).sum() > 2 * 112


def test_pairs_of_each_kind_are_shown(tmp_path, make_image, written) -> None:
    same = [number % 2 == 0 for number in range(80)]
    write_bin(tmp_path / "set.bin", [make_image(n, (8, 16)) for n in range(160)], same)
    sheet = decode_rgb(sheets.draw_pairs(read_bin(tmp_path / "set.bin"), "set"))
    assert [*filter(None, written)] == ["set"] + ["same identity"] * 32 + ["different"] * 32
    # Rows of four pairs of tiles of 112 and gaps of 4, and 24 after each; eight rows of each kind.
    assert sheet.shape == (8 + 36 + 16 * 136 + 8, 8 + 4 * (2 * 116 + 24), 3)
    half = 8 + 36 + 8 * 136
    for is_same, part in ((True, sheet[:half]), (False, sheet[half:])):
        shown = numbers_in(part)
        assert len(shown) == 64 and {number // 2 % 2 == 0 for number in shown} == {is_same}


@pytest.mark.parametrize(("channels", "side", "count"), [(3, 112, 64), (1, 28, 5)])
def test_the_first_images_of_a_batch(channels: int, side: int, count: int, written) -> None:
    images = np.zeros((count, channels, side, side), np.uint8)
    images[0, 0] = 200
    before = images.copy()
    sheet = decode_rgb(sheets.draw_batch(images, np.arange(count)))
    assert (images == before).all() and written[1:] == [*map(str, range(min(count, 16)))]
    first = [200, 200, 200] if channels == 1 else [200, 0, 0]
    assert np.abs(sheet[64, 28].astype(int) - first).max() < 12
    assert sheet.shape[:2] == (8 + 36 + min(-(-count // 4), 4) * 136 + 8, 720)


def test_a_name_of_other_bytes_or_of_a_formula_is_drawn() -> None:
    """OpenCV would end the process, matplotlib raise the error of a formula."""
    for name in ("a\udcff", "\x1b[2J\n", "$\\frac{1}{0}$ $"):
        assert decode_rgb(sheets.draw_histogram(np.array([1, 2]), name)).std() > 1
        assert decode_rgb(sheets.draw_rows([([name], [[(b"", name)]])], name)).std() > 1


@pytest.fixture
def inspect(run, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, list[str], dict[str, str]]:
        status, lines = run(main, *arguments), capsys.readouterr().out.splitlines()
        return status, lines, {line[:22].strip(): line[22:] for line in lines}

    return command


@pytest.mark.parametrize("options", [[], ["--no-check"]])
def test_a_good_set_is_counted(inspect, write_set, options: list[str]) -> None:
    write_set([1, 3, 12, 60, 4])
    status, lines, rows = inspect("faces", "--out", "out", *options)
    assert status == 0 and lines[0].startswith("faces/train.rec: identity-grouped, 0.0 MB")
    assert rows["images"][:2] == "80"
    assert rows["identities"] == "5 with images, of 5 classes"
    assert rows["images per identity"] == "1 to 60, median 4, mean 16.0"
    for span, count in {"1": 1, "2 to 9": 2, "10 to 49": 1, "50 or more": 1}.items():
        assert rows[span] == f"{count} ({20 * count}.0%) of the identities"
    assert rows.get("bad images") == ("0" if not options else None)
    names = ["faces-images-per-identity.png", "faces-samples.png"]
    assert sorted(file.name for file in Path("out").iterdir()) == names
    assert {f"out/{name}" for name in names} <= {*lines}


def test_bad_records_are_listed_by_key(inspect, make_image) -> None:
    images = [b"junk%d" % n if n % 3 else make_image(n) for n in range(90)]
    pack_set(Path("a\nb\x1b[2J"), images, [n // 30 for n in range(90)])
    status, lines, rows = inspect("a\nb\x1b[2J", "--out", "out")
    assert status == 1 and rows["bad images"] == "60"
    start = next(i for i, line in enumerate(lines) if line.startswith("bad images"))
    assert lines[start + 1] == f"  record 2: {REASON}"
    assert lines[start + 20 : start + 22] == [f"  record 30: {REASON}", "  and 40 more"]
    listed = Path("out/a\nb\x1b[2J-bad.txt").read_text().splitlines()
    assert [int(line.split()[1][:-1]) for line in listed] == [n + 1 for n in range(90) if n % 3]
    assert lines[0].startswith(r"a\nb\x1b[2J/train.rec: identity-grouped")
    assert "\x1b" not in "".join(lines)
    with pytest.raises(DataError, match="cannot be written: .* --out"):
        inspect("a\nb\x1b[2J", "--out", "out/a\nb\x1b[2J-bad.txt")
    pack_set(Path("none"), [b"junk"] * 20, [0] * 20)
    assert inspect("none", "--out", "new")[2]["bad images"] == "20"
    assert not list(Path("new").glob("*-bad.txt"))


def test_sizes_repeated_images_and_wrong_labels_are_told(inspect, make_image) -> None:
    """Images that training resizes are good; one of another shape, or class, is not."""
    images = [make_image(n, (32, 32) if n % 2 else (16, 16)) for n in (0, 1, 2, 3, 4, 2, 2)]
    images += [make_image(5, (20, 16)), make_image(6)]
    faces = pack_set(Path("faces"), images, [0, 0, 0, 1, 1, 1, 1, 1, 1])
    overwrite(faces, 9, np.float32(2).tobytes(), at=12)
    status, lines, rows = inspect("faces", "--out", "out")
    assert (status, rows["bad images"]) == (1, "2")
    assert rows["of 32 x 32"] == "2"
    assert rows["of 20 x 16"] == "1"
    assert any(line.startswith("  record 9 has label 2, but the classes are") for line in lines)
    assert rows["repeated images"] == "2" and rows["of other identities"] == "2"
    assert {"    record 3 = record 6", "    record 3 = record 7"} <= {*lines}


def test_a_verification_set_is_counted(inspect, make_image) -> None:
    write_bin(Path("lfw.bin"), [make_image(i % 7) for i in range(40)], [True, False] * 10)
    status, _, rows = inspect("lfw.bin", "--out", "out")
    assert status == 0
    assert rows["pairs"] == "20: 10 same, 10 different" and rows["different images"] == "7"
    assert rows["images"].startswith("40, 0.") and rows["of 16 x 16"] == "40"
    assert [file.name for file in Path("out").iterdir()] == ["lfw-samples.png"]
