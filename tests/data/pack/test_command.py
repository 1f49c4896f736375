from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from data.decoding import decode_rgb
from data.identities import Identity, split_evenly
from data.pack.__main__ import main
from data.records.record_set import RecordSet
from data.records.shards import open_sets
from data.verification.bin_file import read_bin
from runtime.errors import ConfigError, DataError
from tests.support.oriented_images import assert_seen, file_with

ROOT = Path(__file__).parents[3]
AS_STORED = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION


@pytest.fixture
def people(tmp_path: Path, make_image) -> Path:
    """Ten folders p0 … p9 with 2 + i images; red is 20 times the person, and the image."""
    for person in range(10):
        folder = tmp_path / "people" / f"p{person}"
        folder.mkdir(parents=True)
        for image in range(2 + person):
            (folder / f"p{person}_{image + 1:04d}.png").write_bytes(make_image(person * 20 + image))
    return tmp_path / "people"


def pack(monkeypatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["pack", *map(str, arguments)])
    main()


def run(folder: Path, out: Path, *options: str, **how: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "data.pack", str(folder), str(out), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, **how)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_becomes_a_set(monkeypatch, capsys, people: Path, tmp_path: Path) -> None:
    (people / "p0" / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    pack(monkeypatch, people, tmp_path / "out")
    records = RecordSet(tmp_path / "out")
    assert (len(records), records.num_classes, records.image_size) == (65, 10, (16, 16))
    for i, file in enumerate(sorted(people.glob("*/*.png"))):
        assert bytes(records.read(i).payload) == file.read_bytes()
        assert records.read(i).label == int(file.parent.name[1:])
    printed = capsys.readouterr()
    assert "10 identities, 65 images of 16 x 16" in printed.out
    line = "left out 1 files that are not images, the first is p0/Thumbs.db"
    assert printed.err == f"{people}: {line}\n"


def test_held_out_people_are_in_the_pairs_only(monkeypatch, people: Path, tmp_path: Path) -> None:
    options = ["--min-images", 4, "--holdout-every", 3, "--holdout-pairs", 40, "--folds", 2]
    pack(monkeypatch, people, tmp_path / "out", *options)
    # p2 … p9 remain; every third of them is held out.
    records = RecordSet(tmp_path / "out")
    target = read_bin(tmp_path / "out" / "holdout.bin")
    reds = target.decode(range(0, len(target)), (16, 16))[:, 0, 0, 0]
    trained = [2, 3, 5, 6, 8, 9]
    assert np.bincount(records.labels()).tolist() == [2 + person for person in trained]
    assert set(reds // 20) == {4, 7}
    assert len(target.same) == 40 and target.same.sum() == 20
    assert ((reds[::2] // 20 == reds[1::2] // 20) == target.same).all()
    assert (reds[::2] != reds[1::2]).all()
    pack(monkeypatch, people, tmp_path / "again", *options)
    assert read_bin(tmp_path / "again" / "holdout.bin").images == target.images
    pack(monkeypatch, people, tmp_path / "other", *options, "--seed", 1)
    assert read_bin(tmp_path / "other" / "holdout.bin").images != target.images


def test_check_names_every_bad_image(monkeypatch, capsys, people, tmp_path, make_image) -> None:
    good = make_image(1)
    at = good.index(b"IDAT") + 6
    damaged = good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :]
    (people / "p0" / "p0_0001.png").write_bytes(damaged)
    (people / "p5" / "p5_0003.png").write_bytes(make_image(1, (16, 20)))
    (people / "p9" / "p9_0002.png").unlink()
    (people / "p9" / "p9_0002.png").symlink_to("nowhere")
    # A byte of the compressed pixels: what the first and last bytes say is still right.
    with pytest.raises(DataError, match=r"p5_0003\.png has 16 x 20 pixels, .* 16 x 16; align all"):
        pack(monkeypatch, people, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    with pytest.raises(DataError, match="3 of 65 images cannot be used"):
        pack(monkeypatch, people, tmp_path / "out", "--check")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "p0_0001.png: the image cannot be decoded" in lines[0]
    assert "p5_0003.png has 16 x 20 pixels, the images before it 16 x 16; align all" in lines[1]
    assert "p9_0002.png cannot be read: No such file" in lines[2]
    assert not (tmp_path / "out" / "train.rec").exists()


def test_images_are_cropped_and_resized(monkeypatch, people, tmp_path, make_image) -> None:
    wide = np.full((40, 100, 3), 200, np.uint8)
    wide[:, 30:70] = (30, 120, 220)
    path = people / "p0" / "p0_0001.png"
    cv2.imwrite(str(path), wide)
    with pytest.raises(DataError, match=r"p0_0001\.png has 40 x 100 pixels, .* --crop"):
        pack(monkeypatch, people, tmp_path / "out", "--resize", "16")
    pack(monkeypatch, people, tmp_path / "out", "--resize", "16", "--crop")
    records = RecordSet(tmp_path / "out")
    image = decode_rgb(records.read(0).payload)
    assert image.shape == (16, 16, 3) and records.image_size == (16, 16)
    assert np.abs(image.astype(int) - (220, 120, 30)).max() < 6
    assert bytes(records.read(1).payload) == (people / "p0" / "p0_0002.png").read_bytes()


FORMATS = [".bmp", ".pgm", ".webp"]


@pytest.fixture
def formats(tmp_path: Path) -> Path:
    """Two people whose images are of other formats than JPEG and PNG, each of its own gray."""
    for person in ("ann", "bob"):
        (tmp_path / "formats" / person).mkdir(parents=True)
        for number, suffix in enumerate(FORMATS):
            gray = np.full((16, 16), gray_of(person, number), np.uint8)
            image = gray if suffix == ".pgm" else np.repeat(gray[..., None], 3, 2)
            path = tmp_path / "formats" / person / f"{person}_{number + 1:04d}{suffix}"
            assert cv2.imwrite(str(path), image.repeat(4, 0).repeat(4, 1))
    return tmp_path / "formats"


def gray_of(person: str, number: int) -> int:
    return 20 * number + 100 * (person == "bob")


def test_of_files_that_opencv_refuses_each_is_one_line(formats: Path, tmp_path: Path) -> None:
    """In a new process, which has not imported OpenCV yet."""
    (formats / "ann" / "cut.pgm").write_bytes(b"P5\n64 64\n255\nabc")
    # Sound, and with fewer pixels than OpenCV by itself takes.
    (formats / "ann" / "large.pbm").write_bytes(b"P4\n8200 8200\n" + bytes(8200 * 1025))
    result = run(formats, tmp_path / "out", "--check")
    lines = result.stderr.splitlines()
    assert result.returncode == 2 and len(lines) == 3, result.stderr
    assert "cut.pgm: the image cannot be decoded" in lines[0]
    assert "large.pbm: the image cannot be decoded: it is damaged, or of a kind or size" in lines[1]
    assert lines[2].startswith("error: ") and "2 of 8 images cannot be used" in lines[2]


@pytest.mark.parametrize("options", [["--check"], ["--resize", "16", "--png"]])
def test_images_of_other_formats_are_encoded_anew(monkeypatch, formats, tmp_path, options) -> None:
    pack(monkeypatch, formats, tmp_path / "out", *options)
    records = RecordSet(tmp_path / "out")
    size = (16, 16) if "--resize" in options else (64, 64)
    assert (len(records), records.num_classes, records.image_size) == (6, 2, size)
    for index in range(6):
        payload = bytes(records.read(index).payload)
        assert records.read(index).label == index // 3
        assert payload[:2] == (b"\x89P" if "--png" in options else b"\xff\xd8")
        image = decode_rgb(payload)
        assert image.shape == (*size, 3)
        gray = gray_of(("ann", "bob")[index // 3], index % 3)
        assert np.abs(image.astype(int) - gray).max() <= 1


@pytest.mark.parametrize(
    ("suffix", "orientation"),
    [(".jpg", 1), (".jpg", 6), (".png", 1), (".png", 3), (".webp", 8), (".tiff", 5)],
)
def test_images_are_turned_upright(monkeypatch, tmp_path: Path, suffix: str, orientation) -> None:
    folder = tmp_path / "people" / "ann"
    folder.mkdir(parents=True)
    payload = file_with(suffix, orientation)
    (folder / f"1{suffix}").write_bytes(payload)
    for options in ([], ["--check"], ["--resize", "24x36"]):
        pack(monkeypatch, tmp_path / "people", tmp_path / "out", *options)
        records = RecordSet(tmp_path / "out")
        packed = bytes(records.read(0).payload)
        assert records.image_size == (24, 36)
        assert_seen(decode_rgb(packed))
        # No reader has to know about orientations, and what is upright is not encoded again.
        assert_seen(cv2.imdecode(np.frombuffer(packed, np.uint8), AS_STORED)[..., ::-1])
        copied = orientation == 1 and suffix in (".jpg", ".png")
        assert (packed == payload) == copied


def test_pairs_become_a_verification_set(monkeypatch, people, formats, tmp_path: Path) -> None:
    pairs, out = tmp_path / "pairs.txt", tmp_path / "set.bin"
    pairs.write_text("1 1\np3 1 2\np0 1 p1 3\n")
    pack(monkeypatch, "--pairs", pairs, people, out)
    assert read_bin(out).same.tolist() == [True, False]
    assert read_bin(out).decode(range(0, 4), (16, 16))[:, 0, 0, 0].tolist() == [60, 61, 0, 22]
    pack(monkeypatch, "--pairs", pairs, "--resize", "12x10", "--crop", people, out)
    assert {decode_rgb(image).shape for image in read_bin(out).images} == {(12, 10, 3)}
    pairs.write_text("1 1\nann 2 3\nann 3 bob 1\n")
    pack(monkeypatch, "--pairs", pairs, formats, out)
    grays = read_bin(out).decode(range(0, 4), (64, 64))[:, 0, 0, 0].astype(int)
    assert np.abs(grays - [20, 40, 40, 100]).max() <= 1


def test_a_stopped_packing_leaves_the_former_set_alone(write_set, people, tmp_path: Path) -> None:
    before = files(write_set([2, 3], "out"))
    # So many images that the packing cannot be over when the signal comes.
    for number in range(4000):
        os.link(people / "p9" / "p9_0001.png", people / "p9" / f"p9_{1000 + number}.png")
    command = [sys.executable, "-m", "data.pack", str(people), str(tmp_path / "out")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "out").glob(".train.rec.*.part")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM and out == ""
    assert err == "stopped by SIGTERM: no unfinished file is left behind\n"
    assert files(tmp_path / "out") == before


def test_a_full_disk_is_one_line(monkeypatch, people: Path, tmp_path: Path) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match="out cannot be written: No space left on device; choose"):
        pack(monkeypatch, people, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "out"], "nowhere is no folder"),
        (["people", "out", "--min-images", "99"], "none of its 10 folders holds 99"),
        (["people", "out", "--holdout-every", "1"], "leaves nothing to train on"),
        (["people", "out", "--min-images", "0"], "--min-images 0 is not positive"),
        (["people", "out", "--seed", "-1"], "--seed -1 is negative"),
        (["people", "out", "--crop"], "--crop needs the size"),
        (["people", "out", "--resize", "112x"], "'112x' is no size"),
        (["people", "out", "--resize", "0"], "'0' is no size"),
        (["--pairs", "p.txt", "people", "out", "--min-images", "3"], "leave --min-images"),
    ],
)
def test_mistakes_are_one_line(monkeypatch, people, tmp_path, arguments, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        pack(monkeypatch, *arguments)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_shards_hold_the_set_of_one_file(people: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    pack(monkeypatch, people, tmp_path / "one")
    # Fewer shards than before leave none behind.
    for shards in (4, 3):
        pack(monkeypatch, people, tmp_path / "out", "--shards", shards)
        list(open_sets([tmp_path / "out"]).label_table().chunks())
    assert "out: 10 identities, 65 images of 16 x 16" in capsys.readouterr().out
    assert {path.name[:11] for path in (tmp_path / "out").iterdir()} == {
        "property", "train-00000", "train-00001", "train-00002",
    }  # fmt: skip
    assert (tmp_path / "out/property").read_text() == "10,16,16\n"
    one, whole = RecordSet(tmp_path / "one"), open_sets([tmp_path / "out"])
    assert len(whole) == len(one) == 65 and whole.num_classes == 10
    for index in range(65):
        (payload, label), (expected, expected_label) = whole.image(index), one.image(index)
        assert (bytes(payload), label) == (bytes(expected), expected_label)
    sizes = [len(RecordSet(tmp_path / "out" / f"train-0000{number}.rec")) for number in range(3)]
    # Of 2 to 11 images in an identity.
    assert max(sizes) - min(sizes) <= 11
    before = files(tmp_path / "out")
    (people / "p9/p9_0001.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="p9_0001"):
        pack(monkeypatch, people, tmp_path / "out", "--shards", 2)
    assert before == files(tmp_path / "out")


@pytest.mark.parametrize(
    ("shards", "out", "message"),
    [
        (-1, "out", "--shards -1 is not 1 to 1,000"),
        (1001, "out", "--shards 1001 is not 1 to 1,000"),
        (11, "out", "--shards 11 is more than the 10 identities"),
        (2, "out/train.rec", "--shards needs a folder to write to, and .*train.rec is a file"),
        (2, "full", "full holds train.rec, which would be read instead of shards"),
    ],
)
def test_shards_that_cannot_be(
    people: Path, tmp_path: Path, monkeypatch, shards: int, out: str, message: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/train.rec").write_bytes(b"")
    with pytest.raises(ConfigError, match=message):
        pack(monkeypatch, people, tmp_path / out, "--shards", shards)
    assert not (tmp_path / "out").exists()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["train.rec"]


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([1] * 6, [2, 2, 2]),
        ([1, 1, 1, 9], [2, 1, 1]),
        ([1, 1, 1, 9], [1, 1, 1, 1]),
        ([5, 5], [2]),
    ],
)
def test_identities_are_divided_by_their_images(sizes: list[int], counts: list[int]) -> None:
    identities = [Identity(str(size), ["image"] * size) for size in sizes]
    assert split_evenly(identities, len(counts)) == counts
