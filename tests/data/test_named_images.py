from __future__ import annotations

import pytest

from data.named_images import NamedImages, Size, open_sources, remarks
from tests.support.foreign_records import im2rec, write_records
from tests.support.sets import assert_refused, write_files


def opened(*inputs: str, size: tuple = (16, 16)) -> NamedImages:
    return NamedImages(open_sources(inputs), Size(*size))


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
    faces, said = opened(*inputs), remarks(open_sources(inputs))
    found = [(faces.name(n), faces.label(n), faces.read(n)[0, 0, 0]) for n in range(len(faces))]
    assert found == [
        ("in/0.png", "", 3), ("in/a/x/1.png", "a/x", 2), ("in/b/10.PNG", "b", 1),
        ("in/b/2.png", "b", 0), ("in/b/3", "b", 6), ("in/b/2.png", "", 0), ("in/b/3", "", 6),
    ]  # fmt: skip
    assert faces.read(0).shape == (3, 16, 16) and faces.read(0)[2, 5, 5] == 252
    assert len(said) == 4 and "in: left out 1 hidden files, the first is b/.1.png" in said
    assert_refused("^in/0.png has 16 x 16 pixels .* 8 x 6", opened("in", size=(8, 6)).read, 0)
    assert opened("in", size=(8, 6, True)).read(0).shape == (3, 8, 6)
    before = opened("in").checksum()
    assert opened("in").checksum() == before != opened("in/b").checksum()
    (folder / "0.png").rename(folder / "1.png")
    assert opened("in").checksum() != before


def test_images_of_a_set_have_labels_keys_and_its_size(folder, make_image, caplog) -> None:
    """As in training; those of another shape, and folders, as before."""
    sizes = [(32, 32), (16, 16), (48, 48), (32, 40)]
    written = im2rec([0, 1, 0, 1], [make_image(n, size) for n, size in enumerate(sizes)], range(4))
    write_records(folder.parent / "set", written, description="2,16,16")
    faces = opened("set")
    named = [(faces.name(n), faces.label(n)) for n in range(len(faces))]
    assert named == [(f"set/train.rec:{n}", label) for n, label in enumerate("0101")]
    for number in range(3):
        assert faces.read(number).shape == (3, 16, 16) and faces.read(number)[0, 5, 5] == number
    (said,) = caplog.messages
    assert "are resized" in said and "set/train.rec:0: the image has 32 x" in said
    assert_refused("^set/train.rec:3 has 32 x 40 pixels instead of", faces.read, 3)
    assert opened("set", size=(16, 16, True)).read(3).shape == (3, 16, 16)


@pytest.mark.parametrize(("name", "message"), [
    ("in/", r"'in/a\\tb.png' has a tab,.*; rename it"),
    ("in/a\tb.png", r"'in/a\\tb.png' has a tab,.*; rename it"),
    ("s\nt", r"'s\\nt' has a tab,.*; rename it"),
    ("nowhere", "nowhere does not exist; name images, folders"),
    ("n" * 300, "n+ does not exist; name images, folders"),
    ("in/b/notes.txt", "in/b/notes.txt is no input that is known: name images"),
    ("in/empty", "in/empty holds no images .* and no train.rec; name another"),
])  # fmt: skip
def test_other_inputs_are_refused(folder, make_image, write_set, name: str, message: str) -> None:
    (folder / "empty").mkdir()
    (folder / "a\tb.png").write_bytes(make_image(1))
    write_set([1], "s\nt")
    assert_refused(f"^{message}", opened, name)
