"""The sharded head against float64 in one process, its margins, and what its ranks exchange."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Optional

import numpy as np
import pytest

from parallel.world import LoneWorld
from partial_fc import blocks, head
from partial_fc.head import PartialFC
from partial_fc.margin import AdaFace, CombinedMargin, CurricularFace, MagFace, Targets, build
from partial_fc.optimizers import SGD
from partial_fc.options import LOSSES as NAMED_LOSSES
from partial_fc.options import HeadOptions
from partial_fc.rows.device import DeviceRows
from partial_fc.rows.host import HostRows
from partial_fc.shard import Sampler, Shard
from runtime import environment, processors
from runtime.errors import ConfigError
from runtime.mxnet import mx
from runtime.state import REPLICATED
from tests.partial_fc import reference_head as exact
from tests.support.thread_world import run_ranks
from training.config.presets import PRESETS

EMBEDDING, GLOBAL_BATCH, LR = 24, 12, 0.3
SGD_09 = SGD(momentum=0.9, weight_decay=5e-4)


class Loss(NamedTuple):
    """A loss; from a batch's first image to its last the deviation of the features grows."""

    margin: Callable[[], Any]
    reference: Callable[[], Any]
    filter_threshold: float = 1.0
    deviations: tuple[float, float] = (3.0, 3.0)


def reference_magface(norms, cosines):
    """Meng et al. 2021, on norms below 10, between 10 and 110, and above 110."""
    assert norms.min() < 10 and norms.max() > 110
    margins = np.interp(norms, [10, 110], [0.45, 0.8])
    slopes = np.where((norms > 10) & (norms < 110), 0.35 / 100, 0.0)
    penalties, penalty_slopes = norms / 110**2 + 1 / norms, 1 / 110**2 - 1 / norms**2
    terms = exact.ReferenceNormTerms(slopes, 35 * penalties, 35 * penalty_slopes)
    return {"margins": (1.0, margins, 0.0), "norm_terms": terms}


LOSSES = {
    name: Loss(partial(CombinedMargin, *margins), partial(exact.fixed_margins, *margins))
    for name, margins in exact.MARGINS.items()
}
ADAPTIVE_LOSSES = {
    "combined": LOSSES["combined"],
    "adaface": Loss(AdaFace, exact.ReferenceAdaFace),
    "curricularface": Loss(CurricularFace, exact.ReferenceCurricularFace),
    "magface": Loss(MagFace, lambda: reference_magface, deviations=(1.0, 30.0)),
    "filtered arcface": LOSSES["arcface"]._replace(filter_threshold=0.2),
    "filtered curricularface": Loss(CurricularFace, exact.ReferenceCurricularFace, 0.2),
    "filtered magface": Loss(MagFace, lambda: reference_magface, 0.2, (1.0, 30.0)),
}


def one_device_block(centers, optimizer, **most):
    return DeviceRows(centers, optimizer, mx.cpu(1), **most)


# Blocks of seven rows, so that a sample spans several tensors.
device_rows = partial(one_device_block, max_elements=7 * EMBEDDING + 3)


def make_batches(num_classes, updates=3, deviations=(3.0, 3.0)) -> Iterator[tuple[Any, Any]]:
    generator = np.random.default_rng(3)
    factors = np.linspace(deviations[0], deviations[1], GLOBAL_BATCH, dtype=np.float32)[:, None]
    for _ in range(updates):
        features = generator.normal(size=(GLOBAL_BATCH, EMBEDDING)).astype(np.float32) * factors
        labels = generator.integers(num_classes, size=GLOBAL_BATCH)
        labels[1] = labels[0]  # a class that occurs twice
        yield features, labels


def drawn_centers(shard):
    """Of which the tolerances are known: rounding depends on the numbers."""
    drawn = np.random.default_rng((5, 0)).standard_normal((1024, EMBEDDING), dtype=np.float32)
    return drawn[shard.start : shard.stop] * np.float32(0.01)


def own_part(world):
    batch = GLOBAL_BATCH // world.size
    return slice(world.rank * batch, (world.rank + 1) * batch)


