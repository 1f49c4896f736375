from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data.pack import find_identities, main, split_holdout
from data.records import RecordSet
from data.verification_sets import read_bin
from runtime.errors import ConfigError, DataError


@pytest.fixture
def people(tmp_path: Path, make_image) -> Path:
    """Ten folders p0 … p9 with 2 + i images; the green value is not needed, red is the person."""
    for person in range(10):
        folder = tmp_path / "people" / f"p{person}"
        folder.mkdir(parents=True)
        for image in range(2 + person):
            (folder / f"p{person}_{image + 1:04d}.png").write_bytes(make_image(person * 20 + image))
    (tmp_path / "people" / "notes.txt").write_text("not a person")
    (tmp_path / "people" / "p0" / "notes.txt").write_text("not an image")
    return tmp_path / "people"


def pack(monkeypatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["pack", *map(str, arguments)])
    main()


def test_a_folder_becomes_a_set(monkeypatch, capsys, people: Path, tmp_path: Path) -> None:
    pack(monkeypatch, people, tmp_path / "out")
    records = RecordSet(tmp_path / "out")
    assert (len(records), records.num_classes, records.image_size) == (65, 10, (16, 16))
    assert records.image_counts().tolist() == list(range(2, 12))
    files = sorted(people.glob("*/*.png"))
    for i, file in enumerate(files):
        assert bytes(records.read(i).payload) == file.read_bytes()
        assert records.read(i).label == int(file.parent.name[1:])
    assert "10 identities, 65 images of 16 x 16" in capsys.readouterr().out


def test_held_out_people_are_in_the_pairs_only(monkeypatch, people: Path, tmp_path: Path) -> None:
    options = ["--min-images", 4, "--holdout-every", 3, "--holdout-pairs", 40, "--folds", 2]
    pack(monkeypatch, people, tmp_path / "out", *options)
    # p2 … p9 remain; every third of them is held out.
    records = RecordSet(tmp_path / "out")
    target = read_bin(tmp_path / "out" / "holdout.bin")
    reds = target.decode(0, len(target), (16, 16))[:, 0, 0, 0]
    trained = [2, 3, 5, 6, 8, 9]
    assert records.image_counts().tolist() == [2 + person for person in trained]
    assert set(reds // 20) == {4, 7}
    assert len(target.same) == 40 and target.same.sum() == 20
    assert ((reds[::2] // 20 == reds[1::2] // 20) == target.same).all()
    assert (reds[::2] != reds[1::2]).all()
    pack(monkeypatch, people, tmp_path / "again", *options)
    assert read_bin(tmp_path / "again" / "holdout.bin").images == target.images
    pack(monkeypatch, people, tmp_path / "other", *options, "--seed", 1)
    assert read_bin(tmp_path / "other" / "holdout.bin").images != target.images


def test_pairs_become_a_verification_set(monkeypatch, people: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text("1 1\np3 1 2\np0 1 p1 3\n")
    pack(monkeypatch, "--pairs", tmp_path / "pairs.txt", people, tmp_path / "set.bin")
    target = read_bin(tmp_path / "set.bin")
    assert target.same.tolist() == [True, False]
    assert target.decode(0, 4, (16, 16))[:, 0, 0, 0].tolist() == [60, 61, 0, 22]


def test_images_of_two_sizes_are_refused(monkeypatch, people, tmp_path, make_image) -> None:
    (people / "p5" / "p5_0003.png").write_bytes(make_image(1, (16, 20)))
    with pytest.raises(DataError, match=r"p5_0003\.png has 16 x 20 pixels, .* 16 x 16"):
        pack(monkeypatch, people, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_a_broken_image_is_named(monkeypatch, people: Path, tmp_path: Path) -> None:
    (people / "p5" / "p5_0003.png").write_bytes(b"junk")
    with pytest.raises(DataError, match=r"p5_0003\.png: the image cannot be decoded"):
        pack(monkeypatch, people, tmp_path / "out")


def test_every_kth_identity_is_held_out(people: Path) -> None:
    training, held_out = split_holdout(find_identities(people), 5)
    assert [identity.name for identity in held_out] == ["p4", "p9"]
    assert [identity.name for identity in training] == [f"p{i}" for i in (0, 1, 2, 3, 5, 6, 7, 8)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "out"], "nowhere is no folder"),
        (["people/p0", "out"], "none of its 0 folders"),
        (["people", "out", "--min-images", "99"], "none of its 10 folders holds 99"),
        (["people", "out", "--holdout-every", "1"], "leaves nothing to train on"),
        (["people", "out", "--holdout-every", "11"], "only 0 pairs of the same"),
        (["people", "out", "--holdout-every", "5"], "only 70 pairs of the same identity"),
        (["people", "out", "--min-images", "0"], "--min-images 0 is not positive"),
        (["people", "out", "--seed", "-1"], "--seed -1 is negative"),
        (["people", "out", "--frob"], "unrecognized arguments: --frob"),
        (["--pairs", "p.txt", "people", "out", "--min-images", "3"], "leave the other options out"),
        (["--pairs", "nowhere.txt", "people", "out"], "nowhere.txt cannot be read"),
    ],
)
def test_mistakes_are_one_line(monkeypatch, people, tmp_path, arguments, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        pack(monkeypatch, *arguments)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_mistake_ends_the_program_with_status_2(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "data.pack", str(tmp_path / "nowhere"), str(tmp_path / "out")]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


def test_lfw(monkeypatch, toolkit_data: Path, lfw_folder: Path, tmp_path: Path) -> None:
    pack(monkeypatch, lfw_folder, tmp_path / "out", "--min-images", 10, "--holdout-every", 5)
    records = RecordSet(tmp_path / "out")
    assert (records.num_classes, records.image_size) == (127, (112, 112))
    assert records.image_counts().min() >= 10
    held_out = read_bin(tmp_path / "out" / "holdout.bin")
    assert len(held_out) == 6000 and held_out.same.sum() == 1500
    trained = {bytes(records.read(i).payload) for i in range(len(records))}
    assert trained.isdisjoint(held_out.images)

    pack(monkeypatch, "--pairs", toolkit_data / "lfw_pairs.txt", lfw_folder, tmp_path / "lfw.bin")
    target = read_bin(tmp_path / "lfw.bin")
    assert len(target.same) == 6000
    assert np.add.reduceat(target.same, range(0, 6000, 600)).tolist() == [300] * 10
