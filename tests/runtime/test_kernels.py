import errno
import hashlib
import os
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numba.core import caching, config

from partial_fc import optimizers
from partial_fc.rows import host
from runtime import processors
from runtime.kernels import LANES, product_of, unlocked_kernel
from tests.support.launch import finish
from training.update import rules as backbone_rules

# Vectors with a rest behind the whole lanes.
ROWS, SAMPLED, BATCH, LENGTH = 300, 150, 32, 200
# Another processor, for which Numba compiles then: Intel's Haswell has no AVX-512.
AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+bmi,+bmi2,+fma,+lzcnt,+popcnt,+sse4.2",
}
KERNEL = """
from runtime.kernels import unlocked_kernel

@unlocked_kernel
def doubled(x):
    return 2 * x
"""
CALLED = """
from runtime.kernels import inlined

@inlined
def helper(x):
    return x + 1
"""
CALLERS = """
from called import helper
from constants import OFFSET
from runtime.kernels import inlined, unlocked_kernel

@inlined
def between(x):
    return helper(x)

@unlocked_kernel
def of_helper(x):
    return between(x)

@unlocked_kernel
def of_constant(x):
    return x + 1 + OFFSET
"""
RUN = """
import callers
kernels = [getattr(callers, f"of_{name}") for name in ("helper", "constant")]
print(*(kernel(0) for kernel in kernels), *(bool(kernel.stats.cache_hits) for kernel in kernels))
"""


@unlocked_kernel
def _product(first, second):
    return product_of(first, second)


@pytest.mark.parametrize("length", [0, 1, LANES - 1, LANES, LANES + 1, 3 * LANES + 7])
@pytest.mark.parametrize("types", ["ff", "fb", "bf", "bb"])
def test_every_number_counts_once(length: int, types: str) -> None:
    """Powers of two, whose products and sums are exact in either type."""
    generator = np.random.default_rng(length)
    given = [2.0 ** generator.integers(-3, 4, length) for _ in types]
    given[0] *= generator.choice([-1, 1], length)
    vectors = [
        bfloat16_of(values) if kind == "b" else values.astype(np.float32)
        for kind, values in zip(types, given)
    ]
    assert _product(*vectors) == np.dot(*given)


def bfloat16_of(values: Any) -> Any:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def main() -> None:
    """Print a digest of what each kernel that adds up or fuses makes of the same numbers."""
    generator = np.random.default_rng(1)

    def normal(*shape: int) -> Any:
        return generator.standard_normal(shape, np.float32)

    centers, momenta, gradient = normal(ROWS, LENGTH), normal(ROWS, LENGTH), normal(SAMPLED, LENGTH)
    rows = np.sort(generator.permutation(ROWS)[:SAMPLED])
    units, inverse_norms = np.empty_like(gradient), np.empty(SAMPLED, np.float32)
    host._normalize(centers, rows, units, inverse_norms)
    tell("normalize", units, inverse_norms)

    arrays = [centers.copy(), momenta.copy()]
    rates: Any = tuple(floats([0.1, 0.9, 5e-4]))
    optimizers._sgd(*arrays, rows, inverse_norms, gradient, rates)
    tell("sgd", *arrays)
    arrays = [momenta.copy(), momenta**2, np.full(ROWS, 3, np.int32)]
    rates = (0.1, 0.9, 0.999, *floats([1e-8, 5e-4, 1.0]))
    optimizers._adam(centers, tuple(arrays), rows, inverse_norms, gradient, rates)
    tell("adam", centers, *arrays)

    bounds, hardness = np.array([0, 70, SAMPLED]), np.full(1, 0.3, np.float32)
    rules = np.float32(60), np.full(BATCH, 10, np.float32), hardness, np.float32(1 / 64)
    targets = 70 * np.arange(BATCH), floats([0, 1] * (BATCH // 2)), normal(BATCH)
    logits = 10 * normal(BATCH * SAMPLED)
    shift, sums = np.empty(BATCH, np.float32), np.empty(BATCH, np.float32)
    host._exponentiate(logits, bounds, targets, shift, sums, rules)
    tell("exponentials", logits, shift, sums)

    arrays = [normal(4_001) for _ in range(3)]
    addresses = np.array([[array.ctypes.data] for array in arrays], np.uintp)
    rates = floats([[0.1], [5e-4]]), floats([0.9, 0.5])
    backbone_rules._move(addresses, np.array([0, 4_001]), *rates)
    tell("sgd of a backbone", *arrays)


def floats(values: Any) -> Any:
    return np.array(values, np.float32)


def tell(name: str, *arrays: Any) -> None:
    print(name, hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest())


def digests(cache: Path, **variables: Any) -> list[str]:
    words = (sys.executable, "-m", "tests.runtime.test_kernels")
    return finish(*words, NUMBA_CACHE_DIR=str(cache), **variables).stdout.splitlines()


@pytest.mark.thorough
def test_bits_depend_on_no_cache_thread_or_vector_unit(tmp_path: Path) -> None:
    """Else a resumed run could end with other numbers, if its first process was the first."""
    compiled = digests(tmp_path)
    assert len(compiled) == 5 and list(tmp_path.rglob("*.nbc"))
    # From the cache, too.
    assert digests(tmp_path, OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1") == compiled
    if processors.has_avx512():
        assert digests(tmp_path, **AVX2) == compiled


def kernel(source: Path) -> Any:
    (source / "kernels.py").write_text(KERNEL)
    return runpy.run_path(str(source / "kernels.py"))["doubled"]


def test_without_a_folder_or_on_a_full_disk_nothing_is_cached(tmp_path, monkeypatch) -> None:
    """In which root, too, can make no folder."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "__pycache__").write_text("no folder")
    with monkeypatch.context() as patch:
        patch.setattr(config, "CACHE_DIR", "")
        patch.setenv("HOME", str(source / "__pycache__"))
        patch.delenv("XDG_CACHE_HOME", raising=False)
        assert kernel(source)(21) == 42
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(caching.IndexDataCacheFile, "save", Mock(side_effect=full))
    assert kernel(source)(21) == 42 and not list(tmp_path.rglob("*.nbi"))


def test_a_kernel_is_compiled_anew_if_what_it_calls_has_changed(tmp_path: Path) -> None:
    """In new processes, as after an update, with the file of the kernel as old as it was."""
    (tmp_path / "called.py").write_text(CALLED)
    (tmp_path / "callers.py").write_text(CALLERS)
    (tmp_path / "constants.py").write_text("OFFSET = 0")

    def run() -> str:
        places: dict[str, Any]
        places = {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        return finish(sys.executable, "-B", "-c", RUN, **places).stdout.strip()

    assert run() == "1 1 False False"
    assert run() == "1 1 True True"
    (tmp_path / "called.py").write_text(CALLED.replace("+ 1", "+ 5"))
    assert run() == "5 1 False True"
    # A constant of another file; that of the kernel's file is as old as it was.
    (tmp_path / "constants.py").write_text("OFFSET = 2")
    assert run() == "5 3 True False"


if __name__ == "__main__":
    main()
