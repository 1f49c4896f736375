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
    given,
    models_of,
    reports,
    stop,
    updates,
)
from training import best_model, dry_run, model_saver, run, verifier
from training.checkpoint import resume
from training.checkpoint.writer import Checkpointer
from training.config.faces import resolve
from training.log import run_log
from training.update import finite_guard, optimizer, parameter_updates, teacher


def of_graph(argument: str) -> Callable[[Witness], Any]:
    """Make a function that tells what the network that trains was built with."""
    return lambda seen: seen.calls("backbones.build")[-1][argument]


def of_head(attribute: str) -> Callable[[Witness], Any]:
    """Make a function that tells what the head of the run computes with."""
    return lambda seen: getattr(seen.call("PartialFC").result, attribute)


def rates(seen: Witness) -> list[float]:
    """The learning rate of the backbone at each update."""
    return [round(call["lr"], 9) for call in seen.calls("BackboneOptimizer.update")]


# Warm-up of two updates, a half from the fourth on and another from the fifth.
RATES = [0.02, 0.04, 0.04, 0.02, 0.01]
# Four identities with three images, the last with one; and three with three.
FOLDERS = {"A": (3, 3, 3, 1), "B": (3, 3, 3)}
FOUND_CLASSES = 6

ROWS: dict[str, Row] = {
    "dataset": Row(
        "drawn",
        "--dataset synthetic",
        lambda seen: seen.was_called("face_set.ensure"),
        True,
    ),
    "rec": Row(
        "records",
        "--rec {folder}/A --rec {folder}/B",
        lambda seen: seen.call("FaceLoader").result.num_classes,
        FOUND_CLASSES,
    ),
    "num_classes": Row("drawn", "--num-classes 4", given("face_set.ensure", "identities"), 4),
    "num_images": Row(
        "drawn", "--num-images 8", given("face_set.ensure", "images_per_identity"), 2
    ),
    "val_targets": Row(
        "records",
        "--val-targets seen",
        lambda seen: [target.name for target in seen.call("Verifier")["targets"]],
        ["seen"],
    ),
    "min_images": Row(
        # Without it there is a class more.
        "records",
        "--min-images 2",
        lambda seen: seen.call("PartialFC.create")["shape"][0],
        FOUND_CLASSES,
    ),
    "class_balance": Row(
        "records", "--class-balance 0.5", given("Selection", "class_balance"), 0.5
    ),
    "color_jitter": Row(
        "records",
        "--color-jitter 0.25",
        given("Augmentation", "color_jitter"),
        0.25,
    ),
    "jpeg_compression": Row(
        "records", "--jpeg-compression 0.5", given("Augmentation", "jpeg_compression"), 0.5
    ),
    "low_resolution": Row(
        "records", "--low-resolution 0.625", given("Augmentation", "low_resolution"), 0.625
    ),
    "blur": Row("records", "--blur 0.375", given("Augmentation", "blur"), 0.375),
    "gray": Row("records", "--gray 0.75", given("Augmentation", "gray"), 0.75),
    "cutout": Row(
        "records",
        "--cutout 0.125",
        given("Augmentation", "cutout"),
        0.125,
    ),
    "max_bad_records": Row(
        "records",
        "--max-bad-records 7",
        lambda seen: seen.call("FaceLoader")["options"].max_bad_records,
        7,
    ),
    "threads": Row("records", "--threads 3", given("Prefetcher", "threads"), 3),
    "network": Row("records", "--network tiny", of_graph("name"), "tiny"),
    "pretrained": Row(
        "records",
        "--pretrained {folder}/earlier,3",
        lambda seen: seen.call("Backbone.load_pretrained").result.path.name,
        "earlier-0003.params",
    ),
    "embedding_size": Row(
        "records",
        "--embedding-size 24",
        lambda seen: [
            of_graph("embedding_size")(seen),
            seen.call("PartialFC.create").result.rows.export()["centers"].shape[1],
        ],
        [24, 24],
    ),
    "dtype": Row(
        "types",
        "--dtype float16",
        lambda seen: [
            of_graph("dtype")(seen),
            *(seen.call(name)["dtype"] for name in ("devices.choose", "BackboneOptimizer")),
        ],
        ["float16"] * 3,
    ),
    "net_output": Row("types", "--net-output GNAP", of_graph("output"), "GNAP"),
    "recompute": Row(
        "records",
        "--recompute",
        # Of each part of a batch.
        lambda seen: type(seen.call("Backbone.create").result._training_pass._network),
        Recomputation,
    ),
    "sync_bn": Row(
        "types",
        "--sync-bn",
        lambda seen: type(seen.call("Backbone.create").result._training_pass),
        SynchronizedPass,
    ),
    "accumulate": Row(
        "records",
        "--accumulate 3",
        lambda seen: seen.call("Backbone.create").result._training_pass._parts,
        3,
    ),
    "head_dtype": Row(
        "types",
        "--head-dtype bfloat16",
        lambda seen: of_head("_products")(seen)._dtype,
        BFLOAT16,
    ),
    "loss": Row(
        "types",
        "--loss adaface",
        lambda seen: type(seen.call("PartialFC")["margin"]),
        margin.AdaFace,
    ),
    "margins": Row(
        "memory",
        "--margins 1,0.25,0.125",
        lambda seen: seen.call("PartialFC")["margin"],
        margin.CombinedMargin(1.0, 0.25, 0.125),
    ),
    "scale": Row("records", "--scale 24", of_head("_scale"), 24.0),
    "filter_threshold": Row(
        "records", "--filter-threshold 0.75", of_head("_filter_threshold"), 0.75
    ),
    "pretrained_centers": Row(
        "types",
        "--pretrained-centers {folder}/centers",
        lambda seen: float(seen.call("PartialFC.create").result.rows.export()["centers"][6, 15]),
        0.75,
    ),
    "center_store": Row(
        "memory",
        "--center-store {folder}/store",
        lambda seen: type(seen.call("PartialFC.create").result.rows).__name__,
        "StoredRows",
    ),
    "center_memory": Row(
        "memory",
        "--center-memory 0.5",
        lambda seen: seen.call("PartialFC.create").result.rows.options.memory,
        2**29,
    ),
    "sample_ratio": Row("records", "--sample-ratio 0.5", given("Sampler", "ratio"), 0.5),
    "batch_size": Row(
        "records",
        "--batch-size 3",
        lambda seen: [
            {len(call["features"]) for call in seen.calls("PartialFC.step")},
            seen.call("Verifier")["batch_size"],
            seen.call("run.fit")["updates"].images,
        ],
        [{3}, 3, 3],
    ),
    "lr": Row("records", "--lr 0.04", rates, RATES),
    "center_lr": Row(
        "records",
        "--center-lr 0.01",
        lambda seen: [round(call["lr"], 9) for call in seen.calls("PartialFC.step")],
        [rate / 4 for rate in RATES],
    ),
    "optimizer": Row(
        "memory",
        "--optimizer adam",
        lambda seen: [
            type(seen.call("Trainer")["optimizer"]).__name__,
            seen.call("optimizers.build").result.states.keys(),
        ],
        ["Adam", {"first_moments", "second_moments", "step_counts"}],
    ),
    "momentum": Row(
        "records",
        "--momentum 0.75",
        lambda seen: [
            seen.call("Trainer")["optimizer"].momentum,
            seen.call("optimizers.build").result.momentum,
        ],
        [0.75, 0.75],
    ),
    "wd": Row(
        "records",
        "--wd 0.003",
        lambda seen: [
            seen.call("Trainer")["optimizer"].wd,
            seen.call("optimizers.build").result.weight_decay,
        ],
        [0.003, 0.003],
    ),
    "clip_norm": Row(
        "records",
        "--clip-norm 0.75",
        lambda seen: {call["max_norm"] for call in seen.calls("parameter_updates.clip")},
        {0.75},
    ),
    "freeze": Row(
        "records",
        "--freeze stage2_bn0_beta",
        lambda seen: [
            name
            for name, parameter in seen.call("Trainer")["params"].items()
            if parameter.grad_req == "null" and name.endswith(("_beta", "_bias"))
        ],
        ["stage2_bn0_beta"],
    ),
    "lr_schedule": Row("records", "--lr-schedule step", rates, RATES),
    "lr_steps": Row("records", "--lr-steps 3,4", rates, RATES),
    "lr_factor": Row("records", "--lr-factor 0.5", rates, RATES),
    # Down to 0 after six updates.
    "lr_power": Row(
        "memory",
        "--lr-power 1",
        rates,
        [0.01, 0.008333333, 0.006666667, 0.005, 0.003333333, 0.001666667],
    ),
    "warmup": Row("records", "--warmup 2", rates, RATES),
    "max_update": Row(
        "records",
        "--max-update 5",
        lambda seen: updates(seen, "BackboneOptimizer.update"),
        [0, 1, 2, 3, 4],
    ),
    "epochs": Row(
        # Three identities, as if each had one image, in batches of one.
        "memory",
        "--epochs 2",
        lambda seen: len(seen.calls("BackboneOptimizer.update")),
        6,
    ),
    "frequent": Row(
        "records", "--frequent 2", lambda seen: reports(seen, have_targets=False), [2, 4, 5]
    ),
    "verbose": Row(
        "records", "--verbose 3", lambda seen: reports(seen, have_targets=True), [0, 3, 5]
    ),
    "best": Row(
        "records", "--best seen", lambda seen: seen.call("BestModel")["deciding"], "seen"
    ),
    "teacher": Row(
        # Frozen parameters and parts of a batch are of the same run.
        "records",
        "--teacher {folder}/earlier,3",
        lambda seen: [call["prefix"][-8:] for call in seen.calls("Backbone.load")],
        ["/earlier"],
    ),
    "teacher_weight": Row(
        "records", "--teacher-weight 0.5", given("Teacher", "weight"), 0.5
    ),
    "save_interval": Row(
        "records",
        "--save-interval 2",
        lambda seen: [
            [
                call["update"]
                for call in seen.calls("ModelSaver.save")
                if call["self"] is seen.calls("ModelSaver")[1].result
            ],
            updates(seen, "Checkpointer.save"),
        ],
        [[2, 4, 5], [2, 4, 5]],
    ),
    "keep": Row(
        "records",
        "--keep 1",
        lambda seen: names_in(models_of(seen) / "checkpoints"),
        ["update-00000005"],
    ),
    "resume": Row(
        "records",
        "--resume never",
        lambda seen: [
            seen.call("resume.find")["resume"],
            seen.call("resume.find")["storage"].root == models_of(seen),
        ],
        ["never", True],
    ),
    "on_nan": Row(
        "records",
        "--on-nan skip",
        lambda seen: [
            seen.call("FiniteGuard").result.skips,
            {call["hold"] for call in seen.calls("PartialFC.step")},
        ],
        [True, {True}],
    ),
    "stall_timeout": Row(
        "records",
        "--stall-timeout 321",
        lambda seen: [
            seen.call("environment.prepare_stall_check")["seconds"],
            seen.call("Watchdog")["seconds"],
        ],
        [321, 321],
    ),
    "models_root": Row(
        "records",
        "--models-root {folder}/models",
        lambda seen: RUN_FILES.difference(names_in(models_of(seen))),
        set(),
    ),
    "seed": Row(
        "records",
        "--seed 9",
        lambda seen: [
            seen.call(name)["seed"] for name in ("FaceLoader", "Backbone.create", "Sampler")
        ]
        + [seen.call("PartialFC.create")["seed"]],
        [9, 9, 9, 9],
    ),
    "debug": Row(
        "memory",
        "--debug",
        lambda seen: [
            seen.call("MemoryBatches")["num_classes"],
            seen.call("RunLog.summarize")["debug"],
        ],
        [3, True],
    ),
    "dry_run": Row(
        "plan",
        "--dry-run",
        lambda seen: ["bytes per collective" in seen.output, seen.was_called("RunLog")],
        [True, False],
    ),
    "world_size": Row(
        "plan",
        "--world-size 7",
        lambda seen: seen.call("dry_run.describe")["config"].dry_run.world_size,
        7,
    ),
    "json": Row(
        "plan in JSON",
        "--json",
        lambda seen: json.loads(seen.output)["ranks"],
        1,
    ),
    "memory": Row(
        "plan in JSON",
        "--memory 1.5",
        lambda seen: json.loads(seen.output)["memory_limit"],
        3 * 2**29,
    ),
    "gpu": Row(
        "plan",
        "--gpu",
        lambda seen: "memory of rank 0 on a GPU" in seen.output,
        True,
    ),
}

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


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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


