"""How kernels for the CPU are compiled, in one place.

Compiling takes seconds, so Numba keeps what it has compiled: beside the source, or in the user's
folder. Where neither can be written (a checkout of somebody else, a container without a home) it
refuses to compile at all, so it is given a folder among the temporary files, which is this user's
alone: what is read from there is run.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Optional

from runtime import environment

# Numba reads its variables while it is imported.
environment.prepare()

import numba  # noqa: E402
from numba.core import config  # noqa: E402


def _compiler(**options: Any) -> Callable[[Any], Any]:
    """The decorator of a kernel, which is kept after it has been compiled, wherever possible."""

    def decorate(function: Any) -> Any:
        with suppress(RuntimeError):
            return numba.njit(cache=True, **options)(function)
        with suppress(RuntimeError):
            folder = _private_folder()
            os.environ["NUMBA_CACHE_DIR"] = config.CACHE_DIR = str(folder or "")
            return numba.njit(cache=True, **options)(function)
        return numba.njit(**options)(function)

    return decorate


def _private_folder() -> Optional[Path]:
    """A folder that only this user can write, the same one each time; None if there can be none."""
    try:
        folder = Path(tempfile.gettempdir()) / f"numba-of-user-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return folder if is_ours and not found.st_mode & 0o077 else None


# Reductions may be reordered and products fused, so that they vectorize; infinities and NaN keep
# their meaning, because a diverged run has to show itself.
_FAST = {"reassoc", "contract", "arcp", "nsz"}

# A kernel whose prange is shared out among the threads of this rank.
parallel_kernel = _compiler(parallel=True, fastmath=_FAST)
# A function of single numbers, compiled into the kernels that call it.
inlined = _compiler(fastmath=_FAST, inline="always")
# What one thread of Python does by itself while another has Python's lock.
unlocked_kernel = _compiler(nogil=True)
