"""Options that several commands have, their values, and those of InsightFace's programs.

The programs are verification.py, ijb.py, ijb_11.py, ijb_1n.py, ijb_onnx.py and ijb_evals.py; of
arcface_torch, onnx_ijbc.py and torch2onnx.py. Options that mean the same here
are taken and have no row; the others are answered with what to type here instead.
"""

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

_MODEL = "give --model PREFIX,EPOCH, or --model FILE.onnx"
_DEVICE = "leave it out: a GPU that this process sees is used; CUDA_VISIBLE_DEVICES=0 chooses one"
_LENGTH = "leave it out: the network says how long its embeddings are"
_FOLDER = "name the folder itself, as in python -m evaluation.ijb IJBC"
_RELEASE = "leave it out: the lists in the folder say whether it is IJB-B or IJB-C"
_KEPT = "leave it out: --out keeps the features, and the command continues there"
_NAMES = "give --result-dir DIR and --job NAME, whose NAME.npy has the cosines"
_LABELS = "leave it out: the list of pairs has the labels"
_TESTS = "give --no-norm-score, --no-detector-score or --no-flip, a command for each test"
_ANEW = "name a new folder as --out"

NETWORK: Mapping[str, str] = {
    **dict.fromkeys(("--model-prefix", "--model-epoch", "--model[-_]file", "-m"), _MODEL),
    **dict.fromkeys(("--gpu", "--gpus", "--ctx"), _DEVICE),
    "--network": "leave it out: the files of --model have the network",
    **dict.fromkeys(("--emb-size", "-es"), _LENGTH),
    "--image_size": "give height and width, as in --image-size 112 112",
}
"""For every command that takes a network."""

VERIFICATION: Mapping[str, str] = {
    "--mode": "leave it out for 0; for 1, the wrongly judged pairs, give --bad-cases DIR; for 2, "
    "the embeddings, run python -m evaluation.embed",
    "--max": "name the epochs, as in --model PREFIX,8|9",
}

EXPORT: Mapping[str, str] = {
    **NETWORK,
    "--simplify": "leave it out, or run onnxsim on the file that is written",
}

IJB: Mapping[str, str] = {
    "--model-root": "give --model FILE.onnx, and the folder of the results as --result-dir",
    **dict.fromkeys(("--image-path", "--data_path", "-d"), _FOLDER),
    **dict.fromkeys(("--target", "--subset", "-s"), _RELEASE),
    "--gpu": f"{_DEVICE}; several compute under horovodrun -np 4",
    **dict.fromkeys(("--is_one_2_N", "-N"), "give --protocol 1:N"),
    **dict.fromkeys(("--is_bunch", "-B"), _TESTS),
    **dict.fromkeys(("--save_result", "-R"), _NAMES),
    **dict.fromkeys(("--save_label", "-L"), _LABELS),
    **dict.fromkeys(("--save_embeddings", "-E", "--plot_only", "-P"), _KEPT),
    **dict.fromkeys(("--force_reload", "-F"), _ANEW),
}

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
    more_help: str = "",
) -> None:
    """Add the options that ``open_network`` obeys, and those of how images are given to it.

    Args:
        parser: gets the options, and answers for those of InsightFace's programs.
        required: whether a network has to be named.
        convert: the text of ``--model`` to what ``open_network`` takes.
        more_help: about the texts that ``convert`` takes.
    """
    parser.answer(NETWORK, SYNONYMS)
    add = parser.add_argument
    model_help = (
        "the checkpoint PREFIX-symbol.json and PREFIX-EPOCH.params, e.g. models/run/model,0, or an "
        f"ONNX file{more_help}"
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
