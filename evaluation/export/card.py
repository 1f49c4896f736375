"""The model card: what a network is, beside its file, for whoever gets both.

It says what is known: of a run of this toolkit data, recipe and accuracies, which are in the folder
of the checkpoint; of a checkpoint from elsewhere the sizes, the hash and the versions.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.report import figures, run_files
from runtime.process.terminal import one_line

# Where a run is on a machine is nothing about its network; of paths the last part is shown.
_PRIVATE = frozenset(
    "models_root resume keep frequent threads stall_timeout val_targets debug rec_val config "
    "dry_run".split()
)
# Escape text of a run, so that it does not become a cell, a link or HTML.
_MARKUP = str.maketrans({"|": "\\|", "[": "\\[", "<": "&lt;"})


def write_card(name: str, facts: Mapping[str, str], folder: Path) -> str:
    """Return the card as Markdown.

    Args:
        name: of the network.
        facts: what is known of it by itself.
        folder: of the checkpoint, which may be that of a run.

    Raises:
        DataError: a file of the run is damaged.
    """
    parts = [f"# {name}\n", _table(("", ""), facts.items()), "## Data and recipe\n"]
    if not os.path.isfile(folder / run_files.METRICS):
        return "\n".join([*parts, f"Not known: there is no `{run_files.METRICS}` of a run.\n"])
    run = run_files.read(folder)
    options = [
        (name, _said(value))
        for name, value in sorted(run.config.items())
        if name not in _PRIVATE and value not in (None, "", [], False)
    ]
    rows = [
        (target, *_accuracy(records[-1]), *_accuracy(best))
        for target, records in run.targets.items()
        if (best := figures.best(records))
    ]
    titles = ("set", "last accuracy", "update", "best accuracy", "update")
    parts += [_table(("option", "value"), options), "## Accuracies\n", _table(titles, rows)]
    return "\n".join(parts)


def weights_hash(weights: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of all arrays with names, shapes and types, whatever file they are in."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.data)
    return digest.hexdigest()


def _said(value: Any) -> str:
    """Return a value as it is typed; of paths the last part."""
    if isinstance(value, list):
        return ",".join(map(_said, value))
    text = str(value)
    return Path(text).name if "/" in text else text


def _accuracy(record: run_files.Record) -> tuple[str, str]:
    return f"{run_files.number(record, 'accuracy'):.4f}", str(record["update"])


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    cells = ([one_line(cell).translate(_MARKUP) for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)
