"""The protocols, by the numbers of InsightFace's programs and by loops, and the command."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backbones.model import Backbone
from data.align.similarity import estimate
from evaluation.export import __main__ as export
from evaluation.ijb import __main__ as command
from evaluation.ijb import features_folder, protocols
from evaluation.ijb import lists as module
from evaluation.ijb.features_folder import FeaturesFolder, describe
from evaluation.ijb.lists import Faces, Subjects, find_lists, read_faces, read_pairs, read_subjects
from evaluation.ijb.protocols import cosines_of_pairs, identify, mean_of, template_features, verify
from tests.evaluation.support import check_refusal, export_network
from tests.support.ijb_set import MadeSet, Sizes, noise, template_ids, write_set
from tests.support.sets import assert_refused, contents
from tests.support.thread_world import run_ranks


def faces_of(templates: Any, media: Any, scores: Any) -> Faces:
    ids, rows = np.unique(templates, return_inverse=True)
    points = np.zeros((len(rows), 5, 2))
    return Faces([""] * len(rows), points, np.array(scores), ids, rows, np.array(media))


@pytest.mark.parametrize(
    ("program", "norm", "expected"),
    [
        ("ijb.py", True, [0.238687, 0.238687, 0.328305, 0.559006, 0.779059, 0.953860]),
        ("ijb_11.py", True, [0.176575, 0.182786, 0.226264, 0.371783, 0.597161, 0.906832]),
        ("ijb.py", False, [0.224490, 0.224490, 0.330967, 0.552795, 0.778172, 0.952085]),
        ("ijb_11.py", False, [0.217391, 0.244898, 0.280390, 0.456078, 0.694765, 0.932564]),
    ],
)
def test_rates_are_those_of_the_programs(program: str, norm: bool, expected: list[float]) -> None:
    """What both gave for this set, run with their sources.

    The views of a face have other lengths: by them one of ``ijb_11.py`` counts more or less.
    """
    rng = np.random.default_rng(43)
    people, templates, faces, width = 60, 500, 2500, 24
    of_template = rng.integers(0, people, templates)
    template = np.concatenate([np.arange(templates), rng.integers(0, templates, faces - templates)])
    centers = rng.normal(0, 1, (people, width))
    views = centers[of_template[template]] + rng.normal(0, 2.4, (2, faces, width))
    # A blurred face has short features.
    views *= np.exp(rng.normal(0, 0.8, (2, faces, 1)))
    chosen = rng.integers(0, templates, (60_000, 2))
    same = of_template[chosen[:, 0]] == of_template[chosen[:, 1]]
    scores = rng.uniform(0.3, 1, faces).astype(np.float32).astype(np.float64)
    listed = faces_of(template, rng.integers(0, 4, faces), scores)
    parts = np.split(views.astype(np.float32), [700, 1900], axis=1)
    features = template_features(parts, listed, unit_views=program == "ijb.py", norm_score=norm)
    first, second = chosen.astype(np.int32).T
    cosines = cosines_of_pairs(features, module.Pairs(first, second, same))
    found, _ = verify(cosines, same)
    rates = found.pop("tar_at_far")
    assert [rate["tar"] for rate in rates] == pytest.approx(expected, abs=1e-6)
    assert [rate["far"] for rate in rates] == list(protocols.FARS)
    assert (found["pairs"], found["same"]) == (60_000, same.sum())


def test_templates_by_hand() -> None:
    """Two frames of a video, averaged, and an image; a template of one face, and one of none."""
    features = np.array([[4, 0], [0, 6], [0, 3], [0, -2], [1, 1]], np.float32)
    faces = faces_of([5, 5, 5, 2, 7], [1, 1, 2, 1, 1], [1, 0.5, 2, 0.1, 0])
    parts = [features[np.newaxis, :2], features[np.newaxis, 2:]]
    rows = template_features(parts, faces, unit_views=False)
    # (4, 3) / 2 + (0, 6)
    assert rows == pytest.approx(np.array([[0, -1], np.array([2, 7.5]) / np.hypot(2, 7.5), [0, 0]]))
    rows = template_features(parts, faces, unit_views=False, detector_score=False)
    assert rows[1:] == pytest.approx(np.array([[2, 6], [1, 1]]) / [[np.hypot(2, 6)], [2**0.5]])


def rate(scores: Any, same: Any, place: int) -> tuple[Any, ...]:
    found = verify(np.array(scores), np.array(same, np.bool_))[0]["tar_at_far"][place]
    return tuple(found[name] for name in ("far", "nearest_far", "tar", "threshold"))


def test_rates_by_hand() -> None:
    """Ten pairs of two people; one of them is more similar than two of one person."""
    scores, same = np.concatenate([np.arange(10) / 20, [0.9, 0.8, 0.43, 0.2]]), np.arange(14) >= 10
    assert rate(scores, same, -1) == (0.1, 0.1, 0.75, 0.43)
    assert rate(scores, same, 0) == (1e-6, 0.0, 0.5, 0.8)
    found, curve = verify(scores, same)
    assert found["auc"] == pytest.approx((2 * 10 + 9 + 4.5) / 40)
    assert curve[:, 0].tolist() == [0, 0] and curve[:, -1].tolist() == [1, 1]
    # Points on a line are left out as in the original: from 0 to 0.5 nothing is gained, so 0 is
    # nearer to 0.1 than any point that is left.
    scores[-2:] = 0.47, 0.22
    assert rate(scores, same, -1) == (0.1, 0.0, 0.75, 0.47)
    # Nothing is accepted before the first pair of two people.
    assert rate([1.0, 0.5], [False, True], 0) == (1e-6, 0.0, 0.0, None)


def loops(features: np.ndarray, gallery: Subjects, probes: Subjects) -> dict[str, Any]:
    """The shares of mated probes within ranks, and those identified at false alarm rates."""
    vectors = {one: features[row] for row, one in zip(gallery.templates, gallery.subjects)}
    mated, strangers = [], []
    for row, subject in zip(probes.templates, probes.subjects):
        found = {one: float(features[row] @ vector) for one, vector in vectors.items()}
        if subject in found:
            mated.append((found.pop(subject), max(found.values()), [*found.values()]))
        else:
            strangers.append(max(found.values()))
    strangers.sort(reverse=True)
    places = [sum(other >= own for other in others) for own, _, others in mated]
    shares: dict[str, Any] = {f"rank-{n}": np.mean(np.array(places) < n) for n in (1, 5, 10)}
    for rate in (0.01, 0.1):
        threshold = strangers[max(int(len(strangers) * rate) - 1, 0)]
        shares[str(rate)] = np.mean([own > max(best, threshold) for own, best, _ in mated])
    return shares


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 13), st.integers(1, 30), st.integers(1, 35), st.integers(0, 1000))
def test_identification_equals_the_loops_with_ties(people, mated, others, seed: int) -> None:
    """Templates of small whole numbers, many of which are equal: cosines are exact."""
    rng = np.random.default_rng(seed)
    count = people + mated + others
    features = rng.integers(-1, 2, (count, 3)).astype(np.float64)
    owners = np.array([*range(people), *rng.integers(0, people, mated), *range(50, 50 + others)])
    places, rest = rng.permutation(people), np.arange(people, count)
    gallery, probes = Subjects(places, owners[places]), Subjects(rest, owners[rest])
    found = identify(features, gallery, probes)
    counts = {"templates": people, "mated": mated, "others": others}
    shares = {**found.pop("tpir_at_fpir"), **found}
    del shares["thresholds"]
    assert shares == pytest.approx({**counts, **loops(features, gallery, probes)})


@pytest.mark.parametrize(
    ("gallery", "probes"),
    [
        ([(0, 5), (1, 5)], [(1, 5), (2, 6)]),
        ([(0, 5), (1, 6)], [(1, 5), (2, 6)]),
        ([(0, 5)], [(1, 7)]),
    ],
)
def test_what_the_protocol_is_not_for(gallery, probes) -> None:
    """A subject that is in the gallery twice, probes that are all in it, and none that is."""
    subjects = (Subjects(*np.array(one).T) for one in (gallery, probes))
    assert_refused("the protocol needs probes of subjects that are", identify, np.eye(3), *subjects)


def test_tables() -> None:
    """Ranks are averaged over probes, rates over galleries."""
    verified = {"tar_at_far": [{"tar": 0.9 + n / 100} for n in range(6)], "auc": 0.99}
    galleries = {}
    for name, mated, ranks, rates in (
        ("G1", 10, (0.5, 0.6, 0.8), (0.25, 0.5)), ("G2", 30, (1.0, 1.0, 1.0), (0.75, 1.0)),
    ):  # fmt: skip
        shares = {f"rank-{rank}": share for rank, share in zip((1, 5, 10), ranks)}
        rates_at = {"tpir_at_fpir": dict(zip(("0.01", "0.1"), rates))}
        galleries[name] = {"mated": mated, **shares, **rates_at}
    assert protocols.verification_lines("m,0", verified) == [
        "TAR at FAR  1e-06  1e-05  0.0001  0.001   0.01    0.1    AUC",
        "m,0         90.00  91.00   92.00  93.00  94.00  95.00  99.00",
    ]
    assert [line.split() for line in protocols.identification_lines(galleries)[1:]] == [
        ["G1", "50.00", "60.00", "80.00", "25.00", "50.00"],
        ["G2", "100.00", "100.00", "100.00", "75.00", "100.00"],
        ["mean", "87.50", "90.00", "95.00", "50.00", "75.00"],
    ]


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


def write_features(made: MadeSet, out: Path, model: Path, width: int) -> np.ndarray:
    """Write random features of a made set, as the command would for a model.

    Returns those of the views of each face [2, n, width].
    """
    count, points = len(made.scores), find_lists(made.folder).points
    options = Namespace(model=model, no_flip=False, dtype="float32")
    generator = np.random.default_rng(width)
    rows = generator.standard_normal((count, 2 * width), dtype=np.float32)
    with FeaturesFolder(out, describe(options, points, count)) as folder:
        folder.claim()
        for part in folder.missing():
            folder.write(part, rows[folder.faces(part)])
    return np.stack(np.split(rows, 2, axis=1))


def run(words: str) -> dict[str, Any]:
    command.main(f"{words} --json found.json".split())
    found: dict[str, Any] = json.loads(Path("found.json").read_text())
    return found


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
    gallery, probes = (
        read_subjects(path, faces.template_ids) for path in (lists.galleries[1], lists.probes)
    )
    templates = [
        template_features(
            np.split(views, [1024, 2048], axis=1), faces, unit_views=unit, **weighting
        )
        for unit in (like == "ijb.py", False)
    ]
    cosines, scores = cosines_of_pairs(templates[0], pairs), np.load("IJBC_result/insightface.npy")
    assert scores.dtype == np.float64 and scores.tolist() == cosines.tolist()
    assert found.pop("1:1") == verify(cosines, pairs.same)[0]
    identified = found.pop("1:N")
    assert identified["galleries"]["gallery_G2"] == identify(templates[1], gallery, probes)
    assert identified["mean"] == mean_of(identified["galleries"])
    about = {"set": "IJB-C", "model": "m.onnx", "like": like, "flip": True}
    assert found == {**about, **weighting}


@pytest.mark.parametrize("flip", [False, True])
def test_images(images: MadeSet, monkeypatch: Any, capsys: Any, flip: bool) -> None:
    backbone, faces, name = Backbone.load("m"), [], "m.onnx" if flip else "m,0"
    for number, points in enumerate(images.points):
        matrix = estimate(points, any_order=True)
        rgb = np.ascontiguousarray(noise(number)[..., ::-1])
        faces.append(cv2.warpAffine(rgb, matrix, (112, 112)).transpose(2, 0, 1))
    views = (np.stack(faces), np.stack(faces)[..., ::-1])[: 1 + flip]
    expected = np.stack([backbone.extract(one.copy()) for one in views])
    if flip:
        export.main(["--model", "m,0", "--output", name])
    words = f"IJBC --model {name} --out out --batch-size 8{'' if flip else ' --no-flip'}"
    found = run(words)
    features = np.stack(np.split(np.load("out/part-00000.npy"), 1 + flip, axis=1))
    np.testing.assert_allclose(features, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    printed = capsys.readouterr()
    assert found["flip"] == flip
    for said in ("IJB-C 1:1, 400 pairs of 24 templates, ", "as ijb.py", "gallery_G2  ",
                 "IJB-C 1:N, 16 mixed probes", f"\n{name} "):  # fmt: skip
        assert said in printed.out
    # What is there is not computed again, and no network is opened for it.
    before = times()
    monkeypatch.setattr(command, "open_network", None)
    assert run(words) == found and times() == before


@pytest.mark.parametrize("first", [30, 31])
def test_a_list_of_other_columns_is_named(images: MadeSet, first: int) -> None:
    """Faces would be cut out wrong, which numbers alone do not say; fewer than half may be."""
    rows = [line.split() for line in POINTS.read_text().splitlines()]
    for row in rows[first:]:
        row.insert(1, row.pop())
    POINTS.write_text("".join(" ".join(row) + "\n" for row in rows))
    if first == 31:
        run("IJBC --model m,0 --protocol 1:1 --out out")
        return
    message = f"{POINTS} has points of no face for '31.png', as for 30 of 60 faces; take all"
    assert_refused(message, command.main, MADE.split(), SimpleNamespace(rank=1, size=2))
    assert not Path("out").exists()


def test_ranks_share_the_parts_and_stopping_loses_none(images, monkeypatch, capsys) -> None:
    for one in (features_folder, command):
        monkeypatch.setattr(one, "PART", 16)
    image = Path("IJBC/loose_crop/40.png")
    content = image.read_bytes()
    words = "IJBC --model m,0 --batch-size 8 --out".split()
    image.write_bytes(b"nothing")
    check_refusal(command.main, [*words, "out"], "40.png: the image ")
    before = times()
    assert sorted(before) == ["features.json", "part-00000.npy", "part-00001.npy"]
    image.write_bytes(content)
    capsys.readouterr()
    command.main([*words, "out"])
    assert len(times()) == 5 and before.items() <= times().items(), "nothing is embedded again"
    alone = capsys.readouterr().out
    run_ranks(2, lambda world: command.main([*words, "shared"], world))
    assert capsys.readouterr().out == alone
    assert contents(Path("shared")) == contents(Path("out"))


@pytest.mark.parametrize("only", ["1:1", "1:N"])
def test_one_protocol_needs_its_own_lists(made: MadeSet, only: str) -> None:
    """And 1:1 alone writes the two files of InsightFace's program, under its names."""
    write_features(made, Path("out"), Path("m.onnx"), 8)
    probes = Path("IJBC/meta/ijbc_1N_probe_mixed.csv")
    other = "1:N" if only == "1:1" else "1:1"
    gone = probes if only == "1:1" else PAIRS
    gone.unlink()
    message = f"{gone.name} cannot be read: No such file .*with --protocol, the lists of the other"
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
        ("IJBC --model m.onnx --out out --no-flip", "has features of another model or list"),
        ("--model-root m", "^--model-root is not an option here: type `--model FILE"),
        (
            "--image-path IJB_release/IJBC -es 512",
            "the folder has no option; -es is not an op",
        ),
        ("--gpu 0,1,2,3 --target IJBC", "horovodrun -np 4`; --target is not an option here: leave"),
        (f"{MADE} --json IJBC/meta/ijbc_face_tid_mid.txt", "would replace"),
    ],
)
def test_mistakes_are_one_line(made: MadeSet, words: str, message: str) -> None:
    write_features(made, Path("out"), Path("m.onnx"), 8)
    check_refusal(command.main, words.split(), message)


def test_what_is_wrong_is_named_before_anything_is_embedded(made: MadeSet) -> None:
    Path("IJBC_result").write_text("a file")
    message = "cannot be written: .*choose another folder with --result"
    check_refusal(command.main, MADE.split(), message)
    shutil.rmtree("out")
    world = SimpleNamespace(
        rank=1, size=2, broadcast_object=lambda value, name: {**value, "model": "another"}
    )
    message = "rank 1 sees other models or lists than rank 0"
    assert_refused(message, command.main, MADE.split(), world)
    PAIRS.write_text("10 13\n")
    check_refusal(command.main, MADE.split(), f"{PAIRS} has a line that is not two templates, ")
    assert not Path("out").exists()


def test_a_network_for_another_size_is_refused(images: MadeSet) -> None:
    export_network(Path("m"), 32)
    words = "IJBC --model m,0 --image-size 32 32 --out out".split()
    check_refusal(command.main, words, "m,0 is to take images of .32, 32.; leave --image-size out")
