"""Every option of the programs arrives in the part that obeys it; without a row it fails.

A few runs get all options, no value the default, and are watched (``tests.support.alone``).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import classify
import train
from backbones.graph.passes import Recomputation
from backbones.graph.synchronized import SynchronizedPass
from data.drawn import face_set
from data.images import image_set, mnist
from data.verification import bin_file
from parallel.parameter_server import exchange
from parallel.parameter_server.assignment import WORKER, Assignment, Share
from parallel.world import LoneWorld, Wire
from partial_fc.margin import AdaFace, CombinedMargin
from runtime import devices, options, processors
from runtime.mxnet import mx
from runtime.ndarray import BFLOAT16
from tests.backbones.passes import classifier, create
from tests.support.alone import RUN_FILES, Witness, files_of, reports, saves, stop
from tests.support.sets import pack_set
from training import run
from training.config.faces import resolve
from training.config.images import ImageConfig
from training.exchange import workers

Seen = Callable[[Witness], Any]
Row = tuple[Any, ...]
"""Options as they are typed; what should arrive; where: paths of ``Witness.values``, in all calls,
or functions of what was witnessed."""
Run = tuple[str, list[Row]]
"""What a run needs beside the options that are looked at, and where these are seen."""


def rates(seen: Witness) -> list[float]:
    return [round(lr, 9) for lr in seen.values("BackboneOptimizer.update.lr")]


def last(path: str) -> Seen:
    """Make a function that returns what the last call got, of the network that trains."""
    return lambda seen: seen.values(path)[-1]


def every(path: str) -> Seen:
    return lambda seen: seen.values(path)


def wires(seen: Witness) -> set[Wire]:
    calls = seen.calls("LoneWorld.allreduce_all")
    return {call["wire"] for call in calls if call["name"] == "backbone.gradient"}


def frozen(seen: Witness) -> list[str]:
    return [
        name
        for name, parameter in seen.values("BackboneOptimizer.parameters")[0].items()
        if parameter.grad_req == "null" and name.endswith(("_beta", "_bias"))
    ]


def have_no_log(seen: Witness) -> bool:
    words = ("bytes per collective", "allreduce of the")
    return not seen.was_called("RunLog") and any(one in seen.output for one in words)


def printed(name: str) -> Seen:
    return lambda seen: json.loads(seen.output)[name]


DTYPES = ("devices.choose.dtype", "BackboneOptimizer.dtype")


def strength_of(change: str) -> Seen:
    return lambda seen: seen.values("Augmentation.strengths")[0][change]


AUGMENTATIONS = {
    "color-jitter": 0.25, "jpeg-compression": 0.5, "low-resolution": 0.625, "blur": 0.375,
    "gray": 0.75, "cutout": 0.125,
}  # fmt: skip

# fmt: off
BOTH: list[Row] = [
    ("--threads 3", 3, "Prefetcher.threads"),
    ("--momentum 0.75", 0.75, "rules.update_on_host.momentum"),
    ("--wd 0.003", 0.003,
     lambda seen: max(one.wd for one in seen.values("rules.update_on_host.trained")[0])),
    ("--clip-norm 0.75", 0.75, "optimizer.clip.max_norm"),
    ("--resume never", "never", "resume.find.resume"),
    ("--stall-timeout 321", 321, "launchers.begin_rank.stall_timeout", "Watchdog.seconds"),
    ("--models-root {models}", set(), lambda seen: RUN_FILES.difference(files_of(seen))),
]
TINY = "--rec {folder}/B --network tiny --embedding-size 16 "
FACES: dict[str, Run] = {
    "records": ("", [
        *BOTH,
        ("--rec {folder}/A --rec {folder}/B", 6, "FaceLoader.result.num_classes"),
        # Without --min-images there is a class more.
        ("--min-images 2 --embedding-size 24", (6, 24), "PartialFC.create.shape"),
        ("--embedding-size 24", 24, last("backbones.build.embedding_size")),
        ("--val-targets seen", ["seen"], lambda seen: [
            target.name for target in seen.values("Verifier.targets")[0]]),
        ("--class-balance 0.5", 0.5, "FaceLoader.options.class_balance"),
        *((f"--{option} {value}", value, strength_of(option.replace("-", "_")))
          for option, value in AUGMENTATIONS.items()),
        ("--max-bad-records 7", 7, "FaceLoader.options.max_bad_records"),
        ("--network tiny", "tiny", last("backbones.build.name")),
        ("--pretrained {folder}/earlier,3", 3, "Backbone.load_pretrained.epoch"),
        ("--recompute", Recomputation, "Backbone.create.result._training_pass._part.__class__"),
        ("--accumulate 3", 3, "Backbone.create.result._training_pass._parts"),
        ("--scale 24", 24.0, "PartialFC.result._scale"),
        ("--filter-threshold 0.75", 0.75 * 24, "PartialFC.result._limit"),
        ("--sample-ratio 0.5", 0.5, "Sampler.ratio"),
        ("--batch-size 3", 3,
         "PartialFC.step.labels.size", "Verifier.batch_size", "run.fit.updates.images"),
        # Warm-up of two updates, a half from the fourth on and another from the fifth.
        ("--lr 0.04 --lr-schedule step --lr-steps 3,4 --lr-factor 0.5 --warmup 2",
         [0.02, 0.04, 0.04, 0.02, 0.01], rates),
        ("--center-lr 0.01", [0.005, 0.01, 0.01, 0.005, 0.0025], every("PartialFC.step.lr")),
        ("--momentum 0.75", 0.75, "optimizers.build.result.momentum"),
        ("--wd 0.003", 0.003, "optimizers.build.result.weight_decay"),
        ("--freeze stage2_bn0_beta", ["stage2_bn0_beta"], frozen),
        ("--max-update 5", [0, 1, 2, 3, 4], every("BackboneOptimizer.update.update")),
        ("--frequent 2", [2, 4, 5], lambda seen: reports(seen, have_targets=False)),
        ("--verbose 3", [0, 3, 5], lambda seen: reports(seen, have_targets=True)),
        ("--best seen", "seen", "BestModel.deciding"),
        ("--teacher {folder}/earlier,3", "earlier",
         lambda seen: Path(seen.values("Backbone.load.prefix")[0]).name),
        ("--teacher-weight 0.5", 0.5, "Teacher.weight"),
        ("--save-interval 2", [[2, 4, 5], [2, 4, 5]], saves),
        ("--keep 1", ["update-00000005"], lambda seen: files_of(seen, "checkpoints")),
        ("--on-nan skip", True, "FiniteGuard.result.skips", "PartialFC.step.hold"),
        ("--seed 9", 9,
         "FaceLoader.seed", "Backbone.create.seed", "Sampler.seed", "PartialFC.create.seed"),
    ]),
    "memory": (TINY + "--batch-size 1 --lr 0.01 --wd 0", [
        ("--margins 1,0.25,0.125", CombinedMargin(1.0, 0.25, 0.125), "PartialFC.margin"),
        ("--center-store {folder}/store", "StoredRows", "PartialFC.result.rows.__class__.__name__"),
        ("--center-memory 0.5", 0.5, "StoredRows.options.center_memory"),
        ("--optimizer adam", "adam", "rules.update.options.optimizer"),
        ("--optimizer adam", {"first_moments", "second_moments", "step_counts"},
         lambda seen: seen.values("optimizers.build.result.states")[0].keys()),
        # Three identities, as if each had one image, in batches of one: down to 0 after 6 updates.
        ("--lr-power 1 --epochs 2",
         [0.01, 0.008333333, 0.006666667, 0.005, 0.003333333, 0.001666667], rates),
        ("--debug", 3, "MemoryBatches.num_classes"),
        ("--seed 7", 7, "MemoryBatches.seed"),
    ]),
    "types": (TINY + "--debug", [
        ("--dtype float16", "float16", last("backbones.build.dtype"), *DTYPES),
        ("--net-output GNAP", "GNAP", last("backbones.build.output")),
        ("--sync-bn", SynchronizedPass, "Backbone.create.result._training_pass.__class__"),
        ("--head-dtype bfloat16", BFLOAT16, "PartialFC.result._products._dtype"),
        ("--loss adaface", AdaFace, "PartialFC.margin.__class__"),
        ("--pretrained-centers {folder}/centers", 0.75,
         lambda seen: seen.values("PartialFC.create.result.rows")[0].export()["centers"][6, 15]),
        ("--num-classes 7", 7, "MemoryBatches.num_classes"),
    ]),
    "drawn": ("--rec {folder}/drawn", [
        ("--dataset synthetic --num-classes 4", 4, "face_set.ensure.faces.identities"),
        ("--num-images 8", 2, "face_set.ensure.faces.images_per_identity"),
        ("--seed 5", 5, "face_set.ensure.faces.seed"),
    ]),
    "plan": ("--dataset webface", [
        ("--dry-run", True, have_no_log),
        ("--world-size 7", 7, "faces.describe.config.dry_run.world_size"),
        ("--gpu", True, lambda seen: "device: gpu" in seen.output),
    ]),
    "plan in JSON": ("--dataset webface --dry-run", [
        ("--json", 1, printed("ranks")),
        ("--memory 1.5", 3 * 2**29, printed("memory_limit")),
    ]),
}

SMALL = "--dataset synthetic --num-images 40 --image-size 16 --batch-size 5 "
IMAGES: dict[str, Run] = {
    "drawn": ("", [
        *BOTH,
        ("--dataset synthetic", ["training", "validation"], every("DrawnImages.part")),
        ("--num-classes 6", 6, "DrawnImages.num_classes", "Classifier.create.classes"),
        ("--num-images 40", [40, 8], every("DrawnImages.count")),
        ("--image-size 16", (16, 16, 3), "DrawnImages.shape"),
        ("--image-size 16", (3, 16, 16), "Classifier.create.image_shape"),
        ("--batch-size 5", (5, 3, 16, 16), "ClassifyStep.__call__.batch.images.shape"),
        ("--batch-size 5", 5, "ClassifyStep.__call__.batch.labels.size",
         "image_data.each_once.batch_size", "run.fit.updates.images"),
        ("--max-bad-records 7", 7, "TransformedImages.max_broken"),
        ("--model ResNet18", "ResNet18", last("classifiers.build.name")),
        ("--last-gamma", True, lambda seen: seen.was_called("model._last_gammas")),
        ("--sync-bn", SynchronizedPass, "Classifier.create.result._training_pass.__class__"),
        ("--epochs 3", [*range(18)], every("BackboneOptimizer.update.update")),
        # Six updates in an epoch, of which three are warm-up; a half from the second epoch on.
        ("--lr 0.02 --lr-schedule step --lr-steps 1 --lr-factor 0.5 --warmup-epochs 0.5",
         pytest.approx([0.02 / 3, 0.04 / 3, *[0.02] * 4, *[0.01] * 12], abs=1e-9), rates),
        ("--label-smoothing 0.3", pytest.approx([0.05, 0.75, *[0.05] * 4]),
         lambda seen: seen.values("SoftTargets.result")[0].smoothed([1]).tolist()[0]),
        ("--mixup 0.2", 0.2, "SoftTargets.options.mixup"),
        ("--num-examples 30", 30, "ImageLoader.epoch_part.length"),
        ("--fp16-allreduce --gradient-predivide-factor 4", {Wire(True, 4.0)}, wires),
        ("--eval-frequency 2", [12, 18], lambda seen: reports(seen, have_targets=True)),
        ("--save-frequency 2", [[12, 18], [12, 18]], saves),
        ("--keep 1", ["update-00000018"], lambda seen: files_of(seen, "checkpoints")),
        ("--frequent 8", [8, 16, 18], lambda seen: reports(seen, have_targets=False)),
        ("--seed 9", 9,
         "DrawnImages.seed", "ImageLoader.seed", "Classifier.create.seed", "SoftTargets.seed"),
    ]),
    "folder": ("--dataset mnist", [("--data-dir {folder}/idx", "idx", "mnist.read.folder.name")]),
    "files": ("--dataset imagenet", [
        ("--rec-train {folder}/a.rec", "a.rec", "image_set.open_records.training.name"),
        ("--rec-val {folder}/b.rec", "b.rec", "image_set.open_records.validation.name"),
    ]),
    "types": (SMALL, [("--dtype float16", "float16", last("classifiers.build.dtype"), *DTYPES)]),
    "two ranks": (SMALL + "--lr 0.25 --lr-schedule poly", [
        ("--no-lr-scaling --lr-power 1", pytest.approx([0.25, 0.125]), lambda seen: [
            seen.values("run.fit.updates.schedule")[0](update) for update in (0, 6)]),
        ("--pretrained {folder}/classifier,0", 0, "Classifier.load_pretrained.epoch"),
        ("--freeze fc1_bias", ["fc1_bias"], frozen),
    ]),
    "servers": (SMALL, [
        ("--kv-store dist_ssync", True, "Exchange.scheme.is_bounded"),
        ("--staleness 3", 3, "Exchange.staleness"),
        # A quarter of the images, not half of them.
        ("--data-allocator 1", 10, "ImageLoader.epoch_part.length"),
        ("--momentum 0.75", 0.75, "Exchange.start.momentum"),
        ("--wd 0.003", 0.003, "Exchange.start.weight_decay"),
        ("--batch-size 5", 5, "Exchange.batch_size", "ImageLoader.epoch_part.stride"),
    ]),
    "groups": (SMALL + "--kv-store dist_gsync", [
        ("--rebalance 2", True, "workers.HorovodWorld.regroups"),
        # Of six epochs of 20 images for each group, in batches of 5.
        ("--rebalance 2 --epochs 6", 8, "run.fit.updates.total"),
        ("--fp16-allreduce --gradient-predivide-factor 4", Wire(True, 4.0), "ServerOptimizer.wire"),
    ]),
    "plan": (SMALL, [
        ("--dry-run", True, have_no_log),
        ("--world-size 7", 7, "images.describe.config.dry_run.world_size"),
    ]),
    "plan in JSON": (SMALL + "--dry-run", [("--json", 1, printed("ranks"))]),
}

# Modules and classes, with what obeys an option there.
WATCHED = (
    "backbones build", "backbones.classifiers build",
    "backbones.model _last_gammas",
    "backbones.model:Classifier create load_pretrained",
    "backbones.model:Backbone create load load_pretrained",
    "data.batches.face_loader Augmentation FaceLoader MemoryBatches",
    "data.batches.image_loader ImageLoader", "data.batches.loader Prefetcher",
    "training.image_data TransformedImages",
    "data.images.image_set DrawnImages",
    "parallel.world:LoneWorld allreduce_all", "partial_fc.head PartialFC",
    "partial_fc.head:PartialFC create step", "partial_fc.optimizers build",
    "partial_fc.rows.stored StoredRows", "partial_fc.shard Sampler",
    "runtime.launchers begin_rank",
    "training.validation BestModel ModelSaver", "training.checkpoint.resume find",
    "training.checkpoint.writer:Checkpointer save", "training.image_data each_once",
    "training.log.run_log RunLog Watchdog",
    "training.validation:ModelSaver save", "training.plan.faces describe",
    "training.plan.images describe", "training.run fit",
    "training.update.classify_step SoftTargets",
    "training.update.classify_step:ClassifyStep __call__",
    "training.update.gradients FiniteGuard",
    "training.update.optimizer BackboneOptimizer clip",
    "training.update.rules update update_on_host",
    "training.update.optimizer:BackboneOptimizer update", "training.update.face_step Teacher",
    "training.validation Verifier",
)
# fmt: on
PROGRAMS = {train: FACES, classify: IMAGES}
CASES = [
    pytest.param(program, name, row, id=f"{program.__name__} {name} {row[0]}")
    for program, runs in PROGRAMS.items()
    for name, (_, rows) in runs.items()
    for row in rows
]
PLACE = Assignment(WORKER, "127.0.0.1", 1, "127.0.0.1", "lo", num_workers=2, num_servers=1)
PLACES = {"servers": dataclasses.replace(PLACE, shares=(Share(0, 0.25), Share(0.25, 1)))}
PLACES["groups"] = dataclasses.replace(PLACE, groups=((0,), (1,)))


def one_of_two() -> LoneWorld:
    world = LoneWorld()
    world.size = 2
    vars(world)["gather_objects"] = lambda value, name: [value] * 2
    return world


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("options")
    pixels = np.random.default_rng(1).integers(256, size=(24, 32, 32, 3), dtype=np.uint8)
    encoded = [cv2.imencode(".jpg", image)[1].tobytes() for image in pixels]
    # Four identities with three images, the last with one; and three with three.
    for name, labels in {"A": "0001112223", "B": "000111222"}.items():
        pack_set(root / name, encoded, map(int, labels), (32, 32))
    bin_file.write_bin(root / "A" / "seen.bin", encoded, [True, False] * 6)
    create(side=32, embedding_size=24).export(root / "earlier", 3)
    classifier("LeNet", (3, 16, 16), classes=3).export(root / "classifier")
    (root / "centers").mkdir()
    mx.nd.save(str(root / "centers" / "0_centers.param"), mx.nd.full((7, 16), 0.75))
    return root


@pytest.fixture(scope="module")
def witnessed(folder: Path) -> Callable[[Any, str], Witness]:
    @functools.lru_cache(None)
    def witness(program: Any, name: str) -> Witness:
        further, rows = PROGRAMS[program][name]
        words = " ".join([further, "--models-root {models}", *(row[0] for row in rows)])
        places = {"folder": folder, "models": folder / f"{program.__name__}-{name}"}
        with pytest.MonkeyPatch.context() as patch:
            seen = Witness(patch)
            for owner, *names in map(str.split, WATCHED):
                seen.watch(pkgutil.resolve_name(owner), *names)
            replace(program, name, seen, patch)
            seen.run(program, [word.format(**places) for word in words.split()])
        return seen

    return witness


def replace(program: Any, name: str, seen: Witness, patch: pytest.MonkeyPatch) -> None:
    for owner, function in ((face_set, "ensure"), (mnist, "read"), (image_set, "open_records")):
        seen.replace(owner, function, stop)
    if name == "types":
        seen.replace(devices, "choose", lambda ranks, dtype: mx.cpu())
        patch.setattr(processors, "request_tiles", lambda: True)
    if name == "types" or (program is classify and name != "drawn"):
        seen.replace(run, "fit", stop)
    patch.setattr(workers, "join_ranks", one_of_two if name == "two ranks" else LoneWorld)
    if name in PLACES:
        for variable, value in PLACES[name].variables().items():
            patch.setenv(variable, value)
        seen.replace(exchange.Exchange, "start", lambda *_, **__: None)
        seen.replace(workers, "HorovodWorld", lambda *_, **__: LoneWorld())
        # A rank alone in its group.
        patch.setattr(LoneWorld, "all_ranks", lambda world: world, raising=False)
        seen.watch(workers, "Exchange", "ServerOptimizer")


@pytest.mark.parametrize(("program", "name", "row"), CASES)
def test_an_option_arrives_where_it_is_obeyed(program, name: str, row: Row, witnessed) -> None:
    _, expected, *places = row
    seen = witnessed(program, name)
    for place in places:
        found = [place(seen)] if callable(place) else seen.values(place)
        assert all(one == expected for one in found), (place, found)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_has_a_row(program: Any) -> None:
    typed = " ".join(row[0] for _, rows in PROGRAMS[program].values() for row in rows)
    config = resolve({}) if program is train else options.compose(ImageConfig, {})
    assert set(re.findall(r"--[\w-]+", typed)) == set(map(options.option, options.values(config)))
