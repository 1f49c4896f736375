"""Steps of both programs, the teacher's part of them, and centers from means of embeddings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Optional
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

import train as program
from data.batches.face_loader import FaceLoader
from data.batches.loader import Batch
from data.batches.position import EpochPlan
from data.options import FaceDataOptions
from data.records.record_set import RecordSet
from data.records.writer import RecordWriter
from parallel.world import LoneWorld, TimedWorld, World
from partial_fc.head import HeadStep, PartialFC
from partial_fc.initial import initial_centers
from partial_fc.optimizers import SGD
from partial_fc.options import CLASS_MEANS, HeadOptions
from partial_fc.shard import Shard
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from runtime.stopwatch import COMMUNICATION, Stopwatch
from tests.backbones.passes import classifier, create
from tests.support.alone import run_alone
from tests.support.thread_world import ThreadWorld, run_ranks
from training import face_data
from training.config.faces import TeacherOptions
from training.config.images import LossOptions
from training.config.options import OptimizerOptions
from training.loop import Updates, fit
from training.update.classify_step import ClassifyStep, EpochCounts, SoftTargets
from training.update.face_step import FaceStep, Teacher
from training.update.gradients import FiniteGuard
from training.update.optimizer import BackboneOptimizer

SIDE, EMBEDDING = 32, 32
FACES = np.random.default_rng(1).integers(256, size=(16, 3, SIDE, SIDE), dtype=np.uint8)
FACE_BATCH = Batch(FACES, np.arange(16))
COUNT, CLASSES = 24, 5
RANDOM = np.random.default_rng(2)
DIGITS = RANDOM.integers(0, 256, (COUNT, 1, 16, 16), np.uint8)
LABELS = RANDOM.integers(0, CLASSES, COUNT)
DIGIT_BATCH = Batch(DIGITS, LABELS)
BATCH, WEIGHT = 6, 3.0
TAUGHT_FACES = FACES[:BATCH]
FEATURES = np.random.default_rng(1).normal(size=(BATCH, EMBEDDING))
TAUGHT = np.random.default_rng(2).normal(size=(BATCH, EMBEDDING)).astype(np.float32)
PEOPLE, PER_PERSON = 7, 5
backbone = partial(create, "tiny", SIDE, embedding_size=EMBEDDING)


def face_step(world, stopwatch, classes=40, center_lr_factor=1.0, **options):
    network = backbone(seed=1)
    timed_world = TimedWorld(world, stopwatch)
    head = PartialFC.create(
        HeadOptions(scale=16.0), (classes, EMBEDDING), timed_world, mx.cpu(),
        optimizer=SGD(momentum=0.9, weight_decay=0.0), seed=3,
    )  # fmt: skip
    rule = OptimizerOptions(momentum=0.9, wd=0.0)
    optimizer = BackboneOptimizer(rule, network.parameters, timed_world, dtype="float32")
    return FaceStep(network, head, optimizer, center_lr_factor, stopwatch=stopwatch, **options)


def one_update(**options):
    step = face_step(LoneWorld(), Stopwatch(), **options)
    trained = trained_by(step._backbone)
    # ``allreduce_all`` takes the first array for the one that the backward pass makes last.
    assert trained[0].name == "conv0_weight"
    centers = step._head.rows.export()["centers"].copy()
    before = [parameter.data().asnumpy() for parameter in trained]
    step(FACE_BATCH, 0, 0.5)
    step.finish()
    after = [(one.data().asnumpy(), one.grad().asnumpy()) for one in trained]
    return zip(before, after), step._head.rows.export()["centers"] - centers


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_a_step_moves_weights_by_lr_and_centers_by_their_part_of_it(on_nan: str) -> None:
    weights, moved = one_update(guard=FiniteGuard(on_nan))
    for old, (new, gradient) in weights:
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(new, old - 0.5 * gradient, rtol=1e-5, atol=1e-6)
    assert np.abs(moved).max() > 0
    _, faster = one_update(center_lr_factor=2.0, guard=FiniteGuard(on_nan))
    np.testing.assert_allclose(faster, 2 * moved, rtol=1e-4, atol=1e-6)


def test_work_is_queued_before_the_last_update_is_judged_and_the_next_sample_is_drawn() -> None:
    events: list[object] = []
    stopwatch, guard = Stopwatch(), FiniteGuard()
    step = face_step(LoneWorld(), stopwatch, guard=guard)
    update, draw, finish = step._optimizer.update, step._head._sampler.sample, guard.finish
    guard.finish = lambda: events.append(stopwatch.current) or finish()
    step._optimizer.update = lambda number, lr: (update(number, lr), events.append("queued"))
    step._head._sampler.sample = lambda *labels: events.append(labels[-1]) or draw(*labels)
    log = Mock(stopwatch=Stopwatch(), **{"reports.return_value": False})
    log.update = lambda *_, **__: events.append("done")
    updates = Updates(lambda _: 0.1, 3, len(FACES), EpochPlan(160, 16))
    fit(step, iter([FACE_BATCH] * 3), updates, log)
    step.finish()
    last = ["queued", COMMUNICATION, "done"]
    assert events == [0, 1, *last, 2, *last, *last, COMMUNICATION]


def classify_step(world, contributors=None, **options) -> ClassifyStep:
    network = classifier("LeNet", (1, 16, 16), classes=CLASSES, seed=3)
    rule = OptimizerOptions(momentum=0.9, wd=1e-3)
    optimizer = BackboneOptimizer(rule, network.parameters, world, dtype="float32")
    optimizer.contributors = contributors or world.size
    counts = EpochCounts(world, lambda: EpochPlan(num_images=3 * COUNT, global_batch=COUNT))
    targets = SoftTargets(LossOptions(**{"label_smoothing": 0.1, **options}), CLASSES, seed=1)
    parts = {"stopwatch": Stopwatch(), "guard": FiniteGuard()}
    return ClassifyStep(network, optimizer, targets, counts, **parts)


def trained_by(network: Any) -> list[Any]:
    return [one for one in network.parameters.values() if one.grad_req != "null"]


def train(world):
    step = classify_step(world)
    own = slice(*(rank * COUNT // world.size for rank in (world.rank, world.rank + 1)))
    part = Batch(DIGITS[own], LABELS[own])
    losses = [float(step(part, update, 0.05).asscalar()) for update in range(3)]
    weights = {name: p.data().asnumpy() for name, p in step.classifier.parameters.items()}
    return losses, weights, step._epoch_counts.averages()


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_compute_what_one_process_does(size: int) -> None:
    expected_losses, expected, expected_counts = train(LoneWorld())
    assert expected_counts["total"] == 3 * COUNT
    for losses, weights, counts in run_ranks(size, train):
        np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
        assert counts["mean_loss"] == pytest.approx(expected_counts["mean_loss"], rel=1e-5)
        assert (counts["correct"], counts["total"]) == (expected_counts["correct"], 3 * COUNT)
        for name, weight in weights.items():
            np.testing.assert_allclose(weight, expected[name], rtol=1e-4, atol=1e-6)


def test_a_step_moves_weights_against_their_gradient_by_lr() -> None:
    step = classify_step(LoneWorld())
    step.classifier(mx.nd.array(DIGITS, dtype="uint8"))
    before = [parameter.data().asnumpy() for parameter in trained_by(step.classifier)]
    loss = step(DIGIT_BATCH, 0, 0.25).asscalar()
    for old, parameter in zip(before, trained_by(step.classifier)):
        new, gradient = parameter.data().asnumpy(), parameter.grad().asnumpy()
        assert np.abs(gradient).max() > 0, parameter.name
        decay = 1e-3 * parameter.wd_mult * old
        np.testing.assert_allclose(new, old - 0.25 * (gradient + decay), atol=1e-6)
    assert {parameter.wd_mult for parameter in trained_by(step.classifier)} == {0.0, 1.0}
    # As in BSP over servers: each worker computes addends, and reports the loss of its own images.
    of_four = classify_step(LoneWorld(), contributors=4)
    assert of_four(DIGIT_BATCH, 0, 0.0).asscalar() == pytest.approx(loss)
    for whole, part in zip(trained_by(step.classifier), trained_by(of_four.classifier)):
        expected = whole.grad().asnumpy() / 4
        np.testing.assert_allclose(part.grad().asnumpy(), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("mixup", [0.0, 0.4])
def test_the_loss_is_the_cross_entropy_of_smoothed_or_mixed_targets(mixup: float) -> None:
    smoothing = 0.0 if mixup else 0.1
    step = classify_step(LoneWorld(), mixup=mixup, label_smoothing=smoothing)
    share = step._targets.share(0) if mixup else 1.0
    assert 0.5 <= share <= 1 and (share < 1) == (mixup > 0)
    images = DIGITS.astype(np.float32)
    logits = step.classifier(mx.nd.array(share * images + (1 - share) * images[::-1])).asnumpy()
    hits = (logits.argmax(axis=1) == LABELS).sum()
    log_shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    rows = np.arange(COUNT)
    of_label = share * log_shares[rows, LABELS] + (1 - share) * log_shares[rows, LABELS[::-1]]
    expected = -((1 - smoothing) * of_label + smoothing * log_shares.mean(axis=1)).mean()
    loss, rel = step(DIGIT_BATCH, 0, 0.0).asscalar(), 1e-4 if mixup else 1e-5
    assert loss == pytest.approx(expected, rel=rel)
    # A mixed image is a hit if its own label is found, which has the larger share.
    assert step._epoch_counts.averages()["correct"] == hits


@pytest.mark.parametrize("size", [1, 2])
def test_counts_of_all_ranks_begin_anew_with_each_epoch(size: int) -> None:
    def count(world):
        world.allreduce = Mock(side_effect=world.allreduce)
        epoch_counts = EpochCounts(world, lambda: EpochPlan(num_images=16, global_batch=8))
        assert np.isnan(epoch_counts.averages()["accuracy"])
        own = 8 // size
        for update, hits in enumerate((1, 2, 4)):
            losses = mx.nd.array([0.5 / size] + [0.0] * (own - 1))
            mean = epoch_counts.add(losses, mx.nd.array([hits / size]), update)
            assert mean.asnumpy().tolist() == [0.5 / 8]
        assert epoch_counts.averages() == {
            "mean_loss": 0.5 / 8, "accuracy": 0.5, "correct": 4, "total": 8,
        }  # fmt: skip
        assert epoch_counts.epochs(3) == 1.5
        # Nothing else orders two updates: Horovod refuses a name that is under way already.
        assert len({id(call.args[0]) for call in world.allreduce.mock_calls}) == 1

    run_ranks(size, count)


@pytest.mark.parametrize("is_last", [True, False])
def test_a_loss_that_is_not_finite_ends_the_run(is_last: bool) -> None:
    step = classify_step(LoneWorld())
    step.classifier.parameters["fc_output_weight"].data()[:] = np.nan
    with pytest.raises(ConfigError, match="update 1: the loss is nan"):
        step(DIGIT_BATCH, 0, 0.1)
        step.finish() if is_last else step(DIGIT_BATCH, 1, 0.1)


def distance(features: np.ndarray) -> float:
    norms = np.linalg.norm(features, axis=1) * np.linalg.norm(TAUGHT.astype(np.float64), axis=1)
    return float(np.mean(1 - (features * TAUGHT).sum(axis=1) / norms))


def slopes() -> np.ndarray:
    steps = 1e-6 * np.eye(FEATURES.size).reshape(-1, *FEATURES.shape)
    found = [(distance(FEATURES + step) - distance(FEATURES - step)) / 2e-6 for step in steps]
    return np.reshape(found, FEATURES.shape)


def lesson(world: World, weight: float) -> tuple[HeadStep, HeadStep, float]:
    """Return a rank's step of the head without and with the teacher, and the distance."""
    share = BATCH // world.size
    own = slice(world.rank * share, (world.rank + 1) * share)

    def infer(images: np.ndarray) -> np.ndarray:
        np.testing.assert_array_equal(images, TAUGHT_FACES[own])
        return TAUGHT[own]

    teacher = Teacher(infer, weight, world)
    before = HeadStep(mx.nd.array([5.0]), mx.nd.ones((share, EMBEDDING)), lambda: None)
    after = teacher.add_to(before, mx.nd.array(FEATURES[own]), TAUGHT_FACES[own])
    return before, after, teacher.averages()["teacher_loss"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_loss_and_gradient_are_those_of_the_global_batch(ranks: int) -> None:
    results = run_ranks(ranks, lambda world: lesson(world, WEIGHT))
    for _, after, reported in results:
        assert reported == pytest.approx(distance(FEATURES), rel=1e-5)
        assert after.loss.asscalar() == pytest.approx(5 + WEIGHT * distance(FEATURES), rel=1e-5)
    gradient = np.concatenate([after.gradient.asnumpy() for _, after, _ in results])
    np.testing.assert_allclose(gradient, 1 + WEIGHT * slopes(), rtol=1e-4, atol=1e-5)


def test_embeddings_that_teach_nothing() -> None:
    before, after, reported = lesson(LoneWorld(), 0.0)
    assert after is before and reported == pytest.approx(distance(FEATURES), rel=1e-5)

    def add(taught: np.ndarray) -> HeadStep:
        teacher = Teacher(lambda images: taught, 1.0, LoneWorld())
        return teacher.add_to(before, mx.nd.array(FEATURES), TAUGHT_FACES)

    after = add(np.zeros((BATCH, EMBEDDING), np.float32))
    assert (after.gradient.asnumpy() == 1).all() and after.loss.asscalar() == 6
    with pytest.raises(DataError, match="embeddings that are not finite"):
        add(np.where(TAUGHT > 2, np.nan, TAUGHT))


def test_a_teacher_is_loaded(tmp_path: Path) -> None:
    def load(name: str) -> Optional[Teacher]:
        options = TeacherOptions(teacher=f"{tmp_path}/{name}", teacher_weight=2.0)
        return Teacher.create(options, backbone(seed=1), (SIDE, SIDE), LoneWorld())

    backbone(seed=2).export(tmp_path / "strong", 4)
    teacher = load("strong,4")
    assert teacher is not None
    taught, expected = teacher._infer(TAUGHT_FACES), backbone(seed=2).extract(TAUGHT_FACES)
    np.testing.assert_allclose(taught, expected, rtol=1e-3, atol=1e-4)
    assert Teacher.create(TeacherOptions(), backbone(seed=1), (SIDE, SIDE), LoneWorld()) is None
    backbone(seed=2, embedding_size=12).export(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"other,0 has embeddings of 12 numbers, .* have 32; "):
        load("other,0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root, generator = tmp_path_factory.mktemp("means"), np.random.default_rng(3)
    with RecordWriter(root / "set", image_size=(SIDE, SIDE)) as writer:
        for label in np.repeat(np.arange(PEOPLE), PER_PERSON):
            pixels = generator.integers(256, size=(SIDE, SIDE, 3), dtype=np.uint8)
            writer.write(cv2.imencode(".png", pixels)[1].tobytes(), int(label))
    backbone(seed=5).export(root / "trained")
    return root


def centers_on(world: ThreadWorld, folder: Path) -> np.ndarray:
    head = PartialFC.create(
        HeadOptions(pretrained_centers=CLASS_MEANS), (PEOPLE, EMBEDDING), world, mx.cpu(),
        optimizer=SGD(momentum=0.9, weight_decay=0.0), seed=3,
    )  # fmt: skip
    data, beat = FaceDataOptions(batch_size=4, threads=1), Mock()
    ranks = {"rank": world.rank, "world_size": world.size}
    with FaceLoader(RecordSet(folder / "set"), data, **ranks, seed=7) as faces:
        face_data.start_from_means(head, backbone(seed=5), faces, beat)
    assert beat.call_count == -(-head.shard.size * PER_PERSON // 4)
    return head.rows.export()["centers"].copy()


def test_centers_are_the_mean_directions_as_long_as_drawn_ones(folder: Path) -> None:
    (centers,) = run_ranks(1, lambda world: centers_on(world, folder))
    data = FaceDataOptions(batch_size=4)
    with FaceLoader(RecordSet(folder / "set"), data, rank=0, world_size=1, seed=1) as faces:
        images, labels = zip(*((one.images, one.labels) for one in faces.images_of(0, PEOPLE)))
    labels = np.concatenate(labels)
    assert np.bincount(labels).tolist() == [PER_PERSON] * PEOPLE
    embeddings = backbone(seed=5).extract(np.concatenate(images)).astype(np.float64)
    units = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    for label, center in enumerate(centers):
        mean = units[labels == label].mean(axis=0)
        expected = mean / np.linalg.norm(mean) * 0.01 * np.sqrt(EMBEDDING)
        np.testing.assert_allclose(center, expected, rtol=1e-3, atol=1e-5)
    drawn = np.linalg.norm(initial_centers(Shard(0, 1, 1000), EMBEDDING, 3), axis=1)
    np.testing.assert_allclose(np.linalg.norm(centers, axis=1), drawn.mean(), rtol=0.03)
    several = np.concatenate(run_ranks(3, lambda world: centers_on(world, folder)))
    np.testing.assert_allclose(several, centers, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_a_run_computes_them_once(folder: Path, tmp_path: Path) -> None:
    words = (
        *("--rec", folder / "set", "--network", "tiny", "--embedding-size", EMBEDDING),
        *("--batch-size", 4, "--models-root", tmp_path, "--save-interval", 2, "--lr", 0.001),
        *("--pretrained", f"{folder}/trained,0", "--frequent", 1, "--pretrained-centers"),
    )
    for updates in (2, 4):
        done = run_alone(program, *words, "--max-update", updates)
        assert done.returncode == 0, done.stderr
        written = (tmp_path / "logs/rank-0000.log").read_text()
        assert written.count("initial class centers: means of 35 images of 7 classes") == 1
    assert "resumed at update 2" in written
