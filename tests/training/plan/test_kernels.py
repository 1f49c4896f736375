"""What ``--calibrate`` measures of a store, and what it leaves there: nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Optional

import pytest

from parallel.world import LoneWorld
from runtime.errors import ConfigError
from training.plan import kernels
from training.plan.kernels import Request


def measure(store: Optional[Path]) -> dict[str, float]:
    request = Request(16, "float32", "sgd", None, None if store is None else str(store))
    return kernels._store(request, LoneWorld())


def test_rows_of_a_store(tmp_path: Path) -> None:
    assert measure(None) == {}
    for place in (tmp_path, tmp_path / "new/folder"):
        assert 1e2 < measure(place)["stored"] < 1e8
        assert list(tmp_path.iterdir()) == []


def test_time_of_a_processor_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(call: Any, world: Any, clock: Any) -> float:
        assert clock is kernels.time.process_time
        call()
        return 0.5

    monkeypatch.setattr(kernels, "_seconds", seconds)
    assert measure(tmp_path) == {"stored": kernels._STORED / 0.5}


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(ConfigError, match=f"{tmp_path}/new: .* cannot be written .Permission den"):
        measure(tmp_path / "new")
