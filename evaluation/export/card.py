"""The model card: what a network is, beside its file, for whoever gets both.

It says what is known: of a run of this toolkit data, recipe and accuracies, which ``config.json``
and ``metrics.jsonl`` in the folder of the checkpoint have; of a checkpoint from elsewhere the
sizes, the hash and the versions.
"""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.report import run_files
from runtime.process.terminal import one_line

# Where a run is on a machine is nothing about its network; of paths the last part is shown.
_PRIVATE = frozenset(
    "models_root resume keep frequent threads stall_timeout val_targets debug rec_val config "
    "dry_run".split()
)
_PACKAGES = ("mxnet", "numpy", "onnx", "onnxruntime")
# Escape text of a run, so that it does not become a cell, a link or HTML.
_MARKUP = str.maketrans({"|": "\\|", "[": "\\[", "<": "&lt;"})


def write_card(
    path: Path,
    model: bytes,
    weights: Mapping[str, NDArray[Any]],
    facts: Sequence[tuple[str, str]],
    run: Path,
) -> str:
    """Return the card as Markdown.

    Args:
        path: of the model.
        model: content of its file.
        weights: the parameters by name.
        facts: name and value of what else is known of the network, in order.
        run: the folder of the checkpoint, which may be that of a run.

    Raises:
        DataError: a file of the run is damaged.
    """
    config, (_, verified) = run_files.read_config(run), run_files.read_metrics(run)
    digest = hashlib.sha256(model).hexdigest()
    rows = [
        *facts,
        ("file", f"`{path.name}`, {len(model):,} bytes, SHA-256 `{digest}`"),
        ("SHA-256 of the weights", f"`{weights_hash(weights)}`"),
        ("Python", platform.python_version()),
    ]
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            rows.append((package, metadata.version(package)))
    parts = [f"# {path.stem}\n", _table(("", ""), rows)]
    parts += ["## Data and recipe\n", _recipe(config), "## Accuracies\n", _accuracies(verified)]
    return "\n".join(parts)


def weights_hash(weights: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of all arrays with names, shapes and types, whatever file they are in."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.data)
    return digest.hexdigest()


def _recipe(config: Mapping[str, Any]) -> str:
    if not config:
        return "Not known: there is no `config.json` beside the checkpoint.\n"
    options = [
        (name, _said(value))
        for name, value in sorted(config.items())
        if name not in _PRIVATE and value not in (None, "", [], False)
    ]
    return _table(("option", "value"), options)


def _said(value: Any) -> str:
    """Return a value as it is typed; of paths the last part."""
    if isinstance(value, list):
        return ",".join(map(_said, value))
    text = str(value)
    return Path(text).name if "/" in text else text


def _accuracies(verified: Mapping[str, Sequence[run_files.Record]]) -> str:
    rows = []
    for target, records in verified.items():
        found = [
            (number, f"{record['update']:,}")
            for record in records
            if math.isfinite(number := run_files.number(record, "accuracy"))
        ]
        if found:
            (last, update), (best, best_update) = found[-1], max(found, key=lambda one: one[0])
            rows.append((target, f"{last:.4f}", update, f"{best:.4f}", best_update))
    if not rows:
        return "Not known: there is no `metrics.jsonl` with verifications beside the checkpoint.\n"
    return _table(("set", "last accuracy", "update", "best accuracy", "update"), rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    cells = ([one_line(cell).translate(_MARKUP) for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)
