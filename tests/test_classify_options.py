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
from data.batches import image_loader, loader
from data.drawn import patterns
from data.images import class_files, mnist
from parallel.parameter_server import exchange
from parallel.parameter_server.assignment import WORKER, Assignment, Share
from parallel.world import LoneWorld, Wire
from runtime import devices, environment, options
from runtime.mxnet import mx
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
from training import image_data, model_saver, run
from training.checkpoint import resume, writer
from training.config.images import ImageConfig
from training.exchange import server_workers, workers
from training.log import run_log
from training.plan import images
from training.update import classify_step, optimizer, parameter_updates

Seen = Callable[[Witness], Any]

# Six updates in an epoch, of which three are warm-up; a half from the second epoch on.
RATES = [0.02 * (update + 1) / 3 for update in range(3)] + [0.02] * 3 + [0.01] * 12


def rates(seen: Witness) -> list[float]:
    return [call["lr"] for call in seen.calls("BackboneOptimizer.update")]


def rates_at(*which: int) -> Seen:
    """Make a function that tells the learning rates that a run would have had."""
    return lambda seen: [seen.call("run.fit")["updates"].schedule(one) for one in which]


def wire(seen: Witness) -> Wire:
    """How gradients were sent, always alike."""
    calls = seen.calls("LoneWorld.allreduce_all")
    (found,) = {call["wire"] for call in calls if call["name"] == "backbone.gradient"}
    return found


def of_graph(argument: str) -> Seen:
    """Make a function that tells what the network that trains was built with."""
    return lambda seen: seen.calls("classifiers.build")[-1][argument]


def of_images(argument: str) -> Seen:
    """Make a function that tells what the training set and the validation set were drawn with."""
    return lambda seen: [call[argument] for call in seen.calls("DrawnImages")]


def of_rule(attribute: str) -> Seen:
    return lambda seen: getattr(seen.call("Trainer")["optimizer"], attribute)


# fmt: off
ROWS = by_option(
    Row("drawn", "--dataset synthetic", of_images("part"), ["training", "validation"]),
    Row("folder", "--data-dir {folder}/idx",
        lambda seen: seen.call("mnist.read")["folder"].name, "idx"),
    Row("files", "--rec-train {folder}/a.rec",
        lambda seen: seen.call("class_files.open_records")["training"].name, "a.rec"),
    Row("files", "--rec-val {folder}/b.rec",
        lambda seen: seen.call("class_files.open_records")["validation"].name, "b.rec"),
    Row("drawn", "--num-classes 6",
        lambda seen: [*of_images("num_classes")(seen), seen.call("Classifier.create")["classes"]],
        [6, 6, 6]),
    Row("drawn", "--num-images 40", of_images("count"), [40, 8]),
    Row("drawn", "--image-size 16",
        lambda seen: [
            *of_images("shape")(seen),
            seen.call("Classifier.create")["image_shape"],
            {call["batch"].images.shape for call in seen.calls("ClassifyStep.__call__")},
        ],
        [(16, 16, 3), (16, 16, 3), (3, 16, 16), {(5, 3, 16, 16)}]),
    Row("drawn", "--threads 3", each("Prefetcher", "threads"), {3}),
    Row("drawn", "--max-bad-records 7", each("BrokenImages", "limit"), {7}),
    Row("drawn", "--model ResNet18", of_graph("name"), "ResNet18"),
    Row("drawn", "--last-gamma", lambda seen: seen.was_called("classifier._last_gammas"), True),
    Row("drawn", "--sync-bn",
        lambda seen: type(seen.call("Classifier.create").result._training_pass), SynchronizedPass),
    Row("types", "--dtype float16",
        lambda seen: [
            of_graph("dtype")(seen),
            *(seen.call(name)["dtype"] for name in ("devices.choose", "BackboneOptimizer")),
        ],
        ["float16"] * 3),
    Row("drawn", "--batch-size 5",
        lambda seen: [
            {len(call["batch"].labels) for call in seen.calls("ClassifyStep.__call__")},
            each("image_data.each_once", "batch_size")(seen),
            seen.call("run.fit")["updates"].images,
        ],
        [{5}, {5}, 5]),
    Row("drawn", "--epochs 3",
        lambda seen: updates(seen, "BackboneOptimizer.update"), [*range(18)]),
    Row("drawn", "--lr 0.02", rates, pytest.approx(RATES)),
    Row("two ranks", "--no-lr-scaling", rates_at(0), pytest.approx([0.25])),
    Row("drawn", "--warmup-epochs 0.5", rates, pytest.approx(RATES)),
    Row("drawn", "--lr-schedule step", rates, pytest.approx(RATES)),
    Row("drawn", "--lr-steps 1", rates, pytest.approx(RATES)),
    Row("drawn", "--lr-factor 0.5", rates, pytest.approx(RATES)),
    Row("two ranks", "--lr-power 1", rates_at(0, 6), pytest.approx([0.25, 0.125])),
    Row("drawn", "--momentum 0.75", of_rule("momentum"), 0.75),
    Row("drawn", "--wd 0.003", of_rule("wd"), 0.003),
    Row("drawn", "--clip-norm 0.75", each("parameter_updates.clip", "max_norm"), {0.75}),
    # Of a network for three classes.
    Row("two ranks", "--pretrained {folder}/earlier,0",
        lambda seen: seen.call("Classifier.load_pretrained").result,
        ["fc_output_weight", "fc_output_bias"]),
    Row("two ranks", "--freeze fc1_bias",
        lambda seen: [
            name
            for name, parameter in seen.call("Trainer")["params"].items()
            if parameter.grad_req == "null" and name.endswith(("_beta", "_bias"))
        ],
        ["fc1_bias"]),
    Row("drawn", "--label-smoothing 0.3",
        lambda seen: seen.call("SoftTargets").result.smoothed([1]).tolist()[0],
        pytest.approx([0.05, 0.75, 0.05, 0.05, 0.05, 0.05])),
    Row("drawn", "--mixup 0.2", lambda seen: seen.call("SoftTargets")["options"].mixup, 0.2),
    Row("servers", "--kv-store dist_ssync",
        lambda seen: seen.call("Exchange")["scheme"].is_bounded, True),
    Row("servers", "--staleness 3", given("Exchange", "staleness"), 3),
    # A quarter of the images, not half of them.
    Row("servers", "--data-allocator 1",
        lambda seen: seen.call("ImageLoader")["epoch_part"].length, 10),
    # Of six epochs of 20 images for each group, in batches of 5.
    Row("groups", "--rebalance 2",
        lambda seen: [seen.call("HorovodWorld")["regroups"], seen.call("run.fit")["updates"].total],
        [True, 8]),
    Row("drawn", "--num-examples 30",
        lambda seen: seen.call("ImageLoader")["epoch_part"].length, 30),
    Row("drawn", "--fp16-allreduce", lambda seen: wire(seen).is_float16, True),
    Row("drawn", "--gradient-predivide-factor 4", lambda seen: wire(seen).predivide_factor, 4.0),
    Row("drawn", "--eval-frequency 2", lambda seen: reports(seen, have_targets=True), [12, 18]),
    Row("drawn", "--save-frequency 2", saves, [[12, 18], [12, 18]]),
    Row("drawn", "--keep 1", lambda seen: files_of(seen, "checkpoints"), ["update-00000018"]),
    Row("drawn", "--resume never", given("resume.find", "resume"), "never"),
    Row("drawn", "--stall-timeout 321",
        lambda seen: [
            seen.call(name)["seconds"] for name in ("environment.prepare_stall_check", "Watchdog")
        ],
        [321, 321]),
    Row("drawn", "--frequent 8", lambda seen: reports(seen, have_targets=False), [8, 16, 18]),
    Row("drawn", "--models-root {folder}/models",
        lambda seen: RUN_FILES.difference(files_of(seen)), set()),
    Row("drawn", "--seed 9",
        lambda seen: [
            *of_images("seed")(seen),
            *(seen.call(one)["seed"] for one in ("ImageLoader", "Classifier.create",
                                                 "SoftTargets")),
        ],
        [9, 9, 9, 9, 9]),
    Row("plan", "--dry-run",
        lambda seen: ["allreduce of the" in seen.output, seen.was_called("RunLog")],
        [True, False]),
    Row("plan", "--world-size 7",
        lambda seen: seen.call("images.describe")["config"].dry_run.world_size, 7),
    Row("plan in JSON", "--json", lambda seen: json.loads(seen.output)["ranks"], 1),
)
# fmt: on

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


