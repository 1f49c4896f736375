"""The benchmark of the store measures a head with it and without, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import center_store

SMALL = ["--classes", "400", "--ratio", "0.1", "--batch", "8", "--embedding", "16"]
SMALL += ["--updates", "3"]


@pytest.mark.parametrize(
    "further", [[], ["--fill"], ["--in-memory"], ["--network", "tiny"]], ids=" ".join
)
def test_the_program_reports(tmp_path: Path, further: list[str], capsys) -> None:
    center_store.main([*SMALL, "--folder", str(tmp_path), *further])
    lines = [line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    numbers = {name: float(number) for name, number in lines}
    assert 0 < numbers["an update"] <= numbers["slowest"]
    assert 0 <= numbers["waiting for rows"] < 1
    assert ("GiB on the disk" in numbers) == ("--in-memory" not in further)
    assert not list(tmp_path.iterdir())