def train_sharded(world, num_classes, loss, options, rows_of):
    """This rank's losses, feature gradients, sampled classes of three updates; and its centers."""
    shard = Shard(world.rank, world.size, num_classes)
    sampler = Sampler(shard, options.sample_ratio, seed=11)
    rows = rows_of(drawn_centers(shard), SGD_09)
    head = PartialFC(options, loss.margin(), rows, sampler, shard, world)
    own, steps = own_part(world), []
    context = mx.cpu() if rows_of is HostRows else mx.cpu(1)
    batches = make_batches(num_classes, deviations=loss.deviations)
    for update, (features, labels) in enumerate(batches):
        step = head.step(mx.nd.array(features[own], ctx=context), labels[own], update, LR)
        assert step.loss.context == step.gradient.context == context
        sampled = sampler.sample(labels, update).rows + shard.start
        steps.append((step.loss.asnumpy(), step.gradient.asnumpy(), sampled))
    return steps, rows.export()["centers"]


def error(actual, expected):
    assert np.isfinite(actual).all()
    return np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-30)


def errors(world_size, num_classes, loss, scale, ratio, rows_of=HostRows, dtype="float32"):
    """By how much losses, gradients and centers of three updates differ from the reference."""
    options = HeadOptions(
        scale=scale, filter_threshold=loss.filter_threshold, head_dtype=dtype, sample_ratio=ratio
    )
    train = partial(train_sharded, num_classes=num_classes, loss=loss, options=options)
    ranks, centers = zip(*run_ranks(world_size, partial(train, rows_of=rows_of)))
    arrays = exact.zero_states(SGD_09, drawn_centers(Shard(0, 1, num_classes)))
    margins_of, wanted, found = loss.reference(), arrays["centers"], []
    batches = make_batches(num_classes, deviations=loss.deviations)
    for (features, labels), of_ranks in zip(batches, zip(*ranks)):
        losses, gradient, classes = map(np.concatenate, zip(*of_ranks))
        assert classes.size < num_classes or ratio == 1.0
        norms = np.linalg.norm(features.astype(np.float64), axis=1)
        adapted = margins_of(norms, exact.target_cosines(features, labels, wanted))
        adapted = {**adapted, "scale": scale, "filter_threshold": loss.filter_threshold}
        step = exact.reference_step(features, labels, wanted, classes, **adapted)
        exact.reference_update(SGD_09, arrays, classes, step.centers_gradient, LR)
        found.append((error(losses, step.loss), error(gradient, step.features_gradient)))
    return *np.max(found, axis=0), error(np.concatenate(centers), wanted)


@pytest.mark.parametrize(("world_size", "num_classes", "ratio"), [
    (1, 61, 1.0), (1, 61, 0.3), (2, 60, 1.0), (2, 61, 0.3), (3, 60, 0.3), (3, 61, 1.0),
])
@pytest.mark.parametrize(("loss", "scale"), [
    ("arcface", 1.0), ("arcface", 1000.0), ("cosface", 64.0), ("combined", 64.0), ("softmax", 1),
])
def test_three_steps_equal_the_reference(world_size, num_classes, ratio, loss, scale):
    found = errors(world_size, num_classes, LOSSES[loss], scale, ratio)
    assert max(found) <= (2e-5 if scale <= 64 else 1e-3)


@pytest.mark.parametrize(("world_size", "rows_of", "scale"), [
    (1, HostRows, 64.0), (2, device_rows, 64.0), (3, HostRows, 1.0), (3, one_device_block, 1.0),
])
@pytest.mark.parametrize("loss", ADAPTIVE_LOSSES)
def test_adaptive_losses_equal_the_reference(world_size, rows_of, scale, loss):
    assert max(errors(world_size, 61, ADAPTIVE_LOSSES[loss], scale, 0.3, rows_of)) <= 2e-5


