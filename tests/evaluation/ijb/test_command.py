"""The command: made sets against loops in float64, killed commands, ranks, memory, mistakes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from backbones.model import Backbone
from backbones.options import BackboneOptions
from data.align.similarity import estimate
from evaluation.embed.rows_file import pack_rows
from evaluation.export import __main__ as export
from evaluation.ijb import __main__ as command
from evaluation.ijb import features_folder
from runtime.errors import ConfigError, DataError
from tests.support import reference_ijb
from tests.support.ijb_set import (
    MadeSet,
    Sizes,
    noise,
    template_ids,
    write_features,
    write_set,
)
from tests.support.launch import clean_environment
from tests.support.thread_world import run_ranks

ROOT = Path(__file__).resolve().parents[3]
FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of an untrained network."""
    prefix = tmp_path_factory.mktemp("model") / "m"
    options = BackboneOptions(network="tiny", embedding_size=8)
    Backbone.create(options, image_size=(112, 112)).export(prefix)
    return prefix


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> MadeSet:
    """A set with images."""
    return write_set(tmp_path_factory.mktemp("images") / "IJBC", images=True)


@pytest.fixture
def made_images(images: MadeSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the set with images, in ``IJBC``."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(images.folder, "IJBC"))


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeSet:
    """A set without images, whose features are in ``out`` for a model that is never opened."""
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(b"no network")
    return write_set(Path("IJBC"), Sizes(3000, 300, 60, 5000))


def run(*words: object) -> dict[str, Any]:
    command.main([*map(str, words), "--json", "found.json"])
    found: dict[str, Any] = json.loads(Path("found.json").read_text())
    return found


def check(
    found: dict[str, Any], views: np.ndarray, made: MadeSet, *, unit: bool = True, **options: bool
) -> None:
    """Compare all results with the loops; ``views`` are the features of each view of each face."""
    faces = reference_ijb.faces(views, unit=unit)
    vectors = reference_ijb.templates(faces, made, **options)
    scores = reference_ijb.cosines(vectors, made.pairs)
    points = reference_ijb.curve(scores, made.pairs[:, 2] == 1)
    one = found["1:1"]
    assert (one["pairs"], one["same"]) == (len(made.pairs), made.pairs[:, 2].sum())
    assert one["auc"] == pytest.approx(reference_ijb.area(points), abs=1e-9)
    rates = [(rate["far"], rate["nearest_far"], rate["tar"]) for rate in one["tar_at_far"]]
    expected = [(far, *reference_ijb.accept_rate(points, far)) for far in FARS]
    np.testing.assert_allclose(rates, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(np.load("IJBC_result/insightface.npy"), scores, atol=1e-12)
    ids = np.unique(made.templates)
    vectors = reference_ijb.templates(reference_ijb.faces(views, unit=False), made, **options)
    means = []
    for name, gallery in zip(("G1", "G2"), made.galleries):
        ranks, rates_of = reference_ijb.identification(vectors, made, ids, gallery)
        one = found["1:N"]["galleries"][f"gallery_{name}"]
        values = [one[f"rank-{rank}"] for rank in ranks]
        values += [one["tpir_at_fpir"][f"{rate:g}"] for rate in rates_of]
        wanted = [*ranks.values(), *rates_of.values()]
        np.testing.assert_allclose(values, wanted, rtol=0, atol=1e-9)
        means.append(values[-2:])
    mean = found["1:N"]["mean"]["tpir_at_fpir"]
    assert list(mean.values()) == pytest.approx(np.mean(means, axis=0), abs=1e-9)


@pytest.mark.parametrize("detector_score", [True, False])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("like", ["ijb.py", "ijb_11.py"])
def test_results_equal_the_loops(
    made: MadeSet, detector_score: bool, norm: bool, like: str
) -> None:
    views = write_features(made, Path("out"), Path("m.onnx"), 16)
    # People are to be recognized somewhat.
    centers = np.random.default_rng(0).normal(0, 0.4, (60, 16))
    owners = made.subjects[np.searchsorted(template_ids(Sizes(templates=300)), made.templates)]
    views += centers[owners].astype(np.float32)
    # The mirror images of some faces have short features.
    views[1, ::3] *= 0.1
    for part in range(3):
        rows = pack_rows(np.concatenate(views[:, 1024 * part : 1024 * (part + 1)], axis=1))
        Path(f"out/part-{part:05d}.npy").write_bytes(rows)
    words = [] if detector_score else ["--no-detector-score"]
    words += [] if norm else ["--no-norm-score"]
    words += ["--like", like] if like != "ijb.py" else []
    found = run("IJBC", "--model", "m.onnx", "--out", "out", *words)
    options = {"detector_score": detector_score, "norm": norm}
    check(found, views, made, unit=like == "ijb.py", **options)
    assert 0.1 < found["1:1"]["tar_at_far"][3]["tar"] < 0.9, "neither nothing nor all"
    assert 0.1 < found["1:N"]["mean"]["tpir_at_fpir"]["0.1"] < 0.9
    assert found["set"] == "IJB-C" and found["model"] == "m.onnx" and found["flip"]
    assert found["like"] == like
    assert (found["detector_score"], found["norm_score"]) == (detector_score, norm)


def expected_features(model: Path, made: MadeSet, flip: bool) -> np.ndarray:
    backbone = Backbone.load(model, image_size=(112, 112))
    faces = []
    for number, points in enumerate(made.points):
        matrix = estimate(points, any_order=True)
        rgb = np.ascontiguousarray(noise(number)[..., ::-1])
        faces.append(cv2.warpAffine(rgb, matrix, (112, 112)).transpose(2, 0, 1))
    stacked = np.ascontiguousarray(np.stack(faces))
    mirrored = np.ascontiguousarray(stacked[..., ::-1])
    return np.stack([backbone.extract(one) for one in [stacked, mirrored][: 1 + flip]])


def read_views(flip: bool = True) -> np.ndarray:
    return np.stack(np.split(np.load("out/part-00000.npy"), 1 + flip, axis=1))


@pytest.mark.parametrize("flip", [True, False])
def test_images(model, images, tmp_path, monkeypatch, capsys, flip: bool) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--batch-size", "8", *([] if flip else ["--no-flip"])]
    found = run(images.folder, "--model", f"{model},0", "--out", "out", *words)
    features = read_views(flip)
    expected = expected_features(model, images, flip)
    np.testing.assert_allclose(features, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    check(found, features, images)
    printed = capsys.readouterr().out
    assert "IJB-C 1:1, 400 pairs of 24 templates, " in printed and "as ijb.py" in printed
    assert "IJB-C 1:N, 16 mixed probes" in printed
    assert f"| {model},0 |" in printed and "| gallery_G2 |" in printed
    # What is there is not computed again, and no network is opened for it.
    before = {path.name: path.stat().st_mtime_ns for path in Path("out").iterdir()}
    monkeypatch.setattr(command, "open_network", None)
    assert run(images.folder, "--model", f"{model},0", "--out", "out", *words) == found
    assert {path.name: path.stat().st_mtime_ns for path in Path("out").iterdir()} == before


def with_other_columns(path: Path, first: int) -> None:
    """Write the score before the points in the lines from one on, from 0."""
    rows = [line.split() for line in path.read_text().splitlines()]
    for row in rows[first:]:
        row.insert(1, row.pop())
    path.write_text("".join(" ".join(row) + "\n" for row in rows))


@pytest.mark.parametrize("first", [0, 30])
def test_a_list_of_other_columns_is_named(made_images: Path, first: int) -> None:
    """Faces would be cut out wrong, which numbers alone do not say; all of them or half."""
    path = made_images / "meta/ijbc_name_5pts_score.txt"
    with_other_columns(path, first)
    message = (
        f"{path}, line {first + 1}: the points are those of no face, as of {60 - first} of 60 "
    )
    for rank in range(2):
        world = SimpleNamespace(rank=rank, size=2)
        with pytest.raises(DataError, match=f"{message}faces; each line has the name of an image"):
            command.main(["IJBC", "--model", "m,0", "--out", "out"], world)
    assert not Path("out").exists()


def test_fewer_faces_with_other_points_are_counted(
    model, made_images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["IJBC", "--model", f"{model},0", "--protocol", "1:1", "--out"]
    run(*words, "right")
    assert "of a face" not in capsys.readouterr().err
    path = made_images / "meta/ijbc_name_5pts_score.txt"
    with_other_columns(path, 31)
    run(*words, "other")
    line = f"{path}: the points of 29 of 60 faces are hardly those of a face, as of some in profile"
    assert capsys.readouterr().err.count(line) == 1


def test_onnx_gives_the_same(model, images, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = expected_features(model, images, flip=True)
    export.main(["--model", f"{model},0", "--output", "m.onnx"])
    found = run(images.folder, "--model", "m.onnx", "--out", "out")
    features = read_views()
    np.testing.assert_allclose(features, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    check(found, features, images)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_share_the_parts(model, images, tmp_path, monkeypatch, capsys, size: int) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (features_folder, command):
        monkeypatch.setattr(module, "PART", 16)
    words = [str(images.folder), "--model", f"{model},0", "--batch-size", "8", "--out"]
    command.main([*words, "alone"])
    alone = capsys.readouterr().out
    run_ranks(size, lambda world: command.main([*words, "shared"], world))
    assert capsys.readouterr().out == alone
    assert contents(Path("shared")) == contents(Path("alone"))
    assert len(contents(Path("alone"))) == 5


@pytest.mark.launcher
def test_two_ranks_under_horovodrun(model, images, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(images.folder), "--model", f"{model},0", "--json", "f.json", "--out"]
    # Each of two ranks has one thread here; without AVX-512 features depend on their number.
    with start(*words, "alone", OMP_NUM_THREADS="1") as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    found = json.loads(Path("f.json").read_text())
    # Part 0 has all faces, so one rank has nothing to do.
    launch = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2"]
    result = subprocess.run(
        [*launch, "-H", "localhost:2", sys.executable, "-m", "evaluation.ijb", *words, "shared"],
        env={**clean_environment(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads(Path("f.json").read_text()) == found
    assert contents(Path("shared")) == contents(Path("alone"))


# As ``python -m evaluation.ijb``, with parts of 64 faces.
SMALL_PARTS = """
from evaluation.ijb import __main__ as command, features_folder
from runtime.stopping import run_stoppable
command.PART = features_folder.PART = 64
run_stoppable(command.main)
"""


def start(
    *words: object, begin: tuple[str, ...] = ("-m", "evaluation.ijb"), **variables: str
) -> Any:
    return subprocess.Popen(
        [sys.executable, *begin, *map(str, words)],
        env={**clean_environment(), "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def written(folder: Path) -> dict[str, tuple[int, int]]:
    """Which file each part is, and when it was written."""
    found = {path.name: path.stat() for path in folder.glob("part-*")}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in found.items()}


def test_a_killed_command_continues(model: Path, tmp_path: Path, monkeypatch) -> None:
    """Killed after the first and after the third part, of five."""
    monkeypatch.chdir(tmp_path)
    made = write_set(Path("IJBC"), Sizes(faces=300), images=True)
    words = ["IJBC", "--model", f"{model},0", "--out"]
    parts, small = Path("killed"), ("-c", SMALL_PARTS)
    # In a process of its own: without AVX-512 features depend on how many threads a batch has.
    with start(*words, "whole", begin=small) as process:
        _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    for count in (1, 3):
        with start(*words, "killed", begin=small) as process:
            deadline = time.monotonic() + 120
            while len(list(parts.glob("part-*"))) < count and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            process.kill()
        assert process.returncode == -9
    left = written(parts)
    assert 3 <= len(left) < 5
    with start(*words, "killed", begin=small) as process:
        said, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert f"{len(made.pairs):,} pairs" in said
    assert left.items() <= written(parts).items(), "they are not written again"
    assert contents(parts) == contents(Path("whole"))


def peak_bytes(folder: Path, pairs: int) -> int:
    """The largest memory of a command on features that are there."""
    made = write_set(folder / "IJBC", Sizes(3000, 500, 20, pairs))
    (folder / "m.onnx").touch()
    write_features(made, folder / "out", folder / "m.onnx", 64)
    words = [folder / "IJBC", "--model", folder / "m.onnx", "--out", folder / "out"]
    words += ["--result-dir", folder]
    with start(*words) as process:
        _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    shutil.rmtree(folder)
    return usage.ru_maxrss * 1024


def test_memory_grows_by_less_than_a_hundred_bytes_per_pair(tmp_path: Path) -> None:
    """So 15,658,489 pairs fit into 2 GiB."""
    few, many = (peak_bytes(tmp_path / str(n), n) for n in (500_000, 1_500_000))
    assert 0 < (many - few) / 1_000_000 < 100


@pytest.mark.parametrize("only", ["1:1", "1:N"])
def test_one_protocol_needs_its_own_lists(made: MadeSet, only: str) -> None:
    write_features(made, Path("out"), Path("m.onnx"), 8)
    pairs, probes = "ijbc_template_pair_label.txt", "ijbc_1N_probe_mixed.csv"
    gone, other = (probes, "1:N") if only == "1:1" else (pairs, "1:1")
    Path("IJBC/meta", gone).unlink()
    words = ("IJBC", "--model", "m.onnx", "--out", "out")
    with pytest.raises(DataError, match=f"{gone} does not exist; the protocol {other} needs it"):
        run(*words)
    found = run(*words, "--protocol", only)
    assert only in found and other not in found


def test_images_that_cannot_be_read_lose_nothing(model, images, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (features_folder, command):
        monkeypatch.setattr(module, "PART", 16)
    shutil.copytree(images.folder, "IJBC")
    image = Path("IJBC/loose_crop/40.png")
    content = image.read_bytes()
    words = ["IJBC", "--model", f"{model},0", "--out", "out"]
    image.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"40.png: the image .* \(what is embedded stays in out"):
        run(*words)
    image.unlink()
    with pytest.raises(DataError, match="40.png cannot be read: No such file"):
        run(*words)
    image.write_bytes(content)
    assert sorted(contents(Path("out"))) == [
        "features.json", "part-00000.npy", "part-00001.npy",
    ]  # fmt: skip
    run(*words)
    assert len(contents(Path("out"))) == 5


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["--model", "m.onnx", "--out", "o"], ConfigError, "FOLDER"),
        (["IJBC", "--out", "o"], ConfigError, "--model"),
        (["IJBC", "--model", "m.onnx"], ConfigError, "--out"),
        (["gone", "--model", "m.onnx", "--out", "o"], DataError, "gone/meta has to hold ijbb_name"),
        (["IJBC", "--model", "m,0", "--out", "o"], DataError, "m-symbol.json cannot be read: No"),
        (["IJBC", "--model", "x.onnx", "--out", "o"], DataError, "x.onnx cannot be read: No such"),
        (["IJBC", "--model", "m.onnx", "--out", "IJBC"], DataError, "IJBC is not empty, and has"),
        (
            ["IJBC", "--model", "m.onnx", "--out", "o", "--image-size", "96", "112"],
            ConfigError, "faces are aligned to 112 x 112, and --image-size says 96 x 112; give",
        ),
        (
            ["IJBC", "--model", "m.onnx", "--out", "o", "--json", "gone/f.json"],
            ConfigError, "--json gone/f.json: there is no folder gone; make it before",
        ),
        (
            ["IJBC", "--model", "m.onnx", "--out", "o", "--protocol", "1:5"],
            ConfigError, "--protocol",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(made: MadeSet, words: list[str], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        command.main(words)


def test_a_wrong_line_ends_the_command_with_status_2(made: MadeSet) -> None:
    """Before anything is embedded."""
    with Path("IJBC/meta/ijbc_template_pair_label.txt").open("a") as file:
        file.write("10 13\n")
    with start("IJBC", "--model", "m.onnx", "--out", "out") as process:
        _, errors = process.communicate(timeout=100)
    assert process.returncode == 2
    assert errors == (
        "error: IJBC/meta/ijbc_template_pair_label.txt, line 5001: '10 13' is not two templates "
        "and a label\n"
    )
    assert not Path("out").exists()


def test_another_model_is_refused(made: MadeSet) -> None:
    write_features(made, Path("out"), Path("m.onnx"), 8)
    Path("other.onnx").write_bytes(b"another network")
    with pytest.raises(DataError, match="out has features that differ in the model"):
        run("IJBC", "--model", "other.onnx", "--out", "out")
    with pytest.raises(DataError, match="out has features that differ in --no-flip"):
        run("IJBC", "--model", "m.onnx", "--out", "out", "--no-flip")


def test_a_network_for_another_size_is_refused(images: MadeSet, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = BackboneOptions(network="tiny", embedding_size=8)
    Backbone.create(options, image_size=(32, 32)).export(Path("m"))
    export.main(["--model", "m,0", "--image-size", "32", "32", "--output", "m.onnx"])
    with pytest.raises(ConfigError, match="faces are aligned to 112 x 112, and m.onnx says 32 x"):
        run(images.folder, "--model", "m.onnx", "--out", "out")


def test_ranks_that_see_other_files(made: MadeSet) -> None:
    class Other:
        rank, size = 1, 2

        def broadcast_object(self, value: Any, name: str) -> Any:
            return {**value, "model": "another"}

    with pytest.raises(DataError, match="rank 1 sees another model or other lists than rank 0"):
        command.main(["IJBC", "--model", "m.onnx", "--out", "out"], Other())


def test_the_two_files_of_a_job(made: MadeSet, capsys: pytest.CaptureFixture[str]) -> None:
    """Where InsightFace's program writes them, and under its names."""
    views = write_features(made, Path("out"), Path("m.onnx"), 8)
    words = ["IJBC", "--model", "m.onnx", "--out", "out", "--protocol", "1:1"]
    command.main([*words, "--result-dir", "results/test", "--job", "partial_$fc"])
    folder = Path("results/test/IJBC_result")
    assert sorted(contents(folder)) == ["partial_$fc.npy", "partial_$fc.pdf"]
    scores = np.load(folder / "partial_$fc.npy")
    assert scores.dtype == np.float64 and scores.shape == (len(made.pairs),)
    vectors = reference_ijb.templates(reference_ijb.faces(views, unit=True), made)
    np.testing.assert_allclose(scores, reference_ijb.cosines(vectors, made.pairs), atol=1e-12)
    assert (folder / "partial_$fc.pdf").read_bytes().startswith(b"%PDF-")
    command.main(words)
    assert sorted(contents(Path("IJBC_result"))) == ["insightface.npy", "insightface.pdf"]
    command.main([*words[:-1], "1:N", "--result-dir", "other"])
    assert not Path("other").exists(), "1:N has no such files"


def test_a_place_that_cannot_be_written_is_named_before_the_network_is_opened(
    made: MadeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("IJBC_result").write_text("a file")
    with pytest.raises(DataError, match="cannot be written: .*choose another folder with --result"):
        command.main(["IJBC", "--model", "m.onnx", "--out", "out"])


def test_templates_of_no_length_are_refused(made: MadeSet) -> None:
    points = Path("IJBC/meta/ijbc_name_5pts_score.txt")
    lines = [line.split()[:-1] for line in points.read_text().splitlines()]
    points.write_text("".join(" ".join([*line, "0"]) + "\n" for line in lines))
    write_features(made, Path("out"), Path("m.onnx"), 8)
    words = ("IJBC", "--model", "m.onnx", "--out", "out")
    with pytest.raises(DataError, match="templates have length 0, .* or give --no-detector-score"):
        run(*words)
    assert "1:1" in run(*words, "--no-detector-score")


def test_the_command_of_the_original_is_answered(made: MadeSet) -> None:
    """Its example.sh, word for word; what means the same here is taken."""
    words = (
        "--model-prefix glint360k_r100FC_0.1/model --image-path IJB_release/IJBC --result-dir "
        "./results/test --model-epoch 0 --gpu 0,1,2,3 --target IJBC --job partial_fc --batch-size "
        "256 -es 512"
    )
    with pytest.raises(ConfigError) as failure:
        command.main(words.split())
    said = str(failure.value)
    assert "\n" not in said
    for word in ("--model-prefix", "--image-path", "--model-epoch", "--gpu", "--target", "-es"):
        assert f"{word} is not an option here: " in said
    for word in ("--result-dir", "--job", "--batch-size"):
        assert f"{word} is not" not in said
    assert "python -m evaluation.ijb IJBC" in said and "horovodrun -np 4" in said
    with pytest.raises(ConfigError, match="^--model-root is not an option here: give --model FILE"):
        command.main(["--model-root", "models"])
