from __future__ import annotations

import os
import re
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.decoding import decode_file
from data.records.record_set import RecordSet
from data.records.writer import RecordWriter
from data.verification.bin_file import write_bin
from evaluation.clean import __main__ as command
from evaluation.embed import __main__ as embed
from tests.evaluation.clean.test_findings import people
from tests.evaluation.support import check_refusal, export_network, noise, png, write_embeddings

SIDE = 16
GIVEN = {"faces", "f.npy", "f.tsv"}
CLEAN = ["faces", "--features", "f.npy", "--workers", "1"]


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
    with RecordWriter(Path("faces"), image_size=(SIDE, SIDE)) as writer:
        for number in order.tolist():
            writer.write(image(number), int(labels[number]))
    # Person 3 by a copy and another image of it, and two strangers.
    write_bin(Path("v.bin"), [image(17), image(500), image(501), image(502)], [True, False])
    Path("faces/holdout.bin").write_bytes(b"kept")
    names = [(f"faces/train.rec:{n + 1}", str(labels[m])) for n, m in enumerate(order)]
    shown = np.concatenate([rows[order], rows[[17, 16]], people([1, 1], seed=9)[0]])
    write_embeddings("f", shown, *names, *((f"v.bin:{n}", "") for n in range(4)))
    return order


def clean(words: str) -> None:
    command.main([*CLEAN, *words.split()])


def contents(path: str) -> list[tuple[bytes, int]]:
    records = RecordSet(path)
    return [(bytes(payload), label) for payload, label in map(records.image, range(len(records)))]


def table(name: str, folder: Path = Path("cleaning")) -> list[list[str]]:
    return [line.split("\t") for line in (folder / name).read_text().splitlines()[1:]]


def entries(folder: str = ".") -> set[str]:
    return set(os.listdir(folder))


def test_only_the_report(faces: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in Path("faces").iterdir()}
    clean("--verification v.bin --sheets 1")
    key = int(np.flatnonzero(faces == 12)[0]) + 1
    out = capsys.readouterr().out
    ((found, label, own, other, cosine),) = table("moved.tsv")
    assert (found, label, other) == (str(key), "9", "2") and float(own) < 0.4 < float(cosine)
    assert [line[1] for line in table("junk.tsv")] == ["8"] and not table("unsure.tsv")
    assert [line[:3] for line in table("merges.tsv")] == [["0", "1", "3"], ["0", "30", "2"]]
    assert [line[:3] for line in table("v-people.tsv")] == [["0", "3", "5"]]
    copies = [(original, *words) for original, _, *words in table("v-copies.tsv")]
    assert copies == [("0", "3", "1.0000", "yes"), ("1", "3", "1.0000", "no")]
    sheet = cv2.imread("cleaning/moved-1.png")
    assert sheet is not None and sheet.std() > 10
    assert 'src="./moved-1.png"' in Path("cleaning/report.html").read_text()
    lines = table("images.tsv")
    assert len(lines) == 151 and [line[3] for line in lines].count("") == 149
    assert entries() == {*GIVEN, "v.bin", "cleaning"}
    assert {path: path.read_bytes() for path in before} == before
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
    assert entries() == {*GIVEN, found, "cleaning"}


def test_a_new_set_without_wrong_labels(faces: np.ndarray) -> None:
    clean("--out new/set")
    out = {image(12), image(150)}
    assert contents("new/set") == [one for one in contents("faces") if one[0] not in out]
    assert Path("new/set/property").read_text() == "31,16,16\n"
    assert Path("new/set/holdout.bin").read_bytes() == b"kept"
    check_refusal(command.main, [*CLEAN, "--out", "new/set"], "new/set exists already")


def test_what_is_done_is_chosen(faces: np.ndarray) -> None:
    clean("--out moved --no-drop --move --merge")
    label_of = dict(contents("moved"))
    assert len(label_of) == 151 and max(label_of.values()) == 29
    for number, same in ((12, 10), (8, 5), (150, 40)):
        assert label_of[image(number)] == label_of[image(same)]
    clean("--out without --drop-overlap --verification v.bin --no-drop")
    label_of = dict(contents("without"))
    assert len(label_of) == 146 and sorted(set(label_of.values())) == list(range(30))
    assert not {image(number) for number in range(15, 20)} & set(label_of)
    assert [line[3] for line in table("images.tsv")].count("overlap") == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--out faces", "--out faces is, or lies in, .*choose another place"),
        ("--out link/new", "--out link/new is, or lies in"),
        ("--out new --report new/report", "--report new/report lies in --out new"),
        ("--model m,0", "name either a network, --model, or embeddings, --features"),
        ("--own-cosine 2", "--own-cosine 2 is no cosine"),
        ("--drop-overlap", "--drop-overlap needs verification sets"),
        ("--verification gone.bin", "gone.bin cannot be read"),
        ("--verification v:1.bin a/v?1.bin", r"v:1.bin and a/v\?1.bin would have the same"),
        ("--verification w.bin", "f.npy has no embeddings of w.bin; embed it again"),
        ("--report v.bin/x", "v.bin/x cannot be written: .*with --report"),
        ("--own-cosine 1 --out new", "nothing of faces/train.rec is left"),
    ],
)
def test_mistakes_are_one_line(faces: np.ndarray, words: str, message: str) -> None:
    Path("link").symlink_to("faces")
    write_bin(Path("w.bin"), [image(1), image(2)], [True])
    before = entries("faces")
    check_refusal(command.main, [*CLEAN, *words.split()], message)
    assert not {"new", ".new.part"} & entries()
    assert entries("faces") - before <= {"train.idx.cache", "train.labels.cache"}


