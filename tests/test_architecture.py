"""The rooms of the code: what each may import, how large they are, and how long a function is."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("partial_fc", "backbones", "data", "evaluation", "parallel")
PROGRAMS = ("train.py", "classify.py")
# Programs among the modules: their main is where rooms meet.
ROOMS_OF_PROGRAMS = {
    **{f"evaluation/{name}/__main__.py": {"parallel"}
       for name in ("verification", "embed", "ijb", "clean")},
    "evaluation/compare.py": {"parallel"},
    "evaluation/export/__main__.py": {"backbones"},
    # What several of the programs of this room begin with.
    "evaluation/network.py": {"backbones"},
}  # fmt: skip
# Rooms above others, which all of their modules may import.
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
def imports(path: Path, inside_functions: bool = True) -> frozenset[str]:
    """The modules that a file imports, and what it takes from them."""
    own = tree_of(path).body
    everywhere = (node for _, node in nodes([path], ast.Import, ast.ImportFrom))
    found: set[str] = set()
    for node in everywhere if inside_functions else own:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return frozenset(found)


def roots(path: Path, inside_functions: bool = True) -> set[str]:
    return {module.split(".")[0] for module in imports(path, inside_functions)}


def files_of(path: Path) -> set[Path]:
    """The files of this project that a file imports, but for those of the packages around them."""
    stems = [ROOT / module.replace(".", "/") for module in imports(path)]
    files = {file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py")}
    return {file for file in files if file.exists()}


def reached_from(program: str) -> set[str]:
    reached: set[Path] = set()
    waiting = {ROOT / program}
    while waiting:
        reached |= waiting
        waiting = set().union(*map(files_of, waiting)) - reached
    return {name(path) for path in reached}


PRODUCT = [*modules(*ROOMS, "training", "runtime"), *(ROOT / program for program in PROGRAMS)]
ALL = [*PRODUCT, *modules("benchmarks")]


@pytest.mark.parametrize(
    ("package", "door"),
    [
        ("horovod", "parallel/horovod.py"),
        ("mxnet", "runtime/mxnet.py"),
        ("numba", "runtime/kernels/compiled.py"),
    ],
)
def test_horovod_mxnet_and_numba_have_one_door_each(package: str, door: str) -> None:
    """Whatever reads variables while it is imported is imported behind the environment's table."""
    assert [name(path) for path in ALL if package in roots(path)] == [door]


def test_protobuf_comes_in_behind_mxnet_alone() -> None:
    """Its compiled form crashes beside MXNet's unless our import of MXNet has turned it off."""
    found = {"google.protobuf", "onnx", "mxboard"}
    users = [path for path in (*ALL, *modules("tests")) if (imports(path) | roots(path)) & found]
    doors = ["training/log/metric_files.py", "runtime/untrusted/onnx_model.py"]
    assert [name(path) for path in users] == doors
    mxboard, onnx = map(text_of, users)
    assert 0 < mxboard.index("import runtime.mxnet") < mxboard.index("from mxboard")
    # It sets the environment that the import of MXNet would.
    assert 0 < onnx.index("environment.prepare()") < onnx.index("import onnx\n")


def test_a_room_imports_no_other_and_runtime_none() -> None:
    for path in modules(*ROOMS, "runtime"):
        room = path.relative_to(ROOT).parts[0]
        others = {*ROOMS, "training", "train", "classify"} - {room} - BELOW.get(room, set())
        allowed = ROOMS_OF_PROGRAMS.get(name(path), set())
        assert not roots(path) & others - allowed, name(path)
        assert not roots(path, inside_functions=False) & others, name(path)


def in_circles(known: dict[Path, set[Path]]) -> list[str]:
    """What imports nothing that is left is taken away, until nothing is left or circles."""
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


def test_each_program_loads_what_it_uses_alone() -> None:
    training, classification = reached_from("train.py"), reached_from("classify.py")
    assert not [path for path in training if path.startswith("parallel/parameter_server/")]
    assert "parallel/parameter_server/exchange.py" in classification
    assert not [path for path in classification if path.startswith("partial_fc/")]
    assert "partial_fc/head.py" in training
    faces = {"data/batches/face_loader.py", "data/drawn/faces.py", "training/face_data.py"}
    assert not classification & faces and faces <= training


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
    """So one file tells what a variable does; Horovod's and MXNet's are set before their import."""
    names = ("environ", "getenv", "putenv")
    touching = {name(path) for path, one in nodes(PRODUCT, ast.Attribute) if one.attr in names}
    assert touching and all(path.startswith("runtime/") for path in touching), touching


# Modules that open files of the system and of this project, and temporary ones of this process.
OPENERS = {
    *("parallel/autogroup.py", "parallel/check/facts.py", "runtime/errors.py", "runtime/files.py"),
    *("runtime/kernels/compiled.py", "runtime/processors.py", "runtime/untrusted/child.py"),
    *("setup-utils/check_mxnet.py", "setup-utils/release.py", "setup-utils/site_pages.py"),
    *("training/log/run_log.py", "training/run_folder.py"),
}
METHODS = {"open", "read_bytes", "read_text", "write_bytes", "write_text", "touch"}
FUNCTIONS = {"np": {"load", "fromfile"}, "shutil": {"copy", "copy2", "copyfile", "copytree"}}
# Several files together, and parts of an open one.
OPEN_ONES = ("files", "staged", "self._files", "archive", "tarfile", "gzip")


def opens_a_file(call: ast.Call) -> bool:
    """Return True if a call opens a file by its path."""
    if not isinstance(call.func, ast.Attribute):
        given = ast.unparse(call.args[0]) if call.args else ""
        is_open = "open_kept" in given or given in ("descriptor", "lock")
        return getattr(call.func, "id", "") == "open" and not is_open
    method, owner = call.func.attr, ast.unparse(call.func.value)
    is_method = method in METHODS and owner not in OPEN_ONES
    return is_method or method in FUNCTIONS.get(owner, ())


def test_files_are_opened_in_one_place() -> None:
    found = [
        f"{name(path)}:{call.lineno}"
        for path, call in nodes((*PRODUCT, *modules("setup-utils")), ast.Call)
        if name(path) not in OPENERS and opens_a_file(call)
    ]
    assert not found, "use open_regular, read_file, create or open_kept of runtime/files.py"


def test_command_lines_take_no_abbreviations() -> None:
    """An option of another program is an abbreviation of ours: --mode of --model."""
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
    assert {one.relative_to(tests) for one in tested} == {one.relative_to(ROOT) for one in product}
