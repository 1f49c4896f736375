"""Types and ranges of operators' attributes, for the table in ``backbones.graph.operators``.

Values are rewritten in the form in which MXNet writes them: older versions and other programs write
``[3L, 3L]`` or ``1`` where this project looks for ``(3, 3)`` or ``True``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Optional

Kind = Callable[[str], Optional[str]]
"""Return the value of an attribute as MXNet writes it; None if it is not allowed."""


def one_of(*words: str) -> Kind:
    """Allow these words."""
    return {word: word for word in words}.get


def flag(value: str) -> Optional[str]:
    """Allow a truth value, which older versions write as a digit."""
    return {"true": "True", "1": "True", "false": "False", "0": "False"}.get(value.lower())


def integer(least: int, most: int) -> Kind:
    """Allow a whole number within bounds; Python 2 has written some with an L."""

    def checked(value: str) -> Optional[str]:
        found = re.fullmatch(r"(-?\d{1,9})L?", value, re.ASCII)
        return str(int(found[1])) if found and least <= int(found[1]) <= most else None

    return checked


def real(least: float, most: float) -> Kind:
    """Allow a finite number within bounds; leading zeros, which Python refuses, are removed."""
    form = re.compile(r"[-+]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][-+]?\d{1,3})?", re.ASCII)

    def checked(value: str) -> Optional[str]:
        if not form.fullmatch(value) or not least <= float(value) <= most:
            return None
        return re.sub(r"^([-+]?)0+(?=\d)", r"\1", value)

    return checked


def optional(kind: Kind) -> Kind:
    """Allow None as well."""
    return lambda value: value if value == "None" else kind(value)


def several(kind: Kind, *counts: int, is_bare_allowed: bool = False) -> Kind:
    """Allow a tuple or list whose length is one of ``counts``, or a bare value."""

    def checked(value: str) -> Optional[str]:
        if value[:1] + value[-1:] not in ("()", "[]"):
            return kind(value) if is_bare_allowed else None
        inner = value[1:-1].strip()
        parts = [kind(part.strip()) for part in re.sub(r", *$", "", inner).split(",") if inner]
        if len(parts) not in counts or None in parts:
            return None
        return f"({', '.join(map(str, parts))}{',' if len(parts) == 1 else ''})"

    return checked


def target_shape(value: str) -> Optional[str]:
    """Allow the shape of a Reshape: sizes, and MXNet's codes 0 to -4.

    MXNet divides by what -4 splits into, and puts the size of -1 at a wrong place after a code that
    stands for more or fewer sizes than one.
    """
    text = several(integer(-4, 1 << 20), *range(1, 9))(value)
    codes = [int(code) for code in re.findall(r"-?\d+", text or "")]
    position, is_inferred, is_moved = 0, False, False
    while position < len(codes):
        code = codes[position]
        if code == -4:
            factors = codes[position + 1 : position + 3]
            is_split = len(factors) == 2 and max(factors) > 0
            if not is_split or any(one < 1 and one != -1 for one in factors):
                return None
        if code == -1 and (is_inferred or is_moved):
            return None
        is_inferred |= code == -1
        is_moved |= code in (-2, -4)
        position += 3 if code == -4 else 1
    return text