def test_what_cannot_be_read_or_written_is_named(faces: np.ndarray) -> None:
    os.mkfifo("faces/pipe.bin")
    words = [*CLEAN, "--out", "new"]
    check_refusal(command.main, words, "faces/pipe.bin cannot be read: .*; the new set needs")
    Path("cleaning/images.tsv").unlink()
    Path("cleaning/images.tsv").mkdir()
    check_refusal(command.main, words, "cleaning/images.tsv cannot be written: .*--report")
    assert not Path("new").exists()
    # The report does not replace the index.
    for ending in (".npy", ".tsv"):
        Path(f"f{ending}").rename(f"images{ending}")
    words = ["faces", "--features", "images.npy", "--report", "."]
    check_refusal(command.main, words, "images.tsv would replace what this command reads")


@pytest.mark.parametrize(
    ("old", "new"), [("rec:5\t0\n", "rec:5\t7\n"), (":151\t", ":999\t"), ("v.bin:2", "x.bin:2")]
)
def test_embeddings_of_another_version_are_refused(faces: np.ndarray, old: str, new: str) -> None:
    """With another label, key or name."""
    text = Path("f.tsv").read_text()
    assert old in text
    Path("f.tsv").write_text(text.replace(old, new))
    words = [*CLEAN, "--verification", "v.bin"]
    check_refusal(command.main, words, "f.npy has embeddings of another version of")


def test_a_network_embeds_the_set(faces: np.ndarray) -> None:
    """Untrained: what it finds is not looked at, but which images were embedded."""
    export_network(Path("m"), SIDE)
    with open("faces/train.rec", "r+b") as file:
        file.seek(file.read().index(b"\x89PNG"))
        file.write(b"junk")
    words = f"faces --model m,0 --image-size {SIDE} {SIDE} --batch-size 16 --workers 1 --sheets 1"
    command.main(f"{words} --verification v.bin --out new --no-drop".split())
    assert np.load("cleaning/features.npy").shape == (150 + 4, 8)
    assert [line[3] for line in table("images.tsv")].count("unreadable") == 1
    assert contents("new") == contents("faces")[1:]


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
    for least in (2, 3):
        for seed in range(3):
            wrong = plant(labels, least, seed)
            is_out = find_planted(paths, rows, wrong, tmp_path / f"{least}-{seed}")
            planted = wrong != labels
            assert is_out[planted].mean() >= 0.95 and planted[is_out].mean() >= 0.9


def plant(labels: np.ndarray, least: int, seed: int) -> np.ndarray:
    """Give 5 % of the images of people with so many images the label of somebody else."""
    generator = np.random.default_rng(seed)
    candidates = np.flatnonzero(np.bincount(labels)[labels] >= least)
    planted = labels.copy()
    for number in generator.choice(candidates, round(0.05 * len(candidates)), replace=False):
        while planted[number] == labels[number]:
            planted[number] = generator.choice(labels.max() + 1)
    return planted


def find_planted(
    paths: list[Path], rows: np.ndarray, labels: np.ndarray, folder: Path
) -> np.ndarray:
    """Return which images the command leaves out of a set with these labels."""
    order = np.argsort(labels, kind="stable")
    # A person of whom no label is left has no class.
    dense = np.unique(labels, return_inverse=True)[1]
    height, width, _ = decode_file(paths[0].read_bytes()).shape
    with RecordWriter(folder / "set", image_size=(height, width)) as writer:
        for number in order.tolist():
            writer.write(paths[number].read_bytes(), int(dense[number]))
    names = (f"{folder}/set/train.rec:{n}" for n in range(1, len(order) + 1))
    write_embeddings(folder / "all", rows[order], *zip(names, map(str, dense[order].tolist())))
    words = f"{folder}/set --features {folder}/all.npy --report {folder}/report --sheets 1"
    command.main(words.split())
    is_out = np.zeros(len(labels), bool)
    is_out[order] = [line[2] == "" for line in table("images.tsv", folder / "report")]
    return is_out
