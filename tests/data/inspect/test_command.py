from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data.inspect.__main__ import main
from data.records.writer import RecordWriter
from data.verification.bin_file import write_bin
from runtime.errors import ConfigError, DataError

REASON = "the image cannot be decoded: it is no JPEG, PNG, BMP or WebP"


def inspect(monkeypatch, capsys, *arguments: object) -> tuple[int, list[str]]:
    monkeypatch.setattr(sys, "argv", ["inspect", *map(str, arguments)])
    status = main()
    return status, capsys.readouterr().out.splitlines()


def described(lines: list[str]) -> dict[str, str]:
    return {line[:22].strip(): line[22:] for line in lines}


@pytest.mark.parametrize("options", [[], ["--no-check"]])
def test_a_good_set_is_counted(monkeypatch, capsys, write_set, tmp_path: Path, options) -> None:
    folder = write_set([1, 3, 12, 60, 4])
    out = tmp_path / "out"
    status, lines = inspect(monkeypatch, capsys, folder, "--out", out, *options)
    rows = described(lines)
    assert status == 0
    assert lines[0].startswith(f"{folder / 'train.rec'}: identity-grouped, 0.0 MB")
    assert rows["images"].startswith("80 of 16 x 16")
    assert rows["identities"] == "5 with images, of 5 classes"
    assert rows["images per identity"] == "1 to 60, median 4, mean 16.0"
    assert (
        rows["1"] == "1 (20.0%) of the identities"
        and rows["2 to 9"] == "2 (40.0%) of the identities"
    )
    assert rows["10 to 49"] == rows["50 or more"] == "1 (20.0%) of the identities"
    assert rows.get("bad images") == ("0" if not options else None)
    names = ["faces-images-per-identity.png", "faces-samples.png"]
    assert sorted(file.name for file in out.iterdir()) == names
    assert all(str(out / name) in lines for name in names)


