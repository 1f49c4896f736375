"""Readers of the lists of IJB-B and IJB-C, of features, and of what a run has written."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from evaluation.embed.files import read_embeddings
from evaluation.export import card
from evaluation.ijb.lists import find_lists, read_faces, read_pairs, read_subjects
from evaluation.report import figures, pages, run_files
from tests.fuzz.reader import SEPARATOR, Reader, file_reader, refusals
from tests.fuzz.valid_files import SIZES, use_features, write_ijb
from tests.support import made_up_runs
from tests.support.ijb_set import template_ids

_IDS = template_ids(SIZES)
_POINTS, _MEDIA = "IJBC/meta/ijbc_name_5pts_score.txt", "IJBC/meta/ijbc_face_tid_mid.txt"
_FEATURES = ("features/features.json", "features/part-00000.npy")


def _faces_seeds(folder: Path) -> list[bytes]:
    """Both lists of faces, one behind the other."""
    write_ijb(folder)
    lists = [(folder / name).read_bytes() for name in (_POINTS, _MEDIA)]
    return [SEPARATOR.join(lists), SEPARATOR.join(reversed(lists))]


def _use_faces(points: Path) -> None:
    faces = read_faces(find_lists(points.parents[1]))
    assert len(faces.names) == len(faces.points) == len(faces.media) == len(faces.templates)


def _pairs_seeds(folder: Path) -> list[bytes]:
    write_ijb(folder)
    content = find_lists(folder / "IJBC").pairs.read_bytes()
    return [content, content.replace(b"\n", b"\r\n \n"), content.replace(b" ", b"\t")]


def _use_pairs(path: Path) -> None:
    pairs = read_pairs(path, _IDS)
    assert len(pairs.first) == len(pairs.second) == len(pairs.same)
    assert max(pairs.first.max(), pairs.second.max()) < len(_IDS)


def _subjects_seeds(folder: Path) -> list[bytes]:
    write_ijb(folder)
    content = find_lists(folder / "IJBC").probes.read_bytes()
    return [content, content.replace(b"img/", b'"a, b"')]


def _use_subjects(path: Path) -> None:
    found = read_subjects(path, _IDS)
    assert len(found.templates) == len(found.subjects) and found.templates.max() < len(_IDS)


def _features_seeds(folder: Path) -> list[bytes]:
    """The description and a part, one behind the other."""
    use_features(folder / "features")
    return [SEPARATOR.join((folder / name).read_bytes() for name in _FEATURES)]


def _npy_seeds(_: Path) -> list[bytes]:
    """Tables of several forms, one of them of scores."""
    scores = np.array([[0.5, 1], [0.25, 0], [-0.5, 0]], np.float32)
    seeds = []
    for table in (scores, scores.astype(">f8"), np.asfortranarray(scores), np.ones((3, 2), int)):
        file = io.BytesIO()
        np.save(file, table)
        seeds.append(file.getvalue())
    return seeds


def _use_npy(path: Path) -> None:
    """As the scores of a run, and as embeddings that are searched."""
    with refusals():
        run_files.read(path.parents[1])
    np.asarray(read_embeddings(path).rows).sum()


def _metrics_seeds(folder: Path) -> list[bytes]:
    runs = made_up_runs.write_faces(folder / "faces"), made_up_runs.write_images(folder / "images")
    lines = [(run / "metrics.jsonl").read_bytes().splitlines(True) for run in runs]
    return [b"".join(one[:4] + one[-2:]) for one in lines]


def _use_metrics(path: Path) -> None:
    """As numbers of a report, and of a model card."""
    found = run_files.read(path.parent)
    for records in found.targets.values():
        [(str(figures.accuracy(record)), pages.tar_at_far(record)) for record in records]
    figures.time_shares(found)
    pages.rate(found), pages.last_loss(found), figures.duration(found)
    card.write_card(Path("net.onnx"), b"", {}, [], path.parent)


EVALUATION_READERS = {
    "ijb-faces": Reader(
        _faces_seeds, file_reader(_use_faces, _POINTS, _MEDIA, make=write_ijb), 6
    ),
    "ijb-pairs": Reader(_pairs_seeds, file_reader(_use_pairs, "pairs"), 6),
    "ijb-subjects": Reader(_subjects_seeds, file_reader(_use_subjects, "subjects.csv"), 6),
    "ijb-features": Reader(
        _features_seeds, file_reader(lambda path: use_features(path.parent), *_FEATURES), 6
    ),
    "npy": Reader(
        _npy_seeds,
        file_reader(_use_npy, "report/scores-unseen.npy", make=made_up_runs.write_faces),
        8,
    ),
    "metrics": Reader(
        _metrics_seeds, file_reader(_use_metrics, "metrics.jsonl", make=made_up_runs.write_faces), 6
    ),
}
