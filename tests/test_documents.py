"""Files, names and links of the documents exist; their commands: ``tests/newcomer``."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import backbones
from parallel.parameter_server.schemes import SCHEMES
from partial_fc.options import LOSSES
from training.config.presets import PRESETS, RECIPES

pytestmark = pytest.mark.documents

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = {
    path: path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")))
}
ROOMS = ("backbones", "data", "evaluation", "parallel", "partial_fc", "runtime", "training")
REFERENCE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|sh|md))(?:::(\w+))?`")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@lru_cache(maxsize=None)
def names_in(path: Path) -> frozenset[str]:
    """The classes, functions and values at the top of a file."""
    found: list[str] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets: list[Any] = [getattr(node, "target", None)]
        targets = node.targets if isinstance(node, ast.Assign) else targets
        found += [target.id for target in targets if isinstance(target, ast.Name)]
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.append(node.name)
    return frozenset(found)


def test_files_and_names_in_documents_exist() -> None:
    folders = (*ROOMS, "benchmarks", "docs", "examples", "hosts", "setup-utils", "tests")
    inside = chain.from_iterable((ROOT / folder).rglob("*") for folder in folders)
    everything = {path.name for path in (*ROOT.iterdir(), *inside) if path.is_file()}
    wrong = []
    for document, text in DOCUMENTS.items():
        for path, name in REFERENCE.findall(_FENCE.sub("", text)):
            has_file = (ROOT / path).is_file() if "/" in path or name else path in everything
            if not has_file or (name and name not in names_in(ROOT / path)):
                wrong.append(f"{document.name}: {path} {name}")
    assert not wrong, "\n".join(wrong)


def test_links_lead_somewhere() -> None:
    wrong = []
    for document, text in DOCUMENTS.items():
        for target, anchor in _LINK.findall(text):
            path = (document.parent / target).resolve() if target else document
            if target.startswith("http") or (path.exists() and not anchor):
                continue
            titles = re.findall(r"^#+ (.*)$", DOCUMENTS.get(path, ""), re.MULTILINE)
            # As GitHub makes an anchor of a title.
            plain = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            if anchor not in plain:
                wrong.append(f"{document.name}: {target}#{anchor}")
    assert not wrong, "\n".join(wrong)


def test_the_tests_that_the_promises_name_exist() -> None:
    """Names may be cut off with an ellipsis at either end."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    known = "\n".join(name for text in sources for name in re.findall(r"def (test_\w+)", text))
    named = re.findall(r"`((?:…|test_)\w*…?)`", DOCUMENTS[ROOT / "docs/reliability.md"])
    assert len(named) > 5
    patterns = [re.sub("^…|…$", ".*", name) for name in named]
    wrong = [one for one in patterns if not re.search(f"^{one}$", known, re.MULTILINE)]
    assert not wrong, "\n".join(wrong)


def test_documents_name_every_row() -> None:
    wanted = {
        # The presets of made-up identities are named by the first and the last.
        "docs/training.md": [*RECIPES, *(name for name in PRESETS if name[0].isalpha())],
        # All iResNets exist with squeeze and excitation, which one line says.
        "docs/backbones.md": [name.replace(backbones.SE, "") for name in backbones.names()],
        "docs/grouping-sgd.md": SCHEMES,
    }
    for path, names in wanted.items():
        text = DOCUMENTS[ROOT / path]
        missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
        assert not missing, f"{path} says nothing of {missing}"
    mathematics = DOCUMENTS[ROOT / "docs/partial-fc.md"].lower()
    assert [name for name in LOSSES if name != "softmax" and name not in mathematics] == []
