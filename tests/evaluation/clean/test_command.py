"""The command, and what it finds in embeddings: what is planted, and nothing that is right."""

from __future__ import annotations

import os
import re
import tarfile
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from data.decoding import decode_file
from data.records.record_set import RecordSet
from data.verification.bin_file import VerificationSet, write_bin
from evaluation import embed
from evaluation.clean import __main__ as command
from evaluation.clean import labels as module
from evaluation.clean.faces import EmbeddedFaces
from evaluation.clean.findings import Findings, find_all, find_merges
from evaluation.clean.labels import find_centers, nearest_others
from tests.evaluation.support import check_refusal, export_network, noise, png, write_embeddings
from tests.support.sets import assert_refused, contents, images_of, pack_set

WIDTH = 64
SIDE = 16
GIVEN = {"faces", "f.npy", "f.tsv"}
CLEAN = ["faces", "--features", "f.npy", "--workers", "1"]


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-9)


def people(counts: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows float32 [n, WIDTH] and the person of each; cosines of one person are near 0.8."""
    generator = np.random.default_rng(seed)
    owners = np.repeat(np.arange(len(counts)), counts)
    centers = generator.standard_normal((len(counts), WIDTH))
    rows = centers[owners] + 0.5 * generator.standard_normal((len(owners), WIDTH))
    return unit(rows).astype(np.float32), owners


def faces_of(rows: np.ndarray, labels: list[int] | np.ndarray) -> EmbeddedFaces:
    return EmbeddedFaces(
        rows, np.array(labels, np.int64), np.arange(len(rows)), int(max(labels)) + 1
    )


def centers_of(rows: np.ndarray, agree: float = 0.5) -> Any:
    return find_centers(faces_of(rows, [0] * len(rows)), agree=agree)


def find(rows: np.ndarray, labels: np.ndarray, **given: float) -> Findings:
    return find_all(faces_of(rows, labels), [], given)


def pairs_of(same: list[bool], images: str) -> VerificationSet:
    """A set in which equal letters are images of equal bytes."""
    return VerificationSet(Path("t.bin"), [letter.encode() for letter in images], np.array(same))


def test_planted_labels_are_found_in_classes_of_any_size() -> None:
    rows, owners = people([*[3] * 40, *[4] * 40, *[20] * 10, 200])
    labels = owners.copy()
    planted = np.arange(5, len(rows), 17)
    labels[planted] = (owners[planted] + 1 + planted % 89) % 91
    found = find(rows * 3, labels).wrong
    assert {one.image: one.other for one in found} == dict(zip(planted, owners[planted]))
    assert len(found) == len(planted)
    assert all(one.kind == "moved" and one.cosine > 0.5 > one.own for one in found)
    # The surest first.
    leads = [one.own - one.cosine for one in found]
    assert leads == sorted(leads)
    assert not find(rows, owners).wrong


def test_what_no_class_claims_is_junk_and_two_that_disagree_are_unsure() -> None:
    rows, labels = people([*[6] * 50, *[1] * 5])
    # People of one image, among others.
    labels[-5:] = np.arange(5)
    wrong = find(rows, labels).wrong
    assert {one.image: one.kind for one in wrong} == dict.fromkeys(range(300, 305), "junk")
    rows, labels = people([*[5] * 40, 1, 1, 1])
    # One of another class beside one that is alone, and two of which nothing says which is right.
    labels[3], labels[202] = labels[[200, 201]]
    found = {one.image: one.kind for one in find(rows, labels).wrong}
    assert found == {3: "moved", 201: "unsure", 202: "unsure"}


def test_a_class_in_which_all_are_claimed_keeps_the_one_that_is_claimed_least() -> None:
    rows, owners = people([*[5] * 40])
    # Both are people of other classes; the second is less sure.
    rows = np.concatenate([rows, rows[:1], rows[[6]] + 0.6 * rows[[11]]])
    found = find(rows, np.append(owners, [40, 40])).wrong
    assert [(one.image, one.other) for one in found] == [(200, 0)]


def test_a_center_is_not_drawn_to_wrong_images() -> None:
    rows, _ = people([5, 4], seed=3)
    centers = centers_of(rows)
    assert centers.in_core.tolist() == [True] * 5 + [False] * 4
    center = unit(rows[:5].sum(axis=0))
    np.testing.assert_allclose(centers.centers[0], center, rtol=1e-4, atol=1e-6)
    rest = unit(rows[1:5].sum(axis=0))
    np.testing.assert_allclose(centers.own[[0, 7]], [rows[0] @ rest, rows[7] @ center], atol=1e-5)
    # An image that is alone is not judged, and disagreement has no center.
    alone = faces_of(people([1] * 3)[0], [0, 1, 1])
    centers = find_centers(alone, agree=0.5)
    assert np.isnan(centers.own[0]) and centers.in_core.tolist() == [True, False, False]
    assert centers.centers.any(axis=1).tolist() == [True, False]


def test_large_classes_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = people([30, 9])
    whole = centers_of(rows)
    monkeypatch.setattr(module, "_LARGEST", 7)
    parts = centers_of(rows)
    np.testing.assert_array_equal(parts.in_core, whole.in_core)
    np.testing.assert_allclose(parts.own, whole.own, atol=1e-6)


def test_the_nearest_other_class_is_never_the_own_one() -> None:
    rows, owners = people([4] * 30)
    centers = np.stack([rows[owners == n].mean(axis=0) for n in range(30)])
    centers[11] = 0
    found, nearest = nearest_others(rows, owners, centers)
    cosines = rows @ unit(centers).T
    cosines[np.arange(120), owners] = cosines[:, 11] = -2
    assert found.tolist() == cosines.argmax(axis=1).tolist()
    np.testing.assert_allclose(nearest, cosines.max(axis=1), atol=1e-6)
    # There may be none.
    for left in (centers * 0, centers * (np.arange(30) == 1)[:, None]):
        found, nearest = nearest_others(rows[4:8], owners[4:8], left)
        assert set(found) == {-1} and set(nearest) == {-1}


def test_look_alikes_do_not_chain() -> None:
    """Each center is near to the next one, and no further."""
    angles = np.arange(8) * 0.4
    centers = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    merges = find_merges(centers, float(np.cos(0.5)))
    assert all(len(group) == 2 for group, _ in merges) and len(merges) <= 4
    merges = find_merges(centers, float(np.cos(0.9)))
    assert all(len(group) <= 3 for group, _ in merges)
    for group, cosine in merges:
        # That of the two which are furthest apart.
        assert cosine == pytest.approx(np.cos(0.4 * (group[-1] - group[0])), abs=1e-5)


def test_thresholds_say_how_often_they_are_reached_by_chance() -> None:
    rows, owners = people([1] * 800, seed=5)
    strangers, cosines = module.cosines_of_strangers(faces_of(rows, owners)), rows @ rows.T
    upper = cosines[np.triu_indices(800, 1)]
    for limit, far, error in zip(module.own_and_agree(strangers), (1e-2, 1e-3), (0.1, 0.5)):
        assert np.mean(upper > limit) == pytest.approx(far, rel=error)
    largest = (cosines - 2 * np.eye(800)).max(axis=1).astype(np.float32)
    limit = module.exceeded_by_chance(largest, 0.05)
    assert np.mean(largest > limit) == pytest.approx(0.05, abs=0.03)
    # People who are in the set twice hardly change it.
    largest[:80] = 0.95
    assert module.exceeded_by_chance(largest, 0.05) == pytest.approx(limit, abs=0.04)
    assert module.exceeded_by_chance(largest[:0], 0.05) == 1
    # Of other strangers, so many are near one of them.
    limits = find(rows, owners).limits
    nearest = (people([1] * 20_000, seed=6)[0] @ rows.T).max(axis=1)
    assert np.mean(nearest > limits["home"]) == pytest.approx(0.05, abs=0.03)
    assert np.mean(nearest > limits["overlap"]) == pytest.approx(5e-4, abs=4e-4)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_what_cannot_be_compared_is_refused(value: float) -> None:
    """The squares of 1e30 are no float32: such an embedding would be far from all others."""
    assert_refused("1 identities with images", find, np.ones((3, WIDTH), "f4"), np.zeros(3))
    rows, owners = people([4] * 20)
    spoiled = rows.copy()
    spoiled[7, 3] = value
    assert_refused("row 7 of the set is not finite", find, spoiled, owners)
    targets, faces = [(pairs_of([True] * 40, "x" * 80), spoiled)], faces_of(rows, owners)
    assert_refused("row 7 of t is not finite", find_all, faces, targets, {})


def image(number: int) -> bytes:
    return png(noise(number, SIDE))


@pytest.fixture
def faces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """A set in ``faces``, a verification set ``v.bin``, and their embeddings in ``f.npy``.

    Person 1 is two classes, 1 and 30; image 12 has the label of class 9; image 150 is of none.
    Returns the number of each image of the set, in its order; it is what the image is drawn from.
    """
    monkeypatch.chdir(tmp_path)
    rows, owners = people([*[5] * 30, 1])
    labels = owners.copy()
    labels[[8, 9]], labels[12], labels[150] = 30, 9, 8
    order = np.argsort(labels, kind="stable")
    pack_set(Path("faces"), map(image, order), labels[order].tolist())
    # Person 3 by a copy and another image of it, and two strangers.
    write_bin(Path("v.bin"), [image(17), image(500), image(501), image(502)], [True, False])
    Path("faces/holdout.bin").write_bytes(b"kept")
    names = [(f"faces/train.rec:{n + 1}", str(labels[m])) for n, m in enumerate(order)]
    shown = np.concatenate([rows[order], rows[[17, 16]], people([1, 1], seed=9)[0]])
    write_embeddings("f", shown, *names, *((f"v.bin:{n}", "") for n in range(4)))
    return order


def clean(words: str) -> None:
    command.main([*CLEAN, *words.split()])


def table(name: str, folder: Path = Path("cleaning")) -> list[list[str]]:
    return [line.split("\t") for line in (folder / name).read_text().splitlines()[1:]]


def test_only_the_report(faces: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(Path("faces"))
    clean("--verification v.bin --sheets 1")
    key = int(np.flatnonzero(faces == 12)[0]) + 1
    out = capsys.readouterr().out
    ((found, label, own, other, cosine),) = table("moved.tsv")
    assert (found, label, other) == (str(key), "9", "2") and float(own) < 0.4 < float(cosine)
    assert [line[1] for line in table("junk.tsv")] == ["8"] and not table("unsure.tsv")
    assert [line[:2] for line in table("merges.tsv")] == [["1 30", "5"]]
    assert [line[:3] for line in table("v-people.tsv")] == [["1", "3", "5"]]
    copies = [(original, *words) for original, _, *words in table("v-copies.tsv")]
    assert copies == [("1", "3", "1.0000", "no"), ("0", "3", "1.0000", "yes")]
    sheet = cv2.imread("cleaning/moved-1.png")
    assert sheet is not None and sheet.std() > 10
    assert 'src="./moved-1.png"' in Path("cleaning/report.html").read_text()
    lines = table("images.tsv")
    assert len(lines) == 151 and [line[3] for line in lines].count("") == 149
    assert [line[2] == "" for line in lines] == [line[3] != "" for line in lines]
    assert {*os.listdir()} == {*GIVEN, "v.bin", "cleaning"}
    assert contents(Path("faces")).items() >= before.items()
    assert "149 images of 31 identities" in out and " 0 are alone in" in out
    clean("--dry-run --out new")
    assert not Path("new").exists()


@pytest.mark.parametrize("name", ['javascript:a(1)"><script>x', "[a-z]*", "..", "\udcff\x1b"])
def test_the_name_of_a_set_is_neither_a_link_nor_a_path(faces: np.ndarray, name: str) -> None:
    found = f"{name}.bin"
    os.rename("v.bin", found)
    index = Path("f.tsv").read_bytes().replace(b"v.bin:", os.fsencode(f"{found}:"))
    Path("f.tsv").write_bytes(index)
    Path("cleaning").mkdir()
    kept = Path("cleaning/a-people-1.png")
    kept.write_bytes(b"")
    command.main([*CLEAN, "--verification", found, "--sheets", "1"])
    page = Path("cleaning/report.html").read_text()
    assert "default-src 'none'" in page and "<script" not in page and "\x1b" not in page
    links = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert len(links) > 8 and all(re.fullmatch(r"\./[\w.-]+", link) for link in links), links
    assert all((Path("cleaning") / link).is_file() for link in links) and kept.exists()
    assert {*os.listdir()} == {*GIVEN, found, "cleaning"}


def test_new_sets_without_wrong_labels_and_with_what_is_chosen(faces: np.ndarray) -> None:
    clean("--out new/set")
    out = {image(12), image(150)}
    kept = [one for one in images_of(RecordSet("faces")) if one[0] not in out]
    assert images_of(RecordSet("new/set")) == kept
    assert Path("new/set/property").read_text() == "31,16,16\n"
    assert Path("new/set/holdout.bin").read_bytes() == b"kept"
    check_refusal(command.main, [*CLEAN, "--out", "new/set"], "new/set exists already")
    clean("--out moved --no-drop --move --merge")
    label_of = dict(images_of(RecordSet("moved")))
    assert len(label_of) == 151 and max(label_of.values()) == 29
    for number, same in ((12, 10), (8, 5), (150, 40)):
        assert label_of[image(number)] == label_of[image(same)]
    clean("--out without --drop-overlap --verification v.bin --no-drop")
    label_of = dict(images_of(RecordSet("without")))
    assert len(label_of) == 146 and sorted(set(label_of.values())) == list(range(30))
    assert not {image(number) for number in range(15, 20)} & set(label_of)
    assert [line[3] for line in table("images.tsv")].count("overlap") == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--out faces", "--out /.*faces is, or lies in, .*choose another place"),
        ("--out link/new", "--out /.*/faces/new is, or lies in"),
        ("--out new --report new/report", "--report /.*new/report is, or lies in, .*/new; choose"),
        ("--model m,0", "name either a network, --model, or embeddings, --features"),
        ("--drop-overlap", "--drop-overlap needs verification sets"),
        ("--verification v:1.bin a/v?1.bin", "two sets are called 'v_1'"),
        ("--verification w.bin", "f.npy has no embeddings of w.bin, those of .*; embed it again"),
        ("--report v.bin/x", "v.bin/x cannot be written: .*with --report"),
        ("--own-cosine 1 --out new", "nothing of faces/train.rec is left"),
    ],
)
def test_mistakes_are_one_line(faces: np.ndarray, words: str, message: str) -> None:
    Path("link").symlink_to("faces")
    write_bin(Path("w.bin"), [image(1), image(2)], [True])
    before = {*os.listdir("faces")}
    check_refusal(command.main, [*CLEAN, *words.split()], message)
    assert not {"new", ".new.part"} & {*os.listdir()}
    assert {*os.listdir("faces")} - before <= {"train.idx.cache", "train.labels.cache"}


def test_what_cannot_be_copied_is_named(faces: np.ndarray) -> None:
    os.mkfifo("faces/pipe.bin")
    message = "faces/pipe.bin, of which the new set needs a copy: it is not a reg"
    check_refusal(command.main, [*CLEAN, "--out", "new"], message)
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rec:5\t0\n", "rec:5\t7\n"), (":151\t", ":999\t"), ("v.bin:2", "x.bin:2"),
        ("\n154\tv.bin:3\t\n", "\n154\tv.bin:3\t\n155\tfaces/train.rec:152\t8\n"),
    ],
)  # fmt: skip
def test_embeddings_of_another_version_are_refused(faces: np.ndarray, old: str, new: str) -> None:
    text = Path("f.tsv").read_text()
    Path("f.tsv").write_text(text.replace(old, new))
    if new.startswith("\n"):
        rows = np.load("f.npy")
        np.save("f.npy", np.concatenate([rows, rows[:1]]))
    words = [*CLEAN, "--verification", "v.bin"]
    check_refusal(command.main, words, "f.npy has no embeddings of .*, those of another version")


def test_a_network_embeds_the_set(faces: np.ndarray) -> None:
    """Untrained: what it finds is not looked at, but which images were embedded."""
    export_network(Path("m"), SIDE)
    record = Path("faces/train.rec").read_bytes()
    Path("faces/train.rec").write_bytes(record.replace(b"\x89PNG", b"junk", 1))
    words = f"faces --model m,0 --image-size {SIDE} {SIDE} --batch-size 16 --workers 1 --sheets 1"
    command.main(f"{words} --verification v.bin --out new --no-drop".split())
    assert np.load("cleaning/features.npy").shape == (150 + 4, 8)
    assert [line[3] for line in table("images.tsv")].count("unreadable") == 1
    assert images_of(RecordSet("new")) == images_of(RecordSet("faces"))[1:]


@pytest.mark.cleaning
@pytest.mark.timeout(3600)
def test_planted_labels_of_lfw(toolkit_data: Path, tmp_path: Path) -> None:
    """All of LFW; the people with one image are there, and nobody can say of whom they are."""
    with tarfile.open(toolkit_data / "lfw_112x112.tar.gz") as archive:
        archive.extractall(tmp_path / "lfw")
    paths = sorted((tmp_path / "lfw/lfw-112X112").glob("*/*"))
    labels = np.unique([path.parent.name for path in paths], return_inverse=True)[1]
    model = f"{toolkit_data}/mobilefacenet_y1/model,0"
    embed.main(["--model", model, "--out", str(tmp_path / "all"), *map(str, paths)])
    rows = np.load(tmp_path / "all.npy")
    assert len(labels) == len(rows) == 13_233
    for least, seed in product((2, 3), range(3)):
        # 5 % of the images of people with so many get the label of somebody else.
        generator = np.random.default_rng(seed)
        candidates, wrong = np.flatnonzero(np.bincount(labels)[labels] >= least), labels.copy()
        for number in generator.choice(candidates, round(0.05 * len(candidates)), replace=False):
            while wrong[number] == labels[number]:
                wrong[number] = generator.choice(labels.max() + 1)
        is_out = left_out(paths, rows, wrong, tmp_path / f"{least}-{seed}")
        planted = wrong != labels
        assert is_out[planted].mean() >= 0.95 and planted[is_out].mean() >= 0.9


def left_out(paths: list[Path], rows: np.ndarray, labels: np.ndarray, folder: Path) -> np.ndarray:
    order = np.argsort(labels, kind="stable")
    # A person of whom no label is left has no class.
    dense = np.unique(labels, return_inverse=True)[1]
    height, width, _ = decode_file(paths[0].read_bytes()).shape
    images = (paths[number].read_bytes() for number in order)
    pack_set(folder / "set", images, dense[order].tolist(), (height, width))
    names = (f"{folder}/set/train.rec:{n}" for n in range(1, len(order) + 1))
    write_embeddings(folder / "all", rows[order], *zip(names, map(str, dense[order].tolist())))
    words = f"{folder}/set --features {folder}/all.npy --report {folder}/report --sheets 1"
    command.main(words.split())
    is_out = np.zeros(len(labels), bool)
    is_out[order] = [line[2] == "" for line in table("images.tsv", folder / "report")]
    return is_out
