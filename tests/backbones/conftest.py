"""What the tests of networks share: deterministic images, and the tensors of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest


@pytest.fixture
def images() -> npt.NDArray[np.uint8]:
    """Return four images uint8 [4, 3, 112, 112]."""
    return np.random.default_rng(7).integers(0, 256, (4, 3, 112, 112), dtype=np.uint8)


@pytest.fixture(scope="session")
def tensor_shapes() -> Any:
    """Return a function from a graph to the shapes of its trained tensors, by name."""

    def shapes(symbol: Any) -> dict[str, tuple[int, ...]]:
        found, _, _ = symbol.infer_shape(data=(1, 3, 112, 112))
        named = dict(zip(symbol.list_arguments(), found))
        del named["data"]
        return named

    return shapes
