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
FOLDERS = "runtime data backbones evaluation parallel partial_fc training benchmarks".split()


def main() -> int:
    """Import the product and the benchmarks, but those for PyTorch."""
    # The last ones are what only functions import.
    names = ["train", "classify", "horovod.mxnet", "mxboard", "sklearn.cluster"]
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names += [name.removesuffix(".__init__")] if "pytorch" not in name else []
    for name in names:
        importlib.import_module(name)
    wrong = pins.unpinned()
    for package in wrong:
        print(f"not pinned: {package}")
    print(f"{len(names)} modules imported, {len(wrong)} packages that are not pinned")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
