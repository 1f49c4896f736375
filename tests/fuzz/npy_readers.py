"""The readers of arrays in NumPy's format: embeddings, and the scores of a report."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.reader import Reader


def _saved(array: Any, version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def _seeds(_: Path) -> list[bytes]:
    scores = np.array([[0.5, 1], [0.25, 0], [-0.5, 0]])
    archive = io.BytesIO()
    np.savez(archive, scores)
    return [
        *(_saved(scores.astype(dtype)) for dtype in ("<f4", "<f2", ">f8", "<i4")),
        _saved(np.asfortranarray(scores)),
        _saved(scores, (2, 0)),
        _saved(np.zeros((0, 2))),
        # With a header as long as the file: NumPy would have Python parse it.
        _saved(scores, (2, 0)).replace(b"}", b"}" + b" " * 5000, 1),
        _saved(np.array([{}, []], object)),
        archive.getvalue(),
    ]


def _read(folder: Path, content: bytes) -> None:
    from evaluation.embed.index import read_embeddings
    from evaluation.report import run_files
    from runtime.errors import DataError

    report = folder / run_files.FOLDER
    report.mkdir(exist_ok=True)
    record = {"update": 1, "target": "lfw", "accuracy": 0.5}
    (folder / run_files.METRICS).write_text(json.dumps(record) + "\n")
    path = report / run_files.scores_file("lfw")
    path.write_bytes(content)
    try:
        found = read_embeddings(path)
    except DataError:
        pass
    else:
        assert len(found.rows) == len(found.names) and np.isfinite(found.rows).size
    for scores in run_files.read(folder).scores.values():
        assert scores.shape[1:] == (2,) and scores.dtype == np.float64


NPY_READERS = {"npy": Reader(_seeds, _read, 8)}
