"""Several ranks under a real launcher leave what one process with the whole batch leaves.

As a program (``OUTPUT RUN...``), rank 0 writes what three updates of each run leave. A run has the
name of its loss (``arcface:3``: a batch in three parts; ``+teacher``) or of its network.
"""

import sys

import numpy as np
import pytest

import backbones
from backbones.model import FACE_SIZE, Backbone
from backbones.options import BackboneOptions
from data.batches.loader import Batch
from parallel.world import HorovodWorld, LoneWorld, World
from partial_fc.head import PartialFC
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from runtime.mxnet import mx
from tests.support.launch import finish, ranks
from tests.training.checkpoint.test_resume import make_backbone
from training.config.options import OptimizerOptions
from training.update.face_step import FaceStep, Teacher
from training.update.optimizer import BackboneOptimizer

BATCH, NUM_CLASSES, EMBEDDING = 12, 31, 16
# Small: where rounding puts a number on the other side of a PReLU's bend, the gradient jumps.
# Another rounding of the images alone changes gradients of mbf by a hundredth in some tensors.
NETWORK_LR = 2e-5
LOSSES = ("arcface", "adaface", "curricularface", "softmax", "arcface+teacher")
IN_PARTS = {"arcface:3": "arcface", "adaface:12": "adaface", "arcface:2+teacher": "arcface+teacher"}
ON_RANKS = (*LOSSES, "arcface:2")
NETWORKS = ("tiny", "mbf")
Arrays = dict[str, np.ndarray]
Found = dict[str, Arrays]


def train(world: World, run: str) -> Arrays:
    run, _, teacher = run.partition("+")
    run, _, parts = run.partition(":")
    if is_network := run in backbones.names():
        backbone = Backbone.create(BackboneOptions(network=run, embedding_size=EMBEDDING), seed=3)
        side, lr, options = FACE_SIZE[0], NETWORK_LR, HeadOptions("cosface", scale=16.0)
    else:
        backbone, side, lr, options = make_backbone(), 8, 0.05, HeadOptions(run)
    if is_network and world.size > 1:
        backbone.synchronize(world)
    if parts:
        backbone.accumulate(int(parts))
    backbone.hybridize()
    head = PartialFC.create(
        options, (NUM_CLASSES, EMBEDDING), world, mx.cpu(),
        optimizer=SGD(momentum=0.9, weight_decay=5e-4), seed=7,
    )  # fmt: skip
    # Clipped to a tenth of their norms or less.
    sgd = OptimizerOptions(0.9, 5e-4, clip_norm=5.0 if run == "softmax" else None)
    optimizer = BackboneOptimizer(sgd, backbone.parameters, world, dtype="float32")
    taught = Teacher(make_backbone(seed=2).inference(), 20.0, world) if teacher else None
    step = FaceStep(backbone, head, optimizer, center_lr_factor=2.0)
    step.learn_from(taught)
    generator, losses = np.random.default_rng(1), []
    own = slice(world.rank * BATCH // world.size, (world.rank + 1) * BATCH // world.size)
    for update in range(3):
        images = generator.integers(256, size=(BATCH, 3, side, side)).astype(np.uint8)
        labels = generator.integers(NUM_CLASSES, size=BATCH)
        losses.append(step(Batch(images[own], labels[own]), update, lr).asscalar())

    centers = np.concatenate(world.gather_objects(head.rows.export()["centers"], "test.centers"))
    arrays = {name: value.data().asnumpy() for name, value in backbone.parameters.items()}
    return {"centers": centers, "losses": np.array(losses), **arrays}


def run(launcher: str, number: int, output, runs, **variables) -> Found:
    module = (sys.executable, "-m", "tests.distributed.test_parity", output, *runs)
    finish(*ranks(launcher, number), *module, seconds=200, **variables)
    found: Found = {one: {} for one in runs}
    for name, array in np.load(output).items():
        one, _, part = name.partition("/")
        found[one][part] = array
    return found


def assert_equal(found: Arrays, expected: Arrays, tolerance: float, least: float = 0) -> None:
    """Relative to the largest number of an array, which counts as ``least`` where it is smaller."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        error = np.abs(found[name] - array).max() / max(np.abs(array).max(), least)
        assert error <= tolerance, (name, error)


@pytest.fixture(scope="module")
def one_process() -> Found:
    return {one: train(LoneWorld(), one) for one in (*LOSSES, *IN_PARTS)}


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory) -> Found:
    engine = {"MXNET_ENGINE_TYPE": "ThreadedEnginePerDevice"}
    output = tmp_path_factory.mktemp("ranks") / "three.npz"
    return run("--mpi", 3, output, (*ON_RANKS, *NETWORKS), **engine)


@pytest.mark.launcher
@pytest.mark.parametrize("number", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_three_updates_equal_one_process(number, one_process: Found, request, tmp_path) -> None:
    if number == 3:
        several = request.getfixturevalue("three_ranks")
    else:
        several = run("--gloo", 2, tmp_path / "two.npz", ON_RANKS)
    for name in ON_RANKS:
        assert_equal(several[name], one_process[name.replace(":2", "")], 2e-5)


@pytest.mark.parametrize("parts", IN_PARTS)
def test_a_batch_in_parts_equals_the_batch(parts: str, one_process: Found) -> None:
    assert_equal(one_process[parts], one_process[IN_PARTS[parts]], 1e-5)


def test_the_updates_move_everything(one_process: Found) -> None:
    """Otherwise the comparison would hold for a program that does nothing."""
    for loss in LOSSES:
        assert len(set(one_process[loss]["losses"].tolist())) == 3
        centers = one_process[loss]["centers"]
        assert centers.shape == (31, 16) and np.abs(centers).max() > 0.05
    taught, alone = one_process["arcface+teacher"], one_process["arcface"]
    assert np.abs(taught["conv1_weight"] - alone["conv1_weight"]).max() > 1e-3


@pytest.fixture(scope="module")
def networks() -> Found:
    return {one: train(LoneWorld(), one) for one in NETWORKS}


@pytest.mark.thorough
@pytest.mark.launcher
@pytest.mark.parametrize("network", NETWORKS)
def test_synchronized_updates_equal_one_process(network, networks, three_ranks: Found) -> None:
    # Weights are of the order of 1; some shifts are rounding alone.
    assert_equal(three_ranks[network], networks[network], 2e-5, least=1.0)


@pytest.mark.thorough
@pytest.mark.launcher
def test_operators_that_end_one_by_one_compute_the_same(networks, tmp_path) -> None:
    """Also the collectives, each of which ends before the next begins."""
    found = run("--gloo", 2, tmp_path / "two.npz", NETWORKS[:1], MXNET_ENGINE_TYPE="NaiveEngine")
    assert_equal(found[NETWORKS[0]], networks[NETWORKS[0]], 2e-5, least=1.0)


def main(output: str, *runs: str) -> None:
    world = HorovodWorld()
    found = {f"{run}/{name}": array for run in runs for name, array in train(world, run).items()}
    if world.rank == 0:
        np.savez(output, **found)
    world.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
