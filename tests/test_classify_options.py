"""Every option of ``classify.py``, from the command line to the part that obeys it.

As ``tests.test_train_options`` does for faces: a few runs in this process, each option with another
value than its default, and a table of where that has to arrive.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import classify
from backbones import classifiers
from backbones.classifiers import Normalization, classifier
from backbones.classifiers.classifier import Classifier
from backbones.graph.synchronized import SynchronizedPass
from backbones.options import ClassifierOptions
from data.batches import broken, image_loader, loader
from data.drawn import patterns
from data.images import imagenet, mnist
from parallel.parameter_server import exchange
from parallel.parameter_server.assignment import WORKER, Assignment, Share
from parallel.world import LoneWorld, Wire
from runtime import devices, environment, options
from runtime.mxnet import mx
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
from training import image_data, model_saver, run
from training.checkpoint import resume, writer
from training.config.images import ImageConfig
from training.exchange import server_workers, workers
from training.log import run_log
from training.plan import images
from training.update import classify_step, optimizer, parameter_updates, soft_targets

# Six updates in an epoch, of which three are warm-up; a half from the second epoch on.
RATES = [0.02 * (update + 1) / 3 for update in range(3)] + [0.02] * 3 + [0.01] * 12


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def rates(seen: Witness) -> list[float]:
    return [call["lr"] for call in seen.calls("BackboneOptimizer.update")]


def wire(seen: Witness) -> Wire:
    """How gradients were sent, always alike."""
    (found,) = {
        call["wire"]
        for call in seen.calls("LoneWorld.allreduce_all")
        if call["name"] == "backbone.gradient"
    }
    return found


def of_graph(argument: str) -> Callable[[Witness], Any]:
    """Make a function that tells what the network that trains was built with."""
    return lambda seen: seen.calls("classifiers.build")[-1][argument]


def of_images(argument: str) -> Callable[[Witness], Any]:
    """Make a function that tells what the training set and the validation set were drawn with."""
    return lambda seen: [call[argument] for call in seen.calls("DrawnImages")]


ROWS: dict[str, Row] = {
    "dataset": Row("drawn", "--dataset synthetic", of_images("part"), ["training", "validation"]),
    "data_dir": Row(
        "folder",
        "--data-dir {folder}/idx",
        lambda seen: seen.call("mnist.read")["folder"].name,
        "idx",
    ),
    "rec_train": Row(
        "files",
        "--rec-train {folder}/a.rec",
        lambda seen: seen.call("imagenet.read_records")["training"].name,
        "a.rec",
    ),
    "rec_val": Row(
        "files",
        "--rec-val {folder}/b.rec",
        lambda seen: seen.call("imagenet.read_records")["validation"].name,
        "b.rec",
    ),
    "num_classes": Row(
        "drawn",
        "--num-classes 6",
        lambda seen: [*of_images("num_classes")(seen), seen.call("Classifier.create")["classes"]],
        [6, 6, 6],
    ),
    "num_images": Row("drawn", "--num-images 40", of_images("count"), [40, 8]),
    "image_size": Row(
        "drawn",
        "--image-size 16",
        lambda seen: [
            *of_images("shape")(seen),
            seen.call("Classifier.create")["image_shape"],
            {call["batch"].images.shape for call in seen.calls("ClassifyStep.__call__")},
        ],
        [(16, 16, 3), (16, 16, 3), (3, 16, 16), {(5, 3, 16, 16)}],
    ),
    "threads": Row(
        "drawn",
        "--threads 3",
        lambda seen: {call["threads"] for call in seen.calls("Prefetcher")},
        {3},
    ),
    "max_bad_records": Row(
        "drawn",
        "--max-bad-records 7",
        lambda seen: {call["limit"] for call in seen.calls("BrokenImages")},
        {7},
    ),
    "model": Row("drawn", "--model ResNet18", of_graph("name"), "ResNet18"),
    "last_gamma": Row(
        "drawn", "--last-gamma", lambda seen: seen.was_called("classifier._last_gammas"), True
    ),
    "sync_bn": Row(
        "drawn",
        "--sync-bn",
        lambda seen: type(seen.call("Classifier.create").result._training_pass),
        SynchronizedPass,
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
    "batch_size": Row(
        "drawn",
        "--batch-size 5",
        lambda seen: [
            {len(call["batch"].labels) for call in seen.calls("ClassifyStep.__call__")},
            {call["batch_size"] for call in seen.calls("image_data.each_once")},
            seen.call("run.fit")["updates"].images,
        ],
        [{5}, {5}, 5],
    ),
    "epochs": Row(
        "drawn", "--epochs 3", lambda seen: updates(seen, "BackboneOptimizer.update"), [*range(18)]
    ),
    "lr": Row("drawn", "--lr 0.02", rates, pytest.approx(RATES)),
    "no_lr_scaling": Row(
        "two ranks",
        "--no-lr-scaling",
        lambda seen: seen.call("run.fit")["updates"].schedule.lr_at(0),
        pytest.approx(0.25),
    ),
    "warmup_epochs": Row("drawn", "--warmup-epochs 0.5", rates, pytest.approx(RATES)),
    "lr_schedule": Row("drawn", "--lr-schedule step", rates, pytest.approx(RATES)),
    "lr_steps": Row("drawn", "--lr-steps 1", rates, pytest.approx(RATES)),
    "lr_factor": Row("drawn", "--lr-factor 0.5", rates, pytest.approx(RATES)),
    "lr_power": Row(
        "two ranks",
        "--lr-power 1",
        lambda seen: [seen.call("run.fit")["updates"].schedule.lr_at(update) for update in (0, 6)],
        pytest.approx([0.25, 0.125]),
    ),
    "momentum": Row(
        "drawn", "--momentum 0.75", lambda seen: seen.call("Trainer")["optimizer"].momentum, 0.75
    ),
    "wd": Row("drawn", "--wd 0.003", lambda seen: seen.call("Trainer")["optimizer"].wd, 0.003),
    "clip_norm": Row(
        "drawn",
        "--clip-norm 0.75",
        lambda seen: {call["max_norm"] for call in seen.calls("parameter_updates.clip")},
        {0.75},
    ),
    "pretrained": Row(
        # Of a network for three classes.
        "two ranks",
        "--pretrained {folder}/earlier,0",
        lambda seen: seen.call("Classifier.load_pretrained").result,
        ["fc_output_weight", "fc_output_bias"],
    ),
    "freeze": Row(
        "two ranks",
        "--freeze fc1_bias",
        lambda seen: [
            name
            for name, parameter in seen.call("Trainer")["params"].items()
            if parameter.grad_req == "null" and name.endswith(("_beta", "_bias"))
        ],
        ["fc1_bias"],
    ),
    "label_smoothing": Row(
        "drawn",
        "--label-smoothing 0.3",
        lambda seen: seen.call("SoftTargets").result.smoothed([1]).tolist()[0],
        pytest.approx([0.05, 0.75, 0.05, 0.05, 0.05, 0.05]),
    ),
    "mixup": Row(
        "drawn", "--mixup 0.2", lambda seen: seen.call("SoftTargets")["options"].mixup, 0.2
    ),
    "kv_store": Row(
        "servers",
        "--kv-store dist_ssync",
        lambda seen: seen.call("Exchange")["scheme"].is_bounded,
        True,
    ),
    "staleness": Row("servers", "--staleness 3", given("Exchange", "staleness"), 3),
    "data_allocator": Row(
        # A quarter of the images, not half of them.
        "servers",
        "--data-allocator 1",
        lambda seen: seen.call("ImageLoader")["epoch_part"].length,
        10,
    ),
    "rebalance": Row(
        "groups",
        "--rebalance 2",
        lambda seen: [
            seen.call("HorovodWorld")["regroups"],
            # Of six epochs of 20 images for each group, in batches of 5.
            seen.call("run.fit")["updates"].total,
        ],
        [True, 8],
    ),
    "num_examples": Row(
        "drawn",
        "--num-examples 30",
        lambda seen: seen.call("ImageLoader")["epoch_part"].length,
        30,
    ),
    "fp16_allreduce": Row("drawn", "--fp16-allreduce", lambda seen: wire(seen).is_float16, True),
    "gradient_predivide_factor": Row(
        "drawn", "--gradient-predivide-factor 4", lambda seen: wire(seen).predivide_factor, 4.0
    ),
    "eval_frequency": Row(
        "drawn", "--eval-frequency 2", lambda seen: reports(seen, have_targets=True), [12, 18]
    ),
    "save_frequency": Row(
        "drawn",
        "--save-frequency 2",
        lambda seen: [
            # The best model has a saver of its own.
            [
                call["update"]
                for call in seen.calls("ModelSaver.save")
                if call["self"] is seen.calls("ModelSaver")[1].result
            ],
            updates(seen, "Checkpointer.save"),
        ],
        [[12, 18], [12, 18]],
    ),
    "keep": Row(
        "drawn",
        "--keep 1",
        lambda seen: names_in(models_of(seen) / "checkpoints"),
        ["update-00000018"],
    ),
    "resume": Row(
        "drawn",
        "--resume never",
        lambda seen: [
            seen.call("resume.find")["resume"],
            seen.call("resume.find")["storage"].root == models_of(seen),
        ],
        ["never", True],
    ),
    "stall_timeout": Row(
        "drawn",
        "--stall-timeout 321",
        lambda seen: [
            seen.call("environment.prepare_stall_check")["seconds"],
            seen.call("Watchdog")["seconds"],
        ],
        [321, 321],
    ),
    "frequent": Row(
        "drawn",
        "--frequent 8",
        lambda seen: reports(seen, have_targets=False),
        [8, 16, 18],
    ),
    "models_root": Row(
        "drawn",
        "--models-root {folder}/models",
        lambda seen: RUN_FILES.difference(names_in(models_of(seen))),
        set(),
    ),
    "seed": Row(
        "drawn",
        "--seed 9",
        lambda seen: [
            *of_images("seed")(seen),
            *(
                seen.call(name)["seed"]
                for name in ("ImageLoader", "Classifier.create", "SoftTargets")
            ),
        ],
        [9, 9, 9, 9, 9],
    ),
    "dry_run": Row(
        "plan",
        "--dry-run",
        lambda seen: ["allreduce of the" in seen.output, seen.was_called("RunLog")],
        [True, False],
    ),
    "world_size": Row(
        "plan",
        "--world-size 7",
        lambda seen: seen.call("images.describe")["config"].dry_run.world_size,
        7,
    ),
    "json": Row("plan in JSON", "--json", lambda seen: json.loads(seen.output)["ranks"], 1),
}

# What a run needs beside the options that are looked at.
SMALL = "--dataset synthetic --num-images 40 --image-size 16 --batch-size 5 "
FURTHER = {
    "drawn": "",
    "folder": "--dataset mnist --models-root {folder}/folder",
    "files": "--dataset imagenet --models-root {folder}/files",
    "types": SMALL + "--models-root {folder}/types",
    "two ranks": SMALL + "--lr 0.25 --lr-schedule poly --models-root {folder}/two",
    "servers": SMALL + "--momentum 0.75 --wd 0.003 --models-root {folder}/servers",
    "groups": SMALL
    + "--epochs 6 --kv-store dist_gsync --fp16-allreduce --gradient-predivide-factor 4 "
    + "--models-root {folder}/groups",
    "plan": SMALL,
    "plan in JSON": SMALL + "--dry-run",
}
PLACE = Assignment(WORKER, "127.0.0.1", 1, "127.0.0.1", "lo", num_workers=2, num_servers=1)
PLACES = {
    "servers": dataclasses.replace(PLACE, shares=(Share(0, 0.25), Share(0.25, 1))),
    "groups": dataclasses.replace(PLACE, groups=((0,), (1,))),
}


class GroupWorld(LoneWorld):
    """A rank alone in its group."""

    def __init__(self, groups: object = (), *, regroups: bool = False) -> None:
        super().__init__()

    def all_ranks(self) -> LoneWorld:
        """It is the only one."""
        return self


class OneOfTwo(LoneWorld):
    """Rank 0 of two; nothing is trained with it."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 2


