"""The rooms of the code, what each may import, and the checklists of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import backbones
import tests.partial_fc.test_head as head_tests
from backbones import layers
from benchmarks import grouping
from data import options as data_options
from parallel.parameter_server.assignment import SCHEMES
from partial_fc import margin as margins
from partial_fc import optimizers
from partial_fc.head import PartialFC
from partial_fc.options import LOSSES, HeadOptions
from runtime.errors import ConfigError
from runtime.mxnet import mx
from runtime.state import State
from tests.mutants.selection import imported
from tests.soak import __main__ as soak
from tests.support.thread_world import ThreadWorld, run_ranks
from tests.test_documents import REFERENCE
from training import image_data
from training.config import images
from training.config.presets import RECIPES

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("partial_fc", "backbones", "data", "evaluation", "parallel")
PROGRAMS = ("train.py", "classify.py")
ROOMS_OF_PROGRAMS = {
    **{f"evaluation/{name}/__main__.py": {"parallel"}
       for name in ("verification", "ijb", "clean")},
    "evaluation/embed.py": {"parallel"},
    "evaluation/compare.py": {"parallel"},
    "evaluation/export/__main__.py": {"backbones"},
    "evaluation/network.py": {"backbones"},
}  # fmt: skip
BELOW = {"evaluation": {"data"}}
MODULES_PER_ROOM = 16
LINES_PER_FUNCTION = 60
PARAMETERS = 6


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def modules(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, folders
    return found


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@lru_cache(None)
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def nodes(paths: Iterable[Path], *kinds: type) -> Iterator[tuple[Path, Any]]:
    """Yield the nodes of some kinds of files, without those under ``if TYPE_CHECKING``."""
    for path in paths:
        waiting: list[ast.AST] = [tree_of(path)]
        while waiting:
            node = waiting.pop()
            if isinstance(node, kinds):
                yield path, node
            if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
                waiting += ast.iter_child_nodes(node)


@lru_cache(None)
def imports(path: Path, inside_functions: bool = True) -> set[str]:
    """Return the modules that a file imports, and what it takes from them."""
    found = [node for _, node in nodes([path], ast.Import, ast.ImportFrom)]
    kept = found if inside_functions else [node for node in tree_of(path).body if node in found]
    return imported("\n".join(map(ast.unparse, kept)))


def roots(path: Path, inside_functions: bool = True) -> set[str]:
    return {module.split(".")[0] for module in imports(path, inside_functions)}


def files_of(path: Path) -> set[Path]:
    """Return the files of this project that a file imports, without the packages around them."""
    stems = [ROOT / module.replace(".", "/") for module in imports(path)]
    files = {file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py")}
    return {file for file in files if file.exists()}


PRODUCT = [*modules(*ROOMS, "training", "runtime"), *(ROOT / program for program in PROGRAMS)]
ALL = [*PRODUCT, *modules("benchmarks")]


def test_packages_that_read_variables_have_one_door_each() -> None:
    """They are imported after the table of the environment has been set."""
    for package, door in (
        ("horovod", "parallel/horovod.py"), ("mxnet", "runtime/mxnet.py"),
        ("numba", "runtime/kernels.py"),
    ):  # fmt: skip
        assert [name(path) for path in ALL if package in roots(path)] == [door]
    # The compiled form of protobuf crashes with MXNet's unless our import of MXNet turns it off.
    found = {"google.protobuf", "onnx", "mxboard"}
    users = [path for path in (*ALL, *modules("tests")) if (imports(path) | roots(path)) & found]
    doors = ["training/log/files.py", "runtime/untrusted/onnx_model.py"]
    assert [name(path) for path in users] == doors
    mxboard, onnx = map(text_of, users)
    assert 0 < mxboard.index("import runtime.mxnet") < mxboard.index("from mxboard")
    assert 0 < onnx.index("environment.prepare()") < onnx.index("import onnx\n")


def test_a_room_imports_no_other_and_runtime_none() -> None:
    for path in modules(*ROOMS, "runtime"):
        room = path.relative_to(ROOT).parts[0]
        others = {*ROOMS, "training", "train", "classify"} - {room} - BELOW.get(room, set())
        allowed = ROOMS_OF_PROGRAMS.get(name(path), set())
        assert not roots(path) & others - allowed, name(path)
        assert not roots(path, inside_functions=False) & others, name(path)


def in_circles(known: dict[Path, set[Path]]) -> list[str]:
    """Remove what imports nothing that is left, until only circles are left."""
    while free := {path for path, needed in known.items() if not needed & known.keys()}:
        known = {path: needed for path, needed in known.items() if path not in free}
    return [name(path) for path in known]


def test_modules_and_the_folders_of_a_room_import_each_other_in_one_direction() -> None:
    assert not in_circles({path: files_of(path) - {path} for path in PRODUCT})
    folders: dict[Path, set[Path]] = {}
    for path in PRODUCT:
        # A package's front imports what it leads to, and is imported from there.
        needed = {file.parent for file in files_of(path) if file.name != "__init__.py"}
        folders.setdefault(path.parent, set()).update(needed - {path.parent})
    assert not in_circles({one: needed for one, needed in folders.items() if one.parent != ROOT})


def test_a_room_has_several_modules_and_not_too_many() -> None:
    for folder in {path.parent for path in PRODUCT if path.parent != ROOT}:
        found = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(found) <= MODULES_PER_ROOM, f"{name(folder)} needs rooms of its own"
        lines = sum(text_of(path).count("\n") for path in found)
        assert len(found) > 1 or lines > 200, f"{name(folder)} is a room for one small module"


def test_functions_fit_on_a_screen_and_take_few_parameters() -> None:
    for path, function in nodes(PRODUCT, ast.FunctionDef):
        where, found = f"{name(path)}:{function.name}", function.args
        assert function.end_lineno - function.lineno < LINES_PER_FUNCTION, where
        parameters = {one.arg for one in (*found.posonlyargs, *found.args, *found.kwonlyargs)}
        assert len(parameters - {"self", "cls"}) <= PARAMETERS, where


def test_the_environment_is_read_in_runtime_alone() -> None:
    names = ("environ", "getenv", "putenv")
    touching = {name(path) for path, one in nodes(PRODUCT, ast.Attribute) if one.attr in names}
    assert touching and all(path.startswith("runtime/") for path in touching), touching


# Modules that open files of the system and of this project, and temporary ones of this process.
OPENERS = (
    "parallel/autogroup runtime/errors runtime/files "
    "runtime/kernels runtime/processors runtime/untrusted/child setup-utils/check_libraries "
    "setup-utils/site_pages training/log/run_log training/run_folder"
).split()
METHODS = {"open", "read_bytes", "read_text", "write_bytes", "write_text", "touch"}
FUNCTIONS = {"np": {"load", "fromfile"}, "shutil": {"copy", "copy2", "copyfile", "copytree"}}
OPEN_ONES = ("files", "staged", "self._files", "archive", "tarfile", "gzip")


def opens_a_file(call: ast.Call) -> bool:
    """Return True if a call opens a file by its path."""
    if not isinstance(call.func, ast.Attribute):
        is_guarded = "opener=open_kept" in map(ast.unparse, call.keywords)
        return getattr(call.func, "id", "") == "open" and not is_guarded
    method, owner = call.func.attr, ast.unparse(call.func.value)
    is_method = method in METHODS and owner not in OPEN_ONES
    return is_method or method in FUNCTIONS.get(owner, ())


def test_files_are_opened_in_one_place() -> None:
    found = [
        f"{name(path)}:{call.lineno}"
        for path, call in nodes((*PRODUCT, *modules("setup-utils")), ast.Call)
        if name(path)[: -len(".py")] not in OPENERS and opens_a_file(call)
    ]
    assert not found, "use open_regular, read_file, create or open_kept of runtime/files.py"


def test_command_lines_take_no_abbreviations() -> None:
    for path, node in nodes((*ALL, *modules("setup-utils", "tests")), ast.Call, ast.Attribute):
        if isinstance(node, ast.Attribute):
            assert node.attr != "allow_abbrev" or name(path) == "runtime/command_line.py"
        elif ast.unparse(node.func).endswith("ArgumentParser"):
            given = {one.arg: ast.unparse(one.value) for one in node.keywords}
            assert given.get("allow_abbrev") == "False", name(path)


def test_tests_have_the_folders_of_the_product() -> None:
    rooms, tests = (*ROOMS, "training", "runtime"), ROOT / "tests"
    tested = {path.parent for room in rooms for path in (tests / room).rglob("test_*.py")}
    product = {path.parent for path in modules(*rooms)}
    mirrored = {ROOT / path.relative_to(tests) for path in tested}
    assert mirrored <= product
    # A small folder may be tested in the one above.
    assert [path for path in product if not {path, path.parent} & mirrored] == []


@pytest.mark.documents
def test_every_row_of_a_checklist_names_its_place_and_a_test() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Checklists")[2]
    titles = ["A margin", "A backbone", "A data set", "An exchange scheme"]
    assert re.findall("^### (.*)$", text, re.MULTILINE) == titles
    lines = re.findall(r"^\| (?!do ).*", text, re.MULTILINE)
    assert len(lines) > 20
    for line in lines:
        do, where, fails = re.split(r"(?<!\\)\|", line)[1:-1]
        tests = REFERENCE.findall(fails)
        are_tests = [path[:6] == "tests/" and name[:5] == "test_" for path, name in tests]
        # What is only measured has no test that fails.
        assert REFERENCE.findall(where) and (all(are_tests) if tests else "is measured" in do), do


def test_every_margin_has_a_row_and_is_tested() -> None:
    has_state = {"__call__", "export_state", "load_state"}
    classes = {
        name
        for name, found in vars(margins).items()
        if inspect.isclass(found) and found is not margins.Margin and has_state <= set(dir(found))
    }
    assert classes == {loss.margin for loss in LOSSES.values()}
    tested = {**head_tests.LOSSES, **head_tests.ADAPTIVE_LOSSES}.values()
    made = {type(loss.margin()).__name__ for loss in tested}
    missing = {loss.margin for loss in LOSSES.values()} - made
    assert not missing, f"tests/partial_fc/test_head.py has no row for {missing}"


def as_saved(state: State) -> Any:
    arrays = {name: stored.array for name, stored in state.arrays.items()}
    return SimpleNamespace(
        names=lambda: list(arrays),
        has=state.values.__contains__,
        replicated=lambda name, shape: arrays[name].reshape(shape),
        pieces=lambda name, *_: [(0, arrays[name])],
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_a_margin_continues_where_it_was_saved(loss: str) -> None:
    def step(head: PartialFC, update: int) -> list[Any]:
        generator = np.random.default_rng(update)
        features, labels = generator.normal(size=(6, 4)), generator.integers(10, size=6)
        result = head.step(mx.nd.array(features), labels, update, 0.1)
        return [float(result.loss.asscalar()), *result.gradient.asnumpy().ravel().tolist()]

    def rank_main(world: ThreadWorld) -> None:
        options, shape = HeadOptions(loss=loss, scale=16.0, sample_ratio=0.5), (10, 4)
        head, resumed = (
            PartialFC.create(options, shape, world, mx.cpu(), optimizer=make(), seed=1)
            for make in [lambda: optimizers.build("sgd", 0.9, 5e-4)] * 2
        )
        for update in range(3):
            step(head, update)
        resumed.load_state(as_saved(head.export_state(3)))
        assert step(resumed, 3) == step(head, 3)

    run_ranks(1, rank_main)


def test_every_body_has_a_row() -> None:
    found = inspect.getmembers(layers, inspect.isfunction)
    own = {name for name, body in found if str(body.__doc__).startswith("Return the feature maps")}
    assert own == {architecture.body for architecture in backbones._ARCHITECTURES.values()}


def test_a_data_set_for_classifiers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = {"model": "LeNet", "batch_size": 2, "lr": 0.1, "wd": 0.0, "epochs": 1}
    line = ["--dataset", "letters", "--data-dir", str(tmp_path)]
    monkeypatch.setitem(RECIPES, "letters", recipe)
    with pytest.raises(ConfigError, match="--data-dir .* not with letters"):
        images.parse(line)
    table = data_options._DATASETS_OF_OPTIONS
    monkeypatch.setitem(table, "data_dir", (*table["data_dir"], "letters"))
    config = images.parse(line)
    assert (config.classifier.model, config.data.batch_size) == ("LeNet", 2)
    with pytest.raises(AssertionError):
        image_data.open_images(config.data, seed=1)


def test_nothing_asks_for_a_scheme_by_its_name() -> None:
    paths = (*modules("parallel", "training"), ROOT / "train.py", ROOT / "classify.py")
    for path, node in nodes(paths, ast.Compare):
        compared = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
        assert not compared & set(SCHEMES), f"{path}:{node.lineno}"


def test_every_scheme_is_tested() -> None:
    assert set(grouping.SCHEMES) == set(SCHEMES)
    soaked = {words[words.index("--kv-store") + 1] for words in soak.SCHEMES.values()}
    assert soaked == {name for name, scheme in SCHEMES.items() if not scheme.is_synchronous}
    deaths = (ROOT / "tests" / "parallel" / "test_deaths.py").read_text(encoding="utf-8")
    assert [name for name in SCHEMES if f'"{name}"' not in deaths] == []
