from __future__ import annotations

import os

import pytest

from data import identities
from data.identities import Identity, find_identities, find_images
from data.named_images import NamedImages, Size, open_sources, remarks
from tests.support.foreign_records import im2rec, write_records
from tests.support.sets import assert_refused, write_files


def touch(folder, *names: str, content: bytes = b"") -> None:
    write_files(folder, dict.fromkeys(names, content))


def test_identities_and_images_come_by_name(tmp_path) -> None:
    created = (".ipynb_checkpoints", "__MACOSX", "lost+found", "@eaDir", "$RECYCLE.BIN", ".git")
    formats = ["1.bmp", "2.PGM", "3.webp", "4.tif", "5.TIFF", "6.ras", "7.ppm", "8.jpe", "9.pnm"]
    others = ["10.gif", "11.pfm", "14.pam", "15.jp2", "12.tif.txt", "bmp", ".13.bmp"]
    touch(tmp_path, "b/2.png", "b/10.JPG", "b/.hidden.png", "b/notes.txt", "a/x.jpeg",
          *(f"_p/{name}" for name in [*formats, *others]),
          *(f"{name}/1.png" for name in created))  # fmt: skip
    assert not any(map(identities.is_class, created))
    expected = [Identity("a", ["x.jpeg"]), Identity("b", ["10.JPG", "2.png"])]
    found = find_identities(tmp_path, 1, 1)
    assert found == find_identities(tmp_path, 1, 3)
    assert found[0] == [Identity("_p", formats), *expected]
    assert [identity.name for identity in find_identities(tmp_path, 2, 1)[0]] == ["_p", "b"]
    assert_refused("none of its 3 folders .*, or lower --min", find_identities, tmp_path, 10, 1)
    flat = tmp_path / "b"
    (flat / "none").mkdir()
    assert_refused("none of its 1 folders .* folder for each$", find_identities, flat, 1, 1)
    assert_refused("2.png is no folder; name one", find_identities, flat / "2.png", 1, 1)


def test_images_are_found_whatever_they_are_called(tmp_path, make_image) -> None:
    """What two people and many programs have left in a folder."""
    mixed = tmp_path / "in"
    images = ["stray.png", "ann/1.JPG", "ann/2", "ann/3.jfif", "ann/a/c/6.png", "ann/b/7.png",
              "bob/1.jpg_large"]  # fmt: skip
    hidden = ["ann/.git/8.png", "ann/__MACOSX/9.png", "__MACOSX/1.png"]
    touch(mixed, *images, *hidden, content=make_image(1))
    touch(mixed, "ann/.DS_Store", "ann/._1.jpg", "ann/4.heic", "ann/0.txt", "list.csv",
          "empty/notes.txt")  # fmt: skip
    touch(mixed, "ann/5", content=b"GIF89a")
    touch(mixed, "ann/Thumbs.db", content=b"\xd0\xcf")
    (mixed / "ann" / "loop").symlink_to(mixed)
    (mixed / "ann" / "gone").symlink_to("nowhere")
    os.mkfifo(mixed / "bob" / "pipe")
    found, remarks = find_identities(mixed, 1, 1)
    assert found == [
        Identity("ann", [name[len("ann/") :] for name in images[1:6]]),
        Identity("bob", ["1.jpg_large"]),
    ]
    others = "images of formats that are not decoded, such as HEIC and GIF (convert them)"
    assert remarks == [
        *(f"{mixed}: left out {line}" for line in (
            "3 folders that are hidden or made by programs, the first is __MACOSX",
            "4 files that are not images, the first is list.csv",
            "2 hidden files, the first is ann/.DS_Store",
            f"2 {others}, the first is ann/4.heic",
            "2 files that cannot be read, the first is ann/gone",
            "1 folders to which several links lead, the first is ann/loop",
            "1 folders without images, the first is empty",
            "1 images outside of the folders, the first is stray.png",
        )),
        f"{mixed}: 2 images deeper than in its folders belong to these, the first is ann/a/c/6.png",
    ]  # fmt: skip
    found, remarks = find_identities(mixed, 2, 1)
    expected = f"{mixed}: left out 1 identities with fewer than 2 images, the first is bob"
    assert [name for name, _ in found] == ["ann"] and expected in remarks
    # Images come before those of folders, and by name.
    found_images, remarks = find_images(mixed, 2)
    assert found_images == images and len(remarks) == 7


def test_a_folder_on_many_paths_is_listed_once(tmp_path) -> None:
    """Two links in each of 30 folders lead to the next one: on 2^30 paths to the last."""
    for number in range(30):
        touch(tmp_path, f"{number:02}/1.png")
        for name in "ab":
            (tmp_path / f"{number:02}" / name).symlink_to(f"../{number + 1:02}")
    (tmp_path / "30").mkdir()
    images, left_out = identities.list_images(tmp_path / "00")
    assert images == ["/".join(["a"] * depth + ["1.png"]) for depth in range(30)]
    assert left_out.found == {"folders to which several links lead": (30, "a/" * 29 + "b")}
    assert len(find_images(tmp_path, 1)[0]) == sum(range(1, 31))


def test_a_person_with_two_names_is_one(tmp_path) -> None:
    """Also where names are no UTF-8."""
    person, text = os.fsdecode(b"m\xfcller"), os.fsdecode(b"\xea.txt")
    touch(tmp_path, f"{person}/1.png", f"{person}/{text}", "c/1.png")
    for link, target in (("a", person), ("latest", "c"), ("all", ".")):
        (tmp_path / link).symlink_to(target)
    found, remarks = find_identities(tmp_path, 1, 2)
    assert found == [Identity("c", ["1.png"]), Identity(person, ["1.png"])]
    again = f"{tmp_path}: left out 3 folders to which several links lead, the first is "
    assert len(remarks) == 3 and remarks[0].startswith(again), remarks
    assert f"{person}/{text}" in remarks[2]
    assert find_images(tmp_path, 2)[0] == ["c/1.png", f"{person}/1.png"]
    # As if a folder of several sets were one set: their names would be the identities.
    touch(tmp_path / "sets", "train/ann/1.png", "train/bob/1.png", "val/ann/2.png")
    assert_refused("all images lie deeper .* train/ann/1", find_identities, tmp_path / "sets", 1, 1)


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