def watch(seen: Witness) -> None:
    """Watch whatever obeys an option."""
    seen.watch(patterns, "DrawnImages")
    seen.watch(image_loader, "ImageLoader")
    seen.watch(broken, "BrokenImages")
    seen.watch(loader, "Prefetcher")
    seen.watch(image_data, "each_once")
    seen.watch(Classifier, "create", "load_pretrained")
    seen.watch(classifier, "_last_gammas")
    seen.watch(classifiers, "build")
    seen.watch(soft_targets, "SoftTargets")
    seen.watch(classify_step.ClassifyStep, "__call__")
    seen.watch(mx.gluon, "Trainer")
    seen.watch(parameter_updates, "clip")
    seen.watch(optimizer, "BackboneOptimizer")
    seen.watch(optimizer.BackboneOptimizer, "update")
    seen.watch(run_log, "RunLog", "Watchdog")
    seen.watch(run, "fit")
    seen.watch(resume, "find")
    seen.watch(model_saver, "ModelSaver")
    seen.watch(model_saver.ModelSaver, "save")
    seen.watch(writer.Checkpointer, "save")
    seen.watch(environment, "prepare_stall_check")
    seen.watch(LoneWorld, "allreduce_all")
    seen.watch(images, "describe")


def witness(kind: str, folder: Path) -> Witness:
    words = [row.words for row in ROWS.values() if row.run == kind]
    words.append(FURTHER[kind])
    with pytest.MonkeyPatch.context() as patch:
        seen = Witness(patch)
        watch(seen)
        patch.setattr(workers, "join_ranks", OneOfTwo if kind == "two ranks" else LoneWorld)
        for name in ("CHECK_TIME", "SHUTDOWN_TIME"):
            patch.setenv(f"HOROVOD_STALL_{name}_SECONDS", "600")
        if kind == "types":
            # No machine of the tests needs to have them.
            seen.replace(devices, "choose", lambda ranks, dtype: mx.cpu())
        if kind in PLACES:
            for name, value in PLACES[kind].variables().items():
                patch.setenv(name, value)
            seen.watch(server_workers, "Exchange", "ServerOptimizer")
            # There are no servers that could be met.
            seen.replace(exchange.Exchange, "start", lambda *_, **__: None)
            patch.setattr(server_workers, "HorovodWorld", GroupWorld)
            seen.watch(server_workers, "HorovodWorld")
        if kind != "drawn":
            seen.replace(mnist, "read", stop)
            seen.replace(imagenet, "read_records", stop)
            seen.replace(run, "fit", stop)
        seen.run(classify, " ".join(words).replace("{folder}", str(folder)).split())
    return seen


