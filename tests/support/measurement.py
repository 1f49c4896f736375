"""A benchmark in its smallest form, started by its path as one may also do it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.launch import clean_environment

_BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def measure(name: str, options: str, folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Run a benchmark in a folder; returns its report and its rows."""
    output = folder / "rows.json"
    report = subprocess.run(
        [sys.executable, _BENCHMARKS / f"{name}.py", *options.split(), "--json", output],
        env=clean_environment(),
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return report, json.loads(output.read_text())
