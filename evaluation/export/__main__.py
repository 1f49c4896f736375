"""Write a trained network for other programs.

    python -m evaluation.export --model models/run/model,0

writes ``models/run/model.onnx`` and the model card ``models/run/model.md``. The file gets its name
when ONNX Runtime computes from it what MXNet computes from the checkpoint. The card has the sizes,
hashes and versions, and of a run, whose files are beside the checkpoint, the recipe and accuracies.

    python -m evaluation.export --model models/run/model,0 --format torch
    python -m evaluation.export --from-torch model.safetensors --output models/theirs/model

The first writes the state dict of an iResNet under arcface_torch's names, the second a checkpoint
of one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray

from evaluation.export import arcface_torch
from evaluation.export.graph import DESCRIPTION, IR_VERSION, OPSET, Form, Translation
from evaluation.export.writer import HALF, SINGLE
from evaluation.features import Features, Images, check_finite
from evaluation.files import check_output, writing
from evaluation.network import OnnxNetwork, files_of
from evaluation.options import OF_OTHERS, add_image_size, checkpoint
from evaluation.report import figures, run_files
from runtime.command_line import Parser, positive_integer
from runtime.errors import ConfigError, DataError, one_line, print_line, run_program
from runtime.files import StagedFiles
from runtime.untrusted.onnx_model import import_onnx

if TYPE_CHECKING:
    from backbones.checkpoint import Checkpoint

LIMITS = {SINGLE: 1e-4, HALF: 3e-2}
"""The largest relative difference to MXNet that is not refused."""
# Escape text of a run, so that it does not become a cell, a link or HTML.
_MARKUP = str.maketrans({"|": "\\|", "[": "\\[", "<": "&lt;"})
_OF_ONNX = ("dtype", "batch_size", "input", "limit")


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m evaluation.export",
        description="Write a trained network as ONNX, compare it with MXNet's, and write a model "
        "card beside it.",
        foreign=OF_OTHERS,
    )
    add = parser.add_argument
    model_help = (
        "the checkpoint PREFIX-symbol.json and PREFIX-EPOCH.params, e.g. models/run/model,0"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=checkpoint, metavar="PREFIX,EPOCH", help=model_help)
    torch_help = (
        "the state dict of an iResNet of arcface_torch, .safetensors or .pt, which needs PyTorch: "
        "write a checkpoint with the prefix --output"
    )
    source.add_argument("--from-torch", type=Path, metavar="FILE", help=torch_help)
    format_help = "onnx (default), or torch: the state dict of an iResNet for arcface_torch"
    add("--format", choices=("onnx", "torch"), help=format_help)
    add("--output", type=Path, metavar="FILE", help="default PREFIX.onnx, PREFIX.safetensors")
    dtype_help = "of weights and feature maps; input and output stay float32 (default float32)"
    add("--dtype", choices=(SINGLE, HALF), help=dtype_help)
    batch_help = "images per batch, if every batch has as many (default: any number)"
    add("--batch-size", type=positive_integer, metavar="N", help=batch_help)
    input_help = "type of the pixels, 0 to 255 in RGB (default float32)"
    add("--input", choices=(SINGLE, "uint8"), help=input_help)
    add_image_size(parser, "112 112")
    limit_help = "the largest relative difference to MXNet (default 1e-4, 3e-2 for float16)"
    add("--limit", type=float, metavar="X", help=limit_help)
    options = parser.parse_args(argv)
    if options.from_torch is not None and options.output is None:
        parser.error("--from-torch needs --output PREFIX, e.g. models/theirs/model")
    task, unused = "--format torch", [*_OF_ONNX] if options.format == "torch" else []
    if options.from_torch is not None:
        task, unused = "--from-torch", ["format", "image_size", *_OF_ONNX]
    for name in unused:
        if getattr(options, name) is not None:
            option = f"--{name.replace('_', '-')}"
            parser.error(f"{option}: {task} does not obey it; leave it out, or export ONNX")
    return options


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Write the files and print a line about each."""
    options = _parse(argv)
    if options.from_torch is not None:
        _read_torch(options.from_torch, options.output)
    elif options.format == "torch":
        _write_torch(options)
    else:
        _write_onnx(options)


def _write_onnx(options: argparse.Namespace) -> None:
    prefix, found = _read(options)
    path = options.output or Path(f"{prefix}.onnx")
    card = path.with_suffix(".md")
    if card == path:
        raise ConfigError(f"--output {path} is the name of the model card; give another ending")
    for one in (path, card):
        check_output(one, "--output", files_of(options.model))
    form = Form(options.dtype or SINGLE, options.batch_size, options.input == "uint8")
    model: bytes = Translation(found, form).model().SerializeToString()
    limit = LIMITS[form.dtype] if options.limit is None else options.limit
    difference = _checked(model, found, form, limit, path)
    facts = _facts(found, form, difference)
    digest = hashlib.sha256(model).hexdigest()
    facts["file"] = f"`{path.name}`, {len(model):,} bytes, SHA-256 `{digest}`"
    text = write_card(path.stem, facts, Path(prefix).parent)
    _write({path: model, card: text.encode()})
    sizes = " x ".join(map(str, found.image_shape))
    print_line(
        f"{path}: {sizes} to {found.output}, {form.dtype}, opset {OPSET}; largest relative "
        f"difference to MXNet {difference:.1e}"
    )
    print_line(f"{card}: the model card")


