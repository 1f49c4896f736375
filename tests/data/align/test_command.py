from __future__ import annotations

import math
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.align.__main__ import main as align_main
from data.align.points import PointsFile, read_face
from data.align.similarity import SIDE, TEMPLATE, align, estimate, misfit
from data.decoding import decode_file, decode_rgb
from data.pack.__main__ import main as pack_main
from data.records.record_set import RecordSet
from data.verification.bin_file import read_bin
from runtime.errors import ConfigError, DataError
from tests.support.sets import assert_refused, contents, images_of, write_files

# The root of the sum of its squared distances from the middle is 1.
SHAPE = (TEMPLATE - TEMPLATE.mean(axis=0)) / np.linalg.norm(TEMPLATE - TEMPLATE.mean(axis=0))
TEN = "38.5 51 73 51.25 56 71 41 92 70 92"
COMMAS = TEN.replace(" ", ",")
LAYOUTS = {
    "a label before": lambda face: [7, *face.ravel()],
    "five x, five y": lambda face: face.T.ravel(),
    "y and x": lambda face: face[:, ::-1].ravel(),
    "the person's left and right": lambda face: face[[1, 0, 2, 4, 3]].ravel(),
    "the nose first": lambda face: face[[2, 0, 1, 3, 4]].ravel(),
    "a box and three points": lambda face: [*face.min(0), *face.max(0), *face.ravel()[:6]],
}


