"""The readers of the lists of IJB-B and IJB-C, and of a folder of features."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evaluation.ijb.features_folder import FeaturesFolder
from evaluation.ijb.lists import find_lists, read_faces, read_pairs, read_subjects
from tests.fuzz.reader import Reader
from tests.support.ijb_set import Sizes, template_ids, write_set

SIZES = Sizes(faces=10, templates=6, people=4, pairs=12)


def _made(folder: Path) -> Path:
    made = folder / "IJBC"
    if not made.exists():
        write_set(made, SIZES)
    return made


def _faces_seeds(folder: Path) -> list[bytes]:
    """Both lists of faces, one behind the other."""
    lists = find_lists(_made(folder))
    points, media = lists.points.read_bytes(), lists.media.read_bytes()
    return [points + b"==\n" + media, media + b"==\n" + points]


def _read_faces(folder: Path, content: bytes) -> None:
    lists = find_lists(_made(folder))
    points, _, media = content.partition(b"==\n")
    lists.points.write_bytes(points)
    lists.media.write_bytes(media)
    faces = read_faces(lists)
    assert len(faces.names) == len(faces.points) == len(faces.media) == len(faces.templates)


def _pairs_seeds(folder: Path) -> list[bytes]:
    content = find_lists(_made(folder)).pairs.read_bytes()
    return [content, content.replace(b"\n", b"\r\n \n"), content.replace(b" ", b"\t")]


def _read_pairs(folder: Path, content: bytes) -> None:
    path = folder / "pairs"
    path.write_bytes(content)
    ids = template_ids(SIZES)
    pairs = read_pairs(path, ids)
    assert len(pairs.first) == len(pairs.second) == len(pairs.same)
    assert max(pairs.first.max(), pairs.second.max()) < len(ids)


def _subjects_seeds(folder: Path) -> list[bytes]:
    content = find_lists(_made(folder)).probes.read_bytes()
    return [content, content.replace(b"img/", b'"a, b"')]


def _read_subjects(folder: Path, content: bytes) -> None:
    path = folder / "subjects.csv"
    path.write_bytes(content)
    ids = template_ids(SIZES)
    subjects = read_subjects(path, ids)
    assert len(subjects.templates) == len(subjects.subjects) and subjects.templates.max() < len(ids)


DESCRIPTION = {"model": "0a", "faces": "1b", "count": 5, "flip": True, "dtype": "float32"}


def _features_seeds(folder: Path) -> list[bytes]:
    """The description and a part, one behind the other."""
    with FeaturesFolder(folder / "features", DESCRIPTION) as features:
        features.claim()
        features.write(0, np.ones((5, 6), np.float32))
    names = ("features.json", "part-00000.npy")
    return [b"==\n".join((folder / "features" / name).read_bytes() for name in names)]


def _read_features(folder: Path, content: bytes) -> None:
    out = folder / "features"
    out.mkdir(exist_ok=True)
    description, _, part = content.partition(b"==\n")
    (out / "features.json").write_bytes(description)
    (out / "part-00000.npy").write_bytes(part)
    with FeaturesFolder(out, DESCRIPTION) as features:
        features.claim()
        for rows in features.read():
            assert rows.shape[:2] == (2, 5) and np.isfinite(rows).all()


IJB_READERS = {
    "ijb-faces": Reader(_faces_seeds, _read_faces, 6),
    "ijb-pairs": Reader(_pairs_seeds, _read_pairs, 6),
    "ijb-subjects": Reader(_subjects_seeds, _read_subjects, 6),
    "ijb-features": Reader(_features_seeds, _read_features, 6),
}
