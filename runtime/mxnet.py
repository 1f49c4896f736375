"""The only import of MXNet; all other modules write ``from runtime.mxnet import mx``.

MXNet 1.9.1 uses ``np.bool``, an alias that NumPy 1.24 removed; without it the import fails on
Python 3.12, whose oldest NumPy is 1.26. And MXNet reads its environment variables while it is
imported. Both must be set before, so the import is in one module that no other bypasses.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from runtime import environment
from runtime.errors import ConfigError


def _import_mxnet() -> Any:
    if sys.flags.optimize > 1:
        # It joins the docstrings of its operators while it is imported.
        raise ConfigError(
            "python -OO (PYTHONOPTIMIZE=2) removes docstrings, without which MXNet 1.9.1 cannot be "
            "imported; unset PYTHONOPTIMIZE, or set it to 1"
        )
    # A look into the dictionary, because NumPy 1.20 to 1.23 answers getattr with a warning.
    if "bool" not in vars(np):
        setattr(np, "bool", bool)  # noqa: B010 (typed NumPy does not know the attribute)
    environment.prepare()
    # If they are installed, MXNet imports ONNX for an exporter, scikit-learn for an estimator and
    # SciPy for quantization. None of them is used here: half a second and 50 MB in every rank.
    with environment.leave_out("onnx", "sklearn", "scipy"):
        if "mxnet" not in sys.modules:
            _import_with_late_functions()
        import mxnet
    return mxnet


def _import_with_late_functions() -> None:
    """Import MXNet, which makes the functions of its operators, mx.nd.relu and others, when called.

    By itself it makes 2,500 of them while it is imported, a second in every rank, and a program
    calls about a hundred. Each is compiled from a text that depends on the operator alone.
    """
    spec = importlib.util.find_spec("mxnet")
    if spec is None or spec.loader is None:
        # The import says what is missing.
        return
    package = sys.modules["mxnet"] = importlib.util.module_from_spec(spec)
    try:
        # Before the modules that register operators take these functions from it.
        base = importlib.import_module("mxnet.base")
        for name in ("_init_op_module", "_init_np_op_module"):
            setattr(base, name, _registering_late(getattr(base, name)))
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules["mxnet"]
        raise


def _registering_late(register: Callable[..., None]) -> Callable[..., None]:
    """Return MXNet's function that registers operators, with a late form of their maker."""

    def registering(*arguments: Any, **named: Any) -> None:
        call = inspect.signature(register).bind(*arguments, **named)
        make = call.arguments["make_op_func"]
        call.arguments["make_op_func"] = lambda *operator: _late(make, operator)
        register(*call.args)

    return registering


def _late(make: Callable[..., Any], operator: tuple[Any, ...]) -> Callable[..., Any]:
    """Return a function that becomes an operator's (handle, name, function's name) when called."""
    made = functools.cache(lambda: make(*operator))

    def function(*arguments: Any, **named: Any) -> Any:
        return made()(*arguments, **named)

    function.__name__ = operator[-1]
    # MXNet replaces words in the docstrings of some.
    function.__doc__ = ""
    return function


mx = _import_mxnet()
