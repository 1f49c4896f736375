"""A batch in parts: what each part is given, what random numbers it sees, and how much is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.mxnet import mx
from tests.backbones.passes import create, gradient_of, results, train

ROOT = Path(__file__).resolve().parents[3]


def test_each_part_counts_once(images: np.ndarray) -> None:
    """The reference computes the same parts itself, the last one first, as BatchNorm sees them."""
    parts, reference = create(accumulate=2), create()
    found = train(parts, images, updates=1, lr=0)
    sums: dict[str, Any] = {}
    for rows in (slice(2, 4), slice(0, 2)):
        with mx.autograd.record():
            part = reference(mx.nd.array(images[rows], dtype="uint8"))
        reference.backward(part, gradient_of((4, 16))[rows])
        expected = results(reference, part)
        assert np.array_equal(found["features"][rows], expected.pop("features"))
        sums = {name: array + sums.get(name, 0) for name, array in expected.items()}
    for name, one in reference.parameters.items():
        if one.grad_req == "null":
            assert np.array_equal(found[name], expected[name]), name
        else:
            np.testing.assert_allclose(found[name], sums[name], rtol=1e-5, atol=1e-6, err_msg=name)
    # A network that infers computes the batch whole.
    assert np.array_equal(parts.extract(images[:3]), reference.extract(images[:3]))


def test_updates_and_parts_that_are_recomputed(images: np.ndarray) -> None:
    """No update adds to the gradients of the one before."""
    plain = train(create(accumulate=2), images, lr=0)
    once = train(create(accumulate=2), images, updates=1, lr=0)
    recomputed = train(create(accumulate=2, recompute=True), images, lr=0)
    for name, expected in plain.items():
        if "_moving_" not in name:
            assert np.array_equal(once[name], expected), name
        np.testing.assert_allclose(recomputed[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_dropout_drops_the_same_when_a_part_runs_again(images: np.ndarray) -> None:
    backbone, seen = create("tiny", accumulate=2, net_output="E"), []
    training: Any = backbone._training_pass
    run = training._part.forward

    def forward(part: Any) -> Any:
        features = run(part)
        seen.append(features.asnumpy())
        return features

    training._part.forward = forward
    train(backbone, np.repeat(images[:1], 4, axis=0), updates=1)
    first, last, again = seen
    assert np.array_equal(first, again)
    # Equal images: parts that drop the same would have equal features.
    assert not np.array_equal(first, last)


# Bytes that two updates take above what the process had before.
PROGRAM = """
import re, sys
from runtime.mxnet import mx
from tests.backbones.passes import create

def status(field):
    return 1024 * int(re.search(field + r":\\s+([0-9]+)", open("/proc/self/status").read())[1])

batch, parts = map(int, sys.argv[1:])
backbone = create("mbf", accumulate=parts)
images = mx.nd.zeros((batch, 3, 112, 112), dtype="uint8")
mx.nd.waitall()
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
for _ in range(2):
    with mx.autograd.record():
        features = backbone(images)
    backbone.backward(features, mx.nd.ones_like(features))
    mx.nd.waitall()
print(status("VmHWM") - before)
"""


@pytest.mark.thorough
def test_the_memory_is_that_of_one_part() -> None:
    def peak(batch: int, parts: int) -> int:
        command = [sys.executable, "-c", PROGRAM, str(batch), str(parts)]
        return int(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)

    assert peak(16, parts=4) <= 1.1 * peak(4, parts=1) < 0.5 * peak(16, parts=1)
