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

EMBED: Mapping[str, str] = {
    **dict.fromkeys(
        ("--facescrub-lst", "--facescrub-root", "--megaface-lst", "--megaface-root"), _IMAGES
    ),
    "--algo": "leave it out: --out names the files",
    "--output": "give --out NAME: NAME.npy has a row per image, and NAME.tsv the images' names",
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