def umeyama(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The transform of Umeyama's paper, eq. 39 to 43, in float64: ``[2, 3]``."""
    count, dim = source.shape
    source_mean, target_mean = source.mean(0), target.mean(0)
    covariance = (target - target_mean).T @ (source - source_mean) / count
    left, values, right = np.linalg.svd(covariance)
    signs = np.ones(dim)
    if np.linalg.det(covariance) < 0:
        signs[-1] = -1
    rotation = left @ np.diag(signs) @ right
    scale = (values @ signs) / (source - source_mean).var(0).sum()
    return np.column_stack([scale * rotation, target_mean - scale * rotation @ source_mean])


def apply(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    return points @ matrix[:, :2].T + matrix[:, 2]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_transform_is_umeyamas_and_the_misfit_what_it_leaves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = cv2.getRotationMatrix2D((0, 0), rng.uniform(-180, 180), rng.uniform(0.05, 20))
    points = apply(matrix, TEMPLATE) + rng.normal(0, 900, 2)
    points += rng.normal(0, 0.05 * np.ptp(points, axis=0).max(), (5, 2))
    expected = umeyama(points, TEMPLATE)
    assert estimate(points, any_order=True) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    left = np.square(apply(expected, points) - TEMPLATE).sum()
    spread = np.square(TEMPLATE - TEMPLATE.mean(axis=0)).sum()
    both = misfit(np.stack([points, points[[1, 0, 2, 4, 3]]]))
    assert both == pytest.approx([math.sqrt(left / spread), math.inf], rel=1e-9)


def test_the_template_is_the_published_one() -> None:
    """SphereFace's, for 112 x 96, with 8 more in x; its points stay where they are."""
    x = np.array([30.2946, 65.5318, 48.0252, 33.5493, 62.7299])
    y = np.array([51.6963, 51.5014, 71.7366, 92.3655, 92.2041])
    assert np.stack([x + 8, y], axis=1) == pytest.approx(TEMPLATE, abs=1e-12)
    assert estimate(TEMPLATE) == pytest.approx(np.array([[1, 0, 0], [0, 1, 0]]), abs=1e-12)
    image = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    assert (align(image, TEMPLATE) == image).all()
    white = np.full((SIDE, SIDE, 3), 255, np.uint8)
    aligned = align(white, TEMPLATE + [50, 0])
    assert (aligned[:, :60] == 255).all() and (aligned[:, 64:] == 0).all()


@pytest.mark.parametrize(("points", "message"), [
    (np.full((5, 2), 31.0), "lie within two pixels"),
    (TEMPLATE[[1, 0, 2, 4, 3]], "mirrored face: the order is left eye, right eye"),
    (TEMPLATE * [-1, 1], "mirrored face"),
    (TEMPLATE[[0, 1, 2, 4, 3]], "no face: the order is left eye"),
    (1.99 * SHAPE + 50, "lie within two pixels; they have to be in pixels"),
    (TEMPLATE + [120, 0], "its points lie outside of its 112 x 112 pixels"),
])  # fmt: skip
def test_points_that_are_not_of_this_face_are_refused(points: np.ndarray, message: str) -> None:
    image = np.zeros((SIDE, SIDE, 3), np.uint8)
    assert_refused(message, align, image, points)
    if "lie outside" in message:
        assert align(image, points, any_order=True).shape == image.shape
    assert align(image, 2.01 * SHAPE + 50).shape == image.shape


def read(folder: Path, text) -> PointsFile:
    (folder / "points").write_bytes(text if isinstance(text, bytes) else text.encode())
    return PointsFile(folder / "points", folder)


@pytest.mark.parametrize(("text", "name"), [
    (f"\n./ann/1.jpg\t{TEN}\n".replace(" ", "\t"), "ann/1.jpg"),
    (f"1.jpg {TEN} 0.999\n2.jpg {TEN} 0.5\n", "1.jpg"),  # IJB, with the detector's score
    (f'NAME_ID,P1X,P1Y,P2X,P2Y\n"n02/0001_01",{COMMAS}\n', "n02/0001_01.jpg"),  # VGGFace2
    (f"2\nlefteye_x lefteye_y\n000001.jpg   {TEN}\n000002.jpg {TEN}\n", "000001.jpg"),  # CelebA
    (f"ann lee/my face 3.png,{TEN.replace(' ', ', ')}\r\n", "ann lee/my face 3.png"),
    (f'"ann, lee/3.png",{COMMAS}\n', "ann, lee/3.png"),
    (f"ann,lee/3.png {TEN} 0.9\n", "ann,lee/3.png"),
    (f"\ufeffann/1.jpg,{COMMAS},,,\r\n", "ann/1.jpg"),
    (f"m\u00fcller/1.jpg\t{TEN}\r\n".encode("utf-16"), "m\u00fcller/1.jpg"),
    (f"ann/1.jpg , {COMMAS.replace(',', ' , ')}\n", "ann/1.jpg"),
    (f"ann\\1.jpg {TEN}\r\n", "ann/1.jpg"),
    (f"ann/a\\1.jpg {TEN}\n", "ann/a\\1.jpg"),
    (f"# name x y\n# of the eyes\n\n# and others\nann/1.jpg {TEN}\n", "ann/1.jpg"),
    (f"#1.jpg {TEN}\n", "#1.jpg"),
    (f"m\u00fcller/1.jpg {TEN}\n".encode("latin-1"), os.fsdecode(b"m\xfcller/1.jpg")),
])  # fmt: skip
def test_published_forms_are_read(tmp_path, text, name: str) -> None:
    points = read(tmp_path, text)
    assert (points.find(name) == np.array(TEN.split(), float).reshape(5, 2)).all()
    assert_refused("points has no points of it, under the name other.jpg", points.find, "other.jpg")


@pytest.mark.parametrize(("text", "message"), [
    ("", "has no points: each line is the name of an image, then x and y, in pixels, of left"),
    ("2\nname x y\n", "has no points"),
    (f"1.jpg {TEN}\n2.jpg {TEN} 1 2\n",
     "line 2: '2.jpg .* is not the name of an image and five points; each line is the name of"),
    # Without points at all, in what may be a heading; a label that is text.
    *((text, "line 1") for text in (f"1.jpg,1,2,3\n2.jpg {TEN}\n", f"1.jpg ann {TEN}\n",
                                   f"1.jpg 1\n2.jpg {TEN}\n")),
    *((f"1.jpg {TEN.replace('73', wrong)}\n", "line 1") for wrong in ("1.001e9", "nan")),
    (f"1.jpg {TEN}\n./1.jpg {TEN}\n", "line 2: '1.jpg' is there twice"),
    (f"my face.jpg {TEN}\n", "line 1"),
    (b"\xff\xfe\x00", "cannot be read as a list of points"),
])  # fmt: skip
def test_other_lists_are_refused(tmp_path, text, message: str) -> None:
    assert_refused(message, read, tmp_path, text)


def rows(layout) -> list[str]:
    """Return lines of eight faces of several sizes and places, each turned in the plane."""
    rng, lines = np.random.default_rng(3), []
    for number, angle in enumerate(rng.uniform(-0.4, 0.4, 8)):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        shape = (TEMPLATE - TEMPLATE.mean(axis=0)) @ turn * rng.uniform(0.5, 2)
        face = shape + rng.uniform(100, 160, 2) + rng.normal(0, 1, (5, 2))
        lines.append(f"{number}.jpg {' '.join(map(str, layout(face)))}\n")
    return lines


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lists_with_other_columns_are_refused(tmp_path, layout: str) -> None:
    message = "points, line 1: '0.jpg .* has points of no face, as {0} of {0} lines have; each"
    for count in (8, 1):
        text = "".join(rows(LAYOUTS[layout])[:count])
        assert_refused(message.format(count), read, tmp_path, text)


def test_faces_of_a_protocol_are_cut_out_in_any_order(tmp_path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (80, 70, 3), dtype=np.uint8)
    cv2.imwrite(str(tmp_path / "a.png"), image[..., ::-1])
    mirrored = TEMPLATE[[1, 0, 2, 4, 3]] / 2 + np.array([3.0, -2.0])
    turned = cv2.warpAffine(image, umeyama(mirrored, TEMPLATE), (112, 112)).transpose(2, 0, 1)
    found = read_face(tmp_path / "a.png", mirrored)
    np.testing.assert_allclose(found.astype(int), turned.astype(int), atol=1)


@pytest.fixture
def faces(tmp_path) -> Path:
    rng, lines, files = np.random.default_rng(0), [], {"notes.txt": b"not an image"}
    for number in range(16):
        name = f"p{number // 4}/p{number // 4}_{number % 4 + 1:04d}.png"
        coarse = rng.integers(0, 256, (5, 4, 3), dtype=np.uint8)
        files[name] = cv2.imencode(".png", cv2.resize(coarse, (160, 200)))[1].tobytes()
        matrix = cv2.getRotationMatrix2D((56, 56), 40 * (number % 4) - 60, 0.8)
        points = apply(matrix, TEMPLATE) + rng.uniform(10, 40, 2)
        lines.append(f"{name} {' '.join(f'{n:.4f}' for n in points.ravel())}")
    (tmp_path / "points.txt").write_text("\n".join(lines))
    return write_files(tmp_path / "faces", files)


def points_of(faces: Path, name: str) -> np.ndarray:
    lines = (faces.parent / "points.txt").read_text(errors="surrogateescape").splitlines()
    (words,) = [line.split() for line in lines if line.startswith(name)]
    return np.array(words[1:], float).reshape(5, 2)


def mirrored_line(faces: Path) -> str:
    mirrored = points_of(faces, "p1/p1_0001")[[1, 0, 2, 4, 3]]
    return f"p1/p1_0001 {' '.join(map(str, mirrored.ravel()))}"


def cut_out(faces: Path, name: str) -> np.ndarray:
    return align(decode_file((faces / name).read_bytes()), points_of(faces, name))


@pytest.mark.parametrize(("options", "suffix"), [(["--png"], ".png"), (["--workers", 3], ".jpg")])
def test_a_folder_of_faces(run, capsys, faces, tmp_path, options, suffix) -> None:
    (faces / "p0" / "day").mkdir()
    lines, strange = (tmp_path / "points.txt").read_text(), os.fsdecode(b"p1/m\xfcller.png")
    moves = {"p0/p0_0001.png": "p0/day/p.001", "p0/p0_0004.png": "top.png"}
    for old, new in {**moves, "p1/p1_0001.png": strange}.items():
        (faces / old).rename(faces / new)
        lines = lines.replace(old, new)
    (tmp_path / "points.txt").write_text(lines, errors="surrogateescape")
    before, out = contents(tmp_path), tmp_path / "out"
    assert run(align_main, faces, out, "--points", tmp_path / "points.txt", *options) == 0
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


def test_refused_images_are_a_line_each(run, capsys, faces, tmp_path) -> None:
    lines, path = (tmp_path / "points.txt").read_text().splitlines(), tmp_path / "points.txt"
    lines[4] = mirrored_line(faces)
    lines[6] = "nowhere.png " + " ".join(lines[6].split()[1:])
    path.write_text("\n".join(lines))
    write_files(faces, {"p0/p0_0002.png": b"junk", "p4/deep/a.png": b"junk"})
    (faces / "p2" / "p2_0003.png").unlink()
    (faces / "p2" / "p2_0003.png").symlink_to("nowhere")
    assert run(align_main, faces, tmp_path / "out", "--points", path) == 1
    printed = capsys.readouterr()
    assert f"{tmp_path / 'out'}: 12 images of 112 x 112, without 5 that were refused" in printed.out
    parts = (
        "p0_0002.png: the image cannot be decoded",
        "p1_0001.png: its points are those of a mirrored face", "has no points of it, under the "
        "name p1/p1_0003.png", "p2_0003.png cannot be read: No such file",
        "a.png: the image cannot be decoded",
        f"{faces}: left out 1 files that are not images, or of formats",
    )  # fmt: skip
    found = printed.err.splitlines()
    assert len(found) == 6 and all(part in line for part, line in zip(parts, found))
    assert len(contents(tmp_path / "out")) == 12 and not (tmp_path / "out" / "p4").exists()
    with pytest.raises(DataError, match="p0_0002.png: the image cannot be decoded"):
        run(pack_main, faces, tmp_path / "set", "--align", path)


def test_packing_aligned_faces(run, faces, tmp_path) -> None:
    points = tmp_path / "points.txt"
    run(align_main, faces, tmp_path / "out", "--points", points)
    run(pack_main, faces, tmp_path / "set", "--align", points, "--check")
    records = RecordSet(tmp_path / "set")
    assert (len(records), records.num_classes, records.image_size) == (16, 4, (SIDE, SIDE))
    written = [content for _, content in sorted(contents(tmp_path / "out").items())]
    assert [payload for payload, _ in images_of(records)] == written
    (tmp_path / "pairs.txt").write_text("1 1\np0 1 2\np0 1 p1 3\n")
    options = ["--pairs", tmp_path / "pairs.txt", "--align", points, "--png"]
    run(pack_main, *options, faces, tmp_path / "s.bin")
    first = decode_rgb(read_bin(tmp_path / "s.bin").images[0])
    assert (first == cut_out(faces, "p0/p0_0001.png")).all()
    # An image without points ends the packing, or all of them are named.
    points.write_text("".join(points.read_text().splitlines(keepends=True)[2:]))
    words = pack_main, faces, tmp_path / "none", "--align", points
    assert_refused(r"p0_0001\.png: .* has no points of it", run, *words)
    assert_refused("2 of 16 images cannot be", run, *words, "--check")


@pytest.mark.parametrize(("arguments", "message"), [
    ("align nowhere out --points points.txt", "nowhere is no folder"),
    ("align faces/p0 out --points points.txt", "none of the 4 images has a face .* lines above"),
    ("align faces out --points few.txt", "none of the 16 images has a face that can be aligned"),
    ("align faces faces --points points.txt", "faces exists already; delete it"),
    ("align faces points.txt/out --points points.txt", "cannot be written: Not a dir"),
    ("align twice out --points points.txt", r"two images that would both become p1/p1_0002\.jpg"),
    ("pack faces out --align label.txt", "line 1: .* has points of no face"),
    ("pack faces out --align points.txt --resize 112", "leave --resize and --crop out"),
])  # fmt: skip
def test_mistakes_are_one_line(run, monkeypatch, faces, tmp_path, arguments, message) -> None:
    image = (faces / "p1" / "p1_0002.png").read_bytes()
    write_files(tmp_path, {f"twice/p1/p1_0002{ending}": image for ending in (".png", ".jpeg")})
    lines = (tmp_path / "points.txt").read_text()
    (tmp_path / "label.txt").write_text(lines.replace(".png ", ".png 3 "))
    others = "\n".join(lines.replace("/p", "/q").splitlines()[:3])
    (tmp_path / "few.txt").write_text(f"{mirrored_line(faces)}\n{others}")
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    program, *words = arguments.split()
    main = {"pack": pack_main, "align": align_main}[program]
    assert_refused(message, run, main, *words, kind=(ConfigError, DataError))
    assert contents(tmp_path) == before and not list(tmp_path.glob(".*"))