def _read(options: argparse.Namespace) -> tuple[str, Checkpoint]:
    """Return the prefix of the checkpoint, and the checkpoint."""
    from backbones.checkpoint import read_checkpoint

    prefix, epoch = options.model
    size = tuple(options.image_size) if options.image_size else None
    return prefix, read_checkpoint(prefix, epoch, size)


def _write_torch(options: argparse.Namespace) -> None:
    prefix, found = _read(options)
    path = options.output or Path(f"{prefix}{arcface_torch.ENDING}")
    check_output(path, "--output", files_of(options.model))
    tensors = arcface_torch.to_torch(found, prefix)
    _write({path: arcface_torch.pack_state_dict(tensors, path)})
    print_line(f"{path}: {len(tensors)} tensors, for arcface_torch as it is")


def _read_torch(path: Path, prefix: Path) -> None:
    from backbones.checkpoint import iresnet_checkpoint
    from backbones.network import checkpoint_paths

    for written in checkpoint_paths(prefix, 0):
        check_output(written, "--output", [path])
    tensors = arcface_torch.read_state_dict(path)
    weights, units = arcface_torch.from_torch(tensors, str(path))
    found = iresnet_checkpoint(
        units, weights, pixel_scale=arcface_torch.PIXEL_SCALE, epsilon=arcface_torch.EPSILON
    )
    found.network().export(prefix)
    print_line(f"{prefix}-symbol.json, {prefix}-0000.params: an iResNet of {units} units")


def _checked(model: bytes, found: Checkpoint, form: Form, limit: float, path: Path) -> float:
    """Return the largest relative difference to MXNet, if it is within the limit.

    A wrong padding or a gamma that is not used shows in no file, only in the numbers.
    """
    from runtime.mxnet import mx

    reference, network = found.network(), OnnxNetwork(model)
    images = draw_images(form.batch_size or 7, found.image_shape)
    differences = []
    for batch in [images] if form.batch_size else [images, *np.split(images, len(images))]:
        expected = reference(mx.nd.array(batch, dtype="uint8")).asnumpy()
        check_finite(expected)
        differences.append(relative_difference(expected, network.extract(batch)))
    difference = float(np.max(differences))
    if not difference <= limit:
        raise DataError(
            f"{path} is not written: ONNX Runtime's output differs from MXNet's by "
            f"{difference:.1e}, more than {limit:g} of the largest element; give another "
            "--limit if that is enough, or export in float32"
        )
    return difference


def relative_difference(expected: Features, found: Features) -> float:
    """Return the largest difference of two elements over the largest one of the image."""
    scale = np.abs(expected).max(axis=1).clip(min=np.finfo(np.float32).tiny)
    return float((np.abs(found - expected).max(axis=1) / scale).max())


def draw_images(count: int, shape: Sequence[int]) -> Images:
    """Return images of noise, uint8 [count, *shape]: the same on every call."""
    return np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)


def _facts(found: Checkpoint, form: Form, difference: float) -> dict[str, str]:
    """Return what the model card says of the network: names and values."""
    import onnxruntime

    from runtime.mxnet import mx

    packages = (mx, np, import_onnx(), onnxruntime)
    shape = " x ".join(map(str, found.image_shape))
    result = found.graph["nodes"][found.graph["heads"][0][0]]["name"]
    outputs = found.shapes()[result][-1]
    batch = form.batch_size or "any"
    input_type = "uint8" if form.takes_bytes else SINGLE
    is_classifier = not found.output.startswith("fc1")
    return {
        "input": f"`data`, {input_type}, {batch} x {shape}. {DESCRIPTION}",
        "output": f"`{found.output}`, float32, {batch} x {outputs}",
        "classes" if is_classifier else "embedding": f"{outputs:,}",
        "parameters": f"{found.parameter_count():,}",
        "format": f"ONNX, opset {OPSET}, IR version {IR_VERSION}, {form.dtype}",
        "largest relative difference to MXNet": f"{difference:.1e}, by ONNX Runtime",
        "SHA-256 of the weights": f"`{weights_hash(found.weights)}`",
        "Python": platform.python_version(),
        **{package.__name__: package.__version__ for package in packages},
    }


def _write(contents: dict[Path, bytes]) -> None:
    """Write files that belong together."""
    with writing(next(iter(contents)), "--output"), StagedFiles() as files:
        for path, content in contents.items():
            files.open(path).write(content)


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
        if value not in (None, "", [], False)
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


if __name__ == "__main__":
    run_program(main)
