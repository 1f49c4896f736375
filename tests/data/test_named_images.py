"""Inputs of a command line as one sequence of images."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.named_images import NamedImages, Size, open_sources, remarks
from runtime.errors import DataError
from tests.support.foreign_records import im2rec, write_records


def opened(*inputs: str, size: tuple = (16, 16)) -> NamedImages:
    return NamedImages(open_sources(inputs), Size(*size))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_image) -> Path:
    monkeypatch.chdir(tmp_path)
    names = ("b/2.png", "b/10.PNG", "a/x/1.png", "0.png", ".hidden/1.png", "b/.1.png", "b/3")
    for number, name in enumerate(names):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(make_image(number))
    (tmp_path / "in" / "b" / "notes.txt").touch()
    # A folder that contains itself, and one to which several links lead.
    (tmp_path / "in" / "b" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "c").symlink_to("b")
    return tmp_path / "in"


def test_folders_are_sorted_and_give_labels(folder: Path) -> None:
    sources = open_sources(["in/", "in/b/2.png", "in/b/3"])
    faces = NamedImages(sources, Size(16, 16))
    names = ["in/0.png", "in/a/x/1.png", "in/b/10.PNG", "in/b/2.png", "in/b/3"]
    assert [faces.name(n) for n in range(len(faces))] == [*names, "in/b/2.png", "in/b/3"]
    assert [faces.label(n) for n in range(7)] == ["", "a/x", "b", "b", "b", "", ""]
    assert [int(faces.read(n)[0, 0, 0]) for n in range(7)] == [3, 2, 1, 0, 6, 0, 6]
    assert faces.read(0).shape == (3, 16, 16) and faces.read(0)[2, 5, 5] == 252
    assert len(remarks(sources)) == 4
    assert "in: left out 1 hidden files, the first is b/.1.png" in remarks(sources)
    with pytest.raises(DataError, match="^in/0.png has 16 x 16 pixels instead of .* 8 x 6"):
        opened("in", size=(8, 6)).read(0)
    assert opened("in", size=(8, 6, True)).read(0).shape == (3, 8, 6)
    before = opened("in").checksum()
    assert opened("in").checksum() == before != opened("in/b").checksum()
    (folder / "0.png").rename(folder / "1.png")
    assert opened("in").checksum() != before


def test_images_of_a_set_have_labels_and_keys_and_come_in_its_size(
    folder: Path, make_image, caplog
) -> None:
    """As in training; those of another shape, and folders, as before."""
    sizes = [(32, 32), (16, 16), (48, 48), (32, 40)]
    written = im2rec([0, 1, 0, 1], [make_image(n, size) for n, size in enumerate(sizes)], range(4))
    write_records(folder.parent / "set", written, description="2,16,16")
    faces = opened("set")
    named = [(faces.name(n), faces.label(n)) for n in range(len(faces))]
    assert named == [(f"set/train.rec:{n}", label) for n, label in enumerate("0101")]
    assert [faces.read(n).shape for n in range(3)] == [(3, 16, 16)] * 3
    assert [int(faces.read(n)[0, 5, 5]) for n in range(3)] == [0, 1, 2]
    (said,) = caplog.messages
    assert "are resized" in said and "set/train.rec:0: the image has 32 x" in said
    with pytest.raises(DataError, match="^set/train.rec:3 has 32 x 40 pixels instead of"):
        faces.read(3)
    assert opened("set", size=(16, 16, True)).read(3).shape == (3, 16, 16)


def test_other_inputs_are_refused(folder: Path, make_image, write_set) -> None:
    (folder / "empty").mkdir()
    (folder / "a\tb.png").write_bytes(make_image(1))
    write_set([1], "s\nt")
    tabs = {"in": "in/a\tb.png", "in/a\tb.png": "in/a\tb.png", "s\nt": "s\nt"}
    inputs = {name: f"{named!r} has a tab,.*; rename it" for name, named in tabs.items()}
    inputs |= dict.fromkeys(("nowhere", "n" * 300), "n+.* does not exist; name images, folders")
    inputs["in/b/notes.txt"] = "in/b/notes.txt is no input that is known: name images"
    inputs["in/empty"] = "in/empty holds no images .* and no train.rec; name another"
    for name, message in inputs.items():
        with pytest.raises(DataError, match="^" + message.replace("\\", r"\\")) as caught:
            opened(name)
        assert "\n" not in str(caught.value)