def test_bad_records_are_listed_by_key(monkeypatch, capsys, tmp_path: Path, make_image) -> None:
    with RecordWriter(tmp_path / "faces", image_size=(16, 16)) as writer:
        for number in range(90):
            image = make_image(number) if number % 3 == 0 else b"junk%d" % number
            writer.write(image, number // 30)
    status, lines = inspect(monkeypatch, capsys, tmp_path / "faces", "--out", tmp_path / "out")
    assert status == 1
    assert described(lines)["bad images"] == "60"
    start = next(i for i, line in enumerate(lines) if line.startswith("bad images"))
    assert lines[start + 1] == f"  record 2: {REASON}"
    assert lines[start + 20] == f"  record 30: {REASON}"
    assert lines[start + 21] == "  and 40 more"
    listed = (tmp_path / "out" / "faces-bad.txt").read_text().splitlines()
    assert [int(line.split()[1][:-1]) for line in listed] == [
        number + 1 for number in range(90) if number % 3
    ]


def test_the_name_of_a_set_is_one_line(monkeypatch, capsys, tmp_path: Path, make_image) -> None:
    folder = tmp_path / "a\nb\x1b[2Jé"
    with RecordWriter(folder, image_size=(16, 16)) as writer:
        writer.write(make_image(1), 0)
        writer.write(b"junk", 1)
    _, lines = inspect(monkeypatch, capsys, folder, "--out", tmp_path / "out")
    shown = str(tmp_path / r"a\nb\x1b[2Jé")
    assert lines[0].startswith(f"{shown}/train.rec: identity-grouped")
    assert "\x1b" not in "".join(lines)
    assert any(line.endswith(r"/a\nb\x1b[2Jé-samples.png") for line in lines)


def test_sizes_and_contradictory_labels_are_told(
    monkeypatch, capsys, tmp_path: Path, make_image
) -> None:
    """Images that training resizes are good; one of another shape, or class, is not."""
    with RecordWriter(tmp_path / "faces", image_size=(16, 16)) as writer:
        for number, label in enumerate((0, 0, 0, 1, 1)):
            writer.write(make_image(number, (32, 32) if number % 2 else (16, 16)), label)
        writer.write(make_image(5, (20, 16)), 1)
        writer.write(make_image(6), 1)
    path = tmp_path / "faces" / "train.rec"
    content = bytearray(path.read_bytes())
    place = content.index(make_image(1, (32, 32))) - 20
    content[place : place + 4] = np.float32(1).tobytes()
    place = content.index(make_image(6)) - 20
    content[place : place + 4] = np.float32(2).tobytes()
    path.write_bytes(content)
    status, lines = inspect(monkeypatch, capsys, tmp_path / "faces", "--out", tmp_path / "out")
    rows = described(lines)
    assert (status, rows["bad images"]) == (1, "2")
    assert rows["of 32 x 32"] == "2, resized in training"
    assert rows["of 20 x 16"] == "1, of another shape"
    assert rows["contradictory labels"] == "1" and "    record 2 has label 1" in lines
    assert any(line.startswith("  record 7 has label 2, but the classes are") for line in lines)


def test_one_image_of_two_identities_is_reported(
    monkeypatch, capsys, tmp_path: Path, make_image
) -> None:
    with RecordWriter(tmp_path / "faces", image_size=(16, 16)) as writer:
        for number, label in ((1, 0), (1, 0), (2, 0), (3, 1), (2, 1)):
            writer.write(make_image(number), label)
    status, lines = inspect(monkeypatch, capsys, tmp_path / "faces", "--out", tmp_path / "out")
    assert status == 0
    rows = described(lines)
    assert rows["repeated images"] == "2" and rows["of other identities"] == "1"
    assert "    record 3 = record 5" in lines


def test_a_verification_set_is_counted(monkeypatch, capsys, tmp_path: Path, make_image) -> None:
    images = [make_image(i % 7) for i in range(40)]
    write_bin(tmp_path / "lfw.bin", images, [True, False] * 10)
    status, lines = inspect(monkeypatch, capsys, tmp_path / "lfw.bin", "--out", tmp_path / "out")
    rows = described(lines)
    assert status == 0
    assert rows["pairs"] == "20: 10 same, 10 different"
    assert rows["same pairs by fold"] == "1 1 1 1 1 1 1 1 1 1"
    assert rows["images"].startswith("40, 7 different") and rows["of 16 x 16"] == "40"
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["lfw-samples.png"]


def test_a_set_without_a_readable_image_is_reported(monkeypatch, capsys, tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "faces", image_size=(16, 16)) as writer:
        writer.write(b"junk", 0)
    status, lines = inspect(monkeypatch, capsys, tmp_path / "faces", "--out", tmp_path / "out")
    assert status == 1 and described(lines)["bad images"] == "1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such folder or file"),
        (["nowhere.bin"], "nowhere.bin cannot be read"),
        (["faces", "--workers", "-1"], "'-1' is not a positive integer"),
        (["faces", "--out", "faces/property"], "cannot be written: .* --out"),
    ],
)
def test_mistakes_are_one_line(
    monkeypatch, capsys, write_set, tmp_path: Path, arguments, message: str
) -> None:
    write_set([2])
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, DataError), match=message):
        inspect(monkeypatch, capsys, *arguments)


def test_the_program_answers_with_its_status(write_set, tmp_path: Path) -> None:
    path = write_set([2]) / "train.rec"
    command = [sys.executable, "-m", "data.inspect", str(path), "--out", str(tmp_path / "out")]
    root = Path(__file__).parents[3]
    statuses = []
    for content in (path.read_bytes(), path.read_bytes().replace(b"IHDR", b"XXXX", 1), b""):
        path.write_bytes(content)
        result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
        statuses.append(result.returncode)
        assert result.stderr.count("\n") == (result.returncode == 2)
    assert statuses == [0, 1, 2]
