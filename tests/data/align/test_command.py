from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.align.__main__ import main as align_main
from data.align.similarity import SIDE, TEMPLATE, align
from data.decoding import decode_file, decode_rgb
from data.pack.__main__ import main as pack_main
from data.records.record_set import RecordSet
from data.verification.bin_file import read_bin
from runtime.errors import ConfigError, DataError
from tests.support.sets import assert_refused, contents, images_of


@pytest.fixture
def faces(tmp_path) -> Path:
    """Four people with four images each, and ``points.txt`` beside them."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(16):
        name = f"p{number // 4}/p{number // 4}_{number % 4 + 1:04d}.png"
        (tmp_path / "faces" / name).parent.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (5, 4, 3), dtype=np.uint8)
        cv2.imwrite(str(tmp_path / "faces" / name), cv2.resize(coarse, (160, 200)))
        matrix = cv2.getRotationMatrix2D((56, 56), 40 * (number % 4) - 60, 0.8)
        points = TEMPLATE @ matrix[:, :2].T + matrix[:, 2] + rng.uniform(10, 40, 2)
        lines.append(f"{name} {' '.join(f'{n:.4f}' for n in points.ravel())}")
    (tmp_path / "points.txt").write_text("\n".join(lines))
    (tmp_path / "faces" / "notes.txt").write_text("not an image")
    return tmp_path / "faces"


def points_of(faces: Path, name: str) -> np.ndarray:
    lines = (faces.parent / "points.txt").read_text(errors="surrogateescape").splitlines()
    (words,) = [line.split() for line in lines if line.startswith(name)]
    return np.array(words[1:], float).reshape(5, 2)


def mirrored_line(faces: Path) -> str:
    mirrored = points_of(faces, "p1/p1_0001")[[1, 0, 2, 4, 3]]
    return f"p1/p1_0001 {' '.join(map(str, mirrored.ravel()))}"


def cut_out(faces: Path, name: str) -> np.ndarray:
    return align(decode_file((faces / name).read_bytes()), points_of(faces, name))


@pytest.fixture
def cut(run):
    return partial(run, align_main)


@pytest.fixture
def pack(run):
    return partial(run, pack_main)


@pytest.mark.parametrize(("options", "suffix"), [(["--png"], ".png"), (["--workers", 3], ".jpg")])
def test_a_folder_of_faces(cut, capsys, faces, tmp_path, options, suffix) -> None:
    """Of any depth and ending; what stands after a dot stays if it is not an image's ending."""
    (faces / "p0" / "day").mkdir()
    lines, strange = (tmp_path / "points.txt").read_text(), os.fsdecode(b"p1/m\xfcller.png")
    moves = {"p0/p0_0001.png": "p0/day/p.001", "p0/p0_0004.png": "top.png"}
    for old, new in {**moves, "p1/p1_0001.png": strange}.items():
        (faces / old).rename(faces / new)
        lines = lines.replace(old, new)
    (tmp_path / "points.txt").write_text(lines, errors="surrogateescape")
    before, out = contents(tmp_path), tmp_path / "out"
    assert cut(faces, out, "--points", tmp_path / "points.txt", *options) == 0
    assert f"{out}: 16 images of 112 x 112\n" == capsys.readouterr().out
    made = contents(out)
    names = {"p0/day/p.001", "top", strange[:-4], "p0/p0_0002"}
    assert len(made) == 16 and {f"{name}{suffix}" for name in names} <= {*made}
    for name in ("p2/p2_0001", "p3/p3_0004"):
        found = decode_rgb(made[f"{name}{suffix}"])
        assert found.shape == (SIDE, SIDE, 3)
        most = 0 if suffix == ".png" else 2
        assert np.abs(found - cut_out(faces, f"{name}.png").astype(int)).mean() <= most
    assert contents(tmp_path) == {**before, **{f"out/{name}": made[name] for name in made}}
    assert not list(tmp_path.glob(".*"))


