"""What each measurement holds for, and a measurement from end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launch import clean_environment
from training.config.faces import parse
from training.plan.keys import Cell, head_key, network_key, store_key

ROOT = Path(__file__).resolve().parents[3]


def test_each_measurement_holds_for_what_it_depends_on() -> None:
    plain = "--dataset 100w --network tiny --dry-run"
    cell, cells = Cell(1, 2), (Cell(1, 2), Cell(2, 1))
    found = {network_key(parse(plain.split()), one) for one in cells}
    different = (
        *("--embedding-size 128", "--net-output E", "--recompute", "--freeze conv0_*"),
        *("--sync-bn", "--optimizer adam --lr 1 --wd 0", "--dtype bfloat16", "--network mbf"),
    )
    found |= {network_key(parse([*plain.split(), *line.split()]), cell) for line in different}
    assert len(found) == 2 + len(different)
    same = "--accumulate 4 --sample-ratio 0.1 --batch-size 8 --num-classes 9"
    assert network_key(parse([*plain.split(), *same.split()]), cell) in found
    narrow = parse([*plain.split(), "--head-dtype", "bfloat16"])
    assert head_key(narrow, cell) != head_key(parse(plain.split()), cell)
    stores = {
        store_key(parse([*plain.split(), *line.split()]), cell)
        for line in ("", "--center-store a", "--center-store b", "--optimizer adam --lr 1 --wd 0")
    }
    assert len(stores) == 4


@pytest.mark.launcher
def test_a_plan_after_measuring(tmp_path: Path) -> None:
    """One rank and two: a time, and memory that was measured."""
    words = "--dataset 100w --network tiny --embedding-size 64 --batch-size 8 --num-classes 2000"
    store = ["--center-store", str(tmp_path / "store")]
    chosen = [*words.split(), *store, "--dry-run", "--calibrate", "--json"]
    command = [sys.executable, "train.py", *chosen]
    done = subprocess.run(
        [*command, "--world-size", "2"],
        cwd=ROOT,
        env={**clean_environment(), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    bases = {item["name"]: item["basis"] for item in plan["memory"]["items"]}
    assert bases["activations"] == bases["libraries"] == "measured"
    assert 2**28 < plan["memory"]["bytes"] < 2**30
    durations = {item["name"]: item for item in plan["time"]["items"]}
    parts = {"backbone", "products", "rows", "store", "softmax", "communication"}
    assert parts < durations.keys() and not (tmp_path / "store").exists()
    assert all(item["seconds"] > 0 for item in durations.values() if item["name"] != "rows")
    (file,) = (tmp_path / "partial-fc").iterdir()
    written = json.loads(file.read_text())
    kinds = ("networks", "heads", "stores", "inputs", "collectives")
    assert [len(written[kind]) for kind in kinds] == [2, 2, 2, 1, 1]
