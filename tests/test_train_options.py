"""Every option of ``train.py``, from the command line to the part that obeys it.

A few runs in this process are given all options, each another value than its default, and are
watched (``tests.support.witness``). A table says of each option where its value has to arrive; an
option without a row fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import backbones
import train
from backbones.graph.recompute import Recomputation
from backbones.graph.synchronized import SynchronizedPass
from backbones.model import Backbone
from backbones.options import BackboneOptions
from data.batches import face_loader, loader, selection
from data.drawn import face_set
from data.records.writer import RecordWriter
from data.verification import bin_file
from partial_fc import head, margin, optimizers, shard
from runtime import devices, environment, options, processors
from runtime.mxnet import mx
from runtime.ndarray import BFLOAT16
from tests.support.witness import (
    RUN_FILES,
    Row,
    Witness,
    by_option,
    each,
    files_of,
    given,
    reports,
    saves,
    stop,
    updates,
)
from training import best_model, model_saver, run, verifier
from training.checkpoint import resume
from training.checkpoint.writer import Checkpointer
from training.config.faces import resolve
from training.log import run_log
from training.plan import faces as plan
from training.update import finite_guard, optimizer, parameter_updates, teacher

Seen = Callable[[Witness], Any]


def of_graph(argument: str) -> Seen:
    """Make a function that tells what the network that trains was built with."""
    return lambda seen: seen.calls("backbones.build")[-1][argument]


def of_head(attribute: str) -> Seen:
    """Make a function that tells what the head of the run computes with."""
    return lambda seen: getattr(seen.call("PartialFC").result, attribute)


def centers(seen: Witness) -> np.ndarray:
    return seen.call("PartialFC.create").result.rows.export()["centers"]


def training_pass(seen: Witness) -> Any:
    return seen.call("Backbone.create").result._training_pass


def of_rules(backbone: str, centers: str) -> Seen:
    """Make a function that tells what the optimizers of backbone and centers compute with."""
    return lambda seen: [
        getattr(seen.call("Trainer")["optimizer"], backbone),
        getattr(seen.call("optimizers.build").result, centers),
    ]


def rates(seen: Witness) -> list[float]:
    """The learning rate of the backbone at each update."""
    return [round(call["lr"], 9) for call in seen.calls("BackboneOptimizer.update")]


# Warm-up of two updates, a half from the fourth on and another from the fifth.
RATES = [0.02, 0.04, 0.04, 0.02, 0.01]
# Four identities with three images, the last with one; and three with three.
FOLDERS = {"A": (3, 3, 3, 1), "B": (3, 3, 3)}
FOUND_CLASSES = 6

# fmt: off
ROWS = by_option(
    Row("drawn", "--dataset synthetic", lambda seen: seen.was_called("face_set.ensure"), True),
    Row("records", "--rec {folder}/A --rec {folder}/B",
        lambda seen: seen.call("FaceLoader").result.num_classes, FOUND_CLASSES),
    Row("drawn", "--num-classes 4", given("face_set.ensure", "identities"), 4),
    Row("drawn", "--num-images 8", given("face_set.ensure", "images_per_identity"), 2),
    Row("records", "--val-targets seen",
        lambda seen: [target.name for target in seen.call("Verifier")["targets"]], ["seen"]),
    # Without it there is a class more.
    Row("records", "--min-images 2",
        lambda seen: seen.call("PartialFC.create")["shape"][0], FOUND_CLASSES),
    Row("records", "--class-balance 0.5", given("Selection", "class_balance"), 0.5),
    Row("records", "--color-jitter 0.25", given("Augmentation", "color_jitter"), 0.25),
    Row("records", "--jpeg-compression 0.5", given("Augmentation", "jpeg_compression"), 0.5),
    Row("records", "--low-resolution 0.625", given("Augmentation", "low_resolution"), 0.625),
    Row("records", "--blur 0.375", given("Augmentation", "blur"), 0.375),
    Row("records", "--gray 0.75", given("Augmentation", "gray"), 0.75),
    Row("records", "--cutout 0.125", given("Augmentation", "cutout"), 0.125),
    Row("records", "--max-bad-records 7",
        lambda seen: seen.call("FaceLoader")["options"].max_bad_records, 7),
    Row("records", "--threads 3", given("Prefetcher", "threads"), 3),
    Row("records", "--network tiny", of_graph("name"), "tiny"),
    Row("records", "--pretrained {folder}/earlier,3",
        lambda seen: seen.call("Backbone.load_pretrained").result.path.name,
        "earlier-0003.params"),
    Row("records", "--embedding-size 24",
        lambda seen: [of_graph("embedding_size")(seen), centers(seen).shape[1]], [24, 24]),
    Row("types", "--dtype float16",
        lambda seen: [
            of_graph("dtype")(seen),
            *(seen.call(name)["dtype"] for name in ("devices.choose", "BackboneOptimizer")),
        ],
        ["float16"] * 3),
    Row("types", "--net-output GNAP", of_graph("output"), "GNAP"),
    # Of each part of a batch.
    Row("records", "--recompute", lambda seen: type(training_pass(seen)._part), Recomputation),
    Row("types", "--sync-bn", lambda seen: type(training_pass(seen)), SynchronizedPass),
    Row("records", "--accumulate 3", lambda seen: training_pass(seen)._parts, 3),
    Row("types", "--head-dtype bfloat16",
        lambda seen: of_head("_products")(seen)._dtype, BFLOAT16),
    Row("types", "--loss adaface",
        lambda seen: type(seen.call("PartialFC")["margin"]), margin.AdaFace),
    Row("memory", "--margins 1,0.25,0.125",
        given("PartialFC", "margin"), margin.CombinedMargin(1.0, 0.25, 0.125)),
    Row("records", "--scale 24", of_head("_scale"), 24.0),
    Row("records", "--filter-threshold 0.75", of_head("_filter_threshold"), 0.75),
    Row("types", "--pretrained-centers {folder}/centers",
        lambda seen: float(centers(seen)[6, 15]), 0.75),
    Row("memory", "--center-store {folder}/store",
        lambda seen: type(of_head("rows")(seen)).__name__, "StoredRows"),
    Row("memory", "--center-memory 0.5",
        lambda seen: of_head("rows")(seen).options.memory, 2**29),
    Row("records", "--sample-ratio 0.5", given("Sampler", "ratio"), 0.5),
    Row("records", "--batch-size 3",
        lambda seen: [
            {len(call["features"]) for call in seen.calls("PartialFC.step")},
            seen.call("Verifier")["batch_size"],
            seen.call("run.fit")["updates"].images,
        ],
        [{3}, 3, 3]),
    Row("records", "--lr 0.04", rates, RATES),
    Row("records", "--center-lr 0.01",
        lambda seen: [round(call["lr"], 9) for call in seen.calls("PartialFC.step")],
        [rate / 4 for rate in RATES]),
    Row("memory", "--optimizer adam",
        lambda seen: [
            type(seen.call("Trainer")["optimizer"]).__name__,
            seen.call("optimizers.build").result.states.keys(),
        ],
        ["Adam", {"first_moments", "second_moments", "step_counts"}]),
    Row("records", "--momentum 0.75", of_rules("momentum", "momentum"), [0.75, 0.75]),
    Row("records", "--wd 0.003", of_rules("wd", "weight_decay"), [0.003, 0.003]),
    Row("records", "--clip-norm 0.75", each("parameter_updates.clip", "max_norm"), {0.75}),
    Row("records", "--freeze stage2_bn0_beta",
        lambda seen: [
            name
            for name, parameter in seen.call("Trainer")["params"].items()
            if parameter.grad_req == "null" and name.endswith(("_beta", "_bias"))
        ],
        ["stage2_bn0_beta"]),
    Row("records", "--lr-schedule step", rates, RATES),
    Row("records", "--lr-steps 3,4", rates, RATES),
    Row("records", "--lr-factor 0.5", rates, RATES),
    # Down to 0 after six updates.
    Row("memory", "--lr-power 1",
        rates, [0.01, 0.008333333, 0.006666667, 0.005, 0.003333333, 0.001666667]),
    Row("records", "--warmup 2", rates, RATES),
    Row("records", "--max-update 5",
        lambda seen: updates(seen, "BackboneOptimizer.update"), [0, 1, 2, 3, 4]),
    # Three identities, as if each had one image, in batches of one.
    Row("memory", "--epochs 2", lambda seen: len(seen.calls("BackboneOptimizer.update")), 6),
    Row("records", "--frequent 2", lambda seen: reports(seen, have_targets=False), [2, 4, 5]),
    Row("records", "--verbose 3", lambda seen: reports(seen, have_targets=True), [0, 3, 5]),
    Row("records", "--best seen", given("BestModel", "deciding"), "seen"),
    # Frozen parameters and parts of a batch are of the same run.
    Row("records", "--teacher {folder}/earlier,3",
        lambda seen: seen.call("Backbone.load")["prefix"][-8:], "/earlier"),
    Row("records", "--teacher-weight 0.5", given("Teacher", "weight"), 0.5),
    Row("records", "--save-interval 2", saves, [[2, 4, 5], [2, 4, 5]]),
    Row("records", "--keep 1", lambda seen: files_of(seen, "checkpoints"), ["update-00000005"]),
    Row("records", "--resume never", given("resume.find", "resume"), "never"),
    Row("records", "--on-nan skip",
        lambda seen: [
            seen.call("FiniteGuard").result.skips, each("PartialFC.step", "hold")(seen)
        ],
        [True, {True}]),
    Row("records", "--stall-timeout 321",
        lambda seen: [
            seen.call(name)["seconds"] for name in ("environment.prepare_stall_check", "Watchdog")
        ],
        [321, 321]),
    Row("records", "--models-root {folder}/models",
        lambda seen: RUN_FILES.difference(files_of(seen)), set()),
    Row("records", "--seed 9",
        lambda seen: [
            seen.call(name)["seed"]
            for name in ("FaceLoader", "Backbone.create", "Sampler", "PartialFC.create")
        ],
        [9, 9, 9, 9]),
    Row("memory", "--debug",
        lambda seen: [
            seen.call("MemoryBatches")["num_classes"], seen.call("RunLog.summarize")["debug"]
        ],
        [3, True]),
    Row("plan", "--dry-run",
        lambda seen: ["bytes per collective" in seen.output, seen.was_called("RunLog")],
        [True, False]),
    Row("plan", "--world-size 7",
        lambda seen: seen.call("faces.describe")["config"].dry_run.world_size, 7),
    Row("plan in JSON", "--json", lambda seen: json.loads(seen.output)["ranks"], 1),
    Row("plan in JSON", "--memory 1.5",
        lambda seen: json.loads(seen.output)["memory_limit"], 3 * 2**29),
    Row("plan", "--gpu",
        lambda seen: "memory of rank 0 on a GPU" in seen.output, True),
)
# fmt: on

# What a run needs beside the options that are looked at.
FURTHER = {
    "records": "",
    "memory": (
        "--rec {folder}/B --network tiny --embedding-size 16 --batch-size 1 --lr 0.01 --wd 0 "
        "--seed 7 --models-root {folder}/memory"
    ),
    "types": (
        "--rec {folder}/B --debug --num-classes 7 --network tiny --embedding-size 16 "
        "--models-root {folder}/types"
    ),
    "drawn": "--rec {folder}/drawn --seed 5 --models-root {folder}/drawn-models",
    "plan": "--dataset webface",
    "plan in JSON": "--dataset webface --dry-run",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two record sets, a verification set and the model of an earlier run."""
    root = tmp_path_factory.mktemp("options")
    rng = np.random.default_rng(1)
    images = [
        cv2.imencode(".jpg", rng.integers(256, size=(32, 32, 3), dtype=np.uint8))[1].tobytes()
        for _ in range(24)
    ]
    for name, counts in FOLDERS.items():
        with RecordWriter(root / name, image_size=(32, 32)) as writer:
            for label, count in enumerate(counts):
                for image in images[:count]:
                    writer.write(image, label)
    bin_file.write_bin(root / "A" / "seen.bin", images, [True, False] * 6)
    Backbone.create(BackboneOptions(network="tiny", embedding_size=24), image_size=(32, 32)).export(
        root / "earlier"
    )
    (root / "centers").mkdir()
    mx.nd.save(str(root / "centers" / "0_centers.param"), mx.nd.full((7, 16), 0.75))
    (root / "earlier-0000.params").rename(root / "earlier-0003.params")
    return root


