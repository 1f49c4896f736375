"""Files, names, links and commands that the documents name exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

import backbones
from parallel.parameter_server.schemes import SCHEMES
from partial_fc.options import LOSSES
from training.config.presets import PRESETS, RECIPES

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = ("backbones", "data", "evaluation", "parallel", "partial_fc", "runtime", "training")
EACH = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)

REFERENCE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|sh|md))(?:::(\w+))?`")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_MOVE = re.compile(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", re.MULTILINE)


@lru_cache(maxsize=None)
def names_in(path: Path) -> frozenset[str]:
    """The classes, functions and values at the top of a file."""
    found: list[str] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append(node.target.id)
    return frozenset(found)


@EACH
def test_files_and_names_in_documents_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    everything = {path.name for path in _repository()}
    for path, name in REFERENCE.findall(_FENCE.sub("", text)):
        if "/" in path or name:
            assert (ROOT / path).is_file(), path
        else:
            assert path in everything, path
        if name:
            assert name in names_in(ROOT / path), f"{path}::{name}"


@EACH
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in _LINK.findall(document.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path = (document.parent / target).resolve() if target else document
        assert path.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {_anchor(title) for title in titles}, f"{target}#{anchor}"


@EACH
def test_commands_in_documents_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for names in re.findall(r"`(?:[A-Z_]+=\S+ )*make ([a-z ]+?)(?: [A-Z]+=\S+)*`", text):
        assert set(names.split()) <= targets, names
    for module in re.findall(r"python -m ([a-z_][\w.]*\w)", text):
        if module.split(".")[0] not in (*ROOMS, "benchmarks", "tests") or module.endswith("NAME"):
            continue
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_the_tests_that_the_promises_name_exist() -> None:
    """Names may be cut off with an ellipsis at either end."""
    known = "\n".join(
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    )
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = [name for name in re.findall(r"`(…?\w+…?)`", text) if name.startswith(("test_", "…"))]
    assert len(named) > 5
    for name in named:
        begin = "" if name.startswith("…") else "^"
        end = "" if name.endswith("…") else "$"
        assert re.search(f"{begin}{name.strip('…')}{end}", known, re.MULTILINE), name


def test_modules_that_have_moved_are_where_the_changes_say() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    moves = _MOVE.findall(text)
    assert len(moves) > 50
    for old, new in moves:
        path = ROOT / new.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), new
        assert not (ROOT / old.replace(".", "/")).with_suffix(".py").is_file(), old


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.name for path in folder.glob("0*.md"))
    assert pages == re.findall(r"^\| \[\d{4}\]\((.*?)\)", index, re.MULTILINE)
    assert [page[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    for page in pages:
        text = (folder / page).read_text(encoding="utf-8")
        sections = ("Context", "Options", "Measured", "Decision", "Consequences")
        assert re.findall("^## (.*)$", text, re.MULTILINE) == list(sections), page


def test_documents_name_every_row() -> None:
    def of(path: str) -> str:
        return (ROOT / path).read_text(encoding="utf-8")

    wanted = {
        # The presets of made-up identities are named by the first and the last.
        "docs/training.md": [*RECIPES, *(name for name in PRESETS if name[0].isalpha())],
        # All iResNets exist with squeeze and excitation, which one line says.
        "docs/backbones.md": [name.replace(backbones.SE, "") for name in backbones.names()],
        "docs/grouping-sgd.md": SCHEMES,
    }
    for path, names in wanted.items():
        text = of(path)
        missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
        assert not missing, f"{path} says nothing of {missing}"
    mathematics = of("docs/partial-fc.md").lower()
    assert [name for name in LOSSES if name != "softmax" and name not in mathematics] == []


def _repository() -> Iterator[Path]:
    for folder in (*ROOMS, "benchmarks", "docs", "examples", "hosts", "setup-utils", "tests"):
        yield from (path for path in (ROOT / folder).rglob("*") if path.is_file())
    yield from (path for path in ROOT.iterdir() if path.is_file())


def _anchor(title: str) -> str:
    """As GitHub makes one of a title."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