@pytest.mark.skipif(not processors.has_avx512(), reason="bfloat16 needs AVX-512")
# A rank has 9 or 18 sampled rows: also blocks of which the last has fewer, or as many.
@pytest.mark.parametrize(("world_size", "loss", "scale", "block_rows"), [
    (2, "arcface", 64, blocks.BLOCK_ROWS), (1, "cosface", 1, 7), (1, "arcface", 64, 6),
])
def test_bfloat16_stays_near_the_reference(world_size, loss, scale, block_rows, monkeypatch):
    """A product keeps eight bits: a logit of 64 is off by up to 0.125, its probability by 13 %."""
    monkeypatch.setattr(blocks, "BLOCK_ROWS", block_rows)
    found = errors(world_size, 61, LOSSES[loss], scale, 0.3, dtype="bfloat16")
    of_loss, of_gradient, of_centers = found
    assert of_loss <= 0.01 and of_gradient <= (0.01 if scale == 1.0 else 0.13)
    # That it was bfloat16 at all shows in differences that float32 does not have.
    assert 1e-4 < of_centers <= 0.01


def test_a_step_sends_what_the_plan_says():
    def rank_main(world: Any):
        sizes: dict[str, int] = {}

        def recorded(kind, collective, array, name, **op):
            result = collective(array, name, **op)
            sizes[f"{kind} {name}"] = result.size
            return result

        for kind in ("allgather", "allreduce"):
            setattr(world, kind, partial(recorded, kind, getattr(world, kind)))
        shape, own = (61, EMBEDDING), own_part(world)
        head = PartialFC.create(HeadOptions(), shape, world, mx.cpu(), optimizer=SGD_09, seed=0)
        features, labels = next(make_batches(61))
        head.step(mx.nd.array(features[own]), labels[own], 0, LR)
        return sizes

    expected = {
        "allgather head.features": GLOBAL_BATCH * EMBEDDING,
        "allgather head.labels": GLOBAL_BATCH,
        "allreduce head.maximum": GLOBAL_BATCH,
        "allreduce head.denominator": 2 * GLOBAL_BATCH,
        "allreduce head.gradient": GLOBAL_BATCH * EMBEDDING,
    }
    assert run_ranks(2, rank_main) == [expected] * 2


@pytest.mark.parametrize("unit", ["AMX", None])
def test_where_bfloat16_is_computed(monkeypatch, unit: Optional[str]) -> None:
    monkeypatch.setattr(environment, "bfloat16_unit", lambda: unit)
    built = partial(PartialFC.create, HeadOptions(head_dtype="bfloat16"), (4, 8), LoneWorld())
    products = built(mx.cpu(), optimizer=SGD_09, seed=0)._products
    assert products._dtype == head.TYPES["bfloat16" if unit else "float32"]
    with pytest.raises(ConfigError, match="--head-dtype bfloat16 is for CPUs"):
        built(mx.gpu(0), optimizer=SGD_09, seed=0)


def test_confident_targets_keep_exact_gradients():
    """With the target's probability near 1, the gradient is tiny but not rounded away."""
    feature, centers = np.array([[1.0, 0.02, 0.0, 0.0]], np.float32), np.eye(4, dtype=np.float32)
    shard, rows = Shard(0, 1, 4), HostRows(centers.copy(), SGD(0.0, 0.0))
    options, sampler = HeadOptions(scale=30.0), Sampler(shard, 1.0, seed=0)
    head = PartialFC(options, CombinedMargin(), rows, sampler, shard, LoneWorld())
    step = head.step(mx.nd.array(feature), np.array([0]), 0, 0.0)
    classes, margins = np.arange(4), (1.0, 0.0, 0.0)
    reference = exact.reference_step(feature, np.array([0]), centers, classes, margins, 30.0)
    expected = reference.features_gradient
    assert np.abs(expected).max() < 1e-9
    assert np.abs(step.gradient.asnumpy() - expected).max() <= 1e-3 * np.abs(expected).max()


def margined(margin, cosines, norms):
    inverse_norms = mx.nd.array(1.0 / np.array(norms, dtype=np.float32)[:, None])
    here = mx.nd.ones(len(cosines))
    return margin(Targets(mx.nd.array(cosines), here, inverse_norms, LoneWorld()))


