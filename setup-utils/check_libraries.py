"""Check that MXNet or Horovod loads, and with which libraries.

    python setup-utils/check_libraries.py mxnet 11.2
    python setup-utils/check_libraries.py horovod

MXNet's CUDA libraries have to be those of its package; 11.2 is the CUDA version of the package,
empty for the CPU's. Exits with status 1 if something does not fit; the last line that it prints
says what. The loader takes the first library of the right name, which does not tell for which CUDA
version cuDNN was built, or how old CUDA is.

Of Horovod it prints the parts in the words of ``horovodrun --check-build``, which starts a process
for each pair of part and framework: a minute on a busy machine.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import Optional

_MAPPED_FILE = re.compile(r"\s(/.*/(lib(?:cudnn|cudart)\.so[.\d]*))$", re.MULTILINE)


def print_parts() -> None:
    """Print what Horovod is built with."""
    import horovod.mxnet as hvd

    parts = {"MPI": hvd.mpi_built(), "Gloo": hvd.gloo_built(), "NCCL": hvd.nccl_built()}
    for part, is_built in {"MXNet": True, **parts}.items():
        print(f"[{'X' if is_built else ' '}] {part}")


def mistake(cuda: str) -> Optional[str]:
    """Return the first thing that is wrong with MXNet's libraries, or None."""
    import mxnet  # noqa: F401

    if not cuda:
        return None
    # By path: libraries of MXNet are not visible to others by name.
    libraries = {
        name.partition(".")[0]: path
        for path, name in _MAPPED_FILE.findall(Path("/proc/self/maps").read_text())
    }
    major, minor = map(int, cuda.split("."))
    cudart, found = libraries["libcudart"], ctypes.c_int()
    # Without a GPU, as where images of containers are built, the runtime does not say. It serves
    # packages of its own version and of earlier ones with the same name.
    has_failed = ctypes.CDLL(cudart).cudaRuntimeGetVersion(ctypes.byref(found))
    if not has_failed and found.value // 10 < 100 * major + minor:
        return f"{cudart} is of CUDA {_dotted(found.value)}, older than the package's {cuda}"
    # A cuDNN loads the CUDA libraries that it was built for; those of CUDA 11 are one family.
    cudnn = libraries["libcudnn"]
    get_version = ctypes.CDLL(cudnn).cudnnGetCudartVersion
    get_version.restype = ctypes.c_size_t
    built_for = get_version()
    if _dotted(built_for) == cuda or built_for // 1000 == major == 11:
        return None
    return f"{cudnn} is a cuDNN for CUDA {_dotted(built_for)}, not for the package's {cuda}"


def _dotted(number: int) -> str:
    """Return 11.2 for 11020, as CUDA writes versions."""
    return f"{number // 1000}.{number % 1000 // 10}"


if __name__ == "__main__":
    package, *cuda_of_package = sys.argv[1:]
    if package == "horovod":
        print_parts()
    elif said := mistake(*cuda_of_package):
        print(said)
        sys.exit(1)
