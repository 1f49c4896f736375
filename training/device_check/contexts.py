"""Whether a device works at all: a copy, an operator of MXNet, of cuBLAS, of cuDNN."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.gpu_check import Wrong, checked
from runtime.mxnet import mx
from training.device_check.subject import need_float16

_TOLERANCES = {"float32": 2e-3, "float16": 1e-2}


def lines(context: Any) -> Iterator[str]:
    """Check one device."""
    rng = np.random.default_rng(0)
    image, kernel = rng.normal(size=(2, 8, 9, 9)), rng.normal(size=(8, 8, 3, 3))
    yield checked(f"{context} copies", partial(_copies, context))
    for dtype in _TOLERANCES:
        a, b = (rng.normal(size=(64, 96)).astype(dtype) for _ in range(2))
        product = partial(_operator, context, "FullyConnected", (a, b), num_hidden=64)
        yield checked(f"{context} product {dtype}", product)
        arrays = image.astype(dtype), kernel.astype(dtype)
        shape = {"num_filter": 8, "kernel": (3, 3)}
        convolution = partial(_operator, context, "Convolution", arrays, **shape)
        yield checked(f"{context} convolution {dtype}", convolution)


def parse(name: str) -> Any:
    """The context of a name such as gpu(0)."""
    kind, _, number = name.rstrip(")").partition("(")
    return mx.Context(kind, int(number))


def _copies(context: Any) -> str:
    values = np.arange(1000, dtype=np.float32)
    array = mx.nd.array(values, ctx=context) + 1
    if array.context != context or not np.array_equal(array.asnumpy(), values + 1):
        raise Wrong("what comes back is not what was sent, plus 1")
    if context.device_type != "gpu":
        return "there and back are equal"
    free, total = mx.context.gpu_memory_info(context.device_id)
    return f"there and back are equal; {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free"


def _operator(
    context: Any, name: str, inputs: tuple[NDArray[Any], NDArray[Any]], **attributes: Any
) -> str:
    """Compare an operator without bias with that of the host, in float32."""
    dtype = inputs[0].dtype.name
    if dtype == "float16":
        need_float16(context)

    def compute(ctx: Any, kind: str) -> NDArray[Any]:
        arrays = (mx.nd.array(array, ctx=ctx, dtype=kind) for array in inputs)
        result: NDArray[Any] = getattr(mx.nd, name)(*arrays, no_bias=True, **attributes).asnumpy()
        return result

    expected = compute(mx.cpu(), "float32")
    error = float(np.abs(compute(context, dtype) - expected).max() / np.abs(expected).max())
    if not error <= _TOLERANCES[dtype]:
        raise Wrong(f"off by {error:.1e} of the largest value, allowed {_TOLERANCES[dtype]:g}")
    return f"off by {error:.1e} of the largest value"
