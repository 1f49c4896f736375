from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np

from data import unpack
from data.pack.__main__ import main as pack
from data.records.record_set import RecordSet
from tests.support.foreign_records import im2rec, write_records

ENDINGS = [".jpg", ".png", ".bmp", ".webp"]


def run(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["unpack", *map(str, arguments)])
    return unpack.main()


def contents(path: Path) -> list[tuple[bytes, int]]:
    records = RecordSet(path)
    found = map(records.image, range(len(records)))
    return [(bytes(payload), label) for payload, label in found]


def test_packing_again_gives_the_same_set(write_set, tmp_path, monkeypatch, capsys) -> None:
    source, out = write_set([1] * 5 + [3] + [2] * 6), tmp_path / "people"
    # An empty folder is filled.
    out.mkdir()
    assert run(monkeypatch, source, out) == 0
    assert f"{out}: 20 images" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == [f"id_{n:02}" for n in range(12)]
    names = sorted(path.name for path in (out / "id_05").iterdir())
    assert names == ["05_05.png", "05_06.png", "05_07.png"]
    monkeypatch.setattr(sys, "argv", ["pack", str(out), str(tmp_path / "again")])
    pack()
    assert contents(tmp_path / "again") == contents(source)
    for most, count in ((6, 6), (60, 20)):
        few = tmp_path / "new" / f"{most}"
        assert run(monkeypatch, source, few, "--max-images", most) == 0
        assert len(list(few.glob("id_*/*"))) == count


def test_what_is_broken_is_left_out_and_endings_are_those_of_the_bytes(
    tmp_path, monkeypatch, capsys
) -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    payloads = [cv2.imencode(ending, pixels)[1].tobytes() for ending in ENDINGS]
    contents = [*payloads, payloads[0], b"GIF89a" + bytes(40)]
    written = im2rec([n // 4 for n in range(6)], contents, range(6))
    path = write_records(tmp_path / "set", written, description="2,8,8") / "train.rec"
    at = sum(len(content) for _, content in written[:4])
    path.write_bytes(path.read_bytes()[:at] + b"junk" + path.read_bytes()[at + 4 :])
    assert run(monkeypatch, tmp_path / "set", tmp_path / "out") == 1
    printed = capsys.readouterr()
    line = f"{path}: record 5: the image cannot be decoded: it is no JPEG"
    assert line in printed.err and "train.rec: record 4: no record begins" in printed.err
    assert "4 images, without 2 broken ones" in printed.out
    files = sorted((tmp_path / "out").glob("id_*/*"))
    assert [path.name for path in files] == [f"0_{n}{end}" for n, end in enumerate(ENDINGS)]
    assert [path.read_bytes() for path in files] == payloads
