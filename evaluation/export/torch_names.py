"""The names of iResNets' tensors in arcface_torch, and in InsightFace's checkpoints for MXNet.

The two networks have the same layers in the same order (arcface_torch, backbones/iresnet.py), and
every tensor the same shape, so a change of names is all. They compute the same from the same
numbers but for two constants, which no file of tensors has: what the pixels are multiplied by, and
the epsilon of BatchNorm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError

NOTE = "mxnet.json"
"""The entry of a file that we write with the two constants; PyTorch does not read it."""
_BATCHES = "num_batches_tracked"
_NORM = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_var",
}


class Constants(NamedTuple):
    """What no tensor has.

    Attributes:
        pixel_scale: what the pixels are multiplied by, after 127.5 is taken away.
        epsilon: of every BatchNorm.
    """

    pixel_scale: float = 1 / 127.5
    epsilon: float = 1e-5


def units_of(names: Sequence[str], pattern: str) -> tuple[int, ...]:
    """Return the units of each stage, by names with the numbers of stage and unit in a pattern."""
    counts: dict[int, set[int]] = {}
    for name in names:
        found = re.match(pattern, name)
        if found:
            counts.setdefault(int(found[1]), set()).add(int(found[2]))
    return tuple(len(counts[stage]) for stage in sorted(counts))


def table(units: Sequence[int]) -> dict[str, Optional[str]]:
    """Return our name by arcface_torch's, in the order of its state dict; None is of PyTorch alone.

    Args:
        units: of each stage.
    """
    found: dict[str, Optional[str]] = {"conv1.weight": "conv0_weight", **_norm("bn1", "bn0")}
    found["prelu.weight"] = "relu0_gamma"
    for stage, count in enumerate(units, start=1):
        for unit in range(count):
            there, here = f"layer{stage}.{unit}", f"stage{stage}_unit{unit + 1}"
            found.update(_norm(f"{there}.bn1", f"{here}_bn1"))
            found[f"{there}.conv1.weight"] = f"{here}_conv1_weight"
            found.update(_norm(f"{there}.bn2", f"{here}_bn2"))
            found[f"{there}.prelu.weight"] = f"{here}_relu1_gamma"
            found[f"{there}.conv2.weight"] = f"{here}_conv2_weight"
            found.update(_norm(f"{there}.bn3", f"{here}_bn3"))
            if unit == 0:
                found[f"{there}.downsample.0.weight"] = f"{here}_conv1sc_weight"
                found.update(_norm(f"{there}.downsample.1", f"{here}_sc"))
    found.update(_norm("bn2", "bn1"))
    found.update({"fc.weight": "pre_fc1_weight", "fc.bias": "pre_fc1_bias"})
    return {**found, **_norm("features", "fc1")}


def _norm(there: str, here: str) -> dict[str, Optional[str]]:
    names: dict[str, Optional[str]] = {
        f"{there}.{theirs}": f"{here}_{ours}" for theirs, ours in _NORM.items()
    }
    return {**names, f"{there}.{_BATCHES}": None}


def to_torch(weights: Mapping[str, NDArray[Any]], where: str) -> dict[str, NDArray[Any]]:
    """Return the tensors under arcface_torch's names; the fixed gamma of the embedding is one.

    Raises:
        DataError: it is no iResNet with the output E or FC.
    """
    units = units_of(list(weights), r"stage(\d{1,4})_unit(\d{1,4})_conv1_weight$")
    names = table(units)
    other = set(names.values()) - {None} ^ weights.keys()
    if other:
        raise DataError(
            f"{where} has no counterpart in arcface_torch, where iResNets end in fc and features: "
            f"{sorted(filter(None, other))[0]!r} is of one of the two alone; export ONNX, or train "
            "with --net-output E or FC and without -se"
        )
    found: dict[str, NDArray[Any]] = {}
    for there, here in names.items():
        found[there] = np.array(0, np.int64) if here is None else weights[here].astype(np.float32)
    found["features.weight"] = np.ones_like(found["features.weight"])
    return found


def from_torch(
    tensors: Mapping[str, NDArray[Any]], where: str
) -> tuple[dict[str, NDArray[Any]], tuple[int, ...]]:
    """Return the tensors under our names, float32, and the units of each stage.

    Raises:
        DataError: they are not those of an iResNet, or their shapes contradict each other.
    """
    plain = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    units = units_of(list(plain), r"layer(\d{1,4})\.(\d{1,4})\.conv1\.weight$")
    names = table(units)
    # Files from before PyTorch 0.4.1 do not count batches.
    other = {name for name in names.keys() ^ plain.keys() if not name.endswith(_BATCHES)}
    if other or len(units) != 4:
        first = sorted(other)[0] if other else "layer1"
        raise DataError(
            f"{where} is no iResNet of arcface_torch: {first!r:.80} is of one of the two alone; "
            "give the model.pt of a network such as r50"
        )
    found = {
        here: plain[there].astype(np.float32) for there, here in names.items() if here is not None
    }
    if found["fc1_gamma"].any() and not np.all(found["fc1_gamma"] == 1):
        raise DataError(
            f"{where} has a trained 'features.weight', which is one in these networks; multiply "
            "the embeddings by it, or train with it fixed"
        )
    return found, units


def encode(constants: Constants) -> bytes:
    """Return the content of the note."""
    return json.dumps(constants._asdict()).encode()


def decode(note: Optional[bytes], where: str) -> Constants:
    """Return the constants of a note; without one, arcface_torch's.

    Raises:
        DataError: the note is damaged.
    """
    if note is None:
        return Constants()
    try:
        values = json.loads(note)
        constants = Constants(float(values["pixel_scale"]), float(values["epsilon"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        constants = Constants(0.0, 0.0)
    if not (0 < constants.pixel_scale < 1e3 and 0 < constants.epsilon < 1):
        raise DataError(f"{where} has a damaged {NOTE}; export it again")
    return constants
