"""What ranks check that have a device each: the collectives of arrays there, updates with them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel.world import World
from runtime.gpu_check import Wrong, checked
from runtime.mxnet import mx
from training.device_check import updates
from training.device_check.subject import Subject

_MANY = 70


def lines(world: World, context: Any) -> Iterator[str]:
    """Check the collectives together with all ranks, which get the same lines."""
    checks = {"allreduce": _allreduce, "allgather": _allgather, "broadcast": _broadcast}
    for name, collective in checks.items():
        for dtype in ("float32", "float16"):
            yield checked(f"two ranks {name} {dtype}", partial(collective, world, context, dtype))
    for kind in (updates.FLOAT32, updates.FLOAT16):
        yield checked(f"two ranks update cosface {kind}", partial(_update, world, context, kind))


def _values(rank: int, dtype: str) -> NDArray[Any]:
    """Whole numbers, whose sums have no rounding, and which differ by rank."""
    return (np.arange(12).reshape(4, 3) % 5 + 10 * rank).astype(dtype)


def _allreduce(world: World, context: Any, dtype: str) -> str:
    everyone = np.stack([_values(rank, dtype) for rank in range(world.size)])
    own = everyone[world.rank]
    for op, expected in (("sum", everyone.sum(0)), ("max", everyone.max(0))):
        array = mx.nd.array(own, ctx=context, dtype=dtype)
        _agree(world, f"the {op}", world.allreduce(array, f"check.{op}", op), expected)
    # As many as a backbone has, each by its number: Horovod sends several together.
    many = [mx.nd.array(own + number, ctx=context, dtype=dtype) for number in range(_MANY)]
    world.allreduce_all(many, "check.many")
    expected = everyone.sum(0) + world.size * np.arange(_MANY).reshape(-1, 1, 1)
    _agree(world, "sums of several", mx.nd.stack(*many), expected)
    return f"sum, maximum, and {_MANY} sums at once"


def _allgather(world: World, context: Any, dtype: str) -> str:
    rows = [_values(rank, dtype) for rank in range(world.size)]
    array = mx.nd.array(rows[world.rank], ctx=context, dtype=dtype)
    _agree(world, "the rows", world.allgather(array, "check.rows"), np.concatenate(rows))
    uneven = [own[: 4 - rank % 2] for rank, own in enumerate(rows)]
    array = mx.nd.array(uneven[world.rank], ctx=context, dtype=dtype)
    gathered = world.allgather_uneven(array, "check.uneven")
    _agree(world, "different numbers of rows", gathered, np.concatenate(uneven))
    return "rows of all ranks in their order, as many or as few as each has"


def _broadcast(world: World, context: Any, dtype: str) -> str:
    array = mx.nd.array(_values(world.rank, dtype), ctx=context, dtype=dtype)
    world.broadcast(array, "check.broadcast")
    _agree(world, "the copy", array, _values(0, dtype))
    return "what rank 0 has"


def _update(world: World, context: Any, kind: str) -> str:
    subject = Subject()
    host = updates.train(subject, mx.cpu(), "float32", world)
    return updates.check(subject, host, context, kind, world)


def _agree(world: World, what: str, array: Any, expected: NDArray[Any]) -> None:
    """Let all ranks pass, or all fail."""
    found = array.asnumpy()
    is_wrong = found.shape != expected.shape or not np.array_equal(found, expected)
    ranks = mx.nd.array([float(is_wrong)])
    count = float(world.allreduce(ranks, "check.agree").asscalar())
    if count:
        raise Wrong(f"{what}: wrong on {count:g} of {world.size} ranks")
