from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import time
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
    return [bytes(records.read(index).payload) for index in range(len(records))]


def test_the_set_is_in_the_real_format_and_made_once(tmp_path: Path) -> None:
    root = tmp_path / "a" / "synthetic"
    records = ensure(root)
    assert (len(records), records.num_classes, records.image_size) == (24, 6, (24, 20))
    assert np.bincount(records.labels()).tolist() == [4] * 6
    assert decode_rgb(records.read(23).payload).shape == (24, 20, 3)
    target = read_bin(root / "unseen.bin")
    assert (target.name, len(target), target.same.sum()) == ("unseen", 80, 20)
    drawn = face_set.draw_identity(5, images=4, image_size=(24, 20), seed=3)
    assert drawn == images(records)[20:]
    assert decode_rgb(face_set.draw_identity(5, images=1)[0]).shape == (112, 112, 3)
    before = {path: path.stat().st_mtime_ns for path in root.iterdir()}
    ensure(root)
    assert before == {path: path.stat().st_mtime_ns for path in root.iterdir()}


def test_the_seed_decides_and_another_choice_makes_the_set_anew(tmp_path: Path) -> None:
    first = images(ensure(tmp_path / "one"))
    assert first == images(ensure(tmp_path / "two"))
    # The people of the verification are those that follow the trained ones.
    shown = set(read_bin(tmp_path / "one" / "unseen.bin").images)
    later = images(ensure(tmp_path / "two", identities=11))[24:]
    assert shown.isdisjoint(first) and len(shown & {*later}) > 10
    other = images(ensure(tmp_path / "one", seed=4))
    assert all(a != b for a, b in zip(first, other))
    assert len(ensure(tmp_path / "one", identities=7)) == 28


def test_several_processes_draw_what_one_draws(tmp_path: Path, monkeypatch) -> None:
    alone = images(ensure(tmp_path / "alone"))
    monkeypatch.setattr(face_set, "_WORTH_A_PROCESS", 1)
    monkeypatch.setattr("runtime.processors.available", lambda: 3)
    assert alone == images(ensure(tmp_path / "together"))
    first = read_bin(tmp_path / "alone" / "unseen.bin")
    assert first.images == read_bin(tmp_path / "together" / "unseen.bin").images


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


@pytest.mark.thorough
def test_processes_that_race_make_one_set(tmp_path: Path) -> None:
    root = tmp_path / "synthetic"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=face_set.ensure, args=(root,), kwargs=SMALL) for _ in "123"]
    for process in processes:
        process.start()
    while not root.exists():
        assert any(process.is_alive() for process in processes)
        time.sleep(0.01)
    # Whoever sees the folder sees a complete set.
    assert len(RecordSet(root)) == 24 and read_bin(root / "unseen.bin").images
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [".synthetic.lock", "synthetic"]


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
    root = tmp_path / "synthetic"
    ensure(root)
    (tmp_path / "mine").mkdir()
    for path in (root / name, tmp_path / "mine" / "thesis.txt"):
        path.parent.mkdir(exist_ok=True)
        if name == "link" and path == root / name:
            path.symlink_to(tmp_path)
        else:
            path.write_text("years of work")
    before = content(root), content(tmp_path / "mine")
    face_set.ensure(root, **SMALL)
    with pytest.raises(DataError, match=f"{name.split('/')[0]} is not part of a synthetic set"):
        ensure(root, seed=4)
    with pytest.raises(DataError, match="mine exists and is no synthetic set"):
        ensure(tmp_path / "mine")
    with pytest.raises(DataError, match="cannot be made"):
        ensure(tmp_path / "mine" / "thesis.txt" / "synthetic")
    assert (content(root), content(tmp_path / "mine")) == before
    assert not [*tmp_path.glob(".*.part")]


@pytest.mark.parametrize(
    ("step", "words"),
    [("_write_verification", "thesis.txt is not part of"), ("_remove_set", "not empty")],
)
def test_files_that_come_while_another_set_is_drawn_stay(
    tmp_path: Path, monkeypatch, step: str, words: str
) -> None:
    root = tmp_path / "synthetic"
    ensure(root)
    do_step = getattr(face_set, step)

    def write_thesis(*arguments: Any) -> None:
        (root / "thesis.txt").write_text("years of work")
        do_step(*arguments)

    monkeypatch.setattr(face_set, step, write_thesis)
    with pytest.raises(DataError, match=words):
        ensure(root, seed=4)
    assert (root / "thesis.txt").read_text() == "years of work"


def test_caches_of_readers_and_sets_of_other_versions_are_replaced(tmp_path: Path) -> None:
    root = tmp_path / "synthetic"
    ensure(root).labels()
    assert (root / "train.idx.cache").exists() and (root / "train.labels.cache").exists()
    assert len(ensure(root, identities=7)) == 28
    description = json.loads((root / "synthetic.json").read_text())
    made = (root / "train.rec").stat().st_mtime_ns
    for changes, is_kept in (({}, True), ({"version": 1}, False)):
        (root / "synthetic.json").write_text(json.dumps({**description, **changes}))
        ensure(root, identities=7)
        assert ((root / "train.rec").stat().st_mtime_ns == made) == is_kept
    (root / "synthetic.json").write_text("{}")
    with pytest.raises(DataError, match="property is not part of a synthetic set"):
        ensure(root)


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


def test_no_set_of_the_user_is_overwritten(tmp_path: Path) -> None:
    """By a link under the name of the folder in which the set is drawn, or of its lock."""
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "train.rec").write_bytes(b"precious")
    partial = tmp_path / f".synthetic.{os.uname().nodename}.part"
    for link, target in ((partial, "user"), (tmp_path / ".synthetic.lock", "user/train.rec")):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(DataError, match="cannot be made in"):
            ensure(tmp_path / "synthetic")
        link.unlink()
    assert [path.read_bytes() for path in (tmp_path / "user").iterdir()] == [b"precious"]
