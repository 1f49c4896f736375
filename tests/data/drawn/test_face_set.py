from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data.decoding import decode_rgb
from data.drawn import face_set
from data.records.record_set import RecordSet
from data.verification.bin_file import read_bin
from runtime.errors import DataError

SMALL: dict[str, Any] = {
    "identities": 6, "images_per_identity": 4, "image_size": (24, 20), "seed": 3
}  # fmt: skip


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch) -> None:
    # Half as many pairs as in LFW; accuracies in the docs are measured on them.
    assert (face_set._VERIFICATION_IDENTITIES, face_set._VERIFICATION_IMAGES) == (100, 15)
    assert (face_set._VERIFICATION_PAIRS, face_set._FOLDS) == (3000, 10)
    monkeypatch.setattr(face_set, "_VERIFICATION_IDENTITIES", 5)
    monkeypatch.setattr(face_set, "_VERIFICATION_PAIRS", 40)


def ensure(root: Path, **changes: Any) -> RecordSet:
    return RecordSet(face_set.ensure(root, **{**SMALL, **changes}))


def images(records: RecordSet) -> list[bytes]:
    return [bytes(records.image(index)[0]) for index in range(len(records))]


def test_the_set_is_in_the_real_format_and_made_once(tmp_path: Path) -> None:
    root = tmp_path / "a" / "synthetic"
    records = ensure(root)
    assert (len(records), records.num_classes, records.image_size) == (24, 6, (24, 20))
    assert np.bincount(records.labels()).tolist() == [4] * 6
    assert decode_rgb(records.image(23)[0]).shape == (24, 20, 3)
    target = read_bin(root / "unseen.bin")
    assert (target.name, len(target), target.same.sum()) == ("unseen", 80, 20)
    drawn = face_set.draw_identity(5, images=4, image_size=(24, 20), seed=3)
    assert drawn == images(records)[20:]
    assert decode_rgb(face_set.draw_identity(5, images=1)[0]).shape == (112, 112, 3)
    # What readers of the set write does not matter.
    before = {path: path.stat().st_mtime_ns for path in root.iterdir()}
    assert {root / "train.idx.cache", root / "train.labels.cache"} <= {*before}
    ensure(root)
    assert before == {path: path.stat().st_mtime_ns for path in root.iterdir()}


def test_the_seed_decides_and_another_choice_makes_the_set_anew(
    tmp_path: Path, monkeypatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first = images(ensure(one))
    with monkeypatch.context() as patch:
        # Several processes draw what one draws.
        patch.setattr(face_set, "_WORTH_A_PROCESS", 1)
        patch.setattr("runtime.processors.available", lambda: 3)
        assert first == images(ensure(two))
    shown = read_bin(one / "unseen.bin").images
    assert shown == read_bin(two / "unseen.bin").images
    # The people of the verification are those that follow the trained ones.
    later = images(ensure(two, identities=11))[24:]
    assert {*shown}.isdisjoint(first) and len({*shown} & {*later}) > 10
    assert all(a != b for a, b in zip(first, images(ensure(one, seed=4))))
    description = json.loads((one / "synthetic.json").read_text())
    made = (one / "train.rec").stat().st_mtime_ns
    for changes, is_kept in (({}, True), ({"version": 1}, False)):
        (one / "synthetic.json").write_text(json.dumps({**description, **changes}))
        ensure(one, seed=4)
        assert ((one / "train.rec").stat().st_mtime_ns == made) == is_kept
    (one / "synthetic.json").write_text("{}")
    with pytest.raises(DataError, match="property is not part of a synthetic set"):
        ensure(one)


def test_a_process_that_is_killed_is_one_line(tmp_path: Path, monkeypatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -KILL $$\n")
    program.chmod(0o755)
    monkeypatch.setattr("runtime.processors.available", lambda: 3)
    monkeypatch.setattr(face_set, "_WORTH_A_PROCESS", 1)
    monkeypatch.setattr("sys.executable", str(program))
    with pytest.raises(DataError, match="that draws images has ended with status -9 "):
        ensure(tmp_path / "faces")
    assert not (tmp_path / "faces").exists()


def test_hosts_that_race_without_locks_make_one_set(tmp_path: Path, monkeypatch) -> None:
    """On a network file system whose locks hold for one host alone."""
    root, write = tmp_path / "synthetic", face_set._write_verification
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    made = {}

    def be_overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(face_set, "_write_verification", write)
        with monkeypatch.context() as patch:
            patch.setattr(os, "uname", lambda: SimpleNamespace(nodename="other"))
            face_set.ensure(root, **SMALL)
        made.update({path: path.stat().st_ino for path in root.iterdir()})
        write(*arguments)

    monkeypatch.setattr(face_set, "_write_verification", be_overtaken)
    face_set.ensure(root, **SMALL)
    assert len(made) == 5 and made == {path: path.stat().st_ino for path in root.iterdir()}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".synthetic.lock", "synthetic"]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["photos/me.jpg", "train.rec", "link"])
def test_other_files_in_the_folder_of_a_set_are_not_touched(name: str, tmp_path: Path) -> None:
    """If another set is asked for; if the set itself is asked for, they do not matter."""
    root, mine = tmp_path / "synthetic", tmp_path / "mine"
    ensure(root)
    for path in (root / name, mine / "thesis.txt"):
        path.parent.mkdir(exist_ok=True)
        if path.name == "link":
            path.symlink_to(tmp_path)
        else:
            path.write_text("years of work")
    before = content(root), content(mine)
    face_set.ensure(root, **SMALL)
    with pytest.raises(DataError, match=f"{name.split('/')[0]} is not part of a synthetic set"):
        ensure(root, seed=4)
    with pytest.raises(DataError, match="mine exists and is no synthetic set"):
        ensure(mine)
    with pytest.raises(DataError, match="cannot be made"):
        ensure(mine / "thesis.txt" / "synthetic")
    # By a link under the name of the folder in which the set is drawn, or of its lock.
    partial = tmp_path / f".new.{os.uname().nodename}.part"
    for link, target in ((partial, "mine"), (tmp_path / ".new.lock", "mine/thesis.txt")):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(DataError, match="cannot be made in"):
            ensure(tmp_path / "new")
        link.unlink()
    assert (content(root), content(mine)) == before
    assert not [*tmp_path.glob(".*.part")]


@pytest.mark.parametrize(
    ("step", "words"),
    [("_write_verification", "thesis.txt is not part of"), ("_remove_set", "not empty")],
)
def test_files_that_come_while_another_set_is_drawn_stay(
    tmp_path: Path, monkeypatch, step: str, words: str
) -> None:
    root, do_step = tmp_path / "synthetic", getattr(face_set, step)
    ensure(root)

    def write_thesis(*arguments: Any) -> None:
        (root / "thesis.txt").write_text("years of work")
        do_step(*arguments)

    monkeypatch.setattr(face_set, step, write_thesis)
    with pytest.raises(DataError, match=words):
        ensure(root, seed=4)
    assert (root / "thesis.txt").read_text() == "years of work"


def test_an_empty_folder_is_filled_through_a_link_after_an_interruption(
    tmp_path: Path, monkeypatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "large disk").mkdir()
    (tmp_path / "synthetic").symlink_to(tmp_path / "large disk")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(face_set, "_write_verification", interrupt)
        ensure(tmp_path / "synthetic")
    assert not [*(tmp_path / "large disk").iterdir()] and len([*tmp_path.iterdir()]) == 3
    ensure(tmp_path / "synthetic")
    assert (tmp_path / "synthetic").is_symlink()
    assert len(RecordSet(tmp_path / "large disk")) == 24
