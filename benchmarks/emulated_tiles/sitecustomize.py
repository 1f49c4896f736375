"""Lets bfloat16 be computed on any processor with AVX-512, to see what it does to a run.

Python runs this file at its start if ``PYTHONPATH`` names this folder, and behind it the project.
The graph is that for AMX tiles then, and oneDNN computes its products with AVX-512, on a processor
without AVX512_BF16 slowly: the speed says nothing.
"""

from runtime import processors

processors.request_tiles = lambda: True  # type: ignore[assignment]
