"""Clipping by the global norm, against NumPy in float64."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from runtime.kernels.compiled import numba
from runtime.mxnet import mx
from tests.support.thread_world import run_ranks
from training.config.faces import FaceOptimizerOptions
from training.update.clipping import clip, device_factor
from training.update.optimizer import BackboneOptimizer

HOST, DEVICE = mx.cpu(), mx.cpu(1)
SHAPES = {"conv_weight": (8, 3, 3, 3), "fc_weight": (5, 7), "fc_bias": (5,), "one_gamma": (1,)}


def arrays(seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        name: (scale * generator.normal(size=shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def norm_of(gradients) -> float:
    return math.sqrt(sum(float(np.square(g.astype(np.float64)).sum()) for g in gradients))


@pytest.mark.parametrize("device", [HOST, DEVICE])
@pytest.mark.parametrize("share", [0.03, 0.5, 0.999])
def test_gradients_are_shortened_to_the_norm(device, share: float) -> None:
    values = list(arrays(0).values())
    norm = norm_of(values)
    gradients = [mx.nd.array(value, ctx=device) for value in values]
    clip(gradients, share * norm)
    found = [gradient.asnumpy() for gradient in gradients]
    assert norm_of(found) == pytest.approx(share * norm, rel=1e-6)
    for one, value in zip(found, values):
        np.testing.assert_allclose(one, value.astype(np.float64) * share, rtol=5e-7)
    if device == HOST:
        # By one float32 factor, exactly.
        for one, value in zip(found, values):
            np.testing.assert_array_equal(one, value * np.float32(share * norm / norm))


@pytest.mark.parametrize("device", [HOST, DEVICE])
@pytest.mark.parametrize("scale", [1.0, 1.001, 50.0])
def test_shorter_gradients_keep_their_bytes(device, scale: float) -> None:
    values = list(arrays(1).values())
    gradients = [mx.nd.array(value, ctx=device) for value in values]
    clip(gradients, scale * norm_of(values) * (1 + 1e-6))
    for gradient, value in zip(gradients, values):
        np.testing.assert_array_equal(gradient.asnumpy(), value)


@pytest.mark.parametrize("device", [HOST, DEVICE])
@pytest.mark.parametrize(("value", "expected"), [(0.0, 0.0), (1e18, 1.0), (1e-30, 1e-30)])
def test_extreme_norms(device, value: float, expected: float) -> None:
    """No gradient at all, one whose square nearly exceeds float32, and one whose square is 0."""
    gradients = [mx.nd.full((1,), value, ctx=device), mx.nd.zeros((3,), ctx=device)]
    clip(gradients, 1.0)
    assert gradients[0].asnumpy()[0] == pytest.approx(expected, rel=1e-6)
    assert gradients[1].asnumpy().tolist() == [0, 0, 0]


def test_the_sum_over_many_arrays_may_exceed_float32() -> None:
    gradients = [mx.nd.full((1,), 1.5e19, ctx=DEVICE) for _ in range(4)]
    clip(gradients, 2.0)
    assert [g.asscalar() for g in gradients] == pytest.approx([1.0] * 4, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("device", [HOST, DEVICE])
def test_what_is_not_finite_stays_so(device, bad: float) -> None:
    gradients = [mx.nd.array([1.0, bad], ctx=device), mx.nd.ones((3,), ctx=device)]
    clip(gradients, 0.5)
    assert not np.isfinite(gradients[0].asnumpy()[1])


def test_the_factor_does_not_depend_on_threads() -> None:
    gradients = [np.random.default_rng(2).normal(size=1_000_003).astype(np.float32)]
    found = []
    before = numba.get_num_threads()
    for threads in (1, before):
        numba.set_num_threads(threads)
        one = mx.nd.array(gradients[0])
        clip([one], 1.0)
        found.append(one.asnumpy())
    numba.set_num_threads(before)
    np.testing.assert_array_equal(*found)
    assert norm_of(found[:1]) == pytest.approx(1, rel=1e-6)


def test_the_norm_is_that_without_the_loss_scale() -> None:
    values = arrays(3)
    half = [
        # A processor, which stands for the device here, squares them in float16.
        mx.nd.array(values["conv_weight"] * 16, dtype="float16", ctx=DEVICE),
        mx.nd.array(values["fc_bias"] * 16, ctx=DEVICE),
    ]
    norm = norm_of([array.astype("float32").asnumpy() / 16 for array in half])
    unscale = mx.nd.full((1,), 1 / 16, ctx=DEVICE)
    assert device_factor(half, norm / 4, unscale).asscalar() == pytest.approx(0.25, rel=1e-4)
    assert device_factor(half, norm * 4, unscale).asscalar() == 1


def make(world, device, dtype, **options):
    parameters = mx.gluon.ParameterDict()
    for name, value in arrays(4).items():
        parameter = parameters.get(name, shape=value.shape, dtype=dtype)
        parameter.initialize(mx.init.Zero(), ctx=device)
        parameter.set_data(mx.nd.array(value))
        parameter.wd_mult = float(name.endswith("_weight"))
    return parameters, BackboneOptimizer(
        FaceOptimizerOptions(wd=0.1, **options), parameters, world, dtype=dtype
    )


def train(world, device, dtype="float32", updates=3, **options):
    """Updates with gradients of norms 1 to 6 in turn; each rank has its part of each."""
    parameters, optimizer = make(world, device, dtype, **options)
    if dtype == "float16":
        # As above: of the first scale, 8,192, the squares would overflow.
        saved = {"loss_scale": 16.0, "good_updates": 0}
        optimizer.loss_scale.load_state(
            SimpleNamespace(number=saved.__getitem__, count=saved.__getitem__)
        )
    scale = optimizer.loss_scale.scaled(mx.nd.ones((1,), ctx=device)).asscalar()
    for update in range(updates):
        for (name, whole), parameter in zip(gradients_of(update).items(), parameters.values()):
            assert parameter.name == name
            part = whole / world.size + (world.rank - (world.size - 1) / 2) * 0.25
            parameter.grad()[:] = mx.nd.array(part * scale)
            for data in parameter.list_data():
                data._fresh_grad = True
        reduced = optimizer.reduce(update)
        optimizer.update(update, lr=0.5)
        assert reduced.are_finite([number.asscalar() for number in reduced.numbers])
    return {name: value.data().asnumpy() for name, value in parameters.items()}


def gradients_of(update: int) -> dict[str, np.ndarray]:
    found = arrays(10 + update)
    norm = norm_of(found.values())
    return {name: value / norm * (1 + 2.5 * update) for name, value in found.items()}


def reference(max_norm: float, momentum: float, updates: int = 3) -> dict[str, np.ndarray]:
    """SGD with momentum and decay in float64."""
    weights = {name: value.astype(np.float64) for name, value in arrays(4).items()}
    momenta = {name: np.zeros_like(value) for name, value in weights.items()}
    for update in range(updates):
        gradients = gradients_of(update)
        factor = min(1.0, max_norm / norm_of(gradients.values()))
        for name, gradient in gradients.items():
            decay = 0.1 * name.endswith("_weight") * weights[name]
            momenta[name] = momentum * momenta[name] - 0.5 * (factor * gradient + decay)
            weights[name] = weights[name] + momenta[name]
    return weights


@pytest.mark.parametrize("device", [HOST, DEVICE])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_updates_are_those_of_numpy_on_any_number_of_ranks(device, ranks, momentum) -> None:
    """The norm is that of the sum: the ranks' own parts are longer or shorter. 1 is no update's."""
    options = {"clip_norm": 2.0, "momentum": momentum}
    results = run_ranks(ranks, lambda world: train(world, device, **options))
    for name, expected in reference(2.0, momentum).items():
        np.testing.assert_allclose(results[0][name], expected, rtol=2e-5, atol=2e-6)
        unclipped = reference(1e9, momentum)[name]
        assert np.abs(unclipped - expected).max() > 0.02
        for result in results[1:]:
            np.testing.assert_array_equal(result[name], results[0][name])


@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw"])
def test_half_precision_clips_what_float32_does(rule: str) -> None:
    """Weights of float16 round, so those of the two runs are compared to its resolution."""
    options = {"clip_norm": 0.5, "optimizer": rule, "momentum": 0.9}
    plain, half = (
        run_ranks(1, lambda world, dtype=dtype: train(world, DEVICE, dtype, **options))[0]
        for dtype in ("float32", "float16")
    )
    for name, expected in plain.items():
        np.testing.assert_allclose(half[name], expected, rtol=2e-3, atol=4e-3)


@pytest.mark.parametrize("device", [HOST, DEVICE])
def test_a_norm_that_is_never_reached_changes_no_byte(device) -> None:
    plain, clipped = (
        run_ranks(2, lambda world, norm=norm: train(world, device, clip_norm=norm))[0]
        for norm in (None, 100.0)
    )
    for name, expected in plain.items():
        np.testing.assert_array_equal(clipped[name], expected)


@pytest.mark.parametrize("device", [HOST, DEVICE])
def test_a_gradient_that_is_not_finite_is_judged_as_without(device) -> None:
    def rank_main(world):
        parameters, optimizer = make(world, device, "float32", clip_norm=1.0)
        for parameter in parameters.values():
            parameter.grad()[:] = np.inf if parameter.name == "fc_bias" else 1.0
        reduced = optimizer.reduce(0)
        return reduced.are_finite([number.asscalar() for number in reduced.numbers])

    assert run_ranks(2, rank_main) == [False, False]


def test_an_overflow_of_float16_leaves_the_weights() -> None:
    def rank_main(world):
        parameters, optimizer = make(world, DEVICE, "float16", clip_norm=1.0)
        before = {name: value.data().asnumpy() for name, value in parameters.items()}
        for parameter in parameters.values():
            parameter.grad()[:] = np.inf if parameter.name == "fc_bias" else 1.0
        optimizer.reduce(0)
        optimizer.update(0, lr=0.5)
        for name, value in parameters.items():
            np.testing.assert_array_equal(value.data().asnumpy(), before[name])
        return optimizer.export_state(1).values["loss_scale"]

    assert run_ranks(1, rank_main) == [2.0**12]


def test_what_a_checkpoint_holds_is_the_same() -> None:
    def rank_main(world):
        states = []
        for norm in (None, 1.0):
            _, optimizer = make(world, HOST, "float32", clip_norm=norm)
            state = optimizer.export_state(0)
            states.append(SimpleNamespace(names=sorted(state.arrays), values=state.values))
        assert states[0] == states[1]
        return True

    assert run_ranks(1, rank_main) == [True]
