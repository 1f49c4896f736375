"""Selects the test modules of a file: its mirror, those that import it, then those of its users.

Tests that reach it through a program that they start, or through a registry, are in a table.
"""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterable
from pathlib import Path

# Tests that cover files from elsewhere, and patterns of these.
ELSEWHERE = {
    "tests/training/config/test_options.py": "training/config/*",
    "tests/backbones/classifiers/test_classifier.py": "backbones/classifiers/* backbones/model.py",
    "tests/backbones/graph/test_training.py": "backbones/graph/sync*",
    "tests/backbones/test_model.py": "backbones/*",
    "tests/data/pack/test_command.py": "data/pack/image_*",
    "tests/evaluation/test_embed.py": "data/named_images.py",
    "tests/partial_fc/rows/test_rows.py": "partial_fc/rows/host.py",
    "tests/partial_fc/test_head.py": "partial_fc/rows/host.py",
    "tests/partial_fc/store/test_center_store.py": "partial_fc/head.py",
    "tests/device/test_updates.py": "partial_fc/rows/device.py training/update/*",
    "tests/training/update/test_gradients.py": "training/update/*",
    "tests/fuzz/test_links.py": "data/* evaluation/* parallel/* training/* runtime/files.py",
    "tests/setup/test_mpirun.py": "parallel/host_lists.py",
    "tests/parallel/launch/test_command.py": "parallel/launch/guard.py parallel/launch/job.py",
    "tests/parallel/parameter_server/test_jobs.py": (
        "parallel/parameter_server/connections.py parallel/parameter_server/exchange.py "
        "parallel/parameter_server/s[et]* "
        "training/exchange/w* training/update/optimizer.py parallel/launch/launcher.py"
    ),
    "tests/training/checkpoint/test_resume.py": "training/checkpoint/*",
    "tests/distributed/test_parity.py": "parallel/world.py",
    "tests/test_programs.py": "training/checkpoint/resume.py training/run.py",
    "tests/distributed/test_endings.py": "training/exchange/ranks.py",
}
# Tests of programs and of whole updates: what they import makes their data, and is not judged.
_OF_PROGRAMS = ("tests/benchmarks/", "tests/device/", "tests/distributed/", "tests/test_")


def imported(source: str) -> set[str]:
    """Return the modules that a file imports anywhere, and the names that it takes from them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def module_name(path: str) -> str:
    return path[: -len(".py")].replace("/", ".").removesuffix(".__init__")


class Selection:
    def __init__(self, root: Path, folders: Iterable[str]) -> None:
        self._root = root
        product = [path for folder in folders for path in (root / folder).rglob("*.py")]
        self._product = self._imports([*product, *root.glob("*.py")])
        self._tests = self._imports((root / "tests").rglob("test_*.py"))

    def _imports(self, paths: Iterable[Path]) -> dict[str, set[str]]:
        return {
            path.relative_to(self._root).as_posix(): imported(path.read_text(encoding="utf-8"))
            for path in sorted(paths)
        }

    def tests_of(self, path: str) -> tuple[list[str], list[str]]:
        """Return the test modules of a file, and further ones of the files that import it."""
        own, module = self._own(path), module_name(path)
        users = (user for user, known in self._product.items() if module in known)
        further = dict.fromkeys(test for user in users for test in self._own(user))
        return own, [test for test in further if test not in own]

    def _own(self, path: str) -> list[str]:
        module = module_name(path)
        folder, _, file = f"tests/{path}".rpartition("/")
        chosen = [f"{folder}/test_{file.replace('__main__', 'command')}"]
        importing = [test for test, known in self._tests.items() if module in known]
        chosen += [test for test in importing if not test.startswith(_OF_PROGRAMS)]
        for test, patterns in ELSEWHERE.items():
            if any(fnmatch.fnmatch(path, pattern) for pattern in patterns.split()):
                chosen.append(test)
        return [test for test in dict.fromkeys(chosen) if test in self._tests]

    def compiled_users(self, path: str) -> set[str]:
        """Return the files whose compiled kernels hold something of a file, the file included.

        Numba keeps a kernel by its own file, and does not see changes of others.
        """
        compiler = "runtime.kernels"
        compiled = {user for user, known in self._product.items() if compiler in known}
        found, more = set(), {path}
        while more:
            found |= more
            names = {module_name(one) for one in found}
            more = {user for user in compiled - found if self._product[user] & names}
        return found & compiled
