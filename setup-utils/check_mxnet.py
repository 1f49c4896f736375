"""Check that MXNet loads, and that the CUDA libraries it has loaded are those of its package.

    python setup-utils/check_mxnet.py 11.2

The argument is the CUDA version of the package, empty for the CPU's. Exits with status 1 if
something does not fit; the last line that it prints says what. The loader takes the first library
of the right name, which does not tell for which CUDA version cuDNN was built, or how old CUDA is.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import Optional

_MAPPED_FILE = re.compile(r"\s(/.*/(lib(?:cudnn|cudart)\.so[.\d]*))$", re.MULTILINE)


def main(cuda: str) -> Optional[str]:
    """The first thing that is wrong, or None."""
    import mxnet  # noqa: F401

    if not cuda:
        return None
    # By path: libraries of MXNet are not visible to others by name.
    libraries = {
        name.partition(".")[0]: path
        for path, name in _MAPPED_FILE.findall(Path("/proc/self/maps").read_text())
    }
    wanted = _version_of(cuda)
    return _cudart_mistake(libraries["libcudart"], wanted) or _cudnn_mistake(
        libraries["libcudnn"], wanted
    )


def _cudart_mistake(path: str, wanted: tuple[int, int]) -> Optional[str]:
    """The runtime serves packages of its own version and of earlier ones with the same name."""
    number = ctypes.c_int()
    # Without a GPU, as where images of containers are built, the runtime does not say.
    has_failed = ctypes.CDLL(path).cudaRuntimeGetVersion(ctypes.byref(number))
    found = _unpacked(number.value)
    if has_failed or found >= wanted:
        return None
    return f"{path} is of CUDA {_text(found)}, older than the package's {_text(wanted)}"


def _cudnn_mistake(path: str, wanted: tuple[int, int]) -> Optional[str]:
    """A cuDNN loads the CUDA libraries that it was built for; those of CUDA 11 are one family."""
    get_version = ctypes.CDLL(path).cudnnGetCudartVersion
    get_version.restype = ctypes.c_size_t
    found = _unpacked(get_version())
    if found == wanted or found[0] == wanted[0] == 11:
        return None
    return f"{path} is a cuDNN for CUDA {_text(found)}, not for the package's {_text(wanted)}"


def _version_of(text: str) -> tuple[int, int]:
    major, minor = map(int, text.split("."))
    return major, minor


def _unpacked(number: int) -> tuple[int, int]:
    """As CUDA writes versions: 11020 is 11.2."""
    return number // 1000, number % 1000 // 10


def _text(version: tuple[int, int]) -> str:
    return "{}.{}".format(*version)


if __name__ == "__main__":
    mistake = main(sys.argv[1])
    if mistake:
        print(mistake)
        sys.exit(1)
