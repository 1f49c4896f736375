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
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from runtime.errors import ConfigError, DataError, one_line
from runtime.files import read_file

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
# Our names by arcface_torch's, in the order of its state dict; without a tensor, of a BatchNorm.
_FIRST = {"conv1.weight": "conv0_weight", "bn1": "bn0", "prelu.weight": "relu0_gamma"}
_UNIT = {
    "bn1": "bn1", "conv1.weight": "conv1_weight", "bn2": "bn2", "prelu.weight": "relu1_gamma",
    "conv2.weight": "conv2_weight", "bn3": "bn3",
}  # fmt: skip
_SHORTCUT = {"downsample.0.weight": "conv1sc_weight", "downsample.1": "sc"}
_LAST = {"bn2": "bn1", "fc.weight": "pre_fc1_weight", "fc.bias": "pre_fc1_bias", "features": "fc1"}
_NORM = {
    "weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_var",
}  # fmt: skip


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
    except Exception as error:
        # Each library raises errors of many classes.
        raise DataError(
            f"{path} is no state dict that can be read ({one_line(repr(error)):.200}); give one of "
            "arcface_torch"
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
    pairs = {match.groups() for match in map(re.compile(pattern).match, names) if match}
    counts = Counter(int(stage) for stage, _ in pairs)
    return tuple(counts[stage] for stage in sorted(counts))


def table(units: Sequence[int]) -> dict[str, Optional[str]]:
    """Return our name by arcface_torch's, in the order of its state dict; None is of PyTorch alone.

    Args:
        units: of each stage.
    """
    layers = dict(_FIRST)
    for stage, count in enumerate(units, start=1):
        for unit in range(count):
            inside = _UNIT if unit else {**_UNIT, **_SHORTCUT}
            for there, here in inside.items():
                layers[f"layer{stage}.{unit}.{there}"] = f"stage{stage}_unit{unit + 1}_{here}"
    found: dict[str, Optional[str]] = {}
    for there, here in {**layers, **_LAST}.items():
        if there.endswith((".weight", ".bias")):
            found[there] = here
        else:
            found.update({f"{there}.{one}": f"{here}_{ours}" for one, ours in _NORM.items()})
            found[f"{there}.{_BATCHES}"] = None
    return found


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
    nodes = list(zip(found.graph["nodes"], found.attributes()))
    steps = {node["op"]: float(own["scalar"]) for node, own in nodes if "scalar" in own}
    if steps.keys() != {"_minus_scalar", "_mul_scalar"} or steps["_minus_scalar"] != 127.5:
        raise DataError(
            f"{where} does not subtract 127.5 from its pixels, as arcface_torch does; export ONNX"
        )
    weights = dict(found.weights)
    weights["conv0_weight"] = weights["conv0_weight"] * (steps["_mul_scalar"] / PIXEL_SCALE)
    for node, own in nodes:
        if node["op"] == "BatchNorm":
            name = f"{node['name']}_moving_var"
            weights[name] = weights[name] + (float(own.get("eps", 1e-3)) - EPSILON)
    tensors: Tensors = {}
    for there, here in names.items():
        tensors[there] = np.array(0, np.int64) if here is None else weights[here].astype(np.float32)
    tensors["features.weight"] = np.ones_like(tensors["features.weight"])
    return tensors


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
    if not np.all(found["fc1_gamma"] == 1):
        raise DataError(
            f"{where} has a trained 'features.weight', which is one in these networks; multiply "
            "the embeddings by it, or train with it fixed"
        )
    return found, units
