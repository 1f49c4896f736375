"""What a run writes for its report, and how that is read again, on any machine.

The names of the files are here because training writes them and this room reads them. A report has
to be possible from a copied folder, so nothing else is read: no data, no model, no checkpoint.
What is not in the folder is left out of the report.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from evaluation.files import map_floats
from runtime.errors import DataError
from runtime.files import read_file, read_text

CONFIG = "config.json"
METRICS = "metrics.jsonl"
REPORT = "report.html"
VALIDATION = "validation"
"""What the records of a classifier's validation have as their target."""
FOLDER = "report"
PARTS = "parts.jsonl"
SAMPLES = "samples.jpg"
_SCORES = "scores-{}.npy"

Record = Mapping[str, Any]

_JPEG = b"\xff\xd8\xff"
_LONGEST_PICTURE = 8 << 20
# Of a number that can be drawn; a timedelta holds as many seconds.
_LARGEST = 1e12
# Rounding to float16 makes a cosine slightly larger than 1.
_LARGEST_COSINE = 1.01
# A record has two brackets, and a configuration one for each list; deeply nested JSON has more.
_MOST_BRACKETS = 500


@dataclass(frozen=True)
class RunFiles:
    """What a run has written.

    Attributes:
        folder: of the run.
        config: its options as they were resolved, by name.
        training: the reports of its updates, in order; each update once.
        targets: the verifications of each set, or the validations, in order.
        scores: of each set that was verified last: float [P, 2], the cosine of each pair, and 1 if
            it shows one person, else 0.
        samples: a sheet of training images, a JPEG; None if there is none.
        parts: where and with what the run was started, and each time it went on.
        name: of the folder; of several runs, one that only this has.
    """

    folder: Path
    config: Mapping[str, Any]
    training: Sequence[Record]
    targets: Mapping[str, Sequence[Record]]
    scores: Mapping[str, NDArray[np.float64]]
    samples: Optional[bytes]
    parts: Sequence[Record]
    name: str


def scores_file(target: str) -> str:
    """The name of the file with the scores of a verification set."""
    return _SCORES.format(quote(target, safe=""))


def read(folder: Path) -> RunFiles:
    """Read the folder of a run.

    Raises:
        DataError: it is none, or a file in it is damaged.
    """
    if not os.path.isfile(folder / METRICS):
        raise DataError(
            f"{folder} is no folder of a run: it has no {METRICS}; give the folder that the first "
            "lines of the run name (--models-root), such as models/synthetic-tiny after make train"
        )
    training, targets = read_metrics(folder)
    scores = {name: _read_scores(folder / FOLDER / scores_file(name)) for name in targets}
    return RunFiles(
        folder=folder,
        config=read_config(folder),
        training=training,
        targets=targets,
        scores={name: found for name, found in scores.items() if len(found)},
        samples=_read_picture(folder / FOLDER / SAMPLES),
        parts=_records(folder / FOLDER / PARTS),
        name=os.path.basename(os.path.realpath(folder)),
    )


def column(records: Sequence[Record], name: str) -> NDArray[np.float64]:
    """The numbers of one name, NaN where there is none: float64 [len(records)]."""
    return np.array([number(record, name) for record in records], np.float64)


def number(record: Record, name: str) -> float:
    """A number of a record; NaN if there is none that can be drawn."""
    value: Any = record.get(name)
    return float(value) if _is_number(value) else math.nan


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) < _LARGEST


def _split(records: Sequence[Record]) -> tuple[list[Record], dict[str, list[Record]]]:
    """The reports of updates, and the verifications of each set.

    A run that was killed goes on from a checkpoint, and makes and reports some updates again: the
    later report counts. So does that of a run which began anew in the same folder.
    """
    training: list[Record] = []
    targets: dict[str, list[Record]] = {}
    for record in records:
        if "target" in record:
            known = targets.setdefault(str(record["target"]), [])
            _forget_from(known, record["update"])
            _forget_from(training, record["update"] + 1)
            known.append(record)
        else:
            for known in targets.values():
                # One after the same update came behind its report.
                _forget_from(known, record["update"])
            _forget_from(training, record["update"])
            training.append(record)
    return training, {name: known for name, known in targets.items() if known}


def _forget_from(records: list[Record], update: int) -> None:
    while records and records[-1]["update"] >= update:
        records.pop()


def read_config(folder: Path) -> Record:
    """The options of a run; none if they are not there. ``DataError``: the file is damaged."""
    found = _tables(folder / CONFIG, is_whole=True)
    return found[0] if found else {}


def read_metrics(folder: Path) -> tuple[Sequence[Record], Mapping[str, Sequence[Record]]]:
    """The reports of updates, and the verifications of each set, in order; each update once.

    Raises:
        DataError: the file is damaged.
    """
    return _split(_records(folder / METRICS))


def _tables(path: Path, *, is_whole: bool) -> list[Record]:
    """The tables of a file, of which there is one per line unless it is a whole one."""
    if not os.path.isfile(path):
        return []
    try:
        text = read_text(path)
        # The last line may be cut off in the copy of a run that is still writing.
        parts = [text] if is_whole else text.split("\n")[:-1]
        # Nested deeply, what can be read here could still not be shown.
        is_flat = all(part.count("[") + part.count("{") <= _MOST_BRACKETS for part in parts)
        found = [json.loads(part) for part in parts if part.strip()] if is_flat else [None]
    except (OSError, ValueError, RecursionError):
        found = [None]
    if not all(isinstance(record, dict) for record in found):
        raise _damaged(path)
    return found


def _records(path: Path) -> Sequence[Record]:
    """The tables of a file with one per line, each of an update."""
    records = _tables(path, is_whole=False)
    for record in records:
        update = record.get("update")
        if not (_is_number(update) and isinstance(update, int) and 0 <= update < 2**53):
            raise _damaged(path)
    return records


def _read_scores(path: Path) -> NDArray[np.float64]:
    """The scores [P, 2] of a file; none if it is not there, or has pairs of one kind only."""
    none = np.zeros((0, 2))
    if not os.path.isfile(path):
        return none
    try:
        found = map_floats(path)
    except OSError:
        found = None
    if found is None or found.shape[1] != 2:
        raise _damaged(path)
    scores = np.array(found, np.float64)
    are_cosines = np.abs(scores[:, 0]) <= _LARGEST_COSINE
    if not np.isin(scores[:, 1], (0, 1)).all() or not are_cosines.all():
        raise _damaged(path)
    return scores if len(np.unique(scores[:, 1])) == 2 else none


def _read_picture(path: Path) -> Optional[bytes]:
    if not os.path.isfile(path):
        return None
    try:
        content = read_file(path, _LONGEST_PICTURE)
    except OSError:
        content = b""
    if not content.startswith(_JPEG):
        raise _damaged(path)
    return content


def _damaged(path: Path) -> DataError:
    return DataError(
        f"{path} is damaged, and what is written from it would be wrong; copy it again, or move it "
        "away"
    )
