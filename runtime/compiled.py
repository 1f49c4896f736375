"""How kernels for the CPU are compiled, in one place."""

from __future__ import annotations

from runtime import environment

# Numba reads its variables while it is imported.
environment.prepare()

import numba  # noqa: E402

# Reductions may be reordered and products fused, so that they vectorize; infinities and NaN keep
# their meaning, because a diverged run has to show itself.
_FAST = {"reassoc", "contract", "arcp", "nsz"}

# A kernel whose prange is shared out among the threads of this rank.
parallel_kernel = numba.njit(parallel=True, fastmath=_FAST, cache=True)
# A function of single numbers, compiled into the kernels that call it.
inlined = numba.njit(fastmath=_FAST, inline="always", cache=True)
# What one thread of Python does by itself while another has Python's lock.
unlocked_kernel = numba.njit(nogil=True, cache=True)
