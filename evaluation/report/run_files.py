"""What a run writes for its report, and how that is read again, on any machine.

The names of the files are here because training writes them and this room reads them. A report has
to be possible from a copied folder, so nothing else is read: no data, no model, no checkpoint.
What is not in the folder is left out of the report.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, TypeVar
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

Record = Mapping[str, Any]
Content = TypeVar("Content")

_JPEG = b"\xff\xd8\xff"
_LONGEST_PICTURE = 8 << 20
# Largest number in a chart; a timedelta holds as many seconds.
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
    """Return the name of the file with the scores of a verification set."""
    return f"scores-{quote(target, safe='')}.npy"


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
    records = _latest(_read(folder / METRICS, _records, []))
    targets: dict[str, list[Record]] = {}
    for record in records:
        if "target" in record:
            targets.setdefault(str(record["target"]), []).append(record)
    report = folder / FOLDER
    scores = {name: _read(report / scores_file(name), _scores, None) for name in targets}
    return RunFiles(
        folder=folder,
        config=_read(folder / CONFIG, lambda path: _table(read_text(path)), {}),
        training=[record for record in records if "target" not in record],
        targets=targets,
        scores={name: found for name, found in scores.items() if found is not None},
        samples=_read(report / SAMPLES, _picture, None),
        parts=_read(report / PARTS, _records, []),
        name=os.path.basename(os.path.realpath(folder)),
    )


def column(records: Sequence[Record], name: str) -> NDArray[np.float64]:
    """Return the numbers of one name, NaN where there is none: float64 [len(records)]."""
    return np.array([number(record, name) for record in records], np.float64)


def number(record: Record, name: str) -> float:
    """Return a number of a record; NaN if there is none that can be drawn."""
    value: Any = record.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < _LARGEST else math.nan


def _latest(records: Sequence[Record]) -> list[Record]:
    """Return each report and verification once, in order.

    A run that was killed goes on from a checkpoint, and makes and reports some updates again: the
    later report counts. So does that of a run which began anew in the same folder.
    """
    kept: dict[tuple[int, bool, str], Record] = {}
    for record in records:
        # A verification comes after the report of its update.
        place = record["update"], "target" in record
        while kept and next(reversed(kept))[:2] > place:
            kept.popitem()
        kept[(*place, str(record.get("target")))] = record
    return list(kept.values())


def _read(path: Path, parse: Callable[[Path], Content], missing: Content) -> Content:
    """Return what a file has, or ``missing``; ``parse`` raises ``ValueError`` if it is damaged."""
    if not os.path.isfile(path):
        return missing
    try:
        return parse(path)
    except (OSError, ValueError, RecursionError):
        raise DataError(
            f"{path} is damaged, and what is written from it would be wrong; copy it again, or "
            "move it away"
        ) from None


def _table(text: str) -> Record:
    found = json.loads(text)
    # Nested deeply, what can be read here could still not be shown.
    _require(isinstance(found, dict) and text.count("[") + text.count("{") <= _MOST_BRACKETS)
    return dict(found)


def _records(path: Path) -> list[Record]:
    """Return the tables of a file with one per line, each of an update."""
    # The last line may be cut off in the copy of a run that is still writing.
    lines = read_text(path).split("\n")[:-1]
    found = [_table(line) for line in lines if line.strip()]
    for record in found:
        update = record.get("update")
        _require(isinstance(update, int) and 0 <= update < _LARGEST)
    return found


def _scores(path: Path) -> Optional[NDArray[np.float64]]:
    """Return the scores [P, 2] of a file; None if it has pairs of one kind only."""
    found = map_floats(path)
    _require(found is not None and found.shape[1] == 2)
    scores = np.array(found, np.float64)
    is_right = (np.abs(scores[:, 0]) <= _LARGEST_COSINE) & np.isin(scores[:, 1], (0, 1))
    _require(bool(is_right.all()))
    return scores if len(np.unique(scores[:, 1])) == 2 else None


def _picture(path: Path) -> bytes:
    content = read_file(path, _LONGEST_PICTURE)
    _require(content.startswith(_JPEG))
    return content


def _require(is_right: bool) -> None:
    if not is_right:
        raise ValueError
