"""Whole updates on the host and on a device, in one process or by ranks of Horovod.

The device is that of ``TOOLKIT_DEVICE``, by default ``cpu(1)``: a processor, but the product and
MXNet treat it as a device. ``make test-gpu`` sets ``gpu(0)``.

A CPU's libraries multiply no float16 matrices. There each convolution, linear layer and BatchNorm
of a float16 network reads float16 arrays, computes in float32 and writes float16, in the backward
pass as well, as the tensor cores of a GPU do. All other operators compute in float16 on a CPU, too.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Optional

import numpy as np
import pytest
from numpy.typing import NDArray

import backbones
from backbones import classifiers
from backbones.classifiers import Normalization
from backbones.graph.nodes import Node, from_json, moved, to_json
from backbones.layers import Symbol
from backbones.model import Backbone, Classifier
from data.batches.loader import Batch
from data.batches.position import EpochPlan
from parallel.world import HorovodWorld, LoneWorld, TimedWorld, World
from partial_fc import optimizers
from partial_fc.head import PartialFC
from runtime import devices, options
from runtime.mxnet import mx
from runtime.stopwatch import Stopwatch
from training.config.faces import FaceConfig
from training.config.images import ImageConfig
from training.config.options import OptimizerOptions
from training.update.classify_step import ClassifyStep, EpochCounts, SoftTargets
from training.update.face_step import FaceStep
from training.update.gradients import FiniteGuard
from training.update.optimizer import BackboneOptimizer

_KIND, _, _NUMBER = os.environ.get("TOOLKIT_DEVICE", "cpu(1)").rstrip(")").partition("(")
HOST, DEVICE = mx.cpu(), mx.Context(_KIND, int(_NUMBER or 0))
ON_GPU = DEVICE.device_type == "gpu"
CLASSES, GLOBAL_BATCH = 40, 24
# After more of them, numbers on two sides of a ReLU's bend outweigh the rounding.
UPDATES = 2
Arrays = dict[str, NDArray[Any]]


class Updated(NamedTuple):
    """What an update ended with: its loss, and all arrays."""

    loss: float
    arrays: Arrays


class Updates:
    """A network with its optimizer on one context, and the same batches for it in every run."""

    network: Any
    step: Any
    lr: float
    classes: int
    image_size: tuple[int, int] = (32, 32)
    global_batch = GLOBAL_BATCH

    def __init__(self, context: Any, world: Optional[World] = None) -> None:
        self.world, self.stopwatch = world or LoneWorld(), Stopwatch()
        # As in a run: every update is measured on the host, none of these on a device.
        if not devices.is_host(context):
            self.stopwatch.sample()

    def optimizer(self, rule: OptimizerOptions, world: World, dtype: str) -> BackboneOptimizer:
        parameters = self.network.parameters
        return BackboneOptimizer(rule, parameters, world, dtype=dtype, stopwatch=self.stopwatch)

    def batch(self, update: int) -> Batch:
        generator, count = np.random.default_rng((5, update)), self.global_batch
        images = generator.integers(256, size=(count, 3, *self.image_size), dtype=np.uint8)
        labels = generator.integers(self.classes, size=count)
        own = slice(self.world.rank, None, self.world.size)
        return Batch(images[own], labels[own])

    def train(self, count: int, start: int = 0) -> list[float]:
        """Do ``count`` updates from update ``start`` on; returns their losses."""
        updates = range(start, start + count)
        losses = [self.step(self.batch(update), update, self.lr) for update in updates]
        self.step.finish()
        return [float(loss.asscalar()) for loss in losses]

    def followed(self) -> list[Updated]:
        return [Updated(self.train(1, start)[0], self.arrays()) for start in range(UPDATES)]

    def arrays(self) -> Arrays:
        named = self.network.parameters.items()
        return {name: parameter.data().asnumpy() for name, parameter in named}


class FaceUpdates(Updates):
    """A face network, its head and its optimizers, with options of train.py."""

    classes = CLASSES

    def __init__(
        self, context: Any, world: Optional[World] = None, *,
        image_size: tuple[int, int] = (32, 32), global_batch: int = GLOBAL_BATCH, **given: Any,
    ) -> None:  # fmt: skip
        super().__init__(context, world)
        self.image_size, self.global_batch = image_size, global_batch
        small = {"network": "tiny", "embedding_size": 16, "scale": 16.0, "sample_ratio": 0.5}
        config = options.compose(FaceConfig, {**small, **given})
        rule, dtype = config.optimizer, config.backbone.dtype
        self.lr = 0.05 if rule.optimizer == "sgd" else 1e-3
        timed = TimedWorld(self.world, self.stopwatch)
        self.network = Backbone.create(config.backbone, image_size=image_size, seed=1, ctx=context)
        self.network.hybridize()
        if config.backbone.sync_bn:
            self.network.synchronize(timed)
        self.head = PartialFC.create(
            config.head, (CLASSES, config.backbone.embedding_size), timed, context, seed=5,
            optimizer=optimizers.build(rule.optimizer, rule.momentum, rule.wd),
        )  # fmt: skip
        self.step = FaceStep(
            self.network, self.head, self.optimizer(rule, timed, dtype), 1.0,
            stopwatch=self.stopwatch, guard=FiniteGuard(),
        )  # fmt: skip

    def arrays(self) -> Arrays:
        rows = {name: values.copy() for name, values in self.head.rows.export().items()}
        return {**super().arrays(), **rows}


class ClassifierUpdates(Updates):
    """A classifier and its optimizer, with options of classify.py."""

    lr, classes = 0.01, 10

    def __init__(self, context: Any, **given: Any) -> None:
        super().__init__(context)
        small = {"model": "ResNet18", "label_smoothing": 0.1}
        config = options.compose(ImageConfig, {**small, **given})
        self.network = Classifier.create(
            config.classifier, classes=self.classes, image_shape=(3, *self.image_size),
            normalization=Normalization((0.5,) * 3, (0.25,) * 3), seed=3, ctx=context,
        )  # fmt: skip
        self.network.hybridize()
        optimizer = self.optimizer(config.optimizer, self.world, config.classifier.dtype)
        plan = EpochPlan(num_images=100 * GLOBAL_BATCH, global_batch=GLOBAL_BATCH)
        targets = SoftTargets(config.loss, self.classes, seed=1)
        self.step = ClassifyStep(
            self.network, optimizer, targets, EpochCounts(self.world, lambda: plan),
            stopwatch=self.stopwatch, guard=FiniteGuard(),
        )  # fmt: skip


# Which inputs of an operator are float16; BatchNorm's parameters are not.
_WIDENED = {"Convolution": 3, "FullyConnected": 3, "BatchNorm": 1}
# Of a node's name, in those of its first output.
_ENDS = ("", "_output", "_output0")


def emulate_float16(patch: pytest.MonkeyPatch) -> None:
    """Have the registries build float16 networks that compute on a CPU; on a GPU they do."""

    def emulated(build: Callable[..., Symbol], *arguments: Any, **options: Any) -> Symbol:
        symbol = build(*arguments, **options)
        return _with_casts(symbol) if options.get("dtype") == "float16" else symbol

    for registry in () if ON_GPU else (backbones, classifiers):
        patch.setattr(registry, "build", partial(emulated, registry.build))


def _with_casts(symbol: Symbol) -> Symbol:
    """Return a float16 graph with the same parameters whose products compute in float32."""
    graph, internals = to_json(symbol), symbol.get_internals()
    _, outputs, _ = internals.infer_type(data="float32")
    types = dict(zip(internals.list_outputs(), outputs))
    nodes: list[Node] = []
    indices: dict[int, int] = {}

    def cast(name: str, dtype: str, entry: list[int]) -> list[int]:
        attributes = {"dtype": dtype}
        nodes.append({"op": "Cast", "name": name, "attrs": attributes, "inputs": [entry]})
        return [len(nodes) - 1, 0, 0]

    for index, node in enumerate(graph["nodes"]):
        name, inputs = node["name"], [moved(entry, indices) for entry in node["inputs"]]
        dtype = next(types[f"{name}{end}"] for end in _ENDS if f"{name}{end}" in types)
        if node["op"] == "null":
            # A cast does not tell the type of what it reads.
            number = str(mx.nd.ndarray._DTYPE_NP_TO_MX[dtype])
            node = {**node, "attrs": {**node.get("attrs", {}), "__dtype__": number}}
        widened = _WIDENED.get(node["op"], 0) if dtype == np.float16 else 0
        for place, entry in enumerate(inputs[:widened]):
            inputs[place] = cast(f"{name}_wide{place}", "float32", entry)
        nodes.append({**node, "inputs": inputs})
        if widened:
            cast(f"{name}_half", "float16", [len(nodes) - 1, 0, 0])
        indices[index] = len(nodes) - 1
    heads = [moved(entry, indices) for entry in graph["heads"]]
    return from_json({**graph, "nodes": nodes, "heads": heads})


def main(folder: str, *losses: str) -> None:
    """Write what each update of this rank ended with: ``FOLDER/rank-loss-update.npz``."""
    world = HorovodWorld()
    device = mx.gpu(world.rank) if ON_GPU else DEVICE
    for loss in losses:
        for update, one in enumerate(FaceUpdates(device, world, loss=loss).followed()):
            np.savez(f"{folder}/{world.rank}-{loss}-{update}.npz", loss=one.loss, **one.arrays)
    world.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
