from __future__ import annotations

import ctypes
from collections import namedtuple

import numpy as np

from runtime import ndarray
from runtime.kernels.compiled import parallel_kernel, prange
from runtime.mxnet import mx


@parallel_kernel
def _add_one(numbers):
    for n in prange(numbers.size):
        numbers[n] += 1


_Pair = namedtuple("_Pair", "factor numbers")


def _add_product(sums, pairs) -> None:
    for factor, numbers in pairs:
        sums += factor * numbers


def test_a_queued_call_comes_between_the_operators_before_and_behind_it() -> None:
    size = 1 << 20
    sums, numbers = mx.nd.zeros(size), mx.nd.zeros(size)
    for turn in range(1, 21):
        # As many as are under way when the next ones are queued.
        numbers[:] = turn
        ndarray.queue(_add_product, sums, (_Pair(2.0, numbers),), writes=[sums])
        ndarray.queue(_add_one, numbers, writes=[numbers])
        ndarray.queue(_add_product, sums, (_Pair(0.5, numbers),), writes=[sums])
        sums += 1
    expected = sum(2 * turn + 0.5 * (turn + 1) + 1 for turn in range(1, 21))
    assert np.array_equal(sums.asnumpy(), np.full(size, expected, np.float32))


def test_an_array_of_values() -> None:
    copied = ndarray.array_of(np.array([True, False]))
    assert copied.dtype == np.float32 and copied.asnumpy().tolist() == [1.0, 0.0]
    large = ndarray.array_of(np.array([2**40 + 1]), np.int64)
    assert large.dtype == np.int64 and large.asnumpy().tolist() == [2**40 + 1]
    assert ndarray.memory(large).tolist() == [2**40 + 1]


def test_addresses_are_given_when_all_operators_have_run() -> None:
    size = 1 << 22
    arrays = [mx.nd.zeros(size) for _ in range(3)]
    for array in arrays:
        for _ in range(5):
            array += 1
    last = 4 * (size - 1)
    found = [ctypes.c_float.from_address(one + last).value for one in ndarray.addresses(arrays)]
    assert found == [5.0] * 3
