"""Readers of what a run has written, and of embeddings: reports and cards, also of other people."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from tests.fuzz.reader import Reader
from tests.support import made_up_runs


def _npy_seeds(_: Path) -> list[bytes]:
    """Tables of several forms, one of them of scores."""
    scores = np.array([[0.5, 1], [0.25, 0], [-0.5, 0]], np.float32)
    seeds = []
    for table in (scores, scores.astype(">f8"), np.asfortranarray(scores), np.ones((3, 2), int)):
        file = io.BytesIO()
        np.save(file, table)
        seeds.append(file.getvalue())
    return seeds


def _read_npy(folder: Path, content: bytes) -> None:
    """As the scores of a run, and as embeddings that are searched."""
    from evaluation.embed.index import read_embeddings
    from evaluation.report import run_files
    from runtime.errors import DataError

    run = folder / "run"
    if not run.exists():
        made_up_runs.write_faces(run)
    (run / "report/scores-unseen.npy").write_bytes(content)
    try:
        run_files.read(run)
    except DataError:
        pass
    (folder / "a.npy").write_bytes(content)
    np.asarray(read_embeddings(folder / "a.npy").rows).sum()


def _metrics_seeds(folder: Path) -> list[bytes]:
    runs = made_up_runs.write_faces(folder / "faces"), made_up_runs.write_images(folder / "images")
    lines = [(run / "metrics.jsonl").read_bytes().splitlines(True) for run in runs]
    return [b"".join(one[:4] + one[-2:]) for one in lines]


def _read_metrics(folder: Path, content: bytes) -> None:
    """As numbers of a report, and of a model card."""
    from evaluation.export import card
    from evaluation.report import figures, pages, run_files

    run = folder / "run"
    if not run.exists():
        made_up_runs.write_faces(run)
    (run / "metrics.jsonl").write_bytes(content)
    found = run_files.read(run)
    for records in found.targets.values():
        [str(figures.accuracy(record)) for record in records]
        [pages.tar_at_far(record) for record in records]
    figures.time_shares(found)
    pages.rate(found), pages.last_loss(found), figures.duration(found)
    card.write_card(Path("net.onnx"), b"", {}, [], run)


RUN_READERS = {
    "npy": Reader(_npy_seeds, _read_npy, 8),
    "metrics": Reader(_metrics_seeds, _read_metrics, 6),
}
