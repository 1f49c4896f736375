"""Every option of the programs, from the command line to the part that obeys it.

A few runs in this process are given all options, each another value than its default, and are
watched (``tests.support.witness``). A table says of each option where its value has to arrive; an
option without a row fails.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest

import backbones
import classify
import train
from backbones import classifiers
from backbones.classifiers import Normalization, classifier
from backbones.classifiers.classifier import Classifier
from backbones.graph.recompute import Recomputation
from backbones.graph.synchronized import SynchronizedPass
from backbones.model import Backbone
from backbones.options import BackboneOptions, ClassifierOptions
from data.batches import face_loader, image_loader, loader, selection
from data.drawn import face_set, patterns
from data.images import class_files, mnist
from data.records.writer import RecordWriter
from data.verification import bin_file
from parallel.parameter_server import exchange
from parallel.parameter_server.assignment import WORKER, Assignment, Share
from parallel.world import LoneWorld, Wire
from partial_fc import head, optimizers, shard
from partial_fc.margin import AdaFace, CombinedMargin
from runtime import devices, environment, options, processors
from runtime.mxnet import mx
from runtime.ndarray import BFLOAT16
from tests.support.witness import RUN_FILES, Witness, files_of, reports, saves, stop
from training import best_model, image_data, model_saver, run, verifier
from training.checkpoint import resume
from training.checkpoint.writer import Checkpointer
from training.config.faces import resolve
from training.config.images import ImageConfig
from training.exchange import server_workers, workers
from training.log import run_log
from training.plan import faces, images
from training.update import classify_step, finite_guard, optimizer, parameter_updates, teacher

Seen = Callable[[Witness], Any]
Row = tuple[Any, ...]
"""Options as they are typed; what should arrive; where: paths of ``Witness.values``, in all calls,
or functions of what was witnessed."""


class Run(NamedTuple):
    """A run, and where its options are seen."""

    further: str
    """What it needs beside the options that are looked at."""
    rows: list[Row]


def rates(seen: Witness) -> list[float]:
    """Return the learning rate of the backbone at each update."""
    return [round(lr, 9) for lr in seen.values("BackboneOptimizer.update.lr")]


def rates_at(*which: int) -> Seen:
    """Make a function that tells the learning rates that a run would have had."""
    return lambda seen: [seen.values("run.fit.updates.schedule")[0](update) for update in which]


def last(path: str) -> Seen:
    """Make a function that tells what the last call was given: of the network that trains."""
    return lambda seen: seen.values(path)[-1]


def every(path: str) -> Seen:
    return lambda seen: seen.values(path)


def wires(seen: Witness) -> set[Wire]:
    """Return how gradients were sent."""
    calls = seen.calls("LoneWorld.allreduce_all")
    return {call["wire"] for call in calls if call["name"] == "backbone.gradient"}


def frozen(seen: Witness) -> list[str]:
    return [
        name
        for name, parameter in seen.values("Trainer.params")[0].items()
        if parameter.grad_req == "null" and name.endswith(("_beta", "_bias"))
    ]


def have_no_log(seen: Witness) -> bool:
    words = ("bytes per collective", "allreduce of the")
    return not seen.was_called("RunLog") and any(one in seen.output for one in words)


def lacks(seen: Witness) -> set[str]:
    return RUN_FILES.difference(files_of(seen))


def printed(name: str) -> Seen:
    return lambda seen: json.loads(seen.output)[name]


# Four identities with three images, the last with one; and three with three.
FOLDERS = {"A": (3, 3, 3, 1), "B": (3, 3, 3)}
STALLS = ("environment.prepare_stall_check.seconds", "Watchdog.seconds")
DTYPES = ("devices.choose.dtype", "BackboneOptimizer.dtype")

# fmt: off
FACES = {
    "records": Run("", [
        ("--rec {folder}/A --rec {folder}/B", 6, "FaceLoader.result.num_classes"),
        # Without --min-images there is a class more.
        ("--min-images 2 --embedding-size 24", (6, 24), "PartialFC.create.shape"),
        ("--embedding-size 24", 24, last("backbones.build.embedding_size")),
        ("--val-targets seen", ["seen"], lambda seen: [
            target.name for target in seen.values("Verifier.targets")[0]]),
        ("--class-balance 0.5", 0.5, "Selection.class_balance"),
        ("--color-jitter 0.25", 0.25, "Augmentation.color_jitter"),
        ("--jpeg-compression 0.5", 0.5, "Augmentation.jpeg_compression"),
        ("--low-resolution 0.625", 0.625, "Augmentation.low_resolution"),
        ("--blur 0.375", 0.375, "Augmentation.blur"),
        ("--gray 0.75", 0.75, "Augmentation.gray"),
        ("--cutout 0.125", 0.125, "Augmentation.cutout"),
        ("--max-bad-records 7", 7, "FaceLoader.options.max_bad_records"),
        ("--threads 3", 3, "Prefetcher.threads"),
        ("--network tiny", "tiny", last("backbones.build.name")),
        ("--pretrained {folder}/earlier,3", "earlier-0003.params",
         "Backbone.load_pretrained.result.path.name"),
        # Of each part of a batch.
        ("--recompute", Recomputation, "Backbone.create.result._training_pass._part.__class__"),
        ("--accumulate 3", 3, "Backbone.create.result._training_pass._parts"),
        ("--scale 24", 24.0, "PartialFC.result._scale"),
        ("--filter-threshold 0.75", 0.75, "PartialFC.result._filter_threshold"),
        ("--sample-ratio 0.5", 0.5, "Sampler.ratio"),
        ("--batch-size 3", 3,
         "PartialFC.step.labels.size", "Verifier.batch_size", "run.fit.updates.images"),
        # Warm-up of two updates, a half from the fourth on and another from the fifth.
        ("--lr 0.04 --lr-schedule step --lr-steps 3,4 --lr-factor 0.5 --warmup 2",
         [0.02, 0.04, 0.04, 0.02, 0.01], rates),
        ("--center-lr 0.01", [0.005, 0.01, 0.01, 0.005, 0.0025], every("PartialFC.step.lr")),
        ("--momentum 0.75", 0.75, "Trainer.optimizer.momentum", "optimizers.build.result.momentum"),
        ("--wd 0.003", 0.003, "Trainer.optimizer.wd", "optimizers.build.result.weight_decay"),
        ("--clip-norm 0.75", 0.75, "parameter_updates.clip.max_norm"),
        ("--freeze stage2_bn0_beta", ["stage2_bn0_beta"], frozen),
        ("--max-update 5", [0, 1, 2, 3, 4], every("BackboneOptimizer.update.update")),
        ("--frequent 2", [2, 4, 5], lambda seen: reports(seen, have_targets=False)),
        ("--verbose 3", [0, 3, 5], lambda seen: reports(seen, have_targets=True)),
        ("--best seen", "seen", "BestModel.deciding"),
        # Frozen parameters and parts of a batch are of the same run.
        ("--teacher {folder}/earlier,3", "earlier",
         lambda seen: Path(seen.values("Backbone.load.prefix")[0]).name),
        ("--teacher-weight 0.5", 0.5, "Teacher.weight"),
        ("--save-interval 2", [[2, 4, 5], [2, 4, 5]], saves),
        ("--keep 1", ["update-00000005"], lambda seen: files_of(seen, "checkpoints")),
        ("--resume never", "never", "resume.find.resume"),
        ("--on-nan skip", True, "FiniteGuard.result.skips", "PartialFC.step.hold"),
        ("--stall-timeout 321", 321, *STALLS),
        ("--models-root {folder}/models", set(), lacks),
        ("--seed 9", 9,
         "FaceLoader.seed", "Backbone.create.seed", "Sampler.seed", "PartialFC.create.seed"),
    ]),
    "memory": Run("--rec {folder}/B --network tiny --embedding-size 16 --batch-size 1 --lr 0.01 "
                  "--wd 0 --models-root {folder}/memory", [
        ("--margins 1,0.25,0.125", CombinedMargin(1.0, 0.25, 0.125), "PartialFC.margin"),
        ("--center-store {folder}/store", "StoredRows", "PartialFC.result.rows.__class__.__name__"),
        ("--center-memory 0.5", 2**29, "PartialFC.result.rows.options.memory"),
        ("--optimizer adam", "Adam", "Trainer.optimizer.__class__.__name__"),
        ("--optimizer adam", {"first_moments", "second_moments", "step_counts"},
         lambda seen: seen.values("optimizers.build.result.states")[0].keys()),
        # Three identities, as if each had one image, in batches of one: down to 0 after 6 updates.
        ("--lr-power 1 --epochs 2",
         [0.01, 0.008333333, 0.006666667, 0.005, 0.003333333, 0.001666667], rates),
        ("--debug", 3, "MemoryBatches.num_classes"),
        ("--debug", True, "RunLog.summarize.debug"),
        ("--seed 7", 7, "MemoryBatches.seed"),
    ]),
    "types": Run("--rec {folder}/B --debug --network tiny --embedding-size 16 "
                 "--models-root {folder}/types", [
        ("--dtype float16", "float16", last("backbones.build.dtype"), *DTYPES),
        ("--net-output GNAP", "GNAP", last("backbones.build.output")),
        ("--sync-bn", SynchronizedPass, "Backbone.create.result._training_pass.__class__"),
        ("--head-dtype bfloat16", BFLOAT16, "PartialFC.result._products._dtype"),
        ("--loss adaface", AdaFace, "PartialFC.margin.__class__"),
        ("--pretrained-centers {folder}/centers", 0.75,
         lambda seen: seen.values("PartialFC.create.result.rows")[0].export()["centers"][6, 15]),
        ("--num-classes 7", 7, "MemoryBatches.num_classes"),
    ]),
    "drawn": Run("--rec {folder}/drawn --models-root {folder}/drawn-models", [
        ("--dataset synthetic --num-classes 4", 4, "face_set.ensure.identities"),
        ("--num-images 8", 2, "face_set.ensure.images_per_identity"),
        ("--seed 5", 5, "face_set.ensure.seed"),
    ]),
    "plan": Run("--dataset webface", [
        ("--dry-run", True, have_no_log),
        ("--world-size 7", 7, "faces.describe.config.dry_run.world_size"),
        ("--gpu", True, lambda seen: "memory of rank 0 on a GPU" in seen.output),
    ]),
    "plan in JSON": Run("--dataset webface --dry-run", [
        ("--json", 1, printed("ranks")),
        ("--memory 1.5", 3 * 2**29, printed("memory_limit")),
    ]),
}

SMALL = "--dataset synthetic --num-images 40 --image-size 16 --batch-size 5 "
IMAGES = {
    "drawn": Run("", [
        ("--dataset synthetic", ["training", "validation"], every("DrawnImages.part")),
        ("--num-classes 6", 6, "DrawnImages.num_classes", "Classifier.create.classes"),
        ("--num-images 40", [40, 8], every("DrawnImages.count")),
        ("--image-size 16", (16, 16, 3), "DrawnImages.shape"),
        ("--image-size 16", (3, 16, 16), "Classifier.create.image_shape"),
        ("--batch-size 5", (5, 3, 16, 16), "ClassifyStep.__call__.batch.images.shape"),
        ("--batch-size 5", 5, "ClassifyStep.__call__.batch.labels.size",
         "image_data.each_once.batch_size", "run.fit.updates.images"),
        ("--threads 3", 3, "Prefetcher.threads"),
        ("--max-bad-records 7", 7, "BrokenImages.limit"),
        ("--model ResNet18", "ResNet18", last("classifiers.build.name")),
        ("--last-gamma", True, lambda seen: seen.was_called("classifier._last_gammas")),
        ("--sync-bn", SynchronizedPass, "Classifier.create.result._training_pass.__class__"),
        ("--epochs 3", [*range(18)], every("BackboneOptimizer.update.update")),
        # Six updates in an epoch, of which three are warm-up; a half from the second epoch on.
        ("--lr 0.02 --lr-schedule step --lr-steps 1 --lr-factor 0.5 --warmup-epochs 0.5",
         pytest.approx([0.02 / 3, 0.04 / 3, *[0.02] * 4, *[0.01] * 12], abs=1e-9), rates),
        ("--momentum 0.75", 0.75, "Trainer.optimizer.momentum"),
        ("--wd 0.003", 0.003, "Trainer.optimizer.wd"),
        ("--clip-norm 0.75", 0.75, "parameter_updates.clip.max_norm"),
        ("--label-smoothing 0.3", pytest.approx([0.05, 0.75, *[0.05] * 4]),
         lambda seen: seen.values("SoftTargets.result")[0].smoothed([1]).tolist()[0]),
        ("--mixup 0.2", 0.2, "SoftTargets.options.mixup"),
        ("--num-examples 30", 30, "ImageLoader.epoch_part.length"),
        ("--fp16-allreduce --gradient-predivide-factor 4", {Wire(True, 4.0)}, wires),
        ("--eval-frequency 2", [12, 18], lambda seen: reports(seen, have_targets=True)),
        ("--save-frequency 2", [[12, 18], [12, 18]], saves),
        ("--keep 1", ["update-00000018"], lambda seen: files_of(seen, "checkpoints")),
        ("--resume never", "never", "resume.find.resume"),
        ("--stall-timeout 321", 321, *STALLS),
        ("--frequent 8", [8, 16, 18], lambda seen: reports(seen, have_targets=False)),
        ("--models-root {folder}/images", set(), lacks),
        ("--seed 9", 9,
         "DrawnImages.seed", "ImageLoader.seed", "Classifier.create.seed", "SoftTargets.seed"),
    ]),
    "folder": Run("--dataset mnist --models-root {folder}/folder", [
        ("--data-dir {folder}/idx", "idx", "mnist.read.folder.name"),
    ]),
    "files": Run("--dataset imagenet --models-root {folder}/files", [
        ("--rec-train {folder}/a.rec", "a.rec", "class_files.open_records.training.name"),
        ("--rec-val {folder}/b.rec", "b.rec", "class_files.open_records.validation.name"),
    ]),
    "types": Run(SMALL + "--models-root {folder}/image-types", [
        ("--dtype float16", "float16", last("classifiers.build.dtype"), *DTYPES),
    ]),
    "two ranks": Run(SMALL + "--lr 0.25 --lr-schedule poly --models-root {folder}/two", [
        ("--no-lr-scaling --lr-power 1", pytest.approx([0.25, 0.125]), rates_at(0, 6)),
        # Of a network for three classes.
        ("--pretrained {folder}/classifier,0", ["fc_output_weight", "fc_output_bias"],
         "Classifier.load_pretrained.result"),
        ("--freeze fc1_bias", ["fc1_bias"], frozen),
    ]),
    "servers": Run(SMALL + "--models-root {folder}/servers", [
        ("--kv-store dist_ssync", True, "Exchange.scheme.is_bounded"),
        ("--staleness 3", 3, "Exchange.staleness"),
        # A quarter of the images, not half of them.
        ("--data-allocator 1", 10, "ImageLoader.epoch_part.length"),
        ("--momentum 0.75", 0.75, "Exchange.start.momentum"),
        ("--wd 0.003", 0.003, "Exchange.start.weight_decay"),
        ("--batch-size 5", 5, "Exchange.images_per_step", "ImageLoader.epoch_part.stride"),
    ]),
    "groups": Run(SMALL + "--kv-store dist_gsync --models-root {folder}/groups", [
        ("--rebalance 2", True, "HorovodWorld.regroups"),
        # Of six epochs of 20 images for each group, in batches of 5.
        ("--rebalance 2 --epochs 6", 8, "run.fit.updates.total"),
        ("--fp16-allreduce --gradient-predivide-factor 4", Wire(True, 4.0), "ServerOptimizer.wire"),
    ]),
    "plan": Run(SMALL, [
        ("--dry-run", True, have_no_log),
        ("--world-size 7", 7, "images.describe.config.dry_run.world_size"),
    ]),
    "plan in JSON": Run(SMALL + "--dry-run", [("--json", 1, printed("ranks"))]),
}

# Whatever obeys an option.
WATCHED: tuple[tuple[Any, ...], ...] = (
    (face_loader, "Augmentation", "FaceLoader", "MemoryBatches"), (loader, "Prefetcher"),
    (selection, "Selection"), (Backbone, "create", "load", "load_pretrained"),
    (teacher, "Teacher"), (backbones, "build"), (head, "PartialFC"),
    (head.PartialFC, "create", "step"), (shard, "Sampler"), (optimizers, "build"),
    (mx.gluon, "Trainer"), (parameter_updates, "clip"), (optimizer, "BackboneOptimizer"),
    (optimizer.BackboneOptimizer, "update"), (run_log, "RunLog", "Watchdog"),
    (run_log.RunLog, "summarize"), (run, "fit"), (faces, "describe"), (resume, "find"),
    (verifier, "Verifier"), (finite_guard, "FiniteGuard"), (best_model, "BestModel"),
    (model_saver, "ModelSaver"), (model_saver.ModelSaver, "save"), (Checkpointer, "save"),
    (environment, "prepare_stall_check"), (patterns, "DrawnImages"), (images, "describe"),
    (image_loader, "ImageLoader"), (loader, "BrokenImages"), (image_data, "each_once"),
    (Classifier, "create", "load_pretrained"), (classifier, "_last_gammas"),
    (classifiers, "build"), (classify_step, "SoftTargets"),
    (classify_step.ClassifyStep, "__call__"), (LoneWorld, "allreduce_all"),
)
# fmt: on
PROGRAMS = {train: FACES, classify: IMAGES}
CASES = [
    pytest.param(program, name, row, id=f"{program.__name__} {name} {row[0]}")
    for program, runs in PROGRAMS.items()
    for name, found in runs.items()
    for row in found.rows
]
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two record sets, a verification set, centers, and the models of earlier runs."""
    root = tmp_path_factory.mktemp("options")
    rng = np.random.default_rng(1)
    pixels = rng.integers(256, size=(24, 32, 32, 3), dtype=np.uint8)
    encoded = [cv2.imencode(".jpg", image)[1].tobytes() for image in pixels]
    for name, counts in FOLDERS.items():
        with RecordWriter(root / name, image_size=(32, 32)) as writer:
            for label, count in enumerate(counts):
                for image in encoded[:count]:
                    writer.write(image, label)
    bin_file.write_bin(root / "A" / "seen.bin", encoded, [True, False] * 6)
    Backbone.create(BackboneOptions(network="tiny", embedding_size=24), image_size=(32, 32)).export(
        root / "earlier"
    )
    (root / "earlier-0000.params").rename(root / "earlier-0003.params")
    (root / "centers").mkdir()
    mx.nd.save(str(root / "centers" / "0_centers.param"), mx.nd.full((7, 16), 0.75))
    half = Normalization((0.5,) * 3, (0.5,) * 3)
    lenet = ClassifierOptions(model="LeNet")
    Classifier.create(lenet, classes=3, image_shape=(3, 16, 16), normalization=half).export(
        root / "classifier"
    )
    return root


