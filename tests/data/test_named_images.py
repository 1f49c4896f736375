from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from data import contents
from data.contents import describe_file, find_other_host, fingerprint
from data.identities import find_identities, find_images
from data.named_images import NamedImages, open_sources
from tests.support.foreign_records import im2rec, write_records
from tests.support.sets import assert_refused, write_files

LARGE = contents._READ_WHOLE + 12345
OURS, THEIRS = {"a": "1 byte", "b": "2 bytes"}, {"a": "1 byte", "b": "3 bytes"}


def touch(folder, *names: str, content: bytes = b"") -> None:
    write_files(folder, dict.fromkeys(names, content))


def test_images_are_found_whatever_they_are_called(tmp_path, make_image) -> None:
    mixed = tmp_path / "in"
    images = ["stray.png", "ann/1.JPG", "ann/2", "ann/3.jfif", "ann/a/c/6.png", "ann/b/7.png",
              "bob/1.jpg_large"]  # fmt: skip
    hidden = ["ann/.git/8.png", "ann/@eaDir/9.png", "ann/lost+found/1.png", "__MACOSX/1.png"]
    touch(mixed, *images, *hidden, content=make_image(1))
    touch(mixed, "ann/.DS_Store", "ann/._1.jpg", "ann/4.heic", "ann/0.txt", "list.csv",
          "empty/notes.txt")  # fmt: skip
    touch(mixed, "ann/5", content=b"GIF89a")
    touch(mixed, "ann/Thumbs.db", content=b"\xd0\xcf")
    (mixed / "ann" / "loop").symlink_to(mixed)
    (mixed / "ann" / "gone").symlink_to("nowhere")
    os.mkfifo(mixed / "bob" / "pipe")
    found, remarks = find_identities(mixed, 1)
    ann = [name[len("ann/") :] for name in images[1:6]]
    assert found == {"ann": ann, "bob": ["1.jpg_large"]}
    others = "files that are not images, or of formats that are not decoded (convert HEIC and GIF)"
    assert remarks == [
        *(f"{mixed}: left out {line}" for line in (
            "4 folders that are hidden or made by programs, the first is __MACOSX",
            f"6 {others}, the first is list.csv",
            "2 hidden files, the first is ann/.DS_Store",
            "2 files that cannot be read, the first is ann/gone",
            "1 folders to which several links lead, the first is ann/loop",
            "1 folders without images, the first is empty",
            "1 images outside of the folders, the first is stray.png",
        )),
    ]  # fmt: skip
    found, remarks = find_identities(mixed, 2)
    expected = f"{mixed}: left out 1 identities with fewer than 2 images, the first is bob"
    assert [*found] == ["ann"] and expected in remarks
    found_images, remarks = find_images(mixed)
    assert found_images == images and len(remarks) == 5


def test_a_person_with_two_names_is_one(tmp_path) -> None:
    """Also where names are no UTF-8."""
    person, text = os.fsdecode(b"m\xfcller"), os.fsdecode(b"\xea.txt")
    touch(tmp_path, f"{person}/1.png", f"{person}/{text}", "c/1.png")
    for link, target in (("a", person), ("latest", "c"), ("all", ".")):
        (tmp_path / link).symlink_to(target)
    found, remarks = find_identities(tmp_path, 1)
    assert found == {"a": ["1.png"], "c": ["1.png"]}
    again = f"{tmp_path}: left out 3 folders to which several links lead, the first is "
    assert len(remarks) == 2 and remarks[1].startswith(again), remarks
    assert f"a/{text}" in remarks[0]
    assert find_images(tmp_path)[0] == ["a/1.png", "c/1.png"]
    # As if a folder of several sets were one set: their names would be the identities.
    touch(tmp_path / "sets", "train/ann/1.png", "train/bob/1.png", "val/ann/2.png")
    assert_refused("all images lie deeper .* train/ann/1", find_identities, tmp_path / "sets", 1)


def opened(*inputs: str, size: tuple = (16, 16), scales: bool = False) -> NamedImages:
    return NamedImages(open_sources(inputs), size, scales=scales)


@pytest.fixture
def folder(tmp_path, monkeypatch, make_image):
    """With a folder that contains itself, and one to which several links lead."""
    monkeypatch.chdir(tmp_path)
    names = ("b/2.png", "b/10.PNG", "a/x/1.png", "0.png", ".hidden/1.png", "b/.1.png", "b/3")
    images = {name: make_image(number) for number, name in enumerate(names)}
    folder = write_files(tmp_path / "in", {**images, "b/notes.txt": b""})
    (folder / "b" / "loop").symlink_to(folder)
    (folder / "c").symlink_to("b")
    return folder


def test_folders_are_sorted_and_give_labels(folder) -> None:
    inputs = ["in/", "in/b/2.png", "in/b/3"]
    faces = opened(*inputs)
    found = [(faces.name(n), faces.label(n), faces.read(n)[0, 0, 0]) for n in range(len(faces))]
    assert found == [
        ("in/0.png", "", 3), ("in/a/x/1.png", "a/x", 2), ("in/b/10.PNG", "b", 1),
        ("in/b/2.png", "b", 0), ("in/b/3", "b", 6), ("in/b/2.png", "", 0), ("in/b/3", "", 6),
    ]  # fmt: skip
    assert faces.read(0).shape == (3, 16, 16) and faces.read(0)[2, 5, 5] == 252
    hidden = "in: left out 1 hidden files, the first is b/.1.png"
    assert len(faces.remarks) == 4 and hidden in faces.remarks
    assert_refused("^in/0.png has 16 x 16 pixels .* 8 x 6", opened("in", size=(8, 6)).read, 0)
    assert opened("in", size=(8, 6), scales=True).read(0).shape == (3, 8, 6)
    before = opened("in").checksum()
    assert opened("in").checksum() == before != opened("in/b").checksum()
    (folder / "0.png").rename(folder / "1.png")
    assert opened("in").checksum() != before


