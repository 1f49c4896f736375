"""Lets bfloat16 be computed on a processor without AMX tiles, to see what it does to a run.

Python runs this file at its start if ``PYTHONPATH`` names this folder, and behind it the project.
oneDNN computes the same products with AVX-512 then, slowly: the speed says nothing.
"""

from runtime import processors

processors.request_tiles = lambda: True  # type: ignore[assignment]
