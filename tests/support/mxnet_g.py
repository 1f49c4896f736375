"""MXNet-G's own files and programs, read and run where they lie; nothing of them is copied here.

The folder of the variable ``TOOLKIT_ORIGINALS`` has the repositories ``CGCL-codes+MXNet-G`` and
``dmlc+ps-lite``. Tests that need them are skipped without it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_FOLDER = Path(os.environ.get("TOOLKIT_ORIGINALS", "/nowhere"))
EXAMPLE = _FOLDER / "CGCL-codes+MXNet-G" / "example" / "image-classification"
NEEDED = pytest.mark.skipif(not EXAMPLE.is_dir(), reason="needs MXNet-G in TOOLKIT_ORIGINALS")


def ranked(folder: Path, addresses: Sequence[str]) -> list[str]:
    """Let ps-lite's own order, compiled, number workers; return their addresses by number."""
    source = (_FOLDER / "dmlc+ps-lite" / "src" / "van.cc").read_text(encoding="utf-8")
    found = re.search(r"(\[\]\(const Node& a, const Node& b\) \{.*?\})\);", source, re.DOTALL)
    assert found is not None
    program = folder / "order.cc"
    program.write_text(
        "#include <algorithm>\n#include <iostream>\n#include <string>\n#include <vector>\n"
        "struct Node { std::string hostname; int port; };\n"
        "int main() {\n  std::vector<Node> nodes; std::string name;\n"
        "  while (std::cin >> name) nodes.push_back({name, int(nodes.size()) + 9000});\n"
        f"  std::sort(nodes.begin(), nodes.end(), {found[1]});\n"
        '  for (auto& node : nodes) std::cout << node.hostname << "\\n";\n}\n'
    )
    subprocess.run(["g++", "-o", program.with_suffix(""), program], check=True)
    told = " ".join(addresses)
    return subprocess.check_output([program.with_suffix("")], input=told, text=True).split()


def choices_of_networks() -> list[str]:
    """All ``choices`` of ``--network`` in its training programs."""
    programs = sorted(EXAMPLE.glob("train_*.py"))
    texts = "".join(path.read_text(encoding="utf-8") for path in programs)
    found = re.findall(r"'--network'[^)]*?choices\s*=\s*\[([^]]*)\]", texts)
    return re.findall(r"'([^']+)'", " ".join(found))


class _State(np.ndarray):
    """An array that is true, as MXNet's was, whatever is in it."""

    def __bool__(self) -> bool:
        return True


class Optimizer:
    """MXNet-G's own ``SGD.update``, on NumPy arrays."""

    def __init__(self, *, batch: int, momentum: float, wd: float) -> None:
        source = EXAMPLE.parents[1] / "python" / "mxnet" / "optimizer.py"
        method = re.search(
            r"^    def update\(self, index, weight, grad, state, worker_num\):.*?(?=^@register)",
            source.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL,
        )  # fmt: skip
        assert method is not None
        scope: dict[str, Any] = {"NDArray": np.ndarray, "clip": np.clip}
        exec(f"class SGD:\n{method[0]}", scope)
        self._sgd = scope["SGD"]()
        self._sgd.rescale_grad, self._sgd.clip_gradient, self._sgd.momentum = batch, None, momentum
        self._sgd._get_wd, self._sgd._update_count = lambda index: wd, lambda index: None
        self._state: Any = None

    def update(self, weight: Any, gradient: Any, lr: float, worker_num: int) -> None:
        if self._state is None:
            self._state = np.zeros_like(weight).view(_State)
        self._sgd._get_lr = lambda index: lr
        self._sgd.update(0, weight, gradient, self._state, worker_num)