def watch(seen: Witness) -> None:
    """Watch whatever obeys an option."""
    seen.watch(face_loader, "Augmentation", "FaceLoader", "MemoryBatches")
    seen.watch(loader, "Prefetcher")
    seen.watch(selection, "Selection")
    seen.watch(Backbone, "create", "load", "load_pretrained")
    seen.watch(teacher, "Teacher")
    seen.watch(backbones, "build")
    seen.watch(head, "PartialFC")
    seen.watch(head.PartialFC, "create", "step")
    seen.watch(shard, "Sampler")
    seen.watch(optimizers, "build")
    seen.watch(mx.gluon, "Trainer")
    seen.watch(parameter_updates, "clip")
    seen.watch(optimizer, "BackboneOptimizer")
    seen.watch(optimizer.BackboneOptimizer, "update")
    seen.watch(run_log, "RunLog", "Watchdog")
    seen.watch(run_log.RunLog, "summarize")
    seen.watch(run, "fit")
    seen.watch(dry_run, "describe")
    seen.watch(resume, "find")
    seen.watch(verifier, "Verifier")
    seen.watch(finite_guard, "FiniteGuard")
    seen.watch(best_model, "BestModel")
    seen.watch(model_saver, "ModelSaver")
    seen.watch(model_saver.ModelSaver, "save")
    seen.watch(Checkpointer, "save")
    seen.watch(environment, "prepare_stall_check")


