"""A batch in parts: what each part is given, what random numbers it sees, and how much is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backbones.model import Backbone
from backbones.options import BackboneOptions
from runtime.mxnet import mx

ROOT = Path(__file__).resolve().parents[3]


def create(network: str, **options: Any) -> Backbone:
    chosen = BackboneOptions(network=network, embedding_size=16, **options)
    backbone = Backbone.create(chosen, seed=3)
    backbone.hybridize()
    return backbone


def gradient_of(images: np.ndarray) -> Any:
    return mx.nd.array(np.random.default_rng(5).normal(size=(len(images), 16)) / 64)


def train(backbone: Backbone, images: np.ndarray, *, updates: int = 2) -> Any:
    """Features, gradients and running statistics of the last update; the weights stay."""
    for update in range(updates):
        backbone.begin_update(update, rank=0)
        with mx.autograd.record():
            features = backbone(mx.nd.array(images, dtype="uint8"))
        backbone.backward(features, gradient_of(images))
        # MXNet does not know that a backward pass changes the running statistics. A run waits for
        # its gradients.
        mx.nd.waitall()
    gradients = {
        name: parameter.grad().asnumpy()
        for name, parameter in backbone.parameters.items()
        if parameter.grad_req != "null"
    }
    return features.asnumpy(), gradients, [array.asnumpy() for array in backbone.statistics]


@pytest.mark.parametrize("network", ["tiny", "mbf"])
def test_each_part_counts_once(network: str, images: np.ndarray) -> None:
    """The reference computes the same parts itself, the last one first, as BatchNorm sees them."""
    parts, reference = create(network, accumulate=2), create(network)
    features, gradients, statistics = train(parts, images, updates=1)
    sums = {name: np.zeros_like(array) for name, array in gradients.items()}
    for rows in (slice(2, 4), slice(0, 2)):
        with mx.autograd.record():
            part = reference(mx.nd.array(images[rows], dtype="uint8"))
        reference.backward(part, gradient_of(images)[rows])
        assert np.array_equal(features[rows], part.asnumpy())
        mx.nd.waitall()
        for name in sums:
            sums[name] += reference.parameters[name].grad().asnumpy()
    for name, expected in sums.items():
        np.testing.assert_allclose(gradients[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
    for own, once in zip(statistics, reference.statistics):
        assert np.array_equal(own, once.asnumpy())
    # A network that infers computes the batch whole.
    assert np.array_equal(parts.extract(images[:3]), reference.extract(images[:3]))


def test_no_update_adds_to_the_gradients_of_the_one_before(images: np.ndarray) -> None:
    backbone = create("mbf", accumulate=4)
    once = train(backbone, images, updates=1)[1]
    again = train(backbone, images, updates=3)[1]
    for name, expected in once.items():
        assert np.array_equal(again[name], expected), name


def test_parts_may_themselves_be_recomputed(images: np.ndarray) -> None:
    plain = train(create("mbf", accumulate=2), images)
    recomputed = train(create("mbf", accumulate=2, recompute=True), images)
    assert np.array_equal(plain[0], recomputed[0])
    for name, expected in plain[1].items():
        np.testing.assert_allclose(recomputed[1][name], expected, rtol=1e-5, atol=1e-6)
    for own, expected in zip(recomputed[2], plain[2]):
        assert np.array_equal(own, expected)


def test_dropout_drops_the_same_when_a_part_runs_again(images: np.ndarray) -> None:
    backbone = create("tiny", accumulate=2, net_output="E")
    seen = []
    network = backbone._training_pass._network
    run = network.forward

    def forward(part: Any) -> Any:
        features = run(part)
        seen.append(features.asnumpy())
        return features

    network.forward = forward
    train(backbone, np.repeat(images[:1], 4, axis=0), updates=1)
    first, last, again = seen
    assert np.array_equal(first, again)
    # Equal images: parts that drop the same would have equal features.
    assert not np.array_equal(first, last)


PROGRAM = """
import resource, sys
from backbones.model import Backbone
from backbones.options import BackboneOptions
from runtime.mxnet import mx

batch, parts = map(int, sys.argv[1:])
backbone = Backbone.create(BackboneOptions(network="mbf", accumulate=parts))
backbone.hybridize()
images = mx.nd.zeros((batch, 3, 112, 112), dtype="uint8")
mx.nd.waitall()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(2):
    with mx.autograd.record():
        features = backbone(images)
    backbone.backward(features, mx.nd.ones_like(features))
    mx.nd.waitall()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.thorough
def test_the_memory_is_that_of_one_part() -> None:
    def peak(batch: int, parts: int) -> int:
        command = [sys.executable, "-c", PROGRAM, str(batch), str(parts)]
        return int(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)

    assert peak(16, parts=4) <= 1.1 * peak(4, parts=1) < 0.5 * peak(16, parts=1)
