from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data.inspect.__main__ import main
from data.verification.bin_file import write_bin
from runtime.errors import DataError
from tests.support.sets import overwrite, pack_set

REASON = "the image cannot be decoded: it is no JPEG, PNG, BMP or WebP"


@pytest.fixture
def inspect(run, monkeypatch, capsys, tmp_path):
    """Return a function that returns the status, the lines that are printed, and those by name."""
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
    assert rows["images"].startswith("80 of 16 x 16")
    assert rows["identities"] == "5 with images, of 5 classes"
    assert rows["images per identity"] == "1 to 60, median 4, mean 16.0"
    for span, count in {"1": 1, "2 to 9": 2, "10 to 49": 1, "50 or more": 1}.items():
        assert rows[span] == f"{count} ({20 * count}.0%) of the identities"
    assert rows.get("bad images") == ("0" if not options else None)
    names = ["faces-images-per-identity.png", "faces-samples.png"]
    assert sorted(file.name for file in Path("out").iterdir()) == names
    assert {f"out/{name}" for name in names} <= {*lines}


def test_bad_records_are_listed_by_key(inspect, make_image) -> None:
    """Of a set of any name."""
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
    # No image is readable.
    pack_set(Path("none"), [b"junk"], [0])
    assert inspect("none", "--out", "new")[2]["bad images"] == "1"


def test_sizes_repeated_images_and_wrong_labels_are_told(inspect, make_image) -> None:
    """Images that training resizes are good; one of another shape, or class, is not."""
    images = [make_image(n, (32, 32) if n % 2 else (16, 16)) for n in (0, 1, 2, 3, 4, 2, 2)]
    images += [make_image(5, (20, 16)), make_image(6)]
    faces = pack_set(Path("faces"), images, [0, 0, 0, 1, 1, 1, 1, 1, 1])
    overwrite(faces, 9, np.float32(2).tobytes(), at=12)
    status, lines, rows = inspect("faces", "--out", "out")
    assert (status, rows["bad images"]) == (1, "2")
    assert rows["of 32 x 32"] == "2, resized in training"
    assert rows["of 20 x 16"] == "1, of another shape"
    assert any(line.startswith("  record 9 has label 2, but the classes are") for line in lines)
    assert rows["repeated images"] == "2" and rows["of other identities"] == "2"
    assert {"    record 3 = record 6", "    record 3 = record 7"} <= {*lines}


def test_a_verification_set_is_counted(inspect, make_image) -> None:
    write_bin(Path("lfw.bin"), [make_image(i % 7) for i in range(40)], [True, False] * 10)
    status, _, rows = inspect("lfw.bin", "--out", "out")
    assert status == 0
    assert rows["pairs"] == "20: 10 same, 10 different"
    assert rows["same pairs by fold"] == "1 1 1 1 1 1 1 1 1 1"
    assert rows["images"].startswith("40, 7 different") and rows["of 16 x 16"] == "40"
    assert [file.name for file in Path("out").iterdir()] == ["lfw-samples.png"]