# Whatever obeys an option.
# fmt: off
WATCHED: tuple[tuple[Any, ...], ...] = (
    (face_loader, "Augmentation", "FaceLoader", "MemoryBatches"), (loader, "Prefetcher"),
    (selection, "Selection"), (Backbone, "create", "load", "load_pretrained"),
    (teacher, "Teacher"), (backbones, "build"), (head, "PartialFC"),
    (head.PartialFC, "create", "step"), (shard, "Sampler"), (optimizers, "build"),
    (mx.gluon, "Trainer"), (parameter_updates, "clip"), (optimizer, "BackboneOptimizer"),
    (optimizer.BackboneOptimizer, "update"), (run_log, "RunLog", "Watchdog"),
    (run_log.RunLog, "summarize"), (run, "fit"), (plan, "describe"), (resume, "find"),
    (verifier, "Verifier"), (finite_guard, "FiniteGuard"), (best_model, "BestModel"),
    (model_saver, "ModelSaver"), (model_saver.ModelSaver, "save"), (Checkpointer, "save"),
    (environment, "prepare_stall_check"),
)
# fmt: on


def witness(kind: str, folder: Path) -> Witness:
    words = [row.words for row in ROWS.values() if row.run == kind]
    words.append(FURTHER[kind])
    with pytest.MonkeyPatch.context() as patch:
        seen = Witness(patch)
        for owner, *names in WATCHED:
            seen.watch(owner, *names)
        seen.replace(face_set, "ensure", stop)
        if kind == "types":
            # No machine of the tests needs to have them.
            seen.replace(devices, "choose", lambda ranks, dtype: mx.cpu())
            patch.setattr(processors, "request_tiles", lambda: True)
            seen.replace(run, "fit", stop)
        seen.run(train, " ".join(words).replace("{folder}", str(folder)).split())
    return seen


@pytest.fixture(scope="module")
def witnessed(folder: Path) -> dict[str, Witness]:
    return {kind: witness(kind, folder) for kind in FURTHER}


@pytest.mark.parametrize("name", ROWS)
def test_an_option_arrives_where_it_is_obeyed(name: str, witnessed) -> None:
    row = ROWS[name]
    assert row.seen(witnessed[row.run]) == row.expected


def test_every_option_has_a_row() -> None:
    assert set(ROWS) == set(options.values(resolve({})))


def test_made_up_batches_and_drawn_faces_have_classes_and_seed_of_the_run(witnessed) -> None:
    assert witnessed["types"].call("MemoryBatches")["num_classes"] == 7
    assert witnessed["memory"].call("MemoryBatches")["seed"] == 7
    assert witnessed["drawn"].call("face_set.ensure")["seed"] == 5
