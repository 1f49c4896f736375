"""The command: made sets, ranks, memory, mistakes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from backbones.model import Backbone
from data.align.similarity import estimate
from evaluation.export import __main__ as export
from evaluation.ijb import __main__ as command
from evaluation.ijb import features_folder
from evaluation.ijb.lists import find_lists, read_faces, read_pairs, read_subjects
from evaluation.ijb.protocols import (
    cosines_of_pairs,
    identify,
    mean_of,
    template_features,
    verify,
)  # fmt: skip
from runtime.errors import DataError
from tests.evaluation.support import check_refusal, export_network
from tests.support.ijb_set import MadeSet, Sizes, noise, template_ids, write_features, write_set
from tests.support.thread_world import run_ranks

# Of a set without images, whose features are there: the model is never opened.
MADE = "IJBC --model m.onnx --out out"
POINTS = Path("IJBC/meta/ijbc_name_5pts_score.txt")
PAIRS = Path("IJBC/meta/ijbc_template_pair_label.txt")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> MadeSet:
    """A set with images in ``IJBC``, and the checkpoint ``m`` of an untrained network."""
    folder = tmp_path_factory.mktemp("images")
    export_network(folder / "m")
    return write_set(folder / "IJBC", images=True)


@pytest.fixture
def images(drawn: MadeSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeSet:
    shutil.copytree(drawn.folder.parent, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return drawn


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeSet:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(b"no network")
    return write_set(Path("IJBC"), Sizes(3000, 300, 60, 5000))


def run(words: str) -> dict[str, Any]:
    command.main(f"{words} --json found.json".split())
    found: dict[str, Any] = json.loads(Path("found.json").read_text())
    return found


def contents(folder: Path | str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def times() -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in Path("out").iterdir()}


@pytest.mark.parametrize("words", ["--no-norm-score --like ijb_11.py", "--no-detector-score"])
def test_results(made: MadeSet, words: str) -> None:
    like = "ijb_11.py" if "like" in words else "ijb.py"
    weighting = {"detector_score": "detector" not in words, "norm_score": "norm" not in words}
    views = write_features(made, Path("out"), Path("m.onnx"), 16)
    found = run(f"{MADE} {words}")
    lists = find_lists(made.folder)
    faces, pairs = read_faces(lists), read_pairs(lists.pairs, template_ids(Sizes(templates=300)))

    def templates(unit_views: bool) -> np.ndarray:
        parts = np.split(views, [1024, 2048], axis=1)
        return template_features(parts, faces, unit_views=unit_views, **weighting)

    cosines = cosines_of_pairs(templates(like == "ijb.py"), pairs)
    paths = (lists.probes, *lists.galleries)
    probes, *galleries = (read_subjects(path, faces.template_ids) for path in paths)
    identified = {
        name: identify(templates(False), one, probes)
        for name, one in zip(("gallery_G1", "gallery_G2"), galleries)
    }
    assert found == {
        "set": "IJB-C", "model": "m.onnx", "like": like, "flip": True, **weighting,
        "1:1": verify(cosines, pairs.same)[0],
        "1:N": {"galleries": identified, "mean": mean_of(identified)},
    }  # fmt: skip
    scores = np.load("IJBC_result/insightface.npy")
    assert scores.dtype == np.float64 and scores.tolist() == cosines.tolist()


def expected_views(made: MadeSet) -> np.ndarray:
    faces = []
    for number, points in enumerate(made.points):
        matrix = estimate(points, any_order=True)
        rgb = np.ascontiguousarray(noise(number)[..., ::-1])
        faces.append(cv2.warpAffine(rgb, matrix, (112, 112)).transpose(2, 0, 1))
    backbone, stacked = Backbone.load("m", image_size=(112, 112)), np.stack(faces)
    return np.stack([backbone.extract(one.copy()) for one in (stacked, stacked[..., ::-1])])


@pytest.mark.parametrize("flip", [False, True])
def test_images(images: MadeSet, monkeypatch: Any, capsys: Any, flip: bool) -> None:
    expected, name = expected_views(images)[: 1 + flip], "m.onnx" if flip else "m,0"
    if flip:
        export.main(["--model", "m,0", "--output", name])
    words = f"IJBC --model {name} --out out --batch-size 8{'' if flip else ' --no-flip'}"
    found = run(words)
    features = np.stack(np.split(np.load("out/part-00000.npy"), 1 + flip, axis=1))
    np.testing.assert_allclose(features, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    printed = capsys.readouterr()
    assert found["flip"] == flip and "of a face" not in printed.err
    for said in ("IJB-C 1:1, 400 pairs of 24 templates, ", "as ijb.py", "| gallery_G2 |",
                 "IJB-C 1:N, 16 mixed probes", f" {name} "):  # fmt: skip
        assert said in printed.out
    # What is there is not computed again, and no network is opened for it.
    before = times()
    monkeypatch.setattr(command, "open_network", None)
    assert run(words) == found and times() == before


@pytest.mark.parametrize("first", [30, 31])
def test_a_list_of_other_columns_is_named(images: MadeSet, capsys: Any, first: int) -> None:
    """Faces would be cut out wrong, which numbers alone do not say; fewer than half are counted."""
    rows = [line.split() for line in POINTS.read_text().splitlines()]
    for row in rows[first:]:
        row.insert(1, row.pop())
    POINTS.write_text("".join(" ".join(row) + "\n" for row in rows))
    if first == 31:
        run("IJBC --model m,0 --protocol 1:1 --out out")
        said = f"{POINTS}: the points of 29 of 60 faces are hardly those of a face, as of some in p"
        assert capsys.readouterr().err.count(said) == 1
        return
    message = f"{POINTS}, line 31: the points are those of no face, as of 30 of 60"
    with pytest.raises(DataError, match=f"{message} faces; each line has the name of an image"):
        command.main(MADE.split(), SimpleNamespace(rank=1, size=2))
    assert not Path("out").exists()


def test_ranks_share_the_parts_and_a_stopped_command_loses_none(
    images: MadeSet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (features_folder, command):
        monkeypatch.setattr(module, "PART", 16)
    image = Path("IJBC/loose_crop/40.png")
    content = image.read_bytes()
    words = "IJBC --model m,0 --batch-size 8 --out".split()
    image.write_bytes(b"nothing")
    message = r"40.png: the image .* \(what is embedded stays in out"
    check_refusal(command.main, [*words, "out"], message)
    before = times()
    assert sorted(before) == ["features.json", "part-00000.npy", "part-00001.npy"]
    image.write_bytes(content)
    capsys.readouterr()
    command.main([*words, "out"])
    assert len(times()) == 5 and before.items() <= times().items(), "nothing is embedded again"
    alone = capsys.readouterr().out
    run_ranks(2, lambda world: command.main([*words, "shared"], world))
    assert capsys.readouterr().out == alone
    assert contents("shared") == contents("out")


@pytest.mark.parametrize("only", ["1:1", "1:N"])
def test_one_protocol_needs_its_own_lists(made: MadeSet, only: str) -> None:
    """And 1:1 alone writes the two files of InsightFace's program, under its names."""
    write_features(made, Path("out"), Path("m.onnx"), 8)
    probes = Path("IJBC/meta/ijbc_1N_probe_mixed.csv")
    gone, other = (probes, "1:N") if only == "1:1" else (PAIRS, "1:1")
    gone.unlink()
    message = f"{gone.name} does not exist; the protocol {other} needs it"
    check_refusal(command.main, MADE.split(), message)
    found = run(f"{MADE} --protocol {only} --result-dir results/test --job partial_$fc")
    assert only in found and other not in found
    folder = Path("results/test/IJBC_result")
    assert folder.exists() == (only == "1:1")
    if only == "1:1":
        assert sorted(contents(folder)) == ["partial_$fc.npy", "partial_$fc.pdf"]
        assert (folder / "partial_$fc.pdf").read_bytes().startswith(b"%PDF-")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("IJBC --model m,0 --out o", "m-symbol.json cannot be read: No"),
        ("IJBC --model m.onnx --out out --no-flip", "features that differ in --no-flip"),
        ("IJBC --model m,0 --out o --image-size 96 112", "-size says 96 x 112; give"),
        ("--model-root m", "^--model-root is not an option here: give --model FILE"),
        (f"{MADE} --json IJBC/meta/ijbc_face_tid_mid.txt", "would replace"),
    ],
)
def test_mistakes_are_one_line(made: MadeSet, words: str, message: str) -> None:
    write_features(made, Path("out"), Path("m.onnx"), 8)
    check_refusal(command.main, words.split(), message)


