from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """Four people with four images each, and ``points.txt`` beside them."""
    rng = np.random.default_rng(0)
    lines = []
    for person in range(4):
        (tmp_path / "faces" / f"p{person}").mkdir(parents=True)
        for number in range(4):
            coarse = rng.integers(0, 256, (5, 4, 3), dtype=np.uint8)
            name = f"p{person}/p{person}_{number + 1:04d}.png"
            cv2.imwrite(str(tmp_path / "faces" / name), cv2.resize(coarse, (160, 200)))
            matrix = cv2.getRotationMatrix2D((56, 56), 40 * number - 60, 0.8)
            points = TEMPLATE @ matrix[:, :2].T + matrix[:, 2] + rng.uniform(10, 40, 2)
            lines.append(f"{name} {' '.join(f'{n:.4f}' for n in points.ravel())}")
    (tmp_path / "points.txt").write_text("\n".join(lines))
    (tmp_path / "faces" / "notes.txt").write_text("not an image")
    return tmp_path / "faces"


def call(main: Callable[[], Any]) -> Any:
    """Make a fixture that calls a command with arguments."""

    @pytest.fixture
    def fixture(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        def command(*arguments: object) -> Any:
            monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
            return main()

        return command

    return fixture


run, pack = call(align_main), call(pack_main)


def pixels(path: Path) -> np.ndarray:
    return decode_file(path.read_bytes())


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def points_of(faces: Path, name: str) -> np.ndarray:
    lines = (faces.parent / "points.txt").read_text().splitlines()
    (words,) = [line.split() for line in lines if line.startswith(name)]
    return np.array(words[1:], float).reshape(5, 2)


@pytest.mark.parametrize(("png", "workers"), [(True, 1), (False, 3)])
def test_a_folder_of_faces(run, capsys, faces: Path, tmp_path: Path, png, workers) -> None:
    before = contents(tmp_path)
    options = ["--points", tmp_path / "points.txt", *(["--png"] if png else [])]
    assert run(faces, tmp_path / "out", *options, "--workers", workers) == 0
    assert f"{tmp_path / 'out'}: 16 images of 112 x 112\n" == capsys.readouterr().out
    made = contents(tmp_path / "out")
    assert len(made) == 16
    for name in made:
        path = faces / Path(name).with_suffix(".png")
        expected = align(pixels(path), points_of(faces, str(path.relative_to(faces))))
        found = pixels(tmp_path / "out" / name)
        assert found.shape == (SIDE, SIDE, 3)
        assert np.abs(found.astype(int) - expected).mean() <= (0 if png else 2)
    now = contents(tmp_path)
    assert {name: now[name] for name in now if not name.startswith("out/")} == before
    assert not list(tmp_path.glob(".*"))


def test_refused_images_are_a_line_each(run, capsys, faces: Path, tmp_path: Path) -> None:
    lines = (tmp_path / "points.txt").read_text().splitlines()
    mirrored = points_of(faces, "p1/p1_0001")[[1, 0, 2, 4, 3]]
    lines[4] = "p1/p1_0001.png " + " ".join(map(str, mirrored.ravel()))
    lines[6] = "nowhere.png " + " ".join(lines[6].split()[1:])
    (tmp_path / "points.txt").write_text("\n".join(lines))
    (faces / "p0" / "p0_0002.png").write_bytes(b"junk")
    (faces / "p2" / "p2_0003.png").unlink()
    (faces / "p2" / "p2_0003.png").symlink_to("nowhere")
    assert run(faces, tmp_path / "out", "--points", tmp_path / "points.txt") == 1
    printed = capsys.readouterr()
    assert f"{tmp_path / 'out'}: 12 images of 112 x 112, without 4 that were refused" in printed.out
    found = printed.err.splitlines()
    assert len(found) == 6
    assert found[5] == f"{faces}: left out 1 files that are not images, the first is notes.txt"
    assert found[0].endswith("points.txt: 1 names are of no image, the first is nowhere.png")
    assert "p0_0002.png: the image cannot be decoded" in found[1]
    assert "p1_0001.png: its points are those of a mirrored face" in found[2]
    assert "p1_0003.png: " in found[3] and "has no points of it" in found[3]
    assert "p2_0003.png cannot be read: No such file" in found[4]
    assert len(contents(tmp_path / "out")) == 12


def test_names_of_no_image_are_counted(run, pack, capsys, faces: Path, tmp_path: Path) -> None:
    """By both commands; of the people that are not packed there are images."""
    path = tmp_path / "more.txt"
    (faces / "p3" / "p3_0004.png").unlink()
    for ending in ("", ".png"):
        lines = (tmp_path / "points.txt").read_text().replace(".png", ending).splitlines()
        more = [f"{name}{ending} {lines[0].partition(' ')[2]}" for name in ("p9/1", "p9/2")]
        path.write_text("\n".join(lines + more))
        if ending:
            assert run(faces, tmp_path / "out", "--points", path) == 0
        else:
            pack(faces, tmp_path / "set", "--align", path, "--min-images", 4)
        said = capsys.readouterr().err.splitlines()[0]
        assert said == f"{path}: 3 names are of no image, the first is p3/p3_0004{ending}"


def test_paths_of_any_depth_name_and_ending(run, capsys, faces: Path, tmp_path: Path) -> None:
    """What stands after a dot stays if it is not an image's ending; a folder without faces goes."""
    (faces / "p0" / "day" / "one").mkdir(parents=True)
    (faces / "p1" / "junk" / "deep").mkdir(parents=True)
    (faces / "p1" / "junk" / "deep" / "a.png").write_bytes(b"junk")
    lines = (tmp_path / "points.txt").read_text()
    strange = os.fsdecode(b"m\xfcller.png")
    for old, new in (
        ("p0/p0_0001.png", "p0/day/one/p.001"), ("p0/p0_0002.png", "p0/day/one/p.2"),
        ("p0/p0_0004.png", "top.png"), ("p1/p1_0001.png", f"p1/{strange}"),
    ):  # fmt: skip
        (faces / old).rename(faces / new)
        lines = lines.replace(old, new)
    (tmp_path / "points.txt").write_text(lines, errors="surrogateescape")
    options = ["--points", tmp_path / "points.txt", "--png"]
    assert run(faces, tmp_path / "out", *options) == 1
    assert ": 16 images of 112 x 112, without 1 that were" in capsys.readouterr().out
    made = contents(tmp_path / "out")
    assert {
        *("p0/day/one/p.001.png", "p0/day/one/p.2.png", "p0/p0_0003.png", "top.png"),
        f"p1/{strange}",
    } <= set(made)
    assert len(made) == 16 and not (tmp_path / "out" / "p1" / "junk").exists()


def test_packing_aligned_faces(run, pack, capsys, faces: Path, tmp_path: Path) -> None:
    """The set has the bytes of the files that the other command writes."""
    points = tmp_path / "points.txt"
    run(faces, tmp_path / "out", "--points", points)
    holdout = ["--holdout-every", 2, "--holdout-pairs", 4, "--folds", 1, "--check"]
    pack(faces, tmp_path / "set", "--align", points, *holdout)
    records = RecordSet(tmp_path / "set")
    assert (len(records), records.num_classes, records.image_size) == (8, 2, (SIDE, SIDE))
    written = contents(tmp_path / "out")
    for index in range(8):
        name = f"p{index // 4 * 2}/p{index // 4 * 2}_{index % 4 + 1:04d}.jpg"
        assert bytes(records.read(index).payload) == written[name]
    held_out = {content for name, content in written.items() if name[:3] in ("p1/", "p3/")}
    assert set(read_bin(tmp_path / "set" / "holdout.bin").images) <= held_out
    (tmp_path / "pairs.txt").write_text("1 1\np0 1 2\np0 1 p1 3\n")
    options = ["--pairs", tmp_path / "pairs.txt", "--align", points, "--png"]
    pack(*options, faces, tmp_path / "s.bin")
    first = decode_rgb(read_bin(tmp_path / "s.bin").images[0])
    expected = align(pixels(faces / "p0/p0_0001.png"), points_of(faces, "p0/p0_0001"))
    assert (first == expected).all()
    # An image without points ends the packing, or all of them are named.
    points.write_text("".join(points.read_text().splitlines(keepends=True)[2:]))
    with pytest.raises(DataError, match=r"p0_0001\.png: .* has no points of it"):
        pack(faces, tmp_path / "none", "--align", points)
    with pytest.raises(DataError, match="2 of 16 images cannot be used"):
        pack(faces, tmp_path / "none", "--align", points, "--check")
    assert capsys.readouterr().err.count("has no points of it") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("faces out", "the following arguments are required: --points"),
        ("nowhere out --points points.txt", "nowhere is no folder"),
        ("faces out --points nowhere", "nowhere cannot be read as a list of points"),
        ("faces/p0 out --points points.txt", "names no image of faces/p0: .* 'p0/p0_"),
        ("faces out --points few.txt", "none of the 16 images has a face that can be aligned"),
        ("faces faces --points points.txt", "faces exists already; delete it"),
        ("faces faces/out --points points.txt", "faces/out lies in faces, in which"),
        ("faces points.txt/out --points points.txt", "cannot be written: Not a dir"),
        ("faces out --points d --workers 0", "'0' is not a positive integer"),
        ("twice out --points points.txt", r"two images that would both become p1/p1_0002\.jpg"),
        ("faces out --points label.txt", "line 1: .* has points of no face"),
        ("pack faces out --align label.txt", "line 1: .* has points of no face"),
        ("pack faces out --align points.txt --resize 112", "leave --resize and --crop out"),
    ],
)
def test_mistakes_are_one_line(run, pack, monkeypatch, faces, tmp_path, arguments, message) -> None:
    (tmp_path / "twice" / "p1").mkdir(parents=True)
    for ending in (".png", ".jpeg"):
        image = (faces / "p1" / "p1_0002.png").read_bytes()
        (tmp_path / "twice" / "p1" / f"p1_0002{ending}").write_bytes(image)
    lines = (tmp_path / "points.txt").read_text()
    (tmp_path / "label.txt").write_text(lines.replace(".png ", ".png 3 "))
    # A mirrored face is one that is there, and the others are of no image.
    mirrored = points_of(faces, "p1/p1_0001")[[1, 0, 2, 4, 3]].ravel()
    others = "\n".join(lines.replace("/p", "/q").splitlines()[:3])
    (tmp_path / "few.txt").write_text(f"p1/p1_0001 {' '.join(map(str, mirrored))}\n{others}")
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    words = arguments.split()
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        pack(*words[1:]) if words[0] == "pack" else run(*words)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before and not list(tmp_path.glob(".*"))
