"""Where the last record is, of classes that have one."""

from __future__ import annotations

import numpy as np
import pytest

from partial_fc.store.index import Index


@pytest.mark.parametrize("at_once", [2, 3, 100])
def test_the_end_is_behind_the_last_record(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partial_fc.store.index._AT_ONCE", at_once)
    # Checksums and places; a class without a record may have any place.
    index = Index(np.array([[7, 4], [0, 90], [1, 0], [2, 6], [0, 0]], np.uint32))
    assert index.end(0, 5) == 7
    assert index.end(0, 3) == 5
    assert index.end(2, 3) == 1
    assert index.end(4, 5) == index.end(1, 2) == 0