@pytest.mark.parametrize("make", [
    *(partial(CombinedMargin, *some) for some in ((0.9, 0.4, 0.15), (1.3, 0.2, 0.0))),
    *(partial(build, HeadOptions(loss)) for loss in NAMED_LOSSES),
])
def test_slopes_equal_differences(make):
    cosines, step = np.linspace(-0.9, 0.9, 37), 2e-3
    norms, norm_step = np.linspace(5.0, 130.0, 37), 0.05

    def slopes(above, below, width):
        return (above.asnumpy().astype(float) - below.asnumpy().astype(float)) / (2 * width)

    # A new margin each time: its running means depend on cosines and norms.
    found = margined(make(), cosines, norms)
    above, below = (margined(make(), cosines + by, norms) for by in (step, -step))
    expected = slopes(above.cosines_B, below.cosines_B, step)
    assert found.slopes_B.asnumpy() == pytest.approx(expected, abs=2e-3, rel=2e-3)
    if (terms := found.norm_terms) is None:
        return
    above, below = (margined(make(), cosines, norms + by) for by in (norm_step, -norm_step))
    expected = slopes(above.cosines_B, below.cosines_B, norm_step)
    assert terms.slopes_B.asnumpy() == pytest.approx(expected, abs=1e-5, rel=2e-3)
    penalties = above.norm_terms.penalties_B, below.norm_terms.penalties_B
    expected = slopes(*penalties, norm_step)
    assert terms.penalty_slopes_B.asnumpy() == pytest.approx(expected, abs=1e-4, rel=2e-3)


def test_adaface_clips_the_distance_and_the_angle():
    norms, cosines = [1.0, 3.0, 1.0, 3.0], [0.5, 0.5, -0.99, 0.99]
    margin = AdaFace()
    margin._H = 10.0
    found = margined(margin, cosines, norms)
    # Distances of ±1 at most: the worst image gets θ + 0.4 and no m3, the best θ − 0.4 and 0.8.
    # arccos(-0.99) + 0.4 lies above π and arccos(0.99) − 0.4 below 0.
    expected = [np.cos(np.pi / 3 + 0.4), np.cos(np.pi / 3 - 0.4) - 0.8, -1.0, 1.0 - 0.8]
    assert found.cosines_B.asnumpy() == pytest.approx(expected, abs=1e-5)
    assert found.slopes_B.asnumpy()[2:] == pytest.approx([0.0, 0.0], abs=1e-5)
    kinds = {name: stored.kind for name, stored in margin.export_state(1).arrays.items()}
    assert kinds == dict.fromkeys(("margin.norm_mean", "margin.norm_deviation"), REPLICATED)


def test_margins_are_built_by_name():
    assert build(HeadOptions("arcface")) == CombinedMargin(1.0, 0.5, 0.0)
    assert build(HeadOptions("adaface", margins=(1.0, 0.1, 0.2))) == CombinedMargin(1.0, 0.1, 0.2)
    assert isinstance(build(HeadOptions("adaface")), AdaFace)
    assert isinstance(build(HeadOptions("curricularface")), CurricularFace)
    for loss in NAMED_LOSSES:
        build(HeadOptions(loss))
    for margin in (CombinedMargin(), AdaFace(), CurricularFace()):
        assert margin.export_state(1).arrays == {}


def is_accepted(m1: float, m2: float, m3: float) -> bool:
    try:
        HeadOptions(margins=(m1, m2, m3)).check()
    except ConfigError:
        return False
    return True


def test_which_margins_are_accepted():
    found = [loss.margins for loss in NAMED_LOSSES.values()]
    for margins in [*found, *(preset.get("margins") for preset in PRESETS.values())]:
        assert margins is None or is_accepted(*margins)
    # At 90 degrees the angle may be turned to 180.
    for refused in (
        *((0.99, 0.5, 0.0), (1.0, -0.1, 0.0), (1.0, 0.0, -0.1), (1.0, 0.0, 1.0)),
        *((1.0, 1.58, 0.0), (2.01, 0.0, 0.0), (1.5, 0.8, 0.0)),
    ):
        assert not is_accepted(*refused)
    assert is_accepted(2.0, 0.0, 0.99) and is_accepted(1.5, 0.78, 0.0) and is_accepted(1, 1.57, 0)


def test_cosines_that_rounding_takes_past_one_give_numbers():
    cosines = mx.nd.array([1.0, -1.0, 1.0000002, -1.0000002])
    for margins in ((1.0, 0.0, 0.35), (1.0, 0.5, 0.0), (2.0, 0.0, 0.0)):
        values, slopes = (found.asnumpy() for found in CombinedMargin(*margins).apply(cosines))
        assert np.isfinite([values, slopes]).all()
