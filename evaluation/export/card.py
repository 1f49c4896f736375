"""The model card: what a network is, beside its file, for whoever gets both.

It says what is known: of a run of this toolkit data, recipe and accuracies, which ``config.json``
and ``metrics.jsonl`` in the folder of the checkpoint have; of a checkpoint from elsewhere the
sizes, the hash and the versions.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError
from runtime.files import read_text

_DATA = ("dataset", "rec", "data_dir", "rec_train", "num_classes", "num_images", "min_images")
# Where a run is on a machine is nothing about its network.
_PRIVATE = frozenset(
    "models_root resume keep frequent threads stall_timeout val_targets debug rec data_dir "
    "rec_train rec_val config dry_run".split()
)
_PACKAGES = ("mxnet", "numpy", "onnx", "onnxruntime")


class Facts(NamedTuple):
    """What the export knows.

    Attributes:
        name: of the model.
        files: name, bytes and contents' SHA-256 of each file that was written.
        lines: name and value of what else is said, in order.
        weights: the parameters by name.
    """

    name: str
    files: Sequence[tuple[str, int, str]]
    lines: Sequence[tuple[str, str]]
    weights: Mapping[str, NDArray[Any]]


def write_card(facts: Facts, run: Path) -> str:
    """Return the card as Markdown.

    Args:
        facts: about the model.
        run: the folder of the checkpoint, which may be that of a run.

    Raises:
        DataError: a file of the run is damaged.
    """
    config, metrics = _read_config(run / "config.json"), _read_metrics(run / "metrics.jsonl")
    sections = [
        f"# {facts.name}\n",
        _table(
            ("", ""), [*facts.lines, ("SHA-256 of the weights", f"`{weights_hash(facts.weights)}`")]
        ),
        "## Files\n",
        _table(
            ("file", "bytes", "SHA-256"),
            [(f"`{name}`", f"{size:,}", f"`{digest}`") for name, size, digest in facts.files],
        ),
        "## Data and recipe\n",
        _recipe(config),
        "## Accuracies\n",
        _accuracies(metrics),
        "## Versions\n",
        _table(("", ""), _versions()),
    ]
    return "\n".join(sections)


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
    data = [(name, _said(config[name])) for name in _DATA if config.get(name)]
    recipe = [
        (name, _said(value))
        for name, value in sorted(config.items())
        if name not in (*_DATA, *_PRIVATE) and value not in (None, "", [], False)
    ]
    return "\n".join([_table(("data", ""), data), _table(("option", "value"), recipe)])


def _said(value: Any) -> str:
    """Return a value as it is typed; of paths the last part."""
    if isinstance(value, list):
        return ",".join(map(_said, value))
    text = str(value)
    return Path(text).name if "/" in text else text


def _accuracies(metrics: Sequence[Mapping[str, Any]]) -> str:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in metrics:
        if "target" in record and record.get("accuracy") is not None:
            found.setdefault(str(record["target"]), []).append(record)
    if not found:
        return "Not known: there is no `metrics.jsonl` with verifications beside the checkpoint.\n"
    rows = []
    for target, records in found.items():
        best = max(records, key=lambda record: float(record["accuracy"]))
        last = records[-1]
        rows.append(
            (
                target,
                f"{last['accuracy']:.4f}",
                f"{last['update']:,}",
                f"{best['accuracy']:.4f}",
                f"{best['update']:,}",
            )
        )
    return _table(("set", "last accuracy", "update", "best accuracy", "update"), rows)


def _versions() -> list[tuple[str, str]]:
    found = [("Python", platform.python_version())]
    for package in _PACKAGES:
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            continue
    return found


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _read_config(path: Path) -> Mapping[str, Any]:
    records = _read_json_lines(path, whole=True)
    return records[0] if records else {}


def _read_metrics(path: Path) -> list[Mapping[str, Any]]:
    return _read_json_lines(path, whole=False)


def _read_json_lines(path: Path, *, whole: bool) -> list[Mapping[str, Any]]:
    """Return the tables of a file, of which there is one per line unless it is a whole one."""
    if not path.is_file():
        return []
    try:
        text = read_text(path)
        records = [json.loads(one) for one in ([text] if whole else text.splitlines()) if one]
    except (OSError, ValueError, RecursionError):
        records = [None]
    if not all(isinstance(record, dict) for record in records):
        raise DataError(
            f"{path} is damaged, and the model card would be wrong; copy it again, or move it away"
        )
    return records
