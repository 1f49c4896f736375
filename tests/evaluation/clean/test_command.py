from __future__ import annotations

import os
import re
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
from evaluation.embed.index import write_index
from runtime.errors import ConfigError, DataError
from tests.evaluation.clean.test_findings import people
from tests.evaluation.untrained import export_network

SIDE = 16
# Person 1 is two classes, 1 and 30; image 12 has the label of class 9; image 40 is of none.
COUNTS = [5] * 30
GIVEN = {"faces", "f.npy", "f.tsv"}


def image(number: int) -> bytes:
    rgb = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    return cv2.imencode(".png", rgb)[1].tobytes()


@pytest.fixture
def faces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """A set in ``faces``, a verification set ``v.bin``, and their embeddings in ``f.npy``.

    Returns the number of each image of the set, in its order; it is what the image is drawn from.
    """
    monkeypatch.chdir(tmp_path)
    rows, owners = people([*COUNTS, 1])
    labels = owners.copy()
    labels[[8, 9]], labels[12], labels[150] = 30, 9, 8
    order = np.argsort(labels, kind="stable")
    with RecordWriter(Path("faces"), image_size=(SIDE, SIDE)) as writer:
        for number in order:
            writer.write(image(int(number)), int(labels[number]))
    # Person 3 by a copy and another image of it, and two strangers.
    strangers = people([1, 1], seed=9)[0]
    shown = [image(17), image(500), image(501), image(502)]
    write_bin(Path("v.bin"), shown, [True, False])
    (Path("faces") / "holdout.bin").write_bytes(b"kept")
    np.save("f.npy", np.concatenate([rows[order], rows[[17, 16]], strangers]))
    names = [(f"faces/train.rec:{n + 1}", str(labels[m])) for n, m in enumerate(order)]
    with open("f.tsv", "wb") as file:
        write_index(file, [*names, *((f"v.bin:{n}", "") for n in range(4))])
    return order


def clean(*words: str) -> None:
    command.main(["faces", "--features", "f.npy", "--workers", "1", *words])


def contents(path: str) -> list[tuple[bytes, int]]:
    records = RecordSet(path)
    return [(bytes(payload), label) for payload, label in map(records.image, range(len(records)))]


def table(name: str) -> list[list[str]]:
    lines = (Path("cleaning") / name).read_text().splitlines()
    return [line.split("\t") for line in lines[1:]]


def test_only_the_report(faces: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in Path("faces").iterdir()}
    clean("--verification", "v.bin", "--sheets", "1")
    key = int(np.flatnonzero(faces == 12)[0]) + 1
    out = capsys.readouterr().out
    ((found, label, own, other, cosine),) = table("moved.tsv")
    assert (found, label, other) == (str(key), "9", "2") and float(own) < 0.4 < float(cosine)
    assert [line[1] for line in table("junk.tsv")] == ["8"] and not table("unsure.tsv")
    assert [line[:3] for line in table("merges.tsv")] == [["0", "1", "3"], ["0", "30", "2"]]
    ((person, label, images, _),) = table("v-people.tsv")
    assert (person, label, images) == ("0", "3", "5")
    copies = [(original, *words) for original, _, *words in table("v-copies.tsv")]
    assert copies == [("0", "3", "1.0000", "yes"), ("1", "3", "1.0000", "no")]
    sheet = cv2.imread("cleaning/moved-1.png")
    assert sheet is not None and sheet.std() > 10
    assert 'src="./moved-1.png"' in Path("cleaning/report.html").read_text()
    lines = table("images.tsv")
    assert len(lines) == 151 and [line[3] for line in lines].count("") == 149
    assert {path.name for path in Path().iterdir()} == {*GIVEN, "v.bin", "cleaning"}
    assert {path: path.read_bytes() for path in before} == before
    assert "149 images of 31 identities" in out and " 0 are alone in" in out
    clean("--dry-run", "--out", "new")
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
    clean("--verification", found, "--sheets", "1")
    page = Path("cleaning/report.html").read_text()
    assert "default-src 'none'" in page and "<script" not in page and "\x1b" not in page
    links = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert len(links) > 8 and all(re.fullmatch(r"\./[\w.-]+", link) for link in links), links
    assert all((Path("cleaning") / link).is_file() for link in links) and kept.exists()
    assert {path.name for path in Path().iterdir()} == {*GIVEN, found, "cleaning"}


def test_a_new_set_without_wrong_labels(faces: np.ndarray) -> None:
    clean("--out", "new/set")
    old, new = contents("faces"), contents("new/set")
    out = {image(12), image(150)}
    assert new == [(payload, label) for payload, label in old if payload not in out]
    assert (Path("new/set") / "property").read_text() == "31,16,16\n"
    assert Path("new/set/holdout.bin").read_bytes() == b"kept"
    with pytest.raises(ConfigError, match="new/set exists already"):
        clean("--out", "new/set")


