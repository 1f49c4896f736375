"""Options of InsightFace's evaluation programs, and what to type here instead.

The programs are verification.py, ijb.py, ijb_11.py, ijb_1n.py, ijb_onnx.py, ijb_evals.py and
gen_megaface.py; of arcface_torch, onnx_ijbc.py and torch2onnx.py. Options that mean the same here
are taken and have no row.
"""

from __future__ import annotations

from collections.abc import Mapping

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
_IMAGES = "name the images, or a folder of images, as INPUT: a command for each set"

NETWORK: Mapping[str, str] = {
    "--model-prefix": _MODEL,
    "--model-epoch": _MODEL,
    "--model[-_]file": _MODEL,
    "-m": _MODEL,
    "--gpu": _DEVICE,
    "--gpus": _DEVICE,
    "--ctx": _DEVICE,
    "--network": "leave it out: the files of --model have the network",
    "--emb-size": _LENGTH,
    "-es": _LENGTH,
    "--image_size": "give height and width, as in --image-size 112 112",
}
"""For every command that takes a network."""

VERIFICATION: Mapping[str, str] = {
    "--mode": "leave it out for 0; for 1, the wrongly judged pairs, give --bad-cases DIR; for 2, "
    "the embeddings, run python -m evaluation.embed",
    "--max": "name the epochs, as in --model PREFIX,8|9",
}

EMBED: Mapping[str, str] = {
    "--facescrub-lst": _IMAGES,
    "--facescrub-root": _IMAGES,
    "--megaface-lst": _IMAGES,
    "--megaface-root": _IMAGES,
    "--algo": "leave it out: --out names the files",
    "--output": "give --out NAME: NAME.npy has a row per image, and NAME.tsv the images' names",
}

EXPORT: Mapping[str, str] = {
    **NETWORK,
    "--simplify": "leave it out, or run onnxsim on the file that is written",
}

IJB: Mapping[str, str] = {
    "--model-root": "give --model FILE.onnx, and the folder of the results as --result-dir",
    "--image-path": _FOLDER,
    "--data_path": _FOLDER,
    "-d": _FOLDER,
    "--target": _RELEASE,
    "--subset": _RELEASE,
    "-s": _RELEASE,
    "--gpu": f"{_DEVICE}; several compute under horovodrun -np 4",
    "--is_one_2_N": "give --protocol 1:N",
    "-N": "give --protocol 1:N",
    "--is_bunch": _TESTS,
    "-B": _TESTS,
    "--save_result": _NAMES,
    "-R": _NAMES,
    "--save_label": _LABELS,
    "-L": _LABELS,
    "--save_embeddings": _KEPT,
    "-E": _KEPT,
    "--force_reload": _ANEW,
    "-F": _ANEW,
    "--plot_only": _KEPT,
    "-P": _KEPT,
}

SYNONYMS: Mapping[str, str] = {"--batch_size": "--batch-size", "-b": "--batch-size"}
"""Options that are taken under both names."""
