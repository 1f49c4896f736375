"""The only import of MXNet; all other modules write ``from runtime.mxnet import mx``.

MXNet 1.9.1 uses ``np.bool``, an alias that NumPy 1.24 removed; without it the import fails on
Python 3.12, whose oldest NumPy is 1.26. And MXNet reads its environment variables while it is
imported. Both must be set before, so the import is in one module that no other bypasses.
"""

from __future__ import annotations

import numpy as np

from runtime import environment

# In the dictionary, because NumPy 1.20 to 1.23 answers getattr with a warning.
vars(np).setdefault("bool", bool)
environment.prepare()
# If they are installed, MXNet imports ONNX for an exporter, scikit-learn for an estimator and SciPy
# for quantization. None of them is used here: half a second and 50 MB in every rank.
with environment.leave_out("onnx", "sklearn", "scipy"):
    import mxnet as mx

__all__ = ["mx"]
