"""iResNets as state dicts of arcface_torch: other names and constants for the same network.

The two networks have the same layers in the same order (arcface_torch, backbones/iresnet.py), and
every tensor has the same shape. Two constants differ, and a state dict has neither: the factor of
the pixels and the epsilon of BatchNorm. The first convolution and the running variances take up the
difference, so that arcface_torch's own code computes the same embeddings.

A file ends in ``.safetensors``, for which PyTorch is not needed, or is PyTorch's own, a pickle: a
program that can call any function of Python. PyTorch runs it with ``weights_only``, which refuses
all functions but those that make tensors.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from evaluation.export.graph import read_scaling
from runtime.errors import ConfigError, DataError
from runtime.files import read_file
from runtime.process.terminal import one_line

if TYPE_CHECKING:
    from backbones.checkpoint import Checkpoint

Tensors = dict[str, NDArray[Any]]

ENDING = ".safetensors"
PIXEL_SCALE = 1 / 127.5
"""Factor of the pixels in arcface_torch, after 127.5 is subtracted."""
EPSILON = 1e-5
"""Epsilon of every BatchNorm in arcface_torch."""
# An r200 has 0.5 GB, and as much for each moment of its optimizer.
_LARGEST = 1 << 32
_BATCHES = "num_batches_tracked"
_NORM = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_var",
}


def read_state_dict(path: Path) -> Tensors:
    """Read the tensors of a file by name; of arcface_torch's whole checkpoint the backbone's.

    Raises:
        ConfigError: the file needs PyTorch, which is not installed.
        DataError: the file is missing, damaged, or holds something else.
    """
    torch = None if path.suffix == ENDING else _import_torch(path)
    try:
        content = read_file(path, _LARGEST)
        if torch is None:
            return dict(safetensors.numpy.load(content))
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        found = found.get("state_dict_backbone", found)
        return {str(name): tensor.float().numpy() for name, tensor in found.items()}
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; give the file of a state dict"
        ) from None
    except Exception as error:
        # Each library raises errors of many classes.
        raise DataError(
            f"{path} is no state dict ({one_line(repr(error)):.200}); save it again"
        ) from None


def pack_state_dict(tensors: Mapping[str, NDArray[Any]], path: Path) -> bytes:
    """Return the content of a file of tensors; its ending says in which format.

    Raises:
        ConfigError: the file needs PyTorch, which is not installed.
    """
    if path.suffix == ENDING:
        return bytes(safetensors.numpy.save(dict(tensors)))
    torch, content = _import_torch(path), io.BytesIO()
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, content)
    return content.getvalue()


def _import_torch(path: Path) -> Any:
    try:
        import torch
    except ImportError:
        raise ConfigError(
            f"{path} needs PyTorch, which is not installed: pip install torch, or use a file that "
            f"ends in {ENDING}"
        ) from None
    return torch


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


def to_torch(found: Checkpoint, where: str) -> Tensors:
    """Return the tensors of a network that computes the same with arcface_torch's constants.

    The fixed gamma of the embedding is one.

    Raises:
        DataError: it is no iResNet with the output E or FC.
    """
    units = units_of(list(found.weights), r"stage(\d{1,4})_unit(\d{1,4})_conv1_weight$")
    names = table(units)
    other = set(names.values()) - {None} ^ found.weights.keys()
    if other:
        raise DataError(
            f"{where} has no counterpart in arcface_torch, where iResNets end in fc and features: "
            f"{sorted(filter(None, other))[0]!r} is of one of the two alone; export ONNX, or train "
            "with --net-output E or FC and without -se"
        )
    weights = _with_their_constants(found, where)
    tensors: Tensors = {}
    for there, here in names.items():
        tensors[there] = np.array(0, np.int64) if here is None else weights[here].astype(np.float32)
    tensors["features.weight"] = np.ones_like(tensors["features.weight"])
    return tensors


def _with_their_constants(found: Checkpoint, where: str) -> Tensors:
    scaling = read_scaling(found)
    if not np.all(scaling.mean == 127.5):
        raise DataError(
            f"{where} does not subtract 127.5 from its pixels, as arcface_torch does; export ONNX"
        )
    weights = dict(found.weights)
    weights["conv0_weight"] = weights["conv0_weight"] * (scaling.factor / PIXEL_SCALE)
    for node, own in zip(found.graph["nodes"], found.attributes()):
        if node["op"] == "BatchNorm":
            name = f"{node['name']}_moving_var"
            weights[name] = weights[name] + (float(own.get("eps", 1e-3)) - EPSILON)
    return weights


def from_torch(tensors: Mapping[str, NDArray[Any]], where: str) -> tuple[Tensors, tuple[int, ...]]:
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
