"""Decorators that compile kernels for the CPU with Numba.

Compiling takes seconds, so Numba caches compiled kernels, beside the source or in the user's home.
If it can write neither (a read-only checkout, a container without a home), it refuses to compile;
then the cache is a temporary folder that only this user can write, because what is read from there
is executed.

Numba takes a cached kernel for current as long as the kernel's own file is. But the functions that
it calls are compiled into it, and so are constants of its module: an update of the toolkit that
changes such a function alone would go on with the old one. So what a kernel is made of counts, too.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, Optional

from runtime import environment

# Numba reads its variables while it is imported, and no other module imports it. It imports SciPy
# for products of matrices, which no kernel has: most of a second, and a thread, in every rank.
environment.prepare()
with environment.leave_out("scipy"):
    import numba
    import numpy as np
    from llvmlite import ir as ir
    from numba import extending as extending
    from numba.core import cgutils as cgutils
    from numba.core import config
    from numba.core.registry import cpu_target

    # Numba imports what it has for NumPy's functions here; otherwise with the first kernel.
    cpu_target.target_context.refresh()

# The range of a kernel's loop that is divided among threads.
prange = numba.prange
types = numba.types
carray = numba.carray
_overloaded: set[Any] = set()


def overload(function: Any, **options: Any) -> Any:
    """A decorator of what a kernel compiles for a function, which stands in the same file."""
    _overloaded.add(function)
    return extending.overload(function, **options)


def _compiler(**options: Any) -> Callable[[Any], Any]:
    """A decorator that compiles a function, and caches the result if any folder can be written."""

    def decorate(function: Any) -> Any:
        with suppress(RuntimeError):
            return _cached(function, options)
        with suppress(RuntimeError):
            folder = _private_folder()
            os.environ["NUMBA_CACHE_DIR"] = config.CACHE_DIR = str(folder or "")
            return _cached(function, options)
        return numba.njit(**options)(function)

    return decorate


def _cached(function: Any, options: dict[str, Any]) -> Any:
    kernel = numba.njit(cache=True, **options)(function)
    # Numba 0.60, which is pinned: it compares the stamp of the index file with this one.
    file = kernel._cache._cache_file
    file._source_stamp = (file._source_stamp, _digest(function))
    # A full disk leaves a kernel out of the cache, and does not end the run. (On Windows, where
    # processes get in each other's way, Numba itself ignores such errors here.)
    kernel._cache._guard_against_spurious_io_errors = lambda: suppress(OSError)
    return kernel


def _digest(function: Any) -> str:
    """A hash of what is compiled into a function: those that it calls, and constants."""
    found, waiting, parts = {function}, [function], []
    while waiting:
        caller = waiting.pop()
        for name in sorted(caller.__code__.co_names):
            value = caller.__globals__.get(name)
            is_overloaded = isinstance(value, FunctionType) and value in _overloaded
            called = getattr(value, "py_func", value if is_overloaded else None)
            # Of an intrinsic, what makes its code.
            called = getattr(value, "_defn", called)
            if isinstance(value, _CONSTANTS):
                parts.append(f"{name}={value!r}")
            elif called is not None and called not in found:
                found.add(called)
                waiting.append(called)
    sources = {inspect.getsourcefile(called) for called in found - {function}}
    parts += [Path(source).read_text(encoding="utf-8") for source in sorted(filter(None, sources))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


_CONSTANTS = (bool, int, float, str, tuple, np.generic)


def _private_folder() -> Optional[Path]:
    """A folder that only this user can write, the same in each process; None if impossible."""
    try:
        folder = Path(tempfile.gettempdir()) / f"numba-of-user-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return folder if is_ours and not found.st_mode & 0o077 else None


# Products may be fused with sums. Infinities and NaN keep their meaning, so that a diverged run is
# detected. Nothing is reordered (see ``runtime.kernels.sums``).
_FAST = {"contract", "nsz"}


@functools.lru_cache(maxsize=None)
def _launch() -> None:
    """Load Numba's layer over OpenMP.

    It allows the thread that loads it threads below threads. On that of MXNet's engine, operators
    would get some, more than there are processors, for a tenth of a training step.
    """
    loader = threading.Thread(target=lambda: numba.set_num_threads(config.NUMBA_NUM_THREADS))
    loader.start()
    loader.join()


def parallel_kernel(function: Any) -> Callable[..., Any]:
    """A kernel whose prange is divided among the threads of this rank that MXNet's operators use.

    MXNet's engine calls it, and the caller waits (see ``runtime.ndarray.queue`` for those who have
    others to queue); arguments are positional.
    """
    # Without Python's lock: Python queues what follows meanwhile.
    kernel = _compiler(parallel=True, fastmath=_FAST, nogil=True)(function)

    @functools.wraps(function)
    def call(*arrays: Any) -> Any:
        _launch()
        # Loaders of images use this module and do without MXNet.
        from runtime.engine import run_on_engine

        return run_on_engine(lambda: kernel(*arrays))

    return call


# A function of single numbers, compiled into the kernels that call it.
inlined = _compiler(fastmath=_FAST, inline="always")
# The same for numbers that are to be equal on every processor: nothing is fused.
exactly_inlined = _compiler(inline="always")
# A kernel of one thread that releases Python's lock while it runs.
unlocked_kernel = _compiler(nogil=True)