@pytest.fixture(scope="module")
def witnessed(folder: Path) -> Callable[[Any, str], Witness]:
    """Make a run once."""

    @functools.lru_cache(None)
    def witness(program: Any, name: str) -> Witness:
        found = PROGRAMS[program][name]
        words = " ".join([found.further, *(row[0] for row in found.rows)])
        with pytest.MonkeyPatch.context() as patch:
            seen = Witness(patch)
            for owner, *names in WATCHED:
                seen.watch(owner, *names)
            replace(program, name, seen, patch)
            seen.run(program, words.replace("{folder}", str(folder)).split())
        return seen

    return witness


def replace(program: Any, name: str, seen: Witness, patch: pytest.MonkeyPatch) -> None:
    """Put what a run does not need, and what no machine of the tests has, out of its way."""
    for owner, function in ((face_set, "ensure"), (mnist, "read"), (class_files, "open_records")):
        seen.replace(owner, function, stop)
    if name == "types":
        seen.replace(devices, "choose", lambda ranks, dtype: mx.cpu())
        patch.setattr(processors, "request_tiles", lambda: True)
    if name == "types" or (program is classify and name != "drawn"):
        seen.replace(run, "fit", stop)
    patch.setattr(workers, "join_ranks", OneOfTwo if name == "two ranks" else LoneWorld)
    if name in PLACES:
        for variable, value in PLACES[name].variables().items():
            patch.setenv(variable, value)
        # There are no servers that could be met.
        seen.replace(exchange.Exchange, "start", lambda *_, **__: None)
        patch.setattr(server_workers, "HorovodWorld", GroupWorld)
        seen.watch(server_workers, "Exchange", "ServerOptimizer", "HorovodWorld")


@pytest.mark.parametrize(("program", "name", "row"), CASES)
def test_an_option_arrives_where_it_is_obeyed(program, name: str, row: Row, witnessed) -> None:
    _, expected, *places = row
    seen = witnessed(program, name)
    for place in places:
        found = [place(seen)] if callable(place) else seen.values(place)
        assert all(one == expected for one in found), (place, found)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_has_a_row(program: Any) -> None:
    typed = " ".join(row[0] for found in PROGRAMS[program].values() for row in found.rows)
    config = resolve({}) if program is train else options.compose(ImageConfig, {})
    assert set(re.findall(r"--[\w-]+", typed)) == set(map(options.option, options.values(config)))
