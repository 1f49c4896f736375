"""Import every module of the project, in one process, and hold its packages against the pins.

``python -m tests.pythons.modules``, with the environment that is to be tried. The compiled
libraries that all of them bring (MXNet's, Horovod's, OpenCV's, LLVM's, protobuf's) have to bear
each other.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from tests.support import pins

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("runtime", "data", "backbones", "evaluation", "parallel", "partial_fc", "training")
PROGRAMS = ("train", "classify")


def main() -> int:
    """Import the product and the benchmarks, but those for PyTorch."""
    # What only functions import.
    names = [*PROGRAMS, "horovod.mxnet", "mxboard", "sklearn.cluster"]
    for folder in (*FOLDERS, "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    names = [name for name in names if "pytorch" not in name]
    for name in names:
        importlib.import_module(name)
    wrong = pins.unpinned()
    for package in wrong:
        print(f"not pinned: {package}")
    print(f"{len(names)} modules imported, {len(wrong)} packages that are not pinned")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
