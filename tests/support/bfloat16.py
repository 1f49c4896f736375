"""Tests of bfloat16 products, which the oneDNN of MXNet 1.9.1 has only with AVX-512."""

from __future__ import annotations

from pathlib import Path

import pytest

_HAS_PRODUCTS = "avx512bw" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
needs_bfloat16 = pytest.mark.skipif(
    not _HAS_PRODUCTS, reason="this processor has no AVX-512, nor oneDNN bfloat16 products without"
)
