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


FACES = "train.py --dataset 100w --network tiny --embedding-size 64 --num-classes 2000"


@pytest.mark.thorough
@pytest.mark.launcher
@pytest.mark.parametrize(
    ("line", "parts", "entries"),
    [
        (
            f"{FACES} --center-store STORE",
            {"backbone", "products", "rows", "store", "softmax", "head", "communication"},
            {"networks": 2, "heads": 2, "stores": 2, "inputs": 1, "collectives": 1},
        ),
        (
            "classify.py --dataset synthetic --model LeNet",
            {"backbone", "communication"},
            {"networks": 2, "heads": 0, "stores": 0, "inputs": 0, "collectives": 1},
        ),
    ],
)
def test_a_plan_after_measuring(
    line: str, parts: set[str], entries: dict[str, int], tmp_path: Path
) -> None:
    """One rank and two: a time, and memory that was measured."""
    words = line.replace("STORE", f"{tmp_path}/store").split()
    options = "--batch-size 8 --dry-run --calibrate --json --world-size 2".split()
    done = subprocess.run(
        [sys.executable, *words, *options],
        cwd=ROOT, env={**clean_environment(), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    bases = {item["name"]: item["basis"] for item in plan["memory"]["items"]}
    assert bases["activations"] == bases["libraries"] == "measured"
    assert 2**28 < plan["memory"]["bytes"] < 2**30
    durations = {item["name"]: item["seconds"] for item in plan["time"]["items"]}
    assert durations.keys() == parts and not (tmp_path / "store").exists()
    assert all(seconds > 0 for name, seconds in durations.items() if name != "rows")
    (file,) = (tmp_path / "partial-fc").iterdir()
    written = json.loads(file.read_text())
    assert {kind: len(written[kind]) for kind in entries} == entries