@pytest.fixture(scope="module")
def witnessed(tmp_path_factory) -> Callable[[str], Witness]:
    """Return a function that returns what was witnessed of a run, each of which runs once."""
    runs: dict[str, Witness] = {}
    folder = tmp_path_factory.mktemp("options")
    Classifier.create(
        ClassifierOptions(model="LeNet"),
        classes=3,
        image_shape=(3, 16, 16),
        normalization=Normalization((0.5,) * 3, (0.5,) * 3),
    ).export(folder / "earlier")

    def find(run: str) -> Witness:
        if run not in runs:
            runs[run] = witness(run, folder)
        return runs[run]

    return find


FIELDS = list(options.values(options.compose(ImageConfig, {})))


@pytest.mark.parametrize("name", FIELDS)
def test_an_option_arrives_where_it_is_obeyed(name: str, witnessed) -> None:
    assert name in ROWS, f"a new option needs a row that shows who obeys it: {name}"
    row = ROWS[name]
    assert row.seen(witnessed(row.run)) == row.expected


def test_each_row_is_of_an_option() -> None:
    assert set(ROWS) == set(FIELDS)


def test_servers_and_groups_get_what_ranks_get(witnessed) -> None:
    alone, group = witnessed("servers"), witnessed("groups")
    start = alone.call("Exchange.start")
    assert (start["momentum"], start["weight_decay"]) == (0.75, 0.003)
    assert alone.call("Exchange")["images_per_step"] == 5
    assert alone.call("ImageLoader")["epoch_part"].stride == 5
    assert group.call("ServerOptimizer")["wire"] == Wire(True, 4.0)
