from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from data import unpack
from data.decoding import decode_rgb
from data.pack.__main__ import main, split_evenly
from data.pack.image_files import EncodedImage, ImageReader, fit
from data.records.record_set import RecordSet
from data.records.shards import open_sets
from data.verification.bin_file import read_bin
from runtime.errors import ConfigError, DataError
from tests.support.foreign_records import im2rec, write_records
from tests.support.oriented_images import assert_seen, file_with
from tests.support.sets import assert_refused, contents, images_of, overwrite, write_files

AS_STORED = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION


@pytest.fixture
def people(tmp_path, make_image) -> Path:
    """Ten folders p0 … p9 with 2 + i images; red is 20 times the person, and the image."""
    numbers = [(person, image) for person in range(10) for image in range(2 + person)]
    images = {f"p{p}/p{p}_{image + 1:04d}.png": make_image(20 * p + image) for p, image in numbers}
    return write_files(tmp_path / "people", images)


@pytest.fixture
def pack(run):
    return partial(run, main)


def reds(target) -> np.ndarray:
    return np.array([target.pixels(n, (16, 16))[0, 0, 0] for n in range(len(target))])


def test_a_folder_becomes_a_set(pack, capsys, monkeypatch, people, tmp_path) -> None:
    (people / "p0" / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    pack(people, tmp_path / "new" / "out")
    records = RecordSet(tmp_path / "new" / "out")
    assert (len(records), records.num_classes, records.image_size) == (65, 10, (16, 16))
    files = sorted(people.glob("*/*.png"))
    assert images_of(records) == [(file.read_bytes(), int(file.parent.name[1:])) for file in files]
    printed = capsys.readouterr()
    assert "10 identities, 65 images of 16 x 16" in printed.out
    assert printed.err.startswith(f"{people}: left out 1 files that are not images, or of")
    assert printed.err.endswith(", the first is p0/Thumbs.db\n")
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
    assert_refused("full cannot be written: No space .*; choose", pack, people, tmp_path / "full")
    assert list((tmp_path / "full").iterdir()) == []


def test_held_out_people_are_in_the_pairs_only(pack, people, tmp_path) -> None:
    options = ["--min-images", 4, "--holdout-every", 3, "--holdout-pairs", 40, "--folds", 2]
    targets = {}
    for name, more in (("out", []), ("again", []), ("other", ["--seed", 1])):
        pack(people, tmp_path / name, *options, *more)
        targets[name] = read_bin(tmp_path / name / "holdout.bin")
    # p2 … p9 remain; every third of them is held out.
    trained = [2, 3, 5, 6, 8, 9]
    labels = RecordSet(tmp_path / "out").labels()
    assert np.bincount(labels).tolist() == [2 + person for person in trained]
    target, found = targets["out"], reds(targets["out"])
    assert set(found // 20) == {4, 7}
    assert len(target.same) == 40 and target.same.sum() == 20
    assert ((found[::2] // 20 == found[1::2] // 20) == target.same).all()
    assert (found[::2] != found[1::2]).all()
    assert targets["again"].images == target.images != targets["other"].images


def test_check_names_every_bad_image(pack, capsys, people, tmp_path, make_image) -> None:
    """One is damaged in its pixels: what its first and last bytes say is right."""
    damaged = bytearray(make_image(1))
    damaged[damaged.index(b"IDAT") + 6] ^= 0xFF
    changed = {"p0/p0_0001.png": bytes(damaged), "p5/p5_0003.png": make_image(1, (16, 20))}
    write_files(people, changed)
    (people / "p9" / "p9_0002.png").unlink()
    (people / "p9" / "p9_0002.png").symlink_to("nowhere")
    assert_refused("p5_0003.png has 16 x 20 pixels, .* 16 x 16; ", pack, people, tmp_path / "out")
    assert_refused("3 of 65 images cannot be used", pack, people, tmp_path / "out", "--check")
    first, second, third = capsys.readouterr().err.splitlines()
    assert "p0_0001.png: the image cannot be decoded" in first
    assert "p5_0003.png has 16 x 20 pixels, the images before it 16 x 16; align all" in second
    assert "p9_0002.png cannot be read: No such file" in third
    assert not list((tmp_path / "out").iterdir())


@pytest.fixture
def formats(tmp_path) -> Path:
    """Two people whose images are of other formats than JPEG and PNG; the grays are 0, 20, …"""
    names = [f"{name}/{name}_000{n}" for name in ("ann", "bob") for n in (1, 2, 3)]
    files = {}
    for number, (name, suffix) in enumerate(zip(names, (".bmp", ".pgm", ".webp") * 2)):
        image = np.full((64, 64) if suffix == ".pgm" else (64, 64, 3), 20 * number, np.uint8)
        files[name + suffix] = cv2.imencode(suffix, image)[1].tobytes()
    return write_files(tmp_path / "formats", files)


def test_pairs_become_a_verification_set(pack, people, formats, tmp_path) -> None:
    pairs, out = tmp_path / "pairs.txt", tmp_path / "set.bin"
    pairs.write_text("1 1\np3 1 2\np0 1 p1 3\n")
    pack("--pairs", pairs, people, out)
    assert read_bin(out).same.tolist() == [True, False]
    assert reds(read_bin(out)).tolist() == [60, 61, 0, 22]
    pack("--pairs", pairs, "--resize", "12x10", "--crop", people, out)
    assert {decode_rgb(image).shape for image in read_bin(out).images} == {(12, 10, 3)}
    pairs.write_text("1 1\nann 2 3\nann 3 bob 1\n")
    pack("--pairs", pairs, formats, out)
    assert reds(read_bin(out)).tolist() == pytest.approx([20, 40, 40, 60], abs=1)


def test_of_files_that_opencv_refuses_each_is_one_line(formats, tmp_path) -> None:
    """In a new process, which has not imported OpenCV yet."""
    (formats / "ann" / "cut.pgm").write_bytes(b"P5\n64 64\n255\nabc")
    # Sound, and with fewer pixels than OpenCV by itself takes.
    (formats / "ann" / "large.pbm").write_bytes(b"P4\n8200 8200\n" + bytes(8200 * 1025))
    command = [sys.executable, "-m", "data.pack", str(formats), str(tmp_path / "out"), "--check"]
    root = Path(__file__).parents[3]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    cut, large, last = result.stderr.splitlines()
    assert result.returncode == 2 and "cut.pgm: the image cannot be decoded" in cut
    assert "large.pbm: the image cannot be decoded: it is damaged, or of a kind or size" in large
    assert last.startswith("error: ") and "2 of 8 images cannot be used" in last


@pytest.mark.parametrize(
    ("suffix", "orientation"), [(".jpg", 1), (".jpg", 6), (".png", 3), (".webp", 8), (".tiff", 5)]
)
def test_images_are_turned_upright(pack, tmp_path, suffix, orientation) -> None:
    payload = file_with(suffix, orientation)
    people = write_files(tmp_path / "people", {f"ann/1{suffix}": payload})
    for options in ([], ["--check"], ["--resize", "24x36"]):
        pack(people, tmp_path / "out", *options)
        records = RecordSet(tmp_path / "out")
        packed = bytes(records.image(0)[0])
        assert records.image_size == (24, 36) and (packed == payload) == (orientation == 1)
        assert_seen(cv2.imdecode(np.frombuffer(packed, np.uint8), AS_STORED)[..., ::-1])


@pytest.mark.parametrize(("arguments", "message"), [
    *((f"people out --holdout-every {n}", "leaves nothing to train on") for n in (1, -1)),
    ("full out --min-images 2", "none of its 0 folders holds 2 images .*, or lower --min-images$"),
    ("full out", "none of its 0 folders holds 1 images .*a folder for each$"),
    ("people out --seed -1", "--seed -1 is negative"),
    ("people out --crop", "--crop needs the size"),
    *((f"people out --resize {one}", f"'{one}' is no size") for one in ("112x", "0", "4097")),
    ("people out --resize 4096x1 --align list", "leave --resize and --crop out"),
    ("--pairs p.txt people out --min-images 3", "leave --min-images"),
    ("people out --shards 11", "--shards 11 is more than the 10 identities"),
    ("people out/train.rec --shards 2", "--shards needs a folder .*train.rec is a file"),
    ("people full --shards 2", "full holds train.rec, which would be read instead of shards"),
])  # fmt: skip
def test_mistakes_are_one_line(pack, monkeypatch, people, tmp_path, arguments, message) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {"full/train.rec": b""})
    assert_refused(message, pack, *arguments.split(), kind=(ConfigError, DataError))
    assert not Path("out").exists() and contents(Path("full")) == {"train.rec": b""}


def test_shards_hold_the_set_of_one_file(pack, people, tmp_path, capsys) -> None:
    pack(people, tmp_path / "one")
    for shards in (4, 3):
        pack(people, tmp_path / "out", "--shards", shards)
        list(open_sets([tmp_path / "out"]).label_chunks())
    assert "out: 10 identities, 65 images of 16 x 16" in capsys.readouterr().out
    before = contents(tmp_path / "out")
    names = {"property", "train-00000", "train-00001", "train-00002"}
    assert {name[:11] for name in before} == names and before["property"] == b"10,16,16\n"
    whole = open_sets([tmp_path / "out"])
    assert whole.num_classes == 10 and len(whole) == 65
    assert images_of(whole) == images_of(RecordSet(tmp_path / "one"))
    sizes = [len(RecordSet(tmp_path / "out" / f"train-0000{number}.rec")) for number in range(3)]
    # Of 2 to 11 images in an identity.
    assert max(sizes) - min(sizes) <= 11
    before = contents(tmp_path / "out")
    (people / "p9/p9_0001.png").write_bytes(b"no image")
    assert_refused("p9_0001", pack, people, tmp_path / "out", "--shards", 2)
    assert before == contents(tmp_path / "out")


@pytest.mark.parametrize(("sizes", "counts"), [
    ([1] * 6, [2] * 3), ([1, 1, 1, 9], [2, 1, 1]), ([1, 1, 1, 9], [1] * 4), ([5, 5], [2]),
    ([1, 2, 1], [2, 1]), ([1, 1, 1, 20, 1, 1], [3, 1, 1, 1]),
])  # fmt: skip
def test_identities_are_divided_by_their_images(sizes, counts) -> None:
    assert split_evenly(sizes, len(counts)) == counts


def columns(height: int, width: int) -> np.ndarray:
    """An image whose columns rise from 0 on the left to 200 on the right."""
    row = np.linspace(0, 200, width).round().astype(np.uint8)
    return np.broadcast_to(row[None, :, None], (height, width, 3)).copy()


@pytest.mark.parametrize(("shape", "size", "left", "right"), [
    ((100, 100), (50, 50), 0, 200), ((100, 200), (100, 100), 50, 150),
    ((200, 100), (50, 50), 0, 200), ((50, 50), (100, 100), 0, 200),
    ((112, 96), (112, 112), 0, 200), ((100, 100), (50, 25), 50, 150), ((16, 16), (400, 1), 93, 93),
])  # fmt: skip
def test_fit_keeps_the_center(shape, size, left: int, right: int) -> None:
    image = fit(columns(*shape), size)
    assert image.shape == (*size, 3)
    assert image[0, [0, -1], 0].tolist() == pytest.approx([left, right], abs=4)
    assert np.ptp(image, axis=0).max() <= 1


def test_a_resized_image_is_a_good_jpeg_and_others_are_copied(tmp_path) -> None:
    def write(name: str, image: np.ndarray) -> str:
        assert cv2.imwrite(str(tmp_path / name), image)
        return str(tmp_path / name)

    def read(reader: ImageReader, path: str) -> EncodedImage:
        return next(reader.read_all([path], ""))

    image = read(ImageReader((10, 10), crop=True), write("a.png", columns(20, 40)))
    assert image.size == (10, 10) and image.payload.startswith(b"\xff\xd8")
    fitted = fit(columns(20, 40), (10, 10))
    # The quality that InsightFace's packers have.
    best = cv2.imencode(".jpg", fitted[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])[1]
    assert image.payload == best.tobytes()
    path = write("a.jpg", columns(20, 10))
    for reader in (ImageReader(), ImageReader((20, 10)), ImageReader((20, 10), True, True)):
        assert read(reader, path) == (path, Path(path).read_bytes(), (20, 10))
    # A shape may differ by rounding only.
    assert read(ImageReader((50, 50)), write("b.png", columns(100, 102))).size == (50, 50)
    with pytest.raises(DataError, match="100 x 110 pixels, which is another shape than 50 x 50"):
        read(ImageReader((50, 50)), write("c.png", columns(100, 110)))


def test_packing_again_gives_the_same_set(run, pack, write_set, tmp_path, capsys) -> None:
    source, out = write_set([1] * 5 + [3] + [2] * 6), tmp_path / "people"
    out.mkdir()
    assert run(unpack.main, source, out) == 0
    assert f"{out}: 20 images" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == [f"id_{n:02}" for n in range(12)]
    assert sorted(contents(out / "id_05")) == ["05_05.png", "05_06.png", "05_07.png"]
    pack(out, tmp_path / "again")
    assert images_of(RecordSet(tmp_path / "again")) == images_of(RecordSet(source))
    for most, count in ((6, 6), (60, 20)):
        few = tmp_path / "new" / f"{most}"
        assert run(unpack.main, source, few, "--max-images", most) == 0
        assert len(list(few.glob("id_*/*"))) == count


def test_what_is_broken_is_left_out_and_the_bytes_say_endings(run, tmp_path, capsys) -> None:
    pixels, endings = np.zeros((8, 8, 3), np.uint8), [".jpg", ".png", ".bmp", ".webp"]
    payloads = [cv2.imencode(ending, pixels)[1].tobytes() for ending in endings]
    images = [*payloads, payloads[0], b"GIF89a" + bytes(40)]
    written = im2rec([0, 0, 0, 0, 1, 1], images, range(6))
    path = write_records(tmp_path / "set", written, description="10,8,8") / "train.rec"
    overwrite(tmp_path / "set", 4, b"junk")
    assert run(unpack.main, tmp_path / "set", tmp_path / "out") == 1
    printed = capsys.readouterr()
    line = f"{path}: record 5: the image cannot be decoded: it is no JPEG"
    assert line in printed.err and "train.rec: record 4: no record begins" in printed.err
    assert "4 images, without 2 broken ones" in printed.out
    expected = {f"id_0/0_{n}{endings[n]}": payload for n, payload in enumerate(payloads)}
    assert contents(tmp_path / "out") == expected