# Whatever obeys an option.
# fmt: off
WATCHED: tuple[tuple[Any, ...], ...] = (
    (patterns, "DrawnImages"), (image_loader, "ImageLoader"), (loader, "BrokenImages"),
    (loader, "Prefetcher"), (image_data, "each_once"), (Classifier, "create", "load_pretrained"),
    (classifier, "_last_gammas"), (classifiers, "build"), (classify_step, "SoftTargets"),
    (classify_step.ClassifyStep, "__call__"), (mx.gluon, "Trainer"), (parameter_updates, "clip"),
    (optimizer, "BackboneOptimizer"), (optimizer.BackboneOptimizer, "update"),
    (run_log, "RunLog", "Watchdog"), (run, "fit"), (resume, "find"), (model_saver, "ModelSaver"),
    (model_saver.ModelSaver, "save"), (writer.Checkpointer, "save"),
    (environment, "prepare_stall_check"), (LoneWorld, "allreduce_all"), (images, "describe"),
)
# fmt: on


def witness(kind: str, folder: Path) -> Witness:
    words = [row.words for row in ROWS.values() if row.run == kind]
    words.append(FURTHER[kind])
    with pytest.MonkeyPatch.context() as patch:
        seen = Witness(patch)
        for owner, *names in WATCHED:
            seen.watch(owner, *names)
        patch.setattr(workers, "join_ranks", OneOfTwo if kind == "two ranks" else LoneWorld)
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
            seen.replace(class_files, "open_records", stop)
            seen.replace(run, "fit", stop)
        seen.run(classify, " ".join(words).replace("{folder}", str(folder)).split())
    return seen


@pytest.fixture(scope="module")
def witnessed(tmp_path_factory) -> dict[str, Witness]:
    folder = tmp_path_factory.mktemp("options")
    Classifier.create(
        ClassifierOptions(model="LeNet"),
        classes=3,
        image_shape=(3, 16, 16),
        normalization=Normalization((0.5,) * 3, (0.5,) * 3),
    ).export(folder / "earlier")
    return {kind: witness(kind, folder) for kind in FURTHER}


@pytest.mark.parametrize("name", ROWS)
def test_an_option_arrives_where_it_is_obeyed(name: str, witnessed) -> None:
    row = ROWS[name]
    assert row.seen(witnessed[row.run]) == row.expected


def test_every_option_has_a_row() -> None:
    assert set(ROWS) == set(options.values(options.compose(ImageConfig, {})))


def test_servers_and_groups_get_what_ranks_get(witnessed) -> None:
    alone, group = witnessed["servers"], witnessed["groups"]
    start = alone.call("Exchange.start")
    assert (start["momentum"], start["weight_decay"]) == (0.75, 0.003)
    assert alone.call("Exchange")["images_per_step"] == 5
    assert alone.call("ImageLoader")["epoch_part"].stride == 5
    assert group.call("ServerOptimizer")["wire"] == Wire(True, 4.0)
