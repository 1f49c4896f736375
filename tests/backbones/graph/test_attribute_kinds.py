from __future__ import annotations

from typing import Optional

import pytest

from backbones.graph.attribute_kinds import (
    Kind,
    flag,
    integer,
    one_of,
    optional,
    real,
    several,
    target_shape,
)

SIDES = several(integer(1, 1024), 0, 2)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (one_of("relu", "tanh"), "tanh", "tanh"),
        (one_of("relu", "tanh"), "Tanh", None),
        (flag, "true", "True"),
        (flag, "0", "False"),
        (flag, "2", None),
        (integer(1, 7), "7", "7"),
        (integer(1, 7), "3L", "3"),
        (integer(0, 7), "-0", "0"),
        (integer(1, 7), "8", None),
        (integer(1, 7), "0", None),
        # MXNet makes 4294967295 of it.
        (integer(1, 7), "-1", None),
        (integer(1, 7), "1.0", None),
        (integer(1, 7), "0x1", None),
        (integer(1, 7), "١", None),
        (real(0, 1), "2e-05", "2e-05"),
        (real(0, 1), "1.", "1."),
        # Python reads no such number.
        (real(0, 9), "007", "7"),
        (real(-9, 9), "-00.50", "-0.50"),
        (real(0, 9), "00", "0"),
        (real(0, 9), "0.05", "0.05"),
        (real(0, 1), "1.5", None),
        (real(0, 1), "nan", None),
        (real(-1e300, 1e300), "inf", None),
        (real(-1e300, 1e300), "1e999", None),
        (real(-1e300, 1e300), "1_0", None),
        (optional(flag), "None", "None"),
        (flag, "None", None),
        (SIDES, "[3L, 3L]", "(3, 3)"),
        (SIDES, "(3,5)", "(3, 5)"),
        (SIDES, "()", "()"),
        (SIDES, "(3,)", None),
        (SIDES, "(3, 3, 3)", None),
        (SIDES, "(3, )3", None),
        (SIDES, "(,)", None),
        (SIDES, "(0, 3)", None),
        (SIDES, "3", None),
        (several(integer(1, 9), 1, is_bare_allowed=True), "3", "3"),
        (several(integer(1, 9), 1), "[3]", "(3,)"),
    ],
)
def test_values_are_as_mxnet_writes_them(kind: Kind, value: str, expected: Optional[str]) -> None:
    assert kind(value) == expected


@pytest.mark.parametrize("value", ["(0, -1)", "(0, -4, 2, -1, -2)", "(0, -3, -2)", "(8, 6)"])
def test_target_shapes_that_networks_have(value: str) -> None:
    assert target_shape(value) == value


@pytest.mark.parametrize(
    "value",
    [
        # MXNet divides by the other factor.
        "(-4, 0, -1)", "(0, -4, -1, 0)", "(-4, -1, -1)", "(-4, -2, 3)", "(-4, 2)",
        # It writes the size of -1 beyond the end of the shape.
        "(-4, 1, 2, -4, 1, 2, -4, 1, -1)"[:-4] + "2, -1)", "(-2, -1)", "(-1, -1)",
        # It takes any other negative number for a size.
        "(-5, 7)", "(-2147483648,)", "()", "-1", "(0, 0, 0, 0, 0, 0, 0, 0, 0)", "(1048577,)",
    ],
)  # fmt: skip
def test_target_shapes_that_end_mxnet_are_refused(value: str) -> None:
    assert target_shape(value) is None
