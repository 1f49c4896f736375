"""The attributes of an operator of MXNet, read once each, so that none is left out by mistake.

An attribute that a translation does not know may change what the operator computes. So a
translation takes what it knows, and whatever is left is an error that names the node.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Optional

# They say how to compute, not what; or what the inputs say as well.
_WITHOUT_EFFECT = frozenset(
    "no_bias num_args num_filter num_hidden cudnn_off cudnn_tune workspace momentum "
    "use_global_stats use_length".split()
)
_PYTHON_2_INTEGER = re.compile(r"(\d)L\b")


class UnknownOperatorError(Exception):
    """ONNX gets no node for an operator, or for one of its attributes; the message names it."""


class Attributes:
    """The attributes of one node, as MXNet writes them: text."""

    def __init__(self, found: Mapping[str, str]) -> None:
        self._left = {key: text for key, text in found.items() if key not in _WITHOUT_EFFECT}

    def text(self, key: str, default: str) -> str:
        """Take a name."""
        return self._left.pop(key, default)

    def number(self, key: str, default: float) -> float:
        """Take a number."""
        return float(self._left.pop(key, default))

    def integer(self, key: str, default: int) -> int:
        """Take a whole number."""
        return int(self._value(key, default))

    def flag(self, key: str, default: bool) -> bool:
        """Take a truth value, which older versions write as a digit."""
        return self._left.pop(key, str(default)).lower() in ("true", "1")

    def numbers(self, key: str, default: tuple[float, ...] = ()) -> tuple[Any, ...]:
        """Take several numbers, of which some may be None; one without parentheses is one."""
        value = self._value(key, default)
        return tuple(value) if isinstance(value, (tuple, list)) else (value,)

    def optional(self, key: str) -> Optional[int]:
        """Take a whole number, or None."""
        value = self._value(key, None)
        return None if value is None else int(value)

    def expect(self, key: str, *values: str) -> None:
        """Take an attribute that may only have these values, if it is there."""
        found = self._left.get(key)
        if found is None or found in values:
            self._left.pop(key, None)

    def check_all_taken(self) -> None:
        """Raise ``UnknownOperatorError`` for attributes that nothing has taken."""
        if self._left:
            listed = ", ".join(f"{key} = {text:.40}" for key, text in sorted(self._left.items()))
            raise UnknownOperatorError(f"has {listed}, for which there is no translation")

    def _value(self, key: str, default: Any) -> Any:
        text = self._left.pop(key, None)
        if text is None:
            return default
        return ast.literal_eval(_PYTHON_2_INTEGER.sub(r"\1", text))