def witness(kind: str, folder: Path) -> Witness:
    words = [row.words for row in ROWS.values() if row.run == kind]
    words.append(FURTHER[kind])
    with pytest.MonkeyPatch.context() as patch:
        seen = Witness(patch)
        watch(seen)
        seen.replace(face_set, "ensure", stop)
        for name in ("CHECK_TIME", "SHUTDOWN_TIME"):
            patch.setenv(f"HOROVOD_STALL_{name}_SECONDS", "600")
        if kind == "types":
            # No machine of the tests needs to have them.
            seen.replace(devices, "choose", lambda ranks, dtype: mx.cpu())
            patch.setattr(processors, "request_tiles", lambda: True)
            seen.replace(run, "fit", stop)
        seen.run(train, " ".join(words).replace("{folder}", str(folder)).split())
    return seen


@pytest.fixture(scope="module")
def witnessed(folder: Path) -> Callable[[str], Witness]:
    """Return a function that returns what was witnessed of a run, each of which runs once."""
    runs: dict[str, Witness] = {}

    def find(run: str) -> Witness:
        if run not in runs:
            runs[run] = witness(run, folder)
        return runs[run]

    return find


FIELDS = list(options.values(resolve({})))


@pytest.mark.parametrize("name", FIELDS)
def test_an_option_arrives_where_it_is_obeyed(name: str, witnessed) -> None:
    assert name in ROWS, f"a new option needs a row that shows who obeys it: {name}"
    row = ROWS[name]
    assert row.seen(witnessed(row.run)) == row.expected


def test_each_row_is_of_an_option() -> None:
    assert set(ROWS) == set(FIELDS)


def test_made_up_batches_have_the_classes_that_are_asked_for(witnessed) -> None:
    assert "--num-classes 7" in FURTHER["types"]
    assert witnessed("types").call("MemoryBatches")["num_classes"] == 7


def test_made_up_batches_and_drawn_faces_have_the_seed_of_the_run(witnessed) -> None:
    assert "--seed 7" in FURTHER["memory"] and "--seed 5" in FURTHER["drawn"]
    assert witnessed("memory").call("MemoryBatches")["seed"] == 7
    assert witnessed("drawn").call("face_set.ensure")["seed"] == 5