def test_what_is_done_is_chosen(faces: np.ndarray) -> None:
    clean("--out", "moved", "--no-drop", "--move", "--merge")
    label_of = dict(contents("moved"))
    assert len(label_of) == 151 and max(label_of.values()) == 29
    for number, same in ((12, 10), (8, 5), (150, 40)):
        assert label_of[image(number)] == label_of[image(same)]
    clean("--out", "without", "--drop-overlap", "--verification", "v.bin", "--no-drop")
    label_of = dict(contents("without"))
    assert len(label_of) == 146 and sorted(set(label_of.values())) == list(range(30))
    assert not {image(number) for number in range(15, 20)} & set(label_of)
    assert [line[3] for line in table("images.tsv")].count("overlap") == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "faces"], "--out faces is, or lies in, .*choose another place"),
        (["--out", "link/new"], "--out link/new is, or lies in"),
        (["--out", "new", "--report", "new/report"], "--report new/report lies in --out new"),
        (["--model", "m,0"], "name either a network, --model, or embeddings, --features"),
        (["--own-cosine", "2"], "--own-cosine 2 is no cosine"),
        (["--drop-overlap"], "--drop-overlap needs verification sets"),
        (["--verification", "gone.bin"], "gone.bin cannot be read"),
        (["--verification", "v 1.bin", "a/v:1.bin"], "v 1.bin and a/v:1.bin would have the same"),
        (["--verification", "w.bin"], "f.npy has no embeddings of w.bin; embed it again"),
        (["--own-cosine", "1", "--out", "new"], "nothing of faces/train.rec is left"),
    ],
)
def test_mistakes_are_one_line(faces: np.ndarray, words: list[str], message: str) -> None:
    Path("link").symlink_to("faces")
    write_bin(Path("w.bin"), [image(1), image(2)], [True])
    before = {path.name for path in Path("faces").iterdir()}
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        clean(*words)
    assert "\n" not in str(caught.value)
    assert not Path("new").exists() and not Path(".new.part").exists()
    found = {path.name for path in Path("faces").iterdir()}
    assert found - before <= {"train.idx.cache", "train.labels.cache"}


def test_what_cannot_be_read_or_written_is_named(faces: np.ndarray) -> None:
    os.mkfifo("faces/pipe.bin")
    with pytest.raises(DataError, match="faces/pipe.bin cannot be read: .*; the new set needs"):
        clean("--out", "new")
    Path("cleaning/images.tsv").unlink()
    Path("cleaning/images.tsv").mkdir()
    with pytest.raises(DataError, match="cleaning/images.tsv cannot be written: .*--report"):
        clean("--out", "new")
    assert not Path("new").exists()
    # The report does not replace the index.
    for ending in (".npy", ".tsv"):
        Path(f"f{ending}").rename(f"images{ending}")
    with pytest.raises(ConfigError, match="images.tsv would replace what this command reads"):
        command.main(["faces", "--features", "images.npy", "--report", "."])


@pytest.mark.parametrize(
    ("old", "new"), [("rec:5\t0\n", "rec:5\t7\n"), (":151\t", ":999\t"), ("v.bin:2", "x.bin:2")]
)
def test_embeddings_of_another_version_are_refused(faces: np.ndarray, old: str, new: str) -> None:
    """With another label, key or name."""
    text = Path("f.tsv").read_text()
    assert old in text
    Path("f.tsv").write_text(text.replace(old, new))
    with pytest.raises(DataError, match="f.npy has embeddings of another version of"):
        clean("--verification", "v.bin")


def test_a_network_embeds_the_set(faces: np.ndarray) -> None:
    """Untrained: what it finds is not looked at, but which images were embedded."""
    export_network(Path("m"), SIDE)
    words = ["--image-size", str(SIDE), str(SIDE), "--batch-size", "16", "--workers", "1"]
    words += ["--model", "m,0", "--verification", "v.bin", "--sheets", "1"]
    with open("faces/train.rec", "r+b") as file:
        content = file.read()
        file.seek(content.index(b"\x89PNG"))
        file.write(b"junk")
    command.main(["faces", *words, "--out", "new", "--no-drop"])
    assert np.load("cleaning/features.npy").shape == (150 + 4, 8)
    assert [line[3] for line in table("images.tsv")].count("unreadable") == 1
    assert contents("new") == contents("faces")[1:]


@pytest.mark.cleaning
@pytest.mark.timeout(3600)
def test_planted_labels_of_lfw(lfw_folder: Path, toolkit_data: Path, tmp_path: Path) -> None:
    """All of LFW; the people with one image are there, and nobody can say of whom they are."""
    folders = sorted(path for path in lfw_folder.iterdir() if path.is_dir())
    paths = [path for folder in folders for path in sorted(folder.iterdir())]
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
    np.save(folder / "all.npy", rows[order])
    with open(folder / "all.tsv", "wb") as file:
        names = (f"{folder}/set/train.rec:{n}" for n in range(1, len(order) + 1))
        write_index(file, zip(names, map(str, dense[order].tolist())))
    words = ["--features", str(folder / "all.npy"), "--report", str(folder / "report")]
    command.main([str(folder / "set"), *words, "--sheets", "1"])
    lines = (folder / "report/images.tsv").read_text().splitlines()[1:]
    is_out = np.zeros(len(labels), bool)
    is_out[order] = [line.split("\t")[2] == "" for line in lines]
    return is_out
