"""Imports run one way, and Horovod and MXNet come in through one door each."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("partial_fc", "backbones", "data", "evaluation", "parallel")
# Programs among the modules: their main is where rooms meet.
PROGRAMS = {"evaluation/verification.py": {"backbones", "data"}}


def imports(path: Path, inside_functions: bool = True) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if inside_functions else iter(tree.body)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def modules(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, folders
    return found


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


ALL = [
    *modules(*ROOMS, "training", "runtime", "benchmarks"),
    *(ROOT / program for program in ("train.py", "classify.py")),
]


@pytest.mark.parametrize("path", ALL, ids=name)
def test_horovod_and_mxnet_have_one_door_each(path: Path) -> None:
    packages = {module.split(".")[0] for module in imports(path)}
    assert ("horovod" in packages) == (name(path) == "parallel/world.py")
    assert ("mxnet" in packages) == (name(path) == "runtime/mxnet.py")


def test_protobuf_comes_in_behind_mxnet_alone() -> None:
    """Its compiled form crashes beside MXNet's unless the import of ours has turned it off."""
    everything = [*ALL, *modules("tests")]
    users = [path for path in everything if imports(path) & {"mxboard", "google.protobuf"}]
    assert [name(path) for path in users] == ["training/log/metric_files.py"]
    text = users[0].read_text(encoding="utf-8")
    assert 0 < text.index("import runtime.mxnet") < text.index("from mxboard import")


@pytest.mark.parametrize("path", modules(*ROOMS), ids=name)
def test_a_room_knows_no_other(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    known = {module.split(".")[0] for module in imports(path)}
    others = known & ({*ROOMS, "training", "train", "classify"} - {room})
    assert others <= PROGRAMS.get(name(path), set())
    at_the_top = {module.split(".")[0] for module in imports(path, inside_functions=False)}
    assert not at_the_top & ({*ROOMS, "training", "train", "classify"} - {room})


@pytest.mark.parametrize("path", modules("runtime"), ids=name)
def test_the_ground_floor_knows_nobody(path: Path) -> None:
    known = {module.split(".")[0] for module in imports(path)}
    assert not known & {*ROOMS, "training", "train", "classify"}
