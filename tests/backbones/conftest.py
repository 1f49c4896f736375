from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest


@pytest.fixture
def images() -> npt.NDArray[np.uint8]:
    """Return four images uint8 [4, 3, 112, 112]."""
    return np.random.default_rng(7).integers(0, 256, (4, 3, 112, 112), dtype=np.uint8)
