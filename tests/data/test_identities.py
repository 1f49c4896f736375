from __future__ import annotations

from pathlib import Path

import pytest

from data.identities import Identity, find_identities, image_paths, is_class, split_holdout
from runtime.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = ("b/2.png", "b/10.JPG", "b/.hidden.png", "b/notes.txt", "a/x.jpeg", "c/notes.txt",
             ".trash/1.png", "stray.png")  # fmt: skip
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def test_identities_and_images_come_by_name(folder: Path) -> None:
    expected = [Identity("a", ["x.jpeg"]), Identity("b", ["10.JPG", "2.png"])]
    assert find_identities(folder, 1, 1) == find_identities(folder, 1, 3) == expected
    paths = image_paths(folder, expected)
    assert paths == [str(folder / name) for name in ("a/x.jpeg", "b/10.JPG", "b/2.png")]


def test_identities_with_few_images_are_left_out(folder: Path) -> None:
    assert [identity.name for identity in find_identities(folder, 2, 1)] == ["b"]
    with pytest.raises(DataError, match="none of its 3 folders holds 3 images"):
        find_identities(folder, 3, 1)


def test_every_format_that_opencv_decodes_is_an_image(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    names = ["1.bmp", "2.PGM", "3.webp", "4.tif", "5.TIFF", "6.ras", "7.ppm", "8.jpe", "9.pnm"]
    for name in [*names, "10.gif", "11.pfm", "14.pam", "15.jp2", "12.tif.txt", "bmp", ".13.bmp"]:
        (tmp_path / "a" / name).touch()
    assert find_identities(tmp_path, 1, 1) == [Identity("a", names)]


def test_folders_that_programs_create_are_no_classes(tmp_path: Path) -> None:
    created = (".ipynb_checkpoints", "__MACOSX", "lost+found", "@eaDir", "$RECYCLE.BIN", ".git")
    for name in (*created, "anna", "_private", "lost", "macosx"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").touch()
    assert not any(map(is_class, created))
    found = find_identities(tmp_path, 1, 1)
    assert [identity.name for identity in found] == ["_private", "anna", "lost", "macosx"]


def test_every_kth_identity_is_held_out() -> None:
    identities = [Identity(f"p{i}", []) for i in range(10)]
    training, held_out = split_holdout(identities, 5)
    assert [identity.name for identity in held_out] == ["p4", "p9"]
    assert [identity.name for identity in training] == [f"p{i}" for i in (0, 1, 2, 3, 5, 6, 7, 8)]