def test_images_of_a_set_have_labels_keys_and_its_size(folder, make_image) -> None:
    sizes = [(32, 32), (16, 16), (48, 48), (32, 40)]
    written = im2rec([0, 1, 0, 1], [make_image(n, size) for n, size in enumerate(sizes)], range(4))
    write_records(folder.parent / "set", written, description="2,16,16")
    faces = opened("set")
    named = [(faces.name(n), faces.label(n)) for n in range(len(faces))]
    assert named == [(f"set/train.rec:{n}", label) for n, label in enumerate("0101")]
    for number in range(3):
        assert faces.read(number).shape == (3, 16, 16) and faces.read(number)[0, 5, 5] == number
    file = opened("set/train.rec")
    assert [(file.name(n), file.label(n)) for n in range(len(file))] == named
    assert_refused("^set/train.rec:3 has 32 x 40 pixels instead of", faces.read, 3)
    assert opened("set", scales=True).read(3).shape == (3, 16, 16)


@pytest.mark.parametrize(("name", "message"), [
    ("in/", r"'in/a\\tb.png' has a tab,.*; rename it"),
    ("s\nt", r"'s\\nt' has a tab,.*; rename it"),
    ("nowhere", "nowhere does not exist; name images, folders"),
    ("in/empty", "in/empty holds no images .*; name another"),
])  # fmt: skip
def test_other_inputs_are_refused(folder, make_image, write_set, name: str, message: str) -> None:
    (folder / "empty").mkdir()
    (folder / "a\tb.png").write_bytes(make_image(1))
    write_set([1], "s\nt")
    assert_refused(f"^{message}", opened, name)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (old,) = file.read(1)
        file.seek(offset)
        file.write(bytes([old ^ 1]))


def test_what_is_said_of_a_file(tmp_path) -> None:
    (tmp_path / "property").write_bytes(b"123456789")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    expected = {
        "property": "9 bytes, checksum cbf43926",
        "none": "missing",
        "pipe": "unreadable (it is not a regular file)",
        "loop": "unreadable (Too many levels of symbolic links)",
    }
    found = fingerprint([tmp_path / name for name in expected])
    assert found == {str(tmp_path / name): said for name, said in expected.items()}


@pytest.mark.parametrize(("size", "offsets"), [
    (8192, [0, 1, 4096, 8191]),
    # Blocks of a large one: the first, one between and the last.
    (LARGE, [0, 4095, (LARGE - 4096) // 63, LARGE - 4096, LARGE - 1]),
])  # fmt: skip
def test_bytes_and_size_count(tmp_path, size: int, offsets: list[int]) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, size)
    said = [describe_file(path)]
    for offset in offsets:
        flip(path, offset)
        said.append(describe_file(path))
    assert len({*said}) == len(said) and all(one.startswith(f"{size:,} bytes") for one in said)
    os.truncate(path, size - 1)
    assert describe_file(path).startswith(f"{size - 1:,} bytes")
    os.truncate(path, 1 << 40)
    began = time.process_time()
    describe_file(path)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("change", [
    lambda folder: (folder / "cat/1.jpg").rename(folder / "dog/9.jpg"),
    lambda folder: (folder / "cat").rename(folder / "bat"),
    lambda folder: (folder / "dog/2.jpg").write_bytes(b"dog3"),
    lambda folder: (folder / "cat/deep/1.jpg").write_bytes(b"cat"),
])  # fmt: skip
def test_a_folder_of_other_images_differs(tmp_path, change) -> None:
    images = {f"{name}/{n}.jpg": f"{name}{n}" for name in ("cat", "dog") for n in range(3)}
    # Files that are no images, and what is no class, do not count.
    others = ("cat/notes.txt", "cat/.hidden.jpg", "list.txt", "stray.jpg", "__MACOSX/1.jpg")
    said = []
    (tmp_path / "cat/deep").mkdir(parents=True)
    for name, content in {**images, **dict.fromkeys(others, "x")}.items():
        write_files(tmp_path, {name: content.encode()})
        said.append(describe_file(tmp_path))
    change(tmp_path)
    assert said[5].startswith("6 images of 2 classes, checksum ")
    assert {*said[5:]} == {said[5]} != {describe_file(tmp_path)}


@pytest.mark.parametrize(("hosts", "expected"), [
    ([OURS, OURS], ""),
    # A name that a host does not know is missing there, as it may be everywhere.
    ([{"a": "missing"}, {}], ""),
    ([OURS, THEIRS], "host1 has another b than host0: 3 bytes, not 2 bytes"),
    # Of three, the one that differs from most.
    ([THEIRS, OURS, OURS], "host0 has another b than host1: 3 bytes, not 2 bytes"),
    ([{"a": "1 byte"}, {"b": "2"}], "host1 has another a than host0: missing, not 1 byte"),
])  # fmt: skip
def test_the_host_that_differs_is_named(hosts: list[dict[str, str]], expected: str) -> None:
    named = [(f"host{number}", files) for number, files in enumerate(hosts)]
    assert find_other_host(named) == expected
