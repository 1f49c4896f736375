"""What ``--calibrate`` measures of a store, and what it leaves there: nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from parallel.world import LoneWorld
from runtime.errors import ConfigError
from training.plan import kernels
from training.plan.kernels import Request


def request(store: Path) -> Request:
    return Request(16, "float32", "sgd", None, str(store))


@pytest.mark.parametrize("name", ["", "new", "new/folder"])
def test_rows_of_a_store(tmp_path: Path, name: str) -> None:
    rates = kernels._store(request(tmp_path / name), LoneWorld())
    assert 1e2 < rates["stored"] < 1e8
    assert list(tmp_path.iterdir()) == []


def test_time_of_a_processor_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: list[Any] = []

    def seconds(call: Any, world: Any, rounds: int = 1, clock: Any = None) -> float:
        clocks.append(clock)
        call()
        return 0.5

    monkeypatch.setattr(kernels, "_seconds", seconds)
    assert kernels._store(request(tmp_path), LoneWorld()) == {"stored": kernels._STORED / 0.5}
    assert clocks == [kernels.time.process_time]


def test_without_a_store_nothing_is_measured() -> None:
    assert kernels._store(Request(16, "float32", "sgd", None, None), LoneWorld()) == {}


def test_a_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(ConfigError, match="cannot be written .Permission denied.") as raised:
        kernels._store(request(tmp_path / "new"), LoneWorld())
    assert "\n" not in str(raised.value) and str(tmp_path / "new") in str(raised.value)