def test_refused_images_are_a_line_each(cut, pack, capsys, faces, tmp_path) -> None:
    lines, path = (tmp_path / "points.txt").read_text().splitlines(), tmp_path / "points.txt"
    lines[4] = mirrored_line(faces)
    lines[6] = "nowhere.png " + " ".join(lines[6].split()[1:])
    path.write_text("\n".join(lines))
    (faces / "p0" / "p0_0002.png").write_bytes(b"junk")
    (faces / "p2" / "p2_0003.png").unlink()
    (faces / "p2" / "p2_0003.png").symlink_to("nowhere")
    # A folder of which nothing is left goes.
    (faces / "p4" / "deep").mkdir(parents=True)
    (faces / "p4" / "deep" / "a.png").write_bytes(b"junk")
    assert cut(faces, tmp_path / "out", "--points", path) == 1
    printed = capsys.readouterr()
    assert f"{tmp_path / 'out'}: 12 images of 112 x 112, without 5 that were refused" in printed.out
    unknown = f"{path}: 1 names are of no image, the first is nowhere.png"
    parts = (
        unknown, "p0_0002.png: the image cannot be decoded",
        "p1_0001.png: its points are those of a mirrored face", "has no points of it, under the "
        "name p1/p1_0003.png", "p2_0003.png cannot be read: No such file",
        "a.png: the image cannot be decoded",
        f"{faces}: left out 1 files that are not images, the first is notes.txt",
    )  # fmt: skip
    found = printed.err.splitlines()
    assert len(found) == 7 and all(part in line for part, line in zip(parts, found))
    assert len(contents(tmp_path / "out")) == 12 and not (tmp_path / "out" / "p4").exists()
    # The other command counts names, too, and ends at the first image.
    with pytest.raises(DataError, match="p0_0002.png: the image cannot be decoded"):
        pack(faces, tmp_path / "set", "--align", path)
    assert unknown in capsys.readouterr().err


def test_packing_aligned_faces(cut, pack, capsys, faces, tmp_path) -> None:
    """The set has the bytes of the files that the other command writes."""
    points = tmp_path / "points.txt"
    cut(faces, tmp_path / "out", "--points", points)
    pack(faces, tmp_path / "set", "--align", points, "--check")
    records = RecordSet(tmp_path / "set")
    assert (len(records), records.num_classes, records.image_size) == (16, 4, (SIDE, SIDE))
    written = [content for _, content in sorted(contents(tmp_path / "out").items())]
    assert [payload for payload, _ in images_of(records)] == written
    (tmp_path / "pairs.txt").write_text("1 1\np0 1 2\np0 1 p1 3\n")
    options = ["--pairs", tmp_path / "pairs.txt", "--align", points, "--png"]
    pack(*options, faces, tmp_path / "s.bin")
    first = decode_rgb(read_bin(tmp_path / "s.bin").images[0])
    assert (first == cut_out(faces, "p0/p0_0001.png")).all()
    # An image without points ends the packing, or all of them are named.
    points.write_text("".join(points.read_text().splitlines(keepends=True)[2:]))
    for more, message in (
        ([], r"p0_0001\.png: .* has no points of it"), (["--check"], "2 of 16 images cannot be")
    ):  # fmt: skip
        assert_refused(message, pack, faces, tmp_path / "none", "--align", points, *more)
    assert capsys.readouterr().err.count("has no points of it") == 2


@pytest.mark.parametrize(("arguments", "message"), [
    ("align faces out", "the following arguments are required: --points"),
    ("align nowhere out --points points.txt", "nowhere is no folder"),
    ("align faces/p0 out --points points.txt", "names no image of faces/p0: .* 'p0/p0_"),
    ("align faces out --points few.txt", "none of the 16 images has a face that can be aligned"),
    ("align faces faces --points points.txt", "faces exists already; delete it"),
    ("align faces faces/out --points points.txt", "faces/out lies in faces, in which"),
    ("align faces points.txt/out --points points.txt", "cannot be written: Not a dir"),
    ("align faces out --points d --workers 0", "'0' is not a positive integer"),
    ("align twice out --points points.txt", r"two images that would both become p1/p1_0002\.jpg"),
    ("pack faces out --align label.txt", "line 1: .* has points of no face"),
    ("pack faces out --align points.txt --resize 112", "leave --resize and --crop out"),
])  # fmt: skip
def test_mistakes_are_one_line(cut, pack, monkeypatch, faces, tmp_path, arguments, message) -> None:
    (tmp_path / "twice" / "p1").mkdir(parents=True)
    for ending in (".png", ".jpeg"):
        image = (faces / "p1" / "p1_0002.png").read_bytes()
        (tmp_path / "twice" / "p1" / f"p1_0002{ending}").write_bytes(image)
    lines = (tmp_path / "points.txt").read_text()
    (tmp_path / "label.txt").write_text(lines.replace(".png ", ".png 3 "))
    # A mirrored face is one that is there, and the others are of no image.
    others = "\n".join(lines.replace("/p", "/q").splitlines()[:3])
    (tmp_path / "few.txt").write_text(f"{mirrored_line(faces)}\n{others}")
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    program, *words = arguments.split()
    command = {"pack": pack, "align": cut}[program]
    assert_refused(message, command, *words, kind=(ConfigError, DataError))
    assert contents(tmp_path) == before and not list(tmp_path.glob(".*"))
