from __future__ import annotations

import cv2
import numpy as np

from data import unpack
from data.pack.__main__ import main as pack
from data.records.record_set import RecordSet
from tests.support.foreign_records import im2rec, write_records
from tests.support.sets import contents, images_of, overwrite

ENDINGS = [".jpg", ".png", ".bmp", ".webp"]


def test_packing_again_gives_the_same_set(run, write_set, tmp_path, capsys) -> None:
    source, out = write_set([1] * 5 + [3] + [2] * 6), tmp_path / "people"
    # An empty folder is filled.
    out.mkdir()
    assert run(unpack.main, source, out) == 0
    assert f"{out}: 20 images" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == [f"id_{n:02}" for n in range(12)]
    assert sorted(contents(out / "id_05")) == ["05_05.png", "05_06.png", "05_07.png"]
    run(pack, out, tmp_path / "again")
    assert images_of(RecordSet(tmp_path / "again")) == images_of(RecordSet(source))
    for most, count in ((6, 6), (60, 20)):
        few = tmp_path / "new" / f"{most}"
        assert run(unpack.main, source, few, "--max-images", most) == 0
        assert len(list(few.glob("id_*/*"))) == count


def test_what_is_broken_is_left_out_and_the_bytes_say_endings(run, tmp_path, capsys) -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    payloads = [cv2.imencode(ending, pixels)[1].tobytes() for ending in ENDINGS]
    broken = [payloads[0], b"GIF89a" + bytes(40)]
    written = im2rec([0, 0, 0, 0, 1, 1], [*payloads, *broken], range(6))
    path = write_records(tmp_path / "set", written, description="10,8,8") / "train.rec"
    overwrite(tmp_path / "set", 4, b"junk")
    assert run(unpack.main, tmp_path / "set", tmp_path / "out") == 1
    printed = capsys.readouterr()
    line = f"{path}: record 5: the image cannot be decoded: it is no JPEG"
    assert line in printed.err and "train.rec: record 4: no record begins" in printed.err
    assert "4 images, without 2 broken ones" in printed.out
    expected = {f"id_0/0_{n}{ENDINGS[n]}": payload for n, payload in enumerate(payloads)}
    assert contents(tmp_path / "out") == expected
