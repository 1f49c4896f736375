"""Options that several commands have, and their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Union

from runtime.command_line import Parser, positive_integer
from runtime.errors import ConfigError

Source = Union[Path, tuple[str, int]]
"""An ONNX file, or prefix and epoch of a checkpoint."""

OF_OTHERS = "options of evaluation"
"""The tables of docs/porting.md with the options of InsightFace's programs."""
SYNONYMS: Mapping[str, str] = {"--batch_size": "--batch-size", "-b": "--batch-size"}
"""Options that are taken under both names."""


def share(value: str) -> float:
    """Convert a share between 0 and 1, such as a false accept rate."""
    with suppress(ValueError):
        if 0 < float(value) < 1:
            return float(value)
    raise argparse.ArgumentTypeError(
        f"{value!r} is no share between 0 and 1; write it as in 0.001 or 1e-4"
    )


def cosine(value: str) -> float:
    """Convert a cosine."""
    with suppress(ValueError):
        if -1 <= float(value) <= 1:
            return float(value)
    raise argparse.ArgumentTypeError(f"{value!r} is no cosine; take one of -1 to 1")


def check_names(option: str, names: Sequence[str]) -> None:
    """Refuse sets of one name, which stands for them in what is printed and written."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{option}: two sets are called {twice!r}; name each once, or rename a file"
        )


def checkpoint(value: str) -> tuple[str, int]:
    """Convert PREFIX,EPOCH."""
    prefix, comma, epoch = value.rpartition(",")
    if not comma or not epoch.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{value!r} is not PREFIX,EPOCH such as models/run/model,0"
        )
    return prefix, int(epoch)


def checkpoint_or_onnx(value: str) -> Source:
    """Convert PREFIX,EPOCH or FILE.onnx."""
    return Path(value) if value.lower().endswith(".onnx") else checkpoint(value)


def add_network(
    parser: Parser,
    required: bool = True,
    convert: Callable[[str], Any] = checkpoint_or_onnx,
) -> None:
    """Add the options that ``open_network`` obeys, and those of how images are given to it.

    Args:
        parser: gets the options, and answers for those of InsightFace's programs.
        required: whether a network has to be named.
        convert: the text of ``--model`` to what ``open_network`` takes.
    """
    parser.foreign, parser.synonyms = OF_OTHERS, SYNONYMS
    add = parser.add_argument
    model_help = (
        "the checkpoint PREFIX-symbol.json and PREFIX-EPOCH.params, e.g. models/run/model,0, or an "
        "ONNX file"
    )
    metavar = "PREFIX,EPOCH|FILE.onnx"
    add("--model", required=required, type=convert, metavar=metavar, help=model_help)
    batch_help = "images per batch (default %(default)s)"
    add("--batch-size", type=positive_integer, default=64, metavar="N", help=batch_help)
    add("--no-flip", action="store_true", help="do not embed mirror images")
    add_image_size(parser, "112 112, or what an ONNX file says")
    dtype_help = (
        "of feature maps and products; bfloat16 on a CPU with AVX512_BF16 or AMX (default float32)"
    )
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help=dtype_help)


def add_image_size(parser: Parser, default: str) -> None:
    """Add the option ``--image-size``; ``default`` is for its help."""
    said = f"what the network was trained with (default {default})"
    metavar = ("HEIGHT", "WIDTH")
    parser.add_argument("--image-size", nargs=2, type=positive_integer, metavar=metavar, help=said)