def test_what_is_wrong_is_named_before_anything_is_embedded(made: MadeSet) -> None:
    Path("IJBC_result").write_text("a file")
    with pytest.raises(DataError, match="cannot be written: .*choose another folder with --result"):
        command.main(MADE.split())
    with PAIRS.open("a") as file:
        file.write("10 13\n")
    shutil.rmtree("out", ignore_errors=True)
    with pytest.raises(DataError, match=f"{PAIRS}, line 5001: '10 13' is not two templates th"):
        command.main(MADE.split())
    world = SimpleNamespace(
        rank=1, size=2, broadcast_object=lambda value, name: {**value, "model": "another"}
    )
    with pytest.raises(DataError, match="rank 1 sees another model or other lists than rank 0"):
        command.main(MADE.split(), world)
    assert not Path("out").exists()


def test_a_network_for_another_size_is_refused(images: MadeSet) -> None:
    export_network(Path("m"), 32)
    export.main("--model m,0 --image-size 32 32 --output m.onnx".split())
    message = "faces are aligned to 112 x 112, and m.onnx says 32 x"
    check_refusal(command.main, MADE.split(), message)


def test_templates_of_no_length_are_refused(made: MadeSet) -> None:
    lines = [line.rpartition(" ")[0] for line in POINTS.read_text().splitlines()]
    POINTS.write_text("".join(f"{line} 0\n" for line in lines))
    write_features(made, Path("out"), Path("m.onnx"), 8)
    message = "templates have length 0, .* or give --no-detector-score"
    check_refusal(command.main, MADE.split(), message)


def test_the_command_of_the_original_is_answered() -> None:
    """Its example.sh, word for word; what means the same here is taken."""
    words = (
        "--model-prefix glint360k_r100FC_0.1/model --image-path IJB_release/IJBC --result-dir "
        "./results/test --model-epoch 0 --gpu 0,1,2,3 --target IJBC --job partial_fc --batch-size "
        "256 -es 512"
    )
    refused = ("--model-prefix", "--image-path", "--model-epoch", "--gpu", "--target", "-es")
    said = [f"{option} is not an option here: " for option in refused]
    for message in (*said, "python -m evaluation.ijb IJBC", "horovodrun -np 4"):
        check_refusal(command.main, words.split(), message)
